"""The processes of ranks: their environment, how they are started, told to end, and waited for."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dldist.launch import options as launch_options
from dldist.launch import output, report

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class Place:
    """Where the ranks of a launcher stand in the job."""

    node: int
    nnodes: int
    first_rank: int
    nproc: int
    world_size: int


@dataclass(frozen=True)
class Attempt:
    """What all ranks of one start have in common."""

    number: int
    run_id: str
    folder: str
    host: str
    port: int
    secret: str


def environment(
    place: Place, attempt: Attempt, local_rank: int, options: launch_options.Options
) -> dict[str, str]:
    """torchrun's variables for one rank, on top of this process's own."""
    rank = str(place.first_rank + local_rank)
    env = dict(os.environ)
    env.update(
        RANK=rank,
        WORLD_SIZE=str(place.world_size),
        LOCAL_RANK=str(local_rank),
        LOCAL_WORLD_SIZE=str(place.nproc),
        GROUP_RANK=str(place.node),
        GROUP_WORLD_SIZE=str(place.nnodes),
        ROLE_NAME=options.role,
        ROLE_RANK=rank,
        ROLE_WORLD_SIZE=str(place.world_size),
        MASTER_ADDR=attempt.host,
        MASTER_PORT=str(attempt.port),
        # The store is there: no rank is to serve one. The second says where, for a program that changes MASTER_ADDR or
        # MASTER_PORT and means a store of its own.
        TORCHELASTIC_USE_AGENT_STORE="True",
        DLDIST_AGENT_STORE=f"{attempt.host}:{attempt.port}",
        TORCHELASTIC_RESTART_COUNT=str(attempt.number),
        TORCHELASTIC_MAX_RESTARTS=str(options.max_restarts),
        TORCHELASTIC_RUN_ID=attempt.run_id,
    )
    if place.nproc > 1:
        env.setdefault("OMP_NUM_THREADS", "1")
    env.pop("DLDIST_SECRET", None)
    if attempt.secret:
        env["DLDIST_SECRET"] = attempt.secret
    return env


def command(options: launch_options.Options) -> list[str]:
    if not options.is_python:
        return options.program
    # Unbuffered: a line comes out when it is printed, and none is lost with the process.
    return [sys.executable, "-u", *(["-m"] if options.is_module else []), *options.program]


def why_no_script(options: launch_options.Options) -> str | None:
    """Why Python cannot run the program: it is no file, but perhaps a command."""
    program = options.program[0]
    if not options.is_python or options.is_module or program == "-" or os.path.exists(program):
        return None
    if shutil.which(program) is not None:
        return f"there is no script {program}; to run the command {program}, say --no-python"
    return f"there is no script {program} in {os.getcwd()}"


def cores_of(local_rank: int, nproc: int, usable: list[int]) -> list[int]:
    """The share of a rank; ranks share cores where there are not enough."""
    if nproc >= len(usable):
        return [usable[local_rank % len(usable)]]
    return usable[local_rank * len(usable) // nproc : (local_rank + 1) * len(usable) // nproc]


def _is_handled_by(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            caught = next((int(line.split()[1], 16) for line in file if line.startswith("SigCgt:")), 0)
    except (OSError, ValueError, IndexError):
        return False
    return number > 0 and bool(caught >> (number - 1) & 1)


class Rank:
    """A process with its two streams; its children are in its session, unless they leave it."""

    def __init__(
        self,
        options: launch_options.Options,
        place: Place,
        attempt: Attempt,
        local_rank: int,
        more: Mapping[str, str] | None = None,
    ) -> None:
        """`more` comes into its environment."""
        self.local_rank = local_rank
        self.rank = place.first_rank + local_rank
        self.code: int | None = None
        """How it has ended: exit code, or minus the signal."""
        self.streams: list[output.Stream] = []
        self._place = place
        self._attempt = attempt
        self._began = time.monotonic()
        self._pipes: list[tuple[int, int]] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._options = options
        self._more = more or {}

    def start(self, has_pipes: bool) -> None:
        """Raises OSError when the program cannot be started."""
        if has_pipes:
            self._pipes = [os.pipe(), os.pipe()]
        stdout, stderr = [writing for _, writing in self._pipes] or (None, None)
        # As under mpirun, the keyboard belongs to one rank.
        stdin = None if self.local_rank == 0 else subprocess.DEVNULL
        env = environment(self._place, self._attempt, self.local_rank, self._options) | dict(self._more)
        try:
            with warnings.catch_warnings():
                # About fork() where there are threads: what follows it here takes no lock.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._process = subprocess.Popen(
                    command(self._options),
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    env=env,
                    start_new_session=True,
                    preexec_fn=self._before_exec(),
                )
        finally:
            for _, writing in self._pipes:
                os.close(writing)
        self._pidfd = os.pidfd_open(self._process.pid)

    def _before_exec(self) -> Callable[[], None]:
        launcher = os.getpid()
        cores = None
        if self._options.has_bound_cores:
            cores = cores_of(self.local_rank, self._place.nproc, sorted(os.sched_getaffinity(0)))

        def run() -> None:
            # A launcher that is killed takes its ranks with it.
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != launcher:
                os._exit(1)
            if cores is not None:
                os.sched_setaffinity(0, cores)

        return run

    def pass_on(self, streams: list[output.Stream]) -> None:
        self.streams = streams

    @property
    def pipes(self) -> list[int]:
        """The ends to read from, stdout's and stderr's; none when they are this process's own."""
        return [reading for reading, _ in self._pipes]

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else -1

    @property
    def pidfd(self) -> int:
        return self._pidfd

    def note_end(self) -> None:
        """It has ended. It stays a zombie until close(): as long, its number is nobody else's, and end() is safe."""
        state = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOWAIT)
        if state is not None:
            # si_code says which of the two si_status is.
            self.code = state.si_status if state.si_code == os.CLD_EXITED else -state.si_status

    def ask_by(self, number: int) -> bool:
        """Sends it alone a signal that it handles. False: it does not run, or this signal would end it."""
        if self.code is not None or self._pidfd < 0 or not _is_handled_by(self.pid, number):
            return False
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return False
        return True

    def end(self, number: int) -> None:
        """Sends a signal to it and its children."""
        if self._process is not None:
            try:
                os.killpg(self._process.pid, number)
            except (ProcessLookupError, PermissionError):
                pass  # all gone, or somebody else by now

    def failure(self) -> report.Failure:
        """The report of one that has ended badly."""
        for stream in self.streams:
            stream.drain()
        tail = report.without_prefix(self.streams[1].tail(), self.rank) if self.streams else b""
        tail = report.last_traceback(tail)
        code = self.code or 0
        return report.Failure(
            rank=self.rank,
            local_rank=self.local_rank,
            node=self._place.node,
            host=os.uname().nodename,
            pid=self.pid,
            code=code,
            attempt=self._attempt.number,
            seconds=time.monotonic() - self._began,
            when=report.now(),
            tail=tail.decode(errors="replace"),
            is_consequence=report.is_consequence(code, tail),
        )

    def close(self) -> None:
        """Ends what is left of it, and of its children; nothing of it stays."""
        self.end(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        if self._pidfd >= 0:
            os.close(self._pidfd)
        for stream in self.streams:
            try:
                stream.drain()
            finally:
                stream.close()
        if not self.streams:
            for reading in self.pipes:
                os.close(reading)
