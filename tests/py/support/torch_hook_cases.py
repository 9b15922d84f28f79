"""Cases of test_torch_hooks.py: functions of a rank and the size, in a default group of the backend
"dldist" in C++.

A case with a `reason` cannot run with this PyTorch. No pytest here, so that the children start
faster.
"""

import contextlib
import datetime
import functools
import pickle
import time
import warnings

import dldist
import torch
import torch.distributed as dist
from dldist.torch._groups import create_gloo
from torch._C import _distributed_c10d as c10d
from torch_backend_cases import check, of, raises

CPU = torch.device("cpu")
SHORT = datetime.timedelta(milliseconds=300)
DEADLINE_S = 20


def needs(*names):
    """Mark a case that needs names of `dist` ("dist.name") or of torch._C._distributed_c10d
    ("Class.name")."""

    def mark(case):
        absent = [name for name in names if not is_present(name)]
        case.reason = f"this PyTorch has no {' and no '.join(absent)}" if absent else ""
        return case

    return mark


def is_present(name):
    first, *others = name.split(".")
    found = dist if first == "dist" else getattr(c10d, first, None)
    for other in others:
        found = getattr(found, other, None)
    return found is not None


def backend_of(group):
    return group._get_backend(CPU)


def limited(opts, timeout=SHORT):
    opts.timeout = timeout
    return opts


