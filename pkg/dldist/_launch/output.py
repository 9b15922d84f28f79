"""Forwards the ranks' output to the console and to files, in whole lines prefixed with the rank.

The rank with the keyboard may write a prompt, which has no newline. The start of a line of this rank
is therefore forwarded if the rest does not arrive within 60 ms. Other output then begins on a new
line. The rest has a prefix only if the line has ended: by other output, or by the terminal, which
echoes the answer.
"""

from __future__ import annotations

import errno
import os
import re
import select
import sys
import time
from collections.abc import Callable
from typing import IO, BinaryIO

_CHUNK = 65536
# Maximum chunks to drain: enough to empty a pipe, which has at most 1 MiB for normal users.
_CHUNKS_IN_PIPE = 32
# Bytes that a writable pipe accepts without blocking and without mixing them with other writes.
_ATOMIC = select.PIPE_BUF
_LONGEST_LINE = 1 << 20
_TAIL_BYTES = 64 << 10
_PROMPT_S = 0.06
# A carriage return also ends a piece, because progress bars redraw their line with one. But as the
# last byte it may be the first half of \r\n.
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r(?=[^\n]))")


def open_missing_streams() -> None:
    """Open closed standard streams on /dev/null, so that no socket gets the descriptors 0 to 2.

    Without this, with Python 3.14, libffi may have opened a read-only file as descriptor 1 or 2.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def print_message(text: str) -> None:
    """Print a message of dlrun to stderr."""
    print(f"dlrun: {text}", file=sys.stderr, flush=True)


class Console:
    """stdout or stderr of dlrun. A reader that blocks does not delay the handling of signals."""

    _unfinished: dict[tuple[int, int], object] = {}
    """The writer of an unfinished line, by the device and inode of a console's file."""

    def __init__(self, fd: int, may_block: Callable[[], bool]) -> None:
        self.has_reader = True
        self.nlines = 0
        """Number of lines written to the console."""
        self._fd = fd
        self._may_block = may_block
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._file = os.fstat(fd).st_dev, os.fstat(fd).st_ino

    def has_unfinished(self, writer: object) -> bool:
        """True if the last line of the console has no end, and is `writer`'s."""
        return self._unfinished.get(self._file) is writer

    def write(self, data: bytes, writer: object = None) -> None:
        """Write all data, or stop if may_block() returns False or the reader closed the stream.

        First end the unfinished line of another writer.
        """
        if not data:
            return
        if self._unfinished.get(self._file) not in (None, writer):
            data = b"\n" + data
        self._unfinished[self._file] = None if data.endswith((b"\n", b"\r")) else writer
        self.nlines += data.count(b"\n")
        view = memoryview(data)
        while view and self.has_reader:
            if not self._poll.poll(50):
                if self._may_block():
                    continue
                return
            try:
                view = view[os.write(self._fd, view[:_ATOMIC]) :]
            except OSError as error:
                if error.errno not in (errno.EPIPE, errno.EBADF):
                    raise
                self.has_reader = False


class Lines:
    """Splits bytes into lines, and adds a prefix to each."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._incomplete = bytearray()
        self.is_begun = False
        """True if the start of the line was forwarded, so that the rest needs no prefix."""

    def feed(self, data: bytes) -> bytes:
        """Add data and return the lines that are now complete."""
        had_carriage_return = self._incomplete.endswith(b"\r")
        self._incomplete += data
        if b"\n" not in data and b"\r" not in data and not had_carriage_return:
            return self.flush(_LONGEST_LINE)
        lines = _LINE.findall(self._incomplete)
        del self._incomplete[: sum(map(len, lines))]
        return b"".join(map(self._with_prefix, lines)) + self.flush(_LONGEST_LINE)

    def take_start(self) -> bytes:
        """Return the incomplete line without an end, or b"" if there is none."""
        if not self._incomplete or self._incomplete.endswith(b"\r"):
            return b""
        start = self._with_prefix(bytes(self._incomplete))
        self._incomplete.clear()
        self.is_begun = True
        return start

    def _with_prefix(self, line: bytes) -> bytes:
        # Add no second prefix: tracebacks have the prefix once the rank has initialised its world.
        has_prefix = self.is_begun or line == b"\r" or line.startswith(self._prefix)
        self.is_begun = False
        return line if has_prefix else self._prefix + line

    def flush(self, minimum: int = 1) -> bytes:
        """Return the incomplete last line, completed by a newline, if it has at least `minimum` bytes."""
        if len(self._incomplete) < minimum:
            return b""
        line = self._with_prefix(bytes(self._incomplete)) + b"\n"
        self._incomplete.clear()
        return line


class Stream:
    """The read end of a rank's stdout or stderr."""

    is_reading: Callable[[], bool] | None = None
    """For a rank with the keyboard, a function that returns True if the rank reads the terminal."""

    def __init__(
        self, pipe: IO[bytes], prefix: bytes, console: Console | None, file: BinaryIO | None, marker: bytes = b""
    ) -> None:
        self.pipe = pipe
        self.has_marker = False
        """True if `marker` has occurred in the output."""
        self.is_shown = console is not None
        """True if the output goes to a console."""
        self.start_due: float | None = None
        """The time at which to forward the start of the incomplete line, or None."""
        self._lines = Lines(prefix)
        self._console = console
        self._file = file
        self._marker = marker
        self._tail = bytearray()
        os.set_blocking(pipe.fileno(), False)

    def read(self) -> bool:
        """Forward the available output. Return False at the end of the stream."""
        return self._forward_chunk() != b""

    def drain(self) -> None:
        """Forward the data now in the pipe. Ignore later data: another process may keep writing."""
        for _ in range(_CHUNKS_IN_PIPE):
            if not self._forward_chunk():
                return

    def _forward_chunk(self) -> bytes | None:
        """Forward one chunk. Return None if no data is available, b"" at the end."""
        data: bytes | None = self.pipe.read(_CHUNK)
        if data:
            self._forward(data)
        return data

    def _forward(self, data: bytes) -> None:
        if self._file is not None:
            self._file.write(data)
        self._tail += data
        if self._marker and not self.has_marker:
            self.has_marker = self._tail.find(self._marker, -len(data) - len(self._marker)) >= 0
        if len(self._tail) > 2 * _TAIL_BYTES:
            del self._tail[:-_TAIL_BYTES]
        if self._console is not None:
            self._lines.is_begun &= self._console.has_unfinished(self)
            self._console.write(self._lines.feed(data), self)
            if self.is_reading is not None:
                self.start_due = time.monotonic() + _PROMPT_S

    def forward_start(self, now: float) -> None:
        """Forward the start of the incomplete line, such as a prompt, if it is due."""
        if self._console is not None and self.is_reading is not None and self.start_due is not None and now >= self.start_due:
            self.start_due = None
            is_reading = self.is_reading()  # checked before the user sees the prompt
            self._lines.is_begun &= self._console.has_unfinished(self)
            self._console.write(self._lines.take_start(), self)
            self._lines.is_begun &= not is_reading

    def tail(self) -> bytes:
        return bytes(self._tail[-_TAIL_BYTES:])

    def close(self) -> None:
        self.pipe.close()
        if self._file is not None:
            self._file.close()
        if self._console is not None:
            end = b"\n" if self._console.has_unfinished(self) else b""
            self._lines.is_begun &= bool(end)
            self._console.write(self._lines.flush() or end, self)
