"""Collectives that return new arrays, for JAX and for functional programs.

    import dldist.functional as F

    total = F.all_reduce(x)                      # of x's library, type and dtype; x is unchanged
    pending = F.all_gather(x, async_op=True)     # pending.wait() or await pending gives the result

Arrays may come from NumPy, PyTorch, JAX, CuPy or any other library with __dlpack__ and from_dlpack;
array.array, bytes, bytearray and memoryview also work, as do Python's numbers, and columns of pandas
or polars, which give NumPy arrays. `group` is a dldist.Group, a World or a
group from new_group; None is the default world. Ranks are group ranks. `timeout` limits one call.

With JAX arrays, all functions except barrier and those that end in _any also work inside jax.jit.
all_reduce and reduce_scatter ("sum" and "avg"), scan and exscan ("sum"), all_gather, all_to_all, broadcast and
permute have gradients, in JAX and in PyTorch. Gradients are of the sum over all ranks, so every
rank must take part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from dldist import _core
from dldist._api import work_registry
from dldist._base import arrays
from dldist._base.docstrings import completed
from dldist._base.probes import NO_RANK
from dldist._objects.exchange import Exchange
from dldist.functional import reductions
from dldist.functional import tree as functional_tree
from dldist.functional.form import COPIES, NOTHING, ZEROS, Form, Pending, as_index, operations_of, wait_for_compiled_calls
from dldist.functional.reductions import Op
from dldist.types import AnyGroup, Tensor, Timeout

ArrayT = TypeVar("ArrayT", bound=Tensor | complex)
TreeT = TypeVar("TreeT")

__all__ = [
    "Pending",
    "all_gather",
    "all_gather_any",
    "all_reduce",
    "all_reduce_tree",
    "all_to_all",
    "all_to_all_any",
    "barrier",
    "broadcast",
    "exscan",
    "gather",
    "gather_any",
    "permute",
    "recv",
    "reduce",
    "reduce_scatter",
    "scan",
    "scatter",
    "scatter_any",
    "send",
    "wait_tensor",
]


def __dir__() -> list[str]:
    return __all__


_MAX_DIMENSIONS = 32

_ARGUMENTS = {
    "x": "An array or a number; of the same dtype and shape on all ranks.",
    "root": "The rank of the group that sends or gets the data; the same on all ranks.",
    "axis": "The axis along which to concatenate or stack.",
    "tiled": "True concatenates; False stacks along a new axis.",
    "op": "The reduction, as in all_reduce: a dldist.ReduceOp, a name, or a function.",
    "group": "None is the default world.",
    "timeout": "Seconds or a timedelta for this call. None is the group's own; 0 fails at once if a rank is missing.",
    "async_op": "Return a Pending, whose wait() gives the result.",
}
_documented = completed(
    _ARGUMENTS,
    returns="An array of x's library and dtype.",
    raises="DistMismatchError, DistTimeoutError, DistPeerLostError, DistAbortedError: As in all_reduce.",
)


def _by_parts(calls: Any, name: str, axis: int, array: Any, sizes: list[int]) -> tuple[Any, Any]:
    """Return the group's operation on parts along an axis, and its argument: for axis 0 the whole
    array, otherwise a list of the parts."""
    if axis == 0:
        return getattr(calls, f"{name}_single"), array
    return getattr(calls, name), None if array is None else arrays.pieces(array, axis, sizes)


def _then(pending: list[Any], finish: Callable[..., Any]) -> Pending:
    """Return the Pending of finish(*results) for these Pendings."""
    return Pending([work for each in pending for work in each._works], lambda: finish(*(each.wait() for each in pending)))


def _extended(call: Any, extension: reductions.Extension, x: Any, group: Any, timeout: Any, async_op: bool, **arguments: int) -> Any:
    """Run a reducing call with a reduction that the core lacks. To fold, ranks exchange their
    arrays, or their parts in a reduce_scatter; in an exscan, rank 0 returns its own array."""
    name, axis = call.__name__, arguments.get("axis", 0)
    x = x if isinstance(x, tuple) else arrays.as_value(x)
    values = extension.prepare(x, name)
    form = Form(name, values, group, timeout, async_op)
    has_list = form.shape != () and not form.has_slices
    options: Any = {"group": group, "timeout": timeout, "async_op": async_op}
    if extension.op:
        moved = call(values, op=extension.op, **arguments, **options)
    elif call is reduce_scatter:
        moved = all_to_all(values, axis, axis, **options)
    elif call is reduce:
        moved = gather_any(values, arguments["root"], **options) if has_list else gather(values, arguments["root"], 0, False, **options)
    else:
        moved = all_gather_any(values, **options) if has_list else all_gather(values, 0, False, **options)

    def finish(moved: Any) -> Any:
        if moved is not None and not extension.op:
            if call is reduce_scatter:
                moved = arrays.pieces(moved, form.axis(axis), [form.share(form.axis(axis))] * form.size)
            count = {"scan": form.rank + 1, "exscan": max(form.rank, 1)}.get(name, form.size)
            moved = extension.reduce([moved[rank] for rank in range(count)], name)
        return None if moved is None else extension.restore(moved, x)

    return _then([moved], finish) if async_op else finish(moved)


@completed(_ARGUMENTS)
def all_reduce(
    x: ArrayT, op: Op = "sum", group: AnyGroup | None = None, *, timeout: Timeout | None = None, async_op: bool = False
) -> Pending[ArrayT] | ArrayT:
    """Reduce the arrays of all ranks; every rank gets the result.

    Args:
        op: "sum", "avg" or "mean" (these have gradients), "product", "min", "max", "band", "bor",
            "bxor", a dldist.ReduceOp, or a function such as numpy.add or max. "avg" of integers
            truncates the mean toward zero. "land", "lor" and "lxor" give 0 or 1. "minloc" and
            "maxloc" take a tuple (value, index) or a structured array of two fields. Any other
            function f(a, b) is called in Python, on all ranks' arrays in rank order, and must
            return an array of the same shape and dtype.

    Raises:
        ValueError, TypeError: Wrong arguments. The group stays usable.
        DistMismatchError: Call, dtype, size or reduction differ between ranks.
        DistTimeoutError, DistPeerLostError, DistAbortedError: A rank was late, was lost, or aborted
            the group. After these and a mismatch, the group is unusable.
        Exception: An exception of a function. The other ranks are not affected.

    Example:
        >>> F.all_reduce(array("f", [1, 2])).tolist()         # in a world of one
        [1.0, 2.0]
        >>> F.all_reduce(array("f", [1, 2]), "max", async_op=True).wait().tolist()
        [1.0, 2.0]
        >>> F.all_reduce(0.5)
        0.5
    """
    if (extension := reductions.extension_of(op)) is not None:
        return _extended(all_reduce, extension, x, group, timeout, async_op)
    form = Form("all_reduce", x, group, timeout, async_op, op)

    def start(calls: Any, source: Any, output: Any, **options: Any) -> Any:
        return calls.all_reduce(output, op, **options)

    def transpose(gradient: Any) -> list[Any]:
        return [all_reduce(gradient, op, group, timeout=timeout)]

    return form.run([x], start, [form.shape], partial(all_reduce, op=op), fill=COPIES, transpose=transpose)


@_documented
def all_reduce_tree(
    tree: TreeT,
    op: Op = "sum",
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> Pending[TreeT] | TreeT:
    """Reduce every array of a tree, such as gradients, with one operation per dtype.

    Args:
        tree: A dict, list or tuple of arrays, numbers and trees, None, or a container registered
            with JAX.
            Must have the same structure on all ranks, with dicts in sorted key order.

    Returns:
        A tree of the same structure.

    Raises:
        TypeError: A leaf is neither an array nor a number, or dict keys cannot be sorted.

    Example:
        >>> F.all_reduce_tree({"weight": array("f", [1, 2]), "bias": [array("f", [3])]}, "avg")
        {'weight': array('f', [1.0, 2.0]), 'bias': [array('f', [3.0])]}
    """
    leaves, rebuild, paths = functional_tree.flatten(tree, "all_reduce_tree")
    if not leaves:
        operations_of(group)
        return Pending([], rebuild) if async_op else rebuild()
    if reductions.extension_of(op) is not None:
        results = []
        for leaf, path in zip(leaves, paths, strict=True):
            try:
                results.append(all_reduce(leaf, op, group, timeout=timeout, async_op=async_op))
            except (TypeError, ValueError) as error:
                error.add_note(f"all_reduce_tree(): argument 'tree' at {path}")
                raise
        return _then(results, rebuild) if async_op else rebuild(*results)
    form = Form("all_reduce_tree", leaves[0], group, timeout, async_op, op)
    count = len(leaves)

    def start(calls: Any, *sources_and_outputs: Any, **options: Any) -> Any:
        by_dtype: dict[str, list[Any]] = {}
        for output in sources_and_outputs[count:]:
            by_dtype.setdefault(arrays.dtype_name(output), []).append(output)
        return [calls.all_reduce_coalesced(same_dtype_outputs, op, **options) for same_dtype_outputs in by_dtype.values()]

    def transpose(*gradients: Any) -> list[Any]:
        # JAX's gradients of integers have no values.
        has_values = ["float0" not in str(getattr(gradient, "dtype", "")) for gradient in gradients]
        reduced: Any = all_reduce_tree([each for each, has in zip(gradients, has_values) if has], op, group, timeout=timeout)
        rest = iter(reduced)
        return [next(rest) if has else gradient for gradient, has in zip(gradients, has_values)]

    shapes = [arrays.value_family_of(leaf, form.name).shape(leaf) for leaf in leaves]

    def again(*leaves: Any, **options: Any) -> Any:
        return all_reduce_tree(list(leaves), op, **options)

    return form.run(leaves, start, shapes, again, fill=COPIES, transpose=transpose, pack=rebuild)


@_documented
def reduce(
    x: ArrayT,
    root: int = 0,
    op: Op = "sum",
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> Pending[ArrayT | None] | ArrayT | None:
    """Reduce the arrays of all ranks; only `root` gets the result.

    Args:

    Returns:
        An array like x on the root, None on the other ranks.

    Raises:
        ValueError: `root` is not a rank of the group.

    Example:
        >>> F.reduce(array("f", [1, 2]), root=0)
        array('f', [1.0, 2.0])
    """
    if (extension := reductions.extension_of(op)) is not None:
        return _extended(reduce, extension, x, group, timeout, async_op, root=root)
    form = Form("reduce", x, group, timeout, async_op, op)
    root = form.check_rank(root, "root")

    def start(calls: Any, source: Any, output: Any, **options: Any) -> Any:
        return calls.reduce(output, root, op, **options)

    return form.run([x], start, [form.shape], partial(reduce, root=root, op=op), fill=COPIES, pack=lambda made: made if form.rank == root else None)


@_documented
def scan(
    x: ArrayT, op: Op = "sum", group: AnyGroup | None = None, *, timeout: Timeout | None = None, async_op: bool = False
) -> Pending[ArrayT] | ArrayT:
    """Reduce the arrays of ranks 0 to r on each rank r (inclusive prefix reduction).

    Args:
        op: As in all_reduce, but not "avg". Only "sum" has a gradient.

    Raises:
        ValueError: The reduction is "avg", or is not supported for the dtype.

    Example:
        >>> F.scan(array("f", [1, 2])).tolist()               # in a world of one
        [1.0, 2.0]
    """
    return _reduce_lower_ranks(scan, x, op, group, timeout, async_op)


@_documented
def exscan(
    x: ArrayT, op: Op = "sum", group: AnyGroup | None = None, *, timeout: Timeout | None = None, async_op: bool = False
) -> Pending[ArrayT] | ArrayT:
    """Reduce the arrays of ranks 0 to r - 1 on each rank r (exclusive prefix reduction).

    Args:
        op: As in scan.

    Returns:
        An array like x. Rank 0 gets the neutral element of the reduction: 0 for "sum", "bor" and
        "bxor", 1 for "product", all bits for "band", the highest value for "min", the lowest for
        "max". For a function, "minloc" and "maxloc", rank 0 gets x.

    Raises:
        ValueError: The reduction is "avg", or is not supported for the dtype.

    Example:
        >>> F.exscan(array("f", [1, 2])).tolist()             # rank 0 has no lower ranks
        [0.0, 0.0]
    """
    return _reduce_lower_ranks(exscan, x, op, group, timeout, async_op)


def _reduce_lower_ranks(call: Any, x: Any, op: Op, group: Any, timeout: Any, async_op: bool) -> Any:
    if (extension := reductions.extension_of(op)) is not None:
        return _extended(call, extension, x, group, timeout, async_op)
    name = call.__name__
    form = Form(name, x, group, timeout, async_op, op)

    def start(calls: Any, source: Any, output: Any, **options: Any) -> Any:
        return getattr(calls, name)(output, op, **options)

    def transpose(gradient: Any) -> list[Any]:
        # The gradient is a prefix in reverse rank order, as higher ranks' results include x.
        mirror = [(rank, form.size - 1 - rank) for rank in range(form.size)]
        suffix = call(permute(gradient, mirror, group, timeout=timeout), op, group, timeout=timeout)
        return [permute(suffix, mirror, group, timeout=timeout)]

    def pack(result: Any) -> Any:
        return reductions.neutral_like(result, op) if name == "exscan" and form.rank == 0 else result

    return form.run([x], start, [form.shape], partial(call, op=op), fill=COPIES, transpose=transpose, pack=pack)


@_documented
def reduce_scatter(
    x: ArrayT,
    op: Op = "sum",
    axis: int = 0,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> Pending[ArrayT] | ArrayT:
    """Reduce the arrays of all ranks; each rank gets its part of the result along an axis.

    Args:
        axis: The axis to divide; its length must be a multiple of the group's size.

    Returns:
        An array like x with a shorter axis.

    Raises:
        ValueError: The axis does not exist, or its length is not a multiple of the group's size.

    Example:
        >>> F.reduce_scatter(array("f", [1, 2]), "avg")
        array('f', [1.0, 2.0])
    """
    if (extension := reductions.extension_of(op)) is not None:
        return _extended(reduce_scatter, extension, x, group, timeout, async_op, axis=axis)
    form = Form("reduce_scatter", x, group, timeout, async_op, op)
    axis = form.axis(axis)
    share = form.share(axis)

    def start(calls: Any, source: Any, output: Any, **options: Any) -> Any:
        call, parts = _by_parts(calls, "reduce_scatter", axis, source, [share] * form.size)
        return call(output, parts, op, **options)

    def transpose(gradient: Any) -> list[Any]:
        if reductions.name_of(op) == "avg":
            gradient = gradient / form.size
        return [all_gather(gradient, axis, group=group, timeout=timeout)]

    return form.run([x], start, [form.with_extent(axis, share)], partial(reduce_scatter, op=op, axis=axis), transpose=transpose)


@_documented
def all_gather(
    x: ArrayT,
    axis: int = 0,
    tiled: bool = True,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> Pending[ArrayT] | ArrayT:
    """Gather the arrays of all ranks: concatenated in rank order, or stacked.

    Args:
        x: An array; of the same dtype and shape on all ranks. A scalar counts as one element.

    Raises:
        ValueError: The axis does not exist.

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

    return form.run([x], start, [shape], partial(all_gather, axis=axis, tiled=tiled and form.shape != ()), transpose=transpose)


