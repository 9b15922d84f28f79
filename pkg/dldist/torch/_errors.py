"""dldist's exceptions as the ones that PyTorch programs catch."""

from __future__ import annotations

import torch.distributed as dist

import dldist


class DistBackendError(dldist.DistBackendError, dist.DistBackendError):
    """A collective has failed."""


class DistPeerLostError(dldist.DistPeerLostError, dist.DistBackendError):
    """Another rank is gone."""


class DistMismatchError(dldist.DistMismatchError, dist.DistBackendError):
    """The ranks have made different calls."""


class DistAbortedError(dldist.DistAbortedError, dist.DistBackendError):
    """The group has been aborted."""


class DistTimeoutError(dldist.DistTimeoutError, dist.DistBackendError):
    """An operation has timed out."""


class DistNetworkError(dldist.DistNetworkError, dist.DistNetworkError):
    """Something has failed on the way to another rank."""


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
    """The same exception, made an instance of torch's class too. It is unchanged if torch has no such class."""
    kind = _AS_TORCHS.get(type(error))
    if kind is not None:
        error.__class__ = kind  # the exception keeps its identity, its traceback and its attributes
    return error
