"""Finds a rendezvous by URL, environment or launcher, and opens its store."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import Any

from dldist import _core
from dldist._base import settings
from dldist._base.future import seconds_of
from dldist._rendezvous import launchers
from dldist._rendezvous.launchers import Launch

_RETRY_S = 0.02
_PROBE_S = 1.0
# Inodes of sockets that servers of this process have listened on; see _serve_on().
_served_inodes: set[int] = set()


class Endpoint:
    """A rendezvous: this process's rank, the number of ranks, and how to open the store."""

    def __init__(self, rank: int, world_size: int, connect: Callable[[Any], _core.Store] | None = None) -> None:
        self.rank = rank
        self.world_size = world_size
        self.is_server = False  # True if this rank must serve the store
        self.is_client = False  # True if rank 0 serves the store, and may serve another one later
        self._connect = connect

    def connect(self, timeout: Any, wait_for_workers: bool) -> _core.Store:
        assert self._connect is not None
        return self._connect(timeout)


def _single_rank(rank: int) -> Endpoint:
    """Return a rendezvous of one rank, which needs no other process."""
    return Endpoint(rank, 1, lambda timeout: _core.HashStore(timeout=timeout))


def _file_endpoint(path: str, rank: int, world_size: int) -> Endpoint:
    """Return a rendezvous in a file, which all ranks must be able to open."""
    return Endpoint(rank, world_size, lambda timeout: _core.FileStore(path, world_size, timeout=timeout))


def store_endpoint(store: _core.Store, rank: int, world_size: int) -> Endpoint:
    """Return a rendezvous in a store that is already open."""
    return Endpoint(rank, world_size, lambda _timeout: store)


class ServerEndpoint(Endpoint):
    """A rendezvous in a TCPStore. Rank 0 serves it, unless the ranks' launcher (agent) does."""

    def __init__(self, host: str, port: int, rank: int, world_size: int, has_agent: bool) -> None:
        super().__init__(rank, world_size)
        if not 0 <= port < 2**16:
            raise ValueError(f"port must have value from 0 to 65535 but was {port}.")
        self.host = host
        self.port = port
        self.use_libuv = True
        self.listen_fd: int | None = None
        self.has_agent = has_agent
        self.is_server = rank == 0 and not has_agent
        self.is_client = rank != 0 and not has_agent

    def connect(self, timeout: Any, wait_for_workers: bool) -> _core.Store:
        options = {
            # A rank that does not wait for workers passes no size, so that it is not counted.
            "world_size": self.world_size if wait_for_workers else None,
            "timeout": timeout,
            "wait_for_workers": wait_for_workers and self.port != 0,
            "use_libuv": self.use_libuv,
        }
        if self.is_server:
            if self.listen_fd is not None:
                return _serve_on(self.listen_fd, self.host, self.port, options)
            return _serve(self.host, self.port, options)
        if self.port == 0:
            raise ValueError(f"argument 'port' of rank {self.rank}: got 0, expected rank 0's port (its store.port); only rank 0 can take a free port")
        store = _core.TCPStore(self.host, self.port, **options)
        return _core.PrefixStore(prefix, store) if self.has_agent and (prefix := _attempt_prefix()) else store


class PortRangeEndpoint(ServerEndpoint):
    """A server on the first free port of a range; ranks find it by the job's name in the store."""

    JOB_KEY = "dldist/job"

    def __init__(self, host: str, first: int, last: int, job: str, rank: int, world_size: int) -> None:
        super().__init__(host, last, rank, world_size, has_agent=False)
        self.ports = range(first, last + 1)
        self.job = job.encode()

    def connect(self, timeout: Any, wait_for_workers: bool) -> _core.Store:
        return self._serve_first_free(timeout) if self.is_server else self._find_server(seconds_of(timeout))

    def _serve_first_free(self, timeout: Any) -> _core.Store:
        for port in self.ports:
            try:
                store = _serve(self.host, port, {"timeout": timeout, "wait_for_workers": False})
            except _core.DistNetworkError as error:
                last_error = error
                continue
            # Accept a port that this process already serves for the same job.
            if store.compare_set(self.JOB_KEY, "", self.job) == self.job:
                return store
            last_error = _core.DistNetworkError(f"port {port} is taken by another job of this process")
        raise _core.DistNetworkError(f"no free port on {self.host} in {self._range_text()}: {last_error}")

    def _find_server(self, seconds: float) -> _core.Store:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for port in self.ports:
                store = self._try_port(port, min(_PROBE_S, max(deadline - time.monotonic(), 0.001)))
                if store is not None:
                    store.set_timeout(seconds)
                    return store
            time.sleep(_RETRY_S)
        raise _core.DistNetworkTimeoutError(
            f"rank {self.rank} found no server of job {self.job.decode()!r} at {self.host}, ports {self._range_text()}, "
            f"within the timeout of {seconds:.1f} s"
        )

    def _try_port(self, port: int, seconds: float) -> _core.Store | None:
        import socket

        try:
            # Connect first: TCPStore would retry a closed port instead of trying the next one.
            socket.create_connection((self.host, port), seconds).close()
            store = _core.TCPStore(self.host, port, timeout=seconds)
            return store if store.try_get(self.JOB_KEY) == self.job else None
        except (OSError, _core.DistError):
            return None

    def _range_text(self) -> str:
        return f"{self.ports[0]}-{self.ports[-1]}"


