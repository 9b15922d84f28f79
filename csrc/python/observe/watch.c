#include "python/observe/watch.h"

#include "core/fork.h"
#include "core/mem.h"
#include "python/base/error.h"
#include "python/base/gate.h"
#include "python/base/params.h"
#include "python/base/signals.h"
#include "python/group/group.h"
#include "python/observe/recorder.h"
#include "python/store/store.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STORE_TIMEOUT_NS (5 * DD_NS_PER_S)

/* The process's monitor. Never freed, because groups may be released until the process exits. */
typedef struct py_watch {
    uint64_t generation;       /* const: fork generation in which the monitor was created */
    dd_monitor *monitor;       /* const: the core's monitor */
    int64_t beat_timeout_ns;   /* const: time after which a missing heartbeat is an error */
    bool is_beat_fatal;        /* const: true to end the process if the heartbeat stops */
    bool is_failure_fatal;     /* const: is_fatal (dd_monitor_member) of members that have `fail` */
    atomic_bool has_heartbeat; /* atomic: true once a heartbeat is set */
    py_lock lock;
    struct handled_signal *handled; /* owned list of signals that request dumps; guarded by lock */
} py_watch;

/* A signal at which the process writes dumps. */
typedef struct handled_signal {
    struct handled_signal *next;
    int number;
    struct sigaction before;
} handled_signal;

/* For the signal handler: the monitor, and the process to which the monitor belongs. */
static _Atomic(dd_monitor *) signalled_monitor;
static atomic_int signalled_pid;

/* ---- callbacks of the monitor */

/* Wait until Python answers by taking the GIL. A Python that shuts down counts as answering. */
static void
await_gil(void)
{
    py_gate_pass pass;
    if (py_gate_enter(&pass)) {
        py_gate_leave(&pass);
    }
}

/* End the process. Called only if the environment requests it, because launchers cannot use a
 * process with a hung device. */
static void
end_process(void *Py_UNUSED(ctx), const char *reason)
{
    dprintf(STDERR_FILENO, "dldist[%d]: the process is ended, as the environment asks for: %s\n",
            (int)getpid(), reason);
    abort();
}

/* ---- the monitor of this process */

static py_watch *
find_watch(const py_state *state)
{
    py_watch *watch = __atomic_load_n(&state->watch, __ATOMIC_ACQUIRE);
    /* A forked child does not use its parent's monitor. */
    return watch != NULL && watch->generation == dd_fork_generation() ? watch : NULL;
}

/* Return the monitor. If there is none, start it with the caller's rank in the group. */
static py_watch *
require_watch(py_state *state, int rank)
{
    py_watch *watch = find_watch(state);
    if (watch != NULL) {
        return watch;
    }
    PyObject *module = PyImport_ImportModule("dldist._base.monitor_thread");
    PyObject *done = module != NULL ? PyObject_CallMethod(module, "start", "i", rank) : NULL;
    Py_XDECREF(module);
    if (done == NULL) {
        return NULL;
    }
    Py_DECREF(done);
    watch = find_watch(state);
    if (watch == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "dldist._base.monitor_thread did not start a monitor");
    }
    return watch;
}

static bool
read_monitor_options(py_state *state, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                     dd_monitor_options *options, py_watch *watch)
{
    int64_t check_ms;
    int64_t dump_ms;
    int64_t beat_s;
    int dumping;
    bool is_json;
    const py_params params = PY_PARAMS(
        "_monitor_open", 14, 14, {"check_ms", PY_INT64, &check_ms}, {"dump_ms", PY_INT64, &dump_ms},
        {"beat_s", PY_INT64, &beat_s}, {"dumping", PY_INT, &dumping},
        {"is_propagating", PY_FLAG, &options->is_propagating}, {"is_desync", PY_FLAG, &options->is_desync},
        {"is_dumping_aborted", PY_FLAG, &options->is_dumping_aborted}, {"is_json", PY_FLAG, &is_json},
        {"has_stacks", PY_FLAG, &options->dump.has_stacks},
        {"is_active_only", PY_FLAG, &options->dump.is_active_only},
        {"dump_path", PY_TEXT, &options->dump_path}, {"pipe_path", PY_TEXT, &options->pipe_path},
        {"is_beat_fatal", PY_FLAG, &watch->is_beat_fatal},
        {"is_failure_fatal", PY_FLAG, &watch->is_failure_fatal});
    if (!py_params_read(&params, state, args, nargs, kwnames)) {
        return false;
    }
    options->check_interval_ns = check_ms * DD_NS_PER_MS;
    options->dump_timeout_ns = dump_ms * DD_NS_PER_MS;
    options->dumping = (dd_dumping)dumping;
    options->dump.format = is_json ? DD_DUMP_JSON : DD_DUMP_PICKLE;
    options->dump.has_entries = true;
    watch->beat_timeout_ns = beat_s * DD_NS_PER_S;
    return true;
}

/* Implement _monitor_open(): create the monitor, which runs once a thread calls _monitor_run. Calls
 * must not overlap. */
