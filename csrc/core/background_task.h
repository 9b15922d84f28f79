/* A background task: a call that may hang, on its own thread. The caller waits until its deadline
 * and then releases the task, even if it still runs. The caller or the thread, whichever ends last,
 * frees the task. */
#ifndef DD_CORE_BACKGROUND_TASK_H
#define DD_CORE_BACKGROUND_TASK_H

#include "core/lock.h"
#include "core/status.h"
#include "core/wait.h"

typedef struct dd_background_task dd_background_task;
struct dd_background_task {
    /* The task, called on its thread without the lock. It stores results in the
     * embedding struct. */
    void (*run)(dd_background_task *task);
    /* frees the task, on the last owner's thread; NULL for dd_mem_free */
    void (*free)(dd_background_task *task);
    /* private fields */
    dd_lock mu;
    pthread_cond_t cond;
    int nowners;  /* guarded by mu: number of owners left (the caller, the thread) */
    bool is_done; /* guarded by mu; once true, the caller may read the results */
};

/* Start a task. The caller must have set `run` and `free`. On failure the task is freed. */
dd_status dd_background_task_start(dd_background_task *task, const char *thread_name,
                                   dd_error *err) DD_MUST_CHECK;
/* Wait for the end of the task. DD_TIMED_OUT, without a message, or the status of dd_wait_check. */
dd_status dd_background_task_wait(dd_background_task *task, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Release the task. The caller must not use it afterwards. */
void dd_background_task_release(dd_background_task *task);

#endif
