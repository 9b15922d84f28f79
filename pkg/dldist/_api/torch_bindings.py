"""Small calls of c10d's extension that libraries import: the rank in the log, links and places of devices, a store's trial."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from dldist import _core
from dldist._base import log
from dldist._base.arrays import private_memory
from dldist._base.options import as_int

# ---- the rank in the log


def _set_global_rank(rank: int) -> None:
    """Have the lines of the log say which rank this process is."""
    log.global_rank = as_int("_set_global_rank(): argument 'rank'", rank)


# ---- links between devices


class _DMAConnectivity:
    """Which devices reach each other directly. _detect_dma_connectivity() would make it, where there are such."""

    device_type: Any = None
    connection_type = ""
    matrix: Any = ()

    def __init__(self, *_: Any) -> None:
        raise TypeError("_DMAConnectivity: No constructor defined! _detect_dma_connectivity() makes it")


def _detect_dma_connectivity(device_type: Any, connection_type: str) -> NoReturn:
    """Which devices of a type reach each other by a kind of link: nothing here can tell."""
    raise RuntimeError(f"DMA connectivity detector for {device_type} over {connection_type} is not available")


def _get_intra_node_comm_usage_counter() -> int:
    """How often torch's kernels between the GPUs of a host have run: never, as they are not here."""
    return 0


# ---- contents


def _hash_tensors(tensors: Sequence[Any]) -> int:
    """Hash the contents of arrays to 64 bits. The same bytes in the same order have the same hash in every process."""
    from hashlib import blake2b

    digest = blake2b(digest_size=8)
    for tensor in tensors:
        digest.update(_core._describe_tensor(tensor, False)["count"].to_bytes(8, "little"))
        digest.update(bytes(_packed(tensor)))
    return int.from_bytes(digest.digest(), "little")


def _packed(tensor: Any) -> Any:
    """The elements of an array in row-major order, as an object with the buffer protocol."""
    found = _core._describe_tensor(tensor, False)
    packed: Any = private_memory((found["count"],), found["dtype"])
    _core._copy_tensor(packed, tensor)
    return memoryview(packed)


# ---- stores


def _test_python_store(store: _core.Store) -> None:
    """Use a store, such as one that is written in Python, from the extension, and check what it answers.

    Raises:
        AssertionError: An answer is wrong; it says which.
    """
    inside = _core.PrefixStore("_test_python_store", store)
    inside.set("a", "1")
    inside.set("b", b"\0")
    trials: list[tuple[str, Any, Any]] = [
        ("get of what was set", lambda: inside.get("a"), b"1"),
        ("get of bytes", lambda: inside.get("b"), b"\0"),
        ("add to nothing", lambda: inside.add("n", 2), 2),
        ("add", lambda: inside.add("n", 3), 5),
        ("get of a sum", lambda: inside.get("n"), b"5"),
    ]
    for what, ask, expected in trials:
        answer = ask()
        if answer != expected:
            raise AssertionError(f"_test_python_store(): {what} gives {answer!r} instead of {expected!r} with {store!r}")


# ---- devices of other processes

_FORMS = "'<workername>/<device>' or 'rank:<rank>/<device>' or '<device>'"
_DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu", "meta")


class _remote_device:
    """A device of a process that is named, or has a rank: "worker/cuda:0", "rank:3/cpu", or of this one: "cuda:0"."""

    def __init__(self, remote_device: Any) -> None:
        self._worker_name: str | None = None
        self._rank: int | None = None
        if isinstance(remote_device, str):
            where, device = self._read(remote_device)
        elif isinstance(getattr(remote_device, "type", None), str):
            where, device = None, str(remote_device)
        else:
            raise TypeError(f"Invalid type for remote_device: {type(remote_device).__name__}")
        self._device = device
        if where is not None and where.startswith("rank:") and where[5:].isdigit():
            self._rank = int(where[5:])
        elif where is not None:
            if not where or ":" in where:
                raise ValueError(f"Could not parse remote_device: {remote_device}. The valid format is {_FORMS}")
            self._worker_name = where

    @staticmethod
    def _read(text: str) -> tuple[str | None, str]:
        """The process and the device; a name alone is that of a worker, whose CPU is meant."""
        where, slash, device = text.partition("/")
        if not slash:
            is_device = where.partition(":")[0] in _DEVICES
            return (None, where) if is_device else (where, "cpu")
        if "/" in device or not where:
            raise ValueError(f"Could not parse remote_device: {text}. The valid format is {_FORMS}")
        if device.partition(":")[0] not in _DEVICES:
            raise RuntimeError(f"the device of {text!r} is none of {', '.join(_DEVICES)}")
        return where, device

    def worker_name(self) -> str | None:
        """The name of the process; None where it has a rank, or is this one."""
        return self._worker_name

    def rank(self) -> int | None:
        """The rank of the process; None where it is named, or is this one."""
        return self._rank

    def device(self) -> str:
        """The device there."""
        return self._device

    def __repr__(self) -> str:
        if self._worker_name is not None:
            return f"{self._worker_name}/{self._device}"
        return self._device if self._rank is None else f"rank:{self._rank}/{self._device}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _remote_device) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))
