"""A process whose standard streams and controlling terminal are a terminal of its own."""

import fcntl
import os
import pty
import select
import subprocess
import termios
import time


class Terminal:
    """A context that kills the process at its end. Newlines in the output are \\n."""

    def __init__(self, command, limit_s, **how):
        self._limit_s = limit_s
        self.output = self._seen = ""
        self._fd, fd = pty.openpty()

        def take_terminal():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(command, stdin=fd, stdout=fd, stderr=fd, preexec_fn=take_terminal, **how)  # noqa: PLW1509
        os.close(fd)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self._fd)

    def _read(self, is_enough):
        """Collect output until is_enough() is true or the terminal is closed."""
        deadline = time.monotonic() + self._limit_s
        while not is_enough():
            ready, _, _ = select.select([self._fd], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"no more output within {self._limit_s} s after {self._seen!r}"
            try:
                text = os.read(self._fd, 65536).decode()
            except OSError:  # the process and its children have closed the terminal
                return
            self.output = (self.output + text).replace("\r\n", "\n")
            self._seen = (self._seen + text).replace("\r\n", "\n")

    def wait_for(self, text):
        """Wait for text in the output. Return the output up to its end since the last call."""
        self._read(lambda: text in self._seen)
        before, found, self._seen = self._seen.partition(text)
        assert found, f"the output ended without {text!r}: {before!r}"
        return before + found

    def enter(self, line):
        os.write(self._fd, line.encode() + b"\n")

    def finish(self):
        """Wait for the end. Return the exit code and the remaining output."""
        self._read(lambda: False)
        return self.process.wait(self._limit_s), self._seen
