"""Functions that run in processes of their own, and the one thing that each of these says; for spawn() and dldist.testing.

What is said is a tuple: ("result", value), ("skip", reason), or ("failure", traceback, the exception pickled or None).
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterable
from multiprocessing import connection
from typing import Any, TypeVar

from dldist import _core
from dldist.launch import by_value
from dldist.launch.processes import Child


class Call:
    """A process that runs a function for this one, the end of the channel that it speaks on, and what it has said there."""

    def __init__(self, number: int, child: Child, channel: Any) -> None:
        self.number = number
        self.child = child
        self.channel = channel
        self.result: Any = None
        self.skip: str | None = None
        self.failure = ""
        """Why there is no result: a traceback."""
        self.error: BaseException | None = None
        """The exception, if this process can have it."""

    @property
    def is_heard(self) -> bool:
        """Whether it has said what it has to say, or ended without that."""
        return bool(self.channel.closed)

    def signs(self) -> list[Any]:
        """What is ready when there is news."""
        return [self.child] if self.is_heard else [self.channel, self.child]

    def hear(self) -> bool:
        """After news of it: whether it has said something now. Raises what unpickling raises."""
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
        """Ends it at once, if it still runs."""
        self.child.close()
        self.channel.close()


_AnyCall = TypeVar("_AnyCall", bound=Call)


def with_news(calls: Iterable[_AnyCall], timeout: float | None) -> list[_AnyCall]:
    """Those that have said something or ended, as soon as there are any; none after `timeout` seconds."""
    owners = {sign: call for call in calls for sign in call.signs()}
    return list(dict.fromkeys(owners[sign] for sign in connection.wait(list(owners), timeout)))


def failure(error: BaseException) -> tuple[str, str, bytes | None]:
    """What is said of an exception: its traceback, and itself where that can be pickled."""
    text = "".join(traceback.format_exception(error))
    try:
        data = by_value.dumps_object(error)
        pickle.loads(data)
    except Exception:  # whatever __reduce__ and __init__ of anybody's exception do
        return "failure", text, None
    return "failure", text, data


def _revive(data: bytes | None) -> BaseException | None:
    """The exception that failure() has packed, if this process can have it."""
    try:
        return None if data is None else pickle.loads(data)
    except Exception:
        return None


def is_consequence(error: BaseException | None) -> bool:
    """Whether a rank has raised this only because another one has failed."""
    return isinstance(error, (_core.DistPeerLostError, _core.DistAbortedError))
