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
/* Between two looks at what is left of an earlier meeting; the others are still on their way. */
#define NAP_NS (10 * DD_NS_PER_MS)

/* What a rank leaves; a root's id, or its reason, follows. Native numbers: NCCL itself wants all hosts to be of one kind. */
typedef struct card {
    int32_t version;
    int32_t device;
    int64_t pid;
    char host[DD_HOST_NAME_MAX];
    int32_t status;  /* of making the id */
    int32_t is_gone; /* the rank had come in vain, and left */
    uint32_t ticket; /* of this time it came */
    uint32_t heard;  /* the first rank's ticket in the verdict that sent it away; 0: none did */
} card;

/* What the first rank leaves; a ticket for each rank, 0 for those that have not come, and the ids, or the reason, follow. */
typedef struct verdict {
    int32_t status;
    int32_t size;    /* of the meeting */
    int32_t culprit; /* its rank in the group, or -1 */
    int32_t unused;
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
    dd_wait wait;      /* the caller's, which also ends with stop */
    uint32_t ticket;   /* ours */
    uint32_t heard;    /* see card */
    uint32_t *tickets; /* of all; the first rank has them */
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

/* Never twice the same for a rank, and not 0. */
static uint32_t
make_ticket(void)
{
    uint64_t mixed = ((uint64_t)dd_clock_now_ns() ^ (uint64_t)getpid() << 40) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(mixed >> 32) | 1;
}

/* ---- cards */

static dd_status
write_card(const encounter *e, const card *mine, dd_bytes tail, const dd_wait *wait, dd_error *err)
{
    char key[KEY_MAX];
    dd_blob value = {0};
    dd_status status = join(mine, sizeof *mine, tail, &value, err);
    if (status == DD_OK) {
        status = e->store->ops->set(e->store, card_key(e->m->rank, key), dd_blob_view(&value), wait, err);
    }
    dd_blob_fini(&value);
    return status;
}

/* What this rank has left here when it came in vain. */
static dd_status
find_old_card(encounter *e, dd_error *err)
{
    char buffer[KEY_MAX];
    dd_bytes key = card_key(e->m->rank, buffer);
    bool is_there = false;
    dd_status status = e->store->ops->check(e->store, &key, 1, &is_there, &e->wait, err);
    if (status != DD_OK || !is_there) {
        return status;
    }
    dd_blob value = {0};
    status = e->store->ops->get(e->store, key, &value, &e->wait, err);
    if (status == DD_OK && value.len >= sizeof(card)) {
        card old;
        memcpy(&old, value.data, sizeof old);
        e->heard = old.heard;
    }
    dd_blob_fini(&value);
    return status;
}

/* The error of making the id goes with the card: all are to hear it. */
static dd_status
leave_card(const encounter *e, dd_error *err)
{
    const dd_nccl_meeting *m = e->m;
    card mine = {.version = m->lib->version, .device = m->device, .pid = getpid(), .ticket = e->ticket};
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
    return write_card(e, &mine, tail, &e->wait, err);
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
    card root = {0};
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

/* False: there is none. */
static bool
look_at_card(const encounter *e, int rank, card *out, const dd_wait *wait)
{
    char buffer[KEY_MAX];
    dd_bytes key = card_key(rank, buffer);
    bool is_there = false;
    dd_blob value = {0};
    if (e->store->ops->check(e->store, &key, 1, &is_there, wait, NULL) == DD_OK && is_there) {
        is_there = e->store->ops->get(e->store, key, &value, wait, NULL) == DD_OK &&
                   read_card(e, rank, dd_blob_view(&value), out, NULL) == DD_OK;
    }
    dd_blob_fini(&value);
    return is_there;
}

/* The first rank that has left; -1: none has. */
static int
find_gone(const encounter *e, const dd_wait *wait)
{
    for (int rank = 0; rank < e->m->size; rank++) {
        card one = {0};
        if (look_at_card(e, rank, &one, wait) && one.is_gone) {
            return rank;
        }
    }
    return -1;
}

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
    int returning = nmissing == 0 && e->m->rank == 0 ? find_gone(e, &last) : -1;
    if (returning >= 0) {
        first = name_of(e->m, returning);
        status = dd_error_set(err, DD_OP_TIMED_OUT,
                              "meeting for an NCCL communicator timed out after %.3f s: rank %d, which was "
                              "here in vain before, has not come again",
                              waited_s, first);
    } else if (nmissing == 0) {
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

/* Some have been here before, in vain, and have not come again. */
static bool
have_left(const encounter *e, const dd_blob_list *cards)
{
    for (int rank = 0; rank < e->m->size; rank++) {
        card one = {0};
        if (read_card(e, rank, dd_blob_view(&cards->items[rank]), &one, NULL) == DD_OK && one.is_gone) {
            return true;
        }
    }
    return false;
}

static dd_status
await_all_cards(const encounter *e, dd_blob_list *cards, dd_error *err)
{
    for (;;) {
        dd_status status = read_all_cards(e, cards, err);
        if (status != DD_OK || !have_left(e, cards)) {
            return status;
        }
        dd_blob_list_fini(cards);
        if (dd_wait_is_over(&e->wait)) {
            return DD_TIMED_OUT;
        }
        status = dd_wait_sleep(&e->wait, NAP_NS, err);
        if (status != DD_OK) {
            return status;
        }
    }
}

/* Of all cards, or, when not all have come, of those that are there. */
static void
take_tickets(const encounter *e, const dd_blob_list *cards)
{
    dd_wait last = dd_wait_after(LAST_WORDS_NS);
    bool is_whole = cards->count == (size_t)e->m->size;
    for (int rank = 0; rank < e->m->size && !dd_wait_is_over(&last); rank++) {
        card one = {0};
        bool is_there = is_whole ? read_card(e, rank, dd_blob_view(&cards->items[rank]), &one, NULL) == DD_OK
                                 : look_at_card(e, rank, &one, &last);
        e->tickets[rank] = is_there ? one.ticket : 0;
    }
}

static dd_status
leave_verdict(const encounter *e, dd_status found, const dd_error *why, dd_error *err)
{
    verdict v = {.status = (int32_t)found, .size = e->m->size, .culprit = -1};
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
    dd_bytes tickets = dd_bytes_of(e->tickets, (size_t)e->m->size * sizeof *e->tickets);
    dd_status status = join(&v, sizeof v, tickets, &value, err);
    if (status == DD_OK) {
        status = dd_blob_append(&value, tail.data, tail.len, err);
    }
    if (status == DD_OK) {
        status =
            e->store->ops->set(e->store, dd_bytes_of_string(VERDICT_KEY), dd_blob_view(&value), &wait, err);
    }
    dd_blob_fini(&value);
    return status;
}

static dd_status
meet_as_first(encounter *e, dd_error *err)
{
    e->tickets = dd_mem_zalloc((size_t)e->m->size * sizeof *e->tickets);
    if (e->tickets == NULL) {
        return dd_error_no_memory(err, (size_t)e->m->size * sizeof *e->tickets);
    }
    dd_error why = {0};
    dd_blob_list cards = {0};
    dd_status found = await_all_cards(e, &cards, &why);
    take_tickets(e, &cards);
    found = found == DD_OK ? judge(e, &cards, &why) : explain(e, found, &why);
    dd_blob_list_fini(&cards);
    dd_status left = leave_verdict(e, found, &why, err);
    dd_mem_free(e->tickets);
    return found != DD_OK ? dd_error_copy(err, &why) : left;
}

/* Not of an earlier meeting here: made when this rank had come, or a failure that it has not heard of yet. */
static bool
is_for_us(encounter *e, const verdict *v, const uint8_t *tickets)
{
    uint32_t first = 0;
    uint32_t own = 0;
    memcpy(&first, tickets, sizeof first);
    memcpy(&own, tickets + (size_t)e->m->rank * sizeof own, sizeof own);
    bool is = own == e->ticket || (own == 0 && v->status != DD_OK && first != e->heard);
    if (is && v->status != DD_OK) {
        e->heard = first;
    }
    return is;
}

/* `is_ours` false: it is an earlier meeting's. */
static dd_status
accept(encounter *e, dd_bytes value, bool *is_ours, dd_error *err)
{
    verdict v = {0};
    size_t head = sizeof v + (size_t)e->m->size * sizeof e->ticket;
    *is_ours = true;
    if (value.len >= sizeof v) {
        memcpy(&v, value.data, sizeof v);
        *is_ours = v.size == e->m->size;
    }
    if (!*is_ours) {
        return DD_OK;
    }
    if (value.len < head) {
        return dd_error_set(err, DD_PROTOCOL,
                            "rank %d left %zu bytes as NCCL's unique ids, at least %zu are needed",
                            name_of(e->m, 0), value.len, head);
    }
    *is_ours = is_for_us(e, &v, value.data + sizeof v);
    if (!*is_ours) {
        return DD_OK;
    }
    v.culprit_host[sizeof v.culprit_host - 1] = '\0';
    const uint8_t *tail = value.data + head;
    size_t len = value.len - head;
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
meet_as_other(encounter *e, dd_error *err)
{
    for (;;) {
        dd_blob value = {0};
        bool is_ours = true;
        dd_status status =
            e->store->ops->get(e->store, dd_bytes_of_string(VERDICT_KEY), &value, &e->wait, err);
        bool is_there = status == DD_OK;
        if (is_there) {
            status = accept(e, dd_blob_view(&value), &is_ours, err);
        }
        dd_blob_fini(&value);
        if (is_there && is_ours) {
            return status;
        }
        if (is_there) { /* the first rank is not here yet */
            status = dd_wait_is_over(&e->wait) ? DD_TIMED_OUT : dd_wait_sleep(&e->wait, NAP_NS, err);
        }
        if (status != DD_OK) {
            return explain(e, status, err);
        }
    }
}

/* In vain: whoever meets here again must not take the card for one of that time. */
static void
mark_card(const encounter *e, dd_status why)
{
    if (why == DD_STORE || why == DD_NETWORK || why == DD_NETWORK_TIMED_OUT) {
        return;
    }
    dd_wait last = dd_wait_after(LAST_WORDS_NS);
    dd_status status = write_card(e, &(card){.is_gone = 1, .ticket = e->ticket, .heard = e->heard},
                                  (dd_bytes){0}, &last, NULL);
    (void)status; /* the failure is what counts */
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
    encounter e = {.m = m, .ids = ids, .nids = nids, .stop = stop, .outer = wait, .ticket = make_ticket()};
    e.wait = (dd_wait){.start_ns = wait->start_ns,
                       .deadline_ns = wait->deadline_ns,
                       .is_interrupted = is_stopped,
                       .ctx = &e};
    if (m->size == 1) {
        return dd_nccl_make_unique_id(m->lib, ids, err);
    }
    dd_status status = open_store(m, &e.store, err);
    if (status != DD_OK) {
        return status;
    }
    status = find_old_card(&e, err);
    if (status == DD_OK) {
        status = leave_card(&e, err);
    }
    if (status != DD_OK) {
        status = explain(&e, status, err);
    } else {
        status = m->rank == 0 ? meet_as_first(&e, err) : meet_as_other(&e, err);
    }
    if (status == DD_OK) {
        take_card_back(&e);
    } else {
        mark_card(&e, status);
    }
    dd_store_release(e.store);
    return status;
}
