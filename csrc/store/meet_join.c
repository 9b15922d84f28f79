/* MEET: joining a meeting (a rendezvous). A dldist server runs it in one request, on its keyspace;
 * other stores' clients run the same functions, which send requests. Both use the same keys. */
#include "store/meet_join.h"

#include "core/mem.h"

#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_ROOM 64  /* space for the part of a key after the prefix, in bytes */
#define STEPS_MAX 16 /* maximum number of ended meetings that a request may skip */

/* ---- keys of a meeting */

dd_status
meeting_keys_init(meeting_keys *keys, dd_store *store, const char *root, dd_bytes name, const dd_wait *wait,
                  dd_error *err)
{
    size_t root_len = strlen(root);
    size_t size = root_len + name.len + KEY_ROOM;
    char *text = dd_mem_alloc(size);
    if (text == NULL) {
        return dd_error_no_memory(err, size);
    }
    memcpy(text, root, root_len);
    if (name.len > 0) {
        memcpy(text + root_len, name.data, name.len);
    }
    *keys = (meeting_keys){
        .store = store, .wait = wait, .text = text, .size = size, .prefix_len = root_len + name.len};
    return DD_OK;
}

void
meeting_keys_fini(meeting_keys *keys)
{
    dd_mem_free(keys->text);
    keys->text = NULL;
}

dd_bytes
meeting_key(const meeting_keys *keys, const char *format, ...)
{
    char *rest = keys->text + keys->prefix_len;
    int len = snprintf(rest, KEY_ROOM, "/%" PRIu64 "/", keys->generation);
    va_list args;
    va_start(args, format);
    len += vsnprintf(rest + len, KEY_ROOM - (size_t)len, format, args);
    va_end(args);
    return dd_bytes_of(keys->text, keys->prefix_len + (size_t)len);
}

static dd_bytes
generation_key(const meeting_keys *keys)
{
    static const char rest[] = "/generation";
    memcpy(keys->text + keys->prefix_len, rest, sizeof rest - 1);
    return dd_bytes_of(keys->text, keys->prefix_len + sizeof rest - 1);
}

dd_status
meeting_try_get(const meeting_keys *keys, dd_bytes key, dd_blob *value, bool *is_found, dd_error *err)
{
    return dd_store_try_get(keys->store, key, value, is_found, keys->wait, err);
}

dd_status
meeting_set_if_missing(const meeting_keys *keys, dd_bytes key, dd_bytes desired, dd_blob *value,
                       dd_error *err)
{
    return dd_store_compare_set(keys->store, key, (dd_bytes){0}, desired, value, keys->wait, err);
}

dd_status
meeting_read_generation(meeting_keys *keys, dd_error *err)
{
    dd_blob value = {0};
    bool is_found = false;
    char text[24];
    dd_status status = meeting_try_get(keys, generation_key(keys), &value, &is_found, err);
    meeting_copy_text(dd_blob_view(&value), text, sizeof text);
    dd_blob_fini(&value);
    keys->generation = status == DD_OK ? strtoull(text, NULL, 10) : keys->generation;
    return status;
}

dd_status
meeting_advance_generation(const meeting_keys *keys, dd_error *err)
{
    char now[24] = "";
    char next[24];
    if (keys->generation > 0) {
        snprintf(now, sizeof now, "%" PRIu64, keys->generation);
    }
    snprintf(next, sizeof next, "%" PRIu64, keys->generation + 1);
    dd_blob value = {0};
    dd_status status = dd_store_compare_set(keys->store, generation_key(keys), dd_bytes_of_string(now),
                                            dd_bytes_of_string(next), &value, keys->wait, err);
    dd_blob_fini(&value);
    return status;
}

/* ---- joining a meeting */

/* One MEET request that is being run. */
typedef struct arrival {
    meeting_keys keys;
    dd_keyspace *ks; /* the store's keyspace; NULL if a client runs MEET */
    int rank;
    int size;
    dd_bytes published;
    dd_store_result *reply;
} arrival;

