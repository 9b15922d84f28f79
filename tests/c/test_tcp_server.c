#include "check.h"

#include "core/fork.h"
#include "core/mem.h"
#include "faults/faults.h"
#include "insight.h"
#include "leftovers.h"
#include "net/auth.h"
#include "net/sock.h"
#include "store/tcp_server_internal.h"
#include "store/tcp_store.h"
#include "tcp_raw.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static dd_tcp_server *
default_server(void)
{
    dd_tcp_server_options options = raw_options();
    return raw_server(&options);
}

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

static server_stats
stats_of(dd_tcp_server *server)
{
    server_stats stats;
    stats = read_server_stats(server);
    return stats;
}

/* Wait until this many requests are parked and the table has this many entries. */
static void
expect_stats(dd_tcp_server *server, uint64_t nparked, uint64_t nentries)
{
    server_stats stats = stats_of(server);
    for (int i = 0; i < 2000 && (stats.parked != nparked || stats.entries != nentries); i++) {
        nap_ms(2);
        stats = stats_of(server);
    }
    CHECK_INT(stats.parked, nparked);
    CHECK_INT(stats.entries, nentries);
}

static void
expect_connections(dd_tcp_server *server, uint64_t count)
{
    for (int i = 0; i < 2000 && stats_of(server).connections != count; i++) {
        nap_ms(2);
    }
    CHECK_INT(stats_of(server).connections, count);
}

static void
expect_alive(dd_tcp_server *server)
{
    int fd = raw_open(dd_tcp_server_port(server));
    raw_ask(fd, DD_TCP_PING, "u", 12345u);
    CHECK(raw_expect(fd, "u", 12345u));
    close(fd);
}

/* --- PyTorch's protocol ----------------------------------------------------------------------- */

TEST(the_server_answers_the_first_bytes_of_a_pytorch_client)
{
    dd_tcp_server *server = default_server();
    int fd = raw_connect(dd_tcp_server_port(server));
    raw_send(fd, BYTES("\0\xce\xf7\x85\x3c\x0d\x78\x56\x34\x12"));
    CHECK(raw_expect(fd, "bbbb", 0x78, 0x56, 0x34, 0x12));
    close(fd);
    dd_tcp_server_release(server);
}

TEST(values_are_set_appended_and_compared)
{
    dd_tcp_server *server = default_server();
    int fd = raw_open(dd_tcp_server_port(server));
    raw_ask(fd, DD_TCP_GET, "k", "/missing");
    CHECK(raw_expect(fd, "v", ""));
    raw_ask(fd, DD_TCP_SET, "kv", "/k", "value");
    raw_ask(fd, DD_TCP_GET, "k", "/k");
    CHECK(raw_expect(fd, "v", "value"));
    raw_ask(fd, DD_TCP_APPEND, "kv", "/k", "+more");
    raw_ask(fd, DD_TCP_APPEND, "kv", "/new", "fresh");
    raw_ask(fd, DD_TCP_MULTI_GET, "#kkk", 3LL, "/k", "/missing", "/new");
    CHECK(raw_expect(fd, "vvv", "value+more", "", "fresh"));
    raw_ask(fd, DD_TCP_MULTI_GET, "#", 0LL);
    raw_ask(fd, DD_TCP_MULTI_SET, "#kvkv", 2LL, "/a", "1", "/b", "2");
    raw_ask(fd, DD_TCP_NUM_KEYS, "");
    CHECK(raw_expect(fd, "i", 4LL));
    raw_ask(fd, DD_TCP_DELETE_KEY, "k", "/a");
    CHECK(raw_expect(fd, "i", 1LL));
    raw_ask(fd, DD_TCP_DELETE_KEY, "k", "/a");
    CHECK(raw_expect(fd, "i", 0LL));
    raw_ask(fd, DD_TCP_ADD, "ki", "/b", 40LL);
    CHECK(raw_expect(fd, "i", 42LL));
    raw_ask(fd, DD_TCP_ADD, "ki", "/n", -7LL);
    CHECK(raw_expect(fd, "i", -7LL));
    raw_ask(fd, DD_TCP_COMPARE_SET, "kvv", "/b", "41", "no");
    CHECK(raw_expect(fd, "v", "42"));
    raw_ask(fd, DD_TCP_COMPARE_SET, "kvv", "/b", "42", "yes");
    CHECK(raw_expect(fd, "v", "yes"));
    raw_ask(fd, DD_TCP_COMPARE_SET, "kvv", "/other", "expected", "no");
    CHECK(raw_expect(fd, "v", "expected"));
    raw_ask(fd, DD_TCP_COMPARE_SET, "kvv", "/other", "", "made");
    CHECK(raw_expect(fd, "v", "made"));
    close(fd);
    dd_tcp_server_release(server);
}

TEST(a_check_succeeds_only_if_all_keys_exist)
{
    dd_tcp_server *server = default_server();
    int fd = raw_open(dd_tcp_server_port(server));
    raw_ask(fd, DD_TCP_CHECK, "#k", 1LL, "/k");
    CHECK(raw_expect(fd, "b", 1));
    raw_ask(fd, DD_TCP_SET, "kv", "/k", "");
    raw_ask(fd, DD_TCP_CHECK, "#k", 1LL, "/k");
    CHECK(raw_expect(fd, "b", 0));
    raw_ask(fd, DD_TCP_CHECK, "#kk", 2LL, "/k", "/other");
    CHECK(raw_expect(fd, "b", 1));
    raw_ask(fd, DD_TCP_CHECK, "#", 0LL);
    CHECK(raw_expect(fd, "b", 0));
    close(fd);
    dd_tcp_server_release(server);
}

TEST(listing_keys_leaves_out_queues)
{
    dd_tcp_server *server = default_server();
    int fd = raw_open(dd_tcp_server_port(server));
    raw_ask(fd, DD_TCP_LIST_KEYS, "");
    CHECK(raw_expect(fd, "#", 0LL));
    raw_ask(fd, DD_TCP_SET, "kv", "/k", "v");
    raw_ask(fd, DD_TCP_QUEUE_PUSH, "kv", "/q", "v");
    raw_ask(fd, DD_TCP_LIST_KEYS, "");
    CHECK(raw_expect(fd, "#k", 1LL, "/k"));
    close(fd);
    dd_tcp_server_release(server);
}

TEST(queues_keep_their_order)
{
    dd_tcp_server *server = default_server();
    int fd = raw_open(dd_tcp_server_port(server));
    raw_ask(fd, DD_TCP_QUEUE_POP, "k", "/q");
    CHECK(raw_expect(fd, "#", 0LL));
    raw_ask(fd, DD_TCP_QUEUE_PUSH, "kv", "/q", "first");
    raw_ask(fd, DD_TCP_CHECK, "#k", 1LL, "/q");
    CHECK(raw_expect(fd, "b", 0));
    raw_ask(fd, DD_TCP_QUEUE_POP, "k", "/q");
    CHECK(raw_expect(fd, "#v", 1LL, "first"));
    raw_ask(fd, DD_TCP_QUEUE_PUSH, "kv", "/q", "");
    raw_ask(fd, DD_TCP_QUEUE_LEN, "k", "/q");
    CHECK(raw_expect(fd, "i", 1LL));
    raw_ask(fd, DD_TCP_QUEUE_POP, "k", "/q");
    CHECK(raw_expect(fd, "#v", 1LL, ""));
    raw_ask(fd, DD_TCP_QUEUE_LEN, "k", "/q");
    CHECK(raw_expect(fd, "i", 0LL));
    close(fd);
    expect_stats(server, 0, 0);
    dd_tcp_server_release(server);
}

