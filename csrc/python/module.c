/* The module dldist._core. */

#include "python/base/error.h"
#include "python/base/gate.h"
#include "python/base/log.h"
#include "python/call/reduce_op.h"
#include "python/carrier/carrier.h"
#include "python/group/engine.h"
#include "python/group/group.h"
#include "python/group/operations.h"
#include "python/group/plan.h"
#include "python/nccl/team.h"
#include "python/nccl/window.h"
#include "python/observe/recorder.h"
#include "python/observe/watch.h"
#include "python/store/store.h"
#include "python/tensor/tensor.h"
#include "python/tensor/type.h"
#include "python/window/window.h"
#include "python/work/work.h"
#include "python/xla/ffi.h"
#include "python/xla/mpi.h"

#include <stddef.h>

/* A type of the module. The module's state owns the type. */
typedef struct type_row {
    size_t offset;     /* offset of the type's pointer in py_state */
    PyType_Spec *spec; /* the type's spec; NULL if py_group_make_member_type creates the type */
    /* `offset` of the base type, whose row must be earlier; the own `offset` if there is no base */
    size_t base;
} type_row;

#define OFFSET(name) offsetof(py_state, name##_type)
#define TYPE(name)                                    \
    {                                                 \
        OFFSET(name), &py_##name##_spec, OFFSET(name) \
    }
#define DERIVED(name, base)                           \
    {                                                 \
        OFFSET(name), &py_##name##_spec, OFFSET(base) \
    }

static const type_row type_rows[] = {
    TYPE(store),
    DERIVED(tcp_store, store),
    DERIVED(file_store, store),
    DERIVED(hash_store, store),
    DERIVED(prefix_store, store),
    TYPE(reduce_op),
    {OFFSET(member), NULL, OFFSET(member)},
    TYPE(work),
    TYPE(shared_array),
    TYPE(plan),
    TYPE(plans),
    TYPE(group),
    TYPE(window),
    DERIVED(nccl_group, group),
    DERIVED(nccl_work, work),
    TYPE(nccl_array),
    TYPE(nccl_window),
    TYPE(nccl_comms),
    TYPE(nccl_rank_comm),
    TYPE(nccl_unique_id),
    TYPE(nccl_abort_handle),
};
#define NTYPES (sizeof type_rows / sizeof type_rows[0])

static PyTypeObject **
type_at(py_state *state, size_t offset)
{
    return (PyTypeObject **)(void *)((char *)state + offset);
}

static int
add_types(PyObject *module, py_state *state)
{
    for (size_t i = 0; i < NTYPES; i++) {
        const type_row *row = &type_rows[i];
        PyTypeObject **type = type_at(state, row->offset);
        PyObject *base = row->base != row->offset ? (PyObject *)*type_at(state, row->base) : NULL;
        *type = (PyTypeObject *)(row->spec != NULL ? PyType_FromModuleAndSpec(module, row->spec, base)
                                                   : py_group_make_member_type());
        if (*type == NULL || PyModule_AddType(module, *type) < 0) {
            return -1;
        }
    }
    return py_reduce_op_add_attributes(state->reduce_op_type);
}

static int
intern_names(py_state *state)
{
    for (int i = 0; i < PY_NAME_COUNT; i++) {
        state->names[i] = PyUnicode_InternFromString(py_name_text((py_name)i));
        if (state->names[i] == NULL) {
            return -1;
        }
    }
    return 0;
}

/* Reject subinterpreters: threads of the core enter Python with PyGILState, which supports only the
 * main interpreter. */
static int
refuse_subinterpreter(void)
{
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) == 0) {
        return 0;
    }
    PyErr_SetString(PyExc_ImportError, "dldist does not support subinterpreters");
    return -1;
}

