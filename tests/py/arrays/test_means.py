"""The mean of integers, by every way that data takes. See mean_workers.py."""

import group_team
import pytest

pytest.importorskip("numpy", reason="NumPy is not installed")

import mean_workers as cases  # noqa: E402

ENVIRONMENTS = {"shared memory": {}, "TCP": {"DLDIST_SHM": "0"}, "flat": {"DLDIST_ALGORITHM": "flat"}}


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def team(request):
    teams = group_team.Teams()
    yield lambda size: teams(size, worker=cases.member, env=ENVIRONMENTS[request.param])
    teams.close()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [1, 100, 20000])
def test_mean_of_integers_is_exact_even_if_their_sum_overflows(team, size, count):
    team(size).run(cases.exact_means, count)
