"""The names of backends, and for each name the devices, the availability and the registration."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from dldist import carriers
from dldist._base import argument_names
from dldist._base.options import BackendType
from dldist._rendezvous import launchers

_DEVICES_WHEN_UNKNOWN = ("cpu", "cuda", "xpu")


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Emit a warning that points to the program's line that called dldist, at any depth."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("dldist."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


class BackendPlugin(tuple):
    """A tuple (creator_fn, extended_api) for a registered backend."""

    __slots__ = ()

    @property
    def creator_fn(self) -> Callable[..., Any]:
        return self[0]

    @property
    def extended_api(self) -> bool:
        return self[1]


class Backend(str):
    """The name of a backend: Backend("GLOO") is "gloo". Each known name is an attribute.

    "cpu" is another name of "gloo", dldist's own backend for CPUs: Backend("cpu") is "gloo".

    >>> dist.Backend("GLOO")
    'gloo'
    """

    __slots__ = ()

    UNDEFINED = "undefined"
    GLOO = "gloo"
    NCCL = "nccl"
    UCC = "ucc"
    MPI = "mpi"
    XCCL = "xccl"
    FAKE = "fake"

    backend_list: ClassVar[list[str]] = [UNDEFINED, GLOO, NCCL, XCCL, UCC, MPI, FAKE]
    default_device_backend_map: ClassVar[dict[str, str]] = {"cpu": GLOO, "cuda": NCCL, "xpu": XCCL, "mps": GLOO}
    backend_capability: ClassVar[dict[str, list[str]]] = {
        GLOO: ["cpu", "cuda"],
        NCCL: ["cuda"],
        XCCL: ["cpu", "xpu"],
        UCC: ["cpu", "cuda"],
        MPI: ["cpu", "cuda"],
        FAKE: ["cpu", "cuda", "hpu", "xpu"],
    }
    backend_type_map: ClassVar[dict[str, Any]] = {
        UNDEFINED: BackendType.UNDEFINED,
        GLOO: BackendType.GLOO,
        NCCL: BackendType.NCCL,
        XCCL: BackendType.XCCL,
        UCC: BackendType.UCC,
        MPI: BackendType.MPI,
        FAKE: BackendType.CUSTOM,
    }
    _plugins: ClassVar[dict[str, BackendPlugin]] = {}
    _BackendPlugin = BackendPlugin

    def __new__(cls, name: str) -> str:  # type: ignore[misc]
        if not isinstance(name, str):
            raise ValueError(f"{argument_names.title('backend')}: Backend constructor parameter must be string-ish: got {name!r}, expected a name")
        name = name.lower()
        return name if "cpu" in cls.backend_list else re.sub("^cpu$|(?<=:)cpu(?=,|$)", cls.GLOO, name)

    @classmethod
    def register_backend(
        cls,
        name: str,
        func: Callable[..., Any],
        extended_api: bool = False,
        devices: str | Sequence[str] | None = None,
        *,
        _backend_type: Any = None,
    ) -> None:
        """Register a backend for init_process_group and new_group. Replaces a backend of this name.
        func gets (store, rank, size, timeout), or (options, pg_options) if extended_api is true."""
        lower, upper = name.lower(), name.upper()
        if devices is None:
            warn(
                f"Device capability of {name} unspecified, assuming `cpu` and `cuda` or `xpu`. Please specify it via the "
                "`devices` argument of `register_backend`."
            )
            devices = ["cpu", "cuda"]
        devices = [devices] if isinstance(devices, str) else list(devices)
        if not hasattr(Backend, upper):
            setattr(Backend, upper, lower)
        if lower not in Backend.backend_list:
            Backend.backend_list.append(lower)
        for device in devices:
            Backend.default_device_backend_map.setdefault(device, lower)
        Backend.backend_capability[lower] = devices
        Backend.backend_type_map[lower] = BackendType.CUSTOM if _backend_type is None else _backend_type
        Backend._plugins[upper] = BackendPlugin((func, extended_api))


_PAIR_FORMAT = (
    'a backend for each device is written "<device_type1>:<backend1>,<device_type2>:<backend2>...", as in "cpu:gloo,cuda:nccl"'
)


def _read_pairs(text: str) -> dict[str, str]:
    of_device: dict[str, str] = {}
    for pair in text.lower().split(","):
        parts = pair.split(":")
        if len(parts) != 2:
            raise ValueError(f"Invalid device:backend pairing: {pair!r} in {text!r}: {_PAIR_FORMAT}")
        device, name = parts
        if device in of_device:
            raise ValueError(f"Duplicate device type {device} in backend string: {text!r}: {_PAIR_FORMAT}")
        of_device[device] = name
    return of_device


class BackendConfig:
    """The backend of each device type.

    >>> dist.BackendConfig("cpu:gloo,cuda:nccl").get_device_backend_map()
    {'cpu': 'gloo', 'cuda': 'nccl'}
    """

    def __init__(self, backend: str) -> None:
        name = Backend(backend)
        if name == Backend.UNDEFINED:
            devices = ["cpu", "cuda"] if is_nccl_available() else ["cpu"]
            self.device_backend_map = {device: Backend.default_device_backend_map[device] for device in devices}
        elif name in Backend.backend_list:
            self.device_backend_map = dict.fromkeys(Backend.backend_capability[name], name)
        elif ":" in name:
            self.device_backend_map = _read_pairs(name)
        else:
            warn(
                f"Device capability of {backend} unknown, assuming `cpu` and `cuda`. You can specify it in `device:backend` "
                "format in `init_process_group` call."
            )
            self.device_backend_map = dict.fromkeys(_DEVICES_WHEN_UNKNOWN, name)

    def __repr__(self) -> str:
        return ",".join(f"{device}:{name}" for device, name in self.device_backend_map.items())

    def get_device_backend_map(self) -> dict[str, str]:
        return self.device_backend_map


def device_type_of(device: Any, name: str = "device") -> str:
    """Return a device's type. The device is "cuda:1", a type, or an object like torch.device."""
    text = device if isinstance(device, str) else getattr(device, "type", None)
    if not isinstance(text, str):
        raise TypeError(
            f'{argument_names.title(name)} must be a name such as "cpu" or "cuda:1", or a torch.device, not {type(device).__name__}'
        )
    return text.partition(":")[0]


