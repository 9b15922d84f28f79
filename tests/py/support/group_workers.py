"""Workers and cases of the group tests' ranks. See group_team.py. Without pytest, so that the
children start faster.

A case is a function of the group and arguments that runs on every rank concurrently. Expected
values are computed in plain Python from the inputs of all ranks. `place` defines the location of
the tensors and the limits of the backend.
"""

import array
import asyncio
import gc
import os
import resource
import sys
import threading
import time
import weakref

import dldist
import oracle
import procs

LOOPBACK = "127.0.0.1"
OPS = list(oracle.REDUCTIONS)
INT_CODES = "bBhHiIqQ"
FLOAT_CODES = "fd"
# NumPy types, if it is installed.
NUMPY_DTYPES = ["float16", "complex64", "complex128"]


def describe(error):
    """Return an exception in a form that a child can send."""
    return {
        "kinds": [kind.__name__ for kind in type(error).__mro__],
        "text": str(error),
        "code": getattr(error, "code", None),
        "rank": getattr(error, "rank", None),
        "host": getattr(error, "host", None),
        "pid": getattr(error, "pid", None),
        "at": time.monotonic(),
    }


def open_group(port, rank, size, **options):
    store = dldist.TCPStore(LOOPBACK, port, timeout=30.0) if port else None
    return dldist.Group(store, rank, size, **{"timeout": 20.0, **options})


def serve(channel, group, cases):
    """Run the cases (functions of a group, by name) that the parent sends, until it sends None."""
    channel.send("ready")
    while True:
        command = channel.recv(300)
        if command is None:
            group.close()
            return "closed"
        name, args = command
        try:
            reply = ("value", cases[name](group, *args))
            procs.check_unraisable()
        except AssertionError:
            raise
        except BaseException as error:
            reply = ("error", describe(error))
        channel.send(reply)


def member(channel, port, rank, size, options=None):
    return serve(channel, open_group(port, rank, size, **(options or {})), globals())


# ---- tensors without a library, and with one


class Host:
    """The CPU: tensors of the standard library, or of NumPy for other types. Tests of other
    backends replace `place`."""

    to_the_end = ()  # wait() arguments that make it wait on the host
    wait_timed_out = "Operation timed out!"

    def make(self, code, values):
        if code in NUMPY_DTYPES:
            import numpy

            return numpy.array(values, dtype=code)
        if code == "?":
            return memoryview(bytearray(bool(value) for value in values)).cast("?")
        return array.array(code, values)

    def of(self, values):
        """Return a tensor like a NumPy array, in the same layout."""
        return values

    def part(self, tensor, start, stop, step=1):
        """Return a view of some elements."""
        return memoryview(tensor)[start:stop:step]

    def shaped(self, tensor, shape):
        """Return a view of all elements in another shape."""
        return tensor if 0 in shape else memoryview(tensor).cast("B").cast(tensor.typecode, shape)

    def sends_first(self, rank):
        """Return True if a rank of a ring must send before it receives."""
        return False

    def ops_of_batch(self, ops):
        """Return the operations to which a batch's works belong."""
        return ops

    def part_to_fail(self, group):
        """Return a group in which a message may time out, and a rank that sends none."""
        return group, group.rank

    def failed(self, part):
        """Check the group of part_to_fail() after the timeout."""
        part.barrier()

    def too_early(self, work):
        """Return the queries that a pending work rejects."""
        return work.result, work.source_rank, lambda: work.duration

    def check_duration(self, work):
        assert 0 <= work.duration < 20

    lacks = frozenset()
    """Collectives that the backend lacks."""

    def refusal(self, name, op):
        """Return the error that a reduction of this type raises, or None."""
        return None

    def hold(self, group):
        """Wait for a message of rank 0, separate from the group's collectives."""
        group.recv(make("b", [0]), 0, 77)

    def let_go(self, group):
        for rank in range(1, group.size):
            group.send(make("b", [0]), rank, 77)


place = Host()


def make(code, values):
    return place.make(code, values)


def finish(work):
    """Wait until the call is done, even if wait() only makes a stream wait."""
    assert work.wait(*place.to_the_end) is True


def refuses(call, expected, description):
    kind, text = expected
    got = raised(call)
    assert got is not None and got[0] == kind and text in got[1], f"{description}: {got} instead of {expected}"


class Kind:
    """A dtype: makes and reads its tensors, and computes its reductions."""

    def __init__(self, name):
        self.name = name
        self.is_bool = name == "?"
        self.is_int = name in INT_CODES
        self.is_complex = name.startswith("complex")

    def make(self, values):
        return place.make(self.name, values)

    def zeros(self, count):
        return self.make([0] * count)

    def wrap(self, value):
        return oracle.wrap(self.name, value)

    def ops(self):
        if self.is_bool:
            return [op for op in OPS if op != "AVG"]
        if self.is_complex:
            return ["SUM", "AVG", "PRODUCT"]
        return OPS if self.is_int else OPS[:5]

    def reduce(self, op, values):
        return oracle.fold(self.name, op, values)


def put_in(rank, index):
    """Return an input value. Values are small, so that most results are exact."""
    return (rank * 3 + index * 7) % 5 + 1


def give(kind, rank, count, salt=0):
    return [kind.wrap(put_in(rank, index + salt)) for index in range(count)]


def read(tensor):
    return tensor.tolist()


def expect(tensor, values, description):
    got = read(tensor)
    assert got == values, f"{description}: {got[:8]}... instead of {values[:8]}..."


# ---- every operation against plain Python


def sweep_reductions(group, name, counts, ops=None):
    kind, rank, n = Kind(name), group.rank, group.size
    for count in counts:
        given = [give(kind, r, count) for r in range(n)]
        for op in ops or kind.ops():
            refusal = place.refusal(name, op)
            if refusal is not None:
                sweep_refused(group, kind, op, refusal)
                continue
            reduced = [kind.reduce(op, [given[r][i] for r in range(n)]) for i in range(count)]
            tensor = kind.make(given[rank])
            assert group.all_reduce(tensor, op) is None
            expect(tensor, reduced, f"all_reduce {op} of {name}")
            for root in {0, n - 1}:
                tensor = kind.make(given[rank])
                group.reduce(tensor, root, getattr(dldist.ReduceOp, op))
                expect(tensor, reduced if rank == root else given[rank], f"reduce {op} of {name}")
            # Every rank contributes n blocks of `count` elements; rank r receives the reduction of
            # the r-th blocks.
            own_blocks = [give(kind, rank, count, salt=k) for k in range(n)]
            wanted = [kind.reduce(op, [put for put in column]) for column in
                      zip(*(give(kind, r, count, salt=rank) for r in range(n)))]
            output = kind.zeros(count)
            group.reduce_scatter(output, [kind.make(block) for block in own_blocks], op)
            expect(output, wanted, f"reduce_scatter {op} of {name}")
            output = kind.zeros(count)
            group.reduce_scatter_single(output, kind.make(sum(own_blocks, [])), op)
            expect(output, wanted, f"reduce_scatter_single {op} of {name}")
    return len(counts)


