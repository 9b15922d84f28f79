"""Runs the calls of a torch group over dldist. Used by groups in C++ and in Python."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import _dldist_torch_names as names
import torch
import torch.distributed as dist

import dldist
from dldist import _core
from dldist._backends.cpu import GlooOptions, ProcessGroupGloo
from dldist._base.operations import flat
from dldist._base.options import ReconfigureOptions
from dldist._base.works import FollowedWork
from dldist.torch._buckets import Buckets
from dldist.torch._compiler import not_compiled
from dldist.torch._errors import torchs_errors
from dldist.torch._options import FromTorch
from dldist.torch._store import TorchStore
from dldist.torch._tensors import as_bytes, device_type_of, is_lazy, resolved
from dldist.world import call_all

if TYPE_CHECKING:
    from dldist.torch._cuda import CudaBackend  # imported here: CPU groups do not need NCCL

_has_backends = names.are_present("torch.distributed.ProcessGroup._get_backend")


class CpuBackend(FromTorch, ProcessGroupGloo):
    """The backend for tensors in CPU memory. `group` is a World."""


@not_compiled
class Runner:
    """Runs the calls of one group. `ranks` are global; `serves_as` is torch's backend name."""

    def __init__(self, store: Any, cpu: CpuBackend, name: str, ranks: list[int], serves_as: str = "dldist") -> None:
        self.store = store
        """The torch store that the ranks used for their rendezvous."""
        self.name = name
        self.ranks = ranks
        self.serves_as = serves_as
        self.cpu = cpu
        cpu.serves_as = serves_as
        self._desc = "undefined"
        self._cuda: CudaBackend | None = None
        self._adopt_group()

    def _adopt_group(self) -> None:
        self.group: Any = self.cpu.group
        """The World; None if the group has no members before the first reconfigure()."""
        self.buckets = Buckets(self.group)

    @classmethod
    def _over(cls, store: Any, world: dldist.World, name: str, ranks: list[int], serves_as: str) -> Runner:
        cpu = CpuBackend._from_group(world, GlooOptions()._set_identity(world.timeout, ranks, name))
        return cls(store, cpu, name, ranks, serves_as)

    @classmethod
    def meeting(
        cls, store: Any, name: str, ranks: list[int], rank: int, timeout: timedelta, label: str = "", serves_as: str = "dldist"
    ) -> Runner:
        """Create the runner of a new group; all ranks must call this. `label`: the World's name."""
        size = len(ranks)
        meeting_place = dldist.HashStore() if size == 1 else TorchStore(store)
        with torchs_errors:
            world = dldist.World(meeting_place, rank, size, timeout=timeout, name=label or name)
        return cls._over(store, world, name, ranks, serves_as)

    @classmethod
    def without_members(
        cls, store: Any, name: str, ranks: list[int], rank: int, timeout: timedelta, serves_as: str = "dldist"
    ) -> Runner:
        """Create the runner of a group whose members will be set by reconfigure()."""
        options = GlooOptions()._set_identity(timeout, ranks, name)
        cpu = CpuBackend(TorchStore(store), rank, len(ranks), options, enable_reconfigure=True)
        return cls(store, cpu, name, ranks, serves_as)

    def perform(self, method: str, *arguments: Any) -> Any:
        """Start a c10d call with lists and options. Return its dldist.Work, or None if the call has
        ended."""
        backend = self.serving(device_type_of(arguments))
        if method == "gather_single" and arguments[-1].rootRank != self.group.rank:
            arguments = (None, *arguments[1:])  # torch passes an empty tensor on other ranks
        with torchs_errors:
            return self._perform(backend, method, arguments)

    def _perform(self, backend: Any, method: str, arguments: tuple[Any, ...]) -> Any:
        try:
            return backend._perform(method, *arguments)
        except _core.DistArgumentError as refusal:
            if is_lazy(arguments):
                return self._perform_on_copies(backend, method, arguments)
            # Calls without a reduction can move elements of an unknown type as bytes.
            if "reduce" in method or not isinstance(refusal, _core.DistTypeError):
                raise
        return backend._perform(method, *map(as_bytes, arguments))

    def _perform_on_copies(self, backend: Any, method: str, arguments: tuple[Any, ...]) -> Any:
        copies = resolved(arguments)
        work = backend._perform(method, *copies)
        has_outputs = method not in ("barrier", "send")  # other calls write to their first argument
        pairs = [pair for pair in zip(flat(arguments[0]), flat(copies[0])) if pair[0] is not pair[1]] if has_outputs else []

        def copy_back() -> None:
            with torch.no_grad():
                for output, copy in pairs:
                    output.copy_(copy)

        if work is not None and pairs:
            return FollowedWork(work, copy_back, arguments[0])
        copy_back()
        return work

    def serving(self, kind: str) -> Any:
        """Return the backend for a device type. All ranks must call this with their first use."""
        if kind == "cpu":
            return self.cpu
        if kind != "cuda":
            raise RuntimeError(f'the backend "dldist" serves tensors on the CPU and on CUDA devices, not on {kind}')
        if self._cuda is None:
            from dldist.torch._cuda import CudaBackend, NCCLOptions

            options = NCCLOptions()._set_identity(self.cpu.options._timeout, self.ranks, self.name)
            place = TorchStore(dist.PrefixStore(f"{kind}/", self.store))
            self._cuda = CudaBackend(place, self.group.rank, self.group.size, options)
        return self._cuda

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks; errors name missing ranks. None or negative: the group's timeout."""
        with torchs_errors:
            self.cpu.monitored_barrier(timeout, wait_all_ranks)

    def _backends(self) -> list[Any]:
        return [self.cpu] if self._cuda is None else [self.cpu, self._cuda]

    def describe(self, name: str, desc: str, ranks: list[int] | None = None) -> None:
        """Set the group's name, description and, unless None, the global ranks, for reports."""
        self.name = name
        self.ranks = ranks or self.ranks
        self._desc = desc
        if self.group is not None:
            self.group._describe(name, desc, self.ranks)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later calls."""
        for backend in self._backends():
            backend.set_timeout(timeout)

    def sequence(self) -> int:
        """Return the number of collectives that have been started."""
        return self.cpu._get_sequence_number_for_group()  # type: ignore[no-any-return]

    def error_type(self) -> Any:
        """Return the group's state: SUCCESS, TIMEOUT, COMM_ERROR or REMOTE_ERROR."""
        return self.cpu.get_error()

    def shutdown(self) -> None:
        """Shut the group down cleanly."""
        call_all([backend.shutdown for backend in self._backends()])

    def abort(self) -> None:
        """End the group and its unfinished calls immediately, on all ranks."""
        call_all([backend.abort for backend in self._backends()])

    def split(self, store: Any, ranks: list[int], name: str, timeout: timedelta | None = None) -> Runner:
        """Create the runner of a group of these ranks, in this order. Only they call this."""
        with torchs_errors:
            part = dldist.Group.split(self.cpu._require_group(), list(ranks), name, timeout)
        return self._over(store, part, name, [self.ranks[rank] for rank in ranks], self.serves_as)

    def get_reconfigure_handle(self) -> str:
        """Return the handle that identifies this process in reconfigure()."""
        self.cpu._allow_reconfigure(TorchStore(self.store))
        return self.cpu.get_reconfigure_handle()

    def reconfigure(self, uuid: int, handles: Any, timeout: timedelta | None) -> None:
        """Replace the members by the processes with these handles, which must all call this."""
        opts = ReconfigureOptions()
        opts.uuid, opts.handles = uuid, handles
        if timeout is not None:
            opts.timeout = timeout
        self.cpu._allow_reconfigure(TorchStore(self.store))
        if self._cuda is not None:
            self._cuda.abort()  # the next call on CUDA creates a new backend
            self._cuda = None
        try:
            with torchs_errors:
                self.cpu.reconfigure(opts)
        finally:
            self._adopt_group()
        self.ranks = list(range(self.cpu.size()))
        self.group._describe(self.name, self._desc, self.ranks)

    def merge(self, store: Any, size: int, name: str, timeout: timedelta) -> Runner:
        """Create the runner of a group of `size` ranks by merging all groups that call this with
        the same store."""
        first = torch.zeros(1, dtype=torch.int64)
        place = TorchStore(store)
        with torchs_errors:
            if self.group.rank == 0:
                first.fill_(place.add("merge_remote_group/ranks", self.group.size) - self.group.size)
            self.group.broadcast(first, 0)
        if int(first) + self.group.size > size:  # all ranks of this group have the same numbers
            raise ValueError(f"merge_remote_group(): too many ranks have joined: got {int(first) + self.group.size}, expected {size}")
        return Runner.meeting(store, name, list(range(size)), int(first) + self.group.rank, timeout, serves_as=self.serves_as)


def runner_of(group: Any) -> Runner | None:
    """Return the Runner of a torch group, or None if it is not a dldist group."""
    if not isinstance(group, dist.ProcessGroup):
        return None
    runner = getattr(group, "_runner", None)
    if isinstance(runner, Runner):
        return runner
    if not _has_backends:
        return None
    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError:
        return None  # the group has no backend for the CPU
    backend = getattr(backend, "wrapped_pg", backend)  # the wrapper of debug level DETAIL
    return getattr(backend, "runner", None)
