"""Workers of test_nccl_lifecycle.py and test_nccl_config.py, over the stubs of tests/stubs."""

import array
import datetime
import gc
import os
import signal
import threading
import time

LIMIT_S = 20.0
KINDS = ("comm", "stream", "event", "allocation", "redop", "graph")


def _begin(version, environment):
    os.environ.update(environment)
    import dldist
    import nccl_stubs
    import nccl_workers

    stubs = nccl_stubs.build(version)
    return dldist, stubs, nccl_workers


def _init(dist, port, rank, size, **options):
    store = dist.TCPStore("127.0.0.1", port, timeout=30.0)
    options = {"backend": "nccl", "device_id": _device(rank), "timeout": datetime.timedelta(seconds=LIMIT_S), **options}
    dist.init_process_group(store=store, rank=rank, world_size=size, **options)
    return store


def _device(rank):
    class Device:  # noqa: PLW1641  like torch.device; never in a set
        type = "cuda"
        index = rank

        def __str__(self):
            return f"cuda:{self.index}"

        def __eq__(self, other):
            return str(self) == str(other)

    return Device()


def life(channel, name, version, environment, port, rank, size):
    """Run the named function below on every rank, and send its reply."""
    dist, stubs, workers = _begin(version, environment)
    return globals()[name](dist, stubs, workers.tensor_type(stubs, rank), port, rank, size)


def _backend(dist, group=None):
    from dldist._backends import registry

    pg = registry._world.default_pg if group is None else group
    return pg._backend_of_device("cuda")


def _sum_of_ranks(dist, Tensor, rank, group=None):
    x = Tensor([rank + 1.0])
    dist.all_reduce(x, group=group)
    return x.tolist()[0]


def meshes(dist, stubs, Tensor, port, rank, size):
    """The groups of all rows of a mesh must be one split of a bound world, even on non-members."""
    _init(dist, port, rank, size)
    backend = _backend(dist)
    made = stubs.nccl.calls("ncclCommInitRankConfig")
    mesh = dist.init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
    assert backend.comm_split_count() == 2
    assert _sum_of_ranks(dist, Tensor, rank, mesh.get_group("dp")) == (4 if rank % 2 == 0 else 6)
    assert _sum_of_ranks(dist, Tensor, rank, mesh.get_group("tp")) == (3 if rank < 2 else 7)
    assert mesh["tp"].get_local_rank() == rank % 2 and dist.get_process_group_ranks(mesh.get_group("dp")) == [rank % 2, rank % 2 + 2]
    assert mesh._flatten().get_group() is dist.group.WORLD
    part = dist.DeviceMesh("cuda", [3, 1])
    assert part.get_coordinate() == {3: (0,), 1: (1,)}.get(rank)
    if rank % 2:
        assert _sum_of_ranks(dist, Tensor, rank, part.get_group()) == 6
    of_cpu = dist.init_device_mesh("cpu", (2, 2), backend_override={1: "gloo"}).get_group(1)
    assert dist.get_backend(of_cpu) == "gloo" and _sum_of_ranks(dist, lambda values: array.array("d", values), rank, of_cpu) in (3, 7)
    assert backend.comm_split_count() == 4
    assert stubs.nccl.calls("ncclCommInitRankConfig") == made
    dist.destroy_process_group()
    return _left(stubs)


def splits(dist, stubs, Tensor, port, rank, size):
    """Groups of a bound world must be split off it, with the participation of non-members."""
    _init(dist, port, rank, size)
    backend = _backend(dist)
    assert backend._is_initialized() and backend._comm_ptr() != 0 and backend.comm_split_count() == 0
    before = stubs.nccl.calls("ncclCommInitRankConfig")
    evens = dist.new_group([0, 1])
    if rank < 2:
        assert _sum_of_ranks(dist, Tensor, rank, evens) == 3
        assert _backend(dist, evens).options.split_from is backend
        assert _backend(dist, evens).options.global_ranks_in_group == [0, 1]
    part = dist.split_group(split_ranks=[[0, 2], [1]])
    assert _sum_of_ranks(dist, Tensor, rank, part) == (4 if rank != 1 else 2)
    assert backend.comm_split_count() == 2
    assert stubs.nccl.calls("ncclCommInitRankConfig") == before
    dist.destroy_process_group()
    return _left(stubs)


