"""The backend "dldist" of torch.distributed: failures, start and end, and other backends."""

import dldist
import pytest
import torch_backend_faults as workers
from procs import under_load

pytestmark = [pytest.mark.torch, pytest.mark.deadline(120)]

START_S = 60.0  # mostly the import of torch


@pytest.fixture
def run(procs):
    """Return a function that starts the ranks of a worker and returns the children and the store,
    which is kept."""
    stores = []

    def start(worker, size=2, env=None):
        store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
        stores.append(store)
        return [procs.start(worker, store.port, rank, size, env=env) for rank in range(size)]

    yield start
    stores.clear()


def names(report, *kinds):
    return all(kind in report[0] for kind in kinds)


def test_torch_backend_names_a_killed_rank(run):
    first, second = run(workers.killed)
    assert first.recv(START_S) is True and second.recv(START_S) is True
    (backward, reduction), error, future = first.result(START_S)
    for report in (backward, reduction):
        assert "rank 1" in report[1] and report[2] < under_load(3), report
    assert names(reduction, "dldist.DistPeerLostError", "torch.DistBackendError", "dldist.DistError", "builtins.RuntimeError")
    assert error is True
    assert "rank 1" in future[1], future


def test_timeout_of_the_torch_backend_names_the_late_rank(run):
    first, second = run(workers.timed_out)
    assert first.recv(START_S) == second.recv(START_S) == "done"
    for child in (first, second):
        child.send("end")
    report = first.result(START_S)
    assert "rank 1" in report[1] and 0.3 <= report[2] < 2, report
    assert names(report, "dldist.DistTimeoutError", "builtins.TimeoutError", "torch.DistBackendError")


def test_timeout_of_a_torch_subgroup_names_the_late_rank(run):
    first, second = run(workers.groups_timeout)
    assert first.recv(START_S) == second.recv(START_S) == "done"
    for child in (first, second):
        child.send("end")
    report = first.result(START_S)
    assert "rank 1" in report[1] and report[2] < 2, report


def test_monitored_barrier_of_the_torch_backend_names_the_missing_rank(run):
    children = run(workers.monitored, 3)
    assert [child.recv(START_S) for child in children] == ["done"] * 3
    for child in children:
        child.send("end")
    report = children[0].result(START_S)
    assert "1" in report[1] and "2" in report[1] and names(report, "builtins.RuntimeError"), report


def test_torch_backend_reports_a_mismatch_on_all_ranks(run):
    for report in [child.result(START_S) for child in run(workers.mismatched)]:
        assert names(report, "dldist.DistMismatchError", "torch.DistBackendError"), report


def test_abort_of_the_torch_backend_ends_pending_calls(run):
    first, second = run(workers.aborted)
    report = first.result(START_S)
    assert names(report, "dldist.DistAbortedError", "torch.DistBackendError") and report[2] < 5, report
    second.send("end")


def test_torch_process_groups_can_be_created_and_destroyed_repeatedly(run):
    assert [child.result(START_S) for child in run(workers.init_again)] == [[2.0] * 3] * 2


def test_torch_backend_works_with_debug_level_detail(run):
    environment = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    assert [child.result(START_S) for child in run(workers.debugged, env=environment)] == [4.0] * 2


def test_other_devices_of_a_torch_group_have_their_own_backends(run):
    in_python = {"DLDIST_TORCH_BACKEND": "python"}  # in C++, torch's group handles this
    for total, calls in [child.result(START_S) for child in run(workers.other_devices, env=in_python)]:
        assert total == 4.0 and calls.count("meta") == 3 and calls[-1] == "shutdown"


@pytest.mark.parametrize("way", ["c++", "python"])
def test_cpu_of_a_torch_group_may_use_another_backend(run, way):
    environment = {"DLDIST_TORCH_BACKEND": way}
    assert [child.result(START_S) for child in run(workers.gloo_for_the_cpu, env=environment)] == [(2.0, "gloo")] * 2
