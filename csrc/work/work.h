/* One asynchronous operation. A work is reference-counted. The code that carries out the operation
 * completes its work once; from then on all fields are constant, until dd_work_renew is called. */
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
    /* stored with release: a thread that loads true with acquire sees all following fields */
    atomic_bool is_done;
    /* name of the operation, static text such as "all_reduce"; const after init */
    const char *label;
    uint64_t sequence; /* number of the collective; 0 for point to point; const after init */
    int64_t start_ns;  /* start time of the operation; const after init */
    int64_t end_ns;    /* end time, written before is_done; 0 if there is no on_done */
    /* Rank of the sender if the operation is a receive, else -1. Written before is_done. */
    int source_rank;
    uint64_t tag;  /* tag of the message received, written before is_done */
    size_t nbytes; /* number of bytes received, written before is_done */
    /* Result of the operation, written before is_done. A success sets only `code`, to DD_OK. */
    dd_error error;
    /* Called once at the end, by the completing thread, before is_done becomes true; NULL for no
     * callback. Must return quickly and must not call into a group. Const after init. */
    void (*on_done)(dd_work *work, void *ctx);
    void *ctx;
    /* Called on the last release, to free the work; NULL for a work on the stack. Const after
     * init. */
    void (*destroy)(dd_work *work);
};

/* Initialise a work with one reference. */
void dd_work_init(dd_work *work, const char *label, uint64_t sequence, int64_t start_ns);
/* Reset a work that is done, and add a reference. No other thread may use the work meanwhile. */
void dd_work_renew(dd_work *work);
dd_work *dd_work_acquire(dd_work *work);
void dd_work_release(dd_work *work); /* `work` may be NULL */

static inline bool
dd_work_is_done(const dd_work *work)
{
    return atomic_load_explicit(&work->is_done, memory_order_acquire);
}

/* Complete the work: with `error`, or with success if it is NULL. Return true for the first call;
 * later calls have no effect and return false. The caller must serialise the calls for one work. */
bool dd_work_complete(dd_work *work, const dd_error *error);

/* Return the result of the operation. The work must be done. */
dd_status dd_work_result(const dd_work *work, dd_error *err) DD_MUST_CHECK;

#endif
