"""abort() from another thread must end each operation with DistAbortedError, reach the other ranks,
and leave the process usable."""

import pytest
import test_nccl_faults

CASES = (
    "abort_collectives",
    "abort_a_batch",
    "abort_during_the_rendezvous",
    "abort_an_init",
    "abort_a_nonblocking_init",
    "abort_a_split",
    "abort_a_close",
)


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    team = test_nccl_faults.Team(tmp_path_factory.mktemp("stubs"), 2)
    yield team
    try:
        team.end()
    finally:
        team.close()


@pytest.mark.parametrize("name", CASES)
def test_abort_ends_each_nccl_operation(team, name):
    team.run(name)
