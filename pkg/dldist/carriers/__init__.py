"""Carriers: libraries of others that move the data of groups: MPI, UCC, oneCCL. docs/carriers.md says how they are used.

A group with a carrier is a World like any other. It meets, compares calls, keeps its time-outs and names culprits by itself; the
library moves the data of what it has calls for, and what it has not goes dldist's own way.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any
from weakref import WeakSet

from dldist import _core

NAMES = ("mpi", "ucc", "xccl")

_libraries: dict[str, Any] = {}
_reasons: dict[str, Exception] = {}
_groups: dict[str, WeakSet[_core.Group]] = {}


def _module(name: str) -> ModuleType:
    if name not in NAMES:
        raise ValueError(f"there is no carrier {name!r}: they are {', '.join(map(repr, NAMES))}")
    return import_module(f"dldist.carriers._{name}")


def library(name: str) -> Any:
    """The library that `name` stands for, loaded once per process. NotImplementedError says what was tried, and what to install."""
    if name not in _libraries:
        module = _module(name)
        try:
            _libraries[name] = module.load()
        except NotImplementedError as error:
            raise NotImplementedError(f"{error}. {module.WHAT_TO_INSTALL}") from None
    return _libraries[name]


def is_available(name: str) -> bool:
    """Whether the library can be loaded. A failure is not tried again."""
    if name not in _reasons:
        try:
            library(name)
        except NotImplementedError as error:
            _reasons[name] = error
    return name not in _reasons


def why_not(name: str) -> str | None:
    """What was tried, and what to install. None if the library is there."""
    return None if is_available(name) else str(_reasons[name])


def info(name: str) -> dict[str, str]:
    """The version and the file of the library."""
    _, version, path = _core._carrier_info(library(name))
    return {"version": version, "path": path}


def carry(group: _core.Group, name: str) -> None:
    """Have the library move the group's data from now on. All ranks call this before the group is used."""
    found = library(name)
    begin = getattr(_module(name), "begin", None)
    if begin is not None:
        begin(found)
    group._carry(found)
    _carried(name).add(group)


def _carried(name: str) -> WeakSet[_core.Group]:
    return _groups.setdefault(name, WeakSet())


def has_failed(name: str) -> bool:
    """Whether one of the groups that the library carries has failed."""
    return any(group.error is not None for group in _carried(name))
