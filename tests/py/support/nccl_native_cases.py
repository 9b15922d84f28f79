"""Gather, scatter and all-to-all over the stubs of tests/stubs: by NCCL's own calls, or else by
messages.

NCCL's calls are used if they exist and all ranks know that the blocks are equal.
test_nccl_case_files.py runs this file with pytest, in a process that knows where the stubs are.
"""

import itertools
import threading

import dldist
import numpy
import pytest
from dldist import _core
from dldist._backends.nccl import NCCLOptions, ProcessGroupNCCL
from dldist.nccl import library
from nccl_group_cases import LIMIT_S, VERSION, array, on_ranks
from nccl_group_cases import no_faults as no_faults
from nccl_group_cases import stubs as stubs
from nccl_stream_cases import Graph, Side
from nccl_stream_cases import framework as framework
from nccl_stubs import DTYPES

HAS_NATIVE = tuple(map(int, VERSION.split("."))) >= (2, 28, 3)
NATIVE = ["ncclAlltoAll", "ncclGather", "ncclScatter"]
MESSAGES = ["ncclSend", "ncclRecv"]


class Counter:
    """Count the calls of NCCL functions from here on, of all ranks together."""

    def __init__(self, stubs):
        self._stubs = stubs
        self._before = self._now()

    def _now(self):
        return {name: self._stubs.nccl.calls(name) for name in NATIVE + MESSAGES}

    def made(self):
        return {name: calls - self._before[name] for name, calls in self._now().items() if calls > self._before[name]}


def made_for(size, native, *, own, sent):
    """Return the expected Counter.made(): `own` calls of NCCL's functions if they are used, else
    `sent` messages."""
    by_calls = {name: count for name, count in zip(NATIVE, own, strict=True) if count}
    by_messages = {name: sent for name in MESSAGES} if sent else {}
    return by_calls if native else by_messages


def values_of(rank, to, count, dtype):
    """Return the data that `rank` sends to `to`; booleans alternate."""
    return (numpy.arange(count) % 5 + 7 * rank + 3 * to).astype(dtype) if dtype != "bool" else (numpy.arange(count) + rank + to) % 2 == 1


def check_all_to_all(group, make, count, dtype):
    rank, size = group.rank, group.size
    given = make(numpy.concatenate([values_of(rank, to, count, dtype) for to in range(size)]))
    taken = make(numpy.zeros(count * size, dtype))
    group.all_to_all_single(taken, given)
    wanted = numpy.concatenate([values_of(other, rank, count, dtype) for other in range(size)])
    assert (taken.numpy() == wanted).all()


def check_gather(group, make, count, dtype, root):
    rank, size = group.rank, group.size
    taken = make(numpy.zeros(count * size, dtype)) if rank == root else None
    group.gather_single(make(values_of(rank, root, count, dtype)), taken, root)
    if rank == root:
        assert (taken.numpy() == numpy.concatenate([values_of(other, root, count, dtype) for other in range(size)])).all()


def check_scatter(group, make, count, dtype, root):
    rank, size = group.rank, group.size
    given = numpy.concatenate([values_of(root, to, count, dtype) for to in range(size)])
    taken = make(numpy.zeros(count, dtype))
    group.scatter_single(taken, make(given) if rank == root else None, root)
    assert (taken.numpy() == values_of(root, rank, count, dtype)).all()


def check_all(group, make, counts, dtype="float32"):
    for count in counts:
        check_all_to_all(group, make, count, dtype)
        for root in range(group.size):
            check_gather(group, make, count, dtype, root)
            check_scatter(group, make, count, dtype, root)


def calls_of_check_all(size, ncounts, native):
    """Return the expected count for the calls of check_all on all ranks, for nonzero counts."""
    roots = ncounts * size
    sent = ncounts * size * (size - 1) + 2 * roots * (size - 1)
    return made_for(size, native, own=(ncounts * size, roots * size, roots * size), sent=sent)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_native_nccl_collectives_are_correct_for_every_dtype_root_and_size(stubs, size):
    names = [name for name in DTYPES if name in dir(numpy) or name == "bool"]
    assert len(names) >= 10
    counter = Counter(stubs)

    def run(group, rank):
        for name in names:
            check_all(group, lambda values: array(stubs, values, rank, values.dtype), [0, 1, 5], name)

    on_ranks(size, run)
    assert counter.made() == calls_of_check_all(size, 2 * len(names), HAS_NATIVE)


