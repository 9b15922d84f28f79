/* Shared by the files of a run. Guarded by the engine's lock, except const and atomic fields. */
#ifndef DD_COLLECTIVE_RUN_INTERNAL_H
#define DD_COLLECTIVE_RUN_INTERNAL_H

#include "collective/conversion.h"
#include "collective/hierarchy.h"
#include "collective/run.h"

#define DD_RUN_NPLANS 4

/* Memory that is kept between collectives. */
typedef struct dd_run_buffer {
    void *memory;
    char *data; /* memory aligned to 64 bytes */
    size_t nbytes;
} dd_run_buffer;

/* A plan that is kept for later collectives of the same shape. */
typedef struct dd_run_plan {
    dd_plan_run *plan; /* NULL if this entry of the table is free */
    const dd_algorithm *algorithm;
    void *key; /* all facts that the plan depends on, as bytes (write_key) */
    size_t key_nbytes;
    uint64_t last_use;
} dd_run_plan;

typedef enum dd_run_route {
    DD_ROUTE_LOCAL, /* through the arena; small data of a single rank is copied at the start */
    DD_ROUTE_FLAT,
    DD_ROUTE_HIERARCHY,
    DD_ROUTE_CARRIED,
} dd_run_route;

/* ---- legs */

typedef struct dd_leg_ops dd_leg_ops;

typedef enum dd_leg_state {
    DD_LEG_STUCK, /* waits for other ranks; the last call changed nothing */
    DD_LEG_MOVED, /* progress was made, or the leg's end was passed to run->on_leg_done */
    DD_LEG_DONE,
    DD_LEG_FAILED,
    DD_LEG_DECLINED, /* no data was moved: the collective must run without a carrier */
} dd_leg_state;

/* A part of a leg's work, which one thread takes, moves and ends. */
typedef struct dd_run_piece {
    const dd_leg_ops *ops;
    bool is_large;        /* must be moved without the engine's lock */
    bool is_long;         /* moving takes as long as many other pieces */
    int64_t stay_ns;      /* how long `move` may go on to later pieces without the lock, or 0 */
    uint32_t step;        /* of a plan: index of the taken step */
    dd_arena_state state; /* of the arena: its state after the piece was moved */
} dd_run_piece;

/* One kind of leg. A leg is moved in pieces: take one, move it, end it. Only `move` may be called
 * without the engine's lock. All functions except start require that the leg is under way. */
struct dd_leg_ops {
    /* Start the leg. A plan may report its end to run->on_leg_done from within this call. */
    void (*start)(dd_run *run, const dd_leg *leg);
    /* Take a piece. Return false if there is nothing to move now. */
    bool (*take)(dd_run *run, dd_run_piece *piece);
    void (*move)(dd_run *run, dd_run_piece *piece); /* NULL if `end` does all the work */
    dd_leg_state (*end)(dd_run *run, const dd_run_piece *piece, dd_error *error);
    /* Use messages that have arrived but are not reported. True if there was one. May be NULL. */
    bool (*catch_up)(dd_run *run);
    /* Called before the driver sleeps: arrange to be woken. Return false if the leg must be polled
     * again. */
    bool (*may_sleep)(dd_run *run);
    /* Append the ranks that the leg waits for to `ranks`; return their new number, at most max. */
    int (*missing)(const dd_run *run, int *ranks, int nfound, int max);
    /* Called if the collective fails before the leg has ended. May be NULL. */
    void (*cancel)(dd_run *run, const dd_error *error);
    /* Return true if the leg waits for threads that need this core. NULL means never. */
    bool (*needs_core)(dd_run *run);
    /* Return true if polling the leg yields the core by itself. NULL means never. */
    bool (*does_poll_yield)(const dd_run *run);
    bool is_polled;   /* progress shows only in polls of the leg, not by a message */
    bool has_threads; /* the library's own threads take part, and need cores as well */
};

