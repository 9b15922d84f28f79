/* How the ranks of a group find each other in the store.
 *
 * Under "<name>/" there is a generation, and under "<name>/<generation>/" one meeting: its size and who said
 * so first ("size": the number of ranks, the rank, a newline and what that rank publishes), who has come
 * ("rank/<r>": a nonce and a card), how many ("count"), and how it ended ("end", see group_meet_end.c).
 *
 * A meeting that ended is never joined: its name can be used again at once, and one that was given up does
 * not poison the next. */
#include "group/group_meet_internal.h"

#include "core/mem.h"
#include "net/auth.h"
#include "store/tcp_store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dd_status
meeting_decode_card(dd_bytes published, dd_card *card, dd_error *err)
{
    if (published.len < MEETING_NONCE_BYTES) {
        return dd_error_set(err, DD_PROTOCOL, "a published card has only %zu bytes", published.len);
    }
    return dd_card_decode(
        dd_bytes_of(published.data + MEETING_NONCE_BYTES, published.len - MEETING_NONCE_BYTES), card, err);
}

const char *
meeting_print_member(int rank, const dd_card *card, char out[128])
{
    char who[96];
    snprintf(out, 128, "rank %d (%s)", rank, dd_card_print(card, who));
    return out;
}

static dd_bytes
generation_key(meeting_place *place)
{
    snprintf(place->key, sizeof place->key, "dldist/%.*s/generation", (int)place->name.len,
             (const char *)place->name.data);
    return dd_bytes_of_string(place->key);
}

dd_bytes
meeting_part_key(meeting_place *place, uint64_t generation, const char *what)
{
    snprintf(place->key, sizeof place->key, "dldist/%.*s/%" PRIu64 "/%s", (int)place->name.len,
             (const char *)place->name.data, generation, what);
    return dd_bytes_of_string(place->key);
}

static dd_bytes
meeting_key(meeting_place *place, const char *what)
{
    return meeting_part_key(place, place->generation, what);
}

dd_bytes
meeting_rank_key(meeting_place *place, uint64_t generation, const char *what, int rank)
{
    char part[48];
    snprintf(part, sizeof part, "%s/%d", what, rank);
    return meeting_part_key(place, generation, part);
}

static dd_bytes
rank_key(meeting_place *place, const char *what, int rank)
{
    return meeting_rank_key(place, place->generation, what, rank);
}

static dd_status
read_generation(meeting_place *place, dd_error *err)
{
    dd_blob value = {0};
    bool is_found = false;
    dd_status status =
        place->store->ops->try_get(place->store, generation_key(place), &value, &is_found, place->wait, err);
    char text[24] = "";
    if (status == DD_OK && is_found) {
        memcpy(text, value.data, value.len < sizeof text - 1 ? value.len : sizeof text - 1);
    }
    dd_blob_fini(&value);
    if (status == DD_OK) {
        place->generation = strtoull(text, NULL, 10);
        place->first_generation = place->has_begun ? place->first_generation : place->generation;
        place->has_begun = true;
    }
    return status;
}

/* Whoever sees that a meeting has ended moves the name on; only one of them succeeds. */
static dd_status
leave_generation(meeting_place *place, dd_error *err)
{
    char now[24] = "";
    char next[24];
    if (place->generation > 0) {
        snprintf(now, sizeof now, "%" PRIu64, place->generation);
    }
    snprintf(next, sizeof next, "%" PRIu64, place->generation + 1);
    dd_blob value = {0};
    dd_status status =
        place->store->ops->compare_set(place->store, generation_key(place), dd_bytes_of_string(now),
                                       dd_bytes_of_string(next), &value, place->wait, err);
    dd_blob_fini(&value);
    return status;
}

/* The first who ends a meeting settles how. */
static dd_status
end_meeting(meeting_place *place, dd_bytes end, dd_error *err)
{
    dd_blob value = {0};
    dd_status status = place->store->ops->compare_set(place->store, meeting_key(place, "end"),
                                                      dd_bytes_of_string(""), end, &value, place->wait, err);
    dd_blob_fini(&value);
    return status;
}

