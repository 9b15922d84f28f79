"""The command line of dlrun."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import pathlib
import sys
from typing import Any

from dldist import __version__

DEFAULT_PORT = 29500
_POLL_S = 0.25
GRACE_S = 30.0
"""Seconds between SIGTERM and SIGKILL: enough to write a checkpoint, and torchrun's default."""
KEEP_NONE, KEEP_STDOUT, KEEP_STDERR, KEEP_BOTH = 0, 1, 2, 3

_DESCRIPTION = """Run a program in several processes, called ranks, that form one job.

Each rank has its number and the address of rank 0 in its environment, in the variables that torchrun sets (RANK,
WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT ...). The output of ranks is printed line by line, prefixed with the rank.
If a rank fails, dlrun ends the other ranks, prints the rank's exception last, and exits with its exit code. On SIGUSR2,
dlrun reports the calls that ranks wait in; the program continues. SIGINT (Ctrl-C), SIGTERM, SIGHUP and SIGQUIT end the
job; signals that are ignored when dlrun starts stay ignored, such as SIGHUP under nohup."""

_EPILOG = """examples:
  dlrun --nproc-per-node 4 train.py --epochs 3
  dlrun --nproc-per-node cpu --bind-cores -m package.module
  dlrun --nproc-per-node 2 --log-dir logs train.py
on each of two machines:
  DLDIST_SECRET=... dlrun --nnodes 2 --nproc-per-node 8 --rdzv-endpoint 10.0.0.1:29500 train.py"""


_STREAMS = '0: nothing, 1: stdout, 2: stderr, 3: both; or by local rank, "0:3,1:2"'
# For each section of the help: pairs of an option's names and its arguments for argparse.
_OPTIONS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "number of ranks": (
        ("-n -np --nproc-per-node", {"dest": "nproc", "default": "1", "metavar": "N",
         "help": 'number of ranks on this machine, or "cpu" or "auto" for one per usable core (default: 1)'}),
        ("--nnodes", {"default": "1", "metavar": "N", "help": "number of machines, each with its own dlrun (default: 1)"}),
    ),
    "several machines": (
        ("--node-rank", {"type": int, "metavar": "N", "help": "number of this machine (default: in the order in which machines join)"}),
        ("--master-addr", {"dest": "host", "metavar": "HOST", "help": "address of machine 0 (default: 127.0.0.1)"}),
        ("--master-port", {"dest": "port", "type": int, "metavar": "PORT",
         "help": f"port of machine 0 (default: {DEFAULT_PORT}; for one machine, any free port)"}),
        ("--rdzv-endpoint", {"metavar": "HOST:PORT", "help": "address and port; served by the dlrun on the machine with that address"}),
        ("--rdzv-backend", {"default": "c10d", "choices": ("c10d", "static"),
         "help": "for compatibility with torchrun; both use the endpoint"}),
        ("--monitor-interval", {"dest": "poll_s", "type": float, "default": _POLL_S, "metavar": "SECONDS",
         "help": f"time between checks for failures on other machines (default: {_POLL_S:g})"}),
        ("--rdzv-id", {"dest": "run_id", "metavar": "NAME", "help": "name of the job, the same on all machines"}),
        ("--standalone", {"action": "store_true", "help": "use one machine and any free port; ignore other options for machines"}),
        ("--no-secret", {"dest": "has_secret", "action": "store_false",
         "help": "let processes connect without a secret, for programs that use torch's own store client"}),
    ),
    "program": (
        ("-m --module", {"dest": "is_module", "action": "store_true", "help": "the program is a module, as with python -m"}),
        ("--no-python", {"dest": "is_python", "action": "store_false", "help": "the program is a command, not a Python script"}),
        ("--role", {"default": "default", "metavar": "NAME", "help": "value of ROLE_NAME in the environment of ranks (default: default)"}),
        ("--max-restarts", {"type": int, "default": 0, "metavar": "N", "help": "restart all ranks after a failure, at most N times"}),
        ("--shutdown-timeout", {"dest": "grace_s", "type": float, "default": GRACE_S, "metavar": "SECONDS",
         "help": f"time between the signal to end and the kill of remaining ranks (default: {GRACE_S:g})"}),
        ("--debug", {"type": int, "metavar": "RANK", "help": "start this rank under debugpy, and wait until a debugger is attached"}),
        ("--bind-cores", {"dest": "has_bound_cores", "action": "store_true", "help": "bind each rank to its own cores"}),
        ("--log-dir", {"metavar": "DIR",
         "help": "write the output of ranks to DIR/<run>/attempt_<N>/<rank>/stdout.log and stderr.log"}),
        ("--local-ranks-filter", {"dest": "shown_ranks", "default": "", "metavar": "RANKS",
         "help": 'show only the output of these local ranks, for example "0,2" (default: all)'}),
        ("-t --tee", {"metavar": "WHAT", "help": f"streams to write to files and the console ({_STREAMS})"}),
        ("-r --redirects", {"default": "0", "metavar": "WHAT", "help": "streams to write only to files, with the same values"}),
    ),
}


