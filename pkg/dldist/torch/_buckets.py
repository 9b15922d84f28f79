"""DistributedDataParallel's buckets, moved into memory that the ranks of a host share.

Its reducer makes them in C++, in private memory, out of and into which every all_reduce would have to copy. It is known by how it calls: from
C++, in the middle of a backward pass, with a flat tensor that fills a storage of which there are views. The storage of such a tensor moves
once, in place and for all of its views, the way torch's own share_memory_() moves it; from then on there is nothing to copy.

Addresses change by that, once: who has taken the address of a gradient that is a view of a bucket before the bucket moves, as DLPack does, is
left with memory that is freed. So a bucket moves by itself only where no program can have its address, since gradients are no views of buckets
(gradient_as_bucket_view=False); all others where DLDIST_TORCH_SHARE_BUCKETS=1 asks for it.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.autograd.graph

from dldist.base import settings

if TYPE_CHECKING:
    from types import FrameType

    import dldist

_MIN_BYTES = 65536  # below, there is little to gain
_MAX_BUCKETS = 128  # of a group: each takes two descriptors
_TORCHS_FILES = "/dev/shm"  # where torch makes shared storages, which are never written to beyond their first copy

_use_count: Any = getattr(torch._C, "_storage_Use_Count", None)
_current_node: Any = getattr(torch._C, "_current_autograd_node", lambda: None)
_backward: Any = getattr(torch.autograd.graph, "_engine_run_backward", None)
_logger = logging.getLogger("dldist")


class _Bucket(NamedTuple):
    storage: Any
    array: dldist.SharedArray  # the same memory
    tensor: Any  # the array's


def is_from_reducer(caller: FrameType | None) -> bool:
    """Whether a call with this frame before it comes from C++ in a backward pass, on the thread that started it or one of the engine's."""
    return caller is None or (_backward is not None and caller.f_code is _backward.__code__)


def _has_views(storage: Any) -> bool:
    """Beside the one tensor, and `storage` itself."""
    return _use_count(storage._cdata) > 2  # type: ignore[no-any-return]


def is_compressed(tensor: Any) -> bool:
    """Whether what comes from a reducer is no bucket but what its hook FP16_COMPRESS has made of one."""
    if tensor.dtype is not torch.float16 or tensor.layout is not torch.strided or _use_count is None:
        return False
    return not _has_views(tensor.untyped_storage())


class Buckets:
    """Those of one group, by the addresses of their storages."""

    def __init__(self, world: dldist.World) -> None:
        self._world = world
        self._moved: dict[int, _Bucket] = {}
        is_asked_for = settings.value("share_buckets")
        self._is_on = _use_count is not None and is_asked_for is not False
        self._moves_views = is_asked_for is True
        self._a_view = 0  # the address of a bucket that is a gradient too

    def in_shared_memory(self, tensor: Any) -> Any:
        """A tensor on the same memory, or `tensor` itself, if it is no bucket or stays where it is."""
        is_plain = tensor.layout is torch.strided and tensor.device.type == "cpu"
        if not is_plain or tensor.dim() != 1 or not tensor.is_contiguous():
            return tensor
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        if nbytes < _MIN_BYTES or tensor.nbytes != nbytes:
            return tensor
        bucket = self._moved.get(storage.data_ptr())
        if bucket is None and self._is_on and _has_views(storage) and storage.resizable() and not storage.is_shared():
            bucket = self._move(storage) if self._moves_views or self._is_hidden(storage) else None
        return tensor if bucket is None else bucket.tensor.view(tensor.dtype)

    def _is_hidden(self, storage: Any) -> bool:
        """Whether the reducer that hands it over keeps its buckets to itself: gradients have storages of their own.

        The reducer runs in a hook of the parameter whose gradient has just come, and hands over that one's bucket before any other.
        """
        grad = getattr(getattr(_current_node(), "variable", None), "grad", None)
        if grad is None or grad.layout is not torch.strided:
            return False
        own = grad.untyped_storage()
        if own.data_ptr() in (storage.data_ptr(), self._a_view):
            self._a_view = own.data_ptr()
            return False
        return bool(own.nbytes() == grad.nbytes)  # else it may be a part of a bucket that is not complete

    def _move(self, storage: Any) -> _Bucket | None:
        self._forget_the_dead()
        if len(self._moved) >= _MAX_BUCKETS:
            return None
        nbytes = storage.nbytes()
        try:
            self._check_use_and_room(nbytes)
            descriptor, _ = storage._share_fd_cpu_()
            array = self._world._adopt(storage.data_ptr(), descriptor, nbytes)
        except (OSError, RuntimeError) as error:
            self._is_on = False
            _logger.info("buckets of DistributedDataParallel stay in private memory: %s", error)
            return None
        bucket = _Bucket(storage, array, torch.from_dlpack(array))
        self._moved[storage.data_ptr()] = bucket
        return bucket

    def _check_use_and_room(self, nbytes: int) -> None:
        local_size = sum(member.is_same_host for member in self._world.members)
        if local_size == 1:
            raise OSError("no other rank is on this host")
        files = os.statvfs(_TORCHS_FILES)
        room = files.f_bavail * files.f_frsize
        # All ranks of the host move theirs, and one copy more makes up for who else writes there: torch would find out by a signal.
        if room < nbytes * (local_size + 1):
            raise OSError(f"{_TORCHS_FILES} has room for {room} bytes, and one of {nbytes} is to move")

    def _forget_the_dead(self) -> None:
        """Let go of those of which nobody else has the storage any more, as after the rebuilding of buckets."""
        dead = [address for address, bucket in self._moved.items() if _use_count(bucket.storage._cdata) == 1]
        for address in dead:
            array = self._moved.pop(address).array
            array._note_unmapped()  # the storage went with the rest