static dd_status
call_off(meeting_place *place, dd_error *err)
{
    return end_meeting(place, dd_bytes_of_string(MEETING_END_OFF), err);
}

static void
prepend_group(const meeting_place *place, dd_error *err)
{
    dd_error_prepend(err, "group \"%.*s\" (rank %d of %d)", (int)place->name.len,
                     (const char *)place->name.data, place->rank, place->size);
}

/* All ranks that have come raise the error. */
static dd_status
fail_meeting(meeting_place *place, const dd_error *error, dd_error *err)
{
    char end[MEETING_FAILURE_MAX];
    size_t len = meeting_encode_failure(error, end);
    dd_status status = end_meeting(place, dd_bytes_of(end, len), err);
    return status == DD_OK ? leave_generation(place, err) : status;
}

/* Calls the meeting off if the process of `card`, which has come to it, is dead. One on another host is never known to be dead so
 * soon. */
static dd_status
abandon_if_dead(meeting_place *place, const dd_card *card, const dd_card *own, bool *is_abandoned,
                dd_error *err)
{
    dd_presence presence = DD_PRESENCE_THERE;
    dd_status status = DD_OK;
    if (memcmp(&card->uid, &own->uid, sizeof own->uid) != 0) {
        status = dd_card_look_for(card, own, &presence, place->wait, err);
    }
    *is_abandoned = presence == DD_PRESENCE_NONE;
    if (status != DD_OK || !*is_abandoned) {
        return status;
    }
    status = call_off(place, err);
    return status == DD_OK ? leave_generation(place, err) : status;
}

typedef enum join_outcome {
    JOINED,
    MEETING_OVER, /* go to the next generation */
} join_outcome;

static dd_status
has_ended(meeting_place *place, bool *is_over, dd_error *err)
{
    dd_blob end = {0};
    dd_status status =
        place->store->ops->try_get(place->store, meeting_key(place, "end"), &end, is_over, place->wait, err);
    dd_blob_fini(&end);
    return status;
}

/* The place of this rank is taken: by the meeting before this one, by a dead process, or by a live one. */
static dd_status
examine_taken(meeting_place *place, dd_bytes taken, dd_bytes own, join_outcome *outcome, dd_error *err)
{
    bool is_over = false;
    dd_status status = has_ended(place, &is_over, err);
    if (status != DD_OK) {
        return status;
    }
    *outcome = MEETING_OVER;
    if (is_over) {
        return leave_generation(place, err);
    }
    dd_card card;
    dd_card own_card;
    if (meeting_decode_card(taken, &card, NULL) != DD_OK ||
        meeting_decode_card(own, &own_card, NULL) != DD_OK) {
        return dd_error_set(err, DD_STORE,
                            "the store holds something else where rank %d of group \"%.*s\" should be",
                            place->rank, (int)place->name.len, (const char *)place->name.data);
    }
    bool is_abandoned = false;
    status = abandon_if_dead(place, &card, &own_card, &is_abandoned, err);
    if (status != DD_OK || is_abandoned) {
        return status;
    }
    char who[96];
    dd_error_set(err, DD_INVALID_ARGUMENT, "rank %d of group \"%.*s\" is taken: by %s", place->rank,
                 (int)place->name.len, (const char *)place->name.data, dd_card_print(&card, who));
    dd_error_blame(err, place->rank, card.host, card.pid);
    return DD_INVALID_ARGUMENT;
}

/* Another rank has come with another number of ranks. If it is dead, what it began is abandoned; else
 * neither it nor this rank can ever meet the ranks it waits for, and both are told. */
