"""Functional forms in PyTorch's autograd. The gradient of a collective is another collective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dldist._base.arrays import NUMBER_DTYPES
from dldist.functional.form import Form


class _Collective(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, form: Form, *arrays: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.form = form
        return tuple(form.run_eagerly(arrays))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return (None, *ctx.form.transpose(*gradients))


def run(form: Form, arrays: Sequence[Any]) -> list[Any]:
    """Run a form as a node of the autograd graph, in which Python's numbers are tensors."""
    tensors = [torch.tensor(x, dtype=getattr(torch, NUMBER_DTYPES[type(x)])) if type(x) in NUMBER_DTYPES else x for x in arrays]
    results = _Collective.apply(form, *tensors)
    return [result.item() if type(x) in NUMBER_DTYPES else result for x, result in zip(arrays, results, strict=True)]


def wants_gradient(arrays: Sequence[Any]) -> bool:
    """Return True if autograd may need gradients of results that are computed from these arrays."""
    return torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in arrays)
