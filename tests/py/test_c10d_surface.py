"""c10d's surface, name by name: against a table of its signatures, and against torch where that is installed."""

import ast
import inspect
import os
import re
import subprocess
import sys

import dldist
import dldist.distributed_c10d as c10d
import pytest
from dldist.c10d import backend_base, fake, hooks, options, work

# What c10d 2.14 has. Ours may have more arguments, by keyword only.
SIGNATURES = """
init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None, group_name='',
    pg_options=None, device_id=None, _ranks=None, enable_reconfigure=False)
destroy_process_group(group=None)
new_group(ranks=None, timeout=None, backend=None, pg_options=None, use_local_synchronization=False, group_desc=None,
    device_id=None, sort_ranks=True)
new_subgroups(group_size=None, group=None, timeout=None, backend=None, pg_options=None, group_desc=None)
new_subgroups_by_enumeration(ranks_per_subgroup_list, timeout=None, backend=None, pg_options=None, group_desc=None)
split_group(parent_pg=None, split_ranks=None, timeout=None, pg_options=None, group_desc=None, backend=None)
shrink_group(ranks_to_exclude, group=None, shrink_flags=SHRINK_DEFAULT, pg_options=None)
set_timeout(timeout, group=None)
record_comm(name)
is_available()
is_initialized()
is_torchelastic_launched()
is_gloo_available()
is_nccl_available()
is_mpi_available()
is_ucc_available()
is_xccl_available()
is_backend_available(backend)
get_backend(group=None)
get_backend_config(group=None)
get_backend_impl(group=None, device=None)
get_default_backend_for_device(device)
get_rank(group=None)
get_world_size(group=None)
get_group_rank(group, global_rank)
get_global_rank(group, group_rank)
get_process_group_ranks(group)
get_pg_count()
get_node_local_rank(fallback_rank=None)
supports_complex(reduceOp)
get_debug_level()
set_debug_level_from_env()
broadcast(tensor, src=None, group=None, async_op=False, group_src=None)
all_reduce(tensor, op=ReduceOp.SUM, group=None, async_op=False)
all_reduce_coalesced(tensors, op=ReduceOp.SUM, group=None, async_op=False)
reduce(tensor, dst=None, op=ReduceOp.SUM, group=None, async_op=False, group_dst=None)
all_gather(tensor_list, tensor, group=None, async_op=False)
all_gather_single(output_tensor, input_tensor, group=None, async_op=False)
all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False)
_all_gather_base(output_tensor, input_tensor, group=None, async_op=False)
all_gather_coalesced(output_tensor_lists, input_tensor_list, group=None, async_op=False)
gather(tensor, gather_list=None, dst=None, group=None, async_op=False, group_dst=None)
gather_single(tensor, gather_tensor=None, dst=None, group=None, async_op=False, group_dst=None)
gather_into_tensor(tensor, gather_tensor=None, dst=None, group=None, async_op=False, group_dst=None)
scatter(tensor, scatter_list=None, src=None, group=None, async_op=False, group_src=None)
reduce_scatter(output, input_list, op=ReduceOp.SUM, group=None, async_op=False)
reduce_scatter_single(output, input, op=ReduceOp.SUM, group=None, async_op=False)
reduce_scatter_tensor(output, input, op=ReduceOp.SUM, group=None, async_op=False)
_reduce_scatter_base(output, input, op=ReduceOp.SUM, group=None, async_op=False)
all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False)
all_to_all(output_tensor_list, input_tensor_list, group=None, async_op=False)
barrier(group=GroupMember.WORLD, async_op=False, device_ids=None, timeout=None)
monitored_barrier(group=GroupMember.WORLD, timeout=None, wait_all_ranks=False)
isend(tensor, dst=None, group=None, tag=0, group_dst=None)
irecv(tensor, src=None, group=None, tag=0, group_src=None)
send(tensor, dst=None, group=None, tag=0, group_dst=None)
recv(tensor, src=None, group=None, tag=0, group_src=None)
P2POp(op, tensor, peer=None, group=None, tag=0, group_peer=None)
batch_isend_irecv(p2p_op_list)
_coalescing_manager(group=None, device=None, async_ops=False)
_time_estimator(group=None, device=None)
all_gather_object(object_list, obj, group=None, weights_only=False)
gather_object(obj, object_gather_list=None, dst=None, group=None, group_dst=None, weights_only=False)
broadcast_object_list(object_list, src=None, group=None, device=None, group_src=None, weights_only=False)
scatter_object_list(scatter_object_output_list, scatter_object_input_list=None, src=None, group=None, group_src=None,
    weights_only=False)
send_object_list(object_list, dst=None, group=None, device=None, group_dst=None, use_batch=False, weights_only=False)
recv_object_list(object_list, src=None, group=None, device=None, group_src=None, use_batch=False, weights_only=False)
breakpoint(rank=0, skip=0, timeout_s=3600)
_set_pg_timeout(timeout, group=None)
_get_global_rank(group, rank)
_add_ephemeral_timeout_for_all_pgs(timeout)
_abort_process_group(group=None)
_get_default_group()
_get_default_store()
_get_process_group_store(pg)
_get_process_group_name(pg)
_rank_not_in_group(group)
_find_pg_by_ranks_and_tag(tag, ranks)
_get_object_coll_device(group=None)
_supports_reconfigure(group=None)
_get_reconfigure_handle(group=None)
_supports_window(group=None)
_make_nccl_premul_sum(factor)
_register_process_group(name, pg)
_resolve_process_group(name)
_unregister_process_group(name)
_unregister_all_process_groups()
_compute_bucket_assignment_by_size(tensors, bucket_size, expect_sparse_gradient=(), tensor_indices=(), logger=None)
_broadcast_coalesced(process_group, tensors, buffer_size, src=0)
_verify_params_across_processes(process_group, params, logger=None)
_register_comm_hook(reducer, state, comm_hook)
_register_builtin_comm_hook(reducer, comm_hook_type)
"""

