"""The stubs of libcuda and libnccl (tests/stubs/README.md) for Python tests, and a tensor of a
fictitious framework.

    stubs = build("2.27.3")               # built if needed; loaded into this process
    stubs.nccl.fail("ncclCommAbort", result=2, text="no")
    procs.start(..., env={**os.environ, **stubs.environment()})
    x = CudaArray(stubs, numpy.arange(8, dtype="float32"), device=1)
    ...; assert (x.numpy() == 16).all()
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import subprocess

import cuda_driver
import dlpack_producer
import numpy
from paths import ROOT

VERSIONS = ("2.18.1", "2.19.3", "2.22.3", "2.23.4", "2.24.3", "2.27.3", "2.28.3", "2.28.7", "2.29.2", "2.29.7", "2.30.7", "2.31.2")
VERSIONS += ("2.32.3",)
LEGACY_STREAM, PER_THREAD_STREAM = 1, 2

# name: (DLPack code, bits, NumPy type that holds it)
DTYPES = {
    "bool": (dlpack_producer.BOOL, 8, "bool"),
    "int8": (dlpack_producer.INT, 8, "int8"),
    "uint8": (dlpack_producer.UINT, 8, "uint8"),
    "int16": (dlpack_producer.INT, 16, "int16"),
    "uint16": (dlpack_producer.UINT, 16, "uint16"),
    "int32": (dlpack_producer.INT, 32, "int32"),
    "uint32": (dlpack_producer.UINT, 32, "uint32"),
    "int64": (dlpack_producer.INT, 64, "int64"),
    "uint64": (dlpack_producer.UINT, 64, "uint64"),
    "float16": (dlpack_producer.FLOAT, 16, "float16"),
    "bfloat16": (dlpack_producer.BFLOAT, 16, "uint16"),
    "float8_e4m3fn": (dlpack_producer.FLOAT8_E4M3FN, 8, "uint8"),
    "float8_e5m2": (dlpack_producer.FLOAT8_E5M2, 8, "uint8"),
    "float32": (dlpack_producer.FLOAT, 32, "float32"),
    "float64": (dlpack_producer.FLOAT, 64, "float64"),
    "complex64": (dlpack_producer.COMPLEX, 64, "complex64"),
    "complex128": (dlpack_producer.COMPLEX, 128, "complex128"),
}


class Control:
    """The dd_stub_* functions of one of the two libraries (tests/stubs/stub_control.h)."""

    def __init__(self, path):
        self.path = path
        self.library = ctypes.CDLL(path)
        self.library.dd_stub_calls.restype = ctypes.c_long
        self.library.dd_stub_live.restype = ctypes.c_long
        self.library.dd_stub_made.restype = ctypes.c_long
        self.library.dd_stub_bad_uses.restype = ctypes.c_long

    def fail(self, function, *, after=0, result, text=None):
        self.library.dd_stub_fail(function.encode(), after, result, None if text is None else text.encode())

    def hang(self, function, *, after=0, ms=-1):
        self.library.dd_stub_hang(function.encode(), after, ms)

    def release(self):
        self.library.dd_stub_release()

    def hanging(self):
        return self.library.dd_stub_hanging()

    def calls(self, function):
        return self.library.dd_stub_calls(function.encode())

    def reset(self):
        self.library.dd_stub_reset()

    def live(self, kind):
        return self.library.dd_stub_live(kind.encode())

    def made(self, kind):
        return self.library.dd_stub_made(kind.encode())

    def bad_uses(self):
        return self.library.dd_stub_bad_uses()


class CudaControl(Control, cuda_driver.Driver):
    def shut_down(self, is_down=True):
        self.library.dd_stub_shut_down(int(is_down))

    def limit_memory(self, nbytes):
        self.library.dd_stub_limit_memory(ctypes.c_longlong(nbytes))

    def slow_write(self, stream, address, data, ms):
        """Enqueue a write of `data` to the address, after ms."""
        self.call("dd_stub_slow_write", ctypes.c_void_p(stream), ctypes.c_void_p(address), data, ctypes.c_size_t(len(data)), ms)

    def free_in_order(self, stream, address):
        """Free the memory once the stream has finished its current work, or immediately if it has
        none."""
        if self.library.cuStreamQuery(ctypes.c_void_p(stream)) == 0:
            self.call("dd_stub_free", ctypes.c_void_p(address))
        else:
            self.call("cuLaunchHostFunc", ctypes.c_void_p(stream), self.library.dd_stub_free, ctypes.c_void_p(address))

    def gate(self, stream, gate):
        """Block the stream until open_gate(gate). Gates are numbers below 256, usable once each."""
        self.call("dd_stub_gate", ctypes.c_void_p(stream), gate)

    def open_gate(self, gate):
        self.library.dd_stub_open_gate(gate)


class NcclControl(Control):
    def warn(self, text):
        self.library.dd_stub_warn(text.encode())

    def async_error(self, rank, result, *, after=0, text=""):
        self.library.dd_stub_async_error(rank, result, after, text.encode())

    def hang_kernel(self, rank, *, after=0):
        self.library.dd_stub_hang_kernel(rank, after)

    def slow_kernels(self, rank, ms):
        self.library.dd_stub_slow_kernels(rank, ms)

    def slow_launches(self, ms):
        self.library.dd_stub_slow_launches(ms)

    def slow_ends(self, ms):
        self.library.dd_stub_slow_ends(ms)

    def end_apart(self, is_apart=True):
        self.library.dd_stub_end_apart(int(is_apart))

    def encryption(self):
        """Return a number derived from NCCL's encryption key, 0 if it has none."""
        self.library.dd_stub_encryption.restype = ctypes.c_ulonglong
        return self.library.dd_stub_encryption()

    def coll_config(self):
        """Return the last collective configuration, such as "maxCTAs=4 algSelection=ring"."""
        text = ctypes.create_string_buffer(512)
        self.library.dd_stub_coll_config(text, ctypes.c_size_t(len(text)))
        return text.value.decode()


