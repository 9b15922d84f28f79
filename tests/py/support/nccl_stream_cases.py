"""NCCL's operations among the streams of frameworks, over the stubs of tests/stubs, tested with
slow kernels and gates.

test_nccl_case_files.py runs this file with pytest, in a process that knows where the stubs are.
"""

import ctypes
import gc
import itertools
import threading
import time
import warnings
import weakref

import cuda_framework
import nccl_stubs
import numpy
import procs
import pytest
from cuda_driver import Graph
from dldist import _core, nccl
from nccl_group_cases import LIMIT_S, on_ranks
from nccl_group_cases import no_faults as no_faults
from nccl_group_cases import stubs as stubs

SLOW_MS = 20
GATES = itertools.count(1)  # below 256
KNOWN = ["exchange", "torch", "torch_exchange", "cupy", "explicit"]


@pytest.fixture(scope="module")
def framework():
    made = cuda_framework.load()
    made.install_modules()
    return made


class Side:
    """A stream of one device, with tensors on it."""

    def __init__(self, stubs, framework, device):
        self.stubs, self.framework, self.device = stubs, framework, device
        self.handle = stubs.cuda.make_stream(device)

    def array(self, values):
        made = nccl_stubs.CudaArray(self.stubs, numpy.asarray(values, "float32"), device=self.device)
        # set last: creation waits for the first values, and a gate may block this stream
        made.stream = self.handle
        return made

    def tensor(self, kind, array):
        return getattr(self.framework, "unknown" if kind == "explicit" else kind)(array)

    def current(self, kind="exchange"):
        return nccl.stream(self.handle) if kind == "explicit" else self.framework.stream(self.device, self.handle)

    def gate(self):
        gate = next(GATES)
        self.stubs.cuda.gate(self.handle, gate)
        return gate

    def copy_later(self, array):
        """Enqueue a copy of the array in this stream."""
        copy = self.array(numpy.zeros(array.shape))
        with self.stubs.cuda.on_device(self.device):
            source, target = ctypes.c_uint64(array.address), ctypes.c_uint64(copy.address)
            self.stubs.cuda.call("cuMemcpyAsync", target, source, ctypes.c_size_t(array._nbytes), ctypes.c_void_p(self.handle))
        return copy


def memory_of(array):
    """Return the memory, without waiting for streams."""
    return numpy.frombuffer(ctypes.string_at(array.address, array._nbytes), "float32").tolist()


# ---- order, and a host that does not wait


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("count", [9])
def test_call_is_ordered_with_the_streams_of_all_its_tensors(stubs, framework, count, is_async):
    def run(group, rank):
        group.connect()
        sides = [Side(stubs, framework, rank) for _ in range(count)]
        arrays = [side.array([0]) for side in sides]
        gates = [side.gate() for side in sides]
        group.start_coalescing()
        for number, (side, x) in enumerate(zip(sides, arrays)):
            x.slow_write([number + rank], 0)
            with side.current("explicit"):
                group.all_reduce(side.tensor("explicit", x))
        work = group.end_coalescing(async_op=is_async)
        if is_async:
            assert work.wait() is True and not work.is_completed()
        copies = [side.copy_later(x) for side, x in zip(sides, arrays)]
        for gate in reversed(gates):
            stubs.cuda.open_gate(gate)
        return [copy.numpy().tolist() for copy in copies]

    assert on_ranks(2, run) == [[[2 * number + 1] for number in range(count)]] * 2
    framework.asked_streams.clear()


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("kind", KNOWN)
def test_call_is_ordered_with_the_librarys_stream_without_blocking_the_host(stubs, framework, kind, is_async):
    def run(group, rank):
        group.connect()
        side = Side(stubs, framework, rank)
        array = side.array([0, 0])
        x = side.tensor(kind, array)
        with side.current(kind):
            gate = side.gate()
            array.slow_write([rank + 1, 10], SLOW_MS)
            work = group.all_reduce(x, async_op=is_async)
            assert (work is not None) is is_async
            if is_async:
                assert work.wait() is True and not work.is_completed()
            copy = side.copy_later(array)
            array.slow_write([-1, -1], 0)  # before neither the copy nor NCCL's read
        assert memory_of(array) == [0, 0], "the host waited, or the stream did not"
        stubs.cuda.open_gate(gate)
        return copy.numpy().tolist(), array.numpy().tolist()

    assert on_ranks(2, run) == [([3, 20], [-1, -1])] * 2
    assert framework.asked_streams == [] or kind == "explicit"
    assert set(framework.asked_streams) <= {-1}
    framework.asked_streams.clear()


