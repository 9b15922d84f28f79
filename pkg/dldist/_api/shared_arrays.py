"""Create arrays in memory that a host's ranks share, and find a group's CPU group."""

from __future__ import annotations

from typing import Any

from dldist import _core
from dldist._backends import registry
from dldist._backends.process_group import ProcessGroup
from dldist._backends.world_backend import world_of_group
from dldist._base import argument_names
from dldist.types import AnyGroup


def group_of(call: str, group: AnyGroup | str | None = None) -> _core.Group:
    """Return the CPU group of a process group, given as an object, a name or None (default)."""
    if isinstance(group, _core.Group):
        return group
    pg = registry.default_group() if group is None else registry._world.resolve(group) if isinstance(group, str) else group
    if not isinstance(pg, ProcessGroup):
        raise TypeError(f"{argument_names.title('group', call)} must be a group or a group's name, not {type(group).__name__}")
    cpu_group = world_of_group(pg)
    if cpu_group is None:
        raise RuntimeError(f"{call}(): group {pg.group_name!r} has no backend of dldist for the CPU, which shared memory needs")
    return cpu_group


def empty(shape: int | list[int] | tuple[int, ...], dtype: Any = "float32", group: AnyGroup | str | None = None) -> _core.SharedArray:
    """Create zeros (of float32 unless a dtype is given) in memory that this host's ranks share.

    Args:
        shape: A length, or a list or tuple of lengths.
        dtype: The name of a dtype, or a dtype of any array library.
        group: The group whose ranks share the memory, or its name; None for the default world.

    Raises:
        RuntimeError: The group has no backend for the CPU.

    Example:
        >>> x = dist.empty((2, 3), "int32")
        >>> x.shape, x.dtype
        ((2, 3), 'int32')
    """
    return group_of("empty", group).empty(shape, dtype)
