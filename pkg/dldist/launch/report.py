"""Which rank failed first, and what is said about it."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import asdict, dataclass

from dldist.launch.processes import how_it_ended

# Where a report of Python begins: an exception, a group of them, or what faulthandler writes.
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
"""What so many lines of output have followed is not shown again."""
LAUNCHER = -1
"""In place of a rank: a launcher has ended the job."""


@dataclass(frozen=True)
class Failure:
    """How a rank ended. It goes from one launcher to the others as JSON."""

    rank: int
    local_rank: int
    node: int
    host: str
    pid: int
    code: int
    """Exit code, or minus the number of the signal."""
    attempt: int
    seconds: float
    when: str
    tail: str
    """What is worth to be read of its stderr."""
    is_consequence: bool
    """It failed because another rank did."""
    is_final: bool = False
    """No use to try again."""

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
    """Not a rank has failed, but a dlrun has given up."""
    host, pid = os.uname().nodename, os.getpid()
    text = f"{why} (machine {node}, host {host}, pid {pid}, at {now()})"
    return Failure(LAUNCHER, LAUNCHER, node, host, pid, code, 0, 0.0, now(), text, is_consequence=False, is_final=True)


def describe(failure: Failure, is_in_sight: bool = False) -> bytes:
    """The last thing that dlrun prints. What is in sight on the console is not printed again but for its last words."""
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
    """What a rank wrote, without its number before the lines: tracebacks of one that is in a group have it already."""
    return re.sub(rb"^\[rank%d\]: ?" % rank, b"", stderr, flags=re.M)


def last_traceback(stderr: bytes) -> bytes:
    """The last traceback in what a rank wrote, with the exceptions that it came from; without one, the last lines."""
    begin = None
    for match in _BEGINNING.finditer(stderr):
        if begin is None or not stderr[: match.start()].endswith(_CHAIN):
            begin = match.start()
    if begin is not None:
        return stderr[begin:]
    return b"".join(stderr.splitlines(keepends=True)[-_LAST_LINES:])


def _raised(tail: bytes) -> re.Match[bytes] | None:
    """The line that names the exception which a traceback ends with."""
    headers = list(_BEGINNING.finditer(tail))
    return _UNINDENTED.search(tail, headers[-1].end()) if headers else None


def last_words(tail: bytes) -> bytes:
    """The exception of a traceback, with all of its message; without one, the last line."""
    raised = _raised(tail)
    return tail[raised.start() :] if raised else b"".join(tail.splitlines(keepends=True)[-1:])


def is_consequence(code: int, tail: bytes) -> bool:
    """Whether a rank ended only because it has lost another, or another has given up."""
    raised = _raised(tail)
    return code > 0 and raised is not None and _CONSEQUENCE.match(raised[0]) is not None


def is_time_out(failure: Failure) -> bool:
    """Whether a rank ended because something did not come in time."""
    raised = _raised(failure.tail.encode(errors="replace"))
    return failure.code > 0 and raised is not None and _TIME_OUT.match(raised[0]) is not None


def first(failures: list[Failure]) -> Failure:
    """The one to show of those that failed, in the order in which they ended."""
    return min(failures, key=lambda failure: failure.is_consequence)