def test_two_libraries_may_use_two_streams_in_one_call(stubs, framework):
    def run(group, rank):
        group.connect()
        first_side, second_side = Side(stubs, framework, rank), Side(stubs, framework, rank)
        output, given = first_side.array([0, 0]), second_side.array([0])
        framework.core.set_stream(rank, first_side.handle)
        x, y = framework.exchange(output), framework.unknown(given)
        output.slow_write([7, 7], SLOW_MS)  # must end before the results are written
        given.slow_write([rank + 5], SLOW_MS)
        framework.core.set_stream(rank, second_side.handle)
        with framework.stream(rank, first_side.handle):
            # an unknown framework would make the given stream wait for its own
            stubs.cuda.order(second_side.handle, first_side.handle, rank)
            group.all_gather_single(x, y)
        return memory_of(output)

    assert on_ranks(2, run) == [[5, 6]] * 2
    framework.asked_streams.clear()


def test_stream_that_is_current_at_wait_waits_for_the_result(stubs, framework):
    def run(group, rank):
        group.connect()
        first, second = Side(stubs, framework, rank), Side(stubs, framework, rank)
        array = first.array([0])
        gate = first.gate()
        with first.current():
            array.slow_write([rank + 1], SLOW_MS)
            work = group.all_reduce(framework.exchange(array), async_op=True)
        with second.current():
            assert work.wait() is True
            copy = second.copy_later(array)
        stubs.cuda.open_gate(gate)
        return copy.numpy().tolist()

    assert on_ranks(2, run) == [[3]] * 2


# ---- a host that waits


@pytest.mark.parametrize("kind", ["unknown", "jax"])
def test_host_waits_for_tensors_of_unknown_libraries(stubs, framework, kind):
    def run(group, rank):
        side = Side(stubs, framework, rank)
        array = side.array([0, 0])
        with side.current():
            array.slow_write([rank + 1, 4], SLOW_MS)
            group.all_reduce(side.tensor(kind, array))
        return memory_of(array)

    assert on_ranks(2, run) == [[3, 8]] * 2
    assert all(stream not in (None, -1, 0) for stream in framework.asked_streams) and len(framework.asked_streams) == 2
    framework.asked_streams.clear()


@pytest.mark.parametrize("how", ["barrier", "timeout", "blocking"])
def test_host_waits_for_tensors_on_request(stubs, framework, how):
    def run(group, rank):
        side = Side(stubs, framework, rank)
        array = side.array([0])
        with side.current():
            array.slow_write([rank + 1], SLOW_MS)
            work = group.all_reduce(framework.exchange(array), async_op=True)
            if how == "barrier":
                group.barrier()
            elif how == "timeout":
                assert work.wait(LIMIT_S) is True
            else:
                assert work.wait() is True
        return memory_of(array)

    assert on_ranks(2, run, is_blocking_wait=how == "blocking") == [[3]] * 2


# ---- dldist's memory


