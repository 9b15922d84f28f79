/* Groups: making, splitting, closing. */
#include "group/group_internal.h"

#include "core/mem.h"
#include "net/auth.h"
#include "net/sha256.h"

#include <stdio.h>
#include <string.h>

static dd_status
check_shape(int rank, int size, dd_error *err)
{
    if (size < 1 || rank < 0 || rank >= size) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "rank %d of a group of %d: a rank is in 0 to size - 1",
                            rank, size);
    }
    return DD_OK;
}

/* Members may have been lost since the engine was last driven. */
static void
notice_losses(dd_group *group)
{
    dd_engine_lock(group->engine);
    dd_engine_hear_locked(group->engine);
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
        status = dd_engine_peer(group->engine, meeting->end.cards[rank], &group->peers[rank], err);
        if (status == DD_PROTOCOL) {
            dd_error_prepend(err, "rank %d", rank);
            dd_error_blame(err, rank, "", 0);
        }
    }
    return status;
}

/* With one rank there is nobody to meet. */
static dd_status
meet(dd_engine *engine, dd_store *store, const group_place *place, group_meeting *meeting,
     const dd_wait *wait, dd_error *err)
{
    if (place->size > 1) {
        return group_meet(engine, store, place->rank, place->size, place->options->name, meeting, wait, err);
    }
    *meeting = (group_meeting){.engine = dd_engine_acquire(engine)};
    return dd_auth_random(&meeting->end.id, sizeof meeting->end.id, err);
}

static dd_status
open_group(dd_engine *engine, dd_store *store, const group_place *place, dd_group **group,
           const dd_wait *wait, dd_error *err)
{
    group_meeting meeting = {.engine = NULL};
    dd_group *made = NULL;
    dd_status status = meet(engine, store, place, &meeting, wait, err);
    if (status == DD_OK) { /* not before the others are there: the number may be a mistake */
        status = group_create(meeting.engine, meeting.end.id, place, &made, err);
    }
    if (status == DD_OK) {
        status = find_peers(made, &meeting, err);
    }
    if (status == DD_OK) {
        group_bulletin bulletin = {
            .store = store, .name = place->options->name, .generation = meeting.end.generation};
        group_setup setup = {.bulletin = place->size > 1 ? &bulletin : NULL};
        status = group_set_up(made, &setup, wait, err);
    }
    if (status == DD_OK) {
        *group = made;
    } else {
        group_destroy(made);
    }
    if (meeting.engine != NULL && meeting.engine != engine) {
        dd_engine_end_meeting(meeting.engine); /* it was begun with that engine */
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
        status = dd_error_set(err, DD_INVALID_ARGUMENT, "a group of %d ranks needs a store to meet in", size);
    }
    if (status == DD_OK) {
        status = dd_engine_check_fork(engine, err);
    }
    if (status != DD_OK) {
        return status;
    }
    group_place place = {.rank = rank, .size = size, .options = options};
    if (size > 1) {
        dd_engine_begin_meeting(engine);
    }
    status = open_group(engine, store, &place, group, wait, err);
    if (size > 1) {
        dd_engine_end_meeting(engine);
    }
    return status;
}

/* ---- splitting */

typedef struct split_count {
    uint64_t set; /* hash of ranks and tag */
    uint64_t count;
} split_count;

/* The hash of `head`, which is two words, and of ranks. */
static uint64_t
hash_set(const uint64_t head[2], const int *ranks, int nranks)
{
    uint8_t digest[DD_SHA256_BYTES];
    dd_sha256 sha;
    dd_sha256_init(&sha);
    dd_sha256_update(&sha, dd_bytes_of(head, 2 * sizeof *head));
    dd_sha256_update(&sha, dd_bytes_of(ranks, (size_t)nranks * sizeof *ranks));
    dd_sha256_final(&sha, digest);
    uint64_t hash;
    memcpy(&hash, digest, sizeof hash);
    return hash;
}

/* How often this set has been split off before: every member counts alike. */
static dd_status
count_split(dd_group *parent, uint64_t set, uint64_t *count, dd_error *err)
{
    dd_status status = DD_OK;
    dd_engine_lock(parent->engine);
    split_count *records = (split_count *)(void *)parent->splits.data;
    size_t nrecords = parent->splits.len / sizeof *records;
    size_t i = 0;
    while (i < nrecords && records[i].set != set) {
        i++;
    }
    if (i < nrecords) {
        *count = ++records[i].count;
    } else {
        split_count record = {.set = set};
        status = dd_blob_append(&parent->splits, &record, sizeof record, err);
        *count = 0;
    }
    dd_engine_unlock(parent->engine);
    return status;
}

