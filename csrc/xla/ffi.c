#include "xla/ffi.h"

#include "core/list.h"
#include "core/lock.h"
#include "core/mem.h"
#include "kernels/copy.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

/* The place of a block: in one of the program's arrays, or in scratch memory. */
typedef struct location {
    size_t array; /* index in the program's arrays; SCRATCH for the step's scratch memory */
    size_t offset;
    size_t nbytes;
} location;

#define SCRATCH SIZE_MAX
#define INLINE_BLOCKS 64

typedef struct part {
    dd_ffi_part part; /* view and direction of a copy; addresses are unused */
    location view;
    location flat;
} part;

typedef struct step {
    bool is_message;
    dd_coll_args args; /* arguments of a collective; its blocks are in `blocks` */
    dd_p2p message;    /* a message; its block is in `blocks` */
    int64_t timeout_ns;
    dd_coll_form *form; /* owned; checked form of the collective; NULL for a message */
    uint32_t stack;
    location *blocks; /* owned; input blocks, then output blocks */
    size_t ninputs;
    size_t nblocks;
    part *parts; /* owned; tensors to copy before or after the call */
    size_t nparts;
    size_t scratch_nbytes;
    _Atomic(uint8_t *) scratch; /* owned; NULL while a run uses it, and before the first run ends */
    struct step *next;
} step;

struct dd_ffi_program {
    dd_list link;    /* guarded by programs_lock; in `programs` once published */
    uint64_t number; /* const; the attribute by which XLA names the program */
    size_t nsources; /* const once published, like all fields up to `last` */
    size_t nresults;
    dd_block *arrays;   /* owned; placeholders: nsources sources, then nresults results */
    dd_ffi_fill *fills; /* owned; nresults elements */
    step *first;        /* owned; head of the list of steps */
    step *last;
    dd_group *group; /* owned; guarded by programs_lock */
    size_t nusers;   /* guarded by programs_lock; 1 for the owner, 1 for each run */
};

static dd_lock programs_lock = DD_LOCK_INITIALIZER(DD_LOCK_XLA_PROGRAMS);
static dd_list programs = {&programs, &programs};

/* ---- creation */

dd_ffi_program *
dd_ffi_program_create(uint64_t number, dd_group *group, const dd_ffi_memory *memory)
{
    size_t narrays = memory->nsources + memory->nresults;
    dd_ffi_program *program = dd_mem_zalloc(sizeof *program);
    dd_block *arrays = dd_mem_alloc_array(narrays, sizeof *arrays);
    dd_ffi_fill *fills = dd_mem_alloc_array(memory->nresults, sizeof *fills);
    if (program == NULL || arrays == NULL || fills == NULL) {
        dd_mem_free(program);
        dd_mem_free(arrays);
        dd_mem_free(fills);
        return NULL;
    }
    if (narrays > 0) {
        memcpy(arrays, memory->blocks, narrays * sizeof *arrays);
    }
    for (size_t i = 0; i < memory->nresults; i++) {
        fills[i] = memory->fill;
    }
    *program = (dd_ffi_program){.number = number,
                                .nsources = memory->nsources,
                                .nresults = memory->nresults,
                                .arrays = arrays,
                                .fills = fills,
                                .group = dd_group_acquire(group),
                                .nusers = 1};
    dd_list_init(&program->link);
    return program;
}

static bool
is_in_block(const void *data, size_t nbytes, const dd_block *memory)
{
    uintptr_t at = (uintptr_t)data;
    uintptr_t first = (uintptr_t)memory->data;
    return at >= first && nbytes <= memory->nbytes && at - first <= memory->nbytes - nbytes;
}

/* Find the array, or the scratch memory, that contains the `nbytes` bytes at `data`. */
static dd_status
find_block_location(const dd_ffi_program *program, const dd_block *scratch, const void *data, size_t nbytes,
                    location *found, dd_error *err)
{
    *found = (location){.array = SCRATCH, .nbytes = nbytes};
    if (nbytes == 0) {
        return DD_OK;
    }
    if (is_in_block(data, nbytes, scratch)) {
        found->offset = (size_t)((uintptr_t)data - (uintptr_t)scratch->data);
        return DD_OK;
    }
    for (size_t i = 0; i < program->nsources + program->nresults; i++) {
        if (is_in_block(data, nbytes, &program->arrays[i])) {
            found->array = i;
            found->offset = (size_t)((uintptr_t)data - (uintptr_t)program->arrays[i].data);
            return DD_OK;
        }
    }
    return dd_error_set(err, DD_INVALID_ARGUMENT,
                        "a block of %zu bytes is not in any of the program's arrays", nbytes);
}

