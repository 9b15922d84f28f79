"""dldist's exceptions as those that programs of PyTorch catch."""

from __future__ import annotations

import torch.distributed as dist

import dldist


class DistBackendError(dldist.DistBackendError, dist.DistBackendError):
    """A collective has failed."""


class DistPeerLostError(dldist.DistPeerLostError, dist.DistBackendError):
    """Another rank is gone."""


class DistMismatchError(dldist.DistMismatchError, dist.DistBackendError):
    """The ranks have called different things."""


class DistAbortedError(dldist.DistAbortedError, dist.DistBackendError):
    """The group has been aborted."""


class DistTimeoutError(dldist.DistTimeoutError, dist.DistBackendError):
    """The time of an operation was up."""


class DistNetworkError(dldist.DistNetworkError, dist.DistNetworkError):
    """Something on the way to another rank."""


class DistStoreError(dldist.DistStoreError, dist.DistStoreError):
    """The store has failed."""


class DistStoreTimeoutError(dldist.DistStoreTimeoutError, dist.DistStoreError):
    """A key did not come in time."""


_AS_TORCHS: dict[type[BaseException], type[BaseException]] = {
    dldist.DistBackendError: DistBackendError,
    dldist.DistPeerLostError: DistPeerLostError,
    dldist.DistMismatchError: DistMismatchError,
    dldist.DistAbortedError: DistAbortedError,
    dldist.DistTimeoutError: DistTimeoutError,
    dldist.DistNetworkError: DistNetworkError,
    dldist.DistStoreError: DistStoreError,
    dldist.DistStoreTimeoutError: DistStoreTimeoutError,
}


def as_torchs(error: BaseException) -> BaseException:
    """The same exception, as an instance of torch's class too; those that torch has no class for as they are."""
    kind = _AS_TORCHS.get(type(error))
    if kind is not None:
        error.__class__ = kind  # keeps its traceback, its attributes and who else holds it
    return error
