"""Cases that the ranks of test_nccl_windows.py run, over the stubs of tests/stubs. All ranks must
return the same reply."""

import ctypes
import gc
import json
import os
import sys
import threading
import types

LIMIT_S = 20.0
SHORT_S = 0.4


class Rank:
    """A rank, its group, and memory visible to all ranks."""

    def __init__(self, dist, stubs, store, rank, size, **options):
        from dldist import _core

        self.dist, self.stubs, self.store, self.rank, self.size = dist, stubs, store, rank, size
        self.next, self.before = (rank + 1) % size, (rank - 1) % size
        self.group = _core.NcclGroup(store, rank, size, **{"timeout": LIMIT_S, "device": rank, **options})
        self._nwaits = 0

    def empty(self, count, dtype="int32"):
        made = self.group.empty(count, dtype)
        bytes_of(made)[:] = 0
        return made

    def wait_for_all(self):
        """Wait until all ranks have called this, in any state of the group."""
        self._nwaits += 1
        key = f"meet/{self._nwaits}"
        if self.store.add(key, 1) == self.size:
            self.store.set(key + "/go", "")
        self.store.wait([key + "/go"], LIMIT_S)


def bytes_of(array):
    """Return the bytes of an NcclArray. The host may access them between operations."""
    import numpy

    return numpy.frombuffer((ctypes.c_char * array.nbytes).from_address(array.ptr), "uint8")


def numbers(array):
    import numpy

    return bytes_of(array).view(numpy.int32)


def wait(work):
    assert work.wait(LIMIT_S) is True


def error_of(function, *args, **named):
    try:
        function(*args, **named)
    except Exception as error:
        return error
    raise AssertionError("there was no error")


def run(channel, name, version, environment, port, rank, size, options):
    """Run one case in a group with these options; send its result and the remaining resources."""
    os.environ.update(environment)
    import dldist
    import nccl_stubs
    from dldist import nccl

    assert nccl.is_available(), nccl.why_not_available()
    stubs = nccl_stubs.build(version)
    store = dldist.TCPStore("127.0.0.1", port, timeout=LIMIT_S)
    self = Rank(dldist, stubs, store, rank, size, **options)
    reply = globals()[name](self)
    if self.group.error is None:
        self.group.close()
    del self
    gc.collect()
    return reply, {kind: stubs.nccl.live(kind) for kind in ("window", "memory")}, stubs.nccl.bad_uses() + stubs.cuda.bad_uses()


# ---- data


def all_dtypes(self):
    """Every rank must be able to write its block of distinct bytes into the memory of all ranks."""
    import nccl_stubs
    import numpy

    count = 77
    for dtype in nccl_stubs.DTYPES:
        local, all_blocks = self.empty(count, dtype), self.empty(self.size * count, dtype)
        bytes_of(local)[:] = (numpy.arange(local.nbytes) * 7 + self.rank) % 2 if dtype == "bool" else numpy.arange(local.nbytes) * 7 + self.rank
        source, target = self.group.new_window(local), self.group.new_window(all_blocks)
        assert target.buffer_size == all_blocks.nbytes and target.tensor is all_blocks and target.channels == 1
        for peer in range(self.size):
            target.put(local, peer, self.rank * count)
        for peer in range(self.size):
            wait(target.wait_signal(peer, async_op=True))
        blocks = bytes_of(all_blocks).reshape(self.size, -1)
        for peer in range(self.size):
            expected = numpy.arange(local.nbytes) * 7 + peer
            assert (blocks[peer] == (expected % 2 if dtype == "bool" else expected % 256)).all(), (dtype, peer)
        source.close()
        target.close()


