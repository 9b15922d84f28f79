#include "check.h"
#include "core/mem.h"
#include "faults/faults.h"
#include "store/keyspace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- requests as calls */

/* The last value or item returned, valid until the next one of the same kind. */
static dd_blob returned_value;

static dd_status
answer(dd_keyspace *ks, dd_store_op op, dd_bytes key, const dd_bytes *values, int64_t number,
       dd_store_result *result)
{
    bool is_answered = false;
    dd_store_request request = {.op = op, .keys = &key, .nkeys = 1, .values = values, .number = number};
    return dd_keyspace_answer(ks, &request, result, &is_answered, check_err());
}

static dd_status
ks_set(dd_keyspace *ks, dd_bytes key, dd_bytes value)
{
    return answer(ks, DD_STORE_SET, key, &value, 0, &(dd_store_result){0});
}

static dd_status
ks_append(dd_keyspace *ks, dd_bytes key, dd_bytes value)
{
    return answer(ks, DD_STORE_APPEND, key, &value, 0, &(dd_store_result){0});
}

static dd_status
ks_push(dd_keyspace *ks, dd_bytes key, dd_bytes value)
{
    return answer(ks, DD_STORE_QUEUE_PUSH, key, &value, 0, &(dd_store_result){0});
}

static dd_status
ks_add(dd_keyspace *ks, dd_bytes key, int64_t amount, int64_t *sum)
{
    dd_store_result result = {0};
    dd_status status = answer(ks, DD_STORE_ADD, key, NULL, amount, &result);
    *sum = status == DD_OK ? result.number : *sum;
    return status;
}

static dd_status
ks_arrive(dd_keyspace *ks, dd_bytes key, int64_t world_size, bool *is_complete)
{
    dd_store_result result = {0};
    dd_status status = answer(ks, DD_STORE_BARRIER, key, NULL, world_size, &result);
    *is_complete = status == DD_OK ? result.flag : *is_complete;
    return status;
}

static dd_status
ks_compare_set(dd_keyspace *ks, dd_bytes key, dd_bytes expected, dd_bytes desired, dd_bytes *value)
{
    dd_bytes values[] = {expected, desired};
    dd_store_result result = {0};
    dd_status status = answer(ks, DD_STORE_COMPARE_SET, key, values, 0, &result);
    dd_blob_fini(&returned_value);
    returned_value = result.value;
    *value = dd_blob_view(&returned_value);
    return status;
}

static dd_store_result
ks_ask(dd_keyspace *ks, dd_store_op op, dd_bytes key)
{
    dd_store_result result = {0};
    CHECK_OK(answer(ks, op, key, NULL, 0, &result));
    return result;
}

static bool
ks_delete(dd_keyspace *ks, dd_bytes key)
{
    return ks_ask(ks, DD_STORE_DELETE_KEY, key).flag;
}

static bool
ks_has(dd_keyspace *ks, dd_bytes key)
{
    return ks_ask(ks, DD_STORE_CHECK, key).flag;
}

static int64_t
ks_queue_len(dd_keyspace *ks, dd_bytes key)
{
    return ks_ask(ks, DD_STORE_QUEUE_LEN, key).number;
}

static bool
ks_pop(dd_keyspace *ks, dd_bytes key, dd_blob *item)
{
    dd_store_result result = {0};
    CHECK_OK(answer(ks, DD_STORE_QUEUE_POP, key, NULL, 1, &result));
    if (result.flag) {
        *item = result.value;
    }
    return result.flag;
}

static const dd_store_op waiting_ops[] = {DD_STORE_WAIT, DD_STORE_GET, DD_STORE_QUEUE_POP, DD_STORE_BARRIER};

/* A waiter that records how it was notified. */
typedef struct probe {
    dd_key_waiter waiter;
    int nnotified;
    int order; /* position of its notification among all probes of a test */
    int *clock;
    char value[64];
    size_t value_len;
} probe;

static void
on_probe_ready(dd_key_waiter *waiter, dd_store_result *result, const dd_error *error)
{
    probe *self = DD_CONTAINER_OF(waiter, probe, waiter);
    const dd_blob_list *list = &result->list;
    dd_bytes value = dd_blob_view(list->count > 0 ? &list->items[list->count - 1] : &result->value);
    CHECK(error == NULL && result->flag);
    self->nnotified++;
    self->order = self->clock != NULL ? ++*self->clock : 0;
    self->value_len = value.len;
    if (value.len > 0 && value.len <= sizeof self->value) {
        memcpy(self->value, value.data, value.len);
    }
    CHECK(waiter->links == NULL && waiter->nlinks == 0);
}

static dd_status
park(dd_keyspace *ks, probe *p, dd_store_op op, size_t nkeys, const char *const *keys, bool *is_parked)
{
    dd_bytes views[8];
    for (size_t i = 0; i < nkeys; i++) {
        views[i] = dd_bytes_of_string(keys[i]);
    }
    p->waiter.on_ready = on_probe_ready;
    dd_store_request request = {.op = op, .keys = views, .nkeys = nkeys};
    dd_status status = dd_keyspace_park(ks, &p->waiter, &request, check_err());
    *is_parked = status == DD_OK && p->waiter.npending > 0;
    if (!*is_parked) {
        dd_keyspace_unpark(ks, &p->waiter);
    }
    return status;
}

