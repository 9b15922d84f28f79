"""Symmetric memory: arrays that the ranks of a host share, and memory for one-sided access.

Names are as in torch.distributed._symmetric_memory. Guarantees: docs/symmetric-memory.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from dldist import _core
from dldist._api.shared_arrays import group_of
from dldist._backends import registry
from dldist._backends.backend_names import device_type_of
from dldist._base.options import as_int
from dldist._windows import symmetric
from dldist._windows.symmetric import SymmetricMemory
from dldist.types import AnyGroup, Tensor
from dldist.world import World

TensorT = TypeVar("TensorT", bound=Tensor)

__all__ = [
    "SymmetricMemory",
    "empty",
    "enable_symm_mem_for_group",
    "get",
    "get_backend",
    "get_mem_pool",
    "get_mempool_allocator",
    "get_signal_pad_size",
    "is_nvshmem_available",
    "is_symm_mem_enabled_for_group",
    "is_symm_mem_tensor",
    "put_signal",
    "rendezvous",
    "set_backend",
    "set_signal_pad_size",
    "wait_signal",
]

_BACKEND = "CPU"


_infos: dict[str, tuple[_core.Store, int, int]] = {}
_worlds: dict[str, World] = {}  # by group name: each used group in _infos


def empty(*size: int | Sequence[int], dtype: Any = "float32", device: Any = None, group: AnyGroup | str | None = None) -> _core.SharedArray:
    """Create zeros (of float32 unless a dtype is given) in memory that this host's ranks share.

    Args:
        size: The shape: empty(2, 3) or empty((2, 3)).
        dtype: The name of a dtype, or a dtype of any array library.
        device: "cpu" or None.
        group: The group whose ranks share the memory, or its name; None for the default world.

    Raises:
        NotImplementedError: The device is not the CPU.

    Example:
        >>> from dldist import symmetric_memory
        >>> symmetric_memory.empty(2, 3, dtype="int32").shape
        (2, 3)
    """
    _require_cpu("empty", device)
    shape: Any = size[0] if len(size) == 1 and not hasattr(size[0], "__index__") else size
    return _group("empty", group).empty(tuple(shape), "float32" if dtype is None else dtype)


def is_symm_mem_tensor(tensor: Tensor) -> bool:
    """Return True if the tensor is in memory from empty() of a group that still exists."""
    return _core._is_shared(tensor)


# ---- settings


def set_signal_pad_size(size: int) -> None:
    """Set the bytes for signals of each rank in later windows. Must be the same on all ranks."""
    nbytes = as_int("set_signal_pad_size(): argument 'size'", size)
    if nbytes <= 0:
        raise ValueError(f"set_signal_pad_size(): argument 'size' is out of range: got {nbytes}, expected 1 or more")
    symmetric.signal_pad_size = nbytes


def get_signal_pad_size() -> int:
    return symmetric.signal_pad_size


def set_backend(name: str) -> None:
    """Raise unless the name is "CPU", the only backend."""
    if name != _BACKEND:
        raise ValueError(f"set_backend(): argument 'name' is unknown: got {name!r}, expected {_BACKEND!r}")


def get_backend(device: Any) -> str | None:
    """Return "CPU" for the CPU, and None for other devices."""
    return _BACKEND if device_type_of(device) == "cpu" else None


def get_mempool_allocator(device: Any) -> Any:
    raise NotImplementedError("get_mempool_allocator(): unsupported on the CPU; use empty()")


def get_mem_pool(device: Any) -> Any:
    raise NotImplementedError("get_mem_pool(): unsupported on the CPU; use empty()")


def is_nvshmem_available() -> bool:
    """Return False, because NVSHMEM is for GPUs."""
    return False


def enable_symm_mem_for_group(group_name: str) -> None:
    """Only check the name, because every group has symmetric memory."""
    _group("enable_symm_mem_for_group", group_name)


def is_symm_mem_enabled_for_group(group_name: str) -> bool:
    """Return True if a group has this name."""
    return registry._world.is_named(group_name) or group_name in _infos


# ---- arguments


def _group(call: str, group: AnyGroup | str | None) -> _core.Group:
    if not isinstance(group, str) or group not in _infos or registry._world.is_named(group):
        return group_of(call, group)
    if group not in _worlds:
        store, rank, size = _infos[group]
        _worlds[group] = World(store, rank, size, name=f"symmetric_memory/{group}")
    return _worlds[group]


def _require_cpu(call: str, device: Any) -> None:
    if device is not None and device_type_of(device) != "cpu":
        raise NotImplementedError(f"{call}(): argument 'device' is unsupported: got {device}, expected cpu")


def _row_major(size: Sequence[int]) -> tuple[int, ...]:
    strides = [1]
    for length in reversed(size[1:]):
        strides.append(strides[-1] * max(length, 1))
    return tuple(reversed(strides))[: len(size)] if size else ()


# ---- windows


def rendezvous(tensor: Tensor | None, group: AnyGroup | str | None = None) -> SymmetricMemory:
    """Make the tensors of a group's ranks accessible to each other. All ranks must call this.

    Ranks of one host access arrays from the group's empty(), and parts and views of such arrays,
    directly. All other access uses messages.

    Args:
        tensor: This rank's tensor, of any size; None if it has no memory to share.
        group: A group or its name; None for the default world.

    Returns:
        A SymmetricMemory. In its methods, `timeout_ms=0` means the group's timeout, as in torch.

    Raises:
        DistTimeoutError, DistPeerLostError, DistAbortedError: As for collectives.

    Example:
        >>> from dldist import symmetric_memory
        >>> x = symmetric_memory.empty(4, dtype="int32")
        >>> memory = symmetric_memory.rendezvous(x)
        >>> memory.put(b"12345678", rank=0, channel=0)
        >>> memory.wait_signal(0)
        >>> bytes(memory.get_buffer(0, [8], "uint8"))
        b'12345678'
    """
    return symmetric.rendezvous(_group("rendezvous", group), tensor)


class _SymmetricMemory(SymmetricMemory):
    """SymmetricMemory with the static functions of the class in torch's extension."""

    @staticmethod
    def set_group_info(group_name: str, rank: int, world_size: int, store: _core.Store) -> None:
        """Define a group that c10d does not know. Its first use waits for all its ranks to join."""
        _infos[group_name] = (store, rank, world_size)
        _worlds.pop(group_name, None)

    @staticmethod
    def empty_strided_p2p(
        size: Sequence[int],
        stride: Sequence[int],
        dtype: Any,
        device: Any,
        group_name: str | None = None,
        alloc_id: int | None = None,
    ) -> _core.SharedArray:
        """Return empty() for row-major strides. alloc_id is ignored: released memory is reused."""
        if tuple(stride) != _row_major(size):
            raise NotImplementedError(f"empty_strided_p2p(): argument 'stride': got {tuple(stride)}, expected {_row_major(size)} (row-major)")
        _require_cpu("empty_strided_p2p", device)
        return _group("empty_strided_p2p", group_name).empty(tuple(size), dtype)

    @staticmethod
    def has_multicast_support(device_type: Any, device_idx: int) -> bool:
        """Return False, because CPU memory has no multicast."""
        return False

    rendezvous = staticmethod(rendezvous)
    is_symm_mem_tensor = staticmethod(is_symm_mem_tensor)
    set_backend = staticmethod(set_backend)
    get_backend = staticmethod(get_backend)
    get_mempool_allocator = staticmethod(get_mempool_allocator)


