"""What the environment says about failures, dumps and NCCL's groups; docs/watchdog.md explains each variable.

Every setting has a name of ours, which comes first, and those of torch.distributed. A variable that is empty counts as unset. A
value that makes no sense is an error that names the variable.
"""

from __future__ import annotations

import os

from dldist import _core

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class WatchSettings:
    """One attribute for each setting; `given` has the names of those that the environment sets."""

    # Failures of all groups.
    coord_check_ms: int
    """How often a process looks whether another one has failed."""
    propagate_error: bool
    """A rank whose group has failed tells the others."""
    dump_on_timeout: bool | None
    """Whether a failure writes the flight recorder to a file; None: if a place for it was given."""
    dump_timeout_ms: int
    dump_file: str
    """The names of dumps without the rank; "": not given."""
    dump_format: str
    """"pickle" or "json"."""
    dump_pipe: str
    """The name of the pipe without "<rank>.pipe"; "": there is none."""
    dump_signal: str
    """A signal that asks for a dump: "SIGUSR2" or its number; "": none."""
    extra_dump_on_exec: bool
    """A group that is aborted counts as a failure that is dumped."""
    include_stacks: bool
    only_active: bool
    desync_debug: bool
    """Ranks publish how far they are, and a time-out says who is where."""

    # NCCL's groups.
    heartbeat_timeout_s: int
    enable_monitoring: bool | None
    """A watchdog that hangs ends the process; only where this was asked for."""
    async_error_handling: int
    """0: none, 1: tear down, 2: clean up only, 3: tear down without cleaning up."""
    blocking_wait: bool
    high_priority: bool
    nan_check: bool
    enable_timing: bool
    event_cache: bool
    ranks_per_root: int
    """One unique id for so many ranks, where NCCL can; 0: one for all."""
    nonblocking: bool | None
    """NCCL makes its communicators without blocking; None: whatever is best here."""
    nonblocking_timeout_s: int | None
    """How long it may take; None: the group's time-out."""

    def __init__(self) -> None:
        self.given: set[str] = set()


_PREFIXES = ("DLDIST_", "TORCH_", "NCCL_")
_TRUE = ("y", "yes", "1", "t", "true")
_FALSE = ("n", "no", "0", "f", "false")
_warned: set[str] = set()


def _bool(text: str) -> bool:
    text = text.lower()
    if text not in _TRUE + _FALSE:
        raise ValueError
    return text in _TRUE