TEST(a_wait_ends_when_all_keys_exist_or_it_is_cancelled)
{
    dd_tcp_server *server = default_server();
    uint16_t port = dd_tcp_server_port(server);
    int waiter = raw_open(port);
    int other = raw_open(port);
    raw_ask(waiter, DD_TCP_WAIT, "#kk", 2LL, "/a", "/q");
    expect_stats(server, 1, 2);
    raw_ask(other, DD_TCP_SET, "kv", "/a", "1");
    CHECK(raw_is_silent(waiter));
    raw_ask(other, DD_TCP_QUEUE_PUSH, "kv", "/q", "item");
    CHECK(raw_expect(waiter, "b", 0));
    expect_stats(server, 0, 2);
    raw_ask(waiter, DD_TCP_WAIT, "#kk", 2LL, "/a", "/q");
    CHECK(raw_expect(waiter, "b", 0));
    raw_ask(waiter, DD_TCP_WAIT, "#", 0LL);
    CHECK(raw_expect(waiter, "b", 0));
    raw_ask(waiter, DD_TCP_WAIT, "#k", 1LL, "/never");
    raw_ask(waiter, DD_TCP_CANCEL_WAIT, "");
    CHECK(raw_expect(waiter, "b", 1));
    expect_stats(server, 0, 2);
    raw_ask(waiter, DD_TCP_CANCEL_WAIT, "");
    CHECK(raw_expect(waiter, "b", 1));
    raw_ask(waiter, DD_TCP_PING, "u", 7u);
    CHECK(raw_expect(waiter, "u", 7u));
    close(waiter);
    close(other);
    dd_tcp_server_release(server);
}

TEST(barriers_end_at_the_last_arrival)
{
    dd_tcp_server *server = default_server();
    uint16_t port = dd_tcp_server_port(server);
    int first = raw_open(port);
    int second = raw_open(port);
    raw_ask(first, DD_TCP_BARRIER, "ki", "/b", 2LL);
    expect_stats(server, 1, 1);
    CHECK(raw_is_silent(first));
    raw_ask(second, DD_TCP_BARRIER, "ki", "/b", 2LL);
    CHECK(raw_expect(first, "b", 0));
    CHECK(raw_expect(second, "b", 0));
    raw_ask(second, DD_TCP_GET, "k", "/b");
    CHECK(raw_expect(second, "v", "2"));
    raw_ask(first, DD_TCP_BARRIER, "ki", "/alone", 1LL);
    CHECK(raw_expect(first, "b", 0));
    close(first);
    close(second);
    dd_tcp_server_release(server);
}

/* Build a conversation of many requests, and all its replies. */
static void
pack_conversation(dd_blob *out)
{
    raw_pack(out, "bu", DD_TCP_VALIDATE, DD_TCP_MAGIC);
    raw_pack(out, "bu", DD_TCP_PING, 1u);
    raw_pack(out, "bkv", DD_TCP_SET, "/k", "value");
    raw_pack(out, "b#kvkv", DD_TCP_MULTI_SET, 2LL, "/a", "1", "/b", "2");
    raw_pack(out, "b#kkk", DD_TCP_MULTI_GET, 3LL, "/k", "/a", "/b");
    raw_pack(out, "b#kk", DD_TCP_WAIT, 2LL, "/k", "/a");
    raw_pack(out, "bki", DD_TCP_ADD, "/a", 2LL);
    raw_pack(out, "b", DD_TCP_NUM_KEYS);
    raw_pack(out, "bkvv", DD_TCP_COMPARE_SET, "/b", "2", "3");
}

static void
expect_conversation(int fd)
{
    CHECK(raw_expect(fd, "uvvvbiiv", 1u, "value", "1", "2", 0, 3LL, 3LL, "3"));
}

TEST(requests_sent_one_byte_at_a_time_are_answered)
{
    dd_tcp_server *server = default_server();
    int fd = raw_connect(dd_tcp_server_port(server));
    int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    dd_blob out = {0};
    pack_conversation(&out);
    for (size_t i = 0; i < out.len; i++) {
        raw_send(fd, dd_bytes_of(out.data + i, 1));
    }
    expect_conversation(fd);
    dd_blob_fini(&out);
    close(fd);
    dd_tcp_server_release(server);
}

TEST(many_requests_in_one_send_are_answered)
{
    dd_tcp_server *server = default_server();
    int fd = raw_connect(dd_tcp_server_port(server));
    dd_blob out = {0};
    pack_conversation(&out);
    int nrequests = 20000;
    for (int i = 0; i < nrequests; i++) {
        raw_pack(&out, "bki", DD_TCP_ADD, "/counter", 1LL);
    }
    raw_send(fd, dd_blob_view(&out));
    expect_conversation(fd);
    for (long long i = 1; i <= nrequests && check_failures() == 0; i++) {
        (void)raw_expect(fd, "i", i);
    }
    dd_blob_fini(&out);
    close(fd);
    dd_tcp_server_release(server);
}

/* --- floods ----------------------------------------------------------------------------------- */

#define FLOOD_VALUE ((size_t)1 << 20)
#define FLOOD_REQUESTS 2000
#define FLOOD_TAKEN 150

static long
resident_kib(void)
{
    long pages[2] = {0, 0};
    FILE *file = fopen("/proc/self/statm", "r");
    if (file != NULL) {
        CHECK(fscanf(file, "%ld %ld", &pages[0], &pages[1]) == 2);
        fclose(file);
    }
    return pages[1] * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Check the growth of memory, except with sanitizers, which do not return freed memory. */
static void
check_growth_kib(long before, long most)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    CHECK(resident_kib() - before < most);
#else
    (void)before;
    (void)most;
#endif
}

/* Send as many requests as possible without reading; then read some replies, then close. */
static void
flood(int fd, dd_tcp_server *server)
{
    dd_blob request = {0};
    dd_blob reply = {0};
    raw_pack(&request, "b#kk", DD_TCP_MULTI_GET, 2LL, "/large", "/large");
    CHECK_OK(dd_blob_reserve(&reply, 2 * (FLOOD_VALUE + 8), check_err()));
    long before = resident_kib();
    for (int i = 0; i < FLOOD_REQUESTS; i++) {
        raw_send(fd, dd_blob_view(&request));
    }
    for (int i = 0; i < 10; i++) {
        expect_alive(server);
    }
    for (int i = 0; i < FLOOD_TAKEN; i++) {
        size_t len = 2 * (FLOOD_VALUE + 8);
        if (!CHECK_INT(recv(fd, reply.data, len, MSG_WAITALL), len)) {
            break;
        }
        uint64_t lens[2];
        memcpy(&lens[0], reply.data, 8);
        memcpy(&lens[1], reply.data + 8 + FLOOD_VALUE, 8);
        CHECK(lens[0] == FLOOD_VALUE && lens[1] == FLOOD_VALUE);
        CHECK(reply.data[8] == 'x' && reply.data[len - 1] == 'x');
    }
    /* All replies together would be gigabytes. */
    check_growth_kib(before, 200 * 1024);
    dd_blob_fini(&request);
    dd_blob_fini(&reply);
}

TEST(a_client_that_reads_no_replies_is_disconnected_at_a_limit)
{
    dd_tcp_server *server = default_server();
    int fd = raw_open(dd_tcp_server_port(server));
    char *large = malloc(FLOOD_VALUE);
    REQUIRE(large != NULL);
    memset(large, 'x', FLOOD_VALUE);
    raw_ask(fd, DD_TCP_SET, "kK", "/large", dd_bytes_of(large, FLOOD_VALUE));
    flood(fd, server);
    close(fd);
    expect_connections(server, 0);
    expect_alive(server);
    free(large);
    dd_tcp_server_release(server);
}

TEST(all_replies_to_a_flood_of_requests_arrive)
{
    dd_tcp_server *server = default_server();
    int fd = raw_open(dd_tcp_server_port(server));
    size_t len = 100000;
    uint8_t *value = calloc(1, len + 8);
    REQUIRE(value != NULL);
    raw_ask(fd, DD_TCP_SET, "kK", "/large", dd_bytes_of(value, len));
    int nrequests = 500;
    for (int i = 0; i < nrequests; i++) {
        raw_ask(fd, DD_TCP_GET, "k", "/large");
    }
    raw_ask(fd, DD_TCP_PING, "u", 99u);
    expect_alive(server);
    for (int i = 0; i < nrequests && check_failures() == 0; i++) {
        CHECK_INT(recv(fd, value, len + 8, MSG_WAITALL), len + 8);
    }
    CHECK(raw_expect(fd, "u", 99u));
    free(value);
    close(fd);
    dd_tcp_server_release(server);
}

/* --- protocol violations ---------------------------------------------------------------------- */

