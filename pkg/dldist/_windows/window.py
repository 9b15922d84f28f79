"""c10d's windows: memory that other ranks can write, with signals (docs/symmetric-memory.md)."""

from __future__ import annotations

from _thread import allocate_lock
from datetime import timedelta
from math import ceil
from typing import Any

from dldist import _core
from dldist._base import argument_names
from dldist._base.array_types import Tensor
from dldist._base.options import PutOptions, SignalOptions, WaitSignalOptions, WindowAccessType, timeout_of
from dldist._base.works import PythonCallbackWork, done_work
from dldist._objects.exchange import Exchange


class WindowAttr:
    """The way to access a rank's memory: UNIFIED, by load and store, or SEPARATE, by messages."""

    def __init__(self, access_type: WindowAccessType) -> None:
        self.access_type = access_type

    def __repr__(self) -> str:
        return f"WindowAttr(access_type={self.access_type})"


class Window:
    """Memory of each rank of a group that other ranks can write to.

    Only the target's memory must be registered; put() accepts any tensor. Offsets count elements of
    the target's tensor. A put's work is done when its source tensor may be reused. Once a rank has
    taken a signal, all data put before the signal is in the rank's memory.
    """

    def __init__(self, group: _core.Group, tensor: Tensor | None = None) -> None:
        self._group = group
        self._memory: _core.Window | None = None
        self._layouts: list[tuple[str, tuple[int, ...]]] = []
        if tensor is not None:
            self.tensor_register(tensor)

    def tensor_register(self, tensor: Tensor | None, owning: bool = True) -> None:
        """Register this rank's memory. Sizes and shapes may differ. All ranks must call this.

        The window keeps the tensor until tensor_deregister(), even if `owning` is False, because
        other ranks may write to it at any time.
        """
        if self._memory is not None:
            raise RuntimeError("tensor_register(): the window already has a tensor; call tensor_deregister() first")
        memory = _core.Window(self._group, tensor)
        layout = None if tensor is None else _core._describe_tensor(tensor, True)
        layouts = Exchange(self._group, "all_gather_object").all_gather(layout and (layout["dtype"], layout["shape"]))
        if None in layouts:
            raise _core.DistTypeError(f"tensor_register(): argument 'tensor' of rank {layouts.index(None)}: got None, expected a tensor on each rank")
        self._layouts = [(dtype, tuple(shape)) for dtype, shape in layouts]
        self._memory = memory

    def tensor_deregister(self) -> None:
        """Release the memory after a barrier. All ranks must call this; no rank may put() later."""
        memory, self._memory = self._registered("tensor_deregister"), None
        try:
            memory.flush()
            self._group.barrier()
        finally:
            memory.close()

    def put(
        self,
        tensor: Tensor,
        dst_rank: int,
        target_offset_nelems: int = 0,
        async_op: bool = False,
        opts: PutOptions | None = None,
    ) -> _core.Work:
        """Write a tensor into a rank's memory. Return a Work.

        Args:
            tensor: The tensor to write. Its dtype must be the dtype of the target's tensor.
            dst_rank: The target's rank in the group.
            target_offset_nelems: The index of the first element to write in the target's tensor.
            async_op: If True, return immediately. Do not change the tensor before the work is done.
            opts: Options with a timeout; -1 ms stands for the group's timeout.

        Raises:
            TypeError: The dtypes differ.
            ValueError: The tensor does not fit, or the rank does not exist.
            RuntimeError: No tensor is registered.
        """
        memory = self._registered("put")
        dtype = _core._describe_tensor(tensor, False)["dtype"]
        expected = self._layouts[_check_rank("dst_rank", dst_rank, len(self._layouts))][0]
        if dtype != expected:
            raise _core.DistTypeError(f"put(): argument 'tensor' has another dtype: got {dtype}, expected {expected}, as on rank {dst_rank}")
        work = memory.put(tensor, dst_rank, target_offset_nelems, timeout=_timeout(opts), async_op=async_op)
        return work if work is not None else done_work([])

    def map_remote_tensor(self, rank: int) -> _core.SharedArray:
        """Return a view of a rank's tensor on this host, valid even after the rank has ended."""
        memory = self._registered("map_remote_tensor")
        dtype, shape = self._layouts[_check_rank("rank", rank, len(self._layouts))]
        return memory.get_buffer(rank, shape, dtype)

    def signal(self, peer_rank: int, async_op: bool = False, opts: SignalOptions | None = None) -> _core.Work:
        """Signal a rank after all data put to it so far has arrived. Signals are counted."""
        self._registered("signal").signal(peer_rank, 0, _milliseconds(opts))
        return done_work([])

    def wait_signal(
        self, peer_rank: int, async_op: bool = False, opts: WaitSignalOptions | None = None
    ) -> _core.Work:
        """Wait for a signal from a rank and take it. With async_op, the work's wait() waits."""
        memory = self._registered("wait_signal")
        if async_op:
            return _SignalWork(memory, peer_rank, _milliseconds(opts))
        memory.wait_signal(peer_rank, 0, _milliseconds(opts))
        return done_work([])

    def get_attr(self, peer_rank: int) -> WindowAttr:
        """Return the way in which this rank accesses another rank's memory."""
        pointers = self._registered("get_attr").buffer_ptrs
        is_mapped = pointers[_check_rank("peer_rank", peer_rank, len(pointers))] != 0
        return WindowAttr(WindowAccessType.UNIFIED if is_mapped else WindowAccessType.SEPARATE)  # type: ignore[arg-type]

    def _registered(self, call: str) -> _core.Window:
        if self._memory is None:
            raise RuntimeError(f"{call}(): the window has no tensor; call tensor_register() first, on all ranks")
        return self._memory

    def __repr__(self) -> str:
        content = "nothing registered" if self._memory is None else f"{self._memory.buffer_size} bytes"
        return f"<{type(self).__qualname__} of {self._group!r}: {content}>"


