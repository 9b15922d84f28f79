"""NcclComms and related classes over the stubs of tests/stubs. test_nccl_case_files.py runs this
file with pytest, in a process that has loaded them."""

import copy
import ctypes
import gc
import itertools
import pickle
import threading
import time

import cuda_framework
import dldist
import nccl_stubs
import numpy
import pytest
from dldist import nccl
from procs import poll_until

LIMIT_S = 20.0
GATES = itertools.count(100)


@pytest.fixture(scope="module")
def stubs():
    assert nccl.is_available(), nccl.why_not_available()
    return nccl_stubs.build("2.32.3")


@pytest.fixture(scope="module")
def framework():
    made = cuda_framework.load()
    made.install_modules()
    return made


@pytest.fixture(autouse=True)
def nothing_is_left(stubs):
    gc.collect()
    before = [stubs.nccl.live(kind) for kind in ("comm", "redop")] + [stubs.cuda.live("stream"), stubs.cuda.live("event")]
    yield
    stubs.nccl.release()
    stubs.nccl.reset()
    gc.collect()
    after = [stubs.nccl.live(kind) for kind in ("comm", "redop")] + [stubs.cuda.live("stream"), stubs.cuda.live("event")]
    assert after == before and stubs.nccl.bad_uses() == 0


def array(stubs, values, device=0):
    return nccl_stubs.CudaArray(stubs, numpy.asarray(values, "float32"), device=device)


def on_threads(functions):
    results, errors = [None] * len(functions), []

    def main(i):
        try:
            results[i] = functions[i]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=main, args=(i,)) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
    return results


def test_every_collective_over_several_devices_of_a_process_is_correct(stubs):
    with nccl.NcclComms([0, "cuda:1", 2]) as comms:
        assert comms.size == 3 and comms.devices == [0, 1, 2]
        x = [array(stubs, [device + 1.0], device) for device in range(3)]
        comms.all_reduce(x)
        assert [a.numpy().tolist() for a in x] == [[6.0]] * 3
        comms.all_reduce(x, op="max")
        x = [array(stubs, [device + 1.0], device) for device in range(3)]
        comms.broadcast(x, root=2)
        assert [a.numpy().tolist() for a in x] == [[3.0]] * 3
        comms.reduce(x, root=1)
        assert x[1].numpy().tolist() == [9.0]
        outputs = [array(stubs, [0.0] * 3, device) for device in range(3)]
        comms.all_gather(outputs, [array(stubs, [device], device) for device in range(3)])
        assert [a.numpy().tolist() for a in outputs] == [[0.0, 1.0, 2.0]] * 3
        comms.reduce_scatter(x, outputs)
        assert [a.numpy().tolist() for a in x] == [[0.0], [3.0], [6.0]]
        with pytest.raises(ValueError, match="sizes of inputs and outputs differ"):
            comms.all_gather(x, x)
        with pytest.raises(ValueError, match="got 2 tensors, expected 3"):
            comms.all_reduce(x[:2])
        with pytest.raises(ValueError, match="'op' is BOR, expected SUM"):
            comms.all_reduce(x, op="bor")
        with pytest.raises(ValueError, match="root"):
            comms.broadcast(x, root=3)
    with pytest.raises(RuntimeError, match="closed"):
        comms.all_reduce(x)


def test_explicitly_given_streams_are_used(stubs):
    streams = [stubs.cuda.make_stream(device) for device in range(2)]
    x = [array(stubs, [1.0], device) for device in range(2)]
    with nccl.NcclComms([0, 1]) as comms:
        stubs.cuda.gate(streams[1], 7)
        comms.all_reduce(x, streams=streams)
        stubs.cuda.open_gate(7)
        for device, stream in enumerate(streams):
            stubs.cuda.synchronize(stream, device)
        assert [a.numpy().tolist() for a in x] == [[2.0]] * 2
        with pytest.raises(ValueError, match="got 1, expected 2, one for each device"):
            comms.all_reduce(x, streams=streams[:1])
    for stream in streams:
        stubs.cuda.destroy_stream(stream)


