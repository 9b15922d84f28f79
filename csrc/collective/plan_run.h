/* Runs a plan over a context: posts its messages, does its arithmetic, and reports its end.
 *
 * A run is created once from a plan and started any number of times, for collectives of the same
 * shape: starting allocates nothing. Functions with _locked require the engine's lock. */
#ifndef DD_COLLECTIVE_PLAN_RUN_H
#define DD_COLLECTIVE_PLAN_RUN_H

#include "collective/plan.h"
#include "transport/context.h"

typedef struct dd_plan_run dd_plan_run;

/* Create a run. On success, take over the plan's memory and leave `plan` empty. */
dd_status dd_plan_run_create(dd_plan *plan, dd_plan_run **run, dd_error *err) DD_MUST_CHECK;
void dd_plan_run_destroy(dd_plan_run *run); /* `run` may be NULL; it must not be under way */

/* Return the bytes of scratch that each start needs, or the bytes of the run's own memory. */
size_t dd_plan_run_scratch_nbytes(const dd_plan_run *run);
size_t dd_plan_run_nbytes(const dd_plan_run *run);

typedef struct dd_plan_run_options {
    dd_context *context;
    /* The plan's ranks, as ranks of the context; NULL if the numbers agree. Must stay valid to the
     * end. */
    const int *ranks;
    uint64_t sequence;      /* number of the collective in its group */
    dd_signature signature; /* sent with all messages */
    void *scratch;          /* memory aligned to 64 bytes, which the run uses until its end */
    /* Called once at the end, perhaps within start; `error` is NULL on success. May restart the
     * run. A DD_MISMATCH has the transport's message, which names the rank and the difference. */
    void (*on_done)(void *ctx, const dd_error *error);
    void *ctx;
} dd_plan_run_options;

/* Start an idle run. Blocks and their memory must stay valid until on_done. Small local steps
 * (copies and folds) run as messages arrive; large ones wait for dd_plan_run_take_step_locked. */
void dd_plan_run_start_locked(dd_plan_run *run, const dd_coll_args *args, const dd_plan_run_options *options);

/* Take, do and end a waiting local step (at most about a segment of work). Only one step may be
 * taken at a time. do_step runs without the lock. take_step returns false if no step waits. The run
 * cannot succeed before a taken step has ended. If the run fails first, its on_done must wait until
 * do_step has returned, and then end_step must not be called. */
bool dd_plan_run_take_step_locked(dd_plan_run *run, uint32_t *step);
void dd_plan_run_do_step(dd_plan_run *run, uint32_t step);
void dd_plan_run_end_step_locked(dd_plan_run *run, uint32_t step);
bool dd_plan_run_is_busy_locked(const dd_plan_run *run); /* true if a step waits to be taken */

/* Handle messages that have succeeded, without waiting for the engine's report. Return true if
 * there was one; the run may then have ended. */
bool dd_plan_run_catch_up_locked(dd_plan_run *run);

/* If the run is under way, end it with `error` and call on_done. */
void dd_plan_run_cancel_locked(dd_plan_run *run, const dd_error *error);

/* List each rank of the context for which an unfinished receive waits. Return their number, at most
 * max. */
int dd_plan_run_missing_locked(const dd_plan_run *run, int *ranks, int max);
/* Append `rank` to `ranks` unless it is listed already. The list must have space. */
void dd_plan_run_note_rank(int *ranks, int *nranks, int rank);

#endif
