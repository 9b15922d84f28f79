"""What dlrun is told on its command line."""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import dataclass

from dldist import __version__

DEFAULT_PORT = 29500
_POLL_S = 0.25
GRACE_S = 30.0
"""Enough to write a checkpoint, as a rule; torchrun's is the same."""
NOT_KEPT, KEEP_STDOUT, KEEP_STDERR, KEEP_BOTH = 0, 1, 2, 3

_DESCRIPTION = """Runs a program on several processes, called ranks, that form one job.

Every rank gets its number and where to meet the others in its environment, under the names torchrun uses (RANK,
WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT ...). What ranks print comes out line by line with the rank before it.
When one fails the others are ended, and its exception is printed last; its exit code is that of dlrun. SIGUSR2 has dlrun
report which rank waits where, while the program goes on."""

_EPILOG = """examples:
  dlrun --nproc-per-node 4 train.py --epochs 3
  dlrun --nproc-per-node cpu --bind-cores -m package.module
  dlrun --nproc-per-node 2 --log-dir logs train.py
on each of two machines:
  DLDIST_SECRET=... dlrun --nnodes 2 --nproc-per-node 8 --rdzv-endpoint 10.0.0.1:29500 train.py"""


@dataclass(frozen=True)
class Options:
    nproc: int
    nnodes: int
    node_rank: int | None
    """None: in the order in which the launchers come."""
    host: str
    port: int
    """0: a free one."""
    run_id: str | None
    max_restarts: int
    poll_s: float
    """How often it is looked whether something has happened on other machines."""
    role: str
    shown_ranks: frozenset[int] | None
    """The local ranks whose output is shown; None: all."""
    grace_s: float
    """How long ranks that are told to end may take."""
    log_dir: str | None
    tee: str
    redirects: str
    has_bound_cores: bool
    has_secret: bool
    is_module: bool
    is_python: bool
    program: list[str]

    def kept(self, local_rank: int) -> tuple[int, int]:
        """Which streams of a rank go to a file, and which of these not to the console: bits of KEEP_*."""
        redirected = _of_rank(self.redirects, local_rank)
        return _of_rank(self.tee, local_rank) | redirected, redirected

    def is_shown(self, local_rank: int) -> bool:
        """Whether a rank's output goes to the console, where it does not go to files alone."""
        return self.shown_ranks is None or local_rank in self.shown_ranks


