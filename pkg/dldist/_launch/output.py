"""Forwards the ranks' output to the console and to files, in whole lines prefixed with the rank."""

from __future__ import annotations

import errno
import os
import re
import select
import sys
from collections.abc import Callable
from typing import IO, BinaryIO

_CHUNK = 65536
# Maximum chunks to drain: enough to empty a pipe, which has at most 1 MiB for normal users.
_CHUNKS_IN_PIPE = 32
# Bytes that a writable pipe accepts without blocking and without mixing them with other writes.
_ATOMIC = select.PIPE_BUF
_LONGEST_LINE = 1 << 20
_TAIL_BYTES = 64 << 10
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

    def __init__(self, fd: int, may_block: Callable[[], bool]) -> None:
        self.has_reader = True
        self.nlines = 0
        """Number of lines written to the console."""
        self._fd = fd
        self._may_block = may_block
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    def write(self, data: bytes) -> None:
        """Write all data, or stop if may_block() returns False or the reader closed the stream."""
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

    def feed(self, data: bytes) -> bytes:
        """Add data and return the lines that are now complete."""
        had_carriage_return = self._incomplete.endswith(b"\r")
        self._incomplete += data
        if b"\n" not in data and b"\r" not in data and not had_carriage_return:
            return self._flush_too_long()
        lines = _LINE.findall(self._incomplete)
        del self._incomplete[: sum(map(len, lines))]
        return b"".join(map(self._with_prefix, lines)) + self._flush_too_long()

    def _flush_too_long(self) -> bytes:
        if len(self._incomplete) < _LONGEST_LINE:
            return b""
        return self.flush()

    def _with_prefix(self, line: bytes) -> bytes:
        # Add no second prefix: tracebacks have the prefix once the rank has initialised its world.
        return line if line == b"\r" or line.startswith(self._prefix) else self._prefix + line

    def flush(self) -> bytes:
        """Return the incomplete last line, completed by a newline."""
        incomplete = bytes(self._incomplete)
        self._incomplete.clear()
        return self._prefix + incomplete + b"\n" if incomplete else b""


class Stream:
    """The read end of a rank's stdout or stderr."""

    def __init__(
        self, pipe: IO[bytes], prefix: bytes, console: Console | None, file: BinaryIO | None, marker: bytes = b""
    ) -> None:
        self.pipe = pipe
        self.has_marker = False
        """True if `marker` has occurred in the output."""
        self.is_shown = console is not None
        """True if the output goes to a console."""
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
            self._console.write(self._lines.feed(data))

    def tail(self) -> bytes:
        return bytes(self._tail[-_TAIL_BYTES:])

    def close(self) -> None:
        self.pipe.close()
        if self._file is not None:
            self._file.close()
        if self._console is not None:
            self._console.write(self._lines.flush())
