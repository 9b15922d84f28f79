#include "python/work/flight.h"
#include "core/fork.h"
#include "core/lock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/thread.h"
#include "nccl/watchdog.h"
#include "python/base/signals.h"
#include "python/group/group.h"
#include "python/nccl/nccl.h"

#include <string.h>

#define MAX_SPARE 32u

struct py_completions {
    uint64_t generation; /* const: fork generation in which the queue was created */
    py_state *state;     /* the module's state; const */
    atomic_bool has_thread;
    py_lock lock;
    /* The fields below are guarded by `lock`. */
    dd_list spare; /* free flights, for reuse */
    size_t nspare;
    dd_list held; /* failed flights whose tensors a device may still use */
    dd_lock mu;
    pthread_cond_t cond;
    /* The fields below are guarded by `mu`. */
    dd_list watched; /* ended flights whose watchers must be called */
    dd_list orphans; /* ended flights whose Works have been dropped */
    bool is_stopped;
    bool is_drain_scheduled;
    atomic_bool has_orphans; /* atomic, relaxed: a hint that `orphans` is not empty */
};

/* ---- flights */

/* A watcher that has not been called yet. */
typedef struct py_watcher {
    struct py_watcher *next;
    PyObject *callback; /* owned: the Python callable */
} py_watcher;

static py_flight *
take_spare_locked(py_completions *queue)
{
    if (queue->nspare == 0) {
        return NULL;
    }
    py_flight *flight = DD_CONTAINER_OF(queue->spare.prev, py_flight, link);
    dd_list_remove(&flight->link);
    queue->nspare--;
    return flight;
}

/* Return a spare flight, or allocate a flight and initialise its lock. Return NULL without an
 * exception if out of memory. */
static py_flight *
take_spare(py_completions *queue)
{
    py_flight *flight = PY_LOCKED(&queue->lock, take_spare_locked(queue));
    if (flight == NULL) {
        flight = dd_mem_alloc(sizeof *flight);
        if (flight != NULL) {
            dd_lock_init(&flight->unpacking_mu, DD_LOCK_UNPACKING);
        }
    }
    return flight;
}

static bool
cache_flight_locked(py_completions *queue, py_flight *flight)
{
    if (queue->nspare == MAX_SPARE) {
        return false;
    }
    dd_list_push_back(&queue->spare, &flight->link);
    queue->nspare++;
    return true;
}

static void
give_spare(py_flight *flight)
{
    py_completions *queue = flight->queue;
    if (!PY_LOCKED(&queue->lock, cache_flight_locked(queue, flight))) {
        dd_lock_fini(&flight->unpacking_mu);
        dd_mem_free(flight);
    }
}

py_flight *
py_flight_create(py_group *group, const char *function, int op_type)
{
    py_state *state = group->state;
    py_completions_drain(state);
    py_completions *queue = py_completions_get(state);
    py_flight *flight = queue != NULL ? take_spare(queue) : NULL;
    if (flight == NULL) {
        if (queue != NULL) {
            PyErr_NoMemory();
        }
        return NULL;
    }
    memset((char *)flight + offsetof(py_flight, queue), 0,
           offsetof(py_flight, unpacking_mu) - offsetof(py_flight, queue));
    flight->is_unpacked = false;
    flight->is_done = false;
    flight->is_watched = false;
    flight->is_orphan = false;
    flight->watchers = NULL;
    py_operands_init(&flight->operands, state, function);
    flight->operands.is_pinned = true;
    flight->op_type = op_type;
    flight->queue = queue;
    flight->generation = queue->generation;
    flight->group = Py_NewRef((PyObject *)group);
    flight->is_nccl = group->nccl != NULL;
    flight->nowners = 1;
    dd_list_init(&flight->link);
    return flight;
}

static void
release_operands(py_flight *flight)
{
    for (py_flight *each = flight; each != NULL; each = each->others) {
        py_operands_fini(&each->operands);
    }
}

/* Return true if the operation no longer reads or writes the tensors. */
static bool
is_memory_free(const py_flight *flight)
{
    if (flight->work == NULL) {
        return true;
    }
    if (!flight->is_nccl) {
        const dd_error *error = &flight->work->error;
        return !dd_work_is_done(flight->work) || error->code == DD_OK || !error->keeps_memory;
    }
    return flight->is_stream_ordered || PY_BRIEFLY(dd_nccl_work_memory_is_free(py_flight_nccl_work(flight)));
}

