"""abort() from another thread must end each operation with DistAbortedError, reach the other ranks,
and leave the process usable."""

import pytest
import test_nccl_faults

CASES = (
    "abort_collectives",
    "abort_a_batch",
    "abort_a_meeting",
    "abort_an_init",
    "abort_an_init_that_does_not_block",
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
def test_abort(team, name):
    team.run(name)
