/* The form of collectives that libraries need: the calls to a library, and the results. All ranks
 * are simulated. */
#include "check.h"
#include "coll_reference.h"
#include "collective/conversion.h"
#include "core/mem.h"
#include "faults/faults.h"
#include "plain_library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RANKS PLAIN_LIBRARY_MAX_RANKS

/* ---- a case, and the ranks' memory for it */

typedef enum carry_shape {
    CARRY_EVEN,
    CARRY_UNEVEN, /* some blocks are empty */
    CARRY_EMPTY,
    CARRY_SHAPE_COUNT,
} carry_shape;

typedef struct carry_case {
    dd_coll coll;
    int nranks;
    int root;
    dd_dtype dtype;
    dd_redop op;
    size_t count; /* elements of the array, or of the largest block */
    carry_shape shape;
    bool is_apart; /* there are gaps between blocks */
    bool is_in_place;
} carry_case;

typedef struct carry_rank {
    dd_conversion *conversion;
    dd_coll_args args;
    dd_block inputs[MAX_RANKS];
    dd_block outputs[MAX_RANKS];
    int ninputs;
    int noutputs;
    char *memory[2];            /* of inputs and of outputs */
    char *originals[MAX_RANKS]; /* of inputs */
    const dd_carried_call *call;
} carry_rank;

typedef struct carry_world {
    carry_case label;
    carry_rank ranks[MAX_RANKS];
} carry_world;

static void
print_case(const carry_case *test_case, int rank)
{
    static const char *const shapes[] = {"even", "uneven", "empty"};
    fprintf(stderr, "    rank %d of %d: %s %s %s, root %d, count %zu, %s, %s%s\n", rank, test_case->nranks,
            dd_coll_name(test_case->coll), dd_dtype_name(test_case->dtype), dd_redop_name(test_case->op),
            test_case->root, test_case->count, shapes[test_case->shape],
            test_case->is_apart ? "apart" : "in a row", test_case->is_in_place ? ", in place" : "");
}

/* Return the number of elements that `from` sends to `to`. If every block goes to all ranks or
 * comes from all ranks, one of the two arguments is unused. */
static size_t
count_of(const carry_case *test_case, int from, int to)
{
    if (dd_coll_is_array(test_case->coll) || test_case->shape != CARRY_UNEVEN) {
        return test_case->shape == CARRY_EMPTY ? 0 : test_case->count;
    }
    return test_case->count * ((1 + coll_size_key(test_case->coll, from, to)) % 4) / 3;
}

/* Place blocks one after the other, or with a gap after each. */
static char *
lay_out(const carry_case *test_case, dd_block *blocks, int nblocks)
{
    size_t gap = test_case->is_apart ? dd_dtype_size(test_case->dtype) : 0;
    size_t nbytes = 0;
    for (int i = 0; i < nblocks; i++) {
        nbytes += blocks[i].nbytes + gap;
    }
    char *memory = malloc(nbytes + 1);
    size_t offset = 0;
    for (int i = 0; i < nblocks; i++) {
        blocks[i].data = memory + offset;
        offset += blocks[i].nbytes + gap;
    }
    return memory;
}

static bool
has_alias(const carry_case *test_case, int rank, int *input, int *output)
{
    return coll_find_in_place(test_case->coll, test_case->root, rank, input, output) &&
           test_case->is_in_place;
}

static void
share_memory(const carry_case *test_case, int number, carry_rank *rank)
{
    int input;
    int output;
    if (!has_alias(test_case, number, &input, &output)) {
        return;
    }
    if (rank->ninputs > 1) {
        rank->outputs[output].data = rank->inputs[input].data;
    } else {
        rank->inputs[input].data = rank->outputs[output].data;
    }
}

/* Store a small integer, so that sums and products are exact in most types; for bool, bytes that
 * are true in several ways. */
