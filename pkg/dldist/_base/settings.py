"""The environment variables of dldist: one table, and the functions that read it.

docs/environment.md is generated from the table. Every setting has a dldist name, which takes
precedence, and may have torch.distributed names. An empty variable counts as unset. An invalid
value is an error that names the variable.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from dldist import _core

# ---- kinds of values


class Kind:
    """How to parse a variable. `expected` is for the error text, which is torch's if it is ""."""

    __slots__ = ("description", "expected", "parse")

    def __init__(self, description: str, parse: Callable[[str], Any], expected: str = "") -> None:
        self.description = description
        """The values, as shown in docs/environment.md."""
        self.parse = parse
        """A function that raises ValueError if the text is invalid."""
        self.expected = expected

    def error(self, name: str, text: str) -> ValueError:
        if self.expected:
            return ValueError(f"{name} must be {self.expected}, not {text!r}")
        # torch.distributed's error text
        return _core.DistArgumentError(f"Invalid value for environment variable: {name} ({text!r})")


_YES = ("y", "yes", "1", "t", "true")
_NO = ("n", "no", "0", "f", "false")


def _text(description: str) -> Kind:
    return Kind(description, str)


def _number(minimum: int, maximum: int = 2**31 - 1, expected: str = "") -> Kind:
    def parse(text: str) -> int:
        value = int(text)
        if not minimum <= value <= maximum:
            raise ValueError
        return value

    return Kind(f"{minimum} or more" if maximum == 2**31 - 1 else f"{minimum} to {maximum}", parse, expected)


def _one_of(*values: str, expected: str = "") -> Kind:
    def parse(text: str) -> str:
        text = text.strip().lower()
        if text not in values:
            raise ValueError
        return text

    return Kind(", ".join(f"`{value}`" for value in values), parse, expected)


def _parse_flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError
    return text == "1"


def _parse_truth(text: str) -> bool:
    text = text.strip().lower()
    if text not in _YES + _NO:
        raise ValueError
    return text in _YES


