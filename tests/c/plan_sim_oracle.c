/* The expected results, computed in one place from all ranks' inputs. */
#include "check.h"
#include "coll_reference.h"
#include "plan_sim_internal.h"

#include <stdlib.h>
#include <string.h>

/* Return the sources' inputs, starting at `offset`. */
static const void **
gather_inputs(const sim_world *world, const coll_sources *from, size_t offset)
{
    const void **inputs = malloc((size_t)from->count * sizeof *inputs);
    for (int k = 0; k < from->count; k++) {
        inputs[k] = (const uint8_t *)world->ranks[from->first + k].originals[from->block] + offset;
    }
    return inputs;
}

/* Fold block `owner` of a ring, starting at the rank after the owner. */
static void
fold_ring(const sim_world *world, const void **inputs, int owner, void *out, size_t count)
{
    int nranks = world->sim->nranks;
    const void **rotated = malloc((size_t)nranks * sizeof *rotated);
    for (int k = 0; k < nranks; k++) {
        rotated[k] = inputs[(owner + 1 + k) % nranks];
    }
    dd_reduce(&world->sim->reduction, world->sim->stage, out, rotated, (size_t)nranks, count);
    free(rotated);
}

/* Set parts[at] = parts[at] + parts[other], which are partial results. */
static void
fold_pair(const sim_world *world, void **parts, int at, int other, size_t count)
{
    const void *sources[] = {parts[at], parts[other]};
    dd_reduce(&world->sim->reduction, DD_STAGE_MIDDLE, parts[at], sources, 2, count);
}

static void
fold_tree(const sim_world *world, const void **inputs, void *out, size_t count)
{
    int nranks = world->sim->nranks;
    const dd_reduction *reduction = &world->sim->reduction;
    dd_stage stage = world->sim->stage;
    bool takes_elements = stage == DD_STAGE_WHOLE || stage == DD_STAGE_FIRST;
    bool gives_elements = stage == DD_STAGE_WHOLE || stage == DD_STAGE_LAST;
    size_t nbytes = count * dd_reduce_partial_size(reduction->dtype, reduction->op);
    void **parts = malloc((size_t)nranks * sizeof *parts);
    int nplaces = 1;
    while (nplaces * 2 <= nranks) {
        nplaces *= 2;
    }
    int npairs = nranks - nplaces;
    for (int k = 0; k < nranks; k++) {
        parts[k] = malloc(nbytes + 1);
        dd_reduce(reduction, takes_elements ? DD_STAGE_FIRST : DD_STAGE_MIDDLE, parts[k], &inputs[k], 1,
                  count);
    }
    void **places = malloc((size_t)nplaces * sizeof *places);
    for (int offset = 0; offset < nplaces; offset++) {
        places[offset] = parts[offset < npairs ? 2 * offset : offset + npairs];
        if (offset < npairs) {
            fold_pair(world, parts, 2 * offset, 2 * offset + 1, count);
        }
    }
    for (int distance = 1; distance < nplaces; distance *= 2) {
        for (int offset = 0; offset < nplaces; offset += 2 * distance) {
            fold_pair(world, places, offset, offset + distance, count);
        }
    }
    const void *last = places[0];
    dd_reduce(reduction, gives_elements ? DD_STAGE_LAST : DD_STAGE_MIDDLE, out, &last, 1, count);
    for (int k = 0; k < nranks; k++) {
        free(parts[k]);
    }
    free(places);
    free(parts);
}

/* Fold the inputs in the order of the algorithm. */
static void
fold(const sim_world *world, const coll_sources *from, uint8_t *out, size_t count)
{
    const sim_case *sim = world->sim;
    if (sim->algorithm->order == DD_ORDER_RING && sim->algorithm->coll == DD_COLL_ALL_REDUCE) {
        size_t first = 0;
        for (int owner = 0; owner < sim->nranks; owner++) {
            size_t share =
                count / (size_t)sim->nranks + ((size_t)owner < count % (size_t)sim->nranks ? 1 : 0);
            const void **inputs = gather_inputs(world, from, first * sim_input_size(sim));
            fold_ring(world, inputs, owner, out + first * sim_output_size(sim), share);
            free(inputs);
            first += share;
        }
        return;
    }
    const void **inputs = gather_inputs(world, from, 0);
    if (sim->algorithm->order == DD_ORDER_RING) {
        fold_ring(world, inputs, from->block, out, count);
    } else if (sim->algorithm->order == DD_ORDER_TREE) {
        fold_tree(world, inputs, out, count);
    } else {
        dd_reduce(&sim->reduction, sim->stage, out, inputs, (size_t)from->count, count);
    }
    free(inputs);
}

/* A fold that may be the result of several ranks. */
typedef struct folded {
    coll_sources from;
    uint8_t *data;
} folded;

/* Return the expected data of output `block` of a rank: an input, or the fold in `last`. */
static const void *
expected(const sim_world *world, int rank, int block, folded *last)
{
    const sim_case *sim = world->sim;
    coll_sources from = coll_sources_of(sim->algorithm->coll, sim->root, sim->nranks, rank, block);
    if (!dd_coll_is_folding(sim->algorithm->coll)) {
        return world->ranks[from.first].originals[from.block];
    }
    if (from.count == 0) {
        const sim_rank *own_rank = &world->ranks[rank];
        last->from = from;
        return sim->is_in_place ? own_rank->originals[0]
                                : memset(last->data, COLL_UNTOUCHED, own_rank->outputs[block].nbytes);
    }
    if (from.count != last->from.count || from.block != last->from.block) {
        fold(world, &from, last->data, sim_count(sim, 0, rank));
        last->from = from;
    }
    return last->data;
}

static bool
are_inputs_untouched(const sim_world *world, const sim_rank *rank)
{
    for (int i = 0; i < rank->ninputs; i++) {
        bool is_output = false;
        for (int j = 0; j < rank->noutputs; j++) {
            is_output = is_output || rank->outputs[j].data == rank->inputs[i].data;
        }
        if (!is_output && memcmp(rank->inputs[i].data, rank->originals[i], rank->inputs[i].nbytes) != 0) {
            return false;
        }
    }
    return world->sim != NULL;
}

bool
sim_check_results(sim_world *world)
{
    const sim_case *sim = world->sim;
    bool is_good = true;
    folded last = {.data = malloc(sim->count * sim_output_size(sim) + 1)};
    for (int number = 0; number < sim->nranks && is_good; number++) {
        const sim_rank *rank = &world->ranks[number];
        is_good = CHECK(are_inputs_untouched(world, rank));
        for (int i = 0; i < rank->noutputs && is_good; i++) {
            const void *wanted = expected(world, number, i, &last);
            is_good = CHECK(memcmp(rank->outputs[i].data, wanted, rank->outputs[i].nbytes) == 0);
        }
    }
    free(last.data);
    return is_good;
}
