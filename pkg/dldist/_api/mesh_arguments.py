"""Convert the arguments of a mesh: ranks, names and backends of its dimensions."""

from __future__ import annotations

import sys
from array import array as python_array
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from dldist import _core
from dldist._api.mesh_groups import DEFAULT_OVERRIDE, Override
from dldist._api.mesh_layout import nest
from dldist._backends.backend_base import BackendOptions
from dldist._base.arrays import TORCH, find_family

AnyOverride = str | BackendOptions | tuple[str | None, BackendOptions | None]


def check_names(names: Sequence[str] | None, shape: tuple[int, ...]) -> tuple[str, ...] | None:
    if not names:
        return None
    names = tuple(names)
    if len(set(names)) != len(names):
        raise RuntimeError(f"Each mesh_dim_name must be unique: {names}")
    if len(names) != len(shape):
        raise RuntimeError(f"mesh_dim_names must have a name for each dimension: got {names}, expected {len(shape)} names for shape {shape}")
    return names


def check_overrides(overrides: Sequence[Override] | None, ndim: int) -> Sequence[Override]:
    if overrides is None:
        return [DEFAULT_OVERRIDE] * ndim
    if len(overrides) != ndim:
        raise ValueError(f"backend_override must have one entry for each dimension: got {len(overrides)}, expected {ndim}")
    return overrides


def as_override(override: AnyOverride | None) -> Override:
    """Return a pair (backend, options) for a backend, for options, or for such a pair."""
    if override is None:
        return DEFAULT_OVERRIDE
    if isinstance(override, str):
        return override, None
    return (None, override) if isinstance(override, BackendOptions) else override


def overrides_by_dim(
    overrides: Mapping[Any, AnyOverride] | None, ndim: int, names: tuple[str, ...]
) -> list[Override]:
    overrides = overrides or {}
    duplicates = {dim: name for dim, name in enumerate(names) if dim in overrides and name in overrides}
    if duplicates:
        raise RuntimeError(f"backend_override has a dimension twice: got index and name {duplicates}, expected one of them")
    unknown = [key for key in overrides if key not in names and key not in range(ndim)]
    if unknown:
        raise RuntimeError(f"Found invalid keys in backend_override: got {unknown}, expected 0 to {ndim - 1} or one of {names}")
    pairs = zip_longest(range(ndim), names)
    return [as_override(overrides.get(name) if name in overrides else overrides.get(dim)) for dim, name in pairs]


def read_mesh(mesh: Any, check_size: Callable[[int], None] | None = None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return a mesh's ranks in row-major order, and the shape. Raise if check_size(size) does."""
    ranks: list[int] = []
    shape = _read_nested(_as_lists(mesh), ranks, mesh, check_size)
    if not ranks:
        raise ValueError(f"DeviceMesh(): argument 'mesh' has no ranks: got {mesh}, expected at least one")
    seen: set[int] = set()
    for rank in ranks:
        if rank < 0 or rank in seen:
            raise ValueError(
                f"DeviceMesh(): argument 'mesh' has a {'repeated' if rank in seen else 'negative'} rank: got {rank}, expected different ranks from 0"
            )
        seen.add(rank)
    return tuple(ranks), shape


def _as_lists(mesh: Any) -> Any:
    if hasattr(mesh, "tolist"):
        return mesh.tolist()
    if not hasattr(mesh, "__dlpack__"):
        return mesh
    description = _core._describe_tensor(mesh, False)
    with _core.Group(None, 0, 1) as single_rank_group:
        packed = single_rank_group.empty(description["shape"], description["dtype"])
        _core._copy_tensor(packed, mesh)
        return packed.tolist()


def _read_nested(values: Any, ranks: list[int], mesh: Any, check_size: Callable[[int], None] | None) -> tuple[int, ...]:
    """Append the integers of nested sequences to `ranks`, and return their shape."""
    if hasattr(values, "__index__"):
        ranks.append(values.__index__())
        return ()
    if not isinstance(values, (list, tuple, range)):
        raise TypeError(f"DeviceMesh(): argument 'mesh' has another kind of item: got {values!r}, expected ranks (int)")
    if check_size is not None:
        check_size(len(ranks) + len(values))
    shapes = {_read_nested(_as_lists(item), ranks, mesh, check_size) for item in values}
    if len(shapes) > 1:
        raise ValueError(f"DeviceMesh(): argument 'mesh' is ragged: got {mesh}, expected rows of equal length")
    return len(values), *(shapes.pop() if shapes else ())


def library_of(mesh: Any) -> str | None:
    """Return "torch" for a PyTorch array, "numpy" for any other array, and None for lists."""
    family = None if mesh is None else find_family(mesh)
    return None if family is None else "torch" if family is TORCH else "numpy"


def as_array(ranks: list[int], shape: tuple[int, ...], library: str | None) -> Any:
    candidates = ("torch", "numpy") if library is None else (library,)
    library_name = next((name for name in candidates if name in sys.modules), None)
    values = nest(ranks, shape)
    if library_name == "torch":
        return sys.modules["torch"].tensor(values, dtype=sys.modules["torch"].int32, device="cpu")
    if library_name == "numpy":
        return sys.modules["numpy"].array(values, dtype="int32")
    with _core.Group(None, 0, 1) as single_rank_group:  # the array outlives this temporary group
        array = single_rank_group.empty(shape, "int32")
    _core._copy_tensor(array, memoryview(python_array("i", ranks)).cast("B").cast("i", shape or (1,)))
    return array
