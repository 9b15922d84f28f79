/* One asynchronous operation: whether it is done, how it ended, and who wants to know.
 *
 * A work is counted. It is completed once, by the code that carries it out; from then on everything in it is constant, unless it is renewed. */
#ifndef DD_WORK_WORK_H
#define DD_WORK_WORK_H

#include "core/clock.h"
#include "core/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dd_work dd_work;
struct dd_work {
    atomic_uint refs;
    atomic_bool is_done; /* release: everything below is visible after an acquire that reads true */
    const char *what;    /* const after init: "all_reduce"; static text */
    uint64_t sequence;   /* const after init: of the group's collectives; 0 for point to point */
    int64_t start_ns;    /* const after init */
    int64_t end_ns;      /* written before is_done; 0 without an on_done: then nobody asks */
    int source_rank;     /* the same: of a receive; -1 */
    size_t nbytes;       /* the same: received */
    dd_error error;      /* the same; code DD_OK when it succeeded. Only code is set then */
    /* Called once, by the thread that completes, before is_done is seen; NULL for none. Must be quick and must not
     * call back into a group. Const after init. */
    void (*on_done)(dd_work *work, void *ctx);
    void *ctx;
    /* The last reference is gone; NULL: nothing to do (a work on a stack). Const after init. */
    void (*destroy)(dd_work *work);
};

/* With one reference. */
void dd_work_init(dd_work *work, const char *what, uint64_t sequence, int64_t start_ns);
/* Begins one that is done again, with one reference more; start_ns is the caller's. Nobody may be looking at how it ended. */
void dd_work_renew(dd_work *work);
dd_work *dd_work_acquire(dd_work *work);
void dd_work_release(dd_work *work); /* NULL is fine */

static inline bool
dd_work_is_done(const dd_work *work)
{
    return atomic_load_explicit(&work->is_done, memory_order_acquire);
}

/* Ends it: error NULL for success. Only the first call counts; returns whether this was it. The caller serialises the
 * calls for one work. */
bool dd_work_complete(dd_work *work, const dd_error *error);

/* How a work that is done ended. */
dd_status dd_work_result(const dd_work *work, dd_error *err) DD_MUST_CHECK;

#endif
