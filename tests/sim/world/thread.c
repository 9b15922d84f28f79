/* The C library's threads, locks, conditions and clocks. The linker redirects the calls of
 * csrc/core to these functions (--wrap). The state of a lock or condition is in the caller's
 * memory, as in the C library. */
#include "sim/world/internal.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- locks; zeroed is unlocked */

typedef struct sim_mutex {
    sim_fiber *owner;
} sim_mutex;

_Static_assert(sizeof(sim_mutex) <= sizeof(pthread_mutex_t), "a lock fits into the C library's");

static sim_mutex *
mutex_of(pthread_mutex_t *mutex)
{
    return (sim_mutex *)(void *)mutex;
}

static int64_t
ns_of(const struct timespec *time)
{
    return (int64_t)time->tv_sec * DD_NS_PER_S + time->tv_nsec;
}

/* Convert a time of the calendar of the caller's host to world time. */
static int64_t
from_calendar(const struct timespec *time)
{
    return ns_of(time) - world.calendar_ns[sim_self()->host];
}

static int64_t
from_monotonic(const struct timespec *time)
{
    return ns_of(time) - world.boot_ns[sim_self()->host];
}

int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attr);
int __wrap_pthread_mutex_destroy(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);

int
__wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attr)
{
    (void)attr;
    mutex_of(mutex)->owner = NULL;
    return 0;
}

int
__wrap_pthread_mutex_destroy(pthread_mutex_t *mutex)
{
    return mutex_of(mutex)->owner != NULL ? EBUSY : 0;
}

int
__wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    sim_step(world.options.call_cost_ns / 16 + 1);
    while (mutex_of(mutex)->owner != NULL) {
        (void)sim_block(mutex, DD_NEVER_NS, "a lock");
    }
    mutex_of(mutex)->owner = world.running;
    return 0;
}

int
__wrap_pthread_mutex_trylock(pthread_mutex_t *mutex)
{
    sim_step(world.options.call_cost_ns / 16 + 1);
    if (mutex_of(mutex)->owner != NULL) {
        return EBUSY;
    }
    mutex_of(mutex)->owner = world.running;
    return 0;
}

int
__wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    mutex_of(mutex)->owner = NULL;
    sim_wake_all(mutex);
    sim_step(world.options.call_cost_ns / 16 + 1);
    return 0;
}

/* ---- conditions; zeroed uses the calendar, as PTHREAD_COND_INITIALIZER does */

typedef struct sim_cond {
    clockid_t clock;
} sim_cond;

_Static_assert(sizeof(sim_cond) <= sizeof(pthread_cond_t), "a condition fits into the C library's");
_Static_assert(CLOCK_REALTIME == 0, "a zeroed condition waits on the calendar");

static sim_cond *
cond_of(pthread_cond_t *cond)
{
    return (sim_cond *)(void *)cond;
}

int __wrap_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attr);
int __wrap_pthread_cond_destroy(pthread_cond_t *cond);
int __wrap_pthread_cond_signal(pthread_cond_t *cond);
int __wrap_pthread_cond_broadcast(pthread_cond_t *cond);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until);

int
__wrap_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attr)
{
    cond_of(cond)->clock = CLOCK_REALTIME;
    return attr != NULL ? pthread_condattr_getclock(attr, &cond_of(cond)->clock) : 0;
}

int
__wrap_pthread_cond_destroy(pthread_cond_t *cond)
{
    (void)cond;
    return 0;
}

int
__wrap_pthread_cond_signal(pthread_cond_t *cond)
{
    sim_wake_one(cond);
    sim_step(world.options.call_cost_ns);
    return 0;
}

int
__wrap_pthread_cond_broadcast(pthread_cond_t *cond)
{
    sim_wake_all(cond);
    sim_step(world.options.call_cost_ns);
    return 0;
}

static int
wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_ns)
{
    sim_step(world.options.call_cost_ns);
    mutex_of(mutex)->owner = NULL;
    sim_wake_all(mutex);
    /* Spurious wake-ups are allowed. */
    bool is_spurious = sim_one_in(world.options.interrupts_every);
    bool was_woken = is_spurious || sim_block(cond, until_ns, "a condition");
    (void)__wrap_pthread_mutex_lock(mutex);
    return was_woken ? 0 : ETIMEDOUT;
}

int
__wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
    return wait_until(cond, mutex, DD_NEVER_NS);
}