def _gathered(form: Form, axis: int, tiled: bool) -> tuple[int, tuple[int, ...], int]:
    """Return the axis that divides the result, the result's shape, and each part's length."""
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
) -> Pending[ArrayT | None] | ArrayT | None:
    """Gather the arrays of all ranks on `root`, as in all_gather.

    Args:

    Returns:
        An array of x's library and dtype on the root, None on the other ranks.

    Raises:
        ValueError: The rank or the axis does not exist.

    Example:
        >>> F.gather(array("f", [1, 2]), root=0)
        array('f', [1.0, 2.0])
    """
    form = Form("gather", x, group, timeout, async_op)
    root = form.check_rank(root, "root")
    axis, shape, extent = _gathered(form, axis, tiled)

    def start(calls: Any, source: Any, output: Any, **options: Any) -> Any:
        call, parts = _by_parts(calls, "gather", axis, output, [extent] * form.size)
        return call(source, parts, root, **options)

    again = partial(gather, root=root, axis=axis, tiled=tiled and form.shape != ())
    return form.run([x], start, [shape] if form.rank == root else None, again)


@_documented
def all_gather_any(
    x: ArrayT, group: AnyGroup | None = None, *, timeout: Timeout | None = None, async_op: bool = False
) -> Pending[list[ArrayT]] | list[ArrayT]:
    """Gather the arrays of all ranks into a list. Shapes may differ; they are exchanged first.

    Args:
        x: An array; of the same dtype on all ranks. Not supported in jax.jit.
        async_op: Return a Pending for the list. The call itself still waits for the shapes.

    Returns:
        A list of arrays of x's library and dtype, by rank.

    Raises:
        TypeError: x is being traced by jax.jit.
        ValueError: x has more than 32 dimensions.

    Example:
        >>> F.all_gather_any(array("f", [1, 2]))
        [array('f', [1.0, 2.0])]
    """

    def move(calls: Any, sources: Any, outputs: Any, **options: Any) -> Any:
        return calls.all_gather(outputs, sources[0], **options)

    return _move_any("all_gather_any", [x], lambda form, shapes: [each[0] for each in shapes], move, group, timeout, async_op)


