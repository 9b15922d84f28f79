"""_ControlCollectives and _StoreCollectives: small collectives over a store, for launchers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from dldist import _core
from dldist._base import argument_names
from dldist._base.options import to_timedelta

_DEFAULT_TIMEOUT = timedelta(seconds=300)


class _ControlCollectives:
    """The base class of _StoreCollectives. As in c10d, only subclasses have a constructor."""

    def __init__(self) -> None:
        raise TypeError(f"{type(self).__name__}: No constructor defined!")

    def barrier(self, key: str, timeout: timedelta | float = _DEFAULT_TIMEOUT, block: bool = True) -> None:
        raise NotImplementedError

    def all_sum(self, key: str, data: int, timeout: timedelta | float = _DEFAULT_TIMEOUT) -> int:
        raise NotImplementedError

    def broadcast_send(self, key: str, data: str | bytes, timeout: timedelta | float = _DEFAULT_TIMEOUT) -> None:
        raise NotImplementedError

    def broadcast_recv(self, key: str, timeout: timedelta | float = _DEFAULT_TIMEOUT) -> bytes:
        raise NotImplementedError

    def gather_send(self, key: str, data: str | bytes, timeout: timedelta | float = _DEFAULT_TIMEOUT) -> None:
        raise NotImplementedError

    def gather_recv(self, key: str, data: str | bytes, timeout: timedelta | float = _DEFAULT_TIMEOUT) -> list[bytes]:
        raise NotImplementedError

    def scatter_send(
        self, key: str, data: Sequence[str | bytes], timeout: timedelta | float = _DEFAULT_TIMEOUT
    ) -> bytes:
        raise NotImplementedError

    def scatter_recv(self, key: str, timeout: timedelta | float = _DEFAULT_TIMEOUT) -> bytes:
        raise NotImplementedError

    def all_gather(self, key: str, data: str | bytes, timeout: timedelta | float = _DEFAULT_TIMEOUT) -> list[bytes]:
        raise NotImplementedError


class _StoreCollectives(_ControlCollectives):
    """Collectives of world_size ranks that share a store; values are bytes or text.

    All ranks must make the same calls with the same keys; use each key once. The call's timeout
    applies, not the store's, and its error names the missing ranks.
    """

    def __init__(self, store: _core.Store, rank: int, world_size: int) -> None:
        if not isinstance(store, _core.Store):
            raise TypeError(f"_StoreCollectives(): argument 'store' must be a Store, not {argument_names.type_name(store)}")
        rank, world_size = rank.__index__(), world_size.__index__()
        if not 0 <= rank < world_size:
            raise ValueError(f"_StoreCollectives(): argument 'rank' is out of range: got {rank}, expected 0 to {world_size - 1}")
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._used: set[str] = set()

    def barrier(self, key: str, timeout: timedelta | float = _DEFAULT_TIMEOUT, block: bool = True) -> None:
        """Wait until all ranks have called barrier(). With block=False, do not wait."""
        self._claim_key(key)
        self._enter_barrier("barrier", key, timeout, block)

    def all_sum(self, key: str, data: int, timeout: timedelta | float = _DEFAULT_TIMEOUT) -> int:
        """Return the sum of all ranks' numbers."""
        self._claim_key(key)
        self._store.add(f"{key}/sum", data)
        self._enter_barrier("barrier", key, timeout, True)
        return self._store.add(f"{key}/sum", 0)

    def broadcast_send(self, key: str, data: str | bytes, timeout: timedelta | float = _DEFAULT_TIMEOUT) -> None:
        """Send data to all receivers, without waiting."""
        self._claim_key(key)
        self._store.set(key, data)

    def broadcast_recv(self, key: str, timeout: timedelta | float = _DEFAULT_TIMEOUT) -> bytes:
        self._claim_key(key)
        return self._get(key, timeout)

    def gather_send(self, key: str, data: str | bytes, timeout: timedelta | float = _DEFAULT_TIMEOUT) -> None:
        """Send data to the receiver, without waiting."""
        self._claim_key(key)
        self._store.set(self._key_of(key, self._rank), data)

    def gather_recv(self, key: str, data: str | bytes, timeout: timedelta | float = _DEFAULT_TIMEOUT) -> list[bytes]:
        """Return the data of all ranks, including this one, by rank."""
        return self._collect("gather", key, data, timeout)

    def scatter_send(
        self, key: str, data: Sequence[str | bytes], timeout: timedelta | float = _DEFAULT_TIMEOUT
    ) -> bytes:
        """Send each rank its item, and return this rank's item."""
        self._claim_key(key)
        if len(data) != self._world_size:
            raise ValueError(f"scatter_send(): argument 'data' has another length: got {len(data)}, expected {self._world_size} (one for each rank)")
        self._store.multi_set([self._key_of(key, rank) for rank in range(self._world_size)], list(data))
        own_data = data[self._rank]
        return own_data.encode() if isinstance(own_data, str) else bytes(own_data)

    def scatter_recv(self, key: str, timeout: timedelta | float = _DEFAULT_TIMEOUT) -> bytes:
        self._claim_key(key)
        return self._get(self._key_of(key, self._rank), timeout)

    def all_gather(self, key: str, data: str | bytes, timeout: timedelta | float = _DEFAULT_TIMEOUT) -> list[bytes]:
        """Return the data of all ranks, by rank."""
        return self._collect("all_gather", key, data, timeout)

    def _claim_key(self, key: str) -> None:
        if key in self._used:
            raise RuntimeError(f"Key {key} has already been used.")
        self._used.add(key)

    def _key_of(self, key: str, rank: int) -> str:
        return f"{key}/{rank}"

    def _get(self, key: str, timeout: timedelta | float) -> bytes:
        # Wait separately, because get() of a store written in Python need not accept a timeout.
        self._store.wait([key], to_timedelta(timeout))
        return self._store.get(key)

    def _enter_barrier(self, call: str, key: str, timeout: timedelta | float, block: bool) -> None:
        self._store.set(self._key_of(key, self._rank), "joined")
        last_key = f"{key}/last_members"
        if self._store.add(f"{key}/num_members", 1) == self._world_size:
            self._store.set(last_key, "all are here")
        elif block:
            self._wait(call, key, [last_key], timeout)

    def _collect(self, call: str, key: str, data: str | bytes, timeout: timedelta | float) -> list[bytes]:
        self._claim_key(key)
        self._store.set(self._key_of(key, self._rank), data)
        keys = [self._key_of(key, rank) for rank in range(self._world_size)]
        self._wait(call, key, keys, timeout)
        return self._store.multi_get(keys)

    def _wait(self, call: str, key: str, keys: list[str], timeout: timedelta | float) -> None:
        try:
            self._store.wait(keys, to_timedelta(timeout))
        except RuntimeError as error:
            is_dist_error = isinstance(error, _core.DistError)
            if is_dist_error and not isinstance(error, _core.DistStoreTimeoutError):
                raise  # the store itself has failed, so do not look for missing ranks
            missing = [rank for rank in range(self._world_size) if not self._store.check([self._key_of(key, rank)])]
            if not missing:
                raise
            kind = type(error) if is_dist_error else RuntimeError
            raise kind(f"{call} failed -- missing ranks: {', '.join(map(str, missing))}, {error}") from error
