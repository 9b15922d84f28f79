"""c10d's windows over NCCL's one-sided messages. See docs/nccl.md."""

from __future__ import annotations

from typing import Any

from dldist import _core
from dldist._base.options import WindowAccessType
from dldist._base.works import done_work
from dldist._windows.window import Window, WindowAttr, _check_rank, _timeout


class NcclGroupWindow(Window):
    """Memory of each rank of an NCCL group that other ranks can write to.

    All ranks register tensors of one size and dtype, in memory of ncclMemAlloc, and put tensors in
    such memory. NCCL's puts always signal: wait_signal() takes one signal for each put.
    """

    _memory: _core.NcclWindow | None  # type: ignore[assignment]
    _group: _core.NcclGroup  # type: ignore[assignment]

    def __init__(self, group: _core.NcclGroup, tensor: Any = None) -> None:
        self._signalled: set[int] = set()  # by puts since the last wait
        super().__init__(group, tensor)

    def tensor_register(self, tensor: Any, owning: bool = True) -> None:
        """Register this rank's memory, from ncclMemAlloc: NcclGroup.empty(), allocate_tensor(), or
        a pool over mem_allocator. All ranks call this, with tensors of one size and dtype."""
        if self._memory is not None:
            raise RuntimeError("tensor_register(): a tensor is registered already; call tensor_deregister() first")
        self._memory = self._group.new_window(tensor)

    def tensor_deregister(self) -> None:
        """Release the memory after a barrier. All ranks call this after taking all signals."""
        memory, self._memory = self._registered("tensor_deregister"), None
        memory.close()

    def put(self, tensor: Any, dst_rank: int, target_offset_nelems: int = 0, async_op: bool = False, opts: Any = None) -> Any:
        """Write a tensor, from memory registered with the group, to a rank, and signal the rank.

        Returns:
            A Work.
        """
        memory = self._registered("put")
        work = memory.put(tensor, dst_rank, target_offset_nelems, timeout=_timeout(opts), async_op=async_op)
        self._signalled.add(dst_rank)
        return done_work([]) if work is None else work

    def map_remote_tensor(self, rank: int) -> Any:
        """Raise NotImplementedError: other devices' memory can only be written."""
        raise NotImplementedError("map_remote_tensor(): windows over NCCL can only write other ranks' memory")

    def signal(self, peer_rank: int, async_op: bool = False, opts: Any = None) -> Any:
        """Signal a rank. RuntimeError if a put has signalled it since this rank last waited."""
        memory = self._registered("signal")
        if peer_rank in self._signalled:
            raise RuntimeError(
                f"signal(): NCCL's puts signal, and there was one to rank {peer_rank}, which would take this for another; leave it out, "
                "or use NcclGroup.new_window"
            )
        work = memory.signal(peer_rank, timeout=_timeout(opts), async_op=async_op)
        return done_work([]) if work is None else work

    def wait_signal(self, peer_rank: int, async_op: bool = False, opts: Any = None) -> Any:
        """Make the current stream wait for one signal of a rank, including a put's, and take it."""
        work = self._registered("wait_signal").wait_signal(peer_rank, timeout=_timeout(opts), async_op=async_op)
        self._signalled.clear()
        return done_work([]) if work is None else work

    def get_attr(self, peer_rank: int) -> WindowAttr:
        """Return SEPARATE: other ranks' memory is accessed by messages."""
        self._registered("get_attr")
        _check_rank("get_attr", peer_rank, self._group.size)
        return WindowAttr(WindowAccessType.SEPARATE)  # type: ignore[arg-type]

    def _registered(self, call: str) -> _core.NcclWindow:  # type: ignore[override]
        return super()._registered(call)  # type: ignore[return-value]
