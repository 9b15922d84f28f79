#include "check.h"

#include "core/fork.h"
#include "core/lock.h"
#include "core/mem.h"
#include "core/thread.h"
#include "faults/faults.h"
#include "insight.h"
#include "plain_proxy.h"
#include "store/tcp_client_internal.h"
#include "store/tcp_store.h"
#include "store_calls.h"
#include "store_suite.h"
#include "tcp_raw.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- the suite over every transport to a server ----------------------------------------------- */

typedef struct world {
    dd_tcp_server *server;
    plain_proxy *proxy;
} world;

static dd_store *
open_client(uint16_t port, dd_bytes secret)
{
    dd_tcp_store_options options = {
        .host = "127.0.0.1",
        .port = port,
        .timeout_ns = DD_STORE_DEFAULT_TIMEOUT_NS,
        .world_size = -1,
        .secret = secret,
    };
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S * check_slow());
    dd_store *store = NULL;
    CHECK_OK(dd_tcp_store_open(&store, &options, &wait, check_err()));
    return store;
}

static dd_store *
open_world(void **fixture, dd_bytes secret, bool has_proxy, plain_proxy_mode mode)
{
    world *made = calloc(1, sizeof *made);
    dd_tcp_server_options options = raw_options();
    options.secret = secret;
    made->server = raw_server(&options);
    uint16_t port = dd_tcp_server_port(made->server);
    if (has_proxy) {
        made->proxy = plain_proxy_start(port, mode);
        port = plain_proxy_port(made->proxy);
    }
    *fixture = made;
    dd_store *store = open_client(port, secret);
    if (store != NULL) {
        CHECK(tcp_store_of(store)->target.is_extended == (!has_proxy || mode != PROXY_PLAIN));
    }
    return store;
}

static void
close_world(void *fixture)
{
    world *made = fixture;
    plain_proxy_stop(made->proxy);
    dd_tcp_server_release(made->server);
    free(made);
}

static dd_store *
open_unix(void **fixture)
{
    return open_world(fixture, (dd_bytes){0}, false, PROXY_FAITHFUL);
}

static dd_store *
open_remote(void **fixture)
{
    return open_world(fixture, (dd_bytes){0}, true, PROXY_FAITHFUL);
}

static dd_store *
open_secret(void **fixture)
{
    return open_world(fixture, BYTES("open sesame"), false, PROXY_FAITHFUL);
}

static dd_store *
open_encrypted(void **fixture)
{
    return open_world(fixture, BYTES("open sesame"), true, PROXY_FAITHFUL);
}

static dd_store *
open_plain(void **fixture)
{
    return open_world(fixture, (dd_bytes){0}, true, PROXY_PLAIN);
}

STORE_SUITE(tcp, .open = open_unix, .close = close_world, .has_queues = true, .has_number_errors = true)
STORE_SUITE(tcp_remote, .open = open_remote, .close = close_world, .has_queues = true,
            .has_number_errors = true)
STORE_SUITE(tcp_secret, .open = open_secret, .close = close_world, .has_queues = true,
            .has_number_errors = true)
STORE_SUITE(tcp_encrypted, .open = open_encrypted, .close = close_world, .has_queues = true,
            .has_number_errors = true)
/* PyTorch's protocol cannot report that a value is not a number. */
STORE_SUITE(tcp_plain, .open = open_plain, .close = close_world, .has_queues = true, .thread_ops = 200)

/* --- helpers for all tests below -------------------------------------------------------------- */

static dd_wait
long_wait(void)
{
    return dd_wait_after(8 * DD_NS_PER_S * check_slow());
}

static void
nap_ms(int ms)
{
    dd_wait wait = dd_wait_after(DD_NS_PER_S);
    CHECK_OK(dd_wait_sleep(&wait, ms * DD_NS_PER_MS, check_err()));
}

/* Run a test with a dldist server and with one that looks like PyTorch's. */
static void
for_both(void (*run)(dd_store *store, world *where))
{
    dd_store *(*const opens[])(void **fixture) = {open_unix, open_plain};
    for (size_t i = 0; i < 2 && check_failures() == 0; i++) {
        void *fixture = NULL;
        dd_store *store = opens[i](&fixture);
        REQUIRE(store != NULL);
        run(store, fixture);
        dd_store_release(store);
        close_world(fixture);
        if (check_failures() > 0) {
            fprintf(stderr, "    with %s\n", i == 0 ? "our protocol" : "PyTorch's protocol");
        }
    }
}

static dd_status
set_text(dd_store *store, const char *key, const char *value)
{
    dd_wait wait = long_wait();
    return dd_store_set(store, dd_bytes_of_string(key), dd_bytes_of_string(value), &wait, check_err());
}

static void
expect_text(dd_store *store, const char *key, const char *expected)
{
    dd_wait wait = long_wait();
    dd_blob value = {0};
    if (CHECK_OK(dd_store_get(store, dd_bytes_of_string(key), &value, &wait, check_err()))) {
        CHECK_BYTES(dd_blob_view(&value), dd_bytes_of_string(expected));
    }
    dd_blob_fini(&value);
}

static void
expect_usable(dd_store *store)
{
    CHECK_OK(set_text(store, "usable", "yes"));
    expect_text(store, "usable", "yes");
}

static void
expect_parked(dd_tcp_server *server, uint64_t count)
{
    server_stats stats;
    stats = read_server_stats(server);
    for (int i = 0; i < 2000 && stats.parked != count; i++) {
        nap_ms(2);
        stats = read_server_stats(server);
    }
    CHECK_INT(stats.parked, count);
}

/* Calls that wait for keys and ranks that never appear. */
#define NBLOCKING 5

static dd_status
call_blocking(dd_store *store, int which, const dd_wait *wait, dd_error *err)
{
    const dd_bytes keys[] = {BYTES("not there"), BYTES("nor that")};
    dd_blob value = {0};
    dd_blob_list values = {0};
    dd_status status;
    char barrier[32];
    switch (which) {
    case 0:
        status = dd_store_get(store, keys[0], &value, wait, err);
        break;
    case 1:
        status = dd_store_wait(store, keys, 2, wait, err);
        break;
    case 2:
        status = dd_store_multi_get(store, keys, 2, &values, wait, err);
        break;
    case 3:
        status = dd_store_queue_pop(store, keys[0], true, &value, wait, err);
        break;
    default:
        /* Each call needs its own barrier, because an arrival is counted. */
        (void)snprintf(barrier, sizeof barrier, "b%lld", (long long)dd_clock_now_ns());
        status = dd_store_barrier(store, dd_bytes_of_string(barrier), 2, wait, err);
    }
    dd_blob_fini(&value);
    dd_blob_list_fini(&values);
    return status;
}

