"""c10d's private functions that libraries import: checks, queries of groups, groups besides the
default one, objects as tensors."""

import array
import logging
import subprocess
import sys
import warnings
from datetime import timedelta

import dldist
import numpy as np
import pytest
from dldist import constants
from dldist import distributed_c10d as c10d
from thread_ranks import error_of, in_worlds, on_threads, separate_worlds, total, vector

TEN = timedelta(seconds=10)


# ---- checks


def test_tensor_checks_accept_arrays_and_name_other_types():
    for tensor in (vector(1), np.zeros(3), bytearray(2)):
        assert c10d._check_single_tensor(tensor, "x") is None
    with pytest.raises(TypeError, match="argument 'x' must be an object with __dlpack__ or the buffer protocol, not int"):
        c10d._check_single_tensor(3, "x")
    assert c10d._check_tensor_list([vector(1), np.zeros(3)], "xs") is None
    assert c10d._check_tensor_list((), "xs") is None
    with pytest.raises(TypeError, match="argument 'xs' must be a list of tensors"):
        c10d._check_tensor_list(vector(1), "xs")
    with pytest.raises(TypeError, match=r"argument 'xs\[1\]' must be an object"):
        c10d._check_tensor_list([vector(1), "x"], "xs")


def test_tensors_of_different_dtypes_are_rejected():
    f4, f8, c8 = (np.zeros(2, dtype) for dtype in ("f4", "f8", "c8"))
    assert c10d._ensure_all_tensors_same_dtype(f4, [f4, c8]) is None
    assert c10d._ensure_all_tensors_same_dtype([], []) is None
    with pytest.raises(ValueError, match="found float32 and float64"):
        c10d._ensure_all_tensors_same_dtype([f4], f8)
    assert c10d._as_iterable([1, 2]) == [1, 2] and c10d._as_iterable(1) == (1,)


def test_fp8_dtypes_are_recognised():
    types = pytest.importorskip("ml_dtypes", reason="ml_dtypes, which has 8-bit floats for NumPy, is not installed")
    assert not c10d._is_fp8(np.zeros(2, "f2"))
    for name, expected in (("float8_e4m3fn", True), ("float8_e5m2", True), ("bfloat16", False)):
        assert c10d._is_fp8(dldist_array(np.zeros(2, getattr(types, name)))) is expected


def dldist_array(values):
    """Return an array with the same dtype whose type can express it."""
    with dldist.Group(None, 0, 1) as group:
        return group.empty(values.shape, str(values.dtype))


def test_operations_of_a_message_batch_are_checked():
    dldist.init_process_group()
    other = dldist.new_group([0])
    of_world, of_other = (dldist.P2POp(dldist.isend, vector(1), 0, group) for group in (None, other))
    assert c10d._check_op(dldist.irecv) is None
    assert isinstance(error_of(c10d._check_op, dldist.send), ValueError)
    assert c10d._check_p2p_op_list([of_world, of_world]) is None
    assert "same group" in str(error_of(c10d._check_p2p_op_list, [of_world, of_other]))
    assert isinstance(error_of(c10d._check_p2p_op_list, []), IndexError)
    assert isinstance(error_of(c10d._check_p2p_op_list, [1]), ValueError)
    assert isinstance(error_of(c10d._check_not_self_rank, other, 0, "source"), ValueError)
    assert c10d._check_not_self_rank(other, 1, "source") is None
    dldist.destroy_process_group()


def test_ranks_are_converted_between_group_and_world():
    def case(rank):
        group = dldist.new_group([0, 2])
        if rank == 1:
            return None
        ask = c10d._canonicalize_group_rank
        return ask(group, 2), ask(group, group_rank=1, return_global=True), ask(group, 2, return_global=True)

    assert in_worlds(3, case) == [(1, 2, 2), None, (1, 2, 2)]


# ---- queries


def test_configuration_of_a_group_describes_its_ranks_and_backend():
    def case(rank):
        pair = c10d._new_group_with_tag([0, 1], pg_tag="pair", group_desc="two")
        if rank == 2:
            return None
        name = pair.group_name
        assert c10d._get_pg_config(pair) == {
            "pg_name": name, "pg_desc": "two", "backend_config": "cpu:gloo", "pg_size": 2, "ranks": [0, 1],
        }  # fmt: skip
        assert [each["pg_size"] for each in c10d._get_all_pg_configs()] == [3, 2]
        assert c10d._get_group_size_by_name(name) == c10d._get_group_size_by_name(pair) == 2
        assert c10d._resolve_group_name_by_ranks_and_tag([1, 0], "pair") == name
        assert isinstance(error_of(c10d._resolve_group_name_by_ranks_and_tag, [1, 0], "none"), ValueError)
        assert c10d._get_process_group_uid(pair) == -1
        assert not c10d._is_safe_to_split()
        return c10d._backend

    assert in_worlds(3, case, backend="cpu:gloo") == ["cpu:gloo"] * 2 + [None]


