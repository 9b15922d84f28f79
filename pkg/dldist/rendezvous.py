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
_LOOK_S = 0.2

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
    """Return only the store, for a group of any size, unless WORLD_SIZE is set."""
    url = _as_text(backend_options.init_method)
    world_size = -1
    if url.partition("://")[0] == "env":
        rank = int(os.environ.get("RANK", rank))
        world_size = int(os.environ.get("WORLD_SIZE", world_size))
    return next(_find_handler(url, rank, world_size, {}, is_size_open=True))[0]


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
    url: str, rank: int, world_size: int, kwargs: dict[str, Any], is_size_open: bool = False
) -> Iterator[tuple[_core.Store, int, int]]:
    scheme = _scheme(url)
    url = urls.with_ranks(url, rank, world_size, is_size_open)
    if scheme not in _handlers:
        raise RuntimeError(f"No rendezvous handler for {scheme}://")
    return _handlers[scheme](url, **kwargs)


def _scheme(url: str) -> str:
    head, mark, _ = url.partition("://")
    return head.lower() if mark else ""


# ---- handlers of URL schemes


def _file_handler(url: str, **_: Any) -> Iterator[tuple[_core.Store, int, int]]:
    place = urls.file_place(url)
    yield place.connect(300.0, True), place.rank, place.world_size
    raise RuntimeError("Unable to perform rerendezvous using file:// method")


def _handler(scheme: str, place_of: Callable[..., urls.Place]) -> Callable[..., Iterator[tuple[_core.Store, int, int]]]:
    def handler(
        url: str,
        timeout: Timeout = DEFAULT_TIMEOUT_S,
        *,
        wait_for_workers: bool = True,
        listen_fd: int | None = None,
        **_: Any,
    ) -> Iterator[tuple[_core.Store, int, int]]:
        place = place_of(url, listen_fd)
        yield place.connect(timeout, wait_for_workers), place.rank, place.world_size
        raise RuntimeError(f"Unable to perform re-rendezvous using {scheme}:// method")

    return handler


register_rendezvous_handler("tcp", _handler("tcp", urls.tcp_place))
register_rendezvous_handler("env", _handler("env", urls.env_place))
register_rendezvous_handler("file", _file_handler)


# ---- no URL


def auto(
    rank: int = -1, world_size: int = -1, timeout: Timeout = DEFAULT_TIMEOUT_S, wait_for_workers: bool = True
) -> Iterator[tuple[_core.Store, int, int]]:
    """Yield the store of the launcher's rendezvous. Without a launcher, this process is alone."""
    place = urls.auto_place(_as_rank("rank", rank), _as_rank("world_size", world_size))
    yield place.connect(timeout, wait_for_workers), place.rank, place.world_size
    raise RuntimeError("Unable to perform re-rendezvous without a URL")


# ---- dldist's rendezvous


