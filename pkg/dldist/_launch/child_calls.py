"""Calls of functions in new processes, which each return one message, for spawn() and testing.

The message is ("result", value), ("skip", reason), or ("failure", traceback, pickle or None).
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterable
from multiprocessing import connection
from typing import Any, TypeVar

from dldist import _core
from dldist._launch.processes import Child
from dldist._objects import pickling


class Call:
    """A process that runs a function, the channel for its message, and the parts of the message."""

    def __init__(self, number: int, child: Child, channel: Any) -> None:
        self.number = number
        self.child = child
        self.channel = channel
        self.result: Any = None
        self.skip: str | None = None
        self.failure = ""
        """The traceback if the function raised, else None."""
        self.error: BaseException | None = None
        """The exception that the function raised, if it could be pickled and unpickled."""

    @property
    def is_read(self) -> bool:
        """True if the message has been read, or the process has ended without a message."""
        return bool(self.channel.closed)

    def waitables(self) -> list[Any]:
        """List the objects to wait on: the channel until it is closed, and the process."""
        return [self.child] if self.is_read else [self.channel, self.child]

    def read_message(self) -> bool:
        """Read the message. Return False if there is none. Errors of unpickling propagate."""
        if self.is_read:
            return False
        try:
            data = self.channel.recv_bytes() if self.channel.poll() else b""
        except (EOFError, OSError):
            data = b""
        finally:
            self.channel.close()
        if not data:
            return False
        kind, value, *rest = pickle.loads(data)
        if kind == "result":
            self.result = value
        elif kind == "skip":
            self.skip = value
        else:
            self.failure, self.error = value, _unpickle_error(*rest)
        return True

    def close(self) -> None:
        """Kill the process if it is still running."""
        self.child.close()
        self.channel.close()


_AnyCall = TypeVar("_AnyCall", bound=Call)


def wait_any(calls: Iterable[_AnyCall], timeout: float | None) -> list[_AnyCall]:
    """Wait up to `timeout` seconds. Return the calls that have sent a message or ended."""
    owners = {waitable: call for call in calls for waitable in call.waitables()}
    return list(dict.fromkeys(owners[waitable] for waitable in connection.wait(list(owners), timeout)))


def failure(error: BaseException) -> tuple[str, str, bytes | None]:
    """Build a message about an exception, with the exception if it can be pickled."""
    text = "".join(traceback.format_exception(error))
    try:
        data = pickling.dumps_object(error)
        pickle.loads(data)
    except Exception:  # third-party code may raise any exception
        return "failure", text, None
    return "failure", text, data


def _unpickle_error(data: bytes | None) -> BaseException | None:
    """Unpickle the exception of a message, or return None if that fails in this process."""
    try:
        return None if data is None else pickle.loads(data)
    except Exception:
        return None


def is_consequence(error: BaseException | None) -> bool:
    """True if a rank raised this error only because another rank failed."""
    return isinstance(error, (_core.DistPeerLostError, _core.DistAbortedError))