static void
keep_held(py_flight *flight)
{
    py_completions *queue = flight->queue;
    py_lock_take(&queue->lock);
    dd_list_push_back(&queue->held, &flight->link);
    py_lock_release(&queue->lock);
    atomic_store_explicit(&queue->has_orphans, true, memory_order_relaxed);
}

/* Keep a failed flight until the device is done with its tensors; a later drain releases it. */
static void
hold(py_flight *flight)
{
    DD_LOG(DD_LOG_INFO, "%s has failed, and its tensors are kept: the device may still use them",
           flight->work->label);
    PyObject *group = flight->group;
    flight->group = NULL;
    keep_held(flight);
    Py_DECREF(group);
}

void
py_flight_destroy(py_flight *flight)
{
    if (!is_memory_free(flight)) {
        hold(flight);
        return;
    }
    release_operands(flight);
    py_flight *others = flight->others;
    if (others != NULL) {
        py_flight_destroy(others);
    }
    Py_XDECREF(flight->results);
    dd_work_release(flight->work);
    PyObject *group = flight->group;
    give_spare(flight);
    Py_XDECREF(group); /* may be the last reference and so close the group */
}

static void
release_owner(py_flight *flight)
{
    if (atomic_fetch_sub(&flight->nowners, 1) == 1) {
        py_flight_destroy(flight);
    }
}

void
py_flight_on_done(dd_work *Py_UNUSED(work), void *ctx)
{
    py_flight *flight = ctx;
    py_completions *queue = flight->queue;
    dd_lock_take(&queue->mu);
    flight->is_done = true;
    if (!queue->is_stopped) {
        if (flight->is_watched) {
            dd_list_push_back(&queue->watched, &flight->link);
            pthread_cond_signal(&queue->cond);
        } else if (flight->is_orphan) {
            dd_list_push_back(&queue->orphans, &flight->link);
            atomic_store_explicit(&queue->has_orphans, true, memory_order_relaxed);
            py_completions_schedule_drain_locked(queue);
        }
    }
    dd_lock_release(&queue->mu);
}

dd_nccl_work *
py_flight_nccl_work(const py_flight *flight)
{
    return (dd_nccl_work *)flight->work;
}

dd_status
py_flight_wait(py_flight *flight, const dd_wait *wait, dd_error *err)
{
    return flight->is_nccl ? dd_nccl_work_wait(py_flight_nccl_work(flight), wait, err)
                           : dd_group_wait(py_group_core(flight->group), flight->work, wait, err);
}

bool
py_flight_is_done(py_flight *flight)
{
    if (flight->is_finished || dd_work_is_done(flight->work)) {
        return true;
    }
    if (!flight->is_nccl) {
        return false;
    }
    bool is_done = PY_WITHOUT_GIL(dd_nccl_work_poll(py_flight_nccl_work(flight)));
    return is_done;
}

/* Return a new list of the calls' output tensors, or raise. The flight must not be finished yet. */
static PyObject *
make_results(const py_flight *flight)
{
    PyObject *results = PyList_New(0);
    for (const py_flight *each = flight; each != NULL; each = each->others) {
        py_operands_add_results(&each->operands, &results);
    }
    return results;
}

static void
flight_unpack_once(py_flight *flight)
{
    dd_lock_take(&flight->unpacking_mu);
    if (!flight->is_unpacked) {
        py_operands_unpack(&flight->operands);
        flight->is_unpacked = true;
    }
    dd_lock_release(&flight->unpacking_mu);
}

/* Add this thread as a reader of the operands. Return false if the flight is finished, so that the
 * operands are no longer needed. */
static bool
begin_reading(py_flight *flight)
{
    py_lock_take(&flight->lock);
    bool is_needed = !flight->is_finished;
    flight->nreaders += is_needed ? 1 : 0;
    py_lock_release(&flight->lock);
    return is_needed;
}

/* Remove this thread as a reader. Finish the flight with `results`, unless they are NULL or the
 * flight is already finished. Takes ownership of `results`. The last reader of a finished flight
 * releases the flight's tensors. */
