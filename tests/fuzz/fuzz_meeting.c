/* Rendezvous in a store that any process can write to: decoding of ends, requests of joining ranks,
 * and a rank that joins others while values change. The first byte of the input selects one of
 * these. */
#include "fuzz.h"
#include "meet/internal.h"
#include "store/keyspace.h"

#include <stdio.h>
#include <string.h>

#define MAX_INPUT_BYTES 4096u
#define PLACE "dldist/g"

/* ---- ends */

static void
check_payloads(int size, const dd_meeting_end *end)
{
    dd_blob_list published = {0};
    require(dd_blob_list_init(&published, (size_t)size, NULL) == DD_OK);
    for (int rank = 0; rank < size; rank++) {
        static const uint8_t nonce[MEETING_NONCE_BYTES];
        dd_bytes payload = end->payloads[rank];
        require(payload.len == 0 || (payload.data >= end->bytes.data &&
                                     payload.data + payload.len <= end->bytes.data + end->bytes.len));
        require(dd_blob_append(&published.items[rank], nonce, sizeof nonce, NULL) == DD_OK);
        require(dd_blob_append(&published.items[rank], payload.data, payload.len, NULL) == DD_OK);
    }
    dd_blob said = {0};
    dd_meeting_end again = {0};
    /* otherwise the payload is too long */
    if (meeting_encode_end(end->id, &published, &said, NULL) == DD_OK) {
        require(meeting_decode_end(size, dd_blob_view(&said), &again, NULL) == DD_OK);
        require(again.id == end->id);
        for (int rank = 0; rank < size; rank++) {
            require(dd_bytes_equal(again.payloads[rank], end->payloads[rank]));
        }
    }
    dd_meeting_end_fini(&again);
    dd_blob_fini(&said);
    dd_blob_list_fini(&published);
}

static void
read_end(dd_bytes input)
{
    int size = 1 + (int)(take_byte(&input) % 8);
    dd_meeting_end end = {0};
    dd_error err;
    if (meeting_decode_end(size, input, &end, &err) != DD_OK) {
        require(err.code == DD_STORE && end.payloads == NULL && end.bytes.data == NULL);
    } else {
        check_payloads(size, &end);
    }
    dd_meeting_end_fini(&end);
}

static void
read_failure(dd_bytes input)
{
    dd_error error;
    dd_error again;
    char text[MEETING_FAILURE_MAX];
    if (!meeting_decode_failure(input, &error)) {
        return;
    }
    require(error.code > DD_OK && error.code < DD_STATUS_COUNT);
    size_t len = meeting_encode_failure(&error, text);
    require(len < sizeof text && meeting_decode_failure(dd_bytes_of(text, len), &again));
    require(again.code == error.code && strcmp(again.message, error.message) == 0);
    require(again.blamed.rank == error.blamed.rank && strcmp(again.blamed.host, error.blamed.host) == 0);
}

/* ---- a store in which an attacker writes after every request; no call waits */

typedef struct shared_store {
    dd_store head;
    dd_keyspace ks;
    bool is_native; /* joins with one request */
    dd_bytes input;
} shared_store;

/* Write a key and a value from the input. Many of them begin as a rank's do. */
static void
write_something(shared_store *self)
{
    static const char *const names[] = {
        "/generation", "/0/end",    "/0/size",   "/0/count",  "/0/rank/0",
        "/0/rank/1",   "/0/rank/2", "/0/broken", "/1/end",    "/1/size",
        "/1/count",    "/1/rank/0", "/1/rank/1", "/1/broken", "/18446744073709551615/end"};
    static const char *const begins[] = {
        "",  "ok 3 0000000000000001\n", "ok 2 1\n", "failed 3 1 7\nhost\nit is so", "2 0\n", "3 1\n",
        "3", "18446744073709551615",    "off\n",    "nonce+++payload of one"};
    unsigned which = take_byte(&self->input);
    unsigned begin = take_byte(&self->input);
    if ((which & 0xf) == 0xf) { /* write nothing */
        return;
    }
    char key[64];
    dd_blob value = {0};
    int len = snprintf(key, sizeof key, PLACE "%s", names[which & 0xf]);
    const char *text = begins[begin % 10];
    dd_bytes rest = take_bytes(&self->input, begin / 10);
    require(dd_blob_append(&value, text, strlen(text), NULL) == DD_OK &&
            dd_blob_append(&value, rest.data, rest.len, NULL) == DD_OK);
    dd_bytes keys = dd_bytes_of(key, (size_t)len);
    dd_bytes values = dd_blob_view(&value);
    dd_store_request request = {.op = (which & 0x80) != 0 ? DD_STORE_DELETE_KEY : DD_STORE_SET,
                                .keys = &keys,
                                .nkeys = 1,
                                .values = &values};
    dd_store_result result = {0};
    bool is_answered = false;
    require(dd_keyspace_answer(&self->ks, &request, &result, &is_answered, NULL) == DD_OK && is_answered);
    dd_store_result_fini(&result);
    dd_blob_fini(&value);
}

