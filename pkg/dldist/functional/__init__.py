"""Collectives that return new arrays: for JAX, whose arrays never change, and for programs that prefer values to changes in place.

    import dldist.functional as F

    total = F.all_reduce(x)                      # of x's library, type and dtype; x stays as it is
    pending = F.all_gather(x, async_op=True)     # pending.wait(), await pending, numpy.asarray(pending)

Arrays are those of NumPy, PyTorch, JAX, CuPy and every other library with __dlpack__ and from_dlpack, array.array, bytes,
bytearray and memoryview. `group` is a dldist.Group or World, or a group of new_group; None is the default world. Ranks are
the group's. `timeout` is for this call; the group's when not given.

With arrays of JAX all but all_gather_any and barrier also work inside of jax.jit. all_reduce and reduce_scatter ("sum" and
"avg"), scan ("sum"), all_gather, all_to_all, broadcast and permute have gradients, in JAX and in PyTorch. They are of
the sum over all ranks, so every rank has to take part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from dldist import _core
from dldist._api import work_registry
from dldist._base import arrays
from dldist._base.docstrings import completed
from dldist._objects.exchange import Exchange
from dldist.functional import tree as functional_tree
from dldist.functional.form import COPIES, NOTHING, ZEROS, Form, Pending, as_index, let_compiled_calls_finish, operations_of
from dldist.types import AnyGroup, Op, Tensor, Timeout

ArrayT = TypeVar("ArrayT", bound=Tensor)
TreeT = TypeVar("TreeT")

__all__ = [
    "Pending",
    "all_gather",
    "all_gather_any",
    "all_reduce",
    "all_reduce_tree",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "permute",
    "recv",
    "reduce",
    "reduce_scatter",
    "scan",
    "scatter",
    "send",
    "wait_tensor",
]


def __dir__() -> list[str]:
    return __all__


_MAX_DIMENSIONS = 32

_ARGUMENTS = {
    "x": "An array; of the same dtype and shape on all ranks.",
    "root": "The rank of the group that gets the result; the same on all ranks.",
    "op": 'The reduction: a dldist.ReduceOp, or "sum", "avg", "product", "min", "max", "band", "bor" or "bxor".',
    "group": "None is the default world.",
    "timeout": "Seconds or a timedelta for this call. None is the group's own; 0 fails at once if a rank is missing.",
    "async_op": "Return a Pending, whose wait() gives the result.",
}
_documented = completed(
    _ARGUMENTS, raises="DistMismatchError, DistTimeoutError, DistPeerLostError, DistAbortedError: As in all_reduce."
)


def _name_of(op: Op) -> str:
    return str(getattr(op, "name", op)).lower()


def _is_linear(op: Op) -> bool:
    """Whether a reduction has a gradient, which is then the same reduction."""
    return _name_of(op) in ("sum", "avg")


def _by_parts(calls: Any, name: str, axis: int, whole: Any, sizes: list[int]) -> tuple[Any, Any]:
    """The operation for parts of an array along an axis, and these parts: the array itself where they lie one behind the other."""
    if axis == 0:
        return getattr(calls, f"{name}_single"), whole
    return getattr(calls, name), None if whole is None else arrays.pieces(whole, axis, sizes)


# ---- reductions


@completed(_ARGUMENTS)
def all_reduce(
    x: ArrayT, op: Op = "sum", group: AnyGroup | None = None, *, timeout: Timeout | None = None, async_op: bool = False
) -> Pending | ArrayT:
    """The reduction of what all ranks give.

    Args:
        op: "sum", "avg", "product", "min", "max", "band", "bor", "bxor", or a dldist.ReduceOp. The first two have gradients.

    Returns:
        An array like x.

    Raises:
        ValueError, TypeError: Of arguments. The group lives on.
        DistMismatchError: The ranks differ in the call, the dtype, the size or the reduction.
        DistTimeoutError, DistPeerLostError, DistAbortedError: A rank was late, has died, or has given up. After this, and after
            a mismatch, the group is of no more use.

    Example:
        >>> F.all_reduce(array("f", [1, 2])).tolist()         # in a world of one
        [1.0, 2.0]
        >>> F.all_reduce(array("f", [1, 2]), "max", async_op=True).wait().tolist()
        [1.0, 2.0]
    """
    form = Form("all_reduce", x, group, timeout, async_op)

    def start(calls: Any, source: Any, output: Any, **options: Any) -> Any:
        return calls.all_reduce(output, op, **options)

    def transpose(gradient: Any) -> list[Any]:
        return [all_reduce(gradient, op, group, timeout=timeout)]

    def again(x: Any) -> Any:
        return all_reduce(x, op, group, timeout=timeout)

    return form.run([x], start, [form.shape], again=again, fill=COPIES, transpose=transpose if _is_linear(op) else None)


@_documented
def all_reduce_tree(
    tree: TreeT,
    op: Op = "sum",
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> Pending | TreeT:
    """The same tree with every array reduced: one operation for all arrays of a dtype. For gradients and the like.

    Args:
        tree: A dict, list or tuple of arrays and trees, None, or a container that JAX knows; alike on all ranks. Dicts are gone
            through by their sorted keys, so ranks may have filled them in any order.

    Returns:
        A tree like the given one.

    Raises:
        TypeError: Something in the tree is no array, or keys cannot be sorted.

    Example:
        >>> F.all_reduce_tree({"weight": array("f", [1, 2]), "bias": [array("f", [3])]}, "avg")
        {'weight': array('f', [1.0, 2.0]), 'bias': [array('f', [3.0])]}
    """
    leaves, rebuild = functional_tree.flatten(tree, "all_reduce_tree")
    if not leaves:
        operations_of(group)
        return Pending([], rebuild) if async_op else rebuild()
    form = Form("all_reduce_tree", leaves[0], group, timeout, async_op)
    count = len(leaves)

    def start(calls: Any, *sources_and_outputs: Any, **options: Any) -> Any:
        by_dtype: dict[str, list[Any]] = {}
        for output in sources_and_outputs[count:]:
            by_dtype.setdefault(_core._describe_tensor(output, False)["dtype"], []).append(output)
        return [calls.all_reduce_coalesced(same, op, **options) for same in by_dtype.values()]

    def transpose(*gradients: Any) -> list[Any]:
        reduced: Any = all_reduce_tree(list(gradients), op, group, timeout=timeout)
        return reduced

    def again(*leaves: Any) -> Any:
        return all_reduce_tree(list(leaves), op, group, timeout=timeout)

    shapes = [arrays.family_of(leaf, form.name).shape(leaf) for leaf in leaves]
    return form.run(leaves, start, shapes, again=again, fill=COPIES, transpose=transpose if _is_linear(op) else None, pack=rebuild)


@_documented
def reduce(
    x: ArrayT,
    root: int = 0,
    op: Op = "sum",
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> Pending | ArrayT | None:
    """The reduction of what all ranks give on one rank.

    Args:

    Returns:
        An array like x on the root, None on the others.

    Raises:
        ValueError: There is no such rank.

    Example:
        >>> F.reduce(array("f", [1, 2]), root=0)
        array('f', [1.0, 2.0])
    """
    form = Form("reduce", x, group, timeout, async_op)
    root = form.as_rank(root, "root")

    def start(calls: Any, source: Any, output: Any, **options: Any) -> Any:
        return calls.reduce(output, root, op, **options)

    def again(x: Any) -> Any:
        result: Any = reduce(x, root, op, group, timeout=timeout)
        return x if result is None else result  # of no meaning there

    return form.run([x], start, [form.shape], again=again, fill=COPIES, pack=lambda result: result if form.rank == root else None)


@_documented
def scan(
    x: ArrayT, op: Op = "sum", group: AnyGroup | None = None, *, timeout: Timeout | None = None, async_op: bool = False
) -> Pending | ArrayT:
    """The reduction of the arrays of ranks 0 to r, on each rank r: the inclusive prefix reduction.

    Args:
        x: An array; of the same dtype and shape on all ranks.
        op: As in all_reduce, but not "avg". Only "sum" has a gradient.

    Returns:
        An array like x.

    Raises:
        ValueError: The reduction is "avg", or dldist does not have it for the dtype.

    Example:
        >>> F.scan(array("f", [1, 2])).tolist()               # in a world of one
        [1.0, 2.0]
    """
    form = Form("scan", x, group, timeout, async_op)

    def start(calls: Any, source: Any, output: Any, **options: Any) -> Any:
        return calls.scan(output, op, **options)

    def transpose(gradient: Any) -> list[Any]:
        # A rank's array is in the results of the ranks from it on: a scan in which the ranks stand in reverse.
        mirror = [(rank, form.size - 1 - rank) for rank in range(form.size)]
        suffix = scan(permute(gradient, mirror, group, timeout=timeout), op, group, timeout=timeout)
        return [permute(suffix, mirror, group, timeout=timeout)]

    def again(x: Any) -> Any:
        return scan(x, op, group, timeout=timeout)

    return form.run([x], start, [form.shape], again=again, fill=COPIES, transpose=transpose if _is_linear(op) else None)


@_documented
def reduce_scatter(
    x: ArrayT,
    op: Op = "sum",
    axis: int = 0,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> Pending | ArrayT:
    """This rank's part, along an axis, of the reduction of what all ranks give.

    Args:
        axis: What is divided; its length is a multiple of the group's size.

    Returns:
        An array like x, whose axis is shorter.

    Raises:
        ValueError: There is no such axis, or it cannot be shared evenly.

    Example:
        >>> F.reduce_scatter(array("f", [1, 2]), "avg")
        array('f', [1.0, 2.0])
    """
    form = Form("reduce_scatter", x, group, timeout, async_op)
    axis = form.axis(axis)
    share = form.share(axis)

    def start(calls: Any, source: Any, output: Any, **options: Any) -> Any:
        call, parts = _by_parts(calls, "reduce_scatter", axis, source, [share] * form.size)
        return call(output, parts, op, **options)

    def transpose(gradient: Any) -> list[Any]:
        if _name_of(op) == "avg":
            gradient = gradient / form.size
        return [all_gather(gradient, axis, group=group, timeout=timeout)]

    def again(x: Any) -> Any:
        return reduce_scatter(x, op, axis, group, timeout=timeout)

    shape = form.with_extent(axis, share)
    return form.run([x], start, [shape], again=again, transpose=transpose if _is_linear(op) else None)


# ---- collections


@_documented
def all_gather(
    x: ArrayT,
    axis: int = 0,
    tiled: bool = True,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> Pending | ArrayT:
    """What all ranks give, concatenated along an axis in the order of the ranks, or stacked along a new one.

    Args:
        x: An array; of the same dtype and shape on all ranks: all_gather_any is for others. What has no axis counts as one element.
        axis: Along which the parts are one behind the other.
        tiled: False stacks them along a new axis.

    Returns:
        An array of x's library and dtype.

    Raises:
        ValueError: There is no such axis.

    Example:
        >>> F.all_gather(array("f", [1, 2]))
        array('f', [1.0, 2.0])
    """
    form = Form("all_gather", x, group, timeout, async_op)
    axis, shape, extent = _gathered(form, axis, tiled)

    def start(calls: Any, source: Any, output: Any, **options: Any) -> Any:
        call, parts = _by_parts(calls, "all_gather", axis, output, [extent] * form.size)
        return call(parts, source, **options)

    def transpose(gradient: Any) -> list[Any]:
        part: Any = reduce_scatter(gradient, "sum", axis, group, timeout=timeout)
        return [part.reshape(form.shape)]

    def again(x: Any) -> Any:
        return all_gather(x, axis, tiled and form.shape != (), group, timeout=timeout)

    return form.run([x], start, [shape], again=again, transpose=transpose)


def _gathered(form: Form, axis: int, tiled: bool) -> tuple[int, tuple[int, ...], int]:
    """The axis along which the result has the parts of ranks, the result's shape, and the extent of a part."""
    if tiled and form.shape:
        axis = form.axis(axis)
        extent = form.shape[axis]
        return axis, form.with_extent(axis, extent * form.size), extent
    axis = form.axis(axis, new=1)
    return axis, (*form.shape[:axis], form.size, *form.shape[axis:]), 1


