"""Entries of calls in PyTorch's profiler: "dldist:all_reduce", or "gloo:all_reduce" if dldist
replaces Gloo."""

from __future__ import annotations

from typing import Any

import _dldist_torch_names as names
from torch.autograd.profiler import record_function

from dldist._backends.low_level import CALLS
from dldist.torch._compiler import not_compiled
from dldist.torch._work import Work

_enabled: Any = names.find("torch.autograd._profiler_enabled")
_can_record = names.are_present(
    "torch.autograd._profiler_enabled", "torch.autograd.profiler.record_function._call_end_callbacks_on_future"
)


def title_of(method: str) -> str:
    """Return the entry title for all forms of a method: "_allgather_base" is an all_gather."""
    if method == "recv_anysource":
        return "recvAnySource"
    return CALLS[method].operation.collective if method in CALLS else method


class _NoEntry:
    """The context manager that is used if no profiler runs."""

    def __enter__(self) -> _NoEntry:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def end_with(self, _: Work) -> None:
        pass


@not_compiled
class _Entry(record_function):  # type: ignore[misc]
    """An entry that ends with a call's work, or with the `with` block if the block raises."""

    def end_with(self, work: Work) -> None:
        work.set_profiler_future(self._call_end_callbacks_on_future(work.get_future()))


_no_entry = _NoEntry()


@not_compiled
def entry(backend: str, title: str) -> Any:
    """Return a context manager in which to start a call. Pass the call's work to end_with()."""
    return _Entry(f"{backend}:{title}") if _can_record and _enabled() else _no_entry
