"""Moves the buckets of DistributedDataParallel (DDP) to memory that a host's ranks share.

DDP's reducer allocates the buckets in private memory, so every all_reduce must copy them out and
back. A communication hook gets each bucket, and moves the storage once, in place and for all its
views, like torch's share_memory_(). Later calls copy nothing. The move changes addresses, so a
program must request it.
"""

from __future__ import annotations

import logging
import os
from typing import Any, NamedTuple

import _dldist_torch_names as names
import torch

import dldist

_MIN_BYTES = 65536  # minimum bytes of a bucket; smaller ones gain little
_MAX_BUCKETS = 128  # maximum per group, as each uses two file descriptors
_TORCH_SHM_FOLDER = "/dev/shm"  # the folder in which torch creates shared storages

_use_count: Any = names.find("torch._C._storage_Use_Count")
_share: Any = names.find("torch.UntypedStorage._share_fd_cpu_")
_logger = logging.getLogger("dldist")


class _Bucket(NamedTuple):
    storage: Any
    array: dldist.SharedArray  # has the same memory as `storage`
    tensor: Any  # a tensor on the memory of `array`


def _has_views(storage: Any) -> bool:
    """True if a storage has other users than one tensor and the variable `storage`."""
    return _use_count(storage._cdata) > 2  # type: ignore[no-any-return]


class Buckets:
    """The buckets of one group that were moved, by the addresses of their storages."""

    def __init__(self, world: dldist.World) -> None:
        self._world = world
        self._moved: dict[int, _Bucket] = {}
        self._is_on = _use_count is not None and _share is not None

    def in_shared_memory(self, tensor: Any) -> Any:
        """Move a bucket to shared memory and return a tensor on it, or `tensor` if it cannot."""
        is_plain = tensor.layout is torch.strided and tensor.device.type == "cpu"
        if not is_plain or tensor.dim() != 1 or not tensor.is_contiguous():
            return tensor
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        if nbytes < _MIN_BYTES or tensor.nbytes != nbytes:
            return tensor
        bucket = self._moved.get(storage.data_ptr())
        if bucket is None and self._is_on and _has_views(storage) and storage.resizable() and not storage.is_shared():
            bucket = self._move(storage)
        return tensor if bucket is None else bucket.tensor.view(tensor.dtype)

    def _move(self, storage: Any) -> _Bucket | None:
        self._drop_unused()
        if len(self._moved) >= _MAX_BUCKETS:
            return None
        nbytes = storage.nbytes()
        try:
            self._check_benefit_and_space(nbytes)
            descriptor, _ = _share(storage)
            array = self._world._adopt(storage.data_ptr(), descriptor, nbytes)
        except (OSError, RuntimeError) as error:
            self._is_on = False
            _logger.info("buckets of DistributedDataParallel stay in private memory: %s", error)
            return None
        bucket = _Bucket(storage, array, torch.from_dlpack(array))
        self._moved[storage.data_ptr()] = bucket
        return bucket

    def _check_benefit_and_space(self, nbytes: int) -> None:
        local_size = sum(member.is_same_host for member in self._world.members)
        if local_size == 1:
            raise OSError("this host has no other rank")
        filesystem = os.statvfs(_TORCH_SHM_FOLDER)
        free_bytes = filesystem.f_bavail * filesystem.f_frsize
        # All ranks of the host move a bucket; leave room for another, or torch gets SIGBUS.
        if free_bytes < nbytes * (local_size + 1):
            raise OSError(f"{_TORCH_SHM_FOLDER} is too small for a bucket: got {free_bytes} bytes, expected {nbytes}")

    def _drop_unused(self) -> None:
        """Release buckets whose storage has no other user, as after DDP has rebuilt buckets."""
        unused = [address for address, bucket in self._moved.items() if _use_count(bucket.storage._cdata) == 1]
        for address in unused:
            array = self._moved.pop(address).array
            array._note_unmapped()  # the storage has unmapped this memory
