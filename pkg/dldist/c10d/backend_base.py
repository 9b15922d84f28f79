"""c10d's low-level interface: the calls that a backend and a process group share, and class Backend.

Every call takes either lists of tensors and an options object, or a flat form, as c10d's overloads do:

    allreduce([tensor], opts)                     allreduce(tensor or tensors, op=SUM, timeout=None)
    allgather([outputs], [tensor], opts)          allgather(outputs, tensor, timeout=None)

LowLevelCalls puts the arguments in order, so that what implements a call sees the first form only.
"""

from __future__ import annotations

from dldist import _core
from dldist.c10d.options import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
    as_int,
    as_timedelta,
)

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from typing import Any

_SECONDS = 1800


def _wrong(method: str, what: str) -> TypeError:
    return TypeError(f"{method}(): incompatible function arguments: {what}")


def _one_of(method: str, **alternatives: Any) -> Any:
    """The one argument that is given, of those that stand for each other in c10d's overloads."""
    given = [name for name, value in alternatives.items() if value is not None]
    if len(given) != 1:
        raise _wrong(method, f"expected one of {', '.join(alternatives)}, got {' and '.join(given) or 'none'}")
    return alternatives[given[0]]


def _listed(value: Any) -> Any:
    """A list of tensors, which may be given as one tensor."""
    return value if isinstance(value, (list, tuple)) else [value]


def _lists(method: str, name: str, value: Any) -> Any:
    """A list of lists; a list of tensors is the only one of them, and an empty list stays empty."""
    if not isinstance(value, (list, tuple)):
        raise _wrong(method, f"argument {name!r} must be a list, not {type(value).__name__}")
    return [value] if value and not isinstance(value[0], (list, tuple)) else value


_FIELDS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}


def _options(method: str, kind: type[Any], opts: Any, at_its_place: str, **flat: Any) -> Any:
    """The options of a call: opts itself, or new ones made of the flat arguments.

    at_its_place names the flat argument that has the position of opts in the flat form.
    """
    given = {name: value for name, value in flat.items() if value is not None}
    if isinstance(opts, kind):
        if given:
            raise _wrong(method, f"{' and '.join(given)} given beside {kind.__name__}")
        return opts
    if opts is not None:
        if at_its_place in given:
            raise _wrong(method, f"argument {at_its_place!r} is given twice")
        given[at_its_place] = opts
    made = kind()
    for name, value in given.items():
        try:
            setattr(made, _FIELDS[name], value)
        except TypeError as error:
            raise _wrong(method, f"argument {name!r}: {error}") from None
    return made


