"""NumPy arrays that are only moved, dates, masked arrays, and outputs whose elements overlap."""

import dldist
import dldist.functional as F
import pytest
from thread_ranks import error_of, on_threads

numpy = pytest.importorskip("numpy", reason="NumPy is not installed")

RECORD = numpy.dtype([("id", "i4"), ("name", "S3"), ("x", "f8")])


def with_groups(size, case):
    """Run case(group) on a thread for each rank, and return the results."""
    store = dldist.HashStore()

    def run(rank):
        with dldist.Group(store, rank, size, timeout=15.0) as group:
            return case(group)

    return on_threads(size, run)


def joined(kind, *parts):
    """Concatenate the arrays. NumPy's concatenate() changes the byte order."""
    return numpy.concatenate(parts).astype(kind)


def rows(dtype, rank):
    """Return four elements that differ by rank."""
    values = numpy.arange(4) + 10 * rank
    if dtype == RECORD:
        return numpy.array([(v, b"n%d" % v, v / 2) for v in values], RECORD)
    if dtype == "V12":
        return numpy.repeat(values, 12).astype("uint8").view("V12")
    return values.astype("int64").astype(dtype)


DTYPES = [RECORD, ">i4", ">f8", "M8[s]", "M8[25us]", "m8[D]", "S3", "U5", "g", "V12"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functional_collectives_move_elements_of_every_numpy_dtype(dtype):
    kind = numpy.dtype(dtype)

    def case(group):
        x, first, second = rows(kind, group.rank), rows(kind, 0), rows(kind, 1)
        everything = joined(kind, first, second)
        swapped = joined(kind, *[part[2 * group.rank :][:2] for part in (first, second)])
        for got, wanted in [
            (F.all_gather(x, group=group), everything),
            (F.all_gather(x.reshape(1, 4), axis=1, group=group), everything.reshape(1, 8)),
            (F.broadcast(x[::2], 1, group), second[::2]),
            (F.scatter(everything if group.rank == 0 else x, group=group), x),
            (F.all_to_all(x, group=group), swapped),
            (F.all_gather(x[1:2].reshape(()), group=group), everything[1::4]),
        ]:
            assert got.dtype == kind and got.tolist() == wanted.tolist() and got.shape == wanted.shape
        assert [part.tolist() for part in F.all_gather_any(x, group)] == [first.tolist(), second.tolist()]
        gathered = F.gather(x, 1, group=group)
        assert gathered is None if group.rank == 0 else gathered.tolist() == everything.tolist()
        assert F.permute(x, [(0, 1)], group).tolist() == (numpy.zeros_like(x) if group.rank == 0 else first).tolist()
        if group.rank == 0:
            F.send(x, 1, group=group)
        else:
            assert F.recv(x, 0, group=group).tolist() == first.tolist()

    with_groups(2, case)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_collectives_fill_arrays_of_every_numpy_dtype(dtype):
    kind = numpy.dtype(dtype)

    def case(group):
        x, (first, second) = rows(kind, group.rank), (rows(kind, 0), rows(kind, 1))
        y = x.copy()[::-1]
        group.broadcast(y, 1)
        assert y.tolist() == second[::-1].tolist()
        parts = [numpy.zeros_like(x) for _ in range(2)]
        group.all_gather(parts, x)
        assert [part.tolist() for part in parts] == [first.tolist(), second.tolist()]
        sizes = [3, 1] if group.rank == 0 else [1, 3]
        y = numpy.zeros_like(x)
        group.all_to_all_single(y, x, sizes, sizes)
        wanted = [first[:3], second[:1]] if group.rank == 0 else [first[3:], second[1:]]
        assert y.tolist() == joined(kind, *wanted).tolist()
        plan = group.plan.broadcast(x, 0)
        plan.start()
        plan.wait()
        assert x.tolist() == first.tolist()

    with_groups(2, case)


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("dtype", ["M8[s]", "m8[ms]"])
def test_min_and_max_of_dates_propagate_nat(dtype, op):
    nat = -(2**63)
    everything = numpy.array([[1, nat, 3, -5, nat, 2**62], [2, 7, nat, -6, nat, -(2**62)], [0, 1, 1, -7, 2, 3]]).view(dtype)
    wanted = getattr(numpy, {"min": "minimum", "max": "maximum"}[op]).reduce(everything)

    def case(group):
        x = everything[group.rank]
        numpy.testing.assert_array_equal(F.all_reduce(x, op, group), wanted)
        numpy.testing.assert_array_equal(F.all_reduce_tree({"x": x, "n": numpy.ones(1)}, op, group)["x"], wanted)
        numpy.testing.assert_array_equal(F.reduce_scatter(x, op, group=group), wanted[2 * group.rank :][:2])
        y = x.copy()
        group.all_reduce(y, op)
        numpy.testing.assert_array_equal(y, wanted)

    with_groups(3, case)


REFUSED = [
    ("M8[s]", "sum", r"got dtype datetime64\[s\], expected numbers in native byte order; pass x.view\('int64'\)"),
    (RECORD, "max", r"got dtype \[\('id', '<i4'\).* pass each field, x\['name'\]"),
    (">i4", "sum", r"got dtype >i4, .* pass x.astype\(x.dtype.newbyteorder\('='\)\)"),
    (">M8[s]", "max", r"got dtype >M8.* pass x.astype\(x.dtype.newbyteorder\('='\)\)"),
    ("V5", "sum", r"got dtype .*; pass x.view\('uint8'\)"),
    ("G", "sum", r"got dtype .*; pass x.astype\('complex128'\)"),
    ("U5", "max", r"got dtype <U5, .* pass x.tolist\(\) to a call for objects"),
    ("g", "sum", r"got dtype .*; pass x.astype\('float64'\)"),
]


@pytest.mark.parametrize(("dtype", "op", "text"), REFUSED, ids=str)
def test_reductions_of_unsupported_dtypes_name_the_dtype_and_what_to_do(dtype, op, text):
    x = rows(numpy.dtype(dtype), 0)
    with dldist.Group(None, 0, 1) as group:
        with pytest.raises(dldist.DistTypeError, match=rf"^all_reduce\(\): argument 'x' cannot be reduced by {op.upper()}: {text}"):
            F.all_reduce(x, op, group)
        with pytest.raises(dldist.DistTypeError, match=rf"^reduce\(\): argument 'tensor' cannot be reduced by {op.upper()}: {text}"):
            group.reduce(x, 0, op)
        group.barrier()


def test_arrays_of_objects_are_refused_with_a_hint_what_to_do():
    with dldist.Group(None, 0, 1) as group:
        text = r"got dtype object, expected a dtype such as 'float32'; pass x.tolist\(\) to a call for objects"
        with pytest.raises(dldist.DistTypeError, match=rf"^broadcast\(\): argument 'x' has an unsupported dtype: {text}"):
            F.broadcast(numpy.array([None]), group=group)
        with pytest.raises(dldist.DistTypeError, match=rf"^all_reduce_tree\(\): argument 'tree' at \['a'\]\[1\] .*{text}"):
            F.all_reduce_tree({"a": [numpy.ones(1), numpy.array([None])]}, group=group)


def test_arrays_of_different_dtypes_do_not_match():
    def collective(group):
        try:
            group.all_gather_single(numpy.zeros(2, dtype := "M8[s]" if group.rank else "M8[D]"), numpy.zeros(1, dtype))
        except dldist.DistMismatchError as error:
            return str(error)

    texts = with_groups(2, collective)
    assert all("called all_gather(<M8[D])" in text and "called all_gather(<M8[s])" in text for text in texts)

    def message(group):
        if group.rank == 0:
            return [group.send(x, 1) for x in (numpy.zeros(1, RECORD), numpy.zeros(1, "M8[s]"), numpy.zeros(1, "M8[s]"))]
        other = numpy.dtype([("id", "i4"), ("name", "S3"), ("y", "f8")])
        errors = [error_of(lambda x=x: group.recv(x, 0)) for x in (numpy.zeros(1, other), numpy.zeros(1, "M8[D]"))]
        group.recv(numpy.zeros(8, "uint8"), 0)  # bytes match every dtype
        return errors

    errors = with_groups(2, message)[1]
    assert [type(error) for error in errors] == [dldist.DistMismatchError] * 2 and "<M8[s]" in str(errors[1]), errors


def test_masked_arrays_are_refused_with_a_hint_what_to_do():
    x = numpy.ma.array([1.0, 1e30], mask=[0, 1])
    text = r"is a masked array: expected an array without a mask; pass x.filled\(0\), or x.data and x.mask"
    with dldist.Group(None, 0, 1) as group:
        for call, name in [
            (lambda: F.all_reduce(x, group=group), "all_reduce.*'x'"),
            (lambda: F.all_reduce_tree({"a": x}, group=group), r"all_reduce_tree.*'tree' at \['a'\]"),
            (lambda: group.all_reduce(x), "all_reduce.*'tensor'"),
            (lambda: group.all_gather_single(x, x.data), "all_gather_single.*'output"),
        ]:
            with pytest.raises(dldist.DistTypeError, match=f"{name}.*{text}"):
                call()
        assert F.all_reduce(x.filled(0), group=group).tolist() == [1, 0]
        records = numpy.zeros(2, [("mask", "?"), ("x", "f8")]).view(numpy.recarray)
        assert F.all_gather(records, group=group).tolist() == records.tolist()


def test_outputs_with_overlapping_elements_are_refused():
    view = numpy.lib.stride_tricks.as_strided
    memory = numpy.zeros(64)
    with dldist.Group(None, 0, 1) as group:
        for shape, strides in [((2, 2), (8, 8)), ((3, 4), (24, 8)), ((2, 3), (-8, 8)), ((2,), (4,)), ((2, 2, 2), (64, 8, 8))]:
            x = view(memory[8:], shape, strides)
            with pytest.raises(ValueError, match=r"argument 'tensor' is an output: got stride .* expected distinct elements; pass a copy"):
                group.all_reduce(x)
            F.all_reduce(x, group=group)  # only an input
        for x in [memory[::-3], memory.reshape(4, 4, 4).T[::2, ::-1], memory.reshape(8, 8)[::2, 1:3]]:
            group.all_reduce(x)
        group.all_reduce(view(memory, (3, 1, 2), (16, 0, 8)))