static dd_status
settle_sizes(meeting_place *place, dd_bytes said, dd_bytes own, join_outcome *outcome, dd_error *err)
{
    bool is_over = false;
    dd_status status = has_ended(place, &is_over, err);
    if (status != DD_OK || is_over) {
        *outcome = MEETING_OVER;
        return status == DD_OK ? leave_generation(place, err) : status;
    }
    char line[32] = "";
    memcpy(line, said.data, said.len < sizeof line - 1 ? said.len : sizeof line - 1);
    const char *newline = strchr(line, '\n');
    size_t len = newline != NULL ? (size_t)(newline - line) + 1 : 0;
    int size = 0;
    int rank = 0;
    dd_card card;
    dd_card own_card;
    if (len == 0 || sscanf(line, "%d %d", &size, &rank) != 2 ||
        meeting_decode_card(dd_bytes_of(said.data + len, said.len - len), &card, NULL) != DD_OK ||
        meeting_decode_card(own, &own_card, NULL) != DD_OK) {
        return dd_error_set(err, DD_STORE,
                            "the store holds something else where the size of group \"%.*s\" should be",
                            (int)place->name.len, (const char *)place->name.data);
    }
    bool is_abandoned = false;
    status = abandon_if_dead(place, &card, &own_card, &is_abandoned, err);
    if (status != DD_OK || is_abandoned) {
        *outcome = is_abandoned ? MEETING_OVER : *outcome;
        return status;
    }
    char first[128];
    char second[128];
    dd_error error;
    dd_error_set(&error, DD_MISMATCH, "%s says that it has %d ranks, and %s that it has %d",
                 meeting_print_member(rank, &card, first), size,
                 meeting_print_member(place->rank, &own_card, second), place->size);
    dd_error_blame(&error, place->rank, own_card.host, own_card.pid);
    status = fail_meeting(place, &error, err);
    if (status == DD_OK) {
        dd_error_blame(&error, rank, card.host, card.pid);
        prepend_group(place, &error);
        status = dd_error_copy(err, &error);
    }
    return status;
}

/* Before a place is taken, which somebody else may have a right to. */
static dd_status
agree_on_size(meeting_place *place, dd_bytes own, join_outcome *outcome, dd_error *err)
{
    char line[32];
    snprintf(line, sizeof line, "%d %d\n", place->size, place->rank);
    dd_blob mine = {0};
    dd_blob said = {0};
    dd_status status = dd_blob_append(&mine, line, strlen(line), err);
    if (status == DD_OK) {
        status = dd_blob_append(&mine, own.data, own.len, err);
    }
    if (status == DD_OK) {
        status =
            place->store->ops->compare_set(place->store, meeting_key(place, "size"), dd_bytes_of_string(""),
                                           dd_blob_view(&mine), &said, place->wait, err);
    }
    size_t len = strcspn(line, " ") + 1;
    if (status == DD_OK && (said.len < len || memcmp(said.data, line, len) != 0)) {
        status = settle_sizes(place, dd_blob_view(&said), own, outcome, err);
    }
    dd_blob_fini(&said);
    dd_blob_fini(&mine);
    return status;
}

static dd_status
join(meeting_place *place, dd_bytes card, join_outcome *outcome, dd_error *err)
{
    dd_status status = agree_on_size(place, card, outcome, err);
    if (status != DD_OK || *outcome == MEETING_OVER) {
        return status;
    }
    dd_blob value = {0};
    status = place->store->ops->compare_set(place->store, rank_key(place, "rank", place->rank),
                                            dd_bytes_of_string(""), card, &value, place->wait, err);
    if (status == DD_OK && !dd_bytes_equal(dd_blob_view(&value), card)) {
        status = examine_taken(place, dd_blob_view(&value), card, outcome, err);
    }
    dd_blob_fini(&value);
    return status;
}

static dd_status
get_cards_one_by_one(meeting_place *place, dd_blob_list *cards, dd_error *err)
{
    dd_status status = dd_blob_list_init(cards, (size_t)place->size, err);
    for (int rank = 0; rank < place->size && status == DD_OK; rank++) {
        status = place->store->ops->get(place->store, rank_key(place, "rank", rank), &cards->items[rank],
                                        place->wait, err);
    }
    return status;
}

