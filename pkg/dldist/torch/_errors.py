"""dldist's exceptions as the ones that PyTorch programs catch."""

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
"""For each exception of ours, the one that PyTorch programs catch."""

_AS_TORCHS = {
    ours: type(ours.__name__, (ours, theirs), {"__module__": __name__, "__doc__": ours.__doc__})
    for ours, theirs in _BASES.items()
}

globals().update({kind.__name__: kind for kind in _AS_TORCHS.values()})  # pickle looks for them here


def as_torchs(error: BaseException) -> BaseException:
    """The same exception, made an instance of torch's class too. It is unchanged if torch has no such class."""
    kind = _AS_TORCHS.get(type(error))
    if kind is not None:
        _add_words(error)
        error.__class__ = kind  # the exception keeps its identity, its traceback and its attributes
    return error


def _add_words(error: BaseException) -> None:
    """Programs look for what Gloo says when a rank is late or lost."""
    if isinstance(error, dldist.DistTimeoutError):
        waited_ms = round(1000 * (error.elapsed or 0))
        words = f"Timed out waiting {waited_ms}ms" if waited_ms > 0 else "Timed out waiting for the other ranks"
    elif isinstance(error, dldist.DistPeerLostError):
        words = "Connection closed by peer"
    else:
        return
    error.args = (f"{error} [in Gloo's words: {words}]", *error.args[1:])


class Converting:
    """A `with` block whose exceptions become what `convert` makes of them."""

    def __init__(self, convert: Callable[[BaseException], BaseException]) -> None:
        self._convert = convert

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and (converted := self._convert(error)) is not error:
            raise converted from error


torchs_errors = Converting(as_torchs)
