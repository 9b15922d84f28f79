#include "group_case.h"

#include "check.h"
#include "coll_reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers */

static uint64_t
mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

coll_case
case_sample(uint64_t number, dd_coll coll, size_t nbytes, int nranks)
{
    uint64_t random = mix(number * 977 + (uint64_t)coll * 31 + nbytes + (uint64_t)nranks * 7919 + 1);
    coll_case test = {
        .coll = coll,
        .dtype = (dd_dtype)(random % (unsigned)DD_DTYPE_COUNT),
        .op = (dd_redop)(random / 64 % (unsigned)DD_REDOP_COUNT),
        .shape = (case_shape)(random / 4096 % SHAPE_COUNT),
        .is_in_place = random / 65536 % 3 == 0,
        .is_asynchronous = random / (1 << 20) % 2 == 0,
        .has_small_values = random / (1 << 21) % 2 == 0,
        .region_ranks = random / (1 << 22) % 4 == 0 ? (unsigned)(random / (1 << 25)) & 0xffff : 0,
        .seed = random,
    };
    while (dd_coll_is_folding(coll) && !dd_coll_has_reduction(coll, test.dtype, test.op)) {
        test.op = (dd_redop)(((int)test.op + 1) % DD_REDOP_COUNT);
    }
    if (dd_coll_has_root(coll)) {
        test.root = (int)(random / (UINT64_C(1) << 45) % (unsigned)nranks);
    }
    test.count = nbytes / dd_dtype_size(test.dtype);
    if (test.count == 0 && nbytes > 0) {
        test.count = 1;
    }
    return test;
}

void
case_print(const coll_case *test, char out[200])
{
    snprintf(out, 200, "%s %s %s root %d count %zu%s%s%s%s regions %x seed %llx", dd_coll_name(test->coll),
             dd_dtype_name(test->dtype), dd_redop_name(test->op), test->root, test->count,
             test->shape == SHAPE_UNEVEN ? " uneven" : "", test->is_in_place ? " in place" : "",
             test->is_asynchronous ? " async" : "", test->has_small_values ? " small" : "",
             test->region_ranks, (unsigned long long)test->seed);
}

/* Return the number of elements that `from` sends to `to`. */
static size_t
block_count(const coll_case *test, int from, int to)
{
    if (test->shape == SHAPE_EVEN || dd_coll_is_array(test->coll)) {
        return test->count;
    }
    return test->count * (mix(test->seed + coll_size_key(test->coll, from, to)) % 5) / 3;
}

static size_t
block_nbytes(const coll_case *test, int from, int to)
{
    return block_count(test, from, to) * dd_dtype_size(test->dtype);
}

static void
fill_small(const coll_case *test, uint64_t seed, void *data, size_t count)
{
    bool is_complex = test->dtype == DD_DTYPE_COMPLEX64 || test->dtype == DD_DTYPE_COMPLEX128;
    bool is_double = test->dtype == DD_DTYPE_FLOAT64 || test->dtype == DD_DTYPE_COMPLEX128;
    size_t nvalues = count * (is_complex ? 2 : 1);
    for (size_t i = 0; i < nvalues; i++) {
        int value = (int)(mix(seed + i) % 1000) - 500;
        if (is_double) {
            ((double *)data)[i] = value;
        } else {
            ((float *)data)[i] = (float)value;
        }
    }
}

/* Return true if there are values whose reduction is exact. */
static bool
is_small(const coll_case *test)
{
    bool is_wide = test->dtype == DD_DTYPE_FLOAT32 || test->dtype == DD_DTYPE_FLOAT64 ||
                   test->dtype == DD_DTYPE_COMPLEX64 || test->dtype == DD_DTYPE_COMPLEX128;
    return is_wide && test->has_small_values;
}

static void
fill(const coll_case *test, int from, int to, void *data)
{
    uint64_t seed = mix(test->seed + (uint64_t)from * 1000 + (uint64_t)to);
    if (is_small(test)) {
        fill_small(test, seed, data, block_count(test, from, to));
        return;
    }
    size_t nbytes = block_nbytes(test, from, to);
    for (size_t i = 0; i < nbytes; i += 8) {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        memcpy((char *)data + i, &seed, nbytes - i < 8 ? nbytes - i : 8);
    }
}

