"""PyTorch tensors and JAX arrays are tensors. Only read by checkers, never run."""

from typing import assert_type

import dldist as dist
import dldist.functional as F
import jax
import torch


def reduce(x: torch.Tensor, y: jax.Array) -> None:
    dist.all_reduce(x, async_op=True).wait()
    dist.all_gather([torch.empty_like(x) for _ in range(2)], x)
    dist.broadcast(torch.nn.Parameter(x), 0)
    assert_type(F.all_reduce(y), jax.Array)
    assert_type(F.all_gather(x), torch.Tensor)
