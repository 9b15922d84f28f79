"""Keeps torch.compile away from our code."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

import _dldist_torch_names as names

_Item = TypeVar("_Item", bound=Callable[..., Any])


def _setter() -> Callable[[Any], None] | None:
    """A function that has the compiler skip a code object and all that it calls; None if this PyTorch has no such setting."""
    set_strategy = names.find("torch._C._dynamo.eval_frame.set_code_exec_strategy")
    strategy = names.find("torch._C._dynamo.eval_frame._FrameExecStrategy")
    skip = names.find("torch._C._dynamo.eval_frame._FrameAction.SKIP")
    if set_strategy is None or strategy is None or skip is None:
        return None
    return lambda code: set_strategy(code, strategy(skip, skip))


_skip_code = _setter()


def not_compiled(item: _Item) -> _Item:
    """Make compiled programs run a function, or everything that a class defines, as it is, together with all that it calls.

    Where its graph breaks, the compiler looks into every function that runs, including those that DDP calls from C++. It could
    follow nothing in ours. torch.compiler.disable() does this too, but it imports the compiler, which takes seconds.
    """
    for member in [item] if isinstance(item, FunctionType) else vars(item).values():
        function = member.fget if isinstance(member, property) else member
        if isinstance(function, FunctionType) and _skip_code is not None:
            _skip_code(function.__code__)
    return item