def _server_endpoint(host: str, port: int, rank: int, world_size: int) -> ServerEndpoint:
    # The agent of torchrun or dlrun serves a store at its address; at any other address, rank 0
    # serves one. dlrun repeats its address, because a program may change MASTER_ADDR and
    # MASTER_PORT.
    has_agent = False
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        agent_address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        has_agent = os.environ.get("DLDIST_AGENT_STORE", agent_address) == f"{host}:{port}"
    return ServerEndpoint(host, port, rank, world_size, has_agent)


def _attempt_prefix() -> str | None:
    """Return a prefix for this attempt's keys in the agent's store, if the job has one agent.
    Several agents may count attempts differently; then only meet() separates attempts."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    is_one_agent = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    return f"/worker/attempt_{attempt}" if attempt and is_one_agent else None


def _open(host: str, port: int, **options: Any) -> _core.TCPStore:
    """Open a store and its server. Stores of this process on the same port share the server."""
    return _core.TCPStore(host, port, is_master=True, multi_tenant=True, **options)


def _serve(host: str, port: int, options: dict[str, Any]) -> _core.TCPStore:
    if _is_own_address(host):
        return _open(host, port, **options)
    # The host's name or address may differ on other hosts (DNS, NAT): listen on all addresses.
    server = _open("::", port, **{**options, "wait_for_workers": False})
    return _open(host, server.port, **options)


def _serve_on(listen_fd: int, host: str, port: int, options: dict[str, Any]) -> _core.TCPStore:
    """Serve a store on a caller's socket, which reserves the port between two servers."""
    try:
        os.set_inheritable(listen_fd, False)
        inode = os.fstat(listen_fd).st_ino
    except OSError as error:
        raise ValueError(f"listen_fd is not an open descriptor: got {listen_fd}: {error.strerror}") from None
    if inode in _served_inodes:
        # Use this process's server if it still runs; if not, the socket still reserves the port.
        try:
            return _open(host, port, **options)
        except _core.DistNetworkError:
            pass
    duplicate = os.dup(listen_fd)
    try:
        store = _open(host, port, master_listen_fd=duplicate, **options)
    except BaseException:
        _close_if_same(duplicate, inode)
        raise
    _served_inodes.add(inode)
    return store


def _close_if_same(fd: int, inode: int) -> None:
    """Close the descriptor if it still is this socket: a failed server may have closed it."""
    try:
        if os.fstat(fd).st_ino == inode:
            os.close(fd)
    except OSError:
        pass


def _is_own_address(host: str) -> bool:
    """True for localhost and IP addresses of this machine, on which only the server listens."""
    if host == "localhost":
        return True
    if ":" not in host and not host.replace(".", "").isdecimal():
        return False
    import _socket  # ten times as fast as `socket`; a host in bytes needs no codec

    try:
        for family, kind, protocol, _, address in _socket.getaddrinfo(host.encode(), 0, 0, _socket.SOCK_STREAM):
            probe = _socket.socket(family, kind, protocol)
            try:
                probe.bind(address)
            finally:
                probe.close()
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL  # listen() will report other errors
    return True


# ---- URLs


def url_error(scheme: str, text: str) -> ValueError:
    return ValueError(f"Error initializing dldist using {scheme}:// rendezvous: {text}")


def _ranks(scheme: str, query: dict[str, str]) -> tuple[int, int]:
    if "rank" not in query:
        raise url_error(scheme, "rank parameter missing")
    if "world_size" not in query:
        raise url_error(scheme, "world size parameter missing")
    return _integer(scheme, "rank", query["rank"]), _integer(scheme, "world_size", query["world_size"])