static void
put(dd_dtype dtype, char *at, int value)
{
    float real[2] = {(float)value, (float)(3 - value)};
    double wide[2] = {value, 3 - value};
    int64_t integer = value;
    const void *source = real;
    dd_reduction rounding = {.dtype = dtype, .op = DD_REDOP_SUM, .divisor = 1};
    switch (dd_dtype_kind_of(dtype)) {
    case DD_KIND_FLOAT:
        if (dd_reduce_accumulator(dtype) != dtype) {
            dd_reduce(&rounding, DD_STAGE_LAST, at, &source, 1, 1);
            return;
        }
        memcpy(at, dtype == DD_DTYPE_FLOAT64 ? (const void *)wide : real, dd_dtype_size(dtype));
        return;
    case DD_KIND_COMPLEX:
        memcpy(at, dtype == DD_DTYPE_COMPLEX128 ? (const void *)wide : real, dd_dtype_size(dtype));
        return;
    case DD_KIND_BOOL:
    case DD_KIND_INT:
    case DD_KIND_UINT:
        break;
    }
    memcpy(at, &integer, dd_dtype_size(dtype)); /* all supported machines are little-endian */
}

static void
fill_rank(const carry_case *test_case, int number, carry_rank *rank)
{
    size_t size = dd_dtype_size(test_case->dtype);
    for (int i = 0; i < rank->noutputs; i++) {
        if (rank->outputs[i].data != NULL) {
            memset(rank->outputs[i].data, 0xa5, rank->outputs[i].nbytes);
        }
    }
    for (int i = 0; i < rank->ninputs; i++) {
        dd_block block = rank->inputs[i];
        for (size_t k = 0; k < block.nbytes / size; k++) {
            put(test_case->dtype, (char *)block.data + k * size,
                (int)((k * 3 + (size_t)(number * 7 + i)) % 5));
        }
        rank->originals[i] = malloc(block.nbytes + 1);
        if (block.data != NULL) {
            memcpy(rank->originals[i], block.data, block.nbytes);
        }
    }
}

static void
init_rank(carry_world *world, int number)
{
    const carry_case *test_case = &world->label;
    carry_rank *rank = &world->ranks[number];
    bool is_root = number == test_case->root;
    size_t size = dd_dtype_size(test_case->dtype);
    rank->ninputs = dd_coll_ninputs(test_case->coll, is_root, test_case->nranks);
    rank->noutputs = dd_coll_noutputs(test_case->coll, is_root, test_case->nranks);
    for (int i = 0; i < rank->ninputs; i++) {
        rank->inputs[i].nbytes = size * count_of(test_case, number, rank->ninputs > 1 ? i : number);
    }
    for (int i = 0; i < rank->noutputs; i++) {
        rank->outputs[i].nbytes = size * count_of(test_case, rank->noutputs > 1 ? i : number, number);
    }
    rank->memory[0] = lay_out(test_case, rank->inputs, rank->ninputs);
    rank->memory[1] = lay_out(test_case, rank->outputs, rank->noutputs);
    share_memory(test_case, number, rank);
    fill_rank(test_case, number, rank);
    rank->args = (dd_coll_args){
        .coll = test_case->coll,
        .root = test_case->root,
        .reduction = {.dtype = test_case->dtype,
                      .op = test_case->op,
                      .factor = 2.5,
                      .divisor = test_case->nranks},
        .inputs = rank->inputs,
        .outputs = rank->outputs,
    };
}

static void
init_world(carry_world *world, const carry_case *test_case)
{
    *world = (carry_world){.label = *test_case};
    for (int r = 0; r < test_case->nranks; r++) {
        init_rank(world, r);
        CHECK_OK(dd_conversion_create(r, test_case->nranks, &world->ranks[r].conversion, check_err()));
    }
}

