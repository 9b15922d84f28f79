"""c10d's windows over NCCL's one-sided messages. See docs/nccl.md."""

from __future__ import annotations

from typing import Any

from dldist import _core
from dldist._base.options import WindowAccessType
from dldist._base.works import done_work
from dldist._windows.window import Window, WindowAttr, _check_rank, _timeout


class NcclGroupWindow(Window):
    """Memory of each rank of an NCCL group that other ranks can write to.

    All ranks must register tensors of one size and dtype. These tensors, and those passed to put(),
    must be in memory from ncclMemAlloc. A put also signals: call wait_signal() once for each put.
    """

    _memory: _core.NcclWindow | None  # type: ignore[assignment]
    _group: _core.NcclGroup  # type: ignore[assignment]

    def __init__(self, group: _core.NcclGroup, tensor: Any = None) -> None:
        self._signalled: set[int] = set()  # ranks to which this rank has put since the last wait
        super().__init__(group, tensor)

    def tensor_register(self, tensor: Any, owning: bool = True) -> None:
        """Register this rank's memory, from ncclMemAlloc: NcclGroup.empty(), allocate_tensor(), or
        a pool over mem_allocator. All ranks must call this, with tensors of one size and dtype."""
        if self._memory is not None:
            raise RuntimeError("tensor_register(): the window already has a tensor; call tensor_deregister() first")
        self._memory = self._group.new_window(tensor)

    def tensor_deregister(self) -> None:
        """Run a barrier, then release the memory. All ranks must call this, after consuming all signals."""
        memory, self._memory = self._registered("tensor_deregister"), None
        memory.close()

    def put(self, tensor: Any, dst_rank: int, target_offset_nelems: int = 0, async_op: bool = False, opts: Any = None) -> Any:
        """Write a tensor, from memory registered with the group, to a rank, and signal the rank.
        """
        memory = self._registered("put")
        work = memory.put(tensor, dst_rank, target_offset_nelems, timeout=_timeout(opts), async_op=async_op)
        self._signalled.add(dst_rank)
        return done_work([]) if work is None else work

    def map_remote_tensor(self, rank: int) -> Any:
        """Raise NotImplementedError, because the memory of other devices can only be written."""
        raise NotImplementedError("map_remote_tensor(): unsupported by windows over NCCL; use put()")

    def signal(self, peer_rank: int, async_op: bool = False, opts: Any = None) -> Any:
        """Signal a rank. RuntimeError if a put to the rank was made since the last wait."""
        memory = self._registered("signal")
        if peer_rank in self._signalled:
            raise RuntimeError(
                f"signal(): ambiguous after a put to rank {peer_rank}, as NCCL's puts already signal; omit the signal, or use NcclGroup.new_window"
            )
        work = memory.signal(peer_rank, timeout=_timeout(opts), async_op=async_op)
        return done_work([]) if work is None else work

    def wait_signal(self, peer_rank: int, async_op: bool = False, opts: Any = None) -> Any:
        """Make the current stream wait for a rank's next signal or put, and consume the signal."""
        work = self._registered("wait_signal").wait_signal(peer_rank, timeout=_timeout(opts), async_op=async_op)
        self._signalled.clear()
        return done_work([]) if work is None else work

    def get_attr(self, peer_rank: int) -> WindowAttr:
        """Return SEPARATE, because other ranks' memory is accessed by messages."""
        self._registered("get_attr")
        _check_rank("get_attr", peer_rank, self._group.size)
        return WindowAttr(WindowAccessType.SEPARATE)  # type: ignore[arg-type]

    def _registered(self, call: str) -> _core.NcclWindow:  # type: ignore[override]
        return super()._registered(call)  # type: ignore[return-value]
