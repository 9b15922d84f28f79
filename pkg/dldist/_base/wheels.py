"""Where wheels put shared libraries, found by their files: no third-party package is imported."""

from __future__ import annotations

import os
import sys


def in_packages(*path: str) -> list[str]:
    """The files of this path in the folders that Python imports from."""
    return _existing([os.path.join(folder or ".", *path) for folder in sys.path])


def in_environment(name: str) -> list[str]:
    """The files of this name among the libraries of the environment, and of the Python that it was made from."""
    return _existing([os.path.join(prefix, "lib", name) for prefix in dict.fromkeys((sys.prefix, sys.base_prefix))])


def _existing(paths: list[str]) -> list[str]:
    return [path for path in paths if os.path.exists(path)]