@_documented
def gather(
    x: ArrayT,
    root: int = 0,
    axis: int = 0,
    tiled: bool = True,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> Pending | ArrayT | None:
    """What all_gather gives, on one rank.

    Args:
        axis: Along which the parts are one behind the other.
        tiled: False stacks them along a new axis.

    Returns:
        An array of x's library and dtype on the root, None on the others.

    Raises:
        ValueError: There is no such rank or axis.

    Example:
        >>> F.gather(array("f", [1, 2]), root=0)
        array('f', [1.0, 2.0])
    """
    form = Form("gather", x, group, timeout, async_op)
    root = form.as_rank(root, "root")
    axis, shape, extent = _gathered(form, axis, tiled)

    def start(calls: Any, source: Any, output: Any, **options: Any) -> Any:
        call, parts = _by_parts(calls, "gather", axis, output, [extent] * form.size)
        return call(source, parts, root, **options)

    def again(x: Any) -> Any:
        return gather(x, root, axis, tiled and form.shape != (), group, timeout=timeout)

    return form.run([x], start, [shape] if form.rank == root else None, again=again)


@_documented
def all_gather_any(
    x: ArrayT, group: AnyGroup | None = None, *, timeout: Timeout | None = None, async_op: bool = False
) -> Pending | list[ArrayT]:
    """A list of what all ranks give, whatever the shapes; these travel along.

    Args:
        x: An array; of the same dtype on all ranks. Not in jax.jit.
        async_op: Return a Pending. The shapes are waited for, and the content is not.

    Returns:
        A list of arrays of x's library and dtype, by rank.

    Raises:
        TypeError: It is called in jax.jit.
        ValueError: x has more than 32 dimensions.

    Example:
        >>> F.all_gather_any(array("f", [1, 2]))
        [array('f', [1.0, 2.0])]
    """
    form = Form("all_gather_any", x, group, timeout, async_op)
    if arrays.is_traced(x):
        raise TypeError("all_gather_any(): not in jax.jit, where the shapes of results must be known beforehand")
    shapes = _exchange_shapes(form)
    family = arrays.family_of(x, form.name)

    parts = [family.empty_like(x, shape) for shape in shapes]

    def start(calls: Any, source: Any, output: Any, **options: Any) -> Any:
        return calls.all_gather(parts, source, **options)

    return form.run([x], start, None, again=all_gather_any, pack=lambda: [family.finish(part, x) for part in parts])


def _exchange_shapes(form: Form) -> list[tuple[int, ...]]:
    if len(form.shape) > _MAX_DIMENSIONS:
        raise ValueError(f"{form.name}(): x has {len(form.shape)} dimensions; dldist takes up to {_MAX_DIMENSIONS}")
    shapes = Exchange(form.operations, form.name, "safe", form.timeout).all_gather(form.shape)
    for rank, shape in enumerate(shapes):
        if not isinstance(shape, tuple) or not all(type(extent) is int and extent >= 0 for extent in shape):
            raise _core.DistMismatchError(f"{form.name}(): rank {rank} sent what is no shape: {shape!r}")
    return shapes


# ---- from one rank, and between all


@_documented
def broadcast(
    x: ArrayT, root: int = 0, group: AnyGroup | None = None, *, timeout: Timeout | None = None, async_op: bool = False
) -> Pending | ArrayT:
    """What one rank gives.

    Args:
        x: An array; of the same dtype and shape on all ranks. What the others have in it does not matter.
        root: The rank of the group that has the data; the same on all ranks.

    Returns:
        An array like x.

    Raises:
        ValueError: There is no such rank.

    Example:
        >>> F.broadcast(array("f", [1, 2]), root=0)
        array('f', [1.0, 2.0])
    """
    form = Form("broadcast", x, group, timeout, async_op)
    root = form.as_rank(root, "root")

    def start(calls: Any, source: Any, output: Any, **options: Any) -> Any:
        return calls.broadcast(output, root, **options)

    def transpose(gradient: Any) -> list[Any]:
        total = reduce(gradient, root, "sum", group, timeout=timeout)
        return [arrays.zeros_like(gradient) if total is None else total]

    def again(x: Any) -> Any:
        return broadcast(x, root, group, timeout=timeout)

    fill = COPIES if form.rank == root else NOTHING
    return form.run([x], start, [form.shape], again=again, fill=fill, transpose=transpose)


@_documented
def scatter(
    x: ArrayT,
    root: int = 0,
    axis: int = 0,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> Pending | ArrayT:
    """This rank's part, along an axis, of what one rank gives.

    Args:
        x: On the root all parts, of equal length along the axis; on the others an array like their part.
        root: The rank of the group that has the data; the same on all ranks.
        axis: What is divided; the same on all ranks.

    Returns:
        An array of x's library and dtype.

    Raises:
        ValueError: There is no such rank or axis, or it cannot be shared evenly.

    Example:
        >>> F.scatter(array("f", [1, 2]), root=0)
        array('f', [1.0, 2.0])
    """
    form = Form("scatter", x, group, timeout, async_op)
    root = form.as_rank(root, "root")
    axis = form.axis(axis)
    is_root = form.rank == root
    share = form.share(axis) if is_root else form.shape[axis]

    def start(calls: Any, source: Any, output: Any, **options: Any) -> Any:
        call, parts = _by_parts(calls, "scatter", axis, source if is_root else None, [share] * form.size)
        return call(output, parts, root, **options)

    def again(x: Any) -> Any:
        return scatter(x, root, axis, group, timeout=timeout)

    return form.run([x], start, [form.with_extent(axis, share)], again=again)


@_documented
def all_to_all(
    x: ArrayT,
    split_axis: int = 0,
    concat_axis: int = 0,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> Pending | ArrayT:
    """The r-th part of x goes to rank r; what the ranks have sent is concatenated in their order.

    Args:
        x: An array; of the same dtype on all ranks, and of the same shape but for the sizes of parts.
        split_axis: Along which x is split.
        concat_axis: Along which what has come is concatenated.
        output_split_sizes: How long what comes from each rank is, if parts are not equal; for equal axes.
        input_split_sizes: How long what goes to each rank is, if parts are not equal; for equal axes.

    Returns:
        An array of x's library and dtype.

    Raises:
        ValueError: There is no such axis, it cannot be shared evenly, or sizes do not fit.

    Example:
        >>> F.all_to_all(array("f", [1, 2]))
        array('f', [1.0, 2.0])
    """
    form = Form("all_to_all", x, group, timeout, async_op)
    split, concat = form.axis(split_axis, "split_axis"), form.axis(concat_axis, "concat_axis")
    if split != concat and (output_split_sizes is not None or input_split_sizes is not None):
        raise ValueError("all_to_all(): split sizes are for equal split_axis and concat_axis")
    sent = _split_sizes(form, "input_split_sizes", input_split_sizes, split)
    if split == concat:
        received = _split_sizes(form, "output_split_sizes", output_split_sizes, split)
        shape = form.with_extent(split, sum(received))
    else:
        received = [form.shape[concat]] * form.size
        extents = list(form.with_extent(split, sent[0]))
        extents[concat] *= form.size
        shape = tuple(extents)

    def start(calls: Any, source: Any, output: Any, **options: Any) -> Any:
        if split == concat == 0:
            return calls.all_to_all_single(output, source, received, sent, **options)
        parts = arrays.pieces(source, split, sent)
        return calls.all_to_all(arrays.pieces(output, concat, received), parts, **options)

    def transpose(gradient: Any) -> list[Any]:
        if split == concat:
            return [all_to_all(gradient, split, split, sent, received, group, timeout=timeout)]
        return [all_to_all(gradient, concat, split, group=group, timeout=timeout)]

    def again(x: Any) -> Any:
        return all_to_all(x, split, concat, output_split_sizes, input_split_sizes, group, timeout=timeout)

    return form.run([x], start, [shape], again=again, transpose=transpose)


def _split_sizes(form: Form, argument: str, sizes: Sequence[int] | None, axis: int) -> list[int]:
    if sizes is None:
        return [form.share(axis)] * form.size
    sizes = list(sizes)
    numbers = [number for size in sizes if (number := as_index(size)) is not None and number >= 0]
    if len(sizes) != form.size or len(numbers) != form.size:
        raise ValueError(f"{form.name}(): argument '{argument}' must be a size for each of {form.size} ranks, not {sizes}")
    if argument == "input_split_sizes" and sum(numbers) != form.shape[axis]:
        raise ValueError(
            f"{form.name}(): argument '{argument}': {numbers} is {sum(numbers)} together, and axis {axis} has {form.shape[axis]}"
        )
    return numbers


@_documented
def permute(
    x: ArrayT,
    pairs: Iterable[tuple[int, int]],
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> Pending | ArrayT:
    """What another rank gives.

    Args:
        pairs: Pairs (source, destination): the source's x goes to the destination. The same on all ranks; no rank is twice a
            source or twice a destination.

    Returns:
        An array like x; zeros on a rank that is no destination.

    Raises:
        ValueError: There is no such rank, or a rank is twice on one side.

    Example:
        >>> F.permute(array("f", [1, 2]), [(0, 0)])
        array('f', [1.0, 2.0])
    """
    form = Form("permute", x, group, timeout, async_op)
    destination_of = _routes(form, pairs)
    source_of = {destination: source for source, destination in destination_of.items()}
    goes_to, comes_from = destination_of.get(form.rank), source_of.get(form.rank)

    # Not by messages: their tags are the caller's.
    def start(calls: Any, source: Any, output: Any, **options: Any) -> Any:
        family = arrays.family_of(source, form.name)
        sent = [family.empty_like(source, (0,)) for _ in range(form.size)]
        received = [family.empty_like(source, (0,)) for _ in range(form.size)]
        if goes_to is not None:
            sent[goes_to] = source
        if comes_from is not None:
            received[comes_from] = output
        return calls.all_to_all(received, sent, **options)

    def transpose(gradient: Any) -> list[Any]:
        return [permute(gradient, source_of.items(), group, timeout=timeout)]

    def again(x: Any) -> Any:
        return permute(x, destination_of.items(), group, timeout=timeout)

    fill = ZEROS if comes_from is None else NOTHING
    return form.run([x], start, [form.shape], again=again, fill=fill, transpose=transpose)


def _routes(form: Form, pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """The destinations by their sources."""
    routes: dict[int, int] = {}
    for pair in pairs:
        if len(pair) != 2:
            raise ValueError(f"{form.name}(): argument 'pairs' must have pairs of a source and a destination, not {pair}")
        source, destination = pair
        source, destination = form.as_rank(source, "pairs"), form.as_rank(destination, "pairs")
        if source in routes or destination in routes.values():
            raise ValueError(f"{form.name}(): argument 'pairs' has a source or a destination twice: {pair}")
        routes[source] = destination
    return routes


# ---- messages


@completed(_ARGUMENTS)
def send(
    x: Tensor,
    dst: int,
    tag: int = 0,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> Pending | None:
    """Send an array to a rank that receives it.

    Args:
        x: What is sent.
        dst: The rank of the group.
        tag: A number of 0 or more that the receiver has to name as well.
        timeout: Seconds or a timedelta until it has to be taken. None is the group's own.
        async_op: Return a Pending, whose wait() gives None.

    Raises:
        ValueError: There is no such rank.
        DistTimeoutError: Nobody has received it in time. The group lives on.
        DistPeerLostError, DistAbortedError: The receiver has died, or the group was given up.

    Example:
        >>> pending = F.send(array("f", [1, 2]), dst=0, async_op=True)
        >>> F.recv(array("f", [0, 0]), src=0)
        array('f', [1.0, 2.0])
    """
    form = Form("send", x, group, timeout, async_op)
    dst = form.as_rank(dst, "dst")

    def start(calls: Any, source: Any, output: Any, timeout: Any, async_op: bool) -> Any:
        return (calls.isend if async_op else calls.send)(source, dst, tag, timeout=timeout)

    def again(x: Any) -> Any:
        return send(x, dst, tag, group, timeout=timeout)

    return form.run([x], start, None, again=again)


@completed(_ARGUMENTS)
def recv(
    like: ArrayT,
    src: int | None = None,
    tag: int = 0,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> Pending | ArrayT:
    """An array that a rank sends.

    Args:
        like: An array of the type, shape and dtype of the result; it stays as it is.
        src: The rank of the group; None: any rank.
        tag: The number that the sender has given.
        timeout: Seconds or a timedelta until it has to come. None is the group's own; 0 takes only what is there already.

    Returns:
        An array like `like`. A message that is shorter leaves zeros at the end; one that is longer is an error.

    Raises:
        ValueError: There is no such rank.
        DistTimeoutError: Nothing has come in time. The group lives on.
        DistMismatchError: The message has another dtype; it is lost, and the group lives on.
        DistPeerLostError, DistAbortedError: The sender has died, or the group was given up.
    """
    form = Form("recv", like, group, timeout, async_op)
    if src is not None:
        src = form.as_rank(src, "src")

    def start(calls: Any, source: Any, output: Any, timeout: Any, async_op: bool) -> Any:
        arrays.family_of(source, form.name).clear(output)
        return (calls.irecv if async_op else calls.recv)(output, src, tag, timeout=timeout)

    def again(like: Any) -> Any:
        return recv(like, src, tag, group, timeout=timeout)

    return form.run([like], start, [form.shape], again=again)


def barrier(group: AnyGroup | None = None, *, timeout: Timeout | None = None, async_op: bool = False) -> Pending | None:
    """Wait until all ranks are here. Compiled functions of JAX that were called before have made their collectives then.

    Args:
        group: As in all_reduce, and as there `timeout`.
        async_op: Return a Pending, whose wait() gives None.

    Raises:
        DistMismatchError, DistTimeoutError, DistPeerLostError, DistAbortedError: As of all_reduce.

    Example:
        >>> F.barrier()
    """
    let_compiled_calls_finish()
    work = operations_of(group).barrier(timeout=timeout, async_op=async_op)
    return Pending([work], lambda: None) if async_op else None


def wait_tensor(x: ArrayT | Pending) -> ArrayT | Any:
    """Wait for what is under way in an array, and return it.

    Args:
        x: A Pending, of whose result it waits; or an array, for which works have been noted by c10d's `_register_work`.

    Returns:
        The result of the Pending; the array itself.

    Raises:
        DistTimeoutError, DistPeerLostError: As the operation that is waited for.

    Example:
        >>> F.wait_tensor(F.all_reduce(array("f", [1]), async_op=True))
        array('f', [1.0])
    """
    if isinstance(x, Pending):
        return x.wait()
    for work in work_registry.take(x):
        work.wait()
    return x