/* --- waiting ---------------------------------------------------------------------------------- */

static void
one_check_at_deadline_zero(dd_store *store, world *where)
{
    (void)where;
    for (int which = 0; which < NBLOCKING; which++) {
        dd_wait wait = dd_wait_after(0);
        CHECK_STATUS(call_blocking(store, which, &wait, check_err()), DD_TIMED_OUT);
        CHECK_CONTAINS(check_message(), which < 4 ? "wait timeout after 0ms" : "barrier timed out after ");
    }
    CHECK_OK(set_text(store, "there", "value"));
    dd_wait wait = dd_wait_after(0);
    dd_blob value = {0};
    dd_bytes key = BYTES("there");
    CHECK_OK(dd_store_get(store, key, &value, &wait, check_err()));
    CHECK_TEXT(dd_blob_view(&value), "value");
    CHECK_OK(dd_store_wait(store, &key, 1, &wait, check_err()));
    CHECK_OK(dd_store_queue_push(store, key, BYTES("item"), &wait, check_err()));
    CHECK_OK(dd_store_queue_pop(store, key, true, &value, &wait, check_err()));
    CHECK_TEXT(dd_blob_view(&value), "item");
    CHECK_OK(dd_store_barrier(store, BYTES("alone"), 1, &wait, check_err()));
    dd_blob_fini(&value);
}

TEST(a_call_with_a_timeout_of_zero_checks_once)
{
    for_both(one_check_at_deadline_zero);
}

static void
time_out_and_go_on(dd_store *store, world *where)
{
    for (int round = 0; round < 4; round++) {
        for (int which = 0; which < NBLOCKING; which++) {
            /* The request for a barrier must reach the server, which then counts this rank. */
            dd_wait wait = dd_wait_after((which < 4 ? 10 : 100) * DD_NS_PER_MS);
            CHECK_STATUS(call_blocking(store, which, &wait, check_err()), DD_TIMED_OUT);
            CHECK_CONTAINS(check_message(), "TCPStore at 127.0.0.1:");
            if (which < 4) {
                CHECK_CONTAINS(check_message(), "wait timeout after 10ms, keys: /not there");
            } else {
                CHECK_CONTAINS(check_message(), "barrier timed out after ");
                CHECK_CONTAINS(check_message(), "1 of 2 have joined");
            }
        }
        expect_usable(store);
    }
    expect_parked(where->server, 0);
}

TEST(timeouts_leave_the_store_usable)
{
    for_both(time_out_and_go_on);
}

static bool
is_past(void *ctx)
{
    return dd_clock_now_ns() >= *(int64_t *)ctx;
}

static void
interrupt_and_go_on(dd_store *store, world *where)
{
    for (int which = 0; which < NBLOCKING; which++) {
        int64_t best_ns = INT64_MAX;
        for (int i = 0; i < 5 && best_ns > 100 * DD_NS_PER_MS; i++) {
            int64_t from_ns = dd_clock_now_ns() + 20 * DD_NS_PER_MS;
            dd_wait wait = long_wait();
            wait.is_interrupted = is_past;
            wait.ctx = &from_ns;
            CHECK_STATUS(call_blocking(store, which, &wait, check_err()), DD_INTERRUPTED);
            int64_t late_ns = dd_clock_now_ns() - from_ns;
            best_ns = late_ns < best_ns ? late_ns : best_ns;
        }
        CHECK(best_ns <= 100 * DD_NS_PER_MS * check_slow());
        expect_usable(store);
    }
    expect_parked(where->server, 0);
}

TEST(interrupts_leave_the_store_usable)
{
    for_both(interrupt_and_go_on);
}

typedef struct user {
    pthread_t thread;
    dd_store *store;
    int index;
    dd_status status;
    int64_t ended_ns;
    char message[256];
} user;

static void *
get_late_key(void *arg)
{
    user *self = arg;
    char key[16];
    (void)snprintf(key, sizeof key, "late%d", self->index);
    expect_text(self->store, key, "at last");
    return NULL;
}

static void *
use_briskly(void *arg)
{
    user *self = arg;
    dd_wait wait = long_wait();
    char key[16];
    (void)snprintf(key, sizeof key, "own%d", self->index);
    int64_t sum = 0;
    for (int i = 1; i <= 50; i++) {
        CHECK_OK(dd_store_add(self->store, dd_bytes_of_string(key), 1, &sum, &wait, check_err()));
        CHECK_INT(sum, i);
    }
    return NULL;
}

static void
share_a_client(dd_store *store, world *where)
{
    user users[16];
    for (int i = 0; i < 16; i++) {
        users[i] = (user){.store = store, .index = i};
        CHECK(pthread_create(&users[i].thread, NULL, i < 8 ? get_late_key : use_briskly, &users[i]) == 0);
        if (i == 7) {
            expect_parked(where->server, 8);
        }
    }
    for (int i = 8; i < 16; i++) {
        pthread_join(users[i].thread, NULL);
    }
    expect_parked(where->server, 8);
    for (int i = 0; i < 8; i++) {
        char key[16];
        (void)snprintf(key, sizeof key, "late%d", i);
        CHECK_OK(set_text(store, key, "at last"));
        pthread_join(users[i].thread, NULL);
    }
    expect_parked(where->server, 0);
}

TEST(blocked_threads_delay_no_others)
{
    for_both(share_a_client);
}

/* --- items are never lost --------------------------------------------------------------------- */

#define NITEMS 300

static void *
push_items(void *arg)
{
    user *self = arg;
    unsigned seed = 1;
    for (int i = 0; i < NITEMS; i++) {
        dd_wait wait = long_wait();
        CHECK_OK(dd_store_queue_push(self->store, BYTES("q"), BYTES("item"), &wait, check_err()));
        (void)usleep((unsigned)rand_r(&seed) % 3000);
    }
    return NULL;
}

