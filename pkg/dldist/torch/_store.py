"""Wraps PyTorch's stores as dldist stores."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import _dldist_torch_names as names
import torch.distributed as dist

import dldist
from dldist.torch._errors import ErrorConverter

_QueueEmptyError: Any = names.find("torch.distributed.QueueEmptyError")


def _to_dldist_error(error: BaseException) -> BaseException:
    """Convert an error of a torch store to dldist's class of error."""
    if isinstance(error, dldist.DistError) or not isinstance(error, RuntimeError):
        return error
    text = str(error).partition("\nException raised from")[0]
    if any(words in text.lower() for words in ("timeout", "timed out")):
        return dldist.DistStoreTimeoutError(text)
    if _QueueEmptyError is not None and isinstance(error, _QueueEmptyError):
        return dldist.DistQueueEmptyError(text)
    if isinstance(error, dist.DistNetworkError):
        return dldist.DistNetworkError(text)
    return dldist.DistStoreError(text)


_can_clone = names.are_present("torch.distributed.Store.clone")
_convert_errors = ErrorConverter(_to_dldist_error)


class TorchStore(dldist.Store):
    """A dldist store over any store of torch.distributed.

    A torch store runs one operation at a time, which may be a long wait. So all threads except the
    creator of this object (such as dldist's monitor) share a clone, if the store can be cloned.
    """

    def __init__(self, store: Any) -> None:
        super().__init__()
        self._store = store
        self._thread = threading.get_ident()
        self._shared_clone: Any = None
        self._lock = threading.Lock()

    def _store_of_thread(self) -> Any:
        if threading.get_ident() == self._thread:
            return self._store
        with self._lock:
            if self._shared_clone is None:
                self._shared_clone = _clone(self._store)
            return self._shared_clone

    def get(self, key: Any, timeout: Any = None) -> bytes:
        with _convert_errors:
            store = self._store_of_thread()
            if timeout is not None:
                store.wait([key], timeout)
            return bytes(store.get(key))

    def wait(self, keys: Any, timeout: Any = None) -> None:
        with _convert_errors:
            self._store_of_thread().wait(list(keys), *([] if timeout is None else [timeout]))

    def queue_pop(self, key: Any, block: bool = True, timeout: Any = None) -> bytes:
        with _convert_errors:
            return bytes(self._store_of_thread().queue_pop(key, block))

    def has_extended_api(self) -> bool:
        return bool(self._store.has_extended_api())

    @property
    def timeout(self) -> timedelta:
        return self._store.timeout  # type: ignore[no-any-return]

    def set_timeout(self, timeout: Any) -> None:
        self._store.set_timeout(timeout)

    def clone(self) -> TorchStore:
        """Return a store with the same data; it has its own connection if torch's clone has one."""
        return TorchStore(_clone(self._store))


_RESULTS: dict[str, Callable[[Any], Any] | None] = {
    "add": int,
    "append": None,
    "check": bool,
    "compare_set": bytes,
    "delete_key": bool,
    "list_keys": list,
    "multi_get": list,
    "multi_set": None,
    "num_keys": int,
    "queue_len": int,
    "queue_push": None,
    "set": None,
}
"""The methods that only forward their arguments, and the type of each result."""


def _forwarding_method(name: str, result: Callable[[Any], Any] | None) -> Any:
    def call(self: TorchStore, *args: Any) -> Any:
        with _convert_errors:
            value = getattr(self._store_of_thread(), name)(*(list(argument) if isinstance(argument, tuple) else argument for argument in args))
            return None if result is None else result(value)

    call.__name__, call.__qualname__ = name, f"TorchStore.{name}"
    call.__doc__ = getattr(dldist.Store, name).__doc__
    return call


for _name, _result in _RESULTS.items():
    setattr(TorchStore, _name, _forwarding_method(_name, _result))


def _clone(store: Any) -> Any:
    """Clone a store. Return the store itself if it cannot be cloned, like most stores in Python."""
    try:
        return store.clone() if _can_clone else store
    except (AttributeError, RuntimeError):
        return store
