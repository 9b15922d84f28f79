"""The suite of dldist.Group in NcclGroups, over the stubs of tests/stubs, on two and four ranks.
See group_workers.py."""

import group_team
import group_workers as cases
import nccl_stubs
import nccl_workers
import pytest
from nccl_cases import CASES, COUNTS, DTYPES

pytestmark = pytest.mark.exhaustive(every=4)

NEWEST, OLDER = "2.32.3", ["2.18.1", "2.27.3", "2.30.7"]


class Teams(group_team.Teams):
    def __init__(self, folder):
        super().__init__()
        self._folder = folder

    def __call__(self, size, version=NEWEST, **options):
        environment = nccl_stubs.build(version).environment(devices=size, folder=self._folder)
        return super().__call__(size, options=(version, environment, options), worker=nccl_workers.member)


@pytest.fixture(scope="module")
def teams(tmp_path_factory):
    teams = Teams(tmp_path_factory.mktemp("stubs"))
    yield teams
    teams.close()


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", DTYPES)
def test_nccl_reductions_are_correct_for_every_dtype_and_count(teams, size, name):
    teams(size).run(cases.sweep_reductions, name, COUNTS if size == 2 else [0, 5])


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", DTYPES)
def test_data_movement_by_nccl_is_correct_for_every_dtype_and_count(teams, size, name):
    teams(size).run(cases.sweep_movements, name, COUNTS if size == 2 else [0, 5])


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_each_case_of_group_operations_passes_over_nccl(teams, size, case):
    teams(size).run(case)


@pytest.mark.parametrize("variant", ["questions", "await", "futures", "callbacks"])
def test_wait_for_an_nccl_operation_returns_after_the_late_rank_calls(teams, variant):
    seen = teams(2).run(cases.late_rank, variant)[0]
    assert seen == ([(True, "dldist-completion", 1, True), True] if variant == "callbacks" else 1)


@pytest.mark.parametrize("size", [2, 4])
def test_nccl_results_match_a_reference_implementation(teams, size):
    teams(size).run(cases.by_oracle)


@pytest.mark.parametrize("version", OLDER)
@pytest.mark.parametrize("blocking", [0, 1])
def test_operations_are_correct_with_other_nccl_versions(teams, version, blocking):
    """Differences between versions: composed calls, and nonblocking communicators."""
    team = teams(2, version, config={"blocking": blocking})
    for name in ("f", "?", "complex64"):
        team.run(cases.sweep_reductions, name, [0, 5])
        team.run(cases.sweep_movements, name, [0, 5])
    for case in (cases.uneven, cases.coalesced, cases.strided, cases.overlapping, cases.premultiplied, cases.ring, cases.batches,
                 cases.splits):  # fmt: skip
        team.run(case)


def test_operations_are_correct_with_nonblocking_communicators(teams):
    team = teams(4, config={"blocking": 0})
    for case in CASES:
        team.run(case)