TEST(invalid_request_bytes_close_only_their_own_connection)
{
    dd_tcp_server *server = default_server();
    uint16_t port = dd_tcp_server_port(server);
    int good = raw_open(port);
    for (int op = 0; op < 256; op++) {
        bool is_fine = dd_tcp_find_op((unsigned)op) != NULL && op != DD_TCP_VALIDATE && op < DD_TCP_AUTH;
        int fd = raw_open(port);
        if (!is_fine) {
            raw_ask(fd, op, "");
            CHECK(raw_is_closed(fd));
        }
        close(fd);
        if (op != DD_TCP_VALIDATE) {
            fd = raw_connect(port);
            raw_ask(fd, op, "");
            CHECK(raw_is_closed(fd));
            close(fd);
        }
    }
    int wrong = raw_connect(port);
    raw_ask(wrong, DD_TCP_VALIDATE, "u", DD_TCP_MAGIC + 1);
    CHECK(raw_is_closed(wrong));
    close(wrong);
    raw_ask(good, DD_TCP_PING, "u", 3u);
    CHECK(raw_expect(good, "u", 3u));
    close(good);
    dd_tcp_server_release(server);
}

TEST(a_waiting_client_may_send_nothing_except_a_cancel)
{
    dd_tcp_server *server = default_server();
    int fd = raw_open(dd_tcp_server_port(server));
    raw_ask(fd, DD_TCP_WAIT, "#k", 1LL, "/never");
    raw_ask(fd, DD_TCP_PING, "u", 1u);
    CHECK(raw_is_closed(fd));
    close(fd);
    expect_stats(server, 0, 0);
    dd_tcp_server_release(server);
}

TEST(a_request_that_announces_a_huge_length_allocates_no_memory)
{
    static const long long lens[] = {1LL << 31, 1LL << 40, INT64_MAX, -1, -8};
    static const char *const heads[] = {"\3", "\6", "\1\1\0\0\0\0\0\0\0k",
                                        "\13\1\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0k"};
    static const size_t head_lens[] = {1, 1, 10, 18};
    dd_tcp_server *server = default_server();
    long before = resident_kib();
    for (size_t i = 0; i < 4; i++) {
        for (size_t k = 0; k < sizeof lens / sizeof lens[0]; k++) {
            int fd = raw_open(dd_tcp_server_port(server));
            dd_blob out = {0};
            CHECK_OK(dd_blob_append(&out, heads[i], head_lens[i], check_err()));
            raw_pack(&out, "i", lens[k]);
            raw_send(fd, dd_blob_view(&out));
            CHECK(raw_is_closed(fd));
            dd_blob_fini(&out);
            close(fd);
        }
    }
    /* A length within the limit, whose data never arrives. */
    int fd = raw_open(dd_tcp_server_port(server));
    raw_ask(fd, DD_TCP_SET, "kib", "/k", 200LL << 20, 'x');
    expect_alive(server);
    check_growth_kib(before, 50 * 1024);
    close(fd);
    dd_tcp_server_release(server);
}

TEST(waiting_clients_that_disconnect_are_removed)
{
    dd_tcp_server *server = default_server();
    int fds[20];
    for (size_t i = 0; i < 20; i++) {
        fds[i] = raw_open(dd_tcp_server_port(server));
        if (i % 2 == 0) {
            raw_ask(fds[i], DD_TCP_WAIT, "#kkk", 3LL, "/a", "/b", "/a");
        } else {
            raw_ask(fds[i], DD_TCP_HELLO, "uikv", DD_TCP_VERSION, 1LL, "host", "");
            raw_ask_tagged(fds[i], 1, i % 4 == 1 ? DD_TCP_WAIT_GET : DD_TCP_WAIT_POP, "k", "/c");
        }
    }
    expect_stats(server, 20, 3);
    for (size_t i = 0; i < 20; i++) {
        close(fds[i]);
    }
    expect_stats(server, 0, 0);
    expect_connections(server, 0);
    dd_tcp_server_release(server);
}

TEST(silent_connections_are_closed_after_the_handshake_timeout)
{
    dd_tcp_server_options options = raw_options();
    options.handshake_timeout_ns = 100 * DD_NS_PER_MS;
    dd_tcp_server *server = raw_server(&options);
    int silent = raw_connect(dd_tcp_server_port(server));
    int halfway = raw_connect(dd_tcp_server_port(server));
    int good = raw_open(dd_tcp_server_port(server));
    raw_send(halfway, BYTES("\0\xce"));
    CHECK(raw_is_closed(silent));
    CHECK(raw_is_closed(halfway));
    raw_ask(good, DD_TCP_PING, "u", 3u);
    CHECK(raw_expect(good, "u", 3u));
    expect_connections(server, 1);
    close(silent);
    close(halfway);
    close(good);
    dd_tcp_server_release(server);
}

/* Silent connections may use at most an eighth of the descriptors. Connections that have sent bytes
 * are not counted. */
TEST(silent_connections_are_closed_if_they_use_too_many_descriptors)
{
    enum { N = 100 };
    dd_tcp_server_options options = raw_options();
    options.secret = BYTES("secret");
    dd_tcp_server *server = raw_server(&options);
    struct rlimit old;
    CHECK(getrlimit(RLIMIT_NOFILE, &old) == 0);
    struct rlimit few = {256, old.rlim_max};
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    int halfway = raw_open(dd_tcp_server_port(server));
    raw_ask(halfway, DD_TCP_PING, "u", DD_TCP_OFFER | 0x1234);
    CHECK(raw_expect(halfway, "u", ~(DD_TCP_OFFER | 0x1234)));
    int silent[N];
    for (int i = 0; i < N; i++) {
        silent[i] = raw_connect(dd_tcp_server_port(server));
    }
    /* Before the timeout of silent connections. */
    expect_connections(server, 256 / 8 + 1);
    raw_ask(halfway, DD_TCP_PING, "u", DD_TCP_OFFER | 0x1234);
    CHECK(raw_expect(halfway, "u", ~(DD_TCP_OFFER | 0x1234)));
    for (int i = 0; i < N; i++) {
        close(silent[i]);
    }
    close(halfway);
    CHECK(setrlimit(RLIMIT_NOFILE, &old) == 0);
    dd_tcp_server_release(server);
}

/* --- extended connections --------------------------------------------------------------------- */

static int
open_extended_within(uint16_t port, dd_tcp_limits limits)
{
    int fd = raw_open(port);
    raw_ask(fd, DD_TCP_PING, "u", DD_TCP_OFFER | 0x1234);
    CHECK(raw_expect(fd, "u", ~(DD_TCP_OFFER | 0x1234)));
    raw_ask(fd, DD_TCP_HELLO, "uikv", DD_TCP_VERSION, 77LL, "a-host", "");
    CHECK(raw_expect(fd, "buiiii", 0, DD_TCP_VERSION, (long long)limits.max_key_bytes,
                     (long long)limits.max_value_bytes, (long long)limits.max_keys,
                     (long long)limits.max_request_bytes));
    uint64_t len = 0;
    char name[64];
    CHECK(recv(fd, &len, 8, MSG_WAITALL) == 8 && len < sizeof name);
    CHECK(recv(fd, name, (size_t)len, MSG_WAITALL) == (ssize_t)len);
    CHECK(raw_expect(fd, "vv", "", ""));
    return fd;
}

static int
open_extended(uint16_t port)
{
    return open_extended_within(port, DD_TCP_LIMITS_DEFAULT);
}

