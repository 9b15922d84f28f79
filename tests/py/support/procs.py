"""Child interpreters for tests: each runs a function, communicates by a pipe, and is killed at a
deadline.

A worker is a function of a module that does not import pytest (see workers.py). It gets a channel
and arguments:

    def echo(channel, word):
        channel.send(word)           # parent: child.recv()
        return channel.recv()        # parent: child.send("x"); child.result()

A failure in a child (traceback, exit by signal, silence) is raised in the parent with the child's
stderr.
"""

import ctypes
import fcntl
import gc
import importlib
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import Connection, Pipe

import leak_check

HERE = os.path.dirname(os.path.abspath(__file__))
DEFAULT_TIMEOUT_S = 20.0


class ChildFailed(AssertionError):
    """A worker raised, died or sent nothing in time."""


class Child:
    def __init__(self, function, args, env=None, prefix=()):
        self.name = function.__name__
        parent_end, child_end = Pipe(duplex=True)
        self.stderr_file = tempfile.TemporaryFile()
        environment = dict(os.environ, PYTHONFAULTHANDLER="1", **(env or {}))
        command = [*prefix, sys.executable, os.path.join(HERE, "procs.py"), str(child_end.fileno())]
        self.process = subprocess.Popen(
            command, pass_fds=[child_end.fileno()], stdin=subprocess.DEVNULL, stderr=self.stderr_file, env=environment
        )
        child_end.close()
        self.connection = parent_end
        parent_end.send((function.__module__, function.__name__, args))

    @property
    def pid(self):
        return self.process.pid

    def stderr_text(self):
        self.stderr_file.seek(0)
        return self.stderr_file.read().decode(errors="replace")

    def send(self, message):
        self.connection.send(message)

    def recv(self, timeout=DEFAULT_TIMEOUT_S):
        """Return the worker's next message."""
        kind, value = self._next(timeout)
        if kind != "message":
            raise ChildFailed(f"{self.name} (pid {self.pid}) returned {value!r} instead of a message")
        return value

    def result(self, timeout=DEFAULT_TIMEOUT_S):
        """Return the worker's result, after its process has ended."""
        deadline = time.monotonic() + timeout
        kind, value = self._next(timeout)
        if kind != "result":
            raise ChildFailed(f"{self.name} (pid {self.pid}) sent {value!r} instead of its result")
        exit_code = self.wait_exit(max(deadline - time.monotonic(), 1.0))
        if exit_code != 0 and not leak_check.has_broken_down_in(self.pid, self.name):
            raise ChildFailed(f"{self.name} (pid {self.pid}) ended with {exit_code}\n{self.stderr_text()}")
        return value

    def wait_exit(self, timeout=DEFAULT_TIMEOUT_S):
        timeout *= leak_check.slower()
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._abort()
            raise ChildFailed(
                f"{self.name} (pid {self.pid}) did not end within {timeout:.1f} s\n{self.stderr_text()}"
            ) from None

    def kill(self, signal_number=signal.SIGKILL):
        self.process.send_signal(signal_number)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.connection.close()
        self.stderr_file.close()

    def _next(self, timeout):
        timeout *= leak_check.slower()
        try:
            if not self.connection.poll(timeout):
                self._abort()
                raise ChildFailed(
                    f"{self.name} (pid {self.pid}) sent nothing for {timeout:.1f} s\n{self.stderr_text()}"
                )
            kind, value = self.connection.recv()
        except (EOFError, ConnectionResetError):
            exit_code = self.process.wait(5)
            raise ChildFailed(
                f"{self.name} (pid {self.pid}) ended with {exit_code}\n{self.stderr_text()}"
            ) from None
        if kind == "failure":
            raise ChildFailed(f"{self.name} (pid {self.pid}) raised\n{value}\n{self.stderr_text()}")
        return kind, value

    def _abort(self):
        """Abort the child, so that faulthandler writes the tracebacks of its threads."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGABRT)
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                self.process.kill()


class Group:
    """The children of one test. close() ends all of them."""

    def __init__(self):
        self.children = []

    def start(self, function, *args, env=None, prefix=()):
        """Start a child. `prefix` precedes the command and must exec the interpreter (netns.py)."""
        child = Child(function, args, env, prefix)
        self.children.append(child)
        return child

    def close(self):
        for child in self.children:
            child.close()


class Channel:
    """The worker's end of the pipe."""

    def __init__(self, connection):
        self._connection = connection

    def send(self, message):
        self._connection.send(("message", message))

    def recv(self, timeout=60.0):
        if not self._connection.poll(timeout):
            raise TimeoutError(f"the parent sent nothing for {timeout} s")
        return self._connection.recv()


