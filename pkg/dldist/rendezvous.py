"""Rendezvous in a store: c10d's rendezvous(), and meet() for dldist's own calls.

    store, rank, world_size = next(rendezvous("tcp://10.0.0.1:29500", rank, world_size))

rendezvous() yields the store as it is. meet() returns an unused part of the store, so that the same
URL can be used repeatedly. docs/rendezvous.md has the rules and the environment variables.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from dldist import _core
from dldist._base.array_types import Timeout
from dldist._base.future import seconds_of
from dldist._rendezvous import urls

__all__ = ["register_rendezvous_handler", "rendezvous"]

DEFAULT_TIMEOUT_S = 1800.0
LINGER_S = 5.0
_POLL_S = 0.2
_SETUP_S = 1.0  # time after which an incomplete rendezvous, which another process has joined, lacks ranks

_handlers: dict[str, Callable[..., Iterator[tuple[_core.Store, int, int]]]] = {}


# ---- c10d's names


def register_rendezvous_handler(scheme: str, handler: Callable[..., Iterator[tuple[_core.Store, int, int]]]) -> None:
    """Register a handler for the URLs of a scheme.

    Args:
        scheme: The part before "://".
        handler: A function, `handler(url, **kwargs)`, that yields (store, rank, world_size).

    Raises:
        RuntimeError: The scheme already has a handler.

    Example:
        >>> def meet(url, **kwargs):
        ...     yield dist.HashStore(), 0, 1
        >>> dist.register_rendezvous_handler("here", meet)
        >>> next(dist.rendezvous("here://"))[1:]
        (0, 1)
    """
    if scheme in _handlers:
        raise RuntimeError(f"Rendezvous handler for {scheme}:// already registered")
    _handlers[scheme] = handler


def rendezvous(url: str, rank: int = -1, world_size: int = -1, **kwargs: Any) -> Iterator[tuple[_core.Store, int, int]]:
    """Return a generator that yields (store, rank, world_size).

    The call checks the scheme, and next() checks everything else. With tcp:// and env://, rank 0
    serves the store; its next() returns when all ranks have connected, or immediately with
    wait_for_workers=False.

    Args:
        url: "env://", "tcp://host:port", "file:///path", or a URL of a registered scheme. It may
            end in "?rank=0&world_size=2".
        rank: The rank of this process, if it is not in the URL.
        world_size: The number of ranks, if it is not in the URL.
        kwargs: Arguments for the handler: `timeout` (seconds or a timedelta) for tcp:// and env://.

    Raises:
        RuntimeError: The scheme has no handler, or an argument is not a number.
        ValueError: The URL or the environment lacks a value.
        DistTimeoutError: From next(): ranks did not join before the timeout.
    """
    return _find_handler(_as_text(url), _as_rank("rank", rank), _as_rank("world_size", world_size), kwargs)


def _create_store_from_options(backend_options: Any, rank: int) -> _core.Store:
    """Return only the store. The group may have any size unless WORLD_SIZE is set (env://)."""
    url = _as_text(backend_options.init_method)
    world_size = -1
    if url.partition("://")[0] == "env":
        rank = int(os.environ.get("RANK", rank))
        world_size = int(os.environ.get("WORLD_SIZE", world_size))
    return next(_find_handler(url, rank, world_size, {}, may_omit_size=True))[0]


def _as_text(url: Any) -> str:
    if not isinstance(url, (str, bytes)):
        raise RuntimeError(f"`url` must be a string. {type(url)}: {url}")
    return url.decode() if isinstance(url, bytes) else url


def _as_rank(name: str, value: Any) -> int:
    try:
        return int(value.__index__())
    except (AttributeError, TypeError):
        raise RuntimeError(f"`{name}` must be an integer. {value}") from None


def _find_handler(
    url: str, rank: int, world_size: int, kwargs: dict[str, Any], may_omit_size: bool = False
) -> Iterator[tuple[_core.Store, int, int]]:
    scheme = _scheme(url)
    url = urls.with_ranks(url, rank, world_size, may_omit_size)
    if scheme not in _handlers:
        raise RuntimeError(f"No rendezvous handler for {scheme}://")
    return _handlers[scheme](url, **kwargs)


def _scheme(url: str) -> str:
    head, separator, _ = url.partition("://")
    return head.lower() if separator else ""


# ---- handlers of URL schemes


def _file_handler(url: str, **_: Any) -> Iterator[tuple[_core.Store, int, int]]:
    endpoint = urls.file_endpoint(url)
    yield endpoint.connect(300.0, True), endpoint.rank, endpoint.world_size
    raise RuntimeError("Unable to perform rerendezvous using file:// method")


def _handler(scheme: str, make_endpoint: Callable[..., urls.Endpoint]) -> Callable[..., Iterator[tuple[_core.Store, int, int]]]:
    def handler(
        url: str,
        timeout: Timeout = DEFAULT_TIMEOUT_S,
        *,
        wait_for_workers: bool = True,
        listen_fd: int | None = None,
        **_: Any,
    ) -> Iterator[tuple[_core.Store, int, int]]:
        endpoint = make_endpoint(url, listen_fd)
        yield endpoint.connect(timeout, wait_for_workers), endpoint.rank, endpoint.world_size
        raise RuntimeError(f"Unable to perform re-rendezvous using {scheme}:// method")

    return handler


register_rendezvous_handler("tcp", _handler("tcp", urls.tcp_endpoint))
register_rendezvous_handler("env", _handler("env", urls.env_endpoint))
register_rendezvous_handler("file", _file_handler)


# ---- no URL


def auto(
    rank: int = -1, world_size: int = -1, timeout: Timeout = DEFAULT_TIMEOUT_S, wait_for_workers: bool = True
) -> Iterator[tuple[_core.Store, int, int]]:
    """Yield the store of the launcher's rendezvous. Without a launcher, this process is alone."""
    endpoint = urls.auto_endpoint(_as_rank("rank", rank), _as_rank("world_size", world_size))
    yield endpoint.connect(timeout, wait_for_workers), endpoint.rank, endpoint.world_size
    raise RuntimeError("Unable to perform re-rendezvous without a URL")


# ---- dldist's rendezvous


class Meeting:
    """The result of meet(): one rendezvous of the ranks of a world, with its part of a store.

    Use the store in a `with` block to connect the ranks, then call mark_connected(), and close() at
    the end. An exception in the block ends the rendezvous. If rank 0 serves the store, its close()
    waits until each rank that joined has called mark_connected() or close(), or failed.
    """

    __slots__ = (
        "_generation", "_is_opener", "_is_server", "_must_mark_connected", "_prefix", "_raw", "_record", "_server",
        "rank", "store", "world_size",
    )  # fmt: skip

    def __init__(self, raw: _core.Store, endpoint: urls.Endpoint, name: str, generation: int, is_opener: bool, record: bytes) -> None:
        self._raw: _core.Store | None = raw
        self._prefix = _key_prefix(name)
        self._generation = generation
        self._is_opener = is_opener
        self._is_server = endpoint.is_server and endpoint.world_size > 1
        self._must_mark_connected = endpoint.is_client
        self._record = record if endpoint.is_client else b""  # this process in the rank's key
        # If rank 0 serves the store: the text "<pid> <host>" that rank 0 writes at the start.
        self._server = raw.get(self._server_key()) if endpoint.is_client else None
        self.store: _core.Store | None = _core.PrefixStore(f"{name}/{generation}", raw)
        self.rank = endpoint.rank
        self.world_size = endpoint.world_size
        if self._is_server:
            # Also close at exit if the program never calls close(): other ranks may need the store.
            atexit.register(self.close)

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        """If the block raised, end the rendezvous, and raise the underlying cause."""
        if error is None:
            return
        failure = self.find_cause(error)
        self.close_after_failure()
        if failure is not error:
            raise failure from error

    def mark_connected(self) -> None:
        """Record that this rank has connected to the others and no longer needs the store."""
        if self._raw is None:
            return
        must_count, self._must_mark_connected = self._must_mark_connected, False
        try:
            if self._is_opener:
                self._raw.set(self._key("connected"), "")
            elif must_count and self._raw.add(self._key("met"), 1) == self.world_size - 1:
                self._raw.set(self._key("all met"), "")
        except _core.DistNetworkError:
            pass  # rank 0 has left and no longer waits for ranks

    def close(self, linger: float = LINGER_S) -> None:
        """Leave the store. Its server waits up to `linger` seconds for ranks that need it."""
        if self._raw is None:
            return
        try:
            if self._must_mark_connected:
                self.mark_connected()
            if self._record:
                self._record_end(self._raw)
            if self._is_server:
                self._linger(self._raw, linger)
            if self._is_opener:
                self._raw.add(f"{self._prefix}/count", 1)
        except _core.DistError:
            pass  # late or lost ranks report their own errors
        finally:
            self._raw = self.store = None
            atexit.unregister(self.close)

    def _record_end(self, raw: _core.Store) -> None:
        """Remove this process from its rank's key: a new process with this rank is no second one, and
        waits for the next rendezvous."""
        timeout = raw.timeout
        raw.set_timeout(_SETUP_S)
        try:
            raw.compare_set(_rank_key(self._prefix, self.rank), self._record, b"%d" % self._generation)
        finally:
            raw.set_timeout(timeout)

    def close_after_failure(self) -> None:
        """Close without waiting, after a failure. A thread may keep serving others for LINGER_S."""
        if self._raw is None or not self._is_server:
            self.close()
            return
        raw, self._raw, self.store = self._raw, None, None
        atexit.unregister(self.close)
        try:
            raw.add(f"{self._prefix}/count", 1)
        except _core.DistError:
            return
        thread = threading.Thread(target=self._linger_on_thread, args=(raw,), name="dldist-linger", daemon=True)
        atexit.register(thread.join, LINGER_S)
        thread.start()

    def _linger_on_thread(self, raw: _core.Store) -> None:
        try:
            self._linger(raw, LINGER_S)
        except _core.DistError:
            pass
        atexit.unregister(threading.current_thread().join)

    def find_cause(self, error: BaseException) -> BaseException:
        """Return the cause of a failed rendezvous: the loss of rank 0 if it served the store,
        otherwise `error`. Call this before close_after_failure(), which leaves the store."""
        may_be_lost = isinstance(error, _core.DistNetworkError) and not isinstance(error, (TimeoutError, _core.DistAuthError))
        # Rank 0 still runs, so the failure has another cause, such as a port of this rank.
        if not may_be_lost or self._server is None or self._raw is None or _is_served(self._raw):
            return error
        pid, host = _pid_and_host(self._server)
        lost = _core.DistPeerLostError(f"lost rank 0 ({host}, pid {pid}), which served the store: {error}")
        lost.code, lost.rank, lost.host, lost.pid = "PEER_LOST", 0, host, int(pid) if pid.isdecimal() else None
        return lost

    def _server_key(self) -> str:
        return f"{self._prefix}/{self._generation}"

    def _key(self, suffix: str) -> str:
        return f"{self._prefix}/{self._generation}/{suffix}"

    def _linger(self, raw: _core.Store, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        njoined = self.world_size - 1
        while raw.add(self._key("met"), 0) < njoined and time.monotonic() < deadline:
            try:
                raw.wait([self._key("all met")], min(_POLL_S, _remaining_s(deadline)))
                return
            except _core.DistStoreTimeoutError:
                # After a failure, do not wait for ranks that never joined.
                njoined = self._count_joined(raw, deadline)

    def _count_joined(self, raw: _core.Store, deadline: float) -> int:
        """Return the number of other ranks that have joined. Stop counting at the deadline."""
        count = 0
        for rank in range(1, self.world_size):
            if time.monotonic() > deadline:
                break
            count += _last_generation(raw.try_get(_rank_key(self._prefix, rank))) == self._generation
        return count


def meet(
    init_method: str | None = None,
    rank: int = -1,
    world_size: int = -1,
    *,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    name: str = "default_pg",
    store: _core.Store | None = None,
    endpoint: urls.Endpoint | None = None,
) -> Meeting:
    """Rendezvous in `store`, at `init_method`, at `endpoint`, or by the launcher's environment.

    If a store or URL is used repeatedly, all ranks must call meet() in the same order, or with
    different names. meet() only detects a missing rank 0; creating a group in the store detects
    others.
    """
    deadline = time.monotonic() + seconds_of(timeout)
    if endpoint is None:
        endpoint = _find_endpoint(init_method, rank, world_size, timeout, store)
    if not 0 <= endpoint.rank < endpoint.world_size:
        raise ValueError(f"argument 'rank' is out of range: got {endpoint.rank}, expected 0 to {endpoint.world_size - 1}")
    pause = 0.001
    raw = None
    while True:
        try:
            raw = endpoint.connect(_remaining_s(deadline), False)
            generation, is_opener, record = _join(raw, endpoint, name, deadline)
            if store is None:
                raw.set_timeout(timeout)
            return Meeting(raw, endpoint, name, generation, is_opener, record)
        except _core.DistNetworkTimeoutError as error:
            if not endpoint.is_client:
                raise
            raise _core.DistNetworkTimeoutError(
                f"rank {endpoint.rank} of {endpoint.world_size} waited for rank 0, which serves the store: {error}"
            ) from None
        except _core.DistAuthError:
            raise
        except _core.DistNetworkError:
            # The connection probably reached rank 0's previous server, which was closing. If it
            # still serves, the failure has another cause, such as a port of this rank.
            if not endpoint.is_client or time.monotonic() > deadline or (raw is not None and _is_served(raw)):
                raise
            raw = None
            time.sleep(pause)
            pause = min(2 * pause, 0.1)


def _find_endpoint(init_method: str | None, rank: int, world_size: int, timeout: Timeout, store: _core.Store | None) -> urls.Endpoint:
    if store is not None:
        return urls.store_endpoint(store, rank, world_size)
    rank, world_size = _as_rank("rank", rank), _as_rank("world_size", world_size)
    if init_method is None:
        return urls.auto_endpoint(rank, world_size)
    url = _as_text(init_method)
    builtin = {"tcp": urls.tcp_endpoint, "env": urls.env_endpoint, "file": urls.file_endpoint}.get(_scheme(url))
    if builtin is not None:
        endpoint = builtin(urls.with_ranks(url, rank, world_size))
        if endpoint.world_size > 1 and isinstance(endpoint, urls.ServerEndpoint) and endpoint.port == 0:
            raise urls.url_error("tcp", f"the other ranks cannot learn the port: got port 0 of {endpoint.host}, expected a port number")
        return endpoint
    return urls.store_endpoint(*next(rendezvous(url, rank, world_size, timeout=timeout)))


def _is_served(store: _core.Store) -> bool:
    """Return False if the connection to the server of a store has ended."""
    try:
        store.try_get("")
    except _core.DistNetworkError as error:
        return isinstance(error, TimeoutError)
    except _core.DistError:
        pass
    return True


def _key_prefix(name: str) -> str:
    return f"dldist/open/{name}"


def _rank_key(prefix: str, rank: int) -> str:
    """Return the key that holds the number of a rank's last rendezvous."""
    return f"{prefix}/rank/{rank}"


def _join(store: _core.Store, endpoint: urls.Endpoint, name: str, deadline: float) -> tuple[int, bool, bytes]:
    """Return the number of this rendezvous in this store, if this process has opened it, and the
    value of its rank's key.

    Rank 0 increments the number when it opens a rendezvous and when it leaves, so an odd number is
    an open rendezvous. No process joins the same rendezvous twice. A second process with the same
    rank joins it as well, if it is not complete: creating the group then fails on all ranks, with an
    error that names both processes.
    """
    prefix = _key_prefix(name)
    count = f"{prefix}/count"
    own = _core._process_endpoint(store) if endpoint.world_size > 1 else b""
    record = f"{os.getpid()} {os.uname().nodename}\n".encode() + own
    if endpoint.rank == 0:
        while True:
            generation = store.add(count, 0)
            key = f"{prefix}/{generation}"
            # odd if the previous rank 0 still runs, or was lost
            if generation % 2 == 1 and _is_started_twice(store, endpoint, key, store.try_get(key) or b"", own):
                return generation, False, b""
            step = 1 + generation % 2
            generation += step
            if store.add(count, step) == generation:
                break
            store.add(count, -step)  # another process was faster
        store.set(f"{prefix}/{generation}", record)
        return generation, True, b""
    key = _rank_key(prefix, endpoint.rank)
    before = store.try_get(key) or b"0"
    previous = _last_generation(before)
    while (generation := store.add(count, 0)) <= previous or generation % 2 == 0:
        if generation == previous and _is_started_twice(store, endpoint, f"{prefix}/{generation}", before, own):
            return generation, False, b""
        _await_rank_0(store, endpoint, name, generation + 1 + generation % 2, deadline)
    record = b"%d " % generation + record
    store.set(key, record)
    return generation, False, record


def _last_generation(rank_record: bytes | None) -> int:
    return int(rank_record.partition(b" ")[0]) if rank_record else 0


def _pid_and_host(record: bytes) -> tuple[str, str]:
    pid, _, host = record.partition(b"\n")[0].decode(errors="replace").partition(" ")
    return pid, host


def _is_started_twice(store: _core.Store, endpoint: urls.Endpoint, key: str, record: bytes, own: bytes) -> bool:
    """Return True if another running process is this rank of a rendezvous that is not complete.

    Raises:
        DistArgumentError: The rendezvous is complete, and its rank 0 still serves the store.
    """
    _, _, other = record.partition(b"\n")
    if not _core._is_other_running(other, own):
        return False
    try:
        store.wait([f"{key}/connected"], _SETUP_S)
    except _core.DistStoreTimeoutError:
        return True
    if endpoint.is_client:
        pid, host = _pid_and_host(record.partition(b" ")[2])
        raise _core.DistArgumentError(
            f"rank {endpoint.rank} of {endpoint.world_size} was started twice: got ({host}, pid {pid}), whose group exists, and "
            f"pid {os.getpid()}, expected one process for each rank"
        )
    return False


def _await_rank_0(store: _core.Store, endpoint: urls.Endpoint, name: str, generation: int, deadline: float) -> None:
    key = f"{_key_prefix(name)}/here/{endpoint.rank}"
    store.set(key, f"{os.uname().nodename}, pid {os.getpid()}")
    start = time.monotonic()
    try:
        store.wait([f"{_key_prefix(name)}/{generation}"], _remaining_s(deadline))
    except _core.DistStoreTimeoutError:
        present, absent = _list_joined(store, endpoint, name)
        raise _core.DistStoreTimeoutError(
            f"rank {endpoint.rank} waited {time.monotonic() - start:.1f} s for rank 0, which starts the rendezvous: {len(present)} of "
            f"{endpoint.world_size} have joined: {', '.join(present)}; missing: {', '.join(absent)} (timeout)"
        ) from None
    store.set(key, "")


def _list_joined(store: _core.Store, endpoint: urls.Endpoint, name: str) -> tuple[list[str], list[str]]:
    present, absent = [], ["0"]
    for rank in range(1, endpoint.world_size):
        description = store.try_get(f"{_key_prefix(name)}/here/{rank}")
        if description:
            present.append(f"{rank} ({description.decode(errors='replace')})")
        else:
            absent.append(str(rank))
    return present, absent


def _remaining_s(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)


class _Module(ModuleType):
    """The class of this module, which is callable: c10d's `rendezvous` is a function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Iterator[tuple[_core.Store, int, int]]:
        return rendezvous(*args, **kwargs)


sys.modules[__name__].__class__ = _Module
