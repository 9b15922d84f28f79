"""What programs build on collectives. `join`: loops that are not equally long on all ranks."""

from __future__ import annotations

from dldist.algorithms import join

__all__ = ["join"]