static dd_reduction
reduction_of(const coll_case *test, int nranks)
{
    return (dd_reduction){.dtype = test->dtype, .op = test->op, .factor = 3, .divisor = nranks};
}

/* ---- expected results */

static coll_sources
sources_of(const coll_case *test, const team_rank *self, int output)
{
    return coll_sources_of(test->coll, test->root, self->size, self->rank, output);
}

static void
expect(const coll_case *test, const team_rank *self, int output, void *out)
{
    coll_sources from = sources_of(test, self, output);
    if (!dd_coll_is_folding(test->coll)) {
        fill(test, from.first, from.block, out);
        return;
    }
    const void *sources[64];
    size_t count = block_count(test, from.first, from.block);
    if (from.count == 0 && test->is_in_place) {
        fill(test, self->rank, from.block, out);
        return;
    }
    if (from.count == 0) {
        memset(out, COLL_UNTOUCHED, count * dd_dtype_size(test->dtype));
        return;
    }
    for (int k = 0; k < from.count; k++) {
        void *source = malloc(count * dd_dtype_size(test->dtype) + 1);
        fill(test, from.first + k, from.block, source);
        sources[k] = source;
    }
    dd_reduction reduction = reduction_of(test, self->size);
    dd_reduce(&reduction, DD_STAGE_WHOLE, out, sources, (size_t)from.count, count);
    for (int k = 0; k < from.count; k++) {
        free((void *)(uintptr_t)sources[k]);
    }
}

/* Return true if the result does not depend on the order of folding. */
static bool
is_exact(const coll_case *test)
{
    dd_dtype_kind kind = dd_dtype_kind_of(test->dtype);
    bool is_float = kind == DD_KIND_FLOAT || kind == DD_KIND_COMPLEX;
    bool is_order_free = test->op == DD_REDOP_MIN || test->op == DD_REDOP_MAX;
    return !is_float || is_order_free || !dd_coll_is_folding(test->coll) ||
           (is_small(test) && test->op != DD_REDOP_PRODUCT);
}

/* ---- one rank's part */

typedef struct case_part {
    dd_block inputs[64];
    dd_block outputs[64];
    int ninputs;
    int noutputs;
    dd_region *regions[2];
} case_part;

/* Allocate memory for blocks of these sizes: one allocation each, or one region for all. */
static void
make_blocks(team_rank *self, const coll_case *test, dd_block *blocks, int count, dd_region **region)
{
    bool is_in_region = (test->region_ranks >> self->rank & 1) != 0;
    char *at = NULL;
    if (is_in_region) {
        size_t total = 0;
        for (int i = 0; i < count; i++) {
            total += blocks[i].nbytes;
        }
        size_t start = test->seed % 3 * 16; /* 0: the blocks fill the region exactly */
        if (CHECK_OK(dd_group_alloc(self->group, start + total, region, check_err()))) {
            at = (char *)dd_region_data(*region) + start;
        }
    }
    for (int i = 0; i < count; i++) {
        blocks[i].data = at != NULL ? at : malloc(blocks[i].nbytes + (blocks[i].nbytes == 0 ? 1 : 0));
        memset(blocks[i].data, COLL_UNTOUCHED, blocks[i].nbytes);
        at += at != NULL ? blocks[i].nbytes : 0;
    }
}

static void
drop_blocks(dd_block *blocks, int count, dd_region *region)
{
    for (int i = 0; i < count && region == NULL; i++) {
        free(blocks[i].data);
    }
    dd_region_release(region);
}

static bool
find_shared(const team_rank *self, const coll_case *test, int *input, int *output)
{
    return coll_find_in_place(test->coll, test->root, self->rank, input, output);
}