def wait_until(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


def raise_from_hook(*_):
    raise ValueError("mine")


# ---- queries for features


def features_are_answered_truthfully(rank, size):
    backend = backend_of(dist.group.WORLD)
    expected = {
        "supports_abort_hooks": True,
        "supports_coalescing": False,
        "supports_completion_hooks": True,
        "supports_reconfigure": True,
        "supports_shrinking": False,
        "supports_splitting": True,
        "supports_time_estimate": False,
        "_supports_time_estimate": False,
        "supports_window": False,
    }
    present = {name: value for name, value in expected.items() if hasattr(type(backend), name)}
    assert {name: getattr(backend, name) for name in present} == present
    assert backend.get_error() == c10d.ErrorType.SUCCESS
    if hasattr(c10d.Backend, "new_window"):
        with raises(RuntimeError, "Backend dldist does not support new_window"):
            backend.new_window(None)
    if hasattr(c10d.Backend, "_start_time_estimate"):
        with raises(RuntimeError, "Backend dldist does not support"):
            backend._start_time_estimate()


@needs("Work.timeout")
def works_have_their_timeouts(rank, size):
    group, x = dist.group.WORLD, of(rank, 2)
    works = [
        dist.all_reduce(x, async_op=True),
        group.allreduce([x], limited(c10d.AllreduceOptions(), datetime.timedelta(seconds=9))),
        group.send([x], 1 - rank, 0) if rank == 0 else group.recv([x], 1 - rank, 0),
    ]
    for work in works:
        work.wait()
    assert [work.timeout.total_seconds() for work in works] == [20, 9, 20]


def split_groups_have_their_own_options(rank, size):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        part = dist.group.WORLD.split_group([0, 1], timeout=datetime.timedelta(seconds=7))
    timeouts = [backend_of(group).options._timeout.total_seconds() for group in (part, dist.group.WORLD)]
    assert timeouts == [7, 20]
    dist.barrier()


# ---- gather_single


@needs("dist.gather_single")
def gather_single_fills_only_the_root(rank, size):
    dtypes = (torch.float32, torch.bfloat16, torch.complex64, torch.bool, torch.float8_e4m3fn)
    for is_async, root, dtype in [(False, 0, torch.int64), (True, 1, torch.int32), *((False, 1, dtype) for dtype in dtypes)]:
        own_value = of(rank, 2, 3).to(dtype)
        whole = torch.zeros(size, 2, 3, dtype=dtype) if rank == root else None
        work = dist.gather_single(own_value, whole, dst=root, async_op=is_async)
        assert (work is not None) == is_async
        if is_async:
            assert work.wait() and work.is_success() and [*work.result()] == ([] if whole is None else [whole])
        if rank == root:
            expected = torch.stack([of(other, 2, 3).to(dtype) for other in range(size)])
            assert torch.equal(whole.view(torch.uint8), expected.view(torch.uint8))


@needs("dist.gather_single")
def gather_single_resolves_lazy_tensors(rank, size):
    own_value = (of(rank, 2) * 1j).conj()
    whole = torch.zeros(size * 2, dtype=torch.complex64)
    dist.gather_single(own_value, whole.conj() if rank == 0 else None)
    if rank == 0:
        check(whole, torch.cat([of(other, 2) * 1j for other in range(size)]))


@needs("dist.gather_single")
def gather_single_rejects_wrong_outputs(rank, size):
    if rank == 0:
        with raises((RuntimeError, ValueError), "3"):
            dist.gather_single(torch.ones(2), torch.zeros(3))
    dist.gather_single(torch.ones(2), torch.zeros(2 * size) if rank == 0 else None)


def calls_have_their_former_and_present_names(rank, size):
    """The new names, since PyTorch 2.14, must not call the former ones, which have a guard against
    recursion."""
    backend, x = backend_of(dist.group.WORLD), of(rank, size)
    names = {
        "_allgather_base": lambda call, out: call(out, x),
        "all_gather_single": lambda call, out: call(out, x),
        "_reduce_scatter_base": lambda call, out: call(out[:1], x),
        "reduce_scatter_single": lambda call, out: call(out[:1], x),
        "alltoall_base": lambda call, out: call(out[:size], x, [], []),
        "all_to_all_single": lambda call, out: call(out[:size], x, [], []),
        "all_gather_single_coalesced": lambda call, out: call([out], [x]),
        "reduce_scatter_single_coalesced": lambda call, out: call([out[:1]], [x]),
    }
    results = {}
    for name, run in names.items():
        if hasattr(backend, name):
            out = torch.zeros(size * size)
            run(getattr(backend, name), out).wait()
            results[name] = out
    former = [name for name in ("_allgather_base", "_reduce_scatter_base", "alltoall_base") if name in results]
    for name, present in zip(former, ("all_gather_single", "reduce_scatter_single", "all_to_all_single"), strict=False):
        if present in results:
            assert torch.equal(results[name], results[present]) and results[name].any()


# ---- hooks of PyTorch's groups


@needs("ProcessGroup.register_pre_hook")
def pre_and_post_hooks_run_for_every_operation(rank, size):
    group, before, after = dist.new_group(), [], []
    group.register_pre_hook(3, before.append)
    group.register_post_hook(3, after.append)
    x = of(rank, size)
    dist.all_reduce(x, group=group)
    dist.all_reduce(x, group=group, async_op=True).wait()
    dist.all_gather_into_tensor(torch.zeros(size * size), x, group=group)
    (dist.send if rank == 0 else dist.recv)(x, 1 - rank, group=group)
    dist.barrier(group=group)
    names = [str(args.name).rpartition(".")[2] for args in before]
    assert names[:2] == ["ALLREDUCE"] * 2 and names[2].startswith("ALLGATHER") and names[3:] == [("SEND", "RECV")[rank], "BARRIER"]
    assert [args.op_id for args in before] == [args.op_id for args in after] == list(range(5))
    assert after[1].work is not None and after[1].work.is_completed()
    group.unregister_pre_hook(3)
    group.unregister_post_hook(3)
    dist.barrier(group=group)
    assert len(before) == len(after) == 5
    dist.destroy_process_group(group)


@needs("NanCheckHook")
def nan_check_hook_stops_the_operation(rank, size):
    group = dist.new_group()
    hook = c10d.NanCheckHook.attach(group)
    with raises(RuntimeError, "NaN"):
        dist.all_reduce(torch.tensor([float("nan")]), group=group)
    hook.remove()
    dist.all_reduce(torch.tensor([float("nan")]), group=group)
    dist.destroy_process_group(group)


# ---- completion hooks, as PyTorch's recorder uses them


def recorded():
    """Return the entries of PyTorch's own recorder, not dldist's, for this backend."""
    dump = c10d._dump_fr_trace.__wrapped__(True, False, False, "dldist")
    entries = pickle.loads(dump)["entries"]
    return [(entry["profiling_name"].partition(":")[2], entry["state"], entry.get("duration_ms")) for entry in entries]


@contextlib.contextmanager
def recorded_group():
    group = dist.new_group()
    c10d._reset_fr_trace.__wrapped__("dldist")
    hook = c10d.FlightRecorderHook.attach(group, list(range(group.size())))
    yield group
    hook.remove()
    dist.destroy_process_group(group)


def completed(operations):
    return sum(state == "completed" for _, state, _ in operations)


@needs("Backend.supports_completion_hooks")
def recorder_has_the_end_of_every_operation(rank, size):
    with recorded_group() as group:
        x = of(rank, 3)
        dist.all_reduce(x, group=group)
        time.sleep(0.1 * rank)  # makes the next call pending on rank 0 when it returns
        dist.all_reduce(x, group=group, async_op=True).wait()
        works = [dist.isend(of(rank, 1), 1 - rank, group=group), dist.irecv(x[:1], 1 - rank, group=group)]
        for work in works:
            work.wait()
        dist.barrier(group=group)
        wait_until(lambda: completed(recorded()) == 5)
        assert all(duration is not None and duration >= 0 for _, _, duration in recorded()), recorded()
        assert [name for name, _, _ in recorded()][:2] == ["all_reduce"] * 2, recorded()


@needs("Backend.supports_completion_hooks")
def recorder_has_the_end_of_unawaited_works(rank, size):
    with recorded_group() as group:
        dist.barrier()
        time.sleep(0.1 * rank)
        work = dist.all_reduce(of(rank, 3), group=group, async_op=True)
        del work
        wait_until(lambda: completed(recorded()) == 1)
        dist.barrier()


@needs("Backend.supports_completion_hooks")
def recorder_has_no_end_of_a_failed_operation(rank, size):
    with recorded_group() as group:
        if rank == 0:
            for is_async in (False, True):
                opts = limited(c10d.AllreduceOptions())
                opts.asyncOp = is_async
                with raises(dldist.DistTimeoutError):
                    group.allreduce([of(rank, 3)], opts).wait()
            time.sleep(0.1)
            assert [state for _, state, _ in recorded()] == ["scheduled"] * 2, recorded()
        dist.barrier()


@needs("Backend.supports_completion_hooks")
def recorder_gets_nothing_after_its_removal(rank, size):
    with recorded_group() as group:
        dist.barrier(group=group)
    wait_until(lambda: completed(recorded()) == 1)
    dist.barrier()
    assert len(recorded()) == 1


# ---- abort hooks


def fails_in_a_synchronous_call(group, rank):
    group.allreduce([of(rank, 2)], limited(sync(c10d.AllreduceOptions())))


def fails_in_wait(group, rank):
    group.allreduce([of(rank, 2)], limited(c10d.AllreduceOptions())).wait()


def fails_without_a_waiter(group, rank):
    work = group.allreduce([of(rank, 2)], limited(c10d.AllreduceOptions()))
    wait_until(work.is_completed)
    raise work.exception()


def fails_in_a_future(group, rank):
    group.allreduce([of(rank, 2)], limited(c10d.AllreduceOptions())).get_future().wait()


def sync(opts):
    opts.asyncOp = False
    return opts


@needs("ProcessGroup.register_abort_hook")
def abort_hooks_run_once_for_a_failed_operation(rank, size):
    for fail in (fails_in_a_synchronous_call, fails_in_wait, fails_without_a_waiter, fails_in_a_future):
        group, calls = dist.new_group(), []
        group.register_abort_hook(2, functools.partial(calls.append, "second"))
        group.register_abort_hook(1, functools.partial(calls.append, "first"))
        group.register_abort_hook(3, functools.partial(calls.append, "third"))
        group.unregister_abort_hook(3)
        group.unregister_abort_hook(4)
        if rank == 0:
            with raises(RuntimeError):
                fail(group, rank)
            wait_until(lambda calls=calls: calls)
            assert calls == ["first", "second"], (fail, calls)
        dist.barrier()
        dist.destroy_process_group(group)


@needs("ProcessGroup.register_abort_hook")
def abort_hooks_run_at_abort(rank, size):
    group, calls = dist.new_group(), []
    group.register_abort_hook(1, raise_from_hook)  # must not affect the other hooks or the abort
    group.register_abort_hook(2, lambda: calls.append(backend_of(group).get_error()))
    work = dist.all_reduce(of(rank, 2), group=group, async_op=True) if rank == 0 else None
    dist.barrier()
    if rank == 0:
        group.abort()
        assert calls[0] == c10d.ErrorType.SUCCESS, "the hook runs before the abort"
        with raises(dldist.DistAbortedError):
            work.wait()
    dist.barrier()
    dist.destroy_process_group(group)


@needs("ProcessGroup.register_abort_hook")
def abort_hooks_ignore_calls_with_wrong_arguments(rank, size):
    group, calls = dist.new_group(), []
    group.register_abort_hook(1, functools.partial(calls.append, 1))
    with raises((RuntimeError, ValueError)):
        dist.all_gather_into_tensor(torch.zeros(3 * size + 1), torch.ones(3), group=group)
    dist.barrier(group=group)
    assert not calls
    dist.destroy_process_group(group)


@needs("HealthCheckHook")
def health_check_names_the_backend_of_a_failed_operation(rank, size):
    group = dist.new_group()
    if rank == 0:
        with raises(dldist.DistTimeoutError):
            fails_in_a_synchronous_call(group, rank)
        response = Response()
        c10d._get_handler("c10d_health_check")(Request(), response)
        assert "dldist" in response.content, response.content
    dist.barrier()
    dist.destroy_process_group(group)


class Request(c10d._Request):
    def __init__(self):
        super().__init__()


class Response(c10d._Response):
    def __init__(self):
        super().__init__()
        self.content = ""

    def set_content(self, content, content_type):
        self.content = content

    def set_status(self, status):
        self.status = status


# ---- reconfigure


def exchange(key, value):
    """Return the values of all ranks, exchanged by the default group."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, (key, value))
    assert {found for found, _ in values} == {key}
    return [value for _, value in values]


def options(uuid, handles, timeout=None):
    opts = c10d.ReconfigureOptions()
    opts.uuid, opts.handles = uuid, handles
    if timeout is not None:
        opts.timeout = timeout
    return opts


@needs("Backend.reconfigure")
def groups_without_members_get_them_by_reconfigure(rank, size):
    store = dist.PrefixStore("reconfigured", dist.distributed_c10d._get_default_store())
    backend = create_gloo(store, rank, size, timeout=datetime.timedelta(seconds=20), enable_reconfigure=True)
    x = torch.tensor([float(rank)])
    with raises(RuntimeError, "Call reconfigure() before"):
        backend.allreduce([x])
    handles = exchange("handles", backend.get_reconfigure_handle())
    backend.reconfigure(options(1, handles[::-1])).wait()
    assert (backend.rank(), backend.size()) == (size - 1 - rank, size)
    opts = c10d.BroadcastOptions()
    opts.rootRank = 0
    backend.broadcast([x], opts).wait()
    check(x, [size - 1])
    if rank == 0:  # only rank 0
        backend.reconfigure(options(2, handles[:1])).wait()
        backend.allreduce([x]).wait()
        assert (backend.rank(), backend.size()) == (0, 1) and x.item() == size - 1
    else:
        with raises(RuntimeError):
            backend.allreduce([x], limited(c10d.AllreduceOptions())).wait()
    dist.barrier()
    backend.reconfigure(options(3, set(handles))).wait()
    assert backend.rank() == sorted(handles).index(handles[rank])
    x = torch.tensor([1.0])
    backend.allreduce([x]).wait()
    check(x, [size])
    backend.shutdown()


@needs("Backend.reconfigure")
def other_groups_can_be_reconfigured(rank, size):
    group = dist.new_group()
    handles = exchange("handles", group.get_reconfigure_handle())
    assert handles[rank] == group.get_reconfigure_handle() and len(set(handles)) == size
    x = torch.ones(1)
    dist.all_reduce(x, group=group)
    group.reconfigure(options(5, handles[::-1])).wait()
    dist.all_reduce(x, group=group)
    check(x, [size * size])
    assert (group.rank(), group.size()) == (size - 1 - rank, size)
    dist.destroy_process_group(group)


@needs("Backend.reconfigure")
def reconfigure_rejects_wrong_handles(rank, size):
    group = dist.new_group()
    own = group.get_reconfigure_handle()
    for handles, text in [([own, own], "different"), (["another"], "among"), ([], "among")]:
        with raises((RuntimeError, ValueError), text):
            group.reconfigure(options(6, handles))
    dist.barrier()
    dist.destroy_process_group(group)


@needs("Backend.reconfigure")
def reconfigure_that_fails_can_be_repeated(rank, size):
    group = dist.new_group()
    handles = exchange("handles", group.get_reconfigure_handle())
    if rank == 0:
        with raises(RuntimeError, "Timed out"):
            group.reconfigure(options(7, handles, SHORT))
        with raises(RuntimeError, "Call reconfigure() before"):
            dist.barrier(group=group)
    dist.barrier()
    group.reconfigure(options(8, handles)).wait()
    dist.barrier(group=group)
    dist.destroy_process_group(group)
