/* How the binding protects its state, with the GIL and on free-threaded builds of Python
 * (PY_MAY_LACK_GIL).
 *
 * Every field of an object or of the module's state, and every static variable, has one of these
 * protections, which its declaration names:
 *
 * - const after new, init or exec: written before another thread can find it.
 * - atomic: an independent flag or number.
 * - once: a pointer that changes from NULL to its value (PY_ONCE_GET and below) and stays until its
 *   owner is freed.
 * - "guarded by <lock>", a py_lock: everything else. With the GIL, a py_lock is empty, because the
 *   GIL serializes the code that it encloses. Free-threaded, it is a PyMutex, or a mutex of the C
 *   library with abi3t, which has no PyMutex. Zeroed memory is a free py_lock.
 *
 * A thread that holds a py_lock is attached to the interpreter, and may only read, write, and take
 * references (Py_NewRef). It must not call Python, release a reference, allocate Python objects,
 * take another lock of any kind, or detach (PY_WITHOUT_GIL); `engines_lock` is the one exception.
 * This rules out deadlocks. A fork and the collector stop attached threads only at calls of Python,
 * and so find every py_lock free and all state consistent. A py_lock must not be taken with a lock
 * of the core (dd_lock) held, because waiting for the py_lock may detach.
 *
 * tp_traverse, tp_clear and tp_dealloc need not lock their object: during tp_traverse all other
 * threads are stopped, and during tp_clear and tp_dealloc no other thread refers to the object.
 *
 * Calls into the core are made detached. With the GIL, a call that takes about a microsecond keeps
 * the GIL, because retaking the GIL takes longer: see PY_BRIEFLY and py_wait_on_block in
 * base/wait.h. Free-threaded, such short calls detach as well. An attached thread may take a lock
 * of the core that guards a list or a flag. It must not complete operations: the completion code
 * may wait for a lock of the interpreter, and so detach, with locks of the core held.
 *
 * A caller's containers may change while they are read. Copy a list (PySequence_Tuple), or take a
 * new reference to the item (PySequence_GetItem, PyObject_GetItem). Borrowed items (PyList_GetItem,
 * PyDict_GetItem, PyDict_Next) are only for tuples and for containers that only this thread knows:
 * kwargs, new lists, results of PySequence_List. For fields that change, take a new reference with
 * the lock held. */
#ifndef DD_PYTHON_BASE_LOCK_H
#define DD_PYTHON_BASE_LOCK_H

#include "python/base/api.h"

#include <stdbool.h>

#ifdef Py_TARGET_ABI3T
#include <pthread.h>
typedef struct py_lock {
    pthread_mutex_t mutex;
} py_lock;
#elif defined(Py_GIL_DISABLED)
typedef struct py_lock {
    PyMutex mutex;
} py_lock;
#else
typedef struct py_lock {
} py_lock;
#endif

static inline void
py_lock_take(py_lock *lock)
{
#ifdef Py_TARGET_ABI3T
    pthread_mutex_lock(&lock->mutex);
#elif defined(Py_GIL_DISABLED)
    PyMutex_Lock(&lock->mutex);
#else
    (void)lock;
#endif
}

static inline void
py_lock_release(py_lock *lock)
{
#ifdef Py_TARGET_ABI3T
    pthread_mutex_unlock(&lock->mutex);
#elif defined(Py_GIL_DISABLED)
    PyMutex_Unlock(&lock->mutex);
#else
    (void)lock;
#endif
}

/* Evaluate an expression with the py_lock held. */
#define PY_LOCKED(lock, expression)                     \
    __extension__({                                     \
        py_lock *py_held = (lock);                      \
        py_lock_take(py_held);                          \
        __typeof__(expression) py_value = (expression); \
        py_lock_release(py_held);                       \
        py_value;                                       \
    })

/* Return the value of a `once` pointer; NULL if the pointer is not set. */
#define PY_ONCE_GET(target) __atomic_load_n((target), __ATOMIC_ACQUIRE)

/* Set a `once` pointer. If it is already set, return false; the caller then still owns `value`. */
#define PY_ONCE_SET(target, value)                                                                           \
    __extension__({                                                                                          \
        __typeof__(*(target)) py_none = NULL;                                                                \
        __atomic_compare_exchange_n((target), &py_none, (value), false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE); \
    })

/* Set a `once` object unless it is already set. Takes ownership of `value`. Return the object that
 * `target` now has, borrowed; NULL only if `value` is NULL and no object was set before. */
static inline PyObject *
py_once_object(PyObject **target, PyObject *value)
{
    if (value == NULL || !PY_ONCE_SET(target, value)) {
        Py_XDECREF(value);
    }
    return PY_ONCE_GET(target);
}

#endif