/* If a step reduces a result that begins as a source's copy, let it read the source instead. */
static void
read_from_source(dd_ffi_program *program, const step *made)
{
    const location *input = &made->blocks[0];
    bool is_one =
        made->ninputs == 1 && dd_coll_is_folding(made->args.coll) && dd_coll_is_array(made->args.coll);
    if (!is_one || input->array == SCRATCH || input->array < program->nsources ||
        input->nbytes != program->arrays[input->array].nbytes) {
        return;
    }
    size_t result = input->array - program->nsources;
    if (program->fills[result] == DD_FFI_FILL_COPIES) {
        program->fills[result] = DD_FFI_FILL_NOTHING;
        made->blocks[0].array = result;
    }
}

static dd_status
locate_blocks(const dd_ffi_program *program, step *made, const dd_ffi_call *call, dd_error *err)
{
    dd_status status = DD_OK;
    for (size_t i = 0; i < made->nblocks && status == DD_OK; i++) {
        const dd_block *block = made->is_message    ? &call->message->block
                                : i < made->ninputs ? &call->args->inputs[i]
                                                    : &call->args->outputs[i - made->ninputs];
        status =
            find_block_location(program, &call->scratch, block->data, block->nbytes, &made->blocks[i], err);
    }
    return status;
}

static dd_status
locate_parts(const dd_ffi_program *program, step *made, const dd_ffi_call *call, dd_error *err)
{
    dd_status status = DD_OK;
    for (size_t i = 0; i < call->nparts && status == DD_OK; i++) {
        part *to = &made->parts[i];
        to->part = call->parts[i];
        /* Look up only the first byte of a view: all of its bytes are in the same array. */
        status = find_block_location(program, &call->scratch, to->part.view.data,
                                     to->part.view.count > 0 ? 1 : 0, &to->view, err);
        if (status == DD_OK) {
            status = find_block_location(program, &call->scratch, to->part.flat,
                                         dd_view_nbytes(&to->part.view), &to->flat, err);
        }
    }
    return status;
}

static void
destroy_step(step *self)
{
    dd_coll_form_destroy(self->form);
    dd_mem_free(self->blocks);
    dd_mem_free(self->parts);
    dd_mem_free(atomic_load(&self->scratch));
    dd_mem_free(self);
}

/* Fill in a step, which must be zeroed, from a call. */
static dd_status
make_step(dd_ffi_program *program, step *made, const dd_ffi_call *call, dd_error *err)
{
    made->is_message = call->args == NULL;
    made->timeout_ns = call->timeout_ns;
    made->stack = call->stack;
    made->scratch_nbytes = call->scratch.nbytes;
    made->nparts = call->nparts;
    made->nblocks = 1;
    if (made->is_message) {
        made->message = *call->message;
    } else {
        made->args = *call->args;
        int size = dd_group_size(program->group);
        bool is_root = made->args.root == dd_group_rank(program->group);
        made->ninputs = (size_t)dd_coll_ninputs(made->args.coll, is_root, size);
        made->nblocks = made->ninputs + (size_t)dd_coll_noutputs(made->args.coll, is_root, size);
    }
    made->blocks = dd_mem_alloc_array(made->nblocks, sizeof *made->blocks);
    made->parts = dd_mem_alloc_array(made->nparts, sizeof *made->parts);
    if (made->blocks == NULL || made->parts == NULL) {
        return dd_error_no_memory(err,
                                  made->nblocks * sizeof *made->blocks + made->nparts * sizeof *made->parts);
    }
    dd_status status = locate_blocks(program, made, call, err);
    if (status == DD_OK) {
        status = locate_parts(program, made, call, err);
    }
    if (status == DD_OK && !made->is_message) {
        status = dd_coll_form_create(program->group, call->args, call->record, &made->form, err);
    }
    return status;
}

dd_status
dd_ffi_program_add(dd_ffi_program *program, const dd_ffi_call *call, dd_error *err)
{
    step *made = dd_mem_zalloc(sizeof *made);
    if (made == NULL) {
        return dd_error_no_memory(err, sizeof *made);
    }
    dd_status status = make_step(program, made, call, err);
    if (status != DD_OK) {
        destroy_step(made);
        return status;
    }
    if (!made->is_message) {
        read_from_source(program, made);
    }
    if (program->first == NULL) {
        program->first = made;
    } else {
        program->last->next = made;
    }
    program->last = made;
    return DD_OK;
}

/* ---- lifetime */

void
dd_ffi_program_publish(dd_ffi_program *program)
{
    dd_lock_take(&programs_lock);
    dd_list_push_back(&programs, &program->link);
    dd_lock_release(&programs_lock);
}

void
dd_ffi_program_set_group(dd_ffi_program *program, dd_group *group)
{
    dd_group_acquire(group);
    dd_lock_take(&programs_lock);
    dd_group *before = program->group;
    program->group = group;
    dd_lock_release(&programs_lock);
    dd_group_release(before);
}

