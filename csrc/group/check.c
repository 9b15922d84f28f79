/* Checks of calls before anything is sent. */
#include "group/internal.h"

#include "core/mem.h"
#include "core/thread.h"

#include <string.h>

/* Largest size in bytes of a quick call. Through the arena, such a call takes about a microsecond
 * and wakes no driver: its start usually publishes all that other ranks need, and then this rank
 * polls for their data. If other ranks need more (uneven blocks, regions), this rank publishes it
 * when it waits, or its background thread does. */
#define QUICK_NBYTES ((size_t)4096)

dd_status
dd_group_check_usable_locked(dd_group *group, const char *label, dd_error *err)
{
    if (group->is_closing) {
        return dd_error_set(err, DD_CLOSED, "%s: " GROUP_FORMAT " is closed", label, GROUP_ARGS(group));
    }
    if (group->cause.code != DD_OK) {
        dd_engine_finish_notices_locked(group->engine);
        dd_error_copy(err, &group->cause);
        dd_error_prepend(err, "the group has failed before");
        group_note_call(group, label, 0, 0, err);
        return group->cause.code;
    }
    if (group->is_suspended || (group->is_suspending && !pthread_equal(group->suspender, dd_thread_self()))) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "%s: " GROUP_FORMAT " is suspended: call resume() on all its ranks first", label,
                            GROUP_ARGS(group));
    }
    return DD_OK;
}

dd_status
group_check_parent_locked(dd_group *parent, dd_error *err)
{
    return parent->is_revoked && !parent->is_closing ? DD_OK
                                                     : dd_group_check_usable_locked(parent, "split", err);
}

dd_status
group_check_usable(dd_group *group, const char *label, dd_error *err)
{
    dd_status status = dd_engine_check_fork(group->engine, err);
    if (status == DD_OK) {
        dd_engine_lock(group->engine);
        status = dd_group_check_usable_locked(group, label, err);
        dd_engine_unlock(group->engine);
    }
    return status;
}

/* Check that blocks are whole elements, and that this rank's own input and output sizes match. */
static dd_status
check_blocks(const dd_group *group, const dd_coll_args *args, dd_error *err)
{
    const char *label = dd_coll_name(args->coll);
    size_t size = dd_dtype_size(args->reduction.dtype);
    int ninputs = dd_coll_ninputs(args->coll, args->root == group->rank, group->size);
    int noutputs = dd_coll_noutputs(args->coll, args->root == group->rank, group->size);
    for (int i = 0; i < ninputs + noutputs; i++) {
        size_t nbytes = i < ninputs ? args->inputs[i].nbytes : args->outputs[i - ninputs].nbytes;
        if (nbytes % size != 0) {
            return dd_error_set(err, DD_INVALID_ARGUMENT,
                                "%s: invalid block size: got %zu bytes, expected a multiple of %zu (%s)",
                                label, nbytes, size, dd_dtype_name(args->reduction.dtype));
        }
    }
    if (ninputs == 0 || noutputs == 0) {
        return DD_OK;
    }
    size_t in = args->inputs[dd_coll_own_input(args->coll, group->rank)].nbytes;
    size_t out = args->outputs[dd_coll_own_output(args->coll, group->rank)].nbytes;
    if (in != out) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "%s: own output of rank %d: got %zu bytes, expected %zu", label, group->rank, out,
                            in);
    }
    return DD_OK;
}

/* Add the size of even blocks to the signature, because a carrier's library compares no sizes. */
static void
add_block_count(const dd_coll_args *args, int nranks, dd_signature *signature)
{
    bool is_even = false;
    size_t nbytes = dd_coll_known_nbytes(args, nranks, false, &is_even);
    if (is_even && !dd_coll_is_array(args->coll)) {
        signature->count = nbytes / dd_dtype_size(args->reduction.dtype);
    }
}

static dd_signature
make_signature(const dd_coll_args *args)
{
    dd_signature signature = {.coll = (uint8_t)args->coll};
    if (!dd_coll_traits_of[args->coll].has_data) {
        return signature;
    }
    signature.dtype = (uint8_t)args->reduction.dtype;
    signature.extra_bits = args->foreign_dtype;
    if (dd_coll_has_root(args->coll)) {
        signature.root = (uint32_t)args->root;
    }
    if (dd_coll_is_folding(args->coll)) {
        signature.redop = (uint8_t)args->reduction.op;
        if (args->reduction.op == DD_REDOP_PREMUL_SUM) {
            memcpy(&signature.extra_bits, &args->reduction.factor, sizeof signature.extra_bits);
        }
    }
    if (dd_coll_is_array(args->coll)) {
        const dd_block *array = dd_coll_is_folding(args->coll) ? args->inputs : args->outputs;
        signature.count = array->nbytes / dd_dtype_size(args->reduction.dtype);
    }
    return signature;
}

static bool
is_quick(const dd_group *group, const dd_coll_args *args)
{
    bool is_local = group->arena != NULL && group->topology.nhosts == 1 && !group->selection.is_flat;
    return (is_local || group->size == 1) && dd_coll_nbytes(args, group->rank, group->size) <= QUICK_NBYTES;
}

static dd_status
check_reduction(const dd_coll_args *args, dd_error *err)
{
    dd_dtype dtype = args->reduction.dtype;
    dd_redop op = args->reduction.op;
    if (!dd_coll_is_folding(args->coll) || dd_coll_has_reduction(args->coll, dtype, op)) {
        return DD_OK;
    }
    if (dd_reduce_is_supported(dtype, op)) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "%s: unsupported reduction %s: each rank reduces another number of arrays",
                            dd_coll_name(args->coll), dd_redop_name(op));
    }
    return dd_error_set(err, DD_INVALID_ARGUMENT, "%s: reduction %s does not support dtype %s",
                        dd_coll_name(args->coll), dd_redop_name(op), dd_dtype_name(dtype));
}

dd_status
group_check_coll(const dd_group *group, const dd_coll_args *args, dd_coll_form *form, dd_error *err)
{
    if (dd_coll_has_root(args->coll) && (args->root < 0 || args->root >= group->size)) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "%s: invalid root rank: got %d, expected 0 to %d",
                            dd_coll_name(args->coll), args->root, group->size - 1);
    }
    dd_status status = check_reduction(args, err);
    if (status == DD_OK) {
        status = check_blocks(group, args, err);
    }
    if (status == DD_OK) {
        *form = (dd_coll_form){.signature = make_signature(args), .is_quick = is_quick(group, args)};
        if (dd_group_carrier(group) != NULL) {
            add_block_count(args, group->size, &form->signature);
        }
    }
    return status;
}

dd_status
dd_coll_form_create(dd_group *group, const dd_coll_args *args, const dd_record_call *record,
                    dd_coll_form **form, dd_error *err)
{
    dd_coll_form *made = dd_mem_alloc(sizeof *made);
    if (made == NULL) {
        return dd_error_no_memory(err, sizeof *made);
    }
    dd_status status = group_check_coll(group, args, made, err);
    if (status == DD_OK && record != NULL) {
        status = dd_record_form_create(record, &made->record, err);
    }
    if (status != DD_OK) {
        dd_mem_free(made);
        return status;
    }
    *form = made;
    return DD_OK;
}

void
dd_coll_form_destroy(dd_coll_form *form)
{
    if (form != NULL) {
        dd_record_form_destroy(form->record);
        dd_mem_free(form);
    }
}
