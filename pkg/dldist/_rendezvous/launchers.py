"""Reads a launcher's environment variables: rank, number of ranks, and the rendezvous address.

docs/rendezvous.md lists the variables. This module imports only what `import dldist` needs.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping

from dldist import _core

# First port and number of ports for stores: above the usual range of ephemeral ports.
_FIRST_PORT, _PORTS = 61440, 4096
# Slurm reserves higher step ids for batch scripts, interactive shells and external programs.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


class Launch:
    """A launcher's description of this process. An attribute that the launcher lacks is None."""

    def __init__(self, kind: str, rank: int, world_size: int) -> None:
        self.kind = kind  # the launcher: "torchrun", "env", "slurm", "openmpi" or "pmi"
        self.rank = rank
        self.world_size = world_size
        self.local_rank: int | None = None
        self.local_size: int | None = None
        self.node_rank: int | None = None
        self.job: str | None = None  # a name that differs from all other jobs' on these hosts
        self.master_addr: str | None = None
        self.master_port: int | None = None

    @property
    def is_on_one_host(self) -> bool:
        return self.local_size == self.world_size

    def __repr__(self) -> str:
        return f"Launch({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def detect(environ: Mapping[str, str] = os.environ) -> Launch | None:
    """Detect the launcher of this process, or return None. Raises ValueError if a variable is
    invalid.

    The variable RANK has precedence. Open MPI and MPICH precede Slurm, because they may start their
    helper processes with srun, and then Slurm's numbers describe the helpers.
    """
    launch = _from_env(environ) or _from_openmpi(environ) or _from_pmi(environ) or _from_slurm(environ)
    if launch is None:
        return None
    launch.master_addr = environ.get("MASTER_ADDR") or launch.master_addr
    port = _number(environ, "MASTER_PORT")
    if port is not None:
        if port > 65535:
            raise ValueError(f"environment variable MASTER_PORT must be from 0 to 65535, not {port}")
        launch.master_port = port
    return launch


def detect_mpirun(environ: Mapping[str, str] = os.environ) -> Launch | None:
    """Detect only mpirun, of Open MPI, MPICH or Intel MPI, or return None."""
    return _from_openmpi(environ) or _from_pmi(environ)


