"""The names that programs find in `dldist` and `dldist.distributed_c10d`.

Each name is listed once, with the module that defines it, which is imported at the name's first
use. `name=other` means that `name` is `other` in the module. tools/make_stubs.py makes stubs from
the tables. This module must not import `typing`, because `import dldist` imports it.
"""

from __future__ import annotations

import sys

C10D = {
    "dldist._core": "PrefixStore ReduceOp Store Work",
    "dldist._api.coalescing": "coalescing record_comm",
    "dldist._api.collectives": """
        all_gather all_gather_coalesced all_gather_into_tensor all_gather_single all_reduce all_reduce_coalesced all_to_all
        all_to_all_single barrier broadcast exscan gather gather_into_tensor gather_single monitored_barrier reduce reduce_op
        reduce_scatter reduce_scatter_single reduce_scatter_tensor scan scatter supports_complex
    """,
    "dldist._backends.cpu": "ProcessGroupGloo",
    "dldist._api.groups": """
        REVOKE_DEFAULT SHRINK_ABORT SHRINK_DEFAULT abort default_world destroy_process_group get_backend get_backend_config
        get_backend_impl get_pg_count init_process_group is_initialized new_group new_subgroups
        new_subgroups_by_enumeration revoke_process_group set_timeout shrink_group split_group
    """,
    "dldist._backends.backend_names": """
        Backend BackendConfig get_default_backend_for_device is_available is_backend_available is_gloo_available
        is_launched is_mpi_available is_nccl_available is_torchelastic_launched is_ucc_available is_xccl_available
    """,
    "dldist._api.objects": """
        all_gather_object broadcast_object_list gather_object recv_object_list scatter_object_list send_object_list
    """,
    "dldist._base.options": """
        AllToAllOptions AllgatherOptions AllreduceCoalescedOptions AllreduceOptions BarrierOptions BroadcastOptions
        DebugLevel GatherOptions ReduceOptions ReduceScatterOptions ScatterOptions get_debug_level set_debug_level
        set_debug_level_from_env
    """,
    "dldist._api.p2p": "P2POp batch_isend_irecv irecv isend recv send",
    "dldist._backends.process_group": "ProcessGroup",
    "dldist._api.ranks": "get_global_rank get_group_rank get_node_local_rank get_process_group_ranks get_rank get_world_size",
    "dldist._backends.registry": "GroupMember GroupName group",
}
"""The public names of both modules: distributed_c10d.__all__."""

PACKAGE = {
    "dldist._core": """
        DistAbortedError DistArgumentError DistAuthError DistBackendError DistError DistMismatchError DistNetworkError
        DistNetworkTimeoutError DistPeerLostError DistQueueEmptyError DistStoreError DistStoreTimeoutError DistTimeoutError
        DistTypeError FileStore Group HashStore Member Plan Plans QueueEmptyError SharedArray TCPStore start_all
    """,
    "dldist._base.future": "Future",
    "dldist._base.options": "BuiltinCommHookType PutOptions SignalOptions WaitSignalOptions WindowAccessType",
    "dldist._api.torch_private": "default_pg_timeout",
    "dldist._api.objects": "irecv_object isend_object",
    "dldist._api.p2p": "iprobe probe",
    "dldist._base.probes": "ANY_TAG MessageInfo NO_RANK",
    "dldist._api.shared_arrays": "empty",
    "dldist._objects.kinds": "allow_classes",
    "dldist._api.waiting": "test_any wait_all wait_any wait_some",
    "dldist.device_mesh": "DeviceMesh init_device_mesh",
    "dldist._launch.spawn": "ProcessException ProcessExitedException ProcessRaisedException spawn",
    "dldist.reducer": "GradBucket Logger Reducer",
    "dldist.rendezvous": "register_rendezvous_handler",
    "dldist._windows.window": "Window WindowAttr",
    "dldist.types": "Tensor",
    "dldist.world": "World",
}
"""Public names of dldist that distributed_c10d has but does not list in its __all__."""

PRIVATE = {
    "dldist._core": "_Work=Work",
    "dldist._backends.backend_base": "_Backend=Backend",
    "dldist._api.breakpoint": "breakpoint",
    "dldist._api.torch_bindings": "_remote_device _test_python_store",
    "dldist._api.coalescing": "_CoalescingManager _coalescing_manager _time_estimator",
    "dldist._api.collectives": "_all_gather_base _make_nccl_premul_sum _reduce_scatter_base",
    "dldist._backends.fake": "FakeProcessGroup FakeStore",
    "dldist._api.group_factory": "_create_process_group_wrapper=create_process_group_wrapper",
    "dldist._api.torch_private": """
        ProcessGroupMPI ProcessGroupNCCL ProcessGroupUCC ProcessGroupXCCL _DEFAULT_FIRST_BUCKET_BYTES
        _get_process_group_name _get_reconfigure_handle _new_window _reconfigure _supports_reconfigure _supports_window default_pg_nccl_timeout
    """,
    "dldist._api.ranks": "_rank_not_in_group=is_non_member",
    "dldist._api.store_collectives": "_ControlCollectives _StoreCollectives",
    "dldist._base.works": "FakeWork PythonCallbackWork _IllegalWork _create_work_from_future",
    "dldist._backends.wrapper": "_ProcessGroupWrapper",
    "dldist.flight_recorder": """
        _dump_fr_trace _dump_fr_trace_file _dump_fr_trace_json _dump_nccl_trace _dump_nccl_trace_json _reset_fr_recording_nccl
        _reset_fr_trace
    """,
    "dldist.reducer": """
        _broadcast_coalesced _compute_bucket_assignment_by_size _register_builtin_comm_hook _register_comm_hook
        _verify_params_across_processes
    """,
    "dldist.rendezvous": "_create_store_from_options rendezvous",
}
"""Names that both modules have besides their public names, as in torch.distributed."""