static int
core_exec(PyObject *module)
{
    py_state *state = PyModule_GetState(module);
    dd_error err;
    dd_list_init(&state->groups);
    if (refuse_subinterpreter() < 0 || py_object_read_size(state) < 0) {
        return -1;
    }
    state->tensor_types = py_tensor_types_create();
    if (state->tensor_types == NULL || intern_names(state) < 0 || py_error_add_to_module(module, state) < 0) {
        return -1;
    }
    dd_status status = dd_tcp_registry_create(&state->tcp_registry, &err);
    if (status != DD_OK) {
        py_error_raise(state, status, &err);
        return -1;
    }
    if (add_types(module, state) < 0 ||
        PyModule_AddIntConstant(module, "_NCCL_VERSION_KNOWN", DD_NCCL_VERSION_KNOWN) < 0) {
        return -1;
    }
    return py_gate_init(module); /* must be the last step, because it keeps the module alive */
}

static int
core_traverse(PyObject *module, visitproc visit, void *arg)
{
    py_state *state = PyModule_GetState(module);
    if (state == NULL) {
        return 0;
    }
    for (size_t i = 0; i < NTYPES; i++) {
        Py_VISIT(*type_at(state, type_rows[i].offset));
    }
    for (int i = 0; i < PY_ERROR_COUNT; i++) {
        Py_VISIT(state->errors[i]);
    }
    Py_VISIT(state->timedelta);
    Py_VISIT(state->ndarray_type);
    return 0;
}

/* The module has no m_clear: objects use the state until they are freed, and the types break every
 * reference cycle through the module. */
static void
core_free(void *module)
{
    py_state *state = PyModule_GetState(module);
    if (state == NULL) {
        return;
    }
    for (size_t i = 0; i < NTYPES; i++) {
        Py_CLEAR(*type_at(state, type_rows[i].offset));
    }
    for (int i = 0; i < PY_ERROR_COUNT; i++) {
        Py_CLEAR(state->errors[i]);
    }
    for (int i = 0; i < PY_NAME_COUNT; i++) {
        Py_CLEAR(state->names[i]);
    }
    Py_CLEAR(state->timedelta);
    Py_CLEAR(state->ndarray_type);
    py_device_state_destroy(state);
    py_tensor_types_destroy(state->tensor_types);
    py_nccl_destroy(state);
    if (state->tcp_registry != NULL) {
        dd_tcp_registry_destroy(state->tcp_registry);
    }
}

