/* Bytes between clients and an encrypted TCPStore are changed in transit, in either direction: no
 * call may return a wrong value or wait much longer than its timeout, and errors must name the
 * connection. The server and its other clients must stay usable. */
#include "check.h"

#include "core/clock.h"
#include "insight.h"
#include "leftovers.h"
#include "plain_proxy.h"
#include "store/tcp_store.h"
#include "store_calls.h"
#include "tcp_raw.h"
#include "wire_faults.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECRET BYTES("open sesame")
#define TIMEOUT_NS (300 * DD_NS_PER_MS)
/* A missing answer costs a call one second. Its cancellation and the query for missing keys cost
 * one second each (TCP_ANSWER_NS). */
#define LATE_NS (TIMEOUT_NS + 4 * DD_NS_PER_S)
/* If a length is changed, the server waits for the rest of a record, and each call times out. */
#define FAILURES_MAX 3
#define VALUE_MAX ((size_t)300000)
#define MORE_KEYS 3
/* The number of the user that sets "late". */
#define UNHARMED 0

/* A client and its current call. */
typedef struct user {
    int number;
    dd_store *store;
    wire_fault_outcome out;
    pthread_t thread;
    char key[32]; /* used only by this step: its expected value does not depend on failed steps */
    dd_wait wait;
    dd_error err;
} user;

static dd_bytes
key_of(const user *self)
{
    return dd_bytes_of_string(self->key);
}

static const dd_wait *
patience(user *self)
{
    self->wait = dd_wait_after(TIMEOUT_NS * check_slow());
    return &self->wait;
}

static void
check_soon(user *self)
{
    if (dd_clock_now_ns() - self->wait.start_ns > LATE_NS * check_slow()) {
        atomic_fetch_add(&self->out.nlate, 1);
    }
}

/* Return true if the call has succeeded. */
static bool
has_done(user *self, dd_status status)
{
    check_soon(self);
    if (status != DD_OK) {
        wire_fault_note_error(&self->out, &self->err, strstr(self->err.message, " 127.0.0.1:") != NULL);
    }
    return status == DD_OK;
}

static void
check_right(user *self, bool is_right)
{
    if (!is_right) {
        atomic_fetch_add(&self->out.nwrong, 1);
    }
}

static void
check_value(user *self, const dd_blob *value, dd_bytes expected)
{
    check_right(self, dd_bytes_equal(dd_blob_view(value), expected));
}

/* ---- steps */

static void
set_and_get(user *self, size_t nbytes)
{
    uint8_t *bytes = malloc(VALUE_MAX);
    dd_blob got = {0};
    REQUIRE(bytes != NULL);
    for (size_t i = 0; i < nbytes; i++) {
        bytes[i] = (uint8_t)(i * 7 + i / 251 + (size_t)self->number);
    }
    dd_bytes value = dd_bytes_of(bytes, nbytes);
    if (has_done(self, dd_store_set(self->store, key_of(self), value, patience(self), &self->err)) &&
        has_done(self, dd_store_get(self->store, key_of(self), &got, patience(self), &self->err))) {
        check_value(self, &got, value);
    }
    dd_blob_fini(&got);
    free(bytes);
}

static void
use_empty_value(user *self)
{
    set_and_get(self, 0);
}

static void
use_small_value(user *self)
{
    set_and_get(self, 13);
}

static void
use_record(user *self)
{
    set_and_get(self, 16384);
}

static void
use_large_value(user *self)
{
    set_and_get(self, VALUE_MAX);
}

static void
count_up(user *self)
{
    int64_t sum = 0;
    for (int64_t expected = 5; expected <= 15; expected += 5) {
        if (!has_done(self, dd_store_add(self->store, key_of(self), 5, &sum, patience(self), &self->err))) {
            return;
        }
        check_right(self, sum == expected);
    }
}

static void
compare_and_set(user *self)
{
    dd_blob now = {0};
    if (has_done(self, dd_store_compare_set(self->store, key_of(self), BYTES(""), BYTES("one"), &now,
                                            patience(self), &self->err))) {
        check_value(self, &now, BYTES("one"));
        if (has_done(self, dd_store_compare_set(self->store, key_of(self), BYTES("two"), BYTES("three"), &now,
                                                patience(self), &self->err))) {
            check_value(self, &now, BYTES("one"));
        }
    }
    dd_blob_fini(&now);
}

static void
append(user *self)
{
    dd_blob got = {0};
    if (has_done(self, dd_store_append(self->store, key_of(self), BYTES("ab"), patience(self), &self->err)) &&
        has_done(self, dd_store_append(self->store, key_of(self), BYTES("cd"), patience(self), &self->err)) &&
        has_done(self, dd_store_get(self->store, key_of(self), &got, patience(self), &self->err))) {
        check_value(self, &got, BYTES("abcd"));
    }
    dd_blob_fini(&got);
}

