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

_TORCH_BACKEND = "gloo"
_DLDIST_BACKEND = "dldist"


def extend_torch_dumps() -> None:
    """Replace PyTorch's dump functions, if this PyTorch has them. Call this once per process."""
    factories: dict[str, Callable[[Any], Callable[..., Any]]] = {
        "_dump_fr_trace": _pickle_dump,
        "_dump_fr_trace_json": _json_dump,
        "_dump_fr_trace_file": _file_dump,
        "_reset_fr_trace": _reset,
    }
    for name, factory in factories.items():
        torch_function = getattr(c10d, name, None)
        if torch_function is not None:
            setattr(c10d, name, functools.wraps(torch_function)(factory(torch_function)))


def _pickle_dump(torch_dump: Callable[..., bytes]) -> Callable[..., bytes]:
    def _dump_fr_trace(
        includeCollectives: bool | None = None,
        includeStackTraces: bool | None = None,
        onlyActive: bool | None = None,
        backend: str = _TORCH_BACKEND,
    ) -> bytes:
        arguments = includeCollectives, includeStackTraces, onlyActive
        return _dump(torch_dump, flight_recorder._dump_fr_trace, arguments, backend, pickle.loads, functools.partial(pickle.dumps, protocol=2))

    return _dump_fr_trace


def _json_dump(torch_dump: Callable[..., bytes]) -> Callable[..., bytes]:
    def _dump_fr_trace_json(
        includeCollectives: bool | None = None, onlyActive: bool | None = None, backend: str = _TORCH_BACKEND
    ) -> bytes:
        arguments = includeCollectives, onlyActive
        return _dump(torch_dump, flight_recorder._dump_fr_trace_json, arguments, backend, json.loads, lambda dump: json.dumps(dump).encode())

    return _dump_fr_trace_json


def _file_dump(torch_dump: Callable[..., None]) -> Callable[..., None]:
    def _dump_fr_trace_file(
        rank: int,
        includeCollectives: bool | None = None,
        includeStackTraces: bool | None = None,
        onlyActive: bool | None = None,
        backend: str = _TORCH_BACKEND,
    ) -> None:
        if backend not in (_TORCH_BACKEND, _DLDIST_BACKEND):
            torch_dump(rank, includeCollectives, includeStackTraces, onlyActive, backend)
            return
        flight_recorder._store_dump(c10d._dump_fr_trace(includeCollectives, bool(includeStackTraces), onlyActive, backend), rank)

    return _dump_fr_trace_file


def _reset(torch_reset: Callable[[str], None]) -> Callable[..., None]:
    def _reset_fr_trace(backend: str = _TORCH_BACKEND) -> None:
        torch_reset(backend)
        if backend in (_TORCH_BACKEND, _DLDIST_BACKEND):
            flight_recorder.reset()

    return _reset_fr_trace


def _dump(
    torch_dump: Callable[..., bytes],
    own_dump: Callable[..., bytes],
    arguments: tuple[bool | None, ...],
    backend: str,
    load: Callable[[bytes], Any],
    save: Callable[[Any], bytes],
) -> bytes:
    """Dump the recorders that the argument `backend` selects."""
    if backend == _DLDIST_BACKEND:
        return own_dump(*arguments)
    if backend == _TORCH_BACKEND:
        return _merge(torch_dump(*arguments), own_dump(*arguments), load, save)
    return torch_dump(*arguments, backend)


def _merge(torch_data: bytes, own_data: bytes, load: Callable[[bytes], Any], save: Callable[[Any], bytes]) -> bytes:
    """Merge two dumps: the groups of both, and the entries sorted by start time."""
    first, second = load(torch_data), load(own_data)
    if not first.get("entries") and not first.get("pg_config"):
        return own_data
    merged = {**second, **first}
    for name in ("pg_config", "pg_status"):
        if name in first or name in second:
            merged[name] = {**second.get(name, {}), **first.get(name, {})}
    if "entries" in first or "entries" in second:
        entries = [*first.get("entries", ()), *second.get("entries", ())]
        merged["entries"] = sorted(entries, key=lambda entry: entry["time_created_ns"])
    return save(merged)