def sweep_refused(group, kind, op, refusal):
    """Every reduction must raise the same error on all ranks, and send nothing."""
    n = group.size
    blocks = [kind.make([1]) for _ in range(n)]
    for call in (
        lambda: group.all_reduce(kind.make([1]), op),
        lambda: group.reduce(kind.make([1]), 0, op),
        lambda: group.reduce_scatter(kind.make([0]), blocks, op),
        lambda: group.reduce_scatter_single(kind.make([0]), kind.make([1] * n), op),
        lambda: group.all_reduce_coalesced([kind.make([1])], op),
        lambda: group.reduce_scatter_coalesced([kind.make([0])], [kind.make([1] * n)], op),
    ):
        refuses(call, refusal, f"{op} of {kind.name}")


def sweep_movements(group, name, counts):
    kind, rank, n = Kind(name), group.rank, group.size
    for count in counts:
        given = [give(kind, r, count) for r in range(n)]
        together = sum(given, [])
        for root in range(n):
            tensor = kind.make(given[rank])
            group.broadcast(tensor, root)
            expect(tensor, given[root], f"broadcast of {name}")
            outputs = [kind.zeros(count) for _ in range(n)] if rank == root else None
            group.gather(kind.make(given[rank]), outputs, root)
            output = kind.zeros(count * n) if rank == root else None
            group.gather_single(kind.make(given[rank]), output, root)
            if rank == root:
                for r in range(n):
                    expect(outputs[r], given[r], f"gather of {name}")
                expect(output, together, f"gather_single of {name}")
            inputs = [kind.make(block) for block in given] if rank == root else None
            output = kind.zeros(count)
            group.scatter(output, inputs, root)
            expect(output, given[rank], f"scatter of {name}")
            output = kind.zeros(count)
            group.scatter_single(output, kind.make(together) if rank == root else None, root)
            expect(output, given[rank], f"scatter_single of {name}")
        outputs = [kind.zeros(count) for _ in range(n)]
        group.all_gather(outputs, kind.make(given[rank]))
        for r in range(n):
            expect(outputs[r], given[r], f"all_gather of {name}")
        output = kind.zeros(count * n)
        group.all_gather_single(output, kind.make(given[rank]))
        expect(output, together, f"all_gather_single of {name}")
        # Rank r sends rank k data that depend on both ranks.
        sent = [[give(kind, r, count, salt=k) for k in range(n)] for r in range(n)]
        outputs = tuple(kind.zeros(count) for _ in range(n))
        group.all_to_all(outputs, [kind.make(block) for block in sent[rank]])
        for r in range(n):
            expect(outputs[r], sent[r][rank], f"all_to_all of {name}")
        output = kind.zeros(count * n)
        group.all_to_all_single(output, kind.make(sum(sent[rank], [])))
        expect(output, sum((sent[r][rank] for r in range(n)), []), f"all_to_all_single of {name}")
    return len(counts)


def uneven(group):
    """Sizes that differ by rank, including zero, must work."""
    kind, rank, n = Kind("i"), group.rank, group.size
    sizes = [2 * r for r in range(n)]
    given = [give(kind, r, sizes[r]) for r in range(n)]
    outputs = [kind.zeros(size) for size in sizes]
    group.all_gather(outputs, kind.make(given[rank]))
    assert [read(output) for output in outputs] == given
    outputs = [kind.zeros(size) for size in sizes] if rank == 0 else []
    group.gather(kind.make(given[rank]), outputs)
    assert [read(output) for output in outputs] == (given if rank == 0 else [])
    output = kind.zeros(sizes[rank])
    group.scatter(output, [kind.make(block) for block in given] if rank == n - 1 else None, root=n - 1)
    expect(output, given[rank], "scatter")
    full = [give(kind, r, sum(sizes)) for r in range(n)]
    start = sum(sizes[:rank])
    wanted = [sum(full[r][start + i] for r in range(n)) for i in range(sizes[rank])]
    output = kind.zeros(sizes[rank])
    group.reduce_scatter_single(output, kind.make(full[rank]), split_sizes=sizes)
    expect(output, wanted, "reduce_scatter_single")
    # Rank k receives k rows of two elements from every rank.
    rows = [give(kind, r, 2 * sum(range(n)), salt=r) for r in range(n)]
    source = place.shaped(kind.make(rows[rank]), [sum(range(n)), 2])
    output = place.shaped(kind.zeros(2 * n * rank), [n * rank, 2])
    group.all_to_all_single(output, source, [rank] * n, list(range(n)))
    first = sum(range(rank)) * 2
    wanted = sum((rows[r][first:first + 2 * rank] for r in range(n)), [])
    assert rank == 0 or sum(read(output), []) == wanted


def coalesced(group):
    kind, rank, n = Kind("d"), group.rank, group.size
    sizes = [3, 0, 7, 1]
    given = [[give(kind, r, size, salt=size) for size in sizes] for r in range(n)]
    tensors = [kind.make(values) for values in given[rank]]
    group.all_reduce_coalesced(tensors, "max")
    for k, tensor in enumerate(tensors):
        expect(tensor, [max(column) for column in zip(*(given[r][k] for r in range(n)))], "all_reduce_coalesced")
    outputs = [[kind.zeros(size) for size in sizes] for _ in range(n)]
    group.all_gather_coalesced(outputs, tuple(kind.make(values) for values in given[rank]))
    assert [[read(tensor) for tensor in tensors] for tensors in outputs] == given
    outputs = [kind.zeros(n * size) for size in sizes]
    group.all_gather_single_coalesced(outputs, [kind.make(values) for values in given[rank]])
    for k, output in enumerate(outputs):
        expect(output, sum((given[r][k] for r in range(n)), []), "all_gather_single_coalesced")
    full = [[give(kind, r, n * size, salt=size) for size in sizes] for r in range(n)]
    outputs = [kind.zeros(size) for size in sizes]
    group.reduce_scatter_coalesced(outputs, [kind.make(values) for values in full[rank]])
    for k, output in enumerate(outputs):
        part = slice(rank * sizes[k], (rank + 1) * sizes[k])
        expect(output, [sum(column) for column in zip(*(full[r][k][part] for r in range(n)))],
               "reduce_scatter_coalesced")


