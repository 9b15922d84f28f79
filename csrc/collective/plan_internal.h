/* Shared by the builders of plans: functions for steps and for parts of memory. */
#ifndef DD_COLLECTIVE_PLAN_INTERNAL_H
#define DD_COLLECTIVE_PLAN_INTERNAL_H

#include "collective/plan.h"

/* The result of adding an empty message: no step. Dependencies on it or of it are ignored. */
#define DD_NO_STEP DD_PLAN_NONE

#define DD_PLAN_DEPTH 2 /* segments of a pipeline under way, each with its own scratch */

/* A plan under construction. The first failure stays, and later calls do nothing. A builder lists
 * its steps in an order in which they could run one by one. Which of them may overlap follows from
 * the memory that they read and write, and is derived by dd_builder_finish. */
struct dd_builder {
    const dd_coll_args *args; /* const, as all up to is_lifted */
    int rank;
    int nranks;
    size_t segment_nbytes;
    size_t input_nbytes;    /* of an element; 1 if nothing is folded */
    size_t output_nbytes;   /* the same */
    size_t partial_nbytes;  /* of an element of a partial result */
    bool is_lifted;         /* an input must pass a stage FIRST to be a partial result */
    bool has_whole_blocks;  /* every block is the whole array */
    size_t per_segment;     /* of blocks: elements in a segment */
    size_t largest_segment; /* most elements in a segment */
    int set;                /* scratch set of this segment; `block` of its ranges until finish */
    int nsets;              /* sets so far */
    size_t set_nbytes;      /* of the largest set */
    size_t set_used;        /* of the current set */
    dd_plan *plan;
    dd_status status;
    dd_error *err;
};

/* Elements `first` to `first + count`. */
typedef struct dd_span {
    size_t first;
    size_t count;
} dd_span;

/* Begin an empty plan, and end it: place its scratch, derive the dependencies, return the first
 * failure. */
dd_builder dd_builder_start(const dd_plan_task *task, dd_plan *plan, dd_error *err);
dd_status dd_builder_finish(dd_builder *builder) DD_MUST_CHECK;

/* Return the index of the step, or DD_NO_STEP if there is nothing to do: both sides omit empty
 * messages (but not those of a barrier). */
uint32_t dd_builder_send(dd_builder *builder, int peer, size_t channel, dd_plan_range src);
uint32_t dd_builder_recv(dd_builder *builder, int peer, size_t channel, dd_plan_range dst);
uint32_t dd_builder_copy(dd_builder *builder, dd_plan_range src, dd_plan_range dst);
/* Copy in steps of one segment. */
void dd_builder_copy_all(dd_builder *builder, dd_plan_range src, dd_plan_range dst);
/* Begin a fold; add its sources next, in order. Pass `stage` as if the collective were WHOLE: FIRST
 * becomes MIDDLE if the inputs are partial results, and so on. */
uint32_t dd_builder_fold(dd_builder *builder, dd_stage stage, dd_plan_range dst);
void dd_builder_add_source(dd_builder *builder, dd_plan_range source);

/* Start `step` after `on`, even if they share no memory: so that a rank does not run ahead without
 * limit. */
void dd_builder_after(dd_builder *builder, uint32_t step, uint32_t on);
void dd_builder_update_step(uint32_t *step, uint32_t latest); /* *step = latest, except DD_NO_STEP */

/* Ensure capacity for one item after `used`; false if the builder has failed. */
bool dd_builder_grow(dd_builder *builder, void **items, uint32_t *capacity, uint32_t used, size_t size);
void dd_builder_order(dd_builder *builder); /* derive all dependencies from memory */

size_t dd_round_up(size_t nbytes); /* to a multiple of 64 */

/* Begin segment s. Segments use `depth` sets of scratch cyclically. Scratch that is added from here
 * on belongs to this segment until a later one gets the set; it begins at a multiple of 64. */
void dd_builder_begin_segment(dd_builder *builder, size_t s, size_t depth);
dd_plan_range dd_builder_add_scratch(dd_builder *builder, size_t nbytes);

dd_plan_range dd_range_input(int block, size_t offset, size_t nbytes);
dd_plan_range dd_range_output(int block, size_t offset, size_t nbytes);
dd_plan_range dd_range_part(dd_plan_range range, dd_span bytes);

/* Return rank + distance around the ring; distance is from -nranks to nranks. */
int dd_builder_at(const dd_builder *builder, int rank, int distance);
bool dd_builder_is_root(const dd_builder *builder);

/* The k-th of nshares shares, cut at multiples of `line`: as even as possible, larger ones
 * first. */
dd_span dd_share_lines(size_t nbytes, size_t line, int nshares, int k);

/* Return the number of segments of `count` elements; and the s-th segment, which may be empty. */
size_t dd_nsegments(size_t count, size_t per_segment);
dd_span dd_segment(size_t count, size_t per_segment, size_t s);

/* Cut the blocks of a collective with one per rank into segments, and return how many the largest
 * block has. The blocks are shares of an array (all_reduce, reduce) or separate (reduce_scatter,
 * all_gather). element_nbytes is the size of an element in a message. */
size_t dd_builder_cut_blocks(dd_builder *builder, size_t element_nbytes);
/* Return the s-th segment of a block: before the fold, and as the result. The result of an
 * all_gather's own block is its input. */
dd_plan_range dd_builder_block_input(const dd_builder *builder, int k, size_t s);
dd_plan_range dd_builder_block_output(const dd_builder *builder, int k, size_t s);

/* Send the s-th segment of every rank's result to all ranks: directly (spread), or around the ring
 * with channels `channel` to channel + nranks - 2. collect is only the receiving part of spread. */
void dd_builder_spread(dd_builder *builder, size_t s, size_t channel);
void dd_builder_collect(dd_builder *builder, size_t s, size_t channel);
void dd_builder_pass_around(dd_builder *builder, size_t s, size_t channel);

/* The builders. Those of several collectives use args->coll. */
void dd_build_barrier(dd_builder *builder);
void dd_build_broadcast_binomial(dd_builder *builder);
void dd_build_broadcast_chain(dd_builder *builder);
void dd_build_broadcast_shares(dd_builder *builder);
void dd_build_move_direct(dd_builder *builder); /* gather, scatter, all_to_all */
void dd_build_collect(dd_builder *builder);     /* gather, all_gather */
void dd_build_scatter_binomial(dd_builder *builder);
void dd_build_all_gather_direct(dd_builder *builder);
void dd_build_all_gather_ring(dd_builder *builder);
void dd_build_all_to_all_bruck(dd_builder *builder);
void dd_build_fold_whole(dd_builder *builder);  /* reduce, all_reduce */
void dd_build_fold_shares(dd_builder *builder); /* reduce, all_reduce, reduce_scatter */
void dd_build_fold_ring(dd_builder *builder);   /* all_reduce, reduce_scatter */
void dd_build_fold_tree(dd_builder *builder);   /* reduce, all_reduce */
void dd_build_scan_direct(dd_builder *builder);
void dd_build_scan_chain(dd_builder *builder);

#endif