static void
fini_world(carry_world *world)
{
    for (int r = 0; r < world->label.nranks; r++) {
        carry_rank *rank = &world->ranks[r];
        dd_conversion_destroy(rank->conversion);
        free(rank->memory[0]);
        free(rank->memory[1]);
        for (int i = 0; i < rank->ninputs; i++) {
            free(rank->originals[i]);
        }
    }
}

/* ---- expected calls to the library */

static dd_dtype
plain_dtype(const carry_case *test_case)
{
    if (dd_coll_is_folding(test_case->coll)) {
        return test_case->dtype == DD_DTYPE_BOOL ? DD_DTYPE_UINT8 : dd_reduce_accumulator(test_case->dtype);
    }
    switch (dd_dtype_size(test_case->dtype)) {
    case 1:
        return DD_DTYPE_UINT8;
    case 2:
        return DD_DTYPE_UINT16;
    case 4:
        return DD_DTYPE_UINT32;
    case 8:
        return DD_DTYPE_UINT64;
    default:
        return DD_DTYPE_COMPLEX128;
    }
}

static dd_redop
plain_op(const carry_case *test_case)
{
    bool is_scaled = test_case->op == DD_REDOP_AVG || test_case->op == DD_REDOP_PREMUL_SUM;
    if (test_case->dtype != DD_DTYPE_BOOL) {
        return is_scaled ? DD_REDOP_SUM : test_case->op;
    }
    if (test_case->op == DD_REDOP_BXOR) {
        return DD_REDOP_BXOR;
    }
    bool is_or =
        test_case->op == DD_REDOP_SUM || test_case->op == DD_REDOP_MAX || test_case->op == DD_REDOP_BOR;
    return is_or ? DD_REDOP_MAX : DD_REDOP_MIN;
}

static bool
check_side(const size_t *counts, const size_t *offsets, const dd_block *blocks, int nblocks, size_t size,
           bool has_many)
{
    bool is_good = CHECK_INT(counts != NULL, has_many) && CHECK_INT(offsets != NULL, has_many);
    size_t offset = 0;
    for (int i = 0; i < nblocks && has_many && is_good; i++) {
        is_good = CHECK_INT(counts[i], blocks[i].nbytes / size) && CHECK_INT(offsets[i], offset);
        offset += counts[i];
    }
    return is_good && (!has_many || CHECK_INT(offsets[nblocks], offset));
}

static bool
has_many_inputs(const carry_case *test_case, const carry_rank *rank)
{
    return rank->ninputs > 0 && dd_coll_own_input(test_case->coll, 1) == 1;
}

static bool
has_many_outputs(const carry_case *test_case, const carry_rank *rank)
{
    return rank->noutputs > 0 && dd_coll_own_output(test_case->coll, 1) == 1;
}

/* Return the elements of this rank's only block; 0 if it has several. */
static size_t
own_count(const carry_case *test_case, const carry_rank *rank)
{
    size_t size = dd_dtype_size(test_case->dtype);
    if (rank->ninputs == 1 && !has_many_inputs(test_case, rank)) {
        return rank->inputs[0].nbytes / size;
    }
    bool is_one = rank->noutputs == 1 && !has_many_outputs(test_case, rank);
    return is_one ? rank->outputs[0].nbytes / size : 0;
}

static bool
has_equal_blocks(const carry_case *test_case)
{
    size_t first = count_of(test_case, 0, 0);
    for (int r = 1; r < test_case->nranks; r++) {
        if (count_of(test_case, r, r) != first) {
            return false;
        }
    }
    return true;
}

/* Return true if the library must receive the caller's memory itself. */
static bool
is_passed_directly(const carry_case *test_case, bool is_input, const dd_block *blocks, int nblocks)
{
    int nfull = 0;
    for (int i = 0; i < nblocks; i++) {
        nfull += blocks[i].nbytes > 0;
    }
    bool is_folding = dd_coll_is_folding(test_case->coll);
    bool is_wider = is_folding && dd_reduce_accumulator(test_case->dtype) != test_case->dtype;
    bool is_changed =
        is_folding && is_input && (test_case->dtype == DD_DTYPE_BOOL || test_case->op == DD_REDOP_PREMUL_SUM);
    return nblocks > 0 && !is_wider && !is_changed && (nfull <= 1 || !test_case->is_apart);
}