def test_default_device_depends_on_the_backend():
    def ask(backend):
        dldist.init_process_group(backend, store=dldist.HashStore(), rank=0, world_size=1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            device = c10d._get_pg_default_device()
        found = c10d._device_capability(), c10d._get_object_coll_device(), device, len(caught)
        dldist.destroy_process_group()
        return found

    assert ask("cpu:gloo") == (["cpu"], "cpu", "cpu", 0)
    assert ask("cuda:fake") == (["cuda"], "cuda", "cuda", 0)
    assert ask("cuda:fake,xpu:fake") == (["cuda", "xpu"], "cuda", "cuda", 1)
    assert ask("cuda:fake,cpu:gloo") == (["cuda", "cpu"], "cpu", "cpu", 1)
    empty = dldist.ProcessGroup(0, 1)
    assert c10d._get_object_coll_device(empty) == "cpu"
    with pytest.raises(RuntimeError, match="Default device not found"):
        c10d._get_pg_default_device(empty)
    assert c10d._get_object_coll_device(dldist.ProcessGroupGloo(dldist.HashStore(), 0, 1)) == "cpu"


def test_backend_that_a_group_is_split_from_supports_splitting(monkeypatch):
    dldist.init_process_group("cuda:fake", store=dldist.HashStore(), rank=0, world_size=1)
    assert c10d._get_split_source(dldist.group.WORLD) is dldist.group.WORLD._get_backend("cuda")
    assert c10d._get_split_source(dldist.group.WORLD, "cpu:gloo,cuda:fake") is dldist.group.WORLD._get_backend("cuda")
    assert c10d._get_split_source(dldist.group.WORLD, "cuda:gloo") is None
    monkeypatch.setattr(dldist.FakeProcessGroup, "supports_splitting", False)
    assert c10d._get_split_source(dldist.group.WORLD) is None
    dldist.destroy_process_group()
    dldist.init_process_group("cuda:gloo", store=dldist.HashStore(), rank=0, world_size=1)
    world = dldist.group.WORLD
    assert c10d._get_split_source(world) is world._get_backend("cuda")
    other = dldist.new_group([0])
    assert c10d._get_split_source(other) is None  # neither bound nor the default group
    dldist.destroy_process_group()


def test_private_module_variables_are_set_by_init_and_reset_by_destroy(monkeypatch):
    assert (c10d._backend, c10d._default_pg_init_method) == (None, None)
    dldist.init_process_group("gloo", "tcp://127.0.0.1:0", rank=0, world_size=1)
    assert (c10d._backend, c10d._default_pg_init_method) == ("gloo", "tcp://127.0.0.1:0")
    dldist.destroy_process_group()
    assert (c10d._backend, c10d._default_pg_init_method) == (None, None)
    assert type(c10d.group) is type(c10d.GroupMember) is c10d._WorldMeta
    assert c10d._NCCL_AVAILABLE is dldist.is_nccl_available()
    assert c10d._check_single_backend_availability("GLOO") and not c10d._check_single_backend_availability("unheard_of")
    assert c10d._check_single_backend_availability("ucc") is dldist.is_ucc_available() is c10d._UCC_AVAILABLE
    assert c10d._is_barrier_after_init() == 0
    assert c10d.default_pg_nccl_timeout == c10d._DEFAULT_PG_NCCL_TIMEOUT
    monkeypatch.setenv("TORCH_DIST_INIT_BARRIER", "1")
    assert c10d._is_barrier_after_init() == 1
    assert not hasattr(dldist, "_check_op"), "the package has c10d's public names"


def test_constants_module_has_the_default_timeouts():
    assert constants.default_pg_timeout == dldist.default_pg_timeout
    assert constants.default_pg_nccl_timeout == c10d.default_pg_nccl_timeout
    with pytest.raises(AttributeError, match="'dldist.constants' has no attribute 'unknown'"):
        _ = constants.unknown


# ---- groups


def test_private_helper_can_create_a_group_without_a_default_world():
    """A group with processes of other programs must work without a default group."""
    store = dldist.HashStore()

    def run(rank):
        pg, own = c10d._new_process_group_helper(2, rank, [], "gloo", store, group_name="weights", timeout=TEN)
        c10d._world.pg_group_ranks[pg] = {member: member for member in range(2)}
        assert not dldist.is_initialized()
        x = vector(rank + 1)
        dldist.broadcast(x, src=0, group=pg)
        own.set(f"key{rank}", b"value")
        found = x[0], total(pg), pg.group_name, pg.rank(), dldist.PrefixStore("weights/", store).get(f"key{rank}")
        dldist.destroy_process_group(pg)
        return found

    with separate_worlds():
        assert on_threads(2, run) == [(1, 2, "weights", rank, b"value") for rank in range(2)]


def test_private_helper_creates_a_group_of_some_ranks():
    def case(rank):
        store = c10d._get_default_store()
        make = c10d._new_process_group_helper
        pg, own = make(2, rank - 1, [1, 2], "gloo", store, "late two", timeout=TEN, pg_tag="late", group_desc="of two")
        if rank == 0:
            return (pg, own) == (dldist.GroupMember.NON_GROUP_MEMBER, None)
        again = make(2, rank - 1, [1, 2], "gloo", store, "another", timeout=TEN, pg_tag="late")
        taken = error_of(make, 2, rank - 1, [1, 2], "gloo", store, "late two", timeout=TEN)
        return total(pg), pg.group_desc, again == (pg, own), type(taken)

    assert in_worlds(3, case) == [True] + [(2, "of two", True, ValueError)] * 2


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ({}, TypeError, "timeout"),
        ({"timeout": TEN, "device_id": "cpu"}, ValueError, "not an accelerator: got cpu"),
        ({"timeout": TEN, "backend": "unknown"}, AssertionError, "Unknown backend"),
    ],
)
def test_private_helper_that_creates_groups_rejects_wrong_arguments(how, kind, text):
    arguments = {"backend": "gloo", **how}
    with pytest.raises(kind, match=text):
        c10d._new_process_group_helper(1, 0, [], arguments.pop("backend"), dldist.HashStore(), "name", **arguments)
    assert not c10d._world.pg_map


