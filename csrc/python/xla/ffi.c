#include "python/xla/ffi.h"

#include "core/mem.h"
#include "python/base/convert.h"
#include "python/base/error.h"
#include "python/base/params.h"
#include "python/group/group.h"
#include "python/group/plan.h"
#include "python/observe/recorder.h"
#include "xla/ffi.h"

#define HANDLER "xla._CUSTOM_CALL_TARGET" /* name of a capsule with a handler, as XLA expects */
#define PROGRAM "dldist.ffi_program"

PyObject *
py_ffi_handler(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    /* POSIX allows a pointer to hold a function's address. */
    union {
        dd_ffi_error *(*function)(dd_ffi_frame *frame);
        void *pointer;
    } handler = {.function = dd_ffi_handle};
    return PyCapsule_New(handler.pointer, HANDLER, NULL);
}

/* Read a block of memory from a tuple (address, bytes). */
static bool
read_block(py_state *state, PyObject *object, dd_block *block)
{
    int64_t address;
    int64_t nbytes;
    const py_params params =
        PY_PARAMS("memory", 2, 2, {"address", PY_INT64, &address}, {"nbytes", PY_INT64, &nbytes});
    if (!PyTuple_Check(object)) {
        py_raise_wrong_type("_ffi_program", "memory", "a tuple", object);
        return false;
    }
    if (!py_params_read_tuple(&params, state, object, NULL)) {
        return false;
    }
    *block = (dd_block){.data = (void *)(uintptr_t)address, .nbytes = (size_t)nbytes};
    return true;
}

static bool
read_blocks(py_state *state, PyObject *tuple, dd_block *blocks)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(tuple); i++) {
        if (!read_block(state, PyTuple_GetItem(tuple, i), &blocks[i])) {
            return false;
        }
    }
    return true;
}

/* The arguments of _ffi_program. py_ffi_program replaces lists by tuples. */
typedef struct program_request {
    int64_t number;
    PyObject *group;
    PyObject *sources;
    PyObject *results;
    int fill; /* a value of dd_ffi_fill */
    PyObject *calls;
} program_request;

static bool
require_lists(const program_request *wanted)
{
    if (PyList_Check(wanted->sources) && PyList_Check(wanted->results) && PyList_Check(wanted->calls)) {
        return true;
    }
    PyErr_SetString(PyExc_TypeError, "_ffi_program(): 'sources', 'results' and 'calls' are lists");
    return false;
}

static dd_ffi_program *
program_create(py_state *state, const program_request *wanted)
{
    size_t nsources = (size_t)PyTuple_Size(wanted->sources);
    size_t nresults = (size_t)PyTuple_Size(wanted->results);
    dd_block *blocks = dd_mem_alloc_array(nsources + nresults, sizeof *blocks);
    if (blocks == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    dd_ffi_program *program = NULL;
    if (read_blocks(state, wanted->sources, blocks) &&
        read_blocks(state, wanted->results, blocks + nsources)) {
        dd_ffi_memory memory = {
            .blocks = blocks, .nsources = nsources, .nresults = nresults, .fill = (dd_ffi_fill)wanted->fill};
        program = dd_ffi_program_create((uint64_t)wanted->number, py_group_core(wanted->group), &memory);
        if (program == NULL) {
            PyErr_NoMemory();
        }
    }
    dd_mem_free(blocks);
    return program;
}

static bool
program_add(py_state *state, dd_ffi_program *program, const dd_ffi_call *call)
{
    dd_error err;
    return py_error_check_of_group(state, dd_ffi_program_add(program, call, &err), &err);
}

/* Store the staged pieces in `parts` and return their number. Staged pieces lie in the plan's
 * staging memory, which is the scratch memory of the call. */
static size_t
describe_parts(const py_operands *operands, dd_ffi_part *parts)
{
    size_t nparts = 0;
    for (size_t i = 0; i < operands->npieces; i++) {
        const py_piece *piece = &operands->pieces[i];
        if (piece->is_staged) {
            parts[nparts++] = (dd_ffi_part){.view = piece->tensor.view,
                                            .flat = piece->flat,
                                            .is_read = piece->is_input,
                                            .is_written = piece->is_output};
        }
    }
    return nparts;
}

static bool
add_plan(py_state *state, dd_ffi_program *program, PyObject *plan)
{
    py_plan_description description;
    if (!py_plan_describe(state, plan, &description)) {
        return false;
    }
    const py_operands *operands = description.operands;
    dd_ffi_part *parts = dd_mem_alloc_array(operands->npieces, sizeof *parts);
    if (parts == NULL) {
        py_plan_end_description(plan);
        PyErr_NoMemory();
        return false;
    }
    py_record record;
    dd_ffi_call call = {.args = &description.args,
                        .timeout_ns = description.timeout_ns,
                        .record = py_record_collective(&record, state, description.args.coll, operands),
                        .stack = py_record_stack(state),
                        .scratch = {.data = operands->staging, .nbytes = operands->staging_nbytes},
                        .parts = parts};
    call.nparts = describe_parts(operands, parts);
    bool is_added = program_add(state, program, &call);
    dd_mem_free(parts);
    py_plan_end_description(plan);
    return is_added;
}

/* Add a message to the program, from a tuple (is_send, memory, rank, tag, timeout or None). */
static bool
program_add_message(py_state *state, dd_ffi_program *program, PyObject *item)
{
    bool is_send;
    PyObject *memory;
    int64_t tag;
    dd_p2p message = {.rank = 0};
    dd_ffi_call call = {.message = &message, .timeout_ns = -1};
    const py_params params = PY_PARAMS("message", 4, 5, {"is_send", PY_FLAG, &is_send},
                                       {"memory", PY_OBJECT, &memory}, {"rank", PY_INT, &message.rank},
                                       {"tag", PY_INT64, &tag}, {"timeout", PY_TIMEOUT, &call.timeout_ns});
    if (!py_params_read_tuple(&params, state, item, NULL) || !read_block(state, memory, &message.block)) {
        return false;
    }
    message.is_send = is_send;
    message.tag = (uint64_t)tag;
    return program_add(state, program, &call);
}

static bool
add_calls(py_state *state, dd_ffi_program *program, PyObject *calls)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(calls); i++) {
        PyObject *item = PyTuple_GetItem(calls, i);
        if (!(PyTuple_Check(item) ? program_add_message(state, program, item)
                                  : add_plan(state, program, item))) {
            return false;
        }
    }
    return true;
}

