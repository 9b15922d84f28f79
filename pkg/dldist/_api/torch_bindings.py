"""Small functions of c10d's extension: the rank in the log, device links, hashes, devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from dldist import _core
from dldist._base import log
from dldist._base.arrays import private_memory
from dldist._base.options import as_int

# ---- the rank in the log


def _set_global_rank(rank: int) -> None:
    """Set the rank that log lines show."""
    log.global_rank = as_int("_set_global_rank(): argument 'rank'", rank)


# ---- links between devices


class _DMAConnectivity:
    """The direct links between devices. Never created: _detect_dma_connectivity() always raises."""

    device_type: Any = None
    connection_type = ""
    matrix: Any = ()

    def __init__(self, *_: Any) -> None:
        raise TypeError("_DMAConnectivity: No constructor defined! Call _detect_dma_connectivity()")


def _detect_dma_connectivity(device_type: Any, connection_type: str) -> NoReturn:
    """Raise a RuntimeError: dldist cannot detect links between devices."""
    raise RuntimeError(f"DMA connectivity detector for {device_type} over {connection_type} is not available")


def _get_intra_node_comm_usage_counter() -> int:
    """Return 0, because dldist, unlike torch, has no kernels between the GPUs of a host."""
    return 0


# ---- contents


def _hash_tensors(tensors: Sequence[Any]) -> int:
    """Return a 64-bit hash of the contents of arrays, equal in every process for equal contents."""
    from hashlib import blake2b

    digest = blake2b(digest_size=8)
    for tensor in tensors:
        digest.update(_core._describe_tensor(tensor, False)["count"].to_bytes(8, "little"))
        digest.update(bytes(_packed(tensor)))
    return int.from_bytes(digest.digest(), "little")


def _packed(tensor: Any) -> Any:
    """Return the elements of an array in row-major order, as a memoryview."""
    description = _core._describe_tensor(tensor, False)
    packed: Any = private_memory((description["count"],), description["dtype"])
    _core._copy_tensor(packed, tensor)
    return memoryview(packed)


# ---- checks of stores


def _test_python_store(store: _core.Store) -> None:
    """Check through the extension that a store, such as one written in Python, works.

    Raises:
        AssertionError: The store returned a wrong value; the text names the operation.
    """
    prefixed = _core.PrefixStore("_test_python_store", store)
    prefixed.set("a", "1")
    prefixed.set("b", b"\0")
    checks: list[tuple[str, Any, Any]] = [
        ("get of what was set", lambda: prefixed.get("a"), b"1"),
        ("get of bytes", lambda: prefixed.get("b"), b"\0"),
        ("add to nothing", lambda: prefixed.add("n", 2), 2),
        ("add", lambda: prefixed.add("n", 3), 5),
        ("get of a sum", lambda: prefixed.get("n"), b"5"),
    ]
    for operation, get, expected in checks:
        value = get()
        if value != expected:
            raise AssertionError(f"_test_python_store(): {operation} of {store!r}: got {value!r}, expected {expected!r}")


# ---- devices of other processes

_FORMS = "'<workername>/<device>' or 'rank:<rank>/<device>' or '<device>'"
_DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu", "meta")


class _remote_device:
    """A device of a process, named "worker/cuda:0", numbered "rank:3/cpu", or this one's "cpu"."""

    def __init__(self, remote_device: Any) -> None:
        self._worker_name: str | None = None
        self._rank: int | None = None
        if isinstance(remote_device, str):
            process, device = self._read(remote_device)
        elif isinstance(getattr(remote_device, "type", None), str):
            process, device = None, str(remote_device)
        else:
            raise TypeError(f"Invalid type for remote_device: got {type(remote_device).__name__}, expected str or torch.device")
        self._device = device
        if process is not None and process.startswith("rank:") and process[5:].isdigit():
            self._rank = int(process[5:])
        elif process is not None:
            if not process or ":" in process:
                raise ValueError(f"Could not parse remote_device: {remote_device}. The valid format is {_FORMS}")
            self._worker_name = process

    @staticmethod
    def _read(text: str) -> tuple[str | None, str]:
        """Parse a text into the process and the device. Without a device, the device is the CPU."""
        process, slash, device = text.partition("/")
        if not slash:
            is_device = process.partition(":")[0] in _DEVICES
            return (None, process) if is_device else (process, "cpu")
        if "/" in device or not process:
            raise ValueError(f"Could not parse remote_device: {text}. The valid format is {_FORMS}")
        if device.partition(":")[0] not in _DEVICES:
            raise RuntimeError(f"remote_device: unknown device: got {device!r} in {text!r}, expected one of {', '.join(_DEVICES)}")
        return process, device

    def worker_name(self) -> str | None:
        """Return the process's name, or None if the caller gave a rank or the process is this one."""
        return self._worker_name

    def rank(self) -> int | None:
        """Return the rank of the process, or None if it was given by name or is this process."""
        return self._rank

    def device(self) -> str:
        """Return the device."""
        return self._device

    def __repr__(self) -> str:
        if self._worker_name is not None:
            return f"{self._worker_name}/{self._device}"
        return self._device if self._rank is None else f"rank:{self._rank}/{self._device}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _remote_device) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))