static void
end_reading(py_flight *flight, PyObject *results)
{
    py_lock_take(&flight->lock);
    if (results != NULL && !flight->is_finished) {
        flight->results = results;
        flight->is_finished = true;
        results = NULL;
    }
    flight->nreaders--;
    bool is_last = flight->is_finished && flight->nreaders == 0;
    py_lock_release(&flight->lock);
    Py_XDECREF(results);
    if (is_last && is_memory_free(flight)) {
        release_operands(flight); /* may run Python code */
    }
}

/* If threads finish a flight at the same time, each creates results; the flight keeps the first. */
bool
py_flight_finish(py_flight *flight)
{
    if (flight->is_finished || !begin_reading(flight)) {
        return true;
    }
    bool is_ok = flight->work->error.code == DD_OK;
    if (is_ok && flight->operands.is_staged) {
        Py_BEGIN_ALLOW_THREADS
        flight_unpack_once(flight);
        Py_END_ALLOW_THREADS
    }
    PyObject *results = is_ok ? make_results(flight) : PyList_New(0);
    bool is_made = results != NULL;
    end_reading(flight, results);
    return is_made;
}

PyObject *
py_flight_get_results(py_flight *flight)
{
    if (flight->is_finished || !begin_reading(flight)) {
        return Py_NewRef(flight->results);
    }
    PyObject *results = make_results(flight);
    end_reading(flight, NULL);
    return results;
}

/* Finish a completed flight that no caller waits for, so that its outputs are filled. Keeps the
 * current exception. */
static void
finish_unawaited(py_flight *flight)
{
    PyObject *exception = py_error_take();
    if (!py_flight_finish(flight)) {
        PyErr_WriteUnraisable(NULL);
    }
    py_error_put(exception);
}

void
py_flight_release(py_flight *flight)
{
    if (flight->generation != dd_fork_generation()) {
        return; /* a flight of the parent process: its locks may have been held at the fork */
    }
    dd_lock_take(&flight->queue->mu);
    bool is_left = !flight->is_done;
    flight->is_orphan = flight->is_orphan || is_left;
    dd_lock_release(&flight->queue->mu);
    if (!is_left) {
        finish_unawaited(flight);
        release_owner(flight);
    }
}

/* ---- watchers */

static int
start_thread(py_completions *queue)
{
    if (atomic_exchange(&queue->has_thread, true)) {
        return 0; /* another thread has started the completion thread, or is starting it */
    }
    PyObject *runtime = PyImport_ImportModule("dldist._base.callback_thread");
    PyObject *started =
        runtime != NULL ? PyObject_CallMethod(runtime, "start_completion_thread", NULL) : NULL;
    Py_XDECREF(runtime);
    Py_XDECREF(started);
    atomic_store(&queue->has_thread, started != NULL);
    return started != NULL ? 0 : -1;
}

/* Handle and release a callback's result. If the callback raised an Exception, pass the exception
 * to sys.unraisablehook, because no caller waits for it. If the callback raised anything else, such
 * as SystemExit, return false and keep the exception set. */
static bool
end_callback(PyObject *callback, PyObject *result)
{
    if (result == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) {
            return false;
        }
        PyErr_WriteUnraisable(callback);
    }
    Py_XDECREF(result);
    return true;
}

/* Call a watcher on the completion thread. Exceptions must not end the completion thread. */
static void
call_watcher(PyObject *watcher)
{
    if (!end_callback(watcher, PyObject_CallNoArgs(watcher))) {
        PyErr_WriteUnraisable(watcher);
    }
}

/* Append a watcher to the flight's list. Must be called with the queue's lock held. */
static void
add_watcher_locked(py_flight *flight, py_watcher *made)
{
    py_completions *queue = flight->queue;
    py_watcher **end = &flight->watchers;
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = made;
    if (!flight->is_watched) {
        flight->is_watched = true;
        atomic_fetch_add(&flight->nowners, 1);
        if (flight->is_done && !queue->is_stopped) {
            dd_list_push_back(&queue->watched, &flight->link);
            pthread_cond_signal(&queue->cond);
        }
    }
}