/* Pop with deadlines and interrupts at about the times when items arrive. */
static void
pop_at_the_last_moment(dd_store *store, world *where)
{
    user pusher = {.store = open_client(dd_tcp_server_port(where->server), (dd_bytes){0})};
    REQUIRE(pusher.store != NULL);
    REQUIRE(pthread_create(&pusher.thread, NULL, push_items, &pusher) == 0);
    dd_wait limit = long_wait();
    unsigned seed = 2;
    int npopped = 0;
    for (int i = 0; npopped < NITEMS && !dd_wait_has_expired(&limit); i++) {
        int64_t span_ns = rand_r(&seed) % 2000 * DD_NS_PER_US;
        int64_t from_ns = dd_clock_now_ns() + span_ns;
        dd_wait wait = dd_wait_after(i % 8 == 0 ? DD_NS_PER_S : span_ns);
        wait.is_interrupted = i % 8 == 0 ? is_past : NULL;
        wait.ctx = &from_ns;
        dd_blob value = {0};
        dd_status status = dd_store_queue_pop(store, BYTES("q"), true, &value, &wait, check_err());
        CHECK(status == DD_OK || status == DD_TIMED_OUT || status == DD_INTERRUPTED);
        npopped += status == DD_OK;
        dd_blob_fini(&value);
    }
    pthread_join(pusher.thread, NULL);
    CHECK_INT(npopped, NITEMS);
    dd_store_release(pusher.store);
}

TEST(a_queue_item_that_arrives_at_the_deadline_is_not_lost)
{
    for_both(pop_at_the_last_moment);
}

static void *
push_large(void *arg)
{
    user *self = arg;
    dd_wait wait = long_wait();
    size_t len = (size_t)8 << 20;
    uint8_t *data = calloc(1, len);
    if (CHECK(data != NULL)) {
        CHECK_OK(dd_store_queue_push(self->store, BYTES("q"), dd_bytes_of(data, len), &wait, check_err()));
    }
    free(data);
    return NULL;
}

/* The deadline passes in the middle of a reply: the rest must still be received. */
TEST(a_large_queue_item_that_arrived_in_part_is_not_lost)
{
    void *fixture;
    dd_store *store = open_unix(&fixture);
    REQUIRE(store != NULL);
    user pusher = {.store = open_client(dd_tcp_server_port(((world *)fixture)->server), (dd_bytes){0})};
    for (int i = 0; i < 5; i++) {
        dd_blob value = {0};
        CHECK(pthread_create(&pusher.thread, NULL, push_large, &pusher) == 0);
        dd_status status = DD_TIMED_OUT;
        for (int tries = 0; status == DD_TIMED_OUT && tries < 5000; tries++) {
            dd_wait wait = dd_wait_after((1 + i) * DD_NS_PER_MS);
            status = dd_store_queue_pop(store, BYTES("q"), true, &value, &wait, check_err());
        }
        CHECK_OK(status);
        CHECK_INT(value.len, (size_t)8 << 20);
        dd_blob_fini(&value);
        pthread_join(pusher.thread, NULL);
    }
    dd_store_release(pusher.store);
    dd_store_release(store);
    close_world(fixture);
}

/* Open a store whose server is the other end of a socket pair. */
static void
open_on_pair(tcp_store *store, int ends[2])
{
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    *store = (tcp_store){.where = "a pair", .target = {.is_extended = true, .limits = DD_TCP_LIMITS_DEFAULT}};
    dd_lock_init(&store->mu, DD_LOCK_TEST);
    dd_cond_init(&store->cond);
    dd_list_init(&store->unanswered);
    store->link = dd_mem_zalloc(sizeof *store->link);
    REQUIRE(store->link != NULL);
    tcp_link_init(store->link);
    store->link->fd = dd_fork_register(ends[0]);
}

static void
close_pair(tcp_store *store, int ends[2])
{
    CHECK(dd_list_is_empty(&store->unanswered));
    close(ends[1]);
    tcp_link_destroy(store->link, false);
    dd_blob_fini(&store->backlog);
}

/* A pop is cancelled before its answer arrives: the item must be pushed back. */
TEST(the_queue_item_of_a_cancelled_pop_is_pushed_back)
{
    tcp_store store;
    int ends[2];
    open_on_pair(&store, ends);
    dd_wait wait = dd_wait_after(0);
    dd_store_result result = {0};
    dd_bytes key = BYTES("q");
    dd_store_request pop = {.op = DD_STORE_QUEUE_POP, .keys = &key, .nkeys = 1};
    CHECK_STATUS(tcp_run(&store.head, &pop, &result, &wait, check_err()), DD_NETWORK_TIMED_OUT);
    dd_store_result_fini(&result);
    /* The answers to the pop and to the next request. */
    static const char answers[] = "\1\0\0\0\0\24\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0item"
                                  "\2\0\0\0\0\10\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0";
    CHECK_INT(write(ends[1], answers, sizeof answers - 1), sizeof answers - 1);
    dd_store_request next = {.op = DD_STORE_NUM_KEYS};
    CHECK_OK(tcp_run(&store.head, &next, &result, &wait, check_err()));
    CHECK_INT(result.number, 5);
    uint8_t sent[256];
    ssize_t nsent = recv(ends[1], sent, sizeof sent, MSG_DONTWAIT);
    static const char back[] = "\3\0\0\0\16\2\0\0\0\0\0\0\0/q\4\0\0\0\0\0\0\0item";
    CHECK(nsent > (ssize_t)sizeof back);
    CHECK_BYTES(dd_bytes_of(sent + nsent - (sizeof back - 1), sizeof back - 1),
                dd_bytes_of(back, sizeof back - 1));
    close_pair(&store, ends);
}

/* Answer the first request in two parts, the second one when the request is cancelled. */
typedef struct halver {
    pthread_t thread;
    int fd;
    size_t cut;
} halver;

static void *
answer_by_halves(void *arg)
{
    halver *self = arg;
    dd_blob answer = {0};
    raw_pack(&answer, "ubi#v", 1u, DD_OK, 24LL, 1LL, "the item");
    CHECK(raw_expect(self->fd, "ubk", 1u, DD_TCP_WAIT_POP, "/q"));
    raw_send(self->fd, dd_bytes_of(answer.data, self->cut));
    CHECK(raw_expect(self->fd, "ub", 1u, DD_TCP_CANCEL_WAIT));
    raw_send(self->fd, dd_bytes_of(answer.data + self->cut, answer.len - self->cut));
    dd_blob_fini(&answer);
    return NULL;
}