# Of c10d's namespace beside distributed_c10d.__all__.
NAMES = """
_broadcast_coalesced _compute_bucket_assignment_by_size _DEFAULT_FIRST_BUCKET_BYTES _make_nccl_premul_sum
_register_builtin_comm_hook _register_comm_hook _test_python_store _verify_params_across_processes _Backend BuiltinCommHookType
DebugLevel FileStore get_debug_level GradBucket HashStore Logger PrefixStore ProcessGroup Reducer set_debug_level
set_debug_level_from_env Store TCPStore _Work _all_gather_base _coalescing_manager _CoalescingManager
_create_process_group_wrapper _get_process_group_name _get_reconfigure_handle _new_window _rank_not_in_group _reconfigure
_reduce_scatter_base _supports_reconfigure _supports_window _time_estimator get_node_local_rank _remote_device
_create_store_from_options register_rendezvous_handler rendezvous DeviceMesh init_device_mesh is_available breakpoint
DistError DistBackendError DistNetworkError DistStoreError QueueEmptyError _StoreCollectives _ControlCollectives
""".split()

# Of the module distributed_c10d; programs and tests of c10d use them.
PRIVATE_NAMES = """
_set_pg_timeout _get_global_rank _add_ephemeral_timeout_for_all_pgs _abort_process_group _get_default_group _get_default_store
_get_process_group_store _get_process_group_name _rank_not_in_group _store_based_barrier _create_process_group_wrapper
_find_pg_by_ranks_and_tag _new_group_with_tag _get_object_coll_device _world _World STORE_BASED_BARRIER_PREFIX _GLOO_AVAILABLE
_MPI_AVAILABLE _NCCL_AVAILABLE _UCC_AVAILABLE _XCCL_AVAILABLE _pg_map _pg_names _pg_group_ranks _pg_backend_config _pg_to_tag
_tags_to_pg _group_count _register_process_group _resolve_process_group _unregister_process_group
_unregister_all_process_groups default_pg_timeout default_pg_nccl_timeout rendezvous register_rendezvous_handler _IllegalWork
_ProcessGroupWrapper _DistributedBackendOptions _group_or_default_group _get_group_size
_get_group_tag _get_default_timeout _check_valid_timeout _warn_not_in_group _reduce_op _CoalescingManager
_new_process_group_helper _update_default_pg _get_split_source _get_process_group_uid _get_pg_config _get_all_pg_configs
_get_group_size_by_name _resolve_group_name_by_ranks_and_tag _get_pg_default_device _device_capability _canonicalize_group_rank
_check_single_tensor _check_tensor_list _check_op _check_p2p_op_list _check_not_self_rank _check_single_backend_availability
_ensure_all_tensors_same_dtype _as_iterable _CollOp _WorldMeta _is_barrier_after_init _export_c_types _backend
_default_pg_init_method PG_WRAPPER_STORE_PREFIX _pickler _unpickler logger _tensor_to_object _object_to_tensor
_find_or_create_pg_by_ranks_and_tag _TimeEstimator _is_safe_to_split _process_group_name _process_group_color _hash_ranks_to_str
_is_fp8 _exception_logger _time_logger
""".split()

