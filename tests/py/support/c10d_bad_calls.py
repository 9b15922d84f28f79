"""Bad calls and the errors that they raise: the table of test_c10d_bad_input.py and
docs/c10d-differences.md."""

from typing import NamedTuple


class Bad(NamedTuple):
    """A call that must raise. c10d_workers.py defines the names in it."""

    call: str
    error: str
    """The exception's type, or one of its bases."""
    text: str
    """A part of the error's text."""
    on: tuple[int, ...] | None = None
    """The ranks that make the call; None for all."""
    torch_error: str | None = ""
    """torch's exception type if it differs, or None if the call is not run with torch."""
    why: str = ""
    """The reason for the difference, or for not running torch."""
    also: str = ""
    """The exception type of other releases or builds of torch."""


ENDS_TORCH = "ends torch's process, or hangs it"
NOT_IN_2_13 = "torch 2.13 does not have it, or other errors"
NEEDS_DEVICE = "torch splits only groups on accelerators, and checks that first"
NEEDS_SHRINKING = "torch shrinks only groups of NCCL, and checks that first"
NO_SCAN = "torch has no scan"
NAMES_OF_OPS = "reductions have names, so an unknown name is a wrong value"
CLOSED = "torch's groups stay usable after their destruction; dldist closes them"
DEVICES = "torch.device refuses names that it does not know"
FAILED_LOOKUP = "torch's error is a failed dict lookup"
NO_TENSOR_GIVEN = "torch's dispatcher raises it, for lack of a tensor"
NO_TENSOR = "must be a tensor"
BOTH = "got both of '"
NEITHER = "got neither of '"
NOT_OF_THE_GROUP = "is not part of group"
NOT_REGISTERED = "is not registered, please create group with"
INVALID_GROUP = "Invalid process group specified"

TENSORS = [
    Bad("dist.all_reduce('x')", "TypeError", NO_TENSOR),
    Bad("dist.all_reduce(None)", "TypeError", NO_TENSOR),
    Bad("dist.all_reduce([f(1)])", "TypeError", NO_TENSOR),
    Bad("dist.broadcast(3, 0)", "TypeError", NO_TENSOR),
    Bad("dist.reduce('x', 0)", "TypeError", NO_TENSOR),
    Bad("dist.all_gather([f(0), f(0)], 'x')", "TypeError", NO_TENSOR),
    Bad("dist.all_gather(['x', f(0)], f(1))", "TypeError", NO_TENSOR),
    Bad("dist.all_gather(f(0, 0), f(1))", "TypeError", "must be a list or tuple of tensors"),
    Bad("dist.all_gather_single('x', f(1))", "TypeError", NO_TENSOR),
    Bad("dist.all_gather_single(f(0, 0), 'x')", "TypeError", NO_TENSOR),
    Bad("dist.all_gather_coalesced(([f(0)], [f(0)]), [f(1)])", "TypeError", "argument 'output_tensor_lists' must be a list, not tuple"),
    Bad("dist.all_gather_coalesced([f(0), f(0)], [f(1)])", "TypeError", "must be a list or tuple of tensors"),
    Bad("dist.all_gather_coalesced([[f(0)], [f(0)]], f(1))", "TypeError", "must be a list or tuple of tensors"),
    Bad("dist.all_reduce_coalesced(['x'])", "TypeError", NO_TENSOR),
    Bad("dist.gather('x', [f(0), f(0)] if me == 0 else None)", "TypeError", NO_TENSOR),
    Bad("dist.gather(f(1), ['x', 'x'])", "TypeError", NO_TENSOR, on=(0,)),
    Bad("dist.scatter('x', [f(0), f(0)] if me == 0 else None)", "TypeError", NO_TENSOR),
    Bad("dist.scatter(f(1), 'xy')", "TypeError", "must be a list or tuple of tensors", on=(0,)),
    Bad("dist.reduce_scatter('x', [f(0), f(0)])", "TypeError", NO_TENSOR),
    Bad("dist.reduce_scatter(f(1), 'xy')", "TypeError", "must be a list or tuple of tensors"),
    Bad("dist.reduce_scatter(f(1), [f(0), 'x'])", "TypeError", NO_TENSOR),
    Bad("dist.reduce_scatter_single('x', f(1, 2))", "TypeError", NO_TENSOR),
    Bad("dist.all_to_all('xy', [f(1), f(1)])", "TypeError", "must be a list or tuple of tensors"),
    Bad("dist.all_to_all_single('x', f(1, 2))", "TypeError", NO_TENSOR),
    Bad("dist.isend('x', other)", "TypeError", NO_TENSOR),
    Bad("dist.send('x', other)", "TypeError", NO_TENSOR),
    Bad("dist.irecv('x', other)", "TypeError", NO_TENSOR),
    Bad("dist.recv('x', other)", "TypeError", NO_TENSOR),
    Bad("dist.P2POp(dist.isend, 'x', 0)", "TypeError", "argument 'tensor' must be an object with __dlpack__"),
    Bad("dist.all_gather([f(0), i(0)], f(1))", "ValueError", "have the same dtype"),
    Bad("dist.all_gather([i(0), i(0)], f(1))", "ValueError", "have the same dtype"),
    Bad("dist.all_gather_single(i(0, 0), f(1))", "RuntimeError", "have the same dtype"),
    Bad("dist.all_reduce_coalesced([f(1), i(1)])", "ValueError", "have the same dtype"),
    Bad("dist.reduce_scatter(f(1), [i(0), i(0)])", "ValueError", "have the same dtype"),
    Bad("dist.reduce_scatter_single(f(0), i(1, 2))", "RuntimeError", "have the same dtype"),
    Bad("dist.all_to_all([f(0), f(0)], [f(1), i(1)])", "ValueError", "have the same dtype"),
    Bad("dist.all_to_all_single(f(0, 0), i(1, 2))", "RuntimeError", "have the same dtype"),
]

