"""Collectives with data whose results can be predicted, using only the standard library.

Data are small integers that repeat after PERIOD elements, so that reductions are exact in every
type and order, and large arrays are made and compared quickly.

    case = oracle.Case("all_reduce", "i", count=1000, reduce="SUM", seed=7)
    run = oracle.start(group, case, async_op=True)
    run.work.wait()
    run.check()                      # raises WrongResult
"""

import functools
import operator
import struct

import dldist

PERIOD = 11
SIGNED, UNSIGNED, FLOATS, BOOL = "bhiq", "BHIQ", "fd", "?"
CODES = SIGNED + UNSIGNED + FLOATS + BOOL
ROUNDED = {"f": "f", "float16": "e"}
"""The codes of types with fewer digits than Python's floats."""
REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
COLLECTIVES = (
    "all_reduce", "scan", "exscan", "broadcast", "reduce", "all_gather", "all_gather_single", "gather", "scatter", "reduce_scatter",
    "reduce_scatter_single", "all_to_all", "all_to_all_single", "barrier",
)  # fmt: skip
REDUCING = ("all_reduce", "scan", "exscan", "reduce", "reduce_scatter", "reduce_scatter_single")
UNEVEN = ("all_gather", "gather", "scatter", "reduce_scatter", "all_to_all", "all_to_all_single")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
UNTOUCHED = 0x55


class WrongResult(AssertionError):
    """An operation succeeded with a wrong result."""


class Case:
    """One collective.

    `count`: elements of the array, or of every block; `counts`: elements of each rank's block (for
    all_to_all: of the block from each rank to each).
    """

    def __init__(self, op, code="i", count=1, counts=None, root=0, reduce="SUM", seed=0):
        self.op, self.code, self.count, self.counts = op, code, count, counts
        self.root, self.reduce, self.seed = root, reduce, seed

    def __repr__(self):
        shown = [repr(self.code), f"counts={self.counts}" if self.counts else f"count={self.count}"]
        if self.op in REDUCING:
            shown.append(self.reduce)
        if self.op in ROOTED:
            shown.append(f"root={self.root}")
        return f"{self.op}({', '.join(shown)}, seed={self.seed})"

    def varied(self, **changes):
        fields = dict(vars(self), **changes)
        return Case(**fields)

    def block_count(self, src, dst):
        if self.counts is None:
            return self.count
        if self.op in ("all_to_all", "all_to_all_single"):
            return self.counts[src][dst]
        return self.counts[src if self.op in ("all_gather", "gather") else dst]


def can_reduce(op, code, reduce, nranks):
    """Return True if the operation supports the reduction for the type, with a result independent
    of rounding."""
    if op in ("scan", "exscan") and reduce == "AVG":
        return False
    if reduce in ("BAND", "BOR", "BXOR"):
        return code not in FLOATS
    if reduce == "AVG":
        return code != BOOL and (code not in FLOATS or nranks & (nranks - 1) == 0)
    return True


def item_nbytes(code):
    return struct.calcsize(code)


def values(code, seed, src, dst):
    """Return the first PERIOD elements that src has for dst."""
    numbers = [(seed * 7 + src * 3 + dst * 5 + i * (1 + src % 3)) % PERIOD for i in range(PERIOD)]
    if code == BOOL:
        return [number % 2 for number in numbers]
    if code in FLOATS:
        return [number - 5.0 for number in numbers]  # their products may be -0.0
    return numbers if code in UNSIGNED else [number - 5 for number in numbers]