static PyMethodDef core_methods[] = {
    {"_close_gate", py_gate_close, METH_NOARGS,
     "_close_gate($module, /)\n--\n\nKeeps threads of the core from asking for the GIL from now on."},
    {"_set_log_level", py_log_set_level, METH_O,
     "_set_log_level($module, level, /)\n--\n\nSets the level of the log, and returns whether the log is on."},
    {"_take_log_record", py_log_take_record, METH_O,
     "_take_log_record($module, timeout, /)\n--\n\n"
     "Waits for the next record, and returns (level, time, number of records lost before it, message), or None."},
    {"_stop_log", py_log_stop, METH_NOARGS, "_stop_log($module, /)\n--\n\nMakes _take_log_record return."},
    {"_call_despite_ctrl_c", py_error_call_despite_ctrl_c, METH_VARARGS,
     "_call_despite_ctrl_c($module, function, /, *args)\n--\n\nCalls function(*args), and calls it again if Ctrl-C interrupts it."},
    {"_describe_tensor", PY_FAST_METHOD(py_tensor_describe),
     "_describe_tensor($module, object, writable)\n--\n\nReturns the address, shape, strides and dtype of a tensor."},
    {"_copy_tensor", PY_FAST_METHOD(py_tensor_copy),
     "_copy_tensor($module, dst, src)\n--\n\nCopies the elements of src, in row-major order, into dst."},
    {"_copy_tensors", PY_FAST_METHOD(py_tensor_copy_list),
     "_copy_tensors($module, dsts, srcs)\n--\n\n_copy_tensor for each pair."},
    {"_convert_tensor", PY_FAST_METHOD(py_tensor_convert),
     "_convert_tensor($module, dst, src)\n--\n\n_copy_tensor that can also convert between floating-point dtypes."},
    {"_reduce_tensor", PY_FAST_METHOD(py_tensor_reduce),
     "_reduce_tensor($module, dst, src, op=0)\n--\n\nReduces both into dst by the ReduceOp of this number; AVG and PREMUL_SUM only add up."},
    {"_digest", PY_FAST_METHOD(py_tensor_digest),
     "_digest($module, data, keys)\n--\n\nBytes that tell contents apart; keys are as many random bytes."},
    {"_is_shared", py_window_is_shared, METH_O,
     "_is_shared($module, tensor, /)\n--\n\nWhether the tensor lies in memory that Group.empty made."},
    {"_write32", PY_FAST_METHOD(py_window_write32),
     "_write32($module, function, tensor, offset, value, count)\n--\n\n"
     "Writes elements of 32 bits. A rank that sees one also sees everything written before it."},
    {"_wait_any", PY_FAST_METHOD(py_work_wait_any),
     "_wait_any($module, works, timeout=None)\n--\n\n"
     "Waits until a Work of a tuple has ended. Returns False after the timeout, None if it cannot wait for them."},
    {"_take_completions", py_completions_take, METH_NOARGS,
     "_take_completions($module, /)\n--\n\n"
     "Waits for a watched work to end and calls its watchers. Returns False to stop."},
    {"_stop_completions", py_completions_stop, METH_NOARGS,
     "_stop_completions($module, /)\n--\n\nMakes _take_completions return, and makes the calls that are left."},
    {"_call_and_report", PY_FAST_METHOD(py_completions_call_and_report),
     "_call_and_report($module, callback, argument)\n--\n\n"
     "Calls callback(argument). An Exception that it raises goes to sys.unraisablehook."},
    {"_operations", py_group_list_operations, METH_NOARGS,
     "_operations($module, /)\n--\n\nThe table of the collectives, for dldist._base.operations."},
    {"start_all", py_plan_start_all, METH_O,
     "start_all($module, plans, /)\n--\n\n"
     "Starts several Plans in this order. Of consecutive ones of the same group, either all start or none does."},
    {"wait_all", py_plan_wait_all, METH_O,
     "wait_all($module, plans, /)\n--\n\nWaits for the last start of each Plan. Raises the first failure."},
    {"_load_nccl", PY_FAST_METHOD(py_nccl_load),
     "_load_nccl($module, candidates, nccl=None, cuda=None, is_abort_off=False, psk=None, psk_print=0)\n--\n\n"
     "Loads NCCL and the CUDA driver from the given paths, or for None from where they are found."},
    {"_find_nccl_obstacle", PY_FAST_METHOD(py_nccl_find_obstacle),
     "_find_nccl_obstacle($module, candidates, nccl=None)\n--\n\n"
     "Why NCCL itself cannot be loaded, regardless of the driver; None if it can."},
    {"_nccl_info", py_nccl_info, METH_NOARGS,
     "_nccl_info($module, /)\n--\n\nDescribes the loaded libraries as a dict; None if there are none."},
    {"_nccl_config_fields", py_nccl_config_fields, METH_NOARGS,
     "_nccl_config_fields($module, /)\n--\n\nThe fields of NCCL's configuration: (name, version that added it, whether it is text)."},
    {"_swap_stream", py_device_swap_stream, METH_O,
     "_swap_stream($module, stream, /)\n--\n\n"
     "Sets the CUDA stream that this thread works on, or unsets it with None. Returns the one before, or None."},
    {"_nccl_coll_config", py_nccl_make_coll_config, METH_O,
     "_nccl_coll_config($module, fields, /)\n--\n\n"
     "A configuration of collectives for the NCCL that is loaded, from a dict: for _swap_coll_config."},
    {"_swap_coll_config", py_nccl_swap_coll_config, METH_O,
     "_swap_coll_config($module, config, /)\n--\n\n"
     "Sets the configuration of the collectives that this thread calls, or unsets it with None. Returns the one before."},
    {"_nccl_allocator", py_nccl_allocator, METH_NOARGS,
     "_nccl_allocator($module, /)\n--\n\n"
     "The addresses of two functions in C that allocate and free memory of ncclMemAlloc."},
    {"_post_close", py_nccl_post_close, METH_O,
     "_post_close($module, groups, /)\n--\n\nStarts to close NcclGroups side by side. Call close() of each afterwards, which waits and raises."},
    {"_shutdown_nccl", py_nccl_shut_down, METH_NOARGS,
     "_shutdown_nccl($module, /)\n--\n\nAborts all NCCL groups, at the end of the process."},
    {"_monitor_open", PY_FAST_METHOD(py_watch_open),
     "_monitor_open($module, /, *settings)\n--\n\nMakes the monitor; for dldist._base.monitor_thread."},
    {"_ffi_handler", py_ffi_handler, METH_NOARGS,
     "_ffi_handler($module, /)\n--\n\nReturns a capsule of the function with which XLA runs a program (dldist.functional.jax)."},
    {"_ffi_program", PY_FAST_METHOD(py_ffi_program),
     "_ffi_program($module, number, group, sources, results, fill, calls)\n--\n\n"
     "Makes a program with this number, which lives as long as what is returned, of calls on memory that stands for arrays,\n"
     "tuples of an address and bytes. Calls are Plans and messages: (is_send, (address, bytes), rank, tag, timeout or None)."},
    {"_ffi_set_group", PY_FAST_METHOD(py_ffi_set_group),
     "_ffi_set_group($module, program, group)\n--\n\nThe program runs on this group from now on."},
    {"_mpi_calls", PY_FAST_METHOD(py_mpi_calls),
     "_mpi_calls($module, rank, size, make)\n--\n\n"
     "Returns a capsule that carries out the MPI calls of XLA (dldist.jax). rank and size are those that MPI_COMM_WORLD\n"
     "reports; make(first, place) returns the group of a communicator."},
    {"_carrier_open", PY_FAST_METHOD(py_carrier_open),
     "_carrier_open($module, name, candidates, path=None)\n--\n\n"
     "Loads the library that \"mpi\" stands for, from the path, or for None from where it is found: a capsule."},
    {"_carrier_info", py_carrier_info, METH_O,
     "_carrier_info($module, carrier, /)\n--\n\nIts name, its version and its file."},
    {"_carrier_begin_mpi", py_carrier_begin_mpi, METH_O,
     "_carrier_begin_mpi($module, carrier, /)\n--\n\nInitializes MPI unless it is initialized. Returns the rank and the number of ranks."},
    {"_carrier_share_mpi", PY_FAST_METHOD(py_carrier_share_mpi),
     "_carrier_share_mpi($module, carrier, text, timeout)\n--\n\nThe text of MPI's rank 0. All of MPI's ranks call it."},
    {"_carrier_end_mpi", PY_FAST_METHOD(py_carrier_end_mpi),
     "_carrier_end_mpi($module, carrier, is_well)\n--\n\nEnds MPI if it was begun here and nothing has failed."},
    {"_monitor_run", py_watch_run, METH_NOARGS,
     "_monitor_run($module, /)\n--\n\nRuns the monitor on this thread, until _monitor_stop."},
    {"_monitor_stop", py_watch_stop, METH_O,
     "_monitor_stop($module, grace, /)\n--\n\nMakes _monitor_run return, and waits for that for `grace` seconds at most."},
    {"_monitor_add_group", py_watch_add_group, METH_O,
     "_monitor_add_group($module, group, /)\n--\n\nAdds a group to the monitor, and returns its number there."},
    {"_monitor_remove_group", py_watch_remove_group, METH_O,
     "_monitor_remove_group($module, number, /)\n--\n\nRemoves a group that has ended."},
    {"_monitor_request_dump", py_watch_request_dump, METH_NOARGS,
     "_monitor_request_dump($module, /)\n--\n\nAsks for a dump, and returns whether there is a monitor."},
    {"_monitor_on_signal", PY_FAST_METHOD(py_watch_on_signal),
     "_monitor_on_signal($module, signum, has_to_be_unused)\n--\n\nMakes a signal ask for dumps until the "
     "monitor stops, and returns whether it does."},
    {"_monitor_report", py_watch_report, METH_NOARGS,
     "_monitor_report($module, /)\n--\n\nThe last report of the monitor."},
    {"_process_endpoint", py_engine_make_endpoint, METH_O,
     "_process_endpoint($module, store, /)\n--\n\nReturns the address record that this process publishes in the store."},
    {"_is_other_running", py_engine_is_other_running, METH_VARARGS,
     "_is_other_running($module, endpoint, own_endpoint, /)\n--\n\n"
     "Returns True if another process has this address record and is known to run."},
    {"_shutdown", py_engine_shut_down, METH_NOARGS,
     "_shutdown($module, /)\n--\n\nCloses all groups, at the end of the process."},
    {"_dump_recorder", PY_FAST_METHOD(py_recorder_dump),
     "_dump_recorder($module, is_json, has_entries, has_stacks, is_active_only, path=None)\n--\n\n"
     "Returns the contents of the flight recorder as bytes, or writes them to a file, completely or not at all."},
    {"_reset_recorder", py_recorder_reset, METH_NOARGS,
     "_reset_recorder($module, /)\n--\n\nForgets the contents of the flight recorder."},
    {"_add_recorded_group", PY_FAST_METHOD(py_recorder_add_foreign),
     "_add_recorded_group($module, name, desc, rank, global_ranks)\n--\n\n"
     "Adds a group whose operations another library runs to the flight recorder. Returns the group for _begin_record."},
    {"_begin_record", PY_FAST_METHOD(py_recorder_begin),
     "_begin_record($module, group, name, is_p2p, peer, timeout_ns, inputs, outputs)\n--\n\n"
     "Records an operation, and returns the record's number."},
    {"_end_record", PY_FAST_METHOD(py_recorder_end),
     "_end_record($module, group, record, failure=None)\n--\n\nSays that it has ended, or why it has failed."},
    {"_recorder_capacity", py_recorder_capacity, METH_NOARGS,
     "_recorder_capacity($module, /)\n--\n\nHow many operations the flight recorder keeps; 0 if it is off."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot core_slots[] = {
    {Py_mod_exec, (void *)core_exec},
#ifdef PY_MAY_LACK_GIL
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* dldist._core is safe without a GIL: see base/lock.h */
#endif
    {0, NULL},
};

#define CORE_DOC "The C part of dldist."

#ifdef Py_TARGET_ABI3T
PyABIInfo_VAR(core_abi);

static PySlot core_export[] = {
    PySlot_STATIC_DATA(Py_mod_abi, &core_abi),
    PySlot_STATIC_DATA(Py_mod_token, (void *)(uintptr_t)py_module_token),
    PySlot_STATIC_DATA(Py_mod_name, (void *)(uintptr_t)PY_MODULE_NAME),
    PySlot_STATIC_DATA(Py_mod_doc, (void *)(uintptr_t)CORE_DOC),
    PySlot_SIZE(Py_mod_state_size, sizeof(py_state)),
    PySlot_STATIC_DATA(Py_mod_methods, core_methods),
    PySlot_STATIC_DATA(Py_mod_slots, core_slots),
    PySlot_FUNC(Py_mod_state_traverse, core_traverse),
    PySlot_FUNC(Py_mod_state_free, core_free),
    PySlot_END,
};

PyMODEXPORT_FUNC PyModExport__core(void);

PyMODEXPORT_FUNC
PyModExport__core(void)
{
    return core_export;
}
#else
static PyModuleDef core_module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = PY_MODULE_NAME,
    .m_doc = CORE_DOC,
    .m_size = sizeof(py_state),
    .m_methods = core_methods,
    .m_slots = core_slots,
    .m_traverse = core_traverse,
    .m_free = core_free,
};

PyMODINIT_FUNC PyInit__core(void);

PyMODINIT_FUNC
PyInit__core(void)
{
    return PyModuleDef_Init(&core_module);
}
#endif
