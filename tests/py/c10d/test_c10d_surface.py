"""c10d's interface, name by name, against a table of its signatures and against the installed
torch.

The test reads the names that torch's modules define from their source. A name that a new version
adds fails a test here until dldist has it or a table below states the reason for its absence.
Tables may contain names that only some versions of torch have.
"""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys

import dldist
import dldist.distributed_c10d as c10d
import pytest
from dldist._backends import backend_base, fake, hooks
from dldist._base import options, works

# The signatures of c10d 2.14. dldist may have additional, keyword-only arguments.
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
_reconfigure(uuid, handles, group=None, timeout=None, hints=None)
_new_window(tensor=None, group=None)
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

# Names of c10d's namespace besides distributed_c10d.__all__.
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

# Names of the module distributed_c10d that programs and tests of c10d use.
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

# None without NCCL, or before a group exists
NONE_WITHOUT_A_GROUP = {"default_pg_nccl_timeout", "_backend", "_default_pg_init_method"}

PYBIND = "machinery of pybind11"
PLURAL = "they are lists: their name is the one that ProcessGroup.alltoall has for them"

DIFFERENCES = {
    "_create_process_group_wrapper(timeout)": "None means the 30 minutes: datetime is not imported with the package",
    "_store_based_barrier(logging_interval)": "nothing is logged while it waits",
    "Future._is_protocol": "machinery of typing",
    "ReduceOp.boxed": "an argument of torch's compiled functions",
    "ReduceOp.unbox": "an argument of torch's compiled functions",
    "_get_split_source(requested_backend)": "it can be left out, as with torch 2.14",
    "Backend (str)._ensure_backend_registered": "torch's entry points register backends of torch",
    "_World.comms": "torchcomms, which is another library",
    "_World.pg_flight_recorder_hooks": "dldist's groups record themselves",
}

# Names that torch's modules define and dldist lacks, grouped by reason.
NOT_IN_DLDIST = {
    "typing, and Python's own names": "_T _NonGroupMember _ReduceOp TYPE_CHECKING RankType _PGConfig _WorldPGConfig _GroupMetadata _ShrinkGroupInfo",
    "torch registers its types with pickle and its compiler": "_export_c_types _register_process_group_opaque_type",
    "parts of torch's shrink_group": """
        _cleanup_original_group _cleanup_process_group_global_state _create_shrunk_process_group _destroy_all_other_groups
        _extract_group_metadata _finalize_shrunk_group _prepare_shrink_target_group _validate_and_process_excluded_ranks
        _validate_shrink_backend_requirements _validate_shrink_inputs
    """,
    "parts of torch's init_process_group and new_group": """
        _create_gloo_process_group _create_mpi_process_group _create_nccl2_process_group _create_nccl_lazy_process_group
        _create_nccl_process_group _create_ucc_process_group _create_xccl_process_group _get_backend_from_str
        _get_backend_name_for_device _get_default_backend_type_for_backend_config _nccl2_device _nccl2_options
        _new_group_via_split_group _parse_backend_string _pg_options_to_hints _register_builtin_gloo_backend
        _register_builtin_mpi_backend _register_builtin_nccl2_backend _register_builtin_nccl_as_legacy
        _register_builtin_nccl_backend _register_builtin_nccl_lazy_backend _register_builtin_nccl_legacy_backend
        _register_builtin_ucc_backend _register_builtin_xccl_backend _register_pg_in_world
    """,
    "a check of torch's gather and scatter": "_validate_output_list_for_rank",
    "torch's recorder is attached to groups; dldist's groups record themselves": """
        _FR_SELF_RECORDING_BACKENDS _maybe_attach_flight_recorder
    """,
    "torchcomms, which is another library": """
        _TORCHCOMM_AVAILABLE _TorchComm _create_torchcomms_backend _is_torchcomms_backend _resolve_torchcomms_backend
        _resolve_torchcomms_device _torchcomms_handles_backend _torchcomms_is_backend_built
        _torchcomms_is_backend_registered _use_torchcomms_enabled
    """,
    "backends and memory of torch's CUDA builds": """
        NCCLXStub ProcessGroupNCCL2 ProcessGroupNCCLLazy _NcclEpGroup _NcclEpHandle _is_nvshmem_available _nccl_ep_combine
        _nccl_ep_dispatch _nvshmemx_cumodule_init _register_external_nccl_comm _unregister_external_nccl_comm
    """,
    "parts of torch's breakpoint, and of its package": """
        _breakpoint_cache _is_spmd_types_available _make_distributed_pdb _spmd_no_typecheck _spmd_types_available log
    """,
}
REASONS = {name: reason for reason, names in NOT_IN_DLDIST.items() for name in names.split()}
WITH_NCCL = {"ProcessGroupNCCL"}  # dldist has it if NCCL is installed