C10D_ONLY = {
    "dldist._api.torch_bindings": """
        _DMAConnectivity _detect_dma_connectivity _get_intra_node_comm_usage_counter _hash_tensors _set_global_rank
    """,
    "dldist._api.coalescing": "_CollOp _TimeEstimator _get_comm_profiling_name _set_comm_profiling_name",
    "dldist._api.collectives": "_reduce_op",
    "dldist._api.groups": """
        STORE_BASED_BARRIER_PREFIX _abort_process_group _find_pg_by_ranks_and_tag _is_barrier_after_init
        _new_group_with_tag _set_pg_timeout=set_timeout _store_based_barrier=store_based_barrier
    """,
    "dldist._backends.health_check": "HealthCheckHook",
    "dldist._backends.hook_args": "CompletionHookArgs PostHookArgs PreHookArgs WorkInfo",
    "dldist._backends.hooks": "FlightRecorderHook NanCheckHook",
    "dldist._api.group_factory": "PG_WRAPPER_STORE_PREFIX _check_valid_timeout=check_timeout",
    "dldist._backends.backend_names": "_check_single_backend_availability _get_default_timeout=default_timeout",
    "dldist._api.object_tensors": "_object_to_tensor _pickler _tensor_to_object _unpickler",
    "dldist._base.options": "ErrorType HookOpName OpType ReconfigureOptions WorkResult",
    "dldist._api.p2p": "_check_op _check_p2p_op_list _check_single_tensor",
    "dldist._api.torch_private": """
        _DEFAULT_NO_TIMEOUT _DEFAULT_PG_NCCL_TIMEOUT _DEFAULT_PG_TIMEOUT _GLOO_AVAILABLE _MPI_AVAILABLE _NCCL_AVAILABLE _UCC_AVAILABLE
        _WorldMeta _XCCL_AVAILABLE _add_ephemeral_timeout_for_all_pgs _as_iterable _backend _canonicalize_group_rank
        _check_not_self_rank _check_tensor_list _current_process_group _default_pg_init_method _device_capability
        _ensure_all_tensors_same_dtype _find_or_create_pg_by_ranks_and_tag _get_all_pg_configs _get_default_store
        _get_global_rank _get_group_size _get_group_size_by_name _get_group_tag _get_object_coll_device _get_pg_config
        _get_pg_default_device _get_process_group_store _get_process_group_uid _get_split_source _group_count
        _hash_ranks_to_str _is_fp8 _is_process_group_registered _is_safe_to_split _new_process_group_helper _pg_backend_config _pg_group_ranks
        _pg_map _pg_names _pg_to_tag _process_group_color _process_group_name _register_process_group
        _resolve_group_name_by_ranks_and_tag _resolve_process_group _set_process_group _tags_to_pg
        _unregister_all_process_groups _unregister_process_group _update_default_pg
    """,
    "dldist._backends.process_group": "_DistributedBackendOptions=DistributedBackendOptions",
    "dldist._api.ranks": "_group_or_default_group=group_or_default _warn_not_in_group=warn_not_in_group",
    "dldist._backends.registry": """
        _World=Registry _get_default_group=default_group _set_thread_isolation_mode=set_thread_isolation_mode
    """,
    "dldist._api.work_registry": """
        _allow_inflight_collective_as_graph_input _get_work_registry_size _register_work
        _set_allow_inflight_collective_as_graph_input
    """,
    "dldist.control.handlers": """
        _Request=Request _Response=Response _get_handler=get_handler _get_handler_names=handler_names
        _register_handler=register_handler
    """,
    "dldist.control.server": "_WorkerServer",
    "dldist.c10d_logger": "_exception_logger _time_logger logger",
    "dldist.reducer.log": "DDPLoggingData",
    "dldist.symmetric_memory": "_SymmetricMemory",
}
"""Names that only distributed_c10d has: c10d's private names, and rarely used ones."""


def parse_names(*tables: dict[str, str]) -> list[tuple[str, str, str]]:
    """Return (name, its module, the module's name for it) for each name in the tables."""
    rows = []
    for module, names in (row for table in tables for row in table.items()):
        for entry in names.split():
            name, _, definition = entry.partition("=")
            rows.append((name, module, definition or name))
    return rows


UNCACHED_MODULE = "dldist._api.torch_private"
"""The module whose names have changing values: they are looked up at each use and never cached."""


class Finder:
    """The `__getattr__` of dldist or distributed_c10d: import a name, and store its value."""

    def __init__(self, module_name: str, *tables: dict[str, str]) -> None:
        self._module_name = module_name
        self._definitions = {name: (module, definition) for name, module, definition in parse_names(*tables)}

    def __call__(self, name: str) -> object:
        if name not in self._definitions:
            raise AttributeError(f"module {self._module_name!r} has no attribute {name!r}")
        module, definition = self._definitions[name]
        value = getattr(__import__(module, fromlist=(definition,)), definition)
        if module != UNCACHED_MODULE:
            vars(sys.modules[self._module_name]).setdefault(name, value)
        return value
