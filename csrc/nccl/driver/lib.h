/* NCCL, loaded at run time: its functions, version and capabilities. */
#ifndef DD_NCCL_DRIVER_LIB_H
#define DD_NCCL_DRIVER_LIB_H

#include "core/dtype.h"
#include "core/dylib.h"
#include "core/status.h"
#include "nccl/driver/lib_api.h"

#include <stdbool.h>

/* The loaded NCCL, constant once open. Call its functions directly: lib->api.ncclAllReduce(...). */
typedef struct dd_nccl_lib {
    dd_nccl_api api;
    int version;           /* version code, such as 22703; may exceed DD_NCCL_VERSION_KNOWN */
    char version_text[16]; /* the version as text, such as "2.27.3" */
    const char *path;      /* path of the loaded library */
    uint64_t encryption;   /* hash of the key that encrypts NCCL's sockets; 0 without encryption */
} dd_nccl_lib;

/* Load NCCL. DD_NOT_SUPPORTED if there is no library (the message has each path tried and why it
 * failed), if it is too old, or if it lacks symbols (the message lists them). */
dd_status dd_nccl_lib_open(const dd_dylib_search *search, dd_nccl_lib **lib, dd_error *err) DD_MUST_CHECK;
/* Free the function table; the library stays loaded. `lib` may be NULL. */
void dd_nccl_lib_close(dd_nccl_lib *lib);

bool dd_nccl_has(const dd_nccl_lib *lib, dd_nccl_capability capability);
/* Return the name of a valid capability's function, such as "ncclCommShrink". */
const char *dd_nccl_capability_name(dd_nccl_capability capability);
/* Check a capability; else DD_NOT_SUPPORTED: "... needs NCCL 2.27.3 or newer, this is 2.19.1". */
dd_status dd_nccl_need(const dd_nccl_lib *lib, dd_nccl_capability capability, dd_error *err) DD_MUST_CHECK;

/* Like dd_nccl_need for a feature that is not a function; `label` is its name: "float8_e5m2". */
dd_status dd_nccl_need_version(const dd_nccl_lib *lib, const char *label, int since,
                               dd_error *err) DD_MUST_CHECK;

/* Print a version code as "2.27.3" to `out`, which must have 16 bytes. Return `out`. */
const char *dd_nccl_version_print(int version, char *out);
/* Return NCCL's name of a result, such as "ncclInvalidUsage". Never NULL. */
const char *dd_nccl_result_name(dd_nccl_result result);

/* Text of ncclGetLastError before a call: the last warning, even from a successful call. */
typedef struct dd_nccl_last_error {
    dd_nccl_comm_handle comm;
    char text[256];
} dd_nccl_last_error;
/* Save the current ncclGetLastError text; `comm` may be NULL. Cheap: a call and at most a copy. */
void dd_nccl_note_last_error(const dd_nccl_lib *lib, dd_nccl_comm_handle comm, dd_nccl_last_error *before);

/* Return true if the call itself caused the result; other results may have an older cause. */
bool dd_nccl_is_of_the_call(dd_nccl_result result);

/* Convert an NCCL result into a status. DD_OK for success and for DD_NCCL_IN_PROGRESS (then call
 * dd_nccl_comm_wait_ready). Otherwise DD_BACKEND: "<label>: ncclInvalidUsage (5): invalid usage:
 * <ncclGetLastError>". `label` is a format for the call and its target: "ncclAllReduce of rank 1".
 * `before` must be saved before the call: a text of ncclGetLastError that has not changed since is
 * from an earlier call, and is left out. Other threads' calls may also have changed the text. */
dd_status dd_nccl_check(const dd_nccl_lib *lib, const dd_nccl_last_error *before, dd_nccl_result result,
                        dd_error *err, const char *label, ...) DD_PRINTF(5, 6) DD_MUST_CHECK;

/* Encrypt NCCL's sockets (2.32.3). `psk` is a key of at least 32 bytes that all processes share.
 * Must be called before any other use of the library. `print` is a nonzero hash of the key. It
 * becomes lib->encryption: ranks with different values cannot form a communicator. */
dd_status dd_nccl_set_encryption(dd_nccl_lib *lib, const char *psk, uint64_t print,
                                 dd_error *err) DD_MUST_CHECK;

/* Find NCCL's number for a dtype, and the first version that has it (0 if all). False if none. */
bool dd_nccl_dtype_find(dd_dtype dtype, dd_nccl_dtype *nccl_dtype, int *since);
/* Find this NCCL's number for a dtype; DD_NOT_SUPPORTED if it has none, as for bool and complex. */
dd_status dd_nccl_dtype_of(const dd_nccl_lib *lib, dd_dtype dtype, dd_nccl_dtype *nccl_dtype,
                           dd_error *err) DD_MUST_CHECK;

#endif