def splits_of_unbound(dist, stubs, Tensor, port, rank, size):
    """split_group must only need the members; a ProcessGroup's own split needs all ranks, because
    it splits the communicator."""
    _init(dist, port, rank, size, device_id=None)
    pg = dist.group.WORLD
    part = dist.split_group(split_ranks=[[0, 1]])
    assert (part is None) is (rank == 2)
    if part is not None:
        assert _sum_of_ranks(dist, Tensor, rank, part) == 3
        assert _backend(dist, part).options._timeout == datetime.timedelta(seconds=LIMIT_S)
    assert stubs.nccl.calls("ncclCommSplit") == 0
    assert _sum_of_ranks(dist, Tensor, rank) == 6
    if rank > 0:
        other = dist.split_group(split_ranks=[[1, 2]])  # rank 0 does not join
        assert _sum_of_ranks(dist, Tensor, rank, other) == 5
    own = pg.split_group([2, 0])
    assert (own is None) is (rank == 1)
    if own is not None:
        x = Tensor([rank + 1.0])
        own.allreduce([x]).wait()
        assert x.tolist() == [4.0] and own.rank() == (0 if rank == 2 else 1)
        own.shutdown()
    del own, part
    dist.destroy_process_group()
    return _left(stubs)


def shrinks(dist, stubs, Tensor, port, rank, size):
    _init(dist, port, rank, size)
    assert _sum_of_ranks(dist, Tensor, rank) == 6
    if rank == 1:
        time_to_go = dist.TCPStore("127.0.0.1", port, timeout=30.0)
        time_to_go.wait(["shrunk"])
        dist.abort()
        return None
    before = stubs.nccl.calls("ncclCommShrink")
    flags = 1 if os.environ["SHRINK"] == "abort" else 0
    if flags:
        stuck = dist.all_reduce(Tensor([1.0]), async_op=True)  # rank 1 does not join
    aborted = stubs.nccl.calls("ncclCommAbort")
    dist.shrink_group([1], shrink_flags=flags)
    assert stubs.nccl.calls("ncclCommShrink") == before + 1
    if flags:
        assert stubs.nccl.calls("ncclCommAbort") == aborted + 1
        assert "was shrunk" in str(stuck.exception())
    assert dist.get_world_size() == 2 and dist.get_rank() == (0 if rank == 0 else 1)
    assert _sum_of_ranks(dist, Tensor, rank) == 4
    dist.TCPStore("127.0.0.1", port, timeout=30.0).set("shrunk", b"")
    dist.destroy_process_group()
    return _left(stubs)


def grows(dist, stubs, Tensor, port, rank, size):
    """A group of two ranks must grow by one that joins."""
    from dldist._backends.nccl import ProcessGroupNCCL

    store = dist.TCPStore("127.0.0.1", port, timeout=30.0)
    side, place = (0, rank) if rank < 2 else (1, 0)
    own = ProcessGroupNCCL(dist.PrefixStore(f"side{side}", store), place, 2 if side == 0 else 1)
    own.eager_connect_single_device(rank)
    whole = own.merge(dist.PrefixStore("whole", store), None, rank, 3)
    assert (whole.rank(), whole.size()) == (rank, 3)
    x = Tensor([rank + 1.0])
    whole.allreduce([x]).wait()
    assert x.tolist() == [6.0]
    grown = stubs.nccl.calls("ncclCommGrow")
    whole.shutdown()
    own.shutdown()
    del own, whole, x
    return grown, _left(stubs)


def again_and_again(dist, stubs, Tensor, port, rank, size):
    """Groups of the same names must be usable again over one store, made lazily and eagerly."""
    store = None
    for i in range(3):
        if store is None:
            store = _init(dist, port, rank, size)
        else:
            dist.init_process_group(
                "nccl", store=dist.PrefixStore(f"again{i}", store), rank=rank, world_size=size, timeout=LIMIT_S,
                device_id=_device(rank) if i == 1 else None,
            )
            assert _backend(dist)._is_initialized() is (i == 1)
        assert _sum_of_ranks(dist, Tensor, rank) == size * (size + 1) / 2
        dist.destroy_process_group()
    return _left(stubs)


def _left(stubs):
    gc.collect()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and stubs.nccl.live("comm"):
        time.sleep(0.01)  # aborted communicators end one after another
    return {kind: stubs.nccl.live(kind) for kind in ("comm", "redop")} | {"bad": stubs.nccl.bad_uses() + stubs.cuda.bad_uses()}


def several_devices(dist, stubs, Tensor, port, rank, size):
    """A process with two devices must have a communicator per device in a group, made on use."""
    import nccl_workers

    _init(dist, port, rank, size, device_id=None)
    made = stubs.nccl.made("comm")
    for device in (rank, rank + size):
        x = nccl_workers.tensor_type(stubs, device)([1.0, 2.0])
        dist.all_reduce(x)
        assert x.tolist() == [size, 2 * size]
    assert stubs.nccl.made("comm") == made + 2
    del x
    dist.destroy_process_group()
    return _left(stubs)


