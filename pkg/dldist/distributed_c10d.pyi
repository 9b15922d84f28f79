# Made by tools/make_stubs.py from _api/namespace.py.
from typing import Any

from dldist._core import PrefixStore as PrefixStore
from dldist._core import ReduceOp as ReduceOp
from dldist._core import Store as Store
from dldist._core import Work as Work
from dldist._api.coalescing import coalescing as coalescing
from dldist._api.coalescing import record_comm as record_comm
from dldist._api.collectives import *
from dldist._backends.cpu import ProcessGroupGloo as ProcessGroupGloo
from dldist._api.groups import REVOKE_DEFAULT as REVOKE_DEFAULT
from dldist._api.groups import SHRINK_ABORT as SHRINK_ABORT
from dldist._api.groups import SHRINK_DEFAULT as SHRINK_DEFAULT
from dldist._api.groups import abort as abort
from dldist._api.groups import default_world as default_world
from dldist._api.groups import destroy_process_group as destroy_process_group
from dldist._api.groups import get_backend as get_backend
from dldist._api.groups import get_backend_config as get_backend_config
from dldist._api.groups import get_backend_impl as get_backend_impl
from dldist._api.groups import get_pg_count as get_pg_count
from dldist._api.groups import init_process_group as init_process_group
from dldist._api.groups import is_initialized as is_initialized
from dldist._api.groups import new_group as new_group
from dldist._api.groups import new_subgroups as new_subgroups
from dldist._api.groups import new_subgroups_by_enumeration as new_subgroups_by_enumeration
from dldist._api.groups import revoke_process_group as revoke_process_group
from dldist._api.groups import set_timeout as set_timeout
from dldist._api.groups import shrink_group as shrink_group
from dldist._api.groups import split_group as split_group
from dldist._backends.backend_names import Backend as Backend
from dldist._backends.backend_names import BackendConfig as BackendConfig
from dldist._backends.backend_names import get_default_backend_for_device as get_default_backend_for_device
from dldist._backends.backend_names import is_available as is_available
from dldist._backends.backend_names import is_backend_available as is_backend_available
from dldist._backends.backend_names import is_gloo_available as is_gloo_available
from dldist._backends.backend_names import is_launched as is_launched
from dldist._backends.backend_names import is_mpi_available as is_mpi_available
from dldist._backends.backend_names import is_nccl_available as is_nccl_available
from dldist._backends.backend_names import is_torchelastic_launched as is_torchelastic_launched
from dldist._backends.backend_names import is_ucc_available as is_ucc_available
from dldist._backends.backend_names import is_xccl_available as is_xccl_available
from dldist._api.objects import all_gather_object as all_gather_object
from dldist._api.objects import gather_object as gather_object
from dldist._api.objects import broadcast_object_list as broadcast_object_list
from dldist._api.objects import scatter_object_list as scatter_object_list
from dldist._api.objects import send_object_list as send_object_list
from dldist._api.objects import recv_object_list as recv_object_list
from dldist._base.options import AllToAllOptions as AllToAllOptions
from dldist._base.options import AllgatherOptions as AllgatherOptions
from dldist._base.options import AllreduceCoalescedOptions as AllreduceCoalescedOptions
from dldist._base.options import AllreduceOptions as AllreduceOptions
from dldist._base.options import BarrierOptions as BarrierOptions
from dldist._base.options import BroadcastOptions as BroadcastOptions
from dldist._base.options import DebugLevel as DebugLevel
from dldist._base.options import GatherOptions as GatherOptions
from dldist._base.options import ReduceOptions as ReduceOptions
from dldist._base.options import ReduceScatterOptions as ReduceScatterOptions
from dldist._base.options import ScatterOptions as ScatterOptions
from dldist._base.options import get_debug_level as get_debug_level
from dldist._base.options import set_debug_level as set_debug_level
from dldist._base.options import set_debug_level_from_env as set_debug_level_from_env
from dldist._api.p2p import isend as isend
from dldist._api.p2p import irecv as irecv
from dldist._api.p2p import send as send
from dldist._api.p2p import recv as recv
from dldist._api.p2p import P2POp as P2POp
from dldist._api.p2p import batch_isend_irecv as batch_isend_irecv
from dldist._backends.process_group import ProcessGroup as ProcessGroup
from dldist._api.ranks import get_global_rank as get_global_rank
from dldist._api.ranks import get_group_rank as get_group_rank
from dldist._api.ranks import get_node_local_rank as get_node_local_rank
from dldist._api.ranks import get_process_group_ranks as get_process_group_ranks
from dldist._api.ranks import get_rank as get_rank
from dldist._api.ranks import get_world_size as get_world_size
from dldist._api.registry import GroupMember as GroupMember
from dldist._api.registry import GroupName as GroupName
from dldist._api.registry import group as group
from dldist._core import DistAbortedError as DistAbortedError
from dldist._core import DistArgumentError as DistArgumentError
from dldist._core import DistAuthError as DistAuthError
from dldist._core import DistBackendError as DistBackendError
from dldist._core import DistError as DistError
from dldist._core import DistMismatchError as DistMismatchError
from dldist._core import DistNetworkError as DistNetworkError
from dldist._core import DistNetworkTimeoutError as DistNetworkTimeoutError
from dldist._core import DistPeerLostError as DistPeerLostError
from dldist._core import DistQueueEmptyError as DistQueueEmptyError
from dldist._core import DistStoreError as DistStoreError
from dldist._core import DistStoreTimeoutError as DistStoreTimeoutError
from dldist._core import DistTimeoutError as DistTimeoutError
from dldist._core import DistTypeError as DistTypeError
from dldist._core import FileStore as FileStore
from dldist._core import Group as Group
from dldist._core import HashStore as HashStore
from dldist._core import Member as Member
from dldist._core import Plan as Plan
from dldist._core import QueueEmptyError as QueueEmptyError
from dldist._core import SharedArray as SharedArray
from dldist._core import TCPStore as TCPStore
from dldist._core import start_all as start_all
from dldist._core import wait_all as wait_all
from dldist._base.future import Future as Future
from dldist._base.options import BuiltinCommHookType as BuiltinCommHookType
from dldist._base.options import PutOptions as PutOptions
from dldist._base.options import SignalOptions as SignalOptions
from dldist._base.options import WaitSignalOptions as WaitSignalOptions
from dldist._base.options import WindowAccessType as WindowAccessType
from dldist._api.torch_private import default_pg_timeout as default_pg_timeout
from dldist._api.window import Window as Window
from dldist._api.window import WindowAttr as WindowAttr
from dldist._api.window import empty as empty
from dldist.device_mesh import DeviceMesh as DeviceMesh
from dldist.device_mesh import init_device_mesh as init_device_mesh
from dldist._launch.spawn import spawn as spawn
from dldist.reducer import GradBucket as GradBucket
from dldist.reducer import Logger as Logger
from dldist.reducer import Reducer as Reducer
from dldist.rendezvous import register_rendezvous_handler as register_rendezvous_handler
from dldist.types import Tensor as Tensor
from dldist.world import World as World
from dldist._core import Work as _Work
from dldist._backends.backend_base import Backend as _Backend
from dldist._api.breakpoint import breakpoint as breakpoint
from dldist._api.torch_bindings import _remote_device as _remote_device
from dldist._api.torch_bindings import _test_python_store as _test_python_store
from dldist._api.coalescing import _CoalescingManager as _CoalescingManager
from dldist._api.coalescing import _coalescing_manager as _coalescing_manager
from dldist._api.coalescing import _time_estimator as _time_estimator
from dldist._api.collectives import _all_gather_base as _all_gather_base
from dldist._api.collectives import _make_nccl_premul_sum as _make_nccl_premul_sum
from dldist._api.collectives import _reduce_scatter_base as _reduce_scatter_base
from dldist._backends.fake import FakeProcessGroup as FakeProcessGroup
from dldist._backends.fake import FakeStore as FakeStore
from dldist._api.group_factory import create_process_group_wrapper as _create_process_group_wrapper
from dldist._api.torch_private import _DEFAULT_FIRST_BUCKET_BYTES as _DEFAULT_FIRST_BUCKET_BYTES
from dldist._api.torch_private import _get_process_group_name as _get_process_group_name
from dldist._api.torch_private import _get_reconfigure_handle as _get_reconfigure_handle
from dldist._api.torch_private import _new_window as _new_window
from dldist._api.torch_private import _reconfigure as _reconfigure
from dldist._api.torch_private import _supports_reconfigure as _supports_reconfigure
from dldist._api.torch_private import _supports_window as _supports_window
from dldist._api.ranks import is_non_member as _rank_not_in_group
from dldist._api.store_collectives import _ControlCollectives as _ControlCollectives
from dldist._api.store_collectives import _StoreCollectives as _StoreCollectives
from dldist._backends.works import FakeWork as FakeWork
from dldist._backends.works import PythonCallbackWork as PythonCallbackWork
from dldist._backends.works import _IllegalWork as _IllegalWork
from dldist._backends.works import _create_work_from_future as _create_work_from_future
from dldist._backends.wrapper import _ProcessGroupWrapper as _ProcessGroupWrapper
from dldist.flight_recorder import _dump_fr_trace as _dump_fr_trace
from dldist.flight_recorder import _dump_fr_trace_file as _dump_fr_trace_file
from dldist.flight_recorder import _dump_fr_trace_json as _dump_fr_trace_json
from dldist.flight_recorder import _dump_nccl_trace as _dump_nccl_trace
from dldist.flight_recorder import _dump_nccl_trace_json as _dump_nccl_trace_json
from dldist.flight_recorder import _reset_fr_recording_nccl as _reset_fr_recording_nccl
from dldist.flight_recorder import _reset_fr_trace as _reset_fr_trace
from dldist.reducer import _broadcast_coalesced as _broadcast_coalesced
from dldist.reducer import _compute_bucket_assignment_by_size as _compute_bucket_assignment_by_size
from dldist.reducer import _register_builtin_comm_hook as _register_builtin_comm_hook
from dldist.reducer import _register_comm_hook as _register_comm_hook
from dldist.reducer import _verify_params_across_processes as _verify_params_across_processes
from dldist.rendezvous import _create_store_from_options as _create_store_from_options
from dldist._api.torch_bindings import _DMAConnectivity as _DMAConnectivity
from dldist._api.torch_bindings import _detect_dma_connectivity as _detect_dma_connectivity
from dldist._api.torch_bindings import _get_intra_node_comm_usage_counter as _get_intra_node_comm_usage_counter
from dldist._api.torch_bindings import _hash_tensors as _hash_tensors
from dldist._api.torch_bindings import _set_global_rank as _set_global_rank
from dldist._api.coalescing import _CollOp as _CollOp
from dldist._api.coalescing import _TimeEstimator as _TimeEstimator
from dldist._api.coalescing import _get_comm_profiling_name as _get_comm_profiling_name
from dldist._api.coalescing import _set_comm_profiling_name as _set_comm_profiling_name
from dldist._api.collectives import _reduce_op as _reduce_op
from dldist._backends.completion_hooks import CompletionHookArgs as CompletionHookArgs
from dldist._backends.completion_hooks import WorkInfo as WorkInfo
from dldist._api.groups import STORE_BASED_BARRIER_PREFIX as STORE_BASED_BARRIER_PREFIX
from dldist._api.groups import _abort_process_group as _abort_process_group
from dldist._api.groups import _find_pg_by_ranks_and_tag as _find_pg_by_ranks_and_tag
from dldist._api.groups import _is_barrier_after_init as _is_barrier_after_init
from dldist._api.groups import _new_group_with_tag as _new_group_with_tag
from dldist._api.groups import set_timeout as _set_pg_timeout
from dldist._api.groups import store_based_barrier as _store_based_barrier
from dldist._backends.health_check import HealthCheckHook as HealthCheckHook
from dldist._backends.hooks import FlightRecorderHook as FlightRecorderHook
from dldist._backends.hooks import NanCheckHook as NanCheckHook
from dldist._backends.hooks import PostHookArgs as PostHookArgs
from dldist._backends.hooks import PreHookArgs as PreHookArgs
from dldist._api.group_factory import PG_WRAPPER_STORE_PREFIX as PG_WRAPPER_STORE_PREFIX
from dldist._api.group_factory import check_timeout as _check_valid_timeout
from dldist._api.group_factory import default_timeout as _get_default_timeout
from dldist._backends.backend_names import _check_single_backend_availability as _check_single_backend_availability
from dldist._api.object_tensors import _object_to_tensor as _object_to_tensor
from dldist._api.object_tensors import _pickler as _pickler
from dldist._api.object_tensors import _tensor_to_object as _tensor_to_object
from dldist._api.object_tensors import _unpickler as _unpickler
from dldist._base.options import ErrorType as ErrorType
from dldist._base.options import HookOpName as HookOpName
from dldist._base.options import OpType as OpType
from dldist._base.options import ReconfigureOptions as ReconfigureOptions
from dldist._base.options import WorkResult as WorkResult
from dldist._api.p2p import _check_op as _check_op
from dldist._api.p2p import _check_p2p_op_list as _check_p2p_op_list
from dldist._api.p2p import _check_single_tensor as _check_single_tensor
from dldist._api.torch_private import _DEFAULT_NO_TIMEOUT as _DEFAULT_NO_TIMEOUT
from dldist._api.torch_private import _DEFAULT_PG_TIMEOUT as _DEFAULT_PG_TIMEOUT
from dldist._api.torch_private import _GLOO_AVAILABLE as _GLOO_AVAILABLE
from dldist._api.torch_private import _WorldMeta as _WorldMeta
from dldist._api.torch_private import _add_ephemeral_timeout_for_all_pgs as _add_ephemeral_timeout_for_all_pgs
from dldist._api.torch_private import _as_iterable as _as_iterable
from dldist._api.torch_private import _canonicalize_group_rank as _canonicalize_group_rank
from dldist._api.torch_private import _check_not_self_rank as _check_not_self_rank
from dldist._api.torch_private import _check_tensor_list as _check_tensor_list
from dldist._api.torch_private import _current_process_group as _current_process_group
from dldist._api.torch_private import _device_capability as _device_capability
from dldist._api.torch_private import _ensure_all_tensors_same_dtype as _ensure_all_tensors_same_dtype
from dldist._api.torch_private import _find_or_create_pg_by_ranks_and_tag as _find_or_create_pg_by_ranks_and_tag
from dldist._api.torch_private import _get_all_pg_configs as _get_all_pg_configs
from dldist._api.torch_private import _get_default_store as _get_default_store
from dldist._api.torch_private import _get_global_rank as _get_global_rank
from dldist._api.torch_private import _get_group_size as _get_group_size
from dldist._api.torch_private import _get_group_size_by_name as _get_group_size_by_name
from dldist._api.torch_private import _get_group_tag as _get_group_tag
from dldist._api.torch_private import _get_object_coll_device as _get_object_coll_device
from dldist._api.torch_private import _get_pg_config as _get_pg_config
from dldist._api.torch_private import _get_pg_default_device as _get_pg_default_device
from dldist._api.torch_private import _get_process_group_store as _get_process_group_store
from dldist._api.torch_private import _get_process_group_uid as _get_process_group_uid
from dldist._api.torch_private import _get_split_source as _get_split_source
from dldist._api.torch_private import _hash_ranks_to_str as _hash_ranks_to_str
from dldist._api.torch_private import _is_fp8 as _is_fp8
from dldist._api.torch_private import _is_safe_to_split as _is_safe_to_split
from dldist._api.torch_private import _new_process_group_helper as _new_process_group_helper
from dldist._api.torch_private import _process_group_color as _process_group_color
from dldist._api.torch_private import _process_group_name as _process_group_name
from dldist._api.torch_private import _resolve_group_name_by_ranks_and_tag as _resolve_group_name_by_ranks_and_tag
from dldist._api.torch_private import _set_process_group as _set_process_group
from dldist._api.torch_private import _update_default_pg as _update_default_pg
from dldist._backends.process_group import DistributedBackendOptions as _DistributedBackendOptions
from dldist._api.ranks import group_or_default as _group_or_default_group
from dldist._api.ranks import warn_not_in_group as _warn_not_in_group
from dldist._api.registry import Registry as _World
from dldist._api.registry import default_group as _get_default_group
from dldist._api.registry import set_thread_isolation_mode as _set_thread_isolation_mode
from dldist._api.work_registry import _allow_inflight_collective_as_graph_input as _allow_inflight_collective_as_graph_input
from dldist._api.work_registry import _get_work_registry_size as _get_work_registry_size
from dldist._api.work_registry import _register_work as _register_work
from dldist._api.work_registry import _set_allow_inflight_collective_as_graph_input as _set_allow_inflight_collective_as_graph_input
from dldist.control.handlers import Request as _Request
from dldist.control.handlers import Response as _Response
from dldist.control.handlers import get_handler as _get_handler
from dldist.control.handlers import handler_names as _get_handler_names
from dldist.control.handlers import register_handler as _register_handler
from dldist.control.server import _WorkerServer as _WorkerServer
from dldist.c10d_logger import _exception_logger as _exception_logger
from dldist.c10d_logger import _time_logger as _time_logger
from dldist.c10d_logger import logger as logger
from dldist.reducer.log import DDPLoggingData as DDPLoggingData
from dldist.symmetric_memory import _SymmetricMemory as _SymmetricMemory

from dldist.rendezvous import rendezvous as rendezvous

__all__: list[str]
_world: _World

ProcessGroupMPI: Any
ProcessGroupNCCL: Any
ProcessGroupUCC: Any
ProcessGroupXCCL: Any
default_pg_nccl_timeout: Any
_DEFAULT_PG_NCCL_TIMEOUT: Any
_MPI_AVAILABLE: Any
_NCCL_AVAILABLE: Any
_UCC_AVAILABLE: Any
_XCCL_AVAILABLE: Any
_backend: Any
_default_pg_init_method: Any
_group_count: Any
_is_process_group_registered: Any
_pg_backend_config: Any
_pg_group_ranks: Any
_pg_map: Any
_pg_names: Any
_pg_to_tag: Any
_register_process_group: Any
_resolve_process_group: Any
_tags_to_pg: Any
_unregister_all_process_groups: Any
_unregister_process_group: Any
