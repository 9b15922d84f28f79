"""Repeated calls that differ only in the location of their data are not prepared again; results
must be the same."""

import array
import importlib.util
import json

import dldist
import pytest
import thread_ranks

HAS_NUMPY = importlib.util.find_spec("numpy") is not None
TIMES = 3


def of(*values, code="d"):
    return array.array(code, values)


def in_two_threads(case):
    store = dldist.HashStore()

    def run(rank):
        group = dldist.Group(store, rank, 2, name=case.__name__)
        try:
            case(group, rank)
        finally:
            group.close()

    thread_ranks.on_threads(2, run)


def every_collective(group, rank):
    for turn in range(TIMES):  # two alternating shapes, with new memory each time
        for count in (1, 3):
            own = of(*[float(10 * turn + rank)] * count)
            both = [[10.0 * turn] * count, [10.0 * turn + 1] * count]
            x = of(*own)
            group.all_reduce(x)
            assert list(x) == [a + b for a, b in zip(*both)]
            for op, answer in (("max", both[1]), ("min", both[0])):
                x = of(*own)
                group.all_reduce(x, op)
                assert list(x) == answer
            for root in (0, 1):
                x = of(*own)
                group.broadcast(x, root)
                assert list(x) == both[root]
                x = of(*own)
                group.reduce(x, root)
                assert list(x) == ([a + b for a, b in zip(*both)] if root == rank else list(own))
                x = of(*[0.0] * 2 * count)
                group.gather_single(own, x if root == rank else None, root)
                assert list(x) == (both[0] + both[1] if root == rank else [0.0] * 2 * count)
                y = of(*[0.0] * count)
                group.scatter_single(y, of(*both[0], *both[1]) if root == rank else None, root)
                assert list(y) == both[rank]
            x = of(*[0.0] * 2 * count)
            group.all_gather_single(x, own)
            assert list(x) == both[0] + both[1]
            y = of(*[0.0] * count)
            group.reduce_scatter_single(y, x)
            assert list(y) == [2 * value for value in both[rank]]
            z = of(*[0.0] * 2 * count)
            group.all_to_all_single(z, x)
            assert list(z) == both[rank] * 2
            work = group.all_reduce(own, async_op=True)
            work.wait()
            assert list(own) == [a + b for a, b in zip(*both)]
            group.barrier()


def overlapping(group, rank):
    for _ in range(TIMES):
        memory = of(rank, rank, 7)
        apart = of(0, 0)
        group.all_gather_single(apart, of(rank))
        assert list(apart) == [0, 1]
        view = memoryview(memory)
        group.all_gather_single(view[:2], view[rank : rank + 1])  # in place
        assert list(memory) == [0, 1, 7]
        group.all_to_all_single(view[1:], view[:2])  # overlaps, as if the input were a copy
        assert list(memory) == [0, rank, rank]


def wrong_after_right(group, rank):
    for _ in range(TIMES):
        group.all_gather_single(of(0, 0), of(rank))
        with pytest.raises(ValueError, match="has a wrong size: got"):
            group.all_gather_single(of(0, 0, 0), of(rank))
        with pytest.raises(TypeError, match="same dtype"):
            group.all_gather_single(of(0, 0), of(rank, code="q"))
        group.broadcast(of(rank), 0)
        with pytest.raises(ValueError, match="read-only"):
            group.all_reduce(memoryview(bytes(8)))
        with pytest.raises(ValueError, match="root"):
            group.broadcast(of(rank), 2)


def disagreeing(group, rank):
    for _ in range(TIMES):
        group.all_reduce(of(1))
        group.all_reduce(of(1, 2))
    with pytest.raises(dldist.DistMismatchError, match="1 elements") as caught:
        group.all_reduce(of(1) if rank == 0 else of(1, 2))
    assert "2 elements" in str(caught.value)
    with pytest.raises(dldist.DistMismatchError):
        group.all_reduce(of(1))


@pytest.mark.parametrize("case", [every_collective, overlapping, wrong_after_right, disagreeing], ids=lambda case: case.__name__)
def test_repeated_calls_have_correct_results(case):
    in_two_threads(case)


def test_calls_with_more_shapes_than_the_call_cache_holds_are_correct():
    group = dldist.Group(None, 0, 1)
    for _ in range(TIMES):
        for count in range(100):
            x = of(*range(count))
            group.all_reduce(x, "max")
            assert list(x) == list(range(count))
    group.close()


def test_threads_may_repeat_one_call_with_different_shapes():
    group = dldist.Group(None, 0, 1)

    def run(thread):
        for turn in range(300):
            x = of(*[float(turn)] * (turn % 40))
            group.all_reduce(x, timeout=5.0)
            assert set(x) <= {float(turn)}

    thread_ranks.on_threads(4, run)
    group.close()


def test_flight_recorder_has_each_of_several_repeated_calls():
    group = dldist.Group(None, 0, 1)
    group.all_reduce(of(1))

    def one():
        group.all_reduce(of(1), timeout=3.0)

    def other():
        group.all_reduce(of(1))

    one()
    other()
    first, second = json.loads(dldist._core._dump_recorder(True, True, True, False))["entries"][-2:]
    assert [entry["frames"][0]["name"] for entry in (first, second)] == ["one", "other"]
    assert [entry["timeout_ms"] for entry in (first, second)] == [3000, 1800000]
    for entry in (first, second):
        assert entry["input_sizes"] == entry["output_sizes"] == [[1]]
        assert entry["profiling_name"].endswith("all_reduce")
        assert entry["state"] == "completed"
    assert second["collective_seq_id"] == first["collective_seq_id"] + 1
    group.close()


@pytest.mark.skipif(not HAS_NUMPY, reason="NumPy is not installed")
def test_numpy_arrays_are_read_without_the_buffer_protocol():
    import numpy as np

    see = dldist._core._describe_tensor
    see(np.zeros(1), False)  # from now on
    for name in ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "longlong",
                 "float16", "float32", "float64", "complex64", "complex128"):
        base = np.zeros((4, 6), name)
        for x in (base, base.T, base[::2, 1::2], base[:0], base[1, 2, ...], base[::-1]):
            seen, buffer = see(x, True), see(memoryview(x), True)
            assert seen == buffer
    with pytest.raises(TypeError, match="byte order"):
        see(np.zeros(3, "f8").astype(np.dtype("f8").newbyteorder("S")), False)
    with pytest.raises(TypeError, match="has an unsupported dtype"):
        see(np.zeros(3, "longdouble"), False)
    x = np.zeros(3)
    x.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        see(x, True)
    with pytest.raises(ValueError, match="stride 0"):
        see(np.lib.stride_tricks.as_strided(np.zeros(1), (3,), (0,)), True)

    class Matrix(np.ndarray):
        pass

    assert see(np.zeros((2, 2)).view(Matrix), True)["shape"] == (2, 2)
