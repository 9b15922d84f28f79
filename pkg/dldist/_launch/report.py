"""Reports of failures: which rank failed first, and what its stderr says."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import asdict, dataclass

from dldist._launch.processes import how_it_ended

# The beginning of a traceback, of a group of them, or of what faulthandler writes.
_BEGINNING = re.compile(rb"^(?:  \+ Exception Group )?Traceback \(most recent call last\):|^Fatal Python error:", re.M)
_CHAIN = (
    b"\nThe above exception was the direct cause of the following exception:\n\n",
    b"\nDuring handling of the above exception, another exception occurred:\n\n",
)
_CONSEQUENCE = re.compile(rb"(?:\w+\.)*Dist(?:PeerLost|Aborted)Error\b")
_TIME_OUT = re.compile(rb"(?:\w+\.)*DistTimeoutError\b")
_UNINDENTED = re.compile(rb"^\w.*", re.M)
_LAST_LINES = 20
LINES_IN_SIGHT = 40
"""Text is shown again if more lines than this have followed it."""
LAUNCHER = -1
"""Stands for a rank if a launcher ended the job."""


@dataclass(frozen=True)
class Failure:
    """How a rank ended. Launchers send it to each other as JSON."""

    rank: int
    local_rank: int
    node: int
    host: str
    pid: int
    code: int
    """The exit code, or minus the number of the signal."""
    attempt: int
    seconds: float
    when: str
    tail: str
    """The part of its stderr that is worth reading."""
    is_consequence: bool
    """Whether it failed only because another rank did."""
    is_final: bool = False
    """Whether there is no use in starting again."""

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
            raise ValueError(f"another launcher has sent no report of a failure: {error}") from None


def of_launcher(node: int, code: int, why: str) -> Failure:
    """The report about a dlrun that has given up, though no rank failed."""
    host, pid = os.uname().nodename, os.getpid()
    text = f"{why} (machine {node}, host {host}, pid {pid}, at {now()})"
    return Failure(LAUNCHER, LAUNCHER, node, host, pid, code, 0, 0.0, now(), text, is_consequence=False, is_final=True)


def describe(failure: Failure, is_in_sight: bool = False) -> bytes:
    """The last thing that dlrun prints. If the traceback is still in sight on the console, only its last words are printed again."""
    if failure.rank == LAUNCHER:
        return f"dlrun: {failure.tail}\n".encode(errors="replace")
    line = (
        f"dlrun: rank {failure.rank} failed first: {how_it_ended(failure.code)} (host {failure.host}, pid {failure.pid}, "
        f"local rank {failure.local_rank}, attempt {failure.attempt}, at {failure.when}, after {failure.seconds:.1f} s)\n"
    )
    tail = failure.tail.encode(errors="replace")
    if is_in_sight:
        tail = last_words(tail)
    return line.encode() + tail + (b"\n" if tail and not tail.endswith(b"\n") else b"")


def now() -> str:
    return time.strftime("%H:%M:%S")


def without_prefix(stderr: bytes, rank: int) -> bytes:
    """What a rank wrote, without its number in front of the lines, which tracebacks have if the world is initialised."""
    return re.sub(rb"^\[rank%d\]: ?" % rank, b"", stderr, flags=re.M)


def last_traceback(stderr: bytes) -> bytes:
    """The last traceback that a rank wrote, with the exceptions that led to it. If there is none, the last lines."""
    begin = None
    for match in _BEGINNING.finditer(stderr):
        if begin is None or not stderr[: match.start()].endswith(_CHAIN):
            begin = match.start()
    if begin is not None:
        return stderr[begin:]
    return b"".join(stderr.splitlines(keepends=True)[-_LAST_LINES:])


def _raised(tail: bytes) -> re.Match[bytes] | None:
    """The line of a traceback that names the exception."""
    headers = list(_BEGINNING.finditer(tail))
    return _UNINDENTED.search(tail, headers[-1].end()) if headers else None


def last_words(tail: bytes) -> bytes:
    """The exception of a traceback with its whole message. If there is none, the last line."""
    raised = _raised(tail)
    return tail[raised.start() :] if raised else b"".join(tail.splitlines(keepends=True)[-1:])


def is_consequence(code: int, tail: bytes) -> bool:
    """Whether a rank ended only because it lost another, or because another gave up."""
    raised = _raised(tail)
    return code > 0 and raised is not None and _CONSEQUENCE.match(raised[0]) is not None


def is_time_out(failure: Failure) -> bool:
    """Whether a rank ended because of a time-out."""
    raised = _raised(failure.tail.encode(errors="replace"))
    return failure.code > 0 and raised is not None and _TIME_OUT.match(raised[0]) is not None


def first(failures: list[Failure]) -> Failure:
    """The failure to show, of those in the order in which ranks ended."""
    return min(failures, key=lambda failure: failure.is_consequence)