static bool
park_on(dd_keyspace *ks, probe *p, dd_store_op op, const char *key)
{
    bool is_parked = false;
    CHECK_OK(park(ks, p, op, 1, &key, &is_parked));
    return is_parked;
}

#define SET(ks, key, value) CHECK_OK(ks_set((ks), BYTES(key), BYTES(value)))
#define PUSH(ks, key, value) CHECK_OK(ks_push((ks), BYTES(key), BYTES(value)))

static void
expect_value(const dd_keyspace *ks, const char *key, const char *expected)
{
    dd_bytes value = {0};
    CHECK_INT(dd_keyspace_get(ks, dd_bytes_of_string(key), &value), expected != NULL);
    if (expected != NULL) {
        CHECK_BYTES(value, dd_bytes_of_string(expected));
    }
}

TEST(values_are_set_read_added_and_deleted)
{
    dd_keyspace ks;
    dd_bytes value;
    int64_t sum = 0;
    dd_keyspace_init(&ks);
    CHECK(!dd_keyspace_get(&ks, BYTES("a"), &value));
    SET(&ks, "a", "1");
    SET(&ks, "", "");
    SET(&ks, "a\0b", "x\0y");
    CHECK(dd_keyspace_get(&ks, BYTES("a\0b"), &value));
    CHECK_TEXT(value, "x\0y");
    expect_value(&ks, "", "");
    CHECK_INT(ks.nvalues, 3);
    SET(&ks, "a", "a longer value");
    expect_value(&ks, "a", "a longer value");
    CHECK_INT(ks.nvalues, 3);
    CHECK_OK(ks_add(&ks, BYTES("n"), -5, &sum));
    CHECK_INT(sum, -5);
    CHECK_OK(ks_append(&ks, BYTES("n"), BYTES("0")));
    expect_value(&ks, "n", "-50");
    CHECK_STATUS(ks_add(&ks, BYTES("a"), 1, &sum), DD_STORE);
    CHECK_CONTAINS(check_message(), "value of key \"a\" is not a number: \"a longer value\"");
    CHECK(ks_delete(&ks, BYTES("a")));
    CHECK(!ks_delete(&ks, BYTES("a")));
    CHECK_INT(ks.nvalues, 3);
    CHECK_INT(ks.entries.count, 3);
    dd_keyspace_fini(&ks);
}

TEST(memory_of_a_large_value_is_freed)
{
    dd_keyspace ks;
    dd_bytes value;
    uint8_t *large = calloc(1, 1 << 20);
    REQUIRE(large != NULL);
    dd_keyspace_init(&ks);
    CHECK_OK(ks_set(&ks, BYTES("k"), dd_bytes_of(large, 1 << 20)));
    SET(&ks, "k", "small");
    CHECK(dd_keyspace_get(&ks, BYTES("k"), &value));
    CHECK_TEXT(value, "small");
    dd_keyspace_fini(&ks);
    free(large);
}

TEST(list_keys_skips_keys_without_values)
{
    dd_keyspace ks;
    probe p = {0};
    dd_keyspace_init(&ks);
    for (int i = 0; i < 50; i++) {
        char key[16];
        (void)snprintf(key, sizeof key, "%d", i);
        if (i % 2 == 0) {
            CHECK_OK(ks_set(&ks, dd_bytes_of_string(key), BYTES("v")));
        } else {
            CHECK_OK(ks_push(&ks, dd_bytes_of_string(key), BYTES("v")));
        }
    }
    CHECK(park_on(&ks, &p, DD_STORE_WAIT, "waited for"));
    bool seen[50] = {false};
    dd_store_result listed = ks_ask(&ks, DD_STORE_LIST_KEYS, BYTES(""));
    CHECK_INT(listed.list.count, 25);
    for (size_t n = 0; n < listed.list.count; n++) {
        char text[16] = "";
        memcpy(text, listed.list.items[n].data, listed.list.items[n].len);
        int i = atoi(text);
        CHECK(i % 2 == 0 && !seen[i]);
        seen[i] = true;
    }
    dd_store_result_fini(&listed);
    dd_keyspace_unpark(&ks, &p.waiter);
    dd_keyspace_fini(&ks);
}

