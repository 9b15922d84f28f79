#include "check.h"
#include "core/mem.h"
#include "faults/faults.h"
#include "store/store.h"
#include "store/tcp_store.h"
#include "store_calls.h"
#include "store_suite.h"
#include "tcp_raw.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static dd_store *
open_prefix_over_hash(void **fixture)
{
    (void)fixture;
    dd_store *hash = NULL;
    dd_store *prefix = NULL;
    CHECK_OK(dd_hash_store_open(&hash, DD_NS_PER_S, check_err()));
    CHECK_OK(dd_prefix_store_open(&prefix, BYTES("prefix"), hash, check_err()));
    dd_store_release(hash);
    return prefix;
}

static dd_store *
open_nested_prefix(void **fixture)
{
    dd_store *inner = open_prefix_over_hash(fixture);
    dd_store *outer = NULL;
    CHECK_OK(dd_prefix_store_open(&outer, BYTES(""), inner, check_err()));
    dd_store_release(inner);
    return outer;
}

/* The underlying kind has no `run`: requests use the operations of its table. */
static dd_store *
open_prefix_over_tcp(void **fixture)
{
    dd_tcp_server_options server_options = raw_options();
    dd_tcp_server *server = raw_server(&server_options);
    *fixture = server;
    dd_tcp_store_options options = {
        .host = "127.0.0.1", .port = dd_tcp_server_port(server), .timeout_ns = DD_NS_PER_S, .world_size = -1};
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S * check_slow());
    dd_store *tcp = NULL;
    dd_store *prefix = NULL;
    if (CHECK_OK(dd_tcp_store_open(&tcp, &options, &wait, check_err()))) {
        CHECK_OK(dd_prefix_store_open(&prefix, BYTES("prefix"), tcp, check_err()));
    }
    dd_store_release(tcp);
    return prefix;
}

static void
close_server(void *fixture)
{
    dd_tcp_server_release(fixture);
}

STORE_SUITE(prefix, .open = open_prefix_over_hash, .has_queues = true, .is_in_memory = true,
            .has_number_errors = true)
STORE_SUITE(nested_prefix, .open = open_nested_prefix, .has_queues = true, .has_number_errors = true)

STORE_SUITE(tcp_prefix, .open = open_prefix_over_tcp, .close = close_server, .has_queues = true,
            .has_number_errors = true, .thread_ops = 200)

/* Prefix "q/" over "p/" over a hash store. */
typedef struct tower {
    dd_store *hash;
    dd_store *p;
    dd_store *q;
    dd_wait wait;
} tower;

static bool
tower_init(tower *t)
{
    *t = (tower){.wait = dd_wait_after(5 * DD_NS_PER_S)};
    return CHECK_OK(dd_hash_store_open(&t->hash, DD_NS_PER_S, check_err())) &&
           CHECK_OK(dd_prefix_store_open(&t->p, BYTES("p"), t->hash, check_err())) &&
           CHECK_OK(dd_prefix_store_open(&t->q, BYTES("q"), t->p, check_err()));
}

static void
tower_fini(tower *t)
{
    dd_store_release(t->hash);
    dd_store_release(t->q);
    dd_store_release(t->p);
}

static void
expect_in_hash(tower *t, dd_bytes key, dd_bytes expected)
{
    dd_blob value = {0};
    bool is_found = false;
    CHECK_OK(dd_store_try_get(t->hash, key, &value, &is_found, &t->wait, check_err()));
    CHECK(is_found);
    CHECK_BYTES(dd_blob_view(&value), expected);
    dd_blob_fini(&value);
}

