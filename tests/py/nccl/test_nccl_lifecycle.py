"""The lifecycle of ProcessGroupNCCL: made, split, ended, interrupted, forked, left open; over the
stubs of tests/stubs."""

import time

import dldist
import nccl_lifecycle_workers
import nccl_stubs
import procs
import pytest

VERSION = "2.32.3"
NOTHING = {"comm": 0, "redop": 0, "bad": 0}


def run(name, size, tmp_path, version=VERSION, env=None, devices=None, worker=nccl_lifecycle_workers.life):
    stubs = nccl_stubs.build(version)
    environment = {**stubs.environment(devices=devices or size, folder=tmp_path), **(env or {})}
    store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
    children = procs.Group()
    try:
        ranks = [
            children.start(worker, name, version, environment, store.port, rank, size) for rank in range(size)
        ]
        return [child.result(25.0) for child in ranks], [child.stderr_text() for child in ranks]
    finally:
        children.close()


def test_nccl_world_bound_to_a_device_can_be_split(tmp_path):
    assert run("splits", 3, tmp_path)[0] == [NOTHING] * 3


def test_nccl_world_bound_to_a_device_can_have_meshes(tmp_path):
    assert run("meshes", 4, tmp_path)[0] == [NOTHING] * 4


def test_nccl_world_without_a_bound_device_can_be_split(tmp_path):
    assert run("splits_of_unbound", 3, tmp_path)[0] == [NOTHING] * 3


@pytest.mark.parametrize("how", ["default", "abort"])
def test_nccl_world_can_be_shrunk(tmp_path, how):
    assert run("shrinks", 3, tmp_path, env={"SHRINK": how})[0] == [NOTHING, None, NOTHING]


@pytest.mark.parametrize("version,grown", [("2.32.3", 1), ("2.27.3", 0)])
def test_nccl_world_can_be_grown(tmp_path, version, grown):
    assert run("grows", 3, tmp_path, version)[0] == [(grown, NOTHING)] * 3


def test_nccl_worlds_can_be_created_and_destroyed_repeatedly(tmp_path):
    assert run("again_and_again", 2, tmp_path)[0] == [NOTHING] * 2


def test_process_may_use_several_devices(tmp_path):
    assert run("several_devices", 2, tmp_path, devices=4)[0] == [NOTHING] * 2


def test_process_with_an_nccl_world_may_exit_without_destroying_it(tmp_path):
    start = time.monotonic()
    assert run("exits_without_destroy", 2, tmp_path) == (["left"] * 2, [""] * 2)
    assert time.monotonic() - start < 15


def test_forked_child_that_uses_an_nccl_world_gets_an_error(tmp_path):
    for text in run("fork", 2, tmp_path)[0]:
        assert text.startswith("Dist") and "fork" in text


def test_pending_nccl_calls_can_be_interrupted(tmp_path):
    assert run("interrupted", 2, tmp_path)[0] == ["done"] * 2


def test_first_call_of_an_nccl_group_can_be_interrupted(tmp_path):
    ((seconds, text), _), _ = run("interrupted_first_call", 2, tmp_path, env={"DLDIST_PROPAGATE_ERROR": "0"})
    assert 0.2 < seconds < procs.under_load(5.0)
    assert "was interrupted while NCCL connected the ranks" in text


def test_process_group_nccl_has_the_names_of_torchs_class(tmp_path):
    # The abort of one rank at the end must not reach the other, which may still be running checks.
    assert run("surface", 2, tmp_path, env={"DLDIST_PROPAGATE_ERROR": "0"})[0] == [NOTHING] * 2


@pytest.mark.parametrize(
    "option, setting, blocks", [("", "", True), ("0", "", False), ("", "1", False)], ids=["neither", "option", "setting"]
)
def test_nonblocking_communicators_reject_time_estimates(tmp_path, option, setting, blocks):
    env = {"BLOCKING": option, "DLDIST_NCCL_NONBLOCKING": setting}
    for estimate, left in run("estimates_if_blocking", 2, tmp_path, env=env)[0]:
        assert estimate == 1.0 if blocks else "estimates need a blocking communicator" in estimate, estimate
        assert left == NOTHING


@pytest.mark.parametrize("setting", ["1", "0"])
def test_nan_is_rejected_only_if_the_nan_check_is_on(tmp_path, setting):
    for text, left in run("nan_check_by_setting", 2, tmp_path, env={"DLDIST_NCCL_NAN_CHECK": setting})[0]:
        assert "NaN" in text if setting == "1" else text == "", text
        assert left == NOTHING


def test_premul_sum_accepts_a_tensor_as_its_factor(tmp_path):
    assert run("premul_by_a_tensor", 2, tmp_path)[0] == [NOTHING] * 2