def coalescing(group):
    """The context manager must run all calls as one operation, and none if the block fails."""
    n, rank = group.size, group.rank
    tensors = [make("f", [rank + k] * (k + 1)) for k in range(3)]
    before = group.sequence
    with group.coalesce() as coalesce:
        for tensor in tensors:
            assert group.all_reduce(tensor) is None
            assert read(tensor)[0] == rank + tensors.index(tensor), "it has run before the block ended"
    assert coalesce.work is None and coalesce.wait() is True
    assert group.sequence == before + 1
    for k, tensor in enumerate(tensors):
        expect(tensor, [float(sum(r + k for r in range(n)))] * (k + 1), "coalesce")
    outputs = [make("i", [0] * n * k) for k in (1, 2)]
    with group.coalesce(async_op=True) as coalesce:
        for k, output in zip((1, 2), outputs):
            group.all_gather_single(output, make("i", [rank] * k))
    assert coalesce.work.wait(20) is True
    for k, output in zip((1, 2), outputs):
        expect(output, sum(([r] * k for r in range(n)), []), "coalesce")
    outputs = [make("i", [0]), make("i", [0, 0])]
    with group.coalesce():
        for count, output in enumerate(outputs, 1):
            group.reduce_scatter_single(output, make("i", [1] * n * count), "sum")
    assert [read(output) for output in outputs] == [[n], [n, n]]
    before = group.sequence
    tensor = make("f", [1])
    try:
        with group.coalesce():
            group.all_reduce(tensor)
            raise LookupError("from the block")
    except LookupError:
        pass
    assert group.sequence == before and read(tensor) == [1]
    group.all_reduce(tensor)
    assert read(tensor) == [n]
    with group.coalesce():
        pass
    for wrong in (
        lambda: group.all_gather_single(make("f", [0] * n), tensor),
        lambda: group.all_reduce(tensor, "max"),
        lambda: group.all_reduce(tensor, async_op=True).wait(),
        lambda: group.all_reduce(tensor, timeout=5),
        lambda: group.coalesce().__enter__(),
    ):
        try:
            with group.coalesce():
                group.all_reduce(tensor)
                wrong()
        except (RuntimeError, ValueError):
            pass
        else:
            raise AssertionError("not refused")
    # Calls of other threads must not be recorded.
    done = []
    with group.coalesce():
        thread = threading.Thread(target=lambda: (group.all_reduce(tensor), done.append(1)))
        thread.start()
        thread.join(20)
        assert done
    expect(tensor, [float(n * n)], "another thread")


def strided(group):
    """A view of every second element, as input or output, must not change the other elements."""
    rank, n = group.rank, group.size

    def view(values):
        memory = make("i", [number for value in values for number in (value, -7)])
        return memory, place.part(memory, 0, 2 * len(values), 2)

    def check(memory, values):
        assert read(memory)[::2] == values, f"{read(memory)[::2]} instead of {values}"
        assert set(read(memory)[1::2]) <= {-7}, "gaps were written"

    memory, part = view([rank, rank + 1])
    group.all_reduce(part)
    check(memory, [sum(range(n)), sum(range(1, n + 1))])
    memory, part = view([rank, rank + 1])
    group.reduce(part, 0)
    check(memory, [sum(range(n)), sum(range(1, n + 1))] if rank == 0 else [rank, rank + 1])
    memory, part = view([rank, rank + 1])
    group.broadcast(part, n - 1)
    check(memory, [n - 1, n])
    memory, part = view([0] * 2 * n)
    group.all_gather_single(part, view([rank, 10 + rank])[1])
    check(memory, sum(([r, 10 + r] for r in range(n)), []))
    memories = [view([0, 0]) for _ in range(n)]
    group.all_gather([part for _, part in memories], view([rank, 10 + rank])[1])
    for r in range(n):
        check(memories[r][0], [r, 10 + r])
    memory, part = view([0])
    group.reduce_scatter_single(part, view([rank + k for k in range(n)])[1])
    check(memory, [sum(r + rank for r in range(n))])
    memory, part = view([0])
    group.reduce_scatter(part, [view([rank + k])[1] for k in range(n)])
    check(memory, [sum(r + rank for r in range(n))])
    memory, part = view([0] * n)
    group.all_to_all_single(part, view([10 * rank + k for k in range(n)])[1])
    check(memory, [10 * r + rank for r in range(n)])
    memories = [view([5]), view([6, 7])]
    work = group.all_reduce_coalesced([part for _, part in memories], async_op=True)
    finish(work)
    check(memories[0][0], [5 * n])
    check(memories[1][0], [6 * n, 7 * n])
    memories = [view([0] * n), view([0] * 2 * n)]
    group.all_gather_single_coalesced([part for _, part in memories], [view([rank])[1], view([rank, -rank])[1]])
    check(memories[0][0], list(range(n)))
    check(memories[1][0], sum(([r, -r] for r in range(n)), []))
    # Without wait(): once the work is completed, the result must be visible.
    memory, part = view([rank])
    work = group.all_reduce(part, async_op=True)
    procs.poll_until(work.is_completed)
    check(memory, [sum(range(n))])
    memory, part = view([1, 2, 3])
    if rank == 0:
        for r in range(1, n):
            group.send(part, r)
    else:
        memory, part = view([0, 0, 0])
        group.recv(part, 0)
    check(memory, [1, 2, 3])


