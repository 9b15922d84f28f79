#include "core/system.h"

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/ioctl.h>

#ifdef DD_FAULTS
#include "core/fault_count.h"

static dd_fault_count calls = DD_FAULT_COUNT_INITIALIZER;
static atomic_int error_of_failure;

long
dd_sys_fail_after(long count, int error_number)
{
    atomic_store(&error_of_failure, error_number);
    return dd_fault_count_set(&calls, count);
}

static bool
is_this_one_to_fail(void)
{
    bool does_fail = dd_fault_count_is_due(&calls);
    if (does_fail) {
        errno = atomic_load(&error_of_failure);
    }
    return does_fail;
}
#else
#define is_this_one_to_fail() false
#endif

/* MAP_FAILED is (void *)-1, too. */
#define X(result, name, parameters, arguments)                                \
    result dd_sys_##name parameters                                           \
    {                                                                         \
        return is_this_one_to_fail() ? (result)(intptr_t)-1 : name arguments; \
    }
DD_SYSTEM_CALLS(X)
#undef X

#define X(result, name, parameters, arguments) \
    result dd_sys_##name parameters            \
    {                                          \
        return name arguments;                 \
    }
DD_SYSTEM_SURE_CALLS(X)
#undef X

int
dd_sys_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found)
{
    return is_this_one_to_fail() ? EAI_SYSTEM : getaddrinfo(host, port, hints, found);
}

char *
dd_sys_getcwd(char *path, size_t nbytes)
{
    return is_this_one_to_fail() ? NULL : getcwd(path, nbytes);
}

int
dd_sys_lock_file(int fd, int command, struct flock *lock)
{
    return is_this_one_to_fail() ? -1 : fcntl(fd, command, lock);
}

int
dd_sys_get_file_limit(struct rlimit *limit)
{
    return is_this_one_to_fail() ? -1 : getrlimit(RLIMIT_NOFILE, limit);
}
