"""Everything of the module-level calls under c10d's module name, with the private names that programs use."""

from __future__ import annotations

import sys
from types import ModuleType

from dldist._api import collectives, groups, namespace, objects, p2p  # noqa: F401
from dldist._backends import (
    cpu,  # noqa: F401
    registry,  # noqa: F401
)

__all__ = [name for name, _, _ in namespace.names_of(namespace.C10D)]

namespace.bind(__name__, namespace.C10D, namespace.PACKAGE, namespace.BESIDE, namespace.OF_C10D)


def __getattr__(name: str) -> object:
    return namespace.find(name, __name__)


class _Module(ModuleType):
    """This module, with a `_world` that can be exchanged, as tests with threads for ranks do."""

    @property
    def _world(self) -> registry.Registry:
        return registry._world

    @_world.setter
    def _world(self, world: registry.Registry) -> None:
        registry._world = world


sys.modules[__name__].__class__ = _Module