TEST(a_prefix_store_joins_the_prefix_and_the_key)
{
    tower t;
    REQUIRE(tower_init(&t));
    dd_bytes keys[] = {BYTES("m1"), BYTES("\0m2")};
    int64_t sum = 0;
    dd_blob value = {0};
    CHECK_OK(dd_store_set(t.q, BYTES("k"), BYTES("set"), &t.wait, check_err()));
    expect_in_hash(&t, BYTES("p/q/k"), BYTES("set"));
    CHECK_OK(dd_store_set(t.p, BYTES(""), BYTES("empty"), &t.wait, check_err()));
    expect_in_hash(&t, BYTES("p/"), BYTES("empty"));
    CHECK_OK(dd_store_add(t.q, BYTES("n"), 3, &sum, &t.wait, check_err()));
    expect_in_hash(&t, BYTES("p/q/n"), BYTES("3"));
    CHECK_OK(dd_store_append(t.q, BYTES("a"), BYTES("x"), &t.wait, check_err()));
    expect_in_hash(&t, BYTES("p/q/a"), BYTES("x"));
    CHECK_OK(dd_store_compare_set(t.q, BYTES("c"), BYTES(""), BYTES("y"), &value, &t.wait, check_err()));
    expect_in_hash(&t, BYTES("p/q/c"), BYTES("y"));
    CHECK_OK(dd_store_multi_set(t.q, keys, keys, 2, &t.wait, check_err()));
    expect_in_hash(&t, BYTES("p/q/m1"), BYTES("m1"));
    expect_in_hash(&t, BYTES("p/q/\0m2"), BYTES("\0m2"));
    CHECK_OK(dd_store_queue_push(t.q, BYTES("queue"), BYTES("item"), &t.wait, check_err()));
    CHECK_OK(dd_store_queue_pop(t.hash, BYTES("p/q/queue"), false, &value, &t.wait, check_err()));
    CHECK_TEXT(dd_blob_view(&value), "item");
    CHECK_OK(dd_store_barrier(t.q, BYTES("b"), 1, &t.wait, check_err()));
    expect_in_hash(&t, BYTES("p/q/b"), BYTES("1"));
    dd_blob_fini(&value);
    tower_fini(&t);
}

TEST(list_keys_of_a_prefix_store_strips_the_prefix)
{
    tower t;
    REQUIRE(tower_init(&t));
    static const char *const keys[] = {"p/q/a", "p/q/", "p/q", "p/qq/a", "x", "", "p/"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        CHECK_OK(dd_store_set(t.hash, dd_bytes_of_string(keys[i]), BYTES(""), &t.wait, check_err()));
    }
    dd_blob_list list = {0};
    REQUIRE_OK(dd_store_list_keys(t.q, &list, &t.wait, check_err()));
    CHECK_INT(list.count, 2);
    if (list.count == 2) {
        size_t a = list.items[0].len == 1 ? 0 : 1;
        CHECK_TEXT(dd_blob_view(&list.items[a]), "a");
        CHECK_TEXT(dd_blob_view(&list.items[1 - a]), "");
    }
    dd_blob_list_fini(&list);
    int64_t count = 0;
    CHECK_OK(dd_store_num_keys(t.q, &count, &t.wait, check_err()));
    CHECK_INT(count, 7);
    tower_fini(&t);
}

TEST(a_prefix_store_has_the_timeout_and_the_errors_of_its_underlying_store)
{
    tower t;
    REQUIRE(tower_init(&t));
    dd_blob value = {0};
    t.q->ops->set_timeout_ns(t.q, 77);
    CHECK_INT(t.hash->ops->get_timeout_ns(t.hash), 77);
    t.hash->ops->set_timeout_ns(t.hash, 78);
    CHECK_INT(t.q->ops->get_timeout_ns(t.q), 78);
    CHECK(t.q->ops->has_extended_api(t.q));
    CHECK(dd_prefix_store_underlying(t.q) == t.p);
    CHECK(dd_prefix_store_underlying(t.p) == t.hash);
    CHECK(strcmp(t.q->ops->kind, "PrefixStore") == 0);
    dd_wait wait = dd_wait_after(0);
    CHECK_STATUS(dd_store_get(t.q, BYTES("k"), &value, &wait, check_err()), DD_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "keys: p/q/k (1 of 1 missing): get on HashStore");
    tower_fini(&t);
}