def parts_and_offsets(self):
    """A part of the window's own tensor must arrive at an odd offset; an empty put is a signal."""
    x = self.empty(100)
    window = self.group.new_window(x)
    numbers(x)[:50] = self.rank * 1000 + numbers(x)[:50] + range(50)
    self.group.barrier()
    part = self.group.empty(7, "int32")  # not in a window; a view of x replaces it below
    del part
    view = View(self, x, 3, 7)
    window.put(view, self.next, 91)
    window.put(View(self, x, 0, 0), self.next)
    wait(window.wait_signal(self.before, count=2, async_op=True))
    assert numbers(x)[91:98].tolist() == [self.before * 1000 + k for k in range(3, 10)]
    assert numbers(x)[[90, 98]].tolist() == [0, 0]
    window.close()


def View(self, array, start, count, step=1):
    """Return elements of an NcclArray as a tensor of another framework."""
    import dlpack_producer

    class Part(dlpack_producer.Producer):
        def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
            self._keep_array = array
            return dlpack_producer.capsule(self.export(), "dltensor_versioned", self._keep)

    where = {"data": array.ptr + 4 * start, "device_type": dlpack_producer.CUDA, "device_id": self.rank}
    return Part(None, (count,), (step,), dtype=(dlpack_producer.INT, 32), **where)


def a_ring_in_order(self):
    """Puts must follow each other around a ring without the host: each waits in the stream for the
    previous rank's."""
    x = self.empty(8)
    window = self.group.new_window(x)
    if self.rank == 0:
        numbers(x)[0] = 42
        window.put(View(self, x, 0, 1), self.next, 1)
    for turn in range(10):
        window.wait_signal(self.before)
        if self.rank != 0 or turn < 9:
            window.put(View(self, x, 1, 1), self.next, 1)
    self.group._wait_for_works(LIMIT_S)
    assert numbers(x)[1] == 42
    window.close()


# ---- signals


def signals_are_counted(self):
    """Signals must be counted across windows, which share them."""
    x = self.empty(4)
    first, second = self.group.new_window(x), self.group.new_window(self.empty(4))
    for _ in range(30):
        first.signal(self.next)
    for _ in range(20):
        second.put(x, self.next)
    wait(second.wait_signal(self.before, count=45, async_op=True))
    # Five are left. A signal is not sent until the earlier waits have ended, so rank 0 starts.
    work = first.wait_signal(self.before, count=6, async_op=True) if self.rank > 0 else None
    self.wait_for_all()
    assert work is None or not work.is_completed()
    self.wait_for_all()
    second.signal(self.next)
    wait(work or first.wait_signal(self.before, count=6, async_op=True))
    first.close()
    second.close()


def wait_before_the_signal(self):
    """wait_signal() must block the stream, not the host: a synchronous call returns early."""
    window = self.group.new_window(self.empty(2))
    if self.rank == 1:
        window.wait_signal(0)
        work = window.wait_signal(0, async_op=True)
        assert not work.is_completed()
    self.wait_for_all()
    if self.rank == 0:
        window.signal(1)
        window.signal(1)
    else:
        wait(work)
    window.close()


def channels_are_separate(self):
    x = self.empty(4)
    window = self.group.new_window(x)
    assert window.channels == 3
    window.signal(self.next, 2)
    window.put(x, self.next, 0, 1)
    wait(window.wait_signal(self.before, 1, async_op=True))
    wait(window.wait_signal(self.before, channel=2, async_op=True))
    error = error_of(window.signal, self.next, 3)
    assert type(error).__name__ == "DistArgumentError" and "invalid channel: got 3, expected 0 to 2" in str(error), error
    window.signal(self.next, 1)
    work = window.wait_signal(self.before, 0, async_op=True)
    self.wait_for_all()
    assert not work.is_completed()
    self.group.abort("enough")


