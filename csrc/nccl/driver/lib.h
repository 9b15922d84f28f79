/* NCCL, loaded at run time: its functions, its version, and what it can do. */
#ifndef DD_NCCL_DRIVER_LIB_H
#define DD_NCCL_DRIVER_LIB_H

#include "core/dtype.h"
#include "core/dylib.h"
#include "core/status.h"
#include "nccl/driver/lib_api.h"

#include <stdbool.h>

/* Constant once it is open; everybody calls lib->api.ncclAllReduce(...). */
typedef struct dd_nccl_lib {
    dd_nccl_api api;
    int version;           /* 22703; whatever is newer than DD_NCCL_VERSION_KNOWN, too */
    char version_text[16]; /* "2.27.3" */
    const char *path;      /* of the library */
    uint64_t encryption;   /* tells the keys of its sockets apart, and gives none away; 0: they are plain */
} dd_nccl_lib;

/* DD_NOT_SUPPORTED: none (everything tried and why it failed), one that is too old, one that lacks symbols (all are named). */
dd_status dd_nccl_lib_open(const dd_dylib_place *search, dd_nccl_lib **lib, dd_error *err) DD_MUST_CHECK;
/* Frees the table; the library stays in the process. NULL is fine. */
void dd_nccl_lib_close(dd_nccl_lib *lib);

bool dd_nccl_has(const dd_nccl_lib *lib, dd_nccl_capability capability);
/* "ncclCommShrink"; the capability must be in range. */
const char *dd_nccl_capability_name(dd_nccl_capability capability);
/* DD_NOT_SUPPORTED: "ncclCommShrink needs NCCL 2.27.3 or newer, this is 2.19.1 (/usr/lib/libnccl.so.2)". */
dd_status dd_nccl_need(const dd_nccl_lib *lib, dd_nccl_capability capability, dd_error *err) DD_MUST_CHECK;

/* The same for what is no function: "float8_e5m2". */
dd_status dd_nccl_need_version(const dd_nccl_lib *lib, const char *what, int since,
                               dd_error *err) DD_MUST_CHECK;

/* "2.27.3"; returns out, which has 16 bytes. */
const char *dd_nccl_version_print(int version, char *out);
/* "ncclInvalidUsage"; never NULL. */
const char *dd_nccl_result_name(dd_nccl_result result);

/* The text of ncclGetLastError before a call: the last warning of the whole process, perhaps from a call that succeeded. */
typedef struct dd_nccl_last_error {
    dd_nccl_comm_handle comm;
    char text[256];
} dd_nccl_last_error;
/* comm may be NULL. Cheap: one call, and a copy if there is a text. */
void dd_nccl_note_last_error(const dd_nccl_lib *lib, dd_nccl_comm_handle comm, dd_nccl_last_error *before);

/* The result is about the arguments or the state of a call. Others may have a cause that is older than the call. */
bool dd_nccl_is_of_the_call(dd_nccl_result result);

/* DD_OK also for DD_NCCL_IN_PROGRESS (dd_nccl_comm_wait_ready tells the rest); else DD_BACKEND: "<what>: ncclInvalidUsage (5): invalid
 * usage: <ncclGetLastError>". `what` names the call and on what: "ncclAllReduce of rank 1 of 4".
 *
 * before: noted before the call that gave the result. A text that has not changed since is left out, because it belongs to an
 * earlier call. Another thread's call may have changed it. */
dd_status dd_nccl_check(const dd_nccl_lib *lib, const dd_nccl_last_error *before, dd_nccl_result result,
                        dd_error *err, const char *what, ...) DD_PRINTF(5, 6) DD_MUST_CHECK;

/* Of NCCL, 2.32.3: its sockets are encrypted from now on, with a key of at least 32 bytes that all processes have. Before anything else is done
 * with the library. `print`, not 0, becomes lib->encryption: ranks with different ones do not become a communicator. */
dd_status dd_nccl_set_encryption(dd_nccl_lib *lib, const char *psk, uint64_t print,
                                 dd_error *err) DD_MUST_CHECK;

/* The number of NCCL's for a dtype, and the version that brought it (0: every one has it). False: none has. */
bool dd_nccl_dtype_find(dd_dtype dtype, dd_nccl_dtype *theirs, int *since);
/* The same for this NCCL; DD_NOT_SUPPORTED where it has none (bool and complex numbers never have). */
dd_status dd_nccl_dtype_of(const dd_nccl_lib *lib, dd_dtype dtype, dd_nccl_dtype *theirs,
                           dd_error *err) DD_MUST_CHECK;

#endif