/* Return the address of the first block that is not empty, minus its offset. */
static const char *
base_of(const dd_block *blocks, int nblocks)
{
    size_t offset = 0;
    for (int i = 0; i < nblocks; i++) {
        if (blocks[i].nbytes > 0) {
            return (const char *)blocks[i].data - offset;
        }
        offset += blocks[i].nbytes;
    }
    return NULL;
}

static bool
is_own_empty(const carry_case *test_case, int number, const carry_rank *rank)
{
    return rank->ninputs == 0 || rank->noutputs == 0 ||
           rank->inputs[dd_coll_own_input(test_case->coll, number)].nbytes == 0;
}

static bool
check_memory(const carry_case *test_case, int number, const carry_rank *rank)
{
    const dd_carried_call *call = rank->call;
    const char *in = base_of(rank->inputs, rank->ninputs);
    const char *out = base_of(rank->outputs, rank->noutputs);
    bool is_in_direct = is_passed_directly(test_case, true, rank->inputs, rank->ninputs);
    bool is_out_direct = is_passed_directly(test_case, false, rank->outputs, rank->noutputs);
    bool is_root_of_broadcast = test_case->coll == DD_COLL_BROADCAST && number == test_case->root;
    int input;
    int output;
    bool is_shared = has_alias(test_case, number, &input, &output) && !is_own_empty(test_case, number, rank);
    bool is_good = CHECK_INT(call->input != NULL, rank->ninputs > 0) &&
                   CHECK_INT(call->output != NULL, rank->noutputs > 0);
    if (test_case->coll == DD_COLL_REDUCE_SCATTER && is_shared && is_in_direct) {
        is_out_direct = false; /* in place has another meaning in each library */
    }
    if (in != NULL && !is_root_of_broadcast) {
        is_good = CHECK_INT(call->input == in, is_in_direct) && is_good;
    }
    if (out != NULL) {
        is_good = CHECK_INT(call->output == out, is_out_direct) && is_good;
    }
    if (is_root_of_broadcast && out != NULL) {
        is_good = CHECK(call->input == call->output && call->is_in_place) && is_good;
    } else if (is_own_empty(test_case, number, rank)) {
        return is_good;
    } else {
        bool is_kept =
            is_shared && is_in_direct && is_out_direct && test_case->coll != DD_COLL_REDUCE_SCATTER;
        is_good = CHECK_INT(call->is_in_place, is_kept) && is_good;
    }
    return is_good;
}

static bool
check_call(const carry_case *test_case, int number, const carry_rank *rank)
{
    const dd_carried_call *call = rank->call;
    size_t size = dd_dtype_size(test_case->dtype);
    bool has_many_in = has_many_inputs(test_case, rank);
    bool has_many_out = has_many_outputs(test_case, rank);
    bool is_good = CHECK_INT(call->coll, test_case->coll) && CHECK_INT(call->root, test_case->root) &&
                   CHECK_INT(call->dtype, plain_dtype(test_case)) &&
                   CHECK_INT(call->count, own_count(test_case, rank));
    if (dd_coll_is_folding(test_case->coll)) {
        is_good = CHECK_INT(call->op, plain_op(test_case)) && is_good;
    }
    if (test_case->coll == DD_COLL_ALL_GATHER || test_case->coll == DD_COLL_REDUCE_SCATTER) {
        is_good = CHECK_INT(call->is_even, has_equal_blocks(test_case)) && is_good;
    }
    is_good = check_side(call->in_counts, call->in_offsets, rank->inputs, rank->ninputs, size, has_many_in) &&
              is_good;
    is_good =
        check_side(call->out_counts, call->out_offsets, rank->outputs, rank->noutputs, size, has_many_out) &&
        is_good;
    return check_memory(test_case, number, rank) && is_good;
}