def local_rank(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return this process's rank on its host: LOCAL_RANK, or the launcher's own variable."""
    return _variable_or_launcher(environ, "LOCAL_RANK", "local_rank")


def local_size(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the number of ranks on this host: LOCAL_WORLD_SIZE, or the launcher's own variable."""
    return _variable_or_launcher(environ, "LOCAL_WORLD_SIZE", "local_size")


def _variable_or_launcher(environ: Mapping[str, str], name: str, attribute: str) -> int | None:
    number = _number(environ, name)
    return number if number is not None else getattr(detect(environ), attribute, None)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if not text:
        return None
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise ValueError(f"environment variable {name} must be a whole number, not {text!r}")
    return number


def _from_names(environ: Mapping[str, str], kind: str, rank: str, size: str, local: str, local_size: str) -> Launch | None:
    """Create a Launch from variables with these names. None if `rank` or `size` is not set."""
    numbers = _number(environ, rank), _number(environ, size)
    if numbers[0] is None or numbers[1] is None:
        return None
    launch = Launch(kind, numbers[0], numbers[1])
    launch.local_rank = _number(environ, local)
    launch.local_size = _number(environ, local_size)
    _check_below(rank, launch.rank, size, launch.world_size)
    if launch.local_size is not None:
        _check_below(local, launch.local_rank or 0, local_size, launch.local_size)
    return launch


def _check_below(name: str, number: int, limit_name: str, limit: int) -> None:
    if number >= limit:
        raise ValueError(f"environment variable {name} is out of range: got {number}, expected less than {limit_name}={limit}")


def _from_env(environ: Mapping[str, str]) -> Launch | None:
    run_id = environ.get("TORCHELASTIC_RUN_ID")
    kind = "torchrun" if run_id else "env"
    launch = _from_names(environ, kind, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if launch is not None:
        launch.node_rank = _number(environ, "GROUP_RANK")
        launch.job = run_id
    return launch


def _from_openmpi(environ: Mapping[str, str]) -> Launch | None:
    names = (f"OMPI_COMM_WORLD_{suffix}" for suffix in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
    launch = _from_names(environ, "openmpi", *names)
    # OMPI_COMM_WORLD_NODE_RANK is not a node's number: it numbers all jobs' processes on a node.
    namespace = environ.get("PMIX_NAMESPACE")
    if launch is not None and namespace:
        # Open MPI 4 reuses its short namespaces, so add a variable that is unique to each mpirun.
        unique = ("OMPI_MCA_orte_precondition_transports", "PMIX_SERVER_URI41", "PMIX_SERVER_URI4", "PMIX_SERVER_URI2")
        launch.job = f"openmpi {namespace} {next((environ[name] for name in unique if environ.get(name)), '')}"
    return launch


def _from_pmi(environ: Mapping[str, str]) -> Launch | None:
    launch = _from_names(environ, "pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    if launch is None:
        return None
    if launch.local_size is None:
        # srun sets PMI's variables too, but Slurm's own variables describe more.
        step = _from_slurm(environ)
        if step is not None and (step.rank, step.world_size) == (launch.rank, launch.world_size):
            return step
    launch.job = _hydra_job()
    return launch


def _hydra_job() -> str | None:
    """Return a name for a job of MPICH or Intel MPI, whose launcher Hydra sets none: the pid and
    start time of the Hydra proxy, from which all ranks of a host descend."""
    pid = os.getppid()
    while pid > 1:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                head, _, tail = file.read().rpartition(")")
        except OSError:
            return None
        fields = tail.split()
        if head.partition("(")[2] == "hydra_pmi_proxy":
            return f"hydra {pid} {fields[19]}"
        pid = int(fields[1])
    return None


def _from_slurm(environ: Mapping[str, str]) -> Launch | None:
    """Detect a step of srun, except the special steps of batch scripts and salloc's shell."""
    step = _number(environ, "SLURM_STEP_ID")
    if step is None or step >= _FIRST_SPECIAL_STEP:
        return None
    launch = _from_names(environ, "slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "")
    if launch is None:
        return None
    launch.node_rank = _number(environ, "SLURM_NODEID")
    launch.local_size = _tasks_of_node(environ, launch.node_rank or 0)
    attempt = environ.get("SLURM_RESTART_COUNT", "0")
    job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")
    if job:
        launch.job = f"slurm {job}.{step} {attempt}"
    hosts = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST")
    if hosts and launch.job is not None and not launch.is_on_one_host:
        launch.master_addr = next(expand_hosts(hosts))
        launch.master_port = _choose_port(launch.job)
    return launch


def _choose_port(job: str) -> int:
    return _FIRST_PORT + zlib.crc32(os.fsencode(job)) % _PORTS


def _tasks_of_node(environ: Mapping[str, str], node: int) -> int | None:
    """Return the number of tasks of a node, from SLURM_STEP_TASKS_PER_NODE, such as "2(x3),1"."""
    name = "SLURM_STEP_TASKS_PER_NODE"
    text = environ.get(name)
    if not text:
        return None
    total = 0
    for part in text.split(","):
        count, separator, repeat = part.partition("(x")
        times = repeat.removesuffix(")") if separator else "1"
        if not (count.isdecimal() and times.isdecimal() and part.endswith(")") == bool(separator)):
            raise ValueError(f'environment variable {name} must be like "2(x3),1", not {text!r}')
        total += int(times)
        if node < total:
            return int(count)
    raise ValueError(f"environment variable {name} lacks this node: got {text!r}, expected an item for SLURM_NODEID={node}")


def expand_hosts(text: str) -> Iterator[str]:
    """Expand a Slurm host list: "node[01-03,7],gpu5" to node01, node02, node03, node7, gpu5."""
    import re

    numbers = r"\d+(?:-\d+)?"
    host = rf"(?:[^,\[\]]|\[{numbers}(?:,{numbers})*\])+"
    if not re.fullmatch(f"{host}(?:,{host})*", text):
        raise ValueError(f"malformed list of hosts: got {text!r}, expected one like 'node[01-03,7],gpu5'")
    for pattern in re.findall(host, text):
        yield from _expand_one(pattern)


def _expand_one(pattern: str) -> Iterator[str]:
    head, bracket, rest = pattern.partition("[")
    if not bracket:
        yield head
        return
    inside, _, tail = rest.partition("]")
    for part in inside.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            for end in _expand_one(tail):
                yield f"{head}{number:0{len(first)}d}{end}"


def meeting_file(job: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return a path, unique to the job, for the rendezvous file of its ranks on one host.

    The directory is the launcher's for the job if possible. Other users cannot write to it.
    """
    name = "".join(char if char.isalnum() else "-" for char in f"{_boot_id()} {job}"[:200])
    directory = environ.get("PMIX_SERVER_TMPDIR")
    if directory and _privacy_problem(directory) is None:
        return os.path.join(directory, f"dldist-{name}")
    return os.path.join(_make_private(os.path.join(environ.get("TMPDIR") or "/tmp", f"dldist-{os.geteuid()}")), name)


def _boot_id() -> str:
    """Return the kernel's boot id, because pids repeat after a restart, but files remain."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _make_private(directory: str) -> str:
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        pass  # created by another rank or job
    reason = _privacy_problem(directory)
    if reason is not None:
        raise _core.DistStoreError(
            f"rendezvous directory {directory} is unusable: it {reason}; remove it, or set TMPDIR, or MASTER_ADDR and MASTER_PORT"
        )
    return directory


def _privacy_problem(directory: str) -> str | None:
    """Return how other users could access this directory, or None if they cannot."""
    try:
        status = os.lstat(directory)
    except OSError as error:
        return f"cannot be looked at ({error.strerror})"
    if status.st_mode & 0o170000 != 0o040000:
        return "is no directory"
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}, not to {os.geteuid()}"
    if status.st_mode & 0o077:
        return f"others may enter (its mode is {status.st_mode & 0o777:04o})"
    return None