class Stubs:
    def __init__(self, version, folder):
        self.version = version
        self.cuda_path = os.path.join(folder, "libcuda.so.1")
        self.nccl_path = os.path.join(folder, f"nccl-{version}", "libnccl.so.2")
        self._controls = {}

    @property
    def cuda(self):
        if "cuda" not in self._controls:
            self._controls["cuda"] = CudaControl(self.cuda_path)
        return self._controls["cuda"]

    @property
    def nccl(self):
        if "nccl" not in self._controls:
            self.cuda  # loads the library that NCCL's stub must find
            self._controls["nccl"] = NcclControl(self.nccl_path)
        return self._controls["nccl"]

    def environment(self, *, devices=None, same_gpu=None, folder=None, faults=None):
        """Return the environment of child processes: the library paths and the stubs' behaviour."""
        found = {"DLDIST_CUDA_LIBRARY": self.cuda_path, "DLDIST_NCCL_LIBRARY": self.nccl_path}
        values = {
            "DLDIST_STUB_DEVICES": devices,
            "DLDIST_STUB_ALLOW_SAME_GPU": None if same_gpu is None else int(same_gpu),
            "DLDIST_STUB_DIR": folder,
            "DLDIST_STUB_FAULTS": faults if faults is None or isinstance(faults, str) else ";".join(faults),
        }
        return found | {name: str(value) for name, value in values.items() if value is not None}


