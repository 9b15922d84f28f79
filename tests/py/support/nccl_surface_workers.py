"""Workers of the ranks of test_nccl_surface.py: c10d's interface of ProcessGroupNCCL besides
operations, over the stubs of tests/stubs."""

import datetime
import math
import os
import sys
import threading
import time

import procs
from nccl_lifecycle_workers import LIMIT_S, _backend, _begin, _init, _left

LIMIT = datetime.timedelta(seconds=LIMIT_S)
SLOW_MS = 50


def member(channel, name, version, environment, port, rank, size):
    """Run the named function below on every rank, and send its reply."""
    dist, stubs, workers = _begin(version, environment)
    return globals()[name](dist, stubs, workers.tensor_type(stubs, rank), port, rank, size)


def waits_without_the_other_rank(dist, stubs, Tensor, port, rank, size):
    """Rank 0 must be able to wait for its own works while rank 1 makes no call."""
    store = _init(dist, port, rank, size)
    x = Tensor([1.0])
    if rank == 0:
        with stubs.cuda.on_device(rank):
            stubs.cuda.gate(x.stream, 0)
    work = dist.all_reduce(x, async_op=True)
    if rank == 1:
        store.wait(["rank 0 has waited"])
    else:
        waiter = threading.Thread(target=dist.group.WORLD._wait_for_pending_works)
        waiter.start()
        procs.poll_until(lambda: waiter.native_id, description="the thread's number")
        procs.wait_at_rest([waiter.native_id])
        assert waiter.is_alive() and not work.is_completed()
        stubs.cuda.open_gate(0)
        waiter.join(LIMIT_S)
        assert not waiter.is_alive() and work.is_completed()
        store.set("rank 0 has waited", b"")
    assert x.tolist() == [2.0]
    dist.destroy_process_group()
    return _left(stubs)


def timing_from_now_on(dist, stubs, Tensor, port, rank, size):
    _init(dist, port, rank, size)
    stubs.nccl.slow_kernels(rank, SLOW_MS)
    other = dist.new_group()
    before = dist.all_reduce(Tensor([1.0]), async_op=True)
    dist.group.WORLD._enable_collectives_timing()
    after = dist.all_reduce(Tensor([1.0]), async_op=True)
    elsewhere = dist.all_reduce(Tensor([1.0]), group=other, async_op=True)
    for work in (before, after, elsewhere):
        work.wait(LIMIT)
    milliseconds = after._get_duration()
    assert SLOW_MS <= milliseconds < LIMIT_S * 1e3 and math.isclose(after.duration, milliseconds / 1e3), (milliseconds, after.duration)
    for untimed in (before, elsewhere):
        try:
            untimed._get_duration()
            raise AssertionError
        except RuntimeError as error:
            assert "was not timed" in str(error), error
    dist.destroy_process_group()
    return _left(stubs)