def signal_follows_puts_of_other_channels(self):
    """A signal must follow earlier puts of other channels, even if those puts' own signals are
    never received."""
    from dldist import nccl

    x = self.empty(8)
    window = self.group.new_window(x)
    stream = self.stubs.cuda.make_stream(self.rank)
    for turn in range(5):
        numbers(x)[:4] = 10 * turn + 1
        if self.rank == 0:
            self.stubs.cuda.gate(stream, turn + 1)
            with nccl.stream(stream):
                window.put(View(self, x, 0, 4), 1, 4, 0)
            window.signal(1, 1)
            self.wait_for_all()
            self.wait_for_all()
            self.stubs.cuda.open_gate(turn + 1)
            wait(window.wait_signal(1, 1, async_op=True))
        else:
            work = window.wait_signal(0, 1, async_op=True)
            self.wait_for_all()
            assert not work.is_completed()
            assert numbers(x)[4:].tolist() == [max(10 * turn - 9, 0)] * 4
            self.wait_for_all()
            wait(work)
            assert numbers(x)[4:].tolist() == [10 * turn + 1] * 4, turn
            window.signal(0, 1)
    if self.rank == 1:
        wait(window.wait_signal(0, 0, count=5, async_op=True))
    window.close()
    self.stubs.cuda.destroy_stream(stream)


def close_waits_for_other_ranks(self):
    window = self.group.new_window(self.empty(2))
    errors = []

    def close():
        try:
            window.close()
        except Exception as error:
            errors.append(error)

    if self.rank == 1:
        thread = threading.Thread(target=close)
        thread.start()
        thread.join(SHORT_S)
        assert thread.is_alive() and not errors, errors
    self.wait_for_all()
    if self.rank == 0:
        close()
    else:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), "closing hangs"
    assert not errors, errors


def put_without_a_wait(self):
    """A put without a wait_signal() must end, and its window close cleanly."""
    x = self.empty(2)
    window = self.group.new_window(x)
    wait(window.put(View(self, x, 0, 1), self.next, 1, async_op=True))
    window.close()


def a_batch(self):
    """Several puts must be one operation."""
    x = self.empty(2 * self.size)
    window = self.group.new_window(x)
    numbers(x)[0] = self.rank + 1
    self.group.barrier()
    self.group.start_coalescing()
    for peer in range(self.size):
        assert window.put(View(self, x, 0, 1), peer, self.size + self.rank) is None
    del window  # the batch keeps the window alive
    gc.collect()
    wait(self.group.end_coalescing())
    again = self.group.new_window(x)
    for peer in range(self.size):
        wait(again.wait_signal(peer, async_op=True))
    assert numbers(x)[self.size :].tolist() == [peer + 1 for peer in range(self.size)]
    again.close()


def graphs(self):
    """Graphs that put and graphs that wait must be replayable."""
    os.environ["NCCL_TEST_VERSION"] = self.stubs.version
    from dldist import nccl
    from nccl_stream_cases import Graph, Side

    x = self.empty(2)
    window = self.group.new_window(x)
    side = Side(self.stubs, None, self.rank)
    with self.stubs.cuda.on_device(self.rank), nccl.stream(side.handle):
        with Graph(self.stubs.cuda, side.handle) as graph:
            window.put(View(self, x, 0, 1), self.next, 1)
            window.wait_signal(self.before)
        for turn in range(3):
            numbers(x)[0] = 10 * turn + self.rank
            self.wait_for_all()
            graph.launch()
            self.stubs.cuda.synchronize(side.handle, self.rank)
            assert numbers(x)[1] == 10 * turn + self.before, turn
            self.wait_for_all()
        graph.destroy()
    window.close()
    self.stubs.cuda.destroy_stream(side.handle)


# ---- errors


