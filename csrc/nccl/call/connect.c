/* Choice of a call's communicator, and its creation on first use: by all ranks, or by a pair. */
#include "nccl/call/internal.h"

#include "core/lock.h"
#include "nccl/comm/meet.h"

#include <stdio.h>

/* ---- creation */

static const char *
print_prefix(const dd_nccl_group *group, const nccl_channel *channel, char out[320])
{
    int len = snprintf(out, 320, "nccl/%.*s/", (int)group->options.name.len,
                       (const char *)group->options.name.data);
    if (channel->peer == NCCL_ALL_RANKS) {
        snprintf(out + len, 320 - (size_t)len, "all");
    } else {
        int low = channel->peer < group->rank ? channel->peer : group->rank;
        int high = channel->peer < group->rank ? group->rank : channel->peer;
        snprintf(out + len, 320 - (size_t)len, "pair/%d:%d", low, high);
    }
    return out;
}

static dd_status
meet_and_init(dd_nccl_group *group, nccl_channel *channel, dd_nccl_comm **comm, const dd_wait *wait,
              dd_error *err)
{
    bool is_pair = channel->peer != NCCL_ALL_RANKS;
    bool is_first = group->rank < channel->peer;
    int names[2] = {is_first ? group->rank : channel->peer, is_first ? channel->peer : group->rank};
    char prefix[320];
    dd_nccl_meeting meeting = {
        .lib = group->lib,
        .store = group->store,
        .prefix = dd_bytes_of_string(print_prefix(group, channel, prefix)),
        .use = channel->use,
        .rank = is_pair ? !is_first : group->rank,
        .size = is_pair ? 2 : group->size,
        .names = is_pair ? names : NULL,
        .device = channel->device->number,
        .has_grouped_messages = group->options.has_grouped_messages,
    };
    int nids = dd_nccl_meet_nids(group->lib, meeting.size, group->options.ranks_per_root);
    dd_nccl_unique_id *ids = dd_mem_alloc_array((size_t)nids, sizeof *ids);
    if (ids == NULL) {
        return dd_error_no_memory(err, (size_t)nids * sizeof *ids);
    }
    dd_status status = dd_nccl_meet(&meeting, ids, nids, &group->stop, wait, err);
    if (status == DD_OK) {
        dd_nccl_comm_spec spec = {
            .lib = group->lib,
            .cuda = group->cuda,
            .device = meeting.device,
            .rank = meeting.rank,
            .size = meeting.size,
            .config = &group->options.config,
        };
        status = dd_nccl_comm_init(&spec, ids, nids, comm, &group->stop, wait, err);
    }
    dd_mem_free(ids);
    return status;
}

/* Explain a pair's timeout: the other rank may be in a call of all ranks, waiting for this rank. */
static const char *
print_hint(const dd_nccl_group *group, const nccl_channel *channel, const dd_error *err, char out[256])
{
    out[0] = '\0';
    if (channel->peer != NCCL_ALL_RANKS && err->code == DD_OP_TIMED_OUT) {
        (void)snprintf(
            out, 256,
            ", for a message between rank %d and rank %d (rank %d may be in a call of all "
            "ranks; a barrier or a batch of all ranks before the message creates the group's communicator)",
            group->rank, channel->peer, channel->peer);
    }
    return out;
}

/* Store `comm` in the channel, which owns it. If NULL, fail the group: the ranks do not agree. */
static dd_status
end_connect(dd_nccl_group *group, nccl_channel *channel, dd_nccl_comm *comm, dd_status status, dd_error *err)
{
    dd_lock_take(&group->lock);
    channel->is_connecting = false;
    dd_error why;
    dd_status ended = nccl_group_check_locked(group, &why);
    if (comm != NULL) {
        channel->is_blocking = dd_nccl_comm_is_blocking(comm);
        atomic_store_explicit(&channel->comm, comm, memory_order_release);
    }
    dd_cond_broadcast(&group->ended);
    dd_lock_release(&group->lock);
    if (comm != NULL) {
        dd_nccl_comm_set_owner(
            comm, &(dd_nccl_comm_owner){group, nccl_group_try_acquire, nccl_group_abort_as_relative});
    }
    if (ended != DD_OK) {
        nccl_group_start_abort(group);
        return dd_error_copy(err, &why);
    }
    if (status == DD_OK) {
        return DD_OK;
    }
    char hint[256];
    dd_error_prepend(err, "creating a communicator for group \"%.*s\" (rank %d of %d) on device %d%s",
                     (int)group->options.name.len, (const char *)group->options.name.data, group->rank,
                     group->size, channel->device->number, print_hint(group, channel, err, hint));
    nccl_group_end(group, err, NULL, NCCL_END_FAILED);
    return status;
}

