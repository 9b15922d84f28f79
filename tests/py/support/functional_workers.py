"""Cases that the ranks of test_functional.py run concurrently. No pytest here.

NumPy computes the expected results from the inputs of all ranks.
"""

import array
import asyncio
import collections
import functools
import importlib
import itertools
import types

import dldist
import dldist.functional as F
import numpy
from group_workers import describe, open_group, serve

Pair = collections.namedtuple("Pair", "first second")


def member(channel, port, rank, size):
    return serve(channel, open_group(port, rank, size), globals())


# ---- libraries


class Opaque:
    """An array of a library unknown to dldist: it only has DLPack."""

    def __init__(self, content):
        self._content = content

    def __dlpack__(self, **how):
        return self._content.__dlpack__(**how)

    def __dlpack_device__(self):
        return self._content.__dlpack_device__()

    def __array_namespace__(self):
        return types.SimpleNamespace(from_dlpack=lambda x: Opaque(numpy.from_dlpack(x)))


class Library:
    """Conversions between NumPy arrays and the arrays of a library."""

    def __init__(self, name, dtype):
        self.name = name
        self.dtype = dtype
        # array.array has one dimension; a type without slicing has one axis.
        self.is_flat = name in ("array", "bytes", "bytearray")
        self.axes = (0, 1) if name in ("numpy", "torch", "jax") else (0,)

    def make(self, values):
        values = numpy.asarray(values)
        if self.name == "torch":
            torch = importlib.import_module("torch")
            return torch.tensor(values, dtype=getattr(torch, self.dtype))
        if self.name == "jax":
            numbers = importlib.import_module("jax.numpy")
            return numbers.array(values, dtype=self.dtype)
        if self.name == "array":
            return array.array(self.dtype, values.ravel().tolist())
        if self.name in ("bytes", "bytearray"):
            return (bytes if self.name == "bytes" else bytearray)(values.ravel().tolist())
        if self.dtype in ("bfloat16", "float8_e5m2"):
            importlib.import_module("ml_dtypes")
        values = values.astype(self.dtype)
        return {"numpy": numpy.array, "opaque": Opaque, "memoryview": memoryview}[self.name](values)

    def read(self, x):
        if self.name == "torch":
            x = x.detach().double() if self.dtype == "bfloat16" else x.detach()
        if self.name == "opaque":
            x = x._content
        if self.name in ("bytes", "bytearray"):
            x = list(x)
        return numpy.asarray(x).astype("complex128")

    def expect(self, got, values, like, description):
        assert type(got) is type(like), f"{description}: a {type(got).__name__} for a {type(like).__name__}"
        for attribute in ("dtype", "typecode"):
            assert getattr(got, attribute, None) == getattr(like, attribute, None), f"{description}: {attribute}"
        values = numpy.asarray(values)
        read = self.read(got)
        assert read.shape == (values.size,) if self.is_flat else read.shape == values.shape, f"{description}: {read.shape}"
        assert (read.ravel() == values.ravel()).all(), f"{description}: {read} instead of {values}"


def put_in(rank):
    """Return a rank's input. Values are small, so that results are exact in 16 bits."""
    return (numpy.arange(24).reshape(4, 6) * 5 + rank * 3) % 7


# ---- every function


def every_function(group, library, dtype):
    """Every function must work on a library's arrays, return its type, and not change inputs."""
    kind = Library(library, dtype)
    rank, n = group.rank, group.size
    given = [put_in(r).ravel() if kind.is_flat else put_in(r) for r in range(n)]
    total = sum(given)
    x = kind.make(given[rank])

    def check(call, *args, wanted, **options):
        description = f"{call.__name__} of {library} {dtype} {args} {options}"
        got = call(x, *args, group=group, **options)
        pending = call(x, *args, group=group, async_op=True, **options)
        assert type(pending) is F.Pending and "Pending" in repr(pending)
        later = pending.wait(20)
        assert later is pending.wait() and pending.done()
        if wanted is None:
            assert got is None and later is None, description
        else:
            kind.expect(got, wanted, x, description)
            kind.expect(later, wanted, x, description)
        kind.expect(x, given[rank], x, f"the input of {description}")

    check(F.all_reduce, wanted=total)
    check(F.scan, wanted=sum(given[: rank + 1]))
    check(F.exscan, wanted=sum(given[:rank], 0 * total))
    if dtype != "complex64":
        check(F.all_reduce, "max", wanted=numpy.maximum.reduce(given))
        check(F.all_reduce, dldist.ReduceOp.MIN, wanted=numpy.minimum.reduce(given))
        check(F.exscan, "product", wanted=numpy.multiply.reduce([1 + 0 * total, *given[:rank]]))
    for root in {0, n - 1}:
        is_root = rank == root
        check(F.reduce, root, wanted=total if is_root else None)
        check(F.broadcast, root, wanted=given[root])
        check(F.gather, root, wanted=numpy.concatenate(given) if is_root else None)
    for axis in kind.axes:
        together = numpy.concatenate(given, axis)
        check(F.all_gather, axis, wanted=together)
        check(F.gather, n - 1, axis, wanted=together if rank == n - 1 else None)
        check(F.reduce_scatter, axis=axis, wanted=numpy.split(total, n, axis)[rank])
        for concat in kind.axes:
            parts = [numpy.split(given[r], n, axis)[rank] for r in range(n)]
            check(F.all_to_all, axis, concat, wanted=numpy.concatenate(parts, concat))
    if not kind.is_flat:
        for axis in range(3) if len(kind.axes) > 1 else (0,):
            check(F.all_gather, axis, False, wanted=numpy.stack(given, axis))
            check(F.gather, 0, axis, False, wanted=numpy.stack(given, axis) if rank == 0 else None)
    check(F.permute, [(r, (r + 1) % n) for r in range(n)], wanted=given[(rank - 1) % n])
    check(F.permute, [(n - 1, 0)], wanted=given[n - 1] if rank == 0 else 0 * total)
    scatter(group, kind, given)
    uneven(group, kind)
    messages(group, kind, given)


