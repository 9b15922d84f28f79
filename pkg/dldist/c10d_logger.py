"""Log records of module-level calls: failures, with the group, and the time to create groups."""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Callable
from typing import Any

import dldist
from dldist import distributed_c10d
from dldist._base import log
from dldist.nccl import library

logger = logging.getLogger("dldist.distributed_c10d")
_c10d_logger = logging.getLogger(__name__)


# ---- content of a record


def _get_msg_dict(func_name: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Describe a call, and the group in its argument `group` or `process_group`."""
    fields = {"func_name": func_name}
    if not dldist.is_initialized():
        return fields
    group = kwargs.get("group") or kwargs.get("process_group")
    fields |= {"world_size": f"{dldist.get_world_size()}", "global_rank": f"{dldist.get_rank()}"}
    world = distributed_c10d._world
    pg = world.default_pg if group is None else group
    if isinstance(pg, dldist.ProcessGroup) and pg in world.pg_map:
        fields |= {
            "pg_name": world.pg_names[pg],
            "backend": world.pg_map[pg][0],
            "group_size": f"{pg.size()}",
            "local_rank": f"{pg.rank()}",
        }
        if fields["backend"] == "nccl":
            fields["nccl_version"] = f"{library.info()['version']}"
    return fields


def _log(fields: dict[str, Any]) -> None:
    if _c10d_logger.isEnabledFor(logging.DEBUG):
        log.pass_to_handlers(_c10d_logger.makeRecord(_c10d_logger.name, logging.DEBUG, __file__, 0, str(fields), (), None))


def _group_of(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        arguments = inspect.signature(func).bind_partial(*args, **kwargs).arguments
    except TypeError:
        arguments = kwargs
    return arguments.get("group", arguments.get("process_group"))


# ---- wrapping calls


def _exception_logger(func: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function to log its exceptions."""

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except Exception as error:
            _log({**_get_msg_dict(func.__name__, group=_group_of(func, args, kwargs)), "error": f"{error}"})
            raise

    return wrapper


def _time_logger(func: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function to log how long it took, if it returns."""

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = func(*args, **kwargs)
        _log({**_get_msg_dict(func.__name__), "seconds": time.perf_counter() - start})
        return result

    return wrapper


_TIMED = ("init_process_group", "new_group", "split_group", "shrink_group", "destroy_process_group")
_NOT_WRAPPED = ("isend", "irecv")  # not wrapped, so that P2POp.op stays the same function
_originals: dict[str, Any] = {}
"""The original functions of the wrapped calls."""


def _calls_to_wrap() -> dict[str, Any]:
    """Return the calls that accept or create groups, by name."""
    calls_by_name = {name: getattr(distributed_c10d, name) for name in distributed_c10d.__all__ if name not in _NOT_WRAPPED}
    modules = ("dldist._api.collectives", "dldist._api.objects", "dldist._api.p2p")
    return {
        name: call
        for name, call in calls_by_name.items()
        if name in _TIMED
        or (inspect.isfunction(call) and call.__module__ in modules and "group" in inspect.signature(call).parameters)
    }


def wrap_calls(is_on: bool) -> None:
    """Wrap the calls of dldist and dldist.distributed_c10d to log them, or unwrap the calls."""
    if is_on == bool(_originals):
        return
    calls = _calls_to_wrap() if is_on else dict(_originals)
    _originals.clear()
    if is_on:
        _originals.update(calls)
        calls = {name: _exception_logger(_time_logger(call) if name in _TIMED else call) for name, call in calls.items()}
    for name, call in calls.items():
        setattr(dldist, name, call)
        setattr(distributed_c10d, name, call)
