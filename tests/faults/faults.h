/* Failures on request, counters and checks that test builds put around functions of csrc/core/.
 *
 * The linker replaces a call of dd_NAME from another file by __wrap_dd_NAME (--wrap), for each function of that form that is
 * defined in this folder; __real_dd_NAME is the library's own. csrc/ has no code for this. */
#ifndef TESTS_FAULTS_FAULTS_H
#define TESTS_FAULTS_FAULTS_H

#include "core/system.h"

#include <stdbool.h>

/* ---- allocations (core/mem.h) */

/* Lets `count` more allocations of this process succeed and fails the one after; -1 turns it off.
 * Returns how many allocations were made since the last call. */
long dd_mem_fail_after(long count);
/* How many blocks, and pieces of mapped pages, have not been freed. */
long dd_mem_count_blocks(void);

/* ---- calls of the system (core/system.h) */

/* Lets `count` more calls of this process succeed and fails the one after with `error_number`; -1 turns it off. Returns how many
 * were made since the last call. */
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

/* `number` calls of one kind succeed, and the one after fails; if it is lasting, all later ones fail as well. */
typedef struct dd_sys_fault {
    dd_sys_call call;
    long number;
    int error_number;
    bool is_lasting;
    void (*on_failure)(void); /* in the call that fails; may be NULL */
} dd_sys_fault;
/* Counts all kinds from 0 again, and sets the fault; NULL if no call shall fail. While other threads make calls, `fault` must stay valid,
 * also after the next call of this function. */
void dd_sys_fail_call(const dd_sys_fault *fault);
/* How many calls of a kind were made since dd_sys_fail_call. */
long dd_sys_count_calls(dd_sys_call call);

/* ---- processors (core/cpu.h) */

/* From now on dd_cpu_features leaves these out; 0: none. */
void dd_cpu_hide_features(unsigned features);

/* ---- locks (core/lock.h) */

/* How many locks this thread has taken so far. */
unsigned long dd_lock_ntaken(void);

#endif
