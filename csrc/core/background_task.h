/* A background task that may hang (a resolver, a file system), on its own thread. The caller waits
 * until its deadline and then releases it, even if it still runs. The last of the two frees it. */
#ifndef DD_CORE_BACKGROUND_TASK_H
#define DD_CORE_BACKGROUND_TASK_H

#include "core/lock.h"
#include "core/status.h"
#include "core/wait.h"

typedef struct dd_background_task dd_background_task;
struct dd_background_task {
    /* Called without the lock. It stores results in the struct that embeds the task. */
    void (*run)(dd_background_task *task);
    void (*free)(dd_background_task *task); /* called by the last of the two; NULL for dd_mem_free */
    /* private */
    dd_lock mu;
    pthread_cond_t cond;
    int nowners;  /* guarded by mu */
    bool is_done; /* guarded by mu; once it is true, the results may be read */
};

/* Start a task whose run and free are set. On failure the task is freed. */
dd_status dd_background_task_start(dd_background_task *task, const char *thread_name,
                                   dd_error *err) DD_MUST_CHECK;
/* Wait for the task. DD_TIMED_OUT, without a message, or the status of dd_wait_check. */
dd_status dd_background_task_wait(dd_background_task *task, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Release the task. The caller must not use it afterwards. */
void dd_background_task_release(dd_background_task *task);

#endif
