"""Carriers: MPI, UCC or oneCCL as the library that moves a group's data. See docs/carriers.md.

A group with a carrier is an ordinary World: dldist does rendezvous, compares calls, enforces
timeouts and names the blamed rank. The library moves the data of calls that it supports, and dldist
all other data.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any
from weakref import WeakSet

from dldist import _core
from dldist._base import argument_names

NAMES = ("mpi", "ucc", "xccl")

_libraries: dict[str, Any] = {}
_reasons: dict[str, Exception] = {}
_groups: dict[str, WeakSet[_core.Group]] = {}


def _module(name: str) -> ModuleType:
    if name not in NAMES:
        raise ValueError(f"{argument_names.title('name')}: unknown carrier: got {name!r}, expected one of {', '.join(map(repr, NAMES))}")
    return import_module(f"dldist.carriers._{name}")


def library(name: str) -> Any:
    """Load a carrier's library once. NotImplementedError lists the paths tried and how to install
    the library."""
    if name not in _libraries:
        module = _module(name)
        try:
            _libraries[name] = module.load()
        except NotImplementedError as error:
            raise NotImplementedError(f"{error}; {module.WHAT_TO_INSTALL}") from None
    return _libraries[name]


def is_available(name: str) -> bool:
    """Return True if a carrier's library can be loaded. A failed load is not repeated."""
    if name not in _reasons:
        try:
            library(name)
        except NotImplementedError as error:
            _reasons[name] = error
    return name not in _reasons


def why_not(name: str) -> str | None:
    """Return the paths tried and how to install the library, or None if it is available."""
    return None if is_available(name) else str(_reasons[name])


def info(name: str) -> dict[str, str]:
    """Return the version and the path of a carrier's library."""
    _, version, path = _core._carrier_info(library(name))
    return {"version": version, "path": path}


def carry(group: _core.Group, name: str) -> None:
    """Let a library move the group's data. All ranks must call this before they use the group."""
    carrier = library(name)
    initialize = getattr(_module(name), "initialize", None)
    if initialize is not None:
        initialize(carrier)
    group._carry(carrier)
    _carried(name).add(group)


def _carried(name: str) -> WeakSet[_core.Group]:
    return _groups.setdefault(name, WeakSet())


def has_failed(name: str) -> bool:
    """Return True if a group with this carrier has failed."""
    return any(group.error is not None for group in _carried(name))
