"""The c10d suite of the CPU's backend on NCCL, over the doubles of tests/stubs, among two and four ranks."""

import c10d_cases
import c10d_team
import nccl_stubs
import nccl_workers
import pytest
import test_c10d_calls

VERSION = "2.32.3"

DIFFERENT = {
    "collectives_in_groups_of_our_own": "a World is of the CPU",
    "works": "nccl_works: wait() orders streams, and messages between two ranks come one after the other",
    "messages": "nccl_messages: both ranks receiving first is a deadlock of NCCL's; there are no tags",
    "messages_the_long_way": "the same",
    "any_source": "NCCL cannot receive from any rank",
    "shorter_and_longer_messages": "both sides of a message have the same size",
    "coalescing_in_a_group": "nccl_coalescing_in_a_group: a World is of the CPU",
    "coalescing_the_long_way": "the works in it are nccl_works",
    "one_calls_timeout": "nccl_timeout: streams wait, not the host",
    "messages_timeouts": "a message that has timed out ends the group",
    "barriers_timeout": "nccl_timeout: NCCL does not know who has not come",
    "monitored_barrier_names_the_missing": "NCCL has none",
    "settings_of_a_group": "nccl_settings: the backend has another name",
}
SAME = [name for name in test_c10d_calls.ON_TWO_AND_THREE + test_c10d_calls.ON_TWO if name not in DIFFERENT]
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


def test_the_table_names_cases_that_are_there():
    assert all(hasattr(c10d_cases, name) for name in DIFFERENT)
    assert len(SAME) >= 8 and len(OWN) >= 6


@pytest.mark.parametrize("name", SAME + OWN)
def test_among_two(two, name):
    two.run(name)


@pytest.mark.parametrize("name", SAME + OWN)
def test_among_four(four, name):
    four.run(name)
