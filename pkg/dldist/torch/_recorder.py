"""Adds the calls of dldist's groups to PyTorch's flight recorder dumps.

dldist's recorder records dldist's calls, in PyTorch's format; to record the calls again in C++
would double the cost of a small call. So dumps that Python requests merge both recorders' entries.

Since PyTorch 2.15 there is a recorder for each backend name. In dump calls, "gloo", the default,
selects PyTorch's recorder of that name and dldist's recorder; "dldist" selects only dldist's, and
any other name only PyTorch's.
"""

from __future__ import annotations

import functools
import json
import pickle
from collections.abc import Callable
from typing import Any

from torch._C import _distributed_c10d

from dldist import flight_recorder

c10d: Any = _distributed_c10d

_TORCHS = "gloo"
_OURS = "dldist"


def add_to_torchs_dumps() -> None:
    """Replace PyTorch's dump functions, if this PyTorch has them. Call this once per process."""
    makers: dict[str, Callable[[Any], Callable[..., Any]]] = {
        "_dump_fr_trace": _pickled,
        "_dump_fr_trace_json": _as_json,
        "_dump_fr_trace_file": _to_file,
        "_reset_fr_trace": _reset,
    }
    for name, make in makers.items():
        torchs = getattr(c10d, name, None)
        if torchs is not None:
            setattr(c10d, name, functools.wraps(torchs)(make(torchs)))


def _pickled(torchs: Callable[..., bytes]) -> Callable[..., bytes]:
    def _dump_fr_trace(
        includeCollectives: bool | None = None,
        includeStackTraces: bool | None = None,
        onlyActive: bool | None = None,
        backend: str = _TORCHS,
    ) -> bytes:
        given = includeCollectives, includeStackTraces, onlyActive
        return _dump(torchs, flight_recorder._dump_fr_trace, given, backend, pickle.loads, functools.partial(pickle.dumps, protocol=2))

    return _dump_fr_trace


def _as_json(torchs: Callable[..., bytes]) -> Callable[..., bytes]:
    def _dump_fr_trace_json(
        includeCollectives: bool | None = None, onlyActive: bool | None = None, backend: str = _TORCHS
    ) -> bytes:
        given = includeCollectives, onlyActive
        return _dump(torchs, flight_recorder._dump_fr_trace_json, given, backend, json.loads, lambda dump: json.dumps(dump).encode())

    return _dump_fr_trace_json


def _to_file(torchs: Callable[..., None]) -> Callable[..., None]:
    def _dump_fr_trace_file(
        rank: int,
        includeCollectives: bool | None = None,
        includeStackTraces: bool | None = None,
        onlyActive: bool | None = None,
        backend: str = _TORCHS,
    ) -> None:
        if backend not in (_TORCHS, _OURS):
            torchs(rank, includeCollectives, includeStackTraces, onlyActive, backend)
            return
        flight_recorder._keep(c10d._dump_fr_trace(includeCollectives, bool(includeStackTraces), onlyActive, backend), rank)

    return _dump_fr_trace_file


def _reset(torchs: Callable[[str], None]) -> Callable[..., None]:
    def _reset_fr_trace(backend: str = _TORCHS) -> None:
        torchs(backend)
        if backend in (_TORCHS, _OURS):
            flight_recorder.reset()

    return _reset_fr_trace


def _dump(
    torchs: Callable[..., bytes],
    ours: Callable[..., bytes],
    given: tuple[bool | None, ...],
    backend: str,
    read: Callable[[bytes], Any],
    write: Callable[[Any], bytes],
) -> bytes:
    """Dump the recorders that the argument `backend` selects."""
    if backend == _OURS:
        return ours(*given)
    if backend == _TORCHS:
        return _both(torchs(*given), ours(*given), read, write)
    return torchs(*given, backend)


def _both(theirs: bytes, ours: bytes, read: Callable[[bytes], Any], write: Callable[[Any], bytes]) -> bytes:
    """Merge two dumps: the groups of both, and the entries sorted by start time."""
    first, second = read(theirs), read(ours)
    if not first.get("entries") and not first.get("pg_config"):
        return ours
    merged = {**second, **first}
    for name in ("pg_config", "pg_status"):
        if name in first or name in second:
            merged[name] = {**second.get(name, {}), **first.get(name, {})}
    if "entries" in first or "entries" in second:
        entries = [*first.get("entries", ()), *second.get("entries", ())]
        merged["entries"] = sorted(entries, key=lambda entry: entry["time_created_ns"])
    return write(merged)
