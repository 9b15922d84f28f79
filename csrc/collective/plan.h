/* Plans: a collective by messages, as one rank's list of steps with their dependencies.
 *
 * A builder is a pure function from (rank, nranks, sizes) to steps, without memory, sockets or
 * time. One executor runs every plan (plan_run.h); the tests' simulator runs all ranks' plans
 * together.
 *
 * Guarantees to the executor. Steps whose dependencies have ended may run in parallel and in any
 * order; a dependency is always on an earlier step. If every step that may start starts eventually,
 * every plan ends, even if a send ends only after its receive has begun. For a pair of ranks, the
 * sends of one are listed in the order of the receives of the other. Both sides omit messages of
 * empty ranges, except in a barrier. An output may be the memory of an input where coll.h allows
 * it.
 *
 * Bits: an algorithm has an *order* in which it folds the ranks' inputs, which alone decides the
 * bits of the result. LINEAR: ((r0 + r1) + r2) + ... ; RING: each block of the result begins at
 * another rank and moves around; TREE: pairs, lower rank first. All ranks get the same bits;
 * segments do not change them. */
#ifndef DD_COLLECTIVE_PLAN_H
#define DD_COLLECTIVE_PLAN_H

#include "collective/coll.h"

typedef enum dd_plan_kind {
    DD_PLAN_SEND,   /* src to peer */
    DD_PLAN_RECV,   /* from peer into dst */
    DD_PLAN_COPY,   /* src to dst: not overlapping, or equal (a no-op) */
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
    uint32_t channel; /* SEND, RECV: unique in this plan for a sender and receiver */
    uint32_t message; /* SEND, RECV: its number among them */
    dd_plan_range src;
    dd_plan_range dst;
    size_t count;          /* REDUCE: elements; dst may be a source that is no smaller */
    uint32_t first_source; /* REDUCE: into sources, in the order of the fold */
    uint32_t nsources;
    uint32_t ndeps; /* earlier steps (with repeats) that must have ended first */
    uint32_t first_follower,
        last_follower; /* later steps that wait for this one: into followers, or DD_PLAN_NONE */
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
    size_t scratch_nbytes; /* needs memory aligned to 64 bytes */
    uint32_t capacity[3];  /* of steps, sources, followers */
} dd_plan;

typedef enum dd_plan_order {
    DD_ORDER_NONE, /* nothing is folded */
    DD_ORDER_LINEAR,
    DD_ORDER_RING,
    DD_ORDER_TREE,
} dd_plan_order;

/* The input of a builder. Sizes are of this rank's blocks, as in dd_coll_args; their `data` is not
 * used. segment_nbytes limits a message. Scratch is at most segment_nbytes times a small constant
 * and the number of ranks that send to this rank at the same time. */
typedef struct dd_plan_task {
    int rank;
    int nranks;
    const dd_coll_args *args;
    size_t segment_nbytes; /* a multiple of 64 */
} dd_plan_task;

typedef struct dd_builder dd_builder;

/* One algorithm. is_even_only: all blocks must have one size. */
typedef struct dd_algorithm {
    const char *name; /* "ring": the name in overrides and reports */
    dd_coll coll;
    dd_plan_order order;
    bool is_even_only;
    void (*build)(dd_builder *builder);
} dd_algorithm;

extern const dd_algorithm dd_algorithms[]; /* the last row's name is NULL */

const dd_algorithm *dd_algorithm_find(dd_coll coll, const char *name); /* NULL if none */

/* Fill in an empty plan; end it with dd_plan_fini even on failure. DD_OUT_OF_MEMORY. */
dd_status dd_plan_build(const dd_algorithm *algorithm, const dd_plan_task *task, dd_plan *plan,
                        dd_error *err) DD_MUST_CHECK;

void dd_plan_fini(dd_plan *plan); /* leaves it zeroed, which is an empty plan */

#endif
