"""What SharedArray does that is written in Python. Imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dldist import _core

_SHOWN = 1000  # elements; of larger arrays the ends are shown
_EDGE = 3


def to_list(array: _core.SharedArray) -> Any:
    """The values, in lists of lists."""
    if array.ndim == 0:
        return array[()]
    return [array[i] if array.ndim == 1 else to_list(array[i]) for i in range(len(array))]


def represent(array: _core.SharedArray) -> str:
    """repr(): the values, as much of them as can be looked at, the shape where they do not show it, and the dtype."""
    shape = "" if array.size else f"shape={array.shape}, "
    return f"SharedArray({_values(array, array.size > _SHOWN)}, {shape}dtype={array.dtype!r})"


def _values(array: Any, is_short: bool) -> str:
    if array.ndim == 0:
        return repr(array[()])
    indices: list[Any] = list(range(len(array)))
    if is_short and len(array) > 2 * _EDGE:
        indices[_EDGE:-_EDGE] = [...]
    texts = ["..." if index is ... else _item(array[index], is_short) for index in indices]
    return f"[{', '.join(texts)}]"


def _item(item: Any, is_short: bool) -> str:
    return _values(item, is_short) if hasattr(item, "ndim") else repr(item)


def as_numpy(array: _core.SharedArray, dtype: Any = None, *, copy: bool | None = None) -> Any:
    """An array of NumPy in the same memory; of dtypes that are not NumPy's own by ml_dtypes."""
    import numpy

    try:
        here: Any = numpy.asarray(memoryview(array))  # type: ignore[arg-type]
    except BufferError:
        import ml_dtypes

        flat = numpy.frombuffer(array, numpy.uint8)  # type: ignore[call-overload]
        here = flat.view(getattr(ml_dtypes, array.dtype)).reshape(array.shape)
    if copy is False and dtype is not None and here.dtype != dtype:
        raise ValueError(f"a SharedArray of {array.dtype} cannot become an array of {dtype} without a copy")
    changed = here if dtype is None else here.astype(dtype, copy=False)
    return changed.copy() if copy and changed is here else changed

