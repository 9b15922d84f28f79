#include "core/system.h"

#include <sched.h>
#include <stdio.h>
#include <sys/ioctl.h>

#define X(result, name, parameters, arguments) \
    result dd_sys_##name parameters            \
    {                                          \
        return name arguments;                 \
    }
DD_SYSTEM_CALLS(X)
DD_SYSTEM_SURE_CALLS(X)
#undef X

int
dd_sys_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found)
{
    return getaddrinfo(host, port, hints, found);
}

char *
dd_sys_getcwd(char *path, size_t nbytes)
{
    return getcwd(path, nbytes);
}

int
dd_sys_lock_file(int fd, int command, struct flock *lock)
{
    return fcntl(fd, command, lock);
}

int
dd_sys_get_file_limit(struct rlimit *limit)
{
    return getrlimit(RLIMIT_NOFILE, limit);
}
