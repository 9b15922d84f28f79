/* What the files of a run share. All of it belongs to the holder of the engine's lock, except for what is
 * const. */
#ifndef DD_COLLECTIVE_RUN_INTERNAL_H
#define DD_COLLECTIVE_RUN_INTERNAL_H

#include "collective/carry.h"
#include "collective/hierarchy.h"
#include "collective/run.h"

#define DD_RUN_NPLANS 4

/* Memory that is kept from one collective to the next. */
typedef struct dd_run_buffer {
    void *memory;
    char *data; /* aligned to 64 bytes */
    size_t nbytes;
} dd_run_buffer;

/* A plan that may be wanted again, for collectives of the same shape. */
typedef struct dd_run_plan {
    dd_plan_run *plan; /* NULL: the place is free */
    const dd_algorithm *algorithm;
    void *key; /* what it depends on, and the algorithm */
    size_t key_nbytes;
    uint64_t last_use;
} dd_run_plan;

typedef enum dd_run_route {
    DD_ROUTE_LOCAL, /* through the arena; a little data of one rank is copied at the start */
    DD_ROUTE_FLAT,
    DD_ROUTE_HIERARCHY,
    DD_ROUTE_CARRIED,
} dd_run_route;

/* ---- legs */

typedef struct dd_leg_ops dd_leg_ops;

typedef enum dd_leg_state {
    DD_LEG_STUCK, /* waits for other ranks; nothing has happened */
    DD_LEG_MOVED, /* or the leg has reported its end itself, by run->on_leg_done */
    DD_LEG_DONE,
    DD_LEG_FAILED,
    DD_LEG_DECLINED, /* nothing was moved: the collective must go without a carrier */
} dd_leg_state;

/* A piece of a leg's work. */
typedef struct dd_run_piece {
    const dd_leg_ops *ops;
    bool is_large;   /* move it without the engine's lock */
    bool is_long;    /* as long as many others */
    int64_t stay_ns; /* without the lock: how long its thread may move the pieces after it; 0 with the lock */
    uint32_t step;   /* of a plan */
    dd_arena_state state; /* of the arena, after the piece */
} dd_run_piece;

/* One kind of leg. A leg is moved in pieces: take one, move it, end it. Only `move` may be called without the engine's lock.
 * All of it is called for a leg that is under way, except start. */
struct dd_leg_ops {
    /* Start the leg. A plan may report its end from here, by run->on_leg_done. */
    void (*start)(dd_run *run, const dd_leg *leg);
    /* False if there is nothing to move now. */
    bool (*take)(dd_run *run, dd_run_piece *piece);
    void (*move)(dd_run *run, dd_run_piece *piece); /* NULL if end does it all */
    dd_leg_state (*end)(dd_run *run, const dd_run_piece *piece, dd_error *error);
    /* Use messages that have arrived and that the engine has not reported yet. True if there was one. NULL if the leg has none. */
    bool (*catch_up)(dd_run *run);
    /* Before the driver sleeps: arrange to be woken. False if the leg needs another look first. */
    bool (*may_sleep)(dd_run *run);
    /* Add the ranks that the leg waits for to `ranks`; returns how many there are then, at most max. */
    int (*missing)(const dd_run *run, int *ranks, int nfound, int max);
    /* The collective fails before the leg's end. NULL if there is nothing to do. */
    void (*cancel)(dd_run *run, const dd_error *error);
    /* True if the leg waits for threads that need this core. NULL for never. */
    bool (*needs_core)(dd_run *run);
    /* True if a look yields the core by itself. NULL for never. */
    bool (*does_look_yield)(const dd_run *run);
    bool is_polled;   /* progress shows only in a look, not in a message */
    bool has_threads; /* a library's, which need cores as well */
};

extern const dd_leg_ops dd_leg_arena, dd_leg_plan, dd_leg_carrier;

/* Legs one after the other. */
typedef struct dd_run_lane {
    dd_leg leg;                /* the next one to end */
    bool has_leg;              /* leg is filled in */
    bool is_over;              /* there are no more */
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
    dd_arena_ranks bells; /* local ranks to be woken */
    dd_run_wanted
        *wanted; /* [2 * ranks of this host]: an operation requests each input and each output once */
    int nwanted;
} dd_run_arena;

/* The thread that moves data.
 *
 * The operation, its blocks and the arena belong to the holder of the engine's lock. Data of a user's size (a large operation of the
 * arena, a step of a plan) is moved without the lock, by a thread that takes a piece of it with the lock, and ends the piece
 * with the lock. Until then no other thread takes a piece, or looks into the arena. In the arena the thread goes on without the
 * lock, and polls for the other ranks, so that a collective takes the lock as often however large it is. It locks again at the
 * end of the operation, when a rank must be woken or a region is wanted, after stay_ns, and when another thread recalls it.
 *
 * The exception is the end of the collective: it waits, with the lock, until the piece is moved (is_moving), and takes the piece
 * over. So a mover never waits for the lock while it moves: wake-ups, and wanted regions, are kept until the piece is ended. */
