"""NcclGroup over the stubs of tests/stubs, with ranks as threads: streams, works, faults, aborts,
memory.

test_nccl_case_files.py runs this file with pytest, in processes that know where the stubs are.
"""

import gc
import os
import signal
import threading
import time
import weakref
from operator import attrgetter

import dldist
import nccl_stubs
import numpy
import pytest
from dldist import _core, nccl
from dldist._base.operations import OPERATIONS

VERSION = os.environ["NCCL_TEST_VERSION"]
LIMIT_S = 20.0


@pytest.fixture(scope="module")
def stubs():
    assert nccl.is_available(), nccl.why_not_available()
    assert ".".join(map(str, nccl.get_version())) == VERSION
    return nccl_stubs.build(VERSION)


@pytest.fixture(autouse=True)
def no_faults(stubs):
    yield
    stubs.nccl.release()
    stubs.nccl.reset()
    stubs.cuda.reset()


def array(stubs, values, device=0, dtype="float32", **options):
    return nccl_stubs.CudaArray(stubs, numpy.asarray(values, dtype=dtype), device=device, **options)


def on_ranks(size, run, **options):
    """Call run(group, rank) on a thread per rank; return their results, or raise one error."""
    store = dldist.HashStore()
    results, errors = [None] * size, []

    def main(rank):
        try:
            group = _core.NcclGroup(store, rank, size, **{"timeout": LIMIT_S, "device": rank, **options})
            results[rank] = run(group, rank)
            group.close(1)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=main, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a rank hangs"
    if errors:
        raise errors[0]
    return results


# ---- streams


def test_host_waits_for_a_tensor_whose_stream_is_unknown(stubs):
    group = _core.NcclGroup(None, 0, 1, device=0)
    stream = stubs.cuda.make_stream(0)
    x = array(stubs, [1, 2], stream=stream)
    x.slow_write([5, 6], 30)
    work = group.all_reduce(x, async_op=True)
    assert x.asked_streams[-1] not in (None, -1, stream)
    assert work.wait() is True and work.is_completed()
    assert x.numpy().tolist() == [5, 6]
    group.close()


def test_call_waits_for_the_named_stream_without_blocking_the_host(stubs):
    group = _core.NcclGroup(None, 0, 1, device=0)
    group.connect()
    stream = stubs.cuda.make_stream(0)
    x = array(stubs, [1, 2], stream=stream)
    stubs.cuda.gate(stream, 1)
    with nccl.stream(stream):
        work = group.all_reduce(x, async_op=True)
        assert work.wait() is True
        assert x.asked_streams[-1] == -1
    assert not work.is_completed()
    stubs.cuda.open_gate(1)
    assert work.wait(LIMIT_S) is True and work.is_completed()
    group.close()


def test_cuda_streams_are_accepted_in_every_form(stubs):
    class Protocol:
        def __cuda_stream__(self):
            return (0, 1234)

    class TorchStream:
        cuda_stream = 77

    class CuPys:
        ptr = 88

    for given, handle in ((1234, 1234), (Protocol(), 1234), (TorchStream(), 77), (CuPys(), 88)):
        with nccl.stream(given):
            assert _core._swap_stream(handle) == handle
    assert _core._swap_stream(None) is None
    with pytest.raises(TypeError, match="must be a CUDA stream"), nccl.stream("x"):
        pass


def test_current_stream_is_read_from_dlpacks_c_exchange_api(stubs):
    stream = stubs.cuda.make_stream(0)
    asked = []

    def current(device):
        asked.append(device)
        return stream

    kind = nccl_stubs.exchange_type(current)
    x = kind(stubs, numpy.asarray([1.0], "float32"), stream=stream)
    group = _core.NcclGroup(None, 0, 1, device=0)
    work = group.all_reduce(x, async_op=True)
    assert asked == [0]
    assert work.wait() is True and asked == [0, 0]
    assert work.wait(LIMIT_S) is True and x.numpy().tolist() == [1]
    group.close()


# ---- works and memory


def test_tensors_of_a_dropped_work_are_kept_until_the_device_is_done(stubs):
    group = _core.NcclGroup(None, 0, 1, device=0)
    group.connect()
    stream = stubs.cuda.make_stream(0)
    x = array(stubs, [1], stream=stream)
    gone = weakref.ref(x)
    stubs.cuda.gate(stream, 2)
    with nccl.stream(stream):
        group.all_reduce(x, async_op=True)
    del x
    gc.collect()
    assert gone() is not None
    stubs.cuda.open_gate(2)
    deadline = time.monotonic() + LIMIT_S
    while gone() is not None and time.monotonic() < deadline:
        group.barrier()
        gc.collect()
    assert gone() is None
    group.close()


