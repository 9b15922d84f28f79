"""What runs the calls of a torch group over dldist, whichever way torch comes to them."""

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
    from dldist.torch._cuda import CudaBackend  # with NCCL, which groups of the CPU need not import

_has_backends = names.are_present("torch.distributed.ProcessGroup._get_backend")


class CpuBackend(FromTorch, ProcessGroupGloo):
    """The backend for tensors in CPU memory. `group` is the World behind it."""


@not_compiled
class Runner:
    """Runs the calls of one group. `group` is the World behind it; `ranks` are the global ranks of its members; `serves_as` is the
    name of the backend."""

    def __init__(self, store: Any, cpu: CpuBackend, name: str, ranks: list[int], serves_as: str = "dldist") -> None:
        self.store = store
        """torch's store in which the ranks have met."""
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
        """The World; None before the first reconfigure() of a group without members."""
        self.buckets = Buckets(self.group)

    @classmethod
    def _over(cls, store: Any, world: dldist.World, name: str, ranks: list[int], serves_as: str) -> Runner:
        cpu = CpuBackend._of(world, GlooOptions()._for(world.timeout, ranks, name))
        return cls(store, cpu, name, ranks, serves_as)

    @classmethod
    def meeting(
        cls, store: Any, name: str, ranks: list[int], rank: int, timeout: timedelta, label: str = "", serves_as: str = "dldist"
    ) -> Runner:
        """The runner of a new group: all of its ranks call this. `label` names its World."""
        size = len(ranks)
        meeting_place = dldist.HashStore() if size == 1 else TorchStore(store)
        with torchs_errors:
            world = dldist.World(meeting_place, rank, size, timeout=timeout, name=label or name)
        return cls._over(store, world, name, ranks, serves_as)

    @classmethod
    def without_members(
        cls, store: Any, name: str, ranks: list[int], rank: int, timeout: timedelta, serves_as: str = "dldist"
    ) -> Runner:
        """Create the runner of a group whose members reconfigure() will name."""
        options = GlooOptions()._for(timeout, ranks, name)
        cpu = CpuBackend(TorchStore(store), rank, len(ranks), options, enable_reconfigure=True)
        return cls(store, cpu, name, ranks, serves_as)

    # ---- calls

    def perform(self, method: str, *arguments: Any) -> Any:
        """Start a call of c10d's, with its lists and options. Returns a dldist.Work, or None if the call has ended."""
        backend = self.serving(device_type_of(arguments))
        if method == "gather_single" and arguments[-1].rootRank != self.group.rank:
            arguments = (None, *arguments[1:])  # torch passes an empty tensor
        with torchs_errors:
            return self._perform(backend, method, arguments)

    def _perform(self, backend: Any, method: str, arguments: tuple[Any, ...]) -> Any:
        try:
            return backend._perform(method, *arguments)
        except _core.DistArgumentError as refusal:
            if is_lazy(arguments):
                return self._perform_on_copies(backend, method, arguments)
            # What reduces nothing can move elements of a type that dldist does not know.
            if "reduce" in method or not isinstance(refusal, _core.DistTypeError):
                raise
        return backend._perform(method, *map(as_bytes, arguments))

    def _perform_on_copies(self, backend: Any, method: str, arguments: tuple[Any, ...]) -> Any:
        copies = resolved(arguments)
        work = backend._perform(method, *copies)
        has_outputs = method not in ("barrier", "send")  # the others write to their first argument
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
        """The backend for a type of device. All ranks come here with their first call on it."""
        if kind == "cpu":
            return self.cpu
        if kind != "cuda":
            raise RuntimeError(f'the backend "dldist" serves tensors on the CPU and on CUDA devices, not on {kind}')
        if self._cuda is None:
            from dldist.torch._cuda import CudaBackend, NCCLOptions

            options = NCCLOptions()._for(self.cpu.options._timeout, self.ranks, self.name)
            place = TorchStore(dist.PrefixStore(f"{kind}/", self.store))
            self._cuda = CudaBackend(place, self.group.rank, self.group.size, options)
        return self._cuda

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose error names the missing ranks. A time-out of None or less than 0 stands for the group's."""
        with torchs_errors:
            self.cpu.monitored_barrier(timeout, wait_all_ranks)

    # ---- the group's life

    def _backends(self) -> list[Any]:
        return [self.cpu] if self._cuda is None else [self.cpu, self._cuda]

    def describe(self, name: str, desc: str, ranks: list[int] | None = None) -> None:
        """Say what torch calls the group, in reports and dumps, and, where it says so only now, which ranks are its members."""
        self.name = name
        self.ranks = ranks or self.ranks
        self._desc = desc
        if self.group is not None:
            self.group._describe(name, desc, self.ranks)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time-out of later calls."""
        for backend in self._backends():
            backend.set_timeout(timeout)

    def sequence(self) -> int:
        """How many collectives have been started."""
        return self.cpu._get_sequence_number_for_group()  # type: ignore[no-any-return]

    def error_type(self) -> Any:
        """The state of the group: SUCCESS, TIMEOUT, COMM_ERROR or REMOTE_ERROR."""
        return self.cpu.get_error()

    def shutdown(self) -> None:
        """Say goodbye to the other ranks."""
        call_all([backend.shutdown for backend in self._backends()])

    def abort(self) -> None:
        """End the group and its unfinished calls at once, on all ranks."""
        call_all([backend.abort for backend in self._backends()])

    # ---- other members

    def split(self, store: Any, ranks: list[int], name: str, timeout: timedelta | None = None) -> Runner:
        """The runner of a group of these ranks, in this order. They alone call this."""
        with torchs_errors:
            part = dldist.Group.split(self.cpu._require_group(), list(ranks), name, timeout)
        return self._over(store, part, name, [self.ranks[rank] for rank in ranks], self.serves_as)

    def get_reconfigure_handle(self) -> str:
        """Return the handle that names this process in reconfigure()."""
        self.cpu._allow_reconfigure(TorchStore(self.store))
        return self.cpu.get_reconfigure_handle()

    def reconfigure(self, uuid: int, handles: Any, timeout: timedelta | None) -> None:
        """Replace the members of the group by the processes with these handles, which all call this. See c10d.gloo."""
        opts = ReconfigureOptions()
        opts.uuid, opts.handles = uuid, handles
        if timeout is not None:
            opts.timeout = timeout
        self.cpu._allow_reconfigure(TorchStore(self.store))
        if self._cuda is not None:
            self._cuda.abort()  # the next call on that device makes one among the new members
            self._cuda = None
        try:
            with torchs_errors:
                self.cpu.reconfigure(opts)
        finally:
            self._adopt_group()
        self.ranks = list(range(self.cpu.size()))
        self.group._describe(self.name, self._desc, self.ranks)

    def merge(self, store: Any, size: int, name: str, timeout: timedelta) -> Runner:
        """The runner of a group of `size` ranks: those of this group, and those of the others that come to the same store. The
        ranks of one group stay together."""
        first = torch.zeros(1, dtype=torch.int64)
        place = TorchStore(store)
        with torchs_errors:
            if self.group.rank == 0:
                first.fill_(place.add("merge_remote_group/ranks", self.group.size) - self.group.size)
            self.group.broadcast(first, 0)
        if int(first) + self.group.size > size:  # all ranks of this group find the same
            raise ValueError(f"merge_remote_group(): more ranks have come than the {size} of the new group")
        return Runner.meeting(store, name, list(range(size)), int(first) + self.group.rank, timeout, serves_as=self.serves_as)


def runner_of(group: Any) -> Runner | None:
    """What runs the calls of a torch group; None if that is not ours."""
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
        return None  # it has none for the CPU
    backend = getattr(backend, "wrapped_pg", backend)  # with TORCH_DISTRIBUTED_DEBUG=DETAIL
    return getattr(backend, "runner", None)
