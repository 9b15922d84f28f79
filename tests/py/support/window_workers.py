"""Cases of the symmetric memory and window tests, on a World of all ranks. See group_team.py."""

import gc
import os
import signal
import sys
import threading
import time
import weakref

import dldist
import group_workers
from dldist import _core, symmetric_memory

DTYPES = (
    "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float8_e4m3fn float8_e5m2 float32 float64 complex64 "
    "complex128"
).split()
COUNT = 24


def member(channel, port, rank, size, options=None):
    store = dldist.TCPStore(group_workers.LOOPBACK, port, timeout=30.0)
    world = dldist.World(store, rank, size, **{"timeout": 20.0, **(options or {})})
    return group_workers.serve(channel, world, globals())


def pattern(rank, nbytes):
    """Return bytes that identify the rank."""
    return bytes((rank * 53 + at * 7) % 251 for at in range(nbytes))


def bytes_of(x):
    """Return the contents of an array of any dtype, even those the buffer protocol lacks."""
    described = _core._describe_tensor(x, False)
    copy = bytearray(described["count"] * described["itemsize"])
    _core.Window(dldist.Group(None, 0, 1), x).get(copy, 0)
    return bytes(copy)


def error_of(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Exception as error:
        return error
    raise AssertionError(f"{call} raised nothing")


def filled(world, nbytes=64, dtype="uint8"):
    """Return an array that all ranks can access, filled with this rank's pattern."""
    x = world.empty(nbytes, dtype)
    memoryview(x).cast("B")[:] = pattern(world.rank, memoryview(x).nbytes)
    return x


# ---- memory


def every_dtype(world, dtype):
    """Each rank must be able to read all others, be written by the previous one, and fetch from the
    next one."""
    x = world.empty(COUNT, dtype)
    own = world.rank
    itemsize = _core._describe_tensor(x, False)["itemsize"]
    memory = world.rendezvous(x)
    source = world.empty(COUNT // 2, dtype)
    half = COUNT // 2 * itemsize
    _core.Window(dldist.Group(None, 0, 1), source).put(pattern(own, half), 0)
    next_, before = (own + 1) % world.size, (own - 1) % world.size
    memory.put(source, next_, COUNT // 2, channel=1)
    memory.wait_signal(before, 1)
    assert bytes(memory.get_buffer(own, 2 * half, "uint8")) == bytes(half) + pattern(before, half)
    memory.barrier()
    for rank in range(world.size):
        view = memory.get_buffer(rank, [COUNT // 2], dtype, COUNT // 2)
        assert (view.shape, view.dtype, view.nbytes) == ((COUNT // 2,), dtype, half)
        assert bytes_of(view) == pattern((rank - 1) % world.size, half)
        fetched = world.empty(COUNT // 2, dtype)
        memory.get(fetched, rank, COUNT // 2)
        assert bytes_of(fetched) == bytes_of(view)
    memory.barrier()


def libraries(world, name):
    """Arrays of a library over shared memory must be usable like the shared array itself, and show
    remote writes."""
    x = world.empty((4, 8), "float32")
    if name == "numpy":
        import numpy as np

        own_memory, read, of = np.asarray(x), np.asarray, lambda value: np.full(8, value, "float32")
    elif name == "torch":
        import torch

        own_memory, read, of = torch.from_dlpack(x), torch.from_dlpack, lambda value: torch.full((8,), value)
    else:
        import jax
        import numpy as np

        own_memory, read, of = x, jax.dlpack.from_dlpack, lambda value: jax.numpy.full(8, value, "float32")
        assert isinstance(read(x), jax.Array) and np.asarray(read(x)).shape == (4, 8)
    memory = world.rendezvous(own_memory)
    assert memory.offset == 0 and memory.buffer_size == 128
    assert symmetric_memory.is_symm_mem_tensor(own_memory) and not symmetric_memory.is_symm_mem_tensor(of(1.0))
    for rank in range(world.size):
        memory.put(of(float(world.rank + 1)), rank, 8 * world.rank)
    memory.barrier()
    for rank in range(world.size):
        seen = read(memory.get_buffer(rank, [4, 8], "float32"))
        rows = [float(row[0]) for row in seen]
        assert rows == [float(r + 1) if r < world.size else 0.0 for r in range(4)]
    memory.barrier()


def parts(world):
    """A part of an array must stand for the whole array, at its offset."""
    import numpy as np

    x = world.empty(64, "int32")
    whole = np.asarray(x)
    start = 16 + world.rank
    memory = world.rendezvous(whole[start : start + 8])
    assert memory.offset == 4 * start and memory.buffer_sizes == [256] * world.size
    whole[:] = world.rank
    memory.barrier()
    for rank in range(world.size):
        assert (np.asarray(memory.get_buffer(rank, [64], "int32")) == rank).all()
        here = np.asarray(memory.get_remote_tensor(rank, [8], "int32"))
        assert here.ctypes.data == memory.buffer_ptrs[rank] + memory.offset
    memory.barrier()
    symmetric_memory.put_signal(np.full(4, 7, "int32"), memory, world.rank)
    symmetric_memory.wait_signal(memory, world.rank)
    assert (whole[start : start + 4] == 7).all() and (whole[:start] == world.rank).all()
    if start % 4 != 0:
        error = error_of(symmetric_memory.put_signal, np.zeros(1, "complex128"), memory, world.rank)
        assert isinstance(error, ValueError) and f"misaligned offset: got {4 * start}" in str(error), error
    memory.barrier()


def one_sided_gets(world):
    """torch's get() must return the data at the same position in another rank's array, whether
    mapped or read by messages."""
    import numpy as np

    for x in (world.empty(64, "int32"), np.zeros(64, "int32")):
        whole = np.asarray(x)
        memory = world.rendezvous(whole)
        whole[:] = np.arange(64) + 100 * world.rank
        memory.barrier()
        for rank in range(world.size):
            room = np.zeros((4, 2), "int32")
            assert symmetric_memory.get(room, whole[8:16], world, rank) is room
            assert room.ravel().tolist() == list(range(100 * rank + 8, 100 * rank + 16))
        for room, part, text in (
            (np.zeros(8, "int64"), whole[:8], "'dst' has another dtype: got int64, expected int32"),
            (np.zeros(7, "int32"), whole[:8], "'dst' has another count: got 7, expected 8"),
            (np.zeros(4, "int32"), whole[:8:2], "must be contiguous"),
            (np.zeros(8, "int32"), np.zeros(8, "int32"), "has no handle of this group"),
        ):
            error = error_of(symmetric_memory.get, room, part, world, 0)
            assert isinstance(error, ValueError) and text in str(error), error
        memory.barrier()
        del memory, error
        assert "has no handle of this group" in str(error_of(symmetric_memory.get, np.zeros(8, "int32"), whole[:8], world, 0))


def packed(world):
    """Puts and gets must accept any strides."""
    import numpy as np

    x = world.empty((6, 4), "int16")
    memory = world.rendezvous(x)
    memory.barrier()
    source = np.arange(24, dtype="int16").reshape(4, 6)
    memory.put(source.T, (world.rank + 1) % world.size)
    memory.barrier()
    assert (np.asarray(x) == source.T).all()
    target = np.zeros((6, 8), "int16")
    memory.get(target[:, ::2], (world.rank + 1) % world.size)
    assert (target[:, ::2] == source.T).all() and not target[:, 1::2].any()
    memory.barrier()


def different_sizes(world):
    """Ranks may contribute memory of different sizes, or none."""
    x = None if world.rank == 0 else filled(world, 16 * world.rank)
    memory = world.rendezvous(x)
    assert memory.buffer_sizes == [16 * rank for rank in range(world.size)]
    for rank in range(1, world.size):
        assert bytes(memory.get_buffer(rank, 16 * rank, "uint8")) == pattern(rank, 16 * rank)
    error = error_of(memory.put, bytes(1), 0)
    assert isinstance(error, ValueError) and "rank 0" in str(error)
    memory.barrier()


def own_array(world):
    """Memory other than shared arrays must be accessed by messages; the rank itself can map it, and
    the view keeps it alive."""
    own_memory = bytearray(pattern(world.rank, 32))
    memory = world.rendezvous(own_memory)
    view = memory.get_buffer(world.rank, 32, "uint8")
    assert bytes(view) == own_memory
    target, other = bytearray(32), (world.rank + 1) % world.size
    memory.get(target, other)
    assert target == pattern(other, 32)
    memory.barrier()
    memory.put(b"hello", other, 3, channel=0)
    memory.wait_signal((world.rank - 1) % world.size)
    assert own_memory[3:8] == b"hello"
    if world.size > 1:
        error = error_of(memory.get_buffer, other, 1, "uint8")
        assert isinstance(error, ValueError) and f"rank {other}" in str(error) and "get()" in str(error)
    memory.barrier()
    del memory, own_memory
    gc.collect()
    assert bytes(view)[3:8] == b"hello"


def async_transfers(world):
    x = filled(world, 1024)
    memory = world.rendezvous(x)
    other = (world.rank + 1) % world.size
    targets = [bytearray(64) for _ in range(16)]
    works = [memory.get(target, other, 64 * at, async_op=True) for at, target in enumerate(targets)]
    for work in works:
        assert work.wait() and work.is_completed()
    assert b"".join(targets) == pattern(other, 1024)
    memory.barrier()
    works = [memory.put(bytes([at]) * 64, other, 64 * at, async_op=True) for at in range(16)]
    for work in works:
        work.wait()
    memory.flush()
    memory.barrier()
    assert bytes(x) == b"".join(bytes([at]) * 64 for at in range(16))


def dropped(world):
    """Puts and gets without waiters must complete, whichever objects the ranks drop."""
    x = filled(world, 1 << 20)
    memory = world.rendezvous(x)
    other = (world.rank + 1) % world.size
    plain = world.rendezvous(bytearray(1 << 20))  # by messages
    work = plain.put(bytes([world.rank + 1]) * (1 << 20), other, async_op=True)
    memory.put(bytes([world.rank + 1]) * (1 << 20), other, async_op=True)
    plain.get(bytearray(1 << 20), other, async_op=True)
    plain.flush()
    plain.barrier()
    assert set(bytes(plain.get_buffer(world.rank, 1 << 20, "uint8"))) == {(world.rank - 1) % world.size + 1}
    assert set(bytes(x)) == {(world.rank - 1) % world.size + 1}
    world.barrier()
    works = [plain.get(bytearray(1 << 20), other, async_op=True) for _ in range(4)]
    world.barrier()
    del plain
    gc.collect()
    for each in [work, *works]:
        try:
            each.wait(20)
        except dldist.DistBackendError as error:  # the other rank has already dropped its window
            assert "closed the window" in str(error)
    world.barrier()


def pointers(world):
    import ctypes

    x = filled(world)
    memory = world.rendezvous(x)
    buffers = (ctypes.c_void_p * world.size).from_address(memory.buffer_ptrs_dev)
    pads = (ctypes.c_void_p * world.size).from_address(memory.signal_pad_ptrs_dev)
    assert list(buffers) == memory.buffer_ptrs and list(pads) == memory.signal_pad_ptrs
    for rank in range(world.size):
        assert ctypes.string_at(memory.buffer_ptrs[rank], 64) == pattern(rank, 64)
    assert (memory.rank, memory.world_size, memory.device, memory.multicast_ptr) == (world.rank, world.size, "cpu", 0)
    assert memory.group is world and f"rank {world.rank} of {world.size}, 64 bytes" in repr(memory)
    memory.barrier()


# ---- signals


def pads(world):
    """The pad must have a word per channel and rank, usable for any purpose."""
    memory = world.rendezvous(world.empty(1))
    assert memory.signal_pad_size == 2048 and memory.channels == 512 // world.size
    for rank in range(world.size):
        memory.signal(rank, 2)
    world.barrier()
    words = memory.get_signal_pad(world.rank)
    assert (words.shape, words.dtype) == ((512,), "uint32")
    row = memoryview(memory.get_signal_pad(world.rank, [world.size], storage_offset=2 * world.size)).tolist()
    assert row == [1] * world.size
    assert memory.get_signal_pad(world.rank, dtype="uint8").shape == (2048,)
    assert memory.get_signal_pad(world.rank, [], "int64", 6).shape == (250,)
    world.barrier()
    for rank in range(world.size):
        memory.wait_signal(rank, 2)
    top = memory.get_signal_pad((world.rank + 1) % world.size, [1], storage_offset=511)
    assert symmetric_memory.SymmetricMemory.stream_write_value32(top, 0, world.rank + 5) is top
    world.barrier()
    assert memoryview(words)[511] == (world.rank - 1) % world.size + 5
    symmetric_memory.SymmetricMemory.memset32(words, 500, 9, 12)
    assert memoryview(words)[499:].tolist() == [0] + [9] * 12
    world.barrier()


def counting(world):
    """signal() must accumulate; take_signal() must not wait; channels and sources must not mix."""
    memory = world.rendezvous(None)
    other, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    for _ in range(3):
        memory.signal(other, 5)
    memory.barrier()
    assert not memory.take_signal(before, 4)
    assert [memory.take_signal(before, 5) for _ in range(4)] == [True, True, True, False]
    memory.barrier()


def second_signal_without_a_receiver(world):
    """put_signal must wait until the previous signal is taken, and its error name the rank that did
    not take it."""
    memory = world.rendezvous(None)
    other = (world.rank + 1) % world.size
    memory.put_signal(other, 3)
    error = error_of(memory.put_signal, other, 3, 100)
    assert isinstance(error, dldist.DistTimeoutError) and error.rank == other
    assert f"rank {other}" in str(error) and "channel 3" in str(error)
    world.barrier()
    memory.wait_signal((world.rank - 1) % world.size, 3)
    world.barrier()
    memory.put_signal(other, 3, 1000)
    memory.wait_signal((world.rank - 1) % world.size, 3)


def wait_without_a_signal(world):
    memory = world.rendezvous(None)
    other = (world.rank + 1) % world.size
    start = time.monotonic()
    error = error_of(memory.wait_signal, other, channel=1, timeout_ms=150)
    assert isinstance(error, dldist.DistTimeoutError) and error.rank == other and f"rank {other}" in str(error)
    assert 0.1 < time.monotonic() - start < 5
    world.barrier()


def barriers(world):
    """No rank may leave a barrier before the last has entered, on any channel."""
    x = world.empty(world.size, "int64")
    memory = world.rendezvous(x)
    for number in range(50):
        for rank in range(world.size):
            memory.put(number.to_bytes(8, "little"), rank, 8 * world.rank)
        memory.barrier(number % 7)
        assert memoryview(x).tolist() == [number] * world.size
        memory.barrier(channel=number % 7)
    if world.size > 1 and world.rank == 0:
        assert isinstance(error_of(memory.barrier, 9, timeout_ms=100), dldist.DistTimeoutError)
    world.barrier()


def threads(world):
    """Threads with a channel each must not interfere."""
    memory = world.rendezvous(world.empty(8, "int64"))
    other, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    failures = []

    def play(channel):
        try:
            for number in range(200):
                memory.put(number.to_bytes(8, "little"), other, 8 * channel, channel)
                memory.wait_signal(before, channel)
                own = memory.get_buffer(world.rank, [1], "int64", channel)
                assert number <= memoryview(own)[0] < number + world.size
        except BaseException as error:
            failures.append(error)

    players = [threading.Thread(target=play, args=(channel,)) for channel in range(4)]
    for player in players:
        player.start()
    for player in players:
        player.join()
    assert not failures, failures
    memory.barrier()


# ---- lifetime


def views_outlive_everything(world):
    """A view must outlive the window, the arrays and the group."""
    part = world.split(range(world.size))
    other = (world.rank + 1) % world.size
    x = filled(part)
    memory = part.rendezvous(x)
    memory.barrier()
    view = memory.get_buffer(other, 64, "uint8")
    pad = memory.get_signal_pad(other)
    exported = memoryview(view)
    memory.barrier()
    part.close()
    del memory, part, view
    gc.collect()
    assert bytes(exported) == pattern(other, 64) and pad.shape == (512,)
    world.barrier()
    del x
    world.barrier()


class Own(bytearray):
    """Memory that refers to its window."""


def cycles(world):
    """The garbage collector must find a window that its own memory refers to."""
    memory = Own(64)
    memory.window = world.rendezvous(memory)
    gone = weakref.ref(memory.window)
    world.barrier()
    del memory
    gc.collect()
    assert gone() is None


def closed(world):
    """Calls after close() must be refused on both sides, also if the group is closed."""
    memory = world.rendezvous(world.empty(4))
    memory.barrier()
    if world.rank == 0:
        memory.close()
        memory.close()
        assert isinstance(error_of(memory.put, bytes(4), 0), dldist.DistBackendError)
    world.barrier()
    if world.rank != 0:
        error = error_of(memory.put, bytes(4), 0)
        assert isinstance(error, dldist.DistBackendError) and error.rank == 0 and "closed the window" in str(error)
    world.barrier()
    part = world.split(range(world.size))
    memory = part.rendezvous(part.empty(4))
    part.close()
    for call in (lambda: memory.wait_signal(0), lambda: memory.barrier(), lambda: memory.put(bytes(4), 0)):
        assert isinstance(error_of(call), dldist.DistBackendError)
    assert memory.get_buffer(world.rank, 4, "float32").shape == (4,)


def abort_ends_waits(world):
    """abort() on any rank must end the waits of all threads on all ranks."""
    part = world.split(range(world.size), timeout=30)
    memory = part.rendezvous(part.empty(4))
    world.barrier()  # otherwise the abort might come before the window exists
    if world.rank == world.size - 1:
        threading.Timer(0.2, part.abort, ["enough"]).start()
    start = time.monotonic()
    error = error_of(memory.wait_signal, 0, 7)
    assert isinstance(error, dldist.DistAbortedError) and "enough" in str(error), error
    assert time.monotonic() - start < 10
    world.barrier()


def interrupt(world):
    """Ctrl-C must end a wait, and the window stay usable."""
    memory = world.rendezvous(None)
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
    try:
        memory.wait_signal(world.rank, 1)
        raise AssertionError("no interrupt")
    except KeyboardInterrupt:
        pass
    memory.signal(world.rank, 1)
    memory.wait_signal(world.rank, 1)
    world.barrier()


def forked(world):
    """In a forked child every call must raise; views must stay readable."""
    memory = world.rendezvous(filled(world))
    memory.barrier()
    view = memory.get_buffer(world.rank, 64, "uint8")
    pid = os.fork()
    if pid == 0:
        calls = (lambda: memory.put(bytes(4), 0), lambda: memory.signal(0), lambda: memory.wait_signal(0), memory.barrier)
        is_refused = all(isinstance(error_of(call), dldist.DistBackendError) for call in calls)
        os._exit(0 if is_refused and bytes(view) == pattern(world.rank, 64) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    memory.barrier()


def many(world):
    """Windows and their memory must be freed when dropped."""
    other = (world.rank + 1) % world.size

    def one_round():
        x = filled(world, 4096)
        memory = world.rendezvous(x)
        memory.barrier()
        assert bytes(memory.get_buffer(other, 16, "uint8")) == pattern(other, 16)
        memory.barrier()

    def resources():
        gc.collect()
        with open("/proc/self/statm") as statm, open("/proc/self/maps") as maps:
            return int(statm.read().split()[1]), len(maps.readlines()), len(os.listdir("/proc/self/fd"))

    for _ in range(100):
        one_round()
    before = resources()
    for _ in range(1000):
        one_round()
    after = resources()
    assert after[0] < before[0] + 300 and after[1] <= before[1] + 5 and after[2] <= before[2], (before, after)


def bad_arguments(world):
    x = world.empty(4, "float32")
    memory = world.rendezvous(x)
    for call, kind, text in [
        (lambda: memory.put(bytes(4), world.size), ValueError, f"invalid rank: got {world.size}, expected 0 to"),
        (lambda: memory.put(bytes(4), -1), ValueError, "argument 'rank' is an invalid rank: got -1"),
        (lambda: memory.put(bytes(4), "0"), TypeError, "argument 'rank' must be int, not str"),
        (lambda: memory.put(4, 0), TypeError, "put(): argument 'tensor' must be a tensor"),
        (lambda: memory.put(bytes(4), 0, -1), ValueError, "argument 'offset' is out of range: got -1"),
        (lambda: memory.put(bytes(4), 0, 2**70), TypeError, "expected an int of 64 bits"),
        (lambda: memory.put(memoryview(bytes(8)).cast("f"), 0, 2**62), ValueError, "argument 'offset'"),
        (lambda: memory.put(memoryview(bytes(8)).cast("d"), 0), TypeError, "another dtype: got float64, expected float32, as the memory of rank 0"),
        (lambda: memory.get(memoryview(bytearray(8)).cast("i"), 0), TypeError, "get(): argument 'tensor' has another dtype: got int32"),
        (lambda: memory.put(bytes(17), 0), ValueError, "17 bytes at offset 0"),
        (lambda: memory.put(bytes(4), 0, 0, memory.channels), ValueError, f"argument 'channel' is out of range: got {memory.channels}"),
        (lambda: memory.put(bytes(4), 0, 0, 0, 0), TypeError, "at most 4 positional"),
        (lambda: memory.get(bytes(4), 0), ValueError, "get(): argument 'tensor' is an output: got a read-only"),
        (lambda: memory.get(bytearray(4), 0, 14), ValueError, "4 bytes at offset 14"),
        (lambda: memory.signal(0, -1), ValueError, "argument 'channel' is out of range: got -1"),
        (lambda: memory.wait_signal(9), ValueError, "argument 'src_rank'"),
        (lambda: memory.put_signal(9), ValueError, "argument 'dst_rank'"),
        (lambda: memory.wait_signal(0, 0, -5), ValueError, "argument 'timeout_ms' is negative: got -5"),
        (lambda: memory.barrier(1.5), TypeError, "argument 'channel' must be int"),
        (lambda: memory.get_buffer(0, [5], "float32"), ValueError, "got 5 elements of float32 from element 0 on, expected a part of the 16"),
        (lambda: memory.get_buffer(0, [1], "float32", 4), ValueError, "from element 4 on"),
        (lambda: memory.get_buffer(0, [-1], "float32"), ValueError, "get_buffer(): argument 'sizes' has a negative length: got -1"),
        (lambda: memory.get_buffer(0, [1], "unknown"), TypeError, "is not a dtype: got 'unknown'"),
        (lambda: memory.get_buffer(9, [1], "int8"), ValueError, "get_buffer(): argument 'rank'"),
        (lambda: memory.get_remote_tensor(9, [1], "int8"), ValueError, "argument 'peer'"),
        (lambda: memory.get_signal_pad(0, [513]), ValueError, "513 elements of uint32"),
        (lambda: symmetric_memory.SymmetricMemory.memset32(x, 3, 0, 2), ValueError, "got 'offset' 3 and 'count' 2, expected a part of 4 elements"),
        (lambda: symmetric_memory.SymmetricMemory.memset32(x, 0, 2**32), ValueError, "argument 'val' is out of range: got 4294967296"),
        (lambda: symmetric_memory.SymmetricMemory.memset32(bytearray(8), 0, 0), ValueError, "32-bit elements"),
    ]:
        error = error_of(call)
        assert isinstance(error, kind) and text in str(error), (text, error)
    memory.barrier()


def other_dtypes(world):
    """Puts and gets must compare dtypes with the memory of the target, whatever this rank's is."""
    memory = world.rendezvous(world.empty(4, ["int64", "uint8", "float32"][min(world.rank, 2)]))
    floats = memoryview(bytearray(8)).cast("f")
    for move in (memory.put, memory.get):
        assert isinstance(error_of(move, floats, 0), TypeError)
        move(memoryview(bytearray(4)), 0)  # bytes match every dtype
        if world.size > 1:
            move(floats[:1], 1)
        if world.size > 2:
            move(floats, 2)
    memory.barrier()


def bad_memory(world):
    """Unsuitable memory must be refused; if it is on one rank, the other ranks must get the error
    immediately."""
    import numpy as np

    for memory, kind, text in [
        (b"1234", ValueError, "read-only"),
        (np.zeros((4, 4))[:, 1], ValueError, "expected a contiguous"),
        (17, TypeError, "must be a tensor"),
    ]:
        error = error_of(world.rendezvous, memory)
        assert isinstance(error, kind) and "'array'" in str(error) and text in str(error), error
    error = error_of(_core.Window, world, pad_size=-1)
    assert isinstance(error, ValueError)
    for bad in ({"memory": 17}, {"pad_size": 2048.5}, {"pad_size": 2**70}, {"timeout": "soon"}):
        begin = time.monotonic()
        error = error_of(_core.Window, world, **bad if world.rank == 0 else {})
        assert isinstance(error, TypeError if world.rank == 0 else ValueError), error
        assert world.rank == 0 or "rank 0 (" in str(error) and "cannot open its part" in str(error), error
        assert world.rank > 0 or next(iter(bad)) in str(error), error
        assert time.monotonic() - begin < 10.0
    world.rendezvous(None).barrier()


def different_pads(world):
    """All ranks must get the error that their pads differ."""
    error = error_of(_core.Window, world, pad_size=1024 if world.rank == 0 else 4096)
    assert isinstance(error, dldist.DistMismatchError) and "1024" in str(error) and "4096" in str(error)
    memory = _core.Window(world, pad_size=4096)
    assert memory.signal_pad_size == 4096 and memory.channels == 1024 // world.size
    memory.barrier()


# ---- c10d's windows


def windows(world):
    """Ranks may register different shapes; offsets must count the target's elements."""
    own, other = world.rank, (world.rank + 1) % world.size
    x = world.empty((own + 1, 8), "int32")
    window = world.new_window(x)
    for rank in range(world.size):
        view = window.map_remote_tensor(rank)
        assert (view.shape, view.dtype) == ((rank + 1, 8), "int32")
        assert window.get_attr(rank).access_type is dldist.WindowAccessType.UNIFIED
    world.barrier()
    source = memoryview(bytearray([own + 1] * 16)).cast("i")
    work = window.put(source, other, 8 * other + 4)
    assert work.wait() and work.is_completed()
    work = window.signal(other)
    assert work.wait()
    assert window.wait_signal((own - 1) % world.size).wait()
    last = memoryview(x).tolist()[own]
    assert last[:4] == [0] * 4 and all(word == 0x01010101 * ((own - 1) % world.size + 1) for word in last[4:])
    window.tensor_deregister()
    assert isinstance(error_of(window.put, source, 0), RuntimeError)
    world.barrier()


def async_windows(world):
    """Works must not end before their operation."""
    own, other, before = world.rank, (world.rank + 1) % world.size, (world.rank - 1) % world.size
    x = world.empty(1 << 20, "uint8")
    window = world.new_window(x)
    waiting = window.wait_signal(before, async_op=True)
    assert not waiting.is_completed()
    world.barrier()
    source = bytearray([own + 1]) * (1 << 20)
    put = window.put(source, other, 0, True)
    put.wait()
    source[:] = bytes(len(source))  # the source is reusable
    window.signal(other, True).wait()
    assert waiting.wait() and waiting.is_completed()
    assert set(bytes(x)) == {before + 1}
    opts = dldist.WaitSignalOptions()
    opts.timeout = 0.1
    error = error_of(window.wait_signal, before, False, opts)
    assert isinstance(error, dldist.DistTimeoutError) and error.rank == before
    late = window.wait_signal(before, True, opts)
    for _ in range(2):
        assert isinstance(error_of(late.wait), dldist.DistTimeoutError)
    assert late.is_completed() and isinstance(late.exception(), dldist.DistTimeoutError)
    window.tensor_deregister()


def awaited_twice(world):
    """A work must take one signal, however many threads wait for it."""
    window = world.new_window(world.empty(8))
    other, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    work = window.wait_signal(before, async_op=True)
    waiters = [threading.Thread(target=work.wait) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    window.signal(other)
    for waiter in waiters:
        waiter.join(10)
    assert work.is_completed() and not any(waiter.is_alive() for waiter in waiters)
    window.signal(other)
    window.wait_signal(before)
    window.tensor_deregister()


def nothing_registered(world):
    """A rank without a tensor must cause an error on all ranks that names it, and leave the window
    unchanged."""
    window = world.new_window()
    x = world.empty(4)
    last = world.size - 1
    begin = time.monotonic()
    error = error_of(window.tensor_register, None if world.rank == last else x)
    assert isinstance(error, TypeError) and f"rank {last}: got None" in str(error), error
    assert time.monotonic() - begin < 10.0
    window.tensor_register(x)
    window.tensor_deregister()


def unregistered_source(world):
    """The source of a put needs no registration; calls on a window without a tensor must raise
    instead of hanging."""
    window = world.new_window()
    for call in (window.put, window.signal, window.wait_signal, window.map_remote_tensor, window.get_attr):
        args = (bytes(4), 0) if call == window.put else (0,)
        error = error_of(call, *args)
        assert isinstance(error, RuntimeError) and "has no tensor" in str(error)
    assert "nothing registered" in repr(window)
    x = world.empty(8, "float32")
    window.tensor_register(x, owning=False)
    assert isinstance(error_of(window.tensor_register, x), RuntimeError)
    del x
    other = (world.rank + 1) % world.size
    window.put(memoryview(bytes(32)).cast("f"), other)
    window.put(memoryview(bytes(16)).cast("f"), other, target_offset_nelems=4)
    error = error_of(window.put, bytes(4), other)
    assert isinstance(error, dldist._core.DistTypeError) and "uint8" in str(error) and "float32" in str(error)
    for call in (window.map_remote_tensor, window.get_attr, window.signal, window.wait_signal):
        assert isinstance(error_of(call, world.size), ValueError)
    assert isinstance(error_of(window.put, memoryview(bytes(4)).cast("f"), world.size), ValueError)
    window.tensor_deregister()


# ---- lost peers


def survivor(channel, port, rank):
    """Rank 1 is killed while rank 0 holds views of its memory and waits for its signal."""
    store = dldist.TCPStore(group_workers.LOOPBACK, port, timeout=30.0)
    world = dldist.World(store, rank, 2, timeout=60.0)
    x = filled(world, 8192)
    memory = world.rendezvous(x)
    memory.barrier()
    if rank == 1:
        channel.send(os.getpid())
        time.sleep(60)
    view = memory.get_buffer(1, 8192, "uint8")
    channel.send("ready")
    error = error_of(memory.wait_signal, 1)
    channel.send((group_workers.describe(error), time.monotonic()))
    assert bytes(view) == pattern(1, 8192)
    memoryview(view)[0] = 9
    world.abort()
    del memory, x, world
    gc.collect()
    assert bytes(view)[1:] == pattern(1, 8192)[1:]
    return "alive"


def release_from_foreign_threads(channel):
    """A consumer of a view by DLPack may release it on a thread unknown to Python, and during
    Python's exit."""
    import ctypes

    class Managed(ctypes.Structure):
        _fields_ = [("tensor", ctypes.c_uint64 * 6), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

    libc = ctypes.CDLL(None, use_errno=True)
    libc.pthread_create.argtypes = [ctypes.c_void_p] * 4
    libc.pthread_join.argtypes = [ctypes.c_ulong, ctypes.c_void_p]
    of_capsule = ctypes.pythonapi.PyCapsule_GetPointer
    of_capsule.restype, of_capsule.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
    used = ctypes.create_string_buffer(b"used_dltensor")

    def start(library, capsule):
        """Start a thread that releases it."""
        pointer = of_capsule(capsule, b"dltensor")
        rename(capsule, used)
        thread = ctypes.c_ulong()
        deleter = ctypes.cast(pointer, ctypes.POINTER(Managed)).contents.deleter
        assert library.pthread_create(ctypes.byref(thread), None, deleter, pointer) == 0
        return thread

    def join(thread):
        assert libc.pthread_join(thread, None) == 0

    group = dldist.Group(None, 0, 1)
    x = group.empty(4, "int32")
    window = dldist._core.Window(group, x)
    counts = [sys.getrefcount(x)]
    capsules = [window.get_buffer(0, [4], "int32").__dlpack__() for _ in range(3)]
    counts.append(sys.getrefcount(x))
    join(start(libc, capsules[0]))
    counts.append(sys.getrefcount(x))
    sys.setswitchinterval(100)
    held = ctypes.PyDLL(None)  # its calls keep the GIL, which that thread needs
    held.pthread_create.argtypes = libc.pthread_create.argtypes
    late = start(held, capsules[1])
    held.usleep(100_000)
    dldist._core._close_gate()  # waits for threads inside
    counts.append(sys.getrefcount(x))
    join(late)
    join(start(libc, capsules[2]))  # does not release Python's objects
    counts.append(sys.getrefcount(x))
    return [count - counts[0] for count in counts]
