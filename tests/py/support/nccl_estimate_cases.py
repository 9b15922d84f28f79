"""NCCL's time estimates for calls, over the stubs of tests/stubs, which estimate one microsecond
for each NCCL call.

test_nccl_case_files.py runs this file with pytest, in a process that knows where the stubs are.
"""

import threading

import dldist
import pytest
from dldist import _core, flight_recorder
from dldist._backends.nccl import ProcessGroupNCCL
from nccl_group_cases import LIMIT_S, VERSION, array, on_ranks
from nccl_group_cases import no_faults as no_faults
from nccl_group_cases import stubs as stubs
from nccl_stream_cases import Graph, Side
from nccl_stream_cases import framework as framework
from procs import poll_until

ESTIMATES = tuple(map(int, VERSION.split("."))) >= (2, 22, 3)


def in_streams(stubs):
    """Return the counts of operations that all ranks have enqueued in streams."""
    return [stubs.cuda.calls("cuMemcpy2DAsync"), stubs.cuda.calls("cuEventRecord"), stubs.nccl.calls("(launch)")]


needs_estimates = pytest.mark.skipif(not ESTIMATES, reason="this NCCL estimates nothing")


@pytest.fixture
def pair(stubs):
    """Return two ranks, the first on this thread. The stubs' estimates concern only one rank."""
    store = dldist.HashStore()
    groups = [_core.NcclGroup(store, rank, 2, device=rank) for rank in range(2)]
    other = threading.Thread(target=groups[1].connect)
    other.start()
    groups[0].connect()
    other.join(LIMIT_S)
    yield groups
    other = threading.Thread(target=groups[1].close, args=(5,))
    other.start()
    groups[0].close(5)
    other.join(LIMIT_S)


@pytest.fixture
def group(pair):
    return pair[0]


def works(stubs, pair):
    """Check that an estimate has ended the thread's NCCL group, so that calls are carried out."""
    tensors = [array(stubs, [rank + 1], rank) for rank in range(2)]
    other = threading.Thread(target=pair[1].all_reduce, args=(tensors[1],))
    other.start()
    assert pair[0].all_reduce(tensors[0], async_op=True).wait(LIMIT_S) is True
    other.join(LIMIT_S)
    return [x.numpy().tolist() for x in tensors] == [[3]] * 2


@pytest.mark.skipif(ESTIMATES, reason="this NCCL estimates")
def test_time_estimate_with_an_older_nccl_is_an_error(stubs, pair, group):
    with pytest.raises(NotImplementedError, match=rf"ncclGroupSimulateEnd needs NCCL 2\.22\.3 or newer, this is {VERSION}"):
        group._start_time_estimate()
    backend = ProcessGroupNCCL(dldist.HashStore(), 0, 1)
    assert backend.supports_time_estimate is False
    backend.shutdown()
    assert works(stubs, pair)


@needs_estimates
def test_calls_in_a_time_estimate_do_not_run(stubs):
    everybody = threading.Barrier(2)

    def run(group, rank):
        group.connect()
        make = lambda values, **options: array(stubs, values, rank, honours_stream=False, **options)  # noqa: E731
        x, whole, strided = make([rank, 1]), make([7] * 4), make([[1, 2], [3, 4]], strides=(1, 2))
        lists = [make([5, 5]), make([5, 5])]
        sequence = group.sequence
        everybody.wait(LIMIT_S)
        before = in_streams(stubs)
        everybody.wait(LIMIT_S)
        group._start_time_estimate()
        assert group.all_reduce(x, dldist._make_nccl_premul_sum(2.0)) is None
        group.all_reduce_coalesced([x, whole, strided])
        group.broadcast(strided, 1)
        group.reduce(x, 1)
        group.all_gather_single(whole, x)
        group.all_gather(lists, x)
        group.reduce_scatter(x, lists)
        group.barrier()
        estimated = group._end_time_estimate()
        everybody.wait(LIMIT_S)
        assert in_streams(stubs) == before
        assert group.sequence == sequence + 8
        everybody.wait(LIMIT_S)
        assert x.numpy().tolist() == [rank, 1] and whole.numpy().tolist() == [7] * 4
        assert [y.numpy().tolist() for y in lists] == [[5, 5]] * 2 and strided.numpy().tolist() == [[1, 2], [3, 4]]
        group.all_reduce(x)
        group.broadcast(strided)
        assert x.numpy().tolist() == [1, 2]
        assert all(now > then for now, then in zip(in_streams(stubs), before, strict=True))
        return estimated

    assert on_ranks(2, run) == [10.0] * 2


