#include "core/thread.h"

#include "core/mem.h"

#include <signal.h>
#include <sys/prctl.h>

typedef struct thread_start {
    const char *name;
    void *(*run)(void *);
    void *arg;
} thread_start;

/* Main function of a new thread, which sets its own name. Another thread would have to write a file
 * in /proc to do so, which is too slow for threads that run for a millisecond. */
static void *
enter_thread(void *ptr)
{
    thread_start start = *(thread_start *)ptr;
    dd_mem_free(ptr);
    (void)prctl(PR_SET_NAME, start.name);
    return start.run(start.arg);
}

dd_status
dd_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg, dd_error *err)
{
    thread_start *start = dd_mem_alloc(sizeof *start);
    if (start == NULL) {
        return dd_error_no_memory(err, sizeof *start);
    }
    *start = (thread_start){.name = name, .run = run, .arg = arg};
    sigset_t all;
    sigset_t old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(thread, NULL, enter_thread, start);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0) {
        dd_mem_free(start);
        return dd_error_set_errno(err, DD_SYSTEM, rc, "cannot start thread %s", name);
    }
    return DD_OK;
}

void
dd_thread_join(pthread_t thread)
{
    (void)pthread_join(thread, NULL);
}

void
dd_thread_detach(pthread_t thread)
{
    (void)pthread_detach(thread);
}

pthread_t
dd_thread_self(void)
{
    return pthread_self();
}

void
dd_thread_own_name(char *name, size_t nbytes)
{
    (void)pthread_getname_np(pthread_self(), name, nbytes);
}
