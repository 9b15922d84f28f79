#include "check.h"
#include "core/mem.h"
#include "core/thread.h"
#include "faults/faults.h"
#include "store/store.h"
#include "store_calls.h"
#include "store_suite.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static dd_store *
open_hash(void **fixture)
{
    (void)fixture;
    dd_store *store = NULL;
    CHECK_OK(dd_hash_store_open(&store, DD_STORE_DEFAULT_TIMEOUT_NS, check_err()));
    return store;
}

STORE_SUITE(hash, .open = open_hash, .has_queues = true, .is_in_memory = true, .has_number_errors = true)

/* The same suite with every composite operation built from others. */
static const dd_store_ops *hash_ops;

static dd_status
run_generic(dd_store *store, const dd_store_request *request, dd_store_result *result, const dd_wait *wait,
            dd_error *err)
{
    dd_store_op op = request->op;
    bool is_made = op == DD_STORE_APPEND || op == DD_STORE_MULTI_GET || op == DD_STORE_MULTI_SET ||
                   op == DD_STORE_TRY_GET || op == DD_STORE_BARRIER;
    return is_made ? dd_store_run_generic(store, request, result, wait, err)
                   : hash_ops->run(store, request, result, wait, err);
}

static dd_store *
open_generic(void **fixture)
{
    dd_store *store = open_hash(fixture);
    dd_store_ops *ops = malloc(sizeof *ops);
    if (store == NULL || !CHECK(ops != NULL)) {
        return NULL;
    }
    hash_ops = store->ops;
    *ops = *store->ops;
    ops->run = run_generic;
    store->ops = ops;
    *fixture = ops;
    return store;
}

STORE_SUITE(generic, .open = open_generic, .close = free, .has_queues = true, .is_in_memory = true,
            .has_number_errors = true)

TEST(opening_a_hash_store_returns_an_error_when_allocations_fail)
{
    dd_status status = DD_OUT_OF_MEMORY;
    for (long nth = 0; nth < 5 && status == DD_OUT_OF_MEMORY; nth++) {
        dd_store *store = NULL;
        (void)dd_mem_fail_after(nth);
        status = dd_hash_store_open(&store, DD_NS_PER_S, check_err());
        (void)dd_mem_fail_after(-1);
        CHECK((store != NULL) == (status == DD_OK));
        dd_store_release(store);
    }
    CHECK_INT(status, DD_OK);
}

TEST(a_clone_has_the_timeout_of_its_store_and_outlives_it)
{
    dd_store *store = open_hash(NULL);
    dd_store *clone = NULL;
    dd_wait wait = dd_wait_after(DD_NS_PER_S);
    REQUIRE(store != NULL);
    CHECK_INT(store->ops->get_timeout_ns(store), DD_STORE_DEFAULT_TIMEOUT_NS);
    REQUIRE_OK(store->ops->clone(store, &clone, &wait, check_err()));
    CHECK_INT(clone->ops->get_timeout_ns(clone), DD_STORE_DEFAULT_TIMEOUT_NS);
    CHECK_OK(dd_store_set(store, BYTES("k"), BYTES("v"), &wait, check_err()));
    dd_store_release(store);
    dd_blob value = {0};
    CHECK_OK(dd_store_get(clone, BYTES("k"), &value, &wait, check_err()));
    CHECK_TEXT(dd_blob_view(&value), "v");
    dd_blob_fini(&value);
    dd_store_release(clone);
}

TEST(timeouts_name_the_call_and_the_missing_keys)
{
    dd_store *store = open_hash(NULL);
    dd_bytes keys[12];
    char names[12][16];
    dd_blob value = {0};
    REQUIRE(store != NULL);
    for (int i = 0; i < 12; i++) {
        (void)snprintf(names[i], sizeof names[i], "key%02d", i);
        keys[i] = dd_bytes_of_string(names[i]);
    }
    dd_wait wait = dd_wait_after(0);
    CHECK_STATUS(dd_store_wait(store, keys, 12, &wait, check_err()), DD_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "Wait timeout after 0ms, keys: key00, key01, ");
    CHECK_CONTAINS(check_message(), "key07, ... (12 of 12 missing): wait on HashStore");
    CHECK_STATUS(dd_store_wait(store, keys, 8, &wait, check_err()), DD_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "key07 (8 of 8 missing)");
    CHECK_STATUS(dd_store_queue_pop(store, keys[0], true, &value, &wait, check_err()), DD_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "keys: key00 (1 of 1 missing): queue_pop on HashStore");
    CHECK_STATUS(dd_store_queue_pop(store, keys[0], false, &value, &wait, check_err()), DD_QUEUE_EMPTY);
    CHECK_CONTAINS(check_message(), "queue \"key00\" is empty");
    CHECK_STATUS(dd_store_barrier(store, keys[0], 3, &wait, check_err()), DD_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "on HashStore: 1 of 3 have joined, key: key00");
    CHECK_OK(dd_store_queue_push(store, keys[1], BYTES("i"), &wait, check_err()));
    CHECK_STATUS(dd_store_get(store, keys[1], &value, &wait, check_err()), DD_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "keys: key01 (1 of 1 missing): get on HashStore");
    CHECK_STATUS(dd_store_multi_get(store, keys, 2, NULL, &wait, check_err()), DD_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "keys: key01 (1 of 2 missing): multi_get on HashStore");
    dd_store_release(store);
}

