"""The group of the backend "dldist" where nothing of it is compiled for the PyTorch that is installed: one in Python.

PyTorch requires a backend in Python to be a whole group, with all of its calls. _dispatcher.py says how they become operations of
PyTorch all the same."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import timedelta
from functools import cache, partial
from typing import Any

import _dldist_torch_names as names
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from dldist._backends.backend_base import Backend
from dldist._backends.group_backend import OverGroup
from dldist._backends.low_level import CALLS
from dldist._base.options import OpType
from dldist.torch import _dispatcher, _profile
from dldist.torch._compiler import not_compiled
from dldist.torch._options import OPTIONS, in_order
from dldist.torch._runner import Runner
from dldist.torch._tensors import device_type_of
from dldist.torch._work import Together, Typed, Work
from dldist.world import call_all

_IN_TORCH = "torch.distributed.distributed_c10d"
_has_configs = names.are_present(f"{_IN_TORCH}._world.pg_backend_config")
_can_make_torchs = names.are_present(f"{_IN_TORCH}._world.pg_group_ranks", f"{_IN_TORCH}._new_process_group_helper")
_ErrorType: Any = names.find("torch._C._distributed_c10d.ErrorType")

_KEPT_NUMBERS = 64  # more than programs start between a forward pass and its backward pass

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
        return run_here(self, arguments)

    call.__name__ = call.__qualname__ = name
    return call


def _runner_of(op_type: Any, name: str, method: str) -> Callable[..., Work]:
    number = int(op_type)
    has_outputs = name not in ("barrier", "send")  # the others write to their first argument
    is_reduced = name == "allreduce"
    title = _profile.title_of(name)

    def run_here(self: ProcessGroup, arguments: tuple[Any, ...]) -> Work:
        with _profile.entry(self.serves_as, title) as entry:
            started = self._runner.perform(method, *arguments)
            outputs: Any = arguments[0] if has_outputs else ()
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
class ProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A group of torch.distributed over a World.

    For torch it is the whole group, not one of several backends. It serves the CPU itself. For each other type of device that its
    configuration ("cpu:dldist,cuda:nccl") names, it has a group that torch makes at the first use.

    Every call takes torch's forms with lists and options as well as the flat ones. All ranks are group ranks.
    """

    def __init__(self, runner: Runner, config: str = "") -> None:
        super().__init__(runner.group.rank, runner.group.size)  # type: ignore[call-arg]
        self._runner = runner
        self.serves_as = runner.serves_as
        self._desc = "undefined"
        self._config = config or f"cpu:{self.serves_as}"  # used if torch.distributed does not know this group
        # join() passes the work of an all_reduce of a number to DDP's reducer. The reducer keeps only the C++ half of that work,
        # and waits for it in the next backward pass. Without the Python half it would wait for ever.
        self._numbers: deque[Work] = deque(maxlen=_KEPT_NUMBERS)
        self._served: dict[str, Any] = {}  # torch's groups for other types of device
        self._coalesced: list[Work] | None = None
        _dispatcher.serve("cpu")

    # ---- who it is

    def getBackendName(self) -> str:
        return "dldist"  # also in Gloo's place: in C++, DDP would take the group's backend for Gloo's own

    def _get_backend_name(self) -> str:
        return self.serves_as

    @property
    def options(self) -> Any:
        return self._runner.cpu.options

    def get_group_store(self) -> Any:
        """The store in which its ranks have met."""
        return self._runner.store

    def __repr__(self) -> str:
        return f'<dldist.torch.ProcessGroup "{self.group_name}", rank {self.rank()} of {self.size()}>'

    # C++ asks for name and description by these methods. Its own copies are in the backends, and it knows no backends here.

    def getGroupName(self) -> str:
        return self._runner.name

    def setGroupName(self, name: str) -> None:
        self._runner.describe(name, self._desc)

    def getGroupDesc(self) -> str:
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        self._desc = desc
        self._runner.describe(self._runner.name, desc)

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
        return _names_in(distributed_c10d._world.pg_backend_config.get(self, self._config) if _has_configs else self._config)

    def _get_backend(self, device: torch.device) -> Any:
        kind = torch.device(device).type
        # While torch makes this group it asks what the backend supports. Later it asks every group for its CUDA backend, even on
        # machines without CUDA, where no tensor will ever need one.
        is_being_made = not _has_configs or self not in distributed_c10d._world.pg_backend_config
        if kind != "cpu" and (is_being_made or self._is_absent(kind)):
            return Backend(self.rank(), self.size())
        backend = self._serving(kind)
        return backend._get_backend(device) if isinstance(backend, dist.ProcessGroup) else backend

    def _is_absent(self, kind: str) -> bool:
        """Whether we serve this type of device, but this machine has no such device."""
        is_ours = self._names_of_backends().get(kind) == self.serves_as
        return kind == "cuda" and is_ours and not torch.cuda.is_available()

    def _is_ours(self, kind: str) -> bool:
        """Whether we serve this type of device, and no other group does."""
        return self._names_of_backends().get(kind, self.serves_as) == self.serves_as

    def _serving(self, kind: str) -> Any:
        """The backend of ours, or the torch group, that serves a type of device. All ranks come here at their first call."""
        name = self._names_of_backends().get(kind)
        if name is None:
            raise RuntimeError(f"No backend type associated with device type {kind}")
        if name == self.serves_as:
            return self._runner.serving(kind)
        group = self._served.get(kind)
        if group is None:
            group = self._served[kind] = self._make_torchs(name, f"{self._runner.name}/{kind}")
        return group

    def _make_torchs(self, name: str, own_name: Any) -> Any:
        if not _can_make_torchs:
            raise RuntimeError(f'the backend "dldist" cannot make a group of the backend {name!r} with PyTorch {torch.__version__}')
        runner, ranks = self._runner, self._runner.ranks
        group, _ = distributed_c10d._new_process_group_helper(
            self.size(), self.rank(), ranks, dist.Backend(name), runner.store, own_name, timeout=runner.group.timeout
        )
        distributed_c10d._world.pg_group_ranks[group] = {rank: place for place, rank in enumerate(ranks)}
        return group

    # ---- calls

    send = _call_of(OpType.SEND, "send")
    recv = _call_of(OpType.RECV, "recv")
    recv_anysource = _call_of(OpType.RECVANYSOURCE, "recv_anysource")

    def _run_here(self, method: str, arguments: tuple[Any, ...]) -> Work:
        """Run a call from dldist's list on tensors that we serve. PyTorch has seen the call already."""
        return _RUN_HERE[method](self, arguments)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose error names the missing ranks. A time-out of None or less than 0 stands for the group's."""
        self._runner.monitored_barrier(timeout, wait_all_ranks)

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
        self._runner.set_timeout(timeout)
        for group in self._served.values():
            group.set_timeout(timeout)

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to do: all ranks count from the start."""

    def _get_sequence_number_for_group(self) -> int:
        return self._runner.sequence()

    def get_error(self) -> Any:
        """The state of the group: SUCCESS, TIMEOUT, COMM_ERROR or REMOTE_ERROR."""
        found = int(self._runner.error_type())
        return found if _ErrorType is None else _ErrorType(found)

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        """Nothing to do: each work keeps what it needs."""

    def _enable_collectives_timing(self) -> None:
        """Nothing to do: works always measure their time."""

    # ---- the end

    def shutdown(self) -> None:
        """Say goodbye to the other ranks."""
        # torch made the others, and keeps track of them.
        call_all([*(partial(dist.destroy_process_group, group) for group in self._served.values()), self._runner.shutdown])

    def abort(self) -> None:
        """End the group and its unfinished calls at once, on all ranks."""
        call_all([*(group.abort for group in self._served.values()), self._runner.abort])

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
        name = group_name or f"{self._runner.name}:split:{'-'.join(map(str, ranks))}"
        store = dist.PrefixStore(f"{name}/", self._runner.store)
        return _named(ProcessGroup(self._runner.split(store, ranks, name, timeout)), group_desc)

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
        name = group_name or f"{self._runner.name}:merged"
        return _named(ProcessGroup(self._runner.merge(store, size, name, timeout)), group_desc)


@cache
def _names_in(config: str) -> dict[str, str]:
    """The backend of each type of device, from "cpu:dldist,cuda:nccl" or "dldist"."""
    return dict(distributed_c10d.BackendConfig(dist.Backend(config)).get_device_backend_map())


def _named(group: ProcessGroup, desc: str | None) -> ProcessGroup:
    group._set_group_name(group._runner.name)
    group._set_group_desc(desc or "undefined")
    return group


for _name, _call in CALLS.items():
    if _call.name != "allreduce_sparse":  # torch uses it only for its own sparse tensors, which come here by allreduce
        setattr(ProcessGroup, _name, _call_of(_call.operation.op_type, _name, _call.name))