/* Reply that this rank cannot join: with AGAIN if the meeting has ended, otherwise with `state`. */
static dd_status
object(arrival *self, dd_meet_state state, dd_error *err)
{
    dd_blob end = {0};
    bool has_ended = false;
    dd_status status = meeting_try_get(&self->keys, meeting_key(&self->keys, "end"), &end, &has_ended, err);
    dd_blob_fini(&end);
    self->reply->state = has_ended ? DD_MEET_AGAIN : (uint8_t)state;
    return status == DD_OK && has_ended ? meeting_advance_generation(&self->keys, err) : status;
}

/* Publish the meeting's size, or compare it with the published size. Must be called before
 * take_rank(): if the sizes differ, the rank may belong to another process. */
static dd_status
agree_on_size(arrival *self, dd_error *err)
{
    char line[32];
    snprintf(line, sizeof line, "%d %d\n", self->size, self->rank);
    dd_blob size = {0};
    dd_blob *reply_value = &self->reply->value;
    dd_status status = dd_blob_append(&size, line, strlen(line), err);
    if (status == DD_OK) {
        status = dd_blob_append(&size, self->published.data, self->published.len, err);
    }
    if (status == DD_OK) {
        status = meeting_set_if_missing(&self->keys, meeting_key(&self->keys, "size"), dd_blob_view(&size),
                                        reply_value, err);
    }
    dd_blob_fini(&size);
    size_t len = strcspn(line, " ") + 1;
    bool is_another =
        status == DD_OK && (reply_value->len < len || memcmp(reply_value->data, line, len) != 0);
    return is_another ? object(self, DD_MEET_RESIZED, err) : status;
}

/* Publish this rank's bytes at the rank's key. *is_own is true if the key then has these bytes. */
static dd_status
take_rank(arrival *self, dd_blob *value, bool *is_own, dd_error *err)
{
    dd_status status = meeting_set_if_missing(&self->keys, meeting_key(&self->keys, "rank/%d", self->rank),
                                              self->published, value, err);
    *is_own = status == DD_OK && dd_bytes_equal(dd_blob_view(value), self->published);
    return status;
}

/* Run an operation on the keys of all ranks, in one request if the store can: with many ranks, this
 * takes most of the time of a meeting. */
static dd_status
run_on_payloads(const arrival *self, dd_store_op op, dd_store_result *result, dd_error *err)
{
    size_t size = (size_t)self->size;
    char *texts = dd_mem_alloc_array(size, self->keys.size);
    dd_bytes *keys = dd_mem_alloc_array(size, sizeof *keys);
    dd_status status = texts != NULL && keys != NULL ? DD_OK : dd_error_no_memory(err, size * sizeof *keys);
    for (size_t rank = 0; rank < size && status == DD_OK; rank++) {
        dd_bytes key = meeting_key(&self->keys, "rank/%d", (int)rank);
        keys[rank] = dd_bytes_of(memcpy(texts + rank * self->keys.size, key.data, key.len), key.len);
    }
    if (status == DD_OK) {
        dd_store_request request = {.op = op, .keys = keys, .nkeys = size};
        status = dd_store_run(self->keys.store, &request, result, self->keys.wait, err);
    }
    dd_mem_free(keys);
    dd_mem_free(texts);
    return status;
}

static dd_status
get_published(const arrival *self, dd_blob_list *values, dd_error *err)
{
    dd_store_result result = {0};
    dd_status status = run_on_payloads(self, DD_STORE_MULTI_GET, &result, err);
    *values = result.list;
    return status;
}

/* Delete the keys of all ranks, since the end value has all payloads and a job may create groups
 * for days. Only a dldist server does this: a client would need a request for each key. */
static void
delete_published(arrival *self)
{
    for (int rank = 0; self->ks != NULL && rank < self->size; rank++) {
        dd_bytes key = meeting_key(&self->keys, "rank/%d", rank);
        dd_store_request request = {.op = DD_STORE_DELETE_KEY, .keys = &key, .nkeys = 1};
        (void)!dd_store_run(self->keys.store, &request, &(dd_store_result){0}, NULL, NULL);
    }
}

