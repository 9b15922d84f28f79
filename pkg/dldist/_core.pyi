import sys
from collections.abc import Callable, Generator, Sequence
from datetime import timedelta
from os import PathLike
from types import MappingProxyType
from typing import (
    Any,
    ClassVar,
    Final,
    Literal,
    NoReturn,
    Self,
    SupportsIndex,
    TypeAlias,
    TypedDict,
    final,
    overload,
)

from typing_extensions import Buffer, disjoint_base

from dldist._api.p2p import P2POp
from dldist._api.recorded_calls import Coalescing
from dldist._base.future import Future
from dldist.types import Op, Tensor, Tensors, Timeout

_Bytes: TypeAlias = str | Buffer
_Keys: TypeAlias = Sequence[str] | Sequence[bytes] | Sequence[str | bytes]
_Ints: TypeAlias = list[int] | tuple[int, ...]

class _TensorDescription(TypedDict):
    route: str
    dtype: str
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    data: int
    count: int
    is_readonly: bool
    is_contiguous: bool
    device: str
    device_type: int
    device_id: int

class DistError(RuntimeError):
    code: str | None
    rank: int | None
    host: str | None
    pid: int | None
    op: str | None
    seq: int | None
    group: str | None
    elapsed: float | None

class DistBackendError(DistError): ...
class DistNetworkError(DistError): ...
class DistStoreError(DistError): ...
class DistQueueEmptyError(DistStoreError): ...
class DistTimeoutError(DistError, TimeoutError): ...
class DistStoreTimeoutError(DistStoreError, DistTimeoutError): ...
class DistNetworkTimeoutError(DistNetworkError, DistTimeoutError): ...
class DistAuthError(DistNetworkError): ...
class DistPeerLostError(DistBackendError, ConnectionError): ...
class DistMismatchError(DistBackendError): ...
class DistAbortedError(DistBackendError): ...
class DistArgumentError(DistError, ValueError): ...
class DistTypeError(DistArgumentError, TypeError): ...

QueueEmptyError: TypeAlias = DistQueueEmptyError

@disjoint_base
class Store:
    def __init__(self) -> None: ...
    def set(self, key: _Bytes, value: _Bytes) -> None: ...
    def get(self, key: _Bytes, timeout: Timeout | None = None) -> bytes: ...
    def try_get(self, key: _Bytes) -> bytes | None: ...
    def add(self, key: _Bytes, amount: SupportsIndex) -> int: ...
    def compare_set(self, key: _Bytes, expected_value: _Bytes, desired_value: _Bytes) -> bytes: ...
    def wait(self, keys: _Keys, timeout: Timeout | None = None) -> None: ...
    def check(self, keys: _Keys) -> bool: ...
    def delete_key(self, key: _Bytes) -> bool: ...
    def num_keys(self) -> int: ...
    def append(self, key: _Bytes, value: _Bytes) -> None: ...
    def multi_get(self, keys: _Keys) -> list[bytes]: ...
    def multi_set(self, keys: _Keys, values: Sequence[str] | Sequence[Buffer] | Sequence[str | Buffer]) -> None: ...
    def queue_push(self, key: _Bytes, value: _Bytes) -> None: ...
    def queue_pop(self, key: _Bytes, block: bool = True, timeout: Timeout | None = None) -> bytes: ...
    def queue_len(self, key: _Bytes) -> int: ...
    def list_keys(self) -> list[str]: ...
    def barrier(self, key: _Bytes, world_size: SupportsIndex, timeout: Timeout | None = None) -> None: ...
    def clone(self) -> Store: ...
    def set_timeout(self, timeout: Timeout) -> None: ...
    def has_extended_api(self) -> bool: ...
    @property
    def timeout(self) -> timedelta: ...

@disjoint_base
class TCPStore(Store):
    def __init__(
        self,
        host_name: str,
        port: SupportsIndex,
        world_size: SupportsIndex | None = None,
        is_master: bool = False,
        timeout: Timeout = 300.0,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: SupportsIndex | None = None,
        use_libuv: bool = True,
        *,
        secret: _Bytes | None = None,
        max_key_bytes: SupportsIndex | None = None,
        max_value_bytes: SupportsIndex | None = None,
    ) -> None: ...
    def clone(self) -> TCPStore: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def libuvBackend(self) -> bool: ...

class FileStore(Store):
    def __init__(
        self,
        file_name: str | bytes | PathLike[str] | PathLike[bytes],
        world_size: SupportsIndex | None = -1,
        *,
        timeout: Timeout = 300.0,
    ) -> None: ...
    def clone(self) -> FileStore: ...
    @property
    def path(self) -> str: ...

class HashStore(Store):
    def __init__(self, *, timeout: Timeout = 300.0) -> None: ...
    def clone(self) -> HashStore: ...

