"""Cases of test_torch_dispatch.py: functions of a rank and the size, in a default group of the
backend "dldist".

No pytest here, so that the children start faster.
"""

import dldist
import torch
import torch.distributed as dist
import torch_backend_cases as backend_cases
from dldist.torch import _dispatcher, _native
from dldist.torch._runner import runner_of
from torch._C import _distributed_c10d as c10d
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor.debug import CommDebugMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch_backend_cases import check, of, raises, total


class Observing(TorchDispatchMode):
    """A mode that records operations without changing them."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            self.seen.add(func._opname)
        return func(*args, **(kwargs or {}))


def mode_receives_every_call(rank, size):
    with Observing() as mode:
        for case in ("every_collective", "messages", "objects", "sparse", "every_reduction", "unusual_tensors", "works"):
            getattr(backend_cases, case)(rank, size)
        if _dispatcher._backend_method("gather_single"):  # since PyTorch 2.14
            single_tensors(rank, size)
    served = {known.name for name, known in _dispatcher._OPERATIONS.items() if _dispatcher._backend_method(name)}
    uncalled = {"recv_any_source_"} if _native.load() is None else {"recv_any_source_", "gather_into_tensor_"}
    assert served - mode.seen <= uncalled, served - mode.seen


def single_tensors(rank, size):
    """The calls that PyTorch's backends have in Python since 2.14 must be seen."""
    group = dist.group.WORLD
    if _native.load() is None:
        backend_cases.gather_into_one_tensor(rank, size)
    outs = [torch.zeros(2 * size)]
    group.all_gather_single_coalesced(outs, [of(rank, 2)]).wait()
    check(outs[0], torch.cat([of(other, 2) for other in range(size)]))
    outs = [torch.zeros(1)]
    group.reduce_scatter_single_coalesced(outs, [of(rank, size)]).wait()
    check(outs[0], total(size, size)[rank : rank + 1])


def any_source(rank, size):
    x = torch.zeros(3)
    with Observing() as mode:
        if rank == 0:
            assert dist.recv(x) == 1
            check(x, of(1, 3))
            assert mode.seen == {"recv_any_source_"}
        elif rank == 1:
            dist.send(of(1, 3), 0)


def make_fx_has_the_calls(rank, size):
    def program(x):
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        work = dist.broadcast(x, 0, async_op=True)
        work.wait()
        return x + 1

    for mode in ("real", "fake"):
        graph = make_fx(program, tracing_mode=mode)(of(rank, 4))
        names = [str(node.target) for node in graph.graph.nodes]
        assert "c10d.allreduce_.default" in names and "c10d.broadcast_.default" in names, names
        check(graph(of(rank, 4)), of(size - 1, 4) + 1)


def communication_is_counted(rank, size):
    with CommDebugMode() as mode:
        dist.all_reduce(torch.ones(2))
        dist.all_gather([torch.ones(2) for _ in range(size)], torch.ones(2))
        dist.barrier()
    assert mode.get_total_counts() == 2
    assert mode.get_comm_counts()[torch.ops.c10d.allreduce_] == 1


def tensors_with_their_own_implementations(rank, size):
    x = TwoTensor(of(rank, 4), 2 * of(rank, 4))
    dist.all_reduce(x)
    check(x.a, total(size, 4))
    check(x.b, 2 * total(size, 4))
    work = dist.broadcast(x, 0, async_op=True)
    assert work.wait() is True
    check(x.b, 2 * total(size, 4))


def subclasses_without_implementations_are_tensors(rank, size):
    class Named(torch.Tensor):
        pass

    assert not _dispatcher.is_observed(([of(rank, 2).as_subclass(Named)],))
    x = torch.nn.Parameter(of(rank, 2).as_subclass(Named), requires_grad=False)
    dist.all_reduce(x)
    check(torch.Tensor(x), total(size, 2))


def fake_tensors_are_not_sent(rank, size):
    if rank == 0:  # the other ranks would also have to call it
        with FakeTensorMode():
            x = torch.ones(4)
            dist.all_reduce(x)
            assert dist.all_reduce(x, async_op=True).wait() and tuple(x.shape) == (4,)
            dist.barrier()


def transforms_of_functions(rank, size):
    def program(x):
        y = x.detach().clone()
        dist.all_reduce(y)
        return (x * y).sum()

    check(torch.func.grad(program)(of(rank, 3)), total(size, 3))


