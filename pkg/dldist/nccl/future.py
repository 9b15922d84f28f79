"""Futures of device works. Imported when first used."""

from __future__ import annotations

from typing import Any

from dldist import _core
from dldist._base.future import Future
from dldist._base.options import WorkResult


def result_future_of(work: Any) -> Future:
    """Return a Future of a work's outcome, a WorkResult, which is set even if the work fails."""
    future = Future()

    def set_outcome() -> None:
        error = work.exception()
        if error is None:
            result = WorkResult.SUCCESS
        elif isinstance(error, TimeoutError):
            result = WorkResult.TIMEOUT
        else:
            result = WorkResult.COMM_ERROR if isinstance(error, _core.DistBackendError) else WorkResult.UNKNOWN
        future.set_result(result)

    work._watch(set_outcome)
    return future
