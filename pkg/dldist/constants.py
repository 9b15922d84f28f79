"""Default timeouts of groups, under torch.distributed's name for this module."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from dldist import distributed_c10d

default_pg_timeout: timedelta
default_pg_nccl_timeout: timedelta | None

__all__ = ["default_pg_nccl_timeout", "default_pg_timeout"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(distributed_c10d, name)
