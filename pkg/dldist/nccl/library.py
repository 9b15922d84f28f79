"""Finds and loads NCCL and the CUDA driver. Wheels are found by file name, without an import."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any

from dldist import _core
from dldist._base import callback_thread, settings, wheels  # noqa: F401 - ends the core at exit

_reason: Exception | None = None


def candidates() -> list[str]:
    """List the NCCL libraries of wheels: nvidia/nccl/lib/ in the folders of sys.path."""
    return wheels.in_packages("nvidia", "nccl", "lib", "libnccl.so.2")


def paths() -> tuple[str | None, str | None]:
    """Return the environment's paths of NCCL and the CUDA driver, each None if not set."""
    return settings.value("nccl_library") or None, settings.value("cuda_library") or None


def load() -> None:
    """Load NCCL and the CUDA driver, once. NotImplementedError lists the failed attempts."""
    try:
        _load()
    except NotImplementedError:
        raise NotImplementedError(why_not()) from None


def _load() -> None:
    """Load NCCL and the CUDA driver. The error describes only the first that is missing."""
    global _reason
    if _core._nccl_info() is not None:
        return
    nccl, cuda = paths()
    is_abort_off = settings.value("async_error_handling") in (0, 3)
    try:
        _core._load_nccl(candidates(), nccl, cuda, is_abort_off, *_encryption())
    except NotImplementedError as error:
        _reason = error
        raise
    _reason = None
    # Run before the package's other exit handlers: communicators use CUDA's threads and memory.
    atexit.register(_core._shutdown_nccl)


def _encryption() -> tuple[str | None, int]:
    """Return the encryption key of NCCL's connections (None if they are not encrypted), and a
    number that identifies the key without revealing it.

    Every process derives the key from the job's secret. Neither key nor secret is sent, because the
    store may not be encrypted. The key does not depend on the order in which groups are created.
    """
    if not settings.value("nccl_encryption"):
        return None, 0
    secret = settings.secret()
    if not secret:
        raise NotImplementedError("DLDIST_NCCL_ENCRYPTION=1 needs a secret, from which the key is derived; set DLDIST_SECRET on all ranks")
    from hmac import digest

    key = digest(secret, b"dldist: the key of NCCL's connections", "sha256")
    key_id = digest(key, b"which key it is", "sha256")
    return key.hex(), int.from_bytes(key_id[:7], "little") or 1


def is_available() -> bool:
    """Return True if NCCL, the CUDA driver and a device are available. A failure is not retried."""
    if _reason is None:
        try:
            _load()
        except NotImplementedError:
            pass
    return _reason is None


def why_not() -> str | None:
    """Describe the failed attempts to load NCCL. Return None if NCCL is available."""
    if is_available():
        return None
    reason = str(_reason)
    obstacle = _core._find_nccl_obstacle(candidates(), paths()[0])
    return reason if obstacle is None or obstacle in reason else f"{reason}; and {obstacle}"


def info() -> dict[str, Any]:
    """Return the paths and versions of NCCL and the CUDA driver, and the number of devices."""
    load()
    found = _core._nccl_info()
    assert found is not None
    return found


def version() -> tuple[int, int, int]:
    """Return the version of the loaded NCCL, such as (2, 27, 3)."""
    major, minor, patch = (int(part) for part in info()["version_text"].split("."))
    return major, minor, patch


def version_of(code: int) -> tuple[int, int, int]:
    return code // 10000, code // 100 % 100, code % 100


def _avoid_nvls_if_deterministic(is_deterministic: bool | None) -> None:
    """Disable NVLS, whose reductions are not deterministic, by setting NCCL_ALGO, as torch does,
    unless NCCL_ALGO is set. If `is_deterministic` is None, torch's flag for deterministic algorithms
    decides."""
    if is_deterministic is None:
        # Use getattr, because torch may be only partly imported.
        get_flag = getattr(sys.modules.get("torch"), "are_deterministic_algorithms_enabled", None)
        is_deterministic = get_flag is not None and get_flag()
    if is_deterministic and not os.environ.get("NCCL_ALGO"):
        os.environ["NCCL_ALGO"] = "^NVLS"


def group_settings() -> dict[str, Any]:
    """Return the environment's settings as arguments of NcclGroup, and set NCCL's own variables."""
    failure_settings = settings.failure_settings()
    _avoid_nvls_if_deterministic(failure_settings.deterministic)
    return {
        "is_high_priority": failure_settings.high_priority,
        "has_timing": failure_settings.enable_timing or failure_settings.desync_debug,
        "is_nan_check": failure_settings.nan_check,
        "is_blocking_wait": failure_settings.blocking_wait,
        "event_cache": failure_settings.event_cache,
        "ranks_per_root": failure_settings.ranks_per_root,
        "grouped_messages": failure_settings.grouped_messages,
        "init_timeout": failure_settings.nonblocking_timeout_s,
        "config": {"blocking": 0} if failure_settings.nonblocking else {},
    }