def transposed(group):
    """Elements must be in row-major order, whatever the strides are."""
    import numpy

    rank, n = group.rank, group.size
    base = numpy.arange(6, dtype=numpy.float64).reshape(2, 3)
    tensor = place.of(numpy.array(base.T, order="C" if rank == 0 else "F"))
    group.all_reduce(tensor)
    assert read(tensor) == (base.T * n).tolist()
    tensor = place.of(base[:, ::-1] if rank == 0 else numpy.zeros((3, 2)).T)
    group.broadcast(tensor, 0)
    assert read(tensor) == base[:, ::-1].tolist()
    scalar = place.of(numpy.array(float(rank)))
    group.all_reduce(scalar)
    assert read(scalar) == sum(range(n))
    several = place.of(numpy.full((1, 2, 1, 3), float(rank)))
    group.all_reduce(several, "max")
    assert read(several) == numpy.full((1, 2, 1, 3), n - 1.0).tolist()
    empty = place.of(numpy.zeros((3, 0, 2)))
    group.all_reduce(empty)
    assert read(empty) == [[], [], []]


def overlapping(group):
    """Outputs may be their own inputs or overlap them."""
    rank, n = group.rank, group.size
    memory = make("i", [rank + 1 if r == rank else 0 for r in range(n)])
    group.all_gather_single(memory, place.part(memory, rank, rank + 1))
    expect(memory, list(range(1, n + 1)), "all_gather_single in place")
    memory = make("i", [rank + k for k in range(n)])
    group.reduce_scatter_single(place.part(memory, rank, rank + 1), memory)
    assert read(memory)[rank] == sum(r + rank for r in range(n))
    memory = make("i", [rank + k for k in range(n)])
    group.reduce_scatter_single(place.part(memory, 0, 1), memory)
    assert read(memory)[0] == sum(r + rank for r in range(n))
    memory = make("i", [10 * rank + k for k in range(n)])
    group.all_to_all_single(memory, memory)
    expect(memory, [10 * r + rank for r in range(n)], "all_to_all_single in place")
    tensors = [make("i", [10 * rank + k]) for k in range(n)]
    group.all_to_all(tensors, tensors)
    assert [read(tensor) for tensor in tensors] == [[10 * r + rank] for r in range(n)]
    memory = make("i", [rank] + [0] * n)
    group.all_gather_single(place.part(memory, 1, n + 1), place.part(memory, 0, 1))
    expect(memory, [rank, *range(n)], "all_gather_single beside")
    memory = make("i", [rank + 1] + [0] * (n - 1))
    group.all_gather_single(memory, place.part(memory, 0, 1))
    expect(memory, list(range(1, n + 1)), "all_gather_single over its input")


def by_oracle(group):
    """Run the cases of the oracle, an independent implementation of the expected results."""
    for case in oracle.all_cases(group.size, counts=(0, 1, 1000)):
        if case.op in place.lacks or case.op in oracle.REDUCING and place.refusal(case.code, case.reduce) is not None:
            continue
        run = oracle.start(group, case, async_op=True)
        finish(run.work)
        run.check()


def premultiplied(group):
    rank, n = group.rank, group.size
    tensor = make("d", [1.0, rank])
    group.all_reduce(tensor, dldist.ReduceOp.PREMUL_SUM(0.5))
    expect(tensor, [0.5 * n, 0.5 * sum(range(n))], "PREMUL_SUM")


def with_torch(group):
    """Dtypes that only torch has must work."""
    import torch

    rank, n = group.rank, group.size
    for dtype in (torch.bfloat16, torch.float16, torch.bool, torch.complex64):
        tensor = torch.ones(5, dtype=dtype)
        group.all_reduce(tensor)
        assert (tensor == (torch.ones(5).to(dtype) if dtype == torch.bool else torch.full((5,), n).to(dtype))).all()
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        tensor = torch.full((5,), rank + 1.0).to(dtype)
        group.broadcast(tensor, n - 1)
        assert (tensor.float() == n).all()
        group.all_reduce(tensor)
        assert (tensor.float() == n * n).all()
    tensor = torch.arange(6.0).reshape(2, 3).t()
    group.all_reduce(tensor)
    assert (tensor == torch.arange(6.0).reshape(2, 3).t() * n).all()
    leaf = torch.ones(2, requires_grad=True)
    group.all_reduce(leaf.detach())
    assert (leaf == n).all()


def shared_arrays(group):
    rank, n = group.rank, group.size
    for dtype, code in (("float32", "f"), ("int64", "q"), ("bool", "?")):
        shared = group.empty((3, 2), dtype)
        view = memoryview(shared)
        assert (shared.shape, shared.dtype, view.format, view.shape) == ((3, 2), dtype, code, (3, 2))
        assert view.tolist() == [[0, 0]] * 3 and not view.readonly and shared.nbytes == view.nbytes
        for i in range(3):
            view[i, 1] = bool(rank) if code == "?" else rank
        group.all_reduce(shared)
        total = bool(sum(range(n))) if code == "?" else sum(range(n))
        assert view.tolist() == [[0, total]] * 3
        group.all_reduce(shared, "max", async_op=True).wait()
        group.broadcast(shared, n - 1)
        assert view.tolist() == [[0, total]] * 3
    big = group.empty(1 << 18, "float64")
    view = memoryview(big)
    view[0] = view[-1] = 1.0
    for _ in range(3):
        group.all_reduce(big)
    assert view[0] == view[-1] == n**3 and view[1] == 0
    # The memory must outlive the array.
    shared = group.empty(4, "bfloat16")
    assert shared.__dlpack_device__() == (1, 0)
    capsules = [shared.__dlpack__(), shared.__dlpack__(max_version=(1, 0))]
    group.broadcast(shared, 0)
    del shared, capsules
    for shape in ((), 0, (2, 0), [5]):
        shared = group.empty(shape)
        group.all_reduce(shared)
        assert shared.shape == (tuple(shape) if not isinstance(shape, int) else (shape,))


# ---- messages


def point_to_point(group):
    """Run the cases for messages."""
    for case in (ring, tagged, from_any_rank, to_oneself, shorter_message, empty_message, batches, large_batch):
        case(group)


def neighbours(group):
    return (group.rank + 1) % group.size, (group.rank - 1) % group.size


def ring(group):
    """Messages around a ring must arrive, also from a rank to itself if it is the only one."""
    right, left = neighbours(group)
    buffer = make("i", [0])
    if place.sends_first(group.rank):
        work = group.isend(make("i", [group.rank]), right)
        assert group.recv(buffer, left) == left
    else:
        received = group.irecv(buffer, left)
        work = group.isend(make("i", [group.rank]), right)
        assert received.wait() is True and received.source_rank() == left
    assert read(buffer) == [left]
    finish(work)


