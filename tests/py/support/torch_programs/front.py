"""PyTorch's DistributedDataParallel on dldist's calls: DDP and its helpers look names up in dldist
instead of `torch.distributed`."""

import contextlib
import unittest.mock

import dldist
import torch.distributed
import torch.distributed.optim
from torch.distributed import utils
from torch.distributed.algorithms import join
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, optimizer_overlap_hooks, powerSGD_hook
from torch.nn.parallel import distributed as ddp

from torch_programs import ddp as programs

# Names that torch.nn.parallel.distributed imports from torch.distributed.
IMPORTED = ["ReduceOp", "_get_default_group", "_rank_not_in_group"]


class Front:
    """dldist, under the name `dist`."""

    GradBucket = torch.distributed.GradBucket  # torch's own hooks are annotated with it
    _functional_collectives = torch.distributed._functional_collectives
    optim = torch.distributed.optim

    def __getattr__(self, name):
        return getattr(dldist if hasattr(dldist, name) else dldist.distributed_c10d, name)


@contextlib.contextmanager
def substituted():
    """Make DDP, its hooks, Join and the programs use dldist for torch.distributed in the block."""
    front = Front()
    with contextlib.ExitStack() as stack:
        for module in (ddp, join, utils, default_hooks, powerSGD_hook, optimizer_overlap_hooks, programs):
            if hasattr(module, "dist"):
                stack.enter_context(unittest.mock.patch.object(module, "dist", front))
        for name in IMPORTED:
            stack.enter_context(unittest.mock.patch.object(ddp, name, getattr(front, name)))
        yield
