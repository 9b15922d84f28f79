/* Functions for steps and for parts of memory, which the builders of plans share. */
#ifndef DD_COLLECTIVE_PLAN_INTERNAL_H
#define DD_COLLECTIVE_PLAN_INTERNAL_H

#include "collective/plan.h"

/* Returned instead of a step's index if no step was added, because its message is empty.
 * Dependencies that involve DD_NO_STEP are ignored. */
#define DD_NO_STEP DD_PLAN_NONE

#define DD_PLAN_DEPTH 2 /* number of pipelined segments under way; each has its own scratch */

/* A plan under construction. The first failure is kept, and later calls do nothing. A builder lists
 * its steps in an order in which they could run one by one. dd_builder_finish derives which steps
 * may overlap, from the memory that they read and write. */
struct dd_builder {
    const dd_coll_args *args; /* const, like the fields from here to is_lifted */
    int rank;
    int nranks;
    size_t segment_nbytes;
    size_t input_nbytes;    /* bytes of an input element; 1 if nothing is folded */
    size_t output_nbytes;   /* bytes of an output element; 1 if nothing is folded */
    size_t partial_nbytes;  /* bytes of an element of a partial result */
    bool is_lifted;         /* inputs are no partial results: a fold of stage FIRST converts them */
    bool has_whole_blocks;  /* every block is the whole array */
    size_t per_segment;     /* elements that each block has in one segment */
    size_t largest_segment; /* number of elements in the largest segment */
    int set;                /* current scratch set, stored as `block` of its ranges until finish */
    int nsets;              /* number of scratch sets so far */
    size_t set_nbytes;      /* bytes of the largest scratch set */
    size_t set_used;        /* bytes of the current set that are in use */
    dd_plan *plan;
    dd_status status;
    dd_error *err;
};

/* Elements or bytes from `first` to `first + count - 1`. */
typedef struct dd_span {
    size_t first;
    size_t count;
} dd_span;

/* dd_builder_start begins an empty plan. dd_builder_finish ends the plan: it places scratch,
 * derives the dependencies, and returns the first failure. */
dd_builder dd_builder_start(const dd_plan_task *task, dd_plan *plan, dd_error *err);
dd_status dd_builder_finish(dd_builder *builder) DD_MUST_CHECK;

/* Add a send, a receive or a copy. Return the index of the step, or DD_NO_STEP if the range is
 * empty: sender and receiver both omit empty messages, except in a barrier. */
uint32_t dd_builder_send(dd_builder *builder, int peer, size_t channel, dd_plan_range src);
uint32_t dd_builder_recv(dd_builder *builder, int peer, size_t channel, dd_plan_range dst);
uint32_t dd_builder_copy(dd_builder *builder, dd_plan_range src, dd_plan_range dst);
/* Copy a range in steps of one segment each. */
void dd_builder_copy_all(dd_builder *builder, dd_plan_range src, dd_plan_range dst);
/* Begin a fold into `dst`; then add its sources in the order of the fold. Pass `stage` as if the
 * collective were WHOLE: if the inputs are partial results, FIRST becomes MIDDLE, and so on. */
uint32_t dd_builder_fold(dd_builder *builder, dd_stage stage, dd_plan_range dst);
void dd_builder_add_source(dd_builder *builder, dd_plan_range source);

/* Make `step` wait for the end of step `on`, although they share no memory, so that a rank does not
 * run ahead without limit. */
void dd_builder_after(dd_builder *builder, uint32_t step, uint32_t on);
/* Set *step to `latest`, unless `latest` is DD_NO_STEP. */
void dd_builder_update_step(uint32_t *step, uint32_t latest);

/* Make space in `items` for one item after `used` items. Return false if the builder has failed. */
bool dd_builder_grow(dd_builder *builder, void **items, uint32_t *capacity, uint32_t used, size_t size);
void dd_builder_order(dd_builder *builder); /* derive dependencies from the memory that steps use */

size_t dd_round_up(size_t nbytes); /* round up to a multiple of 64 */

/* Begin segment s, which uses scratch set s % depth. Scratch added from here on belongs to the
 * segment until a later one gets the same set. Each range begins at a multiple of 64 bytes. */
void dd_builder_begin_segment(dd_builder *builder, size_t s, size_t depth);
dd_plan_range dd_builder_add_scratch(dd_builder *builder, size_t nbytes);

dd_plan_range dd_range_input(int block, size_t offset, size_t nbytes);
dd_plan_range dd_range_output(int block, size_t offset, size_t nbytes);
dd_plan_range dd_range_part(dd_plan_range range, dd_span bytes);

/* Return the rank `distance` after `rank` in the ring; distance is from -nranks to nranks. */
int dd_builder_at(const dd_builder *builder, int rank, int distance);
bool dd_builder_is_root(const dd_builder *builder);

/* Return share k of nshares. Shares begin at multiples of `line`, and are as even as possible;
 * larger shares come first. */
dd_span dd_share_lines(size_t nbytes, size_t line, int nshares, int k);

/* Return the number of segments of `count` elements, or the s-th segment, which may be empty. */
size_t dd_nsegments(size_t count, size_t per_segment);
dd_span dd_segment(size_t count, size_t per_segment, size_t s);

/* Cut the blocks of a collective that has one block per rank into segments, and return the number
 * of segments of the largest block. A block is a share of the array (all_reduce, reduce) or
 * separate (reduce_scatter, all_gather). element_nbytes is the size of an element in a message. */
size_t dd_builder_cut_blocks(dd_builder *builder, size_t element_nbytes);
/* Return the s-th segment of block k: as an input of the fold, or as its result. In an all_gather,
 * the result of this rank's own block is its input. */
dd_plan_range dd_builder_block_input(const dd_builder *builder, int k, size_t s);
dd_plan_range dd_builder_block_output(const dd_builder *builder, int k, size_t s);

/* Distribute the s-th segment of every rank's result to all ranks. `spread` sends it directly;
 * `collect` only receives what `spread` sends. `pass_around` sends around the ring, with channels
 * `channel` to channel + nranks - 2. */
void dd_builder_spread(dd_builder *builder, size_t s, size_t channel);
void dd_builder_collect(dd_builder *builder, size_t s, size_t channel);
void dd_builder_pass_around(dd_builder *builder, size_t s, size_t channel);

/* The builders of all algorithms. A builder that serves several collectives reads args->coll. */
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
void dd_build_scan_direct(dd_builder *builder); /* scan, exscan */
void dd_build_scan_chain(dd_builder *builder);  /* scan, exscan */

#endif
