"""A worker's server: listening socket, access control, and cleanup at fork and exit."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import socket
import stat
import threading
import time
import weakref
from contextlib import suppress
from types import TracebackType

from dldist._base import argument_names, settings
from dldist.control.http import Connection

CONNECTIONS = 32
"""Maximum open connections. A new connection evicts the one that has been idle longest."""
_BACKLOG = 128
"""Maximum connections that the kernel queues until they are accepted."""
_SHUTDOWN_S = 5.0
"""Seconds that shutdown() waits for responses in progress."""
_PURPOSE = b"dldist control plane 1"


def token(secret: str | None = None) -> str:
    """Return the token, 64 hexadecimal digits, for requests over TCP; "" if there is no secret.

    Clients send `Authorization: Bearer <token>`. The secret cannot be derived from the token. Use
    the token only on loopback and trusted networks, because it is sent in plain text.

    Args:
        secret: The job's secret. None uses DLDIST_SECRET from the environment.

    Example:
        >>> from dldist import control
        >>> control.token("of the job")[:8]
        '9f0ffee1'
    """
    if secret is None:
        secret = os.fsdecode(settings.secret())
    key = argument_names.convert("secret", os.fsencode, secret, "text")
    return hmac.new(key, _PURPOSE, hashlib.sha256).hexdigest() if key else ""


class _ServerState:
    """The sockets and threads of one server, until close(). Valid only in their own process."""

    def __init__(self, listener: socket.socket, path: str, token: str) -> None:
        self._listener = listener
        self._path = os.path.abspath(path) if path else path  # close() needs it after chdir()
        self._inode = os.stat(path).st_ino if path else 0
        self._token = token
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._threads: set[threading.Thread] = set()
        self._idle: dict[socket.socket, None] = {}
        """Connections without a complete request, oldest first. _lock guards both fields."""
        self._connections: set[socket.socket] = set()
        self._accept_thread = threading.Thread(target=self._run_accept_loop, name="dldist control", daemon=True)
        self._accept_thread.start()
        _open_servers.add(self)

    def _run_accept_loop(self) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:  # the listener is closed, or no descriptors are free
                self._closing.wait(0.1)
                continue
            self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        with self._lock:
            self._connections.add(sock)
            self._idle[sock] = None
            is_full = len(self._connections) > CONNECTIONS
            oldest = next(iter(self._idle))
            if is_full:
                _shut_down(oldest)
        if is_full and (oldest is sock or not self._wait_for_eviction()):  # no idle connection to evict
            self._remove(sock)
            return
        thread = threading.Thread(target=self._serve, args=(sock,), name="dldist control connection", daemon=True)
        with self._lock:
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:  # the system cannot start a thread
            self._threads.discard(thread)
            self._remove(sock)

    def _wait_for_eviction(self) -> bool:
        """Wait at most one second until the evicted connection is closed. Return True if it is."""
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline and not self._closing.wait(0.002):
            with self._lock:
                if len(self._connections) <= CONNECTIONS:
                    return True
        return False

    def _serve(self, sock: socket.socket) -> None:
        try:
            Connection(sock, self._token, lambda is_idle: self._set_idle(sock, is_idle)).run()
        finally:
            self._remove(sock)
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _set_idle(self, sock: socket.socket, is_idle: bool) -> None:
        with self._lock:
            self._idle.pop(sock, None)
            if is_idle:
                self._idle[sock] = None
                if self._closing.is_set():
                    _shut_down(sock)

    def _remove(self, sock: socket.socket) -> None:
        with self._lock:
            self._connections.discard(sock)
            self._idle.pop(sock, None)
        sock.close()

    def close(self) -> None:
        """Stop listening, finish requests and remove the socket. In a forked child, do nothing."""
        if os.getpid() != self._pid or self._closing.is_set():
            return
        self._closing.set()
        _shut_down(self._listener)  # makes accept() return
        self._accept_thread.join(_SHUTDOWN_S)
        self._listener.close()
        self._remove_path()
        with self._lock:
            threads = self._threads - {threading.current_thread()}
            for sock in self._idle:
                _shut_down(sock)
        deadline = time.monotonic() + _SHUTDOWN_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _remove_path(self) -> None:
        with suppress(OSError):
            if self._path and os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)

    def close_in_child(self) -> None:
        """Close a forked child's sockets, without a lock, which the fork may have left held."""
        for sock in (self._listener, *self._connections):
            sock.close()


