# Made by tools/make_stubs.py from collectives.py.
from typing import Any, Literal, overload

from dldist import _core
from dldist._base.future import Future
from dldist.types import AnyGroup, Op, Tensor, Tensors, Timeout

def supports_complex(reduceOp: Op) -> bool: ...
@overload
def all_reduce(
    tensor: Tensor,
    op: Op = ...,
    group: AnyGroup | None = None,
    async_op: Literal[False] = False,
    *,
    timeout: Timeout | None = None,
) -> None: ...
@overload
def all_reduce(
    tensor: Tensor,
    op: Op = ...,
    group: AnyGroup | None = None,
    *,
    async_op: Literal[True],
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def all_reduce(
    tensor: Tensor,
    op: Op,
    group: AnyGroup | None,
    async_op: Literal[True],
    *,
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def all_reduce(
    tensor: Tensor,
    op: Op = ...,
    group: AnyGroup | None = None,
    *,
    async_op: bool,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def all_reduce(
    tensor: Tensor,
    op: Op,
    group: AnyGroup | None,
    async_op: bool,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: AnyGroup | None = None,
    async_op: Literal[False] = False,
    group_src: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> None: ...
@overload
def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: AnyGroup | None = None,
    *,
    async_op: Literal[True],
    group_src: int | None = None,
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def broadcast(
    tensor: Tensor,
    src: int | None,
    group: AnyGroup | None,
    async_op: Literal[True],
    group_src: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: AnyGroup | None = None,
    *,
    async_op: bool,
    group_src: int | None = None,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def broadcast(
    tensor: Tensor,
    src: int | None,
    group: AnyGroup | None,
    async_op: bool,
    group_src: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: Op = ...,
    group: AnyGroup | None = None,
    async_op: Literal[False] = False,
    group_dst: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> None: ...
@overload
def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: Op = ...,
    group: AnyGroup | None = None,
    *,
    async_op: Literal[True],
    group_dst: int | None = None,
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def reduce(
    tensor: Tensor,
    dst: int | None,
    op: Op,
    group: AnyGroup | None,
    async_op: Literal[True],
    group_dst: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: Op = ...,
    group: AnyGroup | None = None,
    *,
    async_op: bool,
    group_dst: int | None = None,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def reduce(
    tensor: Tensor,
    dst: int | None,
    op: Op,
    group: AnyGroup | None,
    async_op: bool,
    group_dst: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def barrier(
    group: AnyGroup | None = None,
    async_op: Literal[False] = False,
    device_ids: list[int] | None = None,
    timeout: Timeout | None = None,
) -> None: ...
@overload
def barrier(
    group: AnyGroup | None = None,
    *,
    async_op: Literal[True],
    device_ids: list[int] | None = None,
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def barrier(
    group: AnyGroup | None,
    async_op: Literal[True],
    device_ids: list[int] | None = None,
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def barrier(
    group: AnyGroup | None = None,
    *,
    async_op: bool,
    device_ids: list[int] | None = None,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def barrier(
    group: AnyGroup | None,
    async_op: bool,
    device_ids: list[int] | None = None,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
def monitored_barrier(
    group: AnyGroup | None = None,
    timeout: Timeout | None = None,
    wait_all_ranks: bool = False,
) -> None: ...
@overload
def all_gather(
    tensor_list: Tensors,
    tensor: Tensor,
    group: AnyGroup | None = None,
    async_op: Literal[False] = False,
    *,
    timeout: Timeout | None = None,
) -> None: ...
@overload
def all_gather(
    tensor_list: Tensors,
    tensor: Tensor,
    group: AnyGroup | None = None,
    *,
    async_op: Literal[True],
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def all_gather(
    tensor_list: Tensors,
    tensor: Tensor,
    group: AnyGroup | None,
    async_op: Literal[True],
    *,
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def all_gather(
    tensor_list: Tensors,
    tensor: Tensor,
    group: AnyGroup | None = None,
    *,
    async_op: bool,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def all_gather(
    tensor_list: Tensors,
    tensor: Tensor,
    group: AnyGroup | None,
    async_op: bool,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def all_gather_single(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: AnyGroup | None = None,
    async_op: Literal[False] = False,
    *,
    timeout: Timeout | None = None,
) -> None: ...
@overload
def all_gather_single(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: AnyGroup | None = None,
    *,
    async_op: Literal[True],
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def all_gather_single(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: AnyGroup | None,
    async_op: Literal[True],
    *,
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def all_gather_single(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: AnyGroup | None = None,
    *,
    async_op: bool,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def all_gather_single(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: AnyGroup | None,
    async_op: bool,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def all_gather_coalesced(
    output_tensor_lists: list[Tensors],
    input_tensor_list: Tensors,
    group: AnyGroup | None = None,
    async_op: Literal[False] = False,
) -> None: ...
@overload
def all_gather_coalesced(
    output_tensor_lists: list[Tensors],
    input_tensor_list: Tensors,
    group: AnyGroup | None = None,
    *,
    async_op: Literal[True],
) -> Future: ...
@overload
def all_gather_coalesced(
    output_tensor_lists: list[Tensors],
    input_tensor_list: Tensors,
    group: AnyGroup | None,
    async_op: Literal[True],
) -> Future: ...
@overload
def all_gather_coalesced(
    output_tensor_lists: list[Tensors],
    input_tensor_list: Tensors,
    group: AnyGroup | None = None,
    *,
    async_op: bool,
) -> Future | None: ...
@overload
def all_gather_coalesced(
    output_tensor_lists: list[Tensors],
    input_tensor_list: Tensors,
    group: AnyGroup | None,
    async_op: bool,
) -> Future | None: ...
@overload
def gather(
    tensor: Tensor,
    gather_list: Tensors | None = None,
    dst: int | None = None,
    group: AnyGroup | None = None,
    async_op: Literal[False] = False,
    group_dst: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> None: ...
@overload
def gather(
    tensor: Tensor,
    gather_list: Tensors | None = None,
    dst: int | None = None,
    group: AnyGroup | None = None,
    *,
    async_op: Literal[True],
    group_dst: int | None = None,
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def gather(
    tensor: Tensor,
    gather_list: Tensors | None,
    dst: int | None,
    group: AnyGroup | None,
    async_op: Literal[True],
    group_dst: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def gather(
    tensor: Tensor,
    gather_list: Tensors | None = None,
    dst: int | None = None,
    group: AnyGroup | None = None,
    *,
    async_op: bool,
    group_dst: int | None = None,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def gather(
    tensor: Tensor,
    gather_list: Tensors | None,
    dst: int | None,
    group: AnyGroup | None,
    async_op: bool,
    group_dst: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def gather_single(
    tensor: Tensor,
    gather_tensor: Tensor | None = None,
    dst: int | None = None,
    group: AnyGroup | None = None,
    async_op: Literal[False] = False,
    group_dst: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> None: ...
@overload
def gather_single(
    tensor: Tensor,
    gather_tensor: Tensor | None = None,
    dst: int | None = None,
    group: AnyGroup | None = None,
    *,
    async_op: Literal[True],
    group_dst: int | None = None,
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def gather_single(
    tensor: Tensor,
    gather_tensor: Tensor | None,
    dst: int | None,
    group: AnyGroup | None,
    async_op: Literal[True],
    group_dst: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def gather_single(
    tensor: Tensor,
    gather_tensor: Tensor | None = None,
    dst: int | None = None,
    group: AnyGroup | None = None,
    *,
    async_op: bool,
    group_dst: int | None = None,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def gather_single(
    tensor: Tensor,
    gather_tensor: Tensor | None,
    dst: int | None,
    group: AnyGroup | None,
    async_op: bool,
    group_dst: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def scatter(
    tensor: Tensor,
    scatter_list: Tensors | None = None,
    src: int | None = None,
    group: AnyGroup | None = None,
    async_op: Literal[False] = False,
    group_src: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> None: ...
@overload
def scatter(
    tensor: Tensor,
    scatter_list: Tensors | None = None,
    src: int | None = None,
    group: AnyGroup | None = None,
    *,
    async_op: Literal[True],
    group_src: int | None = None,
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def scatter(
    tensor: Tensor,
    scatter_list: Tensors | None,
    src: int | None,
    group: AnyGroup | None,
    async_op: Literal[True],
    group_src: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def scatter(
    tensor: Tensor,
    scatter_list: Tensors | None = None,
    src: int | None = None,
    group: AnyGroup | None = None,
    *,
    async_op: bool,
    group_src: int | None = None,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def scatter(
    tensor: Tensor,
    scatter_list: Tensors | None,
    src: int | None,
    group: AnyGroup | None,
    async_op: bool,
    group_src: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def reduce_scatter(
    output: Tensor,
    input_list: Tensors,
    op: Op = ...,
    group: AnyGroup | None = None,
    async_op: Literal[False] = False,
    *,
    timeout: Timeout | None = None,
) -> None: ...
@overload
def reduce_scatter(
    output: Tensor,
    input_list: Tensors,
    op: Op = ...,
    group: AnyGroup | None = None,
    *,
    async_op: Literal[True],
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def reduce_scatter(
    output: Tensor,
    input_list: Tensors,
    op: Op,
    group: AnyGroup | None,
    async_op: Literal[True],
    *,
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def reduce_scatter(
    output: Tensor,
    input_list: Tensors,
    op: Op = ...,
    group: AnyGroup | None = None,
    *,
    async_op: bool,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def reduce_scatter(
    output: Tensor,
    input_list: Tensors,
    op: Op,
    group: AnyGroup | None,
    async_op: bool,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def reduce_scatter_single(
    output: Tensor,
    input: Tensor,
    op: Op = ...,
    group: AnyGroup | None = None,
    async_op: Literal[False] = False,
    *,
    timeout: Timeout | None = None,
) -> None: ...
@overload
def reduce_scatter_single(
    output: Tensor,
    input: Tensor,
    op: Op = ...,
    group: AnyGroup | None = None,
    *,
    async_op: Literal[True],
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def reduce_scatter_single(
    output: Tensor,
    input: Tensor,
    op: Op,
    group: AnyGroup | None,
    async_op: Literal[True],
    *,
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def reduce_scatter_single(
    output: Tensor,
    input: Tensor,
    op: Op = ...,
    group: AnyGroup | None = None,
    *,
    async_op: bool,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def reduce_scatter_single(
    output: Tensor,
    input: Tensor,
    op: Op,
    group: AnyGroup | None,
    async_op: bool,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def all_to_all(
    output_tensor_list: Tensors,
    input_tensor_list: Tensors,
    group: AnyGroup | None = None,
    async_op: Literal[False] = False,
    *,
    timeout: Timeout | None = None,
) -> None: ...
@overload
def all_to_all(
    output_tensor_list: Tensors,
    input_tensor_list: Tensors,
    group: AnyGroup | None = None,
    *,
    async_op: Literal[True],
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def all_to_all(
    output_tensor_list: Tensors,
    input_tensor_list: Tensors,
    group: AnyGroup | None,
    async_op: Literal[True],
    *,
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def all_to_all(
    output_tensor_list: Tensors,
    input_tensor_list: Tensors,
    group: AnyGroup | None = None,
    *,
    async_op: bool,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def all_to_all(
    output_tensor_list: Tensors,
    input_tensor_list: Tensors,
    group: AnyGroup | None,
    async_op: bool,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: list[int] | tuple[int, ...] | None = None,
    input_split_sizes: list[int] | tuple[int, ...] | None = None,
    group: AnyGroup | None = None,
    async_op: Literal[False] = False,
    *,
    timeout: Timeout | None = None,
) -> None: ...
@overload
def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: list[int] | tuple[int, ...] | None = None,
    input_split_sizes: list[int] | tuple[int, ...] | None = None,
    group: AnyGroup | None = None,
    *,
    async_op: Literal[True],
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: list[int] | tuple[int, ...] | None,
    input_split_sizes: list[int] | tuple[int, ...] | None,
    group: AnyGroup | None,
    async_op: Literal[True],
    *,
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: list[int] | tuple[int, ...] | None = None,
    input_split_sizes: list[int] | tuple[int, ...] | None = None,
    group: AnyGroup | None = None,
    *,
    async_op: bool,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: list[int] | tuple[int, ...] | None,
    input_split_sizes: list[int] | tuple[int, ...] | None,
    group: AnyGroup | None,
    async_op: bool,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def all_reduce_coalesced(
    tensors: Tensor | Tensors,
    op: Op = ...,
    group: AnyGroup | None = None,
    async_op: Literal[False] = False,
) -> None: ...
@overload
def all_reduce_coalesced(
    tensors: Tensor | Tensors,
    op: Op = ...,
    group: AnyGroup | None = None,
    *,
    async_op: Literal[True],
) -> Future: ...
@overload
def all_reduce_coalesced(
    tensors: Tensor | Tensors,
    op: Op,
    group: AnyGroup | None,
    async_op: Literal[True],
) -> Future: ...
@overload
def all_reduce_coalesced(
    tensors: Tensor | Tensors,
    op: Op = ...,
    group: AnyGroup | None = None,
    *,
    async_op: bool,
) -> Future | None: ...
@overload
def all_reduce_coalesced(
    tensors: Tensor | Tensors,
    op: Op,
    group: AnyGroup | None,
    async_op: bool,
) -> Future | None: ...
@overload
def all_gather_into_tensor(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: AnyGroup | None = None,
    async_op: Literal[False] = False,
    *,
    timeout: Timeout | None = None,
) -> None: ...
@overload
def all_gather_into_tensor(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: AnyGroup | None = None,
    *,
    async_op: Literal[True],
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def all_gather_into_tensor(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: AnyGroup | None,
    async_op: Literal[True],
    *,
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def all_gather_into_tensor(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: AnyGroup | None = None,
    *,
    async_op: bool,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def all_gather_into_tensor(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: AnyGroup | None,
    async_op: bool,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def _all_gather_base(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: AnyGroup | None = None,
    async_op: Literal[False] = False,
    *,
    timeout: Timeout | None = None,
) -> None: ...
@overload
def _all_gather_base(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: AnyGroup | None = None,
    *,
    async_op: Literal[True],
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def _all_gather_base(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: AnyGroup | None,
    async_op: Literal[True],
    *,
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def _all_gather_base(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: AnyGroup | None = None,
    *,
    async_op: bool,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def _all_gather_base(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: AnyGroup | None,
    async_op: bool,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def gather_into_tensor(
    tensor: Tensor,
    gather_tensor: Tensor | None = None,
    dst: int | None = None,
    group: AnyGroup | None = None,
    async_op: Literal[False] = False,
    group_dst: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> None: ...
@overload
def gather_into_tensor(
    tensor: Tensor,
    gather_tensor: Tensor | None = None,
    dst: int | None = None,
    group: AnyGroup | None = None,
    *,
    async_op: Literal[True],
    group_dst: int | None = None,
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def gather_into_tensor(
    tensor: Tensor,
    gather_tensor: Tensor | None,
    dst: int | None,
    group: AnyGroup | None,
    async_op: Literal[True],
    group_dst: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def gather_into_tensor(
    tensor: Tensor,
    gather_tensor: Tensor | None = None,
    dst: int | None = None,
    group: AnyGroup | None = None,
    *,
    async_op: bool,
    group_dst: int | None = None,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def gather_into_tensor(
    tensor: Tensor,
    gather_tensor: Tensor | None,
    dst: int | None,
    group: AnyGroup | None,
    async_op: bool,
    group_dst: int | None = None,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def reduce_scatter_tensor(
    output: Tensor,
    input: Tensor,
    op: Op = ...,
    group: AnyGroup | None = None,
    async_op: Literal[False] = False,
    *,
    timeout: Timeout | None = None,
) -> None: ...
@overload
def reduce_scatter_tensor(
    output: Tensor,
    input: Tensor,
    op: Op = ...,
    group: AnyGroup | None = None,
    *,
    async_op: Literal[True],
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def reduce_scatter_tensor(
    output: Tensor,
    input: Tensor,
    op: Op,
    group: AnyGroup | None,
    async_op: Literal[True],
    *,
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def reduce_scatter_tensor(
    output: Tensor,
    input: Tensor,
    op: Op = ...,
    group: AnyGroup | None = None,
    *,
    async_op: bool,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def reduce_scatter_tensor(
    output: Tensor,
    input: Tensor,
    op: Op,
    group: AnyGroup | None,
    async_op: bool,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def _reduce_scatter_base(
    output: Tensor,
    input: Tensor,
    op: Op = ...,
    group: AnyGroup | None = None,
    async_op: Literal[False] = False,
    *,
    timeout: Timeout | None = None,
) -> None: ...
@overload
def _reduce_scatter_base(
    output: Tensor,
    input: Tensor,
    op: Op = ...,
    group: AnyGroup | None = None,
    *,
    async_op: Literal[True],
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def _reduce_scatter_base(
    output: Tensor,
    input: Tensor,
    op: Op,
    group: AnyGroup | None,
    async_op: Literal[True],
    *,
    timeout: Timeout | None = None,
) -> _core.Work: ...
@overload
def _reduce_scatter_base(
    output: Tensor,
    input: Tensor,
    op: Op = ...,
    group: AnyGroup | None = None,
    *,
    async_op: bool,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
@overload
def _reduce_scatter_base(
    output: Tensor,
    input: Tensor,
    op: Op,
    group: AnyGroup | None,
    async_op: bool,
    *,
    timeout: Timeout | None = None,
) -> _core.Work | None: ...
class _reduce_op:
    def __getattribute__(self, name: str) -> Any: ...
reduce_op: _reduce_op
def _make_nccl_premul_sum(factor: float | Tensor) -> _core.ReduceOp: ...