static bool
extended_api_no(dd_store *store)
{
    (void)store;
    return false;
}

TEST(a_prefix_store_has_the_extended_api_only_if_its_store_has_it)
{
    tower t;
    REQUIRE(tower_init(&t));
    dd_store_ops ops = *t.hash->ops;
    ops.has_extended_api = extended_api_no;
    t.hash->ops = &ops;
    CHECK(!t.q->ops->has_extended_api(t.q));
    tower_fini(&t);
}

TEST(a_prefix_store_keeps_its_store_open_and_its_clones_have_the_prefix)
{
    tower t;
    REQUIRE(tower_init(&t));
    dd_store *clone = NULL;
    REQUIRE_OK(t.q->ops->clone(t.q, &clone, &t.wait, check_err()));
    CHECK(dd_prefix_store_underlying(clone) != t.p);
    CHECK_OK(dd_store_set(clone, BYTES("k"), BYTES("v"), &t.wait, check_err()));
    expect_in_hash(&t, BYTES("p/q/k"), BYTES("v"));
    tower_fini(&t);
    dd_blob value = {0};
    CHECK_OK(dd_store_get(clone, BYTES("k"), &value, &t.wait, check_err()));
    dd_blob_fini(&value);
    dd_store_release(clone);
}

/* Open views on `store` until one is rejected; return their number. */
static int
pile_views(dd_store **store)
{
    for (int depth = 1;; depth++) {
        dd_store *view = NULL;
        dd_status status = dd_prefix_store_open(&view, BYTES("p"), *store, check_err());
        if (status != DD_OK || depth == 30000) {
            dd_store_release(view);
            CHECK_INT(status, DD_INVALID_ARGUMENT);
            CHECK_CONTAINS(check_message(), "nested too deeply: got 501 levels, expected at most 500");
            return depth - 1;
        }
        dd_store_release(*store);
        *store = view;
    }
}

TEST(the_nesting_of_prefix_stores_is_limited)
{
    dd_store *store = NULL;
    REQUIRE_OK(dd_hash_store_open(&store, DD_NS_PER_S, check_err()));
    CHECK_INT(pile_views(&store), DD_PREFIX_STORE_MAX_DEPTH);
    dd_wait wait = dd_wait_after(DD_NS_PER_S);
    CHECK_OK(dd_store_set(store, BYTES("k"), BYTES("v"), &wait, check_err()));
    dd_store *clone = NULL;
    CHECK_OK(store->ops->clone(store, &clone, &wait, check_err()));
    dd_blob value = {0};
    CHECK_OK(dd_store_get(clone, BYTES("k"), &value, &wait, check_err()));
    CHECK_BYTES(dd_blob_view(&value), BYTES("v"));
    dd_blob_fini(&value);
    dd_store_release(clone);
    dd_store_release(store);
}

TEST(a_prefix_store_created_in_a_forked_child_is_refused)
{
    tower t;
    int status = -1;
    REQUIRE(tower_init(&t));
    pid_t pid = fork();
    if (pid == 0) {
        dd_store *view = NULL;
        CHECK_OK(dd_prefix_store_open(&view, BYTES("late"), t.hash, check_err()));
        CHECK_STATUS(dd_store_check_fork(view, check_err()), DD_FORKED);
        dd_store_release(view);
        _exit(check_failures() > 0 ? 1 : 0);
    }
    REQUIRE(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK_INT(status, 0);
    tower_fini(&t);
}

TEST(opening_a_prefix_store_returns_an_error_when_allocations_fail)
{
    dd_store *hash = NULL;
    dd_store *view = NULL;
    REQUIRE_OK(dd_hash_store_open(&hash, DD_NS_PER_S, check_err()));
    (void)dd_mem_fail_after(0);
    CHECK_STATUS(dd_prefix_store_open(&view, BYTES("p"), hash, check_err()), DD_OUT_OF_MEMORY);
    (void)dd_mem_fail_after(-1);
    CHECK(view == NULL);
    dd_store_release(hash);
}
