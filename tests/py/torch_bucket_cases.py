"""What the ranks of test_torch_buckets.py run: functions of a rank and the size, in a default group of the backend "dldist".

No pytest here: the children start sooner.
"""

import contextlib
import datetime
import gc
import os
import unittest.mock

import dldist.torch  # noqa: F401  registers the backend
import torch
import torch.distributed as dist
from dldist.torch import _buckets, _group
from torch.nn.parallel import DistributedDataParallel

WIDTH = 256
BUCKET_MB = 0.5


def buckets(group=None):
    return (group or dist.group.WORLD)._buckets


def make_model(group=None, has_views=True, depth=5, moves_views=True, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(depth)])
    buckets(group)._moves_views = moves_views  # as where DLDIST_TORCH_SHARE_BUCKETS=1 is set, else by default
    options = {"bucket_cap_mb": BUCKET_MB, **options}
    return DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=has_views, **options)


def batch(rank, step):
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))


def backward(model, inputs):
    model(inputs).square().mean().backward()


def train(model, rank, steps=4):
    """Its parameters afterwards."""
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


# ---- what moves


def gradients_that_are_views(rank, size):
    model = make_model()
    parameters = train(model, rank)
    assert len(buckets()._moved) == 3  # of 5 layers with 256 KiB each, in buckets of half a MiB
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


def views_stay_unless_they_are_asked_for(rank, size):
    """Their addresses may be taken, between the passes and in hooks, and are those of the gradients for good."""
    for megabytes in (BUCKET_MB, 0.1):  # several gradients in a bucket, and one
        group = dist.new_group()
        model = make_model(group, moves_views=False, bucket_cap_mb=megabytes)
        for step in range(3):
            model.zero_grad(set_to_none=False)
            loss = model(batch(rank, step)).square().mean()
            exported = [torch.from_dlpack(parameter.grad) for parameter in model.parameters() if parameter.grad is not None]
            loss.backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        assert [array.data_ptr() for array in exported] == [grad.data_ptr() for grad in gradients]
        assert not buckets(group)._moved and not any(grad.is_shared() for grad in gradients)
        dist.destroy_process_group(group)


def hidden_ones_move_by_themselves(rank, size):
    for options, count in (({}, 3), ({"find_unused_parameters": True}, 3), ({"bucket_cap_mb": 0.1}, 5)):
        group = dist.new_group()
        train(make_model(group, has_views=False, moves_views=False, **options), rank)
        gc.collect()
        assert len(buckets(group)._moved) >= count, (options, len(buckets(group)._moved))
        dist.destroy_process_group(group)


def the_environment_asks_for_views(rank, size):
    for text, moves_views, is_on in (("1", True, True), ("0", False, False), ("", False, True)):
        with unittest.mock.patch.dict(os.environ, DLDIST_TORCH_SHARE_BUCKETS=text):
            made = _buckets.Buckets(dldist.torch.world_of())
        assert (made._moves_views, made._is_on) == (moves_views, is_on)


def gradients_are_the_mean(rank, size):
    model = make_model()
    for step in range(3):
        model.zero_grad()
        backward(model, batch(rank, step))
        alone = make_model().module
        backward(alone, torch.cat([batch(each, step) for each in range(size)]))
        for ours, whole in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, whole.grad)


def other_types(rank, size):
    for dtype in (torch.float64, torch.bfloat16):
        model = make_model().module.to(dtype)
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        for step in range(2):
            model.zero_grad()
            backward(model, batch(rank, step).to(dtype))
        assert all(parameter.grad.is_shared() for parameter in model.parameters())
        total = model.module[0].weight.grad.double().sum()
        totals = [torch.zeros_like(total) for _ in range(size)]
        dist.all_gather(totals, total)
        assert len(set(map(float, totals))) == 1


def accumulate(rank):
    """The gradients of two batches, of which only the second is followed by communication."""
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


def one_rank_keeps_its_own(rank, size):
    with without_sharing() if rank == 0 else contextlib.nullcontext():
        parameters = train(make_model(), rank)
    assert rank == 0 or len(buckets()._moved) == 3
    with without_sharing():
        assert same(train(make_model(), rank), parameters)


# ---- what stays


def what_the_program_reduces(rank, size):
    """Also in a backward pass: who has taken its address goes on seeing it."""
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
    model = DistributedDataParallel(torch.nn.Embedding(1000, 100, sparse=True))
    for step in range(3):
        model.zero_grad()
        model(torch.tensor([step, step + rank])).sum().backward()
    assert model.module.weight.grad.is_sparse and len(buckets()._moved) == before


def small_ones(rank, size):
    before = len(buckets()._moved)
    model = DistributedDataParallel(torch.nn.Linear(16, 16))
    for _ in range(3):
        model(torch.ones(2, 16)).sum().backward()
    assert len(buckets()._moved) == before


def where_there_is_no_room(rank, size):
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


def more_than_a_group_takes(rank, size):
    with unittest.mock.patch.object(_buckets, "_MAX_BUCKETS", 2):
        group = dist.new_group()
        parameters = train(make_model(group), rank)
        gc.collect()
        assert len(buckets(group)._moved) == 2
        assert same(train(make_model(group), rank), parameters)
        assert len(buckets(group)._moved) == 2
    dist.destroy_process_group(group)


def where_it_is_turned_off(rank, size):
    with unittest.mock.patch.dict(os.environ, DLDIST_TORCH_SHARE_BUCKETS="0"):
        group = dist.new_group()
    train(make_model(group), rank)
    assert not buckets(group)._moved
    dist.destroy_process_group(group)


# ---- how long


def models_that_come_and_go(rank, size):
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


def the_way_to_other_processes(rank, size):
    """As torch.multiprocessing sends it: its descriptor, of the memory that it is in now."""
    model = make_model()
    train(model, rank, steps=3)
    grad = model.module[0].weight.grad
    descriptor, nbytes = grad.untyped_storage()._share_fd_cpu_()
    theirs = torch.UntypedStorage._new_shared_fd_cpu(descriptor, nbytes)
    other = torch.empty(0).set_(theirs, grad.storage_offset(), grad.shape)
    assert torch.equal(other, grad)
    grad.fill_(rank + 7)
    assert other[0, 0] == rank + 7


# ---- what a hook in C++ makes of them


@contextlib.contextmanager
def counting_compressed():
    with unittest.mock.patch.object(_group, "Compressed", side_effect=_group.Compressed) as counter:
        yield counter


def compressing(group=None):
    model = make_model(group)
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    return model


def a_hook_compresses_them(rank, size):
    with counting_compressed() as counter:
        compressed = train(compressing(), rank)
    assert counter.call_count > 4  # of as many passes
    exact = train(make_model(), rank)
    assert all(torch.allclose(one, other, atol=1e-3) for one, other in zip(compressed, exact, strict=True))
    assert not same(compressed, exact)


def models_of_float16_are_not_compressed(rank, size):
    model = DistributedDataParallel(make_model().module.half(), gradient_as_bucket_view=True)
    with counting_compressed() as counter:
        for step in range(2):
            backward(model, batch(rank, step).half())
    assert counter.call_count == 0
    assert all(parameter.grad.is_shared() for parameter in model.parameters())


def a_hook_fails(rank, size):
    group = dist.new_group()
    group.set_timeout(datetime.timedelta(milliseconds=500))
    model = compressing(group)
    if rank < size - 1:
        try:
            backward(model, batch(rank, 0))
        except RuntimeError as error:
            assert "all_reduce" in str(error), error
        else:
            raise AssertionError("a bucket that one rank never had")
    dist.barrier()
