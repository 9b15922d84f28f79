# Made by tools/make_stubs.py from the table of operations.
from datetime import timedelta
from typing import Any

from dldist._base.operations import Operation

class NotOneTensor(RuntimeError): ...

class Side:
    kind: str
    parameter: int
    what: str
    is_wrapped: bool
    is_for_root: bool
    names: tuple[str, ...]

class Call:
    name: str
    former_name: str
    operation: Operation
    options: Any
    sides: list[Side]
    splits: list[str]
    def arranged(self, called: str, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]: ...
    def lowered(self, values: list[Any], opts: Any) -> tuple[Any, ...]: ...
    def raised(self, backend: Any, arguments: tuple[Any, ...], op: Any) -> list[Any]: ...
    def tensors(self, arguments: tuple[Any, ...]) -> tuple[Any, Any]: ...

CALLS: dict[str, Call]
CALL_OF: dict[str, Call]

class LowLevelCalls:
    def _perform(self, method: str, *arguments: Any) -> Any: ...
    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None: ...
    def send(self, tensors: Any, dstRank: int, tag: int) -> Any: ...
    def recv(self, tensors: Any, srcRank: int, tag: int) -> Any: ...
    def recv_anysource(self, tensors: Any, tag: int) -> Any: ...
    def allreduce(
        self,
        tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        tensor: Any = None,
        op: Any = None,
    ) -> Any: ...
    def allreduce_coalesced(
        self,
        tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        tensor: Any = None,
        op: Any = None,
    ) -> Any: ...
    def broadcast(
        self,
        tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        tensor: Any = None,
        root: Any = None,
    ) -> Any: ...
    def reduce(
        self,
        tensors: Any = None,
        opts: Any = None,
        op: Any = None,
        timeout: Any = None,
        *,
        tensor: Any = None,
        root: Any = None,
    ) -> Any: ...
    def allgather(
        self,
        output_tensors: Any = None,
        input_tensors: Any = None,
        opts: Any = None,
        *,
        output_tensor: Any = None,
        output: Any = None,
        input_tensor: Any = None,
        input: Any = None,
        timeout: Any = None,
    ) -> Any: ...
    def _allgather_base(
        self,
        output: Any = None,
        input: Any = None,
        opts: Any = None,
        *,
        output_tensor: Any = None,
        outputTensor: Any = None,
        input_tensor: Any = None,
        inputTensor: Any = None,
        timeout: Any = None,
    ) -> Any: ...
    def all_gather_single(
        self,
        output: Any = None,
        input: Any = None,
        opts: Any = None,
        *,
        output_tensor: Any = None,
        outputTensor: Any = None,
        input_tensor: Any = None,
        inputTensor: Any = None,
        timeout: Any = None,
    ) -> Any: ...
    def allgather_coalesced(
        self,
        output_lists: Any = None,
        inputs: Any = None,
        opts: Any = None,
        *,
        input_list: Any = None,
        timeout: Any = None,
    ) -> Any: ...
    def allgather_into_tensor_coalesced(
        self,
        outputs: Any = None,
        inputs: Any = None,
        opts: Any = None,
        *,
        output_list: Any = None,
        input_list: Any = None,
        timeout: Any = None,
    ) -> Any: ...
    def all_gather_single_coalesced(
        self,
        outputs: Any = None,
        inputs: Any = None,
        opts: Any = None,
        *,
        output_list: Any = None,
        input_list: Any = None,
        timeout: Any = None,
    ) -> Any: ...
    def gather(
        self,
        output_tensors: Any = None,
        input_tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        output_tensor: Any = None,
        output: Any = None,
        input_tensor: Any = None,
        input: Any = None,
        root: Any = None,
    ) -> Any: ...
    def gather_into_tensor(
        self,
        output: Any = None,
        input: Any = None,
        opts: Any = None,
        *,
        output_tensor: Any = None,
        outputTensor: Any = None,
        input_tensor: Any = None,
        inputTensor: Any = None,
        root: Any = None,
        timeout: Any = None,
    ) -> Any: ...
    def gather_single(
        self,
        output: Any = None,
        input: Any = None,
        opts: Any = None,
        *,
        output_tensor: Any = None,
        outputTensor: Any = None,
        input_tensor: Any = None,
        inputTensor: Any = None,
        root: Any = None,
        timeout: Any = None,
    ) -> Any: ...
    def scatter(
        self,
        output_tensors: Any = None,
        input_tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        output_tensor: Any = None,
        output: Any = None,
        input_tensor: Any = None,
        input: Any = None,
        root: Any = None,
    ) -> Any: ...
    def reduce_scatter(
        self,
        output_tensors: Any = None,
        input_tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        output_tensor: Any = None,
        output: Any = None,
        input_tensor: Any = None,
        input: Any = None,
        op: Any = None,
    ) -> Any: ...
    def _reduce_scatter_base(
        self,
        output: Any = None,
        input: Any = None,
        opts: Any = None,
        *,
        output_tensor: Any = None,
        outputTensor: Any = None,
        input_tensor: Any = None,
        inputTensor: Any = None,
        op: Any = None,
        timeout: Any = None,
    ) -> Any: ...
    def reduce_scatter_single(
        self,
        output: Any = None,
        input: Any = None,
        opts: Any = None,
        *,
        output_tensor: Any = None,
        outputTensor: Any = None,
        input_tensor: Any = None,
        inputTensor: Any = None,
        op: Any = None,
        timeout: Any = None,
    ) -> Any: ...
    def reduce_scatter_tensor_coalesced(
        self,
        outputs: Any = None,
        inputs: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        output_list: Any = None,
        input_list: Any = None,
        op: Any = None,
    ) -> Any: ...
    def reduce_scatter_single_coalesced(
        self,
        outputs: Any = None,
        inputs: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        output_list: Any = None,
        input_list: Any = None,
        op: Any = None,
    ) -> Any: ...
    def alltoall(
        self,
        output_tensors: Any = None,
        input_tensors: Any = None,
        opts: Any = None,
        *,
        output_tensor: Any = None,
        output: Any = None,
        input_tensor: Any = None,
        input: Any = None,
        timeout: Any = None,
    ) -> Any: ...
    def alltoall_base(
        self,
        output: Any = None,
        input: Any = None,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        opts: Any = None,
        *,
        output_tensor: Any = None,
        outputTensor: Any = None,
        input_tensor: Any = None,
        inputTensor: Any = None,
        timeout: Any = None,
    ) -> Any: ...
    def all_to_all_single(
        self,
        output: Any = None,
        input: Any = None,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        opts: Any = None,
        *,
        output_tensor: Any = None,
        outputTensor: Any = None,
        input_tensor: Any = None,
        inputTensor: Any = None,
        timeout: Any = None,
    ) -> Any: ...
    def barrier(self, opts: Any = None, *, timeout: Any = None) -> Any: ...
    def allreduce_sparse(
        self,
        tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        tensor: Any = None,
        op: Any = None,
    ) -> Any: ...