def wrong_arguments(self):
    import numpy

    x = self.empty(8)
    window = self.group.new_window(x)
    other = self.empty(8, "float32")
    for call, kind, text in (
        (lambda: window.put(x, self.size), "DistArgumentError", "invalid rank"),
        (lambda: window.put(x, 0, 1), "DistArgumentError", "got 32 bytes at offset 4, expected at most 32 bytes in the window of rank 0"),
        (lambda: window.put(x, 0, -1), "DistArgumentError", "argument 'offset' is out of range: got -1"),
        (lambda: window.put(x, 0, 1 << 62), "DistArgumentError", "argument 'offset'"),
        (lambda: window.put(self.empty(8), 0), "DistArgumentError", "NCCL needs a tensor that is in a window of this group"),
        (lambda: window.put(other, 0), "DistTypeError", "got float32, expected int32, as the window"),
        (lambda: window.put(numpy.zeros(8, "int32"), 0), "DistArgumentError", "got cpu, expected cuda"),
        (lambda: window.put(View(self, x, 0, 4, step=2), 0), "DistArgumentError", "strided"),
        (lambda: window.signal(0, 1), "DistArgumentError", "invalid channel: got 1, expected 0 to 0"),
        (lambda: window.wait_signal(0, count=0), "DistArgumentError", "invalid number of signals: got 0"),
        (lambda: window.wait_signal(-1), "DistArgumentError", "invalid rank"),
    ):
        error = error_of(call)
        assert type(error).__name__ == kind and text in str(error), error
    # Nothing was sent, and everything still works.
    window.put(x, self.next)
    wait(window.wait_signal(self.before, async_op=True))
    window.close()
    window.close()
    for call in (lambda: window.put(x, 0), lambda: window.signal(0), lambda: window.wait_signal(0)):
        assert "closed" in str(error_of(call))
    self.group.barrier()


def ranks_that_disagree(self):
    """All ranks must get the error, and the group stay usable."""
    from nccl_stubs import CudaArray

    error = error_of(self.group.new_window, self.empty(4 + self.rank))
    assert type(error).__name__ == "DistMismatchError" and "rank 0 16 bytes of int32, rank 1 20 bytes" in str(error), error
    error = error_of(self.group.new_window, self.empty(4, "int32" if self.rank == 0 else "float32"))
    assert type(error).__name__ == "DistMismatchError" and "16 bytes of float32" in str(error), error
    error = error_of(self.group.new_window, self.empty(4) if self.rank == 0 else [1, 2])
    assert "rank 1 cannot open its part" in str(error) if self.rank == 0 else isinstance(error, TypeError), error
    plain = CudaArray(self.stubs, [0] * 4, dtype="int32", device=self.rank)
    error = error_of(self.group.new_window, self.empty(4) if self.rank == 0 else plain)
    reason = "rank 1 cannot open its part" if self.rank == 0 else "must be from ncclMemAlloc"
    assert type(error).__name__ == "DistArgumentError" and reason in str(error), error
    window = self.group.new_window(self.empty(4))
    error = error_of(lambda: self.group.register(plain, is_window=True))
    assert type(error).__name__ == "DistArgumentError" and "is not from ncclMemAlloc" in str(error), error
    window.signal(self.next)
    window.wait_signal(self.before)
    window.close()


def too_old(self):
    error = error_of(self.group.new_window, self.empty(4))
    assert isinstance(error, NotImplementedError) and "2.29.2" in str(error) and "2.28.7" in str(error), error
    self.group.barrier()


def time_outs(self):
    x = self.empty(4)
    window = self.group.new_window(x)
    work = window.wait_signal(self.before, timeout=SHORT_S, async_op=True)
    error = error_of(work.wait, LIMIT_S)
    assert type(error).__name__ == "DistTimeoutError" and "wait_signal" in str(error), error
    assert "has failed" in str(error_of(window.put, x, 0)) and "has failed" in str(error_of(self.group.new_window, x))
    window.close()
    window.close()


def an_abort_ends_a_wait(self):
    window = self.group.new_window(self.empty(4))
    work = window.wait_signal(self.before, async_op=True)
    errors = []
    thread = threading.Thread(target=lambda: errors.append(error_of(work.wait, LIMIT_S)))
    thread.start()
    self.group.abort("enough of it")
    thread.join(LIMIT_S)
    assert type(errors[0]).__name__ == "DistAbortedError" and "enough of it" in str(errors[0]), errors


def nccl_fails(self):
    x = self.empty(4)
    window = self.group.new_window(x)
    self.stubs.nccl.fail("ncclPutSignal", result=2, text="the cable is out")
    error = error_of(window.put, x, self.next)
    assert type(error).__name__ == "DistBackendError", error
    for text in ("put", "ncclPutSignal", "the cable is out"):
        assert text in str(error), error


