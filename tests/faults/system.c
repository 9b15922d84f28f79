/* System calls that fail on request, and are counted by kind. */

#include "core/system.h"

#include "faults/fault_count.h"
#include "faults/faults.h"
#include "faults/wrap.h"

#include <errno.h>

static dd_fault_count calls = DD_FAULT_COUNT_INITIALIZER;
static atomic_int error_of_failure;
static _Atomic(const dd_sys_fault *) fault_of_kind;
static atomic_long counts_of_kinds[DD_SYS_CALL_COUNT];

long
dd_sys_fail_after(long count, int error_number)
{
    atomic_store(&error_of_failure, error_number);
    return dd_fault_count_set(&calls, count);
}

const char *
dd_sys_call_name(dd_sys_call call)
{
    static const char *const names[] = {
#define X(result, name, parameters, arguments) #name,
        DD_SYSTEM_CALLS(X)
#undef X
            "getaddrinfo",
        "getcwd",
        "lock_file",
        "get_file_limit",
    };
    return names[call];
}

void
dd_sys_fail_call(const dd_sys_fault *fault)
{
    for (int call = 0; call < DD_SYS_CALL_COUNT; call++) {
        atomic_store(&counts_of_kinds[call], 0);
    }
    atomic_store(&fault_of_kind, fault);
}

long
dd_sys_count_calls(dd_sys_call call)
{
    return atomic_load(&counts_of_kinds[call]);
}

static bool
is_fault(const dd_sys_fault *fault, dd_sys_call call, long number)
{
    return fault != NULL && fault->call == call &&
           (fault->is_lasting ? number >= fault->number : number == fault->number);
}

/* Count a call. Return true and set errno if it must fail. */
static bool
fails(dd_sys_call call)
{
    long number = atomic_fetch_add_explicit(&counts_of_kinds[call], 1, memory_order_relaxed);
    const dd_sys_fault *fault = atomic_load(&fault_of_kind);
    if (is_fault(fault, call, number)) {
        if (fault->on_failure != NULL) {
            fault->on_failure();
        }
        errno = fault->error_number;
        return true;
    }
    bool does_fail = dd_fault_count_is_due(&calls);
    if (does_fail) {
        errno = atomic_load(&error_of_failure);
    }
    return does_fail;
}

/* MAP_FAILED is also (void *)-1. */
#define X(result, name, parameters, arguments)                                               \
    WRAP(result, dd_sys_##name, parameters)                                                  \
    {                                                                                        \
        return fails(DD_SYS_##name) ? (result)(intptr_t)-1 : __real_dd_sys_##name arguments; \
    }
DD_SYSTEM_CALLS(X)
#undef X

WRAP(int, dd_sys_getaddrinfo,
     (const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found))
{
    return fails(DD_SYS_getaddrinfo) ? EAI_SYSTEM : __real_dd_sys_getaddrinfo(host, port, hints, found);
}

WRAP(char *, dd_sys_getcwd, (char *path, size_t nbytes))
{
    return fails(DD_SYS_getcwd) ? NULL : __real_dd_sys_getcwd(path, nbytes);
}

WRAP(int, dd_sys_lock_file, (int fd, int command, struct flock *lock))
{
    return fails(DD_SYS_lock_file) ? -1 : __real_dd_sys_lock_file(fd, command, lock);
}

WRAP(int, dd_sys_get_file_limit, (struct rlimit * limit))
{
    return fails(DD_SYS_get_file_limit) ? -1 : __real_dd_sys_get_file_limit(limit);
}
