"""NCCL groups that end while operations are pending: these must be carried out or reported. Over
the stubs of tests/stubs."""

import time

import dldist
import leak_check
import nccl_shutdown_workers
import nccl_stubs
import procs
import pytest

VERSION = "2.32.3"
SUM = [10.0] * 4
# otherwise the first rank to end would pass its error on to the other
NOT_SYNCHRONIZED = {"DLDIST_PROPAGATE_ERROR": "0"}


def run(name, tmp_path, size=2, version=VERSION, env=None):
    stubs = nccl_stubs.build(version)
    environment = {**stubs.environment(devices=2, folder=tmp_path), **(env or {})}
    store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
    children = procs.Group()
    try:
        ranks = [children.start(nccl_shutdown_workers.end, name, version, environment, store.port, rank, size) for rank in range(size)]
        return [child.result(40.0) for child in ranks], [child.stderr_text() for child in ranks]
    finally:
        children.close()


def test_destroy_process_group_waits_for_operations_until_their_timeouts(tmp_path):
    assert run("destroy_after_long_work", tmp_path)[0] == [SUM] * 2


@pytest.mark.parametrize(
    "name", ["destroy_during_a_timeout", "with_block_during_a_timeout", "destroy_after_a_timeout"]
)
def test_failure_not_yet_raised_is_raised_by_destroy_process_group(tmp_path, name):
    for text in run(name, tmp_path)[0]:
        assert text is not None and text.startswith("DistTimeoutError: closing the group"), text
        assert "all_reduce #1" in text and "timed out after 1 s" in text, text


def test_failure_already_raised_is_not_raised_by_destroy_process_group(tmp_path):
    assert run("destroy_after_a_reported_error", tmp_path)[0] == [None] * 2


def test_close_of_an_nccl_group_raises_after_its_timeout(tmp_path):
    for text in run("close_with_a_limit", tmp_path, env=NOT_SYNCHRONIZED)[0]:
        assert text is not None and text.startswith("DistTimeoutError: closing the group: all_reduce #1"), text


def test_destroy_process_group_reports_a_hung_communicator(tmp_path):
    for text in run("close_after_a_graph", tmp_path, env=NOT_SYNCHRONIZED)[0]:
        assert text is not None and text.startswith("DistTimeoutError: closing the group: its operations are done"), text
        assert "CUDA graph" in text and "ncclCommFinalize of rank" in text, text


@pytest.mark.deadline(60)
def test_destroy_process_group_waits_ten_seconds_for_a_live_cuda_graph(tmp_path):
    for ends, values in run("end_after_a_live_graph", tmp_path, env=NOT_SYNCHRONIZED)[0]:
        assert values == [SUM] * 2
        for text, seconds in ends:
            assert text is not None and text.startswith("DistTimeoutError: closing the group: its operations are done"), text
            assert "CUDA graph" in text, text
            assert 9.5 < seconds < procs.under_load(13.0), ends


def test_shrinking_an_nccl_group_waits_for_the_old_group(tmp_path):
    assert run("shrink_after_work", tmp_path)[0] == [SUM] * 2


def test_process_exit_with_pending_nccl_operations_warns(tmp_path):
    """The warning must come after a second for operations to end, and another for the aborts."""
    begun, errors = run("leave", tmp_path)
    seconds = time.monotonic() - max(begun)
    assert 0.9 < seconds < procs.under_load(4.0) * leak_check.slower()
    for text in errors:
        assert "RuntimeWarning: the process ends: operations of the NCCL group" in text, text


def test_closing_communicators_of_one_process_waits_for_operations(tmp_path):
    assert run("close_comms", tmp_path, size=1)[0] == [[[10.0] * 4] * 2]


@pytest.mark.deadline(60)
@pytest.mark.parametrize("name", ["destroy_many", "abort_many"])
def test_communicators_of_a_group_end_concurrently(tmp_path, name):
    """Communicators must end concurrently: one after another, they would take 25 s."""
    for error, seconds, nthreads, ncomms in run(name, tmp_path, env=NOT_SYNCHRONIZED)[0]:
        assert error is None and ncomms == 0
        assert seconds < procs.under_load(2.0) * leak_check.slower(), seconds
        assert nthreads <= 80, nthreads


@pytest.mark.deadline(60)
def test_each_communicator_that_fails_to_end_is_named(tmp_path):
    for text, *_ in run("destroy_some_that_fail", tmp_path, env=NOT_SYNCHRONIZED)[0]:
        assert text.count("it does not end") == 2 and text.count("ncclCommDestroy of rank") == 2, text
        assert text.count("while destroying group") == 2, text