def repeat(code, numbers, count):
    period = struct.pack(f"={PERIOD}{code}", *numbers)
    return (period * (count // PERIOD + 1))[: count * item_nbytes(code)]


def content(code, seed, src, dst, count):
    return repeat(code, values(code, seed, src, dst), count)


def wrap(code, number):
    """Convert the number to an element of a type: a struct code, or a NumPy type name."""
    if code == BOOL:
        return bool(number)
    if code in ROUNDED:
        return struct.unpack(ROUNDED[code], struct.pack(ROUNDED[code], number))[0]
    if code not in SIGNED + UNSIGNED:
        return number
    bits = 8 * item_nbytes(code)
    number %= 1 << bits
    return number - (1 << bits) if code in SIGNED and number >> (bits - 1) else number


FOLDS = {
    "SUM": operator.add, "AVG": operator.add, "PRODUCT": operator.mul, "MIN": min, "MAX": max,
    "BAND": operator.and_, "BOR": operator.or_, "BXOR": operator.xor,
}  # fmt: skip


def fold(code, reduce, numbers):
    """Return the reduction of the ranks' numbers, as stored."""
    number = functools.reduce(FOLDS[reduce], numbers)
    if reduce == "AVG" and code in SIGNED + UNSIGNED:
        number = abs(number) // len(numbers) * (1 if number >= 0 else -1)
    elif reduce == "AVG":
        number /= len(numbers)
    return wrap(code, number)


def reduced(case, dst, nfolded, count):
    columns = zip(*(values(case.code, case.seed, src, dst) for src in range(nfolded)), strict=True)
    return repeat(case.code, [fold(case.code, case.reduce, column) for column in columns], count)


class Memory:
    """One tensor of a call, with its expected content afterwards."""

    def __init__(self, code, before, after=None, allocate=None):
        self.code, self.before = code, bytes(before)
        self.after = self.before if after is None else bytes(after)
        count = len(self.before) // item_nbytes(code)
        tensor = allocate(count, code) if allocate is not None and count > 0 else None
        self.data = bytearray(self.before) if tensor is None else memoryview(tensor).cast("B")
        self.tensor = memoryview(self.data).cast(code) if tensor is None else tensor
        self.data[:] = self.before

    def check(self, description):
        if self.data == self.after:
            return
        size = item_nbytes(self.code)
        got = memoryview(bytes(self.data)).cast(self.code)
        want = memoryview(self.after).cast(self.code)
        wrong = [i for i in range(len(want)) if got[i] != want[i]] or [-1]
        was = "unchanged there" if self.data[wrong[0] * size :][:size] == self.before[wrong[0] * size :][:size] else ""
        raise WrongResult(
            f"{description}: element {wrong[0]} is {got[wrong[0]]!r} instead of {want[wrong[0]]!r} {was}; {len(wrong)} of "
            f"{len(want)} are wrong, up to element {wrong[-1]}"
        )


class Run:
    """A call, pending or done."""

    def __init__(self, case, rank):
        self.case, self.rank = case, rank
        self.memories = []
        self.work = None

    def memory(self, before, after=None, allocate=None):
        memory = Memory(self.case.code, before, after, allocate)
        self.memories.append(memory)
        return memory.tensor

    def check(self):
        for number, memory in enumerate(self.memories):
            memory.check(f"rank {self.rank}, {self.case}, tensor {number}")


def reduce_op(name):
    return getattr(dldist.ReduceOp, name)


class _Builder:
    """Make the tensors of a case for one rank and call it. Methods have the operations' names."""

    def __init__(self, group, case, allocate):
        self.group, self.case = group, case
        self.rank, self.size = group.rank, group.size
        self.run = Run(case, group.rank)
        self.allocate = allocate

    def input(self, src, dst, count):
        return self.run.memory(content(self.case.code, self.case.seed, src, dst, count), None, self.allocate)

    def output(self, after):
        return self.run.memory(bytes([UNTOUCHED if self.case.code != BOOL else 0]) * len(after), after, self.allocate)

    def of(self, src, dst):
        return content(self.case.code, self.case.seed, src, dst, self.case.block_count(src, dst))

    def reduced(self, dst, count):
        return reduced(self.case, dst, self.size, count)

    @property
    def is_root(self):
        return self.rank == self.case.root

    def all_reduce(self, **options):
        count = self.case.count
        tensor = self.run.memory(self.content(0), self.reduced(0, count), self.allocate)
        return self.group.all_reduce(tensor, op=reduce_op(self.case.reduce), **options)

    def scan(self, **options):
        after = reduced(self.case, 0, self.rank + 1, self.case.count)
        tensor = self.run.memory(self.content(0), after, self.allocate)
        return self.group.scan(tensor, op=reduce_op(self.case.reduce), **options)

    def exscan(self, **options):
        after = reduced(self.case, 0, self.rank, self.case.count) if self.rank > 0 else None
        tensor = self.run.memory(self.content(0), after, self.allocate)
        return self.group.exscan(tensor, op=reduce_op(self.case.reduce), **options)

    def content(self, dst):
        return content(self.case.code, self.case.seed, self.rank, dst, self.case.count)

    def broadcast(self, **options):
        after = content(self.case.code, self.case.seed, self.case.root, 0, self.case.count)
        tensor = self.input(self.rank, 0, self.case.count) if self.is_root else self.output(after)
        return self.group.broadcast(tensor, root=self.case.root, **options)

    def reduce(self, **options):
        after = self.reduced(0, self.case.count) if self.is_root else None
        tensor = self.run.memory(self.content(0), after, self.allocate)
        return self.group.reduce(tensor, root=self.case.root, op=reduce_op(self.case.reduce), **options)

    def all_gather(self, **options):
        outputs = [self.output(self.of(src, 0)) for src in range(self.size)]
        return self.group.all_gather(outputs, self.input(self.rank, 0, self.case.block_count(self.rank, 0)), **options)

    def all_gather_single(self, **options):
        output = self.output(b"".join(self.of(src, 0) for src in range(self.size)))
        return self.group.all_gather_single(output, self.input(self.rank, 0, self.case.count), **options)

    def gather(self, **options):
        tensor = self.input(self.rank, 0, self.case.block_count(self.rank, 0))
        outputs = [self.output(self.of(src, 0)) for src in range(self.size)] if self.is_root else None
        return self.group.gather(tensor, outputs, root=self.case.root, **options)

    def scatter(self, **options):
        root = self.case.root
        output = self.output(self.of(root, self.rank))
        inputs = None
        if self.is_root:
            inputs = [self.input(root, dst, self.case.block_count(root, dst)) for dst in range(self.size)]
        return self.group.scatter(output, inputs, root=root, **options)

    def reduce_scatter(self, **options):
        output = self.output(self.reduced(self.rank, self.case.block_count(0, self.rank)))
        inputs = [self.input(self.rank, dst, self.case.block_count(self.rank, dst)) for dst in range(self.size)]
        return self.group.reduce_scatter(output, inputs, op=reduce_op(self.case.reduce), **options)

    def reduce_scatter_single(self, **options):
        output = self.output(self.reduced(self.rank, self.case.count))
        tensor = self.run.memory(b"".join(self.of(self.rank, dst) for dst in range(self.size)), None, self.allocate)
        return self.group.reduce_scatter_single(output, tensor, op=reduce_op(self.case.reduce), **options)

    def all_to_all(self, **options):
        outputs = [self.output(self.of(src, self.rank)) for src in range(self.size)]
        inputs = [self.input(self.rank, dst, self.case.block_count(self.rank, dst)) for dst in range(self.size)]
        return self.group.all_to_all(outputs, inputs, **options)

    def all_to_all_single(self, **options):
        output = self.output(b"".join(self.of(src, self.rank) for src in range(self.size)))
        tensor = self.run.memory(b"".join(self.of(self.rank, dst) for dst in range(self.size)), None, self.allocate)
        if self.case.counts is not None:
            options["output_split_sizes"] = [self.case.block_count(src, self.rank) for src in range(self.size)]
            options["input_split_sizes"] = [self.case.block_count(self.rank, dst) for dst in range(self.size)]
        return self.group.all_to_all_single(output, tensor, **options)

    def barrier(self, **options):
        return self.group.barrier(**options)


def start(group, case, allocate=None, **options):
    """Start the case; return a Run.

    Options: async_op, timeout. allocate(count, code) must return flat memory of bytes for the
    tensors.
    """
    builder = _Builder(group, case, allocate)
    builder.run.work = getattr(builder, case.op)(**options)
    return builder.run


def run(group, case, **options):
    """Run the case and check its result."""
    start(group, case, **options).check()


def all_cases(nranks, counts=(0, 1, 1000, 20_000), seed=0):
    """Return cases that cover all operations, types and reductions, but not all combinations."""
    cases = []
    for op in COLLECTIVES:
        if op == "barrier":
            cases.append(Case(op))
            continue
        for number, code in enumerate(CODES):
            count = counts[number % len(counts)]
            reduce = next(
                reduce
                for reduce in (*REDUCTIONS[number % 8 :], *REDUCTIONS)
                if op not in REDUCING or can_reduce(op, code, reduce, nranks)
            )
            cases.append(Case(op, code, count, root=number % nranks, reduce=reduce, seed=seed + number))
        if op in UNEVEN:
            cases += [Case(op, code, counts=uneven(op, nranks), root=nranks - 1, seed=seed) for code in "Bd"]
    return cases


def uneven(op, nranks):
    if op in ("all_to_all", "all_to_all_single"):
        return [[(src * 5 + dst * 3) % 7 * 100 for dst in range(nranks)] for src in range(nranks)]
    return [rank % 3 * 1000 + rank for rank in range(nranks)]