class Options(argparse.Namespace):
    """The parsed options, checked and completed with defaults."""

    nproc: int
    nnodes: int
    node_rank: int | None
    """This machine's number; None to number machines in the order in which launchers join."""
    host: str
    port: int
    """The store's port, or 0 for any free port."""
    run_id: str | None
    max_restarts: int
    poll_s: float
    """Seconds between checks for failures on other machines."""
    role: str
    shown_ranks: frozenset[int] | None
    """The local ranks whose output is shown, or None for all."""
    grace_s: float
    """Seconds that ranks may run after the signal to end, before they are killed."""
    log_dir: str | None
    tee: dict[int | None, int]
    redirects: dict[int | None, int]
    """KEEP_* bits of the streams to write to files and the console (tee) or only to files
    (redirects), by local rank, or under None for all ranks."""
    debug: int | None
    """The rank to start under debugpy, or None."""
    has_bound_cores: bool
    has_secret: bool
    is_module: bool
    is_python: bool
    program: list[str]

    def file_streams(self, local_rank: int) -> tuple[int, int]:
        """Return KEEP_* bits for the rank's streams to write to files, and for those to hide."""
        teed, redirected = (choice.get(local_rank, choice.get(None, KEEP_NONE)) for choice in (self.tee, self.redirects))
        return teed | redirected, redirected

    def is_shown(self, local_rank: int) -> bool:
        """True if a rank's output is shown on the console, except streams that go only to files."""
        return self.shown_ranks is None or local_rank in self.shown_ranks


def parse(argv: list[str] | None) -> Options:
    parser = _parser()
    options = parser.parse_args(argv, Options())
    try:
        _check(options)
    except ValueError as error:
        parser.error(str(error))
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dlrun",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"dlrun of dldist {__version__}")
    for title, rows in _OPTIONS.items():
        group = parser.add_argument_group(title)
        for text, settings in rows:
            names = text.split()
            # Like torchrun, also accept underscores instead of hyphens in options.
            names.append("--" + names[-1][2:].replace("-", "_"))
            group.add_argument(*dict.fromkeys(names), **settings)
    parser.add_argument("program", help="script to run; with -m a module, with --no-python a command")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program")
    return parser


def _check(options: Options) -> None:
    """Check the options and convert texts to values. Raise ValueError if an option is invalid."""
    options.nproc = parse_nproc(str(options.nproc))
    options.nnodes = _parse_integer(options.nnodes, 1, math.inf, f"--nnodes must be a number of 1 or more, not {options.nnodes!r}")
    if options.max_restarts < 0:
        raise ValueError(f"--max-restarts must be 0 or more, not {options.max_restarts}")
    if not 0 <= options.grace_s < math.inf:
        raise ValueError(f"--shutdown-timeout must be a number of seconds, 0 or more, not {options.grace_s:g}")
    if not 0 < options.poll_s < math.inf:
        raise ValueError(f"--monitor-interval must be a number of seconds above 0, not {options.poll_s:g}")
    if options.standalone:
        options.nnodes = 1
        options.node_rank = options.host = options.port = options.rdzv_endpoint = None  # type: ignore[assignment]
    if options.node_rank is not None and not 0 <= options.node_rank < options.nnodes:
        raise ValueError(f"--node-rank must be from 0 to {options.nnodes - 1} with --nnodes {options.nnodes}, not {options.node_rank}")
    if options.is_module and not options.is_python:
        raise ValueError("got both -m and --no-python, expected one of them")
    if options.debug is not None and not 0 <= options.debug < (options.nproc if options.nnodes == 1 else math.inf):
        raise ValueError(f"--debug must be a rank of the job, not {options.debug}")
    if options.debug is not None and not options.is_python:
        raise ValueError("got both --debug and --no-python, expected one of them: debugpy needs a Python program")
    if options.debug is not None and importlib.util.find_spec("debugpy") is None:
        raise ValueError(f"--debug needs debugpy, which is not installed: {sys.executable} -m pip install debugpy")
    options.host, options.port = _endpoint(options)
    redirects = str(options.redirects)
    # With --log-dir but no choice of streams, write output to files and the console.
    tee = "3" if options.log_dir and redirects == "0" else "0"
    options.tee, options.redirects = _streams("--tee", tee if options.tee is None else str(options.tee)), _streams("--redirects", redirects)
    options.shown_ranks = _local_ranks(str(options.shown_ranks))
    options.program = [str(options.program), *options.arguments]