def _parse_ports(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    ports = int(first), int(last or first)
    if not 1 <= ports[0] <= ports[1] <= 65535:
        raise ValueError
    return ports


_PATH = _text("a path")
_FLAG = Kind("`1`, `0`", _parse_flag, '"0" or "1"')
_TRUTH = Kind("`1`, `0`", _parse_truth)  # also accepts the words that torch.distributed accepts
_PORTS = Kind("`5000-5010`, or one port", _parse_ports, 'a range of ports such as "5000-5010"')


# ---- the table


class Setting:
    """A variable: its attribute in dldist, its names, its kind, its default and its meaning."""

    __slots__ = ("attribute", "default", "kind", "meaning", "names", "old")

    def __init__(
        self, attribute: str, names: tuple[str, ...], kind: Kind, default: Any, meaning: str, *, old: tuple[str, ...] = ()
    ) -> None:
        self.attribute = attribute
        self.names = names
        """Names in order of precedence: the first variable that is set counts."""
        self.kind = kind
        self.default = default
        self.meaning = meaning
        """The description in docs/environment.md."""
        self.old = old
        """Deprecated names, which come last and warn."""


WAITING = ("adaptive", "poll", "sleep")
"""The values are in the order of the C enum dd_spin_policy."""
_MAX_FRAMES = 16

PROGRAM = (
    Setting("log", ("DLDIST_LOG",), _text("`off`, `info`, `debug`"), "off",
            "How much dldist logs through Python's `logging`, to the logger `dldist`. Read at import. `dldist.set_log_level` "
            "and the logger's `setLevel` change it later; if it is unset, the logger's effective level counts "
            "([debugging.md](debugging.md#logging)). `off` costs nothing: no record is formatted and no thread runs."),
    Setting("secret", ("DLDIST_SECRET",), _text("any text"), "",
            "The shared secret of every `TCPStore` that is created without `secret=`, and of the connections between the members "
            "of a "
            "group. Each connection proves in both directions that its ends know the secret, without sending it, and traffic that "
            "leaves the host is encrypted ([security.md](security.md)). A server with a secret rejects clients without it, and a "
            "client with a secret rejects servers without it. A rank removes the secret from its environment when it creates its "
            "first group, so that programs that it starts do not inherit it. Unset: no authentication, no encryption."),
    Setting("encryption", ("DLDIST_ENCRYPTION",), _one_of("on", "off"), "on",
            "`off`: TCP connections are not encrypted even if a secret is set; both ends must still prove that they know it. "
            "Must be the same for all processes of a job."),
    Setting("interfaces", ("DLDIST_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"),
            _text("names of network interfaces, separated by commas"), "",
            "The network interfaces whose addresses groups publish, and on which they listen while ranks may still connect "
            "([rendezvous.md](rendezvous.md#where-groups-listen)). Unset: the interfaces that reach the store, then all others "
            "that are up; only the loopback address if the store's host is `localhost` or a loopback address."),
    Setting("ports", ("DLDIST_PORT_RANGE",), _PORTS, (0, 0),
            "Groups listen on a free port of this range. Unset: on any free port. A process needs one port, however many groups it "
            "has."),
    Setting("shm", ("DLDIST_SHM",), _FLAG, True,
            "`0`: processes on one host communicate over TCP, as if they were on different hosts."),
    Setting("lanes", ("DLDIST_TCP_LANES",), _number(1, 16, "a number from 1 to 16"), 1,
            "Number of TCP connections that a pair of processes uses for large messages."),
    Setting("congestion", ("DLDIST_TCP_CONGESTION",), _text("such as `bbr`"), "",
            "Congestion control of the TCP connections of groups. Unset: the system's default."),
    Setting("waiting", ("DLDIST_WAIT",), _one_of(*WAITING, expected='"adaptive", "poll" or "sleep"'), "adaptive",
            "How calls of groups wait for other ranks. `adaptive` polls for up to a millisecond, or less if recent waits took "
            "longer than that, and then sleeps until it is woken. A thread that waits for a rank that last ran on the same CPU "
            "yields that CPU; the affinity of threads is never changed. `poll` polls until the deadline and never sleeps: use "
            "it if every rank has a core to itself. `sleep` sleeps immediately: use it if the ranks share their cores. If "
            "several threads of a process wait, one polls for all and the others sleep."),
    Setting("algorithm", ("DLDIST_ALGORITHM",), _text("`all_reduce=ring,broadcast=chain`; `flat`"), "",
            "The algorithm to use for each named collective, instead of the choice by size. `flat` disables the shared-memory "
            "algorithms and the hierarchy. Must be the same on all ranks. An unknown name is an error that lists the valid names."),
    Setting("records", ("DLDIST_FR_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
            _number(0, expected="a number, 0 or more"), 2000,
            "Number of operations that the flight recorder keeps; 0 turns it off."),
    Setting("frames", ("DLDIST_FR_STACK_DEPTH",), _number(0, expected="a number, 0 or more"), 4,
            f"Number of Python stack frames that the flight recorder keeps of each caller, at most {_MAX_FRAMES}; 0: none."),
    Setting("worker_server_socket", ("DLDIST_WORKER_SERVER_SOCKET", "TORCH_WORKER_SERVER_SOCKET"), _PATH, "",
            "Path of the Unix socket that `dldist.control.worker_main` creates for the worker's server "
            "([control-plane.md](control-plane.md)). Unset: no server."),
    Setting("cache_home", ("XDG_CACHE_HOME",), _text("a folder"), "",
            "The cache folder, for dumps without another path and for the compiled PyTorch backend. Unset: `~/.cache`."),
)

TORCH = (
    Setting("debug_level", ("TORCH_DISTRIBUTED_DEBUG",), _text("`OFF`, `INFO`, `DETAIL`"), "OFF",
            "`DETAIL`: groups that are created by `init_process_group` and `new_group` compare every collective of all ranks "
            "before it runs, as torch.distributed does. dldist's groups detect mismatches without it as well "
            "([failures.md](failures.md)). `INFO` has no effect. Read at first use; `dldist.set_debug_level` changes it."),
    Setting("init_barrier", ("TORCH_DIST_INIT_BARRIER",), _text("`1`"), "",
            "`1`: `init_process_group` and `new_group` end with a barrier of all ranks through the store."),
    Setting("nan_check_of_all", ("TORCH_DIST_NAN_CHECK",), _text("`1`"), "",
            "`1`: groups of every backend that are created from then on check the data that they send for NaN; a RuntimeError "
            "names the tensor."),
    Setting("use_libuv", ("USE_LIBUV",), _text("`1`, `0`"), "1",
            "Accepted for compatibility; it only changes `store.libuvBackend`. There is one server."),
)
"""Variables of torch.distributed without a dldist name; module-level calls read the first three."""

BACKEND_FOR_TORCH = (
    Setting("torch_backend", ("DLDIST_TORCH_BACKEND",), _one_of("auto", "c++", "python"), "auto",
            "How groups of PyTorch's backend \"dldist\" are implemented. `auto`: in C++, compiled for the installed PyTorch when a "
            "program first needs it; in Python if it cannot be compiled. `c++`: in C++; an error gives the reason if it cannot be "
            "compiled. `python`: in Python, without a compiler."),
    Setting("torch_as_gloo", ("DLDIST_TORCH_AS_GLOO",), _FLAG, False,
            "`1`: PyTorch programs that request the backend \"gloo\" get dldist's."),
)
"""Variables that dldist.torch reads."""

LIBRARIES = (
    Setting("nccl_library", ("DLDIST_NCCL_LIBRARY", "VLLM_NCCL_SO_PATH"), _PATH, "",
            "Path of the NCCL library; no other path is tried. Unset: a copy that the process has already loaded, NVIDIA's "
            "wheel, the loader's path."),
    Setting("cuda_library", ("DLDIST_CUDA_LIBRARY",), _PATH, "",
            "Path of the CUDA driver library. Unset: `libcuda.so.1`."),
    Setting("mpi_library", ("DLDIST_MPI_LIBRARY",), _PATH, "",
            "Path of the MPI library ([carriers.md](carriers.md#mpi)). Unset: a copy that the process has already loaded, or "
            "one that matches the mpirun that started the process, from a wheel or the loader's path."),
    Setting("ucc_library", ("DLDIST_UCC_LIBRARY",), _PATH, "",
            "Path of the UCC library ([carriers.md](carriers.md#ucc)). Unset: a copy that the process has already loaded, a "
            "wheel's, the loader's path."),
    Setting("xccl_library", ("DLDIST_XCCL_LIBRARY",), _PATH, "",
            "Path of the oneCCL library ([carriers.md](carriers.md#xccl)). Unset: `libccl.so.2`."),
    Setting("nccl_encryption", ("DLDIST_NCCL_ENCRYPTION",), _FLAG, False,
            "`1`: NCCL encrypts its connections, with a key derived from `DLDIST_SECRET` ([nccl.md](nccl.md#encryption)). Must "
            "be the same on all ranks. Read when NCCL is loaded."),
)

FAILURES = (
    Setting("coord_check_ms", ("DLDIST_COORD_CHECK_MS", "TORCH_NCCL_COORD_CHECK_MILSEC"), _number(1), 1000,
            "Interval at which a process checks the store for other processes' failures, in milliseconds."),
    Setting("propagate_error", ("DLDIST_PROPAGATE_ERROR", "TORCH_NCCL_PROPAGATE_ERROR"), _TRUTH, True,
            "`0`: a failure of an NCCL group is not reported to the other ranks."),
    Setting("dump_on_timeout", ("DLDIST_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT"), _TRUTH, None,
            "Whether a failure writes the flight recorder to a file. Unset: failures of NCCL groups do, and failures of all "
            "groups if `DLDIST_FR_DUMP_FILE` is set."),
    Setting("dump_timeout_ms", ("DLDIST_WAIT_TIMEOUT_DUMP_MS", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"), _number(1), 15000,
            "Time limit for such a dump, in milliseconds."),
    Setting("dump_file", ("DLDIST_FR_DUMP_FILE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
            _text("the beginning of a path"), "",
            "Path of the flight recorder's dumps, without the rank, which is appended. Unset: `torch/comm_lib_trace_rank_` in "
            "`$XDG_CACHE_HOME` or `~/.cache`. dlrun sets it for its ranks if none of the three variables is set."),
    Setting("dump_format", ("DLDIST_FR_DUMP_FORMAT",), _one_of("pickle", "json"), "pickle",
            "Format of these dumps."),
    Setting("include_stacks", ("DLDIST_FR_INCLUDE_STACKS", "TORCH_INCLUDE_STACK_TRACE"), _TRUTH, True,
            "`0`: dumps leave out the callers' stack frames."),
    Setting("only_active", ("DLDIST_FR_ONLY_ACTIVE", "TORCH_INCLUDE_ONLY_ACTIVE"), _TRUTH, False,
            "`1`: dumps contain only operations that have not completed."),
    Setting("extra_dump_on_exec", ("DLDIST_EXTRA_DUMP_ON_EXEC", "TORCH_NCCL_EXTRA_DUMP_ON_EXEC"), _TRUTH, False,
            "`1`: aborting a group also counts as a failure."),
    Setting("dump_pipe", ("DLDIST_DUMP_PIPE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"), _text("the beginning of a path"), "",
            "Path of the named pipes that request dumps, without `<rank>.pipe`, which is appended. Unset: no pipes."),
    Setting("dump_signal", ("DLDIST_DUMP_SIGNAL",), _text("`SIGUSR1`, a number, `none`"), "",
            "The signal that requests dumps from ranks and a report from dlrun; `none`: no signal does. Unset: SIGUSR2, in "
            "processes that do not use it otherwise."),
    Setting("desync_debug", ("DLDIST_DESYNC_DEBUG", "TORCH_NCCL_DESYNC_DEBUG"), _TRUTH, False,
            "`1`: failure reports include the progress of all ranks.",
            old=("NCCL_DESYNC_DEBUG",)),
    Setting("heartbeat_timeout_s", ("DLDIST_HEARTBEAT_TIMEOUT_S", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"), _number(1), 480,
            "Time in seconds after which an NCCL watchdog without progress counts as stuck."),
    Setting("enable_monitoring", ("DLDIST_ENABLE_MONITORING", "TORCH_NCCL_ENABLE_MONITORING"), _TRUTH, False,
            "`1`: the process ends if the watchdog is stuck."),
    Setting("async_error_handling", ("DLDIST_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING"), _number(0, 3), 2,
            "How a failed NCCL group is handled. 0: works end with the error, nothing is aborted; 1: the process ends; 2: "
            "communicators are aborted; 3: the process ends without aborting them.",
            old=("NCCL_ASYNC_ERROR_HANDLING",)),
    Setting("blocking_wait", ("DLDIST_NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT"), _TRUTH, False,
            "`1`: `wait()` blocks the host.",
            old=("NCCL_BLOCKING_WAIT",)),
    Setting("high_priority", ("DLDIST_NCCL_HIGH_PRIORITY", "TORCH_NCCL_HIGH_PRIORITY"), _TRUTH, False,
            "`1`: streams of NCCL groups have a high priority."),
    Setting("enable_timing", ("DLDIST_NCCL_ENABLE_TIMING", "TORCH_NCCL_ENABLE_TIMING"), _TRUTH, False,
            "`1`: works of NCCL groups record their duration.",
            old=("NCCL_ENABLE_TIMING",)),
    Setting("event_cache", ("DLDIST_NCCL_EVENT_CACHE", "TORCH_NCCL_CUDA_EVENT_CACHE"), _TRUTH, True,
            "`0`: CUDA events are not reused."),
    Setting("nan_check", ("DLDIST_NCCL_NAN_CHECK", "TORCH_NCCL_NAN_CHECK"), _TRUTH, False,
            "`1`: inputs of NCCL groups are checked for NaN, on the device."),
    Setting("ranks_per_root", ("DLDIST_NCCL_RANKS_PER_ROOT", "TORCH_NCCL_RANKS_PER_ROOT"), _number(0), 128,
            "Number of ranks that share one NCCL unique id, if NCCL supports several; 0: one id for all."),
    Setting("grouped_messages", ("DLDIST_NCCL_GROUPED_MESSAGES",), _TRUTH, False,
            "`1`: gather, scatter and all-to-all use grouped messages, even if NCCL has calls for them. Must be the same on all "
            "ranks."),
    Setting("deterministic", ("DLDIST_NCCL_DETERMINISTIC",), _TRUTH, None,
            "`1`: NCCL does not use NVLS, whose results can differ in their last bits between runs: sets `NCCL_ALGO=^NVLS`, unless "
            "`NCCL_ALGO` is set. Unset: as `torch.use_deterministic_algorithms` selects, if the program has imported torch."),
    Setting("nonblocking", ("DLDIST_NCCL_NONBLOCKING", "TORCH_NCCL_USE_COMM_NONBLOCKING"), _TRUTH, False,
            "`1`: NCCL creates its communicators without blocking."),
    Setting("nonblocking_timeout_s", ("DLDIST_NCCL_NONBLOCKING_TIMEOUT_S", "TORCH_NCCL_NONBLOCKING_TIMEOUT"), _number(1), None,
            "Time limit for creating a communicator, blocking or not, in seconds. Unset: the group's timeout."),
)


# ---- reading

_SETTINGS = {setting.attribute: setting for setting in (*PROGRAM, *TORCH, *BACKEND_FOR_TORCH, *LIBRARIES, *FAILURES)}
_PREFIXES = ("DLDIST_", "TORCH_", "NCCL_")
_warned: set[str] = set()


def _warn_old(name: str, replacement: str) -> None:
    if name not in _warned:
        _warned.add(name)
        warnings.warn(f"Environment variable {name} is deprecated; use {replacement} instead", FutureWarning, stacklevel=4)


def _read(setting: Setting, environ: Mapping[str, str]) -> Any:
    for name in setting.names + setting.old:
        text = environ.get(name)
        if not text:
            continue
        if name in setting.old:
            _warn_old(name, setting.names[1])
        try:
            return setting.kind.parse(text)
        except ValueError:
            raise setting.kind.error(name, text) from None
    return setting.default


def value(attribute: str) -> Any:
    """Read a setting from the current environment."""
    return _read(_SETTINGS[attribute], os.environ)


# ---- the secret: a rank removes it from its environment, as most child processes are not ranks

_secrets_taken: dict[str, str] = {}
"""Secrets that were removed from the environment, by the text that replaced them there."""


def secret() -> bytes:
    """Return the job's secret, or b"" if there is none.

    Raises DistArgumentError if a rank has taken the secret that is neither this process nor one of
    the processes that this process was forked from.
    """
    given = value("secret")
    if given.startswith("(taken by process ") and given not in _secrets_taken:
        raise _core.DistArgumentError(
            f"DLDIST_SECRET has no secret: got {given!r} from the rank that started this process, expected the job's secret; "
            "set DLDIST_SECRET for processes that become ranks (a rank reads it by dldist._base.settings.secret())"
        )
    return os.fsencode(_secrets_taken.get(given, given))


def take_secret() -> bytes:
    """Return the secret and remove it from the environment, in a process that becomes a rank."""
    current_secret = secret()
    if current_secret:
        replacement = f"(taken by process {os.getpid()})"
        _secrets_taken[replacement] = os.fsdecode(current_secret)
        os.environ["DLDIST_SECRET"] = replacement
    return current_secret


def is_encrypted() -> bool:
    """True if TCP connections with a secret are encrypted. Called from C."""
    return bool(value("encryption") == "on")


def failure_settings() -> SimpleNamespace:
    """Read the settings about failures, dumps and NCCL groups, as attributes of the result."""
    # Scan the environment once: a lookup for each variable would take three times as long.
    variables = {name: os.environ[name] for name in os.environ if name.startswith(_PREFIXES)}
    return SimpleNamespace(**{setting.attribute: _read(setting, variables) for setting in FAILURES})


def connection() -> tuple[str, int, int, bool, int, str, bytes, bool, int]:
    """Return the settings of connections, in the order that C expects, and take the secret: the
    process becomes a rank."""
    return (
        value("interfaces"),
        *value("ports"),
        value("shm"),
        value("lanes"),
        value("congestion"),
        take_secret(),
        is_encrypted(),
        WAITING.index(value("waiting")),
    )


def algorithm() -> str:
    """Return the algorithms that the user has set instead of the choice by size. Called from C."""
    return str(value("algorithm"))


def recorder() -> tuple[int, int]:
    """Return how many operations and stack frames the flight recorder keeps. Called from C."""
    return value("records"), min(value("frames"), _MAX_FRAMES)


def dump_prefix() -> str:
    """Return the path of dump files without the rank, which is appended."""
    cache = value("cache_home") or os.path.expanduser("~/.cache")
    return value("dump_file") or os.path.join(cache, "torch", "comm_lib_trace_rank_")
