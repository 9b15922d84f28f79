"""Find and read flight recorder dumps.

Dumps are untrusted: the reader creates only containers, strings, numbers and None, within size
limits. Unexpected content raises DumpError with the file and the field's path.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import pickle
import re
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

MAX_FILE_BYTES = 512 << 20
MAX_ITEMS = 20_000_000
"""Maximum number of values in one dump. A value counts once per reference."""

_MAX_INT = (1 << 63) - 1
_SHOWN_CHARS = 40
_NAME = re.compile(r"(.*?)(\d+)(\.json|\.pickle|\.pkl)?", re.DOTALL)
_MESSAGE = re.compile(r"(send|recv|put|signal|wait_signal) (-?\d+|\?)(?:->|<-)(-?\d+|\?)")
_ALLOWED_CONTENT = "a dump has only lists, dicts, strings and numbers"
ANY_PEER = -1
RECEIVES = ("recv", "wait_signal")
"""Names of messages that are received from another rank; all other messages are sent."""

_Value = TypeVar("_Value")


class DumpError(ValueError):
    """Raised if data is not a valid dump. The message starts with the file name."""


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    function: str
    file: str
    line: int


@dataclasses.dataclass(slots=True)
class Entry:
    """One call of one rank, as recorded."""

    index: int
    """The number of this entry in the dump."""
    record_id: int
    group: str
    """The name of the group."""
    desc: str
    group_id: int
    seq: int
    """The number of a collective in its group. The collectives of a coalesced block share one."""
    is_p2p: bool
    op: str
    """The operation without the backend, such as "all_reduce" or "send"."""
    source: int
    """For messages, a rank in the group or ANY_PEER; otherwise -1. The same holds for `target`."""
    target: int
    inputs: list[list[int]]
    outputs: list[list[int]]
    input_dtypes: list[str]
    output_dtypes: list[str]
    state: str
    created_ns: int
    started_ns: int | None
    completed_ns: int | None
    ended_ns: int | None
    """The time of failure, or None if not recorded."""
    is_retired: bool
    timeout_ms: int | None
    error: str
    """The reason for failure, or "" if not recorded."""
    frames: list[Frame]
    """The Python stack, innermost frame first."""

    @property
    def label(self) -> str:
        return f"{self.op} {self.source}->{self.target}" if self.is_p2p else f"{self.op} #{self.seq}"

    @property
    def is_completed(self) -> bool:
        if self.error:
            return False
        if self.state == "completed" or self.completed_ns is not None:
            return True
        # Recorders that do not see an operation start or end leave the state "scheduled" until the
        # operation is retired.
        return self.is_retired and self.state == "scheduled"

    @property
    def is_ended(self) -> bool:
        """True if the call has completed or failed."""
        return self.is_completed or self.is_retired or bool(self.error)

    @property
    def is_started(self) -> bool:
        return self.state == "started" or self.started_ns is not None or self.is_completed

    @property
    def last_ns(self) -> int:
        return max(self.created_ns, self.started_ns or 0, self.completed_ns or 0)


@dataclasses.dataclass(slots=True)
class GroupConfig:
    name: str
    desc: str
    ranks: tuple[int, ...]
    """The global ranks of the members, ordered by rank in the group."""


@dataclasses.dataclass(slots=True)
class Dump:
    """The decoded dump of one rank."""

    rank: int
    source: str
    """The name of the file, for errors."""
    version: str
    groups: dict[str, GroupConfig]
    status: dict[str, dict[str, int]]
    """Status by the process's group id: last_enqueued_collective and so on."""
    entries: list[Entry]
    """The entries, oldest first."""
    is_partial: bool
    """True if calls are missing: overwritten in the ring, or omitted as completed."""


