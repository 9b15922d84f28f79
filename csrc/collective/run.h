/* One collective of a group under way: through the arena, as a plan, by a carrier, or in a
 * hierarchy.
 *
 * On one host with an arena, everything uses the arena. On several hosts, all_reduce, broadcast,
 * reduce and barrier use the arenas inside the hosts and plans between them, in which as many local
 * ranks as the smallest host has carry a share (hierarchy.h); all_gather and reduce_scatter do so
 * if all hosts have equally many ranks. The order of the folds is then "host by host": in rank
 * order inside a host, then over the hosts in the order of the algorithm between them. Everything
 * else, and everything if the selection is flat or there is no arena, is a plan between all ranks.
 * A single rank also runs a plan, but copies small data immediately. */
#ifndef DD_COLLECTIVE_RUN_H
#define DD_COLLECTIVE_RUN_H

#include "collective/arena/arena.h"
#include "collective/carrier.h"
#include "collective/plan_run.h"
#include "collective/select.h"
#include "collective/topology.h"

/* A group's resources, const while it lives. Ranks choose routes without agreement, so all must
 * pass the same selection and segment_nbytes, and every host with several ranks must have an arena,
 * or none. */
typedef struct dd_run_env {
    dd_engine *engine; /* may be NULL for one rank, like the context */
    dd_context *context;
    const dd_topology *topology;
    dd_arena *arena; /* NULL if there is none; a rank alone on its host needs none */
    dd_selection selection;
    size_t segment_nbytes;                                      /* 0 for the selection's */
    bool is_crowded;                                            /* more ranks on this host than cores */
    void (*wake)(void *ctx, int local);                         /* rings a local rank's bell */
    void (*want_region)(void *ctx, int local, uint32_t region); /* see arena.h */
    void *ctx;
} dd_run_env;

typedef struct dd_run dd_run;

/* Create a run: one per group, for one collective at a time. It keeps at most 2 MiB of scratch and
 * the plans of the last few shapes. During a large collective it uses up to 16 MiB more, or what
 * its plan needs. */
dd_status dd_run_create(const dd_run_env *env, dd_run **run, dd_error *err) DD_MUST_CHECK;
void dd_run_destroy(dd_run *run); /* may be NULL; must be idle; without the lock */

/* Let the carrier, which the caller keeps, move the data of the calls that it has. Call at most
 * once, while nothing is under way. */
dd_status dd_run_set_carrier_locked(dd_run *run, dd_carrier *carrier, dd_error *err) DD_MUST_CHECK;
dd_carrier *dd_run_carrier(const dd_run *run); /* NULL if there is none */
/* For a caller that polls a library, which wakes no thread and advances only when polled. After
 * false, poll again, and yield the core between polls. True after some time, when other ranks cause
 * the delay: nap between polls. *awake_until_ns must be 0 at first. */
bool dd_run_may_nap(int64_t *awake_until_ns);
bool dd_run_yields_locked(const dd_run *run);            /* true if progress yields the core */
uint64_t dd_run_count_carried_locked(const dd_run *run); /* collectives handed to the carrier */
/* True if a cancelled collective's arrays may still be in use by the carrier's library. */
bool dd_run_keeps_memory_locked(const dd_run *run);

typedef struct dd_run_call {
    dd_coll_args args; /* checked, of the group's ranks; arrays and blocks are valid to the end */
    dd_signature signature;
    uint64_t sequence;
    /* Called once, with the engine's lock, perhaps from within start. `error` is NULL for success.
     * A DD_MISMATCH found by the arena has no message yet: the group writes it from dd_run_mismatch.
     * The next collective may be started from here. */
    void (*on_done)(void *ctx, const dd_error *error);
    void *ctx;
} dd_run_call;

/* Start a collective and advance it as far as possible. Requires the engine's lock, as do all
 * functions below. */
void dd_run_start_locked(dd_run *run, const dd_run_call *call);
/* Advance the collective, as the engine's driver does. True if it moved. With the lock it does at
 * most about a millisecond of work. Large data is moved without the lock, for about
 * DD_WAIT_SLICE_NS at most: afterwards the run may be in any state. */
bool dd_run_progress_locked(dd_run *run);
/* Use all data that other ranks have published or sent, and end the collective if nothing is
 * missing; likewise for calls that its on_done starts. The lock is kept, so callbacks may call
 * this; a piece that another thread is moving is waited for and taken over. The work is bounded by
 * the data that other ranks can have left: their slots of the arena, and messages. */
void dd_run_catch_up_locked(dd_run *run);
/* True if calling progress can help: the collective waits for shared memory. Messages are handled
 * when the engine is driven. */
bool dd_run_needs_polling_locked(const dd_run *run);
/* True if a thread moves data without the lock: the arena must not be used. False for NULL. */
bool dd_run_is_moving_locked(const dd_run *run);
void dd_run_recall_locked(dd_run *run); /* make the mover lock soon (about 100 us) */
/* Wait, with the lock, until the current piece is moved (about 100 us). Call before ending the
 * collective. May be NULL. */
void dd_run_halt_locked(dd_run *run);
bool dd_run_must_yield_locked(dd_run *run); /* true if awaited ranks need this CPU */
/* End the current collective with `error`; calls on_done. If an arena was used, the run is
 * unusable. */
void dd_run_cancel_locked(dd_run *run, const dd_error *error);

/* Find ranks that the collective waits for, as far as this rank knows. Return their number, at most
 * max. Some of them may be in the collective and wait themselves. */
int dd_run_missing_locked(const dd_run *run, int *ranks, int max);

/* After DD_MISMATCH. rank is of the group; -1 if the arena did not detect it. */
dd_arena_mismatch dd_run_mismatch(const dd_run *run);

#endif