TEST(a_key_without_a_value_or_a_waiter_uses_no_memory)
{
    dd_keyspace ks;
    probe p = {0};
    dd_blob item = {0};
    bool is_parked = false;
    const char *const keys[] = {"a", "b", "a"};
    dd_keyspace_init(&ks);
    CHECK_OK(park(&ks, &p, DD_STORE_WAIT, 3, keys, &is_parked));
    CHECK(is_parked);
    CHECK_INT(ks.entries.count, 2);
    CHECK(!ks_has(&ks, BYTES("a")));
    dd_keyspace_unpark(&ks, &p.waiter);
    CHECK_INT(ks.entries.count, 0);
    dd_keyspace_unpark(&ks, &p.waiter);
    for (int kind = 0; kind < 4; kind++) {
        CHECK(park_on(&ks, &p, waiting_ops[kind], "k"));
        dd_keyspace_unpark(&ks, &p.waiter);
        CHECK_INT(ks.entries.count, 0);
    }
    PUSH(&ks, "q", "1");
    CHECK(ks_pop(&ks, BYTES("q"), &item));
    dd_blob_fini(&item);
    CHECK_INT(ks.entries.count, 0);
    CHECK(!ks_pop(&ks, BYTES("q"), &item));
    CHECK(park_on(&ks, &p, DD_STORE_QUEUE_POP, "q"));
    PUSH(&ks, "q", "1");
    CHECK_INT(p.nnotified, 1);
    CHECK_INT(ks.entries.count, 0);
    SET(&ks, "k", "v");
    CHECK(park_on(&ks, &p, DD_STORE_QUEUE_POP, "k"));
    CHECK(ks_delete(&ks, BYTES("k")));
    CHECK_INT(ks.entries.count, 1);
    dd_keyspace_unpark(&ks, &p.waiter);
    CHECK_INT(ks.entries.count, 0);
    dd_keyspace_fini(&ks);
}

TEST(a_request_does_not_wait_if_all_of_its_keys_exist)
{
    dd_keyspace ks;
    probe p = {0};
    bool is_parked = true;
    const char *const keys[] = {"value", "queue"};
    dd_keyspace_init(&ks);
    SET(&ks, "value", "");
    PUSH(&ks, "queue", "");
    CHECK_OK(park(&ks, &p, DD_STORE_WAIT, 0, NULL, &is_parked));
    CHECK(!is_parked);
    CHECK_OK(park(&ks, &p, DD_STORE_WAIT, 2, keys, &is_parked));
    CHECK(!is_parked);
    CHECK(!park_on(&ks, &p, DD_STORE_GET, "value"));
    CHECK(!park_on(&ks, &p, DD_STORE_QUEUE_POP, "queue"));
    CHECK_INT(p.nnotified, 0);
    CHECK(park_on(&ks, &p, DD_STORE_GET, "queue"));
    dd_keyspace_unpark(&ks, &p.waiter);
    CHECK(park_on(&ks, &p, DD_STORE_QUEUE_POP, "value"));
    dd_keyspace_unpark(&ks, &p.waiter);
    CHECK(park_on(&ks, &p, DD_STORE_BARRIER, "value"));
    dd_keyspace_unpark(&ks, &p.waiter);
    CHECK_INT(ks.entries.count, 2);
    dd_keyspace_fini(&ks);
}

typedef dd_status (*mutation)(dd_keyspace *ks, dd_bytes key);

static dd_status
by_set(dd_keyspace *ks, dd_bytes key)
{
    return ks_set(ks, key, BYTES("7"));
}

static dd_status
by_append(dd_keyspace *ks, dd_bytes key)
{
    return ks_append(ks, key, BYTES("7"));
}

static dd_status
by_add(dd_keyspace *ks, dd_bytes key)
{
    int64_t sum;
    return ks_add(ks, key, 7, &sum);
}

static dd_status
by_compare_set(dd_keyspace *ks, dd_bytes key)
{
    dd_bytes value;
    return ks_compare_set(ks, key, BYTES(""), BYTES("7"), &value);
}

TEST(every_mutation_that_stores_a_value_notifies_waiters)
{
    static const mutation mutations[] = {by_set, by_append, by_add, by_compare_set};
    for (size_t i = 0; i < sizeof mutations / sizeof mutations[0]; i++) {
        dd_keyspace ks;
        int clock = 0;
        probe keys[2] = {{.clock = &clock}, {.clock = &clock}};
        probe value = {.clock = &clock};
        probe pop = {0};
        probe barrier = {0};
        dd_keyspace_init(&ks);
        CHECK(park_on(&ks, &keys[0], DD_STORE_WAIT, "k"));
        CHECK(park_on(&ks, &keys[1], DD_STORE_WAIT, "k"));
        CHECK(park_on(&ks, &value, DD_STORE_GET, "k"));
        CHECK(park_on(&ks, &pop, DD_STORE_QUEUE_POP, "k"));
        CHECK(park_on(&ks, &barrier, DD_STORE_BARRIER, "k"));
        CHECK_OK(mutations[i](&ks, BYTES("k")));
        CHECK_OK(mutations[i](&ks, BYTES("k")));
        CHECK(keys[0].nnotified == 1 && keys[1].nnotified == 1 && value.nnotified == 1);
        CHECK(keys[0].order < keys[1].order);
        CHECK_BYTES(dd_bytes_of(value.value, value.value_len), BYTES("7"));
        CHECK_INT(keys[0].value_len, 0);
        CHECK(pop.nnotified == 0 && barrier.nnotified == 0);
        dd_keyspace_unpark(&ks, &pop.waiter);
        dd_keyspace_unpark(&ks, &barrier.waiter);
        CHECK_INT(ks.entries.count, 1);
        dd_keyspace_fini(&ks);
    }
}

