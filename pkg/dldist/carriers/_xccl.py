"""oneCCL as a carrier, by its C interface: where it is found, and what it has to find in the environment."""

from __future__ import annotations

import os
from typing import Any

from dldist import _core
from dldist._base import settings, wheels

WHAT_TO_INSTALL = (
    "Install oneCCL, in this order: pip install --no-deps oneccl; pip install --no-deps oneccl-cpu impi-rt. Or set "
    "DLDIST_XCCL_LIBRARY to the file"
)
_LIBFABRIC = "libfabric.so.1"


def load() -> Any:
    explicit = settings.value("xccl_library") or None
    found = [explicit] if explicit is not None else candidates()
    if found:
        _check_order(os.path.dirname(found[0]))
        _prepare(os.path.dirname(found[0]))
    return _core._carrier_open("xccl", candidates(), explicit)


def candidates() -> list[str]:
    """oneCCL of a wheel."""
    return wheels.in_environment("libccl.so.2")


def _check_order(folder: str) -> None:
    """Refuse the libccl.so.1 of the wheel "oneccl" where it has taken the place of that of "oneccl-cpu": without a GPU, it ends the process."""
    from importlib import metadata

    path = os.path.join(folder, "libccl.so.1")
    try:
        files = metadata.files("oneccl-cpu") or []
    except metadata.PackageNotFoundError:
        return
    sizes = [file.size for file in files if file.name == "libccl.so.1" and os.path.realpath(file.locate()) == os.path.realpath(path)]
    if sizes and os.path.getsize(path) not in sizes:
        raise NotImplementedError(f"{path} is not that of oneccl-cpu: the wheel oneccl was installed after it, and has its own in its place")


def _prepare(folder: str) -> None:
    """Set what oneCCL and libfabric read when they begin, unless somebody has: for host arrays, with the libraries in one folder."""
    variables = {
        "CCL_PLUGIN": "ONECCL_LEGACY_CPU",
        "CCL_YIELD": "sched_yield",  # its own choice keeps ranks that share cores from working
        "CCL_LOG_LEVEL": "error",
    }
    if os.path.exists(os.path.join(folder, _LIBFABRIC)):
        variables |= {"FI_PROVIDER_PATH": folder, "CCL_ATL_SHM": "1"}
    for name, value in variables.items():
        os.environ.setdefault(name, value)
