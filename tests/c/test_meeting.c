/* Meetings without groups: in one request or by keys, and their cost for many ranks. */
#include "check.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/system.h"
#include "core/thread.h"
#include "faults/faults.h"
#include "meet/internal.h"
#include "store/keyspace.h"
#include "store/tcp_client_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RANKS 8

/* ---- a few ranks on threads */

static bool
read_payload(dd_bytes payload, dd_meeting_member *member)
{
    char text[32];
    if (payload.len == 0 || payload.len >= sizeof text || payload.data[0] != '#') {
        return false;
    }
    memcpy(text, payload.data, payload.len);
    text[payload.len] = '\0';
    strcpy(member->host, "somewhere");
    member->pid = atoll(text + 1);
    return true;
}

static const dd_meeting_kind plain_kind = {
    .noun = "party", .of_interrupted = "went home", .read_payload = read_payload};
static const dd_meeting_kind final_kind = {
    .noun = "party", .of_interrupted = "went home", .is_final = true, .read_payload = read_payload};

typedef struct attendee {
    dd_meeting meeting;
    dd_meeting_end end;
    dd_wait wait;
    dd_status status;
    dd_error error;
    char payload[16];
    pthread_t thread;
} attendee;

static void
attendee_init(attendee *g, dd_store *store, int rank, int size, int64_t timeout_ns)
{
    *g = (attendee){.wait = dd_wait_after(timeout_ns)};
    snprintf(g->payload, sizeof g->payload, "#%d", 100 + rank);
    g->meeting =
        (dd_meeting){.kind = &plain_kind, .store = store, .name = BYTES("party"), .rank = rank, .size = size};
}

static void *
run_attendee(void *arg)
{
    attendee *g = arg;
    g->meeting.payload = dd_bytes_of_string(g->payload);
    g->status = dd_meet(&g->meeting, &g->end, &g->wait, &g->error);
    return NULL;
}

static void
run_attendees(attendee *attendees, int count)
{
    for (int i = 0; i < count; i++) {
        CHECK_OK(dd_thread_start(&attendees[i].thread, "guest", run_attendee, &attendees[i], check_err()));
    }
    for (int i = 0; i < count; i++) {
        pthread_join(attendees[i].thread, NULL);
    }
}

static void
check_joined(attendee *attendees, int size)
{
    for (int i = size - 1; i >= 0; i--) {
        if (!CHECK_OK(attendees[i].status)) {
            fprintf(stderr, "%s\n", attendees[i].error.message);
            continue;
        }
        CHECK(attendees[i].end.id == attendees[0].end.id);
        CHECK_INT(attendees[i].end.generation, attendees[0].end.generation);
        for (int rank = 0; rank < size; rank++) {
            CHECK_BYTES(attendees[i].end.payloads[rank], dd_bytes_of_string(attendees[rank].payload));
        }
        dd_meeting_end_fini(&attendees[i].end);
    }
}

/* ---- over a server: some ranks use one request, others use keys, as with other kinds of stores */

typedef struct offset {
    dd_tcp_server *server;
    dd_store *native[MAX_RANKS];
    dd_store_ops in_one;
    dd_store_ops by_keys;
} offset;

static dd_status
run_by_keys(dd_store *store, const dd_store_request *request, dd_store_result *result, const dd_wait *wait,
            dd_error *err)
{
    return request->op == DD_STORE_MEET ? dd_store_run_generic(store, request, result, wait, err)
                                        : tcp_run(store, request, result, wait, err);
}

static void
place_open(offset *p, int size)
{
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    dd_tcp_server_options serve = {.host = "127.0.0.1",
                                   .listen_fd = -1,
                                   .handshake_timeout_ns = 5 * DD_NS_PER_S * check_slow(),
                                   .limits = DD_TCP_LIMITS_DEFAULT};
    REQUIRE_OK(dd_tcp_server_open(&p->server, &serve, &wait, check_err()));
    for (int i = 0; i < size; i++) {
        dd_tcp_store_options options = {.host = "127.0.0.1",
                                        .port = dd_tcp_server_port(p->server),
                                        .timeout_ns = 10 * DD_NS_PER_S * check_slow(),
                                        .world_size = -1};
        REQUIRE_OK(dd_tcp_store_open(&p->native[i], &options, &wait, check_err()));
    }
    p->in_one = *p->native[0]->ops;
    p->by_keys = p->in_one;
    p->by_keys.run = run_by_keys;
}