@_documented
def gather_any(
    x: ArrayT, root: int = 0, group: AnyGroup | None = None, *, timeout: Timeout | None = None, async_op: bool = False
) -> Pending[list[ArrayT] | None] | list[ArrayT] | None:
    """Gather the arrays of all ranks into a list on `root`, as in all_gather_any.

    Args:
        x: An array; of the same dtype on all ranks. Not supported in jax.jit.

    Returns:
        A list of arrays of x's library and dtype, by rank, on the root; None on the other ranks.

    Raises:
        TypeError, ValueError: As in all_gather_any. `root` is not a rank of the group.

    Example:
        >>> F.gather_any(array("f", [1, 2]))
        [array('f', [1.0, 2.0])]
    """

    def expected(form: Form, shapes: Any) -> list[Any]:
        return [each[0] for each in shapes] if form.rank == form.check_rank(root, "root") else []

    def move(calls: Any, sources: Any, outputs: Any, **options: Any) -> Any:
        return calls.gather(sources[0], outputs or None, root, **options)

    return _move_any("gather_any", [x], expected, move, group, timeout, async_op, lambda parts: parts or None)


@_documented
def scatter_any(
    x: ArrayT | Sequence[ArrayT],
    root: int = 0,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> Pending[ArrayT] | ArrayT:
    """Send one array of a list on `root` to each rank. Shapes may differ; they are exchanged first.

    Args:
        x: On the root, a list with an array for each rank; on other ranks, an array of the same
            dtype, whose shape does not matter. Not supported in jax.jit.

    Raises:
        TypeError, ValueError: As in all_gather_any. The rank does not exist, or the list has another length.

    Example:
        >>> F.scatter_any([array("f", [1, 2])])
        array('f', [1.0, 2.0])
    """

    def expected(form: Form, shapes: Any) -> list[Any]:
        return [_part_for_rank(form, shapes, form.check_rank(root, "root"))]

    def move(calls: Any, sources: Any, outputs: Any, **options: Any) -> Any:
        return calls.scatter(outputs[0], sources if calls.rank == root else None, root, **options)

    return _move_any("scatter_any", x, expected, move, group, timeout, async_op, lambda parts: parts[0])


@_documented
def all_to_all_any(
    x: Sequence[ArrayT], group: AnyGroup | None = None, *, timeout: Timeout | None = None, async_op: bool = False
) -> Pending[list[ArrayT]] | list[ArrayT]:
    """Send array r of a list to rank r. Shapes may differ; they are exchanged first.

    Args:
        x: A list with an array for each rank; of the same dtype on all ranks. Not supported in
            jax.jit.

    Returns:
        A list of the received arrays, by rank.

    Raises:
        TypeError, ValueError: As in all_gather_any. The list has another length.

    Example:
        >>> F.all_to_all_any([array("f", [1, 2])])
        [array('f', [1.0, 2.0])]
    """

    def expected(form: Form, shapes: Any) -> list[Any]:
        return [_part_for_rank(form, shapes, rank) for rank in range(form.size)]

    def move(calls: Any, sources: Any, outputs: Any, **options: Any) -> Any:
        return calls.all_to_all(outputs, sources, **options)

    return _move_any("all_to_all_any", x, expected, move, group, timeout, async_op)


def _part_for_rank(form: Form, shapes: Any, src: int) -> Any:
    """Return the shape of the array that rank `src` sends to this rank."""
    if len(shapes[src]) != form.size:
        got, expected = len(shapes[src]), f"{form.size}, one array for each rank"
        raise ValueError(f"{form.name}(): argument 'x' of rank {src} has another length: got {got}, expected {expected}")
    return shapes[src][form.rank]


def _move_any(
    name: str, x: Any, expected: Any, move: Any, group: Any, timeout: Any, async_op: bool, pack: Callable[..., Any] = list
) -> Any:
    """Run a call on arrays of unknown shapes. `expected` selects the shapes that this rank receives
    from a list, by rank, of the shapes of the arrays that a rank sends."""
    parts = [arrays.as_value(each) for each in (x if isinstance(x, (list, tuple)) else [x])]
    form = Form(name, parts[0] if parts else x, group, timeout, async_op)
    if any(map(arrays.is_traced, parts)):
        raise TypeError(f"{name}(): unsupported in jax.jit, which requires the shapes of results; call it outside")
    families = [arrays.value_family_of(part, name) for part in parts]
    shapes = expected(form, _exchange_shapes(form, [family.shape(part) for family, part in zip(families, parts)]))
    outputs = [families[0].empty_like(parts[0], shape) for shape in shapes]

    def start(calls: Any, *sources: Any, **options: Any) -> Any:
        return move(calls, list(sources[: len(parts)]), outputs, **options)

    return form.run(parts, start, None, all_gather_any, pack=lambda: pack([families[0].finish(each, parts[0]) for each in outputs]))


def _exchange_shapes(form: Form, shapes: list[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    most = max(map(len, shapes))
    if most > _MAX_DIMENSIONS:
        raise ValueError(f"{form.name}(): argument 'x' has too many dimensions: got {most}, expected at most {_MAX_DIMENSIONS}")
    everyone = Exchange(form.operations, form.name, "safe", form.timeout).all_gather(shapes)
    for rank, each in enumerate(everyone):
        is_list = isinstance(each, list) and len(each) > 0 and all(isinstance(shape, tuple) for shape in each)
        if not is_list or not all(type(extent) is int and extent >= 0 for shape in each for extent in shape):
            raise _core.DistMismatchError(f"{form.name}(): rank {rank} sent malformed shapes: got {each!r}")
    return everyone


@_documented
def broadcast(
    x: ArrayT, root: int = 0, group: AnyGroup | None = None, *, timeout: Timeout | None = None, async_op: bool = False
) -> Pending[ArrayT] | ArrayT:
    """Send the array of `root` to all ranks.

    Args:
        x: An array; of the same dtype and shape on all ranks. Only the root's values matter.

    Raises:
        ValueError: `root` is not a rank of the group.

    Example:
        >>> F.broadcast(array("f", [1, 2]), root=0)
        array('f', [1.0, 2.0])
    """
    form = Form("broadcast", x, group, timeout, async_op)
    root = form.check_rank(root, "root")

    def start(calls: Any, source: Any, output: Any, **options: Any) -> Any:
        return calls.broadcast(output, root, **options)

    def transpose(gradient: Any) -> list[Any]:
        total = reduce(gradient, root, "sum", group, timeout=timeout)
        return [arrays.full_like(gradient, 0) if total is None else total]

    fill = COPIES if form.rank == root else NOTHING
    return form.run([x], start, [form.shape], partial(broadcast, root=root), fill=fill, transpose=transpose)


@_documented
def scatter(
    x: ArrayT,
    root: int = 0,
    axis: int = 0,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> Pending[ArrayT] | ArrayT:
    """Divide the array of `root` along an axis; each rank gets its part.

    Args:
        x: On the root, all parts, of equal lengths; on other ranks, an array like one part.
        axis: The axis to divide; the same on all ranks.

    Raises:
        ValueError: The rank or axis does not exist, or the axis cannot be divided evenly.

    Example:
        >>> F.scatter(array("f", [1, 2]), root=0)
        array('f', [1.0, 2.0])
    """
    form = Form("scatter", x, group, timeout, async_op)
    root = form.check_rank(root, "root")
    axis = form.axis(axis)
    is_root = form.rank == root
    share = form.share(axis) if is_root else form.shape[axis]

    def start(calls: Any, source: Any, output: Any, **options: Any) -> Any:
        call, parts = _by_parts(calls, "scatter", axis, source if is_root else None, [share] * form.size)
        try:
            return call(output, parts, root, **options)
        except _core.DistMismatchError as error:
            if "size" in str(error):
                error.add_note("scatter(): ranks other than the root must pass an array like their part, not like the root's array")
            raise

    return form.run([x], start, [form.with_extent(axis, share)], partial(scatter, root=root, axis=axis))


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
) -> Pending[ArrayT] | ArrayT:
    """Send part r of x to rank r, and concatenate the received parts in rank order.

    Args:
        x: An array; of the same dtype on all ranks, with shapes that match `concat_axis`.
        split_axis: The axis along which to split x.
        concat_axis: The axis along which to concatenate the received parts.
        output_split_sizes: Length received from each rank; None if equal. Only for equal axes.
        input_split_sizes: Length sent to each rank; None if equal. Only for equal axes.

    Raises:
        ValueError: An axis does not exist or cannot be divided evenly, or sizes do not match.

    Example:
        >>> F.all_to_all(array("f", [1, 2]))
        array('f', [1.0, 2.0])
    """
    form = Form("all_to_all", x, group, timeout, async_op)
    split, concat = form.axis(split_axis, "split_axis"), form.axis(concat_axis, "concat_axis")
    if split != concat and (output_split_sizes is not None or input_split_sizes is not None):
        raise ValueError(f"all_to_all(): got split sizes with split_axis {split} and concat_axis {concat}, expected equal axes")
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

    sizes: dict[str, Any] = {"output_split_sizes": output_split_sizes, "input_split_sizes": input_split_sizes}
    again = partial(all_to_all, split_axis=split, concat_axis=concat, **sizes)
    return form.run([x], start, [shape], again, transpose=transpose)


def _split_sizes(form: Form, argument: str, sizes: Sequence[int] | None, axis: int) -> list[int]:
    if sizes is None:
        return [form.share(axis)] * form.size
    sizes = list(sizes)
    numbers = [number for size in sizes if (number := as_index(size)) is not None and number >= 0]
    if len(sizes) != form.size or len(numbers) != form.size:
        raise ValueError(f"{form.name}(): argument '{argument}': got {sizes}, expected {form.size} sizes of 0 or more, one for each rank")
    if argument == "input_split_sizes" and sum(numbers) != form.shape[axis]:
        raise ValueError(f"{form.name}(): argument '{argument}' has another sum: got {sum(numbers)}, expected {form.shape[axis]}, as axis {axis}")
    return numbers


@_documented
def permute(
    x: ArrayT,
    pairs: Iterable[tuple[int, int]],
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> Pending[ArrayT] | ArrayT:
    """Exchange arrays between pairs of ranks.

    Args:
        pairs: Pairs (source, destination): the destination receives the source's x. Must be the
            same on all ranks; each rank is at most once a source and once a destination.

    Returns:
        The received array, like x; zeros on a rank that is not a destination.

    Raises:
        ValueError: A rank does not exist, or appears twice as a source or as a destination.

    Example:
        >>> F.permute(array("f", [1, 2]), [(0, 0)])
        array('f', [1.0, 2.0])
    """
    form = Form("permute", x, group, timeout, async_op)
    destination_of = _routes(form, pairs)
    source_of = {destination: source for source, destination in destination_of.items()}
    own_destination, own_source = destination_of.get(form.rank), source_of.get(form.rank)

    # Use all_to_all instead of messages, because the tags of messages belong to the caller.
    def start(calls: Any, source: Any, output: Any, **options: Any) -> Any:
        family = arrays.family_of(source, form.name)
        sent = [family.empty_like(source, (0,)) for _ in range(form.size)]
        received = [family.empty_like(source, (0,)) for _ in range(form.size)]
        if own_destination is not None:
            sent[own_destination] = source
        if own_source is not None:
            received[own_source] = output
        return calls.all_to_all(received, sent, **options)

    def transpose(gradient: Any) -> list[Any]:
        return [permute(gradient, source_of.items(), group, timeout=timeout)]

    fill = ZEROS if own_source is None else NOTHING
    return form.run([x], start, [form.shape], partial(permute, pairs=destination_of.items()), fill=fill, transpose=transpose)


def _routes(form: Form, pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Check the pairs, and return a dict of destinations by source."""
    routes: dict[int, int] = {}
    for pair in pairs:
        if len(pair) != 2:
            raise ValueError(f"{form.name}(): argument 'pairs': got {pair}, expected pairs of a source and a destination")
        source, destination = pair
        source, destination = form.check_rank(source, "pairs"), form.check_rank(destination, "pairs")
        if source in routes or destination in routes.values():
            raise ValueError(f"{form.name}(): argument 'pairs' has a source or destination twice: got {pair}, expected each rank once per side")
        routes[source] = destination
    return routes


@completed(_ARGUMENTS)
def send(
    x: Tensor | complex,
    dst: int,
    tag: int = 0,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> Pending[None] | None:
    """Send an array to one rank.

    Args:
        x: The array to send.
        dst: The rank of the group to send to, or NO_RANK to send nothing.
        tag: A number, at least 0; the receiver must pass the same tag.
        timeout: Seconds or a timedelta until the message must be received. None is the group's own.
        async_op: Return a Pending, whose wait() gives None.

    Raises:
        ValueError: `dst` is not a rank of the group.
        DistTimeoutError: The receiver did not receive before the timeout. The group stays usable.
        DistPeerLostError, DistAbortedError: The receiver was lost, or the group was aborted.

    Example:
        >>> pending = F.send(array("f", [1, 2]), dst=0, async_op=True)
        >>> F.recv(array("f", [0, 0]), src=0)
        array('f', [1.0, 2.0])
    """
    form = Form("send", x, group, timeout, async_op)
    dst = form.check_peer(dst, "dst")

    def start(calls: Any, source: Any, output: Any, timeout: Any, async_op: bool) -> Any:
        if dst == NO_RANK:
            return []
        return (calls.isend if async_op else calls.send)(source, dst, tag, timeout=timeout)

    return form.run([x], start, None, partial(send, dst=dst, tag=tag))


@completed(_ARGUMENTS)
def recv(
    like: ArrayT,
    src: int | None = None,
    tag: int = 0,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool = False,
) -> Pending[ArrayT] | ArrayT:
    """Receive an array from one rank.

    Args:
        like: An array with the type, shape and dtype of the result; it is not changed.
        src: The rank of the group to receive from. None is any rank; NO_RANK is none.
        tag: The tag that the sender passes.
        timeout: Seconds or a timedelta. None is the group's own; 0 does not wait.

    Returns:
        An array like `like`. A shorter message leaves zeros at the end; a longer one is an error.
        Zeros from NO_RANK.

    Raises:
        ValueError: `src` is not a rank of the group.
        DistTimeoutError: No message arrived before the timeout. The group stays usable.
        DistMismatchError: The message has another dtype; it is dropped, and the group stays usable.
        DistPeerLostError, DistAbortedError: The sender was lost, or the group was aborted.
    """
    form = Form("recv", like, group, timeout, async_op)
    if src is not None:
        src = form.check_peer(src, "src")

    def start(calls: Any, source: Any, output: Any, timeout: Any, async_op: bool) -> Any:
        if src == NO_RANK:
            return []
        arrays.family_of(source, form.name).clear(output)
        return (calls.irecv if async_op else calls.recv)(output, src, tag, timeout=timeout)

    fill = ZEROS if src == NO_RANK else NOTHING
    return form.run([like], start, [form.shape], partial(recv, src=src, tag=tag), fill=fill)


def barrier(group: AnyGroup | None = None, *, timeout: Timeout | None = None, async_op: bool = False) -> Pending[None] | None:
    """Wait for all ranks, and for the collectives of this rank's earlier compiled JAX calls.

    Args:
        group: As in all_reduce, like `timeout`.
        async_op: Return a Pending, whose wait() gives None.

    Raises:
        DistMismatchError, DistTimeoutError, DistPeerLostError, DistAbortedError: As in all_reduce.

    Example:
        >>> F.barrier()
    """
    wait_for_compiled_calls()
    work = operations_of(group).barrier(timeout=timeout, async_op=async_op)
    return Pending([work], lambda: None) if async_op else None


def wait_tensor(x: ArrayT | Pending[Any]) -> ArrayT | Any:
    """Wait for a Pending and return its result, or for the works of an array and return the array.

    Args:
        x: A Pending, or an array with works registered by torch's `_register_work`.

    Raises:
        DistTimeoutError, DistPeerLostError: The operation failed with this error.

    Example:
        >>> F.wait_tensor(F.all_reduce(array("f", [1]), async_op=True))
        array('f', [1.0])
    """
    if isinstance(x, Pending):
        return x.wait()
    for work in work_registry.take_works(x):
        work.wait()
    return x
