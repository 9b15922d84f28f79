"""Finds shared libraries of installed wheels by file name, without importing their packages."""

from __future__ import annotations

import os
import sys


def in_packages(*path: str) -> list[str]:
    """List the existing files at this path below each folder of sys.path."""
    return _existing([os.path.join(folder or ".", *path) for folder in sys.path])


def in_environment(name: str) -> list[str]:
    """List the existing files lib/NAME in the virtual environment and its base Python."""
    return _existing([os.path.join(prefix, "lib", name) for prefix in dict.fromkeys((sys.prefix, sys.base_prefix))])


def _existing(paths: list[str]) -> list[str]:
    return [path for path in paths if os.path.exists(path)]
