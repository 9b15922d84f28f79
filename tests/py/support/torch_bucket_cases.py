"""Cases of test_torch_buckets.py: functions of a rank and the size, in a default group of the
backend "dldist".

No pytest here, so that the children start faster.
"""

import contextlib
import datetime
import gc
import os
import unittest.mock

import dldist.torch
import torch
import torch.distributed as dist
from dldist.torch import _buckets
from dldist.torch._runner import runner_of
from torch.nn.parallel import DistributedDataParallel

WIDTH = 256
BUCKET_MB = 0.5


def buckets(group=None):
    return runner_of(group or dist.group.WORLD).buckets


def sharing(module, **options):
    model = DistributedDataParallel(module, **options)
    dldist.torch.share_buckets(model)
    return model


def make_model(group=None, has_views=True, depth=5, make=sharing, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(depth)])
    options = {"bucket_cap_mb": BUCKET_MB, **options}
    return make(model, process_group=group, gradient_as_bucket_view=has_views, **options)


def batch(rank, step):
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))


def backward(model, inputs):
    model(inputs).square().mean().backward()


def train(model, rank, steps=4):
    """Train a model; return its parameters."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, batch(rank, step))
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


@contextlib.contextmanager
def without_sharing():
    with unittest.mock.patch.object(buckets(), "_is_on", False):
        yield


def same(some, others):
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


def shared_mappings():
    with open("/proc/self/maps", encoding="ascii") as maps:
        return sum("dldist-region" in line for line in maps)


# ---- gradients that move


def gradients_that_are_views(rank, size):
    model = make_model()
    parameters = train(model, rank)
    assert len(buckets()._moved) == 3  # 5 layers of 256 KiB each, in buckets of half a MiB
    assert all(parameter.grad.is_shared() for parameter in model.parameters())
    with without_sharing():
        assert same(train(make_model(), rank), parameters)


def gradients_that_are_copies(rank, size):
    model = make_model(has_views=False)
    parameters = train(model, rank)
    assert len(buckets()._moved) == 3
    assert not any(parameter.grad.is_shared() for parameter in model.parameters())
    with without_sharing():
        assert same(train(make_model(has_views=False), rank), parameters)


def buckets_move_only_on_request(rank, size):
    """Gradients must keep their addresses by default: programs may take them, between passes and in
    hooks."""
    for has_views in (True, False):
        for megabytes in (BUCKET_MB, 0.1):  # several gradients per bucket, and one
            group = dist.new_group()
            model = make_model(group, has_views, make=DistributedDataParallel, bucket_cap_mb=megabytes)
            for step in range(3):
                model.zero_grad(set_to_none=False)
                loss = model(batch(rank, step)).square().mean()
                exported = [torch.from_dlpack(parameter.grad) for parameter in model.parameters() if parameter.grad is not None]
                loss.backward()
            gradients = [parameter.grad for parameter in model.parameters()]
            assert [array.data_ptr() for array in exported] == [grad.data_ptr() for grad in gradients]
            assert not buckets(group)._moved and not any(grad.is_shared() for grad in gradients)
            dist.destroy_process_group(group)


def all_kinds_of_buckets_move(rank, size):
    for options, count in (({}, 3), ({"find_unused_parameters": True}, 3), ({"bucket_cap_mb": 0.1}, 5)):
        group = dist.new_group()
        train(make_model(group, has_views=False, **options), rank)
        gc.collect()
        assert len(buckets(group)._moved) >= count, (options, len(buckets(group)._moved))
        dist.destroy_process_group(group)


def share_buckets_rejects_other_models(rank, size):
    model = DistributedDataParallel(torch.nn.Linear(2, 2), process_group=dist.new_group(backend="gloo"))
    for wrong, kind, text in ((model, TypeError, "must have a process_group of the backend"), (make_model(), RuntimeError, "hook")):
        try:
            dldist.torch.share_buckets(wrong)
        except kind as error:
            assert text in str(error), error
        else:
            raise AssertionError("accepted wrong arguments")


def uneven_inputs(rank, size):
    """A rank without inputs must contribute zeros, in memory without views."""
    model = make_model(has_views=False)
    with model.join():
        for step in range(2 + rank):
            backward(model, batch(rank, step))
    assert len(buckets()._moved) >= 3
    totals = [torch.zeros(()) for _ in range(size)]
    dist.all_gather(totals, torch.stack([parameter.detach().sum() for parameter in model.parameters()]).sum())
    assert len(set(map(float, totals))) == 1


def torch_classes_are_unchanged(rank, size):
    """Neither the backend nor sharing may replace members of torch's classes."""
    for name, method in vars(dist.Reducer).items():
        assert getattr(method, "__module__", None) != "dldist.torch._work", name
        assert type(method).__name__ != "function", name