def test_callbacks_of_nccl_works_run_and_futures_have_the_tensors(stubs):
    group = _core.NcclGroup(None, 0, 1, device=0)
    x = array(stubs, [3])
    done = threading.Event()
    future = group.all_reduce(x, async_op=True).get_future()
    future.add_done_callback(lambda future: done.set())
    assert done.wait(LIMIT_S)
    assert future.value()[0] is x
    group.close()


def test_arrays_can_be_allocated_in_nccl_memory(stubs):
    if nccl.get_version() < (2, 19, 1):
        with _core.NcclGroup(None, 0, 1, device=0) as group, pytest.raises(NotImplementedError, match="ncclMemAlloc needs NCCL 2.19"):
            group.empty(1)
        return
    group = _core.NcclGroup(None, 0, 1, device=0)
    group.connect()
    a = group.empty((2, 3), "float32")
    assert a.shape == (2, 3) and a.dtype == "float32" and a.nbytes == 24 and a.__dlpack_device__() == (2, 0)
    assert a.device == 0 and a.ptr % 4 == 0 and repr(a) == "<dldist.NcclArray: (2, 3) of float32 on cuda:0>"
    other = group.empty(1, device=1)
    assert other.device == 1 and repr(other) == "<dldist.NcclArray: (1,) of float32 on cuda:1>"
    registration = group.register(a)
    group.deregister(registration)
    group.all_reduce(a)
    group.close()
    del a


@pytest.mark.parametrize("before", ["nothing", "pairs", "a collective"])
def test_message_batches_of_a_pipeline_use_one_communicator(stubs, before):
    """Batches must meet in one communicator, however many messages a rank has in its batch: here 1,
    2 and 1."""

    def run(group, rank):
        given, taken = array(stubs, [rank + 10], rank), array(stubs, [0], rank)
        if before == "pairs" and rank > 0:
            group.recv(taken, rank - 1)
        if before == "pairs" and rank < 2:
            group.send(given, rank + 1)
        if before == "a collective":
            group.all_reduce(array(stubs, [1], rank))
        group.start_coalescing()
        if rank > 0:
            group.irecv(taken, rank - 1)
        if rank < 2:
            group.isend(given, rank + 1)
        assert group.end_coalescing().wait(5.0)
        return taken.numpy().tolist()

    assert on_ranks(3, run, timeout=5.0) == [[0], [10], [11]]


class Interrupted(Exception):
    pass


