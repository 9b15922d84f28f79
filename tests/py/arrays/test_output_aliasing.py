"""The outputs of one call must not share memory with each other, but may with inputs."""

import array

import dldist
import pytest
from thread_ranks import error_of, in_worlds, on_threads

numpy = pytest.importorskip("numpy")


def pair(case):
    store = dldist.HashStore()

    def run(rank):
        group = dldist.Group(store, rank, 2, timeout=15.0)
        try:
            result = case(group)
            group.barrier()  # refused before anything was sent
            return result
        finally:
            group.close()

    return on_threads(2, run)


def refused_calls(group):
    x, y = numpy.zeros(2, "f4"), numpy.zeros(2, "f4")
    whole = numpy.zeros(5, "f4")
    two = [x, y]
    calls = {
        "all_gather": lambda **how: group.all_gather([x, x], y, **how),
        "all_gather of a part": lambda **how: group.all_gather([whole[:3], whole[2:]], numpy.zeros(3, "f4"), **how),
        "all_to_all": lambda **how: group.all_to_all([x, x], two, **how),
        "all_gather_coalesced": lambda **how: group.all_gather_coalesced([[x, y], [numpy.zeros(2, "f4"), y]], two, **how),
        "all_gather_single_coalesced":
            lambda **how: group.all_gather_single_coalesced([x, x], [numpy.zeros(1, "f4")] * 2, **how),
        "reduce_scatter_coalesced": lambda **how: group.reduce_scatter_coalesced([y, y], [numpy.zeros(4, "f4")] * 2, **how),
        "all_reduce_coalesced": lambda **how: group.all_reduce_coalesced([x, x], **how),
        "strided": lambda **how: group.all_gather([whole[::2], whole[::2]], numpy.zeros(3, "f4"), **how),
        "reversed": lambda **how: group.all_gather([whole[:3], whole[2::-1]], numpy.zeros(3, "f4"), **how),
    }
    for name, call in calls.items():
        for how in ({}, {"async_op": True}):
            error = error_of(call, **how)
            assert isinstance(error, dldist._core.DistArgumentError), name
            positions = ("[0][1]", "[1][1]") if name == "all_gather_coalesced" else ("[0]", "[1]")
            assert f"outputs {positions[0]} and {positions[1]} are the same memory or overlap" in str(error), name
    error = error_of(group.plan.all_gather, [x, x], y)
    assert isinstance(error, ValueError) and "plan.all_gather(): outputs [0] and [1]" in str(error)
    if group.rank == 0:
        assert isinstance(error_of(group.gather, y, [x, x], 0), ValueError)
    coalescing = group.coalesce()
    with pytest.raises(ValueError, match="outputs"), coalescing:
        group.all_reduce(x)
        group.all_reduce(x)


def test_array_passed_twice_as_an_output_is_rejected_before_sending():
    pair(refused_calls)


def test_error_about_a_repeated_output_names_both_positions():
    group = dldist.Group(dldist.HashStore(), 0, 1)
    tensors = [array.array("d", [1.0]) for _ in range(40)]
    group.all_reduce_coalesced(tensors)
    for first, second in ((3, 31), (0, 39), (38, 39)):
        given = list(tensors)
        given[second] = given[first]
        error = error_of(group.all_reduce_coalesced, given)
        assert f"outputs [{first}] and [{second}] " in str(error)
    group.close()


def coalesced_calls(rank):
    for is_async in (False, True):
        x, y = (numpy.full(2, 1 + rank, "f4") for _ in range(2))
        result = dldist.all_reduce_coalesced([x, y, x], async_op=is_async)
        assert not is_async or [id(each) for each in result.wait()] == [id(each) for each in (x, y, x)]
        assert x.tolist() == y.tolist() == [3, 3]
    error = error_of(dldist.all_reduce_coalesced, [x, x[:1]])
    assert isinstance(error, dldist.DistArgumentError) and "outputs [0] and [1] are the same memory or overlap" in str(error)
    dldist.barrier()  # refused before anything was sent


def test_all_reduce_coalesced_of_a_backend_reduces_a_repeated_tensor_once():
    in_worlds(2, coalesced_calls)


def allowed_calls(group):
    rank, ones = group.rank, numpy.full(3, group.rank + 1, "f4")
    columns = numpy.zeros((3, 2), "f4")
    group.all_gather([columns[:, 0], columns[:, 1]], ones)  # interleaved, but disjoint
    assert columns.tolist() == [[1, 2]] * 3
    backwards = numpy.zeros(6, "f4")
    group.all_gather([backwards[3:], backwards[:3]], ones)
    assert backwards.tolist() == [2, 2, 2, 1, 1, 1]
    nothing = numpy.zeros(0, "f4")
    group.all_gather([nothing, nothing], nothing)
    group.reduce_scatter(numpy.zeros(3, "f4"), [ones, ones])  # inputs may share memory
    # An input that is also an output is read before it is written.
    a, b = numpy.full(3, 10 * rank, "f4"), numpy.full(3, 10 * rank + 1, "f4")
    group.all_to_all([a, b], [a, b])
    assert a.tolist() == [rank] * 3 and b.tolist() == [10 + rank] * 3
    a, b = numpy.full(3, 10 * rank, "f4"), numpy.full(3, 10 * rank + 1, "f4")
    group.all_to_all([a, b], [b, a])
    assert a.tolist() == [1 - rank] * 3 and b.tolist() == [11 - rank] * 3
    both = numpy.arange(4, dtype="f4") + 10 * rank
    group.all_gather([both[:2], both[2:]], both[1:3])
    assert both.tolist() == [1, 2, 11, 12]
    x = numpy.array([1.0 + rank, 2, 3, 4], "f4")
    group.reduce_scatter(x[1:3], [x[:2], x[2:]])
    assert x[1:3].tolist() == ([3, 4] if rank == 0 else [6, 8])


def test_outputs_may_be_separate_parts_of_one_array_and_may_be_inputs():
    pair(allowed_calls)


def batch(group):
    x, other = array.array("i", [0, 0, 0, 0]), 1 - group.rank
    view = memoryview(x)
    error = error_of(group.batch_isend_irecv, [dldist.P2POp("irecv", view[:3], other), dldist.P2POp("isend", x, other),
                                               dldist.P2POp("irecv", view[2:], other)])
    assert isinstance(error, dldist._core.DistArgumentError)
    assert "p2p_op_list[0]" in str(error) and "p2p_op_list[2]" in str(error)
    works = group.batch_isend_irecv([dldist.P2POp("irecv", view[2:], other), dldist.P2POp("irecv", view[:2], other),
                                     dldist.P2POp("isend", array.array("i", [1, 2]), other),
                                     dldist.P2POp("isend", array.array("i", [3, 4]), other)])
    for work in works:
        work.wait()
    assert list(x) == [3, 4, 1, 2]


def test_batch_accepts_receives_only_into_separate_memory():
    pair(batch)
