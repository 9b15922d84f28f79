/* Runs a plan over a context: posts its messages, does its arithmetic, and reports its end.
 *
 * A run is created once from a plan and started any number of times, for collectives of the same
 * shape: starting allocates nothing. Functions with _locked require the engine's lock. */
#ifndef DD_COLLECTIVE_PLAN_RUN_H
#define DD_COLLECTIVE_PLAN_RUN_H

#include "collective/plan.h"
#include "transport/context.h"

typedef struct dd_plan_run dd_plan_run;

/* On success takes the plan, and leaves it empty. */
dd_status dd_plan_run_create(dd_plan *plan, dd_plan_run **run, dd_error *err) DD_MUST_CHECK;
void dd_plan_run_destroy(dd_plan_run *run); /* may be NULL; must not be under way */

/* Return the bytes of scratch that a start needs, and of memory that the run itself uses. */
size_t dd_plan_run_scratch_nbytes(const dd_plan_run *run);
size_t dd_plan_run_nbytes(const dd_plan_run *run);

typedef struct dd_plan_run_options {
    dd_context *context;
    const int *ranks;       /* the plan's ranks in the context, kept until the end; NULL if equal */
    uint64_t sequence;      /* of the group's collective */
    dd_signature signature; /* of all its messages */
    void *scratch;          /* aligned to 64 bytes; the run's until the end */
    /* Called once, perhaps within start; `error` is NULL for success. The run may be restarted from
     * here. A DD_MISMATCH is the transport's, which has named the rank and the difference. */
    void (*on_done)(void *ctx, const dd_error *error);
    void *ctx;
} dd_plan_run_options;

/* Start an idle run. Blocks and their memory must stay valid until on_done. Small local steps run
 * as messages arrive, others by dd_plan_run_take_step_locked. */
void dd_plan_run_start_locked(dd_plan_run *run, const dd_coll_args *args, const dd_plan_run_options *options);

/* Take, do and end a waiting local step (at most about a segment of work), one at a time. `do`
 * runs without the lock. take: false if no step waits. The run does not succeed before the step
 * has ended. If it fails first, its on_done must wait until the step is done; do not end such a
 * step. */
bool dd_plan_run_take_step_locked(dd_plan_run *run, uint32_t *step);
void dd_plan_run_do_step(dd_plan_run *run, uint32_t step);
void dd_plan_run_end_step_locked(dd_plan_run *run, uint32_t step);
bool dd_plan_run_is_busy_locked(const dd_plan_run *run); /* true if a step waits */

/* Handle the messages that have succeeded, without waiting for the engine to report them. True if
 * there was one; the run may have ended then. */
bool dd_plan_run_catch_up_locked(dd_plan_run *run);

/* End the run with `error` if it is under way; calls on_done. */
void dd_plan_run_cancel_locked(dd_plan_run *run, const dd_error *error);

/* Find the ranks of the context that unfinished receives wait for, each once. Return their number,
 * at most max. */
int dd_plan_run_missing_locked(const dd_plan_run *run, int *ranks, int max);
/* Add a rank to `ranks` unless it is in it; there must be space. */
void dd_plan_run_note_rank(int *ranks, int *nranks, int rank);

#endif
