"""Pickles calls and results for interpreters that this process starts.

A new interpreter cannot import lambdas, inner functions, or definitions of a notebook or prompt.
Only cloudpickle can pickle such objects; it is used if installed.
"""

from __future__ import annotations

import io
import pickle
import sys
import types
from multiprocessing.reduction import ForkingPickler
from typing import Any

loads = pickle.loads


def has_importable_main() -> bool:
    """True if a new interpreter can import __main__: for a script, but not for a notebook."""
    main = sys.modules["__main__"]
    return getattr(main, "__file__", None) is not None or getattr(main, "__spec__", None) is not None


def is_importable(obj: Any) -> bool:
    """True if a new interpreter can import this object, or it is not a function or class."""
    if getattr(obj, "__module__", None) == "__main__" and not has_importable_main():
        return False
    return "<" not in getattr(obj, "__qualname__", "")


def cloudpickle() -> Any:
    """Return the cloudpickle module, or None if it is not installed."""
    try:
        import cloudpickle as module  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        return None
    return module


def dumps(obj: object) -> bytes:
    """Pickle a call. Parts that cannot be imported need cloudpickle; without it, raise an error."""
    if (module := cloudpickle()) is not None:
        return bytes(module.dumps(obj))
    buffer = io.BytesIO()
    _Pickler(buffer).dump(obj)
    return buffer.getvalue()


def dumps_object(obj: object) -> bytes:
    """Pickle an object by value if its class cannot be imported and cloudpickle is installed. A
    class that is sent to another process and back remains the same class."""
    try:
        return pickle.dumps(obj)
    except Exception:
        if has_importable_main() or (module := cloudpickle()) is None:
            raise
    return bytes(module.dumps(obj))


class _Pickler(ForkingPickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, types.FunctionType)) and not is_importable(obj):
            raise pickle.PicklingError(
                f"{obj.__qualname__} cannot be pickled: expected a name that another process can import; define it in a module, "
                "or install cloudpickle"
            )
        return NotImplemented