/* Wait until the communicator exists, or set *is_creator: this thread must then create it. */
static dd_status
take_turn(dd_nccl_group *group, nccl_channel *channel, const dd_wait *wait, bool *is_creator, dd_error *err)
{
    dd_status status = DD_OK;
    *is_creator = false;
    dd_lock_take(&group->lock);
    for (;;) {
        status = nccl_group_check_locked(group, err);
        if (status != DD_OK || atomic_load(&channel->comm) != NULL) {
            break;
        }
        if (!channel->is_connecting) {
            channel->is_connecting = true;
            *is_creator = true;
            channel->use = channel->peer == NCCL_ALL_RANKS ? group->nmeetings++ : channel->use;
            break;
        }
        if (dd_wait_has_expired(wait)) {
            status = dd_error_set(err, DD_OP_TIMED_OUT,
                                  "another thread did not create the communicator within %.3f s",
                                  dd_wait_elapsed_s(wait));
            break;
        }
        status = dd_cond_wait_checked(&group->ended, &group->lock, wait, err);
        if (status != DD_OK && status != DD_TIMED_OUT) { /* at the deadline, repeat the checks */
            break;
        }
    }
    dd_lock_release(&group->lock);
    return status;
}

static dd_status
connect_channel(dd_nccl_group *group, nccl_channel *channel, const dd_wait *wait, dd_error *err)
{
    if (atomic_load_explicit(&channel->comm, memory_order_acquire) != NULL) {
        return DD_OK;
    }
    int64_t timeout_ns = group->options.init_timeout_ns > 0 ? group->options.init_timeout_ns
                                                            : dd_nccl_group_get_timeout_ns(group);
    dd_wait limited = dd_wait_at_most(wait, timeout_ns);
    bool is_creator;
    dd_status status = take_turn(group, channel, &limited, &is_creator, err);
    if (!is_creator) {
        return status;
    }
    dd_nccl_comm *comm = NULL;
    dd_error error; /* the group needs the error even if err is NULL */
    status = meet_and_init(group, channel, &comm, &limited, &error);
    status = end_connect(group, channel, comm, status, &error);
    return status == DD_OK ? DD_OK : dd_error_copy(err, &error);
}

/* ---- choice */

/* Return the number of pair channels with `peer`: a rank with several devices has one for each. */
static uint64_t
count_pairs_locked(const dd_nccl_group *group, int peer)
{
    uint64_t count = 0;
    for (const nccl_channel *channel = group->channels; channel != NULL; channel = channel->next) {
        count += channel->peer == peer;
    }
    return count;
}

static dd_status
make_pair(dd_nccl_group *group, nccl_device *device, int peer, nccl_channel **out, dd_error *err)
{
    if (device->pairs == NULL) {
        nccl_channel **pairs = dd_mem_zalloc((size_t)group->size * sizeof(nccl_channel *));
        if (pairs == NULL) {
            return dd_error_no_memory(err, (size_t)group->size * sizeof(nccl_channel *));
        }
        dd_lock_take(&group->lock);
        device->pairs = pairs;
        dd_lock_release(&group->lock);
    }
    dd_lock_take(&group->lock);
    uint64_t use = count_pairs_locked(group, peer);
    dd_lock_release(&group->lock);
    nccl_channel *pair;
    dd_status status = nccl_pair_create(group, device, peer, &pair, err);
    if (status != DD_OK) {
        return status;
    }
    dd_lock_take(&group->lock);
    pair->use = use;
    device->pairs[peer] = pair;
    dd_lock_release(&group->lock);
    *out = pair;
    return DD_OK;
}

