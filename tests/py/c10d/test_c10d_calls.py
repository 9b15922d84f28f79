"""Every call of torch.distributed's module in its forms, on two and three ranks. The cases are in
c10d_cases.py."""

import c10d_cases
import c10d_team
import c10d_workers
import pytest
from c10d_cases import CASES_FOR_TWO, CASES_FOR_TWO_AND_THREE


@pytest.fixture(scope="module")
def two():
    teams = c10d_team.Teams(c10d_workers.cases, "c10d_cases", 2)
    yield teams
    teams.close()


@pytest.fixture(scope="module")
def three():
    teams = c10d_team.Teams(c10d_workers.cases, "c10d_cases", 3)
    yield teams
    teams.close()


def test_every_case_of_torch_distributed_calls_is_run():
    names = [name for name, case in vars(c10d_cases).items() if is_case(case)]
    assert sorted(names) == sorted(CASES_FOR_TWO_AND_THREE + CASES_FOR_TWO)


def is_case(function):
    code = getattr(function, "__code__", None)
    is_own = getattr(function, "__module__", None) == "c10d_cases"
    return is_own and code is not None and code.co_varnames[: code.co_argcount] == ("rank", "size")


@pytest.mark.parametrize("name", CASES_FOR_TWO_AND_THREE + CASES_FOR_TWO)
def test_torch_distributed_calls_are_correct_with_two_ranks(two, name):
    two.run(name)


@pytest.mark.parametrize("name", CASES_FOR_TWO_AND_THREE)
def test_torch_distributed_calls_are_correct_with_three_ranks(three, name):
    three.run(name)