int
py_flight_watch(py_flight *flight, PyObject *watcher)
{
    py_completions *queue = flight->queue;
    if (py_flight_is_done(flight) && !flight->is_watched) {
        if (!py_flight_finish(flight)) {
            return -1;
        }
        return end_callback(watcher, PyObject_CallNoArgs(watcher)) ? 0 : -1;
    }
    if (!py_group_require_usable((py_group *)flight->group) || start_thread(queue) < 0) {
        return -1;
    }
    py_watcher *made = dd_mem_alloc(sizeof *made);
    if (made == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    *made = (py_watcher){.callback = Py_NewRef(watcher)};
    dd_lock_take(&queue->mu);
    add_watcher_locked(flight, made);
    dd_lock_release(&queue->mu);
    if (flight->is_nccl) {
        py_nccl_hurry(queue->state);
    }
    return 0;
}

PyObject *
py_completions_call_and_report(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *callback;
    PyObject *argument;
    const py_params params = PY_PARAMS("_call_and_report", 2, 2, {"callback", PY_OBJECT, &callback},
                                       {"argument", PY_OBJECT, &argument});
    if (!py_params_read(&params, PyModule_GetState(module), args, nargs, kwnames)) {
        return NULL;
    }
    if (!end_callback(callback, PyObject_CallFunctionObjArgs(callback, argument, NULL))) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Remove and return the next watcher; if there is none, mark the flight as not watched. */
static py_watcher *
take_watcher(py_flight *flight)
{
    dd_lock_take(&flight->queue->mu);
    py_watcher *watcher = flight->watchers;
    if (watcher != NULL) {
        flight->watchers = watcher->next;
    } else {
        flight->is_watched = false;
    }
    dd_lock_release(&flight->queue->mu);
    return watcher;
}

/* Finish the flight and call its watchers, including watchers added during the calls. */
static void
notify(py_flight *flight)
{
    py_watcher *watcher;
    finish_unawaited(flight);
    while ((watcher = take_watcher(flight)) != NULL) {
        call_watcher(watcher->callback);
        Py_DECREF(watcher->callback);
        dd_mem_free(watcher);
    }
}

/* ---- the queue */

static py_completions *
create_queue(py_state *state)
{
    /* The queue is never freed: threads of the core may end works until the process exits. */
    py_completions *queue = dd_mem_zalloc(sizeof *queue);
    if (queue == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    queue->generation = dd_fork_generation();
    queue->state = state;
    dd_lock_init(&queue->mu, DD_LOCK_COMPLETIONS);
    dd_cond_init(&queue->cond);
    dd_list_init(&queue->spare);
    dd_list_init(&queue->held);
    dd_list_init(&queue->watched);
    dd_list_init(&queue->orphans);
    return queue;
}

static void
destroy_unused_queue(py_completions *queue)
{
    dd_cond_fini(&queue->cond);
    dd_lock_fini(&queue->mu);
    dd_mem_free(queue);
}

/* Return this process's queue, or NULL if no thread has needed it since the last fork. */
static py_completions *
current_queue(py_state *state)
{
    py_completions *queue = PY_ONCE_GET(&state->completions);
    return queue != NULL && queue->generation == dd_fork_generation() ? queue : NULL;
}

py_completions *
py_completions_get(py_state *state)
{
    py_completions *queue = PY_ONCE_GET(&state->completions);
    while (queue == NULL || queue->generation != dd_fork_generation()) {
        py_completions *made = create_queue(state);
        if (made == NULL) {
            return NULL;
        }
        if (__atomic_compare_exchange_n(&state->completions, &queue, made, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE)) {
            return made;
        }
        destroy_unused_queue(made);
    }
    return queue;
}

static py_flight *
take_orphan(py_completions *queue)
{
    py_flight *flight = NULL;
    dd_lock_take(&queue->mu);
    if (!dd_list_is_empty(&queue->orphans)) {
        flight = DD_CONTAINER_OF(queue->orphans.next, py_flight, link);
        dd_list_remove(&flight->link);
    } else {
        atomic_store_explicit(&queue->has_orphans, false, memory_order_relaxed);
    }
    dd_lock_release(&queue->mu);
    return flight;
}

static py_flight *
take_held_locked(py_completions *queue)
{
    if (dd_list_is_empty(&queue->held)) {
        return NULL;
    }
    py_flight *flight = DD_CONTAINER_OF(queue->held.next, py_flight, link);
    dd_list_remove(&flight->link);
    return flight;
}

static size_t
count_held_locked(const py_completions *queue)
{
    size_t count = 0;
    for (const dd_list *node = queue->held.next; node != &queue->held; node = node->next) {
        count++;
    }
    return count;
}

/* Destroy held flights whose devices are done with the tensors, and keep the other flights. */
static void
destroy_ready_held(py_completions *queue)
{
    size_t count = PY_LOCKED(&queue->lock, count_held_locked(queue));
    py_flight *flight;
    while (count-- > 0 && (flight = PY_LOCKED(&queue->lock, take_held_locked(queue))) != NULL) {
        if (is_memory_free(flight)) {
            py_flight_destroy(flight); /* may run Python code that calls this function again */
        } else {
            keep_held(flight);
        }
    }
}

static void
drain(py_completions *queue)
{
    py_flight *flight;
    PyObject *exception = py_error_take();
    while ((flight = take_orphan(queue)) != NULL) {
        if (flight->operands.is_staged) {
            finish_unawaited(flight);
        }
        release_owner(flight);
    }
    destroy_ready_held(queue);
    py_error_put(exception);
}

void
py_completions_drain(py_state *state)
{
    py_completions *queue = PY_ONCE_GET(&state->completions);
    if (queue != NULL && atomic_load_explicit(&queue->has_orphans, memory_order_relaxed) &&
        queue->generation == dd_fork_generation()) {
        drain(queue);
    }
}

/* Drain the queue: a pending call (Py_AddPendingCall), which Python runs on the main thread. */
static int
drain_later(void *arg)
{
    py_completions *queue = arg;
    if (queue->generation != dd_fork_generation()) {
        return 0;
    }
    dd_lock_take(&queue->mu);
    queue->is_drain_scheduled = false;
    bool is_stopped = queue->is_stopped;
    dd_lock_release(&queue->mu);
    if (!is_stopped) {
        drain(queue);
    }
    return 0;
}

/* Schedule a drain of the queue on the main thread. The queue's lock must be held, so that the
 * drain is scheduled before the queue is stopped: after the stop there may be no interpreter.
 * Py_AddPendingCall neither waits for the GIL nor runs anything. */
void
py_completions_schedule_drain_locked(py_completions *queue)
{
    if (!queue->is_drain_scheduled) {
        queue->is_drain_scheduled =
            Py_AddPendingCall(drain_later, queue) == 0; /* if it fails, the next orphan retries */
    }
}

/* ---- the completion thread */

/* Remove and return the next watched flight; wait for one unless is_last_pass is true. Return NULL
 * if the completion thread must stop, or if no flight is left in the last pass. */
static py_flight *
take_watched(py_completions *queue, bool is_last_pass)
{
    py_flight *flight = NULL;
    dd_lock_take(&queue->mu);
    while (dd_list_is_empty(&queue->watched) && !queue->is_stopped && !is_last_pass) {
        dd_cond_wait(&queue->cond, &queue->mu);
    }
    if (!dd_list_is_empty(&queue->watched) && (is_last_pass || !queue->is_stopped)) {
        flight = DD_CONTAINER_OF(queue->watched.next, py_flight, link);
        dd_list_remove(&flight->link);
    }
    dd_lock_release(&queue->mu);
    return flight;
}

static void
finish_watched(py_flight *flight)
{
    notify(flight);
    /* A Work that was dropped before the operation's end has left its reference to this thread. */
    if (flight->is_orphan) {
        flight->is_orphan = false;
        release_owner(flight);
    }
    release_owner(flight);
}

PyObject *
py_completions_take(PyObject *module, PyObject *Py_UNUSED(unused))
{
    py_completions *queue = py_completions_get(PyModule_GetState(module));
    if (queue == NULL) {
        return NULL;
    }
    py_flight *flight;
    sigset_t before;
    Py_BEGIN_ALLOW_THREADS
    py_signals_hold(&before);
    flight = take_watched(queue, false);
    py_signals_release(&before);
    Py_END_ALLOW_THREADS
    if (flight == NULL) {
        Py_RETURN_FALSE;
    }
    finish_watched(flight);
    py_completions_drain(queue->state);
    Py_RETURN_TRUE;
}

PyObject *
py_completions_stop(PyObject *module, PyObject *Py_UNUSED(unused))
{
    py_state *state = PyModule_GetState(module);
    py_completions *queue = current_queue(state);
    if (queue == NULL) {
        Py_RETURN_NONE;
    }
    dd_lock_take(&queue->mu);
    queue->is_stopped = true;
    pthread_cond_broadcast(&queue->cond);
    dd_lock_release(&queue->mu);
    py_flight *flight;
    while ((flight = take_watched(queue, true)) != NULL) {
        finish_watched(flight);
    }
    drain(queue);
    Py_RETURN_NONE;
}
