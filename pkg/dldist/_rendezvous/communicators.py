"""Finds a rendezvous by the communicator of another library: mpi4py or torch.distributed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from dldist import _core
from dldist._base import settings
from dldist._rendezvous import launchers, urls

_last_secret = ""


class BroadcastEndpoint(urls.Endpoint):
    """A rendezvous of ranks that a library already connects. Rank 0 serves a store on a free port, and
    broadcasts its address and secret or, if it fails, the reason.

    All ranks call `choose_host()`, the name of rank 0's host for all of them, and `broadcast(text,
    timeout)`, which returns rank 0's text. Without `has_secret`, the environment has the secret.
    """

    def __init__(
        self, ranks: tuple[int, int], choose_host: Callable[[], str], broadcast: Callable[[str, Any], str], has_secret: bool
    ) -> None:
        super().__init__(*ranks)
        self.is_server = self.rank == 0
        self.is_client = self.rank != 0
        self._choose_host, self._broadcast, self._has_secret = choose_host, broadcast, has_secret
        self._address: list[str] = []

    def connect(self, timeout: Any, wait_for_workers: bool) -> _core.Store:
        global _last_secret
        if self.world_size == 1:
            return _core.HashStore(timeout=timeout)
        options: dict[str, Any] = {"timeout": timeout, "wait_for_workers": False}
        if not self._address:  # else a repeated attempt to connect to rank 0
            host, text, store = self._choose_host(), "", None
            if self.is_server:
                try:
                    secret = _make_secret() if self._has_secret else None
                    store = urls._serve(host, 0, options | {"secret": secret})
                    text = f"\n{host}\n{store.port}\n{secret or ''}"
                except Exception as error:
                    self._broadcast(f"{type(error).__name__}: {error}"[:400], timeout)
                    raise
            failure, *self._address = self._broadcast(text, timeout).split("\n")
            if failure:
                raise _core.DistStoreError(f"rank 0 failed to serve the store of the rendezvous: {failure}")
            _last_secret = self._address[2] or _last_secret
            if store is not None:
                return store
        host, port, secret = self._address
        return _core.TCPStore(host, int(port), secret=secret or None, **options)


def _make_secret() -> str:
    """Return the environment's secret, or the last one, because a process has an engine for each
    secret; otherwise a new one."""
    return os.fsdecode(settings.secret()) or _last_secret or os.urandom(16).hex()


def _endpoint(rank: int, size: int, all_gather: Callable[[str], list[str]], host: str | None) -> BroadcastEndpoint:
    def choose_host() -> str:
        # Ranks of one host share its network namespace; a container has its own.
        namespaces = all_gather(f"{launchers._boot_id()} {os.stat('/proc/self/ns/net').st_ino}")
        return host or ("localhost" if len(set(namespaces)) == 1 else os.uname().nodename)

    return BroadcastEndpoint((rank, size), choose_host, lambda text, _timeout: all_gather(text)[0], True)


def mpi_endpoint(comm: Any, host: str | None) -> BroadcastEndpoint:
    """Return a rendezvous of the ranks of an mpi4py communicator."""
    call = "World.from_mpi(): argument 'comm'"
    # `rank` is a property, in contrast to the methods of torch's and dldist's groups.
    if not callable(getattr(comm, "allgather", None)) or callable(getattr(type(comm), "rank", None)):
        raise TypeError(f"{call} must be a communicator of mpi4py, such as MPI.COMM_WORLD, not {type(comm).__name__}")
    if not comm:
        raise ValueError(f"{call} must not be MPI.COMM_NULL: this process is not a member; only members call from_mpi")
    if getattr(comm, "is_inter", False):
        raise ValueError(f"{call} must be an intracommunicator, not an intercommunicator; pass comm.Merge()")
    return _endpoint(comm.rank, comm.size, comm.allgather, host)


def torch_endpoint(group: Any, host: str | None) -> BroadcastEndpoint:
    """Return a rendezvous of the ranks of a torch.distributed group; None for the default group."""
    import torch.distributed as dist

    call = "World.from_torch(): argument 'group'"
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError("World.from_torch(): torch.distributed has no default group; call torch.distributed.init_process_group first")
    is_non_member = group is not None and group is dist.GroupMember.NON_GROUP_MEMBER
    if not is_non_member and not isinstance(group, (dist.ProcessGroup, type(None))):
        raise TypeError(f"{call} must be a ProcessGroup of torch.distributed, not {type(group).__name__}; for a DeviceMesh pass mesh.get_group()")
    if is_non_member or dist.get_rank(group) < 0:
        raise ValueError(f"{call}: this process is not a member of the group; only members call from_torch")

    def all_gather(text: str) -> list[str]:
        texts = [""] * dist.get_world_size(group)
        dist.all_gather_object(texts, text, group=group)
        return texts

    return _endpoint(dist.get_rank(group), dist.get_world_size(group), all_gather, host)
