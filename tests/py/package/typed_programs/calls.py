"""Every call of dldist, as typed programs make it. Only read by checkers, never run."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from datetime import timedelta
from enum import Enum
from typing import Any, assert_type

import dldist as dist
import dldist.functional as F
from dldist import comm_hooks, symmetric_memory, testing
from dldist.types import AnyGroup

x = array("f", [1, 2])
y = bytearray(8)
parts = [array("f", [0, 0]), array("f", [0, 0])]
Phase = Enum("Phase", "TRAIN TEST")


def worlds(store: dist.Store) -> None:
    dist.init_process_group("gloo", timeout=30)
    dist.init_process_group(store=store, rank=0, world_size=1, timeout=timedelta(minutes=1))
    assert_type(dist.is_initialized(), bool)
    part = dist.new_group([0, 1], timeout=60, group_desc="some")
    print(part.rank(), part.size())
    mine, every = dist.new_subgroups(2)
    mine, every = dist.new_subgroups_by_enumeration([[0], (1, 2)])
    print(mine.rank(), len(every))
    half = dist.split_group(split_ranks=[[0], [1]])
    if half is not None:
        assert_type(half, dist.ProcessGroup)
    rest = dist.shrink_group([1], shrink_flags=dist.SHRINK_ABORT if store.num_keys() else dist.SHRINK_DEFAULT)
    assert_type(rest, dist.ProcessGroup)
    dist.revoke_process_group(rest, dist.REVOKE_DEFAULT)
    dist.set_timeout(5, rest)
    dist.set_timeout(timedelta(seconds=5))
    assert_type(dist.get_backend(), str)
    assert_type(dist.get_backend_config(rest), str)
    print(dist.get_backend_impl(rest).size(), dist.get_pg_count())
    assert_type(dist.default_world(), dist.World | None)
    dist.abort(rest, "enough")
    dist.destroy_process_group()


def ranks(group: AnyGroup | None) -> None:
    assert_type(dist.get_rank(), int)
    assert_type(dist.get_world_size(group), int)
    print(dist.get_node_local_rank(0), dist.get_process_group_ranks(group))
    world = dist.group.WORLD
    assert_type(world, dist.ProcessGroup | None)
    assert world is not None and dist.GroupMember.WORLD is world
    assert_type(dist.get_global_rank(world, 0) + dist.get_group_rank(world, 0), int)


def collectives(group: dist.ProcessGroup, is_async: bool) -> None:
    assert_type(dist.all_reduce(x), None)
    assert_type(dist.all_reduce(x, "max", group, async_op=True), dist.Work)
    assert_type(dist.all_reduce(x, dist.ReduceOp.SUM, None, True, timeout=1.5), dist.Work)
    assert_type(dist.all_reduce(x, async_op=is_async), dist.Work | None)
    assert_type(dist.all_reduce(x, dist.ReduceOp.SUM, None, is_async), dist.Work | None)
    assert_type(dist.broadcast(y, src=0), None)
    assert_type(dist.broadcast(y, group_src=0, async_op=True, group=group), dist.Work)
    assert_type(dist.broadcast(y, 0, group, True, timeout=timedelta(seconds=1)), dist.Work)
    assert_type(dist.reduce(x, 0, async_op=True), dist.Work)
    assert_type(dist.scan(x, async_op=True), dist.Work)
    assert_type(dist.exscan(x, async_op=True), dist.Work)
    assert_type(dist.barrier(async_op=True), dist.Work)
    assert_type(dist.barrier(group, timeout=0), None)
    dist.monitored_barrier(timeout=1, wait_all_ranks=True)
    assert_type(dist.all_gather(parts, x), None)
    assert_type(dist.all_gather((parts[0], y), x, async_op=True), dist.Work)
    dist.all_gather_single(y, x)
    dist.gather(x, parts, dst=0)
    assert_type(dist.gather(x, None, group_dst=0, async_op=True), dist.Work)
    dist.gather_single(x, y, 0)
    dist.scatter(x, parts, 0)
    dist.reduce_scatter(x, parts, "avg")
    dist.reduce_scatter_single(x, y, async_op=True).wait(5)
    dist.all_to_all(parts, parts)
    dist.all_to_all_single(x, x, [1, 1], (2, 0), async_op=True).wait()
    assert_type(dist.supports_complex("sum"), bool)
    with dist.coalescing(async_ops=True) as block:
        dist.all_reduce(x)
    block.wait()
    with dist.record_comm("step"):
        dist.all_reduce(memoryview(y))


def deprecated() -> None:
    assert_type(dist.all_reduce_coalesced(parts, async_op=True), dist.Future)
    assert_type(dist.all_gather_coalesced([parts, parts], parts), None)
    dist.all_gather_into_tensor(y, x)
    dist.gather_into_tensor(x, y)
    assert_type(dist.reduce_scatter_tensor(x, y, async_op=True), dist.Work)
    print(dist.reduce_op.SUM)


def messages(group: dist.Group) -> None:
    dist.send(x, 1, tag=3)
    assert_type(dist.recv(y, timeout=2), int)
    works = [dist.isend(x, 1), dist.irecv(y, 1, match_dtype=False), dist.isend(x, group=group, group_dst=1)]
    works += dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1), dist.P2POp(dist.irecv, y, 1)])
    for work in works:
        assert_type(work.wait(), bool)
    assert_type(dist.probe(1, tag=dist.ANY_TAG), dist.MessageInfo)
    assert_type(dist.iprobe(group=group), dist.MessageInfo | None)
    assert_type(dist.recv(x, dist.NO_RANK), int)
    assert_type(dist.wait_any([None, *works], timeout=2.0), int)
    assert_type(dist.wait_some(works), list[int])
    assert_type(dist.test_any(works), int | None)
    dist.wait_all(works)


def objects() -> None:
    names: list[Any] = [None, None]
    dist.all_gather_object(names, "me", serializer="safe")
    dist.gather_object("me", names, dst=0)
    dist.broadcast_object_list(names, src=0, timeout=5)
    dist.scatter_object_list(names, ["a", "b"], src=0)
    dist.send_object_list(names, 1)
    assert_type(dist.recv_object_list(names), int)
    dist.allow_classes(Phase)
    assert_type(dist.isend_object("me", 1).is_completed(), bool)
    print(dist.irecv_object(1, tag=2).wait(timeout=5))


def names() -> None:
    available = [dist.is_available(), dist.is_gloo_available(), dist.is_nccl_available(), dist.is_mpi_available()]
    available += [dist.is_ucc_available(), dist.is_xccl_available(), dist.is_backend_available("gloo")]
    available += [dist.is_launched(), dist.is_torchelastic_launched()]
    assert_type(available, list[bool])
    assert_type(dist.get_default_backend_for_device("cpu"), str)
    print(dist.Backend.GLOO, dist.BackendConfig("cpu:gloo").get_device_backend_map(), dist.__version__)
    dist.set_debug_level(dist.DebugLevel(0))
    dist.set_debug_level_from_env()
    print(dist.get_debug_level(), dist.BuiltinCommHookType.ALLREDUCE)
    dist.set_log_level("info")
    name: dist.GroupName = "default"
    print(name, dist.default_pg_timeout.total_seconds())


def options(group: dist.ProcessGroup, gloo: dist.ProcessGroupGloo) -> None:
    print(dist.AllToAllOptions(), dist.AllgatherOptions(), dist.AllreduceOptions(), dist.AllreduceCoalescedOptions())
    print(dist.BarrierOptions(), dist.BroadcastOptions(), dist.GatherOptions(), dist.ReduceOptions())
    print(dist.ReduceScatterOptions(), dist.ScatterOptions(), group.name(), gloo.name())


def stores() -> None:
    here = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=10)
    for store in (here, dist.FileStore("/nowhere"), dist.HashStore(), dist.PrefixStore("a", here)):
        store.set("key", b"value")
        assert_type(store.get("key", timeout=0), bytes)

    def meet(url: str) -> Iterator[tuple[dist.Store, int, int]]:
        yield here, 0, 1

    dist.register_rendezvous_handler("mine", meet)


def errors() -> None:
    try:
        dist.barrier()
    except (dist.DistTimeoutError, dist.DistPeerLostError, dist.DistMismatchError, dist.DistAbortedError) as error:
        assert_type(error.rank, int | None)
    except (dist.DistBackendError, dist.DistNetworkError, dist.DistNetworkTimeoutError, dist.DistAuthError):
        pass
    except (dist.DistStoreError, dist.DistStoreTimeoutError, dist.DistQueueEmptyError, dist.QueueEmptyError):
        pass
    except (dist.DistTypeError, dist.DistArgumentError, dist.DistError):
        pass


def methods(store: dist.Store, is_async: bool) -> None:
    with dist.World(store, 0, 1, timeout=5) as world:
        assert_type(world.all_reduce(x, async_op=True), dist.Work)
        assert_type(world.broadcast(x, async_op=is_async), dist.Work | None)
        world.all_gather(parts, x, timeout=timedelta(seconds=1))
        world.send(x, 1, timeout=3)
        plans = [world.plan.all_reduce(x), world.plan.broadcast(y)]
        assert_type(plans[0], dist.Plan)
        assert_type(world.plan, dist.Plans)
        dist.start_all(plans)
        dist.wait_all(plans)
        assert_type(world.all_gather_object("me"), list[str])
        assert_type(world.gather_object(world.rank), list[int] | None)
        assert_type(world.broadcast_object("me" if world.rank == 0 else None), str)
        assert_type(world.broadcast_object(), Any)
        assert_type(world.scatter_objects([1, 2] if world.rank == 0 else None), int)
        assert_type(world.scatter_objects(), Any)
        ranks = [world.rank, 2]
        assert_type(world.all_to_all_objects(ranks), list[int])
        assert_type(world.new_group([0]), dist.World | None)
        assert_type(world.split([0], timeout=5), dist.World)
        member: dist.Member = world.members[0]
        print(member.host)
        shared = world.empty((2, 3), "float64")
        assert_type(shared, dist.SharedArray)
        world.rendezvous(shared).put(x, 1, channel=0)
        world.new_window(shared).put(x, 1)
        world.close(timeout=1)
    group = dist.Group(None, 0, 1)
    assert_type(group.split([0]), dist.Group)


def memory(group: dist.ProcessGroup) -> None:
    shared = dist.empty((4,), "float32", group)
    handle = symmetric_memory.rendezvous(shared, group)
    handle.put(x, 1, channel=0)
    symmetric_memory.put_signal(x, handle, 1)
    symmetric_memory.wait_signal(handle, 1)
    print(symmetric_memory.empty(2, 3, dtype="int32"), symmetric_memory.empty((2, 3)))
    print(symmetric_memory.is_symm_mem_tensor(shared))
    world = dist.default_world()
    assert world is not None
    window = dist.Window(world, shared)
    window.put(x, 1, opts=dist.PutOptions()).wait()
    window.signal(1, opts=dist.SignalOptions()).wait()
    window.wait_signal(1, opts=dist.WaitSignalOptions()).wait()
    attr: dist.WindowAttr = window.get_attr(1)
    kind: dist.WindowAccessType = attr.access_type
    print(kind)


def other_libraries(comm: object) -> None:
    assert_type(dist.World.from_mpi(comm, host="node-a", name="beside", timeout=timedelta(seconds=60)), dist.World)
    assert_type(dist.World.from_torch(connect_timeout=5, serializer="pickle", carrier=None), dist.World)


def functional(world: dist.World, is_async: bool) -> None:
    total = F.all_reduce(x)
    assert_type(total, array[float])
    assert_type(F.all_reduce(x, "max", world, async_op=True), F.Pending[array[float]])
    assert_type(F.all_reduce(x, async_op=True).wait(), array[float])
    assert_type(F.gather(y, async_op=True).wait(), bytearray | None)
    assert_type(F.barrier(async_op=True), F.Pending[None])
    assert_type(F.all_reduce(x, async_op=is_async), F.Pending[array[float]] | array[float])
    assert_type(F.all_reduce(0.5), float)
    assert_type(F.all_reduce(x, "land"), array[float])
    assert_type(F.all_reduce(x, max), array[float])
    assert_type(F.all_reduce_tree({"a": x}), dict[str, array[float]])
    assert_type(F.reduce(x), array[float] | None)
    assert_type(F.scan(x), array[float])
    assert_type(F.exscan(x), array[float])
    assert_type(F.reduce_scatter(x), array[float])
    assert_type(F.all_gather(y, timeout=1), bytearray)
    assert_type(F.gather(y), bytearray | None)
    assert_type(F.all_gather_any(y), list[bytearray])
    assert_type(F.gather_any(y), list[bytearray] | None)
    assert_type(F.scatter_any([y]), bytearray)
    assert_type(F.all_to_all_any([y]), list[bytearray])
    assert_type(F.broadcast(y, 0), bytearray)
    assert_type(F.scatter(y), bytearray)
    assert_type(F.all_to_all(y, input_split_sizes=[4, 4]), bytearray)
    assert_type(F.permute(y, [(0, 1), (1, 0)]), bytearray)
    assert_type(F.send(y, 1), None)
    assert_type(F.recv(y, 1), bytearray)
    assert_type(F.barrier(), None)
    assert_type(F.wait_tensor(x), array[float] | Any)


def meshes(world: dist.World) -> None:
    mesh: dist.DeviceMesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"), backend_override={"dp": "gloo", 1: "fake"})
    dist.all_reduce(x, group=mesh.get_group("dp"))
    rows = dist.DeviceMesh("cpu", [[0, 1], [2, 3]], world=world)
    assert_type(mesh["dp", "tp"], dist.DeviceMesh)
    assert_type(rows.shape, tuple[int, ...])
    assert_type(rows.get_coordinate(), tuple[int, ...] | None)
    assert_type(rows.get_local_rank(0) + rows.size(1), int)
    with dist.DeviceMesh.from_group(world, "cpu") as one, dist.DeviceMesh.from_group(dist.new_group([0]), "cpu", [0]) as other:
        print(one == other, one.mesh)


def training(gradients: list[dist.Tensor]) -> None:
    reducer = dist.Reducer(gradients, bucket_bytes_cap=1 << 20)
    reducer.register_comm_hook(None, comm_hooks.bf16_compress_hook)
    reducer.register_comm_hook(comm_hooks.PowerSGDState(), comm_hooks.powerSGD_hook)
    reducer.prepare_for_backward()
    for index, gradient in enumerate(gradients):
        reducer.mark_ready(index, gradient)
    reducer.finish()
    reducer.broadcast_parameters(gradients)
    print(reducer.gradients(), dist.Logger(reducer))


def hook(state: object, bucket: dist.GradBucket) -> Any:
    return bucket.buffer()


def body(rank: int, text: str) -> None:
    print(rank, text)


@testing.distributed(nranks=2)
def test_processes() -> None:
    dist.barrier()


@testing.threads(2)
def test_threads(group: dist.Group) -> int:
    return group.rank


def launching() -> None:
    try:
        assert_type(dist.spawn(body, ("a",), nprocs=2), list[None])
        assert_type(dist.spawn(body, ("a",), 2, join=False).results, list[None])
    except dist.ProcessRaisedException as raised:
        assert_type(raised, dist.ProcessRaisedException)
    except dist.ProcessExitedException as exited:
        assert_type(exited, dist.ProcessExitedException)
    except dist.ProcessException as failed:
        assert_type(failed, dist.ProcessException)
    testing.run_ranks(body, 2, "a", timeout=5)
