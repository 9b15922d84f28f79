"""The first GPU and arrays on it, by the CUDA driver alone, so that tests need no framework. In a rehearsal the driver is the double of
tests/stubs, through the same calls.

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
    """The driver, with the primary context of the first GPU kept for good: one that is released takes all memory with it.

    Arrays get their memory here, and free() keeps it for the next array of the same size and stream, as the allocators of frameworks do.
    The garbage collector frees arrays in any thread at any time, so free() must not call the driver: cuMemFree waits for all kernels of
    the device, including kernels that wait for a rank whose thread is in the same cuMemFree, and any call may spoil a capture."""

    def __init__(self):
        super().__init__(ctypes.CDLL(os.environ.get("DLDIST_CUDA_LIBRARY") or "libcuda.so.1"))
        self._freed = {}
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), DEVICE)

    def allocate(self, stream, nbytes):
        """The address of memory for use in the order of the stream."""
        # No lock: the garbage collector may call free() between any two lines of this.
        with contextlib.suppress(KeyError, IndexError):
            return self._freed[stream, nbytes].pop()
        address = ctypes.c_uint64()
        with self.on_device(DEVICE):
            self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        return address.value

    def free(self, stream, address, nbytes):
        """Keep the memory for what the stream gets after what it holds now."""
        self._freed.setdefault((stream, nbytes), []).append(address)

    def destroy_stream(self, stream):
        """Destroy it once it has done what it holds. A new stream may get the same handle, for which the freed memory is idle then."""
        self.synchronize(stream, DEVICE)
        super().destroy_stream(stream)

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

    def _allocate(self):
        return self.cuda.allocate(self.stream, self._nbytes)

    def _give_back(self):
        self.cuda.free(self.stream, self._base, self._nbytes)

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
