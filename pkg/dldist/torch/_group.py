"""The process group that the backend "dldist" gives to torch.distributed."""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

import dldist
from dldist import _core
from dldist.c10d.backend_base import Backend
from dldist.c10d.gloo import GlooOptions, ProcessGroupGloo
from dldist.c10d.low_level import CALLS
from dldist.c10d.nccl import NCCLOptions, ProcessGroupNCCL
from dldist.c10d.options import OpType
from dldist.c10d.over_group import OverGroup
from dldist.torch import _dispatcher, _profile
from dldist.torch._buckets import Buckets
from dldist.torch._compiler import not_compiled
from dldist.torch._errors import torchs_errors
from dldist.torch._options import OPTIONS, FromTorch, in_order
from dldist.torch._store import TorchStore
from dldist.torch._tensors import as_bytes, device_type_of, is_lazy, resolved
from dldist.torch._work import CopiedBack, Together, Typed, Work
from dldist.world import call_all

if TYPE_CHECKING:
    from collections.abc import Callable


_KEPT_NUMBERS = 64  # more than programs start between a forward pass and its backward pass


class CpuBackend(FromTorch, ProcessGroupGloo):
    """The backend for tensors in CPU memory. `group` is the World behind it."""


class CudaBackend(FromTorch, ProcessGroupNCCL):
    """The backend for tensors on CUDA devices, if the group's configuration says "cuda:dldist". `group` is the NcclGroup behind it."""


def _run_another_way(run: Callable[..., Any], name: str, arguments: tuple[Any, ...], refusal: Exception) -> Any:
    """Run a call again on bytes if dldist has refused a tensor's type and the call reduces nothing."""
    if "reduce" in name or not isinstance(refusal, _core.DistTypeError):
        raise refusal
    return run(*map(as_bytes, arguments))


