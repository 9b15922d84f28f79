"""Keeps torch.compile from tracing dldist's code."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

import _dldist_torch_names as names

_Item = TypeVar("_Item", bound=Callable[..., Any])


def _setter() -> Callable[[Any], None] | None:
    """Return a function that makes torch.compile skip a code object and its callees, or None."""
    set_strategy = names.find("torch._C._dynamo.eval_frame.set_code_exec_strategy")
    strategy = names.find("torch._C._dynamo.eval_frame._FrameExecStrategy")
    skip = names.find("torch._C._dynamo.eval_frame._FrameAction.SKIP")
    if set_strategy is None or strategy is None or skip is None:
        return None
    return lambda code: set_strategy(code, strategy(skip, skip))


_skip_code = _setter()


def not_compiled(item: _Item) -> _Item:
    """Make torch.compile skip a function (or all functions of a class) and its callees.

    At graph breaks the compiler traces every function that runs, even functions that DDP calls from
    C++, but it cannot trace dldist's functions. torch.compiler.disable() is not used, because it
    would import the compiler, which takes seconds.
    """
    for member in [item] if isinstance(item, FunctionType) else vars(item).values():
        function = member.fget if isinstance(member, property) else member
        if isinstance(function, FunctionType) and _skip_code is not None:
            _skip_code(function.__code__)
    return item
