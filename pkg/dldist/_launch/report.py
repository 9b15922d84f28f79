"""Failure reports: which rank failed first, and the relevant part of its stderr."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import asdict, dataclass

from dldist._base import uncaught
from dldist._launch.processes import describe_exit

# Matches the first line of a traceback, of an exception group, or of faulthandler's output.
_TRACEBACK_START = re.compile(rb"^(?:  \+ Exception Group )?Traceback \(most recent call last\):|^Fatal Python error:", re.M)
_CHAIN_TEXTS = (
    b"\nThe above exception was the direct cause of the following exception:\n\n",
    b"\nDuring handling of the above exception, another exception occurred:\n\n",
)
_CONSEQUENCE = re.compile(rb"(?:\w+\.)*Dist(?:PeerLost|Aborted)Error\b")
_TIMEOUT = re.compile(rb"(?:\w+\.)*DistTimeoutError\b")
_UNINDENTED = re.compile(rb"^\w.*", re.M)
_LAST_LINES = 20
VISIBLE_LINES = 40
"""A failure's text is repeated in full if more than this many lines were printed after it."""
LAUNCHER = -1
"""The value of `rank` in the report of a launcher that ended the job."""


@dataclass(frozen=True)
class Failure:
    """How a rank failed. Launchers exchange failures as JSON."""

    rank: int
    local_rank: int
    node: int
    host: str
    pid: int
    code: int
    """The exit code, or the negative number of the signal."""
    attempt: int
    seconds: float
    when: str
    tail: str
    """The relevant part of the rank's stderr."""
    is_consequence: bool
    """True if the rank failed only because another rank failed."""
    is_final: bool = False
    """True if the job must not be restarted after this failure."""

    @property
    def exit_code(self) -> int:
        return self.code if self.code >= 0 else 128 - self.code

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_json(text: bytes) -> Failure:
        try:
            return Failure(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise ValueError(f"malformed failure report of another launcher: {error}") from None


def launcher_failure(node: int, code: int, reason: str) -> Failure:
    """Create the report of a launcher that ends the job although no rank has failed."""
    host, pid = os.uname().nodename, os.getpid()
    text = f"{reason} (machine {node}, host {host}, pid {pid}, at {now()})"
    return Failure(LAUNCHER, LAUNCHER, node, host, pid, code, 0, 0.0, now(), text, is_consequence=False, is_final=True)


def describe(failure: Failure, is_visible: bool = False) -> bytes:
    """Format dlrun's final message: only the exception if its traceback is still visible."""
    if failure.rank == LAUNCHER:
        return f"dlrun: {failure.tail}\n".encode(errors="replace")
    line = (
        f"dlrun: rank {failure.rank} failed first: {describe_exit(failure.code)} (host {failure.host}, pid {failure.pid}, "
        f"local rank {failure.local_rank}, attempt {failure.attempt}, at {failure.when}, after {failure.seconds:.1f} s)\n"
    )
    tail = failure.tail.encode(errors="replace")
    if is_visible:
        tail = last_message(tail)
    return line.encode() + tail + (b"\n" if tail and not tail.endswith(b"\n") else b"")


def now() -> str:
    return time.strftime("%H:%M:%S")


def without_prefix(stderr: bytes, rank: int) -> bytes:
    """Remove the prefix [rankN], which tracebacks of an initialised world have, from lines."""
    return re.sub(rb"^\[rank%d\]: ?" % rank, b"", stderr, flags=re.M)


def last_traceback(stderr: bytes) -> bytes:
    """Return the last traceback in stderr with chained exceptions; without one, the last lines."""
    begin = None
    for match in _TRACEBACK_START.finditer(stderr):
        if begin is None or not stderr[: match.start()].endswith(_CHAIN_TEXTS):
            begin = match.start()
    if begin is not None:
        return stderr[begin:]
    return b"".join(stderr.splitlines(keepends=True)[-_LAST_LINES:])


def _match_exception(tail: bytes) -> re.Match[bytes] | None:
    """Match the line of a traceback that names the exception."""
    headers = list(_TRACEBACK_START.finditer(tail))
    return _UNINDENTED.search(tail, headers[-1].end()) if headers else None


def last_message(tail: bytes) -> bytes:
    """Return a traceback's exception with its whole message; without a traceback, the last line."""
    match = _match_exception(tail)
    return tail[match.start() :] if match else b"".join(tail.splitlines(keepends=True)[-1:])


def is_consequence(code: int, tail: bytes, host: str = "", pid: int = 0) -> bool:
    """True if the process ended only because it lost another rank or because another aborted."""
    match, blamed = _match_exception(tail), blamed_process(tail)
    return code > 0 and match is not None and (blamed != (host, pid) if blamed else _CONSEQUENCE.match(match[0]) is not None)


def blamed_process(tail: bytes) -> tuple[str, int] | None:
    """Return the host and the pid that the exception of a rank names as the cause, if any."""
    return next(iter(uncaught.blamed_processes(last_message(tail).decode(errors="replace"))), None)


def is_timeout(failure: Failure) -> bool:
    """True if a rank ended because of a timeout."""
    match = _match_exception(failure.tail.encode(errors="replace"))
    return failure.code > 0 and match is not None and _TIMEOUT.match(match[0]) is not None


def first_cause(failures: list[Failure]) -> Failure:
    """Return the failure to show: the first that no other failure caused, if any."""
    return min(failures, key=lambda failure: failure.is_consequence)