TEST(extended_requests_are_answered_with_their_tags)
{
    dd_tcp_server *server = default_server();
    uint16_t port = dd_tcp_server_port(server);
    int fd = open_extended(port);
    int other = raw_open(port);
    raw_ask_tagged(fd, 1, DD_TCP_TRY_GET, "k", "/k");
    CHECK(raw_expect_answer(fd, 1, DD_OK, "#", 0LL));
    /* Every request is answered. */
    raw_ask_tagged(fd, 2, DD_TCP_SET, "kv", "/k", "abc");
    CHECK(raw_expect_answer(fd, 2, DD_OK, ""));
    raw_ask_tagged(fd, 3, DD_TCP_MULTI_SET, "#kv", 1LL, "/m", "m");
    CHECK(raw_expect_answer(fd, 3, DD_OK, ""));
    raw_ask_tagged(fd, 3, DD_TCP_TRY_GET, "k", "/k");
    CHECK(raw_expect_answer(fd, 3, DD_OK, "#v", 1LL, "abc"));
    raw_ask_tagged(fd, UINT32_MAX, DD_TCP_WAIT_GET, "k", "/k");
    CHECK(raw_expect_answer(fd, UINT32_MAX, DD_OK, "#v", 1LL, "abc"));
    raw_ask_tagged(fd, 0, DD_TCP_CHECK_EACH, "#kkk", 3LL, "/k", "/none", "/k");
    CHECK(raw_expect_answer(fd, 0, DD_OK, "K", BYTES("\1\0\1")));
    raw_ask_tagged(fd, 4, DD_TCP_ADD, "ki", "/k", 1LL);
    CHECK(raw_expect_answer(fd, 4, DD_STORE, "v", "value of key \"/k\" is not a number: \"abc\""));
    raw_ask_tagged(fd, 5, DD_TCP_HELLO, "uikv", DD_TCP_VERSION, 77LL, "a-host", "");
    CHECK(raw_is_closed(fd));
    /* In PyTorch's protocol, the only answer to an invalid number is to close the connection. */
    raw_ask(other, DD_TCP_ADD, "ki", "/k", 1LL);
    CHECK(raw_is_closed(other));
    close(fd);
    close(other);
    dd_tcp_server_release(server);
}

TEST(tagged_requests_sent_one_byte_at_a_time_are_answered)
{
    dd_tcp_server *server = default_server();
    int fd = open_extended(dd_tcp_server_port(server));
    dd_blob out = {0};
    raw_pack(&out, "ubkv", 0x01020304u, DD_TCP_SET, "/k", "value");
    raw_pack(&out, "ubk", 0x05060708u, DD_TCP_TRY_GET, "/k");
    for (size_t i = 0; i < out.len; i++) {
        raw_send(fd, dd_bytes_of(out.data + i, 1));
        expect_alive(server); /* the server has read that byte before */
    }
    CHECK(raw_expect_answer(fd, 0x01020304u, DD_OK, ""));
    CHECK(raw_expect_answer(fd, 0x05060708u, DD_OK, "#v", 1LL, "value"));
    dd_blob_fini(&out);
    close(fd);
    dd_tcp_server_release(server);
}

/* One connection has several waiting requests; each is answered with its tag when it completes. */
TEST(several_requests_wait_on_one_connection)
{
    dd_tcp_server *server = default_server();
    int fd = open_extended(dd_tcp_server_port(server));
    raw_ask_tagged(fd, 11, DD_TCP_WAIT_POP, "k", "/q");
    raw_ask_tagged(fd, 12, DD_TCP_WAIT_GET, "k", "/late");
    raw_ask_tagged(fd, 13, DD_TCP_WAIT, "#kk", 2LL, "/late", "/later");
    raw_ask_tagged(fd, 14, DD_TCP_BARRIER, "ki", "/b", 2LL);
    raw_ask_tagged(fd, 15, DD_TCP_NUM_KEYS, "");
    CHECK(raw_expect_answer(fd, 15, DD_OK, "i", 1LL)); /* the barrier's key */
    expect_stats(server, 4, 4);
    raw_ask_tagged(fd, 16, DD_TCP_CANCEL_WAIT, ""); /* matches no request */
    raw_ask_tagged(fd, 14, DD_TCP_CANCEL_WAIT, "");
    CHECK(raw_expect_answer(fd, 14, DD_OK, "b", DD_TCP_WAIT_CANCELED));
    raw_ask_tagged(fd, 11, DD_TCP_CANCEL_WAIT, "");
    CHECK(raw_expect_answer(fd, 11, DD_OK, "#", 0LL));
    raw_ask_tagged(fd, 11, DD_TCP_CANCEL_WAIT, "");
    expect_stats(server, 2, 3);
    /* Waiting requests are answered before the request that completes them. */
    raw_ask_tagged(fd, 17, DD_TCP_SET, "kv", "/late", "there");
    CHECK(raw_expect_answer(fd, 12, DD_OK, "#v", 1LL, "there"));
    CHECK(raw_expect_answer(fd, 17, DD_OK, ""));
    raw_ask_tagged(fd, 18, DD_TCP_ADD, "ki", "/later", 7LL);
    CHECK(raw_expect_answer(fd, 13, DD_OK, "b", DD_TCP_STOP_WAITING));
    CHECK(raw_expect_answer(fd, 18, DD_OK, "i", 7LL));
    raw_ask_tagged(fd, 19, DD_TCP_WAIT_POP, "k", "/q");
    raw_ask_tagged(fd, 20, DD_TCP_WAIT_POP, "k", "/q");
    raw_ask_tagged(fd, 21, DD_TCP_QUEUE_PUSH, "kv", "/q", "item");
    CHECK(raw_expect_answer(fd, 19, DD_OK, "#v", 1LL, "item"));
    CHECK(raw_expect_answer(fd, 21, DD_OK, ""));
    close(fd);
    expect_connections(server, 0);
    CHECK_INT(stats_of(server).parked, 0);
    dd_tcp_server_release(server);
}

/* Many keys with one value: a request that waits for missing keys must also respect the limit. */
TEST(values_that_are_too_large_together_are_refused)
{
    static char large[1001];
    memset(large, 'x', sizeof large - 1);
    dd_tcp_server_options options = raw_options();
    options.limits.max_request_bytes = 4096;
    dd_tcp_server *server = raw_server(&options);
    int fd = open_extended_within(dd_tcp_server_port(server), options.limits);
    char text[128];
    snprintf(text, sizeof text,
             "values too large: got 5040 bytes, expected at most 4096 (the server's limit)");
    raw_ask_tagged(fd, 1, DD_TCP_WAIT_MULTI_GET, "#kkkkk", 5LL, "/a", "/a", "/a", "/a", "/a");
    raw_ask_tagged(fd, 2, DD_TCP_SET, "kv", "/a", large);
    CHECK(raw_expect_answer(fd, 1, DD_STORE, "v", text));
    CHECK(raw_expect_answer(fd, 2, DD_OK, ""));
    raw_ask_tagged(fd, 3, DD_TCP_WAIT_MULTI_GET, "#kkkkk", 5LL, "/a", "/a", "/a", "/a", "/a");
    CHECK(raw_expect_answer(fd, 3, DD_STORE, "v", text));
    CHECK_INT(stats_of(server).parked, 0);
    close(fd);
    dd_tcp_server_release(server);
}

/* Several values are returned together once all exist; a cancelled request returns none. */
TEST(a_request_for_several_values_is_answered_once_all_of_them_exist)
{
    dd_tcp_server *server = default_server();
    int fd = open_extended(dd_tcp_server_port(server));
    raw_ask_tagged(fd, 1, DD_TCP_WAIT_MULTI_GET, "#kkkkk", 5LL, "/a", "/b", "/a", "/c", "/b");
    raw_ask_tagged(fd, 2, DD_TCP_WAIT_MULTI_GET, "#kk", 2LL, "/a", "/never");
    raw_ask_tagged(fd, 3, DD_TCP_MULTI_SET, "#kvkv", 2LL, "/b", "B", "/c", "");
    CHECK(raw_expect_answer(fd, 3, DD_OK, ""));
    expect_stats(server, 2, 4);
    raw_ask_tagged(fd, 4, DD_TCP_SET, "kv", "/a", "A");
    CHECK(raw_expect_answer(fd, 1, DD_OK, "#vvvvv", 5LL, "A", "B", "A", "", "B"));
    CHECK(raw_expect_answer(fd, 4, DD_OK, ""));
    raw_ask_tagged(fd, 2, DD_TCP_CANCEL_WAIT, "");
    CHECK(raw_expect_answer(fd, 2, DD_OK, "#", 0LL));
    raw_ask_tagged(fd, 5, DD_TCP_WAIT_MULTI_GET, "#kk", 2LL, "/c", "/a");
    CHECK(raw_expect_answer(fd, 5, DD_OK, "#vv", 2LL, "", "A"));
    raw_ask_tagged(fd, 6, DD_TCP_WAIT_MULTI_GET, "#k", 1LL, "/never");
    close(fd);
    expect_connections(server, 0);
    CHECK_INT(stats_of(server).parked, 0);
    dd_tcp_server_release(server);
}