def _local_ranks(text: str) -> frozenset[int] | None:
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f'--local-ranks-filter must be local ranks, such as "0,2", not {text!r}')
    return frozenset(map(int, parts)) or None


def _endpoint(options: Options) -> tuple[str, int]:
    host: str | None = options.host
    port: object = options.port
    if options.rdzv_endpoint:
        if host is not None or port is not None:
            raise ValueError("got both --rdzv-endpoint and --master-addr or --master-port, expected one of them")
        host, _, port = options.rdzv_endpoint.rpartition(":") if ":" in options.rdzv_endpoint else (options.rdzv_endpoint, "", "")
        if ":" in host and not host.startswith("["):
            raise ValueError(f"--rdzv-endpoint: got {options.rdzv_endpoint!r}, expected an IPv6 address in brackets, such as [::1]:29500")
    elif options.nnodes > 1 and host is None:
        raise ValueError(f"got --nnodes {options.nnodes} without an address, expected --rdzv-endpoint or --master-addr, which all machines can reach")
    elif options.nnodes > 1 and options.node_rank is None:
        raise ValueError("got --master-addr for several machines without --node-rank, expected both; or use --rdzv-endpoint")
    if port in (None, ""):
        port = DEFAULT_PORT if options.nnodes > 1 else 0
    return (host or "127.0.0.1").strip("[]"), _port("--rdzv-endpoint" if options.rdzv_endpoint else "--master-port", port)


def _port(name: str, value: object) -> int:
    return _parse_integer(value, 0, 65535, f"{name} must be a port from 0 to 65535, not {value!r}")


def _parse_integer(value: object, minimum: int, maximum: float, message: str) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = minimum - 1
    if not minimum <= number <= maximum:
        raise ValueError(message)
    return number


def _streams(name: str, text: str) -> dict[int | None, int]:
    """Parse a choice of streams into KEEP_* bits by local rank, or under None for all ranks."""
    streams: dict[int | None, int] = {}
    for part in text.split(","):
        rank, colon, bits = part.rpartition(":")
        if bits not in ("0", "1", "2", "3") or bool(colon) != rank.isdecimal() or (not colon and "," in text):
            raise ValueError(f'{name} must be 0, 1, 2 or 3, or such as "0:3,1:2", not {text!r}')
        streams[int(rank) if colon else None] = int(bits)
    return streams


def parse_nproc(text: str) -> int:
    """Return the number of ranks that --nproc-per-node requests."""
    if text in ("cpu", "auto"):
        return usable_cores()
    return _parse_integer(text, 1, math.inf, f'--nproc-per-node must be a number of 1 or more, "cpu" or "auto", not {text!r}')


def usable_cores() -> int:
    """Return the number of cores this process may use: by affinity, limited by the CPU quota."""
    cores = len(os.sched_getaffinity(0))
    quota = _cgroup_cores()
    return cores if quota is None else max(1, min(cores, quota))


def _cgroup_cores() -> int | None:
    """Return the smallest CPU quota of this process's cgroup (v2) and its parents, in cores."""
    try:
        groups = pathlib.Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    quotas = []
    for group in (line[3:] for line in groups if line.startswith("0::")):
        folder = pathlib.Path(f"/sys/fs/cgroup{group}")
        for directory in (folder, *folder.parents):
            try:
                quota, period = (directory / "cpu.max").read_text(encoding="ascii").split()
                quotas.append(int(quota) // int(period))
            except (OSError, ValueError, ZeroDivisionError):
                pass  # no quota: the file does not exist, or it contains "max"
    return min(quotas, default=None)
