#include "coll_world.h"

#include "check.h"
#include "coll_reference.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RANKS 64

const char *
coll_case_print(const coll_case *test_case, char text[160])
{
    (void)snprintf(text, 160, "%s of %d ranks, root %d, %zu x %s, %s%s%s", dd_coll_name(test_case->coll),
                   test_case->nranks, test_case->root, test_case->count, dd_dtype_name(test_case->dtype),
                   dd_redop_name(test_case->op), test_case->is_uneven ? ", uneven" : "",
                   test_case->is_in_place ? ", in place" : "");
    return text;
}

/* Return the bytes that rank `from` has for rank `to`. If every block goes to all ranks or comes
 * from all ranks, one of the two arguments is unused. */
static size_t
nbytes_of(const coll_case *test_case, int from, int to)
{
    size_t count = test_case->count;
    if (test_case->is_uneven && !dd_coll_is_array(test_case->coll)) {
        count = count * ((1 + coll_size_key(test_case->coll, from, to)) % 4) / 3;
    }
    return count * dd_dtype_size(test_case->dtype);
}

static dd_block
new_block(size_t nbytes)
{
    return (dd_block){.data = malloc(nbytes > 0 ? nbytes : 1), .nbytes = nbytes};
}

static void
init_rank(coll_world *world, int number)
{
    const coll_case *test_case = &world->label;
    coll_rank *rank = &world->ranks[number];
    rank->ninputs = dd_coll_ninputs(test_case->coll, number == test_case->root, test_case->nranks);
    rank->noutputs = dd_coll_noutputs(test_case->coll, number == test_case->root, test_case->nranks);
    rank->inputs = calloc((size_t)rank->ninputs + 1, sizeof *rank->inputs);
    rank->outputs = calloc((size_t)rank->noutputs + 1, sizeof *rank->outputs);
    rank->originals = calloc((size_t)rank->ninputs + 1, sizeof *rank->originals);
    for (int i = 0; i < rank->noutputs; i++) {
        rank->outputs[i] = new_block(nbytes_of(test_case, rank->noutputs > 1 ? i : number, number));
    }
    int shared;
    int output;
    bool is_shared = coll_find_in_place(test_case->coll, test_case->root, number, &shared, &output) &&
                     test_case->is_in_place;
    for (int i = 0; i < rank->ninputs; i++) {
        size_t nbytes = nbytes_of(test_case, number, rank->ninputs > 1 ? i : number);
        rank->inputs[i] = is_shared && i == shared ? rank->outputs[output] : new_block(nbytes);
        rank->originals[i] = malloc(nbytes + 1);
    }
    rank->args = (dd_coll_args){
        .coll = test_case->coll,
        .root = test_case->root,
        .reduction = {.dtype = test_case->dtype,
                      .op = test_case->op,
                      .factor = 2.0,
                      .divisor = test_case->nranks},
        .inputs = rank->inputs,
        .outputs = rank->outputs,
    };
}

void
coll_world_init(coll_world *world, const coll_case *test_case)
{
    world->label = *test_case;
    world->ranks = calloc((size_t)test_case->nranks, sizeof *world->ranks);
    for (int r = 0; r < test_case->nranks; r++) {
        init_rank(world, r);
    }
    coll_world_fill(world);
}

static bool
is_input(const coll_rank *rank, const void *data)
{
    for (int i = 0; i < rank->ninputs; i++) {
        if (rank->inputs[i].data == data) {
            return true;
        }
    }
    return false;
}

void
coll_world_fini(coll_world *world)
{
    for (int r = 0; r < world->label.nranks; r++) {
        coll_rank *rank = &world->ranks[r];
        for (int i = 0; i < rank->noutputs; i++) {
            if (!is_input(rank, rank->outputs[i].data)) {
                free(rank->outputs[i].data);
            }
        }
        for (int i = 0; i < rank->ninputs; i++) {
            free(rank->inputs[i].data);
            free(rank->originals[i]);
        }
        free(rank->inputs);
        free(rank->outputs);
        free(rank->originals);
    }
    free(world->ranks);
}

/* ---- numbers */

static void
put(dd_dtype dtype, void *at, size_t i, int value)
{
    dd_reduction reduction = {.dtype = dtype, .op = DD_REDOP_SUM, .divisor = 1};
    char *element = (char *)at + i * dd_dtype_size(dtype);
    float real = (float)value;
    double wide = value;
    int64_t integer = value;
    const void *source = &real;
    if (dd_reduce_accumulator(dtype) != dtype) {
        dd_reduce(&reduction, DD_STAGE_LAST, element, &source, 1, 1);
    } else if (dtype == DD_DTYPE_FLOAT32) {
        memcpy(element, &real, sizeof real);
    } else if (dtype == DD_DTYPE_FLOAT64) {
        memcpy(element, &wide, sizeof wide);
    } else {
        /* all supported machines are little-endian */
        memcpy(element, &integer, dd_dtype_size(dtype));
    }
}

