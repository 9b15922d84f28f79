#include "fake_carrier.h"

#include "check.h"
#include "core/list.h"
#include "plain_library.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Guards a library's communicators, and the memory that it keeps even after it is finalised. */
static pthread_mutex_t library_mutex = PTHREAD_MUTEX_INITIALIZER;

/* A rank's slot in a communicator. */
typedef struct fake_slot {
    dd_carried_call call;
    bool is_started;
    bool is_done;
} fake_slot;

struct fake_comm {
    pthread_mutex_t mutex; /* guards the fields below */
    int nranks;
    fake_slot slots[FAKE_MAX_RANKS];
    dd_list posted_messages; /* in the order in which they were posted */
};

typedef struct fake_carrier {
    dd_carrier base; /* must be first */
    fake_library *library;
    fake_comm *comm;
    int rank;
} fake_carrier;

/* A message that has been posted and not completed. */
typedef struct fake_message {
    dd_list link;
    dd_carried_message message;
    int poster;
    bool is_done;
    bool is_cut;
} fake_message;

static fake_script *
script_of(const dd_carrier *base)
{
    return &((const fake_carrier *)base)->library->script;
}

static fake_counts *
counts_of(const dd_carrier *base)
{
    const fake_carrier *carrier = (const fake_carrier *)base;
    return &carrier->library->counts[carrier->rank];
}

static bool
is_among(unsigned bits, const dd_carrier *base)
{
    return (bits >> ((const fake_carrier *)base)->rank & 1) != 0;
}

/* ---- collectives */

static bool
has(const dd_carrier *base, const dd_carried_call *call)
{
    return (atomic_load(&script_of(base)->refused) >> call->coll & 1) == 0;
}

/* Once all ranks have started, carry out the collective for all of them. */
static void
run_if_all_have_called(const fake_carrier *carrier)
{
    fake_comm *comm = carrier->comm;
    const dd_carried_call *calls[FAKE_MAX_RANKS];
    for (int rank = 0; rank < comm->nranks; rank++) {
        if (!comm->slots[rank].is_started || comm->slots[rank].is_done) {
            return;
        }
        calls[rank] = &comm->slots[rank].call;
    }
    if (atomic_load(&carrier->library->script.is_stuck)) {
        return;
    }
    plain_library_do(calls, comm->nranks);
    for (int rank = 0; rank < comm->nranks; rank++) {
        comm->slots[rank].is_done = true;
    }
}

static dd_status
start(dd_carrier *base, const dd_carried_call *call, dd_carried *carried, dd_error *err)
{
    fake_carrier *carrier = (fake_carrier *)base;
    fake_slot *slot = &carrier->comm->slots[carrier->rank];
    atomic_fetch_add(&counts_of(base)->nstarts, 1);
    if (is_among(script_of(base)->failing_starts, base)) {
        return dd_error_set(err, DD_BACKEND, "the library does not feel like it");
    }
    pthread_mutex_lock(&carrier->comm->mutex);
    CHECK(!slot->is_started); /* one collective at a time */
    *slot = (fake_slot){.call = *call, .is_started = true};
    memcpy(carried->state, &slot, sizeof(void *));
    run_if_all_have_called(carrier);
    pthread_mutex_unlock(&carrier->comm->mutex);
    return DD_OK;
}

static void
check_carried(const dd_carried *carried, const fake_slot *slot)
{
    CHECK(memcmp(carried->state, &slot, sizeof(void *)) == 0);
}

/* A caller that passes no error has stopped waiting. */
static dd_status
look(dd_carrier *base, dd_carried *carried, bool *is_done, dd_error *err)
{
    fake_carrier *carrier = (fake_carrier *)base;
    fake_slot *slot = &carrier->comm->slots[carrier->rank];
    bool is_freed = err == NULL && atomic_load(&script_of(base)->ends_when_left);
    bool has_failed = is_among(script_of(base)->failing_looks, base);
    pthread_mutex_lock(&carrier->comm->mutex);
    check_carried(carried, slot);
    CHECK(slot->is_started);
    run_if_all_have_called(carrier);
    *is_done = slot->is_done || is_freed;
    slot->is_started = !*is_done && !has_failed;
    pthread_mutex_unlock(&carrier->comm->mutex);
    if (has_failed) {
        return dd_error_set(err, DD_BACKEND, "the library has lost its thread");
    }
    if (*is_done) {
        atomic_fetch_add(&counts_of(base)->nends, 1);
    }
    return DD_OK;
}