used_differences = set()


def is_excused(name):
    if name in DIFFERENCES:
        used_differences.add(name)
    return name in DIFFERENCES or name in REASONS or name in WITH_NCCL and not dldist.is_nccl_available()


def owner_of(name):
    """Return the dldist namespace that must have the name: the package, or distributed_c10d for
    private names."""
    return c10d if name in PRIVATE_NAMES and not hasattr(dldist, name) else dldist


# ---- signatures


def shape(function):
    """Return {name: (kind, default)} of the arguments, in order."""
    return {p.name: (p.kind, p.default) for p in inspect.signature(function).parameters.values()}


def assert_compatible(name, torch_value, dldist_value):
    """dldist's function must accept every call of torch's: the same arguments in the same order."""
    assert list(dldist_value)[: len(torch_value)] == list(torch_value), name
    for argument, (kind, default) in torch_value.items():
        if is_excused(f"{name}({argument})"):
            continue
        assert dldist_value[argument][0] == kind, f"{name}({argument}): kind"
        assert comparable(dldist_value[argument][1]) == comparable(default), f"{name}({argument}): default"


def comparable(default):
    """Return a comparable default value: reductions by name, because torch has its own objects."""
    return getattr(default, "name", default) if "RedOp" in type(default).__name__ or "ReduceOp" in str(default) else default


@pytest.mark.parametrize("line", re.sub("\n +", " ", SIGNATURES).split("\n")[1:-1], ids=lambda line: line.partition("(")[0])
def test_functions_have_the_listed_signatures_of_torch_distributed(line):
    definition = ast.parse(f"def {line}: pass").body[0]
    name, arguments = definition.name, definition.args.args
    defaults = [inspect.Parameter.empty] * (len(arguments) - len(definition.args.defaults))
    used = {node.id: getattr(dldist, node.id) for default in definition.args.defaults for node in ast.walk(default) if isinstance(node, ast.Name)}
    defaults += [eval(ast.unparse(default), used) for default in definition.args.defaults]
    torch_value = {
        argument.arg: (inspect.Parameter.POSITIONAL_OR_KEYWORD, default)
        for argument, default in zip(arguments, defaults, strict=True)
    }
    function = getattr(dldist if hasattr(dldist, name) else c10d, name)
    dldist_value = shape(function)
    assert_compatible(name, torch_value, dldist_value)
    more = [dldist_value[argument][0] for argument in list(dldist_value)[len(torch_value) :]]
    assert all(kind is inspect.Parameter.KEYWORD_ONLY for kind in more), "c10d may have others there one day"
    assert function.__doc__, f"{name} has no documentation"


def test_every_listed_name_of_torch_exists_except_documented_ones():
    """With or without torch, names that are not excused must exist."""
    for name in {*NAMES, *PRIVATE_NAMES} - REASONS.keys() - NONE_WITHOUT_A_GROUP:
        assert getattr(owner_of(name), name, None) is not None, name


def test_constants_have_the_values_of_torch_distributed():
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
def test_lazily_imported_names_exist_and_unknown_names_raise(module):
    """Lazily imported names must exist, with classes that name their module; other names must raise
    AttributeError."""
    for name in ("register_rendezvous_handler", "_create_store_from_options", "breakpoint", "spawn", "_StoreCollectives"):
        assert callable(getattr(module, name)), name
    assert module.FakeProcessGroup is fake.FakeProcessGroup
    assert module._ProcessGroupWrapper.__name__ == "_ProcessGroupWrapper"
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'unknown'"):
        _ = module.unknown


def test_submodules_are_available_without_importing_them():
    """These modules must be available without import, as in torch.distributed."""
    code = "import dldist as d; print([getattr(d, name).__name__ for name in ('algorithms', 'c10d_logger', 'constants', 'device_mesh')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert done.stdout == "['dldist.algorithms', 'dldist.c10d_logger', 'dldist.constants', 'dldist.device_mesh']\n", done.stderr


