/* How a rank comes to a meeting: in one request of a server of ours, which calls the same functions over its keyspace as
 * others do over the operations of a store. So both kinds of ranks find each other. */
#include "store/meeting_internal.h"

#include "core/mem.h"
#include "store/keyspace_answer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_ROOM 64  /* behind the place */
#define STEPS_MAX 16 /* from one generation to the next, in one request */

/* ---- keys */

dd_status
meeting_keys_init(meeting_keys *keys, dd_bytes place, dd_error *err)
{
    size_t size = place.len + KEY_ROOM;
    char *text = dd_mem_alloc(size);
    if (text == NULL) {
        return dd_error_no_memory(err, size);
    }
    memcpy(text, place.data, place.len);
    *keys = (meeting_keys){.text = text, .size = size, .place_len = place.len};
    return DD_OK;
}

void
meeting_keys_fini(meeting_keys *keys)
{
    dd_mem_free(keys->text);
    keys->text = NULL;
}

static dd_bytes
key_with(meeting_keys *keys, const char *rest)
{
    size_t len = strlen(rest);
    memcpy(keys->text + keys->place_len, rest, len);
    return dd_bytes_of(keys->text, keys->place_len + len);
}

dd_bytes
meeting_part_key(meeting_keys *keys, uint64_t generation, const char *what)
{
    char rest[KEY_ROOM];
    snprintf(rest, sizeof rest, "/%" PRIu64 "/%s", generation, what);
    return key_with(keys, rest);
}

dd_bytes
meeting_rank_key(meeting_keys *keys, uint64_t generation, const char *what, int rank)
{
    char part[32];
    snprintf(part, sizeof part, "%s/%d", what, rank);
    return meeting_part_key(keys, generation, part);
}

/* ---- coming */

/* One call of join. */
typedef struct arrival {
    dd_store *store;
    dd_keyspace *ks; /* that the store is of; NULL: another kind */
    const dd_meet_request *request;
    dd_meet_reply *reply;
    const dd_wait *wait;
    meeting_keys keys;
} arrival;

static dd_status
try_get(const arrival *self, dd_bytes key, dd_blob *value, bool *is_found, dd_error *err)
{
    return self->store->ops->try_get(self->store, key, value, is_found, self->wait, err);
}

/* *value becomes what stands there now. */
static dd_status
set_if_missing(const arrival *self, dd_bytes key, dd_bytes desired, dd_blob *value, dd_error *err)
{
    return self->store->ops->compare_set(self->store, key, (dd_bytes){0}, desired, value, self->wait, err);
}

dd_status
meeting_read_generation(dd_store *store, meeting_keys *keys, uint64_t *generation, const dd_wait *wait,
                        dd_error *err)
{
    dd_blob value = {0};
    bool is_found = false;
    dd_status status =
        store->ops->try_get(store, key_with(keys, "/generation"), &value, &is_found, wait, err);
    char text[24] = "";
    if (status == DD_OK && is_found) {
        memcpy(text, value.data, value.len < sizeof text - 1 ? value.len : sizeof text - 1);
    }
    dd_blob_fini(&value);
    if (status == DD_OK) {
        *generation = strtoull(text, NULL, 10);
    }
    return status;
}

dd_status
meeting_leave_generation(dd_store *store, meeting_keys *keys, uint64_t generation, const dd_wait *wait,
                         dd_error *err)
{
    char now[24] = "";
    char next[24];
    if (generation > 0) {
        snprintf(now, sizeof now, "%" PRIu64, generation);
    }
    snprintf(next, sizeof next, "%" PRIu64, generation + 1);
    dd_blob value = {0};
    dd_status status = store->ops->compare_set(store, key_with(keys, "/generation"), dd_bytes_of_string(now),
                                               dd_bytes_of_string(next), &value, wait, err);
    dd_blob_fini(&value);
    return status;
}

/* The meeting is not what this rank wants: is it over? Then the next one may be. */
static dd_status
object(arrival *self, dd_meet_state state, dd_error *err)
{
    dd_blob end = {0};
    bool is_over = false;
    uint64_t generation = self->reply->generation;
    dd_status status = try_get(self, meeting_part_key(&self->keys, generation, "end"), &end, &is_over, err);
    dd_blob_fini(&end);
    self->reply->state = is_over ? DD_MEET_AGAIN : state;
    if (status == DD_OK && is_over) {
        status = meeting_leave_generation(self->store, &self->keys, generation, self->wait, err);
    }
    return status;
}