def completion_hook_with_timing(dist, stubs, Tensor, port, rank, size):
    """The hook must receive calls of all kinds with device times.

    destroy_process_group must wait for it, and report its exceptions.
    """
    _init(dist, port, rank, size)
    pg, infos, raised = dist.group.WORLD, [], []
    main = threading.main_thread()
    threads = set()

    def hook(info):
        threads.add(threading.current_thread())
        if info.op_type.name == "BROADCAST":
            procs.wait_at_rest([main.native_id])  # destroy_process_group is waiting for this hook
        infos.append(info)
        if info.op_type.name == "BARRIER":
            raise ValueError("mine")

    sys.unraisablehook = lambda report: raised.append(str(report.exc_value))
    pg._register_on_completion_hook(hook)
    assert pg._has_hooks()
    pg._enable_collectives_timing()
    stubs.nccl.slow_kernels(rank, SLOW_MS)
    x, begin = Tensor([1.0]), datetime.datetime.now()
    dist.all_reduce(x)
    dist.all_reduce(x, async_op=True).wait()
    dist.barrier()
    dist.batch_isend_irecv([dist.P2POp(dist.isend, Tensor([rank]), 1 - rank), dist.P2POp(dist.irecv, x, 1 - rank)])[0].wait()
    pg._wait_for_pending_works()
    assert x.tolist() == [1 - rank] and raised == ["mine"]
    kinds = [info.op_type.name for info in infos]
    assert kinds == ["ALLREDUCE", "ALLREDUCE", "BARRIER", "COALESCED"], kinds
    assert [info.seq for info in infos[:3]] == [1, 2, 3], infos
    for info in infos:
        took = info.time_finished - info.time_started
        assert begin <= info.time_started <= info.time_finished <= datetime.datetime.now()
        assert datetime.timedelta(milliseconds=SLOW_MS) <= info.active_duration <= took, (info, took)
    with dist.coalescing(device="cuda"):
        dist.all_reduce(x)
    pg._wait_for_pending_works()
    assert [info.op_type.name for info in infos[4:]] == ["ALLREDUCE"]
    dist.broadcast(x, 0)
    dist.destroy_process_group()
    assert infos[-1].op_type.name == "BROADCAST" and len(infos) == 6
    assert main not in threads
    return _left(stubs)


def completion_hook_without_timing(dist, stubs, Tensor, port, rank, size):
    """Without timing, the hook must receive host times."""
    _init(dist, port, rank, size)
    infos = []
    dist.group.WORLD._register_on_completion_hook(infos.append)
    dist.all_reduce(Tensor([1.0]))
    dist.destroy_process_group()
    (info,) = infos
    assert info.active_duration == info.time_finished - info.time_started
    return _left(stubs)


# ---- encryption


def encrypts(dist, stubs, Tensor, port, rank, size):
    """All ranks must use the same encryption key, set once, whichever group is first."""
    store = _init(dist, port, rank, size, device_id=None)
    evens, odds = dist.new_group([0]), dist.new_group([1])
    for group in (evens, dist.group.WORLD) if rank == 0 else (dist.group.WORLD, odds):
        dist.all_reduce(Tensor([1.0]), group=group)
    key = stubs.nccl.encryption()
    store.set(f"key{rank}", str(key))
    assert store.get(f"key{1 - rank}") == str(key).encode() and key != 0
    assert stubs.nccl.calls("ncclSetEncryption") == 1
    dist.destroy_process_group()
    return _left(stubs)


def _error_of_init(dist, Tensor, store, rank, size):
    dist.init_process_group("nccl", store=store, rank=rank, world_size=size, timeout=LIMIT)
    try:
        dist.all_reduce(Tensor([1.0]))
        raise AssertionError("they have met")
    except dist.DistMismatchError as error:
        return str(error)


def encrypts_on_some(dist, stubs, Tensor, port, rank, size):
    store = dist.TCPStore("127.0.0.1", port, timeout=LIMIT_S)
    if rank == 1:
        del os.environ["DLDIST_NCCL_ENCRYPTION"]
    return _error_of_init(dist, Tensor, store, rank, size)


def encrypts_with_another_secret(dist, stubs, Tensor, port, rank, size):
    store = dist.TCPStore("127.0.0.1", port, timeout=LIMIT_S)
    os.environ["DLDIST_SECRET"] += str(rank)
    return _error_of_init(dist, Tensor, store, rank, size)


# ---- reproducible results


def keeps_from_nvls(dist, stubs, Tensor, port, rank, size):
    """Return NCCL's environment after a group was made."""
    import ctypes

    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    if "TORCH_FLAG" in os.environ:
        import types

        sys.modules["torch"] = types.SimpleNamespace(are_deterministic_algorithms_enabled=lambda: os.environ["TORCH_FLAG"] == "1")
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    sys.modules.pop("torch", None)
    dist.destroy_process_group()
    return libc.getenv(b"NCCL_ALGO")


# ---- NCCL's properties of a communicator


