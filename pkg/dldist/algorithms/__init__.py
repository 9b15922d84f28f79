"""Algorithms built on collectives. `join`: loops whose lengths differ between ranks."""

from __future__ import annotations

from dldist.algorithms import join

__all__ = ["join"]