def find(folder: str, prefix: str | None = None) -> dict[int, str]:
    """Return the dump files in a folder, by rank."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    except OSError as error:
        raise DumpError(f"{folder}: {error.strerror or error}") from None
    if not names:
        raise DumpError(f"{folder}: the folder is empty; dumps are files named PREFIX followed by the rank")
    by_prefix: dict[str, dict[int, list[str]]] = {}
    for name in names:
        # A prefix that was passed may end in a digit; the rest of the name must then be the rank.
        found = _NAME.fullmatch(name.removeprefix(prefix or ""))
        if found and (prefix is None or (name.startswith(prefix) and not found[1])):
            by_prefix.setdefault(prefix or found[1], {}).setdefault(int(found[2]), []).append(os.path.join(folder, name))
    if len(by_prefix) > 1:
        by_prefix = {key: files for key, files in by_prefix.items() if _looks_like_dump(next(iter(files.values()))[0])}
    if not by_prefix:
        condition = f"begins with {prefix!r} and" if prefix is not None else ""
        raise DumpError(f"{folder}: no dumps here: of {_format_count(len(names), 'file')} none {condition} ends in the number of a rank")
    if len(by_prefix) > 1:
        shown = ", ".join(repr(key) for key in sorted(by_prefix))
        raise DumpError(f"{folder}: dumps of several kinds: files begin with {shown}; pass one of them as --prefix")
    (files,) = by_prefix.values()
    # Prefer the pickle to the JSON file, because it has stacks.
    return {rank: min(paths, key=lambda path: (path.endswith(".json"), path)) for rank, paths in sorted(files.items())}


def _looks_like_dump(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            head = file.read(64)
    except OSError:
        return False
    return head.startswith(b"\x80") or head.lstrip().startswith(b"{")


def read_file(path: str, rank: int) -> Dump:
    name = os.path.basename(path)
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise DumpError(f"{name}: {error.strerror or error}") from None
    return parse(data, rank, name)


def parse(data: bytes | dict[str, Any], rank: int, source: str = "") -> Dump:
    """Parse a dump from bytes or from a decoded dict."""
    source = source or f"dump of rank {rank}"
    if not isinstance(data, dict):
        data = _load(bytes(data), source)
    return _Reader(source).dump(data, rank)


class _RestrictedUnpickler(pickle._Unpickler):
    """Python's own unpickler, because the one in C sizes its memo by any index in the input."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"got {module}.{name}; {_ALLOWED_CONTENT}")

    def refuse_bytearray(self) -> None:
        raise pickle.UnpicklingError(f"got a bytearray; {_ALLOWED_CONTENT}")

    # Reject BYTEARRAY8: its unpickling allocates the stated size before it checks for the data.
    dispatch: ClassVar[dict[int, Any]] = {**pickle._Unpickler.dispatch, pickle.BYTEARRAY8[0]: refuse_bytearray}