def thread_state(tid, pid="self"):
    """Return the state letter of a thread ("S": asleep), or None if it has exited."""
    try:
        with open(f"/proc/{pid}/task/{tid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return None


def wait_asleep(tids, pid="self", timeout=10.0, samples=6, interval=0.01):
    """Wait until all threads were asleep in `samples` consecutive polls, and so likely block."""
    deadline = time.monotonic() + timeout
    quiet = 0
    while quiet < samples:
        if time.monotonic() > deadline:
            raise AssertionError(f"threads {list(tids)} were not asleep within {timeout} s")
        states = [thread_state(tid, pid) for tid in tids]
        if None in states:
            raise AssertionError(f"a thread of {list(tids)} has ended: {states}")
        quiet = quiet + 1 if all(state == "S" for state in states) else 0
        time.sleep(interval)


def wait_at_rest(tids, pid="self", timeout=10.0, samples=20, interval=0.01):
    """Wait until all threads are asleep in nearly all of the samples, for threads that wake up
    regularly (FileStore polls)."""
    history = {tid: [] for tid in tids}

    def is_at_rest():
        for tid, seen in history.items():
            seen.append(thread_state(tid, pid))
        return all(seen[-samples:].count("S") >= samples - 3 for seen in history.values())

    poll_until(is_at_rest, timeout, interval, f"rest of threads {list(tids)}")


def poll_until(predicate, timeout=10.0, interval=0.01, description="the condition"):
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{description} did not come within {timeout} s")
        time.sleep(interval)


def under_load(seconds):
    """Return `seconds` on a machine with free cores, and more if processes compete for cores."""
    with open("/proc/loadavg", encoding="ascii") as file:
        lately, _, _, now, _ = file.read().split()
    wanted = max(float(lately), float(now.partition("/")[0]))
    return seconds * max(1.0, wanted / (os.cpu_count() or 1))


def enter_own_network():
    """Move this process and its future children into a network namespace with only a loopback.

    Return the reason on failure, or None. PyTorch's server looks up the name of every connecting
    peer in the DNS, and serves no requests until it has the answer; in the namespace the lookup
    fails immediately.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    clone_newnet, set_flags, is_up_and_running = 0x40000000, 0x8914, 0x41
    if libc.unshare(clone_newnet) != 0:
        return os.strerror(ctypes.get_errno())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, set_flags, struct.pack("16sH14x", b"lo", is_up_and_running))
    return None


def rss_bytes(pid="self"):
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def fd_count(pid="self"):
    return len(os.listdir(f"/proc/{pid}/fd"))


def thread_count(pid="self"):
    return len(os.listdir(f"/proc/{pid}/task"))


def child_main(fd):
    sys.path.insert(0, HERE)
    if os.environ.get("DLDIST_TEST_UNRAISABLE") == "fail":
        sys.unraisablehook = _record_unraisable
    serve(Connection(fd))


_unraisable = []


def _record_unraisable(raised):
    trace = traceback.format_exception(raised.exc_type, raised.exc_value, raised.exc_traceback)
    _unraisable.append(f"{raised.err_msg or 'Exception ignored in'}: {raised.object!r}\n{''.join(trace)}")


def check_unraisable():
    """Fail if Python has ignored an exception since the last call, as in __del__.

    Needs DLDIST_TEST_UNRAISABLE=fail in the environment of the child.
    """
    if sys.unraisablehook is _record_unraisable:
        gc.collect()
        ignored, _unraisable[:] = "\n".join(_unraisable), []
        assert not ignored, ignored


def serve(connection):
    """Run the worker that the parent names, and send its result."""
    module, function, args = connection.recv()
    try:
        worker = getattr(importlib.import_module(module), function)
        reply = ("result", worker(Channel(connection), *args))
        check_unraisable()
    except SystemExit:  # a forked child of the worker exits
        raise
    except BaseException:
        reply = ("failure", traceback.format_exc())
    connection.send(reply)
    check_leaks()


def check_leaks():
    """Under LeakSanitizer, fail the worker for its leaks."""
    if leak_check.is_possible():
        lost = leak_check.leaks()
        assert not lost, "memory is lost:\n" + "\n\n".join(lost)


if __name__ == "__main__":
    child_main(int(sys.argv[1]))