def tagged(group):
    """Tags must select messages; messages of one tag keep their order."""
    right, left = neighbours(group)
    buffer = make("i", [0])
    works = [group.isend(make("i", [10 * tag + k]), right, tag) for tag in (1, 2) for k in (0, 1)]
    for tag in (2, 1):
        for k in (0, 1):
            assert group.recv(buffer, left, tag) == left
            assert read(buffer) == [10 * tag + k]
    for work in works:
        assert work.wait() and work.is_success() and work.exception() is None and work.result() == []


def from_any_rank(group):
    rank, n = group.rank, group.size
    buffer = make("i", [0])
    works = [group.isend(make("i", [rank]), r, 7) for r in range(n)]
    sources = set()
    for _ in range(n):
        work = group.irecv(buffer, tag=7)
        work.wait()
        assert [work.source_rank()] == read(buffer)
        assert work.result()[0] is buffer
        sources.add(work.source_rank())
    assert sources == set(range(n))
    for work in works:
        work.wait()


def to_oneself(group):
    buffer = make("i", [0])
    work = group.irecv(buffer, group.rank, 3)
    group.send(make("i", [99]), group.rank, 3)
    work.wait()
    assert read(buffer) == [99] and work.source_rank() == group.rank


def shorter_message(group):
    """A shorter message must fill the beginning of the buffer."""
    right, left = neighbours(group)
    longer = make("i", [1, 2, 3])
    work = group.isend(make("i", [5]), right, 4)
    group.recv(longer, left, 4)
    assert read(longer) == [5, 2, 3]
    work.wait()


def empty_message(group):
    """An empty message must be delivered."""
    right, left = neighbours(group)
    if place.sends_first(group.rank):
        work = group.isend(make("i", []), right, 5)
        assert group.recv(make("i", []), left, 5) == left
    else:
        received = group.irecv(make("i", []), left, 5)
        work = group.isend(make("i", []), right, 5)
        finish(received)
    finish(work)


def batches(group):
    """Batches must exchange messages in both directions, in the given order, and with itself."""
    rank = group.rank
    right, left = neighbours(group)
    buffer, own = make("i", [0]), make("i", [0])
    works = group.batch_isend_irecv([
        dldist.P2POp("isend", make("i", [rank + 100]), right),
        dldist.P2POp("irecv", buffer, left),
    ])
    for work in works:
        finish(work)
    assert read(buffer) == [left + 100]
    works = group.batch_isend_irecv([
        dldist.P2POp(group.irecv, own, rank, 1),
        dldist.P2POp(group.isend, make("i", [rank + 7]), rank, 1),
    ])
    for work in works:
        finish(work)
    assert read(own) == [rank + 7]


def large_batch(group):
    """Batches of large messages in both directions must complete."""
    rank = group.rank
    right, left = neighbours(group)
    large, into, buffer = make("d", [float(rank)] * 300_000), make("d", [0.0] * 300_000), make("i", [0])
    works = group.batch_isend_irecv([
        dldist.P2POp("isend", large, right, 8),
        dldist.P2POp(dldist.Group.irecv, into, left, 8),
        dldist.P2POp(group.irecv, buffer, left, 9),
        dldist.P2POp(group.isend, make("i", [rank]), right, 9),
    ])
    assert [work.op for work in works] == place.ops_of_batch(["send", "recv", "recv", "send"])
    for work in works:
        work.wait()
    got = read(into)
    assert got[0] == got[-1] == left and read(buffer) == [left]
    assert group.sequence == group.sequence


def too_short(group):
    """A message that does not fit must be an error for the receiver, and the group stay usable."""
    if group.rank == 0:
        work = group.isend(array.array("i", [1, 2, 3]), 1)
        try:
            work.wait()
        except dldist.DistError:
            pass
        return None
    try:
        group.recv(array.array("i", [0]), 0)
    except Exception as error:
        return describe(error)


# ---- works


def async_forms(group):
    rank, n = group.rank, group.size
    tensor = make("q", [rank])
    output = make("q", [0] * n)
    outputs = [make("q", [0]) for _ in range(n)]
    scattered = make("q", [0])
    works = [
        group.all_reduce(tensor, async_op=True),
        group.broadcast(tensor, 0, async_op=True),
        group.all_gather_single(output, make("q", [rank]), async_op=True),
        group.all_gather(outputs, make("q", [rank]), async_op=True, timeout=10),
        group.reduce_scatter_single(scattered, make("q", range(n)), async_op=True),
        group.barrier(async_op=True),
    ]
    names = ["all_reduce", "broadcast", "all_gather", "all_gather", "reduce_scatter", "barrier"]
    assert [work.op.removesuffix("_single") for work in works] == names
    assert [work.sequence - works[0].sequence for work in works] == list(range(6))
    for work in reversed(works):
        assert work.wait() is True and work.wait(timeout=10) is True
        assert work.is_completed() and work.is_success() and work.exception() is None
        place.check_duration(work)
        assert work.synchronize() is None
        assert "done" in repr(work) and work.op in repr(work)
    assert works[0].result()[0] is tensor and works[1].result()[0] is tensor
    assert [a is b for a, b in zip(works[3].result(), outputs)] == [True] * n
    assert works[5].result() == []
    assert read(tensor) == [sum(range(n))] and read(output) == list(range(n)) and read(scattered) == [n * rank]


