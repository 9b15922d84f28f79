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
from dldist._base.works import ChainedWork
from dldist.torch._buckets import Buckets
from dldist.torch._compiler import not_compiled
from dldist.torch._errors import convert_to_torch_errors
from dldist.torch._options import TorchOptionsMixin
from dldist.torch._store import TorchStore
from dldist.torch._tensors import device_type_of, is_lazy, resolve_lazy, view_as_bytes
from dldist.world import call_all

if TYPE_CHECKING:
    from dldist.torch._cuda import CudaBackend  # imported here: CPU groups do not need NCCL

_has_backends = names.are_present("torch.distributed.ProcessGroup._get_backend")


class CpuBackend(TorchOptionsMixin, ProcessGroupGloo):
    """The backend for tensors in CPU memory. `group` is a World."""


@not_compiled
class Runner:
    """Runs the calls of one group. `ranks` are global; `backend_name` is torch's backend name."""

    def __init__(self, store: Any, cpu: CpuBackend, name: str, ranks: list[int], backend_name: str = "dldist") -> None:
        self.store = store
        """The torch store that the ranks used for their rendezvous."""
        self.name = name
        self.ranks = ranks
        self.backend_name = backend_name
        self.cpu = cpu
        cpu.backend_name = backend_name
        self._desc = "undefined"
        self._cuda: CudaBackend | None = None
        self._use_group()

    def _use_group(self) -> None:
        self.group: Any = self.cpu.group
        """The World; None if the group has no members before the first reconfigure()."""
        self.buckets = Buckets(self.group)

    @classmethod
    def _from_world(cls, store: Any, world: dldist.World, name: str, ranks: list[int], backend_name: str) -> Runner:
        cpu = CpuBackend._from_group(world, GlooOptions()._set_identity(world.timeout, ranks, name))
        return cls(store, cpu, name, ranks, backend_name)

    @classmethod
    def rendezvous(
        cls, store: Any, name: str, ranks: list[int], rank: int, timeout: timedelta, label: str = "", backend_name: str = "dldist"
    ) -> Runner:
        """Create a new group's runner; all ranks must call this. `label` is the World's name."""
        size = len(ranks)
        rendezvous_store = dldist.HashStore() if size == 1 else TorchStore(store)
        with convert_to_torch_errors:
            world = dldist.World(rendezvous_store, rank, size, timeout=timeout, name=label or name)
        return cls._from_world(store, world, name, ranks, backend_name)

    @classmethod
    def before_reconfigure(
        cls, store: Any, name: str, ranks: list[int], rank: int, timeout: timedelta, backend_name: str = "dldist"
    ) -> Runner:
        """Create the runner of a group whose members will be set by reconfigure()."""
        options = GlooOptions()._set_identity(timeout, ranks, name)
        cpu = CpuBackend(TorchStore(store), rank, len(ranks), options, enable_reconfigure=True)
        return cls(store, cpu, name, ranks, backend_name)

    def perform(self, method: str, *arguments: Any) -> Any:
        """Start a c10d call with lists and options. Return its dldist.Work, or None if the call has
        ended."""
        backend = self.backend_for(device_type_of(arguments))
        if method == "gather_single" and arguments[-1].rootRank != self.group.rank:
            arguments = (None, *arguments[1:])  # except on the root, torch passes an empty tensor
        with convert_to_torch_errors:
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
        return backend._perform(method, *map(view_as_bytes, arguments))

    def _perform_on_copies(self, backend: Any, method: str, arguments: tuple[Any, ...]) -> Any:
        resolved_arguments = resolve_lazy(arguments)
        work = backend._perform(method, *resolved_arguments)
        has_outputs = method not in ("barrier", "send")  # other calls write to their first argument
        pairs = [pair for pair in zip(flat(arguments[0]), flat(resolved_arguments[0])) if pair[0] is not pair[1]] if has_outputs else []

        def copy_back() -> None:
            with torch.no_grad():
                for output, copy in pairs:
                    output.copy_(copy)

        if work is not None and pairs:
            return ChainedWork(work, copy_back, arguments[0])
        copy_back()
        return work

    def backend_for(self, kind: str) -> Any:
        """Return the backend for a device type. All ranks must call this with their first use."""
        if kind == "cpu":
            return self.cpu
        if kind != "cuda":
            raise RuntimeError(f'backend "dldist": unsupported device: got {kind}, expected cpu or cuda')
        if self._cuda is None:
            from dldist.torch._cuda import CudaBackend, NCCLOptions

            options = NCCLOptions()._set_identity(self.cpu.options._timeout, self.ranks, self.name)
            store = TorchStore(dist.PrefixStore(f"{kind}/", self.store))
            self._cuda = CudaBackend(store, self.group.rank, self.group.size, options)
        return self._cuda

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks; errors name missing ranks. None or negative: group's timeout."""
        with convert_to_torch_errors:
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
        """Create the runner of a group of these ranks, in this order, which all call this."""
        with convert_to_torch_errors:
            world = dldist.Group.split(self.cpu._require_group(), list(ranks), name, timeout)
        return self._from_world(store, world, name, [self.ranks[rank] for rank in ranks], self.backend_name)

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
            self._cuda.abort()  # abort: the next CUDA call creates a new backend
            self._cuda = None
        try:
            with convert_to_torch_errors:
                self.cpu.reconfigure(opts)
        finally:
            self._use_group()
        self.ranks = list(range(self.cpu.size()))
        self.group._describe(self.name, self._desc, self.ranks)

    def merge(self, store: Any, size: int, name: str, timeout: timedelta) -> Runner:
        """Create the runner of a group of `size` ranks by merging all groups that call this with
        the same store."""
        first_rank = torch.zeros(1, dtype=torch.int64)
        store_view = TorchStore(store)
        with convert_to_torch_errors:
            if self.group.rank == 0:
                first_rank.fill_(store_view.add("merge_remote_group/ranks", self.group.size) - self.group.size)
            self.group.broadcast(first_rank, 0)
        if int(first_rank) + self.group.size > size:  # all ranks of this group raise together
            raise ValueError(f"merge_remote_group(): argument 'size': too many ranks: got {int(first_rank) + self.group.size}, expected {size}")
        return Runner.rendezvous(store, name, list(range(size)), int(first_rank) + self.group.rank, timeout, backend_name=self.backend_name)


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
        return None  # this group has no backend for the CPU
    backend = getattr(backend, "wrapped_pg", backend)  # unwrap the wrapper of debug level DETAIL
    return getattr(backend, "runner", None)