/* Both sides must report a version mismatch. */
TEST(a_client_of_another_version_is_refused)
{
    dd_tcp_server *server = default_server();
    for (unsigned version = DD_TCP_VERSION - 1; version <= DD_TCP_VERSION + 1; version += 2) {
        int fd = raw_open(dd_tcp_server_port(server));
        raw_ask(fd, DD_TCP_HELLO, "uikv", version, 77LL, "a-host", "");
        char text[160];
        (void)snprintf(text, sizeof text,
                       "the client has version %u of dldist's store protocol, expected %d; install the same "
                       "version of dldist on both",
                       version, DD_TCP_VERSION);
        CHECK(raw_expect(fd, "bv", DD_PROTOCOL, text));
        CHECK(raw_is_closed(fd));
        close(fd);
    }
    dd_tcp_server_release(server);
}

static const char secret_text[] = "open sesame";

static dd_tcp_server *
secret_server(void)
{
    dd_tcp_server_options options = raw_options();
    options.secret = dd_bytes_of_string(secret_text);
    return raw_server(&options);
}

static const char client_nonce[DD_AUTH_NONCE_BYTES + 1] = "a client's nonce has 32 bytes...";

/* Send a hello with client_nonce; receive the server's nonce and proof. */
static int
be_challenged(uint16_t port, uint8_t nonce[DD_AUTH_NONCE_BYTES], uint8_t proof[DD_SHA256_BYTES])
{
    int fd = raw_open(port);
    raw_ask(fd, DD_TCP_HELLO, "uikK", DD_TCP_VERSION, 77LL, "a-host", dd_bytes_of_string(client_nonce));
    char head[1 + 4 + 32];
    uint64_t len = 0;
    char name[64];
    CHECK(recv(fd, head, sizeof head, MSG_WAITALL) == (ssize_t)sizeof head && head[0] == 0);
    CHECK(recv(fd, &len, 8, MSG_WAITALL) == 8 && len < sizeof name);
    CHECK(recv(fd, name, (size_t)len, MSG_WAITALL) == (ssize_t)len);
    CHECK(recv(fd, &len, 8, MSG_WAITALL) == 8 && len == DD_AUTH_NONCE_BYTES);
    CHECK(recv(fd, nonce, DD_AUTH_NONCE_BYTES, MSG_WAITALL) == DD_AUTH_NONCE_BYTES);
    CHECK(recv(fd, &len, 8, MSG_WAITALL) == 8 && len == DD_SHA256_BYTES);
    CHECK(recv(fd, proof, DD_SHA256_BYTES, MSG_WAITALL) == DD_SHA256_BYTES);
    return fd;
}

TEST(a_server_with_a_secret_refuses_every_request_without_it)
{
    dd_tcp_server *server = secret_server();
    uint16_t port = dd_tcp_server_port(server);
    for (int op = 0; op < 256; op++) {
        if (op == DD_TCP_HELLO || op == DD_TCP_PING) {
            continue;
        }
        int fd = raw_open(port);
        raw_ask(fd, op, "");
        CHECK(raw_is_closed(fd));
        close(fd);
    }
    int torch = raw_open(port);
    raw_ask(torch, DD_TCP_PING, "u", 4711u);
    CHECK(raw_is_closed(torch));
    int offering = raw_open(port);
    raw_ask(offering, DD_TCP_PING, "u", DD_TCP_OFFER | 1);
    CHECK(raw_expect(offering, "u", ~(DD_TCP_OFFER | 1)));
    int without = raw_open(port);
    raw_ask(without, DD_TCP_HELLO, "uikv", DD_TCP_VERSION, 1LL, "host", "");
    CHECK(raw_expect(without, "bv", DD_AUTH, "the store needs a secret and the client has none"));
    CHECK(raw_is_closed(without));
    close(torch);
    close(offering);
    close(without);
    dd_tcp_server_release(server);
}

TEST(torch_clients_of_the_servers_user_need_no_secret_if_permitted)
{
    dd_tcp_server_options options = raw_options();
    options.secret = dd_bytes_of_string(secret_text);
    options.is_open_to_own_torch = true;
    dd_tcp_server *server = raw_server(&options);
    uint16_t port = dd_tcp_server_port(server);
    int torch = raw_open(port);
    raw_ask(torch, DD_TCP_PING, "u", 4711u);
    CHECK(raw_expect(torch, "u", 4711u));
    raw_ask(torch, DD_TCP_SET, "kv", "/k", "value");
    raw_ask(torch, DD_TCP_GET, "k", "/k");
    CHECK(raw_expect(torch, "v", "value"));
    int without_ping = raw_open(port);
    raw_ask(without_ping, DD_TCP_GET, "k", "/k");
    CHECK(raw_is_closed(without_ping));
    int without = raw_open(port);
    raw_ask(without, DD_TCP_HELLO, "uikv", DD_TCP_VERSION, 1LL, "host", "");
    CHECK(raw_expect(without, "bv", DD_AUTH, "the store needs a secret and the client has none"));
    CHECK(raw_is_closed(without));
    close(torch);
    close(without_ping);
    close(without);
    dd_tcp_server_release(server);
}

TEST(only_a_correct_proof_made_for_this_connection_is_accepted)
{
    dd_tcp_server_options options = raw_options();
    options.secret = dd_bytes_of_string(secret_text);
    options.is_encryption_off = true;
    dd_tcp_server *server = raw_server(&options);
    uint16_t port = dd_tcp_server_port(server);
    dd_bytes secret = dd_bytes_of_string(secret_text);
    dd_bytes opening = dd_bytes_of_string(client_nonce);
    uint8_t nonce[DD_AUTH_NONCE_BYTES];
    uint8_t server_proof[DD_SHA256_BYTES];
    uint8_t proof[DD_SHA256_BYTES];
    int fd = be_challenged(port, nonce, server_proof);
    CHECK(dd_auth_check(secret, DD_AUTH_STORE_SERVER, opening, nonce,
                        dd_bytes_of(server_proof, sizeof server_proof)));
    dd_auth_prove(secret, DD_AUTH_STORE_CLIENT, opening, nonce, proof);
    raw_ask(fd, DD_TCP_AUTH, "K", dd_bytes_of(proof, sizeof proof));
    CHECK(raw_expect(fd, "b", 0));
    raw_ask_tagged(fd, 1, DD_TCP_NUM_KEYS, "");
    CHECK(raw_expect_answer(fd, 1, DD_OK, "i", 0LL));
    int replayed = be_challenged(port, nonce, server_proof);
    raw_ask(replayed, DD_TCP_AUTH, "K", dd_bytes_of(proof, sizeof proof));
    CHECK(raw_expect(replayed, "bv", DD_AUTH, "the client's secret differs from the store's"));
    CHECK(raw_is_closed(replayed));
    int reflected = be_challenged(port, nonce, server_proof);
    raw_ask(reflected, DD_TCP_AUTH, "K", dd_bytes_of(server_proof, sizeof server_proof));
    CHECK(raw_expect(reflected, "bv", DD_AUTH, "the client's secret differs from the store's"));
    CHECK(raw_is_closed(reflected));
    int early = be_challenged(port, nonce, server_proof);
    raw_ask(early, DD_TCP_NUM_KEYS, "");
    CHECK(raw_is_closed(early));
    close(fd);
    close(replayed);
    close(reflected);
    close(early);
    dd_tcp_server_release(server);
}