@pytest.mark.parametrize("blocking", [0, 1])
def test_native_nccl_collectives_are_correct_on_nonblocking_communicators(stubs, blocking):
    counter = Counter(stubs)
    on_ranks(2, lambda group, rank: check_all(group, lambda x: array(stubs, x, rank), [3]), config={"blocking": blocking})
    assert counter.made() == calls_of_check_all(2, 1, HAS_NATIVE)


def test_uneven_all_to_all_is_sent_as_messages(stubs):
    counter = Counter(stubs)

    def run(group, rank):
        make = lambda *values: array(stubs, values, rank)  # noqa: E731 - short, and used only here
        for sizes in ([2, 2], [1, 3]):
            taken = [make(*[0] * size) for size in sizes] if rank == 0 else None
            group.gather(make(*[rank] * sizes[rank]), taken)
            assert rank == 1 or [x.numpy().tolist() for x in taken] == [[k] * sizes[k] for k in range(2)]
            part = make(*[0] * sizes[rank])
            group.scatter(part, [make(*[k] * sizes[k]) for k in range(2)] if rank == 0 else None)
            assert part.numpy().tolist() == [rank] * sizes[rank]
            taken = [make(*[0] * sizes[rank]) for _ in range(2)]
            group.all_to_all(taken, [make(*[rank] * size) for size in sizes])
            assert [x.numpy().tolist() for x in taken] == [[k] * sizes[rank] for k in range(2)]
            whole = make(*[0] * 2 * sizes[rank])
            group.all_to_all_single(whole, make(*[rank] * sum(sizes)), [sizes[rank]] * 2, sizes)
            assert whole.numpy().tolist() == [0] * sizes[rank] + [1] * sizes[rank]

    on_ranks(2, run)
    assert counter.made() == {"ncclSend": 12, "ncclRecv": 12}


def test_in_place_and_strided_tensors_are_staged_for_native_collectives(stubs):
    """Tensors must be staged as in any call, so that NCCL gets contiguous blocks."""
    counter = Counter(stubs)

    def run(group, rank):
        x = array(stubs, [10 * rank, 10 * rank + 1], rank)
        group.all_to_all_single(x, x)
        assert x.numpy().tolist() == [rank, 10 + rank]
        image = numpy.arange(4, dtype="float32").reshape(2, 2) + 10 * rank
        given = array(stubs, image, rank, strides=(1, 2))
        taken = array(stubs, numpy.zeros((2, 2)), rank, strides=(1, 2))
        group.all_to_all_single(taken, given)
        assert taken.numpy().tolist() == [[2 * rank, 2 * rank + 1], [2 * rank + 10, 2 * rank + 11]]
        whole = array(stubs, numpy.zeros((2, 2)), rank, strides=(1, 2)) if rank == 1 else None
        group.gather_single(array(stubs, [rank, rank + 5], rank), whole, 1)
        assert rank == 0 or whole.numpy().tolist() == [[0, 5], [1, 6]]

    on_ranks(2, run)
    assert counter.made() == made_for(2, HAS_NATIVE, own=(4, 2, 0), sent=5)


def test_native_nccl_collectives_work_in_a_coalescing_block(stubs):
    counter = Counter(stubs)

    def run(group, rank):
        x, y = array(stubs, [rank, rank + 10], rank), array(stubs, [0, 0], rank)
        whole = array(stubs, [0, 0], rank) if rank == 0 else None
        total = array(stubs, [rank + 1], rank)
        group.start_coalescing()
        group.all_to_all_single(y, x)
        group.gather_single(array(stubs, [rank], rank), whole, 0)
        group.all_reduce(total)
        assert group.end_coalescing().wait() is True
        assert y.numpy().tolist() == ([0, 1] if rank == 0 else [10, 11]) and total.numpy().tolist() == [3]
        assert rank == 1 or whole.numpy().tolist() == [0, 1]

    on_ranks(2, run)
    assert counter.made() == made_for(2, HAS_NATIVE, own=(2, 2, 0), sent=3)


