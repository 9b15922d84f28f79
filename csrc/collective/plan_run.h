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

/* Return the bytes of scratch that a start needs, or the bytes of the run's own memory. */
size_t dd_plan_run_scratch_nbytes(const dd_plan_run *run);
size_t dd_plan_run_nbytes(const dd_plan_run *run);

typedef struct dd_plan_run_options {
    dd_context *context;
    /* The plan's ranks, as ranks of the context; NULL if they are equal. Must stay valid until the
     * end. */
    const int *ranks;
    uint64_t sequence;      /* number of the group's collective */
    dd_signature signature; /* sent with all messages */
    void *scratch;          /* aligned to 64 bytes; the run uses it until the end */
    /* Called once at the end, perhaps within start; `error` is NULL on success. May restart the
     * run. A DD_MISMATCH is from the transport, which has named the rank and the difference. */
    void (*on_done)(void *ctx, const dd_error *error);
    void *ctx;
} dd_plan_run_options;

/* Start an idle run. Blocks and their memory must stay valid until on_done. Small local steps
 * (copies and folds) run as messages arrive; large ones wait for dd_plan_run_take_step_locked. */
void dd_plan_run_start_locked(dd_plan_run *run, const dd_coll_args *args, const dd_plan_run_options *options);

/* Take, do and end a waiting local step (at most about a segment of work). Only one step may be
 * taken at a time. do_step runs without the lock. take_step returns false if no step waits. The run
 * does not succeed before a taken step has ended. If the run fails first, its on_done must wait
 * until do_step has returned, and end_step must not be called. */
bool dd_plan_run_take_step_locked(dd_plan_run *run, uint32_t *step);
void dd_plan_run_do_step(dd_plan_run *run, uint32_t step);
void dd_plan_run_end_step_locked(dd_plan_run *run, uint32_t step);
bool dd_plan_run_is_busy_locked(const dd_plan_run *run); /* true if a local step waits */

/* Handle the messages that have succeeded, without waiting for the engine to report them. Return
 * true if there was one; the run may have ended then. */
bool dd_plan_run_catch_up_locked(dd_plan_run *run);

/* If the run is under way, end it with `error` and call on_done. */
void dd_plan_run_cancel_locked(dd_plan_run *run, const dd_error *error);

/* Find the ranks of the context that unfinished receives wait for, each once. Return the number of
 * these ranks, at most max. */
int dd_plan_run_missing_locked(const dd_plan_run *run, int *ranks, int max);
/* Append `rank` to `ranks` unless the list has it already. The list must have space. */
void dd_plan_run_note_rank(int *ranks, int *nranks, int rank);

#endif
