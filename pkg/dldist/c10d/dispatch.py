"""The operations of a group whatever its backends are: methods as those of dldist.Group, over c10d's low-level ones."""

from __future__ import annotations

from dldist import _core
from dldist.c10d import options

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from typing import Any

    from dldist.c10d.backend_base import Backend
    from dldist.c10d.process_group import ProcessGroup

SUM = _core.ReduceOp.SUM


def prepared(opts: Any, timeout: Any, is_async: bool) -> Any:
    """The options of a call, with its time-out unless that is None."""
    opts.asyncOp = is_async
    if timeout is not None:
        opts.timeout = options.to_timedelta(timeout)
    return opts


def reduction(op: Any) -> _core.ReduceOp:
    """A reduction that may be given by name."""
    return _core.ReduceOp(op) if isinstance(op, str) else op


class Dispatcher:
    """Calls the methods of a ProcessGroup, which choose the backend, and waits unless the call is asynchronous."""

    def __init__(self, pg: ProcessGroup) -> None:
        self._pg = pg
        self._recorder: Any = None

    @property
    def rank(self) -> int:
        return self._pg.rank()

    @property
    def size(self) -> int:
        return self._pg.size()

    @property
    def name(self) -> str:
        return self._pg.group_name

    def _set_recorder(self, recorder: Any) -> Any:
        """As that of dldist.Group: who is told of calls that can be coalesced, instead of their being run."""
        before, self._recorder = self._recorder, recorder
        return before

    def coalesce(self, *, timeout: Any = None, async_op: bool = False) -> Any:
        from dldist.base.group import Coalescing

        return Coalescing(self, timeout, async_op)

    # ---- collectives

    def all_reduce(self, tensor: Any, op: Any = SUM, *, timeout: Any = None, async_op: bool = False) -> Any:
        op = reduction(op)
        if self._recorder is not None:
            return self._recorder.record("all_reduce", tensor, op, None, async_op)
        opts = prepared(options.AllreduceOptions(), timeout, async_op)
        opts.reduceOp = op
        return end(self._pg.allreduce([tensor], opts), async_op)

    def all_reduce_coalesced(self, tensors: Any, op: Any = SUM, *, timeout: Any = None, async_op: bool = False) -> Any:
        opts = prepared(options.AllreduceCoalescedOptions(), timeout, async_op)
        opts.reduceOp = reduction(op)
        return end(self._pg.allreduce_coalesced(list(tensors), opts), async_op)

    def broadcast(self, tensor: Any, root: int = 0, *, timeout: Any = None, async_op: bool = False) -> Any:
        opts = prepared(options.BroadcastOptions(), timeout, async_op)
        opts.rootRank = root
        return end(self._pg.broadcast([tensor], opts), async_op)

    def reduce(self, tensor: Any, root: int = 0, op: Any = SUM, *, timeout: Any = None, async_op: bool = False) -> Any:
        opts = prepared(options.ReduceOptions(), timeout, async_op)
        opts.reduceOp = reduction(op)
        opts.rootRank = root
        return end(self._pg.reduce([tensor], opts), async_op)

    def all_gather(self, output_list: Any, tensor: Any, *, timeout: Any = None, async_op: bool = False) -> Any:
        opts = prepared(options.AllgatherOptions(), timeout, async_op)
        return end(self._pg.allgather([list(output_list)], [tensor], opts), async_op)

    def all_gather_single(self, output: Any, tensor: Any, *, timeout: Any = None, async_op: bool = False) -> Any:
        if self._recorder is not None:
            return self._recorder.record("all_gather_single", output, tensor, None, async_op)
        opts = prepared(options.AllgatherOptions(), timeout, async_op)
        return end(self._pg.all_gather_single(output, tensor, opts), async_op)

    def all_gather_coalesced(self, output_lists: Any, tensors: Any, *, timeout: Any = None, async_op: bool = False) -> Any:
        opts = prepared(options.AllgatherOptions(), timeout, async_op)
        lists = [list(outputs) for outputs in output_lists]
        return end(self._pg.allgather_coalesced(lists, list(tensors), opts), async_op)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, *, timeout: Any = None, async_op: bool = False) -> Any:
        opts = prepared(options.AllgatherOptions(), timeout, async_op)
        return end(self._pg.all_gather_single_coalesced(list(outputs), list(inputs), opts), async_op)

    def gather(
        self, tensor: Any, output_list: Any = None, root: int = 0, *, timeout: Any = None, async_op: bool = False
    ) -> Any:
        opts = prepared(options.GatherOptions(), timeout, async_op)
        opts.rootRank = root
        return end(self._pg.gather([list(output_list)] if output_list else [], [tensor], opts), async_op)

    def gather_single(
        self, tensor: Any, output: Any = None, root: int = 0, *, timeout: Any = None, async_op: bool = False
    ) -> Any:
        opts = prepared(options.GatherOptions(), timeout, async_op)
        opts.rootRank = root
        return end(self._pg.gather_single(output, tensor, opts), async_op)

    def scatter(
        self, output: Any, input_list: Any = None, root: int = 0, *, timeout: Any = None, async_op: bool = False
    ) -> Any:
        opts = prepared(options.ScatterOptions(), timeout, async_op)
        opts.rootRank = root
        return end(self._pg.scatter([output], [list(input_list)] if input_list else [], opts), async_op)

    def reduce_scatter(
        self, output: Any, input_list: Any, op: Any = SUM, *, timeout: Any = None, async_op: bool = False
    ) -> Any:
        opts = prepared(options.ReduceScatterOptions(), timeout, async_op)
        opts.reduceOp = reduction(op)
        return end(self._pg.reduce_scatter([output], [list(input_list)], opts), async_op)

    def reduce_scatter_single(
        self, output: Any, input: Any, op: Any = SUM, *, timeout: Any = None, async_op: bool = False
    ) -> Any:
        op = reduction(op)
        if self._recorder is not None:
            return self._recorder.record("reduce_scatter_single", output, input, op, async_op)
        opts = prepared(options.ReduceScatterOptions(), timeout, async_op)
        opts.reduceOp = op
        return end(self._pg.reduce_scatter_single(output, input, opts), async_op)

    def reduce_scatter_coalesced(
        self, outputs: Any, inputs: Any, op: Any = SUM, *, timeout: Any = None, async_op: bool = False
    ) -> Any:
        opts = prepared(options.ReduceScatterOptions(), timeout, async_op)
        opts.reduceOp = reduction(op)
        return end(self._pg.reduce_scatter_single_coalesced(list(outputs), list(inputs), opts), async_op)

    def all_to_all(self, output_list: Any, input_list: Any, *, timeout: Any = None, async_op: bool = False) -> Any:
        opts = prepared(options.AllToAllOptions(), timeout, async_op)
        return end(self._pg.alltoall(list(output_list), list(input_list), opts), async_op)

    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        *,
        timeout: Any = None,
        async_op: bool = False,
    ) -> Any:
        opts = prepared(options.AllToAllOptions(), timeout, async_op)
        outs, ins = list(output_split_sizes or []), list(input_split_sizes or [])
        return end(self._pg.all_to_all_single(output, input, outs, ins, opts), async_op)

    def barrier(self, *, timeout: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        opts = prepared(options.BarrierOptions(), timeout, async_op)
        if isinstance(device_ids, list):
            opts.device_ids = device_ids
        return end(self._pg.barrier(opts), async_op)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        self._pg.monitored_barrier(None if timeout is None else options.to_timedelta(timeout), wait_all_ranks)

    # ---- messages

    def isend(self, tensor: Any, dst: int, tag: int = 0, *, timeout: Any = None) -> Any:
        self._refuse_timeout("isend", timeout)
        return self._pg.send([tensor], dst, tag)

    def irecv(
        self, tensor: Any, src: int | None = None, tag: int = 0, *, timeout: Any = None, match_dtype: bool = True
    ) -> Any:
        self._refuse_timeout("irecv", timeout)
        rest = (tag,) if match_dtype or not self._can_match_dtype(tensor) else (tag, False)
        return self._pg.recv_anysource([tensor], *rest) if src is None else self._pg.recv([tensor], src, *rest)

    def _can_match_dtype(self, tensor: Any) -> bool:
        """Whether the tensor's backend takes match_dtype; the others, from elsewhere, compare no dtypes that we know of."""
        backend = self._backend_of(tensor)
        return getattr(getattr(backend, "wrapped_pg", backend), "_can_match_dtype", False)

    def _refuse_timeout(self, name: str, timeout: Any) -> None:
        if timeout is not None:
            raise _core.DistArgumentError(
                f"{name}(): argument 'timeout': the low-level calls of backend {self._pg.name()} have none for messages: give it "
                "to wait()"
            )

    def send(self, tensor: Any, dst: int, tag: int = 0, *, timeout: Any = None) -> None:
        end(self.isend(tensor, dst, tag), False, timeout)

    def recv(
        self, tensor: Any, src: int | None = None, tag: int = 0, *, timeout: Any = None, match_dtype: bool = True
    ) -> int:
        work = self.irecv(tensor, src, tag, match_dtype=match_dtype)
        end(work, False, timeout)
        return work._source_rank() if src is None else src

    def _backends(self) -> list[Any]:
        return self._pg._distinct_backends()

    def _host_view(self) -> Any:
        """What moves bytes of the host: this, or the group behind the one backend, if that is of another device."""
        backends = self._backends()
        if len(backends) != 1:
            return self
        group = getattr(getattr(backends[0], "wrapped_pg", backends[0]), "group", None)
        view = getattr(group, "_host_view", None)
        return self if view is None else view()

    def _backend_of(self, tensor: Any) -> Any:
        return self._pg._backend_for("send", ([tensor],))

    def _coalescing_backend_of(self, tensor: Any) -> Any:
        """The backend of the tensor's device, where that can make one operation of messages; else None."""
        backend = self._backend_of(tensor)
        return backend if getattr(backend, "supports_coalescing", False) else None

    def batch_isend_irecv(self, p2p_op_list: Any) -> Any:
        from dldist.base.group import batch_isend_irecv

        return batch_isend_irecv(self, p2p_op_list)


class BackendCalls(Dispatcher):
    """The same for a backend that stands for a group, as in dist.barrier(group=backend)."""

    def __init__(self, backend: Backend) -> None:
        import weakref

        # The backend keeps this object, and has to end when its last user lets it go.
        self._backend = weakref.ref(backend)
        self._recorder = None

    @property
    def _pg(self) -> Any:  # type: ignore[override]
        return self._backend()

    @property
    def name(self) -> str:
        return self._pg.name()

    def _backends(self) -> list[Any]:
        return [self._pg]

    def _backend_of(self, tensor: Any) -> Any:
        return self._pg


def end(work: Any, is_async: bool, timeout: Any = None) -> Any:
    """What a call returns: the work of an asynchronous one, None of one that has been waited for."""
    if is_async:
        return work
    if work is not None:
        work.wait(*([] if timeout is None else [options.to_timedelta(timeout)]))
    return None