def get_default_backend_for_device(device: Any) -> str:
    """Return the default backend of a device."""
    kind = device_type_of(device)
    name = Backend.default_device_backend_map.get(kind)
    if name is None:
        known = ", ".join(map(str, Backend.default_device_backend_map))
        raise ValueError(f"{argument_names.title('device')}: Default backend not registered for device : got {device}, expected one of {known}")
    return name


def default_timeout(backend: str) -> timedelta:
    """Return the default timeout of groups: 30 minutes, or 10 for NCCL."""
    return timedelta(minutes=10 if backend == Backend.NCCL else 30)


# ---- availability


def is_available() -> bool:
    """Return True: every build includes this package."""
    return True


def is_gloo_available() -> bool:
    """Return True: "gloo" names the CPU backend, which is part of this package."""
    return True


def is_nccl_available() -> bool:
    """Return True if NCCL can be used; see also dldist.nccl.why_not_available()."""
    from dldist.nccl import library  # imported late, because the import is slow

    return library.is_available()


def is_mpi_available() -> bool:
    """Return True if an MPI library can be loaded; see also dldist.carriers.why_not("mpi")."""
    return carriers.is_available("mpi")


def is_ucc_available() -> bool:
    """Return True if UCC can be loaded; see also dldist.carriers.why_not("ucc")."""
    return carriers.is_available("ucc")


def is_xccl_available() -> bool:
    """Return True if oneCCL can be loaded; see also dldist.carriers.why_not("xccl")."""
    return carriers.is_available("xccl")


CHECKS = {
    "gloo": is_gloo_available,
    "nccl": is_nccl_available,
    "mpi": is_mpi_available,
    "ucc": is_ucc_available,
    "xccl": is_xccl_available,
}


def is_backend_available(backend: str) -> bool:
    """Return True if a backend is available, or all in a list such as "cpu:gloo,cuda:nccl"."""
    name = Backend(backend)
    names = _read_pairs(name).values() if ":" in name else [name]
    return all(map(_check_single_backend_availability, names))


def _check_single_backend_availability(backend_name: str) -> bool:
    name = Backend(backend_name)
    return CHECKS[name]() if name in CHECKS else name in Backend.backend_list


def is_launched() -> bool:
    """Return True if torchrun, dlrun, Slurm, Open MPI or MPICH started this process."""
    return launchers.detect() is not None


def is_torchelastic_launched() -> bool:
    """Return True if torchrun or dlrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ
