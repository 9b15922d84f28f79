"""UCC as a carrier."""

from __future__ import annotations

from typing import Any

from dldist import _core
from dldist._base import settings, wheels

WHAT_TO_INSTALL = (
    "install UCC 1.2 or newer and UCX (pip install nvidia-libcal-cu12 libucx-cu12), or set DLDIST_UCC_LIBRARY to the file"
)


def load() -> Any:
    return _core._carrier_open("ucc", candidates(), settings.value("ucc_library") or None)


def candidates() -> list[str]:
    """List the UCC libraries of wheels in the folders of sys.path."""
    return wheels.in_packages("nvidia", "libcal", "cu12", "lib", "libucc.so.1")
