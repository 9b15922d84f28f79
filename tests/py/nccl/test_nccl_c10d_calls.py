"""The CPU backend's c10d suite on NCCL, over the stubs of tests/stubs, on two and four ranks."""

import c10d_team
import nccl_stubs
import nccl_workers
import pytest
from c10d_cases import CASES_FOR_TWO, CASES_FOR_TWO_AND_THREE

VERSION = "2.32.3"

# Cases that NCCL cannot support, and the case of nccl_workers that checks the error.
DIFFERENT = {
    "any_source": ("NCCL cannot receive from any rank", "nccl_any_source"),
    "any_source_in_low_level_calls": ("the same", "nccl_any_source"),
    "shorter_and_longer_messages": ("both sides of a message have the same size", "nccl_message_sizes"),
    "messages_timeouts": ("a message that has timed out ends the group", "nccl_message_timeouts"),
    "messages_timeouts_in_low_level_calls": ("the same", "nccl_message_timeouts"),
    "monitored_barrier_names_the_missing": ("NCCL has none", "nccl_monitored_barrier"),
}
CASES = CASES_FOR_TWO_AND_THREE + CASES_FOR_TWO
SAME = [name for name in CASES if name not in DIFFERENT]
OWN = [name for name in vars(nccl_workers) if name.startswith("nccl_") and callable(getattr(nccl_workers, name))]


def make_teams(size, tmp_path_factory):
    stubs = nccl_stubs.build(VERSION)
    environment = stubs.environment(devices=size, folder=tmp_path_factory.mktemp("stubs"))
    teams = c10d_team.Teams(nccl_workers.cases, ("c10d_cases", VERSION, environment), size)
    yield teams
    teams.close()


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    yield from make_teams(2, tmp_path_factory)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    yield from make_teams(4, tmp_path_factory)


def test_table_of_differing_nccl_cases_names_existing_cases():
    assert set(DIFFERENT) <= set(CASES)
    assert {own for _, own in DIFFERENT.values()} <= set(OWN)


@pytest.mark.parametrize("name", SAME + OWN)
def test_torch_distributed_calls_over_nccl_are_correct_with_two_ranks(two, name):
    two.run(name)


@pytest.mark.parametrize("name", SAME + OWN)
def test_torch_distributed_calls_over_nccl_are_correct_with_four_ranks(four, name):
    four.run(name)
