#include "nccl/nccl_meet.h"

#include "core/mem.h"
#include "nccl/nccl_comm.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define KEY_MAX 32
#define VERDICT_KEY "verdict"
/* Whoever has waited in vain, or has failed, still has this long to find out who is missing and to tell the others. */
#define LAST_WORDS_NS (1 * DD_NS_PER_S)
#define MISSING_SHOWN 8

/* What a rank leaves; a root's id, or its reason, follows. Native numbers: NCCL itself wants all hosts to be of one kind. */
typedef struct card {
    int32_t version;
    int32_t device;
    int64_t pid;
    char host[DD_HOST_NAME_MAX];
    int32_t status; /* of making the id */
} card;

/* What the first rank leaves; the ids, or the reason, follow. */
typedef struct verdict {
    int32_t status;
    int32_t culprit; /* its rank in the group, or -1 */
    int64_t culprit_pid;
    char culprit_host[DD_HOST_NAME_MAX];
} verdict;

/* One call of dd_nccl_meet. */
typedef struct encounter {
    const dd_nccl_meeting *m;
    dd_store *store; /* ours: under the prefix and the use */
    dd_nccl_unique_id *ids;
    int nids;
    const atomic_bool *stop;
    const dd_wait *outer;
    dd_wait wait; /* the caller's, which also ends with stop */
} encounter;

int
dd_nccl_meet_nids(const dd_nccl_lib *lib, int size, int ranks_per_root)
{
    if (ranks_per_root < 1 || !dd_nccl_has(lib, DD_NCCL_CAN_INIT_SCALABLE)) {
        return 1;
    }
    return (size + ranks_per_root - 1) / ranks_per_root;
}

static int
name_of(const dd_nccl_meeting *m, int rank)
{
    return m->names != NULL ? m->names[rank] : rank;
}

/* Roots are spread over the ranks evenly. */
static int
root_rank(const encounter *e, int i)
{
    return (int)((int64_t)i * e->m->size / e->nids);
}

static dd_bytes
card_key(int rank, char *out)
{
    int len = snprintf(out, KEY_MAX, "card/%d", rank);
    return dd_bytes_of(out, (size_t)len);
}

static bool
is_stopped(void *ctx)
{
    const encounter *e = ctx;
    return (e->stop != NULL && atomic_load(e->stop)) ||
           (e->outer->is_interrupted != NULL && e->outer->is_interrupted(e->outer->ctx));
}

/* Owned bytes: a head, and a tail of any length. */
static dd_status
join(const void *head, size_t head_size, dd_bytes tail, dd_blob *joined, dd_error *err)
{
    dd_status status = dd_blob_append(joined, head, head_size, err);
    return status == DD_OK ? dd_blob_append(joined, tail.data, tail.len, err) : status;
}

/* ---- cards */

/* The error of making the id goes with the card: all are to hear it. */
static dd_status
leave_card(const encounter *e, dd_error *err)
{
    const dd_nccl_meeting *m = e->m;
    card mine = {.version = m->lib->version, .device = m->device, .pid = getpid(), .status = DD_OK};
    if (gethostname(mine.host, sizeof mine.host - 1) != 0) {
        (void)snprintf(mine.host, sizeof mine.host, "?");
    }
    dd_bytes tail = {0};
    dd_nccl_unique_id id;
    dd_error reason;
    for (int i = 0; i < e->nids; i++) {
        if (root_rank(e, i) == m->rank) {
            mine.status = (int32_t)dd_nccl_make_unique_id(m->lib, &id, &reason);
            tail = mine.status == DD_OK ? dd_bytes_of(&id, sizeof id) : dd_bytes_of_string(reason.message);
        }
    }
    char key[KEY_MAX];
    dd_blob value = {0};
    dd_status status = join(&mine, sizeof mine, tail, &value, err);
    if (status == DD_OK) {
        dd_bytes name = card_key(m->rank, key);
        status = e->store->ops->set(e->store, name, dd_blob_view(&value), &e->wait, err);
    }
    dd_blob_fini(&value);
    return status;
}

static dd_status
read_card(const encounter *e, int rank, dd_bytes value, card *out, dd_error *err)
{
    if (value.len < sizeof *out) {
        return dd_error_set(err, DD_PROTOCOL, "the card of rank %d has %zu bytes, at least %zu are needed",
                            name_of(e->m, rank), value.len, sizeof *out);
    }
    memcpy(out, value.data, sizeof *out);
    out->host[sizeof out->host - 1] = '\0';
    return DD_OK;
}

/* One id from its root's card. */
static dd_status
take_id(const encounter *e, int i, dd_bytes value, dd_error *err)
{
    card root;
    int rank = root_rank(e, i);
    dd_status status = read_card(e, rank, value, &root, err);
    if (status != DD_OK) {
        return status;
    }
    const uint8_t *tail = value.data + sizeof root;
    size_t len = value.len - sizeof root;
    if (root.status != DD_OK) {
        status = dd_error_set(err, DD_BACKEND, "rank %d could not make NCCL's unique id: %.*s",
                              name_of(e->m, rank), (int)len, (const char *)tail);
    } else if (len != sizeof(dd_nccl_unique_id)) {
        status = dd_error_set(
            err, DD_PROTOCOL,
            "rank %d left %zu bytes for NCCL's unique id; do all ranks use the same number of roots?",
            name_of(e->m, rank), len);
    } else {
        memcpy(&e->ids[i], tail, len);
        return DD_OK;
    }
    dd_error_blame(err, name_of(e->m, rank), root.host, root.pid);
    return status;
}