static dd_status
shared_run(dd_store *store, const dd_store_request *request, dd_store_result *result, const dd_wait *wait,
           dd_error *err)
{
    shared_store *self = (shared_store *)store;
    bool is_answered = false;
    if (request->op == DD_STORE_MEET && !self->is_native) {
        return dd_store_run_generic(store, request, result, wait, err);
    }
    dd_status status = dd_keyspace_answer(&self->ks, request, result, &is_answered, err);
    write_something(self);
    return status == DD_OK && !is_answered ? dd_error_set(err, DD_TIMED_OUT, "it is not there") : status;
}

static const dd_store_ops shared_ops = {.kind = "shared", .run = shared_run};

/* ---- a rank */

static bool
read_payload(dd_bytes payload, dd_meeting_member *member)
{
    *member = (dd_meeting_member){.pid = (long long)payload.len};
    snprintf(member->host, sizeof member->host, "host");
    return payload.len > 0 && payload.data[0] != 'x';
}

static dd_status
look_for(dd_bytes payload, dd_bytes own, bool *was_seen, bool *has_exited, const dd_wait *wait, dd_error *err)
{
    (void)own;
    (void)wait;
    (void)err;
    *has_exited = payload.len > 1 && payload.data[payload.len - 1] == 'g';
    *was_seen = !*has_exited;
    return DD_OK;
}

static void
meet(dd_bytes input)
{
    unsigned first = take_byte(&input);
    const dd_meeting_kind kind = {.noun = "group",
                                  .of_interrupted = "has given up",
                                  .is_final = first & 1,
                                  .read_payload = read_payload,
                                  .check_process = (first & 2) != 0 ? look_for : NULL};
    shared_store store = {.is_native = first & 4, .input = input};
    dd_store_init(&store.head, &shared_ops, DD_NS_PER_S);
    dd_keyspace_init(&store.ks);
    for (unsigned i = 0; i < (first >> 4); i++) {
        write_something(&store);
    }
    const dd_meeting meeting = {.kind = &kind,
                                .store = &store.head,
                                .name = dd_bytes_of("g", 1),
                                .rank = (int)(first >> 2 & 1),
                                .size = 1 + (int)(first >> 2 & 1) + (int)(first & 1),
                                .payload = dd_bytes_of("payload of one", 11)};
    const dd_wait at_once = dd_wait_after(0);
    dd_meeting_end end = {0};
    dd_error err;
    if (dd_meet(&meeting, &end, &at_once, &err) == DD_OK) {
        check_payloads(meeting.size, &end);
    } else {
        require(err.code != DD_OK && err.message[0] != '\0');
    }
    (void)!dd_meeting_check(&store.head, meeting.name, end.generation, &at_once, &err);
    dd_meeting_end_fini(&end);
    dd_keyspace_fini(&store.ks);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > MAX_INPUT_BYTES) {
        return -1;
    }
    dd_bytes input = dd_bytes_of(data, size);
    switch (take_byte(&input) % 8) {
    case 0:
        read_end(input);
        break;
    case 2:
        read_failure(input);
        break;
    default:
        meet(input);
    }
    return 0;
}