/* Fill the block with numbers that repeat after PERIOD elements. */
static void
fill_block(dd_dtype dtype, dd_block block, int seed)
{
    enum { PERIOD = 5 };
    size_t size = dd_dtype_size(dtype);
    size_t done = 0;
    for (; done < PERIOD && done < block.nbytes / size; done++) {
        put(dtype, block.data, done, (int)((done * 3 + (size_t)seed) % PERIOD) + 1);
    }
    for (size_t filled = done * size; filled < block.nbytes; filled *= 2) {
        size_t rest = block.nbytes - filled;
        memcpy((char *)block.data + filled, block.data, rest < filled ? rest : filled);
    }
}

void
coll_world_fill_rank(coll_world *world, int number)
{
    coll_rank *rank = &world->ranks[number];
    for (int i = 0; i < rank->noutputs; i++) {
        memset(rank->outputs[i].data, COLL_UNTOUCHED, rank->outputs[i].nbytes);
    }
    for (int i = 0; i < rank->ninputs; i++) {
        fill_block(world->label.dtype, rank->inputs[i], number * 7 + i);
        memcpy(rank->originals[i], rank->inputs[i].data, rank->inputs[i].nbytes);
    }
}

void
coll_world_fill(coll_world *world)
{
    for (int r = 0; r < world->label.nranks; r++) {
        coll_world_fill_rank(world, r);
    }
}

/* ---- expected results */

static const void *
expected(const coll_world *world, int rank, int output, void *folded)
{
    const coll_case *test_case = &world->label;
    coll_sources from = coll_sources_of(test_case->coll, test_case->root, test_case->nranks, rank, output);
    const void *sources[MAX_RANKS];
    size_t count = world->ranks[rank].outputs[output].nbytes / dd_dtype_size(test_case->dtype);
    for (int k = 0; k < from.count; k++) {
        sources[k] = world->ranks[from.first + k].originals[from.block];
    }
    if (from.count == 0) {
        bool is_input = world->ranks[rank].outputs[output].data == world->ranks[rank].inputs[0].data;
        return is_input ? world->ranks[rank].originals[0]
                        : memset(folded, COLL_UNTOUCHED, world->ranks[rank].outputs[output].nbytes);
    }
    if (!dd_coll_is_folding(test_case->coll)) {
        return sources[0];
    }
    if (count > 0) {
        dd_reduce(&world->ranks[rank].args.reduction, DD_STAGE_WHOLE, folded, sources, (size_t)from.count,
                  count);
    }
    return folded;
}

static bool
is_output(const coll_rank *rank, const void *data)
{
    for (int i = 0; i < rank->noutputs; i++) {
        if (rank->outputs[i].data == data) {
            return true;
        }
    }
    return false;
}

static bool
are_inputs_untouched(const coll_rank *rank)
{
    for (int i = 0; i < rank->ninputs; i++) {
        if (!is_output(rank, rank->inputs[i].data) &&
            memcmp(rank->inputs[i].data, rank->originals[i], rank->inputs[i].nbytes) != 0) {
            return false;
        }
    }
    return true;
}

bool
coll_world_check_rank(const coll_world *world, int number)
{
    const coll_rank *rank = &world->ranks[number];
    bool is_good = CHECK(are_inputs_untouched(rank));
    for (int i = 0; i < rank->noutputs && is_good; i++) {
        size_t nbytes = rank->outputs[i].nbytes;
        void *folded = malloc(nbytes + 1);
        is_good = CHECK(memcmp(rank->outputs[i].data, expected(world, number, i, folded), nbytes) == 0);
        free(folded);
    }
    if (!is_good) {
        char text[160];
        fprintf(stderr, "    rank %d: %s\n", number, coll_case_print(&world->label, text));
    }
    return is_good;
}

dd_signature
coll_world_signature(const coll_case *test_case)
{
    return (dd_signature){
        .coll = (uint8_t)test_case->coll,
        .dtype = (uint8_t)test_case->dtype,
        .redop = dd_coll_is_folding(test_case->coll) ? (uint8_t)test_case->op : 0,
        .root = (uint32_t)test_case->root,
        .count = test_case->is_uneven && !dd_coll_is_array(test_case->coll) ? 0 : test_case->count,
    };
}
