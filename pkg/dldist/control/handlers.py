"""What a worker's server can be asked: the handlers of this process, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias


class Request:
    """What a handler is asked: a body, and parameters by name."""

    def body(self) -> str:
        """The body as text; a body that is not UTF-8 is a UnicodeDecodeError."""
        raise NotImplementedError("body() of a request that is not one of a server's")

    def get_param(self, name: str, /) -> str:
        """The first parameter of this name, "" if there is none.

        Args:
            name: The parameter's name in the URL's query, or in a body that is a form.
        """
        raise NotImplementedError("get_param() of a request that is not one of a server's")


class Response:
    """What a handler answers with; 200 and nothing unless it says something else."""

    def set_content(self, content: str | bytes, content_type: str) -> None:
        """Answer with this content, in place of any set before.

        Args:
            content: What is sent; text goes as UTF-8.
            content_type: Such as "text/plain".
        """
        raise NotImplementedError("set_content() of a response that is not one of a server's")

    def set_status(self, status: int) -> None:
        """Answer with this status of HTTP.

        Args:
            status: 200 to 599.
        """
        raise NotImplementedError("set_status() of a response that is not one of a server's")


Handler: TypeAlias = "Callable[[Request, Response], object]"


class ReceivedRequest(Request):
    """One that came over HTTP. Bytes become text when a handler asks for them: it gets the error if they are none."""

    def __init__(self, body: bytes, params: Mapping[bytes, bytes]) -> None:
        self._body = body
        self._params = params

    def body(self) -> str:
        return self._body.decode()

    def get_param(self, name: str, /) -> str:
        return self._params.get(name.encode(), b"").decode()


class Answer(Response):
    """A response that is kept until it is sent."""

    def __init__(self) -> None:
        self.status = 200
        self.content = b""
        self.content_type: str | None = None

    def set_content(self, content: str | bytes, content_type: str) -> None:
        if not content_type.isprintable() or not content_type.isascii():
            raise ValueError(f"set_content(): argument 'content_type' must be printable ASCII, not {content_type!r}")
        self.content = content.encode() if isinstance(content, str) else bytes(memoryview(content))  # a number is none
        self.content_type = content_type

    def set_status(self, status: int) -> None:
        status = status.__index__()
        if not 200 <= status <= 599:
            raise ValueError(f"set_status(): argument 'status' must be 200 to 599, not {status}")
        self.status = status


# ---- by name

_handlers: dict[str, tuple[Handler]] = {}
"""Written by one operation of dict's at a time, so it takes no lock that a fork could leave locked."""


def register_handler(name: str, handler: Handler) -> None:
    """Let every server of this process answer requests of this name.

    A handler runs on a thread of the server's, beside the program and other requests. What it raises goes to the client, with
    the status 500.

    Args:
        name: What comes after /handler/ in the URL.
        handler: Called with a Request and a Response.

    Raises:
        TypeError: `handler` cannot be called, or `name` is no text.
        ValueError: The name is taken.

    Example:
        >>> from dldist import control
        >>> control.register_handler("epoch", lambda request, response: response.set_content("3", "text/plain"))
        >>> "epoch" in control.handler_names()
        True
    """
    if not isinstance(name, str):
        raise TypeError(f"register_handler(): argument 'name' must be str, not {type(name).__name__}")
    if not callable(handler):
        raise TypeError(f"register_handler(): argument 'handler' must be callable, not {type(handler).__name__}")
    ours = (handler,)  # the same function, registered twice, is an error, too
    if _handlers.setdefault(name, ours) is not ours:
        raise ValueError(f"Handler {name} already registered")


def get_handler(name: str) -> Handler:
    """The handler of this name.

    Args:
        name: As it was registered.

    Raises:
        ValueError: There is none.
    """
    try:
        return _handlers[name][0]
    except KeyError:
        raise ValueError(f"Failed to find handler {name}") from None


def handler_names() -> list[str]:
    """The names of all handlers of this process.

    Example:
        >>> from dldist import control
        >>> "ping" in control.handler_names()
        True
    """
    return list(_handlers)
