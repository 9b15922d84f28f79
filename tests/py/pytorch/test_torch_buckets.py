"""DistributedDataParallel's buckets must move into shared memory, and no other memory."""

import c10d_team
import pytest
import torch_backend_workers

pytestmark = pytest.mark.torch

START_S = 90  # mostly the import of torch


def names_of_cases():
    pytest.importorskip("torch.distributed")
    import torch_bucket_cases

    return c10d_team.names_of_cases(torch_bucket_cases)


@pytest.fixture(scope="module", params=[(2, "c++"), (3, "python")])
def team(request):
    teams = c10d_team.Teams(torch_backend_workers.cases, ("torch_bucket_cases", request.param[1]), request.param[0])
    yield teams
    teams.close(is_silent=False)


@pytest.mark.deadline(START_S)
@pytest.mark.parametrize("name", names_of_cases())
def test_buckets_of_torch_tensors_pass_each_case(team, name):
    team.run(name)
