"""Functions that run in new processes, and the one message that each process sends back; for spawn() and dldist.testing.

The message is a tuple: ("result", value), ("skip", reason), or ("failure", traceback, the exception pickled or None).
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
    """A process that runs a function for this one, the receiving end of its channel, and what it has sent."""

    def __init__(self, number: int, child: Child, channel: Any) -> None:
        self.number = number
        self.child = child
        self.channel = channel
        self.result: Any = None
        self.skip: str | None = None
        self.failure = ""
        """The traceback, if the function raised."""
        self.error: BaseException | None = None
        """The exception, if it could be pickled and read."""

    @property
    def is_heard(self) -> bool:
        """Whether it has sent its message, or ended without one."""
        return bool(self.channel.closed)

    def signs(self) -> list[Any]:
        """What to wait for: these are ready when there is news."""
        return [self.child] if self.is_heard else [self.channel, self.child]

    def hear(self) -> bool:
        """Read the message after news of it. Returns whether there was one. Raises what unpickling raises."""
        if self.is_heard:
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
            self.failure, self.error = value, _revive(*rest)
        return True

    def close(self) -> None:
        """Kill it if it is still running."""
        self.child.close()
        self.channel.close()


_AnyCall = TypeVar("_AnyCall", bound=Call)


def with_news(calls: Iterable[_AnyCall], timeout: float | None) -> list[_AnyCall]:
    """Wait for calls that have sent something or ended, for up to `timeout` seconds."""
    owners = {sign: call for call in calls for sign in call.signs()}
    return list(dict.fromkeys(owners[sign] for sign in connection.wait(list(owners), timeout)))


def failure(error: BaseException) -> tuple[str, str, bytes | None]:
    """The message about an exception: the traceback, and the exception itself if it can be pickled."""
    text = "".join(traceback.format_exception(error))
    try:
        data = pickling.dumps_object(error)
        pickle.loads(data)
    except Exception:  # __reduce__ and __init__ of other people's exceptions may raise anything
        return "failure", text, None
    return "failure", text, data


def _revive(data: bytes | None) -> BaseException | None:
    """The exception that failure() has pickled, or None if it cannot be read here."""
    try:
        return None if data is None else pickle.loads(data)
    except Exception:
        return None


def is_consequence(error: BaseException | None) -> bool:
    """Whether a rank raised this only because another rank failed."""
    return isinstance(error, (_core.DistPeerLostError, _core.DistAbortedError))
