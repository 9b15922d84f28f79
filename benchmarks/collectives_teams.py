"""The rank processes measured by benchmarks/collectives.py: start, commands and end.

A team is the rank processes of one library. They live for the whole run, each connected by a Unix
socket, and sleep in a read while another team works. A peer is a name in the results: a team, and
the memory of its buffers.
"""

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field

from collectives_mpi import DEFAULT_FOLDER, KINDS, Mpi, Unavailable, any_openmpi, find_mpi4py

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = os.path.join(HERE, "peers")
RANK_PY = os.path.join(SOURCES, "rank.py")
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 10


class TeamFailure(Exception):
    """A rank exited, reported an error, or did not answer in time."""


class NotOffered(Exception):
    """The library does not support the operation."""


# -- starting libraries ----------------------------------------------------------------------------


@dataclass
class Place:
    """The environment of the teams: number of ranks, folder for sockets and logs, and hosts if
    several."""

    nranks: int
    folder: str
    hosts: object = None
    bind: str = "default"
    huge_pages: bool = True
    congestion: str | None = None
    mpi_python: str = "/usr/bin/python3"
    mpi_folder: str = DEFAULT_FOLDER
    programs: dict = field(default_factory=dict)

    @property
    def is_oversubscribed(self):
        return self.nranks > len(os.sched_getaffinity(0))

    def environment(self, **more):
        environment = dict(os.environ, **more)
        if not self.huge_pages:
            environment["NUMPY_MADVISE_HUGEPAGE"] = "0"
        if self.hosts:
            environment["GLOO_SOCKET_IFNAME"] = environment["DLDIST_SOCKET_IFNAME"] = self.hosts.interface
        else:
            environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        return environment

    def prefix(self, rank):
        """Return the command prefix for the rank's host; ranks fill the hosts in order."""
        return self.hosts.prefix(rank * self.hosts.count // self.nranks) if self.hosts else []

    def compile(self, name, sources, compiler=("cc",), links=()):
        """Return the path of a C program, compiled on first use."""
        program = os.path.join(self.folder, name)
        if program not in self.programs:
            if shutil.which(compiler[0]) is None:
                raise Unavailable(f"{compiler[0]} is not installed")
            paths = [os.path.join(SOURCES, source) for source in sources]
            command = [*compiler, "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-pthread", "-o", program, *paths, *links]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            if done.returncode != 0:
                raise Unavailable(f"{compiler[0]} failed: {done.stderr.strip()[-300:]}")
            self.programs[program] = True
        return program


def start_python(place, name, library, folder=None):
    """Return [(command, environment)] of Python ranks; packages in the folder take precedence."""
    import importlib.util

    module = {"gloo": "torch"}.get(library, library)
    more = {"PYTHONPATH": ":".join(filter(None, [folder, os.environ.get("PYTHONPATH")]))} if folder else {}
    if folder is None and importlib.util.find_spec(module) is None:
        raise Unavailable(f"{module} is not installed for {sys.executable}")
    store = os.path.join(place.folder, f"{name}.store")
    return [
        (
            [*place.prefix(rank), sys.executable, RANK_PY, library, socket_path(place, name), str(rank),
             str(place.nranks), store],
            place.environment(**more),
        )
        for rank in range(place.nranks)
    ]  # fmt: skip


def start_mpi(place, name, mpi_name, is_best=False):
    """Return the command of a C program on the MPI; mpirun starts the ranks."""
    mpi = Mpi(mpi_name, place.mpi_folder)
    compiler, links = mpi.compiler()
    program = place.compile(f"rank_{mpi_name}", ["mpi_rank.c", "rank.c"], compiler, links)
    command = [*place.prefix(0), *mpi.command(place, is_best), program, socket_path(place, name), mpi.kind.says]
    return [(command, place.environment(**mpi.settings(place, is_best)))]


def start_mpi4py(place, name, mpi_name=None, is_best=False):
    """Return the command of Python ranks on the MPI."""
    mpi = Mpi(mpi_name, place.mpi_folder) if mpi_name else any_openmpi(place.mpi_folder)
    python, environment = find_mpi4py(mpi, place.mpi_python)
    ranks = [python, RANK_PY, "mpi4py", socket_path(place, name), "0", "0", mpi.kind.says]
    command = [*place.prefix(0), *mpi.command(place, is_best), *ranks]
    return [(command, place.environment(**environment, **mpi.settings(place, is_best)))]


def start_rawtcp(place, name):
    if place.nranks != 2:
        raise Unavailable("rawtcp supports only 2 ranks")
    program = place.compile("raw_rank", ["raw_rank.c", "rank.c"])
    address = place.hosts.address(0) if place.hosts else "127.0.0.1"
    port_file = os.path.join(place.folder, f"{name}.port")
    more = [place.congestion] if place.congestion else []
    return [
        ([*place.prefix(rank), program, socket_path(place, name), str(rank), address, port_file, *more],
         place.environment())
        for rank in range(2)
    ]  # fmt: skip


TEAMS = {
    "dldist": lambda place, name: start_python(place, name, "dldist"),
    "gloo": lambda place, name: start_python(place, name, "gloo"),
    "mpi4py": start_mpi4py,
    "mpi4py-best": lambda place, name: start_mpi4py(place, name, is_best=True),
    "rawtcp": start_rawtcp,
}
for _mpi in KINDS:
    TEAMS[_mpi] = lambda place, name, mpi=_mpi: start_mpi(place, name, mpi)
    TEAMS[f"mpi4py-{_mpi}"] = lambda place, name, mpi=_mpi: start_mpi4py(place, name, mpi)
    if KINDS[_mpi].best:
        TEAMS[f"{_mpi}-best"] = lambda place, name, mpi=_mpi: start_mpi(place, name, mpi, is_best=True)

# The team of each peer, and its variant: the memory of its buffers, or plans.
PEERS = {name: (name, "private") for name in TEAMS}
PEERS |= {"dldist-arena": ("dldist", "arena"), "dldist-plan": ("dldist", "plan")}


def add_build(name, folder):
    """Add the peers dldist-NAME, dldist-NAME-arena and dldist-NAME-plan, for a build in the
    folder."""
    if not os.path.isdir(os.path.join(folder, "dldist")):
        raise Unavailable(f"there is no package dldist in {folder}")
    team = f"dldist-{name}"
    TEAMS[team] = lambda place, name: start_python(place, name, "dldist", os.path.abspath(folder))
    PEERS.update({team: (team, "private"), f"{team}-arena": (team, "arena"), f"{team}-plan": (team, "plan")})


def is_python(peer):
    """Return True if the whole Python call is timed, False for calls from C and for plans."""
    return PEERS[peer][1] != "plan" and peer.split("-")[0] in ("dldist", "gloo", "mpi4py")


def socket_path(place, name):
    return os.path.join(place.folder, f"{name}.socket")


# -- processes -------------------------------------------------------------------------------------


class Rank:
    """The driver's connection to a rank."""

    def __init__(self, connection):
        self.connection, self.buffer = connection, b""
        word, number, pid, self.version = self.read_line(time.monotonic() + START_TIMEOUT_S).split(" ", 3)
        if word != "hello":
            raise TeamFailure(f"a rank began with {word}")
        self.number, self.version = int(number), " ".join(self.version.split())
        self.process = os.pidfd_open(int(pid))

    def read_some(self):
        """Return a line if it is complete, else None."""
        data = self.connection.recv(1 << 16)
        if not data:
            raise TeamFailure(f"rank {getattr(self, 'number', '?')} ended")
        self.buffer += data
        if b"\n" not in self.buffer:
            return None
        line, self.buffer = self.buffer.split(b"\n", 1)
        return line.decode()

    def read_line(self, deadline):
        line = None
        while line is None:
            if not select.select([self.connection], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TeamFailure("a rank did not answer in time")
            line = self.read_some()
        return line

    def fileno(self):
        return self.connection.fileno()

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.process, signal.SIGKILL)

    def close(self):
        self.connection.close()
        os.close(self.process)


class Team:
    """The rank processes of one library."""

    def __init__(self, name, place):
        self.name, self.place = name, place
        self.log = os.path.join(place.folder, f"{name}.log")
        self.processes, self.ranks = [], []
        try:
            self.start()
        except BaseException:
            self.close(is_orderly=False)
            raise

    def start(self):
        path = socket_path(self.place, self.name)
        for leftover in (path, *(os.path.join(self.place.folder, f"{self.name}.{end}") for end in ("store", "port"))):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(leftover)
        commands = TEAMS[self.name](self.place, self.name)
        with socket.socket(socket.AF_UNIX) as listener, open(self.log, "w", encoding="utf-8") as log:
            listener.bind(path)
            listener.listen(self.place.nranks)
            for command, environment in commands:
                self.processes.append(
                    subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                )
            self.accept(listener)
        self.ranks.sort(key=lambda rank: rank.number)

    def accept(self, listener):
        deadline = time.monotonic() + START_TIMEOUT_S
        while len(self.ranks) < self.place.nranks:
            if select.select([listener], [], [], 0.2)[0]:
                self.ranks.append(Rank(listener.accept()[0]))
            elif any(process.poll() is not None for process in self.processes):
                raise TeamFailure(f"a process exited during startup: {self.last_words()}")
            elif time.monotonic() > deadline:
                raise TeamFailure(f"{len(self.ranks)} of {self.place.nranks} ranks came: {self.last_words()}")

    def last_words(self):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return " | ".join(line.strip() for line in file.read().splitlines()[-3:]) or "it said nothing"

    @property
    def version(self):
        return self.ranks[0].version

    def ask(self, message, timeout):
        """Send a message to all ranks; return their answers in rank order."""
        data = f"{message}\n".encode()
        answers = {}
        try:
            for rank in self.ranks:
                rank.connection.sendall(data)
            self.collect(answers, time.monotonic() + timeout)
        except OSError as error:
            raise TeamFailure(f"{error}: {self.last_words()}") from error
        answers = [answers[rank] for rank in self.ranks]
        for answer in answers:
            if answer.startswith("no "):
                raise NotOffered(answer[3:])
        return answers

    def collect(self, answers, deadline):
        while len(answers) < len(self.ranks):
            pending = [rank for rank in self.ranks if rank not in answers]
            readable = select.select(pending, [], [], max(0.0, deadline - time.monotonic()))[0]
            if not readable:
                missing = ", ".join(str(rank.number) for rank in pending)
                raise TeamFailure(f"no answer from rank {missing} in time")
            for rank in readable:
                line = rank.read_some()
                if line is not None and line.startswith("error "):
                    raise TeamFailure(f"rank {rank.number}: {line[6:]}")
                if line is not None:
                    answers[rank] = line

    def close(self, is_orderly=True):
        """Close the connections, which ends the ranks, and kill the remaining processes by pid."""
        if not is_orderly:
            for rank in self.ranks:
                rank.kill()
        for rank in self.ranks:
            rank.connection.close()
        deadline = time.monotonic() + (STOP_TIMEOUT_S if is_orderly else 2)
        for process in self.processes:
            end_process(process, deadline)
        for rank in self.ranks:
            rank.kill()
            rank.close()
        self.processes, self.ranks = [], []


def end_process(process, deadline):
    """End a process with SIGTERM before SIGKILL, as mpirun forwards SIGTERM to its ranks."""
    for act in (lambda: None, process.terminate, process.kill):
        act()
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
            return
        except subprocess.TimeoutExpired:
            deadline = time.monotonic() + 2


class Probe:
    """Measures the distance between the first two CPUs; see peers/placement.c. "?" is unknown."""

    # Nanoseconds per round trip of a cache line: shared last-level cache, farther, unknown.
    LABELS = ((230, "L"), (5000, "X"), (float("inf"), "?"))

    def __init__(self, place):
        self.process = None
        cpus = sorted(os.sched_getaffinity(0))[:2]
        if len(cpus) < 2:
            raise Unavailable("one CPU only")
        program = place.compile("placement", ["placement.c"])
        self.process = subprocess.Popen(
            [program, *map(str, cpus)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def label(self):
        self.process.stdin.write("\n")
        if not select.select([self.process.stdout], [], [], 5)[0]:
            return "?"
        round_trip = int(self.process.stdout.readline() or 0)
        return next(label for limit, label in self.LABELS if round_trip < limit) if round_trip else "?"

    def close(self):
        self.process.stdin.close()
        end_process(self.process, time.monotonic() + 2)
        self.process.stdout.close()