# ---- reductions that the core lacks


def more_reductions(group, library, dtype):
    """Logical reductions, and functions, in every reducing call: directly and asynchronously."""
    kind = Library(library, dtype)
    rank, n = group.rank, group.size
    given = [((numpy.arange(24) * 5 + r * 3) % 3).reshape(4, 6)[:, : 24 // 4] for r in range(n)]
    given = [x.ravel()[: 6 * n] if kind.is_flat else numpy.tile(x, (n, 1)) for x in given]
    x = kind.make(given[rank])

    def combine(a, b):  # not commutative
        if isinstance(a, (array.array, bytes, memoryview, Opaque)):
            return kind.make((kind.read(a).real * 2 + kind.read(b).real).astype(int) % 100)
        return (a * 2 + b) % 100

    logical = {"land": numpy.logical_and, "LOR": numpy.logical_or, numpy.logical_xor: numpy.logical_xor}
    folds = {op: (lambda xs, ufunc=ufunc: ufunc.reduce([x != 0 for x in xs]).astype(int)) for op, ufunc in logical.items()}
    folds[combine] = lambda xs: functools.reduce(lambda a, b: (a * 2 + b) % 100, xs)
    for op, fold in folds.items():
        total, share = fold(given), len(given[0]) // n
        none = given[0] if op is combine else numpy.full_like(given[0], op == "land")
        for call, wanted in [
            (lambda **how: F.all_reduce(x, op, **how), total),
            (lambda **how: F.reduce(x, n - 1, op, **how), total if rank == n - 1 else None),
            (lambda **how: F.scan(x, op, **how), fold(given[: rank + 1])),
            (lambda **how: F.exscan(x, op, **how), fold(given[:rank]) if rank else none),
            (lambda **how: F.reduce_scatter(x, op, **how), total[rank * share :][:share]),
            (lambda **how: F.all_reduce_tree({"x": [x]}, op, **how), total),
        ]:
            if library in ("memoryview", "opaque") and op is combine and wanted is not None and len(wanted) == share:
                continue  # these types cannot be sliced
            for got in (call(group=group), call(group=group, async_op=True).wait(20)):
                got = got["x"][0] if isinstance(got, dict) else got
                if wanted is None:
                    assert got is None
                else:
                    kind.expect(got, wanted, x, f"{op} of {library}")
    kind.expect(x, given[rank], x, "the input")
    assert F.all_reduce(rank + 1.5, "land", group) == 1.0 and F.all_reduce(rank == n, "lor", group) is False

    def minloc(a, b):
        return 10 * a + b

    def logical_and(a, b):
        return 10 * a + b

    for function in (minloc, logical_and):  # a function of the program, not the reduction of this name
        assert F.all_reduce(rank + 1, function, group) == int("".join(str(r + 1) for r in range(n)))


def pairs(group):
    """minloc and maxloc: ties take the lowest index, and NaN takes precedence."""
    rank, n = group.rank, group.size
    values = numpy.array([[7.0, 1.0, numpy.nan if rank == n - 1 else rank], [rank, -rank, 2.0]], "float32")
    indices = numpy.full(values.shape, n - rank, "int16")
    lowest, where = F.all_reduce((values, indices), "minloc", group)
    assert numpy.array_equal(lowest, [[7, 1, numpy.nan], [0, 1 - n, 2]], equal_nan=True) and lowest.dtype == "float32"
    assert where.tolist() == [[1, 1, 1], [n, 1, 1]] and where.dtype == "int16"
    highest, where = F.all_reduce((values, indices), "maxloc", group, async_op=True).wait()
    assert highest[1].tolist() == [n - 1, 0, 2] and where.tolist() == [[1, 1, 1], [1, n, 1]]
    assert F.all_reduce((-1.5 * rank, rank), "MINLOC", group) == (-1.5 * (n - 1), n - 1)
    assert F.scan((1.5 * rank, rank), "maxloc", group) == (1.5 * rank, rank)
    assert F.exscan((1.5 * rank, rank), "maxloc", group) == (1.5 * max(rank - 1, 0), max(rank - 1, 0))
    assert F.reduce((float(rank), rank), 0, "minloc", group) == ((0.0, 0) if rank == 0 else None)
    padded = {"names": ["distance", "node"], "formats": [">f4", "i8"], "offsets": [0, 8], "itemsize": 24}
    records = numpy.zeros(2 * n, padded)
    records["distance"], records["node"] = numpy.arange(2 * n) * (-1) ** rank, rank
    if n > 1:
        part = F.reduce_scatter(records, "minloc", group=group)
        assert part.dtype == records.dtype and part.tolist() == [(-i, min(i, 1)) for i in (2.0 * rank, 2.0 * rank + 1)]
    assert F.all_reduce_tree([records], "maxloc", group)[0]["distance"].tolist() == list(range(2 * n))
    for wrong in (numpy.ones(2), (numpy.ones(2), numpy.ones(3)), (1, 2, 3), 5):
        raises(ValueError, "expected (value, index)", lambda: F.all_reduce(wrong, "minloc", group))


def functions_that_fail(group):
    """A function's exception is raised where it occurs, and the group stays usable."""
    rank, n = group.rank, group.size
    x = numpy.ones(2, "float32")

    def divide(a, b):
        return a / 0 if rank == 0 and 1 // 0 else a

    if n > 1:
        if rank == 0:
            raises(ZeroDivisionError, "", lambda: F.all_reduce(x, divide, group))
        else:
            assert F.all_reduce(x, divide, group).tolist() == [1, 1]
        for wrong in (lambda a, b: (a + b)[:1], lambda a, b: a + numpy.ones(2), lambda a, b: None):
            raises(ValueError, "expected float32 (2,)", lambda: F.all_reduce(x, wrong, group))
        raises(dldist.DistMismatchError, "differs between ranks", lambda: F.all_reduce(bytes(rank), lambda a, b: a, group))
    raises(ValueError, "'MEAN'; dldist.functional also has 'LAND'", lambda: F.all_reduce(x, "landd", group))
    raises(TypeError, "pass a group as group=", lambda: F.all_reduce(x, group))
    assert F.all_reduce(x, "mean", group).tolist() == F.all_reduce(x, numpy.maximum, group).tolist() == [1, 1]
    assert F.reduce_scatter(numpy.ones(2 * n, "int32"), sum, group=group).tolist() == [n, n]
    assert F.all_reduce(numpy.array(n - rank), numpy.min, group) == 1, "not a function of two arrays"
    try:
        F.all_reduce_tree({"loss": 0.5}, "minloc", group)
    except ValueError as error:
        assert error.__notes__ == ["all_reduce_tree(): argument 'tree' at ['loss']"], error.__notes__


def raises(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")


def moved_lists(group):
    """gather_any, scatter_any and all_to_all_any: part k of rank r has r rows and k columns."""
    rank, n = group.rank, group.size

    def part(src, dst, like=numpy.float64):
        return numpy.full((src, dst), src * 10 + dst, like)

    for is_async in (False, True):
        results = [
            F.gather_any(part(rank, 2), n - 1, group, async_op=is_async),
            F.scatter_any([part(rank, dst) for dst in range(n)] if rank == n - 1 else numpy.empty(0), n - 1, group, async_op=is_async),
            F.all_to_all_any([part(rank, dst, "int16") for dst in range(n)], group, async_op=is_async),
        ]
        gathered, scattered, exchanged = [each.wait() if is_async else each for each in results]
        assert (gathered is None) == (rank < n - 1)
        for src in range(n):
            assert gathered is None or numpy.array_equal(gathered[src], part(src, 2))
            assert numpy.array_equal(exchanged[src], part(src, rank)) and exchanged[src].dtype == "int16"
        assert numpy.array_equal(scattered, part(n - 1, rank))
    assert F.all_to_all_any([array.array("i", [rank] * dst) for dst in range(n)], group)[0] == array.array("i", [0] * rank)
    assert F.scatter_any([b"x" * dst for dst in range(n)] if rank == 0 else b"", 0, group) == b"x" * rank
    assert F.gather_any(rank, 0, group) == (list(range(n)) if rank == 0 else None)
    assert F.all_to_all_any([rank * 10 + dst for dst in range(n)], group) == [src * 10 + rank for src in range(n)]
    for call in (
        lambda: F.scatter_any([b"x"] * (n + 1), 0, group),
        lambda: F.all_to_all_any([b"x"] * (n + (rank == 0)), group),
    ):
        raises(ValueError, f"of rank 0 has another length: got {n + 1}, expected {n}", call)
    raises(TypeError, "must be an array", lambda: F.all_to_all_any([], group))
    group.barrier()


def traced_reductions(group):
    """Logical reductions and functions in jax.jit and in gradients."""
    jax, torch = importlib.import_module("jax"), importlib.import_module("torch")
    n, rank = group.size, group.rank
    x = jax.numpy.arange(3) * rank
    assert jax.jit(lambda x: F.all_reduce(x, "lor", group))(x).tolist() == [0, n - 1, n - 1]
    assert jax.jit(lambda x: F.scan(x + 1, lambda a, b: a * b, group))(x).tolist() == [1, 1 + rank, 1 + 2 * rank]
    gradient = jax.grad(lambda x: F.all_reduce(x, lambda a, b: a * b, group).sum())(jax.numpy.array([3.0]))
    assert gradient.tolist() == [n * 3.0 ** (n - 1)]
    y = torch.tensor([3.0], requires_grad=True)
    F.all_reduce(y, lambda a, b: a * b, group).sum().backward()
    assert y.grad.tolist() == [n * 3.0 ** (n - 1)]
    raises(TypeError, "unsupported in jax.jit", lambda: jax.jit(lambda x: F.all_reduce((x, x), "minloc", group))(x))
    for call in (lambda x: F.gather_any(x, 0, group), lambda x: F.all_to_all_any([x] * n, group), lambda x: F.scatter_any([x] * n, 0, group)):
        raises(TypeError, "unsupported in jax.jit", lambda: jax.jit(call)(x))


def scatter(group, kind, given):
    rank, n = group.rank, group.size
    for axis in kind.axes:
        parts = numpy.split(given[n - 1], n, axis)
        x = kind.make(given[n - 1] if rank == n - 1 else parts[0] * 0)
        kind.expect(F.scatter(x, n - 1, axis, group), parts[rank], x, "scatter")
        kind.expect(F.scatter(x, n - 1, axis, group, async_op=True).wait(), parts[rank], x, "scatter")


def uneven(group, kind):
    """Rank r contributes r + 1 rows, and sends k + 1 rows to rank k."""
    rank, n = group.rank, group.size
    given = [put_in(r).repeat(2, 0)[: r + 1] for r in range(n)]
    x = kind.make(given[rank])
    for result in (F.all_gather_any(x, group), F.all_gather_any(x, group, async_op=True).wait()):
        assert type(result) is list and len(result) == n
        for r in range(n):
            kind.expect(result[r], given[r], x, "all_gather_any")
    sizes = [r + 1 for r in range(n)]
    if kind.is_flat:
        return
    given = [numpy.tile(put_in(r), (n, 1))[: sum(sizes)] for r in range(n)]
    start = sum(sizes[:rank])
    wanted = numpy.concatenate([given[r][start : start + sizes[rank]] for r in range(n)])
    x = kind.make(given[rank])
    kind.expect(F.all_to_all(x, 0, 0, [sizes[rank]] * n, sizes, group), wanted, x, "all_to_all")


def messages(group, kind, given):
    rank, n = group.rank, group.size
    x = kind.make(given[rank])
    sending = F.send(x, (rank + 1) % n, 5, group, async_op=True)
    kind.expect(F.recv(x, (rank - 1) % n, 5, group), given[(rank - 1) % n], x, "recv")
    assert sending.wait() is None
    receiving = F.recv(x, None, 6, group, async_op=True)
    if rank == 0:
        for other in range(n):
            F.send(x, other, 6, group)
    kind.expect(receiving.wait(), given[0], x, "recv")
    assert F.send(x, dldist.NO_RANK, group=group) is None
    kind.expect(F.recv(x, dldist.NO_RANK, group=group, async_op=True).wait(), numpy.zeros_like(given[rank]), x, "recv")


def odd_shapes(group):
    """Zero dimensions, zero elements, strides and NumPy scalars must work."""
    n, rank = group.size, group.rank
    scalar = F.all_reduce(numpy.float32(rank + 1), group=group)
    assert type(scalar) is numpy.float32 and scalar == sum(range(n + 1))
    assert F.all_gather(numpy.float64(rank), group=group).tolist() == list(range(n))
    assert F.all_reduce(numpy.array(2), group=group).shape == ()
    assert F.all_gather(numpy.zeros((0, 3)), group=group).shape == (0, 3)
    assert F.all_gather(numpy.zeros((2, 0)), group=group).shape == (2 * n, 0)
    assert F.all_reduce(b"", group=group) == b""
    x = numpy.arange(12.0).reshape(3, 4).T[::-1]
    before = x.copy()
    assert (F.all_reduce(x, group=group) == n * x).all() and (x == before).all()
    frozen = numpy.ones(3)
    frozen.flags.writeable = False
    result = F.broadcast(frozen, group=group)
    assert result.flags.writeable and not numpy.shares_memory(result, frozen)
    view = memoryview(array.array("d", [1.0, 2.0]))
    assert F.all_reduce(view, group=group).tolist() == [n, 2.0 * n] and view.tolist() == [1.0, 2.0]
    shapes = [x.shape for x in F.all_gather_any(numpy.zeros((1,) * rank), group=group)]
    assert shapes == [(1,) * r for r in range(n)]


# ---- trees, and results that are waited for when they are used


def trees(group):
    n, rank = group.size, group.rank
    x, y = numpy.full(3, rank + 1.0), numpy.full((2, 2), rank, "int32")
    keys = ["b", "a"] if rank else ["a", "b"]  # the insertion order may differ by rank
    tree = {key: {"a": [x, None], "b": Pair(y, (array.array("d", [rank]),))}[key] for key in keys}
    before = group.sequence
    total = F.all_reduce_tree(tree, group=group)
    assert group.sequence == before + 2, "one operation for each dtype"
    assert list(total) == keys and type(total["b"]) is Pair and type(total["b"].second) is tuple
    assert total["a"][0].tolist() == [sum(range(n + 1))] * 3 and total["a"][1] is None
    assert total["b"].first.tolist() == [[sum(range(n))] * 2] * 2 and total["b"].first.dtype == "int32"
    assert total["b"].second[0] == array.array("d", [sum(range(n))])
    assert x.tolist() == [rank + 1.0] * 3
    later = F.all_reduce_tree([x], "max", group, async_op=True)
    assert later.wait()[0].tolist() == [n] * 3
    assert F.all_reduce_tree({}, group=group) == {} and F.all_reduce_tree([], group=group, async_op=True).wait() == []


class Column:
    """A column of a table: it has values for NumPy, and a dtype of its own."""

    dtype = "numbers"

    def __init__(self, values):
        self._values = values

    def __array__(self, dtype=None, copy=None):
        return numpy.array(self._values, dtype)


def numbers(group):
    """Numbers have the dtypes of NumPy, and results are numbers again."""
    n, rank = group.size, group.rank
    for x, wanted in [(0.5, n / 2), (2, 2 * n), (rank == 0, True), (1 + 2j, n * (1 + 2j)), (2**53 + 1, n * (2**53 + 1))]:
        got = F.all_reduce(x, group=group)
        assert type(got) is type(x) and got == wanted
        assert F.all_reduce(x, group=group, async_op=True).wait() == wanted
    assert F.all_gather(rank + 0.5, group=group) == [r + 0.5 for r in range(n)]
    assert F.all_gather_any(rank, group) == list(range(n))
    assert F.broadcast(rank, n - 1, group) == n - 1 and F.scan(1, group=group) == rank + 1
    assert F.exscan(1, group=group) == rank and F.exscan(2.5, "min", group) == (2.5 if rank else float("inf"))
    assert F.permute(rank + 1, [(0, n - 1)], group) == (1 if rank == n - 1 else 0)
    assert F.reduce(1.5, n - 1, group=group) == (1.5 * n if rank == n - 1 else None)
    tree = {"loss": 0.5, "n": [3, True], "x": numpy.ones(2), "y": Column([rank, 1.0])}
    before = group.sequence
    total = F.all_reduce_tree(tree, "max", group)
    assert group.sequence == before + 3, "one operation for each dtype"
    assert (total["loss"], total["n"]) == (0.5, [3, True]) and type(total["n"][1]) is bool
    assert total["y"].tolist() == [n - 1, 1]
    if rank == 0:
        F.send(7, n - 1, group=group, async_op=True)
    if rank == n - 1:
        assert F.recv(0, 0, group=group) == 7


def columns(group):
    """Objects with __array__, such as columns of tables, are read as NumPy arrays."""
    n, x = group.size, Column([1.0, 2.0])
    for got, wanted in [
        (F.all_reduce(x, group=group), [n, 2 * n]),
        (F.all_gather(x, group=group), [1, 2] * n),
        (F.all_gather_any(x, group)[0], [1, 2]),
        (F.all_gather(Column(["a", "bc"]), group=group), ["a", "bc"] * n),
    ]:
        assert type(got) is numpy.ndarray and got.tolist() == wanted
    shared = group.empty(2, "int32")
    shared[1] = 3
    assert F.all_reduce(shared, group=group).tolist() == [0, 3 * n]


def other_libraries_trees(group):
    """In trees with traced arrays or gradients, numbers are arrays or numbers of the same values."""
    torch, jax = importlib.import_module("torch"), importlib.import_module("jax")
    n = group.size
    x = torch.ones(2, requires_grad=True)
    total = F.all_reduce_tree({"x": 2 * x, "loss": 0.5, "n": 3}, group=group)
    total["x"].sum().backward()
    assert (total["loss"], total["n"]) == (n / 2, 3 * n) and type(total["n"]) is int and x.grad.tolist() == [2 * n] * 2
    total = jax.jit(lambda x: F.all_reduce_tree({"x": x, "n": 3}, group=group))(jax.numpy.ones(2))
    assert total["x"].tolist() == [n, n] and total["n"] == 3 * n


def lazily(group):
    """No result must be waited for before it is used."""
    n, rank = group.size, group.rank
    x = numpy.full(4, rank + 1.0)
    if rank == 0:
        pending = F.all_reduce(x, group=group, async_op=True)
        assert not pending.done() or n == 1, "the other ranks call after a message"
        for other in range(1, n):
            group.send(b"x", other)
    else:
        group.recv(bytearray(1), 0)
        pending = F.all_reduce(x, group=group, async_op=True)
    assert numpy.asarray(pending).tolist() == [sum(range(n + 1))] * 4
    assert pending.done()

    def start():
        return F.all_reduce(x, group=group, async_op=True)

    assert numpy.from_dlpack(start()).tolist() == [sum(range(n + 1))] * 4
    assert numpy.asarray(start(), "float32").dtype == "float32"
    result = numpy.array(pending, copy=True)
    assert not numpy.shares_memory(result, pending.wait())
    # Both libraries use the same memory, so collectives of dldist also accept the result.
    assert F.all_gather(start().wait(), group=group).tolist() == [sum(range(n + 1))] * (4 * n)

    async def together():
        return await asyncio.gather(*[wait_for(start()) for _ in range(2)])

    async def wait_for(pending):
        return await pending

    assert [result.tolist() for result in asyncio.run(together())] == [[sum(range(n + 1))] * 4] * 2
    assert F.barrier(group) is None and F.barrier(group, async_op=True).wait() is None


# ---- PyTorch


def torch_gradients(group):
    """Gradients must be of the sum of all ranks' losses: a rank's weights times its result."""
    import torch

    n, rank = group.size, group.rank
    for case in gradient_cases(n):
        for r, x in enumerate(case.given):
            if r == rank:
                x = torch.tensor(x, requires_grad=True)
                y = case.call(x, group)
                (y * torch.tensor(case.weights[rank])).sum().backward()
                assert numpy.allclose(x.grad, case.gradient(rank)), (case.name, x.grad, case.gradient(rank))
    x = torch.ones(2, requires_grad=True)
    assert not F.all_reduce(x, "max", group).requires_grad
    tree = F.all_reduce_tree({"x": x}, group=group)
    tree["x"].sum().backward()
    assert x.grad.tolist() == [n, n]
    with torch.no_grad():
        assert not F.all_reduce(x, group=group).requires_grad
        F.all_reduce(x, group=group, async_op=True).wait()
    try:
        F.all_reduce(x, group=group, async_op=True)
    except ValueError as error:
        assert "need a gradient" in str(error)
    else:
        raise AssertionError("a result that comes later has no gradient")


class GradientCase:
    """A function that is linear in all ranks' inputs. One-hot inputs yield its gradient."""

    def __init__(self, name, n, shape, call, model):
        self.name, self.call, self.model = name, call, model
        self.given = [numpy.arange(numpy.prod(shape), dtype="float32").reshape(shape) + r for r in range(n)]
        results = model(self.given)
        self.weights = [numpy.cos(numpy.arange(result.size, dtype="float32") + r).reshape(result.shape).astype("float32")
                        for r, result in enumerate(results)]

    def gradient(self, rank):
        gradient = numpy.zeros_like(self.given[rank])
        for index in numpy.ndindex(gradient.shape):
            hot = [numpy.zeros_like(x) for x in self.given]
            hot[rank][index] = 1
            gradient[index] = sum((w * y).sum() for w, y in zip(self.weights, self.model(hot)))
        return gradient


def gradient_cases(n):
    """Return every function that has a gradient, with its model: a function of the list of all
    ranks' inputs."""
    ring = [(r, (r + 1) % n) for r in range(n - 1)]

    def swapped(xs):
        return [numpy.concatenate([numpy.split(x, n, 0)[r] for x in xs], 1) for r in range(n)]

    def moved(xs):
        return [xs[r - 1] if r > 0 else 0 * xs[0] for r in range(n)]

    def case(name, call, model, shape=(2 * n, 3)):
        return GradientCase(name, n, shape, call, model)

    return [
        case("sum", lambda x, g: F.all_reduce(x, group=g), lambda xs: [sum(xs)] * n),
        case("avg", lambda x, g: F.all_reduce(x, "avg", g), lambda xs: [sum(xs) / n] * n),
        case("scan", lambda x, g: F.scan(x, group=g), lambda xs: list(itertools.accumulate(xs))),
        case("exscan", lambda x, g: F.exscan(x, group=g), lambda xs: list(itertools.accumulate(xs[:-1], initial=0 * xs[0]))),
        case("gather", lambda x, g: F.all_gather(x, 1, group=g), lambda xs: [numpy.concatenate(xs, 1)] * n),
        case("stack", lambda x, g: F.all_gather(x, 1, False, g), lambda xs: [numpy.stack(xs, 1)] * n),
        case("scalar", lambda x, g: F.all_gather(x, group=g), lambda xs: [numpy.stack(xs)] * n, ()),
        case("scatter", lambda x, g: F.reduce_scatter(x, group=g), lambda xs: numpy.split(sum(xs), n)),
        case("scatter avg", lambda x, g: F.reduce_scatter(x, "avg", group=g), lambda xs: numpy.split(sum(xs) / n, n)),
        case("all_to_all", lambda x, g: F.all_to_all(x, 0, 1, group=g), swapped),
        case("broadcast", lambda x, g: F.broadcast(x, n - 1, g), lambda xs: [xs[n - 1]] * n),
        case("permute", lambda x, g: F.permute(x, ring, g), moved),
    ]


# ---- JAX


def jax_jit(group):
    """Every function must give the same result inside jit as outside."""
    import jax
    import jax.numpy as jnp

    n, rank = group.size, group.rank
    x = jnp.asarray(put_in(rank), "float32")
    pairs = [(r, (r + 1) % n) for r in range(n)]
    for call in (
        lambda x: F.all_reduce(x, group=group),
        lambda x: F.all_reduce(x.astype("bfloat16"), "max", group),
        lambda x: F.reduce(x, 0, group=group),
        lambda x: F.scan(x, group=group),
        lambda x: F.exscan(x, group=group),
        lambda x: F.exscan(x.astype("int8"), "min", group),
        lambda x: F.broadcast(x, n - 1, group=group),
        lambda x: F.all_gather(x, 1, group=group),
        lambda x: F.all_gather(x[0, 0], group=group),
        lambda x: F.gather(x, 0, group=group),
        lambda x: F.scatter(x if rank == 0 else x[: 4 // n], group=group),
        lambda x: F.reduce_scatter(x, "avg", 1, group=group),
        lambda x: F.all_to_all(x, 1, 0, group=group),
        lambda x: F.permute(x, pairs, group),
        lambda x: F.all_reduce_tree({"a": x, "b": [x.astype("int32"), x[0]]}, group=group),
        lambda x: F.all_reduce_tree([jax.tree_util.Partial(print, x), x], group=group),
        lambda x: (F.send(x, (rank + 1) % n, 3, group) if rank == 0 else None, F.recv(x, (rank - 1) % n, 3, group),
                   F.send(x, (rank + 1) % n, 3, group) if rank != 0 else None)[1],
        lambda x: (F.send(x, rank + 1 if rank + 1 < n else dldist.NO_RANK, 3, group),
                   F.recv(x, rank - 1 if rank else dldist.NO_RANK, 3, group))[1],
    ):
        eager, compiled = call(x), jax.jit(call)(x)
        assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()) and a.dtype == b.dtype, eager, compiled))
        assert jax.tree.structure(eager) == jax.tree.structure(compiled)


def jax_order(group):
    """Independent collectives must run in one order, not overtaken by collectives outside jit."""
    import jax
    import jax.numpy as jnp

    n, rank = group.size, group.rank

    @jax.jit
    def several(x):
        # The second result is unused, and no dependency orders the two.
        unused = F.all_gather(jnp.sin(x), group=group)
        del unused
        return F.all_reduce(x @ x, group=group), F.all_gather(x[0], group=group), F.all_reduce(x.sum(), "max", group)

    x = jnp.ones((300, 300)) * (rank + 1)
    before = group.sequence
    for _ in range(5):
        product, row, largest = several(x)
        outside = F.all_reduce(numpy.ones(1), group=group)  # while the jit calls may be running
        assert outside.tolist() == [n]
        assert float(product[0, 0]) == 300 * sum((r + 1) ** 2 for r in range(n))
        assert row.shape == (300 * n,) and float(largest) == 90000 * n
    jax.effects_barrier()
    assert group.sequence == before + 5 * 5, "an unused result is computed, as another rank may need it"

    # A compiled call must keep its place in the order while its input is still being computed.
    seen = []

    def record(x):
        seen.append(group.sequence)
        return x

    late = jax.jit(lambda x: F.all_reduce(jax.pure_callback(record, x, x), group=group))
    late(jnp.ones(1000)).block_until_ready()
    large = jnp.ones((1000, 1000))
    products = jax.jit(lambda x: (x @ x @ x @ x @ x)[0])
    products(large).block_until_ready()
    before = group.sequence
    late(products(large))
    F.all_reduce(numpy.ones(1), group=group)
    assert seen[1:] == [before] and group.sequence == before + 2

    def body(carry, _):
        return F.all_reduce(carry, "avg", group) + 1, F.all_reduce(carry, group=group)

    last, sums = jax.jit(lambda x: jax.lax.scan(body, x, None, length=4))(jnp.float32(rank))
    assert numpy.isclose(last, (n - 1) / 2 + 4) and sums.shape == (4,)


def jax_gradients(group):
    """Gradients must be right with grad outside jit, inside, around, and both, in either mode."""
    import jax
    import jax.numpy as jnp

    rank = group.rank
    for case in gradient_cases(group.size):
        x, weights = jnp.asarray(case.given[rank]), jnp.asarray(case.weights[rank])

        def loss(x, case=case, weights=weights):
            return (case.call(x, group) * weights).sum()

        for gradient in (jax.grad(loss), jax.jit(jax.grad(loss)), jax.grad(jax.jit(loss)), jax.jit(jax.grad(jax.jit(loss)))):
            assert numpy.allclose(gradient(x), case.gradient(rank), atol=1e-5), case.name
        value, tangent = jax.jvp(jax.jit(loss), (x,), (x,))
        assert numpy.isclose(value, tangent, rtol=1e-4), f"{case.name} is linear"
    tree = {"a": jnp.ones(2), "b": [jnp.ones(())]}
    gradient = jax.jit(jax.grad(lambda tree: F.all_reduce_tree(tree, group=group)["a"].sum()))(tree)
    assert gradient["a"].tolist() == [group.size] * 2 and float(gradient["b"][0]) == 0
    gradient = jax.grad(lambda x: F.all_reduce_tree({"x": x, "n": 3, "ids": jnp.arange(2)}, group=group)["x"].sum())(jnp.ones(2))
    assert gradient.tolist() == [group.size] * 2
    try:
        jax.grad(lambda x: F.all_reduce(x, "max", group).sum())(jnp.ones(2))
    except NotImplementedError as error:
        assert "all_reduce() has no derivative" in str(error)
    else:
        raise AssertionError("a maximum has no gradient here")


def jax_large(group, megabytes):
    """Large callbacks must work while XLA's threads are busy and another thread sends messages."""
    import jax
    import jax.numpy as jnp

    n, rank = group.size, group.rank
    side = int((megabytes * 2**18) ** 0.5)

    @jax.jit
    def step(x):
        return F.all_reduce(x @ x.T, "avg", group) + F.all_reduce(x * 2, "max", group)

    x = jnp.ones((side, side))
    for _ in range(3):
        y = step(x)
        F.send(numpy.ones(1), (rank + 1) % n, 9, group)
        F.recv(numpy.ones(1), (rank - 1) % n, 9, group)
    assert float(y[0, 0]) == side + 2


def jax_refusals(group):
    import jax
    import jax.numpy as jnp

    x = jnp.ones((2, 2))
    texts = []
    for call in (
        lambda: jax.jit(lambda x: F.all_reduce(x, group=group, async_op=True))(x),
        lambda: jax.jit(lambda x: F.all_gather_any(x, group=group))(x),
        lambda: jax.jit(lambda x: F.reduce_scatter(jnp.ones(2 * group.size + 1), group=group))(x),
        lambda: jax.jit(lambda x: F.all_reduce(x, "band", group=group))(x).block_until_ready(),
    ):
        try:
            call()
        except Exception as error:
            texts.append(f"{type(error).__name__}: {error}")
        else:
            texts.append("nothing")  # because one rank divides everything evenly
    # The failed callback must not affect later calls.
    assert F.all_reduce(x, group=group).tolist() == [[group.size] * 2] * 2
    return texts


def jax_vmap(group):
    """Every function under vmap must give its row-by-row results, whichever axis is the batch."""
    import jax
    import jax.numpy as jnp

    n, rank = group.size, group.rank
    batch = jnp.asarray([put_in(rank) + 10 * i for i in range(3)], "float32")
    pairs = [(r, (r + 1) % n) for r in range(n)]
    for call in (
        lambda x: F.all_reduce(x, group=group),
        lambda x: F.broadcast(x, n - 1, group=group),
        lambda x: F.all_gather(x, 1, group=group),
        lambda x: F.all_gather(x, -1, False, group),
        lambda x: F.all_gather(x[0, 0], group=group),
        lambda x: F.scatter(x if rank == 0 else x[: 4 // n], group=group),
        lambda x: F.reduce_scatter(x, "avg", 1, group=group),
        lambda x: F.all_to_all(x, 1, 0, group=group),
        lambda x: F.all_to_all(x, group=group),
        lambda x: F.permute(x, pairs, group),
        lambda x: F.permute(x, pairs[:-1], group),
        lambda x: F.all_reduce_tree({"a": x, "b": [x.astype("int32"), x[0]]}, group=group),
        lambda x: (F.send(x, (rank + 1) % n, 3, group) if rank == 0 else None, F.recv(x, (rank - 1) % n, 3, group),
                   F.send(x, (rank + 1) % n, 3, group) if rank != 0 else None)[1],
        lambda x: (F.reduce(x, 0, group=group), x)[1 if rank else 0],
        lambda x: (F.gather(x, 0, 1, group=group), x)[1 if rank else 0],
    ):
        rows = [call(row) for row in batch]
        for axis in (0, 1, -1):
            found = jax.jit(jax.vmap(call, in_axes=axis))(jnp.moveaxis(batch, 0, axis))
            expected = jax.tree.map(lambda *x: jnp.stack(x), *rows)
            assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()) and a.dtype == b.dtype, found, expected))
    # One call for all rows, and a gradient through it.
    before = group.sequence
    gradient = jax.jit(jax.grad(lambda x: (jax.vmap(lambda x: F.all_reduce(x, group=group))(x) ** 2).sum()))(batch)
    total = sum(jnp.asarray([put_in(r) + 10 * i for i in range(3)]) for r in range(n))
    assert numpy.allclose(gradient, 2 * n * total)
    assert group.sequence == before + 2
    # Only some arguments have a batch axis.
    mixed = jax.vmap(lambda x, y: F.all_reduce_tree([x, y], group=group), in_axes=(0, None))(batch, batch[0])
    assert mixed[1].shape == (3, *batch[0].shape)


JAX_DTYPES = (
    "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float8_e4m3fn float8_e5m2 float32 float64 "
    "complex64 complex128"
).split()


def jax_dtypes(group):
    """Compiled calls must accept every dtype, including 8-bit and 64-bit types."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    try:
        for name in JAX_DTYPES:
            x = jnp.asarray([1, 0, 2, 1], name)
            op = "sum" if name.startswith("complex") else "max"
            for call in (lambda x: F.all_reduce(x, op, group), lambda x: F.all_gather(x, group=group)):
                eager, compiled = call(x), jax.jit(call)(x)
                assert eager.dtype == compiled.dtype == name and bool((eager == compiled).all()), name
    finally:
        jax.config.update("jax_enable_x64", False)


def jax_without_python(group):
    """Compiled calls must not need the GIL: a thread that holds it must not delay them."""
    import ctypes

    import jax
    import jax.numpy as jnp

    call = jax.jit(lambda x: F.all_gather(F.all_reduce(x, group=group), 1, group=group))
    x = jnp.ones((2, 3))
    call(x).block_until_ready()
    group.barrier()
    before = group.sequence
    # PyDLL keeps the GIL, so the other Python threads of this process wait during the call.
    result = call(x)
    ctypes.PyDLL(None).usleep(300_000)
    assert result.is_ready()
    assert group.sequence == before + 2
    assert "callback" not in call.lower(x).as_text() and "dldist_collective" in call.lower(x).as_text()


def jax_mismatch(group):
    """Ranks that disagree inside jit must get an error, as they do outside."""
    import jax
    import jax.numpy as jnp

    other = group.split(list(range(group.size)))
    try:
        jax.jit(lambda x: F.all_reduce(x, group=other))(jnp.ones(2 + group.rank)).block_until_ready()
    except Exception as error:
        return str(error)
    return None


# ---- groups of the module-level calls


def default_world(group, port):
    """group=None, groups of new_group and non-members must work."""
    n, rank = group.size, group.rank
    store = dldist.TCPStore("127.0.0.1", port, timeout=20.0)
    x = numpy.full(2, rank + 1.0)
    for turn in range(2):
        dldist.init_process_group(store=dldist.PrefixStore(f"world{turn}", store), rank=rank, world_size=n)
        assert F.all_reduce(x).tolist() == [sum(range(n + 1))] * 2
        assert F.all_reduce(x, async_op=True).wait().tolist() == [sum(range(n + 1))] * 2
        pair = dldist.new_group(list(range(n)))
        assert F.all_gather(x[:1], group=pair).tolist() == [rank + 1.0 for rank in range(n)]
        assert F.permute(x, [(n - 1, 0)], pair).tolist() == ([n, n] if rank == 0 else [0, 0])
        assert F.barrier(pair) is None
        alone = dldist.new_group([0])
        if rank == 0:
            assert F.all_reduce(x, group=alone).tolist() == [1.0, 1.0]
        else:
            try:
                F.all_reduce(x, group=alone)
            except ValueError as error:
                assert "not a member" in str(error)
            else:
                raise AssertionError("this rank is not a member")
        dldist.destroy_process_group()


def jax_default_world(group, port):
    """A function compiled without a group must work in each default world of the same rank and
    size, and no other."""
    import jax
    import jax.numpy as jnp

    n, rank = group.size, group.rank
    store = dldist.TCPStore("127.0.0.1", port, timeout=20.0)
    call = jax.jit(lambda x: F.all_reduce(x))
    for turn in range(2):
        dldist.init_process_group(store=dldist.PrefixStore(f"jax_world{turn}", store), rank=rank, world_size=n)
        assert call(jnp.ones(2)).tolist() == [n, n]
        dldist.destroy_process_group()
    dldist.init_process_group(store=dldist.HashStore(), rank=0, world_size=1)
    try:
        text = str(call(jnp.ones(2)).tolist())
    except jax.errors.JaxRuntimeError as error:
        text = str(error)
    dldist.destroy_process_group()
    assert text == "[1.0, 1.0]" if n == 1 else "closed" in text, text


# ---- mistakes


def refusals(group):
    """Calls that are wrong on this rank must raise and leave the group usable. Return errors."""
    n = group.size
    x = numpy.ones((3, 4))
    calls = {
        "text": lambda: F.all_reduce("3", group=group),
        "large int": lambda: F.all_reduce(2**63, group=group),
        "number in place": lambda: group.all_reduce(0.5),
        "column in place": lambda: group.all_reduce(Column([1.0])),
        "list": lambda: F.all_gather([1.0], group=group),
        "none": lambda: F.broadcast(None, group=group),
        "objects": lambda: F.all_reduce(numpy.array([object()]), group=group),
        "leaf": lambda: F.all_reduce_tree({"a": [x, "2"]}, group=group),
        "leaf or number": lambda: F.all_reduce_tree({"a": [x, "2"]}, group=group),
        "keys": lambda: F.all_reduce_tree({1: x, "a": x}, group=group),
        "axis": lambda: F.all_gather(x, 2, group=group),
        "negative axis": lambda: F.reduce_scatter(x, axis=-3, group=group),
        "no axis": lambda: F.reduce_scatter(numpy.float32(1), group=group),
        "kind of axis": lambda: F.all_gather(x, 1.0, group=group),
        "axis of a view": lambda: F.all_gather(memoryview(x), 1, group=group),
        "dimensions": lambda: F.all_gather(array.array("d", [1.0]), tiled=False, group=group),
        "share": lambda: F.reduce_scatter(numpy.ones(2 * n + 1), group=group),
        "scatter": lambda: F.scatter(numpy.ones(2 * n + 1), group.rank, group=group),
        "split sizes": lambda: F.all_to_all(x, 0, 0, None, [1] * (n + 1), group),
        "split sum": lambda: F.all_to_all(x, 0, 0, None, [4] * n, group),
        "split axes": lambda: F.all_to_all(x, 0, 1, None, [1] * n, group),
        "root": lambda: F.broadcast(x, n, group),
        "kind of root": lambda: F.reduce(x, "0", group=group),
        "dst": lambda: F.send(x, -1, group=group),
        "src": lambda: F.recv(x, n, group=group),
        "pairs": lambda: F.permute(x, [(0, n)], group),
        "pair": lambda: F.permute(x, [(0, 0, 0)], group),
        "twice": lambda: F.permute(x, [(0, 0), (0, 0)], group),
        "op": lambda: F.all_reduce(x, "median", group),
        "group as op": lambda: F.all_reduce(x, group),
        "group": lambda: F.all_reduce(x, group="world"),
        "no world": lambda: F.all_reduce(x),
    }
    caught = {}
    for name, call in calls.items():
        try:
            call()
        except Exception as error:
            caught[name] = describe(error)
        else:
            caught[name] = None
    assert F.all_reduce(x, group=group).tolist() == (x * n).tolist()
    return caught
