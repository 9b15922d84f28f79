/* A group's oneCCL communicator: creation, calls, close. */
#include "xccl/xccl_internal.h"

#include <stdio.h>
#include <string.h>

/* timeout for closing a carrier, which usually takes milliseconds */
#define END_NS DD_NS_PER_S

static dd_status
xccl_start(dd_carrier *base, const dd_carried_call *call, dd_carried *carried, dd_error *err)
{
    (void)carried;
    (void)err;
    xccl_carrier *self = (xccl_carrier *)base;
    self->call = *call;
    xccl_post(self, XCCL_CALL);
    return DD_OK;
}

static dd_status
xccl_poll(dd_carrier *base, dd_carried *carried, bool *is_done, dd_error *err)
{
    (void)carried;
    const xccl_carrier *self = (xccl_carrier *)base;
    *is_done = xccl_is_idle(self);
    return *is_done && self->status != DD_OK ? dd_error_copy(err, &self->error) : DD_OK;
}

/* Abandon a call, which oneCCL cannot cancel. If the call ever returns, its thread cleans up. */
static bool
xccl_abandon(dd_carrier *base, dd_carried *carried)
{
    (void)carried;
    xccl_carrier *self = (xccl_carrier *)base;
    if (xccl_is_idle(self)) {
        return true;
    }
    xccl_post(self, XCCL_ABANDON);
    return false;
}

static void
xccl_close(dd_carrier *base, bool is_well)
{
    xccl_carrier *self = (xccl_carrier *)base;
    dd_wait wait = dd_wait_after(END_NS);
    if (is_well && xccl_is_idle(self) && xccl_take_turn(&wait, NULL) == DD_OK) {
        xccl_post(self, XCCL_END);
        dd_status ignored = dd_background_task_wait(&self->thread, &wait, NULL);
        (void)ignored;
    } else {
        xccl_post(self, XCCL_ABANDON);
    }
    dd_background_task_release(&self->thread);
}

/* oneCCL's messages are not used, because oneCCL matches messages only by order, without tags. */
static const dd_carrier_ops OPS = {
    .has = xccl_has, .start = xccl_start, .poll = xccl_poll, .abandon = xccl_abandon, .close = xccl_close};

/* The record that rank 0 broadcasts: a unique id, or the reason why rank 0 has none. */
typedef struct xccl_id_result {
    xccl_unique_id id;
    char reason[256]; /* why there is no unique id; empty if there is one */
} xccl_id_result;

static dd_status
broadcast_id(dd_group *group, xccl_id_result *result, const dd_wait *wait, dd_error *err)
{
    dd_block block = {.data = result, .nbytes = sizeof *result};
    dd_coll_args args = {.coll = DD_COLL_BROADCAST,
                         .reduction = {.dtype = DD_DTYPE_UINT8},
                         .inputs = &block,
                         .outputs = &block};
    dd_call_options options = {.timeout_ns = dd_deadline_left_ns(wait->deadline_ns)};
    return dd_group_collective_and_wait(group, &args, &options, wait, err);
}

static dd_status
make_id(xccl_carrier *self, dd_group *group, const dd_wait *wait, dd_error *err)
{
    dd_status status = xccl_take_turn(wait, err);
    return status == DD_OK ? xccl_do(self, XCCL_GET_ID, group, wait, err) : status;
}

/* Share rank 0's unique id, or the reason why it has none, with all ranks. */
static dd_status
agree_on_id(xccl_carrier *self, dd_group *group, const dd_wait *wait, dd_error *err)
{
    xccl_id_result result = {0};
    dd_error own_error;
    dd_status own_status = self->rank == 0 ? make_id(self, group, wait, &own_error) : DD_OK;
    if (own_status != DD_OK) {
        (void)snprintf(result.reason, sizeof result.reason, "%.*s", (int)sizeof result.reason - 1,
                       own_error.message);
    } else {
        result.id = self->id;
    }
    dd_status status = broadcast_id(group, &result, wait, err);
    if (own_status != DD_OK) {
        return dd_error_copy(err, &own_error);
    }
    if (status == DD_OK && result.reason[0] != '\0') {
        return dd_error_set(err, DD_BACKEND, "rank 0 could not create oneCCL's unique id: %.*s",
                            (int)sizeof result.reason, result.reason);
    }
    self->id = result.id;
    return status;
}

/* All ranks must call this. Set *all to true if `vote` is true on every rank, else to false. */
static dd_status
vote_by_min(dd_group *group, bool vote, bool *all, const dd_wait *wait, dd_error *err)
{
    uint8_t word = vote ? 1 : 0;
    dd_block block = {.data = &word, .nbytes = sizeof word};
    dd_coll_args args = {.coll = DD_COLL_ALL_REDUCE,
                         .reduction = {.dtype = DD_DTYPE_UINT8, .op = DD_REDOP_MIN},
                         .inputs = &block,
                         .outputs = &block};
    dd_call_options options = {.timeout_ns = dd_deadline_left_ns(wait->deadline_ns)};
    dd_status status = dd_group_collective_and_wait(group, &args, &options, wait, err);
    *all = word != 0;
    return status;
}

/* Take the turn (xccl_try_turn) on all ranks. A rank that has its turn must release it if another
 * rank has none: that rank may be waiting in another group for this process. */
static dd_status
take_turn_on_all_ranks(dd_group *group, const dd_wait *wait, dd_error *err)
{
    bool all_have_turn = false;
    dd_status status = DD_OK;
    while (status == DD_OK && !all_have_turn) {
        bool has_turn = xccl_try_turn();
        status = vote_by_min(group, has_turn, &all_have_turn, wait, err);
        if (has_turn && (status != DD_OK || !all_have_turn)) {
            xccl_end_turn();
        }
        if (status == DD_OK && !all_have_turn) {
            status = xccl_await_turn(wait, err);
        }
    }
    return status;
}

static dd_status
xccl_connect_ranks(xccl_carrier *self, dd_group *group, const dd_wait *wait, dd_error *err)
{
    dd_status status = agree_on_id(self, group, wait, err);
    if (status == DD_OK) {
        status = take_turn_on_all_ranks(group, wait, err);
    }
    return status == DD_OK ? xccl_do(self, XCCL_JOIN, group, wait, err) : status;
}

dd_status
xccl_make(dd_carrier_library *library, dd_group *group, dd_carrier **carrier, const dd_wait *wait,
          dd_error *err)
{
    xccl_carrier *self;
    dd_status status = xccl_create((const xccl_library *)library, group, &self, err);
    if (status != DD_OK) {
        return status;
    }
    self->base = (dd_carrier){.ops = &OPS, .library = library};
    status = xccl_connect_ranks(self, group, wait, err);
    if (status != DD_OK) {
        xccl_close(&self->base, false);
        return status;
    }
    *carrier = &self->base;
    return DD_OK;
}