LENGTHS = [
    Bad("dist.all_gather([f(0)], f(1))", "RuntimeError", "got 1 tensors, expected 2"),
    Bad("dist.all_gather([f(0), f(0), f(0)], f(1))", "RuntimeError", "got 3 tensors, expected 2"),
    Bad("dist.all_gather([], f(1))", "RuntimeError", "got 0 tensors, expected 2"),
    Bad("dist.all_gather_single(f(0, 0, 0), f(1))", "RuntimeError", "got 3 elements, expected 2 x 1"),
    Bad("dist.all_gather_single(f(1), f(0, 0))", "RuntimeError", "got 1 elements, expected 2 x 2, one rank's tensor times the ranks; "
        "the output and the input are swapped"),
    Bad("dist.all_gather_coalesced([[f(0)]], [f(1)])", "RuntimeError", "got 1 lists, expected 2"),
    Bad("dist.all_reduce_coalesced([])", "ValueError", "is empty", torch_error="NotImplementedError", why=NO_TENSOR_GIVEN),
    Bad("dist.gather(f(1), None)", "ValueError", "argument 'gather_list' must be specified on destination rank", on=(0,)),
    Bad("dist.gather(f(1), [])", "ValueError", "argument 'gather_list' must be specified on destination rank", on=(0,)),
    Bad("dist.gather(f(1), [f(0), f(0)])", "ValueError", "must NOT be specified on non-destination ranks", on=(1,)),
    Bad("dist.gather(f(1), [f(0)])", "RuntimeError", "got 1 tensors, expected 2", on=(0,)),
    Bad(
        "dist.gather_single(f(1))",
        "ValueError",
        "argument 'gather_tensor' must be specified on the destination rank",
        on=(0,),
        torch_error=None,
        why=NOT_IN_2_13,
    ),
    Bad("dist.scatter(f(1), None)", "ValueError", "argument 'scatter_list' must be specified on source rank", on=(0,)),
    Bad("dist.scatter(f(1), [f(0), f(0)])", "ValueError", "must NOT be specified on non-source ranks", on=(1,)),
    Bad("dist.scatter(f(1), [f(0)])", "RuntimeError", "got 1 tensors, expected 2", on=(0,)),
    Bad("dist.reduce_scatter(f(1), [f(0)])", "RuntimeError", "got 1 tensors, expected 2"),
    Bad("dist.reduce_scatter_single(f(0), f(1, 2, 3))", "RuntimeError", "3 elements"),
    Bad("dist.all_to_all([f(0)], [f(1)])", "RuntimeError", "got 1 tensors, expected 2"),
    Bad("dist.all_to_all([f(0), f(0)], [f(1)])", "RuntimeError", "got 1 tensors, expected 2"),
    Bad(
        "dist.all_to_all_single(f(0, 0, 0), f(1, 2, 3))",
        "RuntimeError",
        "does not divide equally across group size",
        torch_error="nothing",
        why="torch 2.13 ignores the remaining elements",
        also="RuntimeError",
    ),
    Bad("dist.all_to_all_single(f(0, 0), f(1, 2), [1], [1, 1])", "RuntimeError", "splits not equal to group size"),
    Bad("dist.all_to_all_single(f(0, 0), f(1, 2), [1, 2], [1, 1])", "RuntimeError", "doesn't match total dim 0 size"),
    Bad("dist.all_to_all_single(f(0, 0), f(1, 2), [1, 1], [3, -1])", "RuntimeError", "Split sizes must be non-negative"),
    Bad("dist.all_to_all_single(f(0, 0), f(1, 2), [1.0, 1.0], [1, 1])", "TypeError", "must be int, not float"),
    Bad("dist.all_to_all_single(f(0, 0), f(1, 2), 'xy')", "TypeError", "must be a list or tuple of int"),
]

