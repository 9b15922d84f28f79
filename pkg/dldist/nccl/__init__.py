"""NCCL without process groups: communicators of one process, streams, and facts about the library.

>>> from dldist import nccl                                    # doctest: +SKIP
>>> with nccl.NcclComms([0, 1]) as comms:                      # doctest: +SKIP
...     comms.all_reduce([on_device_0, on_device_1])
"""

from __future__ import annotations

from dldist import _core
from dldist._core import NcclAbortHandle, NcclComms, NcclGroup, NcclRankComm, NcclUniqueId, NcclWindow, NcclWork
from dldist.nccl import library
from dldist.nccl.allocator import Allocator
from dldist.nccl.library import is_available
from dldist.nccl.library import version as get_version
from dldist.nccl.library import why_not as why_not_available

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "Allocator",
    "NcclAbortHandle",
    "NcclComms",
    "NcclGroup",
    "NcclRankComm",
    "NcclUniqueId",
    "NcclWindow",
    "NcclWork",
    "device_count",
    "get_version",
    "is_available",
    "library_path",
    "stream",
    "why_not_available",
]


def library_path() -> str:
    """The path of the NCCL library that is loaded."""
    return str(library.info()["path"])


def device_count() -> int:
    """How many CUDA devices there are."""
    count = library.info()["ndevices"]
    assert isinstance(count, int)
    return count


class stream:
    """Within the block, tensors that this thread passes count as used on this CUDA stream, whatever library they come from.

    `stream` is an address, an object with __cuda_stream__, or a stream of torch or CuPy. Blocks may be nested.

    >>> with nccl.stream(my_stream):                           # doctest: +SKIP
    ...     dldist.all_reduce(tensor)
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._before: list[Any] = []

    def __enter__(self) -> stream:
        self._before.append(_core._swap_stream(self._stream))
        return self

    def __exit__(self, *exception: object) -> None:
        _core._swap_stream(self._before.pop())
