"""Compiles the C++ backend (native/backend.cpp) for the installed PyTorch when it is first needed.

The backend is compiled against PyTorch's headers, like PyTorch's C++ extensions, by the compiler in
CXX, or g++, c++ or clang++. This takes about half a minute, once for each machine and version: the
library is stored in the user's cache folder. If the backend cannot be compiled or loaded, groups
are in Python (_python_group.py), and the reason is stored, so that later processes do not retry.

    python -m dldist.torch            reports which of the two is in use
    python -m dldist.torch --build    compiles it now, for an image or before the first run
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.machinery
import importlib.util
import logging
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import _dldist_torch_names as names
import torch

from dldist._base import settings

_SOURCE = pathlib.Path(__file__).parent / "native" / "backend.cpp"
_MODULE = "_dldist_torch_backend"
_COMPILERS = ("g++", "c++", "clang++")
_LIMIT_S = 600  # maximum seconds to compile, or to wait for another process
_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", f"-DDLDIST_MODULE={_MODULE}")

_logger = logging.getLogger("dldist")
_load_lock = threading.Lock()  # held because threads may create their first groups concurrently


class BuildError(Exception):
    """Raised if there is no C++ backend; the message is the reason."""


def load() -> Any:
    """Return the module with the class Backend, or None if groups are in Python; log the reason."""
    return _load_locked()[0]


def _load_locked() -> tuple[Any, str]:
    with _load_lock:
        return _load_once()


@functools.cache
def _load_once() -> tuple[Any, str]:
    """Return the module and "", or None and the reason why there is none."""
    choice = settings.value("torch_backend")
    if choice == "python":
        return None, "DLDIST_TORCH_BACKEND=python"
    try:
        return _import_library(_build_if_needed(retry=choice == "c++")), ""
    except BuildError as reason:
        if choice == "c++":
            raise RuntimeError(f"DLDIST_TORCH_BACKEND=c++: {reason}") from reason
        _logger.warning('groups of the backend "dldist" use the slower backend in Python: %s', reason)
        return None, str(reason)


def state() -> str:
    """Describe whether groups are in C++ or in Python, and why."""
    module, reason = _load_locked()
    if module is not None:
        return f'groups of the backend "dldist" are made in C++: {module.__file__}'
    return f'groups of the backend "dldist" are made in Python: {reason}'


def build() -> pathlib.Path:
    """Compile the library unless it exists, and load it. Raise BuildError if that fails."""
    with _load_lock:
        library = _build_if_needed(retry=True)
        try:
            _import_library(library)
        except BuildError:  # broken, or built on another host with this home folder
            library.unlink(missing_ok=True)
            _import_library(_build_if_needed(retry=True))
        return library


# ---- the cache folder


def _folder() -> pathlib.Path:
    """Return the cache folder for libraries of this source, PyTorch and Python."""
    cache_folder = pathlib.Path(settings.value("cache_home") or _home() / ".cache")
    versions = f"{torch.__version__}-{names.find('torch.version.git_version')}-{importlib.machinery.EXTENSION_SUFFIXES[0]}-{' '.join(_FLAGS)}"
    digest = hashlib.sha256(_SOURCE.read_bytes() + versions.encode()).hexdigest()[:16]
    return cache_folder / "dldist" / f"torch-{torch.__version__}-{sys.implementation.cache_tag}-{digest}"


def _home() -> pathlib.Path:
    try:
        return pathlib.Path.home()
    except RuntimeError as error:  # no HOME and no passwd entry, as in many containers
        raise BuildError(f"no folder for the compiled library: {error}; set XDG_CACHE_HOME") from error


def _make_private(folder: pathlib.Path) -> pathlib.Path:
    """Create the folder if needed. Raise BuildError if other users can write to it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise BuildError(f"{folder} cannot be created: {error}; set XDG_CACHE_HOME") from error
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise BuildError(f"{folder} has other permissions: expected a folder of this user that only this user may write to")
    return folder


@contextlib.contextmanager
def _exclusive_lock(folder: pathlib.Path) -> Iterator[None]:
    """Lock the folder against other processes of this user, within a `with` block."""
    deadline = time.monotonic() + _LIMIT_S
    with open(folder / "lock", "w", encoding="utf-8") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BuildError(f"another process has held {folder / 'lock'} for {_LIMIT_S} s") from None
                time.sleep(0.1)
            except OSError:
                break  # no locks in this file system: the last compilation wins
        yield