def test_memory_of_nccl_groups_is_ordered_on_the_default_stream(stubs, framework):
    def run(group, rank):
        group.connect()
        x = group.empty((1,), "float32")
        value = numpy.asarray([rank + 1], "float32").tobytes()
        with stubs.cuda.on_device(rank):
            stubs.cuda.slow_write(nccl_stubs.LEGACY_STREAM, x.ptr, value, SLOW_MS)
        group.all_reduce(x)
        copy = nccl_stubs.CudaArray(stubs, numpy.zeros(1, "float32"), device=rank)
        with stubs.cuda.on_device(rank):
            stubs.cuda.call("cuMemcpyAsync", ctypes.c_uint64(copy.address), ctypes.c_uint64(x.ptr), ctypes.c_size_t(4), None)
        return copy.numpy().tolist()

    assert on_ranks(2, run) == [[3]] * 2


# ---- how long tensors are kept


def kept_until_the_gate_opens(stubs, group, side, call):
    gate = side.gate()
    gone = call()
    gc.collect()
    was_kept = gone() is not None
    stubs.cuda.open_gate(gate)
    for _ in range(1000):
        if gone() is None:
            return was_kept
        group.barrier()
        gc.collect()
    raise AssertionError("it is kept for ever")


@pytest.mark.parametrize(
    ("kind", "is_explicit", "is_kept"),
    [("torch", False, False), ("torch_exchange", False, False), ("cupy", False, False), ("exchange", False, True), ("torch", True, True)],
)
def test_blocking_call_keeps_no_tensors_of_stream_ordered_allocators(stubs, framework, kind, is_explicit, is_kept):
    """Tensors of stream-ordered allocators must not be kept, unless another stream waited."""
    group = _core.NcclGroup(None, 0, 1, device=0)
    group.connect()
    side = Side(stubs, framework, 0)

    def call():
        array = side.array([1])
        with side.current("explicit" if is_explicit else kind):
            x = side.tensor(kind, array)
            group.all_reduce(x)
        array.stream = nccl_stubs.LEGACY_STREAM if is_kept else side.handle
        return weakref.ref(array)

    assert kept_until_the_gate_opens(stubs, group, side, call) is is_kept
    stubs.cuda.synchronize(side.handle, 0)
    group.close()


def test_memory_of_an_nccl_group_is_kept_until_its_call_is_done(stubs, framework):
    group = _core.NcclGroup(None, 0, 1, device=0)
    group.connect()
    side = Side(stubs, framework, 0)

    def call():
        with side.current("explicit"):
            x = group.empty((4,), "float32")
            group.all_reduce(x)
        return weakref.ref(x)

    assert kept_until_the_gate_opens(stubs, group, side, call)
    group.close()


@pytest.mark.parametrize("is_idle", [False, True])
def test_dropping_a_group_before_its_works_end_gives_a_warning(stubs, framework, is_idle):
    group = _core.NcclGroup(None, 0, 1, device=0)
    side = Side(stubs, framework, 0)
    array = side.array([1])
    with side.current("torch"):
        x = side.tensor("torch", array)
        gate = side.gate()
        group.all_reduce(x)
    if is_idle:
        stubs.cuda.open_gate(gate)
        array.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        begun = time.monotonic()
        del group
        gc.collect()
        seconds = time.monotonic() - begun
    stubs.cuda.open_gate(gate)
    assert (0 if is_idle else 0.9) < seconds < procs.under_load(4.0)
    texts = [str(each.message) for each in caught if each.category is RuntimeWarning]
    assert [text.startswith("a group was released without being closed: operations of the NCCL group") for text in texts] == [True] * (not is_idle)


