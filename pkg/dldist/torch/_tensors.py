"""Functions for the tensors in a call's arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def device_type_of(arguments: tuple[Any, ...]) -> str:
    """Return the device type of a call's tensors; for a barrier, of the device in the options."""
    for item in arguments:
        while isinstance(item, (list, tuple)) and item:
            item = item[0]
        device = getattr(item, "device", None)
        if device is not None:
            return device.type  # type: ignore[no-any-return]
    return "cpu"


def view_as_bytes(argument: Any) -> Any:
    """View tensors with one-byte elements as bytes, on the same memory."""
    return _map_tensors(lambda tensor: tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor, argument)


def is_lazy(argument: Any) -> bool:
    """True if a tensor is lazy: it represents the conjugate or negative of its memory."""
    if isinstance(argument, (list, tuple)):
        return any(map(is_lazy, argument))
    return isinstance(argument, torch.Tensor) and (argument.is_conj() or argument.is_neg())


def resolve_lazy(argument: Any) -> Any:
    """Replace lazy tensors by copies with resolved values; keep all other tensors."""
    return _map_tensors(lambda tensor: tensor.detach().resolve_conj().resolve_neg() if is_lazy(tensor) else tensor, argument)


def _map_tensors(convert: Callable[[Any], Any], argument: Any) -> Any:
    if isinstance(argument, (list, tuple)):
        return [_map_tensors(convert, item) for item in argument]
    return convert(argument) if isinstance(argument, torch.Tensor) else argument