static bool
leave(dd_carrier *base, dd_carried *carried)
{
    fake_carrier *carrier = (fake_carrier *)base;
    fake_slot *slot = &carrier->comm->slots[carrier->rank];
    bool holds_on = atomic_load(&script_of(base)->holds_on);
    atomic_fetch_add(&counts_of(base)->nleaves, 1);
    pthread_mutex_lock(&carrier->comm->mutex);
    check_carried(carried, slot);
    CHECK(slot->is_started);
    slot->is_started = false;
    if (holds_on) {
        pthread_mutex_lock(&library_mutex);
        carrier->library->held[carrier->rank] = slot->call;
        pthread_mutex_unlock(&library_mutex);
    }
    pthread_mutex_unlock(&carrier->comm->mutex);
    return !holds_on;
}

void
fake_library_touch_held(fake_library *library, int rank)
{
    pthread_mutex_lock(&library_mutex);
    const dd_carried_call *call = &library->held[rank];
    if (CHECK(call->output != NULL) && call->output != NULL) {
        memcpy(call->output, call->input, call->count * dd_dtype_size(call->dtype));
    }
    pthread_mutex_unlock(&library_mutex);
}

/* ---- messages */

static bool
has_tag(const dd_carrier *base, uint64_t tag)
{
    return script_of(base)->has_messages && tag <= script_of(base)->tag_max;
}

static bool
do_match(const fake_message *receive, const fake_message *sent)
{
    bool is_from_there = receive->message.rank == DD_ANY_RANK || receive->message.rank == sent->poster;
    return !receive->message.is_send && sent->message.is_send && !receive->is_done && !sent->is_done &&
           sent->message.rank == receive->poster && is_from_there &&
           receive->message.tag == sent->message.tag;
}

static void
deliver(fake_message *receive, fake_message *sent)
{
    receive->is_cut = sent->message.nbytes > receive->message.nbytes;
    receive->is_done = sent->is_done = true;
    receive->message.source = sent->poster;
    receive->message.received = sent->message.nbytes;
    if (!receive->is_cut && sent->message.nbytes > 0) {
        memcpy(receive->message.data, sent->message.data, sent->message.nbytes);
    }
}

static void
deliver_all(const fake_carrier *carrier)
{
    dd_list *all = &carrier->comm->posted_messages;
    for (dd_list *to = all->next; to != all; to = to->next) {
        for (dd_list *from = all->next; from != all; from = from->next) {
            fake_message *receive = DD_CONTAINER_OF(to, fake_message, link);
            fake_message *sent = DD_CONTAINER_OF(from, fake_message, link);
            if (do_match(receive, sent)) {
                deliver(receive, sent);
            }
        }
    }
}

static fake_message *
message_of(const dd_carried *carried)
{
    fake_message *posted;
    memcpy(&posted, carried->state, sizeof(void *));
    return posted;
}

static dd_status
start_message(dd_carrier *base, const dd_carried_message *message, dd_carried *carried, dd_error *err)
{
    fake_carrier *carrier = (fake_carrier *)base;
    atomic_fetch_add(&counts_of(base)->nmessages, 1);
    if (is_among(script_of(base)->failing_starts, base)) {
        return dd_error_set(err, DD_BACKEND, "the library takes no messages");
    }
    fake_message *posted = calloc(1, sizeof *posted);
    posted->message = *message;
    posted->poster = carrier->rank;
    memcpy(carried->state, &posted, sizeof(void *));
    pthread_mutex_lock(&carrier->comm->mutex);
    dd_list_push_back(&carrier->comm->posted_messages, &posted->link);
    pthread_mutex_unlock(&carrier->comm->mutex);
    return DD_OK;
}

static dd_status
poll_message(dd_carrier *base, dd_carried *carried, dd_carried_message *message, bool *is_done, dd_error *err)
{
    fake_carrier *carrier = (fake_carrier *)base;
    fake_message *posted = message_of(carried);
    pthread_mutex_lock(&carrier->comm->mutex);
    deliver_all(carrier);
    *is_done = posted->is_done;
    if (*is_done) {
        dd_list_remove(&posted->link);
    }
    pthread_mutex_unlock(&carrier->comm->mutex);
    if (!*is_done) {
        return DD_OK;
    }
    bool is_cut = posted->is_cut;
    if (!message->is_send) {
        message->source = posted->message.source;
        message->received = posted->message.received;
    }
    free(posted);
    return is_cut ? dd_error_set(err, DD_INVALID_ARGUMENT, "the letter is too large for its box") : DD_OK;
}