static void
program_release(dd_ffi_program *program)
{
    dd_lock_take(&programs_lock);
    bool is_last = --program->nusers == 0;
    dd_lock_release(&programs_lock);
    if (!is_last) {
        return;
    }
    for (step *at = program->first; at != NULL;) {
        step *next = at->next;
        destroy_step(at);
        at = next;
    }
    dd_group_release(program->group);
    dd_mem_free(program->arrays);
    dd_mem_free(program->fills);
    dd_mem_free(program);
}

void
dd_ffi_program_destroy(dd_ffi_program *program)
{
    dd_lock_take(&programs_lock);
    dd_list_remove(&program->link);
    dd_lock_release(&programs_lock);
    program_release(program);
}

/* Find a program by its number; acquire the program and its group. NULL if none has the number. */
static dd_ffi_program *
program_take(uint64_t number, dd_group **group)
{
    dd_ffi_program *found = NULL;
    dd_lock_take(&programs_lock);
    for (dd_list *at = programs.next; at != &programs && found == NULL; at = at->next) {
        dd_ffi_program *program = DD_CONTAINER_OF(at, dd_ffi_program, link);
        found = program->number == number ? program : NULL;
    }
    if (found != NULL) {
        found->nusers++;
        *group = dd_group_acquire(found->group);
    }
    dd_lock_release(&programs_lock);
    return found;
}

/* ---- running */

typedef struct run {
    const dd_ffi_program *program;
    dd_group *group;
    const dd_ffi_frame *frame;
    uint8_t *scratch; /* scratch memory of the current step; NULL if it needs none */
} run;

/* Return the address of one of the program's arrays in this run. XLA's first buffer on each side is
 * a token, so array i is buffer i + 1. */
static void *
array_of(const run *self, size_t array)
{
    bool is_result = array >= self->program->nsources;
    const dd_ffi_buffers *side = is_result ? &self->frame->results : &self->frame->args;
    size_t index = is_result ? array - self->program->nsources : array;
    const dd_ffi_buffer *buffer = side->values[1 + index];
    return buffer->data;
}

static void *
location_address(const run *self, const location *at)
{
    uint8_t *memory = at->nbytes == 0        ? NULL
                      : at->array == SCRATCH ? self->scratch
                                             : array_of(self, at->array);
    return memory != NULL ? memory + at->offset : NULL;
}

static void
move_parts(const run *self, const step *at, bool is_before)
{
    for (size_t i = 0; i < at->nparts; i++) {
        const part *moved = &at->parts[i];
        if (moved->part.view.count == 0 || !(is_before ? moved->part.is_read : moved->part.is_written)) {
            continue;
        }
        dd_view view = moved->part.view;
        view.data = location_address(self, &moved->view);
        void *flat = location_address(self, &moved->flat);
        if (is_before) {
            dd_view_pack(&view, flat);
        } else {
            dd_view_unpack(&view, flat);
        }
    }
}

/* Wait without a deadline: the message has a timeout, and XLA's threads cannot be interrupted. */
static dd_status
run_message(const run *self, const step *at, dd_error *err)
{
    dd_p2p message = at->message;
    message.block =
        (dd_block){.data = location_address(self, &at->blocks[0]), .nbytes = at->blocks[0].nbytes};
    dd_call_options options = {.timeout_ns = at->timeout_ns};
    dd_wait wait = dd_wait_after(DD_NEVER_NS);
    dd_p2p_result result;
    return dd_group_p2p_and_wait(self->group, &message, &options, &result, &wait, err);
}

static dd_status
run_step_collective(const run *self, const step *at, dd_error *err)
{
    dd_block inline_blocks[INLINE_BLOCKS];
    dd_block *blocks =
        at->nblocks <= INLINE_BLOCKS ? inline_blocks : dd_mem_alloc_array(at->nblocks, sizeof *blocks);
    if (blocks == NULL) {
        return dd_error_no_memory(err, at->nblocks * sizeof *blocks);
    }
    for (size_t i = 0; i < at->nblocks; i++) {
        blocks[i] =
            (dd_block){.data = location_address(self, &at->blocks[i]), .nbytes = at->blocks[i].nbytes};
    }
    dd_coll_args args = at->args;
    args.inputs = blocks;
    args.outputs = blocks + at->ninputs;
    dd_call_options options = {.timeout_ns = at->timeout_ns, .form = at->form, .stack = at->stack};
    dd_wait wait = dd_wait_after(DD_NEVER_NS);
    dd_status status = dd_group_collective_and_wait(self->group, &args, &options, &wait, err);
    if (blocks != inline_blocks) {
        dd_mem_free(blocks);
    }
    return status;
}

