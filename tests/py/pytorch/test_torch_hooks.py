"""Features of c10d's backends since PyTorch 2.14 and 2.15: hooks, gather_single, reconfigure; with
the backend in C++."""

import c10d_team
import pytest
import torch_backend_workers

pytestmark = pytest.mark.torch

START_S = 90  # mostly the import of torch


def cases():
    pytest.importorskip("torch.distributed")
    import torch_hook_cases

    names = c10d_team.names_of_cases(torch_hook_cases)
    reasons = [getattr(getattr(torch_hook_cases, name), "reason", "") for name in names]
    return [
        pytest.param(name, marks=[pytest.mark.skip(reason=reason)] if reason else [])
        for name, reason in zip(names, reasons, strict=True)
    ]


@pytest.fixture(scope="module")
def two():
    teams = c10d_team.Teams(torch_backend_workers.cases, ("torch_hook_cases", "c++"), 2)
    yield teams
    teams.close(is_silent=False)  # the log contains the errors of hooks


@pytest.mark.deadline(START_S)
@pytest.mark.parametrize("name", cases())
def test_hooks_of_torch_groups_work_with_two_ranks(two, name):
    two.run(name)
