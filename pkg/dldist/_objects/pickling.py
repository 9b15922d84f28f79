"""Pickles of calls and results between a process and the interpreters that it starts.

Another interpreter cannot import functions and classes of a notebook or a prompt, lambdas, and inner functions. Only cloudpickle can
send these; it is used if it is installed.
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
    """Whether a new interpreter can import __main__: it is a script or a module, not a prompt or a notebook."""
    main = sys.modules["__main__"]
    return getattr(main, "__file__", None) is not None or getattr(main, "__spec__", None) is not None


def is_importable(thing: Any) -> bool:
    """Whether another interpreter can find a function or a class by its name. Objects without a name count as importable."""
    if getattr(thing, "__module__", None) == "__main__" and not has_importable_main():
        return False
    return "<" not in getattr(thing, "__qualname__", "")


def cloudpickle() -> Any:
    """The module, if it is installed; else None."""
    try:
        import cloudpickle as module  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        return None
    return module


def dumps(thing: object) -> bytes:
    """A pickle of a call that has a part that no other interpreter can import; without cloudpickle such a part is an error."""
    if (module := cloudpickle()) is not None:
        return bytes(module.dumps(thing))
    buffer = io.BytesIO()
    _Pickler(buffer).dump(thing)
    return buffer.getvalue()


def dumps_object(thing: object) -> bytes:
    """A pickle. If cloudpickle is installed, it includes classes and functions of a notebook, which no other interpreter can import. A
    class that is sent to another process and back stays the same class."""
    try:
        return pickle.dumps(thing)
    except Exception:
        if has_importable_main() or (module := cloudpickle()) is None:
            raise
    return bytes(module.dumps(thing))


class _Pickler(ForkingPickler):
    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, (type, types.FunctionType)) and not is_importable(thing):
            raise pickle.PicklingError(
                f"{thing.__qualname__} cannot be sent to another process, which cannot import it: put it into a module, "
                "or install cloudpickle"
            )
        return NotImplemented
