"""The group of the backend "dldist" in Python, for a PyTorch without a compiled backend.

PyTorch requires a backend in Python to be a whole group with all calls. _dispatcher.py runs the
calls as PyTorch operations if needed."""

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
from dldist._backends.group_backend import GroupBackend
from dldist._backends.low_level import CALLS
from dldist._base.options import OpType
from dldist.torch import _dispatcher, _profile
from dldist.torch._compiler import not_compiled
from dldist.torch._options import OPTIONS, to_list_form
from dldist.torch._runner import Runner
from dldist.torch._tensors import device_type_of
from dldist.torch._work import CoalescedWork, TypedWork, Work
from dldist.world import call_all

_IN_TORCH = "torch.distributed.distributed_c10d"
_has_configs = names.are_present(f"{_IN_TORCH}._world.pg_backend_config")
_can_make_torch_groups = names.are_present(f"{_IN_TORCH}._world.pg_group_ranks", f"{_IN_TORCH}._new_process_group_helper")
_ErrorType: Any = names.find("torch._C._distributed_c10d.ErrorType")

_MAX_SCALAR_WORKS = 64  # maximum kept works: more than start between forward and backward

_MESSAGES = ("send", "recv", "recv_anysource")

_RUNNERS: dict[str, Callable[..., Work]] = {}
"""For each call, the function for tensors that dldist serves, with to_list_form()'s arguments."""


def _make_method(op_type: Any, name: str, method: str | None = None) -> Callable[..., Any]:
    """Create the group's method `name` for the call `method` in dldist's list of calls."""
    method_name = method or name
    has_options = name not in _MESSAGES
    run_call = _make_runner(op_type, name, method_name)
    _RUNNERS.setdefault(method_name, run_call)

    def call(self: ProcessGroup, *args: Any, **named: Any) -> Any:
        arguments = args
        if named or (has_options and (not args or type(args[-1]) not in OPTIONS)):
            arguments = to_list_form(name, args, named)
        kind = device_type_of(arguments)
        if _dispatcher.is_observed(arguments) and self._is_served_by_dldist(kind):
            return _dispatcher.run(self, method_name, arguments)
        backend = self._backend_for(kind)
        if not isinstance(backend, GroupBackend):  # a torch group, which serves another device
            return getattr(backend, name)(*args, **named)
        return run_call(self, arguments)

    call.__name__ = call.__qualname__ = name
    return call


def _make_runner(op_type: Any, name: str, method: str) -> Callable[..., Work]:
    number = int(op_type)
    has_outputs = name not in ("barrier", "send")  # all other calls write to their first argument
    is_reduced = name == "allreduce"
    title = _profile.title_of(name)

    def run_call(self: ProcessGroup, arguments: tuple[Any, ...]) -> Work:
        with _profile.entry(self.backend_name, title) as entry:
            started = self._runner.perform(method, *arguments)
            outputs: Any = arguments[0] if has_outputs else ()
            kind = TypedWork if is_reduced and outputs[0].dtype is torch.float16 else Work
            work = kind(started, outputs, number)
            entry.end_with(work)
        if is_reduced and started is not None and outputs[0].numel() == 1:
            self._scalar_works.append(work)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    return run_call


