/* Programs of XLA's foreign function interface, on groups of threads. The tests act as XLA. */
#include "check.h"
#include "group_team.h"
#include "xla/ffi.h"

#include <stdlib.h>
#include <string.h>

#define COUNT 1000
#define NUMBER(rank) (4711 + (uint64_t)(rank))

/* An error that XLA would receive. */
struct dd_ffi_error {
    int code;
    char text[1024];
};

static dd_ffi_error *
create_error(dd_ffi_error_args *args)
{
    dd_ffi_error *made = calloc(1, sizeof *made);
    made->code = args->code;
    strncpy(made->text, args->message, sizeof made->text - 1);
    return made;
}

static const dd_ffi_api api = {.struct_size = sizeof api, .create_error = create_error};

/* Make a call as XLA does, with a token and then at most one array on each side. */
static dd_ffi_error *
call(uint64_t number, void *source, void *result)
{
    dd_ffi_buffer token = {.struct_size = sizeof token};
    dd_ffi_buffer in = {.struct_size = sizeof in, .data = source};
    dd_ffi_buffer out = {.struct_size = sizeof out, .data = result};
    void *ins[] = {&token, &in};
    void *outs[] = {&token, &out};
    dd_ffi_scalar scalar = {.value = &number};
    void *attributes[] = {&scalar};
    int types[] = {DD_FFI_ATTRIBUTE_SCALAR};
    dd_ffi_frame frame = {
        .struct_size = sizeof frame,
        .api = &api,
        .stage = DD_FFI_STAGE_EXECUTE,
        .args = {.size = source != NULL ? 2 : 1, .values = ins},
        .results = {.size = result != NULL ? 2 : 1, .values = outs},
        .attributes = {.size = 1, .types = types, .values = attributes},
    };
    return dd_ffi_handle(&frame);
}

static void
check_error(dd_ffi_error *error, int code, const char *text)
{
    if (CHECK(error != NULL)) {
        CHECK_INT(error->code, code);
        CHECK_CONTAINS(error->text, text);
        free(error);
    }
}

static float *
make_floats(float first)
{
    float *made = malloc(COUNT * sizeof *made);
    for (int i = 0; i < COUNT; i++) {
        made[i] = first + (float)i;
    }
    return made;
}

/* Memory that stands for the arrays when a test describes its calls. */
typedef struct stand_in {
    char memory[2 * COUNT * sizeof(float)]; /* a source and a result */
    char scratch[COUNT * sizeof(float)];
    dd_block blocks[2];
} stand_in;

static dd_ffi_program *
create(const team_rank *self, stand_in *stands, dd_ffi_fill fill)
{
    size_t nbytes = sizeof stands->scratch;
    stands->blocks[0] = (dd_block){stands->memory, nbytes};
    stands->blocks[1] = (dd_block){stands->memory + nbytes, nbytes};
    dd_ffi_memory memory = {.blocks = stands->blocks, .nsources = 1, .nresults = 1, .fill = fill};
    dd_ffi_program *made = dd_ffi_program_create(NUMBER(self->rank), self->group, &memory);
    CHECK(made != NULL);
    return made;
}

static dd_coll_args
sum_of(const dd_block *in, const dd_block *out)
{
    return (dd_coll_args){.coll = DD_COLL_ALL_REDUCE,
                          .reduction = {.dtype = DD_DTYPE_FLOAT32, .op = DD_REDOP_SUM, .factor = 1.0},
                          .inputs = in,
                          .outputs = out};
}

static void
check_sum(const team_rank *self, const float *result)
{
    size_t nwrong = 0;
    for (int i = 0; i < COUNT; i++) {
        nwrong += result[i] != (float)(self->size * (self->size - 1) / 2 + self->size * i);
    }
    CHECK_INT(nwrong, 0);
}