def _run(run: Callable[..., Any], name: str, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    """Start a call. Returns its work and, if lazy tensors made it run on copies, the copy of its first argument, else None."""
    try:
        return run(*arguments), None
    except _core.DistArgumentError as refusal:
        if not is_lazy(arguments):
            return _run_another_way(run, name, arguments, refusal), None
    copies = resolved(arguments)
    return run(*copies), copies[0]


_MESSAGES = ("send", "recv", "recv_anysource")

_RUN_HERE: dict[str, Callable[..., Work]] = {}
"""The function that runs a call on our tensors, by the call's name in dldist's list. Its arguments must be in order."""


def _call_of(op_type: Any, name: str, method: str | None = None) -> Callable[..., Any]:
    """The group's method `name`. In dldist's list of calls it has the name `method`."""
    canonical = method or name
    has_options = name not in _MESSAGES
    run_here = _runner_of(op_type, name, canonical)
    _RUN_HERE.setdefault(canonical, run_here)

    def call(self: ProcessGroup, *args: Any, **named: Any) -> Any:
        arguments = args
        if named or (has_options and (not args or type(args[-1]) not in OPTIONS)):
            arguments = in_order(name, args, named)
        kind = device_type_of(arguments)
        if _dispatcher.is_looked_at(arguments) and self._is_ours(kind):
            return _dispatcher.run(self, canonical, arguments)
        backend = self._serving(kind)
        if not isinstance(backend, OverGroup):  # one of torch's groups
            return getattr(backend, name)(*args, **named)
        return run_here(self, backend, arguments)

    call.__name__ = call.__qualname__ = name
    return call


def _runner_of(op_type: Any, name: str, method: str) -> Callable[..., Work]:
    number = int(op_type)
    has_outputs = name not in ("barrier", "send")  # the others write to their first argument
    is_reduced = name == "allreduce"
    name_of_entry = _profile.name_of_entry(name)

    def run_here(self: ProcessGroup, backend: Any, arguments: tuple[Any, ...]) -> Work:
        with _profile.entry(name_of_entry) as entry:
            with torchs_errors:
                started, copies = _run(partial(backend._perform, method), name, arguments)
            outputs: Any = arguments[0] if has_outputs else ()
            if has_outputs and copies is not None:
                work: Work = CopiedBack(started, outputs, copies, number)
            else:
                kind = Typed if is_reduced and outputs[0].dtype is torch.float16 else Work
                work = kind(started, outputs, number)
            entry.lasts_until(work)
        if is_reduced and started is not None and outputs[0].numel() == 1:
            self._numbers.append(work)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    return run_here


@not_compiled
def create_group(opts: Any) -> ProcessGroup:
    """The group for torch's _DistributedBackendOptions. All of its ranks make it."""
    rank, size, name = opts.group_rank, opts.group_size, opts.group_id
    is_default = not opts.global_ranks_in_group
    ranks = list(range(size)) if is_default else list(opts.global_ranks_in_group)
    store = dldist.HashStore() if size == 1 else TorchStore(opts.store)
    with torchs_errors:
        world = dldist.World(store, rank, size, timeout=opts.timeout, name="default" if is_default else name)
    return ProcessGroup(opts.store, world, name, ranks)


@not_compiled
def create_independent_group(store: Any, rank: int, size: int, timeout: timedelta, device: torch.device) -> ProcessGroup:
    """The group for torch.distributed._dist2.new_group. `torch.distributed` itself does not know of it."""
    # All groups of a process get the same store, so the name counts the groups of this rank.
    name = f"dist2:{store.add(f'dldist/groups_of/{rank}', 1)}"
    own_store = dist.PrefixStore(f"dldist/{name}/", store)
    with torchs_errors:
        world = dldist.World(TorchStore(own_store), rank, size, timeout=timeout, name=name)
    group = ProcessGroup(own_store, world, name, list(range(size)))
    if device.type != "cpu":
        group._config = f"cpu:dldist,{device.type}:dldist"
    return _named(group, None)


@not_compiled
class ProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A group of torch.distributed over a World.

    For torch it is the whole group, not one of several backends. It serves the CPU itself. For each other type of device that its
    configuration ("cpu:dldist,cuda:nccl") names, it has a group that torch makes at the first use.

    Every call takes torch's forms with lists and options as well as the flat ones. All ranks are group ranks.
    """

    def __init__(self, store: Any, world: dldist.World, name: str, ranks: list[int]) -> None:
        super().__init__(world.rank, world.size)  # type: ignore[call-arg]
        self._store = store
        self._name = name
        self._desc = "undefined"
        self._config = "cpu:dldist"  # used if torch.distributed does not know this group
        self._ranks = ranks
        self._cpu = CpuBackend._of(world, GlooOptions()._for(world.timeout, ranks, name))
        self._buckets = Buckets(world)
        # join() passes the work of an all_reduce of a number to DDP's reducer. The reducer keeps only the C++ half of that work,
        # and waits for it in the next backward pass. Without the Python half it would wait for ever.
        self._numbers: deque[Work] = deque(maxlen=_KEPT_NUMBERS)
        self._served: dict[str, Any] = {}
        self._coalesced: list[Work] | None = None
        _dispatcher.serve("cpu")

    # ---- who it is

    def getBackendName(self) -> str:
        return "dldist"

    def _get_backend_name(self) -> str:
        return "dldist"

    def get_group_store(self) -> Any:
        """The store in which its ranks have met."""
        return self._store

    def __repr__(self) -> str:
        return f'<dldist.torch.ProcessGroup "{self.group_name}", rank {self.rank()} of {self.size()}>'

    # C++ asks for name and description by these methods. Its own copies are in the backends, and it knows no backends here.

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name
        self._cpu.group._describe(name, self._desc, self._ranks)

    def getGroupDesc(self) -> str:
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        self._desc = desc
        self._cpu.group._describe(self._name, desc, self._ranks)

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)
    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc

    # ---- types of device

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in self._names_of_backends()]

    def _names_of_backends(self) -> dict[str, str]:
        """The name of the backend for each type of device, from the group's configuration."""
        config = distributed_c10d._world.pg_backend_config.get(self, self._config)
        return dict(distributed_c10d.BackendConfig(dist.Backend(config)).get_device_backend_map())

    def _get_backend(self, device: torch.device) -> Any:
        kind = torch.device(device).type
        # While torch makes this group it asks what the backend supports. Later it asks every group for its CUDA backend, even on
        # machines without CUDA, where no tensor will ever need one.
        is_being_made = self not in distributed_c10d._world.pg_backend_config
        if kind != "cpu" and (is_being_made or self._is_absent(kind)):
            return Backend(self.rank(), self.size())
        backend = self._serving(kind)
        return backend._get_backend(device) if isinstance(backend, dist.ProcessGroup) else backend

    def _is_absent(self, kind: str) -> bool:
        """Whether we serve this type of device, but this machine has no such device."""
        is_ours = self._names_of_backends().get(kind) == "dldist"
        return kind == "cuda" and is_ours and kind not in self._served and not torch.cuda.is_available()

    def _is_ours(self, kind: str) -> bool:
        """Whether we serve this type of device, and no other group does."""
        return self._names_of_backends().get(kind, "dldist") == "dldist"

    def _serving(self, kind: str) -> Any:
        """The backend of ours, or the torch group, that serves a type of device. All ranks come here at their first call."""
        serving = self._served.get(kind)
        if serving is None:
            serving = self._served[kind] = self._make_serving(kind)
        return serving

    def _make_serving(self, kind: str) -> Any:
        name = self._names_of_backends().get(kind)
        if name is None:
            raise RuntimeError(f"No backend type associated with device type {kind}")
        timeout = self._cpu.options._timeout
        if name == "dldist" and kind == "cpu":
            return self._cpu
        if name == "dldist" and kind == "cuda":
            options = NCCLOptions()._for(timeout, self._ranks, self._name)
            return CudaBackend(TorchStore(dist.PrefixStore(f"{kind}/", self._store)), self.rank(), self.size(), options)
        if name == "dldist":
            raise RuntimeError(f'the backend "dldist" serves tensors on the CPU and on CUDA devices, not on {kind}')
        own_name: Any = f"{self._name}/{kind}"
        group, _ = distributed_c10d._new_process_group_helper(
            self.size(), self.rank(), self._ranks, dist.Backend(name), self._store, own_name, timeout=timeout
        )
        distributed_c10d._world.pg_group_ranks[group] = {rank: place for place, rank in enumerate(self._ranks)}
        return group

    # ---- calls

    send = _call_of(OpType.SEND, "send")
    recv = _call_of(OpType.RECV, "recv")
    recv_anysource = _call_of(OpType.RECVANYSOURCE, "recv_anysource")

    def _run_here(self, method: str, arguments: tuple[Any, ...]) -> Work:
        """Run a call from dldist's list on tensors that we serve. PyTorch has seen the call already."""
        backend = self._serving(device_type_of(arguments))
        return _RUN_HERE[method](self, backend, arguments)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose error names the missing ranks. A time-out of None or less than 0 stands for the group's."""
        with torchs_errors:
            self._cpu.monitored_barrier(timeout, wait_all_ranks)

    # ---- many as one

    def _start_coalescing(self, device: torch.device) -> None:
        """Collect the calls up to _end_coalescing(), so that they can be waited for together."""
        backend = self._serving(torch.device(device).type)
        if isinstance(backend, dist.ProcessGroup):
            backend._start_coalescing(device)
        elif self._coalesced is not None:
            raise RuntimeError("_start_coalescing(): earlier calls are still being coalesced")
        else:
            self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> Any:
        backend = self._serving(torch.device(device).type)
        if isinstance(backend, dist.ProcessGroup):
            return backend._end_coalescing(device)
        works, self._coalesced = self._coalesced, None
        if works is None:
            raise RuntimeError("_end_coalescing() without _start_coalescing()")
        return Together(works)

    # ---- time, order, errors, hooks

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time-out of later calls."""
        for backend in self._backends():
            backend.set_timeout(timeout)

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to do: all ranks count from the start."""

    def _get_sequence_number_for_group(self) -> int:
        return self._cpu._get_sequence_number_for_group()

    def get_error(self) -> Any:
        """The state of the group: SUCCESS, TIMEOUT, COMM_ERROR or REMOTE_ERROR."""
        return self._cpu.get_error()

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        """Nothing to do: each work keeps what it needs."""

    def _enable_collectives_timing(self) -> None:
        """Nothing to do: works always measure their time."""

    # ---- the end

    def _backends(self) -> list[Any]:
        return list({self._cpu: None, **dict.fromkeys(self._served.values())})

    def shutdown(self) -> None:
        """Say goodbye to the other ranks."""
        call_all([_end_of(backend) for backend in self._backends()])

    def abort(self) -> None:
        """End the group and its unfinished calls at once, on all ranks."""
        call_all([backend.abort for backend in self._backends()])

    # ---- other members

    def split_group(
        self,
        ranks: list[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> ProcessGroup | None:
        """The group of these ranks, in this order. Only they need to call this; other ranks get None."""
        if self.rank() not in ranks:
            return None
        name = group_name or f"{self._name}:split:{'-'.join(map(str, ranks))}"
        with torchs_errors:
            part = dldist.Group.split(self._cpu.group, list(ranks), name, timeout)
        store = dist.PrefixStore(f"{name}/", self._store)
        return _named(ProcessGroup(store, part, name, [self._ranks[rank] for rank in ranks]), group_desc)

    splitGroup = split_group

    def merge_remote_group(
        self,
        store: Any,
        size: int,
        timeout: timedelta = timedelta(minutes=30),
        group_name: str | None = None,
        group_desc: str | None = None,
    ) -> ProcessGroup:
        """A group of `size` ranks: those of this group, and those of other groups that call this with the same store.

        All ranks of each group call it. The ranks of one group get consecutive ranks in the new one.
        """
        name = group_name or f"{self._name}:merged"
        place = TorchStore(store)
        first = torch.zeros(1, dtype=torch.int64)
        with torchs_errors:
            if self.rank() == 0:
                first.fill_(place.add("merge_remote_group/ranks", self.size()) - self.size())
            self._cpu.group.broadcast(first, 0)
            if int(first) + self.size() > size:  # all ranks of this group find the same
                raise ValueError(f"merge_remote_group(): more ranks have come than the {size} of the new group")
            world = dldist.World(place, int(first) + self.rank(), size, timeout=timeout, name=name)
        return _named(ProcessGroup(store, world, name, list(range(size))), group_desc)


def _end_of(backend: Any) -> Callable[[], object]:
    """The function that ends a backend of ours, or a group that torch made for this one and keeps track of."""
    if backend in distributed_c10d._world.pg_map:
        return lambda: dist.destroy_process_group(backend)
    return backend.shutdown  # type: ignore[no-any-return]


def _named(group: ProcessGroup, desc: str | None) -> ProcessGroup:
    group._set_group_name(group._name)
    group._set_group_desc(desc or "undefined")
    return group


for _name, _call in CALLS.items():
    if _call.name != "allreduce_sparse":  # torch uses it only for its own sparse tensors, which come here by allreduce
        setattr(ProcessGroup, _name, _call_of(_call.operation.op_type, _name, _call.name))