@disjoint_base
class PrefixStore(Store):
    def __init__(self, prefix: _Bytes, store: Store) -> None: ...
    def clone(self) -> PrefixStore: ...
    @property
    def underlying_store(self) -> Store: ...
    @property
    def _underlying_non_prefix_store(self) -> Store: ...

@final
class ReduceOp:
    SUM: ClassVar[ReduceOp]
    AVG: ClassVar[ReduceOp]
    PRODUCT: ClassVar[ReduceOp]
    MIN: ClassVar[ReduceOp]
    MAX: ClassVar[ReduceOp]
    BAND: ClassVar[ReduceOp]
    BOR: ClassVar[ReduceOp]
    BXOR: ClassVar[ReduceOp]
    PREMUL_SUM: ClassVar[ReduceOp]
    RedOpType: ClassVar[type[ReduceOp]]
    __members__: ClassVar[MappingProxyType[str, ReduceOp]]
    def __new__(cls, name: str | ReduceOp, factor: Any = None) -> Self: ...
    def __call__(self, factor: Any) -> ReduceOp: ...
    def __hash__(self) -> int: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...
    @property
    def op(self) -> ReduceOp: ...
    @property
    def factor(self) -> Any: ...

@final
class Member(tuple[int, str, int, str, bool]):
    __match_args__: Final = ("rank", "host", "pid", "transport", "is_same_host")
    n_fields: Final = 5
    n_sequence_fields: Final = 5
    n_unnamed_fields: Final = 0
    @property
    def rank(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def transport(self) -> str: ...
    @property
    def is_same_host(self) -> bool: ...
    if sys.version_info >= (3, 13):
        def __replace__(self, /, **changes: object) -> Self: ...

@disjoint_base
class Work:
    def __init__(self) -> None: ...
    def is_completed(self) -> bool: ...
    def is_success(self) -> bool: ...
    def exception(self) -> BaseException | None: ...
    def result(self) -> list[Any]: ...
    def source_rank(self) -> int: ...
    def _source_rank(self) -> int: ...
    def wait(self, timeout: Timeout | None = None) -> bool: ...
    def synchronize(self) -> None: ...
    def get_future(self) -> Future: ...
    def get_future_result(self) -> NoReturn: ...
    def block_current_stream(self) -> NoReturn: ...
    def boxed(self) -> Self: ...
    @classmethod
    def unbox(cls, boxed: object, /) -> Self: ...
    def _get_duration(self) -> float: ...
    def _get_sequence_number(self) -> int: ...
    def _get_op_type(self) -> int: ...
    def __await__(self) -> Generator[Any, None, list[Any]]: ...
    def _watch(self, callback: Callable[[], object], /) -> None: ...
    @property
    def duration(self) -> float: ...
    @property
    def sequence(self) -> int: ...
    @property
    def op(self) -> str: ...
    @property
    def timeout(self) -> timedelta: ...

@final
class Plan:
    def __call__(self) -> None: ...
    def start(self) -> None: ...
    def wait(self) -> None: ...
    def is_completed(self) -> bool: ...
    def close(self) -> None: ...
    @property
    def op(self) -> str: ...
    @property
    def tensors(self) -> list[Any]: ...

@final
class SharedArray:
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...

    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: Any, /) -> Any: ...
    def __setitem__(self, key: Any, value: Any, /) -> None: ...
    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> Any: ...
    def tolist(self) -> Any: ...
    def part(self, start: SupportsIndex, shape: SupportsIndex | _Ints) -> SharedArray: ...
    def _note_unmapped(self) -> None: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...

