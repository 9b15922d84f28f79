/* Plans: a collective by messages, as one rank's list of steps with their dependencies.
 *
 * A builder is a pure function from (rank, nranks, sizes) to steps; it uses no data, sockets or
 * clock. One executor runs every plan (plan_run.h); in tests, a simulator runs all ranks' plans
 * together.
 *
 * Guarantees to the executor. Steps whose dependencies have ended may run in parallel and in any
 * order; a dependency is always on an earlier step. If every step that may start starts eventually,
 * every plan ends, even if a send ends only after its receive has begun. For each pair of ranks,
 * one rank lists its sends in the order of the other rank's receives. Sender and receiver both omit
 * messages of empty ranges, except in a barrier. An output may be the memory of an input where
 * coll.h allows it.
 *
 * Bits: an algorithm has an *order* in which it folds the ranks' inputs, which alone decides the
 * bits of the result. LINEAR: ((r0 + r1) + r2) + ... ; RING: each block of the result begins at
 * another rank and moves around; TREE: pairs, lower rank first. All ranks get the same bits,
 * whatever the size of segments. */
#ifndef DD_COLLECTIVE_PLAN_H
#define DD_COLLECTIVE_PLAN_H

#include "collective/coll.h"

typedef enum dd_plan_kind {
    DD_PLAN_SEND,   /* send src to peer */
    DD_PLAN_RECV,   /* receive from peer into dst */
    DD_PLAN_COPY,   /* copy src to dst, which must be disjoint or equal (a no-op) */
    DD_PLAN_REDUCE, /* fold the sources into dst, at a stage */
} dd_plan_kind;

typedef enum dd_plan_buffer {
    DD_PLAN_INPUT,   /* this rank's input block `block`; never a dst */
    DD_PLAN_OUTPUT,  /* this rank's output block `block` */
    DD_PLAN_SCRATCH, /* memory of the plan itself; `block` is 0 */
} dd_plan_buffer;

typedef struct dd_plan_range {
    dd_plan_buffer buffer;
    int block;
    size_t offset; /* bytes from the start of the block */
    size_t nbytes;
} dd_plan_range;

typedef struct dd_plan_step {
    dd_plan_kind kind;
    dd_stage stage;   /* stage of a REDUCE; unused in other steps */
    int peer;         /* the other rank of a SEND or RECV */
    uint32_t channel; /* SEND, RECV: unique among this plan's messages to or from the peer */
    uint32_t message; /* SEND, RECV: number among this plan's messages */
    dd_plan_range src;
    dd_plan_range dst;
    size_t count;          /* REDUCE: elements to fold; dst may be a source of at least its size */
    uint32_t first_source; /* REDUCE: index of the first source, in fold order */
    uint32_t nsources;
    uint32_t ndeps; /* number of earlier steps (a step may count twice) that must end first */
    uint32_t first_follower, last_follower; /* range of followers: steps that wait for this one */
} dd_plan_step;

#define DD_PLAN_NONE UINT32_MAX

typedef struct dd_plan_follower {
    uint32_t step;
    uint32_t next; /* index in followers of the list's next entry, or DD_PLAN_NONE */
} dd_plan_follower;

typedef struct dd_plan {
    dd_plan_step *steps;
    uint32_t nsteps;
    uint32_t nmessages;
    dd_plan_range *sources;
    uint32_t nsources;
    uint32_t max_nsources; /* largest number of sources that a step has */
    dd_plan_follower *followers;
    uint32_t nfollowers;
    size_t scratch_nbytes; /* bytes of scratch, which must be aligned to 64 bytes */
    uint32_t capacity[3];  /* allocated number of steps, sources and followers */
} dd_plan;

typedef enum dd_plan_order {
    DD_ORDER_NONE, /* nothing is folded */
    DD_ORDER_LINEAR,
    DD_ORDER_RING,
    DD_ORDER_TREE,
} dd_plan_order;

/* The input of a builder. `args` has the sizes of this rank's blocks; the builder does not use
 * their `data`. segment_nbytes limits the size of a message. Scratch is at most segment_nbytes
 * times a small constant, times the number of ranks that send to this rank at the same time. */
typedef struct dd_plan_task {
    int rank;
    int nranks;
    const dd_coll_args *args;
    size_t segment_nbytes; /* maximum bytes of a message; must be a multiple of 64 */
} dd_plan_task;

typedef struct dd_builder dd_builder;

/* One algorithm. If is_even_only is true, all blocks must have one size. */
typedef struct dd_algorithm {
    const char *name; /* the algorithm's name in overrides and reports, such as "ring" */
    dd_coll coll;
    dd_plan_order order;
    bool is_even_only;
    void (*build)(dd_builder *builder);
} dd_algorithm;

extern const dd_algorithm dd_algorithms[]; /* table of all algorithms; ends with a NULL name */

const dd_algorithm *dd_algorithm_find(dd_coll coll, const char *name); /* NULL if there is none */

/* Build a plan into `plan`, which must be empty. Call dd_plan_fini afterwards, even on failure.
 * Fails with DD_OUT_OF_MEMORY, or DD_INVALID_ARGUMENT if there are too many messages. */
dd_status dd_plan_build(const dd_algorithm *algorithm, const dd_plan_task *task, dd_plan *plan,
                        dd_error *err) DD_MUST_CHECK;

void dd_plan_fini(dd_plan *plan); /* leaves a zeroed plan, which is empty */

#endif
