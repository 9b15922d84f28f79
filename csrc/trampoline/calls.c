/* The library that jaxlib's MPItrampoline loads as its MPI. It exports the names that MPItrampoline
 * looks up; calls of these functions fail until XLA initialises MPI.
 *
 * It is a separate library because it must export all of these names. MPI_Init_thread gets a table
 * of functions from dldist.jax; the other functions call those of the table. The process must run
 * Python, because the dynamic linker must find Python's functions in the process. */
#include "python/base/api.h"
#include "python/xla/mpi.h"
#include "trampoline/mpi_symbols.h"
#include "xla/mpi.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define SHOWN __attribute__((visibility("default")))

/* ---- versions of MPItrampoline's ABI (release 5) */

SHOWN extern const int mpiabi_version_major;
SHOWN extern const int mpiabi_version_minor;
SHOWN extern const int mpiabi_version_patch;
SHOWN extern const int mpiwrapper_version_major;
SHOWN extern const int mpiwrapper_version_minor;
SHOWN extern const int mpiwrapper_version_patch;
const int mpiabi_version_major = 2;
const int mpiabi_version_minor = 10;
const int mpiabi_version_patch = 0;
const int mpiwrapper_version_major = 2;
const int mpiwrapper_version_minor = 10;
const int mpiwrapper_version_patch = 0;

/* MPItrampoline requires this symbol. It does nothing, since XLA does not use MPI from Fortran. */
SHOWN void mpiwrapper_export_fortran_constants_(void);
void
mpiwrapper_export_fortran_constants_(void)
{
}

/* ---- constants */

#define DEFINE(symbol, value)                \
    SHOWN extern const dd_mpi_handle symbol; \
    const dd_mpi_handle symbol = value;
#define CONSTANT(name, value) DEFINE(MPIABI_##name, value)
#define TYPE(name, dtype) DEFINE(MPIABI_##name, DD_MPI_TYPE + DD_DTYPE_##dtype)
#define OPERATION(name, reduction) DEFINE(MPIABI_##name, DD_MPI_OPERATION + DD_REDOP_##reduction)
#define OTHER_CONSTANT(name) DEFINE(MPIABI_##name, -1000 - __COUNTER__)
TRAMPOLINE_CONSTANTS(CONSTANT)
TRAMPOLINE_TYPES(TYPE)
TRAMPOLINE_OPERATIONS(OPERATION)
TRAMPOLINE_OTHER_CONSTANTS(OTHER_CONSTANT)

/* ---- initialisation and finalisation */

static _Atomic(const dd_mpi_calls *) calls; /* function table; NULL before MPI_Init_thread */
static atomic_bool is_finalized;

/* Print that a call is not possible, and return an error code. */
static int
refuse_call(const char *name, const char *why)
{
    fprintf(stderr, "dldist.jax: MPI_%s: %s\n", name, why);
    return DD_MPI_ERR_OTHER;
}

/* Return the table of functions; NULL with a Python exception on failure. The GIL must be held. */
static const dd_mpi_calls *
find_calls(void)
{
    PyObject *module = PyImport_ImportModule("dldist.jax");
    PyObject *capsule = module != NULL ? PyObject_CallMethod(module, "_begin", NULL) : NULL;
    const dd_mpi_calls *found = capsule != NULL ? PyCapsule_GetPointer(capsule, PY_MPI_CALLS) : NULL;
    Py_XDECREF(capsule);
    Py_XDECREF(module);
    return found;
}

#define FUNCTION(name, parameters)      \
    SHOWN int MPIABI_##name parameters; \
    int MPIABI_##name parameters

FUNCTION(Init_thread, (const void *argc, const void *argv, int required, int *provided))
{
    (void)argc;
    (void)argv;
    *provided = required;
    PyGILState_STATE gil = PyGILState_Ensure();
    const dd_mpi_calls *found = find_calls();
    if (found == NULL) {
        /* XLA would ignore an error, so end the process, as MPItrampoline does without an MPI. */
        PyErr_Print();
        fprintf(
            stderr,
            "dldist.jax cannot be imported by the Python that has MPITRAMPOLINE_LIB in its environment\n");
        exit(1);
    }
    PyGILState_Release(gil);
    atomic_store(&calls, found);
    return DD_MPI_SUCCESS;
}

FUNCTION(Init, (const void *argc, const void *argv))
{
    int provided;
    return MPIABI_Init_thread(argc, argv, 0, &provided);
}

/* Do not close groups here: they are closed when Python exits. */
FUNCTION(Finalize, (void))
{
    atomic_store(&is_finalized, true);
    return DD_MPI_SUCCESS;
}

FUNCTION(Initialized, (int *flag))
{
    *flag = atomic_load(&calls) != NULL;
    return DD_MPI_SUCCESS;
}

FUNCTION(Finalized, (int *flag))
{
    *flag = atomic_load(&is_finalized);
    return DD_MPI_SUCCESS;
}

/* Set *flag on every thread: XLA creates communicators only on threads where *flag is true. */
FUNCTION(Is_thread_main, (int *flag))
{
    *flag = 1;
    return DD_MPI_SUCCESS;
}

FUNCTION(Query_thread, (int *provided))
{
    *provided = (int)MPIABI_THREAD_MULTIPLE;
    return DD_MPI_SUCCESS;
}

FUNCTION(Get_version, (int *version, int *subversion))
{
    *version = 3;
    *subversion = 1;
    return DD_MPI_SUCCESS;
}

FUNCTION(Get_library_version, (char *text, int *nbytes))
{
    *nbytes = snprintf(text, DD_MPI_MAX_ERROR_STRING, "dldist's groups, as MPI for XLA");
    return DD_MPI_SUCCESS;
}

/* Return 0 (no support), so that XLA does not pass device memory. */
#define NO_DEVICES(name)            \
    SHOWN int MPIXABI_##name(void); \
    int MPIXABI_##name(void)        \
    {                               \
        return 0;                   \
    }
NO_DEVICES(Query_cuda_support)
NO_DEVICES(Query_hip_support)
NO_DEVICES(Query_ze_support)

/* ---- functions that call those of the table */

#define PASS_ON(name, parameters, arguments)                                                         \
    FUNCTION(name, parameters)                                                                       \
    {                                                                                                \
        const dd_mpi_calls *found = atomic_load(&calls);                                             \
        return found != NULL ? found->name arguments : refuse_call(#name, "MPI is not initialized"); \
    }
/* NOLINTBEGIN(readability-function-size): MPI_Sendrecv has twelve parameters */
DD_MPI_CALLS(PASS_ON)
/* NOLINTEND(readability-function-size) */

#define REFUSE(name)                                                                                     \
    FUNCTION(name, (void))                                                                               \
    {                                                                                                    \
        return refuse_call(#name, "not supported: dldist has only the functions of MPI that XLA calls"); \
    }
TRAMPOLINE_ABSENT(REFUSE)