def put_signal(src: Tensor, hdl: SymmetricMemory, peer: int) -> None:
    """Write data at the start of the rendezvous tensor, then send a signal on channel 0.

    Args:
        src: The data, of the dtype of the tensor passed to rendezvous(), or bytes.
        hdl: The result of rendezvous().
        peer: The rank, in the group, whose memory to write.

    Raises:
        ValueError: The rendezvous tensor is not aligned for the elements, or too small.
    """
    itemsize = _core._describe_tensor(src, False)["itemsize"]
    offset, remainder = divmod(hdl.offset, itemsize)
    if remainder != 0:
        raise _core.DistArgumentError(f"put_signal(): argument 'hdl' has a misaligned offset: got {hdl.offset}, expected a multiple of {itemsize}")
    hdl.put(src, peer, offset, 0)


def wait_signal(hdl: SymmetricMemory, peer: int) -> None:
    """Wait for a signal from a rank on channel 0, and consume the signal.

    Args:
        hdl: The result of rendezvous().
        peer: The rank, in the group, that sends the signal.

    Raises:
        DistTimeoutError: No signal arrived within the group's timeout.
    """
    hdl.wait_signal(peer)


def get(dst: TensorT, src: Tensor, group: AnyGroup | str, peer: int) -> TensorT:
    """Read another rank's memory at the position of `src` into `dst`, and return `dst`. The other
    rank need not call anything.

    The ranks' arrays may differ: the position is the byte offset of `src` in this rank's array.

    Args:
        dst: A contiguous tensor to fill, of src's dtype and number of elements.
        src: This rank's tensor, or a part of it, with a live handle from rendezvous(). Its dtype
            is the one of the tensor passed to rendezvous(), or bytes (uint8, int8).
        group: A group or its name.
        peer: The rank, in the group, whose memory to read.

    Raises:
        ValueError: The tensors do not match, one is not contiguous, or there is no handle.

    Example:
        >>> from dldist import symmetric_memory
        >>> x = symmetric_memory.empty(4, dtype="int32")
        >>> memory = symmetric_memory.rendezvous(x)
        >>> symmetric_memory.get(array("i", [9] * 4), x, dist.group.WORLD, peer=0).tolist()
        [0, 0, 0, 0]
    """
    source = _core._describe_tensor(src, False)
    try:
        target = _core._describe_tensor(dst, True)
    except (TypeError, ValueError) as error:  # the title has the first name of two
        raise type(error)(str(error).replace("'src'", "'dst'", 1)) from None
    for name in ("dtype", "count"):
        if source[name] != target[name]:
            raise _core.DistArgumentError(f"get(): argument 'dst' has another {name}: got {target[name]}, expected {source[name]}, as 'src'")
    if not (source["is_contiguous"] and target["is_contiguous"]):
        raise _core.DistArgumentError("get(): arguments 'dst' and 'src' must be contiguous")
    memory, position = symmetric.handle_of(_group("get", group), source["data"], source["count"] * source["itemsize"])
    offset, remainder = divmod(position, source["itemsize"])
    if remainder:
        raise _core.DistArgumentError(f"get(): argument 'src' is misaligned: got byte offset {position}, expected a multiple of {source['itemsize']}")
    memory.get(dst, peer, offset)
    return dst