/* A sealed hello followed by plain bytes, which an attacker may have inserted. */
TEST(plain_bytes_after_an_encrypted_hello_are_refused)
{
    dd_tcp_server *server = secret_server();
    dd_blob hello = {0};
    dd_cipher cipher = DD_CIPHER_NONE;
    dd_noise noise;
    uint8_t first[DD_NOISE_FIRST_BYTES];
    REQUIRE_OK(dd_seal_choose(&cipher, check_err()));
    raw_pack(&hello, "buik#b", DD_TCP_HELLO, DD_TCP_VERSION, 77LL, "a-host", (long long)DD_TCP_OFFER_BYTES,
             (int)cipher);
    REQUIRE_OK(dd_seal_begin(&noise, cipher, dd_bytes_of(hello.data + 1, hello.len - 1), first, check_err()));
    REQUIRE_OK(dd_blob_append(&hello, first, sizeof first, check_err()));
    int honest = raw_open(dd_tcp_server_port(server));
    raw_send(honest, dd_blob_view(&hello));
    CHECK(raw_expect(honest, "bu", 0, DD_TCP_VERSION));
    raw_pack(&hello, "b#", DD_TCP_AUTH, 0LL);
    int injected = raw_open(dd_tcp_server_port(server));
    raw_send(injected, dd_blob_view(&hello));
    CHECK(raw_is_closed(injected));
    close(honest);
    close(injected);
    dd_noise_wipe(&noise);
    dd_blob_fini(&hello);
    dd_tcp_server_release(server);
}

/* --- scarce resources ------------------------------------------------------------------------- */

static int64_t
cpu_ns(void)
{
    struct timespec used;
    CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) == 0);
    return used.tv_sec * DD_NS_PER_S + used.tv_nsec;
}

TEST(a_server_out_of_descriptors_still_serves_its_connected_clients)
{
    dd_tcp_server *server = default_server();
    uint16_t port = dd_tcp_server_port(server);
    int served = raw_open(port);
    raw_ask(served, DD_TCP_PING, "u", 1u);
    CHECK(raw_expect(served, "u", 1u));
    int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int next = dup(client);
    struct rlimit old;
    CHECK(getrlimit(RLIMIT_NOFILE, &old) == 0);
    struct rlimit none = {(rlim_t)next, old.rlim_max};
    close(next);
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    struct sockaddr_in in = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    CHECK(connect(client, (struct sockaddr *)&in, sizeof in) == 0);
    raw_ask(client, DD_TCP_VALIDATE, "u", DD_TCP_MAGIC);
    raw_ask(client, DD_TCP_PING, "u", 2u);
    int64_t before_ns = cpu_ns();
    nap_ms(300);
    CHECK(cpu_ns() - before_ns < 150 * DD_NS_PER_MS * check_slow());
    CHECK(raw_is_silent(client));
    raw_ask(served, DD_TCP_PING, "u", 3u);
    CHECK(raw_expect(served, "u", 3u));
    CHECK(setrlimit(RLIMIT_NOFILE, &old) == 0);
    struct timeval patience = {.tv_sec = 5};
    (void)setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    CHECK(raw_expect(client, "u", 2u));
    close(client);
    close(served);
    dd_tcp_server_release(server);
}

/* Open descriptors until only a few are free. Return their number. */
static size_t
take_descriptors(int files[512], struct rlimit *old)
{
    size_t nfiles = 0;
    CHECK(getrlimit(RLIMIT_NOFILE, old) == 0);
    struct rlimit few = {512, old->rlim_max};
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    do {
        files[nfiles] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    } while (files[nfiles++] < 500);
    return nfiles;
}

static void
be_refused(uint16_t port)
{
    int fd = raw_open(port);
    raw_ask(fd, DD_TCP_PING, "u", DD_TCP_OFFER | 0x1234);
    CHECK(raw_expect(fd, "u", ~(DD_TCP_OFFER | 0x1234)));
    raw_ask(fd, DD_TCP_HELLO, "uikv", DD_TCP_VERSION, 77LL, "a-host", "");
    CHECK(
        raw_expect(fd, "bv", (int)DD_NETWORK,
                   "the store's process has reached its limit of open files; raise it there with ulimit -n"));
    CHECK(raw_is_closed(fd));
    close(fd);
}

TEST(an_error_after_rejected_connections_names_the_limit_of_open_files)
{
    dd_tcp_server *server = default_server();
    int files[512];
    struct rlimit old;
    size_t nfiles = take_descriptors(files, &old);
    be_refused(dd_tcp_server_port(server));
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_MS);
    CHECK_STATUS(dd_tcp_server_wait_joined(server, 1, &wait, check_err()), DD_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "connections were rejected");
    CHECK_CONTAINS(check_message(), "the limit of 512 open files is reached");
    while (nfiles > 0) {
        close(files[--nfiles]);
    }
    expect_alive(server);
    CHECK(setrlimit(RLIMIT_NOFILE, &old) == 0);
    dd_tcp_server_release(server);
}

/* The client may have the secret: the server has not checked it yet. */
TEST(clients_rejected_for_lack_of_descriptors_do_not_count_as_refused)
{
    dd_tcp_server *server = secret_server();
    uint16_t port = dd_tcp_server_port(server);
    int files[512];
    struct rlimit old;
    size_t nfiles = take_descriptors(files, &old);
    be_refused(port);
    while (nfiles > 0) {
        close(files[--nfiles]);
    }
    CHECK(setrlimit(RLIMIT_NOFILE, &old) == 0);
    dd_tcp_store_options options = {.host = "127.0.0.1",
                                    .port = port,
                                    .timeout_ns = 5 * DD_NS_PER_S * check_slow(),
                                    .world_size = -1,
                                    .secret = dd_bytes_of_string(secret_text)};
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S * check_slow());
    dd_store *store = NULL;
    dd_blob who = {0};
    REQUIRE_OK(dd_tcp_store_open(&store, &options, &wait, check_err()));
    CHECK_OK(dd_tcp_store_refused(store, &who, &wait, check_err()));
    CHECK_INT(who.len, 0);
    dd_blob_fini(&who);
    dd_store_release(store);
    dd_tcp_server_release(server);
}

/* Build all messages of a client that opens a connection and requests one operation. */
static void
pack_whole_client(dd_blob *out, int op)
{
    raw_pack(out, "bu", DD_TCP_VALIDATE, DD_TCP_MAGIC);
    if (op >= DD_TCP_TRY_GET) {
        raw_pack(out, "buikvu", DD_TCP_HELLO, DD_TCP_VERSION, 77LL, "a-host", "", 1u);
    }
    raw_pack(out, "b", op);
    for (const char *at = dd_tcp_find_op((unsigned)op)->request; *at != '\0'; at++) {
        switch (*at) {
        case '#':
            raw_pack(out, "#", 1LL);
            break;
        case 'i':
            raw_pack(out, "i", 3LL);
            break;
        case 'u':
            raw_pack(out, "u", 3u);
            break;
        default:
            raw_pack(out, "v", "/key or value");
        }
    }
}

/* Return true if an allocation failed. */
static bool
serve_with_failure(uint16_t port, dd_bytes bytes, long nth)
{
    int fd = raw_connect(port);
    (void)dd_mem_fail_after(nth);
    /* The server may have closed the connection already. */
    (void)!sendto(fd, bytes.data, bytes.len, MSG_NOSIGNAL, NULL, 0);
    (void)shutdown(fd, SHUT_WR);
    CHECK(raw_is_closed(fd));
    bool has_failed = dd_mem_fail_after(-1) > nth;
    close(fd);
    return has_failed;
}

TEST(values_are_kept_if_memory_runs_out_while_serving)
{
#define OP_NUMBER(name, number, ...) number,
    static const int ops[] = {DD_TCP_OP_LIST(OP_NUMBER)};
#undef OP_NUMBER
    dd_tcp_server *server = default_server();
    int keeper = raw_open(dd_tcp_server_port(server));
    raw_ask(keeper, DD_TCP_SET, "kv", "/kept", "value");
    raw_ask(keeper, DD_TCP_PING, "u", 1u);
    CHECK(raw_expect(keeper, "u", 1u));
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        dd_blob out = {0};
        pack_whole_client(&out, ops[i]);
        long nth = 0;
        while (nth < 30 && serve_with_failure(dd_tcp_server_port(server), dd_blob_view(&out), nth)) {
            nth++;
        }
        CHECK(nth < 30);
        dd_blob_fini(&out);
    }
    raw_ask(keeper, DD_TCP_GET, "k", "/kept");
    CHECK(raw_expect(keeper, "v", "value"));
    CHECK_INT(stats_of(server).parked, 0);
    close(keeper);
    dd_tcp_server_release(server);
}