def exits_without_destroy(dist, stubs, Tensor, port, rank, size):
    _init(dist, port, rank, size)
    assert _sum_of_ranks(dist, Tensor, rank) == 3
    return "left"


def fork(dist, stubs, Tensor, port, rank, size):
    _init(dist, port, rank, size)
    _sum_of_ranks(dist, Tensor, rank)
    backend = _backend(dist)
    x = Tensor([1.0])
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            backend.group.all_reduce(x)
            os.write(write, b"nothing raised")
        except dist.DistError as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(write)
    text = os.read(read, 1000).decode()
    os.close(read)
    assert os.waitpid(pid, 0)[1] == 0
    assert _sum_of_ranks(dist, Tensor, rank) == 3
    dist.destroy_process_group()
    return text


def interrupted(dist, stubs, Tensor, port, rank, size):
    """Ctrl-C must interrupt making a communicator that is never joined, and a wait on the host."""
    from dldist import nccl

    store = dist.TCPStore("127.0.0.1", port, timeout=30.0)
    if rank == 1:
        store.wait(["init was interrupted"])
    else:
        group = nccl.NcclGroup(dist.PrefixStore("alone", store), 0, 2, device=0, timeout=LIMIT_S, name="alone")
        start = _interrupt_after(lambda: group.connect())
        assert start < 5
        group.abort()
        store.set("init was interrupted", b"")
    _init(dist, port, rank, size)
    assert _sum_of_ranks(dist, Tensor, rank) == 3
    if rank == 0:
        work = dist.all_reduce(Tensor([1.0]), async_op=True)
        assert _interrupt_after(lambda: work.wait(datetime.timedelta(seconds=LIMIT_S))) < 5
        assert not work.is_completed()
        store.set("wait was interrupted", b"")
    else:
        store.wait(["wait was interrupted"])
        dist.all_reduce(Tensor([1.0]))
    dist.destroy_process_group()
    return "done"


def interrupted_first_call(dist, stubs, Tensor, port, rank, size):
    """Ctrl-C must interrupt the first call. NCCL connects ranks on the host and ignores signals, so
    the call has its own thread."""
    from dldist import nccl

    store = dist.TCPStore("127.0.0.1", port, timeout=30.0)
    group = nccl.NcclGroup(store, rank, 2, device=rank, timeout=LIMIT_S)
    x = Tensor([rank + 1.0])
    group.connect()
    seconds, text = None, None
    if rank == 0:
        seconds = _interrupt_after(lambda: group.all_reduce(x))
        try:
            group.all_reduce(x)
        except dist.DistError as error:
            text = str(error)
        store.set("is over", b"")
    else:
        store.wait(["is over"])
    group.abort()
    return seconds, text


def _interrupt_after(call):
    main = threading.main_thread().ident
    timer = threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGINT))
    timer.start()
    start = time.monotonic()
    try:
        call()
    except KeyboardInterrupt:
        return time.monotonic() - start
    finally:
        timer.join()
    raise AssertionError("nothing was interrupted")