def test_native_nccl_collectives_work_in_a_cuda_graph(stubs, framework):
    everybody = threading.Barrier(2)

    def run(group, rank):
        group.connect()
        side = Side(stubs, framework, rank)
        given, taken = side.array([rank, rank + 10]), side.array([0, 0])
        x, y = framework.exchange(given), framework.exchange(taken)
        everybody.wait(LIMIT_S)
        with stubs.cuda.on_device(rank), side.current():
            # Ranks are threads here: work of one of them, or of a garbage collector, must not spoil
            # the other's capture.
            with Graph(stubs.cuda, side.handle, mode=1) as graph:
                group.all_to_all_single(y, x)
            everybody.wait(LIMIT_S)
            results = []
            for turn in (0, 100):
                given.slow_write([rank + turn, rank + turn + 10], 1)
                graph.launch()
                results.append(side.copy_later(taken))
            found = [copy.numpy().tolist() for copy in results]
            graph.destroy()
        return found

    counter = Counter(stubs)
    assert on_ranks(2, run) == [[[0, 1], [100, 101]], [[10, 11], [110, 111]]]
    assert counter.made() == made_for(2, HAS_NATIVE, own=(2, 0, 0), sent=2)


def test_process_group_calls_use_native_nccl_collectives(stubs):
    counter = Counter(stubs)
    store = dldist.HashStore()

    def run(group, rank):
        backend = ProcessGroupNCCL(store, rank, 2)
        backend.eager_connect_single_device(rank)
        for splits in ([[], []], [[1, 1], [1, 1]]):
            taken = array(stubs, [0, 0], rank)
            backend.alltoall_base(taken, array(stubs, [rank, rank + 10], rank), *splits).wait()
            assert taken.numpy().tolist() == ([0, 1] if rank == 0 else [10, 11])
        backend.shutdown()

    on_ranks(2, run)
    assert counter.made() == ({"ncclAlltoAll": 2} if HAS_NATIVE else {}) | dict.fromkeys(MESSAGES, 2 if HAS_NATIVE else 4)


# ---- the setting


def test_grouped_messages_can_be_forced_instead_of_native_collectives(stubs):
    counter = Counter(stubs)

    def run(group, rank):
        part = group.split([0, 1])  # a split group inherits the setting
        for each in (group, part):
            assert each.grouped_messages is True
            check_all(each, lambda x: array(stubs, x, rank), [2])
        part.close()

    on_ranks(2, run, grouped_messages=True)
    sent = calls_of_check_all(2, 1, False)
    assert counter.made() == {name: 2 * count for name, count in sent.items()}


def test_setting_for_grouped_messages_is_read_from_the_environment(monkeypatch):
    assert library.group_settings()["grouped_messages"] is False
    monkeypatch.setenv("DLDIST_NCCL_GROUPED_MESSAGES", "1")
    assert library.group_settings()["grouped_messages"] is True


@pytest.mark.parametrize("other", [0, 1])
def test_ranks_that_disagree_on_grouped_messages_fail_to_connect(stubs, other):
    store = dldist.HashStore()

    def run(group, rank):
        mixed = _core.NcclGroup(store, rank, 2, device=rank, timeout=LIMIT_S, grouped_messages=rank == other)
        with pytest.raises(dldist.DistMismatchError) as error:
            mixed.connect()
        return str(error.value)

    for text in on_ranks(2, run):
        assert f"grouped messages on rank {other} and NCCL's own calls on rank {1 - other}" in text


@pytest.mark.skipif(tuple(map(int, VERSION.split("."))) < (2, 29, 2), reason="this NCCL grows nothing")
def test_joining_ranks_that_disagree_on_grouped_messages_fail(stubs):
    numbers = itertools.count()
    store = dldist.HashStore()

    def run(group, rank):
        if rank < 2:
            next(numbers)
            backend = ProcessGroupNCCL(dldist.PrefixStore("members", store), rank, 2)
            backend.eager_connect_single_device(rank)
        else:
            backend = ProcessGroupNCCL._from_group(_core.NcclGroup(None, 0, 1, device=2, grouped_messages=True), NCCLOptions())
        options = NCCLOptions()
        options._timeout = options._timeout.__class__(seconds=1)
        with pytest.raises(RuntimeError) as error:
            backend.merge(dldist.PrefixStore("whole", store), options, rank, 3)
        backend.abort()
        return str(error.value)

    texts = on_ranks(3, run)
    assert f"got {library.version()} with grouped messages on rank 2, expected {library.version()}, as on rank 0" in texts[2]
