"""Everything of the module-level calls under c10d's module name, with the private names that programs use."""

from __future__ import annotations

import sys
from types import ModuleType

from dldist import namespace
from dldist._core import PrefixStore, ReduceOp, Store, Work
from dldist.c10d import (
    coalescing,
    collectives,
    gloo,
    groups,
    names,
    objects,
    options,
    p2p,
    process_group,
    ranks,
    registry,
)

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from typing import Any

MODULES = (coalescing, collectives, gloo, groups, names, objects, options, p2p, process_group, ranks, registry)
"""A public name is listed once, in that of these modules that it comes from."""

__all__ = ["PrefixStore", "ReduceOp", "Store", "Work"]

for _module in MODULES:
    __all__ += _module.__all__
    globals().update({_name: getattr(_module, _name) for _name in _module.__all__})

namespace.bind(__name__)


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