NONE_NOW = {"default_pg_nccl_timeout", "_backend", "_default_pg_init_method"}  # without NCCL, or before there is a group

PYBIND = "machinery of pybind11"
PLURAL = "they are lists: their name is the one that ProcessGroup.alltoall has for them"

DIFFERENCES = {
    "_export_c_types": "has torch's extension types say that they come from this module",
    "_create_process_group_wrapper(timeout)": "None means the 30 minutes: datetime is not imported with the package",
    "_store_based_barrier(logging_interval)": "nothing is logged while it waits",
    "Future._is_protocol": "machinery of typing",
    "_World.comms": "torchcomms, which is another library",
}
used_differences = set()


def is_excused(name):
    if name in DIFFERENCES:
        used_differences.add(name)
    return name in DIFFERENCES


def owner_of(name):
    """The namespace of ours that has to have the name: the package, or distributed_c10d for private ones."""
    return c10d if name in PRIVATE_NAMES and not hasattr(dldist, name) else dldist


# ---- signatures


def shape(function):
    """{name: (kind, default)} of the arguments, in order."""
    return {p.name: (p.kind, p.default) for p in inspect.signature(function).parameters.values()}


def assert_compatible(name, theirs, ours):
    """Whatever can be said to theirs can be said to ours: the same arguments in the same order."""
    assert list(ours)[: len(theirs)] == list(theirs), name
    for argument, (kind, default) in theirs.items():
        if is_excused(f"{name}({argument})"):
            continue
        assert ours[argument][0] == kind, f"{name}({argument}): kind"
        assert comparable(ours[argument][1]) == comparable(default), f"{name}({argument}): default"


def comparable(default):
    """A default value; reductions by name, since those of torch are other objects."""
    return getattr(default, "name", default) if "RedOp" in type(default).__name__ or "ReduceOp" in str(default) else default


@pytest.mark.parametrize("line", re.sub("\n +", " ", SIGNATURES).split("\n")[1:-1], ids=lambda line: line.partition("(")[0])
def test_signature(line):
    definition = ast.parse(f"def {line}: pass").body[0]
    name, arguments = definition.name, definition.args.args
    defaults = [inspect.Parameter.empty] * (len(arguments) - len(definition.args.defaults))
    defaults += [eval(ast.unparse(default), vars(dldist)) for default in definition.args.defaults]
    theirs = {
        argument.arg: (inspect.Parameter.POSITIONAL_OR_KEYWORD, default)
        for argument, default in zip(arguments, defaults, strict=True)
    }
    function = getattr(dldist if hasattr(dldist, name) else c10d, name)
    ours = shape(function)
    assert_compatible(name, theirs, ours)
    more = [ours[argument][0] for argument in list(ours)[len(theirs) :]]
    assert all(kind is inspect.Parameter.KEYWORD_ONLY for kind in more), "c10d may have others there one day"
    assert function.__doc__, f"{name} has no documentation"


def test_names():
    """With or without torch: what is not excused is there."""
    excused = {name for name in DIFFERENCES if re.fullmatch(r"\w+", name)}
    for name in {*NAMES, *PRIVATE_NAMES} - excused - NONE_NOW:
        assert getattr(owner_of(name), name, None) is not None, name


