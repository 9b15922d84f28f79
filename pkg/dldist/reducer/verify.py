"""Make the parameters of all ranks equal before training: compare shapes, and copy values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dldist import _core
from dldist._base import arrays
from dldist._objects.exchange import Exchange
from dldist.functional.form import operations_of
from dldist.reducer.buckets import Parameter, private_memory

BROADCAST_BYTES = 250 << 20


def verify_params_across_processes(process_group: Any, params: Sequence[Any], logger: Any = None) -> None:
    """Raise on every rank if the parameters' shapes, dtypes or order differ between ranks."""
    try:
        verify(operations_of(process_group), [Parameter(index, x) for index, x in enumerate(params)], None)
    except RuntimeError as error:
        if logger is not None:
            logger.set_error_and_log(str(error))
        raise


def verify(operations: Any, parameters: Sequence[Parameter], timeout: Any) -> None:
    """Raise if parameters differ between ranks. Exchange descriptions only if hashes differ."""
    import hashlib

    own = [f"{parameter.dtype}{list(parameter.shape)}" for parameter in parameters]
    digest = hashlib.sha256("\n".join(own).encode(), usedforsecurity=False).digest()
    digests = bytearray(len(digest) * operations.size)
    operations.all_gather_single(digests, digest, timeout=timeout)
    if digests == digest * operations.size:
        return
    names = [parameter.name for parameter in parameters]
    all_descriptions = Exchange(operations, "all_gather_object", "safe", timeout).all_gather((own, names))
    for rank, (descriptions, their_names) in enumerate(all_descriptions):
        if rank == 0:
            expected, expected_names = descriptions, their_names
        elif descriptions != expected:
            raise _core.DistMismatchError(_describe_difference(rank, descriptions, their_names, expected, expected_names))


def _describe_difference(rank: int, descriptions: list[str], their_names: Any, expected: list[str], names: Any) -> str:
    """Describe the first difference between a rank's parameters and the parameters of rank 0."""
    if len(descriptions) != len(expected):
        return f"rank {rank} has {len(descriptions)} parameters, and rank 0 has {len(expected)}: all ranks must have the same"
    index = next(i for i, (other, first) in enumerate(zip(descriptions, expected, strict=True)) if other != first)
    name = names[index] or their_names[index]
    label = f"{index} ({name})" if name else str(index)
    return f"parameter {label} is {descriptions[index]} on rank {rank}, and {expected[index]} on rank 0: all ranks must have the same"


def broadcast_coalesced(process_group: Any, tensors: Sequence[Any], buffer_size: int, src: int = 0) -> None:
    """Copy tensors of rank `src` to all ranks, `buffer_size` bytes of one dtype at a time."""
    broadcast(operations_of(process_group), [Parameter(index, x) for index, x in enumerate(tensors)], buffer_size, src, None)


def broadcast(operations: Any, parameters: Sequence[Parameter], nbytes: int, src: int, timeout: Any) -> list[Any]:
    """Like broadcast_coalesced, but return the arrays: new arrays replace immutable ones."""
    results: dict[int, Any] = {}
    for chunk in _chunks(parameters, nbytes):
        for parameter, part in _broadcast_chunk(operations, chunk, src, timeout):
            is_source = operations.rank == src
            results[parameter.index] = parameter.like if is_source else arrays.write_or_replace(parameter.family, parameter.like, part)
    return [results[parameter.index] for parameter in parameters]


def _broadcast_chunk(
    operations: Any, chunk: list[Parameter], src: int, timeout: Any
) -> Iterator[tuple[Parameter, _core.SharedArray]]:
    """Broadcast parameters of one dtype. Yield each with the memory that holds its new values."""
    memory = private_memory(sum(parameter.count for parameter in chunk), chunk[0].dtype)
    parts, start = [], 0
    for parameter in chunk:
        parts.append(memory.part(start, parameter.shape))
        start += parameter.count
    if operations.rank == src:
        _core._copy_tensors(parts, [parameter.family.source(parameter.like) for parameter in chunk])
    operations.broadcast(memory, src, timeout=timeout)
    return zip(chunk, parts, strict=True)


def _chunks(parameters: Sequence[Parameter], nbytes: int) -> Iterator[list[Parameter]]:
    """Yield lists of parameters of one dtype, of at most `nbytes` in all or only one parameter."""
    by_dtype: dict[str, list[Parameter]] = {}
    for parameter in parameters:
        by_dtype.setdefault(parameter.dtype, []).append(parameter)
    for group_parameters in by_dtype.values():
        chunk: list[Parameter] = []
        space = nbytes
        for parameter in group_parameters:
            if chunk and parameter.nbytes > space:
                yield chunk
                chunk, space = [], nbytes
            chunk.append(parameter)
            space -= parameter.nbytes
        yield chunk
