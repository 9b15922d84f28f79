"""The module-level calls under the name of c10d's module, including its private names."""

from __future__ import annotations

import sys
from types import ModuleType

from dldist._api import namespace
from dldist._backends import registry

_TABLES = namespace.C10D, namespace.PACKAGE, namespace.PRIVATE, namespace.C10D_ONLY
__all__ = [name for name, _, _ in namespace.parse_names(namespace.C10D)]

__getattr__ = namespace.Finder(__name__, *_TABLES)


class _Module(ModuleType):
    """This module's class: tests whose ranks are threads can replace the attribute `_world`."""

    @property
    def _world(self) -> registry.Registry:
        return registry._world

    @_world.setter
    def _world(self, world: registry.Registry) -> None:
        registry._world = world


sys.modules[__name__].__class__ = _Module