# ---- graphs


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("kind", ["exchange", "torch", "explicit"])
def test_captured_collectives_can_be_replayed(stubs, framework, kind, is_async):
    # An allocation by one rank would spoil the other rank's capture: ranks are threads here.
    everybody = threading.Barrier(2)

    def run(group, rank):
        group.connect()
        side, other = Side(stubs, framework, rank), Side(stubs, framework, rank)
        array, busy = side.array([0, 0]), other.array([rank])
        x = side.tensor(kind, array)
        gate = other.gate()
        with other.current("explicit"):
            # the watchdog queries this operation all the time
            under_way = group.all_reduce(framework.exchange(busy), async_op=True)
        everybody.wait(LIMIT_S)
        with stubs.cuda.on_device(rank), side.current(kind):
            with Graph(stubs.cuda, side.handle) as graph:
                work = group.all_reduce(x, async_op=is_async)
                assert work is None or (work.wait() is True and work.is_completed() and work.wait() is True)
            everybody.wait(LIMIT_S)
            stubs.cuda.open_gate(gate)
            assert under_way.wait(LIMIT_S)
            results = []
            for turn in range(3):
                array.slow_write([turn + rank, 100], 5)
                graph.launch()
                results.append(side.copy_later(array))
            found = [copy.numpy().tolist() for copy in results]
            graph.destroy()
        return found

    assert on_ranks(2, run) == [[[1, 200], [3, 200], [5, 200]]] * 2
    framework.asked_streams.clear()


def failure_of(group):
    """Return the error of the next call, once the group has failed."""
    found = []

    def has_failed():
        try:
            group.barrier()
        except ValueError as error:
            found.append(str(error))
        return bool(found)

    procs.poll_until(has_failed)
    return found[0]


def test_nan_in_a_replayed_graph_fails_the_group(stubs, framework):
    group = _core.NcclGroup(None, 0, 1, device=0, is_nan_check=True)
    group.connect()
    side = Side(stubs, framework, 0)
    array = side.array([0, 0, 0])
    with stubs.cuda.on_device(0), side.current():
        with Graph(stubs.cuda, side.handle) as graph:
            group.all_reduce(framework.exchange(array))
        copies = stubs.cuda.calls("cuMemcpyDtoHAsync")
        for turn in range(3):
            array.slow_write([turn, float("inf"), -1], 0)
            graph.launch()
        array.synchronize()
        group.barrier()
        array.slow_write([1, 2, float("nan")], 0)
        graph.launch()
        array.synchronize()
    assert failure_of(group).endswith("all_reduce #1 of rank 0: in a CUDA graph: the input has a NaN at element 2")
    assert stubs.cuda.calls("cuMemcpyDtoHAsync") == copies
    graph.destroy()
    group.close()


def test_capturing_a_graph_that_cannot_check_for_nan_warns_once(stubs, framework):
    stubs.cuda.fail("cuModuleLoadData", result=222)
    group = _core.NcclGroup(None, 0, 1, device=3, is_nan_check=True)  # unused by other tests
    group.connect()
    side = Side(stubs, framework, 3)
    array = side.array([float("nan")])
    with stubs.cuda.on_device(3), side.current():
        x = framework.exchange(array)
        with pytest.raises(ValueError, match="the input has a NaN at element 0"):
            group.all_reduce(x)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with Graph(stubs.cuda, side.handle) as graph:
                for is_async in (False, True):
                    work = group.all_reduce(x, async_op=is_async)
                    assert work is None or work.wait()
        assert [(each.category, str(each.message)[:40]) for each in caught] == [(RuntimeWarning, "NaN is not looked for in CUDA graphs: th")]
        graph.launch()
        array.synchronize()
    group.barrier()
    graph.destroy()
    group.close()


def test_work_in_a_stream_capture_is_not_queried(stubs, framework):
    group = _core.NcclGroup(None, 0, 1, device=0)
    group.connect()
    side = Side(stubs, framework, 0)
    array = side.array([1])
    x = framework.exchange(array)
    with stubs.cuda.on_device(0), side.current():
        with Graph(stubs.cuda, side.handle) as graph:
            before = stubs.cuda.calls("cuEventQuery")
            work = group.all_reduce(x, async_op=True)
            waits = stubs.cuda.calls("cuStreamWaitEvent")
            assert work.wait() is True
            assert stubs.cuda.calls("cuStreamWaitEvent") == waits + 1
            assert work.is_completed() and work.is_success()
        assert stubs.cuda.calls("cuEventQuery") == before
        graph.launch()
        assert array.numpy().tolist() == [1]
        graph.destroy()
    group.close()
