"""Everything of the module-level calls under c10d's module name, with the private names that programs use."""

from __future__ import annotations

import sys
from types import ModuleType

from dldist.base import namespace
from dldist.c10d import registry

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from typing import Any

for _module in namespace.C10D:
    __import__(_module)

__all__ = [*namespace.public(namespace.C10D)]

namespace.bind(__name__, namespace.C10D, namespace.PACKAGE, namespace.BESIDE, namespace.OF_C10D)


def __getattr__(name: str) -> Any:
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
