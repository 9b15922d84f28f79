/* Injected failures, counters and checks that test builds add to functions of csrc/core/.
 *
 * The linker replaces calls of dd_NAME from other files by __wrap_dd_NAME (--wrap), for each
 * function of that form that this folder defines; __real_dd_NAME is the library's own function.
 * csrc/ contains no code for this. */
#ifndef TESTS_FAULTS_FAULTS_H
#define TESTS_FAULTS_FAULTS_H

#include "core/system.h"

#include <stdbool.h>

/* ---- allocations (core/mem.h) */

/* Let `count` more allocations of this process succeed and fail the next one; -1 turns it off.
 * Return the number of allocations since the last call. */
long dd_mem_fail_after(long count);
/* Return the number of blocks and of parts of mapped pages that have not been freed. */
long dd_mem_count_blocks(void);

/* ---- system calls (core/system.h) */

/* Let `count` more calls of this process succeed and fail the next one with `error_number`; -1
 * turns it off. Return the number of calls since the last call. */
long dd_sys_fail_after(long count, int error_number);

/* A kind of call: DD_SYS_open, ... */
typedef enum dd_sys_call {
#define X(result, name, parameters, arguments) DD_SYS_##name,
    DD_SYSTEM_CALLS(X)
#undef X
        DD_SYS_getaddrinfo,
    DD_SYS_getcwd,
    DD_SYS_lock_file,
    DD_SYS_get_file_limit,
} dd_sys_call;
#define DD_SYS_CALL_COUNT ((int)DD_SYS_get_file_limit + 1)
const char *dd_sys_call_name(dd_sys_call call); /* "open" */

/* `number` calls of one kind succeed, and the next one fails. If is_lasting is set, all later ones
 * also fail. */
typedef struct dd_sys_fault {
    dd_sys_call call;
    long number;
    int error_number;
    bool is_lasting;
    void (*on_failure)(void); /* in the call that fails; may be NULL */
} dd_sys_fault;
/* Reset the counts of all kinds to 0 and set the fault; NULL if no call shall fail. While other
 * threads make calls, `fault` must stay valid, even after the next call of this function. */
void dd_sys_fail_call(const dd_sys_fault *fault);
/* Return the number of calls of a kind since dd_sys_fail_call. */
long dd_sys_count_calls(dd_sys_call call);

/* ---- processors (core/cpu.h) */

/* Remove these from the result of dd_cpu_features from now on; 0: none. */
void dd_cpu_hide_features(unsigned features);

/* ---- locks (core/lock.h) */

/* Return the number of locks that this thread has taken so far. */
unsigned long dd_lock_ntaken(void);

#endif