# ---- compilation


def _check_release() -> None:
    """Raise BuildError if PyTorch is older than 2.9: its c10d::Backend lacks virtual methods."""
    if names.find("torch.distributed.ProcessGroup.split_group") is None:  # also new in 2.9
        raise BuildError(f"PyTorch is too old for the backend in C++: got {torch.__version__}, expected 2.9 or newer")


def _build_if_needed(retry: bool) -> pathlib.Path:
    _check_release()
    folder = _make_private(_folder())
    library = folder / f"{_MODULE}.so"
    if library.exists():
        return library
    try:
        with _exclusive_lock(folder):
            if not library.exists():
                _compile_unless_failed_before(library, retry)
    except OSError as error:
        raise BuildError(f"{folder} cannot be used: {error}; set XDG_CACHE_HOME") from error
    return library


def _compile_unless_failed_before(library: pathlib.Path, retry: bool) -> None:
    failure_file = library.parent / "failed"
    if failure_file.exists() and not retry:
        raise BuildError(failure_file.read_text(encoding="utf-8"))
    try:
        _compile(library)
    except BuildError as reason:
        failure_file.write_text(str(reason), encoding="utf-8")
        raise
    failure_file.unlink(missing_ok=True)


def _compile(library: pathlib.Path) -> None:
    compiler = _compiler()
    _logger.warning(
        'compiling the backend "dldist" for PyTorch %s, once: this takes about half a minute (DLDIST_TORCH_BACKEND=python avoids it)',
        torch.__version__,
    )
    temporary = library.with_suffix(f".{os.urandom(8).hex()}.so")  # the name is unique among hosts
    try:
        completed = subprocess.run(
            [*compiler, *_FLAGS, *_path_flags(), str(_SOURCE), "-o", str(temporary), "-lc10", "-ltorch_cpu", "-ltorch_python"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if completed.returncode != 0:
            lines = completed.stderr.splitlines() or ["it said nothing"]
            raise BuildError(f"{compiler[0]} failed: {next((line for line in lines if 'error' in line), lines[0])}")
        temporary.rename(library)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"compilation failed: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _compiler() -> list[str]:
    import shlex

    configured = shlex.split(os.environ.get("CXX", ""))
    for command in [configured] if configured else [[name] for name in _COMPILERS]:
        if shutil.which(command[0]) is not None:
            return command
    raise BuildError(f"no C++ compiler: expected {' or '.join(configured[:1] or _COMPILERS)}; on Debian and Ubuntu: apt-get install g++")


def _path_flags() -> list[str]:
    """Return the compiler's flags for headers, libraries and PyTorch's libstdc++ ABI."""
    import sysconfig

    home = pathlib.Path(torch.__file__).parent
    headers = sysconfig.get_path("include")
    if not os.path.exists(os.path.join(headers, "Python.h")):
        raise BuildError(f"no Python.h in {headers}; on Debian and Ubuntu: apt-get install python3-dev")
    include = home / "include"
    abi = names.find("torch._C._GLIBCXX_USE_CXX11_ABI")
    flags = [] if abi is None else [f"-D_GLIBCXX_USE_CXX11_ABI={int(abi)}"]
    folders = (include, include / "torch" / "csrc" / "api" / "include", headers)
    return [*flags, *(f"-I{each}" for each in folders), f"-L{home / 'lib'}"]


# ---- loading


@functools.cache
def _import_library(library: pathlib.Path) -> Any:
    loader = importlib.machinery.ExtensionFileLoader(_MODULE, str(library))
    spec = importlib.util.spec_from_file_location(_MODULE, str(library), loader=loader)
    try:
        module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
        loader.exec_module(module)
    except ImportError as error:
        raise BuildError(f"{library} cannot be loaded: {error}") from error
    for name in ("create_default_device", "create_device"):  # programs call these on Gloo's class
        create = names.find(f"torch.distributed.ProcessGroupGloo.{name}")
        if create is not None:
            setattr(module.Backend, name, staticmethod(create))
    return module