class _SignalWork(PythonCallbackWork):
    """A work that takes one signal: in wait(), or in is_completed() if the signal has arrived."""

    def __init__(self, memory: _core.Window, rank: int, timeout_ms: int) -> None:
        super().__init__(self._take_signal)
        self._memory = memory
        self._rank = rank
        self._timeout_ms = timeout_ms
        self._lock = allocate_lock()  # held by the thread that takes the signal
        self._has_signal = False

    def _take_signal(self, timeout: timedelta) -> bool:
        with self._lock:
            if self._future.done():
                self._future.value()  # raises the error if no signal could be taken
            elif not self._has_signal:
                self._memory.wait_signal(self._rank, 0, _whole_ms(timeout) or self._timeout_ms)
                self._has_signal = True
        return True

    def is_completed(self) -> bool:
        # If the lock is held, another thread is waiting for the signal.
        if not self._future.done() and self._lock.acquire(False):
            try:
                self._has_signal = self._has_signal or self._memory.take_signal(self._rank)
            finally:
                self._lock.release()
            if self._has_signal:
                self._future._complete([], None)
        return self._future.done()


def _timeout(opts: Any) -> timedelta | None:
    return None if opts is None else timeout_of(opts)


def _milliseconds(opts: Any) -> int:
    """Return the timeout of options in milliseconds, or 0 if it is the group's."""
    timeout = _timeout(opts)
    return 0 if timeout is None else _whole_ms(timeout)


def _whole_ms(timeout: timedelta) -> int:
    return ceil(timeout.total_seconds() * 1000)


def _check_rank(name: str, rank: int, size: int) -> int:
    if not hasattr(rank, "__index__") or not 0 <= rank < size:
        raise _core.DistArgumentError(f"{argument_names.title(name)} is an invalid rank: got {rank!r}, expected 0 to {size - 1}")
    return rank