static dd_status
compare_versions(const encounter *e, const card *first, int rank, const card *other, dd_error *err)
{
    if (first->version == other->version) {
        return DD_OK;
    }
    char a[16];
    char b[16];
    dd_status status = dd_error_set(
        err, DD_MISMATCH,
        "ranks have different NCCLs, and all need the same: rank %d (%s, process %lld) has %s, rank %d (%s, "
        "process %lld) has %s",
        name_of(e->m, 0), first->host, (long long)first->pid, dd_nccl_version_print(first->version, a),
        name_of(e->m, rank), other->host, (long long)other->pid, dd_nccl_version_print(other->version, b));
    dd_error_blame(err, name_of(e->m, rank), other->host, other->pid);
    return status;
}

static dd_status
judge(const encounter *e, const dd_blob_list *cards, dd_error *err)
{
    card first;
    dd_status status = read_card(e, 0, dd_blob_view(&cards->items[0]), &first, err);
    for (int rank = 1; rank < e->m->size && status == DD_OK; rank++) {
        card other;
        status = read_card(e, rank, dd_blob_view(&cards->items[rank]), &other, err);
        if (status == DD_OK) {
            status = compare_versions(e, &first, rank, &other, err);
        }
    }
    for (int i = 0; i < e->nids && status == DD_OK; i++) {
        status = take_id(e, i, dd_blob_view(&cards->items[root_rank(e, i)]), err);
    }
    return status;
}

/* ---- time-outs */

/* After the deadline: who has left no card. */
static dd_status
error_missing(const encounter *e, dd_error *err)
{
    char list[MISSING_SHOWN * 12 + 8] = "";
    size_t used = 0;
    int nmissing = 0;
    int first = -1;
    dd_wait last = dd_wait_after(LAST_WORDS_NS);
    for (int rank = 0; rank < e->m->size && !dd_wait_is_over(&last); rank++) {
        char buffer[KEY_MAX];
        dd_bytes key = card_key(rank, buffer);
        bool is_there = true;
        if (e->store->ops->check(e->store, &key, 1, &is_there, &last, NULL) != DD_OK || is_there) {
            continue;
        }
        first = nmissing == 0 ? name_of(e->m, rank) : first;
        if (nmissing++ < MISSING_SHOWN) {
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%d", used > 0 ? ", " : "",
                                     name_of(e->m, rank));
        }
    }
    dd_status status;
    double waited_s = dd_wait_elapsed_s(e->outer);
    if (nmissing == 0) {
        /* All cards are there: the first rank, which reads them, has stopped in between. */
        first = name_of(e->m, 0);
        status =
            dd_error_set(err, DD_OP_TIMED_OUT,
                         "meeting for an NCCL communicator timed out after %.3f s: rank %d has not said that "
                         "all %d ranks have come",
                         waited_s, first, e->m->size);
    } else {
        status = dd_error_set(
            err, DD_OP_TIMED_OUT,
            "meeting for an NCCL communicator timed out after %.3f s: %d of %d ranks have not come: "
            "%s%s",
            waited_s, nmissing, e->m->size, list, nmissing > MISSING_SHOWN ? ", ..." : "");
    }
    dd_error_blame(err, first, NULL, 0);
    return status;
}

/* What waiting in the store has ended with, in the words of this module. */
static dd_status
explain(const encounter *e, dd_status status, dd_error *err)
{
    if (status == DD_TIMED_OUT || status == DD_NETWORK_TIMED_OUT) {
        return error_missing(e, err);
    }
    if (status == DD_INTERRUPTED && e->stop != NULL && atomic_load(e->stop)) {
        return dd_error_set(err, DD_ABORTED, "meeting for an NCCL communicator was called off after %.3f s",
                            dd_wait_elapsed_s(e->outer));
    }
    dd_error_prepend(err, "meeting for an NCCL communicator");
    return status;
}

/* ---- the verdict */

static dd_status
read_all_cards(const encounter *e, dd_blob_list *cards, dd_error *err)
{
    size_t n = (size_t)e->m->size;
    char(*buffers)[KEY_MAX] = dd_mem_alloc_array(n, KEY_MAX);
    dd_bytes *keys = dd_mem_alloc_array(n, sizeof *keys);
    dd_status status = buffers != NULL && keys != NULL ? DD_OK : dd_error_no_memory(err, n * KEY_MAX);
    for (size_t i = 0; i < n && status == DD_OK; i++) {
        keys[i] = card_key((int)i, buffers[i]);
    }
    if (status == DD_OK) {
        status = e->store->ops->multi_get(e->store, keys, n, cards, &e->wait, err);
    }
    dd_mem_free(keys);
    dd_mem_free(buffers);
    return status;
}