RANKS = [
    Bad("dist.broadcast(f(1), 2)", "RuntimeError", "invalid root rank: got 2"),
    Bad("dist.broadcast(f(1), -1)", "RuntimeError", "invalid root rank: got -1"),
    Bad("dist.broadcast(f(1), group_src=2)", "RuntimeError", "invalid root rank: got 2"),
    Bad("dist.broadcast(f(1), 'x')", "TypeError", "must be int, not str"),
    Bad("dist.broadcast(f(1), 0.5)", "TypeError", "must be int, not float"),
    Bad("dist.broadcast(f(1))", "ValueError", "broadcast(): got neither of 'src' and 'group_src', expected one of them"),
    Bad("dist.broadcast(f(1), 0, group_src=0)", "ValueError", "broadcast(): got both of 'src' and 'group_src', expected one of them"),
    Bad("dist.broadcast(f(1), 7, group=pair)", "ValueError", NOT_OF_THE_GROUP),
    Bad("dist.reduce(f(1))", "ValueError", NEITHER),
    Bad("dist.reduce(f(1), 2)", "RuntimeError", "invalid root rank: got 2"),
    Bad("dist.reduce(f(1), 0, group_dst=1)", "ValueError", BOTH),
    Bad("dist.gather(f(1), None, 2)", "RuntimeError", "invalid root rank: got 2"),
    Bad("dist.gather(f(1), [f(0), f(0)] if me == 0 else None, 0, group_dst=0)", "ValueError", BOTH),
    Bad("dist.scatter(f(1), None, 2)", "RuntimeError", "invalid root rank: got 2"),
    Bad("dist.scatter(f(1), [f(0), f(0)] if me == 0 else None, 0, group_src=0)", "ValueError", BOTH),
    Bad("dist.isend(f(1))", "ValueError", NEITHER),
    Bad("dist.isend(f(1), other, group_dst=other)", "ValueError", BOTH),
    Bad("dist.isend(f(1), 2)", "ValueError", "invalid rank: got 2", torch_error=None, why=ENDS_TORCH),
    Bad("dist.isend(f(1), other, tag=-1)", "RuntimeError", "'tag' is negative"),
    Bad("dist.isend(f(1), other, tag='x')", "TypeError", "'tag' must be int"),
    Bad("dist.send(f(1))", "ValueError", NEITHER),
    Bad("dist.send(f(1), me)", "ValueError", "destination rank should not be the same as the rank of the current process"),
    Bad("dist.send(f(1), 2)", "ValueError", "invalid rank: got 2", torch_error=None, why=ENDS_TORCH),
    Bad("dist.send(f(1), 'x')", "TypeError", "must be int, not str"),
    Bad("dist.send(f(1), other, group_dst=other)", "ValueError", BOTH),
    Bad("dist.send(f(1), 5, group=pair)", "ValueError", NOT_OF_THE_GROUP),
    Bad("dist.irecv(f(1), 2)", "ValueError", "invalid rank: got 2", torch_error=None, why=ENDS_TORCH),
    Bad("dist.irecv(f(1), other, group_src=other)", "ValueError", BOTH),
    Bad("dist.irecv(f(1), other, tag=-2)", "RuntimeError", "'tag' is negative"),
    Bad("dist.recv(f(1), 2)", "ValueError", "invalid rank: got 2", torch_error=None, why=ENDS_TORCH),
    Bad("dist.recv(f(1), other, group_src=other)", "ValueError", BOTH),
    Bad("dist.recv(f(1), 5, group=pair)", "ValueError", NOT_OF_THE_GROUP),
    Bad("dist.P2POp(dist.all_reduce, f(1), 0)", "ValueError", "Invalid ``op``"),
    Bad("dist.P2POp('unknown', f(1), 0)", "ValueError", "Invalid ``op``"),
    Bad("dist.P2POp(dist.isend, f(1))", "ValueError", NEITHER),
    Bad("dist.P2POp(dist.isend, f(1), 0, group_peer=0)", "ValueError", BOTH),
    Bad("dist.P2POp(dist.isend, f(1), 5, group=pair)", "ValueError", NOT_OF_THE_GROUP),
    Bad("dist.P2POp(dist.isend, f(1), 0, group=GONE)", "ValueError", NOT_REGISTERED, torch_error=None, why=NOT_IN_2_13),
    Bad("dist.batch_isend_irecv([])", "IndexError", "is empty"),
    Bad("dist.batch_isend_irecv('x')", "ValueError", "Invalid ``p2p_op_list``"),
    Bad("dist.batch_isend_irecv([f(1)])", "ValueError", "Invalid ``p2p_op_list``"),
    Bad("dist.batch_isend_irecv(dist.P2POp(dist.isend, f(1), other))", "ValueError", "Invalid ``p2p_op_list``"),
    Bad(
        "dist.batch_isend_irecv([dist.P2POp(dist.irecv, f(1), 0), dist.P2POp(dist.isend, f(1), 0, pair)])",
        "ValueError",
        "All ops need to use the same group",
    ),
    Bad(
        "dist.batch_isend_irecv([dist.P2POp(dist.irecv, f(1), other), dist.P2POp(dist.isend, f(1), 5)])",
        "ValueError",
        "'p2p_op_list[1]': invalid rank: got 5, expected 0 to 1",
        torch_error=None,
        why=ENDS_TORCH,
    ),
]

