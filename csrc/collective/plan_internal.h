/* What the builders of plans share. */
#ifndef DD_COLLECTIVE_PLAN_INTERNAL_H
#define DD_COLLECTIVE_PLAN_INTERNAL_H

#include "collective/plan.h"

/* No step: what adding an empty message gives. Depending on it, or making it depend, does nothing. */
#define DD_NO_STEP UINT32_MAX

/* How many segments of a pipeline are under way at once, each with scratch of its own. */
#define DD_PLAN_DEPTH 2

/* A plan under construction. The first failure stays: later calls do nothing, and finish returns it. */
typedef struct dd_builder {
    const dd_coll_args *args; /* const */
    int rank;                 /* const */
    int nranks;               /* const */
    size_t segment_nbytes;    /* const */
    size_t element_nbytes;    /* const: 1 where nothing is folded */
    size_t partial_nbytes;    /* const: of an element of a partial result */
    bool is_lifted;           /* const: a rank's input is no partial result until a stage FIRST has seen it */
    dd_plan *plan;
    dd_status status;
    dd_error *err;
} dd_builder;

/* Elements `first` to `first + count` of something. */
typedef struct dd_span {
    size_t first;
    size_t count;
} dd_span;

dd_builder dd_builder_start(const dd_plan_task *task, dd_plan *plan, dd_error *err);
dd_status dd_builder_finish(const dd_builder *builder) DD_MUST_CHECK;

/* Each gives the index of the step, or DD_NO_STEP when there is nothing to do: both sides leave out empty messages. */
uint32_t dd_builder_send(dd_builder *builder, int peer, size_t channel, dd_plan_range src);
uint32_t dd_builder_recv(dd_builder *builder, int peer, size_t channel, dd_plan_range dst);
uint32_t dd_builder_copy(dd_builder *builder, dd_plan_range src, dd_plan_range dst);
/* In steps of a segment each. */
void dd_builder_copy_all(dd_builder *builder, dd_plan_range src, dd_plan_range dst);
/* The fold of two sources, of which b may be NULL. */
uint32_t dd_builder_fold(dd_builder *builder, dd_stage stage, const dd_plan_range *a, const dd_plan_range *b,
                         dd_plan_range dst);
/* A message without bytes, which is sent all the same. */
uint32_t dd_builder_send_empty(dd_builder *builder, int peer, size_t channel);
uint32_t dd_builder_recv_empty(dd_builder *builder, int peer, size_t channel);

/* A fold whose sources are added one by one, in order. */
uint32_t dd_builder_begin_fold(dd_builder *builder, dd_stage stage, dd_plan_range dst);
void dd_builder_add_source(dd_builder *builder, dd_plan_range source);

/* *step = latest, unless there was nothing to do. */
void dd_builder_keep(uint32_t *step, uint32_t latest);

/* Step, which is the last one added, starts after `on`. */
void dd_builder_after(dd_builder *builder, uint32_t step, uint32_t on);

/* More scratch; the offset of what was added, a multiple of 64. */
size_t dd_builder_add_scratch(dd_builder *builder, size_t nbytes);

/* count words that the caller frees with dd_mem_free, all DD_NO_STEP; NULL when there is no memory, and the builder knows. */
uint32_t *dd_builder_steps_alloc(dd_builder *builder, size_t count);

dd_plan_range dd_range_input(int block, size_t offset, size_t nbytes);
dd_plan_range dd_range_output(int block, size_t offset, size_t nbytes);
dd_plan_range dd_range_scratch(size_t offset, size_t nbytes);
dd_plan_range dd_range_part(dd_plan_range range, dd_span bytes);

/* Rank plus distance, which is at least -nranks and at most nranks, around the ring. */
int dd_builder_at(const dd_builder *builder, int rank, int distance);

/* The k-th of nshares shares of count elements: as even as can be, larger ones first. */
dd_span dd_share(size_t count, int nshares, int k);
/* The same for bytes, cut at multiples of 64. */
dd_span dd_share_bytes(size_t nbytes, int nshares, int k);

