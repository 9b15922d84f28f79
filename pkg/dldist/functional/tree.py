"""Trees of arrays and numbers: dicts, lists, tuples, named tuples, None, and JAX's containers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from dldist._base import arrays


def flatten(tree: Any, call: str) -> tuple[list[Any], Callable[..., Any], list[str]]:
    """List the tree's arrays and numbers (dicts in key order); return them, a function to rebuild
    the tree, and each one's path, such as "['loss'][0]"."""
    walk = _Walk(call)
    build = walk.node(tree, "")

    return walk.leaves, lambda *others: build(iter(others)), walk.paths


class _Walk:
    """Collects the leaves of a tree. Each method returns a function to rebuild a part of the tree
    from an iterator of leaves."""

    def __init__(self, call: str) -> None:
        self.call = call
        self.leaves: list[Any] = []
        self.paths: list[str] = []

    def node(self, tree: Any, path: str) -> Callable[[Any], Any]:
        if tree is None:
            return lambda others: None
        if isinstance(tree, dict):
            return self._dict(tree, path)
        if isinstance(tree, (list, tuple)):
            parts = [self.node(part, f"{path}[{i}]") for i, part in enumerate(tree)]
            kind = type(tree)
            if hasattr(kind, "_fields"):
                return lambda others: kind(*[part(others) for part in parts])
            return lambda others: kind([part(others) for part in parts])
        leaf = arrays.as_value(tree)
        if arrays.find_family(leaf) is None:
            container = self._jax_container(tree, path)
            if container is not None:
                return container
        arrays.value_family_of(leaf, self.call, path and f" at {path}")
        self._add(leaf, path)
        return next

    def _add(self, leaf: Any, path: str) -> None:
        self.leaves.append(leaf)
        self.paths.append(path)

    def _dict(self, tree: dict[Any, Any], path: str) -> Callable[[Any], Any]:
        try:
            order = sorted(tree)
        except TypeError:
            raise TypeError(
                f"{self.call}(): a dict in the tree has keys without an order: got {list(tree)}, expected keys that can be sorted"
            ) from None
        parts = {key: self.node(tree[key], f"{path}[{key!r}]") for key in order}

        def build(others: Any) -> Any:
            values = {key: part(others) for key, part in parts.items()}
            return {key: values[key] for key in tree}

        return build

    def _jax_container(self, tree: Any, path: str) -> Callable[[Any], Any] | None:
        """Add the leaves of a container that is registered with JAX. Return None if it is not."""
        jax = sys.modules.get("jax")
        if jax is None or jax.tree_util.all_leaves([tree]):
            return None
        flat, structure = jax.tree_util.tree_flatten_with_path(tree)
        for keys, leaf in flat:
            self._add(arrays.as_value(leaf), path + jax.tree_util.keystr(keys))
        return lambda others: jax.tree_util.tree_unflatten(structure, [next(others) for _ in flat])
