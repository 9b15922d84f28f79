/* One collective of a group under way: through the arena, as a plan, by a carrier, or in a
 * hierarchy.
 *
 * On one host with an arena, all collectives use the arena. On several hosts, all_reduce,
 * broadcast, reduce and barrier use the arenas inside the hosts and plans between them, in which
 * each host has as many carriers as the smallest host has ranks (hierarchy.h); all_gather and
 * reduce_scatter do so if all hosts have equally many ranks. The order of the folds is then "host
 * by host": in rank order inside a host, then over the hosts in the order of the algorithm between
 * them. All other collectives are plans between all ranks; if the selection is flat or there is no
 * arena, all collectives are so. A single rank also runs a plan, but copies small data
 * immediately. */
#ifndef DD_COLLECTIVE_RUN_H
#define DD_COLLECTIVE_RUN_H

#include "collective/arena/arena.h"
#include "collective/carrier.h"
#include "collective/plan_run.h"
#include "collective/select.h"
#include "collective/topology.h"

/* A group's resources, const while the group exists. Ranks choose routes without agreement, so all
 * ranks must pass the same selection and segment_nbytes, and either every host with several ranks
 * has an arena, or none has. */
typedef struct dd_run_env {
    dd_engine *engine; /* engine and context may be NULL for a single rank */
    dd_context *context;
    const dd_topology *topology;
    dd_arena *arena; /* NULL if there is none; a rank alone on its host needs none */
    dd_selection selection;
    size_t segment_nbytes;              /* maximum bytes of a message; 0: choose by the selection */
    bool is_crowded;                    /* more ranks on this host than cores */
    void (*wake)(void *ctx, int local); /* called to ring a local rank's bell */
    void (*want_region)(void *ctx, int local, uint32_t region); /* see dd_arena_op_options */
    void *ctx;
} dd_run_env;

typedef struct dd_run dd_run;

/* Create a run: one per group, for one collective at a time. Between collectives, a run keeps at
 * most 2 MiB of scratch and the plans of the last few shapes. During a large collective it uses up
 * to 16 MiB more, or the scratch that its plan needs. */
dd_status dd_run_create(const dd_run_env *env, dd_run **run, dd_error *err) DD_MUST_CHECK;
void dd_run_destroy(dd_run *run); /* must be idle; call without the lock; NULL is allowed */

/* Let the carrier move the data of the calls that its library supports; the caller keeps ownership.
 * Call at most once, while nothing is under way. */
dd_status dd_run_set_carrier_locked(dd_run *run, dd_carrier *carrier, dd_error *err) DD_MUST_CHECK;
dd_carrier *dd_run_carrier(const dd_run *run); /* NULL if there is none */
/* Return true if a caller that polls a library may nap between polls: a library wakes no thread,
 * and advances only when polled. At first the result is false: poll again, and yield the core
 * between polls. After some time it is true, because other ranks then cause the delay.
 * *awake_until_ns must be 0 before the first call. */
bool dd_run_may_nap(int64_t *awake_until_ns);
bool dd_run_yields_locked(const dd_run *run); /* true if a poll of the collective yields the core */
uint64_t dd_run_count_carried_locked(const dd_run *run); /* collectives handed to the carrier */
/* Return true if the carrier's library may still use a cancelled collective's arrays. */
bool dd_run_keeps_memory_locked(const dd_run *run);

typedef struct dd_run_call {
    /* Checked arguments; `root` is a rank of the group. Arrays and blocks must stay valid to the
     * end. */
    dd_coll_args args;
    dd_signature signature;
    uint64_t sequence;
    /* Called once at the end, with the engine's lock, perhaps from within start. `error` is NULL on
     * success. If the arena finds a DD_MISMATCH, the error has no message: the group writes one
     * from dd_run_mismatch. The callback may start the next collective. */
    void (*on_done)(void *ctx, const dd_error *error);
    void *ctx;
} dd_run_call;

/* Start a collective and advance it as far as possible. This function and all below require the
 * engine's lock. */
void dd_run_start_locked(dd_run *run, const dd_run_call *call);
/* Advance the collective, as the engine's driver does. Return true if it moved. With the lock held,
 * this works for at most about a millisecond. Large data is moved without the lock, for about
 * DD_WAIT_SLICE_NS at most; afterwards the run may be in any state. */
bool dd_run_progress_locked(dd_run *run);
/* Use all data that other ranks have published or sent, and end the collective if it has all its
 * data; then do the same for calls that on_done starts. Keeps the lock, so callbacks may call this.
 * If another thread is moving a piece, wait for the piece and take it over. The work is bounded by
 * the data that other ranks can have left: in their slots of the arena, and in messages. */
void dd_run_catch_up_locked(dd_run *run);
/* Return true if dd_run_progress_locked can help, because the collective waits for shared memory.
 * Messages do not count: they are handled when the engine is driven. */
bool dd_run_needs_polling_locked(const dd_run *run);
/* Return true if a thread moves data without the lock: then do not use the arena. NULL: false. */
bool dd_run_is_moving_locked(const dd_run *run);
void dd_run_recall_locked(dd_run *run); /* the mover should lock soon (100 us) */
/* Wait, without releasing the lock, until the piece that is being moved is done (about 100 us).
 * Call before ending the collective. `run` may be NULL. */
void dd_run_halt_locked(dd_run *run);
bool dd_run_must_yield_locked(dd_run *run); /* true if an awaited rank needs this CPU */
/* End the current collective with `error`, and call on_done. The run is unusable afterwards if an
 * arena was used. */
void dd_run_cancel_locked(dd_run *run, const dd_error *error);

/* Find ranks that the collective waits for, as far as this rank knows; some may have joined and be
 * waiting as well. Return the number of these ranks, at most max. */
int dd_run_missing_locked(const dd_run *run, int *ranks, int max);

/* Return the two sides of a DD_MISMATCH. `rank` is a rank of the group, or -1 if the transport has
 * detected the mismatch. */
dd_arena_mismatch dd_run_mismatch(const dd_run *run);

#endif