extern const dd_leg_ops dd_leg_arena, dd_leg_plan, dd_leg_carrier;

/* One of the two sequences of legs of a collective. */
typedef struct dd_run_lane {
    dd_leg leg;                /* the lane's next leg to end */
    bool has_leg;              /* `leg` is set */
    bool is_finished;          /* no legs are left */
    const dd_leg_ops *running; /* kind of `leg` while that is under way, else NULL */
    uint64_t nended;
} dd_run_lane;

/* A region of another rank that an operation of the arena needs. */
typedef struct dd_run_wanted {
    int local;
    uint32_t id;
} dd_run_wanted;

/* An operation of the arena, and the requests that it has made since the last piece ended. */
typedef struct dd_run_arena {
    dd_arena_op_options options;
    bool is_large;
    dd_arena_ranks bells;  /* local ranks whose bells must be rung */
    dd_run_wanted *wanted; /* [2 * local ranks]: requested inputs and outputs */
    int nwanted;
} dd_run_arena;

/* The thread that moves data without the engine's lock.
 *
 * The operation, its blocks and the arena belong to the holder of the engine's lock. Large data (of
 * an operation of the arena, or a step of a plan) is moved without the lock: a thread takes a piece
 * with the lock, moves it, and ends it with the lock. Until the piece is ended, no other thread
 * takes a piece or uses the arena. In the arena, the thread continues to later pieces without the
 * lock and polls for other ranks, so that large collectives take the lock rarely. The thread locks
 * again at the end of the operation, to wake a rank or request a region, after stay_ns, and when
 * another thread recalls it.
 *
 * A thread that ends the collective waits, with the lock, until the piece is moved (is_moving is
 * false), and takes the piece over. So a mover must not wait for the lock while is_moving is true:
 * it keeps wake-ups and requests until the piece is ended. */
typedef struct dd_run_mover {
    uint64_t taken;          /* number of the piece moved without the lock; 0 if none */
    uint64_t npieces;        /* number of the last piece that was moved without the lock */
    dd_run_piece piece;      /* the taken piece; only its thread writes it while is_moving */
    atomic_bool is_moving;   /* the piece is being moved; cleared without the lock */
    atomic_bool is_recalled; /* a request to the mover to lock soon: another thread waits */
    unsigned nabsent;        /* movers that must lock again, perhaps after the collective */
    bool is_catching_up;     /* dd_run_catch_up_locked moves pieces with the lock */
} dd_run_mover;

/* State of a collective whose data a carrier moves. */
typedef enum dd_carried_state {
    DD_CARRIED_GATHERING, /* waiting until all ranks of this host have joined */
    /* The library has a call in the following states: */
    DD_CARRIED_COMPARING, /* comparing the calls of ranks that have no common board */
    DD_CARRIED_LOCATING,  /* finding the rank whose call differs */
    DD_CARRIED_UNDER_WAY,
} dd_carried_state;

typedef struct dd_run_comparison dd_run_comparison;

typedef struct dd_run_carried {
    dd_carrier *carrier;           /* NULL if there is none; const once set */
    dd_conversion *conversion;     /* owned */
    dd_run_comparison *comparison; /* owned; NULL if all share a board or the library kept it */
    dd_carried_state state;
    dd_arena_ranks awaited; /* ranks of this host that have not joined the call */
    const dd_carried_call *call;
    bool is_supported; /* the library supports `call` */
    dd_carried operation;
    int64_t awake_until_ns; /* argument of dd_run_may_nap, kept between polls */
    dd_timer poll_timer;    /* wakes the sleeping driver so that it polls the library */
    uint64_t ncalls;
    bool is_memory_kept; /* the library may still use an abandoned call's arrays */
} dd_run_carried;

typedef enum dd_run_phase {
    DD_RUN_IDLE,
    DD_RUN_POSTED, /* `call` is set, but no leg has been started */
    DD_RUN_UNDER_WAY,
} dd_run_phase;

