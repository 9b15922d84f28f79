"""Backends over third-party libraries: ProcessGroupMPI, ProcessGroupUCC, ProcessGroupXCCL."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from dldist import rendezvous
from dldist._backends.backend_base import BackendOptions
from dldist._backends.world_backend import WorldBackend
from dldist.carriers import _mpi
from dldist.rendezvous import DEFAULT_TIMEOUT_S
from dldist.world import World


class CarrierOptions(BackendOptions):
    """The base class of carrier backends' options. Subclasses set the backend's name."""

    _name: ClassVar[str]

    def __init__(self, timeout: timedelta | None = None) -> None:
        super().__init__(self._name, timeout)


MPIOptions, UCCOptions, XCCLOptions = (
    type(f"{name}Options", (CarrierOptions,), {"_name": name.lower(), "__doc__": f"Options of ProcessGroup{name}."})
    for name in ("MPI", "UCC", "XCCL")
)


class CarrierBackend(WorldBackend):
    """A backend whose collectives a third-party library (carrier) runs; a World does all else."""

    @classmethod
    def _prepare_world(cls, group: World) -> World:
        group._use_carrier(cls._name)
        return group


class ProcessGroupMPI(CarrierBackend):
    """c10d's backend for MPI. Works with any MPI library."""

    _name = "mpi"
    Options = _Options = MPIOptions

    @classmethod
    def create(cls, ranks: list[int]) -> ProcessGroupMPI | None:
        """Create a backend for these ranks of MPI's world, or for all if `ranks` is empty. Return
        None on non-members. All processes of MPI's world must call this."""
        meeting = rendezvous.meet(endpoint=_mpi.processes_endpoint(), timeout=DEFAULT_TIMEOUT_S, name="ProcessGroupMPI")
        with meeting:
            members = list(ranks) or list(range(meeting.world_size))
            is_member = meeting.rank in members
            backend = cls(meeting.store, members.index(meeting.rank), len(members)) if is_member else None
            meeting.mark_connected()
        if backend is not None:
            backend.group._meeting = meeting
        return backend


class ProcessGroupUCC(CarrierBackend):
    """c10d's backend for UCC. Messages use dldist's own transport."""

    _name = "ucc"
    Options = _Options = UCCOptions


class ProcessGroupXCCL(CarrierBackend):
    """c10d's backend for oneCCL, for host arrays. Messages use dldist's own transport."""

    _name = "xccl"
    Options = _Options = XCCLOptions


BACKENDS: dict[str, type[CarrierBackend]] = {each._name: each for each in (ProcessGroupMPI, ProcessGroupUCC, ProcessGroupXCCL)}