def interrupt(stubs, function, call):
    """Make call() hang in an NCCL function; send a signal whose handler releases it and raises."""

    def on_signal(*_):
        stubs.nccl.release()
        # ^ gives NCCL time to finish; otherwise the call would be interrupted, which proves nothing
        time.sleep(0.3)
        raise Interrupted

    def send():
        while stubs.nccl.hanging() == 0:
            time.sleep(0.001)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, on_signal)
    stubs.nccl.hang(function)
    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        with pytest.raises(Interrupted):
            call()
    finally:
        stubs.nccl.release()
        stubs.nccl.reset()
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def wait_until(condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        gc.collect()
        time.sleep(0.005)


def test_communicator_is_released_if_a_signal_handler_raises_during_init(stubs):
    group = _core.NcclGroup(None, 0, 1, device=0)
    group.connect()
    live = stubs.nccl.live("comm")
    interrupt(stubs, "ncclCommInitAll", lambda: nccl.NcclComms([0, 1]))
    wait_until(lambda: stubs.nccl.live("comm") == live)
    interrupt(stubs, "ncclCommInitRankConfig", lambda: nccl.NcclRankComm.init_rank(0, 1, nccl.NcclUniqueId(), 0))
    wait_until(lambda: stubs.nccl.live("comm") == live)
    interrupt(stubs, "ncclCommSplit", lambda: group.split([0]))
    wait_until(lambda: stubs.nccl.live("comm") == live)
    assert stubs.nccl.bad_uses() == 0
    group.close()


@pytest.mark.skipif(nccl.is_available() and nccl.get_version() < (2, 27, 0), reason="needs ncclCommShrink")
def test_shrunk_communicator_is_released_if_a_signal_handler_raises(stubs):
    store = dldist.HashStore()
    groups = [_core.NcclGroup(store, rank, 2, device=rank, timeout=LIMIT_S) for rank in range(2)]
    other = threading.Thread(target=groups[1].connect)
    other.start()
    groups[0].connect()
    other.join()
    live = stubs.nccl.live("comm")
    interrupt(stubs, "ncclCommShrink", lambda: groups[0].shrink([1]))
    wait_until(lambda: stubs.nccl.live("comm") == live)
    for group in groups:
        group.abort()


def test_abort_of_an_nccl_group_can_be_interrupted(stubs):
    group = _core.NcclGroup(None, 0, 1, device=0)
    group.connect()
    interrupt(stubs, "ncclCommAbort", group.abort)
    group = _core.NcclGroup(None, 0, 1, device=0)
    group.connect()

    def leave():
        with group:
            raise ValueError

    interrupt(stubs, "ncclCommAbort", leave)


def test_nccl_groups_leak_nothing(stubs):
    kinds = ("stream", "event", "allocation", "comm")

    def use():
        group = _core.NcclGroup(None, 0, 1, device=0)
        x = array(stubs, [[1, 2], [3, 4]], strides=(1, 2))
        group.all_reduce(x)
        group.all_gather([array(stubs, [0, 0])], array(stubs, [1, 2]))
        group.close()

    use()
    gc.collect()
    before = [stubs.cuda.live(kind) + stubs.nccl.live(kind) for kind in kinds]
    for _ in range(5):
        use()
    gc.collect()
    _core.NcclGroup(None, 0, 1, device=0).close()
    assert [stubs.cuda.live(kind) + stubs.nccl.live(kind) for kind in kinds] == before
    assert stubs.cuda.bad_uses() == 0 and stubs.nccl.bad_uses() == 0


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "bool", "complex64"])
def test_nccl_groups_reduce_tensors_of_every_dtype(stubs, dtype):
    values = numpy.asarray([1, 0, 1]).astype(nccl_stubs.DTYPES[dtype][2])
    if dtype == "bfloat16":
        values = numpy.asarray([0x3F80, 0, 0x3F80], "uint16")  # 1, 0, 1
    expected = {"bool": [True, False, True], "bfloat16": [0x4000, 0, 0x4000]}.get(dtype, [2, 0, 2])

    def run(group, rank):
        x = nccl_stubs.CudaArray(stubs, values, dtype=dtype, device=rank)
        group.all_reduce(x)
        return x.numpy().tolist()

    assert on_ranks(2, run) == [expected] * 2


# ---- mistakes


def test_errors_of_nccl_groups_name_the_wrong_argument(stubs):
    group = _core.NcclGroup(None, 0, 1, device=0)
    with pytest.raises(ValueError, match=r"all_reduce\(\): argument 'tensor' is on a device without a backend: got cpu"):
        group.all_reduce(numpy.zeros(2, "float32"))
    with pytest.raises(ValueError, match="got cuda:1, expected cuda:0"):
        group.all_gather_single(array(stubs, [0]), array(stubs, [1], device=1))
    with pytest.raises(NotImplementedError, match="cannot receive from any rank"):
        group.recv(array(stubs, [0]))
    for name in ("split", "monitored_barrier", "empty"):
        with pytest.raises((RuntimeError, TypeError)):
            getattr(_core.Group, name)(group, *([[0]] if name in ("split", "empty") else []))
    with pytest.raises(ValueError, match="no such|minCTAs|min_ctas"):
        _core.NcclGroup(None, 0, 1, config={"unknown": 1})
    _core.Group.close(group)  # NcclGroup has the method from Group
    with pytest.raises(_core.DistBackendError):
        group.all_reduce(array(stubs, [1]))