/* In one request: with many ranks it is here that a meeting takes its time. */
static dd_status
get_cards_at_once(meeting_place *place, dd_blob_list *cards, dd_error *err)
{
    size_t size = (size_t)place->size;
    char(*texts)[MEETING_KEY_MAX] = dd_mem_alloc_array(size, sizeof *texts);
    dd_bytes *keys = dd_mem_alloc_array(size, sizeof *keys);
    dd_status status = texts != NULL && keys != NULL ? DD_OK : dd_error_no_memory(err, size * sizeof *texts);
    for (size_t rank = 0; rank < size && status == DD_OK; rank++) {
        dd_bytes key = rank_key(place, "rank", (int)rank);
        memcpy(texts[rank], key.data, key.len);
        keys[rank] = dd_bytes_of(texts[rank], key.len);
    }
    if (status == DD_OK) {
        status = place->store->ops->multi_get(place->store, keys, size, cards, place->wait, err);
    }
    dd_mem_free(keys);
    dd_mem_free(texts);
    return status;
}

static dd_status
get_cards(meeting_place *place, dd_blob_list *cards, dd_error *err)
{
    return place->store->ops->has_extended_api(place->store) ? get_cards_at_once(place, cards, err)
                                                             : get_cards_one_by_one(place, cards, err);
}

/* The last who comes names the group, ends the meeting and hands everybody all cards. */
static dd_status
count_in(meeting_place *place, dd_error *err)
{
    int64_t count = 0;
    dd_status status =
        place->store->ops->add(place->store, meeting_key(place, "count"), 1, &count, place->wait, err);
    if (status != DD_OK || count < place->size) {
        return status;
    }
    uint64_t id = 0;
    status = dd_auth_random(&id, sizeof id, err);
    if (status != DD_OK) {
        return status;
    }
    dd_blob_list cards = {0};
    dd_blob end = {0};
    dd_blob value = {0};
    status = get_cards(place, &cards, err);
    if (status == DD_OK) {
        status = meeting_encode_end(id, &cards, &end, err);
    }
    if (status == DD_OK) {
        status =
            place->store->ops->compare_set(place->store, meeting_key(place, "end"), dd_bytes_of_string(""),
                                           dd_blob_view(&end), &value, place->wait, err);
    }
    dd_blob_fini(&value);
    dd_blob_fini(&end);
    dd_blob_list_fini(&cards);
    return status == DD_OK ? leave_generation(place, err) : status;
}

/* Ends the meeting for the others, too. */
static dd_status
run_out_of_time(meeting_place *place, dd_error *err)
{
    dd_status late = meeting_error_absent(place, err);
    const dd_wait *callers = place->wait;
    dd_wait moment = dd_wait_after(2 * DD_NS_PER_S);
    place->wait = &moment;
    if (call_off(place, NULL) == DD_OK) {
        dd_status ignored = leave_generation(place, NULL);
        (void)ignored; /* the next who comes will see to it */
    }
    place->wait = callers;
    return late;
}

/* What the store says of the end: that it was called off, that it has failed, or who is in the group. */
static dd_status
read_end(meeting_place *place, dd_bytes end, group_meeting *meeting, join_outcome *outcome, dd_error *err)
{
    dd_error failure;
    dd_status status = DD_OK;
    if (dd_bytes_equal(end, dd_bytes_of_string(MEETING_END_OFF))) {
        *outcome = MEETING_OVER;
        return leave_generation(place, err);
    }
    if (meeting_decode_failure(end, &failure)) {
        status = leave_generation(place, err);
        prepend_group(place, &failure);
        return status == DD_OK ? dd_error_copy(err, &failure) : status;
    }
    status = meeting_decode_end(place->size, end, &meeting->id, &meeting->cards, err);
    *outcome = JOINED;
    return status;
}