struct dd_run {
    dd_run_env env;     /* const */
    bool is_hierarchic; /* const: true if collectives may use the hierarchy */
    dd_hierarchy hierarchy;
    dd_task task; /* in the engine while has_task is true */
    bool has_task;

    dd_run_phase phase;
    dd_run_call call;
    dd_run_route route;
    dd_run_lane lanes[DD_LANE_COUNT];
    bool is_advancing; /* run_advance is on the call stack, and will see every change */
    dd_error error;    /* the collective's first failure; code DD_OK if there is none */
    dd_arena_mismatch mismatch;
    /* Const. Ends a plan's leg, with NULL for success, and starts the next leg. */
    void (*on_leg_done)(dd_run *run, const dd_error *error);

    dd_run_mover mover;
    dd_run_arena arena;
    dd_run_carried carried;

    dd_run_plan plans[DD_RUN_NPLANS];
    dd_run_plan *plan;             /* the kept plan that is in use, or NULL */
    const dd_algorithm *algorithm; /* algorithm of the plan that was used last */
    uint64_t nuses;
    dd_run_buffer scratch; /* the hierarchy's scratch */
    dd_run_buffer plan_scratch;
    dd_run_buffer key; /* key of the plan that is being looked for */
};

/* ---- run_mover.c */

/* Move a taken piece, without the lock if the piece is large. Return false if another thread took
 * the piece over while the lock was free; the run may then be in any state. */
bool dd_run_move_piece(dd_run *run, dd_run_piece *piece);
/* Wait until another thread has moved its piece; take the piece over. False if there is none. */
bool dd_run_take_over_piece(dd_run *run, dd_run_piece *piece);
/* Wait until all threads that moved data have taken the lock again. Call without the lock. */
void dd_run_wait_for_movers(dd_run *run);

/* ---- leg_arena.c */

/* Data up to this size is moved with the engine's lock held, because that takes less than 1 us. */
#define DD_RUN_LOCKED_NBYTES ((size_t)16384)

void dd_run_init_arena(dd_run *run);
void dd_run_init_carried(dd_run *run);

/* ---- leg_carrier.c */

bool dd_run_has_carrier(const dd_run *run); /* true if a carrier can take the collective */

/* ---- run_compare.c: a carrier's ranks compare their calls by calls of the library */

dd_status dd_run_create_comparison(int nranks, dd_run_comparison **comparison, dd_error *err) DD_MUST_CHECK;
void dd_run_destroy_comparison(dd_run_comparison *comparison); /* NULL is allowed */
/* dd_run_compare returns the library's call that compares the calls of all ranks. When that call
 * has ended, dd_run_is_same returns true if all ranks have called the same collective. */
const dd_carried_call *dd_run_compare(dd_run_comparison *comparison, const dd_signature *own);
bool dd_run_is_same(const dd_run_comparison *comparison);
/* dd_run_gather_signatures returns the library's call that gathers all signatures. When that call
 * has ended, dd_run_find_different returns the first rank that differs from this one, or -1. */
const dd_carried_call *dd_run_gather_signatures(dd_run_comparison *comparison, int nranks);
int dd_run_find_different(const dd_run_comparison *comparison, int nranks,
                          const dd_signature **peer_signature);

/* ---- run_plans.c */

/* Find or make a plan for the leg's collective, and reserve its scratch. The plan is run->plan
 * until dd_run_release_plan. */
dd_status dd_run_find_plan(dd_run *run, const dd_leg *leg, dd_error *err) DD_MUST_CHECK;
void dd_run_release_plan(dd_run *run);
void dd_run_destroy_plans(dd_run *run);

dd_status dd_run_buffer_reserve(dd_run_buffer *buffer, size_t nbytes, dd_error *err) DD_MUST_CHECK;
void dd_run_buffer_trim(dd_run_buffer *buffer); /* free the buffer if it is too large to keep */
void dd_run_buffer_fini(dd_run_buffer *buffer);

#endif
