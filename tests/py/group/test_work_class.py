"""Work as a class: without an operation, with overrides, and with c10d's other members."""

import array
import asyncio
import gc
import time
import weakref
from datetime import timedelta

import dldist
import pytest
from pairs import on_both, open_pair

# The errors of a Work without an operation, with c10d's texts.
REFUSED = {
    "result": "result() not implemented.",
    "source_rank": "sourceRank() may only be called on work objects that correspond to a recv or recv-from-any call.",
    "_source_rank": "sourceRank() may only be called on work objects that correspond to a recv or recv-from-any call.",
    "wait": "wait() not implemented.",
    "get_future": "Work::getFuture not implemented.",
    "get_future_result": "Work::getFutureResult not implemented.",
    "_get_duration": "This Backend doesn't support getDuration.",
    "_get_sequence_number": "This Backend doesn't support getSequencenumber.",
    "block_current_stream": "Failed to create StreamBlock: the CPU has no streams; call wait()",
}
# Calls on a group of one, and their numbers in c10d's OpType.
OP_TYPES = {
    "broadcast": (lambda g, x: g.broadcast(x, async_op=True), 0),
    "all_reduce": (lambda g, x: g.all_reduce(x, async_op=True), 1),
    "all_reduce_coalesced": (lambda g, x: g.all_reduce_coalesced([x], async_op=True), 2),
    "reduce": (lambda g, x: g.reduce(x, async_op=True), 3),
    "all_gather": (lambda g, x: g.all_gather([ints(0)], x, async_op=True), 4),
    "all_gather_single": (lambda g, x: g.all_gather_single(ints(0), x, async_op=True), 5),
    "all_gather_coalesced": (lambda g, x: g.all_gather_coalesced([[ints(0)]], [x], async_op=True), 6),
    "gather": (lambda g, x: g.gather(x, [ints(0)], async_op=True), 7),
    "gather_single": (lambda g, x: g.gather_single(x, ints(0), async_op=True), 7),
    "scatter": (lambda g, x: g.scatter(ints(0), [x], async_op=True), 8),
    "scatter_single": (lambda g, x: g.scatter_single(ints(0), x, async_op=True), 8),
    "reduce_scatter": (lambda g, x: g.reduce_scatter(ints(0), [x], async_op=True), 9),
    "all_to_all_single": (lambda g, x: g.all_to_all_single(ints(0), x, async_op=True), 10),
    "all_to_all": (lambda g, x: g.all_to_all([ints(0)], [x], async_op=True), 11),
    "barrier": (lambda g, _: g.barrier(async_op=True), 15),
    "reduce_scatter_single": (lambda g, x: g.reduce_scatter_single(ints(0), x, async_op=True), 16),
    "reduce_scatter_coalesced": (lambda g, x: g.reduce_scatter_coalesced([ints(0)], [x], async_op=True), 19),
    "all_gather_single_coalesced": (lambda g, x: g.all_gather_single_coalesced([ints(0)], [x], async_op=True), 20),
}


def ints(*values):
    return array.array("i", values)


@pytest.fixture
def group():
    with dldist.Group(None, 0, 1, timeout=5) as group:
        yield group


# ---- without an operation


def test_work_made_by_its_constructor_has_no_operation():
    work = dldist.Work()
    assert (work.is_completed(), work.is_success(), work.exception()) == (False, True, None)
    assert work.synchronize() is None and work.timeout == timedelta(0) and work._get_op_type() == 100
    assert "without an operation" in repr(work)
    for name, text in REFUSED.items():
        with pytest.raises(RuntimeError) as caught:
            getattr(work, name)()
        assert str(caught.value) == text, name
    for name in ("duration", "sequence", "op"):
        with pytest.raises(RuntimeError):
            getattr(work, name)
    with pytest.raises(RuntimeError, match="getFuture"):
        work._watch(print)
    with pytest.raises(TypeError):
        dldist.Work(1)


def test_work_made_by_its_constructor_cannot_be_awaited():
    async def wait():
        await dldist.Work()

    with pytest.raises(RuntimeError, match="getFuture"):
        asyncio.run(wait())


def test_asyncio_makes_tasks_of_works():
    async def wait():
        with dldist.World() as world:
            works = [world.all_reduce(array.array("i", [i]), async_op=True) for i in range(3)]
            task = asyncio.ensure_future(works.pop())
            return await asyncio.gather(task, *works)

    assert [x.tolist() for (x,) in asyncio.run(wait())] == [[2], [0], [1]]


