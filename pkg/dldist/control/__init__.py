"""Control plane: an HTTP server in each rank, like torch.distributed's. See docs/control-plane.md.

>>> from dldist import control
>>> with control.serve() as server:
...     server.port > 0
True
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dldist._base import settings
from dldist.control import builtin  # noqa: F401  (registers its handlers)
from dldist.control.handlers import Request, Response, get_handler, handler_names, register_handler
from dldist.control.server import Server, serve, token

__all__ = [
    "Request",
    "Response",
    "Server",
    "get_handler",
    "handler_names",
    "register_handler",
    "serve",
    "token",
    "worker_main",
]


@contextmanager
def worker_main() -> Iterator[None]:
    """Serve on a Unix socket during the main function. A decorator or context manager.

    The path is DLDIST_WORKER_SERVER_SOCKET or TORCH_WORKER_SERVER_SOCKET. If unset, do nothing.

    Raises:
        RuntimeError: The path exists, or cannot be bound.

    Example:
        >>> from dldist import control
        >>> @control.worker_main()
        ... def main():
        ...     print("training")
        >>> main()
        training
    """
    path = settings.value("worker_server_socket")
    if not path:
        yield
        return
    with serve(path):
        yield
