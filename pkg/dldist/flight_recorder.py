"""The flight recorder keeps this process's last operations, of all backends, to explain hangs.

It is on unless DLDIST_FR_BUFFER_SIZE is 0. PyTorch's analyser can read its dumps. A dump needs no
interpreter: the watchdog writes one even if a thread holds the GIL forever.

>>> from dldist import flight_recorder
>>> flight_recorder.dump("/tmp/trace_3")
'/tmp/trace_3'
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any

from dldist import _core
from dldist._base import argument_names, settings

__all__ = [
    "default_path",
    "dump",
    "dump_json",
    "dump_on_signal",
    "dump_pickle",
    "entries",
    "is_on",
    "register_writer",
    "registered_writer",
    "report",
    "request_dump",
    "reset",
]

_writer: Callable[[bytes], object] | None = None


def is_on() -> bool:
    """Return True if operations are recorded."""
    return _core._recorder_capacity() > 0


def dump_pickle(*, entries: bool = True, stacks: bool = True, only_active: bool = False) -> bytes:
    """Return the records as a pickled dict in PyTorch's format. only_active omits completed calls.

    The keys are version, pg_config, pg_status, comm_lib_version and, if requested, entries.
    """
    return _core._dump_recorder(False, entries, stacks, only_active)


def dump_json(*, entries: bool = True, stacks: bool = True, only_active: bool = False) -> bytes:
    """Return the dict of dump_pickle() as JSON. As in PyTorch, unknown times are 0, and the numbers
    in pg_status are text."""
    return _core._dump_recorder(True, entries, stacks, only_active)


def dump(
    path: str | os.PathLike[str] | None = None,
    *,
    json: bool = False,
    entries: bool = True,
    stacks: bool = True,
    only_active: bool = False,
) -> str:
    """Write a dump to a file, by default default_path(), and return the path.

    The file is created atomically. Without `path`, if a writer is registered, the writer gets the
    bytes instead, and the result is "".
    """
    if path is None and _writer is not None:
        _writer(_core._dump_recorder(json, entries, stacks, only_active))
        return ""
    name = default_path() if path is None else argument_names.convert("path", os.fspath, path, "a path")
    _core._dump_recorder(json, entries, stacks, only_active, name)
    return name


def request_dump() -> bool:
    """Request a dump to default_path() from the monitor, which needs no GIL.

    Return False if the process has no monitor, because it has created no group of several ranks.
    """
    return _core._monitor_request_dump()


def report() -> str:
    """Return the monitor's last findings as lines of text (docs/watchdog.md), or ""."""
    return _core._monitor_report()


def dump_on_signal(signum: int) -> None:
    """Make a signal request dumps, as request_dump() does, until the monitor stops.

    This replaces the signal's handler. By default, the signal DLDIST_DUMP_SIGNAL (SIGUSR2) requests
    dumps unless the program has a handler for it. Raise RuntimeError if the process has no group of
    several ranks, and ValueError if the signal cannot be handled.
    """
    _core._monitor_on_signal(signum, False)


def default_path(rank: int | None = None) -> str:
    """Return the default path of a dump: the prefix DLDIST_FR_DUMP_FILE, and `rank` or RANK."""
    if rank is None:
        text = os.environ.get("RANK", "")
        rank = int(text) if text.isdecimal() else 0
    return f"{settings.dump_prefix()}{rank}"


def entries(*, stacks: bool = True, only_active: bool = False) -> list[dict[str, Any]]:
    """Return the recorded operations, oldest first, as dicts with PyTorch's keys."""
    records: list[dict[str, Any]] = pickle.loads(dump_pickle(stacks=stacks, only_active=only_active))["entries"]
    return records


def reset() -> None:
    """Discard all records and continue recording. record_id restarts at 0."""
    _core._reset_recorder()


def register_writer(writer: Callable[[bytes], object] | None) -> None:
    """Register a function that gets all dumps without a path, even the watchdog's. None removes it.

    The watchdog writes a file if the interpreter does not call the function before a timeout.
    """
    global _writer
    if writer is not None and not callable(writer):
        raise TypeError(f"register_writer(): argument 'writer' must be callable, not {type(writer).__name__}")
    _writer = writer


def registered_writer() -> Callable[[bytes], object] | None:
    """Return the registered writer, or None if dumps go to files."""
    return _writer


# ---- c10d's names


# The argument `backend` has no effect, because one recorder has the operations of all backends.


def _dump_fr_trace(
    includeCollectives: bool | None = None,
    includeStackTraces: bool | None = None,
    onlyActive: bool | None = None,
    backend: str = "gloo",
) -> bytes:
    """Return the records as a pickle, in torch's format."""
    return dump_pickle(
        entries=includeCollectives is None or includeCollectives,
        stacks=includeStackTraces is None or includeStackTraces,
        only_active=bool(onlyActive),
    )


def _dump_fr_trace_json(
    includeCollectives: bool | None = None, onlyActive: bool | None = None, backend: str = "gloo"
) -> bytes:
    """Return the records as JSON, in torch's format, without stacks."""
    return dump_json(entries=includeCollectives is None or includeCollectives, stacks=False, only_active=bool(onlyActive))


def _dump_fr_trace_file(
    rank: int,
    includeCollectives: bool | None = None,
    includeStackTraces: bool | None = None,
    onlyActive: bool | None = None,
    backend: str = "gloo",
) -> None:
    """Pass the pickled records to the registered writer, or write them to the default path."""
    _store_dump(_dump_fr_trace(includeCollectives, bool(includeStackTraces), onlyActive), rank)


def _store_dump(dumped: bytes, rank: int) -> None:
    """Pass a dump to the registered writer. Without one, write it to the rank's default path."""
    if _writer is not None:
        _writer(dumped)
        return
    import tempfile

    path = default_path(rank)
    folder, name = os.path.split(path)
    os.makedirs(folder or ".", 0o700, exist_ok=True)
    # Create a new file that is private to this user, because other users may write in the folder.
    number, unfinished = tempfile.mkstemp(prefix=f".{name}.", dir=folder or ".")
    try:
        with open(number, "wb") as file:
            file.write(dumped)
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise


def _reset_fr_trace(backend: str = "gloo") -> None:
    """Discard all records and continue recording."""
    reset()


_dump_nccl_trace = _dump_fr_trace
_dump_nccl_trace_json = _dump_fr_trace_json
_reset_fr_recording_nccl = reset