static void
use_several_keys(user *self)
{
    char names[MORE_KEYS][sizeof self->key + 8];
    dd_bytes keys[MORE_KEYS];
    const dd_bytes values[MORE_KEYS] = {BYTES("left"), BYTES(""), BYTES("right")};
    dd_blob_list got = {0};
    bool is_ready = false;
    for (int i = 0; i < MORE_KEYS; i++) {
        snprintf(names[i], sizeof names[i], "%s/%d", self->key, i);
        keys[i] = dd_bytes_of_string(names[i]);
    }
    if (has_done(self,
                 dd_store_multi_set(self->store, keys, values, MORE_KEYS, patience(self), &self->err)) &&
        has_done(self, dd_store_wait(self->store, keys, MORE_KEYS, patience(self), &self->err)) &&
        has_done(self, dd_store_check(self->store, keys, MORE_KEYS, &is_ready, patience(self), &self->err))) {
        check_right(self, is_ready);
        if (has_done(self,
                     dd_store_multi_get(self->store, keys, MORE_KEYS, &got, patience(self), &self->err))) {
            check_right(self, got.count == MORE_KEYS);
            for (size_t i = 0; i < got.count && i < MORE_KEYS; i++) {
                check_value(self, &got.items[i], values[i]);
            }
        }
    }
    dd_blob_list_fini(&got);
}

static void
delete_it(user *self)
{
    dd_bytes key = key_of(self);
    bool is_deleted = false;
    bool is_there = true;
    if (has_done(self, dd_store_set(self->store, key, BYTES("x"), patience(self), &self->err)) &&
        has_done(self, dd_store_delete_key(self->store, key, &is_deleted, patience(self), &self->err)) &&
        has_done(self, dd_store_check(self->store, &key, 1, &is_there, patience(self), &self->err))) {
        check_right(self, is_deleted && !is_there);
    }
}

static void
use_queue(user *self)
{
    dd_bytes key = key_of(self);
    dd_blob item = {0};
    int64_t len = 0;
    if (has_done(self, dd_store_queue_push(self->store, key, BYTES("item"), patience(self), &self->err)) &&
        has_done(self, dd_store_queue_len(self->store, key, &len, patience(self), &self->err)) &&
        has_done(self, dd_store_queue_pop(self->store, key, true, &item, patience(self), &self->err))) {
        check_right(self, len == 1);
        check_value(self, &item, BYTES("item"));
    }
    dd_blob_fini(&item);
}

static void
look_at_all_keys(user *self)
{
    dd_bytes key = key_of(self);
    dd_blob_list keys = {0};
    int64_t count = 0;
    if (has_done(self, dd_store_set(self->store, key, BYTES("x"), patience(self), &self->err)) &&
        has_done(self, dd_store_num_keys(self->store, &count, patience(self), &self->err)) &&
        has_done(self, dd_store_list_keys(self->store, &keys, patience(self), &self->err))) {
        bool is_listed = false;
        for (size_t i = 0; i < keys.count; i++) {
            is_listed = is_listed || dd_bytes_equal(dd_blob_view(&keys.items[i]), key);
        }
        check_right(self, is_listed && count > 0);
    }
    dd_blob_list_fini(&keys);
}

static void
wait_in_vain(user *self)
{
    dd_bytes key = key_of(self);
    self->wait = dd_wait_after(3 * DD_NS_PER_MS);
    dd_status status = dd_store_wait(self->store, &key, 1, &self->wait, &self->err);
    check_right(self, status != DD_OK);
    if (status == DD_TIMED_OUT) {
        check_soon(self);
    } else {
        (void)has_done(self, status);
    }
}

static void
wait_for_another(user *self)
{
    dd_blob got = {0};
    if (self->number == UNHARMED) {
        (void)has_done(self,
                       dd_store_set(self->store, BYTES("late"), BYTES("now"), patience(self), &self->err));
    } else if (has_done(self, dd_store_get(self->store, BYTES("late"), &got, patience(self), &self->err))) {
        check_value(self, &got, BYTES("now"));
    }
    dd_blob_fini(&got);
}

static void
use_store(user *self)
{
    static void (*const steps[])(user * self) = {
        use_small_value, count_up,         compare_and_set,  wait_in_vain,   use_empty_value,
        append,          use_several_keys, wait_for_another, delete_it,      look_at_all_keys,
        use_queue,       use_record,       use_large_value,  use_small_value};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0] && self->out.nfailed < FAILURES_MAX; i++) {
        snprintf(self->key, sizeof self->key, "user %d, step %zu", self->number, i);
        steps[i](self);
    }
}

/* ---- a store and its clients */