TEST(long_keys_are_truncated_in_error_messages)
{
    char text[8][200];
    dd_bytes missing[8];
    dd_wait wait = dd_wait_after(0);
    for (int i = 0; i < 8; i++) {
        memset(text[i], 'a' + i, sizeof text[i]);
        missing[i] = dd_bytes_of(text[i], sizeof text[i]);
    }
    dd_store_missing many = {.opening = "wait timeout",
                             .root = "/",
                             .label = "get",
                             .where = "there",
                             .keys = missing,
                             .nkeys = 100,
                             .nasked = 200};
    CHECK_STATUS(dd_store_error_missing(&many, &wait, check_err()), DD_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "hhh..., ... (100 of 200 missing): get on there");
}

static void
release_in_child_with_exit(dd_store *store)
{
    alarm(5 * (unsigned)check_slow());
    dd_store_release(store);
    exit(check_failures() > 0 ? 1 : 0);
}

TEST(a_forked_child_can_release_the_store)
{
    int status = -1;
    dd_store *store = open_hash(NULL);
    dd_wait wait = dd_wait_after(DD_NS_PER_S);
    REQUIRE(store != NULL);
    CHECK_OK(dd_store_set(store, BYTES("k"), BYTES("v"), &wait, check_err()));
    CHECK_OK(dd_store_queue_push(store, BYTES("q"), BYTES("v"), &wait, check_err()));
    pid_t pid = fork();
    if (pid == 0) {
        release_in_child_with_exit(store);
    }
    REQUIRE(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK_INT(status, 0);
    dd_store_release(store);
}

/* Keep the mutex busy while the test forks. */
typedef struct hammer {
    pthread_t thread;
    dd_store *store;
    atomic_bool is_stopped;
} hammer;

static void *
hammer_main(void *arg)
{
    hammer *self = arg;
    dd_wait wait = dd_wait_after(DD_NS_PER_S);
    for (int i = 0; !atomic_load(&self->is_stopped); i++) {
        char key[16];
        (void)snprintf(key, sizeof key, "%d", i % 1000);
        CHECK_OK(dd_store_set(self->store, dd_bytes_of_string(key), BYTES("v"), &wait, check_err()));
    }
    return NULL;
}

TEST(a_child_forked_during_a_change_can_release_the_store)
{
    hammer busy = {.store = open_hash(NULL)};
    REQUIRE(busy.store != NULL);
    REQUIRE(pthread_create(&busy.thread, NULL, hammer_main, &busy) == 0);
    for (int i = 0; i < 20; i++) {
        int status = -1;
        pid_t pid = fork();
        if (pid == 0) {
            alarm(5 * (unsigned)check_slow());
            dd_store_release(busy.store);
            _exit(0);
        }
        CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
        CHECK_INT(status, 0);
    }
    atomic_store(&busy.is_stopped, true);
    pthread_join(busy.thread, NULL);
    dd_store_release(busy.store);
}

/* A pop that is interrupted just when its item arrives: the callback itself pushes the item. */
typedef struct late_item {
    dd_store *store;
    int npushed;
} late_item;

static bool
push_and_interrupt(void *ctx)
{
    late_item *late = ctx;
    dd_wait wait = dd_wait_after(DD_NS_PER_S);
    CHECK_OK(dd_store_queue_push(late->store, BYTES("q"), BYTES("1"), &wait, check_err()));
    CHECK_OK(dd_store_queue_push(late->store, BYTES("q"), BYTES("2"), &wait, check_err()));
    late->npushed++;
    return true;
}

TEST(the_item_of_an_interrupted_pop_returns_to_the_front_of_the_queue)
{
    late_item late = {.store = open_hash(NULL)};
    REQUIRE(late.store != NULL);
    dd_store *store = late.store;
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S);
    wait.is_interrupted = push_and_interrupt;
    wait.ctx = &late;
    dd_blob value = {0};
    CHECK_STATUS(dd_store_queue_pop(store, BYTES("q"), true, &value, &wait, check_err()), DD_INTERRUPTED);
    CHECK_INT(late.npushed, 1);
    CHECK(value.data == NULL);
    for (const char *expected = "12"; *expected != '\0'; expected++) {
        CHECK_OK(dd_store_queue_pop(store, BYTES("q"), false, &value, &wait, check_err()));
        CHECK_BYTES(dd_blob_view(&value), dd_bytes_of(expected, 1));
    }
    dd_blob_fini(&value);
    dd_store_release(store);
}