/* Waits for the end of the meeting, and looks meanwhile whether another one who has come is still alive. */
static dd_status
await_end(meeting_place *place, dd_bytes own, group_meeting *meeting, join_outcome *outcome, dd_error *err)
{
    dd_blob end = {0};
    dd_error error;
    dd_card own_card;
    meeting_watch watch = {.rank = -1};
    dd_status status = meeting_decode_card(own, &own_card, &error);
    int64_t interval_ns = meeting_watch_interval_ns(place);
    while (status == DD_OK) {
        dd_wait slice = dd_wait_at_most(place->wait, interval_ns);
        int64_t before_ns = dd_clock_now_ns();
        status = place->store->ops->get(place->store, meeting_key(place, "end"), &end, &slice, &error);
        bool is_late = status == DD_TIMED_OUT || status == DD_NETWORK_TIMED_OUT;
        if (!is_late || dd_wait_is_over(place->wait)) {
            break;
        }
        if (status == DD_NETWORK_TIMED_OUT || dd_clock_now_ns() - before_ns > 2 * interval_ns) {
            interval_ns *= 2; /* so short a question is too short for this store */
            status = DD_OK;
            continue;
        }
        status = meeting_look_after(place, &watch, &own_card, &error);
        if (status == DD_PEER_LOST) {
            dd_error lost = error;
            status = fail_meeting(place, &lost, &error); /* and reads that, or what came before it */
        }
    }
    if (status == DD_TIMED_OUT || status == DD_NETWORK_TIMED_OUT) {
        status = run_out_of_time(place, &error);
    } else if (status == DD_OK) {
        status = read_end(place, dd_blob_view(&end), meeting, outcome, &error);
    }
    dd_blob_fini(&end);
    return status == DD_OK ? DD_OK : dd_error_copy(err, &error);
}

/* Whether a lower rank has the same engine: a process that is in the group several times. */
static bool
is_repeated(const dd_blob_list *cards, int rank)
{
    dd_card card;
    dd_card other;
    if (dd_card_decode(dd_blob_view(&cards->items[rank]), &card, NULL) != DD_OK) {
        return false;
    }
    for (int lower = 0; lower < rank; lower++) {
        if (dd_card_decode(dd_blob_view(&cards->items[lower]), &other, NULL) == DD_OK &&
            memcmp(&card.uid, &other.uid, sizeof card.uid) == 0) {
            return true;
        }
    }
    return false;
}

/* Gives this rank an engine of its own and publishes its card in place of the first. */
static dd_status
use_own_engine(meeting_place *place, dd_engine **engine, dd_error *err)
{
    dd_engine *own = NULL;
    dd_status status = dd_engine_open_like(*engine, &own, err);
    if (status != DD_OK) {
        return status;
    }
    dd_blob card = {0};
    dd_addr to_store = dd_tcp_store_own_addr(place->store);
    status = dd_engine_card(own, to_store.len > 0 ? &to_store : NULL, &card, err);
    if (status == DD_OK) {
        status = place->store->ops->set(place->store, rank_key(place, "again", place->rank),
                                        dd_blob_view(&card), place->wait, err);
    }
    dd_blob_fini(&card);
    if (status != DD_OK) {
        dd_engine_release(own);
        return status;
    }
    dd_engine_begin_meeting(own);
    dd_engine_release(*engine);
    *engine = own;
    return DD_OK;
}

static dd_status
replace_repeated(meeting_place *place, group_meeting *meeting, dd_error *err)
{
    bool *is_again = dd_mem_zalloc((size_t)place->size * sizeof *is_again);
    if (is_again == NULL) {
        return dd_error_no_memory(err, (unsigned long long)place->size * sizeof *is_again);
    }
    for (int rank = 0; rank < place->size; rank++) {
        is_again[rank] = is_repeated(&meeting->cards, rank);
    }
    dd_status status = is_again[place->rank] ? use_own_engine(place, &meeting->engine, err) : DD_OK;
    for (int rank = 0; rank < place->size && status == DD_OK; rank++) {
        if (is_again[rank]) {
            status = place->store->ops->get(place->store, rank_key(place, "again", rank),
                                            &meeting->cards.items[rank], place->wait, err);
        }
    }
    dd_mem_free(is_again);
    return status;
}

