/* Groups split off from another group, without a store. Each member computes the new group's id
 * from the parent's id, the tag, the ranks, and the number of earlier splits of these ranks and
 * tag. A rank that refuses a call for its arguments does not count it: see is_attempt_missed. */
#include "group/internal.h"

#include "core/mem.h"
#include "net/sha256.h"

#include <string.h>

typedef struct split_count {
    uint64_t set; /* hash of the ranks and the tag */
    uint64_t count;
} split_count;

/* Hash the two words of `head`, and the ranks. */
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

/* Count a split of this set of ranks. *count is the number of earlier splits, equal on all
 * members. */
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
check_split(const dd_group *parent, const int *ranks, int nranks, int *own_rank, dd_error *err)
{
    dd_status status = DD_OK;
    bool *is_named = dd_mem_zalloc((size_t)parent->size * sizeof *is_named);
    if (is_named == NULL) {
        return dd_error_no_memory(err, (unsigned long long)parent->size);
    }
    *own_rank = -1;
    for (int i = 0; i < nranks && status == DD_OK; i++) {
        if (ranks[i] < 0 || ranks[i] >= parent->size) {
            status = dd_error_set(err, DD_INVALID_ARGUMENT, "split: invalid rank: got %d, expected 0 to %d",
                                  ranks[i], parent->size - 1);
        } else if (is_named[ranks[i]]) {
            status = dd_error_set(err, DD_INVALID_ARGUMENT, "split: rank %d appears twice, expected once",
                                  ranks[i]);
        } else {
            is_named[ranks[i]] = true;
            *own_rank = ranks[i] == parent->rank ? i : *own_rank;
        }
    }
    dd_mem_free(is_named);
    if (status == DD_OK && *own_rank < 0) {
        status = dd_error_set(
            err, DD_INVALID_ARGUMENT,
            "split: rank %d is not one of the %d ranks of the new group: only its members may call this",
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

/* Return true if other ranks have abandoned the split with this id: this rank refused an earlier
 * split for its arguments, and did not count it. */
static bool
is_attempt_missed(dd_group *parent, const int *ranks, int nranks, int own_rank, uint64_t id)
{
    bool has_aborted = false;
    dd_engine_lock(parent->engine);
    for (int i = 0; i < nranks && parent->nsplits_refused > 0 && !has_aborted; i++) {
        has_aborted = dd_peer_has_aborted_locked(parent->peers[ranks[i]], id, own_rank);
    }
    parent->nsplits_refused -= has_aborted ? 1 : 0;
    dd_engine_unlock(parent->engine);
    return has_aborted;
}

static void
split_note_refused(dd_group *parent)
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
    int own_rank = -1;
    uint64_t id = 0;
    dd_status status = check_parent(parent, err);
    if (status == DD_OK) {
        status = check_split(parent, ranks, nranks, &own_rank, err);
        if (status == DD_INVALID_ARGUMENT) {
            split_note_refused(parent);
        }
    }
    do {
        status = status == DD_OK ? name_split(parent, ranks, nranks, tag, &id, err) : status;
    } while (status == DD_OK && is_attempt_missed(parent, ranks, nranks, own_rank, id));
    if (status != DD_OK) {
        return status;
    }
    dd_group *made = NULL;
    group_params params = {.rank = own_rank, .size = nranks, .options = options};
    status = group_create(parent->engine, id, &params, &made, err);
    if (status != DD_OK) {
        return status;
    }
    for (int i = 0; i < nranks; i++) {
        made->peers[i] = dd_peer_acquire(parent->peers[ranks[i]]);
    }
    group_setup setup = {.parent = parent, .parent_ranks = ranks};
    status = group_set_up(made, &setup, wait, err);
    if (status != DD_OK && status != DD_INTERRUPTED) {
        /* If the parent has failed, report its cause: members that left because of it are not to
         * blame. */
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
