/* How the ranks of a group find each other in the store.
 *
 * Under "<name>/" there is a generation, and under "<name>/<generation>/" one meeting: who has come ("rank/<r>": a card), how many
 * ("count"), and how it ended ("end": "off", or "ok <size> <id>", a newline and everybody's card). A meeting that ended is never joined: its name can be used again at
 * once, and one that somebody gave up does not poison the next. */
#include "group/group_internal.h"

#include "core/little_endian.h"
#include "core/mem.h"
#include "net/auth.h"
#include "store/tcp_store.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEY_MAX 512
#define NONCE_BYTES 8 /* in front of a card, so that every attempt to join has bytes of its own */

static dd_status
decode_published(dd_bytes published, dd_card *card, dd_error *err)
{
    if (published.len < NONCE_BYTES) {
        return dd_error_set(err, DD_PROTOCOL, "a published card has only %zu bytes", published.len);
    }
    return dd_card_decode(dd_bytes_of(published.data + NONCE_BYTES, published.len - NONCE_BYTES), card, err);
}

/* Who has come to a meeting, and who has not. */
typedef struct attendance {
    int npresent;
    char present[420];
    char absent[420];
} attendance;

typedef struct meeting_place {
    dd_store *store;
    int rank;
    int size;
    dd_bytes name;
    uint64_t generation;
    const dd_wait *wait;
    attendance
        earlier; /* of a meeting that somebody has called off, which left us too little time for another */
    char key[KEY_MAX];
} meeting_place;

static dd_bytes
generation_key(meeting_place *place)
{
    snprintf(place->key, sizeof place->key, "dldist/%.*s/generation", (int)place->name.len,
             (const char *)place->name.data);
    return dd_bytes_of_string(place->key);
}

static dd_bytes
meeting_key(meeting_place *place, const char *what)
{
    snprintf(place->key, sizeof place->key, "dldist/%.*s/%" PRIu64 "/%s", (int)place->name.len,
             (const char *)place->name.data, place->generation, what);
    return dd_bytes_of_string(place->key);
}