/* Reduce in place in a result that starts as a copy of the source, with several arrays. */
static void
sum(team_rank *self)
{
    stand_in stands;
    dd_ffi_program *program = create(self, &stands, DD_FFI_FILL_COPIES);
    dd_coll_args args = sum_of(&stands.blocks[1], &stands.blocks[1]);
    CHECK_OK(dd_ffi_program_add(program, &(dd_ffi_call){.args = &args, .timeout_ns = -1}, check_err()));
    dd_ffi_program_publish(program);
    for (int turn = 0; turn < 3; turn++) {
        float *source = make_floats((float)self->rank);
        float *result = calloc(COUNT, sizeof *result);
        CHECK(call(NUMBER(self->rank), source, result) == NULL);
        check_sum(self, result);
        CHECK(source[1] == (float)self->rank + 1); /* the source is not written */
        free(source);
        free(result);
    }
    dd_ffi_program_destroy(program);
    check_error(call(NUMBER(self->rank), NULL, NULL), 9, "its function no longer exists");
}

/* The source is reversed, by way of scratch memory. */
static void
sum_reversed(team_rank *self)
{
    stand_in stands;
    dd_ffi_program *program = create(self, &stands, DD_FFI_FILL_NOTHING);
    dd_block flat = {stands.scratch, sizeof stands.scratch};
    dd_coll_args args = sum_of(&flat, &flat);
    dd_ffi_part parts[2] = {
        {.view = {.data = stands.memory + sizeof stands.scratch - sizeof(float),
                  .dtype = DD_DTYPE_FLOAT32,
                  .ndim = 1,
                  .shape = {COUNT},
                  .strides = {-(int64_t)sizeof(float)}},
         .flat = stands.scratch,
         .is_read = true},
        {.view = {.data = stands.blocks[1].data,
                  .dtype = DD_DTYPE_FLOAT32,
                  .ndim = 1,
                  .shape = {COUNT},
                  .strides = {4}},
         .flat = stands.scratch,
         .is_written = true},
    };
    CHECK(dd_view_finish(&parts[0].view) && dd_view_finish(&parts[1].view));
    dd_ffi_call label = {.args = &args, .timeout_ns = -1, .scratch = flat, .parts = parts, .nparts = 2};
    CHECK_OK(dd_ffi_program_add(program, &label, check_err()));
    dd_ffi_program_publish(program);
    float *source = make_floats((float)self->rank);
    float *result = calloc(COUNT, sizeof *result);
    for (int turn = 0; turn < 2; turn++) {
        CHECK(call(NUMBER(self->rank), source, result) == NULL);
        for (int i = 0; i < COUNT / 2; i++) {
            float last = result[i];
            result[i] = result[COUNT - 1 - i];
            result[COUNT - 1 - i] = last;
        }
        check_sum(self, result);
    }
    free(source);
    free(result);
    dd_ffi_program_destroy(program);
}

static void
pass_on(team_rank *self)
{
    stand_in stands;
    dd_ffi_program *program = create(self, &stands, DD_FFI_FILL_ZEROS);
    dd_p2p send = {
        .is_send = true, .rank = (self->rank + 1) % self->size, .tag = 3, .block = stands.blocks[0]};
    dd_p2p recv = {.rank = (self->rank + self->size - 1) % self->size, .tag = 3, .block = stands.blocks[1]};
    recv.block.nbytes /= 2;
    send.block.nbytes /= 2;
    CHECK_OK(dd_ffi_program_add(program, &(dd_ffi_call){.message = &send, .timeout_ns = -1}, check_err()));
    CHECK_OK(dd_ffi_program_add(program, &(dd_ffi_call){.message = &recv, .timeout_ns = -1}, check_err()));
    dd_ffi_program_publish(program);
    float *source = make_floats((float)self->rank);
    float *result = make_floats(1);
    CHECK(call(NUMBER(self->rank), source, result) == NULL);
    CHECK(result[1] == (float)recv.rank + 1);
    CHECK(result[COUNT - 1] == 0);
    free(source);
    free(result);
    dd_ffi_program_destroy(program);
}

TEST(compiled_xla_programs_run_collectives_and_messages)
{
    for (int size = 1; size <= 3; size++) {
        team_options options = {.size = size};
        team_run(&options, sum, NULL);
        team_run(&options, sum_reversed, NULL);
        team_run(&options, pass_on, NULL);
    }
}