@not_compiled
class ProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A group of torch.distributed over a World.

    For torch, this is a whole group, not one of several backends. It serves the CPU itself. For
    each other device type in the configuration ("cpu:dldist,cuda:nccl"), torch creates a group at
    the first use. Calls take torch's lists with options, or flat forms. Ranks are group ranks.
    """

    def __init__(self, runner: Runner, config: str = "") -> None:
        super().__init__(runner.group.rank, runner.group.size)  # type: ignore[call-arg]
        self._runner = runner
        self.backend_name = runner.backend_name
        self._desc = "undefined"
        self._config = config or f"cpu:{self.backend_name}"  # if torch does not know the group
        # join() passes the work of an all_reduce of one number to DDP's reducer, which keeps only
        # the C++ half and waits for it in the next backward pass. Keep the Python half, which
        # completes it.
        self._scalar_works: deque[Work] = deque(maxlen=_MAX_SCALAR_WORKS)
        self._torch_groups: dict[str, Any] = {}  # torch's own groups, by device type
        self._coalesced: list[Work] | None = None
        _dispatcher.replace_kernels("cpu")

    def getBackendName(self) -> str:
        return "dldist"  # also if it replaces Gloo: DDP would take "gloo" for Gloo's C++ backend

    def _get_backend_name(self) -> str:
        return self.backend_name

    @property
    def options(self) -> Any:
        return self._runner.cpu.options

    def get_group_store(self) -> Any:
        """Return the store of the group's rendezvous."""
        return self._runner.store

    def __repr__(self) -> str:
        return f'<dldist.torch.ProcessGroup "{self.group_name}", rank {self.rank()} of {self.size()}>'

    # Overridden because C++ calls these methods, and reads only a backend's name and description.

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

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in self._backend_names()]

    def _backend_names(self) -> dict[str, str]:
        """Return the name of the backend of each device type in the group's configuration."""
        return _parse_backends(distributed_c10d._world.pg_backend_config.get(self, self._config) if _has_configs else self._config)

    def _get_backend(self, device: torch.device) -> Any:
        kind = torch.device(device).type
        # While torch creates this group, it queries a backend's features. Later, torch queries the
        # CUDA backend of every group, even on machines without CUDA devices.
        is_under_construction = not _has_configs or self not in distributed_c10d._world.pg_backend_config
        if kind != "cpu" and (is_under_construction or self._is_device_missing(kind)):
            return Backend(self.rank(), self.size())
        backend = self._backend_for(kind)
        return backend._get_backend(device) if isinstance(backend, dist.ProcessGroup) else backend

    def _is_device_missing(self, kind: str) -> bool:
        """True if dldist serves this device type, but this machine has no such device."""
        is_served_by_dldist = self._backend_names().get(kind) == self.backend_name
        return kind == "cuda" and is_served_by_dldist and not torch.cuda.is_available()

    def _is_served_by_dldist(self, kind: str) -> bool:
        """True if dldist serves this device type."""
        return self._backend_names().get(kind, self.backend_name) == self.backend_name

    def _backend_for(self, kind: str) -> Any:
        """Return a device type's backend or torch group. All ranks must make the first call."""
        name = self._backend_names().get(kind)
        if name is None:
            raise RuntimeError(f"No backend type associated with device type {kind}")
        if name == self.backend_name:
            return self._runner.backend_for(kind)
        group = self._torch_groups.get(kind)
        if group is None:
            group = self._torch_groups[kind] = self._make_torch_group(name, f"{self._runner.name}/{kind}")
        return group

    def _make_torch_group(self, name: str, group_name: Any) -> Any:
        if not _can_make_torch_groups:
            raise RuntimeError(f'backend "dldist": unsupported backend {name!r} with PyTorch {torch.__version__}')
        runner, ranks = self._runner, self._runner.ranks
        group, _ = distributed_c10d._new_process_group_helper(
            self.size(), self.rank(), ranks, dist.Backend(name), runner.store, group_name, timeout=runner.group.timeout
        )
        distributed_c10d._world.pg_group_ranks[group] = {rank: index for index, rank in enumerate(ranks)}
        return group

    send = _make_method(OpType.SEND, "send")
    recv = _make_method(OpType.RECV, "recv")
    recv_anysource = _make_method(OpType.RECVANYSOURCE, "recv_anysource")

    def _run_call(self, method: str, arguments: tuple[Any, ...]) -> Work:
        """Run a call on tensors that dldist serves, without PyTorch's dispatcher."""
        return _RUNNERS[method](self, arguments)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks; errors name missing ranks. None or negative: group's timeout."""
        self._runner.monitored_barrier(timeout, wait_all_ranks)

    def _start_coalescing(self, device: torch.device) -> None:
        """Collect the calls until _end_coalescing(), which waits for all of them together."""
        backend = self._backend_for(torch.device(device).type)
        if isinstance(backend, dist.ProcessGroup):
            backend._start_coalescing(device)
        elif self._coalesced is not None:
            raise RuntimeError("_start_coalescing(): got a second call, expected _end_coalescing() first")
        else:
            self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> Any:
        backend = self._backend_for(torch.device(device).type)
        if isinstance(backend, dist.ProcessGroup):
            return backend._end_coalescing(device)
        works, self._coalesced = self._coalesced, None
        if works is None:
            raise RuntimeError("_end_coalescing(): no calls to end; call _start_coalescing() first")
        return CoalescedWork(works)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later calls."""
        self._runner.set_timeout(timeout)
        for group in self._torch_groups.values():
            group.set_timeout(timeout)

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: sequence numbers start at 0 on all ranks."""

    def _get_sequence_number_for_group(self) -> int:
        return self._runner.sequence()

    def get_error(self) -> Any:
        """Return the group's state: SUCCESS, TIMEOUT, COMM_ERROR or REMOTE_ERROR."""
        error_type = int(self._runner.error_type())
        return error_type if _ErrorType is None else _ErrorType(error_type)

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        """Do nothing: each work keeps its own resources."""

    def _enable_collectives_timing(self) -> None:
        """Do nothing: works always measure their time."""

    def shutdown(self) -> None:
        """Shut the group down cleanly."""
        # torch has registered the groups that it created, so destroy them through torch.
        call_all([*(partial(dist.destroy_process_group, group) for group in self._torch_groups.values()), self._runner.shutdown])

    def abort(self) -> None:
        """End the group and its unfinished calls immediately, on all ranks."""
        call_all([*(group.abort for group in self._torch_groups.values()), self._runner.abort])

    def split_group(
        self,
        ranks: list[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> ProcessGroup | None:
        """Create a group of these ranks, in this order. All ranks call this; others get None."""
        if self.rank() not in ranks:
            return None
        name = group_name or f"{self._runner.name}:split:{'-'.join(map(str, ranks))}"
        store = dist.PrefixStore(f"{name}/", self._runner.store)
        return _with_name(ProcessGroup(self._runner.split(store, ranks, name, timeout)), group_desc)

    splitGroup = split_group

    def merge_remote_group(
        self,
        store: Any,
        size: int,
        timeout: timedelta = timedelta(minutes=30),
        group_name: str | None = None,
        group_desc: str | None = None,
    ) -> ProcessGroup:
        """Create a group of `size` ranks by merging all groups that call this with the same store.

        All ranks of each group must call this; they get consecutive ranks in the new group.
        """
        name = group_name or f"{self._runner.name}:merged"
        return _with_name(ProcessGroup(self._runner.merge(store, size, name, timeout)), group_desc)


@cache
def _parse_backends(config: str) -> dict[str, str]:
    """Parse the backend of each device type from "cpu:dldist,cuda:nccl" or "dldist"."""
    return dict(distributed_c10d.BackendConfig(dist.Backend(config)).get_device_backend_map())


def _with_name(group: ProcessGroup, desc: str | None) -> ProcessGroup:
    group._set_group_name(group._runner.name)
    group._set_group_desc(desc or "undefined")
    return group


for _name, _call in CALLS.items():
    if _call.name != "allreduce_sparse":  # allreduce handles torch's sparse tensors here
        setattr(ProcessGroup, _name, _make_method(_call.operation.op_type, _name, _call.name))
