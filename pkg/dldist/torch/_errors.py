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

_TORCH_CLASSES = {
    own_class: type(own_class.__name__, (own_class, torch_class), {"__module__": __name__, "__doc__": own_class.__doc__})
    for own_class, torch_class in _BASES.items()
}

globals().update({kind.__name__: kind for kind in _TORCH_CLASSES.values()})  # pickle needs these names


def to_torch_error(error: BaseException) -> BaseException:
    """Make an exception also an instance of torch's class, if torch has such a class."""
    kind = _TORCH_CLASSES.get(type(error))
    if kind is not None:
        _add_gloo_wording(error)
        error.__class__ = kind  # the object keeps its identity, traceback and attributes
    return error


def _add_gloo_wording(error: BaseException) -> None:
    """Add Gloo's wording for late and lost ranks, because programs search for this wording."""
    if isinstance(error, dldist.DistTimeoutError):
        waited_ms = round(1000 * (error.elapsed or 0))
        wording = f"Timed out waiting {waited_ms}ms" if waited_ms > 0 else "Timed out waiting for the other ranks"
    elif isinstance(error, dldist.DistPeerLostError):
        wording = "Connection closed by peer"
    else:
        return
    error.args = (f"{error} [in Gloo's words: {wording}]", *error.args[1:])


class ErrorConverter:
    """A context manager that replaces an exception by the result of `convert`."""

    def __init__(self, convert: Callable[[BaseException], BaseException]) -> None:
        self._convert = convert

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and (converted := self._convert(error)) is not error:
            raise converted from error


convert_to_torch_errors = ErrorConverter(to_torch_error)
