"""The registry of request handlers, and the classes of requests and responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias


class Request:
    """The request that a handler receives: a body, and parameters by name."""

    def body(self) -> str:
        """Return the body as text. Raises UnicodeDecodeError if it is not UTF-8."""
        raise NotImplementedError("body(): got a request that no server made")

    def get_param(self, name: str, /) -> str:
        """Return the first parameter of this name, or "" if there is none.

        Args:
            name: The parameter's name in the URL's query, or in a form body.
        """
        raise NotImplementedError("get_param(): got a request that no server made")


class Response:
    """The response that a handler fills; by default status 200 without content."""

    def set_content(self, content: str | bytes, content_type: str) -> None:
        """Set the content, replacing any content set before.

        Args:
            content: The content to send; text is encoded as UTF-8.
            content_type: The MIME type, such as "text/plain".
        """
        raise NotImplementedError("set_content(): got a response that no server made")

    def set_status(self, status: int) -> None:
        """Set the HTTP status.

        Args:
            status: The status, 200 to 599.
        """
        raise NotImplementedError("set_status(): got a response that no server made")


Handler: TypeAlias = "Callable[[Request, Response], object]"


class ReceivedRequest(Request):
    """A request received over HTTP. If it cannot be decoded, the handler's reads raise errors."""

    def __init__(self, body: bytes, params: Mapping[bytes, bytes]) -> None:
        self._body = body
        self._params = params

    def body(self) -> str:
        return self._body.decode()

    def get_param(self, name: str, /) -> str:
        return self._params.get(name.encode(), b"").decode()


class BufferedResponse(Response):
    """A response that is buffered until it is sent."""

    def __init__(self) -> None:
        self.status = 200
        self.content = b""
        self.content_type: str | None = None

    def set_content(self, content: str | bytes, content_type: str) -> None:
        if not content_type.isprintable() or not content_type.isascii():
            raise ValueError(f"set_content(): argument 'content_type' must be printable ASCII, not {content_type!r}")
        self.content = content.encode() if isinstance(content, str) else bytes(memoryview(content))
        self.content_type = content_type

    def set_status(self, status: int) -> None:
        status = status.__index__()
        if not 200 <= status <= 599:
            raise ValueError(f"set_status(): argument 'status' must be 200 to 599, not {status}")
        self.status = status


_handlers: dict[str, tuple[Handler]] = {}
"""Handlers by name. Changed only by atomic dict operations, as a fork could leave a lock held."""


def register_handler(name: str, handler: Handler) -> None:
    """Register a handler for requests of this name, for all servers of this process.

    A handler runs on a thread of the server, concurrently with the program and other requests. If
    it raises an exception, the client receives status 500 with the error text.

    Args:
        name: The path after /handler/ in the URL.
        handler: The function to call with a Request and a Response.

    Raises:
        TypeError: `handler` is not callable, or `name` is not a string.
        ValueError: The name is already registered.

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
    entry = (handler,)  # a new tuple: even the same handler cannot be registered again
    if _handlers.setdefault(name, entry) is not entry:
        raise ValueError(f"Handler {name} already registered")


def get_handler(name: str) -> Handler:
    """Return the handler of this name.

    Args:
        name: The name that was registered.

    Raises:
        ValueError: No handler has this name.
    """
    try:
        return _handlers[name][0]
    except KeyError:
        raise ValueError(f"get_handler(): argument 'name': Failed to find handler {name}: got {name!r}, expected one of {list(_handlers)}") from None


def handler_names() -> list[str]:
    """Return the names of all handlers of this process.

    Example:
        >>> from dldist import control
        >>> "ping" in control.handler_names()
        True
    """
    return list(_handlers)
