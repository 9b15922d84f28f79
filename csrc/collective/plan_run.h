/* Runs a plan over a context: posts its messages, does its arithmetic, and tells when it is done.
 *
 * A run is made from a plan once and started any number of times, for collectives of the same shape:
 * starting allocates nothing. Every function with _locked wants the engine's lock. */
#ifndef DD_COLLECTIVE_PLAN_RUN_H
#define DD_COLLECTIVE_PLAN_RUN_H

#include "collective/plan.h"
#include "transport/context.h"

typedef struct dd_plan_run dd_plan_run;

/* Takes the plan (leaves it empty) on success. */
dd_status dd_plan_run_create(dd_plan *plan, dd_plan_run **run, dd_error *err) DD_MUST_CHECK;
void dd_plan_run_destroy(dd_plan_run *run); /* NULL is fine; not under way */

/* Bytes of scratch that a start wants, and of memory that the run itself takes up. */
size_t dd_plan_run_scratch_nbytes(const dd_plan_run *run);
size_t dd_plan_run_nbytes(const dd_plan_run *run);

typedef struct dd_plan_run_options {
    dd_context *context;
    const int *ranks;  /* the plan's ranks in terms of the context's, valid until the end; NULL: the same */
    uint64_t sequence; /* of the group's collective */
    dd_signature signature; /* of all its messages */
    void *scratch;          /* aligned to 64 bytes, the run's until the end */
    /* Once, perhaps from within start; `error` NULL for success. The run may be started again from here. A
     * DD_MISMATCH comes from the transport and says who and what. */
    void (*on_done)(void *ctx, const dd_error *error);
    void *ctx;
} dd_plan_run_options;

/* One that is not under way. The arrays of blocks, and the memory they name, stay valid until on_done.
 * Small local steps are done as messages come in, others wait for dd_plan_run_take_step_locked. */
void dd_plan_run_start_locked(dd_plan_run *run, const dd_coll_args *args, const dd_plan_run_options *options);

/* One of the local steps that are waiting, at most about a segment of work: taken and ended with the lock, done without it; one at a
 * time. The run does not end well before the step has ended. If the run fails meanwhile, its on_done must wait until the
 * step is done; such a step is not ended. False: there is none. */
bool dd_plan_run_take_step_locked(dd_plan_run *run, uint32_t *step);
void dd_plan_run_do_step(dd_plan_run *run, uint32_t step);
void dd_plan_run_end_step_locked(dd_plan_run *run, uint32_t step);
/* Whether there is one to be taken. */
bool dd_plan_run_is_busy_locked(const dd_plan_run *run);

/* Go on with the messages that have ended well, without waiting for the engine to report them. True if there was one. The run
 * may have ended then. */
bool dd_plan_run_catch_up_locked(dd_plan_run *run);

/* Ends it with `error` if it is under way; on_done is called. */
void dd_plan_run_cancel_locked(dd_plan_run *run, const dd_error *error);

/* Ranks of the context that unfinished receives wait for, each once; writes at most max, returns how many
 * it wrote. */
int dd_plan_run_missing_locked(const dd_plan_run *run, int *ranks, int max);
/* Adds a rank to those if it is not among them; there is room for it. */
void dd_plan_run_note_rank(int *ranks, int *nranks, int rank);

#endif