static void
check_refusals(team_rank *self)
{
    stand_in stands;
    dd_ffi_program *program = create(self, &stands, DD_FFI_FILL_NOTHING);
    char elsewhere[8];
    dd_block lost = {elsewhere, sizeof elsewhere};
    dd_coll_args args = sum_of(&lost, &stands.blocks[1]);
    dd_ffi_call label = {.args = &args, .timeout_ns = -1};
    dd_error err;
    CHECK_STATUS(dd_ffi_program_add(program, &label, &err), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(err.message, "a block of 8 bytes is not in any of the program's arrays");
    args = sum_of(&stands.blocks[0], &stands.blocks[1]);
    args.reduction.op = DD_REDOP_BAND;
    CHECK_STATUS(dd_ffi_program_add(program, &label, check_err()), DD_INVALID_ARGUMENT);
    args.reduction.op = DD_REDOP_SUM;
    CHECK_OK(dd_ffi_program_add(program, &label, check_err()));
    check_error(call(NUMBER(self->rank), stands.memory, stands.memory), 9, "belongs to another process");
    dd_ffi_program_publish(program);
    check_error(call(NUMBER(self->rank), NULL, NULL), 3,
                "XLA passed 1 arrays and 1 results, expected 2 and 2");
    dd_group_abort(self->group, "enough");
    check_error(call(NUMBER(self->rank), stands.memory, stands.memory + sizeof stands.scratch), 10, "enough");
    dd_ffi_program_destroy(program);
}

TEST(failed_calls_of_compiled_xla_programs_report_a_reason)
{
    team_options options = {.size = 1};
    team_run(&options, check_refusals, NULL);
}

TEST(the_xla_handler_reports_its_version_and_accepts_every_stage)
{
    dd_ffi_metadata metadata = {.struct_size = sizeof metadata};
    dd_ffi_metadata_extension extension = {
        .base = {.struct_size = sizeof extension, .type = DD_FFI_EXTENSION_METADATA}, .metadata = &metadata};
    dd_ffi_frame frame = {.struct_size = sizeof frame, .extensions = &extension.base};
    CHECK(dd_ffi_handle(&frame) == NULL);
    CHECK_INT(metadata.version.major, DD_FFI_MAJOR);
    CHECK_INT(metadata.version.minor, DD_FFI_MINOR);
    frame = (dd_ffi_frame){.struct_size = sizeof frame, .stage = 1};
    CHECK(dd_ffi_handle(&frame) == NULL); /* there is nothing to prepare */
    frame = (dd_ffi_frame){.struct_size = sizeof frame, .stage = DD_FFI_STAGE_EXECUTE, .api = &api};
    check_error(dd_ffi_handle(&frame), 13, "XLA passed no number of the program to run");
}

static void
follow(team_rank *self)
{
    stand_in stands;
    dd_ffi_program *program = create(self, &stands, DD_FFI_FILL_NOTHING);
    dd_coll_args args = sum_of(&stands.blocks[0], &stands.blocks[1]);
    CHECK_OK(dd_ffi_program_add(program, &(dd_ffi_call){.args = &args, .timeout_ns = -1}, check_err()));
    dd_ffi_program_publish(program);
    dd_group_options options = team_group_options("next");
    dd_group *next;
    int ranks[] = {0, 1};
    dd_wait wait = dd_wait_after(CHECK_TIMEOUT_S * DD_NS_PER_S);
    REQUIRE(CHECK_OK(dd_group_split(self->group, ranks, 2, 0, &options, &next, &wait, check_err())));
    dd_ffi_program_set_group(program, next);
    dd_group_release(next); /* the program holds a reference */
    uint64_t before = dd_group_sequence(self->group);
    float *source = make_floats((float)self->rank);
    float *result = calloc(COUNT, sizeof *result);
    CHECK(call(NUMBER(self->rank), source, result) == NULL);
    check_sum(self, result);
    CHECK_INT(dd_group_sequence(self->group), before);
    CHECK_INT(dd_group_sequence(next), 1);
    free(source);
    free(result);
    dd_ffi_program_destroy(program);
}

TEST(a_compiled_xla_program_can_be_moved_to_another_group)
{
    team_options options = {.size = 2};
    team_run(&options, follow, NULL);
}
