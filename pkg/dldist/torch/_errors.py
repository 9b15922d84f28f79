"""Converts dldist's exceptions to the classes that PyTorch programs catch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

import dldist

_BASES: dict[type[BaseException], type[BaseException]] = {
    dldist.DistBackendError: dist.DistBackendError,
    dldist.DistPeerLostError: dist.DistBackendError,
    dldist.DistMismatchError: dist.DistBackendError,
    dldist.DistAbortedError: dist.DistBackendError,
    dldist.DistTimeoutError: dist.DistBackendError,
    dldist.DistNetworkError: dist.DistNetworkError,
    dldist.DistStoreError: dist.DistStoreError,
    dldist.DistStoreTimeoutError: dist.DistStoreError,
}
"""For each exception of dldist, the class that PyTorch programs catch."""

_AS_TORCHS = {
    ours: type(ours.__name__, (ours, theirs), {"__module__": __name__, "__doc__": ours.__doc__})
    for ours, theirs in _BASES.items()
}

globals().update({kind.__name__: kind for kind in _AS_TORCHS.values()})  # pickle needs these names


def as_torchs(error: BaseException) -> BaseException:
    """Make an exception also an instance of torch's class, if torch has such a class."""
    kind = _AS_TORCHS.get(type(error))
    if kind is not None:
        _add_words(error)
        error.__class__ = kind  # the object keeps its identity, traceback and attributes
    return error


def _add_words(error: BaseException) -> None:
    """Add Gloo's wording for late and lost ranks, because programs search for this wording."""
    if isinstance(error, dldist.DistTimeoutError):
        waited_ms = round(1000 * (error.elapsed or 0))
        words = f"Timed out waiting {waited_ms}ms" if waited_ms > 0 else "Timed out waiting for the other ranks"
    elif isinstance(error, dldist.DistPeerLostError):
        words = "Connection closed by peer"
    else:
        return
    error.args = (f"{error} [in Gloo's words: {words}]", *error.args[1:])


class Converting:
    """A context manager that replaces an exception by the result of `convert`."""

    def __init__(self, convert: Callable[[BaseException], BaseException]) -> None:
        self._convert = convert

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and (converted := self._convert(error)) is not error:
            raise converted from error


torchs_errors = Converting(as_torchs)
