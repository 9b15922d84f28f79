"""Makes functions that PyTorch implements only for its own backends work with dldist's groups.

The functions are replaced when dldist's first group is created. For other groups, the new functions
call the original ones.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import _dldist_torch_names as names
import torch.distributed as dist
from torch.distributed import distributed_c10d

from dldist.torch._recorder import extend_torch_dumps
from dldist.torch._runner import Runner, runner_of

_install_lock = threading.Lock()  # held because threads may create their first groups concurrently


def install() -> None:
    """Replace the functions, once per process."""
    with _install_lock:
        _install()


@functools.cache
def _install() -> None:
    names.warn_of_absent_names()
    if names.are_present("torch._C._distributed_c10d._dump_fr_trace", "torch._C._distributed_c10d._dump_fr_trace_json"):
        extend_torch_dumps()
    for name in ("name", "_get_backend_name"):  # PyTorch returns "custom" for third-party backends
        _patch_method(name, lambda runner: runner.backend_name)
    _patch_method("_get_sequence_number_for_group", Runner.sequence)
    # Nothing to do: sequence numbers start at 0 on all ranks.
    _patch_method("_set_sequence_number_for_group", lambda _: None)
    _patch_function("monitored_barrier", _monitored_barrier)
    _patch_function("_set_pg_timeout", _set_pg_timeout)
    _patch_function("_maybe_attach_flight_recorder", _maybe_attach_flight_recorder)


def _patch_method(name: str, replacement: Callable[[Runner], Any]) -> None:
    """Replace a method of torch's groups: with a dldist backend, call replacement(runner)."""
    original = names.find(f"torch.distributed.ProcessGroup.{name}")
    if original is None:
        return

    @functools.wraps(original)
    def method(group: Any) -> Any:
        runner = runner_of(group)
        return original(group) if runner is None else replacement(runner)

    setattr(dist.ProcessGroup, name, method)


def _patch_function(name: str, make_replacement: Callable[[Any], Any]) -> None:
    """Replace PyTorch's function by make_replacement(original), in each module that has it."""
    original = names.find(f"torch.distributed.distributed_c10d.{name}")
    if original is None:
        return
    replacement = functools.wraps(original)(make_replacement(original))
    for module in (dist, distributed_c10d):
        if name in vars(module):
            vars(module)[name] = replacement


def _monitored_barrier(original: Callable[..., None]) -> Callable[..., None]:
    """Replace PyTorch's monitored_barrier, which accepts only the backend "gloo"."""

    def monitored_barrier(group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False) -> None:
        runner = runner_of(dist.group.WORLD if group is None else group)
        if runner is None:
            original(group, timeout, wait_all_ranks)
        else:
            limit = timedelta(seconds=timeout) if isinstance(timeout, (int, float)) else timeout
            runner.monitored_barrier(limit, wait_all_ranks)

    return monitored_barrier


def _set_pg_timeout(original: Callable[..., None]) -> Callable[..., None]:
    """Replace PyTorch's function, which supports only Gloo and NCCL, and otherwise warns."""

    def _set_pg_timeout(timeout: timedelta, group: Any = None) -> None:
        target: Any = dist.group.WORLD if group is None else group
        if runner_of(target) is None:
            original(timeout, group)
        else:
            target.set_timeout(timeout)

    return _set_pg_timeout


def _maybe_attach_flight_recorder(original: Callable[..., None]) -> Callable[..., None]:
    """Replace PyTorch's function to skip groups in Python: its hook needs a C++ backend's name.

    dldist's recorder records calls of groups in Python. Calls for other devices run on PyTorch's
    groups, which have their own hooks.
    """

    def _maybe_attach_flight_recorder(group: Any, *args: Any, **named: Any) -> None:
        if not isinstance(getattr(group, "_runner", None), Runner):
            original(group, *args, **named)

    return _maybe_attach_flight_recorder