TEST(a_popped_item_stays_in_the_queue_if_the_reply_cannot_be_allocated)
{
    dd_tcp_server *server = default_server();
    uint16_t port = dd_tcp_server_port(server);
    dd_blob out = {0};
    pack_whole_client(&out, DD_TCP_QUEUE_POP);
    bool has_failed = true;
    for (long nth = 0; has_failed && nth < 30; nth++) {
        int fd = raw_open(port);
        raw_ask(fd, DD_TCP_QUEUE_POP, "k", "/key or value");
        uint64_t left;
        CHECK(recv(fd, &left, 8, MSG_WAITALL) == 8);
        if (left > 0) {
            CHECK(raw_expect(fd, "v", "item"));
        }
        CHECK_INT(left, nth > 0 ? 1 : 0);
        raw_ask(fd, DD_TCP_QUEUE_PUSH, "kv", "/key or value", "item");
        raw_ask(fd, DD_TCP_PING, "u", 1u);
        CHECK(raw_expect(fd, "u", 1u));
        close(fd);
        has_failed = serve_with_failure(port, dd_blob_view(&out), nth);
    }
    CHECK(!has_failed);
    expect_stats(server, 0, 0);
    dd_blob_fini(&out);
    dd_tcp_server_release(server);
}

/* --- opening ---------------------------------------------------------------------------------- */

TEST(opening_a_server_leaks_no_descriptors_when_allocations_fail)
{
    dd_tcp_server_options options = raw_options();
    options.secret = BYTES("secret");
    dd_status status = DD_OUT_OF_MEMORY;
    int nfds = 0;
    for (long nth = 0; nth < 20 && status != DD_OK; nth++) {
        dd_tcp_server *server = NULL;
        dd_wait wait = long_wait();
        nfds = count_fds();
        (void)dd_mem_fail_after(nth);
        status = dd_tcp_server_open(&server, &options, &wait, check_err());
        (void)dd_mem_fail_after(-1);
        CHECK((server != NULL) == (status == DD_OK));
        dd_tcp_server_release(server);
        CHECK_INT(count_fds(), nfds);
    }
    CHECK_INT(status, DD_OK);
}

TEST(opening_a_server_on_a_port_in_use_names_the_port)
{
    dd_tcp_server *server = default_server();
    dd_tcp_server_options options = raw_options();
    options.port = dd_tcp_server_port(server);
    dd_tcp_server *second = NULL;
    dd_wait wait = long_wait();
    char name[64];
    (void)snprintf(name, sizeof name, "127.0.0.1:%u", options.port);
    CHECK_STATUS(dd_tcp_server_open(&second, &options, &wait, check_err()), DD_NETWORK);
    CHECK_CONTAINS(check_message(), name);
    CHECK_CONTAINS(check_message(), "The server socket has failed to listen");
    options.host = "192.0.2.1";
    CHECK_STATUS(dd_tcp_server_open(&second, &options, &wait, check_err()), DD_NETWORK);
    CHECK_CONTAINS(check_message(), "the host is not this machine");
    dd_tcp_server_release(server);
}

static bool
answers_at(const char *host, uint16_t port)
{
    dd_addr_list list;
    dd_wait wait = long_wait();
    int fd = -1;
    if (!CHECK_OK(dd_addr_resolve(host, port, &list, &wait, check_err())) ||
        dd_sock_connect(&list.items[0], &fd, &wait, check_err()) != DD_OK) {
        return false;
    }
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    raw_ask(fd, DD_TCP_VALIDATE, "u", DD_TCP_MAGIC);
    raw_ask(fd, DD_TCP_PING, "u", 1u);
    CHECK(raw_expect(fd, "u", 1u));
    dd_sock_close(fd);
    return true;
}

static bool
has_ipv6(void)
{
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    bool is_there = fd >= 0 && bind(fd, (struct sockaddr *)&in6, sizeof in6) == 0;
    if (fd >= 0) {
        close(fd);
    }
    return is_there;
}

TEST(a_server_listens_only_on_the_addresses_of_its_host)
{
    static const char *const hosts[] = {"localhost", "", "*", "::", "0.0.0.0", "::1", "127.0.0.1"};
    static const bool is_v4[] = {true, true, true, true, true, false, true};
    static const bool is_v6[] = {true, true, true, true, false, true, false};
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        if (!is_v4[i] && !has_ipv6()) {
            continue;
        }
        dd_tcp_server_options options = raw_options();
        options.host = hosts[i];
        dd_tcp_server *server = raw_server(&options);
        CHECK(answers_at("127.0.0.1", dd_tcp_server_port(server)) == is_v4[i]);
        if (has_ipv6()) {
            CHECK(answers_at("::1", dd_tcp_server_port(server)) == is_v6[i]);
        }
        dd_tcp_server_release(server);
    }
}

static int
bound_socket(int type)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
    CHECK(bind(fd, (struct sockaddr *)&in, sizeof in) == 0);
    return fd;
}