def operations_that_begin_in_cpp(rank, size):
    group = dist.group.WORLD
    gathered = torch.empty(size, 2)
    torch.ops._c10d_functional.all_gather_into_tensor_out(of(rank, 1, 2), size, group.group_name, out=gathered)
    torch.ops._c10d_functional.wait_tensor(gathered)
    check(gathered, torch.cat([of(other, 1, 2) for other in range(size)]))
    x = of(rank, 3)
    _, work = torch.ops.c10d.allreduce_([x], group.boxed(), torch.classes.c10d.ReduceOp(), None)
    assert c10d.Work.unbox(work).wait() is True
    check(x, total(size, 3))
    works = [torch.ops.c10d.broadcast_([x], group.boxed(), 0, 0)[1] for _ in range(20)]
    assert all(c10d.Work.unbox(work).wait() for work in works)


def groups_in_python_and_in_cpp_side_by_side(rank, size):
    """The kernels of groups in Python must also run calls that return no work."""
    native = _native.load()
    if native is None:  # this process only makes groups in Python
        return
    runner = runner_of(dist.new_group())
    in_python = dldist.torch.ProcessGroup(runner)
    try:
        x = of(rank, 3)
        in_python.allreduce([x]).wait()
        check(x, total(size, 3))
        x = of(rank, 3)
        dist.all_reduce(x)
        check(x, total(size, 3))
        dist.barrier()
        gathered = [torch.empty(3) for _ in range(size)]
        assert dist.all_gather(gathered, of(rank, 3)) is None
        check(torch.stack(gathered), torch.stack([of(other, 3) for other in range(size)]))
    finally:  # the other cases need PyTorch's kernels
        _dispatcher._library._destroy()
        _dispatcher._library = None
        _dispatcher._replaced.clear()


def other_backends_keep_their_kernels(rank, size):
    group = dist.new_group(backend="gloo")
    x = of(rank, 3)
    dist.all_reduce(x, group=group)
    check(x, total(size, 3))
    with Observing() as mode:
        work = dist.broadcast(x, 0, group=group, async_op=True)
        work.wait()
    assert mode.seen == {"broadcast_"} and not isinstance(work, dldist.torch.Work)
    sparse = of(rank, 3).to_sparse()
    dist.all_reduce(sparse, group=group)
    check(sparse.to_dense(), total(size, 3))


def failures_keep_their_classes(rank, size):
    group = dist.new_group()
    with Observing(), raises(dldist.DistMismatchError):
        dist.all_reduce(torch.ones(2 + rank), group=group)
    again = dist.new_group()
    with Observing(), raises(dldist.DistMismatchError):
        dist.all_reduce(torch.ones(2 + rank), group=again, async_op=True).wait()


def factor_applies_to_its_call(rank, size):
    x = of(rank, 2)
    with Observing():
        dist.all_reduce(x, op=dist._make_nccl_premul_sum(2.0))
    check(x, 2 * total(size, 2))


def calls_hidden_from_modes_are_rejected(rank, size):
    if _native.load() is not None:
        # there PyTorch itself makes operations of the calls, which a mode sees
        return
    group = dist.group.WORLD
    kept = torch.ones(2)
    if not _dispatcher._backend_method("gather_single"):  # before PyTorch 2.14
        with Observing(), raises(NotImplementedError, "gather_single()", "Observing", "no such operation"):
            group.gather_single(torch.empty(size, 2), kept, 0)
        with Observing(), raises(NotImplementedError, "all_gather_single_coalesced()", "only in C++"):
            group.all_gather_single_coalesced([torch.empty(size, 2)], [kept])
    with Observing(), raises(NotImplementedError, "resolve_conj"):
        group.broadcast(torch.ones(2, dtype=torch.complex64).conj(), 0)
    _dispatcher._can_replace_kernels = False  # as in releases before 2.8
    try:
        with raises(NotImplementedError, "allreduce()", "Mode", "2.8"):
            make_fx(lambda x: dist.all_reduce(x))(kept)
        with raises(NotImplementedError, "TwoTensor"):
            dist.all_reduce(TwoTensor(kept, kept))
    finally:
        _dispatcher._can_replace_kernels = True
    check(kept, torch.ones(2))