/* How many segments a span of count elements has when at most per_segment go into one; the s-th of them, maybe empty. */
size_t dd_nsegments(size_t count, size_t per_segment);
dd_span dd_segment(size_t count, size_t per_segment, size_t s);

/* How many bytes of each rank's block of nbytes go at once where messages hold blocks of many ranks; never 0. */
size_t dd_builder_piece_nbytes(const dd_builder *builder, size_t nbytes);

/* The blocks of a reduction with one result a rank: shares of one array (all_reduce, reduce), or blocks of their own
 * (reduce_scatter). */
dd_span dd_builder_block(const dd_builder *builder, int k);
size_t dd_builder_largest_block(const dd_builder *builder);
dd_plan_range dd_builder_block_input(const dd_builder *builder, int k, dd_span segment);
dd_plan_range dd_builder_block_output(const dd_builder *builder, int k, dd_span segment);

/* The fold of everybody's block `block`, that segment of it, in the order of ranks: rank k's part lies in scratch at
 * slots + k' * stride, where k' leaves out this rank. The caller adds dependencies. */
uint32_t dd_builder_fold_all(dd_builder *builder, dd_plan_range own, size_t slots, size_t stride,
                             dd_plan_range dst);

/* The builders. */
dd_status dd_plan_build_barrier_dissemination(const dd_plan_task *task, dd_plan *plan, dd_error *err);
dd_status dd_plan_build_broadcast_binomial(const dd_plan_task *task, dd_plan *plan, dd_error *err);
dd_status dd_plan_build_broadcast_chain(const dd_plan_task *task, dd_plan *plan, dd_error *err);
dd_status dd_plan_build_broadcast_scatter_all_gather(const dd_plan_task *task, dd_plan *plan, dd_error *err);
dd_status dd_plan_build_reduce_direct(const dd_plan_task *task, dd_plan *plan, dd_error *err);
dd_status dd_plan_build_reduce_direct_scatter_gather(const dd_plan_task *task, dd_plan *plan, dd_error *err);
dd_status dd_plan_build_reduce_binomial(const dd_plan_task *task, dd_plan *plan, dd_error *err);
dd_status dd_plan_build_all_reduce_exchange(const dd_plan_task *task, dd_plan *plan, dd_error *err);
dd_status dd_plan_build_all_reduce_direct(const dd_plan_task *task, dd_plan *plan, dd_error *err);
dd_status dd_plan_build_all_reduce_ring(const dd_plan_task *task, dd_plan *plan, dd_error *err);
dd_status dd_plan_build_all_reduce_doubling(const dd_plan_task *task, dd_plan *plan, dd_error *err);
dd_status dd_plan_build_gather_direct(const dd_plan_task *task, dd_plan *plan, dd_error *err);
dd_status dd_plan_build_gather_binomial(const dd_plan_task *task, dd_plan *plan, dd_error *err);
dd_status dd_plan_build_scatter_direct(const dd_plan_task *task, dd_plan *plan, dd_error *err);
dd_status dd_plan_build_scatter_binomial(const dd_plan_task *task, dd_plan *plan, dd_error *err);
dd_status dd_plan_build_all_gather_direct(const dd_plan_task *task, dd_plan *plan, dd_error *err);
dd_status dd_plan_build_all_gather_ring(const dd_plan_task *task, dd_plan *plan, dd_error *err);
dd_status dd_plan_build_all_gather_bruck(const dd_plan_task *task, dd_plan *plan, dd_error *err);
dd_status dd_plan_build_reduce_scatter_direct(const dd_plan_task *task, dd_plan *plan, dd_error *err);
dd_status dd_plan_build_reduce_scatter_ring(const dd_plan_task *task, dd_plan *plan, dd_error *err);
dd_status dd_plan_build_all_to_all_pairwise(const dd_plan_task *task, dd_plan *plan, dd_error *err);
dd_status dd_plan_build_all_to_all_bruck(const dd_plan_task *task, dd_plan *plan, dd_error *err);

#endif