OPERATIONS = [
    Bad(
        "dist.all_reduce(f(1), op='unknown')",
        "ValueError",
        "unknown reduction 'unknown': expected one of",
        torch_error="TypeError",
        why=NAMES_OF_OPS,
    ),
    Bad("dist.all_reduce(f(1), op=3)", "TypeError", "must be a ReduceOp, its name, or a function such as numpy.add"),
    Bad("dist.all_reduce(f(1), op=dist.ReduceOp.BAND)", "RuntimeError", "reduction BAND does not support dtype float32"),
    Bad("dist.scan('x')", "TypeError", NO_TENSOR, torch_error=None, why=NO_SCAN),
    Bad("dist.scan(f(1), op='unknown')", "ValueError", "unknown reduction 'unknown': expected one of", torch_error=None, why=NO_SCAN),
    Bad("dist.scan(f(1), op=dist.ReduceOp.AVG)", "RuntimeError", "unsupported reduction AVG", torch_error=None, why=NO_SCAN),
    Bad("dist.scan(f(1), op=dist.ReduceOp.BAND)", "RuntimeError", "reduction BAND does not support dtype float32", torch_error=None, why=NO_SCAN),
    Bad("dist.all_reduce(f(1), timeout='x')", "TypeError", "must be timedelta or a number of seconds"),
    Bad("dist.barrier(timeout='x')", "TypeError", "must be timedelta or a number of seconds"),
    Bad("dist.monitored_barrier(timeout='x')", "TypeError", "must be timedelta or a number of seconds"),
    Bad(
        "dist._coalescing_manager(device='cpu').__enter__()",
        "RuntimeError",
        "Backend gloo does not implement startCoalescing",
        torch_error=None,
        why="torch accepts only a torch.device, and records all later calls",
    ),
    Bad("dist._time_estimator().__enter__()", "NotImplementedError", "not supported"),
]

