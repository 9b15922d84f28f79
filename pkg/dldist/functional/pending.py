"""What the functional forms return for async_op=True."""

from __future__ import annotations

from dldist.base.future import wait_for

TYPE_CHECKING = False  # as in the modules that have to be cheap to import
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

    from dldist import _core
    from dldist.types import Timeout


class Pending:
    """A result that is on its way. Used as an array (numpy.asarray(pending), from_dlpack(pending)) it waits for itself."""

    __slots__ = ("_finish", "_result", "_works")

    def __init__(self, works: list[_core.Work], finish: Callable[[], Any]) -> None:
        self._works = works
        self._finish: Callable[[], Any] | None = finish
        self._result: Any = None

    def done(self) -> bool:
        """Whether wait() would return, or raise, at once."""
        return all(work.is_completed() for work in self._works)

    def wait(self, timeout: Timeout | None = None) -> Any:
        """The result; always the same object.

        Args:
            timeout: Seconds or a timedelta, for each of the operations. None is the operation's own; 0 looks once.

        Raises:
            DistTimeoutError: It is not there in time, and is still under way: wait() can be called again.
        """
        for work in self._works:
            wait_for(work, timeout)
        return self._take()

    def __await__(self) -> Generator[Any, None, Any]:
        for work in self._works:
            yield from work.__await__()
        return self._take()

    def _take(self) -> Any:
        finish = self._finish
        if finish is not None:
            self._result = finish()
            self._finish = None
        return self._result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy

        array = numpy.asarray(self.wait())
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"a conversion from {array.dtype} to {dtype} cannot be had without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, **how: Any) -> Any:
        return self.wait().__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self.wait().__dlpack_device__()
        return device

    def __repr__(self) -> str:
        return f"<dldist.functional.Pending: {'done' if self.done() else 'under way'}>"
