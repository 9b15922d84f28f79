"""The works of asynchronous calls: each is a torch.distributed.Work over a dldist.Work."""

from __future__ import annotations

import contextlib
import functools
from datetime import timedelta
from typing import Any

import _dldist_torch_names as names
import torch
from torch._C._distributed_c10d import Work as _Base

import dldist
from dldist._base import callback_thread
from dldist._base.operations import flat
from dldist._base.options import OpType
from dldist.torch._compiler import not_compiled
from dldist.torch._errors import to_torch_error

_Future: Any = names.find("torch._C.Future")
_fork: Any = names.find("torch._C.fork") or torch.jit.fork
_collect_all: Any = names.find("torch._C._collect_all") or torch.futures.collect_all

_SUCCESS, _TIMEOUT, _COMM_ERROR = 0, 1, 2  # values of torch's WorkResult


@not_compiled
class Work(_Base):  # type: ignore[misc, valid-type]
    """The work of a group's call. If `work` is None, the call has already ended."""

    __slots__ = ("_future", "_is_profiled", "_op_type", "_outputs", "_work")

    def __init__(self, work: dldist.Work | None, outputs: Any, op_type: int) -> None:
        super().__init__()
        self._work = work
        self._outputs = outputs
        self._op_type = op_type
        self._future: Any = None
        self._is_profiled = False

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the call has ended; raise its error. None or 0 is the call's own timeout."""
        if self._work is not None:
            try:
                self._work.wait(timeout or None)
            except dldist.DistError as error:
                raise to_torch_error(error) from None
            finally:
                self._wait_for_profiler_entry()
        return True

    def set_profiler_future(self, future: Any) -> None:
        """Set this work's future to one that completes when the call's profiler entry has ended.

        An entry must end before profiling stops, which frees the entry's memory. Programs may stop
        profiling right after waiting for their last call, so a call is reported as ended only after
        its entry.
        """
        self._future = future
        self._is_profiled = True

    def _wait_for_profiler_entry(self) -> None:
        # The completion thread completes futures itself, so it must not wait here.
        if self._is_profiled and self._has_ended() and not callback_thread.is_completion_thread():
            with contextlib.suppress(RuntimeError):  # wait() raises the call's own error
                self._future.wait()

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        """Wait for the call: the CPU has no stream that could order later work after it."""
        self.wait()

    def is_completed(self) -> bool:
        return self._has_ended() and (not self._is_profiled or self._future.done())

    def _has_ended(self) -> bool:
        return self._work is None or self._work.is_completed()

    def is_success(self) -> bool:
        return self._work is None or self._work.is_success()

    def exception(self) -> BaseException | None:
        error = None if self._work is None else self._work.exception()
        return None if error is None else to_torch_error(error)

    def result(self) -> list[Any]:
        """Wait for the call, and return the tensors that it has written, in one list."""
        self.wait()
        return flat(self._outputs)

    def source_rank(self) -> int:
        if self._work is None:
            raise RuntimeError("sourceRank() may only be called on work objects that correspond to a recv or recv-from-any call.")
        return self._work.source_rank()

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> Any:
        """Return a future for result(); with several inputs, it has a list for each input."""
        if self._future is None:
            self._future = _future_of(self._work, self._value)
        return self._future

    def _value(self) -> list[Any]:
        outputs = self._outputs
        has_several_inputs = isinstance(outputs, (list, tuple)) and len(outputs) > 1 and isinstance(outputs[0], (list, tuple))
        return [list(each) for each in outputs] if has_several_inputs else flat(outputs)

    def get_future_result(self) -> Any:
        """Return a future for the outcome, a number of WorkResult. The future never fails."""
        return self.get_future().then(lambda future: self._work_result())

    def _work_result(self) -> int:
        error = self.exception()
        if error is None:
            return _SUCCESS
        return _TIMEOUT if isinstance(error, TimeoutError) else _COMM_ERROR

    def _get_op_type(self) -> int:
        return self._op_type

    def _get_duration(self) -> float:
        return 0.0 if self._work is None else self._work._get_duration()

    def _get_sequence_number(self) -> int:
        return 0 if self._work is None else self._work._get_sequence_number()


@not_compiled
class TypedWork(Work):
    """The work of a call whose future must hold C++ tensors, for DDP's hook FP16_COMPRESS."""

    __slots__ = ()

    def get_future(self) -> Any:
        if self._future is None:
            outputs = flat(self._outputs)
            if self._has_ended() and self.is_success():
                self._future = _fork(lambda: outputs)
            else:
                self._future = _cpp_functions().after(_future_of(self._work, bool), outputs)
        return self._future


@not_compiled
class CoalescedWork(Work):
    """The work of several coalesced calls."""

    __slots__ = ("_works",)

    def __init__(self, works: list[Work]) -> None:
        super().__init__(None, flat([work._outputs for work in works]), int(OpType.COALESCED))
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def get_future(self) -> Any:
        all_works = _collect_all([work.get_future() for work in self._works])
        return all_works.then(lambda done: [tensor for future in done.value() for tensor in future.value()])


def _future_of(work: dldist.Work | None, result: Any) -> Any:
    future: Any = torch.futures.Future() if _Future is None else _Future([])
    if work is not None and callback_thread.is_completion_thread():
        # Wait here: a callback that waits for this future would block the completing thread.
        with contextlib.suppress(dldist.DistError):
            work.wait()
    if work is None or (work.is_completed() and work.is_success()):
        future.set_result(result())
        return future
    if work.is_completed():
        future.set_result(work.exception())
    else:
        work._watch(lambda: future.set_result(work.exception()))
    # Python futures cannot store errors, but an error of a callback reaches C++ waiters.
    return future.then(lambda done: _result_or_raise(done.value(), result))


def _result_or_raise(error: BaseException | None, result: Any) -> Any:
    if error is not None:
        raise to_torch_error(error)
    return result()


@functools.cache
def _cpp_functions() -> Any:
    """Return TorchScript functions that make futures with C++ values instead of Python objects."""
    return torch.jit.CompilationUnit(
        """
        def wait_for(done: Future[bool], tensors: List[Tensor]) -> List[Tensor]:
            torch.jit.wait(done)
            return tensors

        def after(done: Future[bool], tensors: List[Tensor]) -> Future[List[Tensor]]:
            return torch.jit.fork(wait_for, done, tensors)
        """
    )