static void
place_close(offset *p, int size)
{
    for (int i = 0; i < size; i++) {
        p->native[i]->ops = &p->in_one;
        dd_store_release(p->native[i]);
    }
    dd_tcp_server_release(p->server);
}

TEST(ranks_may_meet_by_one_store_request_or_by_plain_keys)
{
    enum { SIZE = 6 };
    offset p = {0};
    place_open(&p, SIZE);
    for (int mix = 0; mix < 3; mix++) { /* all in one request, every other rank, none */
        for (int again = 0; again < 3; again++) {
            attendee attendees[SIZE];
            for (int i = 0; i < SIZE; i++) {
                bool is_by_keys = mix == 2 || (mix == 1 && i % 2 == again % 2);
                p.native[i]->ops = is_by_keys ? &p.by_keys : &p.in_one;
                attendee_init(&attendees[i], p.native[i], i, SIZE, 20 * DD_NS_PER_S * check_slow());
            }
            run_attendees(attendees, SIZE);
            check_joined(attendees, SIZE);
        }
    }
    place_close(&p, SIZE);
}

/* ---- the last rank dies in a request of this kind, and the others must succeed with the keys that
 * it left */

static dd_store_op fatal_op;
static bool is_dead;

static dd_status
run_until_death(dd_store *store, const dd_store_request *request, dd_store_result *result,
                const dd_wait *wait, dd_error *err)
{
    is_dead = is_dead || request->op == fatal_op;
    return is_dead ? dd_error_set(err, DD_NETWORK, "its process exited")
                   : run_by_keys(store, request, result, wait, err);
}

static dd_status
report_running(dd_bytes payload, dd_bytes own, bool *was_seen, bool *has_exited, const dd_wait *wait,
               dd_error *err)
{
    (void)payload;
    (void)own;
    (void)was_seen;
    (void)wait;
    (void)err;
    *has_exited = false;
    return DD_OK;
}

static void
wait_for_count(dd_store *store, const char *count)
{
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    bool is_there = false;
    while (!is_there && !dd_wait_has_expired(&wait)) {
        dd_blob value = {0};
        CHECK_OK(
            dd_store_try_get(store, BYTES("dldist/party/0/count"), &value, &is_there, &wait, check_err()));
        is_there = is_there && dd_bytes_equal(dd_blob_view(&value), dd_bytes_of_string(count));
        dd_blob_fini(&value);
    }
    CHECK(is_there);
}

static const dd_meeting_kind watchful_kind = {.noun = "party",
                                              .of_interrupted = "went home",
                                              .read_payload = read_payload,
                                              .check_process = report_running};

static void
init_watchful(attendee *self, offset *p, int rank, int size, const dd_store_ops *ops)
{
    p->native[rank]->ops = ops;
    attendee_init(self, p->native[rank], rank, size, 20 * DD_NS_PER_S * check_slow());
    self->meeting.kind = &watchful_kind;
}

static void
check_a_death_at(dd_store_op op)
{
    enum { SIZE = 3 };
    offset p = {0};
    attendee attendees[SIZE];
    place_open(&p, SIZE);
    dd_store_ops dying_ops = p.by_keys;
    dying_ops.run = run_until_death;
    for (int i = 0; i < SIZE; i++) {
        init_watchful(&attendees[i], &p, i, SIZE, i == SIZE - 1 ? &dying_ops : &p.by_keys);
    }
    fatal_op = op;
    is_dead = false;
    for (int i = 0; i < SIZE - 1; i++) {
        CHECK_OK(dd_thread_start(&attendees[i].thread, "guest", run_attendee, &attendees[i], check_err()));
    }
    wait_for_count(p.native[0], "2");
    run_attendee(&attendees[SIZE - 1]);
    CHECK_STATUS(attendees[SIZE - 1].status, DD_NETWORK);
    for (int i = 0; i < SIZE - 1; i++) {
        pthread_join(attendees[i].thread, NULL);
        CHECK_OK(attendees[i].status);
        for (int rank = 0; attendees[i].status == DD_OK && rank < SIZE; rank++) {
            CHECK_BYTES(attendees[i].end.payloads[rank], dd_bytes_of_string(attendees[rank].payload));
        }
    }
    CHECK(attendees[0].end.id == attendees[1].end.id);
    for (int i = 0; i < SIZE - 1; i++) {
        dd_meeting_end_fini(&attendees[i].end);
    }
    place_close(&p, SIZE);
}