static dd_status
check_split(const dd_group *parent, const int *ranks, int nranks, int *own, dd_error *err)
{
    dd_status status = DD_OK;
    bool *is_named = dd_mem_zalloc((size_t)parent->size * sizeof *is_named);
    if (is_named == NULL) {
        return dd_error_no_memory(err, (unsigned long long)parent->size);
    }
    *own = -1;
    for (int i = 0; i < nranks && status == DD_OK; i++) {
        if (ranks[i] < 0 || ranks[i] >= parent->size) {
            status = dd_error_set(err, DD_INVALID_ARGUMENT, "split: rank %d is not in 0 to %d", ranks[i],
                                  parent->size - 1);
        } else if (is_named[ranks[i]]) {
            status = dd_error_set(err, DD_INVALID_ARGUMENT, "split: rank %d is named twice", ranks[i]);
        } else {
            is_named[ranks[i]] = true;
            *own = ranks[i] == parent->rank ? i : *own;
        }
    }
    dd_mem_free(is_named);
    if (status == DD_OK && *own < 0) {
        status =
            dd_error_set(err, DD_INVALID_ARGUMENT,
                         "split: rank %d is not among the %d ranks of the new group, and only they make it",
                         parent->rank, nranks);
    }
    return status;
}

static dd_status
name_split(dd_group *parent, const int *ranks, int nranks, uint64_t tag, uint64_t *id, dd_error *err)
{
    uint64_t count = 0;
    uint64_t set = hash_set((uint64_t[]){parent->id, tag}, ranks, nranks);
    dd_status status = count_split(parent, set, &count, err);
    if (status == DD_OK) {
        *id = hash_set((uint64_t[]){set, count}, ranks, nranks);
    }
    return status;
}

/* A rank whose call was refused for its arguments has not counted the attempt that the other members have made and given up. */
static bool
is_attempt_missed(dd_group *parent, const int *ranks, int nranks, int own, uint64_t id)
{
    bool is_given_up = false;
    dd_engine_lock(parent->engine);
    for (int i = 0; i < nranks && parent->nsplits_refused > 0 && !is_given_up; i++) {
        is_given_up = dd_peer_has_given_up_locked(parent->peers[ranks[i]], id, own);
    }
    parent->nsplits_refused -= is_given_up ? 1 : 0;
    dd_engine_unlock(parent->engine);
    return is_given_up;
}

static void
note_refused(dd_group *parent)
{
    dd_engine_lock(parent->engine);
    parent->nsplits_refused++;
    dd_engine_unlock(parent->engine);
}

static dd_status
check_parent(dd_group *parent, dd_error *err)
{
    dd_status status = dd_engine_check_fork(parent->engine, err);
    if (status == DD_OK) {
        dd_engine_lock(parent->engine);
        status = group_check_parent_locked(parent, err);
        dd_engine_unlock(parent->engine);
    }
    return status;
}

dd_status
dd_group_split(dd_group *parent, const int *ranks, int nranks, uint64_t tag, const dd_group_options *options,
               dd_group **group, const dd_wait *wait, dd_error *err)
{
    int own = -1;
    uint64_t id = 0;
    dd_status status = check_parent(parent, err);
    if (status == DD_OK) {
        status = check_split(parent, ranks, nranks, &own, err);
        if (status == DD_INVALID_ARGUMENT) {
            note_refused(parent);
        }
    }
    do {
        status = status == DD_OK ? name_split(parent, ranks, nranks, tag, &id, err) : status;
    } while (status == DD_OK && is_attempt_missed(parent, ranks, nranks, own, id));
    if (status != DD_OK) {
        return status;
    }
    dd_group *made = NULL;
    group_place place = {.rank = own, .size = nranks, .options = options};
    status = group_create(parent->engine, id, &place, &made, err);
    if (status != DD_OK) {
        return status;
    }
    for (int i = 0; i < nranks; i++) {
        made->peers[i] = dd_peer_acquire(parent->peers[ranks[i]]);
    }
    group_setup setup = {.parent = parent, .parent_ranks = ranks};
    status = group_set_up(made, &setup, wait, err);
    if (status != DD_OK && status != DD_INTERRUPTED) {
        /* Members that have left because the parent has failed are gone from the new group, too, but are
         * not to blame. */
        dd_engine_lock(parent->engine);
        dd_error cause;
        if (group_check_parent_locked(parent, &cause) != DD_OK && parent->cause.code != DD_OK) {
            status = dd_error_copy(err, &cause);
        }
        dd_engine_unlock(parent->engine);
    }
    if (status == DD_OK) {
        *group = made;
    } else {
        group_destroy(made);
    }
    return status;
}

/* ---- closing */

static bool
has_calls_locked(const dd_group *group)
{
    return !dd_list_is_empty(&group->collectives) || !dd_list_is_empty(&group->messages) ||
           (group->guest != NULL && group->guest->ncalls > 0);
}

