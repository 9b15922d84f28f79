#include "work/work.h"

#include <string.h>

void
dd_work_init(dd_work *work, const char *label, uint64_t sequence, int64_t start_ns)
{
    atomic_init(&work->refs, 1);
    atomic_init(&work->is_done, false);
    work->label = label;
    work->sequence = sequence;
    work->start_ns = start_ns;
    work->end_ns = 0;
    work->source_rank = -1;
    work->tag = 0;
    work->nbytes = 0;
    work->error.code = DD_OK;
    work->on_done = NULL;
    work->ctx = NULL;
    work->destroy = NULL;
}

void
dd_work_renew(dd_work *work)
{
    atomic_fetch_add_explicit(&work->refs, 1, memory_order_relaxed);
    /* After a success, leave the error as it is: another thread may still be reading the result. */
    if (work->error.code != DD_OK) {
        work->error.code = DD_OK;
    }
    atomic_store_explicit(&work->is_done, false, memory_order_relaxed);
}

dd_work *
dd_work_acquire(dd_work *work)
{
    atomic_fetch_add_explicit(&work->refs, 1, memory_order_relaxed);
    return work;
}

void
dd_work_release(dd_work *work)
{
    if (work != NULL && atomic_fetch_sub_explicit(&work->refs, 1, memory_order_acq_rel) == 1 &&
        work->destroy != NULL) {
        work->destroy(work);
    }
}

bool
dd_work_complete(dd_work *work, const dd_error *error)
{
    if (atomic_load_explicit(&work->is_done, memory_order_relaxed)) {
        return false;
    }
    if (error != NULL) {
        work->error = *error;
    }
    if (work->on_done != NULL) {
        work->end_ns = dd_clock_now_ns();
        work->on_done(work, work->ctx);
    }
    atomic_store_explicit(&work->is_done, true, memory_order_release);
    return true;
}

dd_status
dd_work_result(const dd_work *work, dd_error *err)
{
    return work->error.code == DD_OK ? DD_OK : dd_error_copy(err, &work->error);
}
