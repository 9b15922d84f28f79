"""Looks up the private and version-dependent names of PyTorch that dldist relies on.

PyTorch may remove a private name in any release, and some names appeared or disappeared between 2.6
and 2.15. NAMES lists all names. Other modules call find() instead of comparing versions, and
disable the feature that needs an absent name.

This module is outside of the package because _dldist_torch uses it before loading the extension.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import warnings
from types import ModuleType
from typing import Any, Final

_DISTRIBUTED: Final = "torch.distributed.distributed_c10d"
_GROUP: Final = "torch.distributed.ProcessGroup"
_IN_C: Final = "torch._C._distributed_c10d"


class Name:
    """A private or version-dependent name of PyTorch.

    Args:
        path: The dotted name, starting with "torch"; "f(x)" is the parameter x of the function f.
        purpose: The part of dldist that needs the name.
        since: The first release of PyTorch that has the name.
        until: The last release that has the name, or in which dldist needs it; "" if none.
        is_of_gloo: True if only builds of PyTorch with Gloo have the name.
    """

    def __init__(self, path: str, purpose: str, since: str = "2.6", until: str = "", is_of_gloo: bool = False) -> None:
        self.path = path
        self.purpose = purpose
        self.since = since
        self.until = until
        self.is_of_gloo = is_of_gloo

    def is_expected_in(self, version: str) -> bool:
        """True if this release of PyTorch should have the name."""
        return _release(self.since) <= _release(version) and (not self.until or _release(version) <= _release(self.until))


_AS_GLOO = 'the wrapper of TORCH_DISTRIBUTED_DEBUG=DETAIL for "gloo" over dldist'
_GROUPS_OF_OTHERS = "groups in Python beside another backend"
_BUCKETS = "share_buckets()"
_COMPILED = "torch.compile around calls of groups"
_DIST2 = "torch.distributed._dist2.new_group()"
_DUMPS = "entries in PyTorch's dumps of its flight recorder"
_OPERATIONS = "operations of groups in Python for tracing"
_PROFILE = "the profiler's entries of groups in Python"
_WORKS = "futures of groups in Python"

NAMES = (
    Name("torch.distributed._dist2._BACKENDS", _DIST2, since="2.9", until="2.13"),
    Name("torch.distributed._dist2.register_backend", _DIST2, since="2.9", until="2.13"),
    Name(f"{_GROUP}._register_backend", _DIST2, until="2.13"),
    Name(f"{_GROUP}._set_default_backend", _DIST2, until="2.13"),
    Name(f"{_DISTRIBUTED}._create_process_group_wrapper", _AS_GLOO, is_of_gloo=True),
    Name(f"{_DISTRIBUTED}._ProcessGroupWrapper", _AS_GLOO, is_of_gloo=True),
    Name(f"{_DISTRIBUTED}.PG_WRAPPER_STORE_PREFIX", _AS_GLOO, is_of_gloo=True),
    Name("torch.distributed.ProcessGroupGloo.create_default_device", "devices of the backend in C++", is_of_gloo=True),
    Name("torch.distributed.ProcessGroupGloo.create_device", "devices of the backend in C++", is_of_gloo=True),
    Name(f"{_GROUP}._get_backend", "world_of() for the backend in C++"),
    Name(f"{_GROUP}.name", 'the name "dldist" of a group'),
    Name(f"{_GROUP}._get_backend_name", 'the name "dldist" of a group'),
    Name(f"{_GROUP}._get_sequence_number_for_group", "the number of a group's calls"),
    Name(f"{_GROUP}._set_sequence_number_for_group", "setting the number of a group's calls", until="2.13"),
    Name(f"{_DISTRIBUTED}._set_pg_timeout", "torch.distributed.distributed_c10d._set_pg_timeout()"),
    Name(f"{_DISTRIBUTED}.monitored_barrier", "torch.distributed.monitored_barrier()"),
    Name(f"{_DISTRIBUTED}._FR_SELF_RECORDING_BACKENDS", "a single record of each call", since="2.15"),
    Name(f"{_DISTRIBUTED}._maybe_attach_flight_recorder", _GROUPS_OF_OTHERS, since="2.15"),
    Name(f"{_DISTRIBUTED}._world.pg_backend_config", _GROUPS_OF_OTHERS),
    Name(f"{_DISTRIBUTED}._world.pg_group_ranks", _GROUPS_OF_OTHERS),
    Name(f"{_DISTRIBUTED}._new_process_group_helper", _GROUPS_OF_OTHERS),
    Name(f"{_IN_C}._dump_fr_trace", _DUMPS, since="2.8"),
    Name(f"{_IN_C}._dump_fr_trace_json", _DUMPS, since="2.8"),
    Name(f"{_IN_C}.AllreduceOptions.asyncOp", "synchronous calls of groups in Python", since="2.8"),
    Name(f"{_IN_C}.ErrorType", "get_error() of groups in Python", since="2.7"),
    Name("torch.distributed.QueueEmptyError", "errors of PyTorch's stores", since="2.8"),
    Name("torch.distributed.Store.clone", "PyTorch's stores on several threads", since="2.8"),
    Name(f"{_GROUP}.split_group", "compiling the backend in C++", since="2.9"),
    Name("torch._C._GLIBCXX_USE_CXX11_ABI", "compiling the backend in C++"),
    Name("torch.version.git_version", "compiling the backend in C++"),
    Name("torch._C._dynamo.eval_frame.set_code_exec_strategy", _COMPILED, since="2.7"),
    Name("torch._C._dynamo.eval_frame._FrameAction.SKIP", _COMPILED, since="2.7"),
    Name("torch._C._dynamo.eval_frame._FrameExecStrategy", _COMPILED, since="2.7"),
    Name("torch._C._len_torch_dispatch_stack", _OPERATIONS),
    Name("torch._C._functorch.peek_interpreter_stack", _OPERATIONS),
    Name("torch._C._DisableFuncTorch", _OPERATIONS),
    Name("torch.utils._python_dispatch.TorchDispatchMode", _OPERATIONS),
    Name("torch.utils._python_dispatch._get_current_dispatch_mode_stack", _OPERATIONS),
    Name("torch.library.Library.impl(allow_override)", _OPERATIONS, since="2.8"),
    Name(f"{_IN_C}._create_work_from_future", _OPERATIONS),
    Name(f"{_GROUP}.boxed", _OPERATIONS),
    Name(f"{_GROUP}.unbox", _OPERATIONS),
    Name(f"{_IN_C}.Work.boxed", _OPERATIONS),
    Name(f"{_IN_C}.Work.unbox", _OPERATIONS),
    Name("torch.autograd._profiler_enabled", _PROFILE),
    Name("torch.autograd.profiler.record_function._call_end_callbacks_on_future", _PROFILE),
    Name("torch._C._storage_Use_Count", _BUCKETS),
    Name("torch.UntypedStorage._share_fd_cpu_", _BUCKETS),
    Name("torch._C.Future", _WORKS),
    Name("torch._C.fork", _WORKS),
    Name("torch._C._collect_all", _WORKS),
)


_PATHS = frozenset(name.path for name in NAMES)


def find(path: str) -> Any:
    """Return the object at a path that NAMES lists, or None if this PyTorch does not have it."""
    if path not in _PATHS:
        raise KeyError(f"find(): {path!r} is not in NAMES")
    return _object_at(path)


def are_present(*paths: str) -> bool:
    """True if this PyTorch has all names at these paths."""
    return all(find(path) is not None for path in paths)


def absent(version: str) -> list[Name]:
    """List the names that this release of PyTorch should have but lacks."""
    import torch.distributed

    has_gloo = torch.distributed.is_gloo_available()
    expected = [name for name in NAMES if name.is_expected_in(version) and (has_gloo or not name.is_of_gloo)]
    return [name for name in expected if _object_at(name.path) is None]


@functools.cache
def warn_of_absent_names() -> None:
    """Emit one warning that lists absent names, if any, and the features that need the names."""
    import torch

    missing = absent(torch.__version__)
    if missing:
        paths = ", ".join(name.path for name in missing)
        purposes = "; ".join(dict.fromkeys(name.purpose for name in missing))
        warnings.warn(
            f"dldist: PyTorch {torch.__version__} lacks {paths}: unavailable or limited: {purposes}; "
            "a newer dldist may support this PyTorch",
            RuntimeWarning,
            stacklevel=2,
        )


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def _object_at(path: str) -> Any:
    path, _, parameter = path.rstrip(")").partition("(")
    value: Any = importlib.import_module("torch")
    prefix = "torch"
    for part in path.split(".")[1:]:
        prefix += f".{part}"
        value = _member(value, part, prefix)
    if parameter and value is not None:
        return inspect.signature(value).parameters.get(parameter)
    return value


def _member(owner: Any, name: str, path: str) -> Any:
    if hasattr(owner, name) or not isinstance(owner, ModuleType):
        return getattr(owner, name, None)
    try:
        return importlib.import_module(path)
    except ImportError:
        return None