@disjoint_base
class Window:
    def __new__(
        cls,
        group: Group,
        memory: Tensor | None = None,
        *,
        is_whole: bool = False,
        pad_size: int = 0,
        timeout: Timeout | None = None,
    ) -> Self: ...
    @overload
    def put(
        self,
        tensor: Tensor,
        rank: SupportsIndex,
        offset: SupportsIndex = 0,
        channel: SupportsIndex | None = None,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[False] = False,
    ) -> None: ...
    @overload
    def put(
        self,
        tensor: Tensor,
        rank: SupportsIndex,
        offset: SupportsIndex = 0,
        channel: SupportsIndex | None = None,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def put(
        self,
        tensor: Tensor,
        rank: SupportsIndex,
        offset: SupportsIndex = 0,
        channel: SupportsIndex | None = None,
        *,
        timeout: Timeout | None = None,
        async_op: bool,
    ) -> Work | None: ...
    @overload
    def get(
        self,
        tensor: Tensor,
        rank: SupportsIndex,
        offset: SupportsIndex = 0,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[False] = False,
    ) -> None: ...
    @overload
    def get(
        self,
        tensor: Tensor,
        rank: SupportsIndex,
        offset: SupportsIndex = 0,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def get(
        self,
        tensor: Tensor,
        rank: SupportsIndex,
        offset: SupportsIndex = 0,
        *,
        timeout: Timeout | None = None,
        async_op: bool,
    ) -> Work | None: ...
    def flush(self, *, timeout: Timeout | None = None) -> None: ...
    def signal(self, dst_rank: SupportsIndex, channel: SupportsIndex = 0, timeout_ms: SupportsIndex = 0) -> None: ...
    def put_signal(self, dst_rank: SupportsIndex, channel: SupportsIndex = 0, timeout_ms: SupportsIndex = 0) -> None: ...
    def wait_signal(self, src_rank: SupportsIndex, channel: SupportsIndex = 0, timeout_ms: SupportsIndex = 0) -> None: ...
    def take_signal(self, src_rank: SupportsIndex, channel: SupportsIndex = 0) -> bool: ...
    def barrier(self, channel: SupportsIndex = 0, timeout_ms: SupportsIndex = 0) -> None: ...
    def get_buffer(
        self,
        rank: SupportsIndex,
        sizes: SupportsIndex | Sequence[SupportsIndex],
        dtype: Any,
        storage_offset: SupportsIndex | None = 0,
    ) -> SharedArray: ...
    def get_remote_tensor(
        self, peer: SupportsIndex, sizes: SupportsIndex | Sequence[SupportsIndex], dtype: Any
    ) -> SharedArray: ...
    def get_signal_pad(
        self,
        rank: SupportsIndex,
        sizes: SupportsIndex | Sequence[SupportsIndex] = [],
        dtype: Any = None,
        storage_offset: SupportsIndex | None = 0,
    ) -> SharedArray: ...
    def close(self) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def group(self) -> Group: ...
    @property
    def buffer_size(self) -> int: ...
    @property
    def buffer_sizes(self) -> list[int]: ...
    @property
    def buffer_ptrs(self) -> list[int]: ...
    @property
    def offset(self) -> int: ...
    @property
    def signal_pad_size(self) -> int: ...
    @property
    def signal_pad_ptrs(self) -> list[int]: ...
    @property
    def channels(self) -> int: ...

@disjoint_base
class Group:
    def __init__(
        self,
        store: Store | None,
        rank: SupportsIndex,
        size: SupportsIndex,
        *,
        timeout: Timeout | None = 1800.0,
        name: str = "default",
        connect_timeout: Timeout | None = None,
    ) -> None: ...
    # The operations: made by tools/make_stubs.py.
    @overload
    def all_reduce(
        self,
        tensor: Tensor,
        op: Op = "sum",
        *,
        timeout: Timeout | None = None,
        async_op: Literal[False] = False,
    ) -> None: ...
    @overload
    def all_reduce(
        self,
        tensor: Tensor,
        op: Op = "sum",
        *,
        timeout: Timeout | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def all_reduce(
        self,
        tensor: Tensor,
        op: Op = "sum",
        *,
        timeout: Timeout | None = None,
        async_op: bool,
    ) -> Work | None: ...
    def plan_all_reduce(self, tensor: Tensor, op: Op = "sum", *, timeout: Timeout | None = None) -> Plan: ...
    @overload
    def all_reduce_coalesced(
        self,
        tensors: Tensors,
        op: Op = "sum",
        *,
        timeout: Timeout | None = None,
        async_op: Literal[False] = False,
    ) -> None: ...
    @overload
    def all_reduce_coalesced(
        self,
        tensors: Tensors,
        op: Op = "sum",
        *,
        timeout: Timeout | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def all_reduce_coalesced(
        self,
        tensors: Tensors,
        op: Op = "sum",
        *,
        timeout: Timeout | None = None,
        async_op: bool,
    ) -> Work | None: ...
    def plan_all_reduce_coalesced(
        self,
        tensors: Tensors,
        op: Op = "sum",
        *,
        timeout: Timeout | None = None,
    ) -> Plan: ...
    @overload
    def broadcast(
        self,
        tensor: Tensor,
        root: SupportsIndex = 0,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[False] = False,
    ) -> None: ...
    @overload
    def broadcast(
        self,
        tensor: Tensor,
        root: SupportsIndex = 0,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def broadcast(
        self,
        tensor: Tensor,
        root: SupportsIndex = 0,
        *,
        timeout: Timeout | None = None,
        async_op: bool,
    ) -> Work | None: ...
    def plan_broadcast(self, tensor: Tensor, root: SupportsIndex = 0, *, timeout: Timeout | None = None) -> Plan: ...
    @overload
    def reduce(
        self,
        tensor: Tensor,
        root: SupportsIndex = 0,
        op: Op = "sum",
        *,
        timeout: Timeout | None = None,
        async_op: Literal[False] = False,
    ) -> None: ...
    @overload
    def reduce(
        self,
        tensor: Tensor,
        root: SupportsIndex = 0,
        op: Op = "sum",
        *,
        timeout: Timeout | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def reduce(
        self,
        tensor: Tensor,
        root: SupportsIndex = 0,
        op: Op = "sum",
        *,
        timeout: Timeout | None = None,
        async_op: bool,
    ) -> Work | None: ...
    def plan_reduce(
        self,
        tensor: Tensor,
        root: SupportsIndex = 0,
        op: Op = "sum",
        *,
        timeout: Timeout | None = None,
    ) -> Plan: ...
    @overload
    def all_gather(
        self,
        output_list: Tensors,
        tensor: Tensor,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[False] = False,
    ) -> None: ...
    @overload
    def all_gather(
        self,
        output_list: Tensors,
        tensor: Tensor,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def all_gather(
        self,
        output_list: Tensors,
        tensor: Tensor,
        *,
        timeout: Timeout | None = None,
        async_op: bool,
    ) -> Work | None: ...
    def plan_all_gather(self, output_list: Tensors, tensor: Tensor, *, timeout: Timeout | None = None) -> Plan: ...
    @overload
    def all_gather_single(
        self,
        output: Tensor,
        tensor: Tensor,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[False] = False,
    ) -> None: ...
    @overload
    def all_gather_single(
        self,
        output: Tensor,
        tensor: Tensor,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def all_gather_single(
        self,
        output: Tensor,
        tensor: Tensor,
        *,
        timeout: Timeout | None = None,
        async_op: bool,
    ) -> Work | None: ...
    def plan_all_gather_single(self, output: Tensor, tensor: Tensor, *, timeout: Timeout | None = None) -> Plan: ...
    @overload
    def all_gather_coalesced(
        self,
        output_lists: Sequence[Tensors],
        tensors: Tensors,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[False] = False,
    ) -> None: ...
    @overload
    def all_gather_coalesced(
        self,
        output_lists: Sequence[Tensors],
        tensors: Tensors,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def all_gather_coalesced(
        self,
        output_lists: Sequence[Tensors],
        tensors: Tensors,
        *,
        timeout: Timeout | None = None,
        async_op: bool,
    ) -> Work | None: ...
    def plan_all_gather_coalesced(
        self,
        output_lists: Sequence[Tensors],
        tensors: Tensors,
        *,
        timeout: Timeout | None = None,
    ) -> Plan: ...
    @overload
    def all_gather_single_coalesced(
        self,
        outputs: Tensors,
        inputs: Tensors,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[False] = False,
    ) -> None: ...
    @overload
    def all_gather_single_coalesced(
        self,
        outputs: Tensors,
        inputs: Tensors,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def all_gather_single_coalesced(
        self,
        outputs: Tensors,
        inputs: Tensors,
        *,
        timeout: Timeout | None = None,
        async_op: bool,
    ) -> Work | None: ...
    def plan_all_gather_single_coalesced(
        self,
        outputs: Tensors,
        inputs: Tensors,
        *,
        timeout: Timeout | None = None,
    ) -> Plan: ...
    @overload
    def gather(
        self,
        tensor: Tensor,
        output_list: Tensors | None = None,
        root: SupportsIndex = 0,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[False] = False,
    ) -> None: ...
    @overload
    def gather(
        self,
        tensor: Tensor,
        output_list: Tensors | None = None,
        root: SupportsIndex = 0,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def gather(
        self,
        tensor: Tensor,
        output_list: Tensors | None = None,
        root: SupportsIndex = 0,
        *,
        timeout: Timeout | None = None,
        async_op: bool,
    ) -> Work | None: ...
    def plan_gather(
        self,
        tensor: Tensor,
        output_list: Tensors | None = None,
        root: SupportsIndex = 0,
        *,
        timeout: Timeout | None = None,
    ) -> Plan: ...
    @overload
    def gather_single(
        self,
        tensor: Tensor,
        output: Tensor | None = None,
        root: SupportsIndex = 0,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[False] = False,
    ) -> None: ...
    @overload
    def gather_single(
        self,
        tensor: Tensor,
        output: Tensor | None = None,
        root: SupportsIndex = 0,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def gather_single(
        self,
        tensor: Tensor,
        output: Tensor | None = None,
        root: SupportsIndex = 0,
        *,
        timeout: Timeout | None = None,
        async_op: bool,
    ) -> Work | None: ...
    def plan_gather_single(
        self,
        tensor: Tensor,
        output: Tensor | None = None,
        root: SupportsIndex = 0,
        *,
        timeout: Timeout | None = None,
    ) -> Plan: ...
    @overload
    def scatter(
        self,
        output: Tensor,
        input_list: Tensors | None = None,
        root: SupportsIndex = 0,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[False] = False,
    ) -> None: ...
    @overload
    def scatter(
        self,
        output: Tensor,
        input_list: Tensors | None = None,
        root: SupportsIndex = 0,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def scatter(
        self,
        output: Tensor,
        input_list: Tensors | None = None,
        root: SupportsIndex = 0,
        *,
        timeout: Timeout | None = None,
        async_op: bool,
    ) -> Work | None: ...
    def plan_scatter(
        self,
        output: Tensor,
        input_list: Tensors | None = None,
        root: SupportsIndex = 0,
        *,
        timeout: Timeout | None = None,
    ) -> Plan: ...
    @overload
    def scatter_single(
        self,
        output: Tensor,
        input: Tensor | None = None,
        root: SupportsIndex = 0,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[False] = False,
    ) -> None: ...
    @overload
    def scatter_single(
        self,
        output: Tensor,
        input: Tensor | None = None,
        root: SupportsIndex = 0,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def scatter_single(
        self,
        output: Tensor,
        input: Tensor | None = None,
        root: SupportsIndex = 0,
        *,
        timeout: Timeout | None = None,
        async_op: bool,
    ) -> Work | None: ...
    def plan_scatter_single(
        self,
        output: Tensor,
        input: Tensor | None = None,
        root: SupportsIndex = 0,
        *,
        timeout: Timeout | None = None,
    ) -> Plan: ...
    @overload
    def reduce_scatter(
        self,
        output: Tensor,
        input_list: Tensors,
        op: Op = "sum",
        *,
        timeout: Timeout | None = None,
        async_op: Literal[False] = False,
    ) -> None: ...
    @overload
    def reduce_scatter(
        self,
        output: Tensor,
        input_list: Tensors,
        op: Op = "sum",
        *,
        timeout: Timeout | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def reduce_scatter(
        self,
        output: Tensor,
        input_list: Tensors,
        op: Op = "sum",
        *,
        timeout: Timeout | None = None,
        async_op: bool,
    ) -> Work | None: ...
    def plan_reduce_scatter(
        self,
        output: Tensor,
        input_list: Tensors,
        op: Op = "sum",
        *,
        timeout: Timeout | None = None,
    ) -> Plan: ...
    @overload
    def reduce_scatter_single(
        self,
        output: Tensor,
        input: Tensor,
        op: Op = "sum",
        split_sizes: _Ints | None = None,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[False] = False,
    ) -> None: ...
    @overload
    def reduce_scatter_single(
        self,
        output: Tensor,
        input: Tensor,
        op: Op = "sum",
        split_sizes: _Ints | None = None,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def reduce_scatter_single(
        self,
        output: Tensor,
        input: Tensor,
        op: Op = "sum",
        split_sizes: _Ints | None = None,
        *,
        timeout: Timeout | None = None,
        async_op: bool,
    ) -> Work | None: ...
    def plan_reduce_scatter_single(
        self,
        output: Tensor,
        input: Tensor,
        op: Op = "sum",
        split_sizes: _Ints | None = None,
        *,
        timeout: Timeout | None = None,
    ) -> Plan: ...
    @overload
    def reduce_scatter_coalesced(
        self,
        outputs: Tensors,
        inputs: Tensors,
        op: Op = "sum",
        *,
        timeout: Timeout | None = None,
        async_op: Literal[False] = False,
    ) -> None: ...
    @overload
    def reduce_scatter_coalesced(
        self,
        outputs: Tensors,
        inputs: Tensors,
        op: Op = "sum",
        *,
        timeout: Timeout | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def reduce_scatter_coalesced(
        self,
        outputs: Tensors,
        inputs: Tensors,
        op: Op = "sum",
        *,
        timeout: Timeout | None = None,
        async_op: bool,
    ) -> Work | None: ...
    def plan_reduce_scatter_coalesced(
        self,
        outputs: Tensors,
        inputs: Tensors,
        op: Op = "sum",
        *,
        timeout: Timeout | None = None,
    ) -> Plan: ...
    @overload
    def all_to_all(
        self,
        output_list: Tensors,
        input_list: Tensors,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[False] = False,
    ) -> None: ...
    @overload
    def all_to_all(
        self,
        output_list: Tensors,
        input_list: Tensors,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def all_to_all(
        self,
        output_list: Tensors,
        input_list: Tensors,
        *,
        timeout: Timeout | None = None,
        async_op: bool,
    ) -> Work | None: ...
    def plan_all_to_all(
        self,
        output_list: Tensors,
        input_list: Tensors,
        *,
        timeout: Timeout | None = None,
    ) -> Plan: ...
    @overload
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: _Ints | None = None,
        input_split_sizes: _Ints | None = None,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[False] = False,
    ) -> None: ...
    @overload
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: _Ints | None = None,
        input_split_sizes: _Ints | None = None,
        *,
        timeout: Timeout | None = None,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: _Ints | None = None,
        input_split_sizes: _Ints | None = None,
        *,
        timeout: Timeout | None = None,
        async_op: bool,
    ) -> Work | None: ...
    def plan_all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: _Ints | None = None,
        input_split_sizes: _Ints | None = None,
        *,
        timeout: Timeout | None = None,
    ) -> Plan: ...
    @overload
    def barrier(self, *, timeout: Timeout | None = None, async_op: Literal[False] = False) -> None: ...
    @overload
    def barrier(self, *, timeout: Timeout | None = None, async_op: Literal[True]) -> Work: ...
    @overload
    def barrier(self, *, timeout: Timeout | None = None, async_op: bool) -> Work | None: ...
    def plan_barrier(self, *, timeout: Timeout | None = None) -> Plan: ...
    # End of the operations.
    def send(self, tensor: Tensor, dst: int, tag: int = 0, *, timeout: Timeout | None = None) -> None: ...
    def recv(
        self,
        tensor: Tensor,
        src: int | None = None,
        tag: int = 0,
        *,
        timeout: Timeout | None = None,
        match_dtype: bool = True,
    ) -> int: ...
    def isend(self, tensor: Tensor, dst: int, tag: int = 0, *, timeout: Timeout | None = None) -> Work: ...
    def irecv(
        self,
        tensor: Tensor,
        src: int | None = None,
        tag: int = 0,
        *,
        timeout: Timeout | None = None,
        match_dtype: bool = True,
    ) -> Work: ...
    def monitored_barrier(self, timeout: Timeout | None = None, wait_all_ranks: bool = False) -> None: ...
    def _serving(self, tensor: Tensor, /) -> Group: ...
    _device_group: NcclGroup | None
    def batch_isend_irecv(self, p2p_op_list: list[P2POp] | tuple[P2POp, ...]) -> list[Work]: ...
    def coalesce(self, *, timeout: Timeout | None = None, async_op: bool = False) -> Coalescing: ...
    def _set_recorder(self, recorder: object, /) -> Any: ...
    def empty(self, shape: SupportsIndex | _Ints, dtype: Any = "float32") -> SharedArray: ...
    def _adopt(self, address: int, fd: int, nbytes: int) -> SharedArray: ...
    def split(self, ranks: _Ints, name: str | None = None, timeout: Timeout | None = None) -> Self: ...
    def _carry(self, carrier: object, timeout: Timeout | None = None) -> None: ...
    def _describe(self, name: str, desc: str, global_ranks: _Ints) -> None: ...
    def abort(self, reason: str = "abort() was called") -> None: ...
    def revoke(self, reason: str = "revoke() was called") -> None: ...
    def suspend(self) -> None: ...
    def resume(self) -> None: ...
    def memory_stats(self) -> dict[str, int]: ...
    def close(self, timeout: Timeout | None = None) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def timeout(self) -> timedelta: ...
    @timeout.setter
    def timeout(self, value: Timeout) -> None: ...
    @property
    def _ncarried(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def members(self) -> list[Member]: ...
    @property
    def error(self) -> DistError | None: ...
    @property
    def is_closed(self) -> bool: ...

def _operations() -> tuple[tuple[Any, ...], ...]: ...
def start_all(plans: list[Plan] | tuple[Plan, ...], /) -> None: ...
def wait_all(plans: list[Plan] | tuple[Plan, ...], /) -> None: ...
def _set_log_level(level: str, /) -> bool: ...
def _take_log_record(timeout: Timeout, /) -> tuple[str, float, int, str] | None: ...
def _stop_log() -> None: ...
def _call_despite_ctrl_c(function: Callable[..., object], /, *args: object) -> object: ...
def _raise_status(code: int, /) -> NoReturn: ...
def _status_names() -> list[str]: ...
def _describe_tensor(object: object, writable: bool) -> _TensorDescription: ...
def _copy_tensor(dst: object, src: object) -> None: ...
def _copy_tensors(dsts: Sequence[object], srcs: Sequence[object]) -> None: ...
def _convert_tensor(dst: object, src: object) -> None: ...
def _reduce_tensor(dst: object, src: object, op: int = 0) -> None: ...
def _digest(data: object, keys: object) -> bytes: ...
def _is_shared(tensor: object, /) -> bool: ...
def _write32(function: str, tensor: object, offset: int, value: int, count: int) -> None: ...
def _take_completions() -> bool: ...
def _stop_completions() -> None: ...
def _close_gate() -> None: ...
def _call_and_report(callback: Callable[[Any], object], argument: object) -> None: ...
def _monitor_open(*settings: int | str) -> None: ...
def _monitor_run() -> None: ...
def _monitor_stop(grace: Timeout, /) -> None: ...
def _monitor_add_group(group: Group, /) -> int: ...
def _monitor_remove_group(number: int, /) -> None: ...
def _monitor_request_dump() -> bool: ...
def _monitor_on_signal(signum: int, has_to_be_unused: bool) -> bool: ...
def _monitor_report() -> str: ...
def _shutdown() -> None: ...
@overload
def _dump_recorder(
    is_json: bool, has_entries: bool, has_stacks: bool, is_active_only: bool, path: None = None
) -> bytes: ...
@overload
def _dump_recorder(
    is_json: bool, has_entries: bool, has_stacks: bool, is_active_only: bool, path: str | PathLike[str]
) -> None: ...
def _reset_recorder() -> None: ...
def _recorder_capacity() -> int: ...
def _add_recorded_group(name: str, desc: str, rank: int, global_ranks: Sequence[int]) -> object: ...
def _begin_record(
    group: object,
    name: str,
    is_p2p: bool,
    peer: int,
    timeout_ns: int,
    inputs: list[tuple[str, tuple[int, ...]]],
    outputs: list[tuple[str, tuple[int, ...]]],
) -> int: ...
def _end_record(group: object, record: int, failure: str | None = None) -> None: ...

_NCCL_VERSION_KNOWN: int

class NcclGroup(Group):
    def __init__(
        self,
        store: Store | None,
        rank: int,
        size: int,
        *,
        timeout: Timeout = 600.0,
        name: str = "default",
        init_timeout: Timeout | None = None,
        config: dict[str, Any] | None = None,
        device: int | None = None,
        is_high_priority: bool = False,
        has_timing: bool = False,
        is_nan_check: bool = False,
        is_blocking_wait: bool = False,
        event_cache: bool = True,
        ranks_per_root: int = 0,
        grouped_messages: bool = False,
    ) -> None: ...
    @property
    def device(self) -> int | None: ...
    @property
    def grouped_messages(self) -> bool: ...
    def barrier(  # type: ignore[override]
        self, *, timeout: Timeout | None = None, async_op: bool = False, device_ids: Sequence[int] | None = None
    ) -> Any: ...
    def start_coalescing(self) -> None: ...
    def end_coalescing(self, *, timeout: Timeout | None = None, async_op: bool = True) -> NcclWork | None: ...
    def drop_coalesced(self) -> None: ...
    def _start_time_estimate(self) -> None: ...
    def _end_time_estimate(self) -> float: ...
    def _drop_time_estimate(self) -> None: ...
    def connect(self, device: int | None = None) -> None: ...
    def split(  # type: ignore[override]
        self,
        ranks: list[int] | tuple[int, ...],
        name: str | None = None,
        timeout: Timeout | None = None,
        *,
        color: int | None = None,
        config: dict[str, Any] | None = None,
        device: int | None = None,
    ) -> NcclGroup: ...
    def skip_split(self, device: int | None = None) -> None: ...
    def shrink(
        self,
        excluded: list[int] | tuple[int, ...],
        name: str | None = None,
        timeout: Timeout | None = None,
        *,
        is_abort: bool = False,
        config: dict[str, Any] | None = None,
    ) -> NcclGroup: ...
    def grow_id(self) -> bytes: ...
    def grow(
        self,
        store: Store | None,
        size: int,
        id: bytes | None = None,
        rank: int | None = None,
        *,
        name: str | None = None,
        timeout: Timeout | None = None,
        config: dict[str, Any] | None = None,
    ) -> NcclGroup: ...
    def revoke(self) -> None: ...  # type: ignore[override]
    def suspend(self) -> None: ...
    def resume(self) -> None: ...
    def memory_stats(self) -> dict[str, int]: ...
    def properties(self) -> dict[str, int]: ...
    def register(self, memory: Any, nbytes: int | None = None, *, is_window: bool = False) -> int: ...
    def deregister(self, registration: int, *, is_window: bool = False) -> None: ...
    def new_window(self, tensor: Any, *, timeout: Timeout | None = None) -> NcclWindow: ...
    def comm_pointer(self, device: int | None = None) -> int: ...
    def split_count(self) -> int: ...
    def empty(  # type: ignore[override]
        self, shape: int | Sequence[int], dtype: Any = "float32", device: int | None = None
    ) -> NcclArray: ...
    def set_nan_check(self, is_on: bool, /) -> None: ...
    def set_timing(self, is_on: bool, /) -> None: ...
    def add_ephemeral_timeout(self, timeout: Timeout, /) -> None: ...
    def _wait_for_works(self, timeout: Timeout | None = None) -> None: ...
    def abort(self, reason: str = "abort() was called", timeout: Timeout | None = None) -> None: ...
    def _describe(self, name: str, desc: str, global_ranks: Sequence[int] | None) -> None: ...
    def _host_view(self) -> NcclGroup: ...

@final
class NcclWork(Work): ...

@final
class NcclArray:
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def ptr(self) -> int: ...
    @property
    def device(self) -> int: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class NcclWindow:
    @property
    def tensor(self) -> Any: ...
    @property
    def buffer_size(self) -> int: ...
    @property
    def channels(self) -> int: ...
    def put(
        self,
        tensor: Any,
        rank: SupportsIndex,
        offset: SupportsIndex = 0,
        channel: SupportsIndex = 0,
        *,
        timeout: Timeout | None = None,
        async_op: bool = False,
    ) -> NcclWork | None: ...
    def signal(
        self, dst_rank: SupportsIndex, channel: SupportsIndex = 0, *, timeout: Timeout | None = None, async_op: bool = False
    ) -> NcclWork | None: ...
    def wait_signal(
        self,
        src_rank: SupportsIndex,
        channel: SupportsIndex = 0,
        *,
        count: SupportsIndex = 1,
        timeout: Timeout | None = None,
        async_op: bool = False,
    ) -> NcclWork | None: ...
    def close(self, timeout: Timeout | None = None) -> None: ...

@final
class NcclComms:
    def __init__(self, devices: Sequence[int | str], timeout: Timeout | None = None) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def devices(self) -> list[int]: ...
    def all_reduce(self, tensors: Tensors, op: Op = "sum", streams: Sequence[Any] | None = None) -> None: ...
    def broadcast(self, tensors: Tensors, root: int = 0, streams: Sequence[Any] | None = None) -> None: ...
    def reduce(
        self, tensors: Tensors, root: int = 0, op: Op = "sum", streams: Sequence[Any] | None = None
    ) -> None: ...
    def all_gather(self, outputs: Tensors, inputs: Tensors, streams: Sequence[Any] | None = None) -> None: ...
    def reduce_scatter(
        self, outputs: Tensors, inputs: Tensors, op: Op = "sum", streams: Sequence[Any] | None = None
    ) -> None: ...
    def split(self) -> list[NcclRankComm]: ...
    def abort(self, reason: str = "abort() was called") -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class NcclRankComm:
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def device(self) -> int: ...
    @classmethod
    def init_rank(
        cls, rank: int, world_size: int, uid: NcclUniqueId, device: int | str | None = None, timeout: Timeout | None = None
    ) -> NcclRankComm: ...
    def all_reduce(self, tensors: Tensors, op: Op = "sum", stream: Any = None) -> None: ...
    def broadcast(self, tensors: Tensors, root: int = 0, stream: Any = None) -> None: ...
    def reduce(self, tensors: Tensors, root: int = 0, op: Op = "sum", stream: Any = None) -> None: ...
    def all_gather(self, outputs: Tensors, inputs: Tensors, stream: Any = None) -> None: ...
    def reduce_scatter(
        self, outputs: Tensors, inputs: Tensors, op: Op = "sum", stream: Any = None
    ) -> None: ...
    def abort_handle(self) -> NcclAbortHandle: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class NcclAbortHandle:
    @property
    def is_aborted(self) -> bool: ...
    def abort(self, reason: str = "abort() was called") -> None: ...

@final
class NcclUniqueId:
    def __init__(self, data: bytes | None = None) -> None: ...
    def as_bytes(self) -> bytes: ...
    def __bytes__(self) -> bytes: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

def _load_nccl(
    candidates: list[str],
    nccl: str | None = None,
    cuda: str | None = None,
    is_abort_off: bool = False,
    psk: str | None = None,
    psk_print: int = 0,
) -> None: ...
def _find_nccl_obstacle(candidates: list[str], nccl: str | None = None) -> str | None: ...
def _nccl_info() -> dict[str, Any] | None: ...
def _nccl_config_fields() -> list[tuple[str, int, bool]]: ...
def _nccl_allocator() -> tuple[int, int]: ...
def _ffi_handler() -> object: ...
def _ffi_program(
    number: int,
    group: Group,
    sources: list[tuple[int, int]],
    results: list[tuple[int, int]],
    fill: int,
    calls: list[Plan | tuple[bool, tuple[int, int], int, int, Timeout | None]],
) -> object: ...
def _ffi_set_group(program: object, group: Group) -> None: ...
def _mpi_calls(rank: int, size: int, make: Callable[[int, int], Group]) -> object: ...
def _carrier_open(name: str, candidates: list[str], path: str | None = None) -> object: ...
def _carrier_info(carrier: object, /) -> tuple[str, str, str]: ...
def _carrier_begin_mpi(carrier: object, /) -> tuple[int, int]: ...
def _carrier_share_mpi(carrier: object, text: str, timeout: Timeout) -> str: ...
def _carrier_end_mpi(carrier: object, is_well: bool) -> None: ...
def _nccl_coll_config(fields: dict[str, Any], /) -> Any: ...
def _swap_coll_config(config: Any, /) -> Any: ...
def _swap_stream(stream: Any, /) -> int | None: ...
def _post_close(groups: list[NcclGroup], /) -> None: ...
def _shutdown_nccl() -> None: ...
