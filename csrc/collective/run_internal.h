/* Shared by the files of a run. Guarded by the engine's lock, except for const fields. */
#ifndef DD_COLLECTIVE_RUN_INTERNAL_H
#define DD_COLLECTIVE_RUN_INTERNAL_H

#include "collective/carry.h"
#include "collective/hierarchy.h"
#include "collective/run.h"

#define DD_RUN_NPLANS 4

/* Memory kept from one collective to the next. */
typedef struct dd_run_buffer {
    void *memory;
    char *data; /* aligned to 64 bytes */
    size_t nbytes;
} dd_run_buffer;

/* A plan kept for collectives of the same shape. */
typedef struct dd_run_plan {
    dd_plan_run *plan; /* NULL if the entry is free */
    const dd_algorithm *algorithm;
    void *key; /* all that the plan depends on */
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
    DD_LEG_STUCK, /* waits for other ranks; this call changed nothing */
    DD_LEG_MOVED, /* or the leg has reported its end, by run->on_leg_done */
    DD_LEG_DONE,
    DD_LEG_FAILED,
    DD_LEG_DECLINED, /* nothing was moved: the collective must run without a carrier */
} dd_leg_state;

/* A piece of a leg's work. */
typedef struct dd_run_piece {
    const dd_leg_ops *ops;
    bool is_large;        /* move it without the engine's lock */
    bool is_long;         /* takes as long as many other pieces */
    int64_t stay_ns;      /* without the lock: how long to move later pieces; else 0 */
    uint32_t step;        /* of a plan */
    dd_arena_state state; /* of the arena, after the piece */
} dd_run_piece;

/* One kind of leg. A leg is moved in pieces: take one, move it, end it. Only `move` may be called
 * without the engine's lock. All functions except start require that the leg is under way. */
struct dd_leg_ops {
    /* Start the leg. A plan may report its end from here, by run->on_leg_done. */
    void (*start)(dd_run *run, const dd_leg *leg);
    /* False if there is nothing to move now. */
    bool (*take)(dd_run *run, dd_run_piece *piece);
    void (*move)(dd_run *run, dd_run_piece *piece); /* NULL if `end` does it all */
    dd_leg_state (*end)(dd_run *run, const dd_run_piece *piece, dd_error *error);
    /* Use arrived messages that are not reported yet. True if there was one. May be NULL. */
    bool (*catch_up)(dd_run *run);
    /* Before the driver sleeps: arrange to be woken. False if the leg needs another look first. */
    bool (*may_sleep)(dd_run *run);
    /* Add the ranks that the leg waits for to `ranks`; return their new number, at most max. */
    int (*missing)(const dd_run *run, int *ranks, int nfound, int max);
    /* The collective fails before the leg's end. May be NULL. */
    void (*cancel)(dd_run *run, const dd_error *error);
    /* True if the leg waits for threads that need this core. NULL for never. */
    bool (*needs_core)(dd_run *run);
    /* True if a look yields the core by itself. NULL for never. */
    bool (*does_poll_yield)(const dd_run *run);
    bool is_polled;   /* progress shows only in a look, not in a message */
    bool has_threads; /* a library's, which need cores as well */
};

extern const dd_leg_ops dd_leg_arena, dd_leg_plan, dd_leg_carrier;

/* A sequence of legs. */
typedef struct dd_run_lane {
    dd_leg leg;                /* the next one to end */
    bool has_leg;              /* `leg` is set */
    bool is_finished;          /* no legs are left */
    const dd_leg_ops *running; /* the kind of `leg` once it has been started; NULL before */
    uint64_t nended;
} dd_run_lane;

/* A region of another rank that an operation waits for. */
typedef struct dd_run_wanted {
    int local;
    uint32_t id;
} dd_run_wanted;

/* An operation of the arena, and its requests since the last piece ended. */
typedef struct dd_run_arena {
    dd_arena_op_options options;
    bool is_large;
    dd_arena_ranks bells;  /* local ranks to wake */
    dd_run_wanted *wanted; /* [2 * ranks of this host]: each input and output once */
    int nwanted;
} dd_run_arena;

/* The thread that moves data.
 *
 * The operation, its blocks and the arena belong to the holder of the engine's lock. Large data (of
 * an operation of the arena, or a step of a plan) is moved without the lock: a thread takes a piece
 * with the lock, moves it, and ends it with the lock. Until then no other thread takes a piece or
 * uses the arena. In the arena the thread continues without the lock and polls for other ranks, so
 * that large collectives do not lock more often. It locks again at the end of the operation, to
 * wake a rank or request a region, after stay_ns, and when another thread recalls it.
 *
 * The end of the collective waits, with the lock, until the piece is moved (is_moving), and takes
 * it over. So a mover never waits for the lock: wake-ups and requests are kept until the piece is
 * ended. */
typedef struct dd_run_mover {
    uint64_t taken;          /* number of the piece moved without the lock; 0 if none */
    uint64_t npieces;        /* numbers used so far */
    dd_run_piece piece;      /* the taken piece; written by its thread while is_moving */
    atomic_bool is_moving;   /* the thread has not finished the piece; cleared without the lock */
    atomic_bool is_recalled; /* the thread should lock soon: another one waits for it */
    unsigned nabsent;        /* threads that will lock again, possibly after the collective */
    bool is_catching_up;     /* all pieces are moved with the lock: see dd_run_catch_up_locked */
} dd_run_mover;

