"""NCCL without process groups: communicators of one process, streams, and library information.

>>> from dldist import nccl                                    # doctest: +SKIP
>>> with nccl.NcclComms([0, 1]) as comms:                      # doctest: +SKIP
...     comms.all_reduce([on_device_0, on_device_1])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from dldist import _core
from dldist._core import NcclAbortHandle, NcclComms, NcclGroup, NcclRankComm, NcclUniqueId, NcclWindow, NcclWork
from dldist.nccl import library
from dldist.nccl.allocator import Allocator
from dldist.nccl.library import is_available
from dldist.nccl.library import version as get_version
from dldist.nccl.library import why_not as why_not_available

Block = TypeVar("Block", bound="_ThreadValue")

__all__ = [
    "Allocator",
    "NcclAbortHandle",
    "NcclComms",
    "NcclGroup",
    "NcclRankComm",
    "NcclUniqueId",
    "NcclWindow",
    "NcclWork",
    "coll_config",
    "device_count",
    "get_version",
    "is_available",
    "library_path",
    "stream",
    "why_not_available",
]


def library_path() -> str:
    """Return the path of the loaded NCCL library."""
    return str(library.info()["path"])


def device_count() -> int:
    """Return the number of CUDA devices."""
    count = library.info()["ndevices"]
    assert isinstance(count, int)
    return count


class _ThreadValue:
    """Sets a value of this thread within a `with` block. Blocks may be nested."""

    def __init__(self, swap: Callable[[Any], Any], value: Any) -> None:
        self._swap, self._value = swap, value
        self._previous_values: list[Any] = []

    def __enter__(self: Block) -> Block:
        self._previous_values.append(self._swap(self._value))
        return self

    def __exit__(self, *exception: object) -> None:
        self._swap(self._previous_values.pop())


class stream(_ThreadValue):
    """Use this CUDA stream for all tensors that this thread passes to dldist within the block.

    `stream` is an address, an object with __cuda_stream__, or a stream of torch or CuPy. The
    tensors may be of any library. Blocks may be nested.

    >>> with nccl.stream(my_stream):                           # doctest: +SKIP
    ...     dldist.all_reduce(tensor)
    """

    def __init__(self, stream: Any) -> None:
        super().__init__(_core._swap_stream, stream)


class coll_config(_ThreadValue):
    """Configure the collectives that this thread calls within the block (NCCL's ncclCollConfig_t).

    The fields are min_ctas, max_ctas, nvls_ctas, cga_cluster_size, alg_selection,
    force_alg_selection, cta_policy, user_profiler_tag and launch_completion_event (the address of a
    CUDA event, or an event of torch or CuPy). NCCL chooses fields that are not given. The fields
    must be the same on all ranks. An inner block replaces the fields of the outer block. Requires
    NCCL 2.31.2 or newer; does not apply to messages.

    >>> with nccl.coll_config(max_ctas=4):                     # doctest: +SKIP
    ...     dldist.all_reduce(tensor)
    """

    def __init__(self, **fields: Any) -> None:
        self._event = fields.get("launch_completion_event")  # kept alive: NCCL may record it later
        if self._event is not None:
            fields["launch_completion_event"] = _event_address(self._event)
        super().__init__(_core._swap_coll_config, _core._nccl_coll_config(fields))


def _event_address(event: Any) -> int:
    # An event of torch has cuda_event; an event of CuPy has ptr.
    address = getattr(event, "cuda_event", getattr(event, "ptr", event))
    if not isinstance(address, int):
        raise TypeError(f"coll_config(): argument 'launch_completion_event' must be an address, or an event of torch or CuPy, not {event!r}")
    if address == 0:
        raise ValueError("coll_config(): argument 'launch_completion_event' has no address: got an event never recorded; record it first")
    return address