def _number(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise ValueError
        return value

    return parse


def _format(text: str) -> str:
    if text.lower() not in ("pickle", "json"):
        raise ValueError
    return text.lower()


# attribute, our name, torch's, names of old, how it is read, default
SETTINGS: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...], Callable[[str], Any], Any], ...] = (
    ("coord_check_ms", "DLDIST_COORD_CHECK_MS", ("TORCH_NCCL_COORD_CHECK_MILSEC",), (), _number(1), 1000),
    ("propagate_error", "DLDIST_PROPAGATE_ERROR", ("TORCH_NCCL_PROPAGATE_ERROR",), (), _bool, True),
    ("dump_on_timeout", "DLDIST_DUMP_ON_TIMEOUT", ("TORCH_NCCL_DUMP_ON_TIMEOUT",), (), _bool, None),
    ("dump_timeout_ms", "DLDIST_WAIT_TIMEOUT_DUMP_MS", ("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC",), (), _number(1), 15000),
    ("dump_file", "DLDIST_FR_DUMP_FILE", ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"), (), str, ""),
    ("dump_format", "DLDIST_FR_DUMP_FORMAT", (), (), _format, "pickle"),
    ("dump_pipe", "DLDIST_DUMP_PIPE", ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE",), (), str, ""),
    ("dump_signal", "DLDIST_DUMP_SIGNAL", (), (), str, ""),
    ("extra_dump_on_exec", "DLDIST_EXTRA_DUMP_ON_EXEC", ("TORCH_NCCL_EXTRA_DUMP_ON_EXEC",), (), _bool, False),
    ("include_stacks", "DLDIST_FR_INCLUDE_STACKS", ("TORCH_INCLUDE_STACK_TRACE",), (), _bool, True),
    ("only_active", "DLDIST_FR_ONLY_ACTIVE", ("TORCH_INCLUDE_ONLY_ACTIVE",), (), _bool, False),
    ("desync_debug", "DLDIST_DESYNC_DEBUG", ("TORCH_NCCL_DESYNC_DEBUG",), ("NCCL_DESYNC_DEBUG",), _bool, False),
    ("heartbeat_timeout_s", "DLDIST_HEARTBEAT_TIMEOUT_S", ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",), (), _number(1), 480),
    ("enable_monitoring", "DLDIST_ENABLE_MONITORING", ("TORCH_NCCL_ENABLE_MONITORING",), (), _bool, None),
    (
        "async_error_handling",
        "DLDIST_ASYNC_ERROR_HANDLING",
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING",),
        ("NCCL_ASYNC_ERROR_HANDLING",),
        _number(0, 3),
        2,
    ),
    ("blocking_wait", "DLDIST_NCCL_BLOCKING_WAIT", ("TORCH_NCCL_BLOCKING_WAIT",), ("NCCL_BLOCKING_WAIT",), _bool, False),
    ("high_priority", "DLDIST_NCCL_HIGH_PRIORITY", ("TORCH_NCCL_HIGH_PRIORITY",), (), _bool, False),
    ("nan_check", "DLDIST_NCCL_NAN_CHECK", ("TORCH_NCCL_NAN_CHECK", "TORCH_DIST_NAN_CHECK"), (), _bool, False),
    ("enable_timing", "DLDIST_NCCL_ENABLE_TIMING", ("TORCH_NCCL_ENABLE_TIMING",), ("NCCL_ENABLE_TIMING",), _bool, False),
    ("event_cache", "DLDIST_NCCL_EVENT_CACHE", ("TORCH_NCCL_CUDA_EVENT_CACHE",), (), _bool, True),
    ("ranks_per_root", "DLDIST_NCCL_RANKS_PER_ROOT", ("TORCH_NCCL_RANKS_PER_ROOT",), (), _number(0), 128),
    ("nonblocking", "DLDIST_NCCL_NONBLOCKING", ("TORCH_NCCL_USE_COMM_NONBLOCKING",), (), _bool, None),
    ("nonblocking_timeout_s", "DLDIST_NCCL_NONBLOCKING_TIMEOUT_S", ("TORCH_NCCL_NONBLOCKING_TIMEOUT",), (), _number(1), None),
)

WITHOUT_EFFECT = (
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS",
    "TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN",
    "TORCH_NCCL_BCAST_UNIQUEID",
    "TORCH_NCCL_AVOID_RECORD_STREAMS",
    "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
    "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
    "TORCH_FR_DUMP_DYNAMIC_FILE_NAME",
    "TORCH_FR_CPP_STACK",
    "TORCH_NCCL_TRACE_CPP_STACK",
)
"""Variables of torch.distributed that are accepted, whatever they hold, and change nothing."""


def _warn_old(name: str, better: str) -> None:
    import warnings

    if name not in _warned:
        _warned.add(name)
        warnings.warn(f"Environment variable {name} is deprecated; use {better} instead", FutureWarning, stacklevel=3)


def _given_texts() -> dict[str, str]:
    """Of all variables at once: to ask for each of them takes longer."""
    return {name: os.environ[name] for name in os.environ if name.startswith(_PREFIXES)}


def read_settings() -> WatchSettings:
    """What the environment says now. Raises DistArgumentError, which is a RuntimeError and a ValueError."""
    settings = WatchSettings()
    given = _given_texts()
    for attribute, ours, names, old, parse, default in SETTINGS:
        value = default
        for name in (ours, *names, *old):
            text = given.get(name, "")
            if not text:
                continue
            if name in old:
                _warn_old(name, names[0])
            try:
                value = parse(text.strip() if parse is not str else text)
            except ValueError:
                raise _core.DistArgumentError(f"Invalid value for environment variable: {name} ({text!r})") from None
            settings.given.add(attribute)
            break
        setattr(settings, attribute, value)
    return settings
