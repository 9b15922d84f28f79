/* One collective of a group under way, whatever way it goes: through the arena, as a plan, or both
 * (hierarchy).
 *
 * On one host with an arena everything goes through the arena. With several hosts, all_reduce, broadcast,
 * reduce and barrier go through the arenas inside the hosts and as plans between them, where as many local
 * ranks as the smallest host has carry a share (see hierarchy.h); so do all_gather and reduce_scatter
 * where all hosts have equally many ranks. The order of the folds is then "host by host": in rank order
 * inside a host, then over the hosts in the order of the algorithm between them. Everything else, and
 * everything when the selection is flat or there is no arena, is a plan between all ranks. So is what
 * one rank does alone, but for small data, which it copies at once. */
#ifndef DD_COLLECTIVE_RUN_H
#define DD_COLLECTIVE_RUN_H

#include "collective/arena/arena.h"
#include "collective/carrier.h"
#include "collective/plan_run.h"
#include "collective/select.h"
#include "collective/topology.h"

/* What a group has; constant while it lives. Ranks choose their ways alone: selection and segment_nbytes
 * are the same on all of them, and either every host with several ranks has an arena, or none has. */
typedef struct dd_run_env {
    dd_engine *engine; /* may be NULL for one rank, as may the context */
    dd_context *context;
    const dd_topology *topology;
    dd_arena *arena; /* NULL: none, use messages; a rank that is alone on its host needs none */
    dd_selection selection;
    size_t segment_nbytes;                                      /* 0: by the selection */
    bool is_crowded;                                            /* more ranks on this host than cores */
    void (*wake)(void *ctx, int local);                         /* rings a local rank's bell */
    void (*want_region)(void *ctx, int local, uint32_t region); /* see arena.h */
    void *ctx;
} dd_run_env;

typedef struct dd_run dd_run;

/* One a group, used for one collective after the other: keeps its memory for the next, at most 2 MiB of
 * scratch, and the plans of the last few shapes. While a large collective is under way it has up to 16 MiB
 * of scratch more, or what its plan wants. */
dd_status dd_run_create(const dd_run_env *env, dd_run **run, dd_error *err) DD_MUST_CHECK;
void dd_run_destroy(dd_run *run); /* NULL is fine; idle; without the lock */

/* From now on the carrier, which stays the caller's, moves the data of what it has calls for. Nothing is under way. At most once. */
dd_status dd_run_set_carrier_locked(dd_run *run, dd_carrier *carrier, dd_error *err) DD_MUST_CHECK;
dd_carrier *dd_run_carrier(const dd_run *run); /* NULL: none */
/* For who waits for something in a library. It wakes nobody, and gets on with it only when it is asked: so the waiter looks, and gives the
 * core away between looks, for some time; then it is the others who are late, and it naps between looks. False: not yet. *awake_until_ns
 * is 0 at the beginning. */
bool dd_run_may_nap(int64_t *awake_until_ns);
/* Looks give the core away to others by themselves. */
bool dd_run_gives_way_locked(const dd_run *run);
uint64_t dd_run_count_carried_locked(const dd_run *run); /* how many collectives it has been handed */
/* A collective was cancelled, and the carrier's library may still use its arrays. */
bool dd_run_keeps_memory_locked(const dd_run *run);

typedef struct dd_run_call {
    dd_coll_args args; /* of the group's ranks; checked. Arrays and blocks are valid until the end */
    dd_signature signature;
    uint64_t sequence;
    /* Once, with the engine's lock held, perhaps from within start. `error` NULL for success. A
     * DD_MISMATCH that the arena has found has no message yet: the group writes it from dd_run_culprit.
     * The next collective may be started from here. */
    void (*on_done)(void *ctx, const dd_error *error);
    void *ctx;
} dd_run_call;

/* Starts, and goes as far as it can. With the engine's lock held, as all of these. */
void dd_run_start_locked(dd_run *run, const dd_run_call *call);
/* Move the collective that is under way, as the engine's driver does, for a caller that has the lock. True if it got somewhere.
 * With the lock it does at most about a millisecond of work. Large data is moved without the lock, for at most about a slice of
 * a wait (DD_WAIT_SLICE_NS): afterwards the run may be in any state. */
bool dd_run_progress_locked(dd_run *run);
/* Finish everything that is complete here: use all data that other ranks have published or sent, and end the collective if
 * nothing is missing. Calls that its on_done starts are treated alike. The lock is kept, so this may be called from
 * callbacks; a piece that another thread is moving is waited for and taken over. The work is bounded by the data that
 * other ranks can have left behind: their slots of the arena, and messages. */
void dd_run_catch_up_locked(dd_run *run);
/* Whether progress is worth a look: it waits for ranks of this host, whose words are in shared memory. What
 * comes by messages comes when the engine is driven. */
bool dd_run_looks_help_locked(const dd_run *run);
/* Some thread moves data without the lock: the arena must be left alone. False for NULL. */
bool dd_run_is_moving_locked(const dd_run *run);
/* Make the thread that moves data lock soon (about 100 us). */
void dd_run_recall_locked(dd_run *run);
/* Waits, with the lock, for the end of the piece that is being moved (about 100 us), since the caller is going
 * to end the collective. NULL is fine. */
void dd_run_halt_locked(dd_run *run);
/* Makes way for the ranks that the collective waits for; true where the CPU has to be given away for that. */
bool dd_run_must_make_way_locked(dd_run *run);
/* Ends the one that is under way with `error`; on_done is called. The run can not be used again if an
 * arena was involved. */
void dd_run_cancel_locked(dd_run *run, const dd_error *error);

/* Ranks that the collective waits for, as far as this rank can tell; returns how many, writes at most max.
 * Some of them may be inside it and wait themselves. */
int dd_run_missing_locked(const dd_run *run, int *ranks, int max);

/* After DD_MISMATCH; rank: of the group, -1 when it was not the arena that found out. */
dd_arena_culprit dd_run_culprit(const dd_run *run);

#endif
