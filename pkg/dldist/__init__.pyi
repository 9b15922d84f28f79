# Made by tools/make_stubs.py from namespace.py.
from typing import Any

from dldist._core import PrefixStore as PrefixStore, ReduceOp as ReduceOp, Store as Store, Work as Work
from dldist.c10d.coalescing import *
from dldist.c10d.collectives import *
from dldist.c10d.gloo import *
from dldist.c10d.groups import *
from dldist.c10d.names import *
from dldist.c10d.objects import *
from dldist.c10d.options import *
from dldist.c10d.p2p import *
from dldist.c10d.process_group import *
from dldist.c10d.ranks import *
from dldist.c10d.registry import *
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
from dldist.base.future import Future as Future
from dldist.c10d.options import BuiltinCommHookType as BuiltinCommHookType
from dldist.c10d.options import PutOptions as PutOptions
from dldist.c10d.options import SignalOptions as SignalOptions
from dldist.c10d.options import WaitSignalOptions as WaitSignalOptions
from dldist.c10d.options import WindowAccessType as WindowAccessType
from dldist.c10d.private import default_pg_timeout as default_pg_timeout
from dldist.c10d.window import Window as Window
from dldist.c10d.window import WindowAttr as WindowAttr
from dldist.c10d.window import empty as empty
from dldist.launch.spawn import spawn as spawn
from dldist.reducer import GradBucket as GradBucket
from dldist.reducer import Logger as Logger
from dldist.reducer import Reducer as Reducer
from dldist.rendezvous import register_rendezvous_handler as register_rendezvous_handler
from dldist.types import Tensor as Tensor
from dldist.world import World as World
from dldist._core import Work as _Work
from dldist.c10d.backend_base import Backend as _Backend
from dldist.c10d.breakpoint import breakpoint as breakpoint
from dldist.c10d.coalescing import _CoalescingManager as _CoalescingManager
from dldist.c10d.coalescing import _coalescing_manager as _coalescing_manager
from dldist.c10d.coalescing import _time_estimator as _time_estimator
from dldist.c10d.collectives import _all_gather_base as _all_gather_base
from dldist.c10d.collectives import _make_nccl_premul_sum as _make_nccl_premul_sum
from dldist.c10d.collectives import _reduce_scatter_base as _reduce_scatter_base
from dldist.c10d.fake import FakeProcessGroup as FakeProcessGroup
from dldist.c10d.fake import FakeStore as FakeStore
from dldist.c10d.maker import create_process_group_wrapper as _create_process_group_wrapper
from dldist.c10d.private import _DEFAULT_FIRST_BUCKET_BYTES as _DEFAULT_FIRST_BUCKET_BYTES
from dldist.c10d.private import _get_process_group_name as _get_process_group_name
from dldist.c10d.private import _get_reconfigure_handle as _get_reconfigure_handle
from dldist.c10d.private import _new_window as _new_window
from dldist.c10d.private import _reconfigure as _reconfigure
from dldist.c10d.private import _supports_reconfigure as _supports_reconfigure
from dldist.c10d.private import _supports_window as _supports_window
from dldist.c10d.ranks import is_non_member as _rank_not_in_group
from dldist.c10d.store_collectives import _StoreCollectives as _StoreCollectives
from dldist.c10d.work import FakeWork as FakeWork
from dldist.c10d.work import PythonCallbackWork as PythonCallbackWork
from dldist.c10d.work import _IllegalWork as _IllegalWork
from dldist.c10d.work import _create_work_from_future as _create_work_from_future
from dldist.c10d.wrapper import _ProcessGroupWrapper as _ProcessGroupWrapper
from dldist.flight_recorder import _dump_fr_trace as _dump_fr_trace
from dldist.flight_recorder import _dump_fr_trace_json as _dump_fr_trace_json
from dldist.flight_recorder import _dump_nccl_trace as _dump_nccl_trace
from dldist.flight_recorder import _dump_nccl_trace_json as _dump_nccl_trace_json
from dldist.flight_recorder import _reset_fr_recording_nccl as _reset_fr_recording_nccl
from dldist.reducer import _broadcast_coalesced as _broadcast_coalesced
from dldist.reducer import _compute_bucket_assignment_by_size as _compute_bucket_assignment_by_size
from dldist.reducer import _register_builtin_comm_hook as _register_builtin_comm_hook
from dldist.reducer import _register_comm_hook as _register_comm_hook
from dldist.reducer import _verify_params_across_processes as _verify_params_across_processes
from dldist.rendezvous import _create_store_from_options as _create_store_from_options

from dldist import rendezvous as rendezvous

__all__: list[str]
__version__: str

def set_log_level(level: str) -> None: ...

ProcessGroupNCCL: Any
default_pg_nccl_timeout: Any