/* Return the channel between this rank and `peer`; NULL if there is none. */
static nccl_channel *
find_pair_channel(dd_nccl_group *group, nccl_device *device, int peer)
{
    dd_lock_take(&group->lock);
    nccl_channel *pair = device->pairs != NULL ? device->pairs[peer] : NULL;
    dd_lock_release(&group->lock);
    return pair;
}

/* Find the channel for a message. Two ranks that have a channel as a pair keep using it, even if
 * all ranks connect later, so that both ranks always choose the same channel. */
static dd_status
channel_of_message(dd_nccl_group *group, nccl_device *device, int peer, const dd_wait *wait,
                   nccl_channel **channel, dd_error *err)
{
    *channel = find_pair_channel(group, device, peer);
    if (*channel == NULL && atomic_load_explicit(&device->all.comm, memory_order_acquire) != NULL) {
        *channel = &device->all;
    }
    if (*channel != NULL) {
        return DD_OK;
    }
    dd_status status = nccl_group_enter_launch(group, wait, err);
    if (status == DD_OK) {
        *channel = find_pair_channel(group, device, peer); /* another thread may have created it */
        status = *channel == NULL ? make_pair(group, device, peer, channel, err) : DD_OK;
        nccl_group_leave_launch(group);
    }
    return status;
}

dd_status
nccl_channel_for(dd_nccl_group *group, const dd_nccl_call *call, const dd_wait *wait, nccl_channel **channel,
                 dd_error *err)
{
    nccl_device *device;
    dd_status status = nccl_device_of(group, call->device, wait, &device, err);
    if (status != DD_OK) {
        return status;
    }
    *channel = &device->all;
    if (!call->is_batch && call->nops > 0 && call->ops[0].kind != DD_NCCL_OP_COLL &&
        !nccl_is_one_sided(&call->ops[0])) {
        status = channel_of_message(group, device, call->ops[0].peer, wait, channel, err);
    }
    /* A call without operations (only copies) needs no communicator. */
    return status == DD_OK && call->nops > 0 ? connect_channel(group, *channel, wait, err) : status;
}

/* ---- public functions */

dd_status
dd_nccl_group_connect(dd_nccl_group *group, int device, dd_nccl_comm **comm, const dd_wait *wait,
                      dd_error *err)
{
    nccl_device *on;
    dd_status status = dd_nccl_group_check(group, err);
    if (status == DD_OK) {
        status = nccl_device_of(group, device, wait, &on, err);
    }
    if (status == DD_OK) {
        status = connect_channel(group, &on->all, wait, err);
    }
    if (status == DD_OK) {
        *comm = dd_nccl_comm_acquire(atomic_load(&on->all.comm));
    }
    return status;
}

dd_nccl_comm *
dd_nccl_group_find_comm(dd_nccl_group *group, int device)
{
    if (nccl_group_check_fork(group, NULL) != DD_OK ||
        dd_cuda_check_device(group->cuda, device, NULL) != DD_OK) {
        return NULL;
    }
    nccl_device *on = atomic_load_explicit(&group->devices[device], memory_order_acquire);
    dd_nccl_comm *comm = on != NULL ? atomic_load_explicit(&on->all.comm, memory_order_acquire) : NULL;
    return comm != NULL ? dd_nccl_comm_acquire(comm) : NULL;
}

dd_status
dd_nccl_group_adopt(dd_nccl_group *group, int device, dd_nccl_comm *comm, dd_error *err)
{
    dd_wait wait = dd_wait_after(dd_nccl_group_get_timeout_ns(group));
    nccl_device *on;
    bool is_creator = false;
    dd_status status = nccl_group_check_fork(group, err);
    if (status == DD_OK) {
        status = nccl_device_of(group, device, &wait, &on, err);
    }
    if (status == DD_OK) {
        status = take_turn(group, &on->all, &wait, &is_creator, err);
    }
    if (status == DD_OK && !is_creator) {
        status = dd_error_set(err, DD_INVALID_ARGUMENT, "the group already has a communicator on device %d",
                              device);
    }
    if (status != DD_OK) {
        dd_nccl_comm_release(comm);
        return status;
    }
    return end_connect(group, &on->all, comm, DD_OK, err);
}
