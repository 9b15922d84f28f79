/* Plans: a collective by messages, as one rank's list of steps with their dependencies.
 *
 * A builder is a pure function from (rank, nranks, sizes) to steps: it knows no memory, no socket and no time. One executor runs
 * every plan (plan_run.h); the simulator of the tests runs all ranks' plans against each other.
 *
 * What runs plans may count on this. Steps whose dependencies have ended may run at the same time and in any order; a
 * dependency is always on a step earlier in the list. If every step that may start does start sooner or later, every plan
 * ends, even where a send ends only when its receive has begun. Of one pair of ranks, the sends in the one's list stand in the
 * order of the receives in the other's. Both sides leave out messages of empty ranges; those of a barrier carry no bytes
 * and are sent all the same. Plans allow for outputs that are the same memory as inputs, where coll.h lets them be.
 *
 * Bits: an algorithm has an *order* in which it folds the ranks' inputs, and nothing but that order decides the result's bits.
 * LINEAR: ((r0 + r1) + r2) + ... ; RING: each block of the result begins at another rank and goes around; TREE: pairs, lower
 * rank first. All ranks get the same bits in each. Splitting into segments changes none. */
#ifndef DD_COLLECTIVE_PLAN_H
#define DD_COLLECTIVE_PLAN_H

#include "collective/coll.h"

typedef enum dd_plan_kind {
    DD_PLAN_SEND,   /* src to peer */
    DD_PLAN_RECV,   /* from peer into dst */
    DD_PLAN_COPY,   /* src to dst; not overlapping, or the same range (then nothing is done) */
    DD_PLAN_REDUCE, /* fold of the sources into dst, at a stage */
} dd_plan_kind;

typedef enum dd_plan_buffer {
    DD_PLAN_INPUT,   /* block `block` of the inputs: never a dst */
    DD_PLAN_OUTPUT,  /* block `block` of the outputs */
    DD_PLAN_SCRATCH, /* the plan's own memory, block 0 */
} dd_plan_buffer;

typedef struct dd_plan_range {
    dd_plan_buffer buffer;
    int block;
    size_t offset; /* bytes within the block */
    size_t nbytes;
} dd_plan_range;

typedef struct dd_plan_step {
    dd_plan_kind kind;
    dd_stage stage;   /* REDUCE */
    int peer;         /* SEND, RECV */
    uint32_t channel; /* SEND, RECV: with sender and receiver, it names the message in this plan uniquely */
    uint32_t message; /* SEND, RECV: its number among them */
    dd_plan_range src;
    dd_plan_range dst;
    size_t count; /* REDUCE: elements; the dst may be the same range as a source that is no smaller */
    uint32_t first_source; /* REDUCE: into sources, in the order of the fold */
    uint32_t nsources;
    uint32_t
        ndeps; /* how many times it is among the followers of earlier steps, all of which must have ended */
    uint32_t first_follower,
        last_follower; /* into followers, or DD_PLAN_NONE: later steps that wait for this one */
} dd_plan_step;

#define DD_PLAN_NONE UINT32_MAX

typedef struct dd_plan_follower {
    uint32_t step;
    uint32_t next; /* into followers, or DD_PLAN_NONE */
} dd_plan_follower;

typedef struct dd_plan {
    dd_plan_step *steps;
    uint32_t nsteps;
    uint32_t nmessages;
    dd_plan_range *sources;
    uint32_t nsources;
    uint32_t max_nsources; /* of a step */
    dd_plan_follower *followers;
    uint32_t nfollowers;
    size_t scratch_nbytes; /* wants memory aligned to 64 bytes */
    uint32_t capacity[3];  /* of steps, sources, followers */
} dd_plan;

typedef enum dd_plan_order {
    DD_ORDER_NONE, /* nothing is folded */
    DD_ORDER_LINEAR,
    DD_ORDER_RING,
    DD_ORDER_TREE,
} dd_plan_order;

/* What a builder is told. Sizes are those of this rank's own blocks, as in dd_coll_args; `data` of the blocks is not looked at.
 * segment_nbytes bounds a message and, times the number of ranks it hears from at once and a small constant, the scratch. */
typedef struct dd_plan_task {
    int rank;
    int nranks;
    const dd_coll_args *args;
    size_t segment_nbytes; /* a multiple of 64 */
} dd_plan_task;

typedef struct dd_builder dd_builder;

/* One row an algorithm. Limits: is_even_only for those that need every block to be of the same size. */
typedef struct dd_algorithm {
    const char *name; /* "ring": what overrides and reports call it */
    dd_coll coll;
    dd_plan_order order;
    bool is_even_only;
    void (*build)(dd_builder *builder);
} dd_algorithm;

/* The table of all algorithms; ends with a row whose name is NULL. */
extern const dd_algorithm dd_algorithms[];

/* NULL when there is none of that name for the collective. */
const dd_algorithm *dd_algorithm_find(dd_coll coll, const char *name);

/* Fills in an empty plan, which is the caller's to end also on failure. DD_OUT_OF_MEMORY. */
dd_status dd_plan_build(const dd_algorithm *algorithm, const dd_plan_task *task, dd_plan *plan,
                        dd_error *err) DD_MUST_CHECK;

/* A zeroed plan is empty; fini leaves it so. */
void dd_plan_fini(dd_plan *plan);

#endif
