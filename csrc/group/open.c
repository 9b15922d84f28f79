/* Opening a group: its ranks meet in a store, exchange address records, and set up shared
 * resources. */
#include "group/internal.h"

#include "net/auth.h"

static dd_status
check_shape(int rank, int size, dd_error *err)
{
    if (size < 1 || rank < 0 || rank >= size) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "invalid rank or size: got rank %d of %d, expected a rank in 0 to size - 1", rank,
                            size);
    }
    return DD_OK;
}

/* Receive pending events: members may have been lost since the engine was last driven. */
static void
notice_losses(dd_group *group)
{
    dd_engine_lock(group->engine);
    dd_engine_receive_locked(group->engine);
    dd_engine_unlock(group->engine);
}

static dd_status
find_peers(dd_group *group, const group_meeting *meeting, dd_error *err)
{
    if (group->size > 1) {
        notice_losses(group);
    }
    dd_status status = group->size == 1 ? dd_engine_self(group->engine, &group->peers[0], err) : DD_OK;
    for (int rank = 0; group->size > 1 && rank < group->size && status == DD_OK; rank++) {
        status = dd_engine_peer(group->engine, meeting->end.payloads[rank], &group->peers[rank], err);
        if (status == DD_PROTOCOL) {
            dd_error_prepend(err, "rank %d", rank);
            dd_error_blame(err, rank, "", 0);
        }
    }
    return status;
}

/* Meet the other ranks. A group of one rank needs no meeting. */
static dd_status
open_meet(dd_engine *engine, dd_store *store, const group_params *params, group_meeting *meeting,
          const dd_wait *wait, dd_error *err)
{
    if (params->size > 1) {
        return group_meet(engine, store, params->rank, params->size, params->options->name, meeting, wait,
                          err);
    }
    *meeting = (group_meeting){.engine = dd_engine_acquire(engine)};
    return dd_auth_random(&meeting->end.id, sizeof meeting->end.id, err);
}

static dd_status
open_group(dd_engine *engine, dd_store *store, const group_params *params, dd_group **group,
           const dd_wait *wait, dd_error *err)
{
    group_meeting meeting = {.engine = NULL};
    dd_group *made = NULL;
    dd_status status = open_meet(engine, store, params, &meeting, wait, err);
    if (status == DD_OK) { /* only now, because the meeting checks `size` */
        status = group_create(meeting.engine, meeting.end.id, params, &made, err);
    }
    if (status == DD_OK) {
        status = find_peers(made, &meeting, err);
    }
    if (status == DD_OK) {
        group_bulletin bulletin = {
            .store = store, .name = params->options->name, .generation = meeting.end.generation};
        group_setup setup = {.bulletin = params->size > 1 ? &bulletin : NULL};
        status = group_set_up(made, &setup, wait, err);
    }
    if (status == DD_OK) {
        *group = made;
    } else {
        group_destroy(made);
    }
    if (meeting.engine != NULL && meeting.engine != engine) {
        dd_engine_end_meeting(meeting.engine); /* use_own_engine has begun it */
    }
    group_meeting_fini(&meeting);
    return status;
}

dd_status
dd_group_open(dd_engine *engine, dd_store *store, int rank, int size, const dd_group_options *options,
              dd_group **group, const dd_wait *wait, dd_error *err)
{
    dd_status status = check_shape(rank, size, err);
    if (status == DD_OK && size > 1 && store == NULL) {
        status = dd_error_set(err, DD_INVALID_ARGUMENT, "a group of %d ranks needs a store: got none", size);
    }
    if (status == DD_OK) {
        status = dd_engine_check_fork(engine, err);
    }
    if (status != DD_OK) {
        return status;
    }
    group_params params = {.rank = rank, .size = size, .options = options};
    if (size > 1) {
        dd_engine_begin_meeting(engine);
    }
    status = open_group(engine, store, &params, group, wait, err);
    if (size > 1) {
        dd_engine_end_meeting(engine);
    }
    return status;
}