/* Before a place is taken, which somebody else may have a right to. */
static dd_status
agree_on_size(arrival *self, dd_error *err)
{
    char line[32];
    snprintf(line, sizeof line, "%d %d\n", self->request->size, self->request->rank);
    dd_blob mine = {0};
    dd_blob *said = &self->reply->value;
    dd_status status = dd_blob_append(&mine, line, strlen(line), err);
    if (status == DD_OK) {
        status = dd_blob_append(&mine, self->request->published.data, self->request->published.len, err);
    }
    if (status == DD_OK) {
        status = set_if_missing(self, meeting_part_key(&self->keys, self->reply->generation, "size"),
                                dd_blob_view(&mine), said, err);
    }
    dd_blob_fini(&mine);
    size_t len = strcspn(line, " ") + 1;
    bool is_another = status == DD_OK && (said->len < len || memcmp(said->data, line, len) != 0);
    return is_another ? object(self, DD_MEET_RESIZED, err) : status;
}

static dd_status
take_rank(arrival *self, dd_error *err)
{
    dd_status status = set_if_missing(
        self, meeting_rank_key(&self->keys, self->reply->generation, "rank", self->request->rank),
        self->request->published, &self->reply->value, err);
    bool is_taken =
        status == DD_OK && !dd_bytes_equal(dd_blob_view(&self->reply->value), self->request->published);
    self->reply->has_come = status == DD_OK && !is_taken;
    return is_taken ? object(self, DD_MEET_TAKEN, err) : status;
}

/* In one request, where the store can: with many ranks it is here that a meeting takes its time. */
static dd_status
get_published(arrival *self, dd_blob_list *values, dd_error *err)
{
    size_t size = (size_t)self->request->size;
    char *texts = dd_mem_alloc_array(size, self->keys.size);
    dd_bytes *keys = dd_mem_alloc_array(size, sizeof *keys);
    dd_status status = texts != NULL && keys != NULL ? DD_OK : dd_error_no_memory(err, size * sizeof *keys);
    for (size_t rank = 0; rank < size && status == DD_OK; rank++) {
        char *text = texts + rank * self->keys.size;
        dd_bytes key = meeting_rank_key(&self->keys, self->reply->generation, "rank", (int)rank);
        memcpy(text, key.data, key.len);
        keys[rank] = dd_bytes_of(text, key.len);
    }
    if (status == DD_OK) {
        status = self->store->ops->multi_get(self->store, keys, size, values, self->wait, err);
    }
    dd_mem_free(keys);
    dd_mem_free(texts);
    return status;
}

/* The end has all cards, so the keys of the ranks may go: jobs make groups for days. Another store would take a request
 * for each. */
static void
drop_published(arrival *self)
{
    for (int rank = 0; self->ks != NULL && rank < self->request->size; rank++) {
        (void)dd_keyspace_delete(self->ks,
                                 meeting_rank_key(&self->keys, self->reply->generation, "rank", rank));
    }
}

/* All have come: this rank, the last, ends the meeting and hands everybody all cards. Its nonce names what is being made. */
static dd_status
end_well(arrival *self, dd_error *err)
{
    uint64_t id;
    uint64_t generation = self->reply->generation;
    dd_blob_list published = {0};
    dd_blob end = {0};
    dd_blob cards = {0};
    memcpy(&id, self->request->published.data, sizeof id);
    dd_status status = get_published(self, &published, err);
    if (status == DD_OK) {
        status = meeting_encode_end(id, &published, &end, &cards, err);
    }
    if (status == DD_OK && cards.len > 0) { /* before the end, which says that they are there */
        status = self->store->ops->set(self->store, meeting_part_key(&self->keys, generation, "cards"),
                                       dd_blob_view(&cards), self->wait, err);
    }
    if (status == DD_OK) {
        status = set_if_missing(self, meeting_part_key(&self->keys, generation, "end"), dd_blob_view(&end),
                                &self->reply->value, err);
    }
    if (status == DD_OK && dd_bytes_equal(dd_blob_view(&self->reply->value), dd_blob_view(&end))) {
        drop_published(self);
    }
    dd_blob_fini(&end);
    dd_blob_fini(&cards);
    dd_blob_list_fini(&published);
    self->reply->state = status == DD_OK ? DD_MEET_ENDED : self->reply->state;
    return status == DD_OK ? meeting_leave_generation(self->store, &self->keys, generation, self->wait, err)
                           : status;
}

static dd_status
count_in(arrival *self, dd_error *err)
{
    int64_t count = 0;
    dd_status status =
        self->store->ops->add(self->store, meeting_part_key(&self->keys, self->reply->generation, "count"), 1,
                              &count, self->wait, err);
    self->reply->state = DD_MEET_WAITING;
    /* Anybody may write to the count; room is made for no more cards than there are values. */
    bool is_last =
        count == self->request->size && (self->ks == NULL || self->request->size <= self->ks->nvalues);
    dd_blob_clear(&self->reply->value, 0);
    if (status == DD_OK && count > self->request->size) {
        /* It ended between this rank's look at the generation and its coming, and its keys are gone. */
        self->reply->state = DD_MEET_AGAIN;
        self->reply->has_come = false;
        return meeting_leave_generation(self->store, &self->keys, self->reply->generation, self->wait, err);
    }
    return status == DD_OK && is_last ? end_well(self, err) : status;
}