/* The same for every split: a part of the answer has arrived when the wait is cancelled. */
TEST(a_call_may_be_cancelled_after_a_part_of_its_answer_has_arrived)
{
    for (size_t cut = 0; cut < 37; cut++) {
        tcp_store store;
        int ends[2];
        open_on_pair(&store, ends);
        halver server = {.fd = ends[1], .cut = cut};
        REQUIRE(pthread_create(&server.thread, NULL, answer_by_halves, &server) == 0);
        dd_wait wait = dd_wait_after(2 * DD_NS_PER_MS);
        dd_bytes key = BYTES("q");
        dd_store_request request = {.op = DD_STORE_QUEUE_POP, .keys = &key, .nkeys = 1, .number = 1};
        dd_store_result result = {0};
        CHECK_OK(tcp_run(&store.head, &request, &result, &wait, check_err()));
        CHECK_TEXT(dd_blob_view(&result.value), "the item");
        dd_store_result_fini(&result);
        pthread_join(server.thread, NULL);
        close_pair(&store, ends);
    }
}

/* The answer to a cancelled request must be dropped when it arrives, and other requests must get
 * their own answers. */
TEST(late_answers_to_cancelled_requests_are_dropped)
{
    tcp_store store;
    int ends[2];
    open_on_pair(&store, ends);
    dd_wait wait = long_wait();
    dd_wait hasty = dd_wait_after(0);
    int64_t past_ns = 0;
    hasty.is_interrupted = is_past;
    hasty.ctx = &past_ns;
    dd_store_request request = {.op = DD_STORE_NUM_KEYS};
    dd_store_result result = {0};
    CHECK_STATUS(tcp_run(&store.head, &request, &result, &hasty, check_err()), DD_INTERRUPTED);
    CHECK(raw_expect(ends[1], "ub", 1u, DD_TCP_NUM_KEYS));
    dd_blob answers = {0};
    raw_pack(&answers, "ubii", 1u, DD_OK, 8LL, 111LL);
    raw_pack(&answers, "ubii", 2u, DD_OK, 8LL, 222LL);
    raw_send(ends[1], dd_blob_view(&answers));
    CHECK_OK(tcp_run(&store.head, &request, &result, &wait, check_err()));
    CHECK_INT(result.number, 222);
    dd_blob_fini(&answers);
    close_pair(&store, ends);
}

/* --- order ------------------------------------------------------------------------------------ */

static void *
set_then_leave(void *arg)
{
    user *self = arg;
    char key[16];
    (void)snprintf(key, sizeof key, "k%d", self->index);
    CHECK_OK(set_text(self->store, key, "value"));
    return NULL;
}

static void
see_earlier_writes(dd_store *store, world *where)
{
    (void)where;
    for (int i = 0; i < 50; i++) {
        user setter = {.store = store, .index = i};
        dd_wait wait = long_wait();
        char text[16];
        bool is_ready = false;
        int64_t nkeys = 0;
        CHECK(pthread_create(&setter.thread, NULL, set_then_leave, &setter) == 0);
        pthread_join(setter.thread, NULL);
        (void)snprintf(text, sizeof text, "k%d", i);
        dd_bytes key = dd_bytes_of_string(text);
        CHECK_OK(dd_store_check(store, &key, 1, &is_ready, &wait, check_err()));
        CHECK(is_ready);
        CHECK_OK(dd_store_num_keys(store, &nkeys, &wait, check_err()));
        /* Queues use another connection if the server may not support them. */
        CHECK_OK(dd_store_queue_push(store, BYTES("q"), key, &wait, check_err()));
        CHECK_OK(dd_store_queue_len(store, BYTES("q"), &nkeys, &wait, check_err()));
        CHECK_INT(nkeys, i + 1);
        dd_blob_list keys = {0};
        CHECK_OK(dd_store_list_keys(store, &keys, &wait, check_err()));
        CHECK_INT(keys.count, i + 1);
        dd_blob_list_fini(&keys);
    }
}

TEST(calls_see_earlier_writes)
{
    for_both(see_earlier_writes);
}

static void *
join_barrier(void *arg)
{
    user *self = arg;
    dd_wait wait = long_wait();
    char key[16];
    (void)snprintf(key, sizeof key, "from%d", self->index);
    CHECK_OK(set_text(self->store, key, "value"));
    CHECK_OK(dd_store_barrier(self->store, BYTES("barrier"), 2, &wait, check_err()));
    dd_bytes other = self->index == 0 ? BYTES("from1") : BYTES("from0");
    bool is_ready = false;
    CHECK_OK(dd_store_check(self->store, &other, 1, &is_ready, &wait, check_err()));
    CHECK(is_ready);
    return NULL;
}

static void
set_then_barrier(dd_store *store, world *where)
{
    uint16_t port = where->proxy != NULL ? plain_proxy_port(where->proxy) : dd_tcp_server_port(where->server);
    user users[2] = {{.store = store}, {.store = open_client(port, (dd_bytes){0}), .index = 1}};
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_create(&users[i].thread, NULL, join_barrier, &users[i]) == 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(users[i].thread, NULL);
    }
    dd_store_release(users[1].store);
}

TEST(writes_before_a_barrier_are_visible_after_it)
{
    for_both(set_then_barrier);
}

/* --- servers that exit ------------------------------------------------------------------------ */

static void *
block(void *arg)
{
    user *self = arg;
    dd_wait wait = long_wait();
    self->status = call_blocking(self->store, self->index, &wait, check_err());
    self->ended_ns = dd_clock_now_ns();
    (void)snprintf(self->message, sizeof self->message, "%.255s", check_message());
    return NULL;
}

static void
lose_the_server(dd_store *store, world *where)
{
    user users[NBLOCKING];
    for (int i = 0; i < NBLOCKING; i++) {
        users[i] = (user){.store = store, .index = i};
        CHECK(pthread_create(&users[i].thread, NULL, block, &users[i]) == 0);
    }
    expect_parked(where->server, NBLOCKING);
    int64_t before_ns = dd_clock_now_ns();
    dd_tcp_server_release(where->server);
    where->server = NULL;
    for (int i = 0; i < NBLOCKING; i++) {
        pthread_join(users[i].thread, NULL);
        CHECK_INT(users[i].status, DD_NETWORK);
        CHECK(users[i].ended_ns - before_ns < DD_NS_PER_S * check_slow());
        CHECK_CONTAINS(users[i].message, "127.0.0.1:");
    }
    int64_t sum = 0;
    for (int i = 0; i < 3; i++) {
        dd_wait wait = long_wait();
        before_ns = dd_clock_now_ns();
        CHECK_STATUS(dd_store_add(store, BYTES("n"), 1, &sum, &wait, check_err()), DD_NETWORK);
        CHECK(dd_clock_now_ns() - before_ns < DD_NS_PER_S * check_slow());
    }
    CHECK_CONTAINS(check_message(), "the server was lost in an earlier call: ");
}