@needs_estimates
def test_first_calls_of_a_group_can_be_estimated(stubs):
    """The first calls must make the communicator."""

    def run(group, rank):
        group._start_time_estimate()
        group.all_reduce(array(stubs, [1], rank))
        return group._end_time_estimate()

    assert on_ranks(2, run) == [1.0] * 2


@needs_estimates
def test_time_estimate_has_the_timeout_of_a_call(stubs):
    """The watchdog must monitor an estimate, with a deadline that counts from its start."""
    stubs.nccl.slow_launches(300)

    def run(group, rank):
        group.connect()
        group._start_time_estimate()
        group.all_reduce(array(stubs, [1], rank))
        return group._end_time_estimate()

    assert on_ranks(2, run) == [1.0] * 2


@needs_estimates
def test_group_of_one_rank_has_no_time_estimate(stubs):
    """With one rank NCCL carries out its calls immediately, even in a group."""
    before = stubs.nccl.calls("ncclAllReduce")
    group = _core.NcclGroup(None, 0, 1, device=0)
    group._start_time_estimate()
    group.all_reduce(array(stubs, [1]))
    assert group._end_time_estimate() == -1.0
    assert stubs.nccl.calls("ncclAllReduce") == before
    group.close(5)


@needs_estimates
def test_block_without_calls_has_no_time_estimate(stubs, group):
    for call in (lambda: None, lambda: group.all_reduce(array(stubs, []))):
        group._start_time_estimate()
        call()
        assert group._end_time_estimate() == -1.0


@needs_estimates
def test_works_in_a_time_estimate_complete_immediately(stubs, pair, group):
    x, y = array(stubs, [1]), array(stubs, [2])
    group._start_time_estimate()
    work = group.all_reduce(x, async_op=True)
    assert work.wait() is True and work.is_completed() and work.result() == [x]
    assert group.barrier(async_op=True).wait() is True
    group.start_coalescing()
    assert group.all_reduce(x) is None and group.broadcast(y) is None
    work = group.end_coalescing()
    assert work.is_success() and work.result() == [x, y]
    group.start_coalescing()
    assert group.end_coalescing() is None
    assert group._end_time_estimate() == 4.0
    assert works(stubs, pair)


@needs_estimates
def test_flight_recorder_numbers_stay_equal_on_all_ranks_after_an_estimate(stubs, pair):
    flight_recorder.reset()
    first = pair[0].sequence + 1
    for rank, group in enumerate(pair):
        group._start_time_estimate()
        group.all_reduce(array(stubs, [1], rank))
        group._end_time_estimate()
    assert works(stubs, pair)
    assert [group.sequence for group in pair] == [first + 1] * 2
    entries = flight_recorder.entries()
    assert [entry["collective_seq_id"] for entry in entries] == [first, first, first + 1, first + 1]
    assert [entry["state"] for entry in entries[:2]] == ["completed"] * 2


@needs_estimates
def test_messages_in_a_time_estimate_are_rejected(stubs, pair, group):
    x, y, whole = array(stubs, [1, 2]), array(stubs, [1, 2]), array(stubs, [0] * 4)
    group._start_time_estimate()
    for call in (
        lambda: group.all_to_all_single(y, x), lambda: group.gather(x, [y, whole]), lambda: group.scatter_single(y, whole),
        lambda: group.send(x, 1), lambda: group.irecv(x, 1),
    ):  # fmt: skip
        with pytest.raises(NotImplementedError, match=r"\w+\(\): NCCL cannot estimate messages"):
            call()
    group.start_coalescing()
    group.all_reduce(x)
    group.send(y, 1)
    group.recv(x, 1)
    with pytest.raises(NotImplementedError, match=r"send\(\): NCCL cannot estimate messages"):
        group.end_coalescing()
    group.all_reduce(x)
    assert group._end_time_estimate() == 1.0
    assert works(stubs, pair)


@needs_estimates
@pytest.mark.parametrize("is_connected", [False, True])
def test_time_estimates_of_nonblocking_communicators_are_rejected(stubs, is_connected):
    """With nonblocking communicators NCCL would carry out the calls instead of estimating them."""

    before = stubs.nccl.calls("ncclGroupSimulateEnd")

    def run(group, rank):
        if is_connected:
            group.connect()
        x = array(stubs, [1], rank)
        group._start_time_estimate()
        group.all_reduce(x)
        with pytest.raises(NotImplementedError, match=f"estimates need a blocking communicator .* NCCL {VERSION} executes"):
            group._end_time_estimate()
        assert x.numpy().tolist() == [1]
        group.all_reduce(x)
        assert x.numpy().tolist() == [2]

    on_ranks(2, run, config={"blocking": 0})
    assert stubs.nccl.calls("ncclGroupSimulateEnd") == before


# ---- errors