class Meeting:
    """The result of meet(): one rendezvous of the ranks of a world, with its part of a store.

    Use the store in a `with` block to connect the ranks, then call met(), and close() at the end.
    An exception in the block ends the rendezvous. If rank 0 serves the store, its close() waits
    until each rank that joined has called met() or close(), or failed.
    """

    __slots__ = ("_base", "_generation", "_is_host", "_must_tell", "_raw", "_server", "rank", "store", "world_size")

    def __init__(self, raw: _core.Store, place: urls.Place, name: str, generation: int) -> None:
        self._raw: _core.Store | None = raw
        self._base = _base_of(name)
        self._generation = generation
        self._is_host = place.is_host and place.world_size > 1
        self._must_tell = place.is_guest
        # If rank 0 serves the store, "<pid> <host>" of rank 0, which sets it at the start.
        self._server = raw.get(self._key_of_server()) if place.is_guest else None
        self.store: _core.Store | None = _core.PrefixStore(f"{name}/{generation}", raw)
        self.rank = place.rank
        self.world_size = place.world_size
        if self._is_host:
            # At exit, for programs that never call close(): other ranks may need the store.
            atexit.register(self.close)

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        """If the block raised, end the rendezvous, and raise the underlying cause."""
        if error is None:
            return
        failure = self.explain(error)
        self.give_up()
        if failure is not error:
            raise failure from error

    def met(self) -> None:
        """Record that this rank has connected to the others and no longer needs the store."""
        if not self._must_tell or self._raw is None:
            return
        self._must_tell = False
        try:
            if self._raw.add(self._key("met"), 1) == self.world_size - 1:
                self._raw.set(self._key("all met"), "")
        except _core.DistNetworkError:
            pass  # rank 0 has left and waits for no rank

    def close(self, linger: float = LINGER_S) -> None:
        """Leave the store. Its server waits up to `linger` seconds for ranks that need it."""
        if self._raw is None:
            return
        try:
            self.met()
            if self._is_host:
                self._linger(self._raw, linger)
            if self.rank == 0:
                self._raw.add(f"{self._base}/count", 1)
        except _core.DistError:
            pass  # others are late or lost, and report it themselves
        finally:
            self._raw = self.store = None
            atexit.unregister(self.close)

    def give_up(self) -> None:
        """Close without waiting, after a failure. A thread may serve others for LINGER_S."""
        if self._raw is None or not self._is_host:
            self.close()
            return
        raw, self._raw, self.store = self._raw, None, None
        atexit.unregister(self.close)
        try:
            raw.add(f"{self._base}/count", 1)
        except _core.DistError:
            return
        keeper = threading.Thread(target=self._keep, args=(raw,), name="dldist-linger", daemon=True)
        atexit.register(keeper.join, LINGER_S)
        keeper.start()

    def _keep(self, raw: _core.Store) -> None:
        try:
            self._linger(raw, LINGER_S)
        except _core.DistError:
            pass
        atexit.unregister(threading.current_thread().join)

    def explain(self, error: BaseException) -> BaseException:
        """Return the cause of a failed rendezvous: the loss of rank 0 if it served the store,
        otherwise `error`. Call this before give_up(), which leaves the store."""
        may_be_gone = isinstance(error, _core.DistNetworkError) and not isinstance(error, (TimeoutError, _core.DistAuthError))
        # Rank 0 still runs, so the failure has another cause, such as a port of this rank.
        if not may_be_gone or self._server is None or not self._is_server_gone():
            return error
        pid, _, host = self._server.decode(errors="replace").partition(" ")
        lost = _core.DistPeerLostError(f"lost rank 0 ({host}, pid {pid}), which served the store: {error}")
        lost.code, lost.rank, lost.host, lost.pid = "PEER_LOST", 0, host, int(pid) if pid.isdecimal() else None
        return lost

    def _is_server_gone(self) -> bool:
        try:
            if self._raw is not None:
                self._raw.try_get(self._key_of_server())
        except _core.DistNetworkError as error:
            return not isinstance(error, TimeoutError)
        except _core.DistError:
            pass
        return False

    def _key_of_server(self) -> str:
        return f"{self._base}/{self._generation}"

    def _key(self, what: str) -> str:
        return f"{self._base}/{self._generation}/{what}"

    def _linger(self, raw: _core.Store, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        ncome = self.world_size - 1
        while raw.add(self._key("met"), 0) < ncome and time.monotonic() < deadline:
            try:
                raw.wait([self._key("all met")], min(_LOOK_S, _left(deadline)))
                return
            except _core.DistStoreTimeoutError:
                # After a failure, do not wait for ranks that never joined.
                ncome = self._count_come(raw, deadline)

    def _count_come(self, raw: _core.Store, deadline: float) -> int:
        """Return the number of other ranks that have joined. Stop counting at the deadline."""
        count = 0
        for rank in range(1, self.world_size):
            if time.monotonic() > deadline:
                break
            count += raw.try_get(_rank_key(self._base, rank)) == b"%d" % self._generation
        return count


def meet(
    init_method: str | None = None,
    rank: int = -1,
    world_size: int = -1,
    *,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    name: str = "default_pg",
    store: _core.Store | None = None,
    place: urls.Place | None = None,
) -> Meeting:
    """Rendezvous in `store`, at `init_method`, at `place`, or by the launcher's environment.

    If a store or URL is used repeatedly, all ranks must call meet() in the same order, or with
    different names. meet() only detects a missing rank 0; creating a group in the store detects
    others.
    """
    deadline = time.monotonic() + seconds_of(timeout)
    if place is None:
        place = _find_place(init_method, rank, world_size, timeout, store)
    if not 0 <= place.rank < place.world_size:
        raise ValueError(f"rank {place.rank} is not in 0 to {place.world_size - 1} (world_size is {place.world_size})")
    pause = 0.001
    while True:
        try:
            raw = place.connect(_left(deadline), False)
            generation = _enter(raw, place, name, deadline)
            if store is None:
                raw.set_timeout(timeout)
            return Meeting(raw, place, name, generation)
        except _core.DistNetworkTimeoutError as error:
            if not place.is_guest:
                raise
            raise _core.DistNetworkTimeoutError(
                f"rank {place.rank} of {place.world_size} waited for rank 0, which serves the store: {error}"
            ) from None
        except _core.DistAuthError:
            raise
        except _core.DistNetworkError:
            # The connection probably reached rank 0's previous server, which was closing.
            if not place.is_guest or time.monotonic() > deadline:
                raise
            time.sleep(pause)
            pause = min(2 * pause, 0.1)


def _find_place(init_method: str | None, rank: int, world_size: int, timeout: Timeout, store: _core.Store | None) -> urls.Place:
    if store is not None:
        return urls.in_store(store, rank, world_size)
    rank, world_size = _as_rank("rank", rank), _as_rank("world_size", world_size)
    if init_method is None:
        return urls.auto_place(rank, world_size)
    url = _as_text(init_method)
    builtin = {"tcp": urls.tcp_place, "env": urls.env_place, "file": urls.file_place}.get(_scheme(url))
    if builtin is not None:
        place = builtin(urls.with_ranks(url, rank, world_size))
        if place.world_size > 1 and isinstance(place, urls.AtServer) and place.port == 0:
            raise urls.fail("tcp", f"port 0 of {place.host}: the other ranks cannot learn the port: expected a port number")
        return place
    return urls.in_store(*next(rendezvous(url, rank, world_size, timeout=timeout)))


def _base_of(name: str) -> str:
    return f"dldist/open/{name}"


def _rank_key(base: str, rank: int) -> str:
    """Return the key that holds the number of a rank's last rendezvous."""
    return f"{base}/rank/{rank}"


def _enter(store: _core.Store, place: urls.Place, name: str, deadline: float) -> int:
    """Return the number of this rendezvous in this store. Rank 0 increments the number when it
    starts a rendezvous and when it leaves, so odd numbers are open. No rank joins the same one
    twice."""
    base = _base_of(name)
    if place.rank == 0:
        generation = store.add(f"{base}/count", 1)
        if generation % 2 == 0:  # the number is odd if the previous rank 0 never left
            generation = store.add(f"{base}/count", 1)
        store.set(f"{base}/{generation}", f"{os.getpid()} {os.uname().nodename}")
        return generation
    mine = _rank_key(base, place.rank)
    last = store.add(mine, 0)
    while (generation := store.add(f"{base}/count", 0)) <= last or generation % 2 == 0:
        _await_rank_0(store, place, name, generation + 1 + generation % 2, deadline)
    store.set(mine, str(generation))
    return generation


def _await_rank_0(store: _core.Store, place: urls.Place, name: str, generation: int, deadline: float) -> None:
    mine = f"{_base_of(name)}/here/{place.rank}"
    store.set(mine, f"{os.uname().nodename}, pid {os.getpid()}")
    began = time.monotonic()
    try:
        store.wait([f"{_base_of(name)}/{generation}"], _left(deadline))
    except _core.DistStoreTimeoutError:
        present, absent = _look_around(store, place, name)
        raise _core.DistStoreTimeoutError(
            f"rank {place.rank} waited {time.monotonic() - began:.1f} s for rank 0, which begins: {len(present)} of "
            f"{place.world_size} have joined: {', '.join(present)}; missing: {', '.join(absent)} (timeout)"
        ) from None
    store.set(mine, "")


def _look_around(store: _core.Store, place: urls.Place, name: str) -> tuple[list[str], list[str]]:
    present, absent = [], ["0"]
    for rank in range(1, place.world_size):
        who = store.try_get(f"{_base_of(name)}/here/{rank}")
        if who:
            present.append(f"{rank} ({who.decode(errors='replace')})")
        else:
            absent.append(str(rank))
    return present, absent


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)


class _Module(ModuleType):
    """The class of this module, which is callable: c10d's `rendezvous` is a function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Iterator[tuple[_core.Store, int, int]]:
        return rendezvous(*args, **kwargs)


sys.modules[__name__].__class__ = _Module