def test_rendezvous_can_be_called_and_used_as_a_module():
    assert dldist.rendezvous.rendezvous is c10d.rendezvous
    assert dldist.rendezvous.register_rendezvous_handler is dldist.register_rendezvous_handler


def test_alias_names_refer_to_the_same_classes():
    assert dldist._Backend is backend_base.Backend
    assert dldist._Work is dldist.Work
    assert c10d._IllegalWork is works._IllegalWork
    assert dldist.GroupName("name") == "name"


def test_premul_sum_for_nccl_has_its_factor():
    op = dldist._make_nccl_premul_sum(2.5)
    assert op.factor == 2.5 and op.name == "PREMUL_SUM"
    assert isinstance(op, dldist.ReduceOp)


def test_private_registry_names_reflect_the_current_registry(monkeypatch):
    """c10d's _pg_map and similar names must reflect the current state of the current registry."""
    assert c10d._pg_map is c10d._world.pg_map
    registry = c10d._World()
    monkeypatch.setattr(c10d, "_world", registry)
    assert c10d._pg_map is registry.pg_map and c10d._group_count == 0


# ---- queries of the environment


@pytest.fixture
def bare_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "PMI_", "MPI_")) or name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            monkeypatch.delenv(name)
    return monkeypatch


def test_node_local_rank_is_read_from_the_environment(bare_environment):
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