TEST(calls_fail_if_the_server_stops)
{
    for_both(lose_the_server);
}

TEST(connecting_to_a_server_that_never_answers_times_out)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t in_len = sizeof in;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(bind(fd, (struct sockaddr *)&in, sizeof in) == 0);
    REQUIRE(getsockname(fd, (struct sockaddr *)&in, &in_len) == 0);
    dd_tcp_store_options options = {.host = "127.0.0.1", .port = ntohs(in.sin_port), .world_size = -1};
    /* First a refused connection, then one that is accepted and never answered. */
    for (int i = 0; i < 2; i++) {
        dd_store *store = NULL;
        int64_t before_ns = dd_clock_now_ns();
        dd_wait wait = dd_wait_after(200 * DD_NS_PER_MS);
        CHECK_STATUS(dd_tcp_store_open(&store, &options, &wait, check_err()), DD_NETWORK_TIMED_OUT);
        CHECK_CONTAINS(check_message(), "The client socket has timed out after ");
        CHECK_CONTAINS(check_message(), "ms while trying to connect to (127.0.0.1, ");
        CHECK(dd_clock_now_ns() - before_ns < DD_NS_PER_S * check_slow());
        CHECK(listen(fd, 8) == 0);
    }
    close(fd);
}

TEST(a_client_does_not_use_a_later_server_on_the_same_port)
{
    dd_tcp_server_options options = raw_options();
    dd_tcp_server *server = raw_server(&options);
    options.port = dd_tcp_server_port(server);
    plain_proxy *proxy = plain_proxy_start(options.port, PROXY_FAITHFUL);
    dd_store *remote = open_client(plain_proxy_port(proxy), (dd_bytes){0});
    dd_store *local = open_client(options.port, (dd_bytes){0});
    CHECK_OK(set_text(remote, "key", "old"));
    expect_usable(remote);
    dd_tcp_server_release(server);
    server = raw_server(&options);
    dd_wait wait = long_wait();
    dd_blob value = {0};
    CHECK_STATUS(dd_store_get(local, BYTES("key"), &value, &wait, check_err()), DD_NETWORK);
    CHECK_STATUS(dd_store_get(remote, BYTES("key"), &value, &wait, check_err()), DD_NETWORK);
    CHECK_STATUS(dd_store_get(local, BYTES("key"), &value, &wait, check_err()), DD_NETWORK);
    CHECK_STATUS(dd_store_get(remote, BYTES("key"), &value, &wait, check_err()), DD_NETWORK);
    dd_store_release(remote);
    dd_store_release(local);
    plain_proxy_stop(proxy);
    dd_tcp_server_release(server);
}

/* --- cost ------------------------------------------------------------------------------------- */

typedef struct cost {
    uint64_t nconnections;
    uint64_t nround_trips;
} cost;

static cost
cost_since(dd_tcp_server *server, server_stats before)
{
    server_stats now;
    now = read_server_stats(server);
    return (cost){now.accepted - before.accepted, now.reads - before.reads};
}

/* Connect, set, wait for present and missing keys, and get one value and several values. */
static void
expect_cost(dd_store *(*open)(void **fixture), uint64_t nround_trips_of_opening)
{
    void *fixture = NULL;
    server_stats start = {0};
    dd_store *store = open(&fixture);
    REQUIRE(store != NULL);
    dd_tcp_server *server = ((world *)fixture)->server;
    cost opening = cost_since(server, start);
    CHECK_INT(opening.nconnections, 1);
    CHECK_INT(opening.nround_trips, nround_trips_of_opening);
    start = read_server_stats(server);
    dd_wait wait = long_wait();
    dd_bytes key = BYTES("key");
    CHECK_OK(set_text(store, "key", "value"));
    CHECK_OK(dd_store_wait(store, &key, 1, &wait, check_err()));
    expect_text(store, "key", "value");
    dd_bytes keys[] = {key, key};
    dd_blob_list values = {0};
    CHECK_OK(dd_store_multi_get(store, keys, 2, &values, &wait, check_err()));
    dd_blob_list_fini(&values);
    CHECK_INT(cost_since(server, start).nround_trips, 4);
    /* A waiting request needs no second connection, and one more message to be cancelled. */
    dd_wait moment = dd_wait_after(DD_NS_PER_MS);
    CHECK_STATUS(call_blocking(store, 0, &moment, check_err()), DD_TIMED_OUT);
    cost all = cost_since(server, start);
    CHECK_INT(all.nconnections, 0);
    /* the request, its cancellation, and the query for missing keys */
    CHECK(all.nround_trips <= 4 + 3);
    dd_store_release(store);
    close_world(fixture);
}

TEST(a_client_uses_one_connection_and_few_round_trips)
{
    expect_cost(open_unix, 1);
    expect_cost(open_remote, 2);
    expect_cost(open_secret, 2);
}

/* Waiting and other threads share one connection. */
TEST(threads_share_one_connection)
{
    void *fixture = NULL;
    dd_store *store = open_unix(&fixture);
    REQUIRE(store != NULL);
    share_a_client(store, fixture);
    CHECK_INT(cost_since(((world *)fixture)->server, (server_stats){0}).nconnections, 1);
    dd_store_release(store);
    close_world(fixture);
}

/* The server has executed a request when the call returns: all other clients see the result. */
TEST(other_clients_see_finished_writes)
{
    void *fixture = NULL;
    dd_store *stores[3] = {open_unix(&fixture)};
    REQUIRE(stores[0] != NULL);
    uint16_t port = dd_tcp_server_port(((world *)fixture)->server);
    plain_proxy *proxy = plain_proxy_start(port, PROXY_PLAIN);
    stores[1] = open_client(port, (dd_bytes){0});
    stores[2] = open_client(plain_proxy_port(proxy), (dd_bytes){0});
    dd_wait wait = long_wait();
    dd_blob value = {0};
    for (uint32_t round = 0; round < 300; round++) {
        dd_bytes text = dd_bytes_of(&round, sizeof round);
        dd_store *first = stores[round % 3];
        dd_store *second = stores[(round * 7 + 1) % 3];
        dd_store *reader = stores[(round + 2) % 3];
        bool is_found = false;
        REQUIRE_OK(dd_store_set(first, BYTES("k"), BYTES("old"), &wait, check_err()));
        REQUIRE_OK(dd_store_set(second, BYTES("k"), text, &wait, check_err()));
        REQUIRE_OK(dd_store_try_get(reader, BYTES("k"), &value, &is_found, &wait, check_err()));
        REQUIRE(is_found && dd_bytes_equal(dd_blob_view(&value), text));
    }
    dd_blob_fini(&value);
    for (int i = 0; i < 3; i++) {
        dd_store_release(stores[i]);
    }
    plain_proxy_stop(proxy);
    close_world(fixture);
}

