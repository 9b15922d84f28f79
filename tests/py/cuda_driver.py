"""What tests ask of the CUDA driver, the real one or the double of tests/stubs: one library, by ctypes."""

import contextlib
import ctypes


class Driver:
    """Calls of the driver `library`, which has been loaded with ctypes."""

    def __init__(self, library):
        self.library = library

    def call(self, function, *args):
        result = getattr(self.library, function)(*args)
        if result != 0:
            raise OSError(f"{function}: CUDA result {result}")

    @contextlib.contextmanager
    def on_device(self, device):
        """The device's primary context is current; it is retained while this lasts."""
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
        """What `later` gets from now on waits for what `earlier` holds now, as frameworks do it: by an event."""
        event = ctypes.c_void_p()
        with self.on_device(device):
            self.call("cuEventCreate", ctypes.byref(event), 2)
            try:
                self.call("cuEventRecord", event, ctypes.c_void_p(earlier))
                self.call("cuStreamWaitEvent", ctypes.c_void_p(later), event, 0)
            finally:
                self.call("cuEventDestroy_v2", event)


class Graph:
    """What is enqueued in `stream` while this is entered becomes a CUDA graph. The device's context must be current throughout.

    `mode` says which calls of the driver the capture forbids: 0 everybody's, 1 this thread's, 2 none."""

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