/* A key that exists only briefly: a get that waits for it must return its value. */
static bool
set_and_delete(void *ctx)
{
    late_item *late = ctx;
    bool is_deleted = false;
    dd_wait wait = dd_wait_after(DD_NS_PER_S);
    CHECK_OK(dd_store_set(late->store, BYTES("k"), BYTES("1"), &wait, check_err()));
    CHECK_OK(dd_store_delete_key(late->store, BYTES("k"), &is_deleted, &wait, check_err()));
    CHECK(is_deleted);
    late->npushed++;
    return false;
}

TEST(a_waiting_get_returns_a_value_that_is_set_and_deleted_immediately)
{
    late_item late = {.store = open_hash(NULL)};
    REQUIRE(late.store != NULL);
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S);
    wait.is_interrupted = set_and_delete;
    wait.ctx = &late;
    dd_blob value = {0};
    CHECK_OK(dd_store_get(late.store, BYTES("k"), &value, &wait, check_err()));
    CHECK_TEXT(dd_blob_view(&value), "1");
    CHECK_INT(late.npushed, 1);
    dd_blob_fini(&value);
    dd_store_release(late.store);
}

/* The push fails for lack of memory; the waiting pop continues, and needs no memory. */
static bool
push_without_memory(void *ctx)
{
    late_item *late = ctx;
    dd_wait wait = dd_wait_after(DD_NS_PER_S);
    bool is_first = late->npushed++ == 0;
    (void)dd_mem_fail_after(is_first ? 0 : 1);
    dd_status status = dd_store_queue_push(late->store, BYTES("q"), BYTES("1"), &wait, check_err());
    (void)dd_mem_fail_after(-1);
    CHECK_INT(status, is_first ? DD_OUT_OF_MEMORY : DD_OK);
    return false;
}

TEST(a_waiting_pop_succeeds_after_a_push_whose_allocation_failed)
{
    late_item late = {.store = open_hash(NULL)};
    REQUIRE(late.store != NULL);
    dd_store *store = late.store;
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S);
    wait.is_interrupted = push_without_memory;
    wait.ctx = &late;
    dd_blob value = {0};
    int64_t count = -1;
    CHECK_OK(dd_store_queue_pop(store, BYTES("q"), true, &value, &wait, check_err()));
    CHECK_TEXT(dd_blob_view(&value), "1");
    CHECK_INT(late.npushed, 2);
    wait.is_interrupted = NULL;
    CHECK_OK(dd_store_queue_len(store, BYTES("q"), &count, &wait, check_err()));
    CHECK_INT(count, 0);
    dd_blob_fini(&value);
    dd_store_release(store);
}

/* Generic append must fail with a timeout if other writers are always faster. */
static dd_status
compare_set_loses(dd_store *store, const dd_store_request *request, dd_store_result *result,
                  const dd_wait *wait, dd_error *err)
{
    return request->op == DD_STORE_COMPARE_SET ? dd_blob_assign(&result->value, BYTES("someone else's"), err)
                                               : hash_ops->run(store, request, result, wait, err);
}

TEST(an_append_by_repeated_compare_set_ends_at_its_deadline)
{
    dd_store *store = open_hash(NULL);
    REQUIRE(store != NULL);
    dd_store_ops ops = *store->ops;
    hash_ops = store->ops;
    ops.run = compare_set_loses;
    store->ops = &ops;
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_MS);
    dd_bytes key = BYTES("k");
    dd_bytes value = BYTES("v");
    dd_store_request request = {.op = DD_STORE_APPEND, .keys = &key, .nkeys = 1, .values = &value};
    dd_store_result result = {0};
    CHECK_STATUS(dd_store_run_generic(store, &request, &result, &wait, check_err()), DD_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "append to key \"k\" timed out after 0.");
    dd_store_release(store);
}
