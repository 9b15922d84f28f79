"""The processes of ranks: their environment, start and cleanup."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import termios
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO

from dldist._launch import options as launch_options
from dldist._launch import output, processes, rank_environment, report


@dataclass(frozen=True)
class NodeLayout:
    """The position of a launcher's ranks among all ranks of the job."""

    node: int
    nnodes: int
    first_rank: int
    nproc: int
    world_size: int


@dataclass(frozen=True)
class Attempt:
    """One start of all ranks of a job: the parameters that this launcher's ranks share."""

    options: launch_options.Options
    layout: NodeLayout
    number: int
    run_id: str
    folder: str
    port: int
    secret: str

    @property
    def log_folder(self) -> str:
        return os.path.join(self.options.log_dir or "", self.folder, f"attempt_{self.number}")


def environment(attempt: Attempt, local_rank: int) -> dict[str, str]:
    """Return a rank's environment: dlrun's own environment with torchrun's variables added."""
    layout, options = attempt.layout, attempt.options
    rank = layout.first_rank + local_rank
    env = {
        **os.environ,
        **rank_environment.rank_variables(rank, layout.world_size, local_rank, layout.nproc, layout.node, layout.nnodes),
        **rank_environment.store_variables(options.host, attempt.port, attempt.number),
    }
    env.update(
        ROLE_NAME=options.role,
        ROLE_RANK=str(rank),
        ROLE_WORLD_SIZE=str(layout.world_size),
        TORCHELASTIC_MAX_RESTARTS=str(options.max_restarts),
        TORCHELASTIC_RUN_ID=attempt.run_id,
        DLDIST_SECRET=attempt.secret,
    )
    if layout.nproc > 1:
        env.setdefault("OMP_NUM_THREADS", "1")
    if not attempt.secret:
        del env["DLDIST_SECRET"]
    return env


def command(options: launch_options.Options, rank: int | None = None) -> list[str]:
    if not options.is_python:
        return options.program
    debugger = []
    if rank is not None and rank == options.debug:
        address = "127.0.0.1:5678"  # the port to which editors connect by default
        debugger = ["-Xfrozen_modules=off", "-m", "debugpy", "--listen", address, "--wait-for-client"]
        output.print_message(f"rank {rank} starts when a debugger is attached to debugpy at {address}")
    # -u: unbuffered, so that lines appear immediately and none is lost if the process dies.
    return [sys.executable, "-u", *debugger, *(["-m"] if options.is_module else []), *options.program]


def missing_script_reason(options: launch_options.Options) -> str | None:
    """Return an error text if the program is a Python script that does not exist; else None."""
    program = options.program[0]
    if not options.is_python or options.is_module or program == "-" or os.path.exists(program):
        return None
    if shutil.which(program) is not None:
        return f"script {program} does not exist; to run the command {program}, pass --no-python"
    return f"script {program} does not exist in {os.getcwd()}"


def cores_of(local_rank: int, nproc: int, usable: list[int]) -> list[int]:
    """Return the cores to bind a rank to. Ranks share cores if there are fewer cores than ranks."""
    if nproc >= len(usable):
        return [usable[local_rank % len(usable)]]
    return usable[local_rank * len(usable) // nproc : (local_rank + 1) * len(usable) // nproc]


def _is_handled_by(pid: int, number: int) -> bool:
    """True if a process has a handler for a signal."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            caught = next((int(line.split()[1], 16) for line in file if line.startswith("SigCgt:")), 0)
    except (OSError, ValueError, IndexError):
        return False
    return number > 0 and bool(caught >> (number - 1) & 1)


def _before_exec(cores: list[int] | None) -> Callable[[], None]:
    launcher = os.getpid()

    def run() -> None:
        # Kill this rank when the launcher is killed.
        processes.kill_on_exit_of(launcher)
        # SIGTERM must end a rank, even if dlrun itself was started with it ignored or blocked.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        if cores is not None:
            os.sched_setaffinity(0, cores)

    return run


class Rank:
    """A rank's process, which leads a new session, and the process's output streams."""

    def __init__(self, attempt: Attempt, local_rank: int, extra_env: Mapping[str, str], has_pipes: bool) -> None:
        """Start the process with `extra_env` in its environment. Raise OSError if that fails."""
        self.local_rank = local_rank
        self.rank = attempt.layout.first_rank + local_rank
        self.streams: list[output.Stream] = []
        """The streams stdout and stderr, if dlrun forwards them."""
        self._attempt = attempt
        self._started_at = time.monotonic()
        pipe = subprocess.PIPE if has_pipes else None
        cores = None
        if attempt.options.has_bound_cores:
            cores = cores_of(local_rank, attempt.layout.nproc, sorted(os.sched_getaffinity(0)))
        with warnings.catch_warnings():
            # Popen warns of fork() with threads. It is safe here: no lock is taken before exec().
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process = subprocess.Popen(
                command(attempt.options, self.rank),
                bufsize=0,
                # Only local rank 0 reads the keyboard, as under mpirun.
                stdin=None if local_rank == 0 else subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
                env=environment(attempt, local_rank) | dict(extra_env),
                start_new_session=True,
                preexec_fn=_before_exec(cores),  # noqa: PLW1509  it only makes a few system calls
            )
        self.has_keyboard = local_rank == 0 and not os.path.samestat(os.fstat(0), os.stat(os.devnull))
        self.pid = self.process.pid
        self.child = processes.Child(self.pid, self.process.wait, leads_session=True)

    @property
    def pipes(self) -> list[IO[bytes]]:
        """The read ends of the pipes of stdout and stderr."""
        return [pipe for pipe in (self.process.stdout, self.process.stderr) if pipe is not None]

    @property
    def code(self) -> int | None:
        """The exit code, or the negative number of the signal; None while the process runs."""
        return self.child.code

    def reads_terminal(self) -> bool:
        """True if the process is in a system call that reads dlrun's stdin, a terminal with echo."""
        try:
            if not termios.tcgetattr(0)[3] & termios.ECHO:
                return False
            with open(f"/proc/{self.pid}/syscall", encoding="ascii") as file:
                _, argument, *_ = file.read().split()
            return os.path.samestat(os.stat(f"/proc/{self.pid}/fd/{int(argument, 16)}"), os.fstat(0))
        except (OSError, ValueError, termios.error):
            return False

    def signal_if_handled(self, number: int) -> bool:
        """Send a signal to the process if it runs and has a handler. Without a handler, the signal
        would end the process.
        """
        return self.code is None and _is_handled_by(self.pid, number) and self.child.send(number)

    def failure(self) -> report.Failure:
        """Create the failure report of this process, which has failed."""
        for stream in self.streams:
            stream.drain()
        tail = report.without_prefix(self.streams[1].tail(), self.rank) if self.streams else b""
        tail = report.last_traceback(tail)
        code, host = self.code or 0, os.uname().nodename
        return report.Failure(
            rank=self.rank,
            local_rank=self.local_rank,
            node=self._attempt.layout.node,
            host=host,
            pid=self.pid,
            code=code,
            attempt=self._attempt.number,
            seconds=time.monotonic() - self._started_at,
            when=report.now(),
            tail=tail.decode(errors="replace"),
            is_consequence=report.is_consequence(code, tail, host, self.pid),
        )

    def close(self) -> None:
        """Kill the rank's remaining processes, forward their last output, and close the pipes."""
        self.child.close()
        for stream in self.streams:
            try:
                stream.drain()
            finally:
                stream.close()
        for pipe in self.pipes:
            pipe.close()