GROUPS = [
    Bad("dist.all_reduce(f(1), group='x')", "ValueError", INVALID_GROUP),
    Bad("dist.barrier(group=3)", "ValueError", INVALID_GROUP),
    # torch raises AttributeError since 2.14
    Bad("dist.monitored_barrier(group=3)", "ValueError", INVALID_GROUP, also="AttributeError"),
    Bad("dist.all_reduce(f(1), group=gone)", "RuntimeError", "is closed", torch_error="nothing", why=CLOSED),
    Bad("dist.broadcast(f(1), 0, group=gone)", "ValueError", NOT_REGISTERED),
    Bad("dist.isend(f(1), other, group=gone)", "ValueError", NOT_REGISTERED),
    Bad("dist.init_process_group('gloo')", "ValueError", "initialize the default process group twice"),
    Bad("dist.new_group([0, 0])", "ValueError", "'ranks' has a rank twice"),
    Bad("dist.new_group([0, 1, 2])", "ValueError", "less or equal to the world size"),
    Bad("dist.new_group([5])", "ValueError", "within the world_size"),
    Bad("dist.new_group([-1])", "ValueError", "within the world_size"),
    Bad("dist.new_group([])", "ValueError", "must not be empty", torch_error=None, why=NOT_IN_2_13),
    Bad("dist.new_group(['x'])", "TypeError", "must be a sequence of integers"),
    Bad("dist.new_group(3)", "TypeError", "must be a sequence of integers"),
    Bad("dist.new_group([0, 1], timeout='x')", "TypeError", "Expected timeout argument"),
    Bad("dist.new_group([0, 1], backend='unknown')", "AssertionError", "Unknown backend type"),
    Bad("dist.new_group([0, 1], backend='nccl')", "RuntimeError", "backend 'nccl' is unavailable", also="ValueError"),  # a build with NCCL
    Bad("dist.new_group([0, 1], backend='mpi', use_local_synchronization=True)", "ValueError", "MPI backend"),
    Bad("dist.new_subgroups()", "ValueError", "only takes effect when an accelerator is available"),
    Bad("dist.new_subgroups(0)", "ValueError", "must be positive"),
    Bad("dist.new_subgroups(-1)", "ValueError", "must be positive"),
    Bad("dist.new_subgroups(3)", "ValueError", "must not exceed the world size"),
    Bad("dist.new_subgroups_by_enumeration([])", "ValueError", "cannot be empty"),
    Bad("dist.split_group()", "ValueError", "cannot be None or empty"),
    Bad("dist.split_group(split_ranks=[])", "ValueError", "cannot be None or empty"),
    Bad("dist.split_group(split_ranks=[[]])", "ValueError", "cannot be empty", torch_error=None, why=NEEDS_DEVICE),
    Bad("dist.split_group(split_ranks=[[0, 0]])", "ValueError", "duplicate ranks", torch_error=None, why=NEEDS_DEVICE),
    Bad("dist.split_group(split_ranks=[[0, 1, 2]])", "ValueError", "less or equal", torch_error=None, why=NEEDS_DEVICE),
    Bad("dist.shrink_group(0)", "TypeError", "must be a list"),
    Bad("dist.shrink_group([])", "ValueError", "cannot be empty"),
    Bad("dist.shrink_group(['x'])", "TypeError", "must be integers"),
    Bad("dist.shrink_group([0], shrink_flags=7)", "ValueError", "Invalid shrink_flags"),
    Bad("dist.shrink_group([5])", "ValueError", "is not part of the group", torch_error=None, why=NEEDS_SHRINKING),
    Bad("dist.shrink_group([0, 0])", "ValueError", "duplicate ranks", torch_error=None, why=NEEDS_SHRINKING),
    Bad("dist.shrink_group([0, 1])", "ValueError", "Cannot exclude all ranks", torch_error=None, why=NEEDS_SHRINKING),
    Bad("dist.destroy_process_group(gone)", "ValueError", INVALID_GROUP),
    Bad("dist.destroy_process_group('x')", "ValueError", INVALID_GROUP),
    Bad("dist.get_rank(gone)", "ValueError", NOT_REGISTERED),
    Bad("dist.get_rank('x')", "ValueError", NOT_REGISTERED),
    Bad("dist.get_backend(gone)", "ValueError", INVALID_GROUP),
    Bad("dist.get_backend(GONE)", "ValueError", INVALID_GROUP),
    Bad("dist.get_backend_config(GONE)", "ValueError", INVALID_GROUP),
    Bad("dist.get_group_rank(pair, 5)", "ValueError", NOT_OF_THE_GROUP),
    Bad("dist.get_group_rank(gone, 0)", "ValueError", NOT_REGISTERED),
    Bad("dist.get_global_rank(pair, 5)", "ValueError", NOT_OF_THE_GROUP),
    Bad("dist.get_global_rank(gone, 0)", "ValueError", NOT_REGISTERED),
    Bad("dist.get_process_group_ranks(gone)", "ValueError", NOT_REGISTERED, torch_error="KeyError", why=FAILED_LOOKUP),
    Bad("dist.get_default_backend_for_device('unknown')", "ValueError", "not registered", torch_error=None, why=DEVICES),
    Bad("dist.Backend(3)", "ValueError", "string-ish"),
    Bad("dist.BackendConfig('cpu:gloo,cpu:gloo')", "ValueError", "Duplicate device type"),
    Bad("dist.BackendConfig('cpu:gloo,cuda')", "ValueError", "Invalid device:backend pairing"),
    Bad("dist.distributed_c10d._set_pg_timeout('x')", "TypeError", "Expected timeout argument"),
    Bad("dist.distributed_c10d._set_pg_timeout(timedelta(seconds=20), 'x')", "AssertionError", "Expected ProcessGroup"),
    Bad("dist.distributed_c10d._set_pg_timeout(timedelta(seconds=20), GONE)", "ValueError", INVALID_GROUP),
    Bad("dist.set_debug_level('x')", "TypeError", "DebugLevel"),
]