TEST(compare_set_that_stores_nothing_notifies_no_waiter)
{
    dd_keyspace ks;
    probe p = {0};
    dd_bytes value;
    dd_keyspace_init(&ks);
    CHECK(park_on(&ks, &p, DD_STORE_WAIT, "k"));
    CHECK_OK(ks_compare_set(&ks, BYTES("k"), BYTES("x"), BYTES("y"), &value));
    CHECK_TEXT(value, "x");
    CHECK_INT(p.nnotified, 0);
    dd_keyspace_unpark(&ks, &p.waiter);
    CHECK_INT(ks.entries.count, 0);
    dd_keyspace_fini(&ks);
}

TEST(a_pushed_item_goes_to_the_pop_that_has_waited_longest)
{
    dd_keyspace ks;
    probe pops[3] = {0};
    probe keys[2] = {0};
    dd_keyspace_init(&ks);
    CHECK(park_on(&ks, &keys[0], DD_STORE_WAIT, "q"));
    for (int i = 0; i < 3; i++) {
        CHECK(park_on(&ks, &pops[i], DD_STORE_QUEUE_POP, "q"));
    }
    CHECK(park_on(&ks, &keys[1], DD_STORE_WAIT, "q"));
    PUSH(&ks, "q", "first");
    CHECK(pops[0].nnotified == 1 && pops[1].nnotified == 0 && pops[2].nnotified == 0);
    CHECK_BYTES(dd_bytes_of(pops[0].value, pops[0].value_len), BYTES("first"));
    CHECK(keys[0].nnotified == 0 && keys[1].nnotified == 0);
    CHECK_INT(ks_queue_len(&ks, BYTES("q")), 0);
    CHECK(!ks_has(&ks, BYTES("q")));
    dd_keyspace_unpark(&ks, &pops[1].waiter);
    PUSH(&ks, "q", "second");
    CHECK(pops[1].nnotified == 0 && pops[2].nnotified == 1);
    PUSH(&ks, "q", "third");
    CHECK(keys[0].nnotified == 1 && keys[1].nnotified == 1);
    CHECK_INT(ks_queue_len(&ks, BYTES("q")), 1);
    dd_keyspace_fini(&ks);
}

TEST(undoing_a_pop_returns_its_item_to_the_front_of_the_queue)
{
    dd_keyspace ks;
    dd_blob item = {0};
    probe pop = {0};
    probe keys = {0};
    dd_keyspace_init(&ks);
    PUSH(&ks, "q", "1");
    PUSH(&ks, "q", "2");
    CHECK(ks_pop(&ks, BYTES("q"), &item));
    for (int nth = 0; nth < 1; nth++) {
        (void)dd_mem_fail_after(nth);
        CHECK_STATUS(dd_keyspace_queue_unpop(&ks, BYTES("q"), &item, check_err()), DD_OUT_OF_MEMORY);
        (void)dd_mem_fail_after(-1);
        CHECK_TEXT(dd_blob_view(&item), "1");
    }
    CHECK_OK(dd_keyspace_queue_unpop(&ks, BYTES("q"), &item, check_err()));
    CHECK(item.data == NULL);
    CHECK_INT(ks_queue_len(&ks, BYTES("q")), 2);
    for (const char *expected = "12"; *expected != '\0'; expected++) {
        CHECK(ks_pop(&ks, BYTES("q"), &item));
        CHECK_BYTES(dd_blob_view(&item), dd_bytes_of(expected, 1));
        if (*expected == '1') {
            dd_blob_fini(&item);
        }
    }
    CHECK(park_on(&ks, &keys, DD_STORE_WAIT, "q"));
    CHECK(park_on(&ks, &pop, DD_STORE_QUEUE_POP, "q"));
    CHECK_OK(dd_keyspace_queue_unpop(&ks, BYTES("q"), &item, check_err()));
    CHECK(pop.nnotified == 1 && keys.nnotified == 0);
    CHECK_BYTES(dd_bytes_of(pop.value, pop.value_len), BYTES("2"));
    CHECK(item.data == NULL);
    CHECK_OK(dd_keyspace_queue_unpop(&ks, BYTES("q"), &item, check_err()));
    CHECK_INT(keys.nnotified, 1);
    dd_keyspace_fini(&ks);
}

/* All orders in which three keys can be set, with another key that exists from the start. */
TEST(a_waiter_for_several_keys_is_notified_once_in_any_order_of_sets)
{
    static const char *const keys[] = {"a", "b", "c", "there", "a"};
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int i = 0; i < 6; i++) {
        dd_keyspace ks;
        probe p = {0};
        bool is_parked = false;
        dd_keyspace_init(&ks);
        SET(&ks, "there", "");
        CHECK_OK(park(&ks, &p, DD_STORE_WAIT, 5, keys, &is_parked));
        CHECK(is_parked);
        for (int j = 0; j < 3; j++) {
            CHECK_INT(p.nnotified, 0);
            CHECK_OK(by_set(&ks, dd_bytes_of_string(keys[orders[i][j]])));
            SET(&ks, "there", "again");
        }
        CHECK_INT(p.nnotified, 1);
        CHECK_OK(by_set(&ks, BYTES("a")));
        CHECK_INT(p.nnotified, 1);
        CHECK_INT(ks.entries.count, 4);
        dd_keyspace_fini(&ks);
    }
}

