"""Keeps torch.compile away from our code."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame

_Item = TypeVar("_Item", bound=Callable[..., Any])


def not_compiled(item: _Item) -> _Item:
    """Make compiled programs run a function, or everything that a class defines, as it is, together with all that it calls.

    Where its graph breaks, the compiler looks into every function that runs, including those that DDP calls from C++. It could
    follow nothing in ours. torch.compiler.disable() does this too, but it imports the compiler, which takes seconds.
    """
    for member in [item] if isinstance(item, FunctionType) else vars(item).values():
        function = member.fget if isinstance(member, property) else member
        if isinstance(function, FunctionType) and hasattr(eval_frame, "set_code_exec_strategy"):  # not before 2.7
            skip = eval_frame._FrameAction.SKIP
            eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
    return item
