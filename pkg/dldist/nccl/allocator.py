"""Allocates memory by ncclMemAlloc, which NCCL uses without copies, for other libraries' pools."""

from __future__ import annotations

from typing import Any

from dldist import _core


class Allocator:
    """Allocates and frees memory by ncclMemAlloc. Needs NCCL 2.19 or newer.

    Attributes:
        malloc_address: The address of the C function `void *(size_t nbytes, int device,
            cudaStream_t)`.
        free_address: The address of the C function `void (void *data, size_t nbytes, int device,
            cudaStream_t)`.

    Raises:
        NotImplementedError: NCCL is older than 2.19 or cannot be loaded.

    Example:
        >>> allocator = nccl.Allocator()                                   # doctest: +SKIP
        >>> pool = torch.cuda.MemPool(allocator.torch())                   # doctest: +SKIP
        >>> pool = cupy.cuda.MemoryPool(allocator.cupy())                  # doctest: +SKIP
    """

    def __init__(self) -> None:
        self.malloc_address, self.free_address = _core._nccl_allocator()

    def malloc(self, nbytes: int, device: int) -> int:
        """Allocate memory on a device and return its address. Return 0 if nbytes is 0."""
        from ctypes import CFUNCTYPE, c_int, c_size_t, c_void_p

        if nbytes < 0:
            raise ValueError(f"malloc(): argument 'nbytes' must be 0 or more, not {nbytes}")
        address = CFUNCTYPE(c_void_p, c_size_t, c_int, c_void_p)(self.malloc_address)(nbytes, device, None)
        if address is None and nbytes > 0:
            raise MemoryError(f"malloc(): ncclMemAlloc of {nbytes} bytes failed on cuda:{device}")
        return address or 0

    def free(self, address: int, device: int) -> None:
        """Free memory of malloc(). Call this only when the device has finished using the memory."""
        from ctypes import CFUNCTYPE, c_int, c_size_t, c_void_p

        if address:
            CFUNCTYPE(None, c_void_p, c_size_t, c_int, c_void_p)(self.free_address)(address, 0, device, None)

    def torch(self) -> Any:
        """Return PyTorch's allocator object, for torch.cuda.MemPool."""
        import torch

        return torch._C._cuda_customAllocator(self.malloc_address, self.free_address)  # type: ignore[attr-defined]

    def cupy(self) -> Any:
        """Return an allocator function for cupy.cuda.MemoryPool or cupy.cuda.set_allocator."""
        import cupy  # type: ignore[import-not-found, unused-ignore]

        return cupy.cuda.PythonFunctionAllocator(self.malloc, self.free).malloc
