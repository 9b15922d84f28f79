"""Facts about reductions that the functional forms need."""

from __future__ import annotations

import re
import sys
from typing import Any

from dldist import _core
from dldist._base import arrays
from dldist._base.arrays import NUMBER_DTYPES
from dldist.types import Op


def name_of(op: Op) -> str:
    """Return the name of one of the core's reductions, such as "sum", or "" if it is unknown."""
    try:
        return _core.ReduceOp(op).name.lower()
    except (TypeError, ValueError):
        return ""


def is_linear(op: Op) -> bool:
    """Return True if a reduction has a gradient, which is computed by the same reduction."""
    return name_of(op) in ("sum", "avg")


def neutral_like(x: Any, op: Op) -> Any:
    """Return an array like x that is filled with the reduction's neutral element. In JAX and
    PyTorch, the result depends on x, so that a gradient of x runs its collective on every rank."""
    dtype = NUMBER_DTYPES.get(type(x)) or str(getattr(x, "dtype", "")).removeprefix("torch.") or arrays.dtype_name(x)
    neutral = arrays.full_like(x, _neutral_element(op, dtype))
    if arrays.is_traced(x) or getattr(x, "requires_grad", False):
        library = sys.modules["torch"] if hasattr(x, "requires_grad") else sys.modules["jax"].numpy
        return library.where(library.zeros_like(x, dtype=library.bool), x, neutral)
    return neutral


def _neutral_element(op: Op, dtype: str) -> Any:
    """Return the number for a dtype's name."""
    name = name_of(op)
    digits = re.search("[0-9]+", dtype)
    bits = int(digits[0]) if digits is not None else 1
    if name not in ("min", "max", "band"):
        return int(name == "product")
    if "float" in dtype:
        highest = 448.0 if dtype == "float8_e4m3fn" else float("inf")
        return highest if name == "min" else -highest
    if dtype.startswith(("datetime", "timedelta")):
        return 2**63 - 1 if name == "min" else 1 - 2**63  # the lowest number is NaT
    is_signed = dtype.startswith("int")
    if name == "band" and is_signed:
        return -1
    return -is_signed << bits - 1 if name == "max" else (1 << bits - is_signed) - 1
