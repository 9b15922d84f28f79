"""Errors about arguments of the program's call, which may have another name where the mistake is found.

`dldist.gather` calls Group.gather, whose argument 'output_list' is the program's 'gather_list'.
"""

import sys
from collections.abc import Callable, Iterable
from itertools import islice
from operator import index
from types import FrameType
from typing import Any, TypeVar

_OTHER_NAMES = {
    name: others.split(",")
    for name, _, others in (
        pair.partition("=")
        for pair in """backend=name device=device_types dst_rank=peer_rank fn=hook global_rank=src,dst,peer gradient=gradients group=group_name
        memory=tensor,array input_list=scatter_list,input_tensor_list name=group_desc,reduceOp object=tensor,src objs=scatter_object_input_list
        offset=target_offset_nelems output=output_tensor,gather_tensor,tensor,output_split_sizes output_lists=output_tensor_lists
        output_list=gather_list,tensor_list,output_tensor_list params=tensors rank=dst_rank,peer ranks=ranks_per_subgroup_list,mesh
        root=src,dst shape=arrays size=world_size src_rank=peer_rank tensor=input_tensor,x,src tensors=input_tensor_list x=like,tree""".split()
    )
}
"""The names that the program's call may have for an argument. If it has several, the first counts."""
_WRAPPERS = frozenset("call kernel perform run run_call run_operation wrapper".split())
"""Public names of dldist's functions that run the program's call."""
_Result = TypeVar("_Result")


def title(argument: str, function: str = "") -> str:
    """Return "<call>(): argument '<name>'", named after the outermost dldist function on the stack."""
    frame: FrameType | None = sys._getframe(1)
    call, name = None, function
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "dldist":
        code, owner = frame.f_code, ""
        if code.co_name in ("__init__", "__new__"):
            made = frame.f_locals[code.co_varnames[0]]
            owner = (made if isinstance(made, type) else type(made)).__name__
        if frame.f_globals is not globals() and (owner or code.co_name)[0] not in "_<" and code.co_name not in _WRAPPERS:
            name = owner or code.co_name
            if call is None or code.co_argcount or code.co_kwonlyargcount:  # a wrapper of any arguments has the names of its inner call
                call = frame
        frame = frame.f_back
    first = given = argument.partition("[")[0]
    if call is not None:
        known = call.f_code.co_varnames[: call.f_code.co_argcount + call.f_code.co_kwonlyargcount]
        if first not in known and call.f_globals["__name__"] == "dldist.functional":
            paths = call.f_locals.get("paths") if first in ("dsts", "srcs") else None  # of a tree's leaves
            return f"{name}(): argument '{known[0]}'{' at ' + path if (path := paths and paths[int(argument[5:-1])]) else ''}"
        names = [first, *_OTHER_NAMES.get(first, ())]
        given = next((each for each in names if each in known), first)
        if call.f_locals.get(f"group_{given}") is not None:
            given = f"group_{given}"
    return f"{name}(): argument '{given}{argument[len(first):]}'"


def type_name(value: Any) -> str:
    """Return the name of a value's type. For groups and stores of other libraries, add what to use."""
    kind = type(value)
    library = kind.__module__.partition(".")[0]
    if library == "torch" and "distributed" in kind.__module__:
        return f"torch.distributed.{kind.__name__} (for the ranks of a torch group, use World.from_torch)"
    return f"mpi4py.MPI.{kind.__name__} (use World.from_mpi)" if library == "mpi4py" else kind.__name__


def convert(name: str, function: Callable[[Any], _Result], value: Any, expected: str) -> _Result:
    """Return function(value). Replace its TypeError or ValueError by one that names the argument."""
    try:
        return function(value)
    except (TypeError, ValueError) as error:
        if "(): argument '" in str(error):
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{title(name)} is not valid: got {value!r}, expected {expected}") from None


def integers(name: str, values: Any) -> tuple[int, ...]:
    """Return the integers of a sequence."""
    return convert(name, lambda items: tuple(map(index, items)), values, "a sequence of integers")


def read_ranks(ranks: Iterable[Any], size: int) -> list[Any]:
    """Return the first size + 1 items of a caller's list of ranks for a group of `size` ranks.

    If the list is longer, these items include a wrong or repeated rank, so that the caller's checks
    reject an argument such as `range(10**9)` without reading all of it.
    """
    return list(islice(ranks, size + 1))
