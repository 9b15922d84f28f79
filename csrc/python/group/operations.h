/* The table of a group's collectives: their names and parameters, which parameters are tensors, and
 * how the tensors form blocks. The table gives the method <name>, which runs a collective, and the
 * method <name> of Plans, which creates a plan; in Python, through _operations(), c10d's low-level
 * calls, the backends and hooks that use them, and the PyTorch backend; and the extension's stub
 * (tools/make_stubs.py). */
#ifndef DD_PYTHON_GROUP_OPERATIONS_H
#define DD_PYTHON_GROUP_OPERATIONS_H

#include "python/group/call.h"

/* X(name, collective, type, call, former, recorded, as_one, number of required parameters,
 * (parameters), (input), (output), beginning of the signature, documentation).
 *
 * `type`, `call` and `former` are c10d's: the OpType's number, the name of the backends' low-level
 * call, and the former name of this call; "" if there is none. `recorded` is the name in the
 * flight recorder. `as_one` is the operation that coalesce() makes of several calls, or "". All
 * parameters can be positional; timeout, and async_op except for plans, are keyword-only. A side:
 *     NOTHING
 *     ONE(parameter)             a tensor
 *     MANY(parameter)            a list of tensors, which are moved together
 *     RANKS(parameter)           a list with a tensor for each rank
 *     LISTS(parameter)           a list with a list of tensors for each rank
 *     WHOLE(parameter)           a tensor with an equal part for each rank
 *     WHOLE_BY(parameter, rows)  a tensor with parts for the ranks, sized by parameter `rows`
 *     WHOLES(parameter)          a list of WHOLEs
 * Parameters are counted from 0. A call is in place if both sides are the same parameter. If only
 * the root has a side, only the root may pass the side's parameter. */