def call_methods_of_a_group(stubs, group, rank):
    """Call every method of dldist.Group between two ranks; return {name: text of the error}."""
    other, x, y = 1 - rank, array(stubs, [1], rank), array(stubs, [1], rank)
    both, two = array(stubs, [1, 2], rank), [array(stubs, [1], rank), array(stubs, [2], rank)]
    on_root = [None if rank else value for value in (both, two)]
    collectives = {
        "all_gather": (two, x),
        "all_gather_coalesced": ([[tensor] for tensor in two], [x]),
        "all_gather_single": (both, x),
        "all_gather_single_coalesced": ([both], [x]),
        "all_reduce": (x,),
        "all_reduce_coalesced": ([x, y],),
        "all_to_all": (two, [x, y]),
        "all_to_all_single": (both, array(stubs, [1, 2], rank)),
        "barrier": (),
        "broadcast": (x,),
        "gather": (x, on_root[1]),
        "gather_single": (x, on_root[0]),
        "reduce": (x,),
        "reduce_scatter": (x, two),
        "reduce_scatter_coalesced": ([x], [both]),
        "reduce_scatter_single": (x, both),
        "scan": (x,),
        "exscan": (x,),
        "scatter": (x, on_root[1]),
        "scatter_single": (x, on_root[0]),
    }
    messages = [("send", (x, other)), ("recv", (x, other))][:: 1 if rank == 0 else -1]
    messages += [("isend", (x, other)), ("irecv", (x, other))][:: 1 if rank == 0 else -1]
    batch = [dldist.P2POp("isend", x, other), dldist.P2POp("irecv", y, other)]
    calls = dict([*collectives.items(), *messages, ("batch_isend_irecv", (batch,))])
    calls |= {"coalesce": (), "empty": (1,), "split": ([0, 1],), "monitored_barrier": ()}
    alone = _core.NcclGroup(None, 0, 1, device=rank)  # for calls that would also end the group
    alone.connect()
    of_alone = ("memory_stats", "suspend", "resume", "revoke", "abort", "close")
    calls |= dict.fromkeys(of_alone, ())
    public = [name for name in dir(dldist.Group) if not name.startswith("_")]
    assert sorted(calls) == [name for name in public if callable(getattr(dldist.Group, name))]
    calls |= {f"plan.{name}": arguments for name, arguments in collectives.items()}
    refused = {}
    for name, arguments in calls.items():
        try:
            result = attrgetter(name)(alone if name in of_alone else group)(*arguments)
        except NotImplementedError as error:
            if "needs NCCL" not in str(error):  # a newer NCCL has it
                refused[name] = str(error)
            continue
        if name == "coalesce":
            with result:
                group.all_reduce(x)
        elif name == "split":
            result.close(LIMIT_S)
    return refused


def test_nccl_group_has_all_methods_except_plans_scans_and_monitored_barrier(stubs):
    for refused in on_ranks(2, lambda group, rank: call_methods_of_a_group(stubs, group, rank)):
        others = {f"plan.{name}" for name in OPERATIONS} | {"monitored_barrier"}
        for name in ("scan", "exscan"):
            assert refused.pop(name).startswith(f"{name}: NCCL has no {name}: move the tensors to the CPU")
        assert set(refused) == others, refused
        for name, text in refused.items():
            assert text.startswith(f"{name}(): ") and "NcclGroup" in text, text


# ---- faults


def test_failed_call_reports_the_reason_of_nccl(stubs):
    group = _core.NcclGroup(None, 0, 1, device=0)
    group.connect()
    stubs.nccl.fail("ncclAllReduce", result=3, text="the moon is full")
    with pytest.raises(_core.DistBackendError, match="the moon is full"):
        group.all_reduce(array(stubs, [1]))
    group.abort()


def test_asynchronous_nccl_error_fails_every_rank_and_work(stubs):
    """Ranks that wait for the failed rank must end. In c10d's groups the store notifies them; here
    they time out."""

    def run(group, rank):
        group.all_reduce(array(stubs, [1], rank))
        if rank == 0:
            stubs.nccl.hang_kernel(0)
        start = time.monotonic()
        works = [group.all_reduce(array(stubs, [1], rank, honours_stream=False), async_op=True) for _ in range(2)]
        if rank == 0:
            stubs.nccl.async_error(0, 6, text="a cable is loose")
        texts = []
        for work in works:
            with pytest.raises((_core.DistError, TimeoutError)) as caught:
                work.wait(LIMIT_S)
            texts.append(str(caught.value))
        assert time.monotonic() - start < 10
        group.abort()
        return texts

    texts = on_ranks(2, run, timeout=2.0)
    assert all("ncclRemoteError (6)" in text for text in texts[0]), texts