def _load(data: bytes, source: str) -> Any:
    if len(data) > MAX_FILE_BYTES:
        raise DumpError(f"{source}: too large for a dump: expected at most {MAX_FILE_BYTES >> 20} MiB")
    if not data:
        raise DumpError(f"{source}: the file is empty: the process may have been killed while writing")
    if data.lstrip()[:1] == b"{":
        kind = "JSON"
    elif data[:1] == b"\x80":
        kind = "pickle"
    else:
        raise DumpError(f"{source}: unknown format: got {data[:8]!r} at the start, expected JSON or a pickle")
    try:
        return json.loads(data) if kind == "JSON" else _RestrictedUnpickler(io.BytesIO(data)).load()
    except Exception as error:  # arbitrary bytes can raise any exception
        text = str(error) or type(error).__name__
        raise DumpError(f"{source}: malformed or truncated {kind}: {text[:200]}") from None


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _format_value(value: Any) -> str:
    if isinstance(value, (list, tuple, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    try:
        text = repr(value)
    except ValueError:  # the number has too many digits
        text = "a huge number"
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."


class _Reader:
    """Validates and converts one dump. Texts of errors start with `source`."""

    def __init__(self, source: str):
        self.source = source
        self.remaining = MAX_ITEMS

    def fail(self, where: str, expected: str, value: Any) -> DumpError:
        return DumpError(f"{self.source}: {where}: expected {expected}, got {_format_value(value)}")

    def count_items(self, count: int) -> None:
        self.remaining -= count
        if self.remaining < 0:
            raise DumpError(f"{self.source}: too many values for a dump: expected at most {MAX_ITEMS}")

    def integer(self, value: Any, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not -_MAX_INT <= value <= _MAX_INT:
            raise self.fail(where, "a whole number", value)
        return value

    def numeral(self, value: Any, where: str) -> int:
        """Return an integer, which may be given as a string, as in some JSON dumps."""
        if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value):
            value = int(value)
        return self.integer(value, where)

    def text(self, value: Any, where: str) -> str:
        if not isinstance(value, str):
            raise self.fail(where, "text", value)
        return value

    def sequence(self, value: Any, where: str) -> list[Any] | tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise self.fail(where, "a list", value)
        self.count_items(len(value) + 1)
        return value

    def mapping(self, value: Any, where: str) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise self.fail(where, "a dict", value)
        self.count_items(len(value) + 1)
        return value

    def each(self, value: Any, where: str, read: Callable[[Any, str], _Value]) -> list[_Value]:
        return [read(item, f"{where}[{i}]") for i, item in enumerate(self.sequence(value, where))]

    def shape(self, value: Any, where: str) -> list[int]:
        return self.each(value, where, self.integer)

    def time(self, value: Any, where: str) -> int | None:
        return self.integer(value, where) if value else None

    def frame(self, value: Any, where: str) -> Frame:
        frame = self.mapping(value, where)
        return Frame(
            self.text(frame.get("name", "?"), where + ".name"),
            self.text(frame.get("filename", "?"), where + ".filename"),
            self.numeral(frame.get("line", 0), where + ".line"),
        )

    def dump(self, data: Any, rank: int) -> Dump:
        fields = self.mapping(data, "the dump")
        if "version" not in fields and "entries" not in fields:
            raise DumpError(f"{self.source}: not a dump of a flight recorder: expected 'version' and 'entries'")
        version = self.text(fields.get("version", "2.0"), "version")
        if version.partition(".")[0] != "2":
            raise DumpError(f"{self.source}: unknown version of the format: got {_format_value(version)}, expected 2.x")
        groups = self.groups(fields.get("pg_config") or {})
        values = self.sequence(fields.get("entries") or [], "entries")
        entries = [self.entry(value, f"entries[{index}]", index) for index, value in enumerate(values)]
        entries.sort(key=lambda entry: entry.record_id)
        for index, entry in enumerate(entries):
            entry.index = index
        ids = [entry.record_id for entry in entries]
        status = self.status(fields.get("pg_status") or {})
        is_partial = bool(ids) and (ids[0] > 1 or ids[-1] - ids[0] >= len(ids))
        if not any(entry.is_ended for entry in entries):
            # Completed calls are missing from the entries, so only unfinished calls were dumped.
            is_partial |= any(group.get("last_completed_collective", -1) > 0 for group in status.values())
        return Dump(rank, self.source, version, groups, status, entries, is_partial)

    def groups(self, value: Any) -> dict[str, GroupConfig]:
        found = {}
        for key, config in self.mapping(value, "pg_config").items():
            where = f"pg_config[{_format_value(key)}]"
            config = self.mapping(config, where)
            name = self.text(config.get("name", key), where + ".name")
            ranks = config.get("ranks", "[]")
            if isinstance(ranks, str):
                try:
                    ranks = json.loads(ranks)
                except (ValueError, RecursionError):
                    raise self.fail(where + ".ranks", "a list of ranks", ranks) from None
            ranks = tuple(self.each(ranks, where + ".ranks", self.integer))
            if len(set(ranks)) != len(ranks) or any(r < 0 for r in ranks):
                raise self.fail(where + ".ranks", "different ranks, from 0", ranks)
            if ranks:  # an entry without ranks is only a name
                found[name] = GroupConfig(name, self.text(config.get("desc", ""), where + ".desc"), ranks)
        return found

    def status(self, value: Any) -> dict[str, dict[str, int]]:
        found = {}
        for key, status in self.mapping(value, "pg_status").items():
            where = f"pg_status[{_format_value(key)}]"
            status = self.mapping(status, where)
            found[str(key)] = {
                str(name): self.numeral(number, f"{where}.{name}")
                for name, number in status.items()
                if str(name).endswith("_collective")
            }
        return found

    def entry(self, value: Any, where: str, index: int) -> Entry:
        entry = self.mapping(value, where)

        def read_field(name: str, read: Callable[[Any, str], _Value], default: Any = None) -> _Value:
            return read(entry.get(name, default), f"{where}.{name}")

        def read_list(name: str, read: Callable[[Any, str], _Value]) -> list[_Value]:
            return [] if entry.get(name) is None else self.each(entry[name], f"{where}.{name}", read)

        group = read_field("process_group", self.sequence)
        if len(group) != 2:
            raise self.fail(where + ".process_group", "name and description", group)
        op = read_field("profiling_name", self.text).split(":", 1)[-1]  # remove the backend's name
        message = _MESSAGE.match(op)
        source, target = _message_ranks(message) if message else (-1, -1)
        return Entry(
            index=index,
            record_id=read_field("record_id", self.integer, index),
            group=self.text(group[0], where + ".process_group[0]"),
            desc=self.text(group[1], where + ".process_group[1]"),
            group_id=read_field("pg_id", self.integer, -1),
            seq=read_field("collective_seq_id", self.integer, 0),
            is_p2p=bool(entry.get("is_p2p", message is not None)),
            op=message[1] if message else op.strip(),
            source=source,
            target=target,
            inputs=read_list("input_sizes", self.shape),
            outputs=read_list("output_sizes", self.shape),
            input_dtypes=read_list("input_dtypes", self.text),
            output_dtypes=read_list("output_dtypes", self.text),
            state=read_field("state", self.text),
            created_ns=read_field("time_created_ns", self.integer, 0),
            started_ns=read_field("time_discovered_started_ns", self.time),
            completed_ns=read_field("time_discovered_completed_ns", self.time),
            ended_ns=read_field("time_ended_ns", self.time),
            is_retired=bool(entry.get("retired", False)),
            timeout_ms=None if entry.get("timeout_ms") is None else read_field("timeout_ms", self.integer),
            error=self.text(entry.get("error") or "", where + ".error"),
            frames=read_list("frames", self.frame),
        )

def _message_ranks(message: re.Match[str]) -> tuple[int, int]:
    """Return source and target of "send 1->2", "recv 2<-1" or "wait_signal 2<-1"."""
    first, second = (ANY_PEER if end == "?" or len(end) > 9 else int(end) for end in message.group(2, 3))
    return (second, first) if message[1] in RECEIVES else (first, second)
