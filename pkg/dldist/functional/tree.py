"""Trees of arrays: dicts, lists, tuples, named tuples, None, and JAX's registered containers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from dldist._base import arrays


def flatten(tree: Any, call: str) -> tuple[list[Any], Callable[..., Any]]:
    """List the tree's arrays (dicts in key order); return them and a function to rebuild it."""
    leaves: list[Any] = []
    build = _walk(tree, leaves, call)

    return leaves, lambda *others: build(iter(others))


def _walk(tree: Any, leaves: list[Any], call: str) -> Callable[[Any], Any]:
    """Append the tree's leaves; return a function to rebuild it from an iterator of leaves."""
    if tree is None:
        return lambda others: None
    if isinstance(tree, dict):
        return _walk_dict(tree, leaves, call)
    if isinstance(tree, (list, tuple)):
        parts = [_walk(part, leaves, call) for part in tree]
        kind = type(tree)
        if hasattr(kind, "_fields"):
            return lambda others: kind(*[part(others) for part in parts])
        return lambda others: kind([part(others) for part in parts])
    if arrays.find_family(tree) is None:
        foreign = _walk_with_jax(tree, leaves)
        if foreign is not None:
            return foreign
    arrays.family_of(tree, call)
    leaves.append(tree)
    return next


def _walk_dict(tree: dict[Any, Any], leaves: list[Any], call: str) -> Callable[[Any], Any]:
    try:
        order = sorted(tree)
    except TypeError:
        raise TypeError(f"{call}(): a dict in the tree has keys without an order: got {list(tree)}, expected keys that can be sorted") from None
    parts = {key: _walk(tree[key], leaves, call) for key in order}

    def build(others: Any) -> Any:
        values = {key: part(others) for key, part in parts.items()}
        return {key: values[key] for key in tree}

    return build


def _walk_with_jax(tree: Any, leaves: list[Any]) -> Callable[[Any], Any] | None:
    """Walk a container that is registered with JAX. Return None if it is not."""
    jax = sys.modules.get("jax")
    if jax is None or jax.tree_util.all_leaves([tree]):
        return None
    flat, structure = jax.tree_util.tree_flatten(tree)
    leaves.extend(flat)
    return lambda others: jax.tree_util.tree_unflatten(structure, [next(others) for _ in flat])