/* --- opening ---------------------------------------------------------------------------------- */

static dd_status
open_with_secret(uint16_t port, const char *secret)
{
    dd_tcp_store_options options = {
        .host = "127.0.0.1", .port = port, .world_size = -1, .secret = dd_bytes_of_string(secret)};
    dd_wait wait = long_wait();
    dd_store *store = NULL;
    dd_status status = dd_tcp_store_open(&store, &options, &wait, check_err());
    CHECK((store != NULL) == (status == DD_OK));
    dd_store_release(store);
    return status;
}

/* Open over TCP, as from another host. */
static dd_status
open_from_afar(const plain_proxy *proxy, const char *secret, bool is_encryption_off)
{
    dd_tcp_store_options options = {.host = "127.0.0.1",
                                    .port = plain_proxy_port(proxy),
                                    .timeout_ns = 5 * DD_NS_PER_S * check_slow(),
                                    .world_size = -1,
                                    .secret = dd_bytes_of_string(secret),
                                    .is_encryption_off = is_encryption_off};
    dd_store *store = NULL;
    dd_wait wait = dd_wait_after(options.timeout_ns);
    dd_status status = dd_tcp_store_open(&store, &options, &wait, check_err());
    if (status == DD_OK) {
        dd_store_release(store);
    }
    return status;
}

TEST(opening_fails_if_only_one_side_encrypts)
{
    for (int is_server_off = 0; is_server_off < 2; is_server_off++) {
        dd_tcp_server_options options = raw_options();
        options.secret = BYTES("sesame");
        options.is_encryption_off = is_server_off == 1;
        dd_tcp_server *server = raw_server(&options);
        plain_proxy *proxy = plain_proxy_start(dd_tcp_server_port(server), PROXY_FAITHFUL);
        REQUIRE(proxy != NULL);
        CHECK_OK(open_from_afar(proxy, "sesame", is_server_off == 1));
        CHECK_STATUS(open_from_afar(proxy, "sesame", is_server_off == 0), DD_AUTH);
        CHECK_CONTAINS(check_message(), is_server_off == 0
                                            ? "the store's connections are encrypted, and the client does not"
                                            : "the client encrypts its connections, and the store does not");
        CHECK_STATUS(open_from_afar(proxy, "simsim", is_server_off == 1), DD_AUTH);
        CHECK_STATUS(open_from_afar(proxy, "", is_server_off == 1), DD_AUTH);
        CHECK_CONTAINS(check_message(), "the store needs a secret and the client has none");
        plain_proxy_stop(proxy);
        dd_tcp_server_release(server);
    }
}

TEST(opening_with_another_secret_fails)
{
    dd_tcp_server_options options = raw_options();
    dd_tcp_server *open_server = raw_server(&options);
    options.secret = BYTES("right");
    dd_tcp_server *closed_server = raw_server(&options);
    plain_proxy *proxy = plain_proxy_start(dd_tcp_server_port(open_server), PROXY_PLAIN);
    uint16_t port = dd_tcp_server_port(closed_server);
    CHECK_OK(open_with_secret(port, "right"));
    CHECK_STATUS(open_with_secret(port, "wrong"), DD_AUTH);
    CHECK_CONTAINS(check_message(), "the server's secret differs from the client's");
    CHECK_STATUS(open_with_secret(port, ""), DD_AUTH);
    CHECK_CONTAINS(check_message(), "the store needs a secret and the client has none");
    CHECK_STATUS(open_with_secret(dd_tcp_server_port(open_server), "right"), DD_AUTH);
    CHECK_CONTAINS(check_message(), "the client has a secret and the server has none");
    CHECK_STATUS(open_with_secret(plain_proxy_port(proxy), "right"), DD_AUTH);
    CHECK_CONTAINS(check_message(), "uses PyTorch's protocol");
    plain_proxy_stop(proxy);
    dd_tcp_server_release(open_server);
    dd_tcp_server_release(closed_server);
}

/* Act as a server of version 1, as far as a client gets with it. */
static void *
serve_version_1(void *arg)
{
    int listen_fd = *(int *)arg;
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
    uint8_t greeting[10];
    if (CHECK(recv(fd, greeting, sizeof greeting, MSG_WAITALL) == (ssize_t)sizeof greeting)) {
        for (size_t i = 6; i < sizeof greeting; i++) {
            greeting[i] ^= 0xff;
        }
        raw_send(fd, dd_bytes_of(greeting + 6, 4));
        CHECK(raw_expect(fd, "bu", DD_TCP_HELLO, DD_TCP_VERSION));
        dd_blob hello = {0};
        raw_pack(&hello, "buiiiivvv", DD_OK, 1u, 64LL, 64LL, 64LL, 64LL, "dldist-store-0123", "", "");
        raw_send(fd, dd_blob_view(&hello));
        dd_blob_fini(&hello);
        CHECK(raw_is_closed(fd));
    }
    close(fd);
    return NULL;
}

TEST(a_server_of_another_version_is_refused)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t in_len = sizeof in;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(bind(fd, (struct sockaddr *)&in, sizeof in) == 0 && listen(fd, 8) == 0);
    REQUIRE(getsockname(fd, (struct sockaddr *)&in, &in_len) == 0);
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, serve_version_1, &fd) == 0);
    CHECK_STATUS(open_with_secret(ntohs(in.sin_port), ""), DD_PROTOCOL);
    CHECK_CONTAINS(check_message(),
                   "the server has version 1 of dldist's store protocol, expected 4; install the same "
                   "version of dldist on both");
    pthread_join(thread, NULL);
    close(fd);
}

#define NLOOKS 24

/* A server that is not ready: it accepts connections and closes them. */
typedef struct late_server {
    int fd;
    atomic_bool is_enough;
    int64_t shortest_ns; /* shortest time between two of the last connections */
} late_server;