@pytest.mark.parametrize("name", ["all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "barrier", "recv"])
def test_abort_from_another_thread_ends_a_pending_nccl_call(stubs, name):
    """The other rank never joins; an abort must end the waiting call."""
    come = threading.Event()

    def call(group, rank):
        x, several = array(stubs, [1], rank), [array(stubs, [1], rank) for _ in range(2)]
        calls = {
            "all_reduce": lambda: group.all_reduce(x),
            "broadcast": lambda: group.broadcast(x, 1),
            "all_gather": lambda: group.all_gather(several, x),
            "reduce_scatter": lambda: group.reduce_scatter(x, several),
            "all_to_all": lambda: group.all_to_all(several, [array(stubs, [1], rank) for _ in range(2)]),
            "barrier": lambda: group.barrier(),
            "recv": lambda: group.recv(x, 1),
        }
        calls[name]()

    def run(group, rank):
        group.all_reduce(array(stubs, [1], rank))
        if rank == 1:
            assert come.wait(LIMIT_S)
            group.abort()
            return None
        aborter = threading.Timer(0.2, lambda: group.abort("enough of it"))
        aborter.start()
        try:
            with pytest.raises(_core.DistAbortedError, match="enough of it"):
                call(group, rank)
        finally:
            come.set()
            aborter.join()
        with pytest.raises(_core.DistAbortedError, match="enough of it"):
            group.all_reduce(array(stubs, [1], rank))
        assert isinstance(group.error, _core.DistAbortedError)
        return None

    on_ranks(2, run)


# ---- one process, several devices


def test_collectives_over_several_devices_of_a_process_are_correct(stubs):
    with nccl.NcclComms([0, "cuda:1", 2]) as comms:
        assert comms.size == 3 and comms.devices == [0, 1, 2]
        streams = [stubs.cuda.make_stream(device) for device in range(3)]

        def finish():
            for device, stream in enumerate(streams):
                stubs.cuda.synchronize(stream, device)

        tensors = [array(stubs, [device + 1.0], device) for device in range(3)]
        comms.all_reduce(tensors, "sum", streams)
        finish()
        assert [x.numpy()[0] for x in tensors] == [6, 6, 6]
        assert [x.asked_streams for x in tensors] == [[stream] for stream in streams]
        comms.broadcast([array(stubs, [0], device) for device in range(3)], root=2, streams=streams)
        finish()
        outputs = [array(stubs, [0, 0, 0], device) for device in range(3)]
        comms.all_gather(outputs, [array(stubs, [device], device) for device in range(3)], streams)
        finish()
        assert [x.numpy().tolist() for x in outputs] == [[0, 1, 2]] * 3
        with pytest.raises(ValueError, match="got 2 tensors, expected 3"):
            comms.all_reduce(tensors[:2])
        with pytest.raises(ValueError, match="got cuda:1, expected cuda:0"):
            comms.all_reduce([tensors[1], tensors[0], tensors[2]])
    with pytest.raises(_core.DistBackendError, match="closed"):
        comms.all_reduce(tensors)


def test_communicators_of_several_devices_can_be_split_for_threads(stubs):
    comms = nccl.NcclComms([0, 1])
    ranks = comms.split()
    assert comms.size == 0 and [(comm.rank, comm.world_size) for comm in ranks] == [(0, 2), (1, 2)]
    results = [None, None]

    def run(comm):
        x, y = array(stubs, [1.0], comm.rank), array(stubs, [comm.rank], comm.rank)
        comm.all_reduce([x, y], "sum")
        results[comm.rank] = (x.numpy()[0], y.numpy()[0])

    threads = [threading.Thread(target=run, args=(comm,)) for comm in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert results == [(2, 1), (2, 1)]
    handle = ranks[0].abort_handle()
    assert not handle.is_aborted
    handle.abort()
    handle.abort()
    assert handle.is_aborted
    with pytest.raises(_core.DistAbortedError):
        ranks[0].all_reduce([array(stubs, [1.0], 0)])
    for comm in ranks:
        comm.close()


def test_nccl_groups_can_connect_by_a_unique_id(stubs):
    uid = nccl.NcclUniqueId()
    assert nccl.NcclUniqueId(uid.as_bytes()).as_bytes() == bytes(uid) and len(bytes(uid)) == 128
    results = [None, None]

    def run(rank):
        with nccl.NcclRankComm.init_rank(rank, 2, uid, device=rank) as comm:
            x = array(stubs, [rank + 1.0], rank)
            comm.all_reduce([x])
            results[rank] = x.numpy()[0]
            y, both = array(stubs, [rank + 1.0], rank), array(stubs, [0, 0], rank)
            comm.broadcast([y], 1)
            comm.all_gather([both], [y])
            assert both.numpy().tolist() == [2, 2]
            comm.reduce_scatter([y], [both])
            comm.reduce([y], 0)
            assert rank == 1 or y.numpy().tolist() == [8]

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert results == [3, 3]
    with pytest.raises(ValueError, match="invalid rank: got 2, expected 0 to 1"):
        nccl.NcclRankComm.init_rank(2, 2, uid)
    with pytest.raises(TypeError, match=r"init_rank\(\): argument 'uid' must be an NcclUniqueId, not bytes"):
        nccl.NcclRankComm.init_rank(0, 1, bytes(uid))
    with nccl.NcclRankComm.init_rank(0, 1, nccl.NcclUniqueId()) as comm:
        device = comm.device  # the current stream, or one chosen by the rank
        comm.all_reduce([array(stubs, [1.0], device)])
    with pytest.raises(_core.DistBackendError, match="closed"):
        comm.abort_handle()