typedef struct dd_run_mover {
    uint64_t taken;        /* the number of the piece that a thread is moving without the lock; 0 for none */
    uint64_t npieces;      /* numbers given so far */
    dd_run_piece piece;    /* the piece that is taken; written by its thread while is_moving */
    atomic_bool is_moving; /* the thread is not done with the piece; cleared without the lock */
    atomic_bool is_recalled; /* the thread should lock soon: another one waits for that */
    unsigned nabsent;        /* threads that will lock again, also after their collective has ended */
    bool is_catching_up;     /* pieces of any size are moved with the lock: see dd_run_catch_up_locked */
} dd_run_mover;

/* A collective whose data a carrier moves. */
typedef enum dd_carried_state {
    DD_CARRIED_AWAITED, /* until all ranks of this host have joined */
    /* in the library: */
    DD_CARRIED_COMPARED, /* what ranks without a common board call */
    DD_CARRIED_TOLD,     /* ... since they differ */
    DD_CARRIED_UNDER_WAY,
} dd_carried_state;

typedef struct dd_run_comparison dd_run_comparison;

typedef struct dd_run_carried {
    dd_carrier *carrier; /* const once it is there; NULL: none */
    dd_carry *carry;     /* owned */
    dd_run_comparison
        *comparison; /* owned; NULL: all ranks have one board, or the library has not let go of it */
    dd_carried_state state;
    dd_arena_ranks awaited; /* of this host */
    const dd_carried_call *call;
    bool is_taken; /* the library has such a call */
    dd_carried operation;
    int64_t awake_until_ns; /* see dd_run_may_nap */
    dd_timer look;          /* set while the driver may sleep beside the library */
    uint64_t ncalls;
    bool is_memory_kept; /* an operation was left in the library, which may still use its arrays */
} dd_run_carried;

typedef enum dd_run_phase {
    DD_RUN_IDLE,
    DD_RUN_POSTED, /* `call` is there, and no leg of it has been started */
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
    bool is_advancing; /* further up the stack, where every change is seen */
    dd_error error;    /* the first failure; code DD_OK for none */
    dd_arena_culprit culprit;
    /* const: reports the end of a plan's leg, NULL for success, and starts the next */
    void (*on_leg_done)(dd_run *run, const dd_error *error);

    dd_run_mover mover;
    dd_run_arena arena;
    dd_run_carried carried;

    dd_run_plan plans[DD_RUN_NPLANS];
    dd_run_plan *plan;             /* under way; NULL */
    const dd_algorithm *algorithm; /* of the latest plan */
    uint64_t nuses;
    dd_run_buffer scratch; /* of the hierarchy */
    dd_run_buffer plan_scratch;
    dd_run_buffer key; /* of the plan that is wanted */
};

/* ---- run_mover.c */

/* Move a piece that has been taken, without the lock if it is large. False if another thread has taken the piece over while
 * the lock was free: then the run may be anything. */
bool dd_run_move_piece(dd_run *run, dd_run_piece *piece);
/* Wait for the piece that another thread is moving, and take it over. False if there is none. */
bool dd_run_take_over_piece(dd_run *run, dd_run_piece *piece);
/* Wait, without the lock, until all threads that have moved data have locked again. */
void dd_run_wait_for_movers(dd_run *run);

/* ---- leg_arena.c */

/* Data of an operation of this rank that is moved with the engine's lock held: less than a microsecond of copying. */
#define DD_RUN_LOCKED_NBYTES ((size_t)16384)

void dd_run_init_arena(dd_run *run);
void dd_run_init_carried(dd_run *run);

/* ---- leg_carrier.c */

/* False if no carrier can take the collective. */
bool dd_run_has_carrier(const dd_run *run);

/* ---- run_compare.c: the calls by which a carrier's ranks compare theirs */

dd_status dd_run_create_comparison(int nranks, dd_run_comparison **comparison, dd_error *err) DD_MUST_CHECK;
void dd_run_destroy_comparison(dd_run_comparison *comparison); /* NULL is fine */
/* The first call, and whether it has shown that all ranks call the same. */
const dd_carried_call *dd_run_compare(dd_run_comparison *comparison, const dd_signature *own);
bool dd_run_is_same(const dd_run_comparison *comparison);
/* The second, if not, and the first rank that differs from this one; -1: none does. */
const dd_carried_call *dd_run_tell(dd_run_comparison *comparison, int nranks);
int dd_run_find_different(const dd_run_comparison *comparison, int nranks, const dd_signature **theirs);

/* ---- run_plans.c */

/* A plan for the collective of `leg`, made or found, with its scratch; it is run->plan until the end. */
dd_status dd_run_find_plan(dd_run *run, const dd_leg *leg, dd_error *err) DD_MUST_CHECK;
void dd_run_let_plan_go(dd_run *run);
void dd_run_drop_plans(dd_run *run);

dd_status dd_run_buffer_reserve(dd_run_buffer *buffer, size_t nbytes, dd_error *err) DD_MUST_CHECK;
/* Gives memory back that is too much to be kept. */
void dd_run_buffer_trim(dd_run_buffer *buffer);
void dd_run_buffer_fini(dd_run_buffer *buffer);

#endif