/* End a meeting that all ranks have joined. Its id is this (usually the last) rank's nonce. */
static dd_status
publish_end(arrival *self, dd_error *err)
{
    uint64_t id;
    dd_blob_list published = {0};
    dd_blob end = {0};
    memcpy(&id, self->published.data, sizeof id);
    dd_status status = get_published(self, &published, err);
    if (status == DD_OK) {
        status = meeting_encode_end(id, &published, &end, err);
    }
    if (status == DD_OK) {
        status = meeting_set_if_missing(&self->keys, meeting_key(&self->keys, "end"), dd_blob_view(&end),
                                        &self->reply->value, err);
    }
    if (status == DD_OK) {
        self->reply->state = DD_MEET_ENDED;
        if (dd_bytes_equal(dd_blob_view(&self->reply->value), dd_blob_view(&end))) {
            delete_published(self);
        }
        status = meeting_advance_generation(&self->keys, err);
    }
    dd_blob_fini(&end);
    dd_blob_list_fini(&published);
    return status;
}

static dd_status
count_in(arrival *self, dd_error *err)
{
    int64_t count = 0;
    dd_status status =
        dd_store_add(self->keys.store, meeting_key(&self->keys, "count"), 1, &count, self->keys.wait, err);
    dd_blob_clear(&self->reply->value, 0);
    if (status == DD_OK && count > self->size) {
        /* the meeting has ended and its keys were deleted since the generation was read */
        self->reply->state = DD_MEET_AGAIN;
        self->reply->flag = false;
        return meeting_advance_generation(&self->keys, err);
    }
    /* Any client can write the count, so cap the number of payloads at the number of values. */
    bool is_last = count == self->size && (self->ks == NULL || self->size <= self->ks->nvalues);
    return status == DD_OK && is_last ? publish_end(self, err) : status;
}

/* ---- ending a meeting for its last rank */

static dd_status
check_published(const arrival *self, bool *have_all_published, dd_error *err)
{
    dd_store_result result = {0};
    dd_status status = run_on_payloads(self, DD_STORE_CHECK, &result, err);
    *have_all_published = status == DD_OK && result.flag;
    dd_store_result_fini(&result);
    return status;
}

/* Set *has_all to true if all ranks have joined. If the count lacks one rank, that rank may have
 * died before it was counted: then check the keys. That request has the keys of all ranks, so only
 * two ranks at a time send it, then the next two, because the first two may have died too. */
static dd_status
have_all_joined(const arrival *self, int npolls, bool *has_all, dd_error *err)
{
    bool is_own_turn = npolls % ((self->size + 1) / 2) == self->rank / 2;
    char text[24] = "";
    dd_blob value = {0};
    bool is_found = false;
    dd_status status =
        meeting_try_get(&self->keys, meeting_key(&self->keys, "count"), &value, &is_found, err);
    if (status == DD_OK && is_found) {
        memcpy(text, value.data, value.len < sizeof text - 1 ? value.len : sizeof text - 1);
    }
    dd_blob_fini(&value);
    long long count = strtoll(text, NULL, 10);
    *has_all = status == DD_OK && count >= self->size;
    return status == DD_OK && count == self->size - 1 && is_own_turn ? check_published(self, has_all, err)
                                                                     : status;
}

dd_status
meeting_end_for_last_rank(const meeting_keys *keys, const meeting_entry *entry, int npolls,
                          dd_blob *reply_value, bool *has_ended, dd_error *err)
{
    dd_store_result reply = {0};
    arrival self = {
        .keys = *keys,
        .rank = entry->rank,
        .size = entry->size,
        .published = entry->published,
        .reply = &reply,
    };
    bool is_complete = false;
    dd_status status = have_all_joined(&self, npolls, &is_complete, err);
    *has_ended = false;
    if (is_complete) { /* if the meeting has ended, its payloads may be deleted */
        status = meeting_try_get(&self.keys, meeting_key(&self.keys, "end"), &reply.value, has_ended, err);
    }
    if (is_complete && status == DD_OK && !*has_ended) {
        status = publish_end(&self, err);
        *has_ended = status == DD_OK;
    }
    if (*has_ended) {
        dd_blob_fini(reply_value);
        *reply_value = reply.value;
        reply.value = (dd_blob){0};
    }
    dd_store_result_fini(&reply);
    return status;
}