static void *
refuse_client(void *arg)
{
    late_server *self = arg;
    int64_t before_ns = 0;
    self->shortest_ns = INT64_MAX;
    for (int i = 0; i < NLOOKS; i++) {
        int fd = accept4(self->fd, NULL, NULL, SOCK_CLOEXEC);
        int64_t now_ns = dd_clock_now_ns();
        close(fd);
        if (i > NLOOKS / 2 && now_ns - before_ns < self->shortest_ns) {
            self->shortest_ns = now_ns - before_ns;
        }
        before_ns = now_ns;
    }
    atomic_store(&self->is_enough, true);
    return NULL;
}

static bool
has_looked_enough(void *ctx)
{
    return atomic_load((atomic_bool *)ctx);
}

/* A client must retry often, however late its server is. */
TEST(clients_keep_trying_to_connect_to_a_late_server)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t in_len = sizeof in;
    late_server server = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    REQUIRE(bind(server.fd, (struct sockaddr *)&in, sizeof in) == 0 && listen(server.fd, 8) == 0);
    REQUIRE(getsockname(server.fd, (struct sockaddr *)&in, &in_len) == 0);
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, refuse_client, &server) == 0);
    dd_tcp_store_options options = {.host = "127.0.0.1", .port = ntohs(in.sin_port), .world_size = -1};
    dd_wait wait = long_wait();
    wait.is_interrupted = has_looked_enough;
    wait.ctx = &server.is_enough;
    dd_store *store = NULL;
    CHECK_STATUS(dd_tcp_store_open(&store, &options, &wait, check_err()), DD_INTERRUPTED);
    pthread_join(thread, NULL);
    CHECK(server.shortest_ns < 60 * DD_NS_PER_MS);
    close(server.fd);
}

/* A client of this host must use the Unix socket of the server that listens on this address. */
TEST(a_client_of_this_host_uses_the_unix_socket_of_the_server_it_names)
{
    dd_tcp_server_options options = raw_options();
    dd_tcp_server *servers[2] = {raw_server(&options)};
    options.host = "127.0.0.2";
    options.port = dd_tcp_server_port(servers[0]);
    dd_wait wait = long_wait();
    if (dd_tcp_server_open(&servers[1], &options, &wait, check_err()) != DD_OK) {
        dd_tcp_server_release(servers[0]); /* another process uses that port there */
        return;
    }
    const char *hosts[] = {"127.0.0.1", "127.0.0.2"};
    for (size_t i = 0; i < 2; i++) {
        dd_tcp_store_options client = {.host = hosts[i], .port = options.port, .world_size = -1};
        dd_store *store = NULL;
        REQUIRE_OK(dd_tcp_store_open(&store, &client, &wait, check_err()));
        server_stats stats[2];
        stats[0] = read_server_stats(servers[0]);
        stats[1] = read_server_stats(servers[1]);
        CHECK_INT(stats[i].accepted, 1);
        CHECK_INT(stats[i].reads, 1); /* over the Unix socket */
        CHECK_INT(stats[1].accepted, i);
        dd_store_release(store);
    }
    dd_tcp_server_release(servers[0]);
    dd_tcp_server_release(servers[1]);
}

TEST(opening_a_store_waits_until_all_clients_have_joined)
{
    dd_tcp_server_options server_options = raw_options();
    dd_tcp_server *server = raw_server(&server_options);
    dd_tcp_store_options options = {
        .host = "127.0.0.1", .world_size = 2, .is_wait_for_workers = true, .server = server};
    dd_wait wait = dd_wait_after(50 * DD_NS_PER_MS);
    dd_store *store = NULL;
    CHECK_STATUS(dd_tcp_store_open(&store, &options, &wait, check_err()), DD_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "1/2 clients joined: ");
    wait = long_wait();
    REQUIRE_OK(dd_tcp_store_open(&store, &options, &wait, check_err()));
    CHECK(dd_tcp_store_is_server(store));
    CHECK_INT(dd_tcp_store_port(store), dd_tcp_server_port(server));
    CHECK_BYTES(dd_bytes_of_string(dd_tcp_store_host(store)), BYTES("127.0.0.1"));
    /* The join key is not listed, but it is counted, as in PyTorch. */
    dd_blob_list keys = {0};
    CHECK_OK(dd_store_list_keys(store, &keys, &wait, check_err()));
    CHECK_INT(keys.count, 0);
    dd_blob_list_fini(&keys);
    dd_tcp_server_release(server);
    expect_usable(store);
    dd_store_release(store);
}

/* --- limits ----------------------------------------------------------------------------------- */