def _integer(scheme: str, name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise url_error(scheme, f"{name} must be an integer, not {text!r}") from None


def _set_options(endpoint: ServerEndpoint, scheme: str, query: dict[str, str], listen_fd: int | None) -> ServerEndpoint:
    endpoint.use_libuv = query.get("use_libuv", settings.value("use_libuv")) == "1"
    if "listen_fd" in query:
        listen_fd = _integer(scheme, "listen_fd", query["listen_fd"])
    endpoint.listen_fd = listen_fd
    return endpoint


def file_endpoint(url: str) -> Endpoint:
    _, path, query = _split_url(url)
    if not path:
        raise url_error("file", "path missing")
    return _file_endpoint(path, *_ranks("file", query))


def tcp_endpoint(url: str, listen_fd: int | None = None) -> Endpoint:
    server, _, query = _split_url(url)
    ports = server.rpartition(":")[2].split("-")
    if len(ports) == 2 and all(port.isdecimal() for port in ports):
        return _range_endpoint(server.rpartition(":")[0], int(ports[0]), int(ports[1]), query)
    host, port = _split_server(server)
    if port is None:
        raise url_error("tcp", "port number missing")
    ranks = _ranks("tcp", query)
    if not host:
        raise AssertionError("hostname cannot be None")
    return _set_options(_server_endpoint(host, port, *ranks), "tcp", query, listen_fd)


def _split_url(url: str) -> tuple[str, str, dict[str, str]]:
    """Split a URL into server, path and query. urllib.parse would take too long to import."""
    head, _, query = url.partition("#")[0].partition("://")[2].partition("?")
    server, slash, path = head.partition("/")
    return server, slash + path, _query(query)


def _split_server(server: str) -> tuple[str, int | None]:
    """Split "host:port"; an IPv6 address is in brackets."""
    if ("[" in server) != ("]" in server):
        raise ValueError("Invalid IPv6 URL")
    if server.startswith("["):
        host, _, rest = server[1:].partition("]")
        port = rest.partition(":")[2]
    else:
        host, _, port = server.partition(":")
    return host.lower(), _port(port) if port else None


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"Port could not be cast to integer value as {text!r}")
    if int(text) >= 2**16:
        raise ValueError(f"Port out of range 0-65535: got {text}")
    return int(text)


def _range_endpoint(host: str, first: int, last: int, query: dict[str, str]) -> Endpoint:
    if not 1 <= first <= last <= 65535:
        raise url_error("tcp", f"invalid range of ports: got {first}-{last}, expected one within 1-65535")
    if not query.get("job"):
        raise url_error("tcp", "got a range of ports without job=NAME, expected a name, which identifies the server")
    return PortRangeEndpoint(host.strip("[]"), first, last, query["job"], *_ranks("tcp", query))


def env_endpoint(url: str, listen_fd: int | None = None) -> Endpoint:
    query = _query(url.partition("?")[2])
    rank = _integer("env", "RANK", query.get("rank") or _variable("RANK"))
    world_size = _integer("env", "WORLD_SIZE", query.get("world_size") or _variable("WORLD_SIZE"))
    host = _variable("MASTER_ADDR")
    port = _integer("env", "MASTER_PORT", _variable("MASTER_PORT"))
    if listen_fd is None and os.environ.get("DLDIST_MASTER_FD"):
        listen_fd = _integer("env", "DLDIST_MASTER_FD", os.environ["DLDIST_MASTER_FD"])
    return _set_options(_server_endpoint(host, port, rank, world_size), "env", query, listen_fd)


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise url_error("env", f"environment variable {name} expected, but not set")
    return value


def with_ranks(url: str, rank: int, world_size: int, may_omit_size: bool = False) -> str:
    """Add rank and size, unless -1, to a URL's query. may_omit_size: add a size of -1 too."""
    if rank == -1 and world_size == -1 and not may_omit_size:
        return url
    body, separator, fragment = url.partition("#")
    head, _, text = body.partition("?")
    query = _query(text)
    if "rank" in query or "world_size" in query:
        raise AssertionError(f"The url: {url} has node-specific arguments(rank, world_size) already.")
    if rank != -1:
        query["rank"] = str(rank)
    if world_size != -1 or may_omit_size:
        query["world_size"] = str(world_size)
    return f"{head}?{'&'.join(f'{name}={value}' for name, value in query.items())}{separator}{fragment}"


def _query(text: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in text.split("&") if pair)
    return {name: value for name, _, value in pairs}


# ---- launchers


def auto_endpoint(rank: int, world_size: int) -> Endpoint:
    if not os.environ.get("RANK") and (launch := launchers.detect()) is not None:
        numbers = launch.rank if rank == -1 else rank, launch.world_size if world_size == -1 else world_size
        return _launcher_endpoint(launch, *numbers)
    is_set = any(os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    if not is_set and rank in (-1, 0) and world_size in (-1, 1):
        return _single_rank(0)
    return env_endpoint(with_ranks("env://", rank, world_size))


def _launcher_endpoint(launch: Launch, rank: int, world_size: int) -> Endpoint:
    if launch.master_addr:
        if launch.master_port is None:
            raise url_error("env", "environment variable MASTER_PORT expected, but not set (MASTER_ADDR is set)")
        return _server_endpoint(launch.master_addr, launch.master_port, rank, world_size)
    if world_size == 1:
        return _single_rank(rank)
    if launch.is_on_one_host and launch.job is not None:
        return _file_endpoint(launchers.meeting_file(launch.job), rank, world_size)
    where = "on one host" if launch.is_on_one_host else f"{launch.local_size or '?'} of them on this host"
    raise url_error(
        "env",
        f"{launch.kind} has started {launch.world_size} processes, {where}, without an address for rendezvous; "
        "set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there",
    )
