"""Pickles functions that another interpreter cannot import: from notebooks and prompts, lambdas, and inner functions.

A function is sent as its code, with the globals that it names. This works only between a process and the interpreters that it starts,
because they run the same Python. If cloudpickle is installed, it is used instead; it can send classes, too.
"""

from __future__ import annotations

import dis
import importlib
import io
import marshal
import pickle
import sys
import types
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any


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


loads = pickle.loads


class _Pickler(ForkingPickler):
    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, types.FunctionType) and not is_importable(thing):
            return _reduce_function(thing)
        if isinstance(thing, types.ModuleType):
            return importlib.import_module, (thing.__name__,)
        if isinstance(thing, type) and not is_importable(thing):
            raise pickle.PicklingError(
                f"class {thing.__qualname__} cannot be sent to another process, which cannot import it: put it into a module, "
                "or install cloudpickle"
            )
        return NotImplemented


def _reduce_function(function: types.FunctionType) -> tuple[Any, ...]:
    cells = function.__closure__ or ()
    made_of = (marshal.dumps(function.__code__), function.__module__, function.__name__, function.__qualname__, len(cells))
    globals_ = {}
    if function.__module__ == "__main__" and not has_importable_main():
        names = set(_global_names(function.__code__))
        globals_ = {name: function.__globals__[name] for name in sorted(names) if name in function.__globals__}
    state = (
        globals_,
        [cell.cell_contents for cell in cells],
        function.__defaults__,
        function.__kwdefaults__,
        function.__dict__,
    )
    # The state is set after the function exists, so it may refer to the function: recursion works.
    return _make_function, made_of, state, None, None, _set_state


def _global_names(code: types.CodeType) -> Iterator[str]:
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _make_function(code: bytes, module: str, name: str, qualname: str, ncells: int) -> types.FunctionType:
    namespace = importlib.import_module(module).__dict__
    closure = tuple(types.CellType() for _ in range(ncells))
    function = types.FunctionType(marshal.loads(code), namespace, name, None, closure)
    function.__module__, function.__qualname__ = module, qualname
    return function


def _set_state(function: types.FunctionType, state: tuple[Any, ...]) -> None:
    globals_, contents, function.__defaults__, function.__kwdefaults__, attributes = state
    function.__globals__.update(globals_)
    for cell, content in zip(function.__closure__ or (), contents, strict=True):
        cell.cell_contents = content
    function.__dict__.update(attributes)