TEST(a_key_deleted_during_a_wait_counts_as_missing_again)
{
    dd_keyspace ks;
    probe keys = {0};
    probe values = {0};
    dd_blob item = {0};
    bool is_parked = false;
    const char *const names[] = {"b", "a"};
    dd_keyspace_init(&ks);
    SET(&ks, "a", "1");
    CHECK_OK(park(&ks, &keys, DD_STORE_WAIT, 2, names, &is_parked));
    CHECK_OK(park(&ks, &values, DD_STORE_MULTI_GET, 2, names, &is_parked));
    PUSH(&ks, "a", "item");
    CHECK(ks_delete(&ks, BYTES("a")));
    SET(&ks, "b", "1");
    CHECK(keys.nnotified == 1 && values.nnotified == 0);
    SET(&ks, "a", "last");
    CHECK_INT(values.nnotified, 1);
    CHECK_BYTES(dd_bytes_of(values.value, values.value_len), BYTES("last"));
    CHECK(ks_delete(&ks, BYTES("b")));
    CHECK_OK(park(&ks, &keys, DD_STORE_WAIT, 2, names, &is_parked));
    CHECK(ks_delete(&ks, BYTES("a")));
    CHECK(ks_pop(&ks, BYTES("a"), &item));
    SET(&ks, "b", "1");
    CHECK_INT(keys.nnotified, 1);
    SET(&ks, "a", "1");
    CHECK_INT(keys.nnotified, 2);
    dd_blob_fini(&item);
    dd_keyspace_fini(&ks);
}

typedef struct mortal {
    dd_key_waiter waiter;
    int *nfreed;
} mortal;

static void
on_ready_free(dd_key_waiter *waiter, dd_store_result *result, const dd_error *error)
{
    mortal *self = DD_CONTAINER_OF(waiter, mortal, waiter);
    (void)result;
    (void)error;
    ++*self->nfreed;
    free(self);
}

TEST(waiters_may_be_freed_in_their_callback)
{
    static const dd_store_op ops[] = {DD_STORE_WAIT, DD_STORE_GET, DD_STORE_WAIT, DD_STORE_BARRIER};
    const dd_bytes keys[] = {BYTES("k"), BYTES("k")};
    dd_keyspace ks;
    int nfreed = 0;
    dd_keyspace_init(&ks);
    for (size_t i = 0; i < 4; i++) {
        mortal *m = calloc(1, sizeof *m);
        REQUIRE(m != NULL);
        m->nfreed = &nfreed;
        m->waiter.on_ready = on_ready_free;
        dd_store_request request = {.op = ops[i], .keys = keys, .nkeys = ops[i] == DD_STORE_BARRIER ? 1 : 2};
        CHECK_OK(dd_keyspace_park(&ks, &m->waiter, &request, check_err()));
    }
    bool is_complete = false;
    CHECK_OK(ks_arrive(&ks, BYTES("k"), 1, &is_complete));
    CHECK_INT(nfreed, 4);
    dd_keyspace_fini(&ks);
}

TEST(barriers_complete_at_the_last_arrival)
{
    dd_keyspace ks;
    probe waiters[3] = {0};
    probe value = {0};
    bool is_complete = true;
    dd_keyspace_init(&ks);
    CHECK(park_on(&ks, &value, DD_STORE_GET, "b"));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(ks_arrive(&ks, BYTES("b"), 3, &is_complete));
        CHECK(!is_complete);
        CHECK(park_on(&ks, &waiters[i], DD_STORE_BARRIER, "b"));
    }
    CHECK_INT(value.nnotified, 1);
    CHECK_INT(waiters[0].nnotified, 0);
    CHECK_OK(ks_arrive(&ks, BYTES("b"), 3, &is_complete));
    CHECK(is_complete);
    CHECK(waiters[0].nnotified == 1 && waiters[1].nnotified == 1);
    CHECK_INT(waiters[0].value_len, 0);
    expect_value(&ks, "b", "3");
    is_complete = false;
    CHECK_OK(ks_arrive(&ks, BYTES("b"), 3, &is_complete));
    CHECK(is_complete);
    SET(&ks, "word", "abc");
    CHECK_STATUS(ks_arrive(&ks, BYTES("word"), 3, &is_complete), DD_STORE);
    dd_keyspace_fini(&ks);
}

/* ---- random operations against a naive model, with and without failed allocations */

#define NKEYS 5
#define NPROBES 6
#define MAX_VALUE 60
#define MAX_ITEMS 6

typedef struct model_waiter {
    bool is_parked;
    dd_store_op op;
    int keys[3];
    int nkeys;
    long since;
    int nnotified;
} model_waiter;

typedef struct model {
    bool has_value[NKEYS];
    char value[NKEYS][MAX_VALUE + 1];
    char items[NKEYS][MAX_ITEMS][MAX_VALUE + 1];
    int nitems[NKEYS];
    model_waiter waiters[NPROBES];
    long clock;
} model;

static const char *const model_keys[NKEYS] = {"", "k1", "another key", "key three", "4"};
static const char *const model_values[] = {
    "", "1", "-7", "12abc", "x", " 3", "9223372036854775807", "99999999999999999999"};
