#include "core/background_task.h"

#include "core/mem.h"
#include "core/thread.h"

static void
free_background_task(dd_background_task *task)
{
    dd_mem_free(task);
}

void
dd_background_task_release(dd_background_task *task)
{
    dd_lock_take(&task->mu);
    bool is_last = --task->nowners == 0;
    dd_lock_release(&task->mu);
    if (is_last) {
        dd_lock_fini(&task->mu);
        dd_cond_fini(&task->cond);
        (task->free != NULL ? task->free : free_background_task)(task);
    }
}

static void *
run_background_task(void *arg)
{
    dd_background_task *task = arg;
    task->run(task);
    dd_lock_take(&task->mu);
    task->is_done = true;
    dd_cond_signal(&task->cond);
    dd_lock_release(&task->mu);
    dd_background_task_release(task);
    return NULL;
}

dd_status
dd_background_task_start(dd_background_task *task, const char *thread_name, dd_error *err)
{
    pthread_t thread;
    dd_lock_init(&task->mu, DD_LOCK_BACKGROUND_TASK);
    dd_cond_init(&task->cond);
    task->nowners = 2;
    task->is_done = false;
    dd_status status = dd_thread_start(&thread, thread_name, run_background_task, task, err);
    if (status == DD_OK) {
        dd_thread_detach(thread);
    } else {
        task->nowners = 1;
        dd_background_task_release(task);
    }
    return status;
}

dd_status
dd_background_task_wait(dd_background_task *task, const dd_wait *wait, dd_error *err)
{
    dd_status status = DD_OK;
    dd_lock_take(&task->mu);
    while (!task->is_done && status == DD_OK) {
        status = dd_cond_wait_checked(&task->cond, &task->mu, wait, err);
    }
    status = task->is_done ? DD_OK : status;
    dd_lock_release(&task->mu);
    return status;
}
