"""Adds the calls of dldist's groups to PyTorch's flight recorder dumps.

dldist's recorder records dldist's calls, in PyTorch's format; to record the calls again in C++
would double the cost of a small call. So dumps that Python requests merge both recorders' entries.

Since PyTorch 2.15 there is a recorder for each backend name. In dump calls, "gloo", the default,
selects PyTorch's recorder of that name and dldist's recorder; "dldist" selects only dldist's, and
any other name only PyTorch's.
"""

from __future__ import annotations

import functools
import inspect
import json
import pickle
from collections.abc import Callable
from typing import Any

from torch._C import _distributed_c10d

from dldist import flight_recorder

c10d: Any = _distributed_c10d

_TORCH_BACKEND, _DLDIST_BACKEND = _BACKENDS = "gloo", "dldist"


def extend_torch_dumps() -> None:
    """Replace PyTorch's dump functions, if this PyTorch has them. Call this once per process."""
    _replace("_dump_fr_trace", functools.partial(_dump, pickle.loads, functools.partial(pickle.dumps, protocol=2)))
    _replace("_dump_fr_trace_json", functools.partial(_dump, json.loads, lambda dump: json.dumps(dump).encode()))
    _replace("_dump_fr_trace_file", _dump_to_file)
    _replace("_reset_fr_trace", _reset)


def _replace(name: str, replacement: Callable[..., Any]) -> None:
    """Replace a function of PyTorch by replacement(PyTorch's function, dldist's, arguments, backend)."""
    torch_function, own_function = getattr(c10d, name, None), getattr(flight_recorder, name)
    if torch_function is None:
        return
    signature = inspect.signature(own_function)

    @functools.wraps(torch_function)
    def function(*args: Any, **named: Any) -> Any:
        bound = signature.bind(*args, **named)
        bound.apply_defaults()
        *arguments, backend = bound.arguments.values()
        return replacement(torch_function, own_function, arguments, backend)

    setattr(c10d, name, function)


def _dump(
    load: Callable[[bytes], Any], save: Callable[[Any], bytes], torch_dump: Any, own_dump: Any, arguments: list[Any], backend: str
) -> Any:
    """Dump the recorders that the argument `backend` selects."""
    if backend == _DLDIST_BACKEND:
        return own_dump(*arguments)
    if backend == _TORCH_BACKEND:
        return _merge(torch_dump(*arguments), own_dump(*arguments), load, save)
    return torch_dump(*arguments, backend)


def _dump_to_file(torch_dump: Any, _own_dump: Any, arguments: list[Any], backend: str) -> None:
    if backend not in _BACKENDS:
        torch_dump(*arguments, backend)
        return
    rank, has_entries, has_stacks, only_active = arguments
    flight_recorder._store_dump(c10d._dump_fr_trace(has_entries, bool(has_stacks), only_active, backend), rank)


def _reset(torch_reset: Any, own_reset: Any, _arguments: list[Any], backend: str) -> None:
    torch_reset(backend)
    if backend in _BACKENDS:
        own_reset()


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