def gradients_are_the_mean(rank, size):
    model = make_model()
    for step in range(3):
        model.zero_grad()
        backward(model, batch(rank, step))
        alone = make_model().module
        backward(alone, torch.cat([batch(each, step) for each in range(size)]))
        for moved_parameter, whole in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(moved_parameter.grad, whole.grad)


def other_types(rank, size):
    for dtype in (torch.float64, torch.bfloat16):
        model = sharing(make_model().module.to(dtype), gradient_as_bucket_view=True)
        for step in range(2):
            model.zero_grad()
            backward(model, batch(rank, step).to(dtype))
        assert all(parameter.grad.is_shared() for parameter in model.parameters())
        total = model.module[0].weight.grad.double().sum()
        totals = [torch.zeros_like(total) for _ in range(size)]
        dist.all_gather(totals, total)
        assert len(set(map(float, totals))) == 1


def accumulate(rank):
    """Return the gradients of two batches, of which only the second communicates."""
    model = make_model()
    train(model, rank, steps=2)
    model.zero_grad(set_to_none=False)
    with model.no_sync():
        backward(model, batch(rank, 5))
    backward(model, batch(rank, 6))
    return [parameter.grad for parameter in model.parameters()]


def accumulated_without_synchronization(rank, size):
    gradients = accumulate(rank)
    with without_sharing():
        assert same(accumulate(rank), gradients)


def one_rank_does_not_share(rank, size):
    with without_sharing() if rank == 0 else contextlib.nullcontext():
        parameters = train(make_model(), rank)
    assert rank == 0 or len(buckets()._moved) == 3
    with without_sharing():
        assert same(train(make_model(), rank), parameters)


# ---- memory that does not move


def tensors_reduced_by_the_program(rank, size):
    """A tensor that the program reduces must keep its address, even in a backward pass."""
    weight = torch.ones(50_000, requires_grad=True)
    seen = []

    def hook(grad):
        flat = grad.clone()
        parts = flat.view(2, -1), flat.numpy()
        dist.all_reduce(flat)
        seen.append((flat, parts))

    weight.register_hook(hook)
    (weight * (rank + 1)).sum().backward()
    flat, (halves, array) = seen[0]
    total = size * (size + 1) / 2
    assert not flat.is_shared() and array[0] == total and halves[1, -1] == total
    plain = torch.ones(50_000)
    array = plain.numpy()
    dist.all_reduce(plain)
    assert not plain.is_shared() and array[-1] == size


def sparse_ones(rank, size):
    before = len(buckets()._moved)
    model = sharing(torch.nn.Embedding(1000, 100, sparse=True))
    for step in range(3):
        model.zero_grad()
        model(torch.tensor([step, step + rank])).sum().backward()
    assert model.module.weight.grad.is_sparse and len(buckets()._moved) == before


def small_ones(rank, size):
    before = len(buckets()._moved)
    model = sharing(torch.nn.Linear(16, 16))
    for _ in range(3):
        model(torch.ones(2, 16)).sum().backward()
    assert len(buckets()._moved) == before


