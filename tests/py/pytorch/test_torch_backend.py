"""The backend "dldist" of torch.distributed: every call, on every kind of tensor, on two and three
ranks.

Both with the backend in C++ and with the groups in Python.
"""

import c10d_team
import pytest
import torch_backend_workers

pytestmark = pytest.mark.torch

START_S = 90  # mostly the import of torch


def names_of_cases():
    pytest.importorskip("torch.distributed")
    import torch_backend_cases

    return c10d_team.names_of_cases(torch_backend_cases)


@pytest.fixture(scope="module")
def two():
    yield from teams_of(2, "c++")


@pytest.fixture(scope="module")
def three():
    yield from teams_of(3, "c++")


@pytest.fixture(scope="module")
def two_in_python():
    yield from teams_of(2, "python")


def teams_of(size, way):
    teams = c10d_team.Teams(torch_backend_workers.cases, ("torch_backend_cases", way), size)
    yield teams
    teams.close(is_silent=False)  # torch warns about calls that it does not support on the CPU


def run(teams, name):
    """Run a case on all ranks; skip it if it returns a reason not to apply to this PyTorch or this
    kind of group."""
    reason = teams.run(name)[0]
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.deadline(START_S)
@pytest.mark.parametrize("name", names_of_cases())
def test_calls_of_the_torch_backend_are_correct_with_two_ranks(two, name):
    run(two, name)


@pytest.mark.deadline(START_S)
@pytest.mark.parametrize("name", names_of_cases())
def test_calls_of_the_torch_backend_are_correct_with_three_ranks(three, name):
    run(three, name)


@pytest.mark.deadline(START_S)
@pytest.mark.parametrize("name", names_of_cases())
def test_python_torch_backend_is_correct_with_two_ranks(two_in_python, name):
    run(two_in_python, name)
