#include "core/errand.h"

#include "core/mem.h"
#include "core/thread.h"

static void
free_errand(dd_errand *errand)
{
    dd_mem_free(errand);
}

void
dd_errand_leave(dd_errand *errand)
{
    dd_lock_take(&errand->mu);
    bool is_last = --errand->nowners == 0;
    dd_lock_release(&errand->mu);
    if (is_last) {
        dd_lock_fini(&errand->mu);
        dd_cond_fini(&errand->cond);
        (errand->free != NULL ? errand->free : free_errand)(errand);
    }
}

static void *
run_errand(void *arg)
{
    dd_errand *errand = arg;
    errand->run(errand);
    dd_lock_take(&errand->mu);
    errand->is_done = true;
    dd_cond_signal(&errand->cond);
    dd_lock_release(&errand->mu);
    dd_errand_leave(errand);
    return NULL;
}

dd_status
dd_errand_start(dd_errand *errand, const char *thread_name, dd_error *err)
{
    pthread_t thread;
    dd_lock_init(&errand->mu, DD_LOCK_ERRAND);
    dd_cond_init(&errand->cond);
    errand->nowners = 2;
    errand->is_done = false;
    dd_status status = dd_thread_start(&thread, thread_name, run_errand, errand, err);
    if (status == DD_OK) {
        dd_thread_detach(thread);
    } else {
        errand->nowners = 1;
        dd_errand_leave(errand);
    }
    return status;
}

dd_status
dd_errand_wait(dd_errand *errand, const dd_wait *wait, dd_error *err)
{
    dd_status status = DD_OK;
    dd_lock_take(&errand->mu);
    while (!errand->is_done && status == DD_OK) {
        status = dd_cond_wait_checked(&errand->cond, &errand->mu, wait, err);
    }
    status = errand->is_done ? DD_OK : status;
    dd_lock_release(&errand->mu);
    return status;
}