_open_servers: weakref.WeakSet[_ServerState] = weakref.WeakSet()


def _close_all_in_child() -> None:
    for state in list(_open_servers):
        state.close_in_child()
    _open_servers.clear()


os.register_at_fork(after_in_child=_close_all_in_child)


def _shut_down(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


class Server:
    """A server that answers requests about this process, on its own threads. Created by serve(). It
    ends on shutdown(), at the end of a `with` block, at exit, or when garbage-collected."""

    port: int
    """The TCP port, or 0 for a Unix socket."""
    address: str
    """The path of the Unix socket, or the URL."""

    def _start(self, listener: socket.socket, path: str, token: str) -> None:
        self.port = 0 if path else listener.getsockname()[1]
        self.address = path or _url_of(listener)
        self._state = _ServerState(listener, path, token)
        self._finalizer = weakref.finalize(self, self._state.close)  # close() also runs at exit

    def shutdown(self) -> None:
        """Stop the server, after up to five seconds for open requests. Idempotent."""
        self._finalizer()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()


def serve(
    path: str | os.PathLike[str] | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    secret: str | None = None,
    anyone: bool = False,
) -> Server:
    """Answer requests about this process: `POST /handler/<name>` for every registered handler.
    Return the server, a context manager; keep a reference, because it ends when garbage-collected.

    A Unix socket admits only the same user. Over TCP, a job with a secret requires token().

    Args:
        path: The Unix socket to create with mode 0600, and to remove at the end. None for TCP.
        host: The address to listen on, for TCP.
        port: The TCP port; 0 chooses a free port, which is the server's `port`.
        secret: The job's secret. None reads DLDIST_SECRET; "" means no secret.
        anyone: True allows a non-loopback address without a secret: every client that reaches the
            port can call every handler.

    Raises:
        RuntimeError: The path exists, or the path or host and port cannot be bound.
        ValueError: The address is not loopback, there is no secret, and `anyone` is false.

    Example:
        >>> from dldist import control
        >>> with control.serve() as server:
        ...     server.address.startswith("http://127.0.0.1:")
        True
    """
    server = Server()
    if path is not None:
        name = argument_names.convert("path", os.fspath, path, "a path")
        server._start(_bind_path(name), name, "")
        return server
    bearer_token = token(secret)
    server._start(_bind_host(host, port, anyone or bool(bearer_token)), "", bearer_token)
    return server


class _WorkerServer(Server):
    """A Server with torch's constructor. Unlike serve(), it accepts any host without a secret."""

    def __init__(self, host_or_file: str, port: int = -1) -> None:
        port = port.__index__()
        if port == -1:
            self._start(_bind_path(host_or_file), host_or_file, "")
        else:
            self._start(_bind_host(host_or_file, port, True), "", token())


def _bind_path(path: str) -> socket.socket:
    if os.path.lexists(path):
        raise RuntimeError(f"serve(): {path} already exists; remove it, or choose another")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        os.chmod(path, stat.S_IRUSR | stat.S_IWUSR)  # set the mode before listen() admits clients
        listener.listen(_BACKLOG)
    except (OSError, ValueError) as error:
        listener.close()
        raise RuntimeError(f"Error binding to {path}: {error}") from error
    return listener


def _bind_host(host: str, port: int, anyone: bool) -> socket.socket:
    if not isinstance(host, str):
        raise TypeError(f"{argument_names.title('host')} must be str, not {type(host).__name__}")
    try:
        if not 0 <= port <= 65535:
            raise OSError(f"argument 'port' must be 0 to 65535, not {port}")
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        raise RuntimeError(f"Error binding to {host}:{port}: {error}") from error
    if not anyone and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise ValueError(
            f"serve(): argument 'host': got {host}, expected a loopback address, as the job has no secret; set DLDIST_SECRET, "
            "or pass anyone=True to let every client that reaches the port call every handler"
        )
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # Accept IPv4 too, as torch's server does.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise RuntimeError(f"Error binding to {host}:{port}: {error}") from error
    return listener


def _url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