def test_breakpoint_skips_calls_and_then_starts_the_debugger():
    """The debugger must start on the second call of the line, and the program continue after it."""
    code = """
        import dldist
        dldist.init_process_group()
        for turn in range(2):
            print("turn", turn, flush=True)
            dldist.breakpoint(skip=1)
        """
    done = subprocess.run(
        [sys.executable, "-c", inspect.cleandoc(code)], input="p turn * 100\nc\n", capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 0, done.stdout + done.stderr
    before, _, after = done.stdout.partition("turn 1")
    assert "(Pdb)" not in before
    assert after.startswith("\nrank 0 is in the debugger; the other ranks wait for its first command")
    assert "\n(Pdb) 100\n" in after


# ---- against torch


def torch_and_dldist_objects():
    """Yield (name, torch's object, dldist's or None) for every required name."""
    import torch.distributed
    import torch.distributed.distributed_c10d as torch_value

    for name in torch_value.__all__:
        yield name, getattr(torch_value, name), getattr(dldist, name, None)
    for name in {*NAMES, *PRIVATE_NAMES}:
        module = torch.distributed if hasattr(torch.distributed, name) else torch_value
        if hasattr(module, name):  # some versions of torch lack it
            yield name, getattr(module, name), getattr(owner_of(name), name, None)


@pytest.mark.torch
def test_public_names_of_torch_distributed_exist_in_dldist():
    missing = [name for name, _, dldist_value in torch_and_dldist_objects() if dldist_value is None and not is_excused(name)]
    missing = [name for name in missing if name not in NONE_WITHOUT_A_GROUP]
    assert not missing, "add them, or say in DIFFERENCES why not"


@pytest.mark.torch
def test_signatures_are_compatible_with_those_of_torch_distributed():
    checked = []
    for name, torch_value, dldist_value in torch_and_dldist_objects():
        if name != "reduce_op" and inspect.isfunction(torch_value) and dldist_value is not None:  # warns if read
            if name == "rendezvous":
                dldist_value = dldist.rendezvous.rendezvous
            assert_compatible(name, shape(torch_value), shape(dldist_value))
            checked.append(name)
    assert len(checked) > 70, checked


def missing_of(names):
    """Return the names that neither dldist module has and no table excuses."""
    return sorted(name for name in names if not is_excused(name) and not hasattr(dldist, name) and not hasattr(c10d, name))


@pytest.mark.torch
def test_names_of_torchs_c_extension_exist_in_dldist():
    """dldist must have the names that torch's extension defines and torch's modules use."""
    import torch._C._distributed_c10d as torch_value

    names = {name for name in dir(torch_value) if not name.startswith("__")}
    assert len(names) > 60 and missing_of(names) == [], "add them, or say in NOT_IN_DLDIST why not"


def defined_names(module):
    """Return the names that a module's source defines at top level, including branches and try
    blocks, without its imports."""
    return set(names_bound_by(ast.parse(inspect.getsource(module)).body))


def names_bound_by(statements):
    for statement in statements:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            yield statement.name
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
        else:
            for block in ("body", "orelse", "finalbody", "handlers"):
                yield from names_bound_by(getattr(statement, block, []))


MODULES = ["torch.distributed", "torch.distributed.distributed_c10d"]


@pytest.mark.torch
@pytest.mark.parametrize("module", MODULES)
def test_every_name_of_a_torch_distributed_module_is_listed(module):
    torch_value = importlib.import_module(module)
    names = {name for name in defined_names(torch_value) if hasattr(torch_value, name) and not name.startswith("__")}
    assert len(names) > 3 and missing_of(names - NONE_WITHOUT_A_GROUP) == [], "new in torch: add them, or say in NOT_IN_DLDIST why not"


@pytest.mark.torch
def test_new_name_in_a_torch_module_is_reported(tmp_path, monkeypatch):
    """A new function, class or constant of a torch module must be reported, wherever it is."""
    path = tmp_path / "newer_torch.py"
    path.write_text("import os\nif os:\n    def brand_new(): ...\ntry:\n    _Newer = 3\nfinally:\n    all_reduce = 4\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert missing_of(defined_names(importlib.import_module("newer_torch"))) == ["_Newer", "brand_new"]


@pytest.mark.torch
def test_names_listed_as_missing_do_not_exist():
    """dldist must not have the excused names."""
    assert [name for name in REASONS if hasattr(dldist, name) or hasattr(c10d, name)] == []


def enums():
    import torch._C._distributed_c10d as torch_value

    return [
        (torch_value.OpType, options.OpType),
        (torch_value.WorkResult, options.WorkResult),
        (torch_value.ErrorType, options.ErrorType),
        (torch_value.DebugLevel, options.DebugLevel),
        (torch_value.BuiltinCommHookType, options.BuiltinCommHookType),
        (torch_value.ProcessGroup.BackendType, dldist.ProcessGroup.BackendType),
        (torch_value.ReduceOp.RedOpType, dldist.ReduceOp.RedOpType),
        *([(torch_value.HookOpName, hooks.HookOpName)] if hasattr(torch_value, "HookOpName") else []),
    ]


@pytest.mark.torch
def test_enums_have_torchs_members_and_values():
    """Members and values must match. ReduceOp.UNUSED of torch is not a reduction."""
    for torch_value, dldist_value in enums():
        expected = {name: int(member) for name, member in torch_value.__members__.items() if name != "UNUSED"}
        # torch 2.14 has fewer names before the last one
        if torch_value.__name__ == "HookOpName" and "ALLTOALL_BASE" not in expected:
            del expected["UNKNOWN"]
        assert expected, torch_value
        found = {name: int(member) for name, member in dldist_value.__members__.items()}
        assert expected.items() <= found.items(), torch_value


def classes():
    """Return {name: (torch's class, dldist's, or an instance if attributes are set later)}."""
    import torch._C._distributed_c10d as core
    import torch.distributed.distributed_c10d as torch_value
    import torch.futures

    options_names = [name for name in dir(core) if re.fullmatch("[A-Z].*Options", name)]
    return {name: (getattr(core, name), getattr(c10d, name)()) for name in options_names} | {
        "ProcessGroup": (core.ProcessGroup, dldist.ProcessGroup),
        "ProcessGroupGloo": (core.ProcessGroupGloo, dldist.ProcessGroupGloo),
        "ProcessGroupGloo._Options": (core.ProcessGroupGloo._Options, dldist.ProcessGroupGloo._Options()),
        "Backend": (core.Backend, dldist._Backend),
        "Backend.Options": (core.Backend.Options, dldist._Backend.Options("gloo")),
        "_DistributedBackendOptions": (core._DistributedBackendOptions, c10d._DistributedBackendOptions()),
        "FakeProcessGroup": (core.FakeProcessGroup, fake.FakeProcessGroup),
        "FakeWork": (core.FakeWork, works.FakeWork()),
        "PythonCallbackWork": (core.PythonCallbackWork, works.PythonCallbackWork),
        "_ProcessGroupWrapper": (core._ProcessGroupWrapper, dldist._ProcessGroupWrapper),
        "Work": (core.Work, dldist.Work),
        "ReduceOp": (core.ReduceOp, dldist.ReduceOp),
        "Future": (torch.futures.Future, dldist.Future),
        "Backend (str)": (torch_value.Backend, dldist.Backend),
        "BackendConfig": (torch_value.BackendConfig("gloo"), dldist.BackendConfig("gloo")),
        "P2POp": (torch_value.P2POp, dldist.P2POp),
        "group": (torch_value.group, dldist.group),
        "GroupMember": (torch_value.GroupMember, dldist.GroupMember),
        "_World": (torch_value._World, c10d._World()),
        "_CoalescingManager": (torch_value._CoalescingManager, c10d._CoalescingManager),
        "Store": (core.Store, dldist.Store),
        "TCPStore": (core.TCPStore, dldist.TCPStore),
        "FileStore": (core.FileStore, dldist.FileStore),
        "HashStore": (core.HashStore, dldist.HashStore),
        "PrefixStore": (core.PrefixStore, dldist.PrefixStore),
        "Reducer": (core.Reducer, dldist.Reducer),
        "GradBucket": (core.GradBucket, dldist.GradBucket),
        "Logger": (core.Logger, dldist.Logger),
    } | {
        name: (getattr(core, name), getattr(c10d, name))
        for name in ("_StoreCollectives", *HOOKS)  # only in some versions of torch
        if hasattr(core, name)
    }


HOOKS = ["FlightRecorderHook", "HealthCheckHook", "NanCheckHook", "PostHookArgs", "PreHookArgs"]


def members(kind):
    return {name for name in dir(kind) if not name.startswith("__") and name != "_pybind11_conduit_v1_"}


# test_surface.py covers the names of stores. The last name is dldist's, added to torch's class if
# dldist is installed.
NOT_HERE = {"collect_client_counters", "collect_server_counters", "DLDIST"}


@pytest.mark.torch
def test_classes_have_the_members_of_torchs_classes():
    missing = []
    for name, (torch_value, dldist_value) in classes().items():
        for member in sorted(members(torch_value) - members(dldist_value) - NOT_HERE):
            if not is_excused(f"{name}.{member}") and not is_excused(f"*.{member}"):
                missing.append(f"{name}.{member}")
    assert not missing, "add them, or say in DIFFERENCES why not"


def overloads(method):
    """Return the argument names of each overload, from pybind11's docstring."""
    lines = re.findall(rf"^(?:\d+\. )?{method.__name__}\((?:self: )?(.*)\) -> ", method.__doc__ or "", re.MULTILINE)
    return [[name for name in re.findall(r"(?:^|, )(\w+): ", line) if not re.fullmatch(r"arg\d+", name)] for line in lines]


# torch passes Store's arguments by position; the names are pybind11's.
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
    *HOOKS,
]


@pytest.mark.torch
@pytest.mark.parametrize("kind", METHODS_OF)
def test_methods_have_the_argument_names_of_torchs_methods(kind):
    """Every argument name of every overload in torch must exist in dldist."""
    if kind not in classes():
        pytest.skip(f"this version of torch has no {kind}")
    torch_value, dldist_value = classes()[kind]
    wrong = []
    for name in sorted(members(torch_value) & members(dldist_value)):
        method = getattr(torch_value, name)
        if not callable(method) or inspect.isclass(method):
            continue
        for names in overloads(method):
            known = inspect.signature(getattr(dldist_value, name)).parameters
            has_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values())
            for argument in names:
                spelled = f"{kind}.{name}({argument})"
                if argument not in known and not has_any and not is_excused(spelled):
                    wrong.append(spelled)
    assert not wrong, "add them, or say in DIFFERENCES why not"


@pytest.mark.torch
def test_every_listed_difference_from_torch_is_still_needed():
    """Every entry must be needed. The last test here, because it needs the other tests' results."""
    used_differences.clear()
    test_public_names_of_torch_distributed_exist_in_dldist()
    test_signatures_are_compatible_with_those_of_torch_distributed()
    test_classes_have_the_members_of_torchs_classes()
    for kind in classes().keys() & METHODS_OF:
        test_methods_have_the_argument_names_of_torchs_methods(kind)
    assert {name for name in DIFFERENCES if is_in_torch(name)} == used_differences


def is_in_torch(difference):
    """Return True if the installed torch has the difference's member or argument."""
    import torch.distributed.distributed_c10d as torch_value

    name, _, argument = re.sub(r"(\(\w+\))$", r"\t\1", difference).partition("\t")
    owner, _, member = name.partition(".")
    if not member:
        return argument.strip("()") in shape(getattr(torch_value, name))
    known = classes()
    return owner not in known or hasattr(known[owner][0], member) or member in vars(torch_value._World())
