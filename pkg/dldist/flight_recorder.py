"""The flight recorder keeps the last operations of this process, on any backend, to show why the process hangs.

It is on unless DLDIST_FR_BUFFER_SIZE is 0. Dumps have PyTorch's format, so PyTorch's analyser can read them, too. Making a dump
takes no interpreter: the watchdog writes one even if a thread holds the GIL for ever.

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
from dldist._base import settings

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
    """Whether anything is recorded."""
    return _core._recorder_capacity() > 0


def dump_pickle(*, entries: bool = True, stacks: bool = True, only_active: bool = False) -> bytes:
    """A pickled dict like PyTorch's: version, pg_config, pg_status, comm_lib_version and, if wanted, the entries.

    only_active leaves out operations that have completed.
    """
    return _core._dump_recorder(False, entries, stacks, only_active)


def dump_json(*, entries: bool = True, stacks: bool = True, only_active: bool = False) -> bytes:
    """The same in JSON. As in PyTorch's, unknown times are 0, and the numbers in pg_status are text."""
    return _core._dump_recorder(True, entries, stacks, only_active)


def dump(
    path: str | os.PathLike[str] | None = None,
    *,
    json: bool = False,
    entries: bool = True,
    stacks: bool = True,
    only_active: bool = False,
) -> str:
    """Write a dump to a file and return its path, default_path() unless given. The file appears complete or not at all.

    If no path is given and a writer is registered, the writer gets the bytes instead.
    """
    if path is None and _writer is not None:
        _writer(_core._dump_recorder(json, entries, stacks, only_active))
        return ""
    name = default_path() if path is None else os.fspath(path)
    _core._dump_recorder(json, entries, stacks, only_active, name)
    return name


def request_dump() -> bool:
    """Ask the monitor of this process to write a dump to default_path() soon. It can do so even while a thread holds the GIL.

    Returns False if there is no monitor, because the process has made no group of several ranks.
    """
    return _core._monitor_request_dump()


def report() -> str:
    """What the monitor of this process has found out last, as lines of text; "" when it has had no reason to look (docs/watchdog.md)."""
    return _core._monitor_report()


def dump_on_signal(signum: int) -> None:
    """Make a signal ask for dumps, as request_dump() does, until the monitor stops. This replaces what the signal does now.

    SIGUSR2, or the signal that DLDIST_DUMP_SIGNAL names, does so by default unless the program uses it itself. Raises
    RuntimeError if the process has made no group of several ranks, and ValueError if this signal cannot be handled.
    """
    _core._monitor_on_signal(signum, False)


def default_path(rank: int | None = None) -> str:
    """Where a dump goes if no path is given: the prefix from DLDIST_FR_DUMP_FILE, then the rank, which is RANK's unless given."""
    if rank is None:
        text = os.environ.get("RANK", "")
        rank = int(text) if text.isdecimal() else 0
    return f"{settings.dump_prefix()}{rank}"


def entries(*, stacks: bool = True, only_active: bool = False) -> list[dict[str, Any]]:
    """The recorded operations, oldest first, each as a dict with PyTorch's names."""
    found: list[dict[str, Any]] = pickle.loads(dump_pickle(stacks=stacks, only_active=only_active))["entries"]
    return found


def reset() -> None:
    """Forget all operations and go on recording; record_id starts at 0 again."""
    _core._reset_recorder()


def register_writer(writer: Callable[[bytes], object] | None) -> None:
    """Have `writer` get the bytes of dumps without a path, including the watchdog's. None means files again.

    The watchdog still writes a file if the interpreter does not get round to calling the writer.
    """
    global _writer
    if writer is not None and not callable(writer):
        raise TypeError(f"register_writer(): argument 'writer' must be callable, not {type(writer).__name__}")
    _writer = writer


def registered_writer() -> Callable[[bytes], object] | None:
    """The registered writer, or None if dumps go to files."""
    return _writer


# ---- c10d's names


# The argument `backend` has no effect: one recorder has the operations of all backends.


def _dump_fr_trace(
    includeCollectives: bool | None = None,
    includeStackTraces: bool | None = None,
    onlyActive: bool | None = None,
    backend: str = "gloo",
) -> bytes:
    """The content of the flight recorder as a pickle."""
    return dump_pickle(
        entries=includeCollectives is None or includeCollectives,
        stacks=includeStackTraces is None or includeStackTraces,
        only_active=bool(onlyActive),
    )


def _dump_fr_trace_json(
    includeCollectives: bool | None = None, onlyActive: bool | None = None, backend: str = "gloo"
) -> bytes:
    """The content of the flight recorder in JSON, without stacks."""
    return dump_json(entries=includeCollectives is None or includeCollectives, stacks=False, only_active=bool(onlyActive))


def _dump_fr_trace_file(
    rank: int,
    includeCollectives: bool | None = None,
    includeStackTraces: bool | None = None,
    onlyActive: bool | None = None,
    backend: str = "gloo",
) -> None:
    """Give the content of the flight recorder as a pickle to the registered writer. Without one, write it to the default path of a
    rank."""
    _keep(_dump_fr_trace(includeCollectives, bool(includeStackTraces), onlyActive), rank)


def _keep(dumped: bytes, rank: int) -> None:
    """Give a dump to the registered writer. Without one, write it to the default path of a rank, like dump()."""
    if _writer is not None:
        _writer(dumped)
        return
    import tempfile

    path = default_path(rank)
    folder, name = os.path.split(path)
    os.makedirs(folder or ".", 0o700, exist_ok=True)
    # Others may be able to write in the folder, so the file is made anew, and it is private to its user.
    number, unfinished = tempfile.mkstemp(prefix=f".{name}.", dir=folder or ".")
    try:
        with open(number, "wb") as file:
            file.write(dumped)
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise


def _reset_fr_trace(backend: str = "gloo") -> None:
    """Forget all operations and go on recording."""
    reset()


_dump_nccl_trace = _dump_fr_trace
_dump_nccl_trace_json = _dump_fr_trace_json
_reset_fr_recording_nccl = reset
