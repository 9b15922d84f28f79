"""Passes on what ranks print, in whole lines with the rank in front, to the console and to files."""

from __future__ import annotations

import errno
import os
import re
import select
import sys
from collections.abc import Callable
from typing import IO, BinaryIO

_CHUNK = 65536
# The largest pipe that an ordinary user can have is 1 MiB.
_CHUNKS_IN_PIPE = 32
# A pipe that is writable takes this many bytes without blocking, and does not mix them with those of other writers.
_ATOMIC = select.PIPE_BUF
_LONGEST_LINE = 1 << 20
_TAIL_BYTES = 64 << 10
# A carriage return ends a piece, too, because progress bars redraw their line with it. If it is the last byte, it may be the first
# half of \r\n.
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r(?=[^\n]))")


def open_missing_streams() -> None:
    """Open standard streams that are closed. Otherwise a socket could get their number, and receive the ranks' output.

    With Python 3.14 libffi may have opened a file for reading under that number. A Console that cannot write there has no reader.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def say(text: str) -> None:
    """Write to dlrun's stderr."""
    print(f"dlrun: {text}", file=sys.stderr, flush=True)


class Console:
    """stdout or stderr of this process. Signals are handled even if nobody reads it."""

    def __init__(self, fd: int, may_wait: Callable[[], bool]) -> None:
        self.has_reader = True
        self.nlines = 0
        """How many lines have been written."""
        self._fd = fd
        self._may_wait = may_wait
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    def write(self, data: bytes) -> None:
        """Write all of it. Gives up if may_wait() returns False, or if the reader is gone."""
        self.nlines += data.count(b"\n")
        view = memoryview(data)
        while view and self.has_reader:
            if not self._poll.poll(50):
                if self._may_wait():
                    continue
                return
            try:
                view = view[os.write(self._fd, view[:_ATOMIC]) :]
            except OSError as error:
                if error.errno not in (errno.EPIPE, errno.EBADF):
                    raise
                self.has_reader = False


class Lines:
    """Cuts bytes into lines, each with a prefix."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._rest = bytearray()

    def feed(self, data: bytes) -> bytes:
        """The lines that are complete now."""
        had_return = self._rest.endswith(b"\r")
        self._rest += data
        if b"\n" not in data and b"\r" not in data and not had_return:
            return self._too_long()
        lines = _LINE.findall(self._rest)
        del self._rest[: sum(map(len, lines))]
        return b"".join(map(self._with_prefix, lines)) + self._too_long()

    def _too_long(self) -> bytes:
        if len(self._rest) < _LONGEST_LINE:
            return b""
        return self.flush()

    def _with_prefix(self, line: bytes) -> bytes:
        # Tracebacks already have the rank if the world is initialised.
        return line if line == b"\r" or line.startswith(self._prefix) else self._prefix + line

    def flush(self) -> bytes:
        """The rest, as a line."""
        rest = bytes(self._rest)
        self._rest.clear()
        return self._prefix + rest + b"\n" if rest else b""


class Stream:
    """The reading end of a rank's stdout or stderr."""

    def __init__(
        self, pipe: IO[bytes], prefix: bytes, console: Console | None, file: BinaryIO | None, marker: bytes = b""
    ) -> None:
        self.pipe = pipe
        self.has_marker = False
        """Whether the marker was in the output."""
        self.is_shown = console is not None
        """Whether the output goes to a console."""
        self._lines = Lines(prefix)
        self._console = console
        self._file = file
        self._marker = marker
        self._tail = bytearray()
        os.set_blocking(pipe.fileno(), False)

    def read(self) -> bool:
        """Pass on what there is. Returns False at the end."""
        return self._pass_on() != b""

    def drain(self) -> None:
        """Pass on what is in the pipe now, but no more: another process may go on writing."""
        for _ in range(_CHUNKS_IN_PIPE):
            if not self._pass_on():
                return

    def _pass_on(self) -> bytes | None:
        """Pass on a piece. Returns None if there is nothing yet, b"" at the end."""
        data: bytes | None = self.pipe.read(_CHUNK)
        if data:
            self._take(data)
        return data

    def _take(self, data: bytes) -> None:
        if self._file is not None:
            self._file.write(data)
        self._tail += data
        if self._marker and not self.has_marker:
            self.has_marker = self._tail.find(self._marker, -len(data) - len(self._marker)) >= 0
        if len(self._tail) > 2 * _TAIL_BYTES:
            del self._tail[:-_TAIL_BYTES]
        if self._console is not None:
            self._console.write(self._lines.feed(data))

    def tail(self) -> bytes:
        return bytes(self._tail[-_TAIL_BYTES:])

    def close(self) -> None:
        self.pipe.close()
        if self._file is not None:
            self._file.close()
        if self._console is not None:
            self._console.write(self._lines.flush())