/* Set *has_failure to true if the previous meeting failed before this rank joined it. This rank
 * then receives that failure, and counts as having joined. */
static dd_status
read_failure(arrival *self, bool *has_failure, dd_error *err)
{
    dd_error failure;
    bool has_ended = false;
    dd_blob value = {0};
    self->keys.generation--;
    dd_status status =
        meeting_try_get(&self->keys, meeting_key(&self->keys, "end"), &self->reply->value, &has_ended, err);
    if (status == DD_OK && has_ended && meeting_decode_failure(dd_blob_view(&self->reply->value), &failure)) {
        status = take_rank(self, &value, has_failure, err);
    }
    dd_blob_fini(&value);
    if (*has_failure) {
        self->reply->state = DD_MEET_ENDED;
    } else {
        self->keys.generation++;
    }
    return status;
}

static dd_status
join_once(arrival *self, bool wants_failure, dd_error *err)
{
    dd_status status = meeting_read_generation(&self->keys, err);
    self->reply->state = DD_MEET_WAITING;
    if (status == DD_OK && wants_failure && self->keys.generation > 0) {
        bool has_failure = false;
        status = read_failure(self, &has_failure, err);
        if (has_failure) {
            return status;
        }
    }
    if (status == DD_OK) {
        status = agree_on_size(self, err);
    }
    if (status != DD_OK || self->reply->state != DD_MEET_WAITING) {
        return status;
    }
    status = take_rank(self, &self->reply->value, &self->reply->flag, err);
    if (status != DD_OK) {
        return status;
    }
    return self->reply->flag ? count_in(self, err) : object(self, DD_MEET_TAKEN, err);
}

dd_status
meeting_join(dd_store *store, dd_keyspace *ks, const dd_store_request *request, dd_store_result *reply,
             const dd_wait *wait, dd_error *err)
{
    arrival self = {
        .ks = ks,
        .rank = (int)(request->number & INT_MAX),
        .size = (int)(request->number >> DD_MEET_SIZE_SHIFT & INT_MAX),
        .published = request->values[0],
        .reply = reply,
    };
    if (self.rank >= self.size || self.published.len < MEETING_NONCE_BYTES) {
        return dd_error_set(
            err, DD_INVALID_ARGUMENT,
            "malformed meeting request: got rank %d of %d with %zu bytes, expected at least %d", self.rank,
            self.size, self.published.len, MEETING_NONCE_BYTES);
    }
    dd_status status = meeting_keys_init(&self.keys, store, "", request->keys[0], wait, err);
    reply->state = DD_MEET_AGAIN;
    reply->flag = false;
    for (int step = 0; step < STEPS_MAX && status == DD_OK && reply->state == DD_MEET_AGAIN; step++) {
        status = join_once(&self, (request->number & DD_MEET_WANTS_FAILURE) != 0, err);
    }
    reply->number = (int64_t)self.keys.generation;
    meeting_keys_fini(&self.keys);
    return status;
}

/* ---- MEET on a keyspace, by means of a store that only this file uses */

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
    /* Ranks publish before they are counted, so another client must have changed the keys. */
    size_t rank = 0;
    for (dd_bytes payload; rank < request->nkeys && dd_keyspace_get(ks, request->keys[rank], &payload);) {
        rank++;
    }
    return dd_error_set(err, DD_STORE, "all %zu ranks were counted, but the payload of rank %zu is missing",
                        request->nkeys, rank);
}

static const dd_store_ops bare_ops = {.kind = "keyspace", .run = bare_run};

dd_status
dd_keyspace_meet(dd_keyspace *ks, const dd_store_request *request, dd_store_result *result, dd_error *err)
{
    bare_store bare = {.head = {.ops = &bare_ops, .root = &bare.head}, .ks = ks};
    return meeting_join(&bare.head, ks, request, result, NULL, err);
}
