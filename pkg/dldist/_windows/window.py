"""c10d's windows: each rank has memory that the others write into, and there are signals. See docs/symmetric-memory.md."""

from __future__ import annotations

from _thread import allocate_lock
from datetime import timedelta
from math import ceil
from typing import Any

from dldist import _core
from dldist._base.array_types import Tensor
from dldist._base.options import PutOptions, SignalOptions, WaitSignalOptions, WindowAccessType, timeout_of
from dldist._base.works import PythonCallbackWork, done_work
from dldist._objects.exchange import Exchange


class WindowAttr:
    """How the memory of a rank is reached: UNIFIED means by load and store, SEPARATE by messages."""

    def __init__(self, access_type: WindowAccessType) -> None:
        self.access_type = access_type

    def __repr__(self) -> str:
        return f"WindowAttr(access_type={self.access_type})"


class Window:
    """Memory of each rank of a group that the other ranks write into.

    Only the memory that is written to must be registered; put() takes any tensor. Offsets count elements of the target's tensor,
    whatever this rank has registered. A work is done when its tensor may be used again. When a rank takes a signal, everything
    that was put before that signal is in place.
    """

    def __init__(self, group: _core.Group, tensor: Tensor | None = None) -> None:
        self._group = group
        self._memory: _core.Window | None = None
        self._layouts: list[tuple[str, tuple[int, ...]]] = []
        if tensor is not None:
            self.tensor_register(tensor)

    def tensor_register(self, tensor: Tensor | None, owning: bool = True) -> None:
        """Register this rank's memory. Its size and shape may differ between ranks. All ranks call this.

        The window keeps the tensor until tensor_deregister(), even without `owning`: others may write to it at any time.
        """
        if self._memory is not None:
            raise RuntimeError("tensor_register(): a tensor is registered already; call tensor_deregister() first")
        memory = _core.Window(self._group, tensor)
        layout = None if tensor is None else _core._describe_tensor(tensor, True)
        layouts = Exchange(self._group, "all_gather_object").all_gather(layout and (layout["dtype"], layout["shape"]))
        if None in layouts:
            raise _core.DistTypeError(f"tensor_register(): rank {layouts.index(None)} has no tensor, but each rank must give one")
        self._layouts = [(dtype, tuple(shape)) for dtype, shape in layouts]
        self._memory = memory

    def tensor_deregister(self) -> None:
        """Release the memory after a barrier. All ranks call this, and must not put anything into it any more."""
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
        """Write a tensor into the memory of a rank.

        Args:
            tensor: The tensor to write. It must have the dtype of that rank's tensor.
            dst_rank: The rank in the group.
            target_offset_nelems: The index of the first element to write in that rank's tensor.
            async_op: Return at once; the tensor must not change before the work has ended.
            opts: Its timeout, if it is not the -1 ms that stand for the group's.

        Returns:
            A Work.

        Raises:
            TypeError: The dtype is another one.
            ValueError: It does not fit, or there is no such rank.
            RuntimeError: No tensor is registered.
        """
        memory = self._registered("put")
        dtype = _core._describe_tensor(tensor, False)["dtype"]
        if 0 <= dst_rank < len(self._layouts) and self._layouts[dst_rank][0] != dtype:
            raise _core.DistTypeError(
                f"put(): argument 'tensor' has dtype {dtype}, but the window of rank {dst_rank} has {self._layouts[dst_rank][0]}"
            )
        work = memory.put(tensor, dst_rank, target_offset_nelems, timeout=_timeout(opts), async_op=async_op)
        return work if work is not None else done_work([])

    def map_remote_tensor(self, rank: int) -> _core.SharedArray:
        """The tensor of a rank on this host, with its shape and dtype. It is a view that stays valid even if that rank ends."""
        memory = self._registered("map_remote_tensor")
        dtype, shape = self._layouts[_check_rank("map_remote_tensor", rank, len(self._layouts))]
        return memory.get_buffer(rank, shape, dtype)

    def signal(self, peer_rank: int, async_op: bool = False, opts: SignalOptions | None = None) -> _core.Work:
        """Tell a rank that everything put into its memory so far is in place. Signals add up."""
        self._registered("signal").signal(peer_rank, 0, _milliseconds(opts))
        return done_work([])

    def wait_signal(
        self, peer_rank: int, async_op: bool = False, opts: WaitSignalOptions | None = None
    ) -> _core.Work:
        """Wait for a signal from a rank and take it: now, or with async_op in the work's wait()."""
        memory = self._registered("wait_signal")
        if async_op:
            return _SignalWork(memory, peer_rank, _milliseconds(opts))
        memory.wait_signal(peer_rank, 0, _milliseconds(opts))
        return done_work([])

    def get_attr(self, peer_rank: int) -> WindowAttr:
        """How this rank reaches the memory of another."""
        pointers = self._registered("get_attr").buffer_ptrs
        is_seen = pointers[_check_rank("get_attr", peer_rank, len(pointers))] != 0
        return WindowAttr(WindowAccessType.UNIFIED if is_seen else WindowAccessType.SEPARATE)  # type: ignore[arg-type]

    def _registered(self, call: str) -> _core.Window:
        if self._memory is None:
            raise RuntimeError(f"{call}(): no tensor is registered with this window: call tensor_register first, on all ranks")
        return self._memory

    def __repr__(self) -> str:
        of = "nothing registered" if self._memory is None else f"{self._memory.buffer_size} bytes"
        return f"<{type(self).__qualname__} of {self._group!r}: {of}>"


class _SignalWork(PythonCallbackWork):
    """A signal that is taken, once, when a caller waits for it or asks whether it has come."""

    def __init__(self, memory: _core.Window, rank: int, timeout_ms: int) -> None:
        super().__init__(self._take)
        self._memory = memory
        self._rank = rank
        self._timeout_ms = timeout_ms
        self._lock = allocate_lock()  # held while the signal is being taken
        self._is_taken = False

    def _take(self, timeout: timedelta) -> bool:
        with self._lock:
            if self._future.done():
                self._future.value()  # raises if it has failed
            elif not self._is_taken:
                self._memory.wait_signal(self._rank, 0, _whole_ms(timeout) or self._timeout_ms)
                self._is_taken = True
        return True

    def is_completed(self) -> bool:
        if not self._future.done() and self._lock.acquire(False):  # otherwise another thread is waiting for the signal
            try:
                self._is_taken = self._is_taken or self._memory.take_signal(self._rank)
            finally:
                self._lock.release()
            if self._is_taken:
                self._future._settle([], None)
        return self._future.done()


def _timeout(opts: Any) -> timedelta | None:
    return None if opts is None else timeout_of(opts)


def _milliseconds(opts: Any) -> int:
    """The time-out that options ask for; 0 stands for the group's."""
    timeout = _timeout(opts)
    return 0 if timeout is None else _whole_ms(timeout)


def _whole_ms(timeout: timedelta) -> int:
    return ceil(timeout.total_seconds() * 1000)


def _check_rank(call: str, rank: int, size: int) -> int:
    if not 0 <= rank < size:
        raise _core.DistArgumentError(f"{call}(): invalid rank: {rank} is not in 0 to {size - 1}")
    return rank