def test_default_group_can_be_replaced():
    def case(rank):
        world, pair = dldist.group.WORLD, dldist.new_group([0, 1])
        c10d._update_default_pg(pair)
        assert dldist.get_world_size() == 2
        c10d._update_default_pg(dldist.GroupMember.NON_GROUP_MEMBER)
        assert not dldist.is_initialized()
        c10d._update_default_pg(world)
        return total()

    assert in_worlds(2, case) == [2, 2]


def test_group_with_the_same_ranks_and_tag_is_created_once():
    def case(rank):
        find = c10d._find_or_create_pg_by_ranks_and_tag
        row = find("rows", [3, 2, 1, 0], 2)
        assert find("rows", [3, 2, 1, 0], 2) is row
        assert isinstance(error_of(find, "rows", [0, 1, 2], 2), ValueError)
        assert isinstance(error_of(find, "", [3, 2, 1, 0], 2), ValueError)
        assert isinstance(error_of(find, "rows", [rank + 1], 1), AssertionError)
        assert total(row) == 2
        return dldist.get_process_group_ranks(row)

    assert in_worlds(4, case) == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_hashed_group_names_are_unique_and_split_colors_depend_on_ranks():
    dldist.init_process_group()
    assert c10d._process_group_name([], False) == "1"
    hashed = c10d._process_group_name([0, 1], True)
    assert len(hashed) == 40 and c10d._process_group_name([0, 1], True) != hashed
    assert c10d._hash_ranks_to_str([0, 1]) == c10d._hash_ranks_to_str((0, 1)) != c10d._hash_ranks_to_str([0])
    dldist.destroy_process_group()
    assert 0 <= c10d._process_group_color([3, 1]) < 2**31
    assert c10d._process_group_color([3, 1]) == c10d._process_group_color((3, 1)) != c10d._process_group_color([1, 3])
    assert c10d.PG_WRAPPER_STORE_PREFIX == "pg_wrapper"


# ---- objects


def test_objects_converted_to_tensors_and_back_are_equal():
    def case(rank):
        encoded, size = c10d._object_to_tensor({"rank": rank}, "cpu", None)
        sizes = [array.array("q", [0]) for _ in range(2)]
        dldist.all_gather(sizes, size)
        parts = [bytearray(each[0]) for each in sizes]
        dldist.all_gather(parts, encoded)
        return [c10d._tensor_to_object(part, each[0], None) for part, each in zip(parts, sizes, strict=True)]

    assert in_worlds(2, case) == [[{"rank": 0}, {"rank": 1}]] * 2
    padded = bytearray(c10d._object_to_tensor([1, "two"], None, None)[0] + b"more")
    assert c10d._tensor_to_object(np.frombuffer(padded, "u1"), np.int64(len(padded) - 4), None) == [1, "two"]
    assert isinstance(error_of(c10d._object_to_tensor, 1, "cuda:0", None), ValueError)
    for call in (c10d._object_to_tensor, c10d._tensor_to_object):
        error = error_of(call, padded, 1, None, weights_only=True)
        assert isinstance(error, NotImplementedError) and "'weights_only': got True" in str(error)


# ---- several calls as one


