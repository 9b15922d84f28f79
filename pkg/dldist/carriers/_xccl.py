"""oneCCL as a carrier, through its C interface, and the environment variables that it needs."""

from __future__ import annotations

import os
from typing import Any

from dldist import _core
from dldist._base import settings, wheels

WHAT_TO_INSTALL = (
    "install oneCCL, in this order: pip install --no-deps oneccl; pip install --no-deps oneccl-cpu impi-rt; or set "
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
    """List the oneCCL libraries of wheels."""
    return wheels.in_environment("libccl.so.2")


def _check_order(folder: str) -> None:
    """Raise if the wheel oneccl has replaced the libccl.so.1 of oneccl-cpu: the new file aborts
    without a GPU."""
    from importlib import metadata

    path = os.path.join(folder, "libccl.so.1")
    try:
        files = metadata.files("oneccl-cpu") or []
    except metadata.PackageNotFoundError:
        return
    sizes = [file.size for file in files if file.name == "libccl.so.1" and os.path.realpath(file.locate()) == os.path.realpath(path)]
    if sizes and os.path.getsize(path) not in sizes:
        raise NotImplementedError(f"{path} is not of oneccl-cpu: the wheel oneccl replaced it; reinstall oneccl-cpu")


def _prepare(folder: str) -> None:
    """Set unset variables so that oneCCL uses host arrays, with libfabric's plugins in `folder`."""
    variables = {
        "CCL_PLUGIN": "ONECCL_LEGACY_CPU",
        "CCL_YIELD": "sched_yield",  # oneCCL's default would starve ranks that share a core
        "CCL_LOG_LEVEL": "error",
    }
    if os.path.exists(os.path.join(folder, _LIBFABRIC)):
        variables |= {"FI_PROVIDER_PATH": folder, "CCL_ATL_SHM": "1"}
    for name, value in variables.items():
        os.environ.setdefault(name, value)