def many_works(group):
    tensors = [make("q", [k]) for k in range(300)]
    works = [group.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works[::-1]:
        work.wait()
    assert [read(tensor) for tensor in tensors] == [[k * group.size] for k in range(300)]


def late_rank(group, variant):
    """Test calls on an unfinished work. Rank 0 makes them; the other ranks wait for its release."""
    rank = group.rank
    group.barrier()  # connects all ranks
    if rank != 0:
        place.hold(group)
        group.all_reduce(make("i", [rank]))
        return None
    tensor = make("i", [rank])
    handed_over = [group.all_reduce(tensor, async_op=True)]

    look = {"questions": unfinished_questions, "callbacks": unfinished_callbacks, "await": unfinished_await,
            "futures": unfinished_futures, "dropped": unfinished_dropped}[variant]
    return look(handed_over.pop(), tensor, lambda: place.let_go(group))


def raised(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def unfinished_questions(work, tensor, let_go):
    assert not work.is_completed() and not work.is_success() and work.exception() is None
    assert "under way" in repr(work)
    for call in place.too_early(work):
        kind, text = raised(call)
        assert kind == "RuntimeError" and "needs to be completed" in text
    kind, text = raised(lambda: work.wait(0.05))
    assert kind == "DistTimeoutError" and place.wait_timed_out in text, text
    assert not work.is_completed()
    let_go()
    assert work.wait()
    return read(tensor)[0]


def unfinished_callbacks(work, tensor, let_go):
    seen, done = [], threading.Event()
    me = threading.get_ident()

    def callback():
        seen.append((threading.get_ident() != me, threading.current_thread().name, read(tensor)[0], work.is_completed()))
        done.set()

    work._watch(callback)
    work._watch(lambda: 1 / 0)
    hook, errors = sys.unraisablehook, []
    sys.unraisablehook = lambda unraisable: errors.append(unraisable.exc_type.__name__)
    try:
        let_go()
        assert done.wait(10)
        procs.poll_until(lambda: errors == ["ZeroDivisionError"])
    finally:
        sys.unraisablehook = hook
    work.wait()
    # A completed work calls back immediately, in this thread.
    work._watch(lambda: seen.append(threading.get_ident() == me))
    return seen


def unfinished_await(work, tensor, let_go):
    async def main():
        async def ticker():
            await asyncio.sleep(0)
            let_go()

        task = asyncio.create_task(ticker())
        result = await asyncio.wait_for(_await(work), 10)
        await task
        assert result[0] is tensor
        again = await work
        assert again[0] is tensor
        return read(tensor)[0]

    return asyncio.run(main())


async def _await(work):
    return await work


def unfinished_futures(work, tensor, let_go):
    future = work.get_future()
    seen = []
    assert not future.done()
    assert raised(future.value)[0] == "RuntimeError"
    assert raised(lambda: future.wait(0.02))[0] == "DistTimeoutError"
    doubled = future.then(lambda done: 2 * read(done.value()[0])[0])
    failing = future.then(lambda done: 1 / 0)
    future.add_done_callback(lambda done: seen.append(done is future))
    let_go()
    assert doubled.wait(10) == 2 * read(tensor)[0]
    assert future.wait(10)[0] is tensor and future.done() and future.value()[0] is tensor
    assert raised(lambda: failing.wait(10))[0] == "ZeroDivisionError"
    procs.poll_until(lambda: seen == [True])
    assert isinstance(failing.exception(), ZeroDivisionError) and future.exception() is None
    return read(tensor)[0]


def unfinished_dropped(work, tensor, let_go):
    """A work without references must continue, and hold its tensor exactly until it ends."""

    def is_free():
        # An export prevents resizing.
        try:
            tensor.append(0)
        except BufferError:
            return False
        tensor.pop()
        return True

    reference = weakref.ref(work)
    del work
    gc.collect()
    assert reference() is None and not is_free()
    let_go()
    procs.poll_until(is_free)
    return tensor[0]


def dropped(group):
    """200 concurrent works without references must complete and release their tensors."""
    tensors = [array.array("i", [1]) for _ in range(200)]
    for tensor in tensors:
        group.all_reduce(tensor, async_op=True)
    group.barrier()

    def is_free():
        try:
            tensors[-1].append(0)
            return True
        except BufferError:
            return False

    procs.poll_until(is_free)
    for tensor in tensors[:-1]:
        tensor.append(0)
    assert all(tensor[0] == group.size for tensor in tensors)


def failing_works(group):
    """A failure must be reported by every interface: all ranks wait for a message never sent."""
    part, source = place.part_to_fail(group)
    work = part.irecv(make("i", [0]), source, 1234, timeout=0.1)
    future = work.get_future()
    caught = []
    future.add_done_callback(lambda done: caught.append(type(done.exception()).__name__))

    async def main():
        try:
            await work
        except dldist.DistTimeoutError:
            return "awaited"

    result = asyncio.run(main())
    kind, text = raised(work.wait)
    assert kind == "DistTimeoutError", text
    assert raised(work.result)[0] == "DistTimeoutError"
    assert not work.is_success() and work.is_completed()
    assert isinstance(work.exception(), dldist.DistTimeoutError)
    assert raised(future.wait)[0] == "DistTimeoutError"
    procs.poll_until(lambda: caught == ["DistTimeoutError"])
    place.failed(part)
    return result, text


# ---- groups


def membership(group):
    members = group.members
    return [tuple(member) for member in members], os.getpid(), members[0].rank, members[-1].host


def splits(group):
    rank, n = group.rank, group.size
    ranks = [r for r in range(n) if r % 2 == rank % 2][::-1]
    part = group.split(ranks)
    assert part.rank == ranks.index(rank) and part.size == len(ranks)
    tensor = make("i", [rank])
    part.all_reduce(tensor)
    assert read(tensor) == [sum(ranks)]
    alone = group.split([rank], name="alone", timeout=3)
    assert (alone.name, alone.size, alone.timeout.total_seconds()) == ("alone", 1, 3)
    again = group.split(ranks, "again")
    tensor = make("i", [1])
    again.all_reduce(tensor)
    assert read(tensor) == [len(ranks)]
    part.close()
    again.all_reduce(tensor)
    group.barrier()
    again.close()
    return part.name


def more_worlds(group, port):
    """More groups of the same ranks must work over the same store and in the same process."""
    store = dldist.TCPStore(LOOPBACK, port, timeout=20.0)
    worlds = [dldist.Group(store, (group.rank + k) % group.size, group.size, name=f"world {k}") for k in range(2)]
    for k, world in enumerate(worlds):
        output = make("i", [0] * world.size)
        world.all_gather_single(output, make("i", [group.rank]))
        assert read(output) == [(r - k) % world.size for r in range(world.size)]
    works = [world.all_reduce(make("i", [1]), async_op=True) for world in worlds + worlds[::-1]]
    for work in works:
        work.wait()
    for world in worlds:
        world.close()


def in_threads(group):
    """Threads with a group each must work concurrently."""
    parts = [group.split(list(range(group.size)), f"thread {k}") for k in range(3)]
    failures = []

    def work(part):
        try:
            for k in range(50):
                tensor = make("i", [k])
                part.all_reduce(tensor)
                assert read(tensor) == [k * part.size]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not failures and not any(thread.is_alive() for thread in threads), failures
    for part in parts:
        part.close()


def open_and_close(group, port, first, last):
    """Opening and closing groups must not leak."""
    store = dldist.TCPStore(LOOPBACK, port, timeout=20.0)
    usage = []
    for k in range(first, last):
        with dldist.Group(store, group.rank, group.size, name="again") as part:
            tensor = make("i", [1])
            part.all_reduce(tensor)
            part.all_reduce(tensor, async_op=True)
            part.barrier()
            assert tensor[0] == group.size**2
        del part
        if k in (first + 20, last - 1):
            group.barrier()
            gc.collect()
            usage.append(measure_usage())
    # A connection closed by the peer is freed once this side notices.
    deadline = time.monotonic() + 5
    while usage[1][:2] != usage[0][:2] and time.monotonic() < deadline:
        time.sleep(0.05)
        usage[1] = measure_usage()
    return usage


def measure_usage():
    mappings = len(open("/proc/self/maps").readlines())
    return procs.fd_count(), procs.thread_count(), mappings, procs.rss_bytes()


def monitored(group, absent, wait_all_ranks, timeout):
    """Some ranks must join only after the others have failed."""
    part = group.split(list(range(group.size)), "monitored")
    if group.rank in absent:
        group.recv(make("b", [0]), 0, 78)  # sent once rank 0 has failed
    result = attempt(part, lambda: part.monitored_barrier(timeout, wait_all_ranks))
    if group.rank == 0:
        for rank in absent:
            group.send(make("b", [1]), rank, 78)
    group.barrier()
    again = attempt(part, part.monitored_barrier)
    part.close()
    return result, again


# ---- how groups fail: each rank returns how its calls ended


def attempt(group, call):
    start = time.monotonic()
    try:
        call()
    except BaseException as error:
        return {**describe(error), "seconds": time.monotonic() - start}
    return {"kinds": [], "text": "", "seconds": time.monotonic() - start}


def mismatched(group, variant):
    rank = group.rank
    part = group.split(list(range(group.size)), f"mismatch {variant}", timeout=5)
    tensor = make("f", [1.0] * 4)
    odd = rank == group.size - 1
    calls = {
        "op": lambda: part.barrier() if odd else part.all_reduce(tensor),
        "dtype": lambda: part.all_reduce(make("i", [1] * 4) if odd else tensor),
        "size": lambda: part.all_reduce(make("f", [1.0] * (5 if odd else 4))),
        # the root may reach its own broadcast first
        "root": lambda: (part.broadcast(tensor, 1 if odd else 0), part.barrier()),
        "redop": lambda: part.all_reduce(tensor, "max" if odd else "sum"),
        "factor": lambda: part.all_reduce(tensor, dldist.ReduceOp.PREMUL_SUM(2.0 if odd else 3.0)),
        "block": lambda: part.all_gather([make("f", [0.0] * (3 if odd and r == 0 else 4))
                                          for r in range(part.size)], tensor),
    }
    first = attempt(part, calls[variant])
    later = attempt(part, part.barrier)
    group.barrier()
    part.close()
    return first, later


def too_late(group, variant):
    """Rank 0 waits for a call that the other ranks do not make in time."""
    part = group.split(list(range(group.size)), f"late {variant}")
    result = None
    if group.rank == 0:
        tensor = make("i", [1])
        result = attempt(part, {
            "all_reduce": lambda: part.all_reduce(tensor, timeout=0.3),
            "recv": lambda: part.recv(tensor, 1, timeout=0.3),
            "recv any": lambda: part.recv(tensor, timeout=0.3),
            "async": lambda: part.all_reduce(tensor, async_op=True, timeout=0.3).wait(),
            "default": lambda: (setattr(part, "timeout", 0.3), part.barrier()),
        }[variant])
    group.barrier()
    part.close(1)
    return result


def aborted(group):
    """The last rank aborts while the other ranks wait."""
    part = group.split(list(range(group.size)), "aborted")
    if group.rank == group.size - 1:
        group.barrier()
        part.abort("enough of it")
        part.abort("second abort")
        result = attempt(part, part.barrier)
    else:
        work = part.irecv(make("i", [0]), group.size - 1)
        group.barrier()
        result = attempt(part, part.barrier)
        assert raised(work.wait)[0] == "DistAbortedError"
    later = attempt(part, lambda: part.all_reduce(make("i", [1])))
    group.barrier()
    part.close()
    return result, later


def aborted_after_the_end(group):
    """The last rank aborts groups right after completed calls. All ranks share a core, so the
    others check later."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    sums = []
    for i in range(20):
        part = group.split(list(range(group.size)), f"aborted after the end {i}")
        x = make("i", [1])
        part.all_reduce(x)
        sums.append(x[0])
        if group.rank == group.size - 1:
            part.abort("that was all")
        group.barrier()
        later = attempt(part, part.barrier)
        part.close()
    os.sched_setaffinity(0, cores)
    return sums, later


def aborted_from_a_thread(group):
    """Another thread must be able to abort the call that the main thread waits for."""
    part = group.split(list(range(group.size)), "aborted by a thread")
    timer = threading.Timer(0.2, part.abort, ["by a thread"])
    if group.rank == 0:
        timer.start()
        result = attempt(part, lambda: part.recv(make("i", [0]), 0, 5))
        timer.join()
    else:
        result = attempt(part, part.barrier)
    group.barrier()
    part.close()
    return result


def closed(group):
    """close() from another thread must end calls, and later calls must raise."""
    part = group.split([group.rank], "closed")
    part.all_reduce(make("i", [1]))
    part.close()
    part.close()
    assert part.is_closed and "closed" in repr(part)
    after = attempt(part, part.barrier)
    other = group.split([group.rank], "closed by a thread")
    timer = threading.Timer(0.1, lambda: raised(lambda: other.close(0)))
    timer.start()
    blocked = attempt(other, lambda: other.recv(make("i", [0]), 0))
    timer.join()
    return after, blocked


def left_by_exception(group):
    """Leaving a `with` block by an exception must send the reason to the other ranks."""
    part = group.split(list(range(group.size)), "left")

    def leave():
        with part:
            if group.rank == 0:
                raise LookupError("no such thing")
            part.barrier()

    result = attempt(part, leave)
    group.barrier()
    return result


# ---- separate processes


def lose_last_rank(channel, port, rank, size, variant):
    """Wait in a call and return how it ended. The parent kills or interrupts one rank."""
    group = open_group(port, rank, size, timeout=60)
    part = group.split(list(range(size)))
    group.barrier()
    buffer = array.array("i", [0])
    calls = {
        "barrier": group.barrier,
        "all_reduce": lambda: group.all_reduce(array.array("f", [1.0] * 1000)),
        "recv": lambda: group.recv(buffer, size - 1),
        "wait": lambda: group.all_reduce(buffer, async_op=True).wait(),
    }
    pending = group.irecv(array.array("i", [0]), size - 1, 42)
    channel.send(("ready", os.getpid()))
    if rank == size - 1 and variant != "interrupted":
        time.sleep(60)
    result = attempt(group, calls["barrier" if variant == "interrupted" else variant])
    results = [result, attempt(group, pending.wait), attempt(group, group.barrier), attempt(part, part.barrier)]
    channel.send(results)
    channel.recv()
    return None


def interrupted(channel, port, rank, size, variant):
    """Rank 0 is interrupted in a call that never ends; the other ranks must get an error."""
    group = open_group(port, rank, size, timeout=60)
    group.barrier()
    buffer = array.array("i", [0])
    channel.send("ready")
    if rank != 0:
        result = attempt(group, lambda: group.recv(buffer, 0, 3))
    else:
        result = attempt(group, {
            "barrier": group.barrier,
            "all_reduce": lambda: group.all_reduce(buffer),
            "recv": lambda: group.recv(buffer, 1),
            "wait": lambda: group.irecv(buffer, 1).wait(),
            "future": lambda: group.irecv(buffer, 1).get_future().wait(),
            "monitored_barrier": group.monitored_barrier,
        }[variant])
        if variant in ("wait", "future"):
            group.abort("interrupted in a wait")
    channel.send(result)
    channel.recv()
    return None


def ranks_as_threads(channel, port, size):
    """Run all ranks in one process."""
    results = [None] * size

    def rank_main(rank):
        store = dldist.TCPStore(LOOPBACK, port, timeout=20.0)
        with dldist.Group(store, rank, size, timeout=20.0, name="threads") as group:
            for k in range(20):
                tensor = array.array("i", [rank + k])
                group.all_reduce(tensor)
                assert tensor[0] == sum(r + k for r in range(size))
            large = array.array("d", [1.0]) * 100_000
            group.all_reduce(large)
            work = group.isend(array.array("i", [rank]), (rank + 1) % size)
            buffer = array.array("i", [0])
            group.recv(buffer, (rank - 1) % size)
            work.wait()
            group.barrier()
            results[rank] = (large[0], buffer[0])

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    return results


def forks(channel):
    """A forked child must be able to use only a new group, and the parent must not be affected."""
    group = dldist.Group(None, 0, 1)
    work = group.irecv(array.array("i", [0]), 0)
    work._watch(lambda: None)
    group.all_reduce(array.array("i", [1]))
    shared = group.empty(4)
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        lines = []
        tensor = array.array("i", [1])
        for call in (lambda: group.all_reduce(tensor), lambda: group.all_reduce(tensor, async_op=True), group.barrier,
                     lambda: group.send(tensor, 0), lambda: group.recv(tensor, 0), lambda: work.wait(1), group.close,
                     lambda: group.members, lambda: group.sequence, lambda: group.split([0]), lambda: group.empty(1),
                     lambda: group.monitored_barrier(1)):
            try:
                lines.append(f"returned {call()!r}")
            except BaseException as error:
                lines.append(f"{type(error).__name__}: {error}")
        group.abort("without other ranks")
        own = dldist.Group(None, 0, 1)
        own.all_reduce(tensor)
        done = threading.Event()
        receive = own.irecv(tensor, 0)
        receive._watch(done.set)
        own.send(array.array("i", [5]), 0)
        lines.append(f"own {done.wait(5)} {tensor[0]}")
        del shared, work, group
        os.write(write_end, "\n".join(lines).encode())
        os.close(write_end)
        sys.exit(0)
    os.close(write_end)
    with os.fdopen(read_end, encoding="utf-8") as file:
        lines = file.read().split("\n")
    _, status = os.waitpid(pid, 0)
    group.send(array.array("i", [5]), 0)
    work.wait(5)
    return lines, status


def exit_without_close(channel, port, rank, size, how):
    """Exit without closing, in one of several ways; must print nothing."""
    group = open_group(port, rank, size)
    tensor = array.array("i", [1])
    group.all_reduce(tensor)
    if how == "pending":
        group.irecv(tensor, (rank + 1) % size)
    elif how == "watched":
        group.irecv(tensor, (rank + 1) % size)._watch(lambda: None)
    elif how == "blocked thread":
        threading.Thread(target=lambda: raised(lambda: group.recv(tensor, (rank + 1) % size)), daemon=True).start()
    elif how == "cycle":
        cycle = [group]
        cycle.append(cycle)
    elif how == "global":
        globals()["_kept"] = group
        globals()["_work"] = group.all_reduce(tensor, async_op=True)
    elif how == "shared":
        globals()["_kept"] = group.empty(1000)
    elif how == "closed":
        group.close()
    return "done"


def open_alone(channel):
    try:
        dldist.Group(None, 0, 1).close()
    except Exception as error:
        return [kind.__name__ for kind in type(error).__mro__], str(error)
    return [], ""


def sleeps_in_barrier(channel, path, rank):
    """Return how often rank 0 yielded its core to sleep until rank 1 called."""
    group = dldist.Group(dldist.FileStore(path, 2), rank, 2, timeout=60)
    group.barrier()
    if rank == 1:  # a sleeping rank sleeps for 25 ms at a time
        time.sleep(0.5 if os.environ["DLDIST_WAIT"] == "poll" else 2)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    group.barrier()
    count = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before
    group.close()
    return count


def reduces_until_it_fails(channel, port, rank):
    """Reduce large arrays in shared memory until a call fails; then reuse the array."""
    group = open_group(port, rank, 2)
    x = group.empty((1 << 23,), "float32")
    view = memoryview(x).cast("B")
    channel.send("ready")
    channel.recv()
    code = None
    rounds = 0
    while code is None:
        try:
            group.all_reduce(x, timeout=0.5 if rank == 0 and rounds >= 3 else 20)
        except dldist.DistError as error:
            code = error.code
        rounds += 1
        if rank == 1 and rounds == 3:
            channel.send("under way")
    filling = b"\x07" * x.nbytes
    view[:] = filling
    channel.send(code)
    channel.recv()
    return "intact" if view == filling else "changed"