TEST(a_rendezvous_ends_even_if_its_last_rank_dies)
{
    check_a_death_at(DD_STORE_ADD);       /* it has joined, but is not counted */
    check_a_death_at(DD_STORE_MULTI_GET); /* it is counted */
}

TEST(a_rendezvous_ends_even_if_two_ranks_die)
{
    enum { SIZE = 3 };
    /* Rank 0 dies while it waits, rank 1 before it is counted, and rank 2 does not die. */
    static const dd_store_op fatal_ops[SIZE] = {DD_STORE_GET /* 0 */, DD_STORE_ADD /* 1 */,
                                                DD_STORE_BARRIER /* 2 */};
    offset p = {0};
    attendee attendees[SIZE];
    place_open(&p, SIZE);
    dd_store_ops dying_ops = p.by_keys;
    dying_ops.run = run_until_death;
    for (int i = 0; i < SIZE; i++) {
        init_watchful(&attendees[i], &p, i, SIZE, &dying_ops);
        fatal_op = fatal_ops[i];
        is_dead = false;
        run_attendee(&attendees[i]);
        CHECK_INT(is_dead, i < 2);
    }
    CHECK_OK(attendees[2].status);
    dd_meeting_end_fini(&attendees[2].end);
    place_close(&p, SIZE);
}

static void
check_time_outs(const dd_meeting_kind *kind, dd_store *store)
{
    attendee attendees[3];
    for (int i = 0; i < 2; i++) {
        attendee_init(&attendees[i], store, i, 3, 300 * DD_NS_PER_MS * check_slow());
        attendees[i].meeting.kind = kind;
    }
    run_attendees(attendees, 2);
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(attendees[i].status, DD_OP_TIMED_OUT);
        CHECK_CONTAINS(attendees[i].error.message, "party \"party\"");
        CHECK_CONTAINS(attendees[i].error.message, "0 (somewhere, pid 100");
        CHECK_CONTAINS(attendees[i].error.message, "missing: 2");
        CHECK_INT(attendees[i].error.blamed.rank, 2);
    }
    /* A name can be used again after a failed meeting, also for another number of ranks. */
    for (int i = 0; i < 2; i++) {
        attendee_init(&attendees[i], store, i, 2, 20 * DD_NS_PER_S * check_slow());
        attendees[i].meeting.kind = kind;
    }
    run_attendees(attendees, 2);
    check_joined(attendees, 2);
}

TEST(a_rendezvous_that_times_out_names_the_missing_ranks)
{
    offset p = {0};
    place_open(&p, 1);
    check_time_outs(&plain_kind, p.native[0]);
    check_time_outs(&final_kind, p.native[0]);
    p.native[0]->ops = &p.by_keys;
    check_time_outs(&plain_kind, p.native[0]);
    check_time_outs(&final_kind, p.native[0]);
    place_close(&p, 1);
}

/* Rank 0 times out first, which closes the server in its process. */
TEST(missing_ranks_are_named_even_after_the_store_has_ended)
{
    for (int by_keys = 0; by_keys < 2; by_keys++) {
        offset p = {0};
        attendee attendees[2];
        place_open(&p, 2);
        for (int i = 0; i < 2; i++) {
            p.native[i]->ops = by_keys ? &p.by_keys : &p.in_one;
            attendee_init(&attendees[i], p.native[i], i, 3,
                          (i == 0 ? 500 * DD_NS_PER_MS : 20 * DD_NS_PER_S) * check_slow());
            CHECK_OK(
                dd_thread_start(&attendees[i].thread, "guest", run_attendee, &attendees[i], check_err()));
        }
        pthread_join(attendees[0].thread, NULL);
        CHECK_STATUS(attendees[0].status, DD_OP_TIMED_OUT);
        dd_tcp_server_release(p.server);
        p.server = NULL;
        pthread_join(attendees[1].thread, NULL);
        CHECK_STATUS(attendees[1].status, DD_OP_TIMED_OUT);
        CHECK_CONTAINS(attendees[1].error.message, "party \"party\" (rank 1 of 3): rank 0 waited ");
        CHECK_CONTAINS(attendees[1].error.message,
                       "2 of 3 have joined: 0 (somewhere, pid 100), 1 (somewhere, pid 101)");
        CHECK_CONTAINS(attendees[1].error.message, "; missing: 2; then the store failed: ");
        CHECK_INT(attendees[1].error.blamed.rank, 2);
        place_close(&p, 2);
    }
}

