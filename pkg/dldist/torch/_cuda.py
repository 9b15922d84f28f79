"""The backend for tensors on CUDA devices. Imported on a group's first call with such a tensor."""

from __future__ import annotations

from dldist._backends.nccl import NCCLOptions, ProcessGroupNCCL
from dldist.torch._options import FromTorch

__all__ = ["CudaBackend", "NCCLOptions"]


class CudaBackend(FromTorch, ProcessGroupNCCL):
    """The backend for CUDA tensors, for groups with "cuda:dldist". `group` is its NcclGroup."""