@needs_estimates
def test_starts_and_ends_of_time_estimates_must_match(stubs, pair, group):
    with pytest.raises(RuntimeError, match=r"this thread has not called _start_time_estimate\(\)"):
        group._end_time_estimate()
    group._start_time_estimate()
    with pytest.raises(RuntimeError, match="already called it"):
        group._start_time_estimate()
    with pytest.raises(RuntimeError, match=r"this thread has not called start_coalescing\(\)"):
        group.end_coalescing()
    group.start_coalescing()
    with pytest.raises(RuntimeError, match=r"this thread has not called end_coalescing\(\)"):
        group._end_time_estimate()
    group.drop_coalesced()
    group.drop_coalesced()  # drops nothing of the estimate
    group.all_reduce(array(stubs, [1]))
    assert group._end_time_estimate() == 1.0
    group.start_coalescing()
    with pytest.raises(RuntimeError, match="already called it, or start_coalescing"):
        group._start_time_estimate()
    group.drop_coalesced()
    assert works(stubs, pair)


@needs_estimates
def test_another_thread_can_make_calls_but_cannot_end_a_time_estimate(stubs, pair, group):
    group._start_time_estimate()
    group.all_reduce(array(stubs, [1]))
    found = []

    def elsewhere():
        try:
            group._end_time_estimate()
        except RuntimeError as error:
            found.append(str(error))
        found.append(works(stubs, pair))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(LIMIT_S)
    assert found == ["_end_time_estimate(): this thread has not called _start_time_estimate()", True]
    assert group._end_time_estimate() == 1.0


@needs_estimates
def test_exception_in_an_estimate_block_drops_its_calls(stubs, pair, group):
    before = stubs.nccl.calls("ncclGroupStart")
    group._start_time_estimate()
    group.all_reduce(array(stubs, [1]))
    with pytest.raises(ValueError, match="unknown reduction 'no reduction'"):
        group.all_reduce(array(stubs, [1]), "no reduction")
    group.start_coalescing()
    group.all_reduce(array(stubs, [1]))
    group._drop_time_estimate()
    group._drop_time_estimate()
    assert stubs.nccl.calls("ncclGroupStart") == before
    assert works(stubs, pair)


@needs_estimates
@pytest.mark.parametrize("function", ["ncclAllReduce", "ncclGroupSimulateEnd", "ncclGroupStart"])
def test_nccl_error_in_a_time_estimate_does_not_fail_the_group(stubs, group, pair, function):
    group._start_time_estimate()
    group.broadcast(array(stubs, [1]))
    group.all_reduce(array(stubs, [1]))
    sequence = group.sequence
    stubs.nccl.fail(function, result=3, text="no luck")
    with pytest.raises(dldist.DistBackendError, match=f"{function}: ncclInternalError .*no luck"):
        group._end_time_estimate()
    assert group.sequence == sequence and group.error is None
    with pytest.raises(RuntimeError, match="has not called"):
        group._end_time_estimate()
    assert works(stubs, pair)


@needs_estimates
def test_abort_ends_a_time_estimate(stubs, group):
    group._start_time_estimate()
    group.all_reduce(array(stubs, [1]))
    group.abort("enough")
    with pytest.raises(dldist.DistError, match="enough"):
        group._end_time_estimate()


@needs_estimates
def test_hanging_time_estimate_times_out(stubs, group):
    """The first estimate may connect ranks, and waits until all have joined."""

    def let_go():
        poll_until(lambda: group.error is not None)
        stubs.nccl.release()

    group.timeout = 0.3
    group._start_time_estimate()
    group.all_reduce(array(stubs, [1]))
    stubs.nccl.hang("ncclGroupSimulateEnd")
    watcher = threading.Thread(target=let_go)
    watcher.start()
    with pytest.raises(dldist.DistTimeoutError, match="time_estimate"):
        group._end_time_estimate()
    watcher.join(LIMIT_S)


@needs_estimates
def test_stream_capture_contains_nothing_of_a_time_estimate(stubs, framework, group):
    """A capture must contain nothing of an estimate, even for tensors that would be packed."""
    side = Side(stubs, framework, 0)
    values = side.array([1, 2])
    x = framework.exchange(values)
    image = array(stubs, [[1, 2], [3, 4]], strides=(1, 2))
    image.stream = side.handle
    strided = framework.exchange(image)
    alone = _core.NcclGroup(None, 0, 1, device=0)
    alone.connect()
    with stubs.cuda.on_device(0), side.current():
        with Graph(stubs.cuda, side.handle) as graph:
            group._start_time_estimate()
            group.all_reduce(x)
            group.broadcast(strided)
            assert group._end_time_estimate() == 2.0
            alone.all_reduce(x)
        graph.launch()
        assert values.numpy().tolist() == [1, 2]
        graph.destroy()
    alone.close(5)