TEST(a_request_over_a_limit_of_the_server_names_the_limit)
{
    dd_tcp_server_options options = raw_options();
    options.limits = (dd_tcp_limits){16, 100, 3, 250};
    dd_tcp_server *server = raw_server(&options);
    dd_store *store = open_client(dd_tcp_server_port(server), (dd_bytes){0});
    REQUIRE(store != NULL);
    char large[101];
    memset(large, 'x', sizeof large);
    dd_wait wait = long_wait();
    dd_bytes keys[4] = {BYTES("a"), BYTES("b"), BYTES("c"), BYTES("d")};
    dd_bytes values[4];
    for (size_t i = 0; i < 4; i++) {
        values[i] = dd_bytes_of(large, 100);
    }
    bool is_ready;
    CHECK_STATUS(dd_store_set(store, dd_bytes_of(large, 16), keys[0], &wait, check_err()),
                 DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "key length too large: got 17, expected at most 16 (the server's limit)");
    CHECK_STATUS(dd_store_set(store, keys[0], dd_bytes_of(large, 101), &wait, check_err()),
                 DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(),
                   "value length too large: got 101, expected at most 100 (the server's limit)");
    CHECK_STATUS(dd_store_check(store, keys, 4, &is_ready, &wait, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(),
                   "number of keys too large: got 4, expected at most 3 (the server's limit)");
    CHECK_STATUS(dd_store_multi_set(store, keys, values, 3, &wait, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "request length too large: got ");
    CHECK_OK(dd_store_set(store, dd_bytes_of(large, 15), values[0], &wait, check_err()));
    CHECK_OK(dd_store_multi_set(store, keys, values, 2, &wait, check_err()));
    expect_usable(store);
    dd_store_release(store);
    dd_tcp_server_release(server);
}

/* --- forks ------------------------------------------------------------------------------------ */

TEST(a_forked_child_does_not_use_its_parents_store)
{
    dd_tcp_server_options server_options = raw_options();
    dd_tcp_server *server = raw_server(&server_options);
    dd_tcp_store_options options = {.host = "127.0.0.1", .world_size = -1, .server = server};
    dd_wait wait = long_wait();
    dd_store *store = NULL;
    REQUIRE_OK(dd_tcp_store_open(&store, &options, &wait, check_err()));
    wait = dd_wait_after(0);
    for (int which = 0; which < NBLOCKING; which++) {
        CHECK_STATUS(call_blocking(store, which, &wait, check_err()), DD_TIMED_OUT);
    }
    pid_t pid = fork();
    if (pid == 0) {
        alarm(5 * (unsigned)check_slow());
        CHECK_STATUS(dd_store_check_fork(store, check_err()), DD_FORKED);
        dd_store_release(store);
        dd_tcp_server_release(server);
        _exit(check_failures() > 0 ? 1 : 0);
    }
    int status = -1;
    REQUIRE(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK_INT(status, 0);
    expect_usable(store);
    dd_store_release(store);
    dd_tcp_server_release(server);
}

/* --- failed allocations ----------------------------------------------------------------------- */

static dd_status
call_any(dd_store *store, int which, dd_error *err)
{
    const dd_bytes keys[] = {BYTES("a"), BYTES("b")};
    const dd_bytes values[] = {BYTES("1"), BYTES("2")};
    dd_wait wait = dd_wait_after(which < 100 ? DD_NS_PER_S : 5 * DD_NS_PER_MS);
    dd_blob value = {0};
    dd_blob_list list = {0};
    int64_t number;
    bool flag;
    dd_store *clone = NULL;
    dd_status status = DD_OK;
    switch (which) {
    case 0:
        status = dd_store_set(store, keys[0], values[0], &wait, err);
        break;
    case 1:
        status = dd_store_get(store, keys[0], &value, &wait, err);
        break;
    case 2:
        status = dd_store_add(store, keys[0], 1, &number, &wait, err);
        break;
    case 3:
        status = dd_store_compare_set(store, keys[0], values[0], values[0], &value, &wait, err);
        break;
    case 4:
        status = dd_store_wait(store, keys, 2, &wait, err);
        break;
    case 5:
        status = dd_store_delete_key(store, BYTES("none"), &flag, &wait, err);
        break;
    case 6:
        status = dd_store_num_keys(store, &number, &wait, err);
        break;
    case 7:
        status = dd_store_append(store, keys[1], values[1], &wait, err);
        break;
    case 8:
        status = dd_store_multi_get(store, keys, 2, &list, &wait, err);
        break;
    case 9:
        status = dd_store_multi_set(store, keys, values, 2, &wait, err);
        break;
    case 10:
        status = dd_store_queue_push(store, keys[0], values[0], &wait, err);
        break;
    case 11:
        status = dd_store_queue_len(store, keys[0], &number, &wait, err);
        break;
    case 12:
        status = dd_store_list_keys(store, &list, &wait, err);
        break;
    case 13:
        status = dd_store_barrier(store, BYTES("barrier"), 1, &wait, err);
        break;
    case 14:
        status = store->ops->clone(store, &clone, &wait, err);
        break;
    default:
        status = call_blocking(store, which - 100, &wait, err);
    }
    dd_blob_fini(&value);
    dd_blob_list_fini(&list);
    dd_store_release(clone);
    return status;
}

/* Run in a separate child: the server's allocations must not fail. */
static void
fail_every_allocation(uint16_t port)
{
    static const int calls[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 100, 101, 102, 103, 104};
    dd_store *store = open_client(port, (dd_bytes){0});
    REQUIRE(store != NULL);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        dd_status expected = calls[i] < 100 ? DD_OK : DD_TIMED_OUT;
        CHECK_OK(call_any(store, 9, check_err()));
        long nth = 0;
        for (bool has_failed = true; has_failed && nth < 60; nth++) {
            (void)dd_mem_fail_after(nth);
            dd_status status = call_any(store, calls[i], check_err());
            has_failed = dd_mem_fail_after(-1) > nth;
            /* An allocation failure while a timeout is described only shortens its text. */
            if (!CHECK(status == expected || (has_failed && status == DD_OUT_OF_MEMORY))) {
                fprintf(stderr, "    call %d, allocation %ld: %s\n", calls[i], nth, check_message());
            }
        }
        CHECK(nth < 60);
        expect_usable(store);
    }
    dd_store_release(store);
}

static void
without_memory(plain_proxy_mode mode)
{
    int pipes[2];
    REQUIRE(pipe(pipes) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        uint16_t port = 0;
        CHECK(read(pipes[0], &port, sizeof port) == sizeof port);
        fail_every_allocation(port);
        exit(check_failures() > 0 ? 1 : 0);
    }
    dd_tcp_server_options options = raw_options();
    dd_tcp_server *server = raw_server(&options);
    plain_proxy *proxy = plain_proxy_start(dd_tcp_server_port(server), mode);
    uint16_t port = plain_proxy_port(proxy);
    CHECK(write(pipes[1], &port, sizeof port) == sizeof port);
    int status = -1;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_INT(status, 0);
    plain_proxy_stop(proxy);
    dd_tcp_server_release(server);
    close(pipes[0]);
    close(pipes[1]);
}

TEST(a_store_with_dldists_protocol_stays_usable_after_failed_allocations)
{
    without_memory(PROXY_FAITHFUL);
}

TEST(a_store_with_pytorchs_protocol_stays_usable_after_failed_allocations)
{
    without_memory(PROXY_PLAIN);
}

TEST(opening_a_tcp_store_returns_an_error_when_allocations_fail)
{
    dd_tcp_server_options server_options = raw_options();
    server_options.secret = BYTES("secret");
    dd_tcp_server *server = raw_server(&server_options);
    dd_status status = DD_OUT_OF_MEMORY;
    for (long nth = 0; nth < 60 && status != DD_OK; nth++) {
        dd_tcp_store_options options = {
            .host = "127.0.0.1", .world_size = -1, .secret = BYTES("secret"), .server = server};
        dd_wait wait = dd_wait_after(300 * DD_NS_PER_MS);
        dd_store *store = NULL;
        (void)dd_mem_fail_after(nth);
        status = dd_tcp_store_open(&store, &options, &wait, check_err());
        (void)dd_mem_fail_after(-1);
        CHECK((store != NULL) == (status == DD_OK));
        dd_store_release(store);
    }
    CHECK_INT(status, DD_OK);
    dd_tcp_server_release(server);
}