#define NVALUES (sizeof model_values / sizeof model_values[0])

static bool
model_key_is_ready(const model *m, dd_store_op op, int key)
{
    return (m->has_value[key] && (op == DD_STORE_WAIT || op == DD_STORE_GET)) ||
           (m->nitems[key] > 0 && (op == DD_STORE_WAIT || op == DD_STORE_QUEUE_POP));
}

static bool
model_is_ready(const model *m, const model_waiter *w)
{
    for (int i = 0; i < w->nkeys; i++) {
        if (!model_key_is_ready(m, w->op, w->keys[i])) {
            return false;
        }
    }
    return true;
}

static void
model_notify(model *m)
{
    for (int i = 0; i < NPROBES; i++) {
        model_waiter *w = &m->waiters[i];
        if (w->is_parked && w->op != DD_STORE_QUEUE_POP && model_is_ready(m, w)) {
            w->is_parked = false;
            w->nnotified++;
        }
    }
}

static void
model_set(model *m, int key, const char *value)
{
    m->has_value[key] = true;
    (void)snprintf(m->value[key], sizeof m->value[key], "%s", value);
    model_notify(m);
}

/* Add as the keyspace should, by the C library. */
static bool
model_add(model *m, int key, int64_t amount, int64_t *sum)
{
    const char *text = m->has_value[key] ? m->value[key] : "";
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno == ERANGE || (end == text && text[0] != '\0')) {
        return false;
    }
    char stored[MAX_VALUE];
    *sum = (int64_t)((uint64_t)number + (uint64_t)amount);
    (void)snprintf(stored, sizeof stored, "%" PRId64, *sum);
    model_set(m, key, stored);
    return true;
}

static void
model_push(model *m, int key, const char *value)
{
    model_waiter *first = NULL;
    for (int i = 0; i < NPROBES; i++) {
        model_waiter *w = &m->waiters[i];
        if (w->is_parked && w->op == DD_STORE_QUEUE_POP && w->keys[0] == key &&
            (first == NULL || w->since < first->since)) {
            first = w;
        }
    }
    if (first != NULL) {
        first->is_parked = false;
        first->nnotified++;
        return;
    }
    (void)snprintf(m->items[key][m->nitems[key]++], MAX_VALUE, "%s", value);
    model_notify(m);
}

static size_t
model_nentries(const model *m)
{
    size_t count = 0;
    for (int key = 0; key < NKEYS; key++) {
        bool is_needed = m->has_value[key] || m->nitems[key] > 0;
        for (int i = 0; i < NPROBES; i++) {
            for (int j = 0; m->waiters[i].is_parked && j < m->waiters[i].nkeys; j++) {
                is_needed |= m->waiters[i].keys[j] == key;
            }
        }
        count += is_needed ? 1 : 0;
    }
    return count;
}

static void
compare_with_model(dd_keyspace *ks, const model *m, const probe *probes)
{
    int64_t nvalues = 0;
    for (int key = 0; key < NKEYS; key++) {
        dd_bytes bytes = dd_bytes_of_string(model_keys[key]);
        expect_value(ks, model_keys[key], m->has_value[key] ? m->value[key] : NULL);
        CHECK_INT(ks_has(ks, bytes), m->has_value[key] || m->nitems[key] > 0);
        CHECK_INT(ks_queue_len(ks, bytes), m->nitems[key]);
        nvalues += m->has_value[key] ? 1 : 0;
    }
    for (int i = 0; i < NPROBES; i++) {
        CHECK_INT(probes[i].nnotified, m->waiters[i].nnotified);
        CHECK_INT(probes[i].waiter.links != NULL, m->waiters[i].is_parked);
    }
    CHECK_INT(ks->nvalues, nvalues);
    CHECK_INT(ks->entries.count, model_nentries(m));
}

typedef struct run {
    dd_keyspace ks;
    model m;
    probe probes[NPROBES];
    uint32_t random;
} run;

static int
pick(run *r, size_t count)
{
    r->random = r->random * 1664525u + 1013904223u;
    return (int)((r->random >> 8) % count);
}

static void
step_park(run *r)
{
    int i = pick(r, NPROBES);
    model_waiter *w = &r->m.waiters[i];
    if (w->is_parked) {
        dd_keyspace_unpark(&r->ks, &r->probes[i].waiter);
        w->is_parked = false;
        return;
    }
    const char *keys[3];
    bool is_parked = false;
    w->op = waiting_ops[pick(r, 4)];
    w->nkeys = (w->op == DD_STORE_WAIT || w->op == DD_STORE_GET) ? pick(r, 4) : 1;
    for (int j = 0; j < w->nkeys; j++) {
        w->keys[j] = pick(r, NKEYS);
        keys[j] = model_keys[w->keys[j]];
    }
    dd_status status = park(&r->ks, &r->probes[i], w->op, (size_t)w->nkeys, keys, &is_parked);
    if (status == DD_OK) {
        w->is_parked = !model_is_ready(&r->m, w);
        w->since = ++r->m.clock;
        CHECK_INT(is_parked, w->is_parked);
    } else {
        CHECK_INT(status, DD_OUT_OF_MEMORY);
    }
}

