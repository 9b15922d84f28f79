/* A background task that may hang (a resolver, a file system), on its own thread. The caller waits
 * until its deadline and then releases it, even if it still runs. The last of the two frees it. */
#ifndef DD_CORE_ERRAND_H
#define DD_CORE_ERRAND_H

#include "core/lock.h"
#include "core/status.h"
#include "core/wait.h"

typedef struct dd_errand dd_errand;
struct dd_errand {
    /* Called without the lock. It stores results in the struct that embeds the task. */
    void (*run)(dd_errand *errand);
    void (*free)(dd_errand *errand); /* called by the last of the two; NULL for dd_mem_free */
    /* private */
    dd_lock mu;
    pthread_cond_t cond;
    int nowners;  /* guarded by mu */
    bool is_done; /* guarded by mu; once it is true, the results may be read */
};

/* Start a task whose run and free are set. On failure the task is freed. */
dd_status dd_errand_start(dd_errand *errand, const char *thread_name, dd_error *err) DD_MUST_CHECK;
/* Wait for the task. DD_TIMED_OUT, without a message, or the status of dd_wait_check. */
dd_status dd_errand_wait(dd_errand *errand, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Release the task. The caller must not use it afterwards. */
void dd_errand_leave(dd_errand *errand);

#endif
