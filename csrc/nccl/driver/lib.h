/* NCCL, loaded at run time: its functions, version and capabilities. */
#ifndef DD_NCCL_DRIVER_LIB_H
#define DD_NCCL_DRIVER_LIB_H

#include "core/dtype.h"
#include "core/dylib.h"
#include "core/status.h"
#include "nccl/driver/lib_api.h"

#include <stdbool.h>

/* Constant once it is open. Call functions directly: lib->api.ncclAllReduce(...). */
typedef struct dd_nccl_lib {
    dd_nccl_api api;
    int version;           /* as NCCL reports it: 22703; may be above DD_NCCL_VERSION_KNOWN */
    char version_text[16]; /* "2.27.3" */
    const char *path;      /* the library's file */
    uint64_t encryption;   /* hash of its sockets' key; 0 if not encrypted */
} dd_nccl_lib;

/* Load NCCL. DD_NOT_SUPPORTED if there is none (the message has each path tried and why it failed),
 * if it is too old, or if it lacks symbols (the message has all of them). */
dd_status dd_nccl_lib_open(const dd_dylib_search *search, dd_nccl_lib **lib, dd_error *err) DD_MUST_CHECK;
/* Free the table; the library stays loaded. `lib` may be NULL. */
void dd_nccl_lib_close(dd_nccl_lib *lib);

bool dd_nccl_has(const dd_nccl_lib *lib, dd_nccl_capability capability);
/* Return the function's name: "ncclCommShrink". The capability must be in range. */
const char *dd_nccl_capability_name(dd_nccl_capability capability);
/* Check for a function. Else DD_NOT_SUPPORTED: "... needs NCCL 2.27.3 or newer, this is 2.19.1". */
dd_status dd_nccl_need(const dd_nccl_lib *lib, dd_nccl_capability capability, dd_error *err) DD_MUST_CHECK;

/* Check the same for a feature that is not a function; `what` names it: "float8_e5m2". */
dd_status dd_nccl_need_version(const dd_nccl_lib *lib, const char *what, int since,
                               dd_error *err) DD_MUST_CHECK;

/* Print the version as "2.27.3" to `out`, which must have 16 bytes. Return `out`. */
const char *dd_nccl_version_print(int version, char *out);
/* Return NCCL's name of the result: "ncclInvalidUsage". Never NULL. */
const char *dd_nccl_result_name(dd_nccl_result result);

/* ncclGetLastError before a call: the process's last warning, perhaps of a successful call. */
typedef struct dd_nccl_last_error {
    dd_nccl_comm_handle comm;
    char text[256];
} dd_nccl_last_error;
/* Save the current text in `before`. comm may be NULL. Cheap: one call and at most a copy. */
void dd_nccl_note_last_error(const dd_nccl_lib *lib, dd_nccl_comm_handle comm, dd_nccl_last_error *before);

/* True if the result is about the call itself. Other results may have an older cause. */
bool dd_nccl_is_of_the_call(dd_nccl_result result);

/* Turn a result of NCCL into a status. DD_OK for success and for DD_NCCL_IN_PROGRESS (then call
 * dd_nccl_comm_wait_ready). Otherwise DD_BACKEND: "<what>: ncclInvalidUsage (5): invalid usage:
 * <ncclGetLastError>". `what` is a format for the call and its target: "ncclAllReduce of rank 1".
 * `before` must be saved before the call: if the text of ncclGetLastError has not changed since, it
 * belongs to an earlier call and is left out. Other threads' calls may have changed it. */
dd_status dd_nccl_check(const dd_nccl_lib *lib, const dd_nccl_last_error *before, dd_nccl_result result,
                        dd_error *err, const char *what, ...) DD_PRINTF(5, 6) DD_MUST_CHECK;

/* Encrypt NCCL's sockets (2.32.3), with a key of at least 32 bytes that all processes share. Call
 * it before any other use of the library. `print`, a hash of the key other than 0, becomes
 * lib->encryption: ranks with different values cannot form a communicator. */
dd_status dd_nccl_set_encryption(dd_nccl_lib *lib, const char *psk, uint64_t print,
                                 dd_error *err) DD_MUST_CHECK;

/* Find NCCL's number of a dtype, and its first version (0: all). False if no version has it. */
bool dd_nccl_dtype_find(dd_dtype dtype, dd_nccl_dtype *theirs, int *since);
/* Find it for this version. DD_NOT_SUPPORTED if it has none, as for bool and complex numbers. */
dd_status dd_nccl_dtype_of(const dd_nccl_lib *lib, dd_dtype dtype, dd_nccl_dtype *theirs,
                           dd_error *err) DD_MUST_CHECK;

#endif
