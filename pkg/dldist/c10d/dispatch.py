"""The operations of a group whatever its backends are: methods as those of dldist.Group, over c10d's low-level ones."""

from __future__ import annotations

from dldist import _core
from dldist.c10d import options

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from datetime import timedelta
    from typing import Any

    from dldist.c10d.process_group import ProcessGroup

SUM = _core.ReduceOp.SUM


def as_timedelta(timeout: Any) -> timedelta:
    """A time-out of a call; numbers are seconds."""
    from datetime import timedelta

    return timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)


def set_timeout(opts: Any, timeout: Any) -> Any:
    """The options, with the time-out of a call unless it is None."""
    if timeout is not None:
        opts.timeout = as_timedelta(timeout)
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

    def _records(self, name: str, first: Any, second: Any, op: Any) -> bool:
        if self._recorder is None:
            return False
        self._recorder.record(name, first, second, op)
        return True

    def _set_recorder(self, recorder: Any) -> Any:
        """As that of dldist.Group: who is told of calls that can be coalesced, instead of their being run."""
        before, self._recorder = self._recorder, recorder
        return before

    def coalesce(self, *, timeout: Any = None, async_op: bool = False) -> Any:
        from dldist._group import Coalescing

        return Coalescing(self, timeout, async_op)

    # ---- collectives

    def all_reduce(self, tensor: Any, op: Any = SUM, *, timeout: Any = None, async_op: bool = False) -> Any:
        op = reduction(op)
        if self._records("all_reduce", tensor, op, None):
            return None
        opts = set_timeout(options.AllreduceOptions(), timeout)
        opts.reduceOp = op
        return end(self._pg.allreduce([tensor], opts), async_op)

    def all_reduce_coalesced(self, tensors: Any, op: Any = SUM, *, timeout: Any = None, async_op: bool = False) -> Any:
        opts = set_timeout(options.AllreduceCoalescedOptions(), timeout)
        opts.reduceOp = reduction(op)
        return end(self._pg.allreduce_coalesced(list(tensors), opts), async_op)

    def broadcast(self, tensor: Any, root: int = 0, *, timeout: Any = None, async_op: bool = False) -> Any:
        opts = set_timeout(options.BroadcastOptions(), timeout)
        opts.rootRank = root
        return end(self._pg.broadcast([tensor], opts), async_op)

    def reduce(self, tensor: Any, root: int = 0, op: Any = SUM, *, timeout: Any = None, async_op: bool = False) -> Any:
        opts = set_timeout(options.ReduceOptions(), timeout)
        opts.reduceOp = reduction(op)
        opts.rootRank = root
        return end(self._pg.reduce([tensor], opts), async_op)

    def all_gather(self, output_list: Any, tensor: Any, *, timeout: Any = None, async_op: bool = False) -> Any:
        opts = set_timeout(options.AllgatherOptions(), timeout)
        return end(self._pg.allgather([list(output_list)], [tensor], opts), async_op)

    def all_gather_single(self, output: Any, tensor: Any, *, timeout: Any = None, async_op: bool = False) -> Any:
        if self._records("all_gather_single", output, tensor, None):
            return None
        opts = set_timeout(options.AllgatherOptions(), timeout)
        return end(self._pg.all_gather_single(output, tensor, opts), async_op)

    def all_gather_coalesced(self, output_lists: Any, tensors: Any, *, timeout: Any = None, async_op: bool = False) -> Any:
        opts = set_timeout(options.AllgatherOptions(), timeout)
        lists = [list(outputs) for outputs in output_lists]
        return end(self._pg.allgather_coalesced(lists, list(tensors), opts), async_op)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, *, timeout: Any = None, async_op: bool = False) -> Any:
        opts = set_timeout(options.AllgatherOptions(), timeout)
        return end(self._pg.all_gather_single_coalesced(list(outputs), list(inputs), opts), async_op)

    def gather(
        self, tensor: Any, output_list: Any = None, root: int = 0, *, timeout: Any = None, async_op: bool = False
    ) -> Any:
        opts = set_timeout(options.GatherOptions(), timeout)
        opts.rootRank = root
        return end(self._pg.gather([list(output_list)] if output_list else [], [tensor], opts), async_op)

    def gather_single(
        self, tensor: Any, output: Any = None, root: int = 0, *, timeout: Any = None, async_op: bool = False
    ) -> Any:
        opts = set_timeout(options.GatherOptions(), timeout)
        opts.rootRank = root
        return end(self._pg.gather_single(output, tensor, opts), async_op)

    def scatter(
        self, output: Any, input_list: Any = None, root: int = 0, *, timeout: Any = None, async_op: bool = False
    ) -> Any:
        opts = set_timeout(options.ScatterOptions(), timeout)
        opts.rootRank = root
        return end(self._pg.scatter([output], [list(input_list)] if input_list else [], opts), async_op)

    def reduce_scatter(
        self, output: Any, input_list: Any, op: Any = SUM, *, timeout: Any = None, async_op: bool = False
    ) -> Any:
        opts = set_timeout(options.ReduceScatterOptions(), timeout)
        opts.reduceOp = reduction(op)
        return end(self._pg.reduce_scatter([output], [list(input_list)], opts), async_op)

    def reduce_scatter_single(
        self, output: Any, input: Any, op: Any = SUM, *, timeout: Any = None, async_op: bool = False
    ) -> Any:
        op = reduction(op)
        if self._records("reduce_scatter_single", output, input, op):
            return None
        opts = set_timeout(options.ReduceScatterOptions(), timeout)
        opts.reduceOp = op
        return end(self._pg.reduce_scatter_single(output, input, opts), async_op)

    def reduce_scatter_coalesced(
        self, outputs: Any, inputs: Any, op: Any = SUM, *, timeout: Any = None, async_op: bool = False
    ) -> Any:
        opts = set_timeout(options.ReduceScatterOptions(), timeout)
        opts.reduceOp = reduction(op)
        return end(self._pg.reduce_scatter_single_coalesced(list(outputs), list(inputs), opts), async_op)

    def all_to_all(self, output_list: Any, input_list: Any, *, timeout: Any = None, async_op: bool = False) -> Any:
        opts = set_timeout(options.AllToAllOptions(), timeout)
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
        opts = set_timeout(options.AllToAllOptions(), timeout)
        outs, ins = list(output_split_sizes or []), list(input_split_sizes or [])
        return end(self._pg.all_to_all_single(output, input, outs, ins, opts), async_op)

    def barrier(self, *, timeout: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        opts = set_timeout(options.BarrierOptions(), timeout)
        if isinstance(device_ids, list):
            opts.device_ids = device_ids
        return end(self._pg.barrier(opts), async_op)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        self._pg.monitored_barrier(None if timeout is None else as_timedelta(timeout), wait_all_ranks)

    # ---- messages

    def isend(self, tensor: Any, dst: int, tag: int = 0) -> Any:
        return self._pg.send([tensor], dst, tag)

    def irecv(self, tensor: Any, src: int | None = None, tag: int = 0) -> Any:
        return self._pg.recv_anysource([tensor], tag) if src is None else self._pg.recv([tensor], src, tag)

    def send(self, tensor: Any, dst: int, tag: int = 0) -> None:
        end(self.isend(tensor, dst, tag), False)

    def recv(self, tensor: Any, src: int | None = None, tag: int = 0) -> int:
        work = self.irecv(tensor, src, tag)
        end(work, False)
        return work._source_rank() if src is None else src

    def batch_isend_irecv(self, p2p_op_list: Any) -> Any:
        from dldist._group import batch_isend_irecv

        return batch_isend_irecv(self, p2p_op_list)


def end(work: Any, is_async: bool) -> Any:
    """What a call returns: the work of an asynchronous one, None of one that has been waited for."""
    if is_async:
        return work
    if work is not None:
        work.wait()
    return None
