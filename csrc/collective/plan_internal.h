/* What the builders of plans share: a small vocabulary of steps, and of parts of memory. */
#ifndef DD_COLLECTIVE_PLAN_INTERNAL_H
#define DD_COLLECTIVE_PLAN_INTERNAL_H

#include "collective/plan.h"

/* No step: what adding an empty message gives. Depending on it, or making it depend, does nothing. */
#define DD_NO_STEP DD_PLAN_NONE

/* How many segments of a pipeline are under way at once, each with scratch of its own. */
#define DD_PLAN_DEPTH 2

/* A plan under construction. The first failure stays, and later calls do nothing.
 *
 * A builder lists its steps in an order in which they could be done one by one. Which of them may overlap follows from the
 * memory that they read and write, and is worked out at the end. */
struct dd_builder {
    const dd_coll_args *args; /* const, as all up to is_lifted */
    int rank;
    int nranks;
    size_t segment_nbytes;
    size_t input_nbytes;    /* of an element; 1 where nothing is folded */
    size_t output_nbytes;   /* the same */
    size_t partial_nbytes;  /* of an element of a partial result */
    bool is_lifted;         /* a rank's input is no partial result until a stage FIRST has seen it */
    bool has_whole_blocks;  /* every block is the whole array */
    size_t per_segment;     /* of blocks: elements in a segment */
    size_t largest_segment; /* the most that there are in one */
    int set;                /* of scratch, that the segment has; until the end, ranges have it for a block */
    int nsets;              /* so far */
    size_t set_nbytes;      /* of the largest */
    size_t set_used;        /* of the present one */
    dd_plan *plan;
    dd_status status;
    dd_error *err;
};

/* Elements `first` to `first + count` of something. */
typedef struct dd_span {
    size_t first;
    size_t count;
} dd_span;

/* An empty plan is begun, and ended: ending works out where scratch lies, and the dependencies, and gives the first failure. */
dd_builder dd_builder_start(const dd_plan_task *task, dd_plan *plan, dd_error *err);
dd_status dd_builder_finish(dd_builder *builder) DD_MUST_CHECK;

/* Each gives the index of the step, or DD_NO_STEP when there is nothing to do: both sides leave out empty messages (but not
 * those of a barrier). */
uint32_t dd_builder_send(dd_builder *builder, int peer, size_t channel, dd_plan_range src);
uint32_t dd_builder_recv(dd_builder *builder, int peer, size_t channel, dd_plan_range dst);
uint32_t dd_builder_copy(dd_builder *builder, dd_plan_range src, dd_plan_range dst);
/* In steps of a segment each. */
void dd_builder_copy_all(dd_builder *builder, dd_plan_range src, dd_plan_range dst);
/* A fold, whose sources are added next, one by one in their order. The stage is said as if the collective were WHOLE: what is
 * FIRST of inputs that are partial results becomes MIDDLE, and so on. */
uint32_t dd_builder_fold(dd_builder *builder, dd_stage stage, dd_plan_range dst);
void dd_builder_add_source(dd_builder *builder, dd_plan_range source);

/* Step starts after `on`, also where they share no memory: so that a rank does not run ahead of the others without end. */
void dd_builder_after(dd_builder *builder, uint32_t step, uint32_t on);
/* *step = latest, unless there was nothing to do. */
void dd_builder_keep(uint32_t *step, uint32_t latest);

/* Makes room for one item more after `used`; false when the builder has failed. */
bool dd_builder_grow(dd_builder *builder, void **items, uint32_t *capacity, uint32_t used, size_t size);
/* Dependencies by memory, for all steps of the plan. */
void dd_builder_order(dd_builder *builder);

size_t dd_round_up(size_t nbytes); /* to a multiple of 64 */

/* Segment s begins. Segments have sets of scratch in turn, `depth` of them; what a builder adds to its set from here on is
 * its own until a later segment has the set, and begins at a multiple of 64. */
void dd_builder_begin_segment(dd_builder *builder, size_t s, size_t depth);
dd_plan_range dd_builder_add_scratch(dd_builder *builder, size_t nbytes);

dd_plan_range dd_range_input(int block, size_t offset, size_t nbytes);
dd_plan_range dd_range_output(int block, size_t offset, size_t nbytes);
/* That part of a range. */
dd_plan_range dd_range_part(dd_plan_range range, dd_span bytes);

/* Rank plus distance, which is at least -nranks and at most nranks, around the ring. */
int dd_builder_at(const dd_builder *builder, int rank, int distance);
bool dd_builder_is_root(const dd_builder *builder);

/* The k-th of nshares shares of so many bytes, cut at multiples of `line`: as even as can be, larger ones first. */
dd_span dd_share_lines(size_t nbytes, size_t line, int nshares, int k);

/* How many segments a span of count elements has when at most per_segment go into one; the s-th of them, maybe empty. */
size_t dd_nsegments(size_t count, size_t per_segment);
dd_span dd_segment(size_t count, size_t per_segment, size_t s);

/* The blocks of a collective with one for each rank: shares of one array (all_reduce, reduce), or blocks of their own
 * (reduce_scatter, all_gather). They are cut into segments of so many bytes that elements of that size fit, and there are as many
 * as the largest block has. */
size_t dd_builder_cut_blocks(dd_builder *builder, size_t element_nbytes);
/* The s-th segment of a block: before it is folded, and as the result. Of its own block an all_gather has the input
 * alone. */
dd_plan_range dd_builder_block_input(const dd_builder *builder, int k, size_t s);
dd_plan_range dd_builder_block_output(const dd_builder *builder, int k, size_t s);

/* The s-th segment of every rank's result goes to all: straight, with one message a pair, or around the ring, with messages from
 * `channel` to channel + nranks - 2. Collecting is the half of it that receives. */
void dd_builder_spread(dd_builder *builder, size_t s, size_t channel);
void dd_builder_collect(dd_builder *builder, size_t s, size_t channel);
void dd_builder_pass_around(dd_builder *builder, size_t s, size_t channel);

/* The builders. Those of several collectives look at args->coll. */
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
