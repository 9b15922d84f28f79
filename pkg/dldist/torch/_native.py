"""The backend in C++ (native/backend.cpp): compiled for the PyTorch that is installed when it is first needed, and kept.

It is compiled against PyTorch's own headers, as PyTorch's C++ extensions are, by the compiler that CXX names, or g++, c++ or clang++.
That takes about half a minute, once a machine and version. What comes out is kept in a folder of the user's. Where it cannot be
compiled or loaded, groups are made in Python (_plain.py); the reason is kept, too, so that the next process need not try again.

    python -m dldist.torch            says which of the two is in use
    python -m dldist.torch --build    compiles it now, for an image or a first run in time
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
_LIMIT_S = 600  # for compiling, and for waiting until another process has
_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", f"-DDLDIST_MODULE={_MODULE}")

_logger = logging.getLogger("dldist")
_loading = threading.Lock()  # threads may make their first groups at the same time


class CannotBuild(Exception):
    """Why there is no backend in C++."""


def load() -> Any:
    """The module with the class Backend; None if groups are made in Python, which the log gives the reason for."""
    return _loaded_or_why_not()[0]


def _loaded_or_why_not() -> tuple[Any, str]:
    with _loading:
        return _load_once()


@functools.cache
def _load_once() -> tuple[Any, str]:
    """The module, or None and why there is none."""
    wish = settings.value("torch_backend")
    if wish == "python":
        return None, "DLDIST_TORCH_BACKEND=python"
    try:
        return _loaded(_built(tries_again=wish == "c++")), ""
    except CannotBuild as reason:
        if wish == "c++":
            raise RuntimeError(f"DLDIST_TORCH_BACKEND=c++: {reason}") from reason
        _logger.warning('groups of the backend "dldist" are made in Python, and their calls take longer: %s', reason)
        return None, str(reason)


def state() -> str:
    """A sentence that says which way groups are made."""
    module, reason = _loaded_or_why_not()
    if module is not None:
        return f'groups of the backend "dldist" are made in C++: {module.__file__}'
    return f'groups of the backend "dldist" are made in Python: {reason}'


def build() -> pathlib.Path:
    """Compile it unless that is done, and load it; raises CannotBuild."""
    with _loading:
        library = _built(tries_again=True)
        try:
            _loaded(library)
        except CannotBuild:  # it is broken, or was made on another host that has the same home
            library.unlink(missing_ok=True)
            _loaded(_built(tries_again=True))
        return library


# ---- where it is kept


def _folder() -> pathlib.Path:
    """The folder of what is compiled from this source for this PyTorch and this Python."""
    base = pathlib.Path(settings.value("cache_home") or _home() / ".cache")
    versions = f"{torch.__version__}-{names.find('torch.version.git_version')}-{importlib.machinery.EXTENSION_SUFFIXES[0]}-{' '.join(_FLAGS)}"
    mark = hashlib.sha256(_SOURCE.read_bytes() + versions.encode()).hexdigest()[:16]
    return base / "dldist" / f"torch-{torch.__version__}-{sys.implementation.cache_tag}-{mark}"


def _home() -> pathlib.Path:
    try:
        return pathlib.Path.home()
    except RuntimeError as error:  # a user that the machine does not know, as in many containers, and no HOME
        raise CannotBuild(f"there is no folder to keep it in: {error} XDG_CACHE_HOME names one") from error


def _private(folder: pathlib.Path) -> pathlib.Path:
    """The folder, made if need be. What others could have put there is not loaded."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise CannotBuild(f"{folder} cannot be made ({error}); XDG_CACHE_HOME names another place") from error
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise CannotBuild(f"{folder} must belong to this user, and nobody else may write to it")
    return folder


@contextlib.contextmanager
def _alone(folder: pathlib.Path) -> Iterator[None]:
    """One process of the user's at a time."""
    deadline = time.monotonic() + _LIMIT_S
    with open(folder / "lock", "w", encoding="utf-8") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CannotBuild(f"another process has held {folder / 'lock'} for {_LIMIT_S} s") from None
                time.sleep(0.1)
            except OSError:
                break  # some file systems of clusters have no locks: several may compile at once, and the last one's is kept
        yield