/* Whether the meeting before this one has failed without this rank, which then hears of it: by that it has been there. */
static dd_status
hear_failure(arrival *self, bool *has_heard, dd_error *err)
{
    dd_error failure;
    bool is_over = false;
    dd_blob value = {0};
    uint64_t before = self->reply->generation - 1;
    dd_status status =
        try_get(self, meeting_part_key(&self->keys, before, "end"), &self->reply->value, &is_over, err);
    if (status == DD_OK && is_over && meeting_decode_failure(dd_blob_view(&self->reply->value), &failure)) {
        status = set_if_missing(self, meeting_rank_key(&self->keys, before, "rank", self->request->rank),
                                self->request->published, &value, err);
        *has_heard = status == DD_OK && dd_bytes_equal(dd_blob_view(&value), self->request->published);
    }
    dd_blob_fini(&value);
    if (*has_heard) {
        self->reply->generation = before;
        self->reply->state = DD_MEET_ENDED;
    }
    return status;
}

static dd_status
join_once(arrival *self, dd_error *err)
{
    bool has_heard = false;
    dd_status status =
        meeting_read_generation(self->store, &self->keys, &self->reply->generation, self->wait, err);
    self->reply->state = DD_MEET_WAITING;
    if (status == DD_OK && self->request->hears_failure && self->reply->generation > 0) {
        status = hear_failure(self, &has_heard, err);
    }
    if (status == DD_OK && !has_heard) {
        status = agree_on_size(self, err);
    }
    if (status == DD_OK && !has_heard && self->reply->state == DD_MEET_WAITING) {
        status = take_rank(self, err);
    }
    return status == DD_OK && self->reply->has_come ? count_in(self, err) : status;
}

static dd_status
join(dd_store *store, dd_keyspace *ks, const dd_meet_request *request, dd_meet_reply *reply,
     const dd_wait *wait, dd_error *err)
{
    arrival self = {.store = store, .ks = ks, .request = request, .reply = reply, .wait = wait};
    if (request->rank < 0 || request->rank >= request->size || request->published.len < MEETING_NONCE_BYTES) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "rank %d of %d cannot come to a meeting with %zu bytes",
                            request->rank, request->size, request->published.len);
    }
    dd_status status = meeting_keys_init(&self.keys, request->place, err);
    reply->state = DD_MEET_AGAIN;
    reply->has_come = false;
    for (int step = 0; step < STEPS_MAX && status == DD_OK && reply->state == DD_MEET_AGAIN; step++) {
        status = join_once(&self, err);
    }
    meeting_keys_fini(&self.keys);
    return status;
}

/* ---- by the operations of a store */

dd_status
dd_store_meet_by_keys(dd_store *store, const dd_meet_request *request, dd_meet_reply *reply,
                      const dd_wait *wait, dd_error *err)
{
    return join(store, NULL, request, reply, wait, err);
}

/* ---- over a keyspace: as a store that nobody else has */

typedef struct bare_store {
    dd_store head;
    dd_keyspace *ks;
} bare_store;

static dd_status
bare_run(dd_store *store, const dd_store_request *request, dd_store_result *result, const dd_wait *wait,
         dd_error *err)
{
    (void)wait;
    bool is_answered = false;
    dd_keyspace *ks = DD_CONTAINER_OF(store, bare_store, head)->ks;
    dd_status status = dd_keyspace_answer(ks, request, result, &is_answered, err);
    if (status != DD_OK || is_answered) {
        return status;
    }
    /* The cards of all that were counted were left before: somebody else has changed the keys. */
    size_t rank = 0;
    for (dd_bytes card; rank < request->nkeys && dd_keyspace_get(ks, request->keys[rank], &card);) {
        rank++;
    }
    return dd_error_set(err, DD_STORE, "all %zu ranks were counted, and the card of rank %zu is missing",
                        request->nkeys, rank);
}

static const dd_store_ops bare_ops = {.kind = "keyspace", DD_STORE_OPS_BY_RUN(bare_run)};

dd_status
dd_keyspace_meet(dd_keyspace *ks, const dd_meet_request *request, dd_meet_reply *reply, dd_error *err)
{
    bare_store bare = {.head = {.ops = &bare_ops, .root = &bare.head}, .ks = ks};
    return join(&bare.head, ks, request, reply, NULL, err);
}
