"""PyTorch's DistributedDataParallel on dldist.Reducer, dldist.Logger and dldist's calls: the same results as on torch's own, with Gloo.

The programs are those of torch_programs/ddp.py; torch_programs/front.py is what puts dldist in torch.distributed's place.
"""

import pytest

pytest.importorskip("torch.distributed")

from test_torch_programs import cases, check_alike, teams  # noqa: E402, F401
from torch_programs import EXACT, FRONT  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.deadline(100)]


@pytest.mark.parametrize("program, world", [case for case in cases() if case.id.startswith("ddp.")])
def test_same_results(teams, program, world):  # noqa: F811
    with teams as team:
        theirs = team.run(program, "gloo", world)
        ours = team.run(program, FRONT, world)
    for rank in range(world):
        check_alike(theirs[rank], ours[rank], EXACT if world == 2 else program.tolerance, f"rank {rank}")