/* Own bytes to publish: a nonce and the card. */
static dd_status
make_published(dd_engine *engine, dd_store *store, dd_blob *published, dd_error *err)
{
    dd_addr to_store = dd_tcp_store_own_addr(store);
    uint8_t nonce[MEETING_NONCE_BYTES];
    dd_blob card = {0};
    dd_status status = dd_engine_card(engine, to_store.len > 0 ? &to_store : NULL, &card, err);
    if (status == DD_OK) {
        status = dd_auth_random(nonce, sizeof nonce, err);
    }
    if (status == DD_OK) {
        status = dd_blob_append(published, nonce, sizeof nonce, err);
    }
    if (status == DD_OK) {
        status = dd_blob_append(published, card.data, card.len, err);
    }
    dd_blob_fini(&card);
    return status;
}

/* This rank has joined and cannot go on: nobody is to wait for it. */
static void
give_up(meeting_place *place, dd_bytes own, const dd_error *why)
{
    dd_wait moment = dd_wait_after(DD_NS_PER_S);
    dd_card card;
    char who[128];
    dd_error told;
    if (meeting_decode_card(own, &card, NULL) != DD_OK) {
        return;
    }
    meeting_print_member(place->rank, &card, who);
    if (why->code == DD_INTERRUPTED) {
        dd_error_set(&told, DD_ABORTED, "%s aborted the group: interrupted while it was being made", who);
    } else {
        dd_error_set(&told, DD_ABORTED, "%s has given up: %s", who, why->message);
    }
    dd_error_blame(&told, place->rank, card.host, card.pid);
    place->wait = &moment;
    dd_status ignored = fail_meeting(place, &told, NULL); /* the store itself may be what has failed */
    (void)ignored;
}

/* One attempt in the generation that is now. */
static dd_status
attempt(meeting_place *place, dd_bytes published, group_meeting *meeting, join_outcome *outcome,
        dd_error *err)
{
    *outcome = JOINED;
    dd_status status = read_generation(place, err);
    if (status == DD_OK) {
        status = join(place, published, outcome, err);
    }
    if (status != DD_OK || *outcome == MEETING_OVER) {
        return status;
    }
    dd_error error;
    status = count_in(place, &error);
    if (status == DD_OK) {
        status = await_end(place, published, meeting, outcome, &error);
    }
    if (status != DD_OK && status != DD_OP_TIMED_OUT) {
        give_up(place, published, &error);
    }
    return status == DD_OK ? DD_OK : dd_error_copy(err, &error);
}

dd_status
group_meet(dd_engine *engine, dd_store *store, int rank, int size, dd_bytes name, group_meeting *meeting,
           const dd_wait *wait, dd_error *err)
{
    meeting_place place = {.store = store, .rank = rank, .size = size, .name = name, .wait = wait};
    if (name.len > MEETING_KEY_MAX - 128) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "the name of a group has at most %d bytes, not %zu",
                            MEETING_KEY_MAX - 128, name.len);
    }
    dd_blob published = {0};
    dd_status status = make_published(engine, store, &published, err);
    join_outcome outcome = MEETING_OVER;
    while (status == DD_OK && outcome == MEETING_OVER) {
        status = attempt(&place, dd_blob_view(&published), meeting, &outcome, err);
        if (status == DD_OK && outcome == MEETING_OVER && dd_wait_is_over(wait)) {
            status = run_out_of_time(&place, err);
        }
    }
    dd_blob_fini(&published);
    meeting->engine = dd_engine_acquire(engine);
    meeting->generation = place.generation;
    if (status == DD_OK) {
        status = replace_repeated(&place, meeting, err);
    }
    if (status != DD_OK) {
        group_meeting_fini(meeting);
    }
    return status;
}

void
group_meeting_fini(group_meeting *meeting)
{
    dd_blob_list_fini(&meeting->cards);
    dd_engine_release(meeting->engine);
    meeting->engine = NULL;
}
