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
    DD_ROUTE_LOCAL, /* through the arena; a little data of one rank is copied at once */
    DD_ROUTE_FLAT,
    DD_ROUTE_HIERARCHY,
    DD_ROUTE_CARRIED,
} dd_run_route;

/* Legs one after the other. LOCAL has no legs: the arena's lane runs the collective itself. */
typedef struct dd_run_lane {
    dd_leg leg;      /* the next one to end */
    bool has_leg;    /* leg is filled in */
    bool is_running; /* leg has been started */
    bool is_over;    /* there are no more */
    uint64_t nended;
} dd_run_lane;

/* A region of another rank that an operation waits for. */
typedef struct dd_run_wanted {
    int local;
    uint32_t id;
} dd_run_wanted;

/* A piece of work. */
typedef struct dd_run_piece {
    bool is_of_arena; /* false: it is a step of the plan */
    uint32_t step;
    dd_arena_state state; /* of the arena, after the piece */
} dd_run_piece;

/* Who moves data.
 *
 * The operation, its blocks and the arena belong to the holder of the engine's lock. Data of a user's size (a large operation of the
 * arena, a step of a plan) is moved without the lock, a piece at a time, by a thread that takes it with the lock and comes back
 * with the lock to say how far it got. Until then no other thread takes a piece, or looks into the arena. The exception is the
 * end of the group: it waits, with the lock, for the end of the piece (is_moving), and takes the piece over. So a mover never
 * waits for the lock while it moves: whom to wake, and what is wanted, is kept until the piece is ended. */
typedef struct dd_run_mover {
    bool is_large;         /* the arena's operation is moved that way */
    bool is_taken;         /* by a thread that will come back; `piece` is what it took */
    bool is_catching_up;   /* pieces of any size are moved with the lock: see dd_run_catch_up_locked */
    bool has_left;         /* some thread was without the lock during this collective */
    atomic_bool is_moving; /* that thread is not done with the piece; cleared without the lock */
    unsigned nabsent;      /* threads that will come back, also to a collective that has ended meanwhile */
    uint64_t nended;       /* collectives: whether it has */
    uint64_t
        npieces; /* taken without the lock: a thread that comes back finds out whether `piece` is its own */
    dd_run_piece piece;   /* written by its thread while is_moving */
    dd_arena_ranks bells; /* local ranks to be woken */
    dd_run_wanted
        *wanted; /* [2 * ranks of this host]: an operation asks for each input and each output once */
    int nwanted;
} dd_run_mover;

/* Of collectives whose data a carrier moves. */
typedef enum dd_carried_state {
    DD_CARRIED_NOT,
    DD_CARRIED_AWAITED, /* until all ranks of this host have come */
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
    uint64_t ncalls;
    bool is_memory_kept; /* an operation was left in the library, which may still use its arrays */
} dd_run_carried;

struct dd_run {
    dd_run_env env;     /* const */
    bool is_hierarchic; /* const: the hierarchy may be used */
    dd_hierarchy hierarchy;
    dd_task task; /* in the engine while has_task */
    bool has_task;

    dd_run_call call;
    bool is_idle;
    bool is_waiting; /* call came from within on_done, and is started when that returns */
    bool is_starting;
    dd_run_route route;

    dd_run_lane lanes[DD_LANE_COUNT];
    bool is_advancing; /* further up the stack */
    bool is_failed;
    dd_error error; /* when failed */
    dd_arena_culprit culprit;

    bool is_arena_busy;
    dd_arena_op_options arena_options;
    dd_run_mover mover;
    dd_run_carried carried;

    dd_run_plan plans[DD_RUN_NPLANS];
    dd_run_plan *plan;             /* under way; NULL */
    const dd_algorithm *algorithm; /* of the latest plan */
    uint64_t nuses;
    dd_run_buffer scratch; /* of the hierarchy */
    dd_run_buffer plan_scratch;
    dd_run_buffer key; /* of the plan that is wanted */
};

/* What a lane runs has ended; what follows is started, and the collective ends when there is nothing more. */
void dd_run_end_leg(dd_run *run, dd_leg_lane lane);
/* Ends the collective: the first failure stays. */
void dd_run_fail(dd_run *run, const dd_error *error);
/* Ends it at once and tells, when no leg is under way; another one may be afterwards. `error` NULL for success. */
void dd_run_end(dd_run *run, const dd_error *error);

/* The way that it goes without a carrier. It may end at once. */
void dd_run_go_own_way(dd_run *run);

/* ---- run_move.c: work that is done piece by piece */

void dd_run_init_moves(dd_run *run);
/* Somebody looks after the collective from now on. */
void dd_run_add_task(dd_run *run);
void dd_run_set_pace(dd_run *run);
/* Starts an operation of the arena, which ends the leg of the arena's lane. */
void dd_run_start_arena(dd_run *run, const dd_coll_args *args);
/* Does the collective of a group of one rank, if it is small; false: it is not. */
bool dd_run_do_alone(const dd_coll_args *args);
/* Nothing is left to be done, or told, for the collective that ends. */
void dd_run_forget_moves(dd_run *run);

/* ---- run_carry.c */

/* False: no carrier takes it. */
bool dd_run_start_carried(dd_run *run);
bool dd_run_progress_carried(dd_run *run);
/* Query the library for data that has arrived: libraries find it after some calls. True if it got somewhere. */
bool dd_run_catch_up_carried(dd_run *run);
static inline bool
dd_run_is_carrying(const dd_run *run)
{
    return run->carried.state != DD_CARRIED_NOT;
}
/* When to look for what nobody tells of; DD_NEVER_NS: nothing is carried. */
int64_t dd_run_next_look_ns(const dd_run *run);
/* False: it is worth another look. */
bool dd_run_may_sleep_carried(dd_run *run);
/* The collective ends before its time. What the library has of it is given a moment. */
void dd_run_leave_carried(dd_run *run);
int dd_run_missing_carried(const dd_run *run, int *ranks, int max);

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
