"""The first GPU and arrays on it, through the CUDA driver only, so that tests need no framework. In
a rehearsal the driver is the stub of tests/stubs, with the same calls.

    gpu = Gpu()
    x = gpu.Array(gpu, numpy.arange(8, dtype="float32"))
    ...; assert (x.numpy() == 16).all()
"""

import contextlib
import ctypes
import os

import nccl_stubs
from cuda_driver import Driver

DEVICE = 0


class GpuDriver(Driver):
    """The driver. It never releases the primary context of the first GPU: a released context frees
    all its memory.

    Arrays allocate here, and free() keeps memory for the next array of the same size and stream, as
    the allocators of frameworks do. The garbage collector frees arrays in any thread at any time,
    so free() must not call the driver: cuMemFree waits for all kernels of the device, including
    kernels that wait for a rank whose thread is in the same cuMemFree, and any call may invalidate
    a capture."""

    def __init__(self):
        super().__init__(ctypes.CDLL(os.environ.get("DLDIST_CUDA_LIBRARY") or "libcuda.so.1"))
        self._freed = {}
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), DEVICE)

    def allocate(self, stream, nbytes):
        """Return the address of memory for use in stream order."""
        # No lock: the garbage collector may call free() between any two lines of this.
        with contextlib.suppress(KeyError, IndexError):
            return self._freed[stream, nbytes].pop()
        address = ctypes.c_uint64()
        with self.on_device(DEVICE):
            self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        return address.value

    def free(self, stream, address, nbytes):
        """Keep the memory for work that the stream receives later."""
        self._freed.setdefault((stream, nbytes), []).append(address)

    def destroy_stream(self, stream):
        """Destroy the stream after its pending work. A new stream may get the same handle; the
        freed memory is then idle."""
        self.synchronize(stream, DEVICE)
        super().destroy_stream(stream)

    def write(self, address, data, stream=nccl_stubs.LEGACY_STREAM):
        """Copy bytes to the device."""
        with self.on_device(DEVICE):
            self.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)), ctypes.c_void_p(stream))

    def read(self, address, nbytes, stream=nccl_stubs.LEGACY_STREAM):
        """Copy bytes from the device, after the pending work of the stream."""
        image = ctypes.create_string_buffer(nbytes)
        with self.on_device(DEVICE):
            self.call("cuMemcpyDtoHAsync_v2", image, ctypes.c_uint64(address), ctypes.c_size_t(nbytes), ctypes.c_void_p(stream))
        self.synchronize(stream, DEVICE)
        return image.raw


class GpuArray(nccl_stubs.CudaArray):
    """An array of the first GPU on the legacy default stream. The driver copies its values from and
    to NumPy."""

    def _allocate(self):
        return self.cuda.allocate(self.stream, self._nbytes)

    def _give_back(self):
        self.cuda.free(self.stream, self._base, self._nbytes)

    def _write(self, values, ms):
        assert ms == 0, "a GPU writes without delay"
        self.cuda.write(self._base, self._host_image(values), self.stream)

    def write(self, values):
        """Copy the values on the array's stream."""
        self._write(values, ms=0)

    def _read(self):
        return self.cuda.read(self._base, self._nbytes, self.stream)


class Gpu:
    """The interface of Stubs in the tests with stubs, as far as a GPU can provide it."""

    Array = GpuArray

    def __init__(self):
        self.cuda = GpuDriver()