static void
program_capsule_destroy(PyObject *capsule)
{
    PyObject *exception = py_error_take();
    dd_ffi_program *program = PyCapsule_GetPointer(capsule, PROGRAM);
    Py_BEGIN_ALLOW_THREADS
    dd_ffi_program_destroy(program);
    Py_END_ALLOW_THREADS
    py_error_put(exception);
}

/* Fail unless the group is a CPU group (not an NcclGroup) that has been opened. */
static bool
require_group(const py_state *state, PyObject *group, const char *function)
{
    if (!PyObject_TypeCheck(group, state->group_type)) {
        py_raise_wrong_type(function, "group", "a Group", group);
        return false;
    }
    return py_group_require_cpu((py_group *)group, function);
}

/* Create the program of a request, whose lists must have been replaced by tuples. Return the
 * program in a capsule. */
static PyObject *
make_program(py_state *state, const program_request *wanted)
{
    dd_ffi_program *program = program_create(state, wanted);
    PyObject *capsule = program != NULL ? PyCapsule_New(program, PROGRAM, program_capsule_destroy) : NULL;
    if (capsule == NULL) {
        if (program != NULL) {
            dd_ffi_program_destroy(program);
        }
        return NULL;
    }
    if (!add_calls(state, program, wanted->calls)) {
        Py_DECREF(capsule);
        return NULL;
    }
    dd_ffi_program_publish(program);
    return capsule;
}

PyObject *
py_ffi_program(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_state *state = PyModule_GetState(module);
    program_request wanted;
    const py_params params = PY_PARAMS(
        "_ffi_program", 6, 6, {"number", PY_INT64, &wanted.number}, {"group", PY_OBJECT, &wanted.group},
        {"sources", PY_OBJECT, &wanted.sources}, {"results", PY_OBJECT, &wanted.results},
        {"fill", PY_INT, &wanted.fill}, {"calls", PY_OBJECT, &wanted.calls});
    if (!py_params_read(&params, state, args, nargs, kwnames) || !require_lists(&wanted) ||
        !require_group(state, wanted.group, "_ffi_program")) {
        return NULL;
    }
    /* copy the lists, which other threads may change */
    wanted.sources = PySequence_Tuple(wanted.sources);
    wanted.results = wanted.sources != NULL ? PySequence_Tuple(wanted.results) : NULL;
    wanted.calls = wanted.results != NULL ? PySequence_Tuple(wanted.calls) : NULL;
    PyObject *capsule = wanted.calls != NULL ? make_program(state, &wanted) : NULL;
    Py_XDECREF(wanted.calls);
    Py_XDECREF(wanted.results);
    Py_XDECREF(wanted.sources);
    return capsule;
}

PyObject *
py_ffi_set_group(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_state *state = PyModule_GetState(module);
    PyObject *capsule;
    PyObject *group;
    const py_params params =
        PY_PARAMS("_ffi_set_group", 2, 2, {"program", PY_OBJECT, &capsule}, {"group", PY_OBJECT, &group});
    if (!py_params_read(&params, state, args, nargs, kwnames) ||
        !require_group(state, group, "_ffi_set_group")) {
        return NULL;
    }
    dd_ffi_program *program = PyCapsule_GetPointer(capsule, PROGRAM);
    if (program == NULL) {
        return NULL;
    }
    dd_ffi_program_set_group(program, py_group_core(group));
    Py_RETURN_NONE;
}