PyObject *
py_watch_open(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_state *state = PyModule_GetState(module);
    py_watch *watch = dd_mem_zalloc(sizeof *watch);
    if (watch == NULL) {
        return PyErr_NoMemory();
    }
    dd_monitor_host host = {.await_interpreter = await_gil, .end_process = end_process, .ctx = watch};
    dd_monitor_options options = {.recorder = py_recorder_get(state), .host = &host};
    dd_error err;
    dd_status status = DD_INTERNAL;
    if (options.recorder != NULL && read_monitor_options(state, args, nargs, kwnames, &options, watch)) {
        status = dd_monitor_create(&options, &watch->monitor, &err);
        if (status != DD_OK) {
            py_error_raise(state, status, &err);
        }
    }
    if (status != DD_OK) {
        dd_mem_free(watch);
        return NULL;
    }
    watch->generation = dd_fork_generation();
    __atomic_store_n(&state->watch, watch, __ATOMIC_RELEASE);
    Py_RETURN_NONE;
}

PyObject *
py_watch_run(PyObject *module, PyObject *Py_UNUSED(unused))
{
    py_watch *watch = find_watch(PyModule_GetState(module));
    if (watch != NULL) {
        sigset_t before;
        Py_BEGIN_ALLOW_THREADS
        py_signals_hold(&before);
        dd_monitor_run(watch->monitor);
        py_signals_release(&before);
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

static void
on_signal(int Py_UNUSED(signum))
{
    dd_monitor *monitor = atomic_load(&signalled_monitor);
    /* A forked child must not request dumps: it has closed the descriptor that a request writes
     * to. */
    if (monitor != NULL && atomic_load(&signalled_pid) == (int)getpid()) {
        dd_monitor_request_dump(monitor);
    }
}

static void
raise_signal_number(long number)
{
    PyErr_Format(PyExc_ValueError,
                 "dump_on_signal(): argument 'signum': got %ld, expected a signal that can be handled",
                 number);
}

/* Install the handler for a signal. Returns false with an exception on failure. */
static bool
handle_signal(py_watch *watch, long number)
{
    handled_signal *handled = dd_mem_zalloc(sizeof *handled);
    if (handled == NULL) {
        PyErr_NoMemory();
        return false;
    }
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    if (sigaction((int)number, &action, &handled->before) != 0) {
        raise_signal_number(number);
        dd_mem_free(handled);
        return false;
    }
    if (handled->before.sa_handler == on_signal) {
        dd_mem_free(handled); /* no new entry is needed: the handler is installed already */
        return true;
    }
    handled->number = (int)number;
    py_lock_take(&watch->lock);
    handled->next = watch->handled;
    watch->handled = handled;
    py_lock_release(&watch->lock);
    return true;
}

/* Restore each signal's earlier action, unless a newer handler has been installed. */
static void
restore_signals(py_watch *watch)
{
    py_lock_take(&watch->lock);
    handled_signal *handled = watch->handled;
    watch->handled = NULL;
    py_lock_release(&watch->lock);
    while (handled != NULL) {
        handled_signal *next = handled->next;
        struct sigaction now;
        if (sigaction(handled->number, NULL, &now) == 0 && now.sa_handler == on_signal) {
            (void)sigaction(handled->number, &handled->before, NULL);
        }
        dd_mem_free(handled);
        handled = next;
    }
}

PyObject *
py_watch_stop(PyObject *module, PyObject *grace)
{
    py_state *state = PyModule_GetState(module);
    int64_t grace_ns;
    if (!py_to_timeout_ns(state, grace, &grace_ns, "_monitor_stop", "grace")) {
        return NULL;
    }
    py_watch *watch = find_watch(state);
    if (watch != NULL) {
        restore_signals(watch);
        atomic_store(&signalled_monitor, NULL);
        Py_BEGIN_ALLOW_THREADS
        dd_monitor_stop(watch->monitor, grace_ns);
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

/* ---- groups */

static void
member_release(const dd_monitor_member *member)
{
    if (member->release != NULL) {
        member->release(member->ctx);
    }
}

/* Add the member to the monitor; on failure release the member and return -1 with an exception. */
static int
watch_add_member(py_state *state, const dd_monitor_member *member, uint64_t *id)
{
    py_watch *watch = require_watch(state, member->rank);
    if (watch == NULL) {
        member_release(member);
        return -1;
    }
    py_wait wait;
    dd_error err;
    dd_monitor_member copy = *member;
    copy.is_fatal = member->fail != NULL && watch->is_failure_fatal;
    py_wait_init(&wait, state, STORE_TIMEOUT_NS, true);
    dd_status status = PY_WITHOUT_GIL(dd_monitor_add(watch->monitor, &copy, id, &wait.wait, &err));
    if (py_wait_finish(&wait, status, &err)) {
        return 0;
    }
    if (status == DD_OK) { /* the member was added, but a signal handler raised */
        py_watch_remove(state, *id);
        *id = 0;
    } else {
        member_release(member);
    }
    return -1;
}

int
py_watch_add(const py_group *group, const dd_monitor_member *extra, uint64_t *id)
{
    dd_monitor_member member = *extra;
    member.name = group->kind->get_name(group);
    member.rank = group->rank;
    member.size = group->size;
    member.record = group->kind->find_recorder_group(group);
    if (!py_store_acquire_if_any(group->state, group->store, group->kind->type_name, "store",
                                 &member.store)) {
        member_release(&member);
        return -1;
    }
    int rc = watch_add_member(group->state, &member, id);
    py_store_drop(member.store);
    return rc;
}

void
py_watch_remove(py_state *state, uint64_t id)
{
    py_watch *watch = find_watch(state);
    if (watch != NULL && id != 0) {
        Py_BEGIN_ALLOW_THREADS
        dd_monitor_remove(watch->monitor, id);
        Py_END_ALLOW_THREADS
    }
}

void
py_watch_heartbeat(py_state *state, const dd_monitor_heartbeat *heartbeat)
{
    py_watch *watch = find_watch(state);
    if (watch == NULL || atomic_exchange(&watch->has_heartbeat, heartbeat != NULL) == (heartbeat != NULL)) {
        return;
    }
    dd_monitor_heartbeat copy = {0};
    if (heartbeat != NULL) {
        copy = *heartbeat;
        copy.timeout_ns = watch->beat_timeout_ns;
        copy.is_fatal = watch->is_beat_fatal;
    }
    dd_monitor_set_heartbeat(watch->monitor, heartbeat != NULL ? &copy : NULL);
}

/* Add a CPU group. It needs no member.fail, because its ranks report failures to each other. */
PyObject *
py_watch_add_group(PyObject *module, PyObject *object)
{
    py_state *state = PyModule_GetState(module);
    if (!PyObject_TypeCheck(object, state->group_type)) {
        py_raise_wrong_type("_monitor_add_group", "group", "a Group", object);
        return NULL;
    }
    py_group *group = (py_group *)object;
    if (!py_group_require_cpu(group, "_monitor_add_group") || !py_group_require_usable(group)) {
        return NULL;
    }
    const dd_monitor_member nothing_to_fail = {.fail = NULL};
    uint64_t id = 0;
    return py_watch_add(group, &nothing_to_fail, &id) == 0 ? PyLong_FromUnsignedLongLong(id) : NULL;
}

PyObject *
py_watch_remove_group(PyObject *module, PyObject *id)
{
    unsigned long long number = PyLong_AsUnsignedLongLong(id);
    if (PyErr_Occurred() != NULL) {
        return NULL;
    }
    py_watch_remove(PyModule_GetState(module), number);
    Py_RETURN_NONE;
}

/* ---- dumps on request */

PyObject *
py_watch_request_dump(PyObject *module, PyObject *Py_UNUSED(unused))
{
    py_watch *watch = find_watch(PyModule_GetState(module));
    if (watch != NULL) {
        dd_monitor_request_dump(watch->monitor);
    }
    return PyBool_FromLong(watch != NULL);
}

/* Implement _monitor_on_signal(): install a C handler for a signal, which requests dumps even if
 * Python hangs. If has_to_be_unused is true and the signal has another handler, change nothing and
 * return False. */
PyObject *
py_watch_on_signal(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_state *state = PyModule_GetState(module);
    int number;
    bool has_to_be_unused;
    const py_params params = PY_PARAMS("_monitor_on_signal", 2, 2, {"signum", PY_INT, &number},
                                       {"has_to_be_unused", PY_FLAG, &has_to_be_unused});
    if (!py_params_read(&params, state, args, nargs, kwnames)) {
        return NULL;
    }
    if (number < 1 || number > SIGRTMAX) {
        raise_signal_number(number);
        return NULL;
    }
    py_watch *watch = find_watch(state);
    if (watch == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "nothing is monitored: create a group of several ranks first");
        return NULL;
    }
    struct sigaction now;
    if (has_to_be_unused && sigaction(number, NULL, &now) == 0 && now.sa_handler != SIG_DFL) {
        Py_RETURN_FALSE;
    }
    atomic_store(&signalled_pid, (int)getpid());
    atomic_store(&signalled_monitor, watch->monitor);
    return handle_signal(watch, number) ? Py_NewRef(Py_True) : NULL;
}

PyObject *
py_watch_report(PyObject *module, PyObject *Py_UNUSED(unused))
{
    py_state *state = PyModule_GetState(module);
    py_watch *watch = find_watch(state);
    dd_blob report = {0};
    dd_error err;
    dd_status status = watch != NULL ? dd_monitor_get_report(watch->monitor, &report, &err) : DD_OK;
    if (status != DD_OK) {
        py_error_raise(state, status, &err);
        return NULL;
    }
    const char *text = report.len > 0 ? (const char *)report.data : "";
    PyObject *result = PyUnicode_DecodeUTF8(text, (Py_ssize_t)report.len, "backslashreplace");
    dd_blob_fini(&report);
    return result;
}
