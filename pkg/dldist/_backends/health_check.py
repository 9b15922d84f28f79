"""Health of this process's backends, for the control plane's handler c10d_health_check."""

from __future__ import annotations

from typing import Any

from dldist._backends import registry
from dldist._base.options import ErrorType

_HOOK_ID = (1 << 62) - 1  # far from the small ids that programs choose

_aborted: set[str] = set()
"""Names of aborted backends. Never removed: the process stays unhealthy."""


class HealthCheckHook:
    """Marks this process as unhealthy when a backend aborts. Attached to every new group."""

    @staticmethod
    def attach(pg: Any) -> None:
        """Register a hook for aborts with a process group's backends that support abort hooks.

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
    """List the backends that have aborted, or whose groups are unusable after an error."""
    failed = {backend.name() for pg in list(registry._world.pg_map) for backend in pg._distinct_backends() if _has_failed(backend)}
    return sorted(_aborted | failed)


def _has_failed(backend: Any) -> bool:
    try:
        return bool(backend.get_error() != ErrorType.SUCCESS)
    except RuntimeError:
        return False  # this backend cannot report errors
