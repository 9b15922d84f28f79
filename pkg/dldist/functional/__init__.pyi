# Made by tools/make_stubs.py from __init__.py.
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeVar, overload

from dldist.functional.form import Pending
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
    "scatter",
    "send",
    "wait_tensor",
]

@overload
def all_reduce(
    x: ArrayT,
    op: Op = "sum",
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[False] = False,
) -> ArrayT: ...
@overload
def all_reduce(
    x: ArrayT,
    op: Op = "sum",
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[True],
) -> Pending: ...
@overload
def all_reduce(
    x: ArrayT,
    op: Op = "sum",
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool,
) -> Pending | ArrayT: ...
@overload
def all_reduce_tree(
    tree: TreeT,
    op: Op = "sum",
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[False] = False,
) -> TreeT: ...
@overload
def all_reduce_tree(
    tree: TreeT,
    op: Op = "sum",
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[True],
) -> Pending: ...
@overload
def all_reduce_tree(
    tree: TreeT,
    op: Op = "sum",
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool,
) -> Pending | TreeT: ...
@overload
def reduce(
    x: ArrayT,
    root: int = 0,
    op: Op = "sum",
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[False] = False,
) -> ArrayT | None: ...
@overload
def reduce(
    x: ArrayT,
    root: int = 0,
    op: Op = "sum",
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[True],
) -> Pending: ...
@overload
def reduce(
    x: ArrayT,
    root: int = 0,
    op: Op = "sum",
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool,
) -> Pending | ArrayT | None: ...
@overload
def reduce_scatter(
    x: ArrayT,
    op: Op = "sum",
    axis: int = 0,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[False] = False,
) -> ArrayT: ...
@overload
def reduce_scatter(
    x: ArrayT,
    op: Op = "sum",
    axis: int = 0,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[True],
) -> Pending: ...
@overload
def reduce_scatter(
    x: ArrayT,
    op: Op = "sum",
    axis: int = 0,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool,
) -> Pending | ArrayT: ...
@overload
def all_gather(
    x: ArrayT,
    axis: int = 0,
    tiled: bool = True,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[False] = False,
) -> ArrayT: ...
@overload
def all_gather(
    x: ArrayT,
    axis: int = 0,
    tiled: bool = True,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[True],
) -> Pending: ...
@overload
def all_gather(
    x: ArrayT,
    axis: int = 0,
    tiled: bool = True,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool,
) -> Pending | ArrayT: ...
@overload
def gather(
    x: ArrayT,
    root: int = 0,
    axis: int = 0,
    tiled: bool = True,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[False] = False,
) -> ArrayT | None: ...
@overload
def gather(
    x: ArrayT,
    root: int = 0,
    axis: int = 0,
    tiled: bool = True,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[True],
) -> Pending: ...
@overload
def gather(
    x: ArrayT,
    root: int = 0,
    axis: int = 0,
    tiled: bool = True,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool,
) -> Pending | ArrayT | None: ...
@overload
def all_gather_any(
    x: ArrayT,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[False] = False,
) -> list[ArrayT]: ...
@overload
def all_gather_any(
    x: ArrayT,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[True],
) -> Pending: ...
@overload
def all_gather_any(
    x: ArrayT,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool,
) -> Pending | list[ArrayT]: ...
@overload
def broadcast(
    x: ArrayT,
    root: int = 0,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[False] = False,
) -> ArrayT: ...
@overload
def broadcast(
    x: ArrayT,
    root: int = 0,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[True],
) -> Pending: ...
@overload
def broadcast(
    x: ArrayT,
    root: int = 0,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool,
) -> Pending | ArrayT: ...
@overload
def scatter(
    x: ArrayT,
    root: int = 0,
    axis: int = 0,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[False] = False,
) -> ArrayT: ...
@overload
def scatter(
    x: ArrayT,
    root: int = 0,
    axis: int = 0,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[True],
) -> Pending: ...
@overload
def scatter(
    x: ArrayT,
    root: int = 0,
    axis: int = 0,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool,
) -> Pending | ArrayT: ...
@overload
def all_to_all(
    x: ArrayT,
    split_axis: int = 0,
    concat_axis: int = 0,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[False] = False,
) -> ArrayT: ...
@overload
def all_to_all(
    x: ArrayT,
    split_axis: int = 0,
    concat_axis: int = 0,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[True],
) -> Pending: ...
@overload
def all_to_all(
    x: ArrayT,
    split_axis: int = 0,
    concat_axis: int = 0,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool,
) -> Pending | ArrayT: ...
@overload
def permute(
    x: ArrayT,
    pairs: Iterable[tuple[int, int]],
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[False] = False,
) -> ArrayT: ...
@overload
def permute(
    x: ArrayT,
    pairs: Iterable[tuple[int, int]],
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[True],
) -> Pending: ...
@overload
def permute(
    x: ArrayT,
    pairs: Iterable[tuple[int, int]],
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool,
) -> Pending | ArrayT: ...
@overload
def send(
    x: Tensor,
    dst: int,
    tag: int = 0,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[False] = False,
) -> None: ...
@overload
def send(
    x: Tensor,
    dst: int,
    tag: int = 0,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[True],
) -> Pending: ...
@overload
def send(
    x: Tensor,
    dst: int,
    tag: int = 0,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool,
) -> Pending | None: ...
@overload
def recv(
    like: ArrayT,
    src: int | None = None,
    tag: int = 0,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[False] = False,
) -> ArrayT: ...
@overload
def recv(
    like: ArrayT,
    src: int | None = None,
    tag: int = 0,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[True],
) -> Pending: ...
@overload
def recv(
    like: ArrayT,
    src: int | None = None,
    tag: int = 0,
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: bool,
) -> Pending | ArrayT: ...
@overload
def barrier(
    group: AnyGroup | None = None,
    *,
    timeout: Timeout | None = None,
    async_op: Literal[False] = False,
) -> None: ...
@overload
def barrier(group: AnyGroup | None = None, *, timeout: Timeout | None = None, async_op: Literal[True]) -> Pending: ...
@overload
def barrier(group: AnyGroup | None = None, *, timeout: Timeout | None = None, async_op: bool) -> Pending | None: ...
def wait_tensor(x: ArrayT | Pending) -> ArrayT | Any: ...