/* ---- expected results */

static const char *
expected(const carry_world *world, int number, int output, char *folded)
{
    const carry_case *test_case = &world->label;
    coll_sources from = coll_sources_of(test_case->coll, test_case->root, test_case->nranks, number, output);
    const void *sources[MAX_RANKS];
    size_t count = world->ranks[number].outputs[output].nbytes / dd_dtype_size(test_case->dtype);
    for (int k = 0; k < from.count; k++) {
        sources[k] = world->ranks[from.first + k].originals[from.block];
    }
    if (!dd_coll_is_folding(test_case->coll)) {
        return sources[0];
    }
    dd_reduce(&world->ranks[number].args.reduction, DD_STAGE_WHOLE, folded, sources, (size_t)from.count,
              count);
    return folded;
}

static bool
check_results(const carry_world *world, int number)
{
    const carry_rank *rank = &world->ranks[number];
    int shared = -1;
    int output;
    bool is_good = true;
    if (!has_alias(&world->label, number, &shared, &output)) {
        shared = -1;
    }
    for (int i = 0; i < rank->ninputs; i++) {
        bool is_same = memcmp(rank->inputs[i].data, rank->originals[i], rank->inputs[i].nbytes) == 0;
        is_good = CHECK(is_same || i == shared) && is_good;
    }
    for (int i = 0; i < rank->noutputs; i++) {
        size_t nbytes = rank->outputs[i].nbytes;
        char *folded = malloc(nbytes + 1);
        is_good = (nbytes == 0 ||
                   CHECK(memcmp(rank->outputs[i].data, expected(world, number, i, folded), nbytes) == 0)) &&
                  is_good;
        free(folded);
    }
    return is_good;
}

static dd_status
offset(dd_conversion *conversion, carry_rank *rank)
{
    rank->call = dd_conversion_describe(conversion, &rank->args);
    return dd_conversion_set_memory(conversion, check_err());
}

static bool
begin(carry_world *world, int number)
{
    carry_rank *rank = &world->ranks[number];
    return CHECK_OK(offset(rank->conversion, rank)) && check_call(&world->label, number, rank);
}

static void
carry_all(carry_world *world)
{
    const dd_carried_call *calls[MAX_RANKS];
    int nranks = world->label.nranks;
    for (int r = 0; r < nranks; r++) {
        if (!begin(world, r)) {
            print_case(&world->label, r);
            return;
        }
        calls[r] = world->ranks[r].call;
    }
    plain_library_do(calls, nranks);
    for (int r = 0; r < nranks; r++) {
        dd_conversion_end(world->ranks[r].conversion);
        if (!check_results(world, r)) {
            print_case(&world->label, r);
        }
    }
}

static void
run_case(const carry_case *test_case)
{
    carry_world world;
    init_world(&world, test_case);
    carry_all(&world);
    fini_world(&world);
}

/* ---- every collective in every form */

static void
run_forms(carry_case test_case)
{
    for (int form = 0; form < 4 * CARRY_SHAPE_COUNT && check_failures() == 0; form++) {
        test_case.shape = (carry_shape)(form / 4);
        test_case.is_apart = form % 2 == 1;
        test_case.is_in_place = form / 2 % 2 == 1;
        run_case(&test_case);
    }
}

static void
run_roots(carry_case test_case)
{
    int nroots = dd_coll_has_root(test_case.coll) ? test_case.nranks : 1;
    for (test_case.root = 0; test_case.root < nroots; test_case.root++) {
        run_forms(test_case);
    }
}