int
__wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until)
{
    if (cond_of(cond)->clock != CLOCK_REALTIME) {
        return wait_until(cond, mutex, from_monotonic(until));
    }
    sim_fiber *self = world.running;
    self->is_on_calendar = true;
    int rc = wait_until(cond, mutex, from_calendar(until));
    self->is_on_calendar = false;
    return rc;
}

/* ---- threads; a pthread_t is the thread's number plus one */

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg);
int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_detach(pthread_t thread);
pthread_t __wrap_pthread_self(void);
int __wrap_pthread_getname_np(pthread_t thread, char *name, size_t nbytes);
int __wrap_pthread_sigmask(int how, const sigset_t *set, sigset_t *old);
int __wrap_prctl(int option, ...);

static sim_fiber *
find_fiber(pthread_t thread)
{
    for (dd_list *node = world.fibers.next; node != &world.fibers; node = node->next) {
        sim_fiber *fiber = DD_CONTAINER_OF(node, sim_fiber, link);
        if ((pthread_t)fiber->number + 1 == thread) {
            return fiber;
        }
    }
    return NULL;
}

int
__wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
    (void)attr;
    sim_process *process = sim_self();
    sim_step(world.options.call_cost_ns * 4);
    if (process->nallocations_to_fail > 0) {
        process->nallocations_to_fail--;
        return EAGAIN;
    }
    const sim_fiber *fiber = sim_fiber_create(process, "thread", run, arg);
    *thread = (pthread_t)fiber->number + 1;
    sim_trace("starts thread", fiber->number, 0);
    return 0;
}

int
__wrap_pthread_join(pthread_t thread, void **result)
{
    (void)result;
    sim_step(world.options.call_cost_ns);
    sim_fiber *fiber = find_fiber(thread);
    if (fiber == NULL || fiber->is_detached) {
        return EINVAL;
    }
    while (fiber->state != FIBER_ENDED) {
        (void)sim_block(fiber, DD_NEVER_NS, "a join");
    }
    sim_fiber_destroy(fiber);
    return 0;
}

int
__wrap_pthread_detach(pthread_t thread)
{
    sim_fiber *fiber = find_fiber(thread);
    if (fiber == NULL) {
        return ESRCH;
    }
    fiber->is_detached = true;
    if (fiber->state == FIBER_ENDED) {
        sim_fiber_destroy(fiber);
    }
    return 0;
}

pthread_t
__wrap_pthread_self(void)
{
    return (pthread_t)world.running->number + 1;
}

int
__wrap_pthread_getname_np(pthread_t thread, char *name, size_t nbytes)
{
    (void)thread;
    (void)snprintf(name, nbytes, "%s", world.running->name);
    return 0;
}

/* Signals are not simulated. */
int
__wrap_pthread_sigmask(int how, const sigset_t *set, sigset_t *old)
{
    (void)how;
    (void)set;
    if (old != NULL) {
        (void)sigemptyset(old);
    }
    return 0;
}

/* Set the name of the calling thread. */
int
__wrap_prctl(int option, ...)
{
    (void)option;
    va_list args;
    va_start(args, option);
    (void)snprintf(world.running->name, sizeof world.running->name, "%s", va_arg(args, const char *));
    va_end(args);
    return 0;
}

/* ---- clocks and processors */

int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
long __wrap_sysconf(int name);
int __wrap_sched_getaffinity(pid_t pid, size_t nbytes, cpu_set_t *set);

int
__wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    if (world.running == NULL) {
        *time = (struct timespec){0};
        return 0;
    }
    sim_step(world.options.call_cost_ns / 8 + 1);
    int host = sim_self()->host;
    int64_t ns = world.now_ns + (clock == CLOCK_REALTIME ? world.calendar_ns[host] : world.boot_ns[host]);
    *time = (struct timespec){ns / DD_NS_PER_S, ns % DD_NS_PER_S};
    return 0;
}

long
__wrap_sysconf(int name)
{
    return name == _SC_NPROCESSORS_ONLN ? world.options.ncpus : -1;
}

int
__wrap_sched_getaffinity(pid_t pid, size_t nbytes, cpu_set_t *set)
{
    (void)pid;
    CPU_ZERO_S(nbytes, set);
    for (int cpu = 0; cpu < world.options.ncpus; cpu++) {
        CPU_SET_S((size_t)cpu, nbytes, set);
    }
    return 0;
}