def registering_hangs(self):
    self.group.connect()
    self.stubs.nccl.hang("ncclCommWindowRegister")
    error = error_of(self.group.new_window, self.empty(4), timeout=SHORT_S)
    assert type(error).__name__ == "DistTimeoutError" and "ncclCommWindowRegister" in str(error), error
    assert "registering a window" in str(error_of(self.group.barrier))
    self.stubs.nccl.release()


def a_rank_does_not_come(self):
    """If a rank does not join, the error must name it, and its own later call must also fail."""
    if self.rank == 0:
        error = error_of(self.group.new_window, self.empty(4), timeout=SHORT_S)
        assert type(error).__name__ == "DistTimeoutError" and "missing: 1" in str(error), error
    self.wait_for_all()
    if self.rank == 1:
        assert "rank 0" in str(error_of(self.group.new_window, self.empty(4)))
    self.group.barrier()


def a_peer_dies(self):
    window = self.group.new_window(self.empty(4))
    self.group.barrier()
    if self.rank == 1:
        os._exit(3)
    error = error_of(window.wait_signal(1, timeout=SHORT_S, async_op=True).wait, LIMIT_S)
    assert type(error).__name__ == "DistTimeoutError" and "wait_signal" in str(error), error


def nan(self):
    x = self.empty(4, "float32")
    window = self.group.new_window(x)
    bytes_of(x).view("float32")[2] = float("nan")
    error = error_of(window.put, x, self.next)
    assert "NaN at element 2" in str(error), error
    window.close()


def left_open(self):
    """A window left open must cause a warning and not be freed; the group ends the window."""
    import warnings

    x = self.empty(4)
    window = self.group.new_window(x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del window
        gc.collect()
    assert [warning.category for warning in caught] == [ResourceWarning] and "released without being closed" in str(caught[0].message)


def recorded(self):
    x = self.empty(4)
    window = self.group.new_window(x)
    window.put(x, self.next)
    window.wait_signal(self.before)
    window.signal(self.next)
    window.wait_signal(self.before)
    window.close()
    entries = json.loads(self.dist._core._dump_recorder(True, True, False, False))
    names = [(entry["profiling_name"], entry["state"], entry["is_p2p"]) for entry in entries["entries"]]
    waited = f"nccl:wait_signal {self.rank}<-{self.before}"
    sent = f"{self.rank}->{self.next}"
    expected = [f"nccl:put {sent}", waited, f"nccl:signal {sent}", waited]
    assert names[:4] == [(name, "completed", True) for name in expected], names


def dump(self):
    """Write this rank's dump into the stubs' folder, after the same calls on all ranks."""
    from dldist import flight_recorder

    self.group.barrier()
    folder = os.path.join(os.environ["DLDIST_STUB_DIR"], "dumps")
    os.makedirs(folder, exist_ok=True)
    flight_recorder.dump(os.path.join(folder, f"fr_{self.rank}"))


def dumped_without_puts(self):
    window = self.group.new_window(self.empty(4))
    self.group.all_reduce(window.tensor)
    window.close()
    dump(self)


def dumped_with_puts(self):
    x = self.empty(4)
    window = self.group.new_window(x)
    self.group.all_reduce(x)
    window.put(x, self.next)
    window.wait_signal(self.before)
    window.signal(self.next)
    window.wait_signal(self.before)
    window.close()
    dump(self)


# ---- c10d


def windows_of_c10d(channel, version, environment, port, rank, size):
    """ProcessGroupNCCL.new_window and mem_allocator must work."""
    os.environ.update(environment)
    import dldist as dist
    import nccl_stubs

    stubs = nccl_stubs.build(version)
    store = dist.TCPStore("127.0.0.1", port, timeout=LIMIT_S)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=size, timeout=LIMIT_S, device_id=f"cuda:{rank}")
    pg = dist.group.WORLD
    backend = pg._backend_of_device("cuda")
    other = 1 - rank
    if version == "2.28.7":
        assert not backend.supports_window
        error = error_of(dist._new_window)
        assert isinstance(error, NotImplementedError) and "2.29.2" in str(error) and version in str(error), error
        return "too old"
    x = backend.allocate_tensor(8, dtype="int32", device=f"cuda:{rank}")
    bytes_of(x)[:] = 0
    assert dist._supports_window() and backend.supports_window
    window = dist._new_window()
    assert isinstance(window, dist.Window) and "nothing registered" in repr(window)
    assert "has no tensor" in str(error_of(window.put, x, other))
    window.tensor_register(x)
    assert "already has a tensor" in str(error_of(window.tensor_register, x))
    numbers(x)[:4] = rank + 1
    dist.barrier()
    half = View(TraceRank(rank), x, 0, 4)
    assert window.put(half, other, 4).wait()
    assert "omit the signal" in str(error_of(window.signal, other))
    assert window.wait_signal(other, async_op=True).wait()
    window.signal(other, opts=options(dist.SignalOptions)).wait()
    window.wait_signal(other, opts=options(dist.WaitSignalOptions)).wait()
    backend._wait_for_pending_works()
    assert numbers(x).tolist() == [rank + 1] * 4 + [other + 1] * 4
    assert window.get_attr(other).access_type == dist.WindowAccessType.SEPARATE
    assert isinstance(error_of(window.map_remote_tensor, other), NotImplementedError)
    window.tensor_deregister()
    assert "has no tensor" in str(error_of(window.signal, other))
    pg.new_window(x).tensor_deregister()

    allocator = backend.mem_allocator
    before = stubs.nccl.live("memory")
    address = allocator.malloc(4096, rank)
    assert stubs.nccl.live("memory") == before + 1
    allocator.free(address, rank)
    assert stubs.nccl.live("memory") == before
    dist.destroy_process_group()
    return "done"


