/* One asynchronous operation. A work is reference-counted. The code that carries out the operation
 * completes the work once; from then on all fields are constant, unless dd_work_renew is called. */
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
    atomic_bool is_done; /* release: a thread that reads true with acquire sees all fields below */
    const char *what;    /* const after init; static text such as "all_reduce" */
    uint64_t sequence;   /* const after init: number of the collective; 0 for point to point */
    int64_t start_ns;    /* const after init */
    int64_t end_ns;      /* written before is_done; 0 if there is no on_done */
    int source_rank;     /* written before is_done: rank of the sender, for a receive; else -1 */
    size_t nbytes;       /* written before is_done: bytes received */
    dd_error error;      /* written before is_done; on success only `code` is set, to DD_OK */
    /* Called once, by the completing thread, before is_done becomes true. Must return quickly and
     * must not call into a group. NULL if there is none. Const after init. */
    void (*on_done)(dd_work *work, void *ctx);
    void *ctx;
    /* Called on the last release; NULL for a work on the stack. Const after init. */
    void (*destroy)(dd_work *work);
};

/* Initialise a work with one reference. */
void dd_work_init(dd_work *work, const char *what, uint64_t sequence, int64_t start_ns);
/* Reset a work that is done, and add a reference. No other thread may be using it. */
void dd_work_renew(dd_work *work);
dd_work *dd_work_acquire(dd_work *work);
void dd_work_release(dd_work *work); /* NULL is fine */

static inline bool
dd_work_is_done(const dd_work *work)
{
    return atomic_load_explicit(&work->is_done, memory_order_acquire);
}

/* Complete the work; `error` is NULL on success. Returns true for the first call only; later calls
 * have no effect. The caller serialises the calls for one work. */
bool dd_work_complete(dd_work *work, const dd_error *error);

/* Return the result of a work that is done. */
dd_status dd_work_result(const dd_work *work, dd_error *err) DD_MUST_CHECK;

#endif