static dd_status
run_step(run *self, step *at, dd_error *err)
{
    self->scratch = NULL;
    if (at->scratch_nbytes > 0) {
        self->scratch = atomic_exchange(&at->scratch, NULL);
        self->scratch = self->scratch != NULL ? self->scratch : dd_mem_alloc(at->scratch_nbytes);
        if (self->scratch == NULL) {
            return dd_error_no_memory(err, at->scratch_nbytes);
        }
    }
    move_parts(self, at, true);
    dd_status status = at->is_message ? run_message(self, at, err) : run_step_collective(self, at, err);
    if (status == DD_OK) {
        move_parts(self, at, false);
    }
    if (self->scratch != NULL) {
        /* Keep this run's scratch memory for a later run; free what a concurrent run has kept. */
        dd_mem_free(atomic_exchange(&at->scratch, self->scratch));
    }
    return status;
}

static void
begin_result(const run *self, size_t i)
{
    size_t nbytes = self->program->arrays[self->program->nsources + i].nbytes;
    void *result = array_of(self, self->program->nsources + i);
    dd_mem_expect_writes(result, nbytes);
    if (nbytes > 0 && self->program->fills[i] == DD_FFI_FILL_COPIES) {
        dd_copy(result, array_of(self, i), nbytes);
    } else if (nbytes > 0 && self->program->fills[i] == DD_FFI_FILL_ZEROS) {
        memset(result, 0, nbytes);
    }
}

static dd_status
run_program(run *self, dd_error *err)
{
    const dd_ffi_program *program = self->program;
    if ((size_t)self->frame->args.size != 1 + program->nsources ||
        (size_t)self->frame->results.size != 1 + program->nresults) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "XLA passed %" PRId64 " arrays and %" PRId64 " results, expected %zu and %zu",
                            self->frame->args.size, self->frame->results.size, 1 + program->nsources,
                            1 + program->nresults);
    }
    for (size_t i = 0; i < program->nresults; i++) {
        begin_result(self, i);
    }
    dd_status status = DD_OK;
    for (step *at = program->first; at != NULL && status == DD_OK; at = at->next) {
        status = run_step(self, at, err);
    }
    return status;
}

/* ---- XLA's interface */

/* If XLA only queries the interface's version, fill it in and return true. */
static bool
fill_version(const dd_ffi_frame *frame)
{
    dd_ffi_extension *extension = frame->extensions;
    if (extension == NULL || extension->type != DD_FFI_EXTENSION_METADATA) {
        return false;
    }
    dd_ffi_metadata *metadata = ((dd_ffi_metadata_extension *)(void *)extension)->metadata;
    metadata->version.major = DD_FFI_MAJOR;
    metadata->version.minor = DD_FFI_MINOR;
    return true;
}

/* Return absl's status code for a dd_status; 13 (internal error) if no other code fits. */
static int
code_of(dd_status status)
{
    static const int codes[DD_STATUS_COUNT] = {
        [DD_INVALID_ARGUMENT] = 3, [DD_NOT_SUPPORTED] = 3, [DD_TIMED_OUT] = 4, [DD_OP_TIMED_OUT] = 4,
        [DD_OUT_OF_MEMORY] = 8,    [DD_MISMATCH] = 9,      [DD_CLOSED] = 9,    [DD_FORKED] = 9,
        [DD_ABORTED] = 10,         [DD_PEER_LOST] = 14,
    };
    return codes[status] != 0 ? codes[status] : 13;
}

static dd_ffi_error *
report_failure(const dd_ffi_frame *frame, const dd_error *error)
{
    dd_ffi_error_args args = {
        .struct_size = sizeof args, .message = error->message, .code = code_of(error->code)};
    return frame->api->create_error(&args);
}

dd_ffi_error *
dd_ffi_handle(dd_ffi_frame *frame)
{
    if (fill_version(frame) || frame->stage != DD_FFI_STAGE_EXECUTE) {
        return NULL;
    }
    dd_error err;
    if (frame->attributes.size != 1 || frame->attributes.types[0] != DD_FFI_ATTRIBUTE_SCALAR) {
        (void)dd_error_set(&err, DD_INTERNAL, "XLA passed no number of the program to run");
        return report_failure(frame, &err);
    }
    const dd_ffi_scalar *number = frame->attributes.values[0];
    uint64_t wanted;
    memcpy(&wanted, number->value, sizeof wanted);
    run self = {.frame = frame};
    dd_ffi_program *program = program_take(wanted, &self.group);
    if (program == NULL) {
        (void)dd_error_set(&err, DD_CLOSED,
                           "this compiled call belongs to another process, or its function no longer exists");
        return report_failure(frame, &err);
    }
    self.program = program;
    dd_status status = run_program(&self, &err);
    dd_group_release(self.group);
    program_release(program);
    return status == DD_OK ? NULL : report_failure(frame, &err);
}