/* clang-format off */
#define PY_OPERATION_LIST(X) \
    X(all_reduce, ALL_REDUCE, 1, "allreduce", "", "all_reduce", "all_reduce_coalesced", \
      1, (PY_TENSORS(tensor), PY_REDUCTION,), ONE(0), ONE(0), \
      "($self, tensor, op='sum', *, ", \
      "Reduces the tensors of all ranks. Every rank's tensor becomes the result.") \
    X(all_reduce_coalesced, ALL_REDUCE, 2, "allreduce_coalesced", "", "allreduce_coalesced", "", \
      1, (PY_TENSORS(tensors), PY_REDUCTION,), MANY(0), MANY(0), \
      "($self, tensors, op='sum', *, ", \
      "all_reduce for several tensors in one operation.") \
    X(broadcast, BROADCAST, 0, "broadcast", "", "broadcast", "", \
      1, (PY_TENSORS(tensor), PY_ROOT,), ONE(0), ONE(0), \
      "($self, tensor, root=0, *, ", \
      "Copies the root's tensor to all ranks.") \
    X(reduce, REDUCE, 3, "reduce", "", "reduce", "", \
      1, (PY_TENSORS(tensor), PY_ROOT, PY_REDUCTION,), ONE(0), ONE(0), \
      "($self, tensor, root=0, op='sum', *, ", \
      "Reduces the tensors of all ranks into the root's tensor. The others do not change.") \
    X(all_gather, ALL_GATHER, 4, "allgather", "", "all_gather", "", \
      2, (PY_TENSORS(output_list), PY_TENSORS(tensor),), ONE(1), RANKS(0), \
      "($self, output_list, tensor, *, ", \
      "Copies the tensors of all ranks to every rank: that of rank r goes to output_list[r]. Their sizes may differ.") \
    X(all_gather_single, ALL_GATHER, 5, "all_gather_single", "_allgather_base", "all_gather_single", "all_gather_single_coalesced", \
      2, (PY_TENSORS(output), PY_TENSORS(tensor),), ONE(1), WHOLE(0), \
      "($self, output, tensor, *, ", \
      "Copies the tensors of all ranks, all of one size, one after another into the output of every rank.") \
    X(all_gather_coalesced, ALL_GATHER, 6, "allgather_coalesced", "", "ALLGATHER_coalesced", "", \
      2, (PY_TENSORS(output_lists), PY_TENSORS(tensors),), MANY(1), LISTS(0), \
      "($self, output_lists, tensors, *, ", \
      "all_gather for several tensors in one operation: tensor i of rank r goes to output_lists[r][i].") \
    X(all_gather_single_coalesced, ALL_GATHER, 20, "all_gather_single_coalesced", "allgather_into_tensor_coalesced", "all_gather_into_tensor_coalesced", "", \
      2, (PY_TENSORS(outputs), PY_TENSORS(inputs),), MANY(1), WHOLES(0), \
      "($self, outputs, inputs, *, ", \
      "all_gather_single for several tensors in one operation.") \
    X(gather, GATHER, 7, "gather", "", "gather", "", \
      1, (PY_TENSORS(tensor), PY_TENSORS(output_list), PY_ROOT,), ONE(0), RANKS(1), \
      "($self, tensor, output_list=None, root=0, *, ", \
      "Copies the tensors of all ranks to the root, which alone gives output_list. Their sizes may differ.") \
    X(gather_single, GATHER, 7, "gather_single", "gather_into_tensor", "gather", "", \
      1, (PY_TENSORS(tensor), PY_TENSORS(output), PY_ROOT,), ONE(0), WHOLE(1), \
      "($self, tensor, output=None, root=0, *, ", \
      "Copies the tensors of all ranks, all of one size, one after another into the root's output.") \
    X(scatter, SCATTER, 8, "scatter", "", "scatter", "", \
      1, (PY_TENSORS(output), PY_TENSORS(input_list), PY_ROOT,), RANKS(1), ONE(0), \
      "($self, output, input_list=None, root=0, *, ", \
      "Copies tensor r of the root's list to rank r.") \
    X(scatter_single, SCATTER, 8, "", "", "scatter", "", \
      1, (PY_TENSORS(output), PY_TENSORS(input), PY_ROOT,), WHOLE(1), ONE(0), \
      "($self, output, input=None, root=0, *, ", \
      "Copies part r of the root's tensor to rank r.") \
    X(reduce_scatter, REDUCE_SCATTER, 9, "reduce_scatter", "", "reduce_scatter", "", \
      2, (PY_TENSORS(output), PY_TENSORS(input_list), PY_REDUCTION,), RANKS(1), ONE(0), \
      "($self, output, input_list, op='sum', *, ", \
      "Reduces tensor r of all ranks' lists, for each r, and gives the result to rank r.") \
    X(reduce_scatter_single, REDUCE_SCATTER, 16, "reduce_scatter_single", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_coalesced", \
      2, (PY_TENSORS(output), PY_TENSORS(input), PY_REDUCTION, PY_OTHER(split_sizes),), WHOLE_BY(1, 3), ONE(0), \
      "($self, output, input, op='sum', split_sizes=None, *, ", \
      "Reduces part r of all ranks' tensors, for each r, and gives the result to rank r. Parts are equal, or have split_sizes rows.") \
    X(reduce_scatter_coalesced, REDUCE_SCATTER, 19, "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "reduce_scatter_tensor_coalesced", "", \
      2, (PY_TENSORS(outputs), PY_TENSORS(inputs), PY_REDUCTION,), WHOLES(1), MANY(0), \
      "($self, outputs, inputs, op='sum', *, ", \
      "The single form for several tensors in one operation.") \
    X(all_to_all, ALL_TO_ALL, 11, "alltoall", "", "all_to_all", "", \
      2, (PY_TENSORS(output_list), PY_TENSORS(input_list),), RANKS(1), RANKS(0), \
      "($self, output_list, input_list, *, ", \
      "Sends tensor r of input_list to rank r, and receives output_list[r] from it.") \
    X(all_to_all_single, ALL_TO_ALL, 10, "all_to_all_single", "alltoall_base", "all_to_all", "", \
      2, (PY_TENSORS(output), PY_TENSORS(input), PY_OTHER(output_split_sizes), PY_OTHER(input_split_sizes),), WHOLE_BY(1, 3), WHOLE_BY(0, 2), \
      "($self, output, input, output_split_sizes=None, input_split_sizes=None, *, ", \
      "Sends part r of the input to rank r, and receives part r of the output from it. Parts are equal, or have as many rows as the lists say.") \
    X(scan, SCAN, 100, "scan", "", "scan", "", \
      1, (PY_TENSORS(tensor), PY_REDUCTION,), ONE(0), ONE(0), \
      "($self, tensor, op='sum', *, ", \
      "Reduces, on each rank, the tensors of all ranks up to it. Every rank's tensor becomes its result.") \
    X(exscan, EXSCAN, 100, "exscan", "", "exscan", "", \
      1, (PY_TENSORS(tensor), PY_REDUCTION,), ONE(0), ONE(0), \
      "($self, tensor, op='sum', *, ", \
      "Reduces, on each rank, the tensors of all lower ranks. Every rank's tensor becomes its result, except the tensor of rank 0, which does not change.") \
    X(barrier, BARRIER, 15, "barrier", "", "barrier", "", \
      0, (), NOTHING, NOTHING, \
      "($self, *, ", \
      "Waits until all ranks have called it.")
/* clang-format on */

/* py_group_plan_<name> is the method of Plans: its `self` is a Plans object. */
#define PY_OPERATION_DECLARE(name, ...) \
    PY_GROUP_METHOD(name);              \
    PY_GROUP_METHOD(plan_##name);
PY_OPERATION_LIST(PY_OPERATION_DECLARE)
#undef PY_OPERATION_DECLARE

/* Implement _core._operations(): return a tuple of the table's rows without signature and
 * documentation. A row is (name, collective, OpType, recorded, c10d's call, the call's former name,
 * as_one, parameters, number of required parameters, input, output). A side (input or output) is
 * (kind, parameter). */
PyObject *py_group_list_operations(PyObject *module, PyObject *unused);

#endif
