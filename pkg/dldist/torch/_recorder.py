"""PyTorch's dumps of its flight recorder have the calls of our groups, too.

Calls over dldist are recorded by dldist's recorder, in the form that PyTorch's has, and not a second time in C++: that would double what a
small call costs. So a dump that is asked for from Python gets its entries from both.
"""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

from torch._C import _distributed_c10d

from dldist import flight_recorder

if TYPE_CHECKING:
    from collections.abc import Callable

c10d: Any = _distributed_c10d


def add_to_torchs_dumps() -> None:
    """Have PyTorch's functions put our entries beside its own. Once in a process."""
    pickled, as_json = c10d._dump_fr_trace, c10d._dump_fr_trace_json

    def _dump_fr_trace(
        includeCollectives: bool | None = None, includeStackTraces: bool | None = None, onlyActive: bool | None = None
    ) -> bytes:
        given = includeCollectives, includeStackTraces, onlyActive
        return _both(pickled(*given), flight_recorder._dump_fr_trace(*given), pickle.loads, lambda dump: pickle.dumps(dump, protocol=2))

    def _dump_fr_trace_json(includeCollectives: bool | None = None, onlyActive: bool | None = None) -> bytes:
        given = includeCollectives, onlyActive
        return _both(as_json(*given), flight_recorder._dump_fr_trace_json(*given), json.loads, lambda dump: json.dumps(dump).encode())

    _dump_fr_trace.__doc__, _dump_fr_trace_json.__doc__ = pickled.__doc__, as_json.__doc__
    c10d._dump_fr_trace, c10d._dump_fr_trace_json = _dump_fr_trace, _dump_fr_trace_json


def _both(theirs: bytes, ours: bytes, read: Callable[[bytes], Any], write: Callable[[Any], bytes]) -> bytes:
    """One dump of two: what each has of groups, and the entries in the order of their beginnings."""
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
