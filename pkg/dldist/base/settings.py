"""What the environment says about connections, algorithms and the flight recorder; docs/environment.md lists it."""

import os

_MAX_LANES = 16
_DEFAULT_RECORDS = 2000
_DEFAULT_FRAMES = 4
_MAX_FRAMES = 16

DUMP_FILE_NAMES = ("DLDIST_FR_DUMP_FILE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""What says how the names of dumps begin; the first that is set."""


def _fail(name: str, wanted: str) -> ValueError:
    return ValueError(f"{name} must be {wanted}, not {os.environ[name]!r}")


def _interfaces() -> str:
    name = "DLDIST_SOCKET_IFNAME" if os.environ.get("DLDIST_SOCKET_IFNAME") else "GLOO_SOCKET_IFNAME"
    return os.environ.get(name, "")


def _ports() -> tuple[int, int]:
    name = "DLDIST_PORT_RANGE"
    text = os.environ.get(name, "")
    if not text:
        return 0, 0
    first, _, last = text.partition("-")
    try:
        ports = int(first), int(last or first)
    except ValueError:
        ports = 0, 0
    if not 1 <= ports[0] <= ports[1] <= 65535:
        raise _fail(name, 'a range of ports such as "5000-5010"')
    return ports


def _is_on(name: str) -> bool:
    """What is on unless it is turned off."""
    text = os.environ.get(name, "") or "1"
    if text not in ("0", "1"):
        raise _fail(name, '"0" or "1"')
    return text == "1"


def _lanes() -> int:
    name = "DLDIST_TCP_LANES"
    text = os.environ.get(name, "") or "1"
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_LANES:
        raise _fail(name, f"a number from 1 to {_MAX_LANES}")
    return int(text)


def _waiting() -> int:
    name = "DLDIST_WAIT"
    ways = ("adaptive", "poll", "sleep")  # as dd_spin_policy numbers them
    text = os.environ.get(name, "") or ways[0]
    if text not in ways:
        raise _fail(name, '"adaptive", "poll" or "sleep"')
    return ways.index(text)


def connection() -> tuple[str, int, int, bool, int, str, bytes, int]:
    """Interfaces, first and last port, whether shared memory may be used, connections a peer, TCP's congestion control,
    the secret, how calls wait."""
    congestion = os.environ.get("DLDIST_TCP_CONGESTION", "")
    secret = os.environb.get(b"DLDIST_SECRET", b"")
    return (_interfaces(), *_ports(), _is_on("DLDIST_SHM"), _lanes(), congestion, secret, _waiting())


def shares_buckets() -> bool | None:
    """Whether the buckets of DistributedDataParallel move into shared memory; None: where no program can have their addresses."""
    return _is_on("DLDIST_TORCH_SHARE_BUCKETS") if os.environ.get("DLDIST_TORCH_SHARE_BUCKETS") else None


def algorithm() -> str:
    """The algorithms that are asked for, whatever the size."""
    return os.environ.get("DLDIST_ALGORITHM", "")


def _number(names: tuple[str, ...], default: int) -> int:
    """Of the first of these that is set."""
    for name in names:
        text = os.environ.get(name, "")
        if text:
            if not text.isdecimal():
                raise _fail(name, "a number, 0 or more")
            return int(text)
    return default


def recorder() -> tuple[int, int]:
    """How many operations the flight recorder keeps, 0 for none; and how many frames of who called, 0 for none."""
    records = _number(("DLDIST_FR_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"), _DEFAULT_RECORDS)
    return records, min(_number(("DLDIST_FR_STACK_DEPTH",), _DEFAULT_FRAMES), _MAX_FRAMES)


def dump_prefix() -> str:
    """What names of files with dumps begin with; the rank follows."""
    for name in DUMP_FILE_NAMES:
        if os.environ.get(name):
            return os.environ[name]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "torch", "comm_lib_trace_rank_")
