"""The backend "dldist" of torch.distributed: every call, on every kind of tensor, among two, three and four ranks."""

import c10d_team
import pytest
import torch_backend_workers

pytestmark = pytest.mark.torch

START_S = 90  # importing torch takes most of it


def names_of_cases():
    pytest.importorskip("torch.distributed")
    import torch_backend_cases

    return c10d_team.names_of_cases(torch_backend_cases)


@pytest.fixture(scope="module")
def two():
    yield from teams_of(2)


@pytest.fixture(scope="module")
def three():
    yield from teams_of(3)


def teams_of(size):
    teams = c10d_team.Teams(torch_backend_workers.cases, "torch_backend_cases", size)
    yield teams
    teams.close(is_silent=False)  # torch warns of what it does not do on the CPU


@pytest.mark.deadline(START_S)
@pytest.mark.parametrize("name", names_of_cases())
def test_among_two(two, name):
    two.run(name)


@pytest.mark.deadline(START_S)
@pytest.mark.parametrize("name", names_of_cases())
def test_among_three(three, name):
    three.run(name)