class Mine(dldist.Work):
    def __init__(self, value, *, text=""):
        super().__init__()
        self.value, self.text = value, text

    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True

    def get_future(self):
        future = dldist.Future()
        future.set_result(self.value)
        return future


def test_instance_of_a_subclass_of_work_counts_as_completed():
    work = Mine([1], text="mine")
    assert isinstance(work, dldist.Work) and work.wait() and work.is_completed() and work.is_success()
    assert work.get_future().wait() == [1] and work.text == "mine" and "Mine without" in repr(work)
    with pytest.raises(RuntimeError, match="result"):
        work.result()


def test_subclass_of_work_need_not_call_init():
    class Lazy(dldist.Work):
        def __init__(self):
            pass

    assert Lazy().is_success()


def test_cycle_through_an_instance_of_a_subclass_of_work_is_collected():
    work = Mine(1)
    work.myself = work
    gone = weakref.ref(work)
    del work
    gc.collect()
    assert gone() is None


def test_unboxing_a_boxed_work_returns_the_same_work(group):
    for work in (dldist.Work(), Mine(1), group.barrier(async_op=True)):
        assert dldist.Work.unbox(work.boxed()) is work
    with pytest.raises(TypeError, match="boxed"):
        dldist.Work.unbox(1)


# ---- c10d's other members


@pytest.mark.parametrize("name", OP_TYPES)
def test_work_has_the_type_and_sequence_number_of_its_operation(group, name):
    call, number = OP_TYPES[name]
    before = group.sequence
    work = call(group, ints(7))
    assert work.wait() and type(work) is dldist.Work
    assert work._get_op_type() == number and work._get_sequence_number() == work.sequence == before + 1


def test_work_has_the_duration_and_timeout_of_its_operation(group):
    work = group.all_reduce(ints(1), timeout=3, async_op=True)
    work.wait()
    assert work._get_duration() == pytest.approx(work.duration * 1000) and work._get_duration() >= 0
    assert work.timeout == timedelta(seconds=3) and group.barrier(async_op=True).timeout == timedelta(seconds=5)
    for name in ("source_rank", "_source_rank"):
        with pytest.raises(RuntimeError, match="recv-from-any"):
            getattr(work, name)()
    for name in ("get_future_result", "block_current_stream"):
        with pytest.raises(RuntimeError):
            getattr(work, name)()


def test_works_of_messages_have_no_sequence_number():
    with open_pair(timeout=10) as (first, second):
        tensors = [ints(0), ints(0)]
        receives = [second.irecv(tensors[0], 0, 1), second.irecv(tensors[1], None, 2)]
        sends = [first.isend(ints(5), 1, 1), first.isend(ints(6), 1, 2)]
        assert all(work.wait() for work in sends + receives)
        assert [work._get_op_type() for work in sends + receives] == [12, 12, 13, 14]
        assert [work._source_rank() for work in receives] == [0, 0] and [x[0] for x in tensors] == [5, 6]
        assert {work._get_sequence_number() for work in sends + receives} == {0}


# ---- waiting


@pytest.mark.parametrize("zero", [0, 0.0, timedelta(0)])
def test_work_wait_with_a_timedelta_of_zero_has_no_limit(zero):
    with open_pair(timeout=10) as (first, second):
        tensor = ints(0)
        work = second.irecv(tensor, 0)

        def run(_group, rank):
            if rank == 1:
                return work.wait(zero)
            with pytest.raises(dldist.DistTimeoutError, match="Operation timed out!"):
                work.wait(0.05)
            return first.send(ints(9), 1)

        assert on_both([first, second], run) == [None, True] and tensor[0] == 9


def test_work_wait_ends_with_the_timeout_of_its_operation():
    with open_pair(timeout=10) as (_, second):
        work = second.irecv(ints(0), 0, timeout=0.2)
        start = time.monotonic()
        with pytest.raises(dldist.DistTimeoutError):
            work.wait(timedelta(0))
        assert 0.1 < time.monotonic() - start < 5 and work.is_completed() and not work.is_success()


def test_operation_continues_after_wait_has_timed_out():
    with open_pair(timeout=10) as (first, second):
        tensor = ints(0)
        work = second.irecv(tensor, 0)
        for timeout in (0.01, timedelta(milliseconds=10)):
            with pytest.raises(RuntimeError, match="Operation timed out!"):
                work.wait(timeout)
        assert not work.is_completed()
        first.send(ints(3), 1)
        assert work.wait() and work.is_success() and tensor[0] == 3
