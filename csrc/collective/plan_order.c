/* Derives the dependencies of a plan's steps: a step that reads memory waits for the last step that
 * wrote this memory; a step that writes memory waits for all steps that have read it since. An
 * input and an output that a call may share count as the same memory. */
#include "collective/plan_internal.h"

#include "core/mem.h"

#include <stdlib.h>

/* Memory from `first` up to the next cell. Cells begin and end where a written range does, so a
 * step writes all of a cell or nothing; reading a part of a cell counts as reading all of it. */
typedef struct cell {
    size_t space; /* number of the block's memory (space_of) */
    size_t first; /* offset of the cell in the block */
    uint32_t writer;
    uint32_t reader; /* index in readers: the last reader since the last write; or DD_NO_STEP */
} cell;

typedef struct reader {
    uint32_t step;
    uint32_t before; /* index in readers of the previous reader, or DD_NO_STEP */
} reader;

typedef struct order {
    dd_builder *builder;
    int own_input; /* input block that may share memory with block own_output; -1 if none */
    int own_output;
    cell *cells;
    size_t ncells;
    void *readers;
    uint32_t nreaders;
    uint32_t capacity;
    uint32_t *waiter; /* for each step: the latest step that waits for it already */
} order;

static size_t
space_of(const order *o, const dd_plan_range *range)
{
    size_t block = (size_t)range->block;
    if (range->buffer == DD_PLAN_SCRATCH) {
        return 0;
    }
    if (range->buffer == DD_PLAN_INPUT && range->block != o->own_input) {
        return 2 + 2 * block;
    }
    return 1 + 2 * (range->buffer == DD_PLAN_INPUT ? (size_t)o->own_output : block);
}

/* Return true if the step copies this rank's own block. This needs no order: in place the copy does
 * nothing, and otherwise no other step uses its output. */
static bool
is_own_copy(const order *o, const dd_plan_step *step)
{
    return step->kind == DD_PLAN_COPY && step->src.buffer == DD_PLAN_INPUT &&
           step->dst.buffer == DD_PLAN_OUTPUT && space_of(o, &step->src) == space_of(o, &step->dst);
}

static int
compare_cells(const void *a, const void *b)
{
    const cell *left = a;
    const cell *right = b;
    if (left->space != right->space) {
        return left->space < right->space ? -1 : 1;
    }
    return left->first < right->first ? -1 : left->first > right->first ? 1 : 0;
}

static void
make_cells(order *o)
{
    const dd_plan *plan = o->builder->plan;
    size_t nedges = 0;
    for (uint32_t i = 0; i < plan->nsteps; i++) {
        const dd_plan_step *step = &plan->steps[i];
        o->waiter[i] = DD_NO_STEP;
        if (step->dst.nbytes > 0 && !is_own_copy(o, step)) {
            size_t space = space_of(o, &step->dst);
            o->cells[nedges++] = (cell){space, step->dst.offset, DD_NO_STEP, DD_NO_STEP};
            o->cells[nedges++] = (cell){space, step->dst.offset + step->dst.nbytes, DD_NO_STEP, DD_NO_STEP};
        }
    }
    qsort(o->cells, nedges, sizeof *o->cells, compare_cells);
    for (size_t i = 0; i < nedges; i++) {
        if (i == 0 || compare_cells(&o->cells[i], &o->cells[o->ncells - 1]) != 0) {
            o->cells[o->ncells++] = o->cells[i];
        }
    }
}

/* Return the first cell in `space` that overlaps a range which begins at `first`. */
static size_t
find_cell(const order *o, size_t space, size_t first)
{
    size_t low = 0;
    size_t high = o->ncells;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const cell *c = &o->cells[middle];
        if (c->space < space || (c->space == space && c->first <= first)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low > 0 && o->cells[low - 1].space == space ? low - 1 : low;
}

static void
wait_for(order *o, uint32_t step, uint32_t on)
{
    if (on != DD_NO_STEP && on != step && o->waiter[on] != step) {
        o->waiter[on] = step;
        dd_builder_after(o->builder, step, on);
    }
}

static void
note_read(order *o, uint32_t step, cell *c)
{
    wait_for(o, step, c->writer);
    if (dd_builder_grow(o->builder, &o->readers, &o->capacity, o->nreaders, sizeof(reader))) {
        ((reader *)o->readers)[o->nreaders] = (reader){.step = step, .before = c->reader};
        c->reader = o->nreaders++;
    }
}

/* If there are readers, wait only for these, because they have waited for the last writer. */
static void
note_written(order *o, uint32_t step, cell *c)
{
    const reader *readers = o->readers;
    if (c->reader == DD_NO_STEP) {
        wait_for(o, step, c->writer);
    }
    for (uint32_t i = c->reader; i != DD_NO_STEP; i = readers[i].before) {
        wait_for(o, step, readers[i].step);
    }
    c->reader = DD_NO_STEP;
    c->writer = step;
}

static void
touch(order *o, uint32_t step, const dd_plan_range *range, void (*note)(order *o, uint32_t step, cell *c))
{
    size_t space = space_of(o, range);
    size_t end = range->offset + range->nbytes;
    for (size_t i = range->nbytes > 0 ? find_cell(o, space, range->offset) : o->ncells;
         i < o->ncells && o->cells[i].space == space && o->cells[i].first < end; i++) {
        note(o, step, &o->cells[i]);
    }
}

static void
order_step(order *o, uint32_t index)
{
    const dd_plan *plan = o->builder->plan;
    const dd_plan_step *step = &plan->steps[index];
    if (is_own_copy(o, step)) {
        return;
    }
    touch(o, index, &step->src, note_read);
    for (uint32_t i = 0; i < step->nsources; i++) {
        touch(o, index, &plan->sources[step->first_source + i], note_read);
    }
    touch(o, index, &step->dst, note_written);
}

void
dd_builder_order(dd_builder *builder)
{
    const dd_plan *plan = builder->plan;
    dd_coll coll = builder->args->coll;
    bool is_one_size = builder->input_nbytes == builder->output_nbytes;
    size_t nsteps = plan->nsteps;
    order o = {.builder = builder,
               .own_input = is_one_size ? dd_coll_own_input(coll, builder->rank) : -1,
               .own_output = dd_coll_own_output(coll, builder->rank),
               .cells = dd_mem_alloc_array(2 * nsteps + 1, sizeof(cell)),
               .waiter = dd_mem_alloc_array(nsteps + 1, sizeof(uint32_t))};
    if (o.cells == NULL || o.waiter == NULL) {
        builder->status = dd_error_no_memory(builder->err, nsteps * (2 * sizeof(cell) + sizeof(uint32_t)));
    } else {
        make_cells(&o);
    }
    for (uint32_t i = 0; i < nsteps && builder->status == DD_OK; i++) {
        order_step(&o, i);
    }
    dd_mem_free(o.cells);
    dd_mem_free(o.waiter);
    dd_mem_free(o.readers);
}
