/* A background task: a call that may hang, on its own thread. The caller waits until its deadline
 * and then releases the task, even if the task is still running. The caller or the thread,
 * whichever ends last, frees the task. */
#ifndef DD_CORE_BACKGROUND_TASK_H
#define DD_CORE_BACKGROUND_TASK_H

#include "core/lock.h"
#include "core/status.h"
#include "core/wait.h"

typedef struct dd_background_task dd_background_task;
struct dd_background_task {
    /* The call that may hang. Runs on the task's thread without the lock; stores its results in the
     * struct that embeds this one. */
    void (*run)(dd_background_task *task);
    /* Free the task. Called on the thread of its last owner. NULL means dd_mem_free. */
    void (*free)(dd_background_task *task);
    /* the fields below are private */
    dd_lock mu;
    pthread_cond_t cond;
    int nowners;  /* guarded by mu; number of owners left: the caller and the thread */
    bool is_done; /* guarded by mu; once true, the caller may read the task's results */
};

/* Start a task. The caller must have set `run` and `free`. On failure, this frees the task. */
dd_status dd_background_task_start(dd_background_task *task, const char *thread_name,
                                   dd_error *err) DD_MUST_CHECK;
/* Wait for the task. Return DD_TIMED_OUT, without a message, or the status of dd_wait_check. */
dd_status dd_background_task_wait(dd_background_task *task, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Release the task, even if it is still running. The caller must not use it afterwards. */
void dd_background_task_release(dd_background_task *task);

#endif
