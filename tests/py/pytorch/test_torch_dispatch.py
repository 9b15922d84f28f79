"""The backend "dldist" of torch.distributed and PyTorch's dispatcher: modes that trace, count or
fake operations must see its calls."""

import c10d_team
import pytest
import torch_backend_workers

pytestmark = [pytest.mark.torch, pytest.mark.deadline(90)]


def names_of_cases():
    pytest.importorskip("torch.distributed")
    import torch_dispatch_cases

    return c10d_team.names_of_cases(torch_dispatch_cases)


@pytest.fixture(scope="module", params=["c++", "python"])
def team(request):
    teams = c10d_team.Teams(torch_backend_workers.cases, ("torch_dispatch_cases", request.param), 2)
    yield teams
    teams.close(is_silent=False)


@pytest.mark.parametrize("name", names_of_cases())
def test_calls_dispatched_by_torch_are_correct_with_two_ranks(team, name):
    team.run(name)