def parse(argv: list[str] | None) -> Options:
    parser = _parser()
    given = parser.parse_args(argv)
    try:
        return _checked(given)
    except ValueError as error:
        parser.error(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dlrun",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"dlrun of dldist {__version__}")
    _add_size(parser)
    _add_meeting(parser)
    _add_running(parser)
    parser.add_argument("program", help="script to run; with -m a module, with --no-python a command")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program")
    return parser


def _add(group: argparse._ArgumentGroup, name: str, *others: str, **how: object) -> None:
    """An option that may be written with dashes or, as torchrun's may, with underscores."""
    names = dict.fromkeys([*others, name, "--" + name[2:].replace("-", "_")])
    group.add_argument(*names, **how)  # type: ignore[arg-type]


def _add_size(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how many")
    _add(
        group,
        "--nproc-per-node",
        "-n",
        "-np",
        default="1",
        metavar="N",
        help='ranks on this machine, or "cpu" or "auto" for as many as there are usable cores (default: 1)',
    )
    _add(group, "--nnodes", default="1", metavar="N", help="machines, each with a dlrun of its own (default: 1)")


def _add_meeting(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how several machines meet")
    _add(group, "--node-rank", type=int, metavar="N", help="which of the machines this is; without it, in order of arrival")
    _add(group, "--master-addr", metavar="HOST", help="address of machine 0 (default: 127.0.0.1)")
    _add(
        group,
        "--master-port",
        type=int,
        metavar="PORT",
        help=f"port there (default: {DEFAULT_PORT}; for one machine a free one)",
    )
    _add(group, "--rdzv-endpoint", metavar="HOST:PORT", help="both in one; the dlrun whose machine has that address serves it")
    _add(
        group,
        "--rdzv-backend",
        default="c10d",
        choices=("c10d", "static"),
        help="for torchrun's command lines: whichever is named, the machines meet at the endpoint",
    )
    _add(
        group,
        "--monitor-interval",
        type=float,
        default=_POLL_S,
        metavar="SECONDS",
        help=f"how often it is looked whether ranks on other machines have failed (default: {_POLL_S:g})",
    )
    _add(group, "--rdzv-id", metavar="NAME", help="name of the job, the same on all machines")
    _add(group, "--standalone", action="store_true", help="one machine and a free port, whatever else is given")
    _add(
        group,
        "--no-secret",
        action="store_true",
        help="do not demand a secret of those who connect: for programs that use the store of torch, which cannot show one",
    )


def _add_running(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how it runs")
    group.add_argument("-m", "--module", action="store_true", help="the program is a module, as with python -m")
    _add(group, "--no-python", action="store_true", help="the program is a command, not a Python script")
    _add(group, "--role", default="default", metavar="NAME", help="what ranks find in ROLE_NAME (default: default)")
    _add(group, "--max-restarts", type=int, default=0, metavar="N", help="start all ranks again after a failure, N times")
    _add(
        group,
        "--shutdown-timeout",
        type=float,
        default=GRACE_S,
        metavar="SECONDS",
        help=f"how long ranks that are told to end may take before they are killed (default: {GRACE_S:g})",
    )
    _add(group, "--bind-cores", action="store_true", help="give each rank cores of its own")
    _add(
        group,
        "--log-dir",
        metavar="DIR",
        help="keep what ranks print in DIR/<run>/attempt_<N>/<rank>/stdout.log and stderr.log",
    )
    _add(
        group,
        "--local-ranks-filter",
        default="",
        metavar="RANKS",
        help='show what these local ranks print, and of others nothing, for example "0,2" (default: of all)',
    )
    streams = '0: nothing, 1: stdout, 2: stderr, 3: both; or by local rank, "0:3,1:2"'
    group.add_argument("-t", "--tee", metavar="WHAT", help=f"what goes to files and to the console ({streams})")
    group.add_argument("-r", "--redirects", default="0", metavar="WHAT", help="what goes to files alone, written likewise")


def _checked(given: argparse.Namespace) -> Options:
    nproc, nnodes = ranks_here(given.nproc_per_node), _count("--nnodes", given.nnodes)
    if given.max_restarts < 0:
        raise ValueError(f"--max-restarts must be 0 or more, not {given.max_restarts}")
    if not 0 <= given.shutdown_timeout < math.inf:
        raise ValueError(f"--shutdown-timeout must be a number of seconds, 0 or more, not {given.shutdown_timeout:g}")
    if not 0 < given.monitor_interval < math.inf:
        raise ValueError(f"--monitor-interval must be a number of seconds above 0, not {given.monitor_interval:g}")
    if given.standalone:
        nnodes, given.node_rank, given.master_addr, given.master_port, given.rdzv_endpoint = 1, None, None, None, None
    if given.node_rank is not None and not 0 <= given.node_rank < nnodes:
        raise ValueError(f"--node-rank must be from 0 to {nnodes - 1} with --nnodes {nnodes}, not {given.node_rank}")
    if given.module and given.no_python:
        raise ValueError("-m and --no-python exclude each other")
    host, port = _endpoint(given, nnodes)
    # Somebody who asks for a directory wants files, and still sees what happens.
    tee = given.tee if given.tee is not None else "3" if given.log_dir and given.redirects == "0" else "0"
    for name, text in (("--tee", tee), ("--redirects", given.redirects)):
        _check_streams(name, text)
    return Options(
        nproc=nproc,
        nnodes=nnodes,
        node_rank=given.node_rank,
        host=host,
        port=port,
        run_id=given.rdzv_id,
        max_restarts=given.max_restarts,
        poll_s=given.monitor_interval,
        role=given.role,
        shown_ranks=_local_ranks(given.local_ranks_filter),
        grace_s=given.shutdown_timeout,
        log_dir=given.log_dir,
        tee=tee,
        redirects=given.redirects,
        has_bound_cores=given.bind_cores,
        has_secret=not given.no_secret,
        is_module=given.module,
        is_python=not given.no_python,
        program=[given.program, *given.arguments],
    )


def _local_ranks(text: str) -> frozenset[int] | None:
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f'--local-ranks-filter must be local ranks, such as "0,2", not {text!r}')
    return frozenset(map(int, parts)) or None


def _endpoint(given: argparse.Namespace, nnodes: int) -> tuple[str, int]:
    host, port = given.master_addr, given.master_port
    if given.rdzv_endpoint:
        if host is not None or port is not None:
            raise ValueError("--rdzv-endpoint says what --master-addr and --master-port say: give one or the other")
        host, _, text = given.rdzv_endpoint.rpartition(":") if ":" in given.rdzv_endpoint else (given.rdzv_endpoint, "", "")
        if ":" in host and not host.startswith("["):
            raise ValueError(f"--rdzv-endpoint: {given.rdzv_endpoint!r}: such an address is written in brackets: [::1]:29500")
        port = _port("--rdzv-endpoint", text) if text else None
    elif nnodes > 1 and host is None:
        raise ValueError(f"--nnodes {nnodes} needs --rdzv-endpoint or --master-addr, an address that all machines reach")
    elif nnodes > 1 and given.node_rank is None:
        raise ValueError("--master-addr with several machines needs --node-rank; with --rdzv-endpoint it may be left out")
    if port is None:
        port = DEFAULT_PORT if nnodes > 1 else 0
    return (host or "127.0.0.1").strip("[]"), _port("--master-port", port)


def _port(name: str, value: object) -> int:
    try:
        port = int(str(value))
    except ValueError:
        port = -1
    if not 0 <= port <= 65535:
        raise ValueError(f"{name}: {value!r} is no port: a number from 0 to 65535 is wanted")
    return port


def _count(name: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError(f"{name} must be a number of 1 or more, not {text!r}")
    return number


def _check_streams(name: str, text: str) -> None:
    for part in text.split(","):
        rank, colon, what = part.rpartition(":")
        if what not in ("0", "1", "2", "3") or bool(colon) != rank.isdecimal() or (not colon and "," in text):
            raise ValueError(f'{name} must be 0, 1, 2 or 3, or such as "0:3,1:2", not {text!r}')


def _of_rank(text: str, local_rank: int) -> int:
    if ":" not in text:
        return int(text)
    return int(dict(part.split(":") for part in text.split(",")).get(str(local_rank), "0"))


def ranks_here(text: str) -> int:
    """What --nproc-per-node asks for."""
    if text in ("cpu", "auto"):
        return usable_cores()
    try:
        return _count("--nproc-per-node", text)
    except ValueError:
        raise ValueError(f'--nproc-per-node must be a number of 1 or more, "cpu" or "auto", not {text!r}') from None


def usable_cores() -> int:
    """Cores that this process may run on, at most as many as its control groups allow the time of."""
    cores = len(os.sched_getaffinity(0))
    quota = _cgroup_cores()
    return cores if quota is None else max(1, min(cores, quota))


def _cgroup_cores() -> int | None:
    """The smallest quota of this process's control group (version 2) and those above it, in whole cores."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            path = next((line[3:].strip() for line in file if line.startswith("0::")), None)
    except OSError:
        return None
    smallest = None
    while path is not None:
        try:
            with open(f"/sys/fs/cgroup{path.rstrip('/')}/cpu.max", encoding="ascii") as file:
                quota, _, period = file.read().partition(" ")
            cores = None if quota == "max" else int(quota) // int(period)
        except (OSError, ValueError, ZeroDivisionError):
            cores = None
        if cores is not None:
            smallest = cores if smallest is None else min(smallest, cores)
        path = os.path.dirname(path) if path != "/" else None
    return smallest
