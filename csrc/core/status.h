/* Status codes, and the error that explains a failure.
 *
 * Every function that can fail returns a dd_status and takes `dd_error *err` last (it may be NULL).
 * The function that detects the failure writes the message: the attempted call, its target, the
 * result, the numbers. Outer functions may prepend context once; cleanup must not overwrite it. */
#ifndef DD_CORE_STATUS_H
#define DD_CORE_STATUS_H

#include <stdbool.h>
#include <stddef.h>

/* X(name, text): a status code and its meaning. csrc/python/base/error.c has the exceptions. */
#define DD_STATUS_LIST(X)                                      \
    X(OK, "success")                                           \
    X(INVALID_ARGUMENT, "invalid argument")                    \
    X(NOT_SUPPORTED, "not supported")                          \
    X(OUT_OF_MEMORY, "out of memory")                          \
    X(TIMED_OUT, "timed out")                                  \
    X(INTERRUPTED, "interrupted by the caller")                \
    X(NETWORK, "network failure")                              \
    X(NETWORK_TIMED_OUT, "timed out on the network")           \
    X(PROTOCOL, "peer broke the protocol")                     \
    X(AUTH, "authentication failed")                           \
    X(STORE, "store failure")                                  \
    X(QUEUE_EMPTY, "queue is empty")                           \
    X(SYSTEM, "system call failed")                            \
    X(OP_TIMED_OUT, "operation of a group timed out")          \
    X(PEER_LOST, "a peer was lost")                            \
    X(MISMATCH, "ranks called different operations")           \
    X(ABORTED, "operation was aborted")                        \
    X(CLOSED, "object is closed")                              \
    X(FORKED, "object belongs to the process before the fork") \
    X(BACKEND, "failure of a backend's library")               \
    X(INTERNAL, "internal error")

typedef enum dd_status {
#define DD_STATUS_ENUM(name, text) DD_##name,
    DD_STATUS_LIST(DD_STATUS_ENUM)
#undef DD_STATUS_ENUM
} dd_status;

#define DD_STATUS_COUNT ((int)DD_INTERNAL + 1)
#define DD_MUST_CHECK __attribute__((warn_unused_result))
#define DD_PRINTF(format_index, first_arg) __attribute__((format(printf, format_index, first_arg)))

#define DD_HOST_NAME_MAX 64

/* The rank that an error blames, if it blames exactly one. */
typedef struct dd_blamed_rank {
    int rank;      /* rank in the group; -1 if no rank is blamed */
    long long pid; /* process id of the blamed rank; 0 if unknown */
    char host[DD_HOST_NAME_MAX];
} dd_blamed_rank;

/* The call on a group whose failure an error reports. */
typedef struct dd_failed_call {
    char op[32];                 /* name of the call, such as "all_reduce"; "" if no call failed */
    char group[64];              /* name of the group, truncated to fit */
    unsigned long long sequence; /* number of the call among the group's collectives, or 0 */
    long long elapsed_ns;        /* nanoseconds from the start of the call to the failure */
} dd_failed_call;

typedef struct dd_error {
    dd_status code;
    int sys_errno; /* errno of the failed system call; 0 if no system call failed */
    dd_blamed_rank blamed;
    dd_failed_call call;
    bool keeps_memory; /* true if the call's memory may still be in use: it must not be freed */
    char message[1024];
} dd_error;

/* Return the name of a status code ("TIMED_OUT"), or its meaning ("timed out"); never NULL. */
const char *dd_status_name(dd_status code);
const char *dd_status_text(dd_status code);

/* Set the code and the message of `err`, which may be NULL, and return the code, so that a failure
 * is one line: `return dd_error_set(err, DD_STORE, "...", ...)`. Messages must be in lower case
 * without a final period. A message that does not fit is truncated and ends in "...". */
dd_status dd_error_set(dd_error *err, dd_status code, const char *format, ...) DD_PRINTF(3, 4);

/* Like dd_error_set, but append ": <text of strerror> (errno N)" to the message. */
dd_status dd_error_set_errno(dd_error *err, dd_status code, int sys_errno, const char *format, ...)
    DD_PRINTF(4, 5);

/* Set the rank that an error blames. `host` may be NULL. */
void dd_error_blame(dd_error *err, int rank, const char *host, long long pid);

/* Set the failed call of an error. `group` is the group's name, which has `group_len` bytes. */
void dd_error_note_call(dd_error *err, const char *op, unsigned long long sequence, long long elapsed_ns,
                        const void *group, size_t group_len);

/* Put "<text>: " before the message of an error. */
void dd_error_prepend(dd_error *err, const char *format, ...) DD_PRINTF(2, 3);

/* Copy the error `from` to `err`, which may be NULL, and return its code. */
dd_status dd_error_copy(dd_error *err, const dd_error *from);

/* Return true if only this process can have caused the error: lack of memory, descriptors or
 * permission, a call that the kernel or a sandbox refuses, or DD_SYSTEM. */
bool dd_error_is_local(const dd_error *err);

/* Set DD_OUT_OF_MEMORY, with a message that has the number of requested bytes, and return it. */
dd_status dd_error_no_memory(dd_error *err, unsigned long long nbytes);

#endif
