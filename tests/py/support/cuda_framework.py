"""Fake frameworks with a GPU, each recognised by dldist in another way, over the libcuda stub
(nccl_stubs.py).

    framework = cuda_framework.load()              # cuda_framework.c, compiled if needed
    x = framework.exchange(array)                  # a tensor around the memory of a CudaArray
    with framework.stream(0, handle): ...          # the framework's current stream on this thread

The compiled part is as fast as real frameworks are. benchmarks/nccl.py also uses it.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import subprocess
import sys
import sysconfig
import threading
import types

import nccl_stubs
from paths import ROOT, SUPPORT

SOURCE = SUPPORT / "cuda_framework.c"


def _build():
    folder = os.path.join(ROOT, "build", f"cuda_framework-{sys.implementation.cache_tag}")
    path = os.path.join(folder, "cuda_framework_core.abi3.so")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(path) or os.path.getmtime(path) < os.path.getmtime(SOURCE):
            include = f"-I{sysconfig.get_path('include')}"
            subprocess.run(["cc", "-O2", "-shared", "-fPIC", include, "-o", f"{path}.new", SOURCE], check=True, timeout=120)
            os.rename(f"{path}.new", path)
    return path


class Framework:
    """Tensor types, made from a CudaArray, that share one current stream per device and thread."""

    def __init__(self, core):
        self.core = core
        self.here = threading.local()

        class ExchangeTensor(core.Tensor):
            """A tensor of a library with DLPack's C exchange API."""

            __module__ = "exchange_framework"
            __dlpack_c_exchange_api__ = core.EXCHANGE_API

        class TorchTensor(core.Tensor):
            """A tensor like torch's before the exchange API, recognised by its module name."""

            __module__ = "torch"

            def is_neg(self):
                return False

            def is_conj(self):
                return False

        class TorchExchangeTensor(TorchTensor):
            """A tensor like current torch's."""

            __module__ = "torch"
            __dlpack_c_exchange_api__ = core.EXCHANGE_API

        class CupyArray(core.Tensor):
            __module__ = "cupy"

        class UnknownTensor(core.Tensor):
            """A tensor of a library whose current stream cannot be queried: __dlpack__ makes the
            given stream wait for its own."""

            __module__ = "somebodys_framework"

            def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
                asked.append(stream)
                array = self.owner
                here = core.get_stream(array.device)
                if stream not in (None, -1, here):
                    array.cuda.order(here, stream, array.device)
                return super().__dlpack__()

        class JaxArray(UnknownTensor):
            """An immutable array. DLPack 0 cannot express this; DLPack 1 can."""

            __module__ = "jaxlib._jax"

        asked = []
        self.asked_streams = asked
        self.types = (ExchangeTensor, TorchTensor, TorchExchangeTensor, CupyArray, UnknownTensor, JaxArray)
        self.exchange = self._maker(ExchangeTensor)
        self.torch = self._maker(TorchTensor)
        self.torch_exchange = self._maker(TorchExchangeTensor)
        self.cupy = self._maker(CupyArray)
        self.unknown = self._maker(UnknownTensor)
        self.jax = self._maker(JaxArray)

    def _maker(self, kind):
        def make(array):
            code, bits, _ = nccl_stubs.DTYPES[array.dtype]
            return kind(array, array.address, tuple(array.shape), tuple(array.strides), array.device, code, bits)

        return make

    @contextlib.contextmanager
    def stream(self, device, handle):
        before = self.core.get_stream(device), getattr(self.here, "device", 0)
        self.core.set_stream(device, handle)
        self.here.device = device
        try:
            yield
        finally:
            self.core.set_stream(device, before[0])
            self.here.device = before[1]

    def _current_stream(self, device_id=-1):
        """Return the current stream, as CuPy does; -1 is the current device."""
        device = device_id if device_id >= 0 else getattr(self.here, "device", 0)
        return types.SimpleNamespace(ptr=self.core.get_stream(device))

    def install_modules(self):
        """Install fake torch and cupy modules that use this framework's streams. Only for dedicated
        processes."""
        torch = types.ModuleType("torch")
        torch._C = types.ModuleType("torch._C")
        torch._C._cuda_getCurrentRawStream = self.core.get_stream
        cupy = types.ModuleType("cupy")
        cupy.cuda = types.ModuleType("cupy.cuda")
        cupy.cuda.get_current_stream = self._current_stream
        sys.modules.update({"torch": torch, "torch._C": torch._C, "cupy": cupy, "cupy.cuda": cupy.cuda})


_loaded = []


def load():
    """Return the Framework of this process."""
    if not _loaded:
        spec = importlib.util.spec_from_file_location("cuda_framework_core", _build())
        core = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(core)
        _loaded.append(Framework(core))
    return _loaded[0]
