"""Futures for works on devices. Imported when first used."""

from __future__ import annotations

from dldist import _core
from dldist.base.future import Future
from dldist.c10d.options import WorkResult

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from typing import Any


def result_future_of(work: Any) -> Future:
    """A Future that tells how the work ends: its value is a WorkResult, even if the work fails."""
    future = Future()

    def tell() -> None:
        future.set_result(_result_of(work.exception()))

    work._watch(tell)
    return future


def _result_of(error: BaseException | None) -> Any:
    if error is None:
        return WorkResult.SUCCESS
    if isinstance(error, TimeoutError):
        return WorkResult.TIMEOUT
    return WorkResult.COMM_ERROR if isinstance(error, _core.DistBackendError) else WorkResult.UNKNOWN