class TraceRank:
    def __init__(self, rank):
        self.rank = rank


def options(kind):
    from datetime import timedelta

    made = kind()
    made.timeout = timedelta(seconds=LIMIT_S)
    return made


# ---- the allocator, in a separate process


def allocator_in_c(channel, version, environment):
    """Test the C functions as other libraries call them, and the objects for libraries that are not
    installed."""
    os.environ.update(environment)
    import nccl_stubs
    from dldist import nccl

    stubs = nccl_stubs.build(version)
    if version == "2.18.1":
        return str(error_of(nccl.Allocator))
    allocator = nccl.Allocator()
    malloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(allocator.malloc_address)
    free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(allocator.free_address)
    address = malloc(1 << 16, 1, None)
    ctypes.memset(address, 7, 1 << 16)
    assert stubs.nccl.live("memory") == 1
    free(address, 1 << 16, 1, None)
    assert allocator.malloc(0, 0) == 0 and stubs.nccl.live("memory") == 0
    allocator.free(0, 0)
    stubs.cuda.limit_memory(1024)
    assert malloc(1 << 16, 0, None) is None
    assert "ncclMemAlloc of 65536 bytes failed on cuda:0" in str(error_of(allocator.malloc, 1 << 16, 0))
    assert isinstance(error_of(allocator.malloc, -1, 0), ValueError)

    made = []
    fake_torch = types.ModuleType("torch")
    fake_torch._C = types.SimpleNamespace(_cuda_customAllocator=lambda *addresses: made.append(addresses) or "torch's")
    fake_cupy = types.ModuleType("cupy")
    fake_cupy.cuda = types.SimpleNamespace(
        PythonFunctionAllocator=lambda malloc, free: made.append((malloc, free)) or types.SimpleNamespace(malloc="cupy's")
    )
    sys.modules.update(torch=fake_torch, cupy=fake_cupy)
    assert allocator.torch() == "torch's" and allocator.cupy() == "cupy's"
    assert made == [(allocator.malloc_address, allocator.free_address), (allocator.malloc, allocator.free)]
    return stubs.nccl.bad_uses()
