"""Tensors among the arguments of a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def device_type_of(arguments: tuple[Any, ...]) -> str:
    """Where a call's tensors are, which are its arguments, in lists or in lists of lists; a barrier's options name a device."""
    for item in arguments:
        while isinstance(item, (list, tuple)) and item:
            item = item[0]
        device = getattr(item, "device", None)
        if device is not None:
            return device.type  # type: ignore[no-any-return]
    return "cpu"


def flat(outputs: Any) -> list[Any]:
    """Tensors, lists of them, and lists of lists, in one list."""
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    return [tensor for item in outputs or () for tensor in flat(item)]


def as_bytes(argument: Any) -> Any:
    """An argument with its tensors of one-byte types as tensors of bytes, on the same memory."""
    return _each(lambda tensor: tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor, argument)


def is_lazy(argument: Any) -> bool:
    """Whether a tensor in an argument stands for the conjugate or the negative of what is in memory."""
    if isinstance(argument, (list, tuple)):
        return any(map(is_lazy, argument))
    return isinstance(argument, torch.Tensor) and (argument.is_conj() or argument.is_neg())


def resolved(argument: Any) -> Any:
    """An argument with copies, which hold their values, of its lazy tensors; the others as they are."""
    return _each(lambda tensor: tensor.detach().resolve_conj().resolve_neg() if is_lazy(tensor) else tensor, argument)


def _each(change: Callable[[Any], Any], argument: Any) -> Any:
    if isinstance(argument, (list, tuple)):
        return [_each(change, item) for item in argument]
    return change(argument) if isinstance(argument, torch.Tensor) else argument