def test_constants():
    minutes = __import__("datetime").timedelta(minutes=30)
    assert dldist.default_pg_timeout == c10d.default_pg_timeout == c10d._DEFAULT_PG_TIMEOUT == minutes
    assert c10d._DEFAULT_NO_TIMEOUT.total_seconds() == 0
    assert c10d.default_pg_nccl_timeout is None
    assert dldist._DEFAULT_FIRST_BUCKET_BYTES == 1048576
    assert dldist.GroupMember.NON_GROUP_MEMBER == -100
    assert dldist.group.WORLD is dldist.GroupMember.WORLD is None
    assert (dldist.SHRINK_DEFAULT, dldist.SHRINK_ABORT) == (0, 1)
    assert c10d.STORE_BASED_BARRIER_PREFIX == "store_based_barrier_key"


@pytest.mark.parametrize("module", [dldist, c10d])
def test_names_that_are_not_imported_with_the_package(module):
    """They are there, their classes know where they come from, and what is not there says so."""
    for name in ("register_rendezvous_handler", "_create_store_from_options", "breakpoint", "spawn", "_StoreCollectives"):
        assert callable(getattr(module, name)), name
    assert module.FakeProcessGroup is fake.FakeProcessGroup
    assert module._ProcessGroupWrapper.__name__ == "_ProcessGroupWrapper"
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'nonsense'"):
        _ = module.nonsense


def test_modules_that_need_no_import():
    """As torch.distributed has them."""
    code = "import dldist as d; print([getattr(d, name).__name__ for name in ('algorithms', 'c10d_logger', 'constants', 'device_mesh')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert done.stdout == "['dldist.algorithms', 'dldist.c10d_logger', 'dldist.constants', 'dldist.device_mesh']\n", done.stderr


def test_rendezvous_is_a_module_and_a_function():
    assert dldist.rendezvous.rendezvous is c10d.rendezvous
    assert dldist.rendezvous.register_rendezvous_handler is dldist.register_rendezvous_handler


def test_names_that_are_classes():
    assert dldist._Backend is backend_base.Backend
    assert dldist._Work is dldist.Work
    assert c10d._IllegalWork is work._IllegalWork
    assert dldist.GroupName("name") == "name"


def test_premul_sum():
    op = dldist._make_nccl_premul_sum(2.5)
    assert op.factor == 2.5 and op.name == "PREMUL_SUM"
    assert isinstance(op, dldist.ReduceOp)


def test_the_registrys_names_are_live(monkeypatch):
    """c10d's _pg_map and the like show what is there now, with whatever registry."""
    assert c10d._pg_map is c10d._world.pg_map
    registry = c10d._World()
    monkeypatch.setattr(c10d, "_world", registry)
    assert c10d._pg_map is registry.pg_map and c10d._group_count == 0


# ---- questions about the environment


@pytest.fixture
def bare_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "PMI_", "MPI_")) or name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            monkeypatch.delenv(name)
    return monkeypatch


def test_node_local_rank(bare_environment):
    with pytest.raises(RuntimeError, match="LOCAL_RANK is not in the environment"):
        dldist.get_node_local_rank()
    assert dldist.get_node_local_rank(fallback_rank=3) == 3
    assert dldist.get_node_local_rank("4") == 4
    bare_environment.setenv("OMPI_COMM_WORLD_RANK", "5")
    bare_environment.setenv("OMPI_COMM_WORLD_SIZE", "8")
    bare_environment.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1")
    assert dldist.get_node_local_rank(fallback_rank=3) == 1
    bare_environment.setenv("LOCAL_RANK", "2")
    assert dldist.get_node_local_rank(fallback_rank=3) == 2
    bare_environment.setenv("LOCAL_RANK", "two")
    with pytest.raises(ValueError, match="two"):
        dldist.get_node_local_rank()