static int
count_log_lines(const char *part)
{
    int count = 0;
    dd_log_record record;
    while (dd_log_take(&record, &(dd_wait){0}, NULL) == DD_OK) {
        count += strstr(record.message, part) != NULL;
    }
    return count;
}

/* A rank is missing because it cannot connect to the store; the connected rank sees the reason. */
TEST(ranks_that_wait_report_that_the_store_ran_out_of_descriptors)
{
    static dd_sys_fault fault = {.call = DD_SYS_accept4, .error_number = EMFILE, .is_lasting = true};
    offset p = {0};
    attendee waiting;
    dd_error error;
    dd_store *late = NULL;
    place_open(&p, 1);
    dd_log_set_level(DD_LOG_INFO);
    dd_sys_fail_call(&fault);
    dd_tcp_store_options options = {.host = "127.0.0.1",
                                    .port = dd_tcp_server_port(p.server),
                                    .timeout_ns = DD_NS_PER_S,
                                    .world_size = -1};
    dd_wait wait = dd_wait_after(600 * DD_NS_PER_MS);
    CHECK_STATUS(dd_tcp_store_open(&late, &options, &wait, &error), DD_NETWORK_TIMED_OUT);
    attendee_init(&waiting, p.native[0], 0, 2, 100 * DD_NS_PER_MS);
    run_attendee(&waiting);
    CHECK_STATUS(waiting.status, DD_OP_TIMED_OUT);
    CHECK_CONTAINS(waiting.error.message, "; missing: 1; the store's server could not accept connections: "
                                          "Too many open files (errno 24)");
    int nlines = count_log_lines("cannot accept connections: Too many open files");
    CHECK(nlines >= 1 && nlines <= 3);
    dd_log_set_level(DD_LOG_OFF);
    dd_sys_fail_call(NULL);
    wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    REQUIRE_OK(dd_tcp_store_open(&late, &options, &wait, check_err()));
    attendee_init(&waiting, p.native[0], 0, 2, 100 * DD_NS_PER_MS);
    run_attendee(&waiting);
    CHECK_LACKS(waiting.error.message, "could not accept");
    dd_store_release(late);
    place_close(&p, 1);
}

TEST(a_late_rank_gets_the_timeout_of_its_rendezvous_once_and_can_then_retry)
{
    offset p = {0};
    place_open(&p, 1);
    for (int by_keys = 0; by_keys < 2; by_keys++) {
        attendee attendees[2];
        p.native[0]->ops = by_keys ? &p.by_keys : &p.in_one;
        attendee_init(&attendees[0], p.native[0], 0, 2, 100 * DD_NS_PER_MS);
        attendee_init(&attendees[1], p.native[0], 1, 2, 20 * DD_NS_PER_S * check_slow());
        attendees[0].meeting.kind = attendees[1].meeting.kind = &final_kind;
        run_attendee(&attendees[0]);
        CHECK_STATUS(attendees[0].status, DD_OP_TIMED_OUT);
        run_attendee(&attendees[1]);
        CHECK_STATUS(attendees[1].status, DD_OP_TIMED_OUT);
        CHECK_CONTAINS(attendees[1].error.message, "1 of 2 have joined: 0 (somewhere, pid 100); missing: 1");
        attendees[0].wait = attendees[1].wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
        run_attendees(attendees, 2);
        check_joined(attendees, 2);
    }
    place_close(&p, 1);
}

/* Data from a peer must not cause large allocations, and must not be trusted. */
/* A rank that joins a meeting, as a request. */
typedef struct arrival {
    dd_bytes offset;
    int rank;
    int size;
    dd_bytes published;
} arrival;

