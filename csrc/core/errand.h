/* Work that may hang (a resolver, a file system), done on a thread of its own. The caller waits for as long as it likes, and
 * then leaves the thread to itself. The last of the two frees the errand. */
#ifndef DD_CORE_ERRAND_H
#define DD_CORE_ERRAND_H

#include "core/lock.h"
#include "core/status.h"
#include "core/wait.h"

typedef struct dd_errand dd_errand;
struct dd_errand {
    /* On the thread, without the lock. What it finds out goes into what the errand is a part of. */
    void (*run)(dd_errand *errand);
    void (*free)(dd_errand *errand); /* by the last of the two; NULL: dd_mem_free */
    /* its own */
    dd_lock mu;
    pthread_cond_t cond;
    int nowners;  /* guarded by mu */
    bool is_done; /* the same: what run has found out may be read */
};

/* With run and free set. On failure it has been freed. */
dd_status dd_errand_start(dd_errand *errand, const char *thread_name, dd_error *err) DD_MUST_CHECK;
/* DD_OK when it is done. DD_TIMED_OUT without a message at the deadline, or what dd_wait_check says. */
dd_status dd_errand_wait(dd_errand *errand, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Nobody waits any more; the caller does not touch it afterwards. */
void dd_errand_leave(dd_errand *errand);

#endif
