/* Status codes and the error that goes with them.
 *
 * Every fallible function returns dd_status and takes `dd_error *err` last (it may be NULL). The first
 * function that detects a failure writes the message: what was attempted, on what, what happened, the
 * numbers. Outer layers may prepend context once; cleanup never overwrites it. */
#ifndef DD_CORE_STATUS_H
#define DD_CORE_STATUS_H

#include <stdbool.h>
#include <stddef.h>

/* X(name, text): the name of the code and what it means. csrc/python/base/error.c maps each to an exception. */
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
    X(PEER_LOST, "a peer is gone")                             \
    X(MISMATCH, "ranks called different operations")           \
    X(ABORTED, "operation was aborted")                        \
    X(CLOSED, "object is closed")                              \
    X(FORKED, "object belongs to the process before the fork") \
    X(BACKEND, "failure of the library behind a backend")      \
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

/* Whom an error is about, where that is one rank. */
typedef struct dd_culprit {
    int rank;      /* in the group; -1: nobody in particular */
    long long pid; /* 0: not known */
    char host[DD_HOST_NAME_MAX];
} dd_culprit;

/* The call on a group that has failed. */
typedef struct dd_failed_call {
    char op[32];                 /* "all_reduce"; empty: the error is not about such a call */
    char group[64];              /* its name, as much of it as there is room for */
    unsigned long long sequence; /* of the group's collectives; 0: it is none of them, or it has not begun */
    long long elapsed_ns;        /* since it began */
} dd_failed_call;

typedef struct dd_error {
    dd_status code;
    int sys_errno; /* errno of the system call behind it, or 0 */
    dd_culprit culprit;
    dd_failed_call call;
    bool keeps_memory; /* somebody may still use the memory of the call: nobody should free it */
    char message[1024];
} dd_error;

/* Name ("TIMED_OUT") and meaning ("timed out") of a code; never NULL, also for numbers out of range. */
const char *dd_status_name(dd_status code);
const char *dd_status_text(dd_status code);

/* Writes code and message into err (which may be NULL) and returns code, so that a failure is one line:
 * `return dd_error_set(err, DD_STORE, "...", ...)`. Messages are lower case without a final period;
 * one that does not fit is cut and ends in "...". */
dd_status dd_error_set(dd_error *err, dd_status code, const char *format, ...) DD_PRINTF(3, 4);

/* The same, with ": <strerror> (errno N)" after the message. */
dd_status dd_error_set_errno(dd_error *err, dd_status code, int sys_errno, const char *format, ...)
    DD_PRINTF(4, 5);

/* Names the culprit of the error that is there. host may be NULL. */
void dd_error_blame(dd_error *err, int rank, const char *host, long long pid);

/* Says which call has failed by the error that is there. The group's name has `group_len` bytes. */
void dd_error_note_call(dd_error *err, const char *op, unsigned long long sequence, long long elapsed_ns,
                        const void *group, size_t group_len);

/* Puts "<text>: " before the message that is there. */
void dd_error_prepend(dd_error *err, const char *format, ...) DD_PRINTF(2, 3);

/* Copies `from` into err (NULL is fine) and returns its code. */
dd_status dd_error_copy(dd_error *err, const dd_error *from);

/* True if the fault is this process's own, whatever it was dealing with: no memory, no descriptors, no permission, a call
 * that the kernel or a sandbox refuses, DD_SYSTEM. */
bool dd_error_is_own(const dd_error *err);

/* DD_OUT_OF_MEMORY, naming the bytes asked for. */
dd_status dd_error_no_memory(dd_error *err, unsigned long long nbytes);

#endif