/* State of a collective whose data a carrier moves. */
typedef enum dd_carried_state {
    DD_CARRIED_GATHERING, /* until all ranks of this host have joined */
    /* in the library: */
    DD_CARRIED_COMPARING, /* comparing calls of ranks without a common board */
    DD_CARRIED_LOCATING,  /* finding the rank that differs */
    DD_CARRIED_UNDER_WAY,
} dd_carried_state;

typedef struct dd_run_comparison dd_run_comparison;

typedef struct dd_run_carried {
    dd_carrier *carrier;           /* NULL if there is none; const once set */
    dd_carry *carry;               /* owned */
    dd_run_comparison *comparison; /* owned; NULL if all share a board, or the library kept it */
    dd_carried_state state;
    dd_arena_ranks awaited; /* of this host */
    const dd_carried_call *call;
    bool is_supported; /* the library has such a call */
    dd_carried operation;
    int64_t awake_until_ns; /* see dd_run_may_nap */
    dd_timer poll_timer;    /* set while the driver may sleep although the library needs polling */
    uint64_t ncalls;
    bool is_memory_kept; /* the library may still use the arrays of a cancelled operation */
} dd_run_carried;

typedef enum dd_run_phase {
    DD_RUN_IDLE,
    DD_RUN_POSTED, /* `call` is set, and none of its legs has been started */
    DD_RUN_UNDER_WAY,
} dd_run_phase;

struct dd_run {
    dd_run_env env;     /* const */
    bool is_hierarchic; /* const: the hierarchy may be used */
    dd_hierarchy hierarchy;
    dd_task task; /* in the engine while has_task */
    bool has_task;

    dd_run_phase phase;
    dd_run_call call;
    dd_run_route route;
    dd_run_lane lanes[DD_LANE_COUNT];
    bool is_advancing; /* run_advance runs further up the stack, and sees every change */
    dd_error error;    /* the first failure; code DD_OK if none */
    dd_arena_mismatch mismatch;
    /* const: reports the end of a plan's leg (NULL for success), and starts the next one */
    void (*on_leg_done)(dd_run *run, const dd_error *error);

    dd_run_mover mover;
    dd_run_arena arena;
    dd_run_carried carried;

    dd_run_plan plans[DD_RUN_NPLANS];
    dd_run_plan *plan;             /* the plan under way, or NULL */
    const dd_algorithm *algorithm; /* of the latest plan */
    uint64_t nuses;
    dd_run_buffer scratch; /* of the hierarchy */
    dd_run_buffer plan_scratch;
    dd_run_buffer key; /* of the plan being sought */
};

/* ---- run_mover.c */

/* Move a taken piece, without the lock if it is large. False if another thread took it over while
 * the lock was free: the run may then be in any state. */
bool dd_run_move_piece(dd_run *run, dd_run_piece *piece);
/* Wait for the piece that another thread is moving, and take it over. False if there is none. */
bool dd_run_take_over_piece(dd_run *run, dd_run_piece *piece);
/* Wait, without the lock, until all threads that have moved data have locked again. */
void dd_run_wait_for_movers(dd_run *run);

/* ---- leg_arena.c */

/* Up to this size, data is moved with the engine's lock: less than a microsecond of copying. */
#define DD_RUN_LOCKED_NBYTES ((size_t)16384)

void dd_run_init_arena(dd_run *run);
void dd_run_init_carried(dd_run *run);

/* ---- leg_carrier.c */

bool dd_run_has_carrier(const dd_run *run); /* false if no carrier can take the collective */

/* ---- run_compare.c: the calls by which a carrier's ranks compare theirs */

dd_status dd_run_create_comparison(int nranks, dd_run_comparison **comparison, dd_error *err) DD_MUST_CHECK;
void dd_run_destroy_comparison(dd_run_comparison *comparison); /* may be NULL */
/* The first call, and whether it has shown that all ranks call the same. */
const dd_carried_call *dd_run_compare(dd_run_comparison *comparison, const dd_signature *own);
bool dd_run_is_same(const dd_run_comparison *comparison);
/* The second call, if they differ, and the first rank that differs from this one; -1 if none
 * does. */
const dd_carried_call *dd_run_compare_all(dd_run_comparison *comparison, int nranks);
int dd_run_find_different(const dd_run_comparison *comparison, int nranks, const dd_signature **theirs);

/* ---- run_plans.c */

/* Find or make a plan for the collective of `leg`, with its scratch. It is run->plan until the
 * end. */
dd_status dd_run_find_plan(dd_run *run, const dd_leg *leg, dd_error *err) DD_MUST_CHECK;
void dd_run_release_plan(dd_run *run);
void dd_run_destroy_plans(dd_run *run);

dd_status dd_run_buffer_reserve(dd_run_buffer *buffer, size_t nbytes, dd_error *err) DD_MUST_CHECK;
void dd_run_buffer_trim(dd_run_buffer *buffer); /* free it if too large to keep */
void dd_run_buffer_fini(dd_run_buffer *buffer);

#endif