/* To the others a rank is gone that they may need. */
static void
fail_leftovers_locked(dd_group *group)
{
    if (has_calls_locked(group)) {
        group_end_complete_locked(group);
    }
    if (has_calls_locked(group)) {
        dd_cause loss = group_make_cause(group, DD_CAUSE_LEFT, DD_PEER_LOST, group->rank);
        snprintf(loss.text, sizeof loss.text, "with operations under way");
        group_fail_cause_locked(group, &loss);
    }
}

dd_status
dd_group_close(dd_group *group, const dd_wait *wait, dd_error *err)
{
    dd_status status = dd_engine_check_fork(group->engine, err);
    if (status != DD_OK) {
        return status;
    }
    dd_engine_lock(group->engine);
    bool is_first = !group->is_closing;
    group->is_closing = true;
    dd_engine_unlock(group->engine);
    if (!is_first) {
        return DD_OK;
    }
    status = dd_engine_wait(group->engine, &group->is_idle, wait, err);
    if (status == DD_OP_TIMED_OUT) {
        dd_error_set(err, status, GROUP_FORMAT " was closed with operations under way after %.3g s",
                     GROUP_ARGS(group), dd_wait_elapsed_s(wait));
    }
    dd_engine_lock(group->engine);
    fail_leftovers_locked(group);
    dd_error over;
    dd_error_set(&over, DD_CLOSED, "the group was closed");
    if (group->guest != NULL) {
        group->guest->on_end(group->guest, &over);
    }
    dd_context *context = group->context;
    group->context = NULL;
    dd_engine_unlock(group->engine);
    dd_context_close(context, wait);
    dd_engine_lock(group->engine);
    group_post_leaving_locked(group);
    dd_engine_unlock(group->engine);
    return status;
}

dd_group *
dd_group_acquire(dd_group *group)
{
    atomic_fetch_add_explicit(&group->refs, 1, memory_order_relaxed);
    return group;
}

void
dd_group_release(dd_group *group)
{
    if (group == NULL || atomic_fetch_sub_explicit(&group->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    if (dd_engine_check_fork(group->engine, NULL) == DD_OK) {
        dd_wait at_once = dd_wait_after(0);
        dd_status ignored = dd_group_close(group, &at_once, NULL); /* what was under way has been failed */
        (void)ignored;
    } else if (dd_engine_is_torn(group->engine)) {
        return; /* left where it is */
    }
    group_destroy(group);
}

void
dd_region_release(dd_region *region)
{
    if (region != NULL) {
        dd_group *group = dd_region_group(region); /* the region may be somebody else's right away */
        if (group_let_region_go(region)) {
            dd_group_release(group); /* the last lets its regions go */
        }
    }
}

/* ---- questions */

int
dd_group_rank(const dd_group *group)
{
    return group->rank;
}

int
dd_group_size(const dd_group *group)
{
    return group->size;
}

dd_bytes
dd_group_name(const dd_group *group)
{
    return dd_blob_view(&group->name);
}

int64_t
dd_group_get_timeout_ns(dd_group *group)
{
    return atomic_load_explicit(&group->timeout_ns, memory_order_relaxed);
}

void
dd_group_set_timeout_ns(dd_group *group, int64_t timeout_ns)
{
    atomic_store_explicit(&group->timeout_ns, timeout_ns, memory_order_relaxed);
}

dd_engine *
dd_group_engine(dd_group *group)
{
    return group->engine;
}

void
dd_group_get_member(dd_group *group, int rank, dd_member_info *info)
{
    const dd_card *card = dd_peer_card(group->peers[rank]);
    memcpy(info->host, card->host, sizeof info->host);
    info->pid = card->pid;
    info->is_same_host = group->topology.host_of[rank] == group->topology.host_of[group->rank];
    info->transport = rank == group->rank ? "self" : "";
    if (rank != group->rank && dd_engine_check_fork(group->engine, NULL) == DD_OK) {
        dd_engine_lock(group->engine);
        info->transport = dd_peer_transport_locked(group->peers[rank]);
        if (info->transport[0] == '\0' && group_is_on_board(group, rank)) {
            info->transport = "shared memory"; /* where messages go there, that is how */
        }
        dd_engine_unlock(group->engine);
    }
}

uint64_t
dd_group_sequence(dd_group *group)
{
    if (dd_engine_check_fork(group->engine, NULL) != DD_OK) {
        return group->nposted; /* the lock may be in any state; a child has one thread */
    }
    dd_engine_lock(group->engine);
    uint64_t sequence = group->nposted;
    dd_engine_unlock(group->engine);
    return sequence;
}

dd_status
dd_group_check(dd_group *group, dd_error *err)
{
    return group_check_usable(group, "check", err);
}