# ---- compiling it


def _check_release() -> None:
    """Raise CannotBuild if PyTorch's class c10d::Backend lacks virtual methods that the source overrides, as before 2.9."""
    if names.find("torch.distributed.ProcessGroup.split_group") is None:  # added together with them
        raise CannotBuild(f"PyTorch {torch.__version__} is too old for the backend in C++, which needs 2.9 or newer")


def _built(tries_again: bool) -> pathlib.Path:
    _check_release()
    folder = _private(_folder())
    library = folder / f"{_MODULE}.so"
    if library.exists():
        return library
    try:
        with _alone(folder):
            if not library.exists():
                _compile_unless_it_failed(library, tries_again)
    except OSError as error:
        raise CannotBuild(f"{folder} cannot be used ({error}); XDG_CACHE_HOME names another place") from error
    return library


def _compile_unless_it_failed(library: pathlib.Path, tries_again: bool) -> None:
    failed = library.parent / "failed"
    if failed.exists() and not tries_again:
        raise CannotBuild(failed.read_text(encoding="utf-8"))
    try:
        _compile(library)
    except CannotBuild as reason:
        failed.write_text(str(reason), encoding="utf-8")
        raise
    failed.unlink(missing_ok=True)


def _compile(library: pathlib.Path) -> None:
    compiler = _compiler()
    _logger.warning(
        'compiling the backend "dldist" for PyTorch %s, once: this takes about half a minute (DLDIST_TORCH_BACKEND=python does without)',
        torch.__version__,
    )
    made = library.with_suffix(f".{os.urandom(8).hex()}.so")  # hosts with one home may have the same process ids
    try:
        done = subprocess.run(
            [*compiler, *_FLAGS, *_places(), str(_SOURCE), "-o", str(made), "-lc10", "-ltorch_cpu", "-ltorch_python"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if done.returncode != 0:
            raise CannotBuild(f"{compiler[0]} failed: {_first_error(done.stderr)}")
        made.rename(library)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotBuild(f"it could not be compiled: {error}") from error
    finally:
        made.unlink(missing_ok=True)


def _compiler() -> list[str]:
    import shlex

    given = shlex.split(os.environ.get("CXX", ""))
    for command in [given] if given else [[name] for name in _COMPILERS]:
        if shutil.which(command[0]) is not None:
            return command
    raise CannotBuild(f"there is no C++ compiler ({' or '.join(given[:1] or _COMPILERS)}). Debian, Ubuntu: apt-get install g++")


def _places() -> list[str]:
    """Where headers and libraries are, and which of the two standard libraries' ABIs PyTorch was built for."""
    import sysconfig

    home = pathlib.Path(torch.__file__).parent
    headers = sysconfig.get_path("include")
    if not os.path.exists(os.path.join(headers, "Python.h")):
        raise CannotBuild(f"there is no Python.h in {headers}. Debian, Ubuntu: apt-get install python3-dev")
    include = home / "include"
    abi = names.find("torch._C._GLIBCXX_USE_CXX11_ABI")
    flags = [] if abi is None else [f"-D_GLIBCXX_USE_CXX11_ABI={int(abi)}"]
    folders = (include, include / "torch" / "csrc" / "api" / "include", headers)
    return [*flags, *(f"-I{each}" for each in folders), f"-L{home / 'lib'}"]


def _first_error(text: str) -> str:
    lines = [line for line in text.splitlines() if "error" in line] or text.splitlines() or ["it said nothing"]
    return lines[0]


# ---- loading it


@functools.cache
def _loaded(library: pathlib.Path) -> Any:
    loader = importlib.machinery.ExtensionFileLoader(_MODULE, str(library))
    spec = importlib.util.spec_from_file_location(_MODULE, str(library), loader=loader)
    try:
        module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
        loader.exec_module(module)
    except ImportError as error:
        raise CannotBuild(f"{library} cannot be loaded: {error}") from error
    for name in ("create_default_device", "create_device"):  # programs call them on a class of Gloo's backends
        create = names.find(f"torch.distributed.ProcessGroupGloo.{name}")
        if create is not None:
            setattr(module.Backend, name, staticmethod(create))
    return module
