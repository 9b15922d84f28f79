"""The backend for tensors on CUDA devices. Imported when a group's first call has such a tensor."""

from __future__ import annotations

from dldist._backends.nccl import NCCLOptions, ProcessGroupNCCL
from dldist.torch._options import TorchOptionsMixin

__all__ = ["CudaBackend", "NCCLOptions"]


class CudaBackend(TorchOptionsMixin, ProcessGroupNCCL):
    """The backend for CUDA tensors in groups with "cuda:dldist". `group` is an NcclGroup."""