static dd_store_request
request_of(const arrival *from)
{
    return (dd_store_request){.op = DD_STORE_MEET,
                              .keys = &from->offset,
                              .nkeys = 1,
                              .values = &from->published,
                              .number = dd_store_meet_number(from->rank, from->size, false)};
}

static dd_status
come(dd_keyspace *ks, const arrival *from, dd_store_result *reply)
{
    dd_store_request request = request_of(from);
    return dd_keyspace_meet(ks, &request, reply, check_err());
}

static void
set(dd_keyspace *ks, const char *key, const char *value)
{
    dd_bytes bytes[] = {dd_bytes_of_string(key), dd_bytes_of_string(value)};
    dd_store_request request = {.op = DD_STORE_SET, .keys = bytes, .nkeys = 1, .values = bytes + 1};
    bool is_answered = false;
    CHECK_OK(dd_keyspace_answer(ks, &request, &(dd_store_result){0}, &is_answered, check_err()));
}

TEST(a_store_server_refuses_malformed_rendezvous_requests)
{
    dd_keyspace ks;
    dd_keyspace_init(&ks);
    static const struct {
        int rank;
        int size;
        const char *published;
    } bad[] = {{-1, 2, "12345678card"}, {2, 2, "12345678card"}, {0, 0, "12345678card"}, {0, 1, "short"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        dd_store_result reply = {0};
        arrival request = {.offset = BYTES("place"),
                           .rank = bad[i].rank,
                           .size = bad[i].size,
                           .published = dd_bytes_of_string(bad[i].published)};
        CHECK_STATUS(come(&ks, &request, &reply), DD_INVALID_ARGUMENT);
        dd_blob_fini(&reply.value);
    }
    CHECK_INT(ks.nvalues, 0);
    /* A malformed count of two thousand million ranks. */
    dd_store_result reply = {0};
    arrival huge = {
        .offset = BYTES("place"), .rank = 0, .size = 2147483647, .published = BYTES("12345678card")};
    set(&ks, "place/0/count", "2147483646");
    CHECK_OK(come(&ks, &huge, &reply));
    CHECK_INT(reply.state, DD_MEET_WAITING);
    /* A meeting of three ranks, one of which has left no payload. */
    huge.size = 3;
    huge.offset = BYTES("other");
    set(&ks, "other/0/count", "2");
    CHECK_STATUS(come(&ks, &huge, &reply), DD_STORE);
    CHECK_CONTAINS(check_message(), "the payload of rank 1 is missing");
    /* Finished meetings are skipped, a few in each request. */
    for (int i = 0; i < 40; i++) {
        char key[32];
        snprintf(key, sizeof key, "over/%d/end", i);
        set(&ks, key, "off");
        snprintf(key, sizeof key, "over/%d/size", i);
        set(&ks, key, "7 0\n");
    }
    huge.offset = BYTES("over");
    for (int i = 0; i < 3; i++) {
        CHECK_OK(come(&ks, &huge, &reply));
        CHECK_INT(reply.state, i < 2 ? DD_MEET_AGAIN : DD_MEET_WAITING);
    }
    CHECK_INT(reply.number, 40);
    dd_blob_fini(&reply.value);
    dd_keyspace_fini(&ks);
}

/* The keys left by a meeting do not grow with its ranks. A late rank joins the next meeting. */
TEST(the_keys_of_ranks_are_deleted_after_their_rendezvous)
{
    enum { SIZE = 5 };
    dd_keyspace ks;
    dd_keyspace_init(&ks);
    for (int rank = 0; rank < SIZE; rank++) {
        char published[32];
        snprintf(published, sizeof published, "nonce-%02d#%d", rank, rank);
        dd_store_result reply = {0};
        arrival request = {
            .offset = BYTES("place"), .rank = rank, .size = SIZE, .published = dd_bytes_of_string(published)};
        CHECK_OK(come(&ks, &request, &reply));
        CHECK_INT(reply.state, rank < SIZE - 1 ? DD_MEET_WAITING : DD_MEET_ENDED);
        dd_blob_fini(&reply.value);
    }
    CHECK_INT(ks.nvalues, 4); /* the result, the count, the size, and the next meeting's number */
    /* This rank has read the generation before it was incremented. */
    dd_bytes generation = BYTES("place/generation");
    dd_store_request forget = {.op = DD_STORE_DELETE_KEY, .keys = &generation, .nkeys = 1};
    dd_store_result forgotten = {0};
    bool is_answered = false;
    CHECK_OK(dd_keyspace_answer(&ks, &forget, &forgotten, &is_answered, check_err()));
    CHECK(forgotten.flag);
    dd_store_result reply = {0};
    arrival late = {.offset = BYTES("place"), .rank = 2, .size = SIZE, .published = BYTES("anothernonce")};
    CHECK_OK(come(&ks, &late, &reply));
    CHECK_INT(reply.state, DD_MEET_WAITING);
    CHECK_INT(reply.number, 1);
    CHECK(reply.flag);
    dd_blob_fini(&reply.value);
    dd_keyspace_fini(&ks);
}

TEST(joining_a_rendezvous_returns_an_error_when_allocations_fail)
{
    dd_status status = DD_OUT_OF_MEMORY;
    for (long nth = 0; nth < 60 && status == DD_OUT_OF_MEMORY; nth++) {
        dd_store *store = NULL;
        attendee g;
        REQUIRE_OK(dd_hash_store_open(&store, DD_NS_PER_S, check_err()));
        attendee_init(&g, store, 0, 1, DD_NS_PER_S * check_slow());
        g.meeting.payload = dd_bytes_of_string(g.payload);
        (void)dd_mem_fail_after(nth);
        status = dd_meet(&g.meeting, &g.end, &g.wait, check_err());
        (void)dd_mem_fail_after(-1);
        dd_meeting_end_fini(&g.end);
        dd_store_release(store);
    }
    CHECK_OK(status);
}

/* ---- results, which other programs can also write to the store */

/* Decode from a block of exactly this size, so that a sanitizer detects overreads. */
static dd_status
decode_copy(dd_bytes end, int size, dd_meeting_end *out)
{
    uint8_t *copy = malloc(end.len > 0 ? end.len : 1);
    memcpy(copy, end.data, end.len);
    dd_status status = meeting_decode_end(size, dd_bytes_of(copy, end.len), out, check_err());
    free(copy);
    return status;
}

TEST(a_truncated_or_changed_result_of_a_rendezvous_is_decoded_safely)
{
    static const char *const PUBLISHED[] = {"12345678host-a one", "12345678host-a two", "12345678host-b",
                                            "12345678"};
    enum { SIZE = 4 };
    dd_blob_list list;
    dd_blob end = {0};
    dd_meeting_end read = {0};
    REQUIRE_OK(dd_blob_list_init(&list, SIZE, check_err()));
    for (size_t i = 0; i < SIZE; i++) {
        REQUIRE_OK(dd_blob_assign(&list.items[i], dd_bytes_of_string(PUBLISHED[i]), check_err()));
    }
    REQUIRE_OK(meeting_encode_end(77, &list, &end, check_err()));
    REQUIRE_OK(decode_copy(dd_blob_view(&end), SIZE, &read));
    CHECK_INT(read.id, 77);
    for (size_t i = 0; i < SIZE; i++) {
        CHECK_BYTES(read.payloads[i], dd_bytes_of_string(PUBLISHED[i] + 8));
    }
    dd_meeting_end_fini(&read);
    for (size_t len = 0; len < end.len; len++) {
        CHECK_STATUS(decode_copy(dd_bytes_of(end.data, len), SIZE, &read), DD_STORE);
    }
    CHECK_STATUS(decode_copy(dd_blob_view(&end), SIZE + 1, &read), DD_STORE);
    for (size_t at = 0; at < end.len; at++) {
        uint8_t old = end.data[at];
        for (unsigned value = 0; value < 256; value++) {
            end.data[at] = (uint8_t)value;
            dd_status status = decode_copy(dd_blob_view(&end), SIZE, &read);
            REQUIRE(status == DD_OK || status == DD_STORE);
            dd_meeting_end_fini(&read);
        }
        end.data[at] = old;
    }
    dd_blob_fini(&end);
    dd_blob_list_fini(&list);
}