static void
step_pop(run *r, int key)
{
    dd_blob item = {0};
    bool is_popped = ks_pop(&r->ks, dd_bytes_of_string(model_keys[key]), &item);
    CHECK_INT(is_popped, r->m.nitems[key] > 0);
    if (is_popped) {
        CHECK_BYTES(dd_blob_view(&item), dd_bytes_of_string(r->m.items[key][0]));
        memmove(r->m.items[key][0], r->m.items[key][1], sizeof r->m.items[key] - sizeof r->m.items[key][0]);
        r->m.nitems[key]--;
    }
    dd_blob_fini(&item);
}

static void
step_add(run *r, int key)
{
    int64_t sum = 0;
    int64_t expected = 0;
    int64_t amount = (int64_t)pick(r, 1000) - 500;
    dd_status status = ks_add(&r->ks, dd_bytes_of_string(model_keys[key]), amount, &sum);
    if (status == DD_OUT_OF_MEMORY) {
        return;
    }
    CHECK_INT(status, model_add(&r->m, key, amount, &expected) ? DD_OK : DD_STORE);
    CHECK_INT(sum, expected);
}

static void
step_barrier(run *r, int key)
{
    bool is_complete = false;
    int64_t world_size = (int64_t)pick(r, 16) - 8;
    int64_t count = 0;
    dd_status status = ks_arrive(&r->ks, dd_bytes_of_string(model_keys[key]), world_size, &is_complete);
    if (status == DD_OUT_OF_MEMORY) {
        return;
    }
    CHECK_INT(status, model_add(&r->m, key, 1, &count) ? DD_OK : DD_STORE);
    CHECK_INT(is_complete, status == DD_OK && count >= world_size);
    for (int i = 0; i < NPROBES && is_complete; i++) {
        model_waiter *w = &r->m.waiters[i];
        if (w->is_parked && w->op == DD_STORE_BARRIER && w->keys[0] == key) {
            w->is_parked = false;
            w->nnotified++;
        }
    }
}

static void
step_compare_set(run *r, int key)
{
    dd_bytes result = {0};
    const char *current = r->m.has_value[key] ? r->m.value[key] : "";
    const char *desired = model_values[pick(r, NVALUES)];
    const char *expected = pick(r, 2) == 0 ? current : model_values[pick(r, NVALUES)];
    char expected_copy[MAX_VALUE + 1];
    (void)snprintf(expected_copy, sizeof expected_copy, "%s", expected);
    if (ks_compare_set(&r->ks, dd_bytes_of_string(model_keys[key]), dd_bytes_of_string(expected_copy),
                       dd_bytes_of_string(desired), &result) != DD_OK) {
        return;
    }
    if (strcmp(current, expected_copy) == 0) {
        model_set(&r->m, key, desired);
        CHECK_BYTES(result, dd_bytes_of_string(desired));
    } else {
        CHECK_BYTES(result, dd_bytes_of_string(r->m.has_value[key] ? current : expected_copy));
    }
}

static void
step_write(run *r, int key, bool is_append)
{
    dd_bytes bytes = dd_bytes_of_string(model_keys[key]);
    const char *value = model_values[pick(r, NVALUES)];
    char joined[2 * MAX_VALUE + 2];
    (void)snprintf(joined, sizeof joined, "%s%s", is_append && r->m.has_value[key] ? r->m.value[key] : "",
                   value);
    if (strlen(joined) > MAX_VALUE) {
        return;
    }
    dd_status status = is_append ? ks_append(&r->ks, bytes, dd_bytes_of_string(value))
                                 : ks_set(&r->ks, bytes, dd_bytes_of_string(value));
    if (status == DD_OK) {
        model_set(&r->m, key, joined);
    }
}

static void
step_push(run *r, int key)
{
    const char *value = model_values[pick(r, NVALUES)];
    if (r->m.nitems[key] == MAX_ITEMS) {
        return;
    }
    if (ks_push(&r->ks, dd_bytes_of_string(model_keys[key]), dd_bytes_of_string(value)) == DD_OK) {
        model_push(&r->m, key, value);
    }
}

static void
step(run *r)
{
    int key = pick(r, NKEYS);
    switch (pick(r, 12)) {
    case 0:
        CHECK_INT(ks_delete(&r->ks, dd_bytes_of_string(model_keys[key])), r->m.has_value[key]);
        r->m.has_value[key] = false;
        break;
    case 1:
        step_add(r, key);
        break;
    case 2:
        step_barrier(r, key);
        break;
    case 3:
        step_compare_set(r, key);
        break;
    case 4:
        step_write(r, key, true);
        break;
    case 5:
        step_push(r, key);
        break;
    case 6:
    case 7:
        step_pop(r, key);
        break;
    case 8:
        step_write(r, key, false);
        break;
    case 9:
        CHECK_INT(ks_delete(&r->ks, dd_bytes_of_string(model_keys[key])), r->m.has_value[key]);
        r->m.has_value[key] = false;
        break;
    default:
        step_park(r);
        break;
    }
}

