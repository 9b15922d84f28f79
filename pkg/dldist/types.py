"""Types for annotations: tensors, groups, reductions and timeouts.

    from dldist.types import AnyGroup

    def step(gradient: dldist.Tensor, group: AnyGroup | None = None) -> None: ...
"""

from __future__ import annotations

from typing import TypeAlias

from dldist._backends.backend_base import Backend
from dldist._backends.process_group import ProcessGroup
from dldist._base.array_types import Op, OpName, SupportsBuffer, SupportsDLPack, Tensor, Tensors, Timeout
from dldist._core import Group

__all__ = ["AnyGroup", "Op", "OpName", "SupportsBuffer", "SupportsDLPack", "Tensor", "Tensors", "Timeout"]

AnyGroup: TypeAlias = Group | ProcessGroup | Backend | int
"""A World or Group, a group of new_group, or a backend. The only int is
GroupMember.NON_GROUP_MEMBER, which new_group returns for non-members."""
