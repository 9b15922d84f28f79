"""UCC as a carrier: where it is found."""

from __future__ import annotations

import os
import sys

from dldist import _core
from dldist.base import settings

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from typing import Any

WHAT_TO_INSTALL = (
    "Install UCC 1.2 or newer and UCX (pip install nvidia-libcal-cu12 libucx-cu12), or set DLDIST_UCC_LIBRARY to the file"
)
_IN_A_WHEEL = os.path.join("nvidia", "libcal", "cu12", "lib", "libucc.so.1")


def load() -> Any:
    return _core._carrier_open("ucc", candidates(), settings.value("ucc_library") or None)


def candidates() -> list[str]:
    """UCC of a wheel, in any folder that Python imports from."""
    paths = (os.path.join(folder or ".", _IN_A_WHEEL) for folder in sys.path)
    return [path for path in paths if os.path.exists(path)]