def full_shared_memory(rank, size):
    with unittest.mock.patch.object(_buckets.os, "statvfs") as statvfs:
        statvfs.return_value = os.statvfs_result((4096, 4096, 100, 100, 100, 0, 0, 0, 0, 255))
        group = dist.new_group()
        model = make_model(group)
        parameters = train(model, rank)
    assert not buckets(group)._moved and not buckets(group)._is_on
    assert not any(parameter.grad.is_shared() for parameter in model.parameters())
    with without_sharing():
        assert same(train(make_model(), rank), parameters)
    dist.destroy_process_group(group)


def more_buckets_than_fit(rank, size):
    with unittest.mock.patch.object(_buckets, "_MAX_BUCKETS", 2):
        group = dist.new_group()
        parameters = train(make_model(group), rank)
        gc.collect()
        assert len(buckets(group)._moved) == 2
        assert same(train(make_model(group), rank), parameters)
        assert len(buckets(group)._moved) == 2
    dist.destroy_process_group(group)


# ---- lifetime


def temporary_models(rank, size):
    counts = []
    for _ in range(4):
        model = make_model()
        train(model, rank, steps=2)
        del model
        gc.collect()
        dist.barrier()
        counts.append((shared_mappings(), len(os.listdir("/proc/self/fd")), len(buckets()._moved)))
        dist.barrier()
    assert counts[2] == counts[3], counts


def gradients_outlive_their_group(rank, size):
    group = dist.new_group()
    model = make_model(group)
    train(model, rank, steps=3)
    assert len(buckets(group)._moved) == 3
    before = [parameter.grad.clone() for parameter in model.parameters()]
    dist.destroy_process_group(group)
    del group
    gc.collect()
    assert same([parameter.grad for parameter in model.parameters()], before)
    for parameter in model.parameters():
        parameter.grad.zero_()


def sharing_with_other_processes(rank, size):
    """A gradient must reach other processes as torch.multiprocessing sends it: by the descriptor of
    its current memory."""
    model = make_model()
    train(model, rank, steps=3)
    grad = model.module[0].weight.grad
    descriptor, nbytes = grad.untyped_storage()._share_fd_cpu_()
    shared = torch.UntypedStorage._new_shared_fd_cpu(descriptor, nbytes)
    other = torch.empty(0).set_(shared, grad.storage_offset(), grad.shape)
    assert torch.equal(other, grad)
    grad.fill_(rank + 7)
    assert other[0, 0] == rank + 7


# ---- the effects of a hook in C++


def compressing(group=None):
    model = make_model(group, make=DistributedDataParallel)
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    return model


def a_hook_compresses_them(rank, size):
    compressed = train(compressing(), rank)
    exact = train(make_model(), rank)
    assert all(torch.allclose(one, other, atol=1e-3) for one, other in zip(compressed, exact, strict=True))
    assert not same(compressed, exact)


def unawaited_future_of_halves(rank, size):
    """Neither the hook nor a program may wait for such a future, despite equal tensors."""
    tensor = torch.ones(4, dtype=torch.float16)
    if rank == 0:
        future = dist.all_reduce(tensor, async_op=True).get_future()
        assert not future.done()
    dist.barrier(dist.new_group())
    if rank > 0:
        future = dist.all_reduce(tensor, async_op=True).get_future()
    (result,) = future.wait()
    assert result is tensor and tensor.tolist() == [size] * 4


def models_of_float16(rank, size):
    model = sharing(make_model().module.half(), gradient_as_bucket_view=True)
    for step in range(2):
        backward(model, batch(rank, step).half())
    assert all(parameter.grad.is_shared() for parameter in model.parameters())


def a_hook_fails(rank, size):
    group = dist.new_group()
    model = compressing(group)
    group.set_timeout(datetime.timedelta(milliseconds=500))
    if rank < size - 1:
        try:
            backward(model, batch(rank, 0))
        except RuntimeError as error:
            assert "all_reduce" in str(error), error
        else:
            raise AssertionError("a bucket that one rank never had")
    dist.barrier()