def build(version="2.32.3", folder=None):
    """Build the stubs of one NCCL version with make in `folder` (default: the repository's build/),
    where results are reused."""
    folder = os.path.join(ROOT, "build") if folder is None else os.fspath(folder)
    os.makedirs(folder, exist_ok=True)
    # a relative path: make targets cannot contain a space, but the absolute path may
    build = os.path.relpath(folder, ROOT)
    command = ["make", "-s", "--no-print-directory", f"BUILD={build}", f"STUB_VERSIONS={version}", "stubs"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"}
    with open(os.path.join(folder, ".stubs.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    if made.returncode != 0:
        raise RuntimeError(f"the stubs of NCCL {version} cannot be built:\n{made.stdout}{made.stderr}")
    return Stubs(version, os.path.join(folder, "fast", "stubs"))


def _layout(shape, strides, itemsize):
    """Return the offset of the first element in the tensor's memory and the memory's size in bytes.
    Strides are in elements."""
    if 0 in shape:
        return 0, itemsize
    spans = [(length - 1) * stride for length, stride in zip(shape, strides)]
    first = -sum(span for span in spans if span < 0)
    return first, (first + sum(span for span in spans if span > 0) + 1) * itemsize


def _contiguous(shape):
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


class CudaArray(dlpack_producer.Producer):
    """A tensor of a framework with a GPU. The stub owns its memory; values are copied from and to
    NumPy.

    `stream` is the framework's current stream, which all of its own operations use. __dlpack__()
    makes the consumer's stream wait for it if `honours_stream`; otherwise it only records the given
    stream in `asked_streams`. DLPack capsules keep the memory, as required, until their deleter is
    called.
    """

    def __init__(self, stubs, values, *, dtype=None, device=0, strides=None, stream=LEGACY_STREAM, honours_stream=True, flags=0):
        values = numpy.asarray(values)
        self.cuda = stubs.cuda
        self.device = device
        self.stream = stream
        self.honours_stream = honours_stream
        self.asked_streams = []
        self.dtype = dtype or values.dtype.name
        code, bits, held_as = DTYPES[self.dtype]
        self.held_as = numpy.dtype(held_as)
        self.shape = values.shape
        self.strides = _contiguous(self.shape) if strides is None else tuple(strides)
        self._first, self._nbytes = _layout(self.shape, self.strides, self.held_as.itemsize)
        self._exported = []
        self._base = self._allocate()
        self.address = self._base + self._first * self.held_as.itemsize
        super().__init__(
            None,
            self.shape,
            self.strides,
            dtype=(code, bits),
            data=self.address,
            device_type=dlpack_producer.CUDA,
            device_id=device,
            flags=flags,
        )
        self._write(values, ms=0)
        self.synchronize()

    # ---- values

    def _host_image(self, values):
        image = numpy.zeros(self._nbytes, "uint8")
        self._view(image)[...] = numpy.asarray(values).astype(self.held_as, copy=False)
        return image.tobytes()

    def _view(self, image):
        flat = image.view(self.held_as)
        steps = [stride * self.held_as.itemsize for stride in self.strides]
        return numpy.lib.stride_tricks.as_strided(flat[self._first :], self.shape, steps)

    def _write(self, values, ms):
        with self.cuda.on_device(self.device):
            self.cuda.slow_write(self.stream, self._base, self._host_image(values), ms)

    def slow_write(self, values, ms):
        """Write the values in the framework's stream after ms, as if it computed them."""
        self._write(values, ms)

    def numpy(self):
        """Synchronise, and return the values. Types that NumPy lacks become unsigned integers."""
        self.synchronize()
        return self._view(numpy.frombuffer(self._read(), "uint8")).copy()

    def _read(self):
        return ctypes.string_at(self._base, self._nbytes)

    def synchronize(self):
        self.cuda.synchronize(self.stream, self.device)

    # ---- DLPack

    def export(self):
        self._exported.append(self)
        return super().export()

    def _delete(self, pointer):
        super()._delete(pointer)
        if self._exported:
            self._exported.pop()

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        self.asked_streams.append(stream)
        consumer = LEGACY_STREAM if stream is None else stream
        if stream == 0:
            raise ValueError("stream 0 is ambiguous: 1 is the legacy default stream, 2 the one of each thread")
        if self.honours_stream and consumer != -1 and consumer != self.stream:
            self.cuda.order(self.stream, consumer, self.device)
        if max_version is not None and max_version[0] >= 1:
            made = dlpack_producer.capsule(self.export(), "dltensor_versioned", self._keep)
        else:
            self._exported.append(self)
            made = dlpack_producer.capsule(self._make(dlpack_producer.Managed), "dltensor", self._keep)
        self.capsules.append(made)
        return made

    def _allocate(self):
        pointer = ctypes.c_uint64()
        with self.cuda.on_device(self.device):
            self.cuda.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(self._nbytes))
        return pointer.value

    def _give_back(self):
        """Free the memory in stream order, as the framework's cache does.

        This must not wait: a garbage collection may call it on any thread, between two calls for
        which peers wait.
        """
        with self.cuda.on_device(self.device):
            self.cuda.free_in_order(self.stream, self._base)

    def __del__(self):
        if getattr(self, "_base", 0):
            with contextlib.suppress(OSError):
                self._give_back()


Stubs.Array = CudaArray

_STREAM_OF = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


def exchange_type(current_stream, **options):
    """Return a class like CudaArray whose instances are exported by the C exchange API.

    current_stream(device) must return the framework's current stream as a number.
    """
    made, table = dlpack_producer.exchange_type(CudaArray, **options)

    @_STREAM_OF
    def stream_of(_device_type, device, out):
        out[0] = current_stream(device)
        return 0

    table.stream = ctypes.cast(stream_of, ctypes.c_void_p)
    made._keep_type.append(stream_of)
    return made