@pytest.mark.parametrize("kind", ["exchange", "torch", "torch_exchange", "cupy"])
def test_current_streams_of_the_tensors_libraries_are_used(stubs, framework, kind):
    """Collectives must use each device's current stream: after earlier work, before later work."""
    streams = [stubs.cuda.make_stream(device) for device in range(2)]
    arrays = [array(stubs, [0.0], device) for device in range(2)]
    copies = [array(stubs, [0.0], device) for device in range(2)]
    gate = next(GATES)
    with nccl.NcclComms([0, 1]) as comms, framework.stream(0, streams[0]), framework.stream(1, streams[1]):
        for x, stream in zip(arrays, streams):
            x.stream = stream
            stubs.cuda.gate(stream, gate)
            x.slow_write([x.device + 1.0], 0)
        comms.all_reduce([getattr(framework, kind)(x) for x in arrays])
        for x, target in zip(arrays, copies):
            copy_on(stubs, x.stream, x.device, target.address, x.address)
            x.slow_write([-1.0], 0)
        assert [memory_of(x.address) for x in arrays] == [0.0] * 2, "a stream did not wait"
        stubs.cuda.open_gate(gate)
        for x in arrays:
            x.synchronize()
        assert [memory_of(x.address) for x in copies] == [3.0] * 2
        assert [memory_of(x.address) for x in arrays] == [-1.0] * 2
    for x, stream in zip(arrays, streams):
        x.stream = nccl_stubs.LEGACY_STREAM
        stubs.cuda.destroy_stream(stream)


def test_arrays_of_nccl_groups_use_the_default_stream(stubs):
    groups = [nccl.NcclGroup(None, 0, 1, device=device) for device in range(2)]
    arrays = [group.empty(1, "float32") for group in groups]
    copies = [array(stubs, [0.0], device) for device in range(2)]
    gate = next(GATES)
    with nccl.NcclComms([0, 1]) as comms:
        for device, x in enumerate(arrays):
            ctypes.memset(x.ptr, 0, 4)
            with stubs.cuda.on_device(device):
                stubs.cuda.gate(nccl_stubs.LEGACY_STREAM, gate)
                stubs.cuda.slow_write(nccl_stubs.LEGACY_STREAM, x.ptr, numpy.float32(device + 1).tobytes(), 0)
        comms.all_reduce(arrays)
        for device, (x, target) in enumerate(zip(arrays, copies)):
            copy_on(stubs, nccl_stubs.LEGACY_STREAM, device, target.address, x.ptr)
        assert [memory_of(x.ptr) for x in arrays] == [0.0] * 2, "a stream did not wait"
        stubs.cuda.open_gate(gate)
        assert [x.numpy().tolist() for x in copies] == [[3.0]] * 2
    for group in groups:
        group.close()


def copy_on(stubs, stream, device, target, source):
    """Enqueue a copy of four bytes."""
    with stubs.cuda.on_device(device):
        addresses = ctypes.c_uint64(target), ctypes.c_uint64(source)
        stubs.cuda.call("cuMemcpyAsync", *addresses, ctypes.c_size_t(4), ctypes.c_void_p(stream))


def memory_of(address):
    """Return the float at an address, without waiting for streams."""
    return float(numpy.frombuffer(ctypes.string_at(address, 4), "float32")[0])


def test_split_of_communicators_returns_one_for_each_rank_and_device(stubs):
    comms = nccl.NcclComms([0, 1])
    parts = comms.split()
    assert [(part.rank, part.world_size, part.device) for part in parts] == [(0, 2, 0), (1, 2, 1)]
    with pytest.raises(RuntimeError, match="closed"):
        comms.split()

    def work(part):
        def run():
            x = array(stubs, [part.rank + 1.0], part.device)
            for _ in range(10):
                part.all_reduce([x])
                part.all_reduce([x], op="avg")
            return x.numpy().tolist()

        return run

    assert on_threads([work(part) for part in parts]) == [[3.0 * 2.0**9]] * 2
    for part in parts:
        part.close()
        part.close()
    with pytest.raises(RuntimeError, match="closed"):
        parts[0].all_reduce([])


def test_communicators_of_single_ranks_connect_by_a_unique_id(stubs):
    uid = nccl.NcclUniqueId()
    assert len(uid.as_bytes()) == 128
    for same in (nccl.NcclUniqueId(bytes(uid)), pickle.loads(pickle.dumps(uid)), copy.copy(uid)):
        assert bytes(same) == bytes(uid)
    with pytest.raises(ValueError, match="got 3 bytes, expected 128"):
        nccl.NcclUniqueId(b"abc")
    with pytest.raises(ValueError, match="init_rank.*device.*expected CUDA devices"):
        nccl.NcclRankComm.init_rank(0, 2, uid, device="cpu")
    with pytest.raises(ValueError, match="invalid rank: got 2, expected 0 to 1"):
        nccl.NcclRankComm.init_rank(2, 2, uid)

    def main(rank):
        def run():
            with nccl.NcclRankComm.init_rank(rank, 2, uid, device=f"cuda:{rank}", timeout=LIMIT_S) as comm:
                x = array(stubs, [rank + 1.0], rank)
                comm.all_reduce([x])
                return x.numpy().tolist()

        return run

    assert on_threads([main(0), main(1)]) == [[3.0]] * 2