def test_breakpoint():
    """The debugger comes on the second call of the line, and the program goes on after it."""
    code = """
        import dldist
        dldist.init_process_group()
        for turn in range(2):
            print("turn", turn, flush=True)
            dldist.breakpoint(skip=1)
        """
    done = subprocess.run(
        [sys.executable, "-c", inspect.cleandoc(code)], input="up\np turn * 100\nc\n", capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 0, done.stdout + done.stderr
    before, _, after = done.stdout.partition("turn 1")
    assert "(Pdb)" not in before
    assert "Type 'up' to get to the frame that called dldist.breakpoint(rank=0)" in after
    assert "\n(Pdb) 100\n" in after


# ---- against torch


def theirs_and_ours():
    """(name, torch's, ours or None) of everything that has to be there."""
    import torch.distributed
    import torch.distributed.distributed_c10d as theirs

    for name in theirs.__all__:
        yield name, getattr(theirs, name), getattr(dldist, name, None)
    for name in {*NAMES, *PRIVATE_NAMES}:
        module = torch.distributed if hasattr(torch.distributed, name) else theirs
        if hasattr(module, name):  # some came after this version of torch, or went before it
            yield name, getattr(module, name), getattr(owner_of(name), name, None)


@pytest.mark.torch
def test_names_against_torch():
    missing = [name for name, _, ours in theirs_and_ours() if ours is None and not is_excused(name)]
    missing = [name for name in missing if name not in NONE_NOW]
    assert not missing, "add them, or say in DIFFERENCES why not"


@pytest.mark.torch
def test_signatures_against_torch():
    checked = []
    for name, theirs, ours in theirs_and_ours():
        if name != "reduce_op" and inspect.isfunction(theirs) and ours is not None:  # warns of any look at it
            if name == "rendezvous":
                ours = dldist.rendezvous.rendezvous
            assert_compatible(name, shape(theirs), shape(ours))
            checked.append(name)
    assert len(checked) > 70, checked


@pytest.mark.torch
def test_bindings_against_torch():
    """What torch's extension has and its modules use."""
    import torch._C._distributed_c10d as theirs

    names = {name for name in dir(theirs) if not name.startswith("__")}
    missing = [name for name in names if not hasattr(dldist, name) and not hasattr(c10d, name) and not is_excused(name)]
    assert len(names) > 60 and not missing, "add them, or say in DIFFERENCES why not"


def enums():
    import torch._C._distributed_c10d as theirs

    return [
        (theirs.OpType, options.OpType),
        (theirs.WorkResult, options.WorkResult),
        (theirs.ErrorType, options.ErrorType),
        (theirs.DebugLevel, options.DebugLevel),
        (theirs.BuiltinCommHookType, options.BuiltinCommHookType),
        (theirs.ProcessGroup.BackendType, dldist.ProcessGroup.BackendType),
        (theirs.ReduceOp.RedOpType, dldist.ReduceOp.RedOpType),
        *([(theirs.HookOpName, hooks.HookOpName)] if hasattr(theirs, "HookOpName") else []),
    ]


@pytest.mark.torch
def test_enums_against_torch():
    """Members and numbers. torch's UNUSED of ReduceOp is no reduction."""
    for theirs, ours in enums():
        expected = {name: int(member) for name, member in theirs.__members__.items() if name != "UNUSED"}
        assert expected, theirs
        found = {name: int(member) for name, member in ours.__members__.items()}
        assert expected.items() <= found.items(), theirs


def classes():
    """{name: (torch's class, ours, or an instance where attributes are made in __init__)}"""
    import torch._C._distributed_c10d as core
    import torch.distributed.distributed_c10d as theirs
    import torch.futures

    options_names = [name for name in dir(core) if re.fullmatch("[A-Z].*Options", name)]
    return {name: (getattr(core, name), getattr(dldist, name)()) for name in options_names} | {
        "ProcessGroup": (core.ProcessGroup, dldist.ProcessGroup),
        "ProcessGroupGloo": (core.ProcessGroupGloo, dldist.ProcessGroupGloo),
        "ProcessGroupGloo._Options": (core.ProcessGroupGloo._Options, dldist.ProcessGroupGloo._Options()),
        "Backend": (core.Backend, dldist._Backend),
        "Backend.Options": (core.Backend.Options, dldist._Backend.Options("gloo")),
        "_DistributedBackendOptions": (core._DistributedBackendOptions, c10d._DistributedBackendOptions()),
        "FakeProcessGroup": (core.FakeProcessGroup, fake.FakeProcessGroup),
        "FakeWork": (core.FakeWork, work.FakeWork()),
        "PythonCallbackWork": (core.PythonCallbackWork, work.PythonCallbackWork),
        "_StoreCollectives": (core._StoreCollectives, dldist._StoreCollectives),
        "_ProcessGroupWrapper": (core._ProcessGroupWrapper, dldist._ProcessGroupWrapper),
        "Work": (core.Work, dldist.Work),
        "ReduceOp": (core.ReduceOp, dldist.ReduceOp),
        "Future": (torch.futures.Future, dldist.Future),
        "Backend (str)": (theirs.Backend, dldist.Backend),
        "BackendConfig": (theirs.BackendConfig("gloo"), dldist.BackendConfig("gloo")),
        "P2POp": (theirs.P2POp, dldist.P2POp),
        "group": (theirs.group, dldist.group),
        "GroupMember": (theirs.GroupMember, dldist.GroupMember),
        "_World": (theirs._World, c10d._World()),
        "_CoalescingManager": (theirs._CoalescingManager, c10d._CoalescingManager),
        "Store": (core.Store, dldist.Store),
        "TCPStore": (core.TCPStore, dldist.TCPStore),
        "FileStore": (core.FileStore, dldist.FileStore),
        "HashStore": (core.HashStore, dldist.HashStore),
        "PrefixStore": (core.PrefixStore, dldist.PrefixStore),
        "Reducer": (core.Reducer, dldist.Reducer),
        "GradBucket": (core.GradBucket, dldist.GradBucket),
        "Logger": (core.Logger, dldist.Logger),
    }


def members(kind):
    return {name for name in dir(kind) if not name.startswith("__") and name != "_pybind11_conduit_v1_"}


# Those of stores are for test_surface.py; the last is ours: torch's class gets it where dldist is installed.
NOT_HERE = {"collect_client_counters", "collect_server_counters", "DLDIST"}


@pytest.mark.torch
def test_classes_against_torch():
    missing = []
    for name, (theirs, ours) in classes().items():
        for member in sorted(members(theirs) - members(ours) - NOT_HERE):
            if not is_excused(f"{name}.{member}") and not is_excused(f"*.{member}"):
                missing.append(f"{name}.{member}")
    assert not missing, "add them, or say in DIFFERENCES why not"


def overloads(method):
    """The names of the arguments of each overload, as pybind11 writes them in the documentation."""
    lines = re.findall(rf"^(?:\d+\. )?{method.__name__}\(self: (.*)\) -> ", method.__doc__ or "", re.MULTILINE)
    return [[name for name in re.findall(r"(?:^|, )(\w+): ", line) if not re.fullmatch(r"arg\d+", name)] for line in lines]


# Store's methods take their arguments by position in torch; its names are pybind11's.
METHODS_OF = [
    "ProcessGroup",
    "Backend",
    "ProcessGroupGloo",
    "Work",
    "_StoreCollectives",
    "FakeProcessGroup",
    "GradBucket",
    "Logger",
    "Reducer",
]


@pytest.mark.torch
@pytest.mark.parametrize("kind", METHODS_OF)
def test_methods_arguments_against_torch(kind):
    """Every name of an argument in any overload of torch's is one of ours."""
    theirs, ours = classes()[kind]
    wrong = []
    for name in sorted(members(theirs) & members(ours)):
        method = getattr(theirs, name)
        if not callable(method) or inspect.isclass(method):
            continue
        for names in overloads(method):
            known = inspect.signature(getattr(ours, name)).parameters
            has_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values())
            for argument in names:
                spelled = f"{kind}.{name}({argument})"
                if argument not in known and not has_any and not is_excused(spelled):
                    wrong.append(spelled)
    assert not wrong, "add them, or say in DIFFERENCES why not"


@pytest.mark.torch
def test_every_difference_is_one():
    """The last test of this file: an entry that nothing has needed is out of date. Needs the whole file to have run."""
    used_differences.clear()
    test_names_against_torch()
    test_signatures_against_torch()
    test_bindings_against_torch()
    test_classes_against_torch()
    for kind in METHODS_OF:
        test_methods_arguments_against_torch(kind)
    assert set(DIFFERENCES) == used_differences
