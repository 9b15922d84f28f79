"""The first GPU and arrays on it, by the CUDA driver alone, so that tests need no framework. In a rehearsal the driver is the double of
tests/stubs, through the same calls.

    gpu = Gpu()
    x = gpu.Array(gpu, numpy.arange(8, dtype="float32"))
    ...; assert (x.numpy() == 16).all()
"""

import ctypes
import os

import nccl_stubs
from cuda_driver import Driver

DEVICE = 0


class GpuDriver(Driver):
    """The driver, with the primary context of the first GPU kept for good: one that is released takes all memory with it."""

    def __init__(self):
        super().__init__(ctypes.CDLL(os.environ.get("DLDIST_CUDA_LIBRARY") or "libcuda.so.1"))
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), DEVICE)

    def write(self, address, data, stream=nccl_stubs.LEGACY_STREAM):
        """Bytes to the device."""
        with self.on_device(DEVICE):
            self.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)), ctypes.c_void_p(stream))

    def read(self, address, nbytes, stream=nccl_stubs.LEGACY_STREAM):
        """Bytes of the device, once the stream has done what it holds now."""
        image = ctypes.create_string_buffer(nbytes)
        with self.on_device(DEVICE):
            self.call("cuMemcpyDtoHAsync_v2", image, ctypes.c_uint64(address), ctypes.c_size_t(nbytes), ctypes.c_void_p(stream))
        self.synchronize(stream, DEVICE)
        return image.raw


class GpuArray(nccl_stubs.CudaArray):
    """An array of the first GPU on the legacy default stream, whose values come from NumPy and go there by copies of the driver."""

    def _write(self, values, ms):
        assert ms == 0, "a GPU writes at once"
        self.cuda.write(self._base, self._host_image(values), self.stream)

    def write(self, values):
        """On its stream."""
        self._write(values, ms=0)

    def _read(self):
        return self.cuda.read(self._base, self._nbytes, self.stream)


class Gpu:
    """What the tests over the doubles take for their Stubs, as far as a GPU can be that."""

    Array = GpuArray

    def __init__(self):
        self.cuda = GpuDriver()
