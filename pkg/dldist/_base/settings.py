"""The environment variables of dldist: one table of what is read, which docs/environment.md is made of, and how it is read.

Every setting has a name of ours, which comes first, and perhaps those of torch.distributed. A variable that is empty counts as unset. A
value that makes no sense is an error that names the variable.
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
    """How the text of a variable is read. `wanted` says what it has to be, where that is ours to say."""

    __slots__ = ("parse", "wanted", "words")

    def __init__(self, words: str, parse: Callable[[str], Any], wanted: str = "") -> None:
        self.words = words
        """The values, for the page."""
        self.parse = parse
        """Raises ValueError."""
        self.wanted = wanted

    def error(self, name: str, text: str) -> ValueError:
        if self.wanted:
            return ValueError(f"{name} must be {self.wanted}, not {text!r}")
        # As torch.distributed says it. This class is a RuntimeError, too.
        return _core.DistArgumentError(f"Invalid value for environment variable: {name} ({text!r})")


_YES = ("y", "yes", "1", "t", "true")
_NO = ("n", "no", "0", "f", "false")


def _text(words: str) -> Kind:
    return Kind(words, str)


def _number(least: int, most: int = 2**31 - 1, wanted: str = "") -> Kind:
    def parse(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise ValueError
        return value

    return Kind(f"{least} or more" if most == 2**31 - 1 else f"{least} to {most}", parse, wanted)


def _one_of(*values: str, wanted: str = "") -> Kind:
    def parse(text: str) -> str:
        said = text.strip().lower()
        if said not in values:
            raise ValueError
        return said

    return Kind(", ".join(f"`{value}`" for value in values), parse, wanted)


def _parse_flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError
    return text == "1"


def _parse_truth(text: str) -> bool:
    said = text.strip().lower()
    if said not in _YES + _NO:
        raise ValueError
    return said in _YES


def _parse_ports(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    ports = int(first), int(last or first)
    if not 1 <= ports[0] <= ports[1] <= 65535:
        raise ValueError
    return ports


_PATH = _text("a path")
_FLAG = Kind("`1`, `0`", _parse_flag, '"0" or "1"')
_TRUTH = Kind("`1`, `0`", _parse_truth)  # with the words that torch.distributed understands
_PORTS = Kind("`5000-5010`, or one port", _parse_ports, 'a range of ports such as "5000-5010"')


# ---- the table


class Setting:
    """One variable: what it is called here, its names, how it is read, what holds without it, and what it means."""

    __slots__ = ("attribute", "default", "kind", "meaning", "names", "old")

    def __init__(
        self, attribute: str, names: tuple[str, ...], kind: Kind, default: Any, meaning: str, *, old: tuple[str, ...] = ()
    ) -> None:
        self.attribute = attribute
        self.names = names
        """The first that is set counts."""
        self.kind = kind
        self.default = default
        self.meaning = meaning
        """In words, for the page."""
        self.old = old
        """Names that come last, and warn."""


WAITING = ("adaptive", "poll", "sleep")
"""As dd_spin_policy numbers them."""
_MAX_FRAMES = 16

PROGRAM = (
    Setting("log", ("DLDIST_LOG",), _text("`off`, `info`, `debug`"), "off",
            "How much goes to Python's `logging`, under the logger `dldist`. Read at import; `dldist.set_log_level` changes "
            "it later. `off` costs nothing: nothing is formatted and no thread runs."),
    Setting("secret", ("DLDIST_SECRET",), _text("any text"), "",
            "The shared secret of every `TCPStore` that is given no `secret=`, and of the connections between the members of "
            "groups. Each connection proves in both directions that it knows it, without sending it, and what leaves the host is "
            "encrypted ([security.md](security.md)). A server with a secret serves no client without it, and a client with a secret "
            "talks to no server without it. A rank takes it out of its environment when it makes its first group, so that the programs it "
            "starts do not get it. Unset: no authentication, no encryption."),
    Setting("encryption", ("DLDIST_ENCRYPTION",), _one_of("on", "off"), "on",
            "`off`: connections over TCP are not encrypted although there is a secret, which both ends still have to prove. It must be "
            "the same for all processes of a job."),
    Setting("interfaces", ("DLDIST_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"),
            _text("names of network interfaces, separated by commas"), "",
            "Which interfaces groups publish addresses of and listen on, as long as somebody may come "
            "([rendezvous.md](rendezvous.md#where-groups-listen)). Unset: those that reach the store, then all others that "
            "are up; the loopback address alone where the store's host is `localhost` or such an address."),
    Setting("ports", ("DLDIST_PORT_RANGE",), _PORTS, (0, 0),
            "Groups listen on a free port of this range; without it on any. A process needs one port, however many groups it "
            "has."),
    Setting("shm", ("DLDIST_SHM",), _FLAG, True,
            "`0`: processes of one host talk over TCP, as if they were on different ones."),
    Setting("lanes", ("DLDIST_TCP_LANES",), _number(1, 16, "a number from 1 to 16"), 1,
            "How many TCP connections a pair of processes uses for large messages."),
    Setting("congestion", ("DLDIST_TCP_CONGESTION",), _text("such as `bbr`"), "",
            "The congestion control of the TCP connections of groups. Unset: the system's."),
    Setting("waiting", ("DLDIST_WAIT",), _one_of(*WAITING, wanted='"adaptive", "poll" or "sleep"'), "adaptive",
            "How calls of groups wait for other ranks. `adaptive` polls for up to a millisecond, or less if the last waits "
            "were longer than that, and then sleeps until it is woken. A thread that waits for a rank that was last seen on "
            "the same CPU yields that CPU; the affinity of threads is never changed. `poll` polls until the deadline and never sleeps: use it if "
            "every rank has a core to itself. `sleep` sleeps at once: use it if the ranks share their cores. If several "
            "threads of a process wait, one polls for all and the others sleep."),
    Setting("algorithm", ("DLDIST_ALGORITHM",), _text("`all_reduce=ring,broadcast=chain`; `flat`"), "",
            "One algorithm a collective instead of the choice by size; `flat` does without shared memory's short cuts and "
            "without hierarchy. Must be the same on all ranks. A name that does not exist is an error that lists those that "
            "do."),
    Setting("records", ("DLDIST_FR_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
            _number(0, wanted="a number, 0 or more"), 2000,
            "How many operations the flight recorder keeps; 0 turns it off."),
    Setting("frames", ("DLDIST_FR_STACK_DEPTH",), _number(0, wanted="a number, 0 or more"), 4,
            f"How many frames of Python the flight recorder keeps of who called, {_MAX_FRAMES} at most; 0: none."),
    Setting("worker_server_socket", ("DLDIST_WORKER_SERVER_SOCKET", "TORCH_WORKER_SERVER_SOCKET"), _PATH, "",
            "Where `dldist.control.worker_main` makes the Unix socket of the worker's server ([control-plane.md](control-plane.md)). "
            "Unset: there is no server."),
    Setting("cache_home", ("XDG_CACHE_HOME",), _text("a folder"), "",
            "That of dumps that have no other place, and of what is compiled for PyTorch; `~/.cache` without it."),
)

TORCH = (
    Setting("debug_level", ("TORCH_DISTRIBUTED_DEBUG",), _text("`OFF`, `INFO`, `DETAIL`"), "OFF",
            "`DETAIL`: groups that are made by `init_process_group` and `new_group` compare every collective of all ranks "
            "before it runs, as c10d's do. Ours find out what does not fit without it, too ([failures.md](failures.md)). "
            "`INFO` changes nothing. Read when it is first asked for; `dldist.set_debug_level` changes it."),
    Setting("init_barrier", ("TORCH_DIST_INIT_BARRIER",), _text("`1`"), "",
            "`init_process_group` and `new_group` end with a barrier of all ranks in the store."),
    Setting("nan_check_of_all", ("TORCH_DIST_NAN_CHECK",), _text("`1`"), "",
            "Groups of every backend that are made from then on look through what they send for NaN: a RuntimeError names the tensor."),
    Setting("use_libuv", ("USE_LIBUV",), _text("`1`, `0`"), "1",
            "Taken, and changes nothing but what `store.libuvBackend` says: there is one server."),
)
"""Those of torch.distributed alone; the module-level calls read the first three."""

BACKEND_FOR_TORCH = (
    Setting("torch_backend", ("DLDIST_TORCH_BACKEND",), _one_of("auto", "c++", "python"), "auto",
            "How groups of PyTorch's backend \"dldist\" are made. `auto`: by a backend in C++, which is compiled for the PyTorch that "
            "is installed when a program first needs it; in Python where that cannot be done. `c++`: an error says why it cannot. "
            "`python`: without a compiler."),
    Setting("torch_as_gloo", ("DLDIST_TORCH_AS_GLOO",), _FLAG, False,
            "`1`: PyTorch programs that ask for the backend \"gloo\" get dldist's."),
)
"""Of dldist.torch."""

LIBRARIES = (
    Setting("nccl_library", ("DLDIST_NCCL_LIBRARY", "VLLM_NCCL_SO_PATH"), _PATH, "",
            "The NCCL that is used; nothing else is tried then. Unset: a copy that the process has loaded already, NVIDIA's "
            "wheel, the loader's path."),
    Setting("cuda_library", ("DLDIST_CUDA_LIBRARY",), _PATH, "", "The same for the driver. Unset: `libcuda.so.1`."),
    Setting("mpi_library", ("DLDIST_MPI_LIBRARY",), _PATH, "",
            "The same for MPI ([carriers.md](carriers.md#mpi)). Unset: a copy that the process has loaded already, one that fits the "
            "mpirun that has started the process, from a wheel or the loader's path."),
    Setting("ucc_library", ("DLDIST_UCC_LIBRARY",), _PATH, "",
            "The same for UCC ([carriers.md](carriers.md#ucc)). Unset: a copy that the process has loaded already, a wheel's, the "
            "loader's path."),
    Setting("xccl_library", ("DLDIST_XCCL_LIBRARY",), _PATH, "",
            "The same for oneCCL ([carriers.md](carriers.md#xccl)): `libccl.so.2`."),
    Setting("nccl_encryption", ("DLDIST_NCCL_ENCRYPTION",), _FLAG, False,
            "`1`: NCCL encrypts its connections, with a key made of `DLDIST_SECRET` ([nccl.md](nccl.md#encryption)). Must be the same "
            "on all ranks. Read when NCCL is loaded."),
)

FAILURES = (
    Setting("coord_check_ms", ("DLDIST_COORD_CHECK_MS", "TORCH_NCCL_COORD_CHECK_MILSEC"), _number(1), 1000,
            "How often a process looks in the store for the failures of others."),
    Setting("propagate_error", ("DLDIST_PROPAGATE_ERROR", "TORCH_NCCL_PROPAGATE_ERROR"), _TRUTH, True,
            "`0`: a failure of an NCCL group is not told to the other ranks."),
    Setting("dump_on_timeout", ("DLDIST_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT"), _TRUTH, None,
            "Whether failures write the flight recorder to a file. Unset: those of NCCL's groups do, and those of all groups "
            "once `DLDIST_FR_DUMP_FILE` is set."),
    Setting("dump_timeout_ms", ("DLDIST_WAIT_TIMEOUT_DUMP_MS", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"), _number(1), 15000,
            "How long that may take."),
    Setting("dump_file", ("DLDIST_FR_DUMP_FILE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
            _text("the beginning of a path"), "",
            "Where the flight recorder's dumps go: the rank follows. Unset: `torch/comm_lib_trace_rank_` in `$XDG_CACHE_HOME` "
            "or `~/.cache`. dlrun sets it for its ranks where none of the three is set."),
    Setting("dump_format", ("DLDIST_FR_DUMP_FORMAT",), _one_of("pickle", "json"), "pickle", "How such a file is written."),
    Setting("include_stacks", ("DLDIST_FR_INCLUDE_STACKS", "TORCH_INCLUDE_STACK_TRACE"), _TRUTH, True,
            "Whether who called is in the file."),
    Setting("only_active", ("DLDIST_FR_ONLY_ACTIVE", "TORCH_INCLUDE_ONLY_ACTIVE"), _TRUTH, False,
            "`1`: of the operations only those that have not completed are in the file."),
    Setting("extra_dump_on_exec", ("DLDIST_EXTRA_DUMP_ON_EXEC", "TORCH_NCCL_EXTRA_DUMP_ON_EXEC"), _TRUTH, False,
            "`1`: a group that is aborted counts as a failure, too."),
    Setting("dump_pipe", ("DLDIST_DUMP_PIPE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"), _text("the beginning of a path"), "",
            "Named pipes, without `<rank>.pipe`, which ask for dumps. Unset: there are none."),
    Setting("dump_signal", ("DLDIST_DUMP_SIGNAL",), _text("`SIGUSR1`, a number, `none`"), "",
            "The signal that asks ranks for dumps and dlrun for a report; `none`: none does. Unset: SIGUSR2, in processes "
            "that have no other use for it."),
    Setting("desync_debug", ("DLDIST_DESYNC_DEBUG", "TORCH_NCCL_DESYNC_DEBUG"), _TRUTH, False,
            "`1`: reports of failures say how far all ranks are.",
            old=("NCCL_DESYNC_DEBUG",)),
    Setting("heartbeat_timeout_s", ("DLDIST_HEARTBEAT_TIMEOUT_S", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"), _number(1), 480,
            "How long NCCL's watchdog may stand still."),
    Setting("enable_monitoring", ("DLDIST_ENABLE_MONITORING", "TORCH_NCCL_ENABLE_MONITORING"), _TRUTH, False,
            "`1`: the process ends when it stands still for longer."),
    Setting("async_error_handling", ("DLDIST_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING"), _number(0, 3), 2,
            "What becomes of NCCL groups that fail. 0: works end with the error, nothing is aborted; 1: the process ends; 2: "
            "communicators are aborted; 3: the process ends, without aborting them.",
            old=("NCCL_ASYNC_ERROR_HANDLING",)),
    Setting("blocking_wait", ("DLDIST_NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT"), _TRUTH, False,
            "`1`: `wait()` blocks the host.",
            old=("NCCL_BLOCKING_WAIT",)),
    Setting("high_priority", ("DLDIST_NCCL_HIGH_PRIORITY", "TORCH_NCCL_HIGH_PRIORITY"), _TRUTH, False,
            "`1`: streams of NCCL groups have a high priority."),
    Setting("enable_timing", ("DLDIST_NCCL_ENABLE_TIMING", "TORCH_NCCL_ENABLE_TIMING"), _TRUTH, False,
            "`1`: works of NCCL groups know how long they took.",
            old=("NCCL_ENABLE_TIMING",)),
    Setting("event_cache", ("DLDIST_NCCL_EVENT_CACHE", "TORCH_NCCL_CUDA_EVENT_CACHE"), _TRUTH, True,
            "`0`: events of CUDA's are not used again."),
    Setting("nan_check", ("DLDIST_NCCL_NAN_CHECK", "TORCH_NCCL_NAN_CHECK"), _TRUTH, False,
            "`1`: inputs of NCCL groups are looked through for NaN, on the device."),
    Setting("ranks_per_root", ("DLDIST_NCCL_RANKS_PER_ROOT", "TORCH_NCCL_RANKS_PER_ROOT"), _number(0), 128,
            "How many ranks share one unique id of NCCL's, where it can have several; 0: one for all."),
    Setting("grouped_messages", ("DLDIST_NCCL_GROUPED_MESSAGES",), _TRUTH, False,
            "`1`: gather, scatter and all-to-all are grouped messages, even where NCCL has calls for them. The same on all ranks."),
    Setting("deterministic", ("DLDIST_NCCL_DETERMINISTIC",), _TRUTH, None,
            "`1`: NCCL does without NVLS, whose results can differ in their last bits from run to run: sets `NCCL_ALGO=^NVLS`, unless "
            "`NCCL_ALGO` is set. Unset: as `torch.use_deterministic_algorithms` says, where a program has imported torch."),
    Setting("nonblocking", ("DLDIST_NCCL_NONBLOCKING", "TORCH_NCCL_USE_COMM_NONBLOCKING"), _TRUTH, False,
            "`1`: NCCL makes its communicators without blocking."),
    Setting("nonblocking_timeout_s", ("DLDIST_NCCL_NONBLOCKING_TIMEOUT_S", "TORCH_NCCL_NONBLOCKING_TIMEOUT"), _number(1), None,
            "How long making a communicator may take, blocking or not. Unset: the group's time-out."),
)


# ---- reading

_SETTINGS = {setting.attribute: setting for setting in (*PROGRAM, *TORCH, *BACKEND_FOR_TORCH, *LIBRARIES, *FAILURES)}
_PREFIXES = ("DLDIST_", "TORCH_", "NCCL_")
_warned: set[str] = set()


def _warn_old(name: str, better: str) -> None:
    if name not in _warned:
        _warned.add(name)
        warnings.warn(f"Environment variable {name} is deprecated; use {better} instead", FutureWarning, stacklevel=4)


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
    """What the environment says now."""
    return _read(_SETTINGS[attribute], os.environ)


# ---- the secret, which a rank takes out of its environment: what it starts is mostly none of the job's

_taken: dict[str, str] = {}
"""What stands in the environment instead of a secret, and the secret."""


def _taken_by(pid: int) -> str:
    return f"(taken by process {pid})"


def secret() -> bytes:
    """The job's secret, or b"" for none.

    Raises DistArgumentError if a rank that is not this process, nor one that it was forked from, has taken it.
    """
    said = value("secret")
    if said.startswith("(taken by process ") and said not in _taken:
        raise _core.DistArgumentError(
            f"DLDIST_SECRET is {said}, which is a rank and has started this process: the secret of a job is for its ranks. "
            "Set DLDIST_SECRET for processes that are to be ranks, too (the rank has it in dldist._base.settings.secret())"
        )
    return os.fsencode(_taken.get(said, said))


def take_secret() -> bytes:
    """The same, for a process that becomes a rank."""
    found = secret()
    if found:
        mark = _taken_by(os.getpid())
        _taken[mark] = os.fsdecode(found)
        os.environ["DLDIST_SECRET"] = mark
    return found


def is_encrypted() -> bool:
    """Whether connections over TCP are encrypted, where there is a secret; for the C side."""
    return bool(value("encryption") == "on")


def of_failures() -> SimpleNamespace:
    """The settings about failures, dumps and NCCL's groups at this moment, each as an attribute.

    Raises DistArgumentError, which is a RuntimeError and a ValueError.
    """
    # Of all variables at once: to ask for each of them takes three times as long.
    given = {name: os.environ[name] for name in os.environ if name.startswith(_PREFIXES)}
    return SimpleNamespace(**{setting.attribute: _read(setting, given) for setting in FAILURES})


def connection() -> tuple[str, int, int, bool, int, str, bytes, bool, int]:
    """Interfaces, first and last port, whether shared memory may be used, connections a peer, TCP's congestion control,
    the secret, whether TCP is encrypted, how calls wait; for the C side. The process becomes a rank."""
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
    """The algorithms that are asked for, whatever the size; for the C side."""
    return str(value("algorithm"))


def recorder() -> tuple[int, int]:
    """How many operations the flight recorder keeps, 0 for none; and how many frames of who called, 0 for none; for the C side."""
    return value("records"), min(value("frames"), _MAX_FRAMES)


def dump_prefix() -> str:
    """What names of files with dumps begin with; the rank follows."""
    cache = value("cache_home") or os.path.expanduser("~/.cache")
    return value("dump_file") or os.path.join(cache, "torch", "comm_lib_trace_rank_")
