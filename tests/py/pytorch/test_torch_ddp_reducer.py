"""PyTorch's DistributedDataParallel on dldist.Reducer, dldist.Logger and dldist's calls must give
the same results as on torch's with Gloo.

The programs are in torch_programs/ddp.py. torch_programs/front.py replaces torch.distributed by
dldist.
"""

import pytest

pytest.importorskip("torch.distributed")

from test_torch_programs import Team, Teams, cases, check_alike  # noqa: E402
from torch_programs import EXACT, FRONT  # noqa: E402

# This hook adds in float32; torch's adds in float16.
ROUNDED_DIFFERENTLY = {"built_in_compression"}

pytestmark = [pytest.mark.torch, pytest.mark.deadline(100)]


@pytest.fixture(scope="module")
def teams(tmp_path_factory):
    teams = Teams(lambda: Team(tmp_path_factory.mktemp("torch-programs")))
    yield teams
    teams.close()


@pytest.mark.parametrize("program, world", [case for case in cases() if case.id.startswith("ddp.") and "logging_data" not in case.id])
def test_reducer_in_torch_ddp_gives_the_same_results_as_torchs(teams, program, world):
    """Results must be equal, except statistics: test_reducer.py compares their names, and lists the
    values that differ."""
    with teams as team:
        torch_results = team.run(program, "gloo", world)
        dldist_results = team.run(program, FRONT, world)
    is_exact = world == 2 and program.name not in ROUNDED_DIFFERENTLY
    for rank in range(world):
        check_alike(torch_results[rank], dldist_results[rank], EXACT if is_exact else program.tolerance, f"rank {rank}")