class LowLevelCalls:
    """The collectives and messages of c10d's Backend and ProcessGroup, each under every name that it has had.

    Each puts its arguments in order and ends in `_perform(method, *arguments)`, where method is the canonical name of c10d 2.14
    and the arguments are those of the form with lists and options, with all of them present and options never None.

    A subclass may override the calls themselves instead, with (lists, opts): callers use that form, by position. Three calls and
    their coalesced forms were renamed; which of the two names a subclass overrides does not matter, as a name that it does not
    override forwards to the other one if it overrides that.
    """

    def _perform(self, method: str, *arguments: Any) -> Any:
        raise NotImplementedError

    def _forward(self, called: str, other: str, method: str, *arguments: Any) -> Any:
        """Run the call `called`, which is also known as `other`; `method` is the canonical one of the two.

        Only from a name that is not overridden to one that is: a super() call in either can not go round in circles.
        """
        kind = type(self)
        is_ours = getattr(kind, called) is getattr(LowLevelCalls, called)
        if is_ours and getattr(kind, other) is not getattr(LowLevelCalls, other):
            return getattr(self, other)(*arguments)
        return self._perform(method, *arguments)

    # One tensor of each rank.

    def allreduce(
        self, tensors: Any = None, opts: Any = None, timeout: Any = None, *, tensor: Any = None, op: Any = None
    ) -> Any:
        """allreduce(tensors, opts) | allreduce(tensors or tensor, op=SUM, timeout=None)"""
        tensors = _listed(_one_of("allreduce", tensors=tensors, tensor=tensor))
        opts = _options("allreduce", AllreduceOptions, opts, "op", op=op, timeout=timeout)
        return self._perform("allreduce", tensors, opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        opts = _options("allreduce_coalesced", AllreduceCoalescedOptions, opts, "op", op=None)
        return self._perform("allreduce_coalesced", tensors, opts)

    def allreduce_sparse(self, tensors: Any, opts: Any = None) -> Any:
        opts = _options("allreduce_sparse", AllreduceOptions, opts, "op", op=None)
        return self._perform("allreduce_sparse", tensors, opts)

    def broadcast(
        self, tensors: Any = None, opts: Any = None, timeout: Any = None, *, tensor: Any = None, root: Any = None
    ) -> Any:
        """broadcast(tensors, opts) | broadcast(tensor, root, timeout=None)"""
        tensors = _listed(_one_of("broadcast", tensors=tensors, tensor=tensor))
        opts = _options("broadcast", BroadcastOptions, opts, "root", root=root, timeout=timeout)
        return self._perform("broadcast", tensors, opts)

    def reduce(
        self,
        tensors: Any = None,
        opts: Any = None,
        op: Any = None,
        timeout: Any = None,
        *,
        tensor: Any = None,
        root: Any = None,
    ) -> Any:
        """reduce(tensors, opts) | reduce(tensor, root, op=SUM, timeout=None)"""
        tensors = _listed(_one_of("reduce", tensors=tensors, tensor=tensor))
        opts = _options("reduce", ReduceOptions, opts, "root", root=root, op=op, timeout=timeout)
        return self._perform("reduce", tensors, opts)

    # One tensor and lists of tensors.

    def allgather(
        self,
        output_tensors: Any,
        input_tensors: Any = None,
        opts: Any = None,
        *,
        input_tensor: Any = None,
        timeout: Any = None,
    ) -> Any:
        """allgather(output_tensors, input_tensors, opts) | allgather(output_tensors, input_tensor, timeout=None)"""
        inputs = _listed(_one_of("allgather", input_tensors=input_tensors, input_tensor=input_tensor))
        outputs = _lists("allgather", "output_tensors", output_tensors)
        opts = _options("allgather", AllgatherOptions, opts, "timeout", timeout=timeout)
        return self._perform("allgather", outputs, inputs, opts)

    def allgather_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> Any:
        opts = _options("allgather_coalesced", AllgatherOptions, opts, "timeout", timeout=None)
        return self._perform("allgather_coalesced", output_lists, input_list, opts)

    def gather(
        self,
        output_tensors: Any,
        input_tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        input_tensor: Any = None,
        root: Any = None,
    ) -> Any:
        """gather(output_tensors, input_tensors, opts) | gather(output_tensors, input_tensor, root, timeout=None)"""
        inputs = _listed(_one_of("gather", input_tensors=input_tensors, input_tensor=input_tensor))
        outputs = _lists("gather", "output_tensors", output_tensors)
        opts = _options("gather", GatherOptions, opts, "root", root=root, timeout=timeout)
        return self._perform("gather", outputs, inputs, opts)

    def scatter(
        self,
        output_tensors: Any = None,
        input_tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        output_tensor: Any = None,
        root: Any = None,
    ) -> Any:
        """scatter(output_tensors, input_tensors, opts) | scatter(output_tensor, input_tensors, root, timeout=None)"""
        outputs = _listed(_one_of("scatter", output_tensors=output_tensors, output_tensor=output_tensor))
        inputs = _lists("scatter", "input_tensors", input_tensors)
        opts = _options("scatter", ScatterOptions, opts, "root", root=root, timeout=timeout)
        return self._perform("scatter", outputs, inputs, opts)

    def reduce_scatter(
        self,
        output_tensors: Any = None,
        input_tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        output: Any = None,
        input: Any = None,
        input_tensor: Any = None,
        op: Any = None,
    ) -> Any:
        """reduce_scatter(output_tensors, input_tensors, opts) | reduce_scatter(output, input, op=SUM, timeout=None)"""
        outputs = _listed(_one_of("reduce_scatter", output_tensors=output_tensors, output=output))
        inputs = _one_of("reduce_scatter", input_tensors=input_tensors, input=input, input_tensor=input_tensor)
        inputs = _lists("reduce_scatter", "input_tensors", inputs)
        opts = _options("reduce_scatter", ReduceScatterOptions, opts, "op", op=op, timeout=timeout)
        return self._perform("reduce_scatter", outputs, inputs, opts)

    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        opts = _options("alltoall", AllToAllOptions, opts, "timeout", timeout=None)
        return self._perform("alltoall", output_tensors, input_tensors, opts)

    # One tensor in and one out, with their old names.

    def all_gather_single(self, output: Any, input: Any, opts: Any = None, *, timeout: Any = None) -> Any:
        """The output is what all ranks put in, one after another."""
        opts = _options("all_gather_single", AllgatherOptions, opts, "timeout", timeout=timeout)
        return self._forward("all_gather_single", "_allgather_base", "all_gather_single", output, input, opts)

    def _allgather_base(self, output: Any, input: Any, opts: Any = None, *, timeout: Any = None) -> Any:
        opts = _options("_allgather_base", AllgatherOptions, opts, "timeout", timeout=timeout)
        return self._forward("_allgather_base", "all_gather_single", "all_gather_single", output, input, opts)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        name, old_name = "all_gather_single_coalesced", "allgather_into_tensor_coalesced"
        opts = _options(name, AllgatherOptions, opts, "timeout", timeout=None)
        return self._forward(name, old_name, name, outputs, inputs, opts)

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        name, old_name = "all_gather_single_coalesced", "allgather_into_tensor_coalesced"
        opts = _options(old_name, AllgatherOptions, opts, "timeout", timeout=None)
        return self._forward(old_name, name, name, outputs, inputs, opts)

    def reduce_scatter_single(
        self, output: Any, input: Any, opts: Any = None, *, op: Any = None, timeout: Any = None
    ) -> Any:
        """The output is this rank's part of the reduced inputs."""
        opts = _options("reduce_scatter_single", ReduceScatterOptions, opts, "op", op=op, timeout=timeout)
        name, old_name = "reduce_scatter_single", "_reduce_scatter_base"
        return self._forward(name, old_name, name, output, input, opts)

    def _reduce_scatter_base(
        self, outputTensor: Any, inputTensor: Any, opts: Any = None, *, op: Any = None, timeout: Any = None
    ) -> Any:
        opts = _options("_reduce_scatter_base", ReduceScatterOptions, opts, "op", op=op, timeout=timeout)
        name, old_name = "reduce_scatter_single", "_reduce_scatter_base"
        return self._forward(old_name, name, name, outputTensor, inputTensor, opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        name, old_name = "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"
        opts = _options(name, ReduceScatterOptions, opts, "op", op=None)
        return self._forward(name, old_name, name, outputs, inputs, opts)

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        name, old_name = "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"
        opts = _options(old_name, ReduceScatterOptions, opts, "op", op=None)
        return self._forward(old_name, name, name, outputs, inputs, opts)

    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        opts: Any = None,
        *,
        timeout: Any = None,
    ) -> Any:
        """Split sizes count along the first dimension; none, or an empty list, means equal parts."""
        opts = _options("all_to_all_single", AllToAllOptions, opts, "timeout", timeout=timeout)
        splits = (list(output_split_sizes or ()), list(input_split_sizes or ()))
        return self._forward("all_to_all_single", "alltoall_base", "all_to_all_single", output, input, *splits, opts)

    def alltoall_base(
        self,
        output: Any = None,
        input: Any = None,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        opts: Any = None,
        *,
        output_tensor: Any = None,
        input_tensor: Any = None,
        timeout: Any = None,
    ) -> Any:
        output = _one_of("alltoall_base", output=output, output_tensor=output_tensor)
        input = _one_of("alltoall_base", input=input, input_tensor=input_tensor)
        opts = _options("alltoall_base", AllToAllOptions, opts, "timeout", timeout=timeout)
        splits = (list(output_split_sizes or ()), list(input_split_sizes or ()))
        return self._forward("alltoall_base", "all_to_all_single", "all_to_all_single", output, input, *splits, opts)

    def gather_single(
        self, output: Any, input: Any, opts: Any = None, *, root: Any = None, timeout: Any = None
    ) -> Any:
        """The output, on the root, is what all ranks put in, one after another; None elsewhere."""
        opts = _options("gather_single", GatherOptions, opts, "root", root=root, timeout=timeout)
        return self._forward("gather_single", "gather_into_tensor", "gather_single", output, input, opts)

    def gather_into_tensor(
        self, output: Any, input: Any, opts: Any = None, *, root: Any = None, timeout: Any = None
    ) -> Any:
        opts = _options("gather_into_tensor", GatherOptions, opts, "root", root=root, timeout=timeout)
        return self._forward("gather_into_tensor", "gather_single", "gather_single", output, input, opts)

    # No collective with data.

    def barrier(self, opts: Any = None, *, timeout: Any = None) -> Any:
        """barrier(opts) | barrier(timeout=None)"""
        opts = _options("barrier", BarrierOptions, opts, "timeout", timeout=timeout)
        return self._perform("barrier", opts)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that names the ranks that are missing; a timeout of None or -1 ms is the group's."""
        if timeout is not None:
            timeout = as_timedelta("monitored_barrier(): argument 'timeout'", timeout)
            timeout = None if timeout.days < 0 else timeout
        self._perform("monitored_barrier", timeout, bool(wait_all_ranks))

    def send(self, tensors: Any, dstRank: int, tag: int) -> Any:
        return self._perform("send", tensors, dstRank, tag)

    def recv(self, tensors: Any, srcRank: int, tag: int, *match_dtype: bool) -> Any:
        return self._perform("recv", tensors, srcRank, tag, *match_dtype)

    def recv_anysource(self, tensors: Any, tag: int, *match_dtype: bool) -> Any:
        return self._perform("recv_anysource", tensors, tag, *match_dtype)


class BackendOptions:
    """Backend.Options: what a backend is made with. The name of the backend can not be changed."""

    def __init__(self, backend: str, timeout: timedelta | None = None) -> None:
        if timeout is None:
            from datetime import timedelta

            timeout = timedelta(seconds=_SECONDS)
        self._backend = backend
        self._given_timeout = as_timedelta("Options(): argument 'timeout'", timeout)
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""
        self.enable_reconfigure = False

    @property
    def backend(self) -> str:
        return self._backend

    @property
    def _timeout(self) -> timedelta:
        return self._given_timeout

    @_timeout.setter
    def _timeout(self, timeout: timedelta | float) -> None:
        self._given_timeout = as_timedelta("Options._timeout", timeout)

    def __repr__(self) -> str:
        return f"<{type(self).__qualname__} backend={self._backend!r} timeout={self._timeout}>"


def _call_without(fn: Callable[[], object]) -> None:
    fn()


class Backend(LowLevelCalls):
    """c10d's backend (not the str class of that name): what a process group has for a type of device.

    To write one, subclass it and override calls with (lists, opts) by position, and getBackendName(). Everything that is not
    overridden raises RuntimeError.
    """

    Options: type[Any] = BackendOptions

    bound_device_id: Any = None

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False

    def __init__(self, rank: int, size: int) -> None:
        rank, size = as_int("Backend(): argument 'rank'", rank), as_int("Backend(): argument 'size'", size)
        if not 0 <= rank < size:
            raise ValueError(f"Backend(): rank {rank} is not in a group of {size}")
        self._rank = rank
        self._size = size
        self._options: BackendOptions | None = None
        self._abort_hooks: dict[int, Callable[[], object]] = {}

    def _perform(self, method: str, *arguments: Any) -> Any:
        """Run what the class defines as `_run_<method>`: how the backends of dldist say what they do."""
        run = getattr(self, f"_run_{method}", None)
        if run is None:
            raise self._unsupported(method)
        return run(*arguments)

    def _unsupported(self, method: str) -> RuntimeError:
        return RuntimeError(f"Backend {self.name()} does not support {method}")

    # Who it is.

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def getBackendName(self) -> str:
        return type(self).__name__

    def _get_backend_name(self) -> str:
        return self.getBackendName()

    def name(self) -> str:
        return self.getBackendName()

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__} rank {self.rank()} of {self.size()}>"

    @property
    def options(self) -> Any:
        if self._options is None:
            raise RuntimeError(f"Backend {self.name()} does not implement getBackendOptions.")
        return self._options

    # Life.

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the timeout of all operations from now on."""
        if self._options is None:
            raise self._unsupported("set_timeout")
        self._options._timeout = as_timedelta("set_timeout(): argument 'timeout'", timeout)

    def shutdown(self) -> None:
        """End orderly. Nothing to do unless overridden."""

    def abort(self) -> None:
        """End what is under way, with errors. Nothing but the abort hooks unless overridden."""
        self._run_abort_hooks()

    def register_abort_hook(self, id: int, fn: Callable[[], object]) -> None:
        """Have fn() called when this backend aborts, perhaps more than once; an id is taken over by the latest."""
        if not callable(fn):
            raise TypeError(f"register_abort_hook(): argument 'fn' must be callable, not {type(fn).__name__}")
        self._abort_hooks[id] = fn

    def unregister_abort_hook(self, id: int) -> None:
        self._abort_hooks.pop(id, None)

    def _run_abort_hooks(self) -> None:
        """For those that override abort(). What a hook raises goes to sys.unraisablehook: an abort is no place for errors."""
        for fn in list(self._abort_hooks.values()):
            _core._call_aloud(_call_without, fn)

    def get_error(self) -> Any:
        raise self._unsupported("get_error")

    def suspend(self) -> None:
        raise self._unsupported("suspend")

    def resume(self) -> None:
        raise self._unsupported("resume")

    def memory_stats(self) -> dict[str, int]:
        raise self._unsupported("memory_stats")

    def eager_connect_single_device(self, device: Any) -> None:
        raise self._unsupported("eager_connect_single_device")

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        raise self._unsupported("_add_ephemeral_timeout")

    def _set_group_uid(self, uid: str) -> None:
        self._group_uid = uid

    def _set_sequence_number_for_group(self) -> None:
        raise RuntimeError(f"Backend {self.name()} does not yet support sequence numbers.")

    def _get_sequence_number_for_group(self) -> int:
        raise RuntimeError(f"Backend {self.name()} does not yet support sequence numbers.")

    def _start_coalescing(self) -> None:
        raise RuntimeError(f"Backend {self.name()} does not implement startCoalescing")

    def _end_coalescing(self) -> Any:
        raise RuntimeError(f"Backend {self.name()} does not implement endCoalescing")

    def _wait_for_pending_works(self) -> None:
        raise self._unsupported("_wait_for_pending_works")

    def _register_on_completion_hook(self, hook: Any) -> None:
        raise self._unsupported("_register_on_completion_hook")

    def _enable_collectives_timing(self) -> None:
        raise self._unsupported("_enable_collectives_timing")

    # Other groups of the same kind, memory, windows.

    def split(self, store: Any, ranks: list[int], opts: Any) -> Any:
        raise self._unsupported("split")

    def merge(self, store: Any, opts: Any, rank: int, size: int) -> Any:
        raise self._unsupported("merge")

    def shrink(self, ranks_to_exclude: list[int], shrink_flags: int = 0, opts_override: Any = None) -> Any:
        raise self._unsupported("shrink")

    def reconfigure(self, opts: Any) -> Any:
        raise self._unsupported("reconfigure")

    def get_reconfigure_handle(self) -> Any:
        raise self._unsupported("get_reconfigure_handle")

    def new_window(self, tensor: Any = None) -> Any:
        raise self._unsupported("new_window")

    @property
    def mem_allocator(self) -> Any:
        raise self._unsupported("mem_allocator")

    def supports_tensor_alloc(self, device: Any) -> bool:
        return False

    def allocate_tensor(self, size: int, *, dtype: Any, device: Any) -> Any:
        raise self._unsupported("allocate_tensor")