def properties(dist, stubs, Tensor, port, rank, size):
    store = _init(dist, port, rank, size)
    group = _backend(dist).group
    try:
        found = group.properties()
    except NotImplementedError as error:
        dist.destroy_process_group()
        return str(error)
    assert (found["rank"], found["n_ranks"], found["cuda_dev"]) == (rank, size, rank)
    assert found["device_api_support"] is True and found["multimem_support"] is True
    if "comm_hash" in found:
        store.set(f"hash{rank}", str(found["comm_hash"]))
        assert store.get(f"hash{1 - rank}") == str(found["comm_hash"]).encode() and found["comm_hash"] != 0
    lazy = dist.distributed_c10d.ProcessGroupNCCL(dist.HashStore(), 0, 1).group
    try:
        lazy.properties()
        raise AssertionError
    except dist.DistBackendError as error:
        assert "no communicator" in str(error) or "device" in str(error), error
    lazy.close()
    dist.destroy_process_group()
    return list(found)


# ---- memory pools


def pools(dist, stubs, Tensor, port, rank, size):
    """A pool must be registered again after it has grown or shrunk."""
    _init(dist, port, rank, size)
    backend = _backend(dist)
    memory = [backend.allocate_tensor(1 << 12, dtype="float32", device=f"cuda:{rank}") for _ in range(3)]

    class Pool:
        segments = ()

        def set(self, parts):
            self.segments = [(part.ptr, part.nbytes) for part in parts]

    class TorchPool:
        def set(self, parts):
            self.parts = parts

        def snapshot(self):
            return [{"device": rank, "address": part.ptr, "total_size": part.nbytes, "blocks": []} for part in self.parts]

    def live():
        return stubs.nccl.live("registration"), stubs.nccl.live("window")

    for symm, pool in ((False, Pool()), (True, Pool()), (False, TorchPool()), (True, TorchPool())):
        kind = "window" if symm else "registration"
        for parts, nnew in (((0,), 1), ((0, 1), 1), ((0, 1), 0), ((1, 2), 1), ((2,), 0)):
            pool.set([memory[part] for part in parts])
            made = stubs.nccl.made(kind)
            backend.register_mem_pool(pool, symm=symm)
            assert stubs.nccl.made(kind) == made + nnew, parts
            assert live() == ((0, len(parts)) if symm else (len(parts), 0)), parts
        try:
            backend.register_mem_pool(pool, symm=not symm)
            raise AssertionError
        except RuntimeError as error:
            assert f"registered with symm={symm}" in str(error)
        backend.deregister_mem_pool(pool)
        assert live() == (0, 0)
    try:
        backend.deregister_mem_pool(pool)
        raise AssertionError
    except RuntimeError as error:
        assert "is not registered" in str(error)
    pool.set([])
    del memory
    dist.destroy_process_group()
    return _left(stubs)


# ---- a message as the first operation


def receives_first(dist, stubs, Tensor, port, rank, size):
    """Rank 0 receives while rank 1 is in a barrier: each must wait for its own timeout."""
    limit = (1, 2)[rank]
    store = _init(dist, port, rank, size, device_id=None, timeout=datetime.timedelta(seconds=limit))
    if rank == 0:
        store.wait(["rank 1 goes into the barrier"])
        call = lambda: dist.recv(Tensor([0.0]), 1)  # noqa: E731
    else:
        store.set("rank 1 goes into the barrier", b"")
        call = lambda: dist.barrier(device_ids=[rank])  # noqa: E731
    start = time.monotonic()
    try:
        call()
        raise AssertionError("the other rank did not reach this step")
    except dist.DistTimeoutError as error:
        text, took = str(error), time.monotonic() - start
    finally:
        store.set(f"rank {rank} has timed out", b"")
    assert limit <= took < LIMIT_S, took
    store.wait([f"rank {1 - rank} has timed out"])
    dist.abort()
    return text
