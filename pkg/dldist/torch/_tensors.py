"""Tensors among the arguments of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def device_type_of(arguments: tuple[Any, ...]) -> str:
    """The type of device that a call's tensors are on. The arguments are tensors, lists of them or lists of lists. A barrier has
    no tensors, but its options name a device."""
    for item in arguments:
        while isinstance(item, (list, tuple)) and item:
            item = item[0]
        device = getattr(item, "device", None)
        if device is not None:
            return device.type  # type: ignore[no-any-return]
    return "cpu"


def as_bytes(argument: Any) -> Any:
    """The argument, with its tensors of one-byte types viewed as bytes, on the same memory."""
    return _each(lambda tensor: tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor, argument)


def is_lazy(argument: Any) -> bool:
    """Whether a tensor in the argument is lazy: it stands for the conjugate or the negative of its memory."""
    if isinstance(argument, (list, tuple)):
        return any(map(is_lazy, argument))
    return isinstance(argument, torch.Tensor) and (argument.is_conj() or argument.is_neg())


def resolved(argument: Any) -> Any:
    """The argument, with lazy tensors replaced by copies that hold their values. Other tensors stay as they are."""
    return _each(lambda tensor: tensor.detach().resolve_conj().resolve_neg() if is_lazy(tensor) else tensor, argument)


def _each(change: Callable[[Any], Any], argument: Any) -> Any:
    if isinstance(argument, (list, tuple)):
        return [_each(change, item) for item in argument]
    return change(argument) if isinstance(argument, torch.Tensor) else argument
