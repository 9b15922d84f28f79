"""Health of this process's backends, for the control plane's handler c10d_health_check."""

from __future__ import annotations

from typing import Any

from dldist._backends import registry
from dldist._base.options import ErrorType

_HOOK_ID = (1 << 62) - 1  # callers choose small numbers

_aborted: set[str] = set()
"""The names of backends that have aborted. A program that goes on with other groups stays unhealthy."""


class HealthCheckHook:
    """Reports a process as unhealthy once one of its backends has aborted. Every new group has one."""

    @staticmethod
    def attach(pg: Any) -> None:
        """Report the aborts of each of a process group's backends that supports abort hooks.

        Args:
            pg: A process group.

        Example:
            >>> from dldist._backends.health_check import HealthCheckHook
            >>> HealthCheckHook.attach(dist.group.WORLD)
        """
        for backend in pg._distinct_backends():
            if backend.supports_abort_hooks:
                name = backend.name()
                backend.register_abort_hook(_HOOK_ID, lambda name=name: _aborted.add(name))


def unhealthy_backends() -> list[str]:
    """The names of backends that have aborted, and of the backends whose group is unusable because of an error."""
    failed = {backend.name() for pg in list(registry._world.pg_map) for backend in pg._distinct_backends() if _has_failed(backend)}
    return sorted(_aborted | failed)


def _has_failed(backend: Any) -> bool:
    try:
        return bool(backend.get_error() != ErrorType.SUCCESS)
    except RuntimeError:
        return False  # the backend does not report errors