static dd_bytes
rank_key(meeting_place *place, const char *what, int rank)
{
    char part[48];
    snprintf(part, sizeof part, "%s/%d", what, rank);
    return meeting_key(place, part);
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
    place->generation = strtoull(text, NULL, 10);
    dd_blob_fini(&value);
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

static dd_status
call_off(meeting_place *place, dd_error *err)
{
    dd_blob value = {0};
    dd_status status =
        place->store->ops->compare_set(place->store, meeting_key(place, "end"), dd_bytes_of_string(""),
                                       dd_bytes_of_string("off"), &value, place->wait, err);
    dd_blob_fini(&value);
    return status;
}

/* A process of this host that no longer runs. A number that was given to somebody else is taken for the old one: then the error is
 * about a taken rank, and the next attempt has another generation. */
static bool
is_known_dead(const dd_card *card, const dd_card *own)
{
    return memcmp(card->host_id, own->host_id, sizeof own->host_id) == 0 && card->pid > 0 &&
           card->pid != getpid() && kill((pid_t)card->pid, 0) != 0 && errno == ESRCH;
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

/* The place of this rank is taken: by the meeting before this one, by a dead process, or by somebody who is in earnest. */
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
    if (decode_published(taken, &card, NULL) != DD_OK || decode_published(own, &own_card, NULL) != DD_OK) {
        return dd_error_set(err, DD_STORE,
                            "the store holds something else where rank %d of group \"%.*s\" should be",
                            place->rank, (int)place->name.len, (const char *)place->name.data);
    }
    if (is_known_dead(&card, &own_card)) {
        status = call_off(place, err);
        return status == DD_OK ? leave_generation(place, err) : status;
    }
    char who[96];
    dd_error_set(err, DD_INVALID_ARGUMENT, "rank %d of group \"%.*s\" is taken: by %s", place->rank,
                 (int)place->name.len, (const char *)place->name.data, dd_card_print(&card, who));
    dd_error_blame(err, place->rank, card.host, card.pid);
    return DD_INVALID_ARGUMENT;
}

/* The first who comes says how many there will be. Before a place is taken: whoever is wrong must not keep it from others. */
static dd_status
agree_on_size(meeting_place *place, join_outcome *outcome, dd_error *err)
{
    char text[24];
    snprintf(text, sizeof text, "%d", place->size);
    dd_blob value = {0};
    dd_status status =
        place->store->ops->compare_set(place->store, meeting_key(place, "size"), dd_bytes_of_string(""),
                                       dd_bytes_of_string(text), &value, place->wait, err);
    if (status == DD_OK && !dd_bytes_equal(dd_blob_view(&value), dd_bytes_of_string(text))) {
        bool is_over = false;
        status = has_ended(place, &is_over, err);
        if (status == DD_OK && is_over) {
            *outcome = MEETING_OVER;
            status = leave_generation(place, err);
        } else if (status == DD_OK) {
            status = dd_error_set(err, DD_INVALID_ARGUMENT,
                                  "group \"%.*s\" has %.*s ranks, says who came first; rank %d was told %d",
                                  (int)place->name.len, (const char *)place->name.data, (int)value.len,
                                  (const char *)value.data, place->rank, place->size);
        }
    }
    dd_blob_fini(&value);
    return status;
}

static dd_status
join(meeting_place *place, dd_bytes card, join_outcome *outcome, dd_error *err)
{
    dd_status status = agree_on_size(place, outcome, err);
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
    char(*texts)[KEY_MAX] = dd_mem_alloc_array(size, sizeof *texts);
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

/* ---- the end of a meeting: its first line, and for every rank four bytes of length (little endian) and the card */

static dd_status
encode_end(uint64_t id, const dd_blob_list *cards, dd_blob *end, dd_error *err)
{
    char line[64];
    int len = snprintf(line, sizeof line, "ok %zu %016" PRIx64 "\n", cards->count, id);
    dd_status status = dd_blob_append(end, line, (size_t)len, err);
    for (size_t i = 0; i < cards->count && status == DD_OK; i++) {
        const dd_blob *card = &cards->items[i];
        uint8_t prefix[4];
        dd_put_number(prefix, card->len, sizeof prefix);
        status = dd_blob_append(end, prefix, sizeof prefix, err);
        if (status == DD_OK) {
            status = dd_blob_append(end, card->data, card->len, err);
        }
    }
    return status;
}

/* Takes the next card off the front of `rest`; false when there is none. */
static bool
take_card(dd_bytes *rest, dd_bytes *card)
{
    if (rest->len < 4) {
        return false;
    }
    size_t len = (size_t)dd_get_number(rest->data, 4);
    if (len > rest->len - 4) {
        return false;
    }
    *card = dd_bytes_of(rest->data + 4, len);
    *rest = dd_bytes_of(rest->data + 4 + len, rest->len - 4 - len);
    return true;
}

/* The cards come without what was published in front of them. */
static dd_status
decode_cards(const meeting_place *place, dd_bytes rest, dd_blob_list *cards, dd_error *err)
{
    dd_status status = dd_blob_list_init(cards, (size_t)place->size, err);
    for (size_t i = 0; i < cards->count && status == DD_OK; i++) {
        dd_bytes card;
        if (!take_card(&rest, &card) || card.len < NONCE_BYTES) {
            return dd_error_set(err, DD_STORE, "the end of a meeting of %d lacks the card of rank %zu",
                                place->size, i);
        }
        status = dd_blob_assign(&cards->items[i],
                                dd_bytes_of(card.data + NONCE_BYTES, card.len - NONCE_BYTES), err);
    }
    return status;
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
        status = encode_end(id, &cards, &end, err);
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

/* Adds ", 3 (node-b, pid 77)" to a text that may be full. */
static void
append_rank(char *text, size_t size, int rank, const dd_blob *card_bytes)
{
    size_t used = strlen(text);
    dd_card card;
    char who[96];
    bool is_known = card_bytes != NULL && decode_published(dd_blob_view(card_bytes), &card, NULL) == DD_OK;
    if (is_known) {
        snprintf(text + used, size - used, "%s%d (%s)", used > 0 ? ", " : "", rank,
                 dd_card_print(&card, who));
    } else {
        snprintf(text + used, size - used, "%s%d", used > 0 ? ", " : "", rank);
    }
}

/* With a moment of its own, since the caller's may be over. */
static void
look_around(meeting_place *place, attendance *seen)
{
    const dd_wait *callers = place->wait;
    dd_wait moment = dd_wait_after(2 * DD_NS_PER_S);
    place->wait = &moment;
    *seen = (attendance){.npresent = 0};
    for (int rank = 0; rank < place->size; rank++) {
        dd_blob card = {0};
        bool is_found = false;
        if (place->store->ops->try_get(place->store, rank_key(place, "rank", rank), &card, &is_found, &moment,
                                       NULL) != DD_OK) {
            is_found = false;
        }
        if (is_found) {
            append_rank(seen->present, sizeof seen->present, rank, &card);
            seen->npresent++;
        } else {
            append_rank(seen->absent, sizeof seen->absent, rank, NULL);
        }
        dd_blob_fini(&card);
    }
    place->wait = callers;
}

/* Ends the meeting for the others, too. */
static dd_status
error_absent(meeting_place *place, dd_error *err)
{
    attendance now;
    look_around(place, &now);
    const dd_wait *callers = place->wait;
    dd_wait moment = dd_wait_after(2 * DD_NS_PER_S);
    place->wait = &moment;
    if (call_off(place, NULL) == DD_OK) {
        dd_status ignored = leave_generation(place, NULL);
        (void)ignored; /* the next who comes will see to it */
    }
    place->wait = callers;
    const attendance *seen = place->earlier.npresent > now.npresent ? &place->earlier : &now;
    return dd_error_set(
        err, DD_OP_TIMED_OUT,
        "group \"%.*s\": rank %d waited %.1f s for the others: %d of %d have come: %s; missing: %s",
        (int)place->name.len, (const char *)place->name.data, place->rank, dd_wait_elapsed_s(callers),
        seen->npresent, place->size, seen->present, seen->absent);
}

/* What the store says of the end: that it was called off, or who is in the group. */
static dd_status
read_end(meeting_place *place, dd_bytes end, group_meeting *meeting, join_outcome *outcome, dd_error *err)
{
    char text[64] = "";
    memcpy(text, end.data, end.len < sizeof text - 1 ? end.len : sizeof text - 1);
    char *newline = strchr(text, '\n');
    size_t len = newline != NULL ? (size_t)(newline - text) : strlen(text);
    text[len] = '\0';
    if (strcmp(text, "off") == 0) {
        *outcome = MEETING_OVER;
        look_around(place, &place->earlier);
        return leave_generation(place, err);
    }
    int size = 0;
    if (newline == NULL || sscanf(text, "ok %d %" SCNx64, &size, &meeting->id) != 2 || size != place->size) {
        return dd_error_set(err, DD_STORE, "the store says \"%s\" where the end of a meeting of %d should be",
                            text, place->size);
    }
    *outcome = JOINED;
    return decode_cards(place, dd_bytes_of(end.data + len + 1, end.len - len - 1), &meeting->cards, err);
}

/* Waits for the end of the meeting. */
static dd_status
await_end(meeting_place *place, group_meeting *meeting, join_outcome *outcome, dd_error *err)
{
    dd_blob end = {0};
    dd_status status =
        place->store->ops->get(place->store, meeting_key(place, "end"), &end, place->wait, err);
    if (status == DD_TIMED_OUT || status == DD_NETWORK_TIMED_OUT) {
        return error_absent(place, err);
    }
    if (status == DD_OK) {
        status = read_end(place, dd_blob_view(&end), meeting, outcome, err);
    }
    dd_blob_fini(&end);
    return status;
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
    status = dd_engine_card(own, NULL, &card, err);
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
    uint8_t nonce[NONCE_BYTES];
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

/* One attempt in the generation that is now. Once joined, a failure calls the meeting off: nobody is to wait for us. */
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
    status = count_in(place, err);
    if (status == DD_OK) {
        status = await_end(place, meeting, outcome, err);
    }
    if (status != DD_OK && status != DD_OP_TIMED_OUT) {
        dd_wait moment = dd_wait_after(DD_NS_PER_S);
        place->wait = &moment;
        dd_status ignored = call_off(place, NULL); /* the store itself may be what has failed */
        (void)ignored;
    }
    return status;
}

dd_status
group_meet(dd_engine *engine, dd_store *store, int rank, int size, dd_bytes name, group_meeting *meeting,
           const dd_wait *wait, dd_error *err)
{
    meeting_place place = {.store = store, .rank = rank, .size = size, .name = name, .wait = wait};
    if (name.len > KEY_MAX - 128) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "the name of a group has at most %d bytes, not %zu",
                            KEY_MAX - 128, name.len);
    }
    dd_blob published = {0};
    dd_status status = make_published(engine, store, &published, err);
    join_outcome outcome = MEETING_OVER;
    while (status == DD_OK && outcome == MEETING_OVER) {
        status = attempt(&place, dd_blob_view(&published), meeting, &outcome, err);
        if (status == DD_OK && outcome == MEETING_OVER && dd_wait_is_over(wait)) {
            status = error_absent(&place, err);
        }
    }
    dd_blob_fini(&published);
    meeting->engine = dd_engine_acquire(engine);
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