TEST(a_listening_socket_given_by_the_caller_is_validated_and_used)
{
    dd_tcp_server *server = NULL;
    dd_wait wait = long_wait();
    dd_tcp_server_options options = raw_options();
    options.listen_fd = bound_socket(SOCK_DGRAM);
    CHECK_STATUS(dd_tcp_server_open(&server, &options, &wait, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "is not a stream socket");
    close(options.listen_fd);
    options.listen_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    CHECK_STATUS(dd_tcp_server_open(&server, &options, &wait, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "is not a socket");
    options.port = 29500;
    CHECK_STATUS(dd_tcp_server_open(&server, &options, &wait, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "is not a socket");
    close(options.listen_fd);
    options.listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    options.port = 0;
    CHECK_STATUS(dd_tcp_server_open(&server, &options, &wait, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "is not a TCP socket");
    close(options.listen_fd);
    options.listen_fd = bound_socket(SOCK_STREAM);
    dd_addr bound = dd_sock_local_addr(options.listen_fd);
    options.port = (uint16_t)(dd_addr_port(&bound) ^ 1);
    CHECK_STATUS(dd_tcp_server_open(&server, &options, &wait, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "expected to be bound to port");
    options.port = dd_addr_port(&bound);
    REQUIRE_OK(dd_tcp_server_open(&server, &options, &wait, check_err()));
    CHECK_INT(dd_tcp_server_port(server), options.port);
    expect_alive(server);
    dd_tcp_server_release(server);
    CHECK(fcntl(options.listen_fd, F_GETFD) < 0 && errno == EBADF);
}

TEST(a_given_socket_that_is_not_bound_gets_a_port)
{
    dd_tcp_server *server = NULL;
    dd_wait wait = long_wait();
    dd_tcp_server_options options = raw_options();
    options.listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE_OK(dd_tcp_server_open(&server, &options, &wait, check_err()));
    CHECK(dd_tcp_server_port(server) != 0);
    expect_alive(server);
    dd_tcp_server_release(server);
}

/* If no thread can be started for lack of memory, the socket must still belong to the caller. */
TEST(a_given_socket_stays_open_if_the_server_cannot_be_started)
{
    dd_tcp_server *server = NULL;
    dd_wait wait = long_wait();
    dd_tcp_server_options options = raw_options();
    options.listen_fd = bound_socket(SOCK_STREAM);
    dd_status status = DD_OUT_OF_MEMORY;
    for (long nth = 0; nth < 20; nth++) {
        (void)dd_mem_fail_after(nth);
        status = dd_tcp_server_open(&server, &options, &wait, check_err());
        (void)dd_mem_fail_after(-1);
        CHECK(fcntl(options.listen_fd, F_GETFD) >= 0);
        if (status == DD_OK) {
            break;
        }
    }
    CHECK_INT(status, DD_OK);
    expect_alive(server);
    dd_tcp_server_release(server);
}

TEST(opening_and_closing_a_thousand_servers_leaks_nothing)
{
    dd_tcp_server_release(default_server());
    int nfds = count_fds();
    int nthreads = count_threads();
    for (int i = 0; i < 1000 / check_slow(); i++) {
        dd_tcp_server *server = default_server();
        if (i % 50 == 0) {
            expect_alive(server);
        }
        dd_tcp_server_release(server);
    }
    CHECK_INT(count_fds(), nfds);
    CHECK_INT(count_threads(), nthreads);
}

TEST(stopping_a_server_closes_the_connections_of_waiting_clients)
{
    dd_tcp_server *server = default_server();
    int fds[3];
    for (size_t i = 0; i < 3; i++) {
        fds[i] = raw_open(dd_tcp_server_port(server));
    }
    raw_ask(fds[0], DD_TCP_WAIT, "#kk", 2LL, "/a", "/b");
    raw_ask(fds[1], DD_TCP_BARRIER, "ki", "/c", 2LL);
    raw_ask(fds[2], DD_TCP_SET, "kib", "/half", 1000LL, 'h');
    expect_stats(server, 2, 3);
    dd_tcp_server_release(server);
    for (size_t i = 0; i < 3; i++) {
        CHECK(raw_is_closed(fds[i]));
        close(fds[i]);
    }
}

TEST(users_of_the_same_port_share_one_server)
{
    dd_tcp_registry *registry = NULL;
    REQUIRE_OK(dd_tcp_registry_create(&registry, check_err()));
    dd_tcp_server_options options = raw_options();
    options.registry = registry;
    dd_tcp_server *first = raw_server(&options);
    dd_tcp_server *other = raw_server(&options);
    CHECK(first != other && dd_tcp_server_port(first) != dd_tcp_server_port(other));
    options.port = dd_tcp_server_port(first);
    dd_tcp_server *again = raw_server(&options);
    CHECK(again == first);
    dd_tcp_server_release(first);
    expect_alive(again);
    dd_tcp_server_release(again);
    /* The port is free: another server can use it, and starts empty. */
    dd_tcp_server *fresh = raw_server(&options);
    CHECK_INT(dd_tcp_server_port(fresh), options.port);
    expect_stats(fresh, 0, 0);
    dd_tcp_server_release(fresh);
    dd_tcp_server_release(other);
    dd_tcp_registry_destroy(registry);
    dd_tcp_registry_destroy(NULL);
}

/* Return NULL on success, else the given options. */
static void *
open_and_release(void *arg)
{
    const dd_tcp_server_options *options = arg;
    for (int i = 0; i < 300 / check_slow(); i++) {
        dd_wait wait = long_wait();
        dd_tcp_server *server = NULL;
        dd_error error;
        if (dd_tcp_server_open(&server, options, &wait, &error) != DD_OK) {
            return arg;
        }
        dd_tcp_server_release(server);
    }
    return NULL;
}

/* An open while the last user releases the server must return the old server or a new one, and
 * never fail because the port is in use. */
TEST(a_shared_server_can_be_opened_while_its_last_user_releases_it)
{
    dd_tcp_registry *registry = NULL;
    REQUIRE_OK(dd_tcp_registry_create(&registry, check_err()));
    dd_tcp_server_options options = raw_options();
    options.registry = registry;
    dd_tcp_server *first = raw_server(&options);
    options.port = dd_tcp_server_port(first);
    dd_tcp_server_release(first);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_create(&threads[i], NULL, open_and_release, &options) == 0);
    }
    for (int i = 0; i < 2; i++) {
        void *failed = NULL;
        pthread_join(threads[i], &failed);
        CHECK(failed == NULL);
    }
    dd_tcp_registry_destroy(registry);
}

/* --- joining ---------------------------------------------------------------------------------- */

TEST(clients_that_have_joined_are_listed_with_their_addresses)
{
    dd_tcp_server *server = default_server();
    uint16_t port = dd_tcp_server_port(server);
    int extended = open_extended(port);
    int plain = raw_open(port);
    dd_addr addr = dd_sock_local_addr(plain);
    char text[DD_ADDR_TEXT_MAX];
    raw_ask_tagged(extended, 1, DD_TCP_ADD, "ki", DD_TCP_JOIN_KEY, 1LL);
    CHECK(raw_expect_answer(extended, 1, DD_OK, "i", 1LL));
    raw_ask(plain, DD_TCP_ADD, "ki", DD_TCP_JOIN_KEY, 1LL);
    CHECK(raw_expect(plain, "i", 2LL));
    dd_wait wait = dd_wait_after(30 * DD_NS_PER_MS);
    CHECK_STATUS(dd_tcp_server_wait_joined(server, 4, &wait, check_err()), DD_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "2/4 clients joined: a-host (pid 77), ");
    CHECK_CONTAINS(check_message(), dd_addr_print(&addr, text));
    CHECK_OK(dd_tcp_server_wait_joined(server, 2, &wait, check_err()));
    /* More than a message can list, and more than are stored. */
    for (long long i = 3; i <= 300; i++) {
        raw_ask(plain, DD_TCP_ADD, "ki", DD_TCP_JOIN_KEY, 1LL);
        (void)raw_expect(plain, "i", i);
    }
    CHECK_STATUS(dd_tcp_server_wait_joined(server, 301, &wait, check_err()), DD_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "300/301 clients joined: a-host (pid 77), ");
    CHECK_CONTAINS(check_message(), ", ...");
    close(extended);
    close(plain);
    dd_tcp_server_release(server);
}

typedef struct joiner {
    pthread_t thread;
    uint16_t port;
} joiner;

static void *
join_late(void *arg)
{
    joiner *self = arg;
    nap_ms(30);
    int fd = raw_open(self->port);
    raw_ask(fd, DD_TCP_ADD, "ki", DD_TCP_JOIN_KEY, 1LL);
    CHECK(raw_expect(fd, "i", 1LL));
    close(fd);
    return NULL;
}

static bool
is_interrupted(void *ctx)
{
    (void)ctx;
    return true;
}

TEST(waiting_for_clients_ends_when_they_join_or_at_an_interrupt)
{
    dd_tcp_server *server = default_server();
    joiner late = {.port = dd_tcp_server_port(server)};
    dd_wait wait = long_wait();
    REQUIRE(pthread_create(&late.thread, NULL, join_late, &late) == 0);
    CHECK_OK(dd_tcp_server_wait_joined(server, 1, &wait, check_err()));
    pthread_join(late.thread, NULL);
    wait.is_interrupted = is_interrupted;
    CHECK_STATUS(dd_tcp_server_wait_joined(server, 2, &wait, check_err()), DD_INTERRUPTED);
    dd_tcp_server_release(server);
}

/* --- the loop --------------------------------------------------------------------------------- */

/* Close a connection in the same turn in which its bytes arrived. */
typedef struct closing_handler {
    tcp_handler handler;
    tcp_conn *victim;
} closing_handler;

static void
on_order(tcp_handler *handler, uint32_t events)
{
    (void)events;
    tcp_conn_close(DD_CONTAINER_OF(handler, closing_handler, handler)->victim, "by order");
}

TEST(a_pending_event_of_a_closed_connection_is_ignored)
{
    dd_tcp_server *server = NULL;
    dd_tcp_server_options options = {.listen_fd = -1, .handshake_timeout_ns = DD_NEVER_NS};
    REQUIRE_OK(tcp_server_create(&server, &options, check_err()));
    int order[2];
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, order) == 0);
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    tcp_conn_open(server, dd_fork_register(ends[0]), false, false);
    closing_handler self = {.handler = {order[0], on_order}};
    self.victim = DD_CONTAINER_OF(server->conns.next, tcp_conn, link);
    CHECK_OK(tcp_server_watch(server, &self.handler, EPOLLIN, check_err()));
    CHECK(write(order[1], "x", 1) == 1 && write(ends[1], "x", 1) == 1);
    CHECK(tcp_server_turn(server, 0));
    CHECK(read(ends[1], &(char){0}, 1) <= 0);
    CHECK_INT(server->nconns, 0);
    tcp_server_unwatch(server, &self.handler);
    CHECK(!tcp_server_turn(server, 0));
    tcp_handler nothing = {.fd = -1};
    CHECK_STATUS(tcp_server_watch(server, &nothing, EPOLLIN, check_err()), DD_SYSTEM);
    CHECK_CONTAINS(check_message(), "cannot watch fd -1");
    tcp_server_free(server);
    close(order[0]);
    close(order[1]);
    close(ends[1]);
}
