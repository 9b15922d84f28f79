"""Calls of the CUDA driver for tests, by ctypes: the real libcuda or the stub of tests/stubs."""

import contextlib
import ctypes


class Driver:
    """Calls of the driver `library`, loaded with ctypes."""

    def __init__(self, library):
        self.library = library

    def call(self, function, *args):
        result = getattr(self.library, function)(*args)
        if result != 0:
            raise OSError(f"{function}: CUDA result {result}")

    @contextlib.contextmanager
    def on_device(self, device):
        """Retain the device's primary context and make it current in the block."""
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        try:
            self.call("cuCtxPushCurrent_v2", context)
            try:
                yield
            finally:
                popped = ctypes.c_void_p()
                self.call("cuCtxPopCurrent_v2", ctypes.byref(popped))
        finally:
            self.call("cuDevicePrimaryCtxRelease_v2", device)

    def make_stream(self, device):
        stream = ctypes.c_void_p()
        with self.on_device(device):
            self.call("cuStreamCreateWithPriority", ctypes.byref(stream), 1, 0)
        return stream.value

    def destroy_stream(self, stream):
        self.call("cuStreamDestroy_v2", ctypes.c_void_p(stream))

    def synchronize(self, stream, device):
        with self.on_device(device):
            self.call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def order(self, earlier, later, device):
        """Make later work in `later` wait for the work that `earlier` holds now, with an event, as
        frameworks do."""
        event = ctypes.c_void_p()
        with self.on_device(device):
            self.call("cuEventCreate", ctypes.byref(event), 2)
            try:
                self.call("cuEventRecord", event, ctypes.c_void_p(earlier))
                self.call("cuStreamWaitEvent", ctypes.c_void_p(later), event, 0)
            finally:
                self.call("cuEventDestroy_v2", event)


class Graph:
    """Capture the work enqueued in `stream` in the block as a CUDA graph. The device's context must
    be current throughout.

    `mode` selects the threads whose driver calls the capture restricts: 0 all, 1 this one, 2 none.
    """

    def __init__(self, driver, stream, mode=0):
        self.driver, self.stream, self.mode = driver, ctypes.c_void_p(stream), mode
        self.graph, self.runnable = ctypes.c_void_p(), ctypes.c_void_p()

    def __enter__(self):
        self.driver.call("cuStreamBeginCapture_v2", self.stream, self.mode)
        return self

    def __exit__(self, *exception):
        self.driver.call("cuStreamEndCapture", self.stream, ctypes.byref(self.graph))
        self.driver.call("cuGraphInstantiateWithFlags", ctypes.byref(self.runnable), self.graph, ctypes.c_uint64(0))

    def launch(self):
        self.driver.call("cuGraphLaunch", self.runnable, self.stream)

    def destroy(self):
        self.driver.call("cuGraphExecDestroy", self.runnable)
        self.driver.call("cuGraphDestroy", self.graph)