TEST(collectives_that_move_data_are_correct_over_a_third_party_library)
{
    for (int coll = 0; coll < DD_COLL_COUNT; coll++) {
        for (int dtype = 0; dtype < DD_DTYPE_COUNT && !dd_coll_is_folding((dd_coll)coll); dtype++) {
            for (int nranks = 1; nranks <= 4; nranks++) {
                run_roots((carry_case){
                    .coll = (dd_coll)coll, .nranks = nranks, .dtype = (dd_dtype)dtype, .count = 9});
            }
        }
    }
}

static void
run_folds(dd_coll coll)
{
    for (int dtype = 0; dtype < DD_DTYPE_COUNT; dtype++) {
        for (int op = 0; op < DD_REDOP_COUNT; op++) {
            bool is_average_of_integers = dd_reduce_partial_size((dd_dtype)dtype, (dd_redop)op) !=
                                          dd_dtype_size(dd_reduce_accumulator((dd_dtype)dtype));
            if (is_average_of_integers || !dd_coll_has_reduction(coll, (dd_dtype)dtype, (dd_redop)op)) {
                continue;
            }
            for (int nranks = 2; nranks <= 3; nranks++) {
                run_roots((carry_case){.coll = coll,
                                       .nranks = nranks,
                                       .dtype = (dd_dtype)dtype,
                                       .op = (dd_redop)op,
                                       .count = 9});
            }
        }
    }
}

TEST(reductions_are_correct_over_a_third_party_library)
{
    for (int coll = 0; coll < DD_COLL_COUNT; coll++) {
        if (dd_coll_traits_of[coll].is_fold && dd_coll_traits_of[coll].is_common) {
            run_folds((dd_coll)coll);
        }
    }
}

TEST(collectives_of_many_ranks_are_correct_over_a_third_party_library)
{
    for (int coll = 0; coll < DD_COLL_COUNT; coll++) {
        if (!dd_coll_traits_of[coll].is_common) {
            continue;
        }
        run_roots((carry_case){.coll = (dd_coll)coll,
                               .nranks = MAX_RANKS,
                               .dtype = DD_DTYPE_BFLOAT16,
                               .op = DD_REDOP_AVG,
                               .count = 1000});
    }
}

/* ---- NaN, which libraries may lose */

TEST(only_min_and_max_of_floats_need_a_check_for_nan)
{
    dd_carried_call call = {.coll = DD_COLL_ALL_REDUCE, .dtype = DD_DTYPE_FLOAT32, .op = DD_REDOP_MIN};
    CHECK(dd_carried_needs_nan(&call));
    call.op = DD_REDOP_MAX;
    call.dtype = DD_DTYPE_FLOAT64;
    CHECK(dd_carried_needs_nan(&call));
    call.op = DD_REDOP_SUM;
    CHECK(!dd_carried_needs_nan(&call));
    call.op = DD_REDOP_MAX;
    call.dtype = DD_DTYPE_INT32;
    CHECK(!dd_carried_needs_nan(&call));
    call.coll = DD_COLL_ALL_GATHER;
    call.dtype = DD_DTYPE_FLOAT32;
    CHECK(!dd_carried_needs_nan(&call));
}

/* ---- memory */

/* An average of bfloat16, which needs buffers of the library for inputs and outputs. */
static carry_case
packed_case(size_t count)
{
    return (carry_case){.coll = DD_COLL_ALL_REDUCE,
                        .nranks = 2,
                        .dtype = DD_DTYPE_BFLOAT16,
                        .op = DD_REDOP_AVG,
                        .count = count};
}

TEST(creating_a_conversion_fails_when_allocations_fail)
{
    dd_status status = DD_OUT_OF_MEMORY;
    int nfailures = 0;
    while (status == DD_OUT_OF_MEMORY && nfailures < 5) {
        dd_conversion *conversion = NULL;
        (void)dd_mem_fail_after(nfailures);
        status = dd_conversion_create(0, 3, &conversion, NULL);
        (void)dd_mem_fail_after(-1);
        CHECK_INT(conversion != NULL, status == DD_OK);
        dd_conversion_destroy(conversion);
        nfailures += status != DD_OK;
    }
    CHECK_INT(status, DD_OK);
    CHECK_INT(nfailures, 2);
    dd_conversion_destroy(NULL);
}

