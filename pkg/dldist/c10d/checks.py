"""c10d's checks of arguments, for libraries that make them themselves. An array of any library is a tensor."""

from __future__ import annotations

from dldist import _core
from dldist.c10d import registry
from dldist.c10d.objects import _check_not_self
from dldist.c10d.p2p import _check_op as _check_op
from dldist.c10d.p2p import _check_p2p_op_list as _check_p2p_op_list
from dldist.c10d.p2p import _check_single_tensor as _check_single_tensor
from dldist.c10d.ranks import canonical_rank, global_rank_of

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_PARTS = {"complex64": "float32", "complex128": "float64"}
_FP8 = {"float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"}


def _as_iterable(obj: Any) -> Sequence[Any]:
    return obj if isinstance(obj, list) else (obj,)


def _check_tensor_list(param: Any, param_name: str) -> None:
    """Refuse what is no list of tensors; a tuple is as good as a list."""
    if not isinstance(param, (list, tuple)):
        raise TypeError(
            f"Invalid function argument. Expected parameter `{param_name}` to be a list of tensors but got {type(param)} instead."
        )
    for index, each in enumerate(param):
        _check_single_tensor(each, f"{param_name}[{index}]")


def _dtype_of(tensor: Any) -> str:
    return _core._describe_tensor(tensor, False)["dtype"]


def _ensure_all_tensors_same_dtype(*tensors: Any) -> None:
    """Refuse tensors, or lists of them, of several dtypes. A complex number counts as its parts."""
    first = None
    for each in tensors:
        for tensor in _as_iterable(each):
            own = _dtype_of(tensor)
            parts = _PARTS.get(own, own)
            first = parts if first is None else first
            if parts != first:
                raise ValueError(f"Invalid usage of tensors with different dtypes: found {first} and {own}")


def _is_fp8(tensor: Any) -> bool:
    return _dtype_of(tensor) in _FP8


def _canonicalize_group_rank(
    group: Any, global_rank: int | None = None, group_rank: int | None = None, return_global: bool = False
) -> int:
    """The group rank, or the global one, of exactly one of them."""
    rank = canonical_rank(group, global_rank, group_rank)
    return global_rank_of(group, rank) if return_global else rank


def _check_not_self_rank(group: Any, rank: int, rank_type: str) -> None:
    _check_not_self(registry.operations(group), rank, rank_type)