static void
random_run(uint32_t seed, bool is_memory_short)
{
    run r = {.random = seed};
    dd_keyspace_init(&r.ks);
    for (int i = 0; i < 4000 && check_failures() == 0; i++) {
        if (is_memory_short) {
            (void)dd_mem_fail_after(pick(&r, 5));
        }
        step(&r);
        (void)dd_mem_fail_after(-1);
        compare_with_model(&r.ks, &r.m, r.probes);
    }
    if (check_failures() > 0) {
        fprintf(stderr, "    seed %u\n", seed);
    }
    for (int i = 0; i < NPROBES; i++) {
        dd_keyspace_unpark(&r.ks, &r.probes[i].waiter);
    }
    dd_keyspace_fini(&r.ks);
}

TEST(random_operations_have_the_same_results_as_in_a_simple_model)
{
    for (uint32_t seed = 1; seed <= 5; seed++) {
        random_run(seed, false);
    }
}

TEST(random_operations_match_a_simple_model_even_when_allocations_fail)
{
    for (uint32_t seed = 100; seed <= 105; seed++) {
        random_run(seed, true);
    }
}

TEST(starting_to_wait_for_keys_leaks_nothing_when_allocations_fail)
{
    dd_keyspace ks;
    probe p = {0};
    const char *const keys[] = {"a", "there", "b", "c"};
    bool is_parked = false;
    dd_status status = DD_OUT_OF_MEMORY;
    dd_keyspace_init(&ks);
    SET(&ks, "there", "");
    for (long nth = 0; status != DD_OK && nth < 20; nth++) {
        (void)dd_mem_fail_after(nth);
        status = park(&ks, &p, DD_STORE_WAIT, 4, keys, &is_parked);
        (void)dd_mem_fail_after(-1);
        if (status != DD_OK) {
            CHECK_INT(status, DD_OUT_OF_MEMORY);
            CHECK_INT(ks.entries.count, 1);
            dd_keyspace_unpark(&ks, &p.waiter);
        }
    }
    CHECK_OK(status);
    CHECK(is_parked);
    dd_keyspace_unpark(&ks, &p.waiter);
    CHECK_INT(ks.entries.count, 1);
    dd_keyspace_fini(&ks);
}

TEST(each_of_many_waiters_for_one_key_is_notified_once)
{
    enum { COUNT = 10000 };
    dd_keyspace ks;
    probe *probes = calloc(COUNT, sizeof *probes);
    REQUIRE(probes != NULL);
    dd_keyspace_init(&ks);
    for (int i = 0; i < COUNT; i++) {
        CHECK(park_on(&ks, &probes[i], DD_STORE_WAIT, "go"));
    }
    for (int i = 0; i < COUNT; i += 2) {
        dd_keyspace_unpark(&ks, &probes[i].waiter);
    }
    SET(&ks, "go", "");
    for (int i = 0; i < COUNT; i++) {
        CHECK_INT(probes[i].nnotified, i % 2);
    }
    dd_keyspace_fini(&ks);
    free(probes);
}

/* A user that keeps a copy of the data elsewhere uses this count to detect changes. */
TEST(every_change_of_the_stored_data_is_counted)
{
    dd_keyspace ks;
    dd_keyspace_init(&ks);
    dd_bytes now;
    dd_blob item = {0};
    int64_t sum = 0;
    bool is_complete;
    uint64_t nchanges = 0;
    CHECK_INT(ks.nchanges, 0);
    SET(&ks, "k", "1");
    CHECK_INT(ks.nchanges, ++nchanges);
    SET(&ks, "k", "1");
    CHECK_INT(ks.nchanges, ++nchanges);
    CHECK_OK(ks_add(&ks, BYTES("k"), 1, &sum));
    CHECK_INT(ks.nchanges, ++nchanges);
    CHECK_OK(ks_append(&ks, BYTES("k"), BYTES("x")));
    CHECK_INT(ks.nchanges, ++nchanges);
    CHECK_OK(ks_compare_set(&ks, BYTES("k"), BYTES("2x"), BYTES("y"), &now));
    CHECK_INT(ks.nchanges, ++nchanges);
    CHECK_OK(ks_arrive(&ks, BYTES("b"), 2, &is_complete));
    CHECK_INT(ks.nchanges, ++nchanges);
    PUSH(&ks, "q", "item");
    CHECK_INT(ks.nchanges, ++nchanges);
    CHECK(ks_pop(&ks, BYTES("q"), &item));
    CHECK_INT(ks.nchanges, ++nchanges);
    CHECK_OK(dd_keyspace_queue_unpop(&ks, BYTES("q"), &item, check_err()));
    CHECK_INT(ks.nchanges, ++nchanges);
    CHECK(ks_delete(&ks, BYTES("k")));
    CHECK_INT(ks.nchanges, ++nchanges);

    CHECK(!ks_delete(&ks, BYTES("k")));
    CHECK(!ks_pop(&ks, BYTES("no"), &item));
    CHECK_OK(ks_compare_set(&ks, BYTES("b"), BYTES(""), BYTES("1"), &now));
    CHECK_INT(ks.nchanges, nchanges);
    dd_blob_fini(&item);
    dd_keyspace_fini(&ks);
}
