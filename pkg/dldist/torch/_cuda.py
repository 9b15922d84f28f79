"""Serves tensors on CUDA devices, if the group's backend for them is "dldist" too, with dldist's own NCCL groups."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from dldist.c10d.nccl import NCCLOptions, ProcessGroupNCCL
from dldist.torch._options import FromTorch
from dldist.torch._store import TorchStore


class CudaBackend(FromTorch, ProcessGroupNCCL):
    """The backend for CUDA tensors. `group` is the NcclGroup behind it."""

    def getBackendName(self) -> str:
        return "dldist"


def make_backend(kind: str, store: Any, name: str, ranks: list[int], rank: int, timeout: timedelta) -> CudaBackend:
    """The backend for a type of device. Its ranks meet in `store` at their first call."""
    if kind != "cuda":
        raise RuntimeError(f'the backend "dldist" serves tensors on the CPU and on CUDA devices, not on {kind}')
    options = NCCLOptions()._for(timeout, ranks, name)
    return CudaBackend(TorchStore(dist.PrefixStore(f"{kind}/", store)), rank, len(ranks), options)