def test_creating_a_communicator_without_a_rank_times_out(stubs):
    start = time.monotonic()
    with pytest.raises(dldist.DistTimeoutError):
        group = nccl.NcclGroup(dldist.HashStore(), 0, 2, device=0, init_timeout=0.3, timeout=LIMIT_S)
        group.connect()
    assert time.monotonic() - start < 10
    group.abort()


@pytest.mark.parametrize("where", ["on the device", "on the host"])
def test_abort_handle_ends_a_call_that_waits_for_another_rank(stubs, where):
    """Abort while the other rank never joins: the kernel waits or, in a first collective, the
    calling thread."""
    first, second = nccl.NcclComms([0, 1]).split()
    handle = first.abort_handle()
    assert not handle.is_aborted
    x = array(stubs, [1.0])
    aborters = [lambda: handle.abort("that is enough")] * 4
    if where == "on the device":
        y = array(stubs, [1.0], device=1)
        on_threads([lambda: first.all_reduce([x]), lambda: second.all_reduce([y])])
        first.all_reduce([x])
        on_threads(aborters)
    else:
        before = stubs.nccl.calls("ncclGroupEnd")

        def abort():
            poll_until(lambda: stubs.nccl.calls("ncclGroupEnd") > before, LIMIT_S)
            handle.abort("that is enough")

        def call():
            with pytest.raises(RuntimeError, match="ncclAllReduce|all_reduce"):
                first.all_reduce([x])

        on_threads([call, *[abort] * 4])
    assert handle.is_aborted
    x.synchronize()
    with pytest.raises(RuntimeError, match="that is enough"):
        first.all_reduce([x])
    second.abort_handle().abort()
    first.close()
    handle.abort("once more, after the end")
    assert handle.is_aborted
    second.close()
    first = second = None
    handle.abort()


def test_closing_a_communicator_does_not_wait_for_a_hung_call(stubs):
    """A thread in a call may wait in NCCL for ranks that never call. That call must then close the
    communicator."""
    rank = nccl.NcclComms([0]).split()[0]
    x = array(stubs, [1.0])
    stubs.nccl.hang("ncclGroupEnd", ms=-1)

    def close():
        poll_until(lambda: stubs.nccl.hanging() > 0, LIMIT_S)
        rank.close()
        with pytest.raises(dldist.DistBackendError, match="the communicator is closed"):
            rank.all_reduce([x])
        assert stubs.nccl.calls("ncclCommDestroy") == 0
        stubs.nccl.release()

    on_threads([lambda: rank.all_reduce([x]), close])
    assert stubs.nccl.calls("ncclCommDestroy") == 1


def test_abort_of_a_communicator_ends_a_call_in_progress(stubs):
    comms = nccl.NcclComms([0, 1])
    x = [array(stubs, [1.0], device) for device in range(2)]
    stubs.nccl.hang("ncclGroupEnd", ms=300)

    def call():
        try:
            comms.all_reduce(x)
        except RuntimeError:
            pass

    on_threads([call, lambda: comms.abort("from another thread")])
    comms.close()
    comms.abort()


def test_ranks_may_share_one_gpu(stubs, monkeypatch):
    """Ranks must be able to share a device, on a stream each, if NCCL's environment allows it."""
    with pytest.raises(dldist.DistBackendError, match="ncclInvalidUsage"):
        nccl.NcclComms([0, 0])
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    arrays = [array(stubs, [1]), array(stubs, [2])]
    streams = [stubs.cuda.make_stream(0) for _ in arrays]
    with nccl.NcclComms([0, 0]) as comms:
        assert comms.devices == [0, 0]
        with pytest.raises(ValueError, match="ranks 0 and 1 on device 0 use the same stream"):
            comms.all_reduce(arrays)
        comms.all_reduce(arrays, streams=streams)
        for stream in streams:
            stubs.cuda.synchronize(stream, 0)
        assert [x.numpy().tolist() for x in arrays] == [[3], [3]]
    for stream in streams:
        stubs.cuda.destroy_stream(stream)