static dd_status
leave_verdict(const encounter *e, dd_status found, const dd_error *why, dd_error *err)
{
    verdict v = {.status = (int32_t)found, .culprit = -1};
    dd_bytes tail = dd_bytes_of(e->ids, (size_t)e->nids * sizeof *e->ids);
    dd_wait wait = e->wait;
    if (found != DD_OK) {
        v.culprit = why->culprit.rank;
        v.culprit_pid = why->culprit.pid;
        memcpy(v.culprit_host, why->culprit.host, sizeof v.culprit_host);
        tail = dd_bytes_of_string(why->message);
        wait = dd_wait_after(LAST_WORDS_NS);
    }
    dd_blob value = {0};
    dd_status status = join(&v, sizeof v, tail, &value, err);
    if (status == DD_OK) {
        status =
            e->store->ops->set(e->store, dd_bytes_of_string(VERDICT_KEY), dd_blob_view(&value), &wait, err);
    }
    dd_blob_fini(&value);
    return status;
}

static dd_status
meet_as_first(const encounter *e, dd_error *err)
{
    dd_error why = {0};
    dd_blob_list cards = {0};
    dd_status found = read_all_cards(e, &cards, &why);
    found = found == DD_OK ? judge(e, &cards, &why) : explain(e, found, &why);
    dd_blob_list_fini(&cards);
    dd_status left = leave_verdict(e, found, &why, err);
    return found != DD_OK ? dd_error_copy(err, &why) : left;
}

static dd_status
accept(const encounter *e, dd_bytes value, dd_error *err)
{
    verdict v;
    if (value.len < sizeof v) {
        return dd_error_set(err, DD_PROTOCOL,
                            "rank %d left %zu bytes as NCCL's unique ids, at least %zu are needed",
                            name_of(e->m, 0), value.len, sizeof v);
    }
    memcpy(&v, value.data, sizeof v);
    v.culprit_host[sizeof v.culprit_host - 1] = '\0';
    const uint8_t *tail = value.data + sizeof v;
    size_t len = value.len - sizeof v;
    size_t wanted = (size_t)e->nids * sizeof *e->ids;
    if (v.status != DD_OK) {
        bool is_known = v.status > 0 && v.status < DD_STATUS_COUNT;
        dd_status status = is_known && v.status != DD_INTERRUPTED ? (dd_status)v.status : DD_ABORTED;
        dd_error_set(err, status, "%.*s", (int)len, (const char *)tail);
        dd_error_blame(err, v.culprit, v.culprit_host, v.culprit_pid);
        return status;
    }
    if (len != wanted) {
        return dd_error_set(err, DD_PROTOCOL,
                            "rank %d left %zu bytes of unique ids, %zu are needed: do all ranks use the "
                            "same number of roots?",
                            name_of(e->m, 0), len, wanted);
    }
    memcpy(e->ids, tail, wanted);
    return DD_OK;
}

static dd_status
meet_as_other(const encounter *e, dd_error *err)
{
    dd_blob value = {0};
    dd_status status = e->store->ops->get(e->store, dd_bytes_of_string(VERDICT_KEY), &value, &e->wait, err);
    status = status == DD_OK ? accept(e, dd_blob_view(&value), err) : explain(e, status, err);
    dd_blob_fini(&value);
    return status;
}

/* The first rank has read it. */
static void
take_card_back(const encounter *e)
{
    char buffer[KEY_MAX];
    bool is_deleted;
    dd_status status =
        e->store->ops->delete_key(e->store, card_key(e->m->rank, buffer), &is_deleted, &e->wait, NULL);
    (void)status; /* it does no harm where it is */
}

static dd_status
open_store(const dd_nccl_meeting *m, dd_store **store, dd_error *err)
{
    char use[32];
    int len = snprintf(use, sizeof use, "/%llu", (unsigned long long)m->use);
    dd_blob prefix = {0};
    dd_status status = join(m->prefix.data, m->prefix.len, dd_bytes_of(use, (size_t)len), &prefix, err);
    if (status == DD_OK) {
        status = dd_prefix_store_open(store, dd_blob_view(&prefix), m->store, err);
    }
    dd_blob_fini(&prefix);
    return status;
}

dd_status
dd_nccl_meet(const dd_nccl_meeting *m, dd_nccl_unique_id *ids, int nids, const atomic_bool *stop,
             const dd_wait *wait, dd_error *err)
{
    encounter e = {.m = m, .ids = ids, .nids = nids, .stop = stop, .outer = wait};
    e.wait = (dd_wait){wait->start_ns, wait->deadline_ns, is_stopped, &e};
    if (m->size == 1) {
        return dd_nccl_make_unique_id(m->lib, ids, err);
    }
    dd_status status = open_store(m, &e.store, err);
    if (status != DD_OK) {
        return status;
    }
    status = leave_card(&e, err);
    if (status == DD_OK) {
        status = m->rank == 0 ? meet_as_first(&e, err) : meet_as_other(&e, err);
        if (status == DD_OK) {
            take_card_back(&e);
        }
    } else {
        status = explain(&e, status, err);
    }
    dd_store_release(e.store);
    return status;
}
