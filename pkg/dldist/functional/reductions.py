"""Reductions: the facts about the core's reductions that the functional forms need, and further
reductions, which are computed from the core's or fold all ranks' arrays in Python."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, Literal, NamedTuple, TypeAlias

from dldist import _core, types
from dldist._base import arrays
from dldist._base.arrays import NUMBER_DTYPES

Op: TypeAlias = types.Op | Literal["land", "lor", "lxor", "minloc", "maxloc", "LAND", "LOR", "LXOR", "MINLOC", "MAXLOC"]
"""A reduction of the functional calls: dldist.types.Op, or a name of a further reduction."""


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
    neutral = arrays.full_like(x, _neutral_element(name_of(op), dtype))
    if arrays.is_traced(x) or getattr(x, "requires_grad", False):
        library = sys.modules["torch"] if hasattr(x, "requires_grad") else sys.modules["jax"].numpy
        return library.where(library.zeros_like(x, dtype=library.bool), x, neutral)
    return neutral


def _neutral_element(name: str, dtype: str) -> float:
    if name not in ("min", "max", "band"):
        return int(name == "product")
    if "float" in dtype:
        highest = 448.0 if dtype == "float8_e4m3fn" else float("inf")
        return highest if name == "min" else -highest
    if dtype.startswith(("datetime", "timedelta")):
        return 2**63 - 1 if name == "min" else 1 - 2**63  # the lowest number is NaT
    digits = re.search("[0-9]+", dtype)
    is_signed, bits = dtype.startswith("int"), int(digits[0]) if digits is not None else 1
    if name == "band" and is_signed:
        return -1
    return -is_signed << bits - 1 if name == "max" else (1 << bits - is_signed) - 1


class Extension(NamedTuple):
    """A reduction that the core lacks. Ranks reduce the arrays of prepare(x) by the core's
    reduction `op`, or exchange them and fold them in rank order by fold(a, b) if `op` is "".
    restore(result, x) makes the result for x."""

    op: str
    prepare: Callable[[Any, str], Any]
    restore: Callable[[Any, Any], Any]
    fold: Callable[[Any, Any], Any] = max

    def reduce(self, parts: Sequence[Any], call: str) -> Any:
        total = parts[0]
        for part in parts[1:]:
            if _layout(part) != _layout(parts[0]):
                raise _core.DistMismatchError(f"{call}(): argument 'x' differs between ranks: got {_layout(part)} and {_layout(parts[0])}")
            result = self.fold(total, part)
            if _layout(result) != _layout(total):
                raise ValueError(f"{call}(): argument 'op' returned another type: got {_layout(result)}, expected {_layout(total)}, as its arguments")
            total = result
        return total


def extension_of(op: Op) -> Extension | None:
    """Return the extension for a name or a function, or None if the core has or refuses the reduction."""
    if isinstance(op, str):
        return _EXTENSIONS.get(op.lower())
    if isinstance(op, _core.ReduceOp) or not callable(op) or name_of(op):
        return None
    # numpy.logical_and is an extension by its name. A program's own function may have any name.
    name = "" if isinstance(op, FunctionType) else getattr(op, "__name__", "")
    return _EXTENSIONS.get(name if name.startswith("logical_") else "") or Extension("", lambda x, call: x, _like, op)


def _layout(x: Any) -> str:
    shape = tuple(x.shape) if hasattr(x, "shape") else (len(x),) if hasattr(x, "__len__") else ()
    return f"{getattr(x, 'dtype', None) or type(x).__name__} {shape}"


def _on_host(x: Any, call: str = "reduction") -> Any:
    import numpy

    source = arrays.value_family_of(x, call).source(x)
    content = numpy.asarray(memoryview(source) if isinstance(source, bytes) else source)
    return numpy.from_dlpack(source) if content.dtype == object else content


def _like(result: Any, x: Any) -> Any:
    """Convert a result, which may be a scalar of NumPy or a NumPy array, to the type of x."""
    family = arrays.value_family_of(x, "reduction")
    is_numpy = arrays.find_family(result) is arrays.NUMPY
    return arrays.new_array(family, x, _on_host(result).copy()) if is_numpy else result


# ---- logical reductions, of truth values


def _truth(x: Any, call: str) -> Any:
    family = arrays.value_family_of(x, call)
    return x != 0 if family in (arrays.TORCH, arrays.JAX) else _on_host(x, call) != 0


def _numbers(result: Any, x: Any) -> Any:
    if arrays.find_family(x) is arrays.TORCH:
        return result.to(x.dtype)
    return result.astype(x.dtype) if arrays.find_family(x) is arrays.JAX else _like(result.astype(_on_host(x).dtype), x)


# ---- minloc and maxloc, of pairs (value, index)


def _pairs(x: Any, call: str) -> Any:
    import numpy

    if arrays.is_traced(x) or (isinstance(x, tuple) and any(map(arrays.is_traced, x))):
        raise TypeError(f"{call}(): argument 'op': minloc and maxloc are unsupported in jax.jit; call them outside")
    if isinstance(x, tuple) and len(x) == 2:
        value, index = (_on_host(part, call) for part in x)
        if value.shape == index.shape:
            pairs = numpy.empty(value.shape, [("value", value.dtype), ("index", index.dtype)])
            pairs["value"], pairs["index"] = value, index
            return pairs
    elif len(getattr(getattr(x, "dtype", None), "names", None) or ()) == 2:
        return x
    expected = "(value, index) of one shape, or a structured array of two fields"
    raise ValueError(f"{call}(): argument 'x' is not a pair: got {type(x).__name__}, expected {expected}")


def _unpaired(result: Any, x: Any) -> Any:
    return tuple(_like(result[name].copy(), part) for name, part in zip(result.dtype.names, x)) if isinstance(x, tuple) else _like(result, x)


def _find_pair(is_max: bool) -> Callable[[Any, Any], Any]:
    def fold(a: Any, b: Any) -> Any:
        import numpy

        (a_value, a_index), (b_value, b_index) = ([x[name] for name in x.dtype.names] for x in (a, b))
        a_is_nan, b_is_nan = a_value != a_value, b_value != b_value
        is_better = (b_value > a_value if is_max else b_value < a_value) | (b_is_nan & ~a_is_nan)
        is_equal = (b_value == a_value) | (b_is_nan & a_is_nan)
        result = numpy.array(a)  # numpy.where would drop padding between the fields, and the byte order
        numpy.copyto(result, b, where=is_better | (is_equal & (b_index < a_index)))
        return result

    return fold


_LAND, _LOR, _LXOR = (Extension(op, _truth, _numbers) for op in ("band", "bor", "bxor"))
_EXTENSIONS = {
    "land": _LAND, "logical_and": _LAND, "lor": _LOR, "logical_or": _LOR, "lxor": _LXOR, "logical_xor": _LXOR,
    "minloc": Extension("", _pairs, _unpaired, _find_pair(False)), "maxloc": Extension("", _pairs, _unpaired, _find_pair(True)),
}  # fmt: skip