static bool
cancel_message(dd_carrier *base, dd_carried *carried)
{
    fake_carrier *carrier = (fake_carrier *)base;
    fake_message *posted = message_of(carried);
    atomic_fetch_add(&counts_of(base)->nleft_messages, 1);
    pthread_mutex_lock(&carrier->comm->mutex);
    dd_list_remove(&posted->link);
    pthread_mutex_unlock(&carrier->comm->mutex);
    free(posted);
    return !atomic_load(&script_of(base)->holds_on);
}

/* ---- creating and closing */

static void
close_carrier(dd_carrier *base, bool is_well)
{
    fake_counts *counts = counts_of(base);
    atomic_fetch_add(is_well ? &counts->nclosed_cleanly : &counts->nclosed_after_failure, 1);
    free(base);
}

static const dd_carrier_ops OPS = {
    .has = has,
    .start = start,
    .poll = look,
    .abandon = leave,
    .has_tag = has_tag,
    .start_message = start_message,
    .poll_message = poll_message,
    .cancel_message = cancel_message,
    .close = close_carrier,
};

static fake_comm *
new_comm(fake_library *library, int nranks)
{
    fake_comm *comm = calloc(1, sizeof *comm);
    comm->nranks = nranks;
    pthread_mutex_init(&comm->mutex, NULL);
    dd_list_init(&comm->posted_messages);
    pthread_mutex_lock(&library_mutex);
    library->comms[library->ncomms++] = comm;
    pthread_mutex_unlock(&library_mutex);
    return comm;
}

/* Order this thread after rank 0's writes. The thread sanitizer does not see that rank 0's message
 * follows them, because the shared memory has a different address on each rank. */
static void
synchronize_with_library(void)
{
    pthread_mutex_lock(&library_mutex);
    pthread_mutex_unlock(&library_mutex);
}

/* Send rank 0's communicator to the other ranks. */
static dd_status
share_comm(fake_library *library, dd_group *group, fake_comm **comm, const dd_wait *wait, dd_error *err)
{
    dd_block block = {.data = comm, .nbytes = sizeof(void *)};
    dd_coll_args args = {.coll = DD_COLL_BROADCAST,
                         .reduction = {.dtype = DD_DTYPE_UINT8},
                         .inputs = &block,
                         .outputs = &block};
    dd_call_options options = {.timeout_ns = -1};
    bool is_maker = library->script.is_alone || dd_group_rank(group) == 0;
    *comm = is_maker ? new_comm(library, dd_group_size(group)) : NULL;
    dd_status status =
        library->script.is_alone ? DD_OK : dd_group_collective_and_wait(group, &args, &options, wait, err);
    synchronize_with_library();
    return status;
}

static dd_status
make(dd_carrier_library *base, dd_group *group, dd_carrier **out, const dd_wait *wait, dd_error *err)
{
    fake_library *library = (fake_library *)base;
    int rank = dd_group_rank(group);
    fake_comm *comm = NULL;
    CHECK(dd_group_carrier(group) == NULL);
    atomic_fetch_add(&library->counts[rank].nmakes, 1);
    if ((library->script.failing_makes >> rank & 1) != 0) {
        return dd_error_set(err, DD_BACKEND, "the library cannot be started");
    }
    dd_status status = share_comm(library, group, &comm, wait, err);
    if (status != DD_OK) {
        return status;
    }
    fake_carrier *carrier = calloc(1, sizeof *carrier);
    *carrier = (fake_carrier){
        .base = {.ops = &OPS, .library = base}, .library = library, .comm = comm, .rank = rank};
    *out = &carrier->base;
    return DD_OK;
}

void
fake_library_init(fake_library *library)
{
    memset(library, 0, sizeof *library);
    library->base = (dd_carrier_library){.name = "fake", .version = "Fake 1.0", .path = "", .make = make};
    library->script.has_messages = true;
    library->script.tag_max = 1000;
}

void
fake_library_fini(fake_library *library)
{
    for (int i = 0; i < library->ncomms; i++) {
        fake_comm *comm = library->comms[i];
        CHECK(dd_list_is_empty(&comm->posted_messages));
        pthread_mutex_destroy(&comm->mutex);
        free(comm);
    }
}