static bool
open_user(user *self, int number, uint16_t port)
{
    *self = (user){.number = number};
    dd_tcp_store_options options = {
        .host = "127.0.0.1", .port = port, .timeout_ns = TIMEOUT_NS, .world_size = -1, .secret = SECRET};
    return has_done(self, dd_tcp_store_open(&self->store, &options, patience(self), &self->err));
}

static void *
user_main(void *arg)
{
    use_store(arg);
    return NULL;
}

static void
await_connections(dd_tcp_server *server, uint64_t count)
{
    server_stats stats = {.connections = count + 1};
    dd_wait limit = dd_wait_after(2 * DD_NS_PER_S * check_slow());
    while ((stats.connections != count || stats.parked > 0) && !dd_wait_has_expired(&limit)) {
        stats = read_server_stats(server);
    }
    CHECK_INT(stats.connections, count);
    CHECK_INT(stats.parked, 0);
}

/* Use the store with two clients over TCP, one after the other so that the bytes are the same each
 * time, and with one client that is not affected. */
static void
use_by(dd_tcp_server *server, plain_proxy *proxy, wire_fault_outcome *out)
{
    user users[3];
    int nharmed = 0;
    REQUIRE(open_user(&users[0], UNHARMED, dd_tcp_server_port(server)));
    REQUIRE(pthread_create(&users[0].thread, NULL, user_main, &users[0]) == 0);
    for (int i = 1; i < 3; i++) {
        (void)open_user(&users[i], i, plain_proxy_port(proxy));
    }
    for (int i = 1; i < 3; i++) {
        if (users[i].store != NULL) {
            use_store(&users[i]);
        }
        nharmed += users[i].out.nfailed > 0;
    }
    pthread_join(users[0].thread, NULL);
    CHECK_INT(users[0].out.nfailed, 0);
    CHECK(nharmed <= 1);
    for (int i = 0; i < 3; i++) {
        wire_fault_add_outcome(out, &users[i].out);
        if (i > 0) {
            dd_store_release(users[i].store);
        }
    }
    await_connections(server, 1);
    use_small_value(&users[0]);
    CHECK_INT(users[0].out.nfailed + users[0].out.nwrong, 0);
    dd_store_release(users[0].store);
}

static void
run_store(wire_fault_outcome *out)
{
    int nfds = count_fds();
    dd_tcp_server_options options = raw_options();
    options.secret = SECRET;
    options.handshake_timeout_ns = TIMEOUT_NS;
    dd_tcp_server *server = raw_server(&options);
    plain_proxy *proxy = plain_proxy_start(dd_tcp_server_port(server), PROXY_FAITHFUL);
    use_by(server, proxy, out);
    plain_proxy_stop(proxy);
    dd_tcp_server_release(server);
    CHECK_INT(count_fds(), nfds);
}

TEST(store_calls_succeed_without_injected_faults)
{
    CHECK(wire_fault_run_without(run_store) > 4 * VALUE_MAX);
}

/* Size of a request or an answer, each in one record. */
#define RECORD_NBYTES ((size_t)84)

/* The side that detects a changed byte names the sender and then the receiver. */
static void
check_words(size_t after, bool is_noticed_by_server)
{
    size_t nbytes = 0;
    user self;
    dd_tcp_server_options options = raw_options();
    options.secret = SECRET;
    dd_tcp_server *server = raw_server(&options);
    plain_proxy *proxy = plain_proxy_start(dd_tcp_server_port(server), PROXY_FAITHFUL);
    REQUIRE(open_user(&self, 1, plain_proxy_port(proxy)));
    wire_fault_arm(WIRE_FAULT_FLIP, after, 0);
    CHECK_STATUS(dd_store_set(self.store, BYTES("key"), BYTES("value"), patience(&self), check_err()),
                 DD_NETWORK);
    CHECK(wire_fault_disarm(&nbytes));
    CHECK_CONTAINS(check_message(), "set on TCPStore at 127.0.0.1:");
    char ends[96];
    int port = is_noticed_by_server ? dd_tcp_server_port(server) : plain_proxy_port(proxy);
    (void)snprintf(ends, sizeof ends,
                   is_noticed_by_server ? " -> 127.0.0.1:%d: " : " 127.0.0.1:%d -> 127.0.0.1:", port);
    CHECK_CONTAINS(check_message(), "encrypted connection 127.0.0.1:");
    CHECK_CONTAINS(check_message(), ends);
    dd_store_release(self.store);
    plain_proxy_stop(proxy);
    dd_tcp_server_release(server);
}

TEST(an_error_that_the_server_noticed_names_both_ends_of_the_connection)
{
    check_words(RECORD_NBYTES / 2, true);
}

TEST(an_error_that_the_client_noticed_names_both_ends_of_the_connection)
{
    check_words(RECORD_NBYTES + RECORD_NBYTES / 2, false);
}

WIRE_FAULT_TESTS(run_store, 4)