def surface(dist, stubs, Tensor, port, rank, size):
    """The rest of ProcessGroupNCCL's surface, besides operations, must work."""
    import copy
    import json

    from dldist._backends.nccl import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options.config.min_ctas = 2
    _init(dist, port, rank, size, pg_options=options)
    backend = _backend(dist)
    assert options._timeout == datetime.timedelta(seconds=LIMIT_S) and options.global_ranks_in_group == list(range(size))
    assert options.group_name == backend.uid == "0" and backend.options is options
    assert backend.bound_device_id == _device(rank)
    assert backend.get_runtime_nccl_version() == (2, 32, 3) and backend.get_build_nccl_version() >= (2, 32, 3)
    backend._set_default_timeout(datetime.timedelta(seconds=7))
    assert backend.options._timeout.total_seconds() == 7 and backend.group.timeout == datetime.timedelta(seconds=7)
    backend._add_ephemeral_timeout(datetime.timedelta(seconds=3))
    work = dist.all_reduce(Tensor([1.0]), async_op=True)
    assert backend._verify_work_timeout(work, datetime.timedelta(seconds=10)), work.timeout
    assert not backend._verify_work_timeout(work, datetime.timedelta(seconds=1))
    work.wait(datetime.timedelta(seconds=LIMIT_S))
    work = dist.all_reduce(Tensor([1.0]), async_op=True)
    if rank == 0:  # only this rank
        backend._wait_for_pending_works()
        assert work.is_completed()
    dist.distributed_c10d._add_ephemeral_timeout_for_all_pgs(datetime.timedelta(seconds=2))
    work = dist.all_reduce(Tensor([1.0]), async_op=True)
    assert backend._verify_work_timeout(work, datetime.timedelta(seconds=9)), work.timeout
    work.wait(datetime.timedelta(seconds=LIMIT_S))
    assert backend.memory_stats()["gpu_mem_total"] >= 0
    dist.barrier()
    backend.suspend()
    backend.resume()
    assert _sum_of_ranks(dist, Tensor, rank) == 3

    memory = backend.allocate_tensor(1 << 12, dtype="float32", device=_device(rank))
    assert backend.supports_tensor_alloc(_device(rank)) and not backend.supports_tensor_alloc("cpu")
    for window in (False, True):
        handle = backend.register_tensor(memory, window=window)
        assert handle != 0
        backend.deregister_tensor(handle, window=window)

    backend._set_enable_nan_check(True)
    try:
        dist.all_reduce(Tensor([float("nan")]))
        raise AssertionError
    except ValueError as error:
        assert "NaN" in str(error) or "nan" in str(error), error
    backend._set_enable_nan_check(False)
    assert backend.get_error() == dist.distributed_c10d.ErrorType.SUCCESS

    dump = json.loads(dist.distributed_c10d._dump_fr_trace_json()) if hasattr(dist.distributed_c10d, "_dump_fr_trace_json") else None
    if dump is not None:
        names = {(entry["name"], entry["desc"]) for entry in dump["pg_config"].values()}
        assert ("0", "default_pg") in names, names
    copied = copy.deepcopy(options)
    assert copied.config == options.config and copied.config is not options.config
    revoked = stubs.nccl.calls("ncclCommRevoke")
    backend.revoke()
    assert stubs.nccl.calls("ncclCommRevoke") == revoked + 1
    dist.abort()
    return _left(stubs)


def estimates_if_blocking(dist, stubs, Tensor, port, rank, size):
    """Return NCCL's estimate, or the reason why there is none (it needs blocking communicators)."""
    from dldist._backends.nccl import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    if os.environ["BLOCKING"]:
        options.config.blocking = int(os.environ["BLOCKING"])
    _init(dist, port, rank, size, pg_options=options)
    x = Tensor([rank + 1.0])
    text = ""
    try:
        with dist._time_estimator(device="cuda") as estimator:
            dist.all_reduce(x)
    except NotImplementedError as error:
        text = str(error)
    assert x.tolist() == [rank + 1.0]
    assert _sum_of_ranks(dist, Tensor, rank) == 3
    dist.destroy_process_group()
    return text or estimator.estimated_time, _left(stubs)


def nan_check_by_setting(dist, stubs, Tensor, port, rank, size):
    """Return the error of a call with a NaN. Nothing must be sent, and the group stay usable."""
    _init(dist, port, rank, size)
    text = ""
    try:
        dist.all_reduce(Tensor([1.0, float("nan")]))
    except ValueError as error:
        text = str(error)
    assert _sum_of_ranks(dist, Tensor, rank) == 3
    dist.destroy_process_group()
    return text, _left(stubs)


def premul_by_a_tensor(dist, stubs, Tensor, port, rank, size):
    _init(dist, port, rank, size)
    x, factor = Tensor([1.0, 2.0]), Tensor([rank + 0.5])
    op = dist._make_nccl_premul_sum(factor)
    assert op.factor is factor and op == dist.ReduceOp.PREMUL_SUM
    work = dist.all_reduce(x, op, async_op=True)
    del factor, op
    gc.collect()
    work.wait(datetime.timedelta(seconds=LIMIT_S))
    assert x.tolist() == [2.0, 4.0]
    for values, dtype, text in (([1.0, 2.0], "float32", "2 elements, expected 1"), ([1.0], "float64", "float64")):
        try:
            dist.all_reduce(x, dist.ReduceOp.PREMUL_SUM(Tensor(values, dtype)))
            raise AssertionError
        except (ValueError, TypeError) as error:
            assert text in str(error)
    dist.destroy_process_group()
    alone = dist.Group(dist.HashStore(), 0, 1)
    try:
        alone.all_reduce(array.array("f", [1.0]), dist.ReduceOp.PREMUL_SUM(Tensor([2.0])))
        raise AssertionError
    except ValueError as error:
        assert "is a tensor on a GPU, expected a number or a CPU tensor" in str(error)
    alone.close()
    return _left(stubs)