def test_coalescing_state_exists_only_inside_a_coalescing_block():
    dldist.init_process_group()
    world, x, y = dldist.group.WORLD, vector(1), vector(0)
    assert c10d._world.pg_coalesce_state == {}
    with dldist._coalescing_manager():
        assert c10d._world.pg_coalesce_state == {world: []}
        dldist.all_reduce(x, dldist.ReduceOp.MAX)
        recorded_ops = c10d._world.pg_coalesce_state[world]
        assert [(op.op, op.tensor, op.dst_tensor, op.redop) for op in recorded_ops] == [(dldist.all_reduce, x, None, dldist.ReduceOp.MAX)]
    with dldist._coalescing_manager():
        dldist.all_gather_single(y, x)
        (op,) = c10d._world.pg_coalesce_state[world]
        assert (op.op, op.tensor, op.dst_tensor, op.root) == (dldist.all_gather_single, x, y, None)
    with pytest.raises(KeyError), dldist._coalescing_manager():
        raise KeyError
    assert c10d._world.pg_coalesce_state == {}
    dldist.destroy_process_group()


# ---- the log


@pytest.fixture
def records(caplog):
    caplog.set_level(logging.DEBUG, "dldist.c10d_logger")
    dldist.set_log_level("debug")
    yield lambda: [eval(record.getMessage()) for record in caplog.records if record.name == "dldist.c10d_logger"]
    dldist.set_log_level("off")


def test_c10d_log_names_failed_calls(records):
    dldist.init_process_group("gloo")
    dldist.all_reduce(vector(1))
    with pytest.raises(TypeError):
        dldist.all_reduce("x")
    with pytest.raises(ValueError):
        c10d.broadcast_object_list([], 0, dldist.new_group([0], group_desc="one"))
    dldist.destroy_process_group()
    made, failed, made_one, in_one, gone = records()
    about = {"world_size": "1", "global_rank": "0", "pg_name": "0", "backend": "gloo", "group_size": "1", "local_rank": "0"}
    assert made.pop("seconds") > 0 and made == {"func_name": "init_process_group", **about}
    assert "must be a tensor" in failed.pop("error") and failed == {"func_name": "all_reduce", **about}
    assert made_one["func_name"] == "new_group"
    assert "is empty" in in_one["error"] and (in_one["func_name"], in_one["pg_name"]) == ("broadcast_object_list", "1")
    assert gone.pop("seconds") > 0 and gone == {"func_name": "destroy_process_group"}


def test_calls_are_wrapped_for_logging_only_if_the_log_is_on(records):
    assert dldist.all_reduce.__wrapped__ is c10d.all_reduce.__wrapped__
    assert dldist.isend is c10d.isend and not hasattr(dldist.isend, "__wrapped__")
    dldist.set_log_level("info")
    assert not hasattr(dldist.all_reduce, "__wrapped__") and not hasattr(c10d.init_process_group, "__wrapped__")


def test_logging_decorators_preserve_the_function():
    @c10d._exception_logger
    @c10d._time_logger
    def add(a, b=1):
        """Adds."""
        return a + b

    assert add(1) == 2 and (add.__name__, add.__doc__) == ("add", "Adds.")
    with pytest.raises(TypeError):
        add("x")
    assert c10d.logger.name == "dldist.distributed_c10d"


def test_torch_log_level_is_read_from_the_environment():
    code = "import dldist; dldist.init_process_group(); dldist.all_reduce(3)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=25, env=environment(DLDIST_LOG="debug"))
    assert "'func_name': 'all_reduce'" in done.stderr, done.stderr
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=25, env=environment())
    assert "func_name" not in done.stderr and "TypeError" in done.stderr


def environment(**more):
    import os

    return {**os.environ, **more}


def test_names_for_nccl_are_absent_without_nccl():
    if dldist.is_nccl_available():
        pytest.skip("NCCL is available here: test_nccl_c10d_calls.py has the names")
    assert not hasattr(dldist, "ProcessGroupNCCL") and not hasattr(c10d, "ProcessGroupNCCL")


def test_current_process_group_is_separate_for_each_thread():
    pg = dldist.ProcessGroup(0, 1)
    assert c10d._current_process_group() is None
    c10d._set_process_group(pg)
    try:
        assert c10d._current_process_group() is pg
        assert on_threads(1, lambda rank: c10d._current_process_group()) == [None]
    finally:
        c10d._set_process_group(None)
    assert c10d._current_process_group() is None


def test_process_group_has_the_backend_types_as_attributes():
    assert dldist.ProcessGroup.GLOO is dldist.ProcessGroup.BackendType.GLOO
    assert {name for name in dldist.ProcessGroup.BackendType.__members__ if hasattr(dldist.ProcessGroup, name)} == {
        "UNDEFINED", "GLOO", "NCCL", "XCCL", "UCC", "MPI", "CUSTOM",
    }  # fmt: skip