OBJECTS = [
    Bad("dist.all_gather_object([None], me)", "IndexError", "'object_list' is too short: got 1 items, expected 2"),
    Bad("dist.gather_object(me, [None, None] if me == 0 else None, 0, group_dst=0)", "ValueError", BOTH),
    Bad("dist.broadcast_object_list([1], 0, group_src=0)", "ValueError", BOTH),
    Bad("dist.broadcast_object_list([], 0)", "ValueError", "is empty", torch_error=None, why=ENDS_TORCH),
    Bad("dist.scatter_object_list('x', [1, 2], 0)", "ValueError", "Expected argument scatter_object_output_list to be a list"),
    Bad("dist.scatter_object_list([], [1, 2], 0)", "ValueError", "Expected argument scatter_object_output_list to be a list"),
    Bad("dist.send_object_list([1])", "ValueError", NEITHER),
    Bad("dist.send_object_list([1], me)", "ValueError", "should not be the same as the rank of the current process"),
    Bad("dist.recv_object_list([None], me)", "ValueError", "should not be the same as the rank of the current process"),
    Bad("dist.recv_object_list([None], other, group_src=other)", "ValueError", BOTH),
]

BAD_CALLS = [*TENSORS, *LENGTHS, *RANKS, *OPERATIONS, *GROUPS, *OBJECTS]


class Accepted(NamedTuple):
    """A call that dldist accepts and torch rejects."""

    call: str
    torch_error: str
    why: str
    also: str = ""
    """See Bad."""


TUPLES = "tuples are accepted like lists"
SECONDS = "a number is seconds"
TO_ONESELF = "a rank can send a message to itself"

ACCEPTED = [
    Accepted("dist.all_gather((f(0), f(0)), f(1))", "TypeError", TUPLES),
    Accepted("dist.reduce_scatter(f(0), (f(0), f(0)))", "TypeError", TUPLES),
    Accepted("dist.all_to_all((f(0), f(0)), (f(1), f(1)))", "TypeError", TUPLES),
    Accepted("dist.all_reduce(f(1), op='sum')", "TypeError", "reductions have names"),
    Accepted("dist.all_reduce(f(1), timeout=20)", "TypeError", "every call has a timeout argument"),
    Accepted("dist.monitored_barrier(timeout=20)", "TypeError", SECONDS),
    Accepted("dist.distributed_c10d._set_pg_timeout(20)", "TypeError", SECONDS),
    Accepted("dist.new_group([0, 1], timeout=20)", "TypeError", SECONDS),
    Accepted("(dist.isend(f(1), me), dist.recv(f(0), me))", "RuntimeError", TO_ONESELF),
    Accepted("dist.split_group(split_ranks=[[0, 1]])", "RuntimeError", "splitting a group needs no accelerator; torch 2.15 accepts it", "nothing"),
]
