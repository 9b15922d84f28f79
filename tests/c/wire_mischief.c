#include "wire_mischief.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>

/* What csrc/net sends goes through here (-Wl,--wrap). */
ssize_t __real_dd_sys_send(int fd, const void *data, size_t nbytes, int flags);
ssize_t __wrap_dd_sys_send(int fd, const void *data, size_t nbytes, int flags);

static struct {
    pthread_mutex_t mu;
    bool is_armed;
    bool is_done;
    mischief_kind kind;
    size_t after;
    unsigned bit;
    size_t nsent;
} plan = {.mu = PTHREAD_MUTEX_INITIALIZER};

void
wire_mischief_arm(mischief_kind kind, size_t after, unsigned bit)
{
    pthread_mutex_lock(&plan.mu);
    plan.is_armed = true;
    plan.is_done = false;
    plan.kind = kind;
    plan.after = after;
    plan.bit = bit;
    plan.nsent = 0;
    pthread_mutex_unlock(&plan.mu);
}

bool
wire_mischief_disarm(size_t *nbytes)
{
    pthread_mutex_lock(&plan.mu);
    bool is_done = plan.is_done;
    *nbytes = plan.nsent;
    plan.is_armed = false;
    pthread_mutex_unlock(&plan.mu);
    return is_done;
}

static bool
is_tcp(int fd)
{
    int domain = 0;
    socklen_t len = sizeof domain;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 && domain != AF_UNIX;
}

/* Does it to a send whose byte `at` is the one. */
static ssize_t
do_mischief(int fd, const uint8_t *data, size_t nbytes, size_t at, int flags)
{
    static uint8_t changed[1 << 18];
    const uint8_t foreign[4] = {(uint8_t)plan.bit, 0, 0, (uint8_t)(plan.bit >> 8)};
    size_t len = nbytes < sizeof changed ? nbytes : sizeof changed;
    memcpy(changed, data, len);
    switch (plan.kind) {
    case MISCHIEF_FLIP:
        changed[at < len ? at : 0] ^= (uint8_t)(1u << (plan.bit % 8));
        return __real_dd_sys_send(fd, changed, len, flags);
    case MISCHIEF_DROP:
        (void)__real_dd_sys_send(fd, changed, at < len ? at : 0, flags);
        return (ssize_t)len;
    case MISCHIEF_REPEAT:
        (void)__real_dd_sys_send(fd, changed, len, flags);
        return __real_dd_sys_send(fd, changed, len, flags);
    case MISCHIEF_INSERT:
        (void)__real_dd_sys_send(fd, foreign, sizeof foreign, flags);
        return __real_dd_sys_send(fd, changed, len, flags);
    case MISCHIEF_CUT:
    case MISCHIEF_COUNT:
    default:
        (void)__real_dd_sys_send(fd, changed, at < len ? at : 0, flags);
        (void)shutdown(fd, SHUT_WR);
        return (ssize_t)len;
    }
}

ssize_t
__wrap_dd_sys_send(int fd, const void *data, size_t nbytes, int flags)
{
    pthread_mutex_lock(&plan.mu);
    size_t at = plan.after - plan.nsent;
    bool is_now = plan.is_armed && !plan.is_done && is_tcp(fd) && plan.after >= plan.nsent && at < nbytes;
    ssize_t rc = is_now ? do_mischief(fd, data, nbytes, at, flags) : 0;
    plan.is_done = plan.is_done || is_now;
    if (!is_now) {
        bool counts = plan.is_armed && is_tcp(fd);
        rc = __real_dd_sys_send(fd, data, nbytes, flags);
        plan.nsent += counts && rc > 0 ? (size_t)rc : 0;
    }
    pthread_mutex_unlock(&plan.mu);
    return rc;
}