static void
make_part(team_rank *self, const coll_case *test, case_part *part)
{
    bool is_root = self->rank == test->root;
    memset(part, 0, sizeof *part);
    part->ninputs = dd_coll_ninputs(test->coll, is_root, self->size);
    part->noutputs = dd_coll_noutputs(test->coll, is_root, self->size);
    for (int i = 0; i < part->ninputs; i++) {
        part->inputs[i].nbytes = block_nbytes(test, self->rank, i);
    }
    for (int i = 0; i < part->noutputs; i++) {
        coll_sources from = sources_of(test, self, i);
        part->outputs[i].nbytes = block_nbytes(test, from.first, from.block);
    }
    make_blocks(self, test, part->inputs, part->ninputs, &part->regions[0]);
    make_blocks(self, test, part->outputs, part->noutputs, &part->regions[1]);
    for (int i = 0; i < part->ninputs; i++) {
        fill(test, self->rank, i, part->inputs[i].data);
    }
}

static dd_status
call(team_rank *self, const coll_case *test, const dd_block *inputs, const dd_block *outputs)
{
    dd_coll_args args = {.coll = test->coll,
                         .root = test->root,
                         .reduction = reduction_of(test, 0),
                         .inputs = inputs,
                         .outputs = outputs};
    if ((test->prepared_ranks >> self->rank & 1) != 0) {
        return team_call_prepared(self, &args);
    }
    if (!test->is_asynchronous) {
        return team_call(self, &args);
    }
    dd_work *work = NULL;
    dd_status status = dd_group_collective(self->group, &args, &team_no_options, &work, check_err());
    return status == DD_OK ? team_wait(self->group, work) : status;
}

static bool
check_same(const coll_case *test, const team_rank *self, const char *label, int block, const void *is,
           const void *should, size_t nbytes)
{
    if (memcmp(is, should, nbytes) == 0) {
        return true;
    }
    size_t at = 0;
    while (((const char *)is)[at] == ((const char *)should)[at]) {
        at++;
    }
    char name[200];
    char text[320];
    case_print(test, name);
    snprintf(text, sizeof text, "rank %d of %d: %s: %s %d differs at byte %zu of %zu", self->rank, self->size,
             name, label, block, at, nbytes);
    return check_that(false, __FILE__, __LINE__, text);
}

static void
check_part(team_rank *self, const coll_case *test, const case_part *part, const dd_block *outputs,
           bool is_linear)
{
    int shared_input = -1;
    int shared_output = -1;
    bool is_shared = test->is_in_place && find_shared(self, test, &shared_input, &shared_output);
    for (int i = 0; i < part->noutputs && (is_linear || is_exact(test)); i++) {
        void *should = malloc(outputs[i].nbytes + 1);
        expect(test, self, i, should);
        check_same(test, self, "output", i, outputs[i].data, should, outputs[i].nbytes);
        free(should);
    }
    for (int i = 0; i < part->ninputs; i++) {
        void *should = malloc(part->inputs[i].nbytes + 1);
        if (!is_shared || i != shared_input) {
            fill(test, self->rank, i, should);
            check_same(test, self, "input", i, part->inputs[i].data, should, part->inputs[i].nbytes);
        }
        free(should);
    }
}

void
case_run(team_rank *self, const coll_case *test, bool is_linear, uint64_t *hash)
{
    case_part part;
    dd_block outputs[64];
    int input = 0;
    int output = 0;
    make_part(self, test, &part);
    memcpy(outputs, part.outputs, sizeof outputs);
    if (test->is_in_place && find_shared(self, test, &input, &output)) {
        outputs[output].data = part.inputs[input].data;
    }
    if (CHECK_OK(call(self, test, part.inputs, outputs))) {
        check_part(self, test, &part, outputs, is_linear);
    } else {
        char name[200];
        case_print(test, name);
        fprintf(stderr, "    rank %d of %d: %s\n", self->rank, self->size, name);
    }
    *hash = 0;
    for (int i = 0; i < part.noutputs; i++) {
        for (size_t at = 0; at < outputs[i].nbytes; at++) {
            *hash = (*hash ^ ((const uint8_t *)outputs[i].data)[at]) * UINT64_C(0x100000001b3);
        }
    }
    drop_blocks(part.inputs, part.ninputs, part.regions[0]);
    drop_blocks(part.outputs, part.noutputs, part.regions[1]);
}