TEST(a_conversion_succeeds_after_attempts_whose_allocations_failed)
{
    carry_case test_case = packed_case(100);
    carry_world world;
    init_world(&world, &test_case);
    carry_rank *rank = &world.ranks[0];
    (void)dd_mem_fail_after(0);
    CHECK_STATUS(offset(rank->conversion, rank), DD_OUT_OF_MEMORY);
    (void)dd_mem_fail_after(1); /* the input has its buffer now, and keeps it */
    CHECK_STATUS(offset(rank->conversion, rank), DD_OUT_OF_MEMORY);
    (void)dd_mem_fail_after(-1);
    carry_all(&world);
    fini_world(&world);
}

/* Count the allocations of a call with this many elements, on rank 0. */
static long
count_allocations(dd_conversion *conversion, size_t count)
{
    carry_case test_case = packed_case(count);
    carry_world world;
    init_world(&world, &test_case);
    carry_rank *rank = &world.ranks[0];
    (void)dd_mem_fail_after(-1);
    CHECK_OK(offset(conversion, rank));
    CHECK((uintptr_t)rank->call->input % 64 == 0 && (uintptr_t)rank->call->output % 64 == 0);
    memset((char *)(uintptr_t)rank->call->input, 0, rank->call->count * sizeof(float));
    memset(rank->call->output, 0, rank->call->count * sizeof(float));
    dd_conversion_end(conversion);
    long nallocs = dd_mem_fail_after(-1);
    fini_world(&world);
    return nallocs;
}

TEST(a_conversion_reuses_its_buffers_for_the_next_call)
{
    dd_conversion *conversion = NULL;
    REQUIRE_OK(dd_conversion_create(0, 2, &conversion, check_err()));
    CHECK_INT(count_allocations(conversion, 1000), 2);
    CHECK_INT(count_allocations(conversion, 1000), 0);
    CHECK_INT(count_allocations(conversion, 10), 0);
    CHECK_INT(count_allocations(conversion, 1001), 2);
    CHECK_INT(count_allocations(conversion, 200000), 2); /* 800 kB each */
    CHECK_INT(count_allocations(conversion, 200000), 0);
    dd_conversion_destroy(conversion);
}

TEST(a_conversion_frees_very_large_buffers)
{
    dd_conversion *conversion = NULL;
    REQUIRE_OK(dd_conversion_create(0, 2, &conversion, check_err()));
    CHECK_INT(count_allocations(conversion, 1000000), 2);
    CHECK_INT(count_allocations(conversion, 10), 2); /* the buffers were not kept */
    CHECK_INT(count_allocations(conversion, 10), 0);
    dd_conversion_destroy(conversion);
}

/* Memory that a blocked library still uses. The leak sanitizer finds it here. */
static const void *volatile held_by_a_library[2];

TEST(buffers_that_a_library_may_still_use_are_neither_freed_nor_reused)
{
    carry_case test_case = packed_case(500);
    carry_world world;
    init_world(&world, &test_case);
    carry_rank *rank = &world.ranks[0];
    REQUIRE_OK(offset(rank->conversion, rank));
    dd_carried_call left = *rank->call;
    held_by_a_library[0] = left.input;
    held_by_a_library[1] = left.output;
    dd_conversion_leak_buffers(rank->conversion);
    carry_all(&world); /* in new buffers */
    CHECK(rank->call->input != left.input && rank->call->output != left.output);
    fini_world(&world);
    float first;
    /* the address sanitizer reports an error if the memory was freed */
    memcpy(&first, left.input, sizeof first);
    memcpy(left.output, &first, sizeof first);
}
