#include "store_suite.h"

#include "core/clock.h"
#include "core/mem.h"
#include "faults/faults.h"
#include "store_calls.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LONG_NS (8 * DD_NS_PER_S)
#define SHORT_NS (60 * DD_NS_PER_MS)
#define NTHREADS 8

static dd_wait
long_wait(void)
{
    return dd_wait_after(LONG_NS * check_slow());
}

static dd_status
set_text(dd_store *store, const char *key, const char *value)
{
    dd_wait wait = long_wait();
    return dd_store_set(store, dd_bytes_of_string(key), dd_bytes_of_string(value), &wait, check_err());
}

static dd_status
add_to(dd_store *store, const char *key, int64_t amount, int64_t *sum)
{
    dd_wait wait = long_wait();
    return dd_store_add(store, dd_bytes_of_string(key), amount, sum, &wait, check_err());
}

static void
expect_value(dd_store *store, dd_bytes key, dd_bytes expected)
{
    dd_wait wait = long_wait();
    dd_blob value = {0};
    if (CHECK_OK(dd_store_get(store, key, &value, &wait, check_err()))) {
        CHECK_BYTES(dd_blob_view(&value), expected);
    }
    dd_blob_fini(&value);
}

static void
expect_text(dd_store *store, const char *key, const char *expected)
{
    expect_value(store, dd_bytes_of_string(key), dd_bytes_of_string(expected));
}

static bool
is_there(dd_store *store, const char *key)
{
    dd_wait wait = long_wait();
    dd_bytes bytes = dd_bytes_of_string(key);
    bool is_ready = false;
    CHECK_OK(dd_store_check(store, &bytes, 1, &is_ready, &wait, check_err()));
    return is_ready;
}

static int64_t
num_keys(dd_store *store)
{
    dd_wait wait = long_wait();
    int64_t count = -1;
    CHECK_OK(dd_store_num_keys(store, &count, &wait, check_err()));
    return count;
}

static bool
delete_text(dd_store *store, const char *key)
{
    dd_wait wait = long_wait();
    bool is_deleted = false;
    CHECK_OK(dd_store_delete_key(store, dd_bytes_of_string(key), &is_deleted, &wait, check_err()));
    return is_deleted;
}

static dd_status
push_text(dd_store *store, const char *key, const char *value)
{
    dd_wait wait = long_wait();
    return dd_store_queue_push(store, dd_bytes_of_string(key), dd_bytes_of_string(value), &wait, check_err());
}

static int64_t
queue_len(dd_store *store, const char *key)
{
    dd_wait wait = long_wait();
    int64_t count = -1;
    CHECK_OK(dd_store_queue_len(store, dd_bytes_of_string(key), &count, &wait, check_err()));
    return count;
}

static void
expect_pop(dd_store *store, const char *key, bool is_blocking, const char *expected)
{
    dd_wait wait = long_wait();
    dd_blob value = {0};
    if (CHECK_OK(
            dd_store_queue_pop(store, dd_bytes_of_string(key), is_blocking, &value, &wait, check_err()))) {
        CHECK_BYTES(dd_blob_view(&value), dd_bytes_of_string(expected));
    }
    dd_blob_fini(&value);
}

/* A thread that runs one function on the store. */
typedef struct helper {
    pthread_t thread;
    dd_store *store;
    int index;
    int nops;
    void (*run)(struct helper *helper);
} helper;

static void *
helper_main(void *arg)
{
    helper *self = arg;
    self->run(self);
    return NULL;
}

static bool
helper_start(helper *self, dd_store *store, void (*run)(helper *))
{
    self->store = store;
    self->run = run;
    return CHECK(pthread_create(&self->thread, NULL, helper_main, self) == 0);
}

static void
helper_join(helper *self)
{
    pthread_join(self->thread, NULL);
}

static void
helpers_run(dd_store *store, int count, int nops, void (*run)(helper *))
{
    helper helpers[NTHREADS];
    int nstarted = 0;
    while (nstarted < count) {
        helpers[nstarted] = (helper){.index = nstarted, .nops = nops};
        if (!helper_start(&helpers[nstarted], store, run)) {
            break;
        }
        nstarted++;
    }
    for (int i = 0; i < nstarted; i++) {
        helper_join(&helpers[i]);
    }
}

static void
nap(int64_t duration_ns)
{
    dd_wait wait = dd_wait_after(duration_ns);
    CHECK_OK(dd_wait_sleep(&wait, duration_ns, check_err()));
}

/* ---- values */

static void
get_returns_the_last_set_value(dd_store *store, const store_suite *suite)
{
    (void)suite;
    CHECK_OK(set_text(store, "key", "value"));
    expect_text(store, "key", "value");
    CHECK_OK(set_text(store, "key", "another, longer value"));
    expect_text(store, "key", "another, longer value");
    CHECK_OK(set_text(store, "key", "x"));
    expect_text(store, "key", "x");
}

static void
binary_keys_and_values_are_exact(dd_store *store, const store_suite *suite)
{
    (void)suite;
    dd_wait wait = long_wait();
    dd_bytes texts[] = {BYTES(""),         BYTES("\0"),       BYTES("\0\0"),        BYTES("a\0b"),
                        BYTES("\xff\xfe"), BYTES("/leading"), BYTES("new\nline\r"), BYTES("-/"),
                        BYTES("+minus-")};
    size_t count = sizeof texts / sizeof texts[0];
    for (size_t i = 0; i < count; i++) {
        CHECK_OK(dd_store_set(store, texts[i], texts[count - 1 - i], &wait, check_err()));
    }
    for (size_t i = 0; i < count; i++) {
        expect_value(store, texts[i], texts[count - 1 - i]);
    }
}

static void
large_values_are_exact(dd_store *store, const store_suite *suite)
{
    (void)suite;
    dd_wait wait = long_wait();
    size_t len = (1u << 20) + 3;
    uint8_t *data = malloc(len);
    REQUIRE(data != NULL);
    for (size_t i = 0; i < len; i++) {
        data[i] = (uint8_t)(i * 7 + i / 251);
    }
    CHECK_OK(dd_store_set(store, BYTES("large"), dd_bytes_of(data, len), &wait, check_err()));
    expect_value(store, BYTES("large"), dd_bytes_of(data, len));
    CHECK_OK(dd_store_append(store, BYTES("large"), dd_bytes_of(data, 5), &wait, check_err()));
    CHECK_OK(set_text(store, "large", "small again"));
    expect_text(store, "large", "small again");
    free(data);
}

static void
long_keys_are_accepted(dd_store *store, const store_suite *suite)
{
    (void)suite;
    char key[4001];
    for (size_t len = 250; len < sizeof key; len += len < 260 ? 1 : 1247) {
        memset(key, 'k', len);
        key[len] = '\0';
        CHECK_OK(set_text(store, key, "v"));
        expect_text(store, key, "v");
    }
}

static void
try_get_reports_missing_keys(dd_store *store, const store_suite *suite)
{
    (void)suite;
    dd_wait wait = long_wait();
    dd_blob value = {0};
    bool is_found = true;
    CHECK_OK(dd_blob_assign(&value, BYTES("kept"), check_err()));
    CHECK_OK(dd_store_try_get(store, BYTES("nothing"), &value, &is_found, &wait, check_err()));
    CHECK(!is_found);
    CHECK_TEXT(dd_blob_view(&value), "kept");
    CHECK_OK(set_text(store, "key", ""));
    CHECK_OK(dd_store_try_get(store, BYTES("key"), &value, &is_found, &wait, check_err()));
    CHECK(is_found);
    CHECK_TEXT(dd_blob_view(&value), "");
    dd_blob_fini(&value);
}

static void
add_sums_numbers(dd_store *store, const store_suite *suite)
{
    (void)suite;
    static const struct {
        const char *old;
        int64_t amount;
        int64_t sum;
        const char *stored;
    } cases[] = {
        {NULL, 5, 5, "5"},
        {"", 1, 1, "1"},
        {"12abc", 1, 13, "13"},
        {" \t-3 4", 1, -2, "-2"},
        {"+8", -9, -1, "-1"},
        {"007", 0, 7, "7"},
        {"9223372036854775807", 1, INT64_MIN, "-9223372036854775808"},
        {"-9223372036854775808", -1, INT64_MAX, "9223372036854775807"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t sum = 99;
        if (cases[i].old != NULL) {
            CHECK_OK(set_text(store, "n", cases[i].old));
        }
        CHECK_OK(add_to(store, "n", cases[i].amount, &sum));
        CHECK_INT(sum, cases[i].sum);
        expect_text(store, "n", cases[i].stored);
    }
}

static void
add_to_text_is_an_error(dd_store *store, const store_suite *suite)
{
    if (!suite->has_number_errors) {
        return;
    }
    static const char *const texts[] = {"abc",
                                        "-",
                                        "+",
                                        " ",
                                        "--1",
                                        "9223372036854775808",
                                        "-9223372036854775809",
                                        "99999999999999999999999"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        int64_t sum = 99;
        CHECK_OK(set_text(store, "word", texts[i]));
        CHECK_STATUS(add_to(store, "word", 1, &sum), DD_STORE);
        CHECK_CONTAINS(check_message(), "word\" is not a number");
        CHECK_CONTAINS(check_message(), texts[i]);
        CHECK_INT(sum, 99);
        expect_text(store, "word", texts[i]);
    }
}

static void
expect_compare_set(dd_store *store, const char *expected, const char *desired, const char *result)
{
    dd_wait wait = long_wait();
    dd_blob value = {0};
    CHECK_OK(dd_store_compare_set(store, BYTES("key"), dd_bytes_of_string(expected),
                                  dd_bytes_of_string(desired), &value, &wait, check_err()));
    CHECK_BYTES(dd_blob_view(&value), dd_bytes_of_string(result));
    dd_blob_fini(&value);
}

static void
compare_set_replaces_only_the_expected_value(dd_store *store, const store_suite *suite)
{
    (void)suite;
    expect_compare_set(store, "expected", "new", "expected");
    CHECK(!is_there(store, "key"));
    expect_compare_set(store, "", "first", "first");
    expect_text(store, "key", "first");
    expect_compare_set(store, "", "second", "first");
    expect_compare_set(store, "firs", "second", "first");
    expect_text(store, "key", "first");
    expect_compare_set(store, "first", "second", "second");
    expect_text(store, "key", "second");
    expect_compare_set(store, "second", "", "");
    expect_text(store, "key", "");
    expect_compare_set(store, "", "third", "third");
    expect_text(store, "key", "third");
}

static void
append_extends_a_value(dd_store *store, const store_suite *suite)
{
    (void)suite;
    dd_wait wait = long_wait();
    CHECK_OK(dd_store_append(store, BYTES("empty"), BYTES(""), &wait, check_err()));
    expect_text(store, "empty", "");
    CHECK_OK(dd_store_append(store, BYTES("key"), BYTES("one"), &wait, check_err()));
    CHECK_OK(dd_store_append(store, BYTES("key"), BYTES("\0two"), &wait, check_err()));
    CHECK_OK(dd_store_append(store, BYTES("key"), BYTES(""), &wait, check_err()));
    expect_value(store, BYTES("key"), BYTES("one\0two"));
}

static bool
list_has(const dd_blob_list *list, dd_bytes key)
{
    int count = 0;
    for (size_t i = 0; i < list->count; i++) {
        count += dd_bytes_equal(dd_blob_view(&list->items[i]), key) ? 1 : 0;
    }
    CHECK(count < 2);
    return count == 1;
}

static void
keys_are_set_and_deleted(dd_store *store, const store_suite *suite)
{
    (void)suite;
    dd_wait wait = long_wait();
    int64_t at_start = num_keys(store);
    CHECK_OK(set_text(store, "a", "1"));
    CHECK_OK(set_text(store, "b", "2"));
    CHECK_OK(set_text(store, "b", "3"));
    CHECK_OK(set_text(store, "", "4"));
    CHECK_INT(num_keys(store), at_start + 3);
    CHECK(delete_text(store, "a"));
    CHECK(!is_there(store, "a"));
    CHECK_INT(num_keys(store), at_start + 2);
    dd_blob_list list = {0};
    CHECK_OK(dd_store_list_keys(store, &list, &wait, check_err()));
    CHECK(!list_has(&list, BYTES("a")));
    CHECK(list_has(&list, BYTES("b")));
    CHECK(list_has(&list, BYTES("")));
    dd_blob_list_fini(&list);
    CHECK(!delete_text(store, "a"));
    CHECK(!delete_text(store, "never was"));
    CHECK_OK(set_text(store, "a", "again"));
    expect_text(store, "a", "again");
    CHECK_INT(num_keys(store), at_start + 3);
}

static void
many_keys_are_counted_and_deleted(dd_store *store, const store_suite *suite)
{
    (void)suite;
    int64_t at_start = num_keys(store);
    char key[32];
    int count = 300;
    for (int i = 0; i < count; i++) {
        (void)snprintf(key, sizeof key, "key %d", i);
        CHECK_OK(set_text(store, key, key));
    }
    CHECK_INT(num_keys(store), at_start + count);
    for (int i = 0; i < count; i += 2) {
        (void)snprintf(key, sizeof key, "key %d", i);
        CHECK(delete_text(store, key));
    }
    for (int i = 0; i < count; i++) {
        (void)snprintf(key, sizeof key, "key %d", i);
        CHECK_INT(is_there(store, key), i % 2);
    }
    CHECK_INT(num_keys(store), at_start + count / 2);
}

static void
check_succeeds_only_if_all_keys_exist(dd_store *store, const store_suite *suite)
{
    (void)suite;
    dd_wait wait = long_wait();
    bool is_ready = false;
    dd_bytes keys[] = {BYTES("a"), BYTES("b"), BYTES("a")};
    CHECK_OK(dd_store_check(store, NULL, 0, &is_ready, &wait, check_err()));
    CHECK(is_ready);
    CHECK_OK(set_text(store, "a", "1"));
    CHECK_OK(dd_store_check(store, keys, 3, &is_ready, &wait, check_err()));
    CHECK(!is_ready);
    CHECK_OK(set_text(store, "b", ""));
    CHECK_OK(dd_store_check(store, keys, 3, &is_ready, &wait, check_err()));
    CHECK(is_ready);
}

/* ---- waiting */

static void
set_late(helper *self)
{
    nap(SHORT_NS / 2);
    CHECK_OK(set_text(self->store, "late", "value"));
}

static void
get_waits_until_the_key_is_set(dd_store *store, const store_suite *suite)
{
    (void)suite;
    helper setter = {0};
    REQUIRE(helper_start(&setter, store, set_late));
    expect_text(store, "late", "value");
    helper_join(&setter);
}

static void
set_both_late(helper *self)
{
    CHECK_OK(set_text(self->store, "one", "1"));
    nap(SHORT_NS / 2);
    CHECK_OK(set_text(self->store, "two", "2"));
}

static void
wait_ends_when_all_keys_exist(dd_store *store, const store_suite *suite)
{
    (void)suite;
    dd_wait wait = long_wait();
    dd_bytes keys[] = {BYTES("two"), BYTES("one"), BYTES("two")};
    helper setter = {0};
    CHECK_OK(dd_store_wait(store, NULL, 0, &wait, check_err()));
    REQUIRE(helper_start(&setter, store, set_both_late));
    CHECK_OK(dd_store_wait(store, keys, 3, &wait, check_err()));
    CHECK(is_there(store, "one") && is_there(store, "two"));
    helper_join(&setter);
    CHECK_OK(dd_store_wait(store, keys, 3, &wait, check_err()));
}

static void
expect_time(const dd_wait *wait, int64_t timeout_ns)
{
    double elapsed_s = dd_wait_elapsed_s(wait);
    double wanted_s = (double)timeout_ns / (double)DD_NS_PER_S;
    CHECK(elapsed_s >= wanted_s);
    CHECK(elapsed_s < wanted_s + 1.0 * check_slow());
}

static void
get_of_a_missing_key_times_out(dd_store *store, const store_suite *suite)
{
    (void)suite;
    dd_blob value = {0};
    CHECK_OK(dd_blob_assign(&value, BYTES("kept"), check_err()));
    dd_wait wait = dd_wait_after(SHORT_NS);
    CHECK_STATUS(dd_store_get(store, BYTES("absent\1"), &value, &wait, check_err()), DD_TIMED_OUT);
    expect_time(&wait, SHORT_NS);
    CHECK_CONTAINS(check_message(), "timeout after ");
    CHECK_CONTAINS(check_message(), "absent\\x01");
    CHECK_TEXT(dd_blob_view(&value), "kept");
    wait = dd_wait_after(0);
    CHECK_STATUS(dd_store_get(store, BYTES("absent"), &value, &wait, check_err()), DD_TIMED_OUT);
    dd_blob_fini(&value);
    CHECK_OK(set_text(store, "absent", "usable"));
    expect_text(store, "absent", "usable");
}

static void
wait_for_missing_keys_times_out(dd_store *store, const store_suite *suite)
{
    (void)suite;
    dd_bytes keys[] = {BYTES("missing one"), BYTES("present"), BYTES("missing two")};
    CHECK_OK(set_text(store, "present", ""));
    dd_wait wait = dd_wait_after(SHORT_NS);
    CHECK_STATUS(dd_store_wait(store, keys, 3, &wait, check_err()), DD_TIMED_OUT);
    expect_time(&wait, SHORT_NS);
    CHECK_CONTAINS(check_message(), "timeout after ");
    CHECK_CONTAINS(check_message(), "missing one");
    CHECK_CONTAINS(check_message(), "missing two");
    CHECK_LACKS(check_message(), "present");
    CHECK_CONTAINS(check_message(), "2 of 3 missing");
    CHECK_OK(set_text(store, "missing one", ""));
    CHECK_OK(set_text(store, "missing two", ""));
    wait = long_wait();
    CHECK_OK(dd_store_wait(store, keys, 3, &wait, check_err()));
}

typedef struct interruption {
    int64_t from_ns; /* the caller interrupts the wait from this time on */
} interruption;

static bool
is_interrupted(void *ctx)
{
    return dd_clock_now_ns() >= ((const interruption *)ctx)->from_ns;
}

static dd_status
blocking_call(dd_store *store, int which, const dd_wait *wait)
{
    dd_bytes key = BYTES("nowhere");
    dd_blob value = {0};
    dd_blob_list list = {0};
    dd_status status;
    switch (which) {
    case 0:
        status = dd_store_get(store, key, &value, wait, check_err());
        break;
    case 1:
        status = dd_store_wait(store, &key, 1, wait, check_err());
        break;
    case 2:
        status = dd_store_multi_get(store, &key, 1, &list, wait, check_err());
        break;
    case 3:
        status = dd_store_barrier(store, BYTES("barrier without other ranks"), 1000, wait, check_err());
        break;
    default:
        status = dd_store_queue_pop(store, key, true, &value, wait, check_err());
        break;
    }
    dd_blob_fini(&value);
    dd_blob_list_fini(&list);
    return status;
}

/* Interrupt waits promptly. A busy machine may oversleep, so the best of a few tries counts. */
static void
an_interrupt_ends_waiting_calls(dd_store *store, const store_suite *suite)
{
    int ncalls = suite->has_queues ? 5 : 4;
    for (int which = 0; which < ncalls; which++) {
        int64_t best_ns = INT64_MAX;
        for (int i = 0; i < 5 && best_ns > 100 * DD_NS_PER_MS; i++) {
            interruption stop = {dd_clock_now_ns() + 20 * DD_NS_PER_MS};
            dd_wait wait = long_wait();
            wait.is_interrupted = is_interrupted;
            wait.ctx = &stop;
            CHECK_STATUS(blocking_call(store, which, &wait), DD_INTERRUPTED);
            int64_t late_ns = dd_clock_now_ns() - stop.from_ns;
            best_ns = late_ns < best_ns ? late_ns : best_ns;
        }
        CHECK(best_ns <= 100 * DD_NS_PER_MS * check_slow());
    }
    CHECK_OK(set_text(store, "usable", "yes"));
    expect_text(store, "usable", "yes");
}

static void
get_key_of_helper(helper *self)
{
    expect_text(self->store, "late", "value");
}

static void
blocked_calls_delay_no_others(dd_store *store, const store_suite *suite)
{
    (void)suite;
    helper getters[3] = {{0}};
    int64_t start_ns = dd_clock_now_ns();
    for (int i = 0; i < 3; i++) {
        REQUIRE(helper_start(&getters[i], store, get_key_of_helper));
    }
    nap(SHORT_NS / 2);
    int64_t sum = 0;
    CHECK_OK(set_text(store, "other", "1"));
    expect_text(store, "other", "1");
    CHECK_OK(add_to(store, "other", 1, &sum));
    CHECK_OK(set_text(store, "late", "value"));
    for (int i = 0; i < 3; i++) {
        helper_join(&getters[i]);
    }
    CHECK(dd_clock_now_ns() - start_ns < 2 * DD_NS_PER_S * check_slow());
}

/* ---- several keys in one call */

static void
multi_get_returns_the_values_of_multi_set(dd_store *store, const store_suite *suite)
{
    (void)suite;
    dd_wait wait = long_wait();
    dd_bytes keys[] = {BYTES("a"), BYTES(""), BYTES("a\0b")};
    dd_bytes values[] = {BYTES("1"), BYTES("2\0"), BYTES("")};
    dd_blob_list list = {0};
    CHECK_OK(dd_store_multi_set(store, NULL, NULL, 0, &wait, check_err()));
    CHECK_OK(dd_store_multi_get(store, NULL, 0, &list, &wait, check_err()));
    CHECK_INT(list.count, 0);
    dd_blob_list_fini(&list);
    CHECK_OK(dd_store_multi_set(store, keys, values, 3, &wait, check_err()));
    expect_value(store, keys[1], values[1]);
    REQUIRE_OK(dd_store_multi_get(store, keys, 3, &list, &wait, check_err()));
    CHECK_INT(list.count, 3);
    for (size_t i = 0; i < list.count; i++) {
        CHECK_BYTES(dd_blob_view(&list.items[i]), values[i]);
    }
    dd_blob_list_fini(&list);
}

static void
multi_get_waits_until_all_keys_are_set(dd_store *store, const store_suite *suite)
{
    (void)suite;
    dd_bytes keys[] = {BYTES("one"), BYTES("two")};
    dd_blob_list list = {0};
    helper setter = {0};
    dd_wait wait = dd_wait_after(SHORT_NS);
    CHECK_STATUS(dd_store_multi_get(store, keys, 2, &list, &wait, check_err()), DD_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "one");
    CHECK(list.items == NULL && list.count == 0);
    wait = long_wait();
    REQUIRE(helper_start(&setter, store, set_both_late));
    if (CHECK_OK(dd_store_multi_get(store, keys, 2, &list, &wait, check_err()))) {
        CHECK_TEXT(dd_blob_view(&list.items[1]), "2");
    }
    dd_blob_list_fini(&list);
    helper_join(&setter);
}

/* Read five keys, once for each subset of them that can be present. */
static void
try_multi_get_returns_the_existing_values(dd_store *store, const store_suite *suite)
{
    (void)suite;
    dd_wait wait = long_wait();
    dd_bytes keys[] = {BYTES("0"), BYTES("1"), BYTES("2"), BYTES("3"), BYTES("4")};
    dd_blob_list list = {0};
    bool is_deleted;
    CHECK_OK(dd_store_try_multi_get(store, NULL, 0, &list, &wait, check_err()));
    CHECK_INT(list.count, 0);
    dd_blob_list_fini(&list);
    for (unsigned present = 0; present < 1u << 5; present++) {
        for (size_t i = 0; i < 5; i++) {
            if ((present >> i & 1) != 0) {
                CHECK_OK(dd_store_set(store, keys[i], keys[i], &wait, check_err()));
            } else {
                CHECK_OK(dd_store_delete_key(store, keys[i], &is_deleted, &wait, check_err()));
            }
        }
        REQUIRE_OK(dd_store_try_multi_get(store, keys, 5, &list, &wait, check_err()));
        CHECK_INT(list.count, 5);
        for (size_t i = 0; i < list.count; i++) {
            CHECK_BYTES(dd_blob_view(&list.items[i]), (present >> i & 1) != 0 ? keys[i] : (dd_bytes){0});
        }
        dd_blob_list_fini(&list);
    }
}

/* ---- queues */

static void
queues_refused(dd_store *store)
{
    dd_wait wait = long_wait();
    dd_blob value = {0};
    int64_t count = 0;
    CHECK_STATUS(push_text(store, "q", "1"), DD_NOT_SUPPORTED);
    CHECK_STATUS(dd_store_queue_pop(store, BYTES("q"), false, &value, &wait, check_err()), DD_NOT_SUPPORTED);
    CHECK_STATUS(dd_store_queue_len(store, BYTES("q"), &count, &wait, check_err()), DD_NOT_SUPPORTED);
}

static void
queues_keep_their_order(dd_store *store, const store_suite *suite)
{
    if (!suite->has_queues) {
        queues_refused(store);
        return;
    }
    dd_wait wait = long_wait();
    dd_blob value = {0};
    int64_t at_start = num_keys(store);
    CHECK_STATUS(dd_store_queue_pop(store, BYTES("q"), false, &value, &wait, check_err()), DD_QUEUE_EMPTY);
    CHECK_INT(queue_len(store, "q"), 0);
    CHECK_OK(push_text(store, "q", "first"));
    CHECK_OK(push_text(store, "q", ""));
    CHECK_OK(push_text(store, "q", "third"));
    CHECK_OK(push_text(store, "other", "x"));
    CHECK_INT(queue_len(store, "q"), 3);
    CHECK(is_there(store, "q"));
    CHECK(!delete_text(store, "q"));
    CHECK_INT(num_keys(store), at_start);
    dd_blob_list list = {0};
    CHECK_OK(dd_store_list_keys(store, &list, &wait, check_err()));
    CHECK(!list_has(&list, BYTES("q")));
    dd_blob_list_fini(&list);
    dd_bytes key = BYTES("q");
    CHECK_OK(dd_store_wait(store, &key, 1, &wait, check_err()));
    expect_pop(store, "q", false, "first");
    expect_pop(store, "q", true, "");
    expect_pop(store, "q", false, "third");
    CHECK(!is_there(store, "q"));
    CHECK_STATUS(dd_store_queue_pop(store, BYTES("q"), false, &value, &wait, check_err()), DD_QUEUE_EMPTY);
    CHECK_CONTAINS(check_message(), "empty");
    expect_pop(store, "other", false, "x");
}

static void
a_queue_and_a_value_may_have_the_same_key(dd_store *store, const store_suite *suite)
{
    if (!suite->has_queues) {
        return;
    }
    CHECK_OK(set_text(store, "both", "value"));
    CHECK_OK(push_text(store, "both", "item"));
    expect_text(store, "both", "value");
    CHECK(delete_text(store, "both"));
    CHECK(is_there(store, "both"));
    expect_pop(store, "both", true, "item");
    CHECK(!is_there(store, "both"));
}

static void
push_late(helper *self)
{
    nap(SHORT_NS / 2);
    CHECK_OK(push_text(self->store, "q", "item"));
}

static void
queue_pop_waits_until_an_item_is_pushed(dd_store *store, const store_suite *suite)
{
    if (!suite->has_queues) {
        return;
    }
    dd_blob value = {0};
    helper pusher = {0};
    dd_wait wait = dd_wait_after(SHORT_NS);
    CHECK_OK(set_text(store, "q", "a value is no item"));
    CHECK_STATUS(dd_store_queue_pop(store, BYTES("q"), true, &value, &wait, check_err()), DD_TIMED_OUT);
    expect_time(&wait, SHORT_NS);
    CHECK_CONTAINS(check_message(), "q");
    CHECK_CONTAINS(check_message(), "timeout after ");
    REQUIRE(helper_start(&pusher, store, push_late));
    expect_pop(store, "q", true, "item");
    helper_join(&pusher);
    CHECK_INT(queue_len(store, "q"), 0);
}

static void
produce_or_consume(helper *self)
{
    for (int i = 0; i < self->nops; i++) {
        if (self->index % 2 == 0) {
            CHECK_OK(push_text(self->store, "q", "7"));
        } else {
            expect_pop(self->store, "q", true, "7");
        }
    }
}

static int
stress_ops(const store_suite *suite)
{
    return suite->thread_ops > 0 ? suite->thread_ops : 1000;
}

static void
several_threads_may_push_to_and_pop_from_one_queue(dd_store *store, const store_suite *suite)
{
    if (!suite->has_queues) {
        return;
    }
    helpers_run(store, 4, stress_ops(suite) / 4, produce_or_consume);
    CHECK_INT(queue_len(store, "q"), 0);
}

/* ---- other operations */

static void
add_many(helper *self)
{
    char text[32];
    for (int i = 0; i < self->nops; i++) {
        int64_t sum = 0;
        CHECK_OK(add_to(self->store, "sum", 1, &sum));
    }
    (void)snprintf(text, sizeof text, "done %d", self->index);
    CHECK_OK(set_text(self->store, text, text));
    /* Every thread waits for the last value of the next thread. */
    (void)snprintf(text, sizeof text, "done %d", (self->index + 1) % NTHREADS);
    expect_text(self->store, text, text);
}

static void
adds_of_several_threads_are_all_counted(dd_store *store, const store_suite *suite)
{
    int64_t sum = 0;
    helpers_run(store, NTHREADS, stress_ops(suite), add_many);
    CHECK_OK(add_to(store, "sum", 0, &sum));
    CHECK_INT(sum, NTHREADS * stress_ops(suite));
}

static void
append_many(helper *self)
{
    char text[8];
    for (int i = 0; i < self->nops; i++) {
        dd_wait wait = long_wait();
        /* Every piece is unique: append by compare_set cannot tell equal pieces apart. */
        int len = snprintf(text, sizeof text, "%d%02d,", self->index, i % 100);
        CHECK_OK(dd_store_append(self->store, BYTES("joined"), dd_bytes_of(text, (size_t)len), &wait,
                                 check_err()));
    }
}

static void
appends_of_several_threads_are_all_kept(dd_store *store, const store_suite *suite)
{
    (void)suite;
    dd_wait wait = long_wait();
    dd_blob value = {0};
    helpers_run(store, 4, 25, append_many);
    CHECK_OK(dd_store_get(store, BYTES("joined"), &value, &wait, check_err()));
    CHECK_INT(value.len, 4 * 25 * 4);
    dd_blob_fini(&value);
}

static void
join_barrier(helper *self)
{
    int64_t count = 0;
    dd_wait wait = long_wait();
    CHECK_OK(add_to(self->store, "came", 1, &count));
    CHECK_OK(dd_store_barrier(self->store, BYTES("gate"), 4, &wait, check_err()));
    CHECK_OK(add_to(self->store, "came", 0, &count));
    CHECK_INT(count, 4);
}

static void
barrier_waits_for_all_members(dd_store *store, const store_suite *suite)
{
    (void)suite;
    dd_wait wait = dd_wait_after(SHORT_NS);
    CHECK_STATUS(dd_store_barrier(store, BYTES("lonely gate"), 2, &wait, check_err()), DD_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "lonely gate");
    CHECK(strstr(check_message(), "barrier timed out after 0.") != NULL ||
          strstr(check_message(), "Wait timeout after ") != NULL);
    helpers_run(store, 4, 0, join_barrier);
    wait = long_wait();
    CHECK_OK(dd_store_barrier(store, BYTES("gate"), 4, &wait, check_err()));
    CHECK_OK(dd_store_barrier(store, BYTES("gate of one"), 1, &wait, check_err()));
}

static void
a_clone_shares_the_data_of_its_store(dd_store *store, const store_suite *suite)
{
    (void)suite;
    dd_wait wait = long_wait();
    dd_store *clone = NULL;
    dd_store *clone_of_clone = NULL;
    CHECK_OK(set_text(store, "key", "1"));
    REQUIRE_OK(store->ops->clone(store, &clone, &wait, check_err()));
    expect_text(clone, "key", "1");
    CHECK_OK(set_text(clone, "key", "2"));
    /* A set is not acknowledged; the answer to a later call proves that it was done. */
    int64_t count;
    CHECK_OK(dd_store_num_keys(clone, &count, &wait, check_err()));
    expect_text(store, "key", "2");
    CHECK(strcmp(clone->ops->kind, store->ops->kind) == 0);
    CHECK_OK(clone->ops->clone(clone, &clone_of_clone, &wait, check_err()));
    dd_store_release(clone);
    expect_text(clone_of_clone, "key", "2");
    dd_store_release(clone_of_clone);
    expect_text(store, "key", "2");
}

static void
the_timeout_of_a_store_can_be_changed(dd_store *store, const store_suite *suite)
{
    (void)suite;
    dd_wait wait = long_wait();
    dd_store *clone = NULL;
    store->ops->set_timeout_ns(store, 1234 * DD_NS_PER_MS);
    CHECK_INT(store->ops->get_timeout_ns(store), 1234 * DD_NS_PER_MS);
    REQUIRE_OK(store->ops->clone(store, &clone, &wait, check_err()));
    CHECK_INT(clone->ops->get_timeout_ns(clone), 1234 * DD_NS_PER_MS);
    clone->ops->set_timeout_ns(clone, 5);
    CHECK_INT(store->ops->get_timeout_ns(store), 1234 * DD_NS_PER_MS);
    dd_store_release(clone);
}

static void
a_store_stays_open_until_its_last_reference_is_released(dd_store *store, const store_suite *suite)
{
    (void)suite;
    CHECK(dd_store_acquire(store) == store);
    dd_store_release(store);
    CHECK_OK(set_text(store, "still", "here"));
    dd_store_release(NULL);
}

/* The child has one reference, like the parent, and exits without effects on the parent. */
static void
in_forked_child(dd_store *store)
{
    char pids[128];
    (void)snprintf(pids, sizeof pids, "was opened in process %d and used in process %d after a fork",
                   (int)getppid(), (int)getpid());
    alarm(5 * (unsigned)check_slow());
    CHECK(dd_store_is_forked(store));
    CHECK_STATUS(dd_store_check_fork(store, check_err()), DD_FORKED);
    CHECK_CONTAINS(check_message(), pids);
    CHECK_CONTAINS(check_message(), store->ops->kind);
    dd_store_release(store);
    _exit(check_failures() > 0 ? 1 : 0);
}

static void
a_forked_child_cannot_use_the_store(dd_store *store, const store_suite *suite)
{
    (void)suite;
    int status = -1;
    CHECK_OK(set_text(store, "key", "value"));
    CHECK_OK(dd_store_check_fork(store, check_err()));
    CHECK(!dd_store_is_forked(store));
    pid_t pid = fork();
    if (pid == 0) {
        in_forked_child(store);
    }
    REQUIRE(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK_INT(status, 0);
    CHECK_OK(dd_store_check_fork(store, check_err()));
    expect_text(store, "key", "value");
    CHECK_OK(set_text(store, "key", "after"));
    expect_text(store, "key", "after");
}

/* Call every operation once and discard the results. The first failure ends it. For allocations
 * that fail. */
typedef struct fault_call {
    const char *name;
    dd_status (*run)(dd_store *store, const dd_wait *wait, dd_blob *value);
    bool is_queue;
} fault_call;

static const dd_bytes fault_keys[] = {{(const uint8_t *)"fault a", 7}, {(const uint8_t *)"fault b", 7}};

#define FAULT_CALL(call_name, expression)                                        \
    static dd_status call_name(dd_store *s, const dd_wait *wait, dd_blob *value) \
    {                                                                            \
        (void)value;                                                             \
        return dd_store_##expression;                                            \
    }

FAULT_CALL(fault_set, set(s, BYTES("new"), BYTES("a value"), wait, check_err()))
FAULT_CALL(fault_get, get(s, fault_keys[0], value, wait, check_err()))
FAULT_CALL(fault_append, append(s, fault_keys[0], BYTES("more of it"), wait, check_err()))
FAULT_CALL(fault_wait, wait(s, fault_keys, 2, wait, check_err()))
FAULT_CALL(fault_push, queue_push(s, BYTES("queue"), BYTES("item"), wait, check_err()))
FAULT_CALL(fault_pop, queue_pop(s, BYTES("full queue"), false, value, wait, check_err()))
FAULT_CALL(fault_barrier, barrier(s, BYTES("barrier"), 0, wait, check_err()))

static dd_status
fault_try_get(dd_store *s, const dd_wait *wait, dd_blob *value)
{
    bool is_found;
    return dd_store_try_get(s, fault_keys[0], value, &is_found, wait, check_err());
}

static dd_status
fault_add(dd_store *s, const dd_wait *wait, dd_blob *value)
{
    int64_t sum;
    (void)value;
    return dd_store_add(s, BYTES("number"), 1234567, &sum, wait, check_err());
}

static dd_status
fault_compare_set(dd_store *s, const dd_wait *wait, dd_blob *value)
{
    return dd_store_compare_set(s, fault_keys[0], BYTES("value"), BYTES("desired, and longer"), value, wait,
                                check_err());
}

static dd_status
fault_check(dd_store *s, const dd_wait *wait, dd_blob *value)
{
    bool is_ready;
    (void)value;
    return dd_store_check(s, fault_keys, 2, &is_ready, wait, check_err());
}

static dd_status
fault_delete(dd_store *s, const dd_wait *wait, dd_blob *value)
{
    bool is_deleted;
    (void)value;
    return dd_store_delete_key(s, fault_keys[1], &is_deleted, wait, check_err());
}

static dd_status
fault_multi_get(dd_store *s, const dd_wait *wait, dd_blob *value)
{
    dd_blob_list list = {0};
    (void)value;
    dd_status status = dd_store_multi_get(s, fault_keys, 2, &list, wait, check_err());
    CHECK_INT(list.count, status == DD_OK ? 2 : 0);
    dd_blob_list_fini(&list);
    return status;
}

static dd_status
fault_try_multi_get(dd_store *s, const dd_wait *wait, dd_blob *value)
{
    dd_bytes keys[] = {fault_keys[0], BYTES("new"), fault_keys[1]};
    dd_blob_list list = {0};
    (void)value;
    dd_status status = dd_store_try_multi_get(s, keys, 3, &list, wait, check_err());
    CHECK_INT(list.count, status == DD_OK ? 3 : 0);
    dd_blob_list_fini(&list);
    return status;
}

static dd_status
fault_list_keys(dd_store *s, const dd_wait *wait, dd_blob *value)
{
    dd_blob_list list = {0};
    (void)value;
    dd_status status = dd_store_list_keys(s, &list, wait, check_err());
    CHECK(status == DD_OK ? list.count >= 2 : list.items == NULL);
    dd_blob_list_fini(&list);
    return status;
}

static dd_status
fault_clone(dd_store *s, const dd_wait *wait, dd_blob *value)
{
    dd_store *clone = NULL;
    (void)value;
    dd_status status = s->ops->clone(s, &clone, wait, check_err());
    CHECK((clone != NULL) == (status == DD_OK));
    dd_store_release(clone);
    return status;
}

static const fault_call fault_calls[] = {
    {"set", fault_set, false},
    {"get", fault_get, false},
    {"try_get", fault_try_get, false},
    {"add", fault_add, false},
    {"append", fault_append, false},
    {"wait", fault_wait, false},
    {"check", fault_check, false},
    {"multi_get", fault_multi_get, false},
    {"try_multi_get", fault_try_multi_get, false},
    {"list_keys", fault_list_keys, false},
    {"clone", fault_clone, false},
    {"compare_set", fault_compare_set, false},
    {"delete_key", fault_delete, false},
    {"queue_push", fault_push, true},
    {"queue_pop", fault_pop, true},
    {"barrier", fault_barrier, false},
};

/* Check all values that the calls above could change. */
static void
expect_as_before(dd_store *store)
{
    dd_wait wait = long_wait();
    dd_blob value = {0};
    bool is_ready = true;
    dd_bytes new_keys[] = {BYTES("new")};
    expect_text(store, "fault a", "value");
    expect_text(store, "fault b", "value");
    CHECK_OK(dd_store_try_get(store, BYTES("number"), &value, &is_ready, &wait, check_err()));
    CHECK(!is_ready);
    CHECK_OK(dd_store_check(store, new_keys, 1, &is_ready, &wait, check_err()));
    CHECK(!is_ready);
    dd_blob_fini(&value);
}

static void
expect_queues_as_before(dd_store *store)
{
    CHECK_INT(queue_len(store, "queue"), 0);
    CHECK_INT(queue_len(store, "full queue"), 1);
}

static void
fail_every_allocation_of(dd_store *store, const store_suite *suite, const fault_call *call)
{
    for (long nth = 0; nth < 50; nth++) {
        dd_wait wait = long_wait();
        dd_blob value = {0};
        CHECK_OK(dd_blob_assign(&value, BYTES("k"), check_err()));
        (void)dd_mem_fail_after(nth);
        dd_status status = call->run(store, &wait, &value);
        (void)dd_mem_fail_after(-1);
        if (status == DD_OK) {
            dd_blob_fini(&value);
            return;
        }
        CHECK_INT(status, DD_OUT_OF_MEMORY);
        CHECK_CONTAINS(check_message(), "out of memory");
        CHECK_TEXT(dd_blob_view(&value), "k");
        dd_blob_fini(&value);
        expect_as_before(store);
        if (suite->has_queues) {
            expect_queues_as_before(store);
        }
    }
    CHECK(false);
}

static void
calls_return_an_error_when_allocations_fail(dd_store *store, const store_suite *suite)
{
    if (!suite->is_in_memory) {
        return;
    }
    int64_t at_start = num_keys(store);
    for (size_t i = 0; i < sizeof fault_calls / sizeof fault_calls[0]; i++) {
        if (fault_calls[i].is_queue && !suite->has_queues) {
            continue;
        }
        CHECK_OK(set_text(store, "fault a", "value"));
        CHECK_OK(set_text(store, "fault b", "value"));
        if (suite->has_queues) {
            CHECK_OK(push_text(store, "full queue", "item"));
        }
        fail_every_allocation_of(store, suite, &fault_calls[i]);
        (void)delete_text(store, "new");
        (void)delete_text(store, "number");
        dd_wait wait = long_wait();
        dd_blob value = {0};
        while (suite->has_queues &&
               dd_store_queue_pop(store, BYTES("full queue"), false, &value, &wait, NULL) == DD_OK) {
        }
        while (suite->has_queues &&
               dd_store_queue_pop(store, BYTES("queue"), false, &value, &wait, NULL) == DD_OK) {
        }
        dd_blob_fini(&value);
    }
    CHECK(num_keys(store) >= at_start + 2);
}

/* ---- registration */

typedef struct suite_case {
    const char *name;
    void (*run)(dd_store *store, const store_suite *suite);
} suite_case;

#define CASE(function)               \
    {                                \
        "suite_" #function, function \
    }
static const suite_case cases[] = {
    CASE(get_returns_the_last_set_value),
    CASE(binary_keys_and_values_are_exact),
    CASE(large_values_are_exact),
    CASE(long_keys_are_accepted),
    CASE(try_get_reports_missing_keys),
    CASE(add_sums_numbers),
    CASE(add_to_text_is_an_error),
    CASE(compare_set_replaces_only_the_expected_value),
    CASE(append_extends_a_value),
    CASE(keys_are_set_and_deleted),
    CASE(many_keys_are_counted_and_deleted),
    CASE(check_succeeds_only_if_all_keys_exist),
    CASE(get_waits_until_the_key_is_set),
    CASE(wait_ends_when_all_keys_exist),
    CASE(get_of_a_missing_key_times_out),
    CASE(wait_for_missing_keys_times_out),
    CASE(an_interrupt_ends_waiting_calls),
    CASE(blocked_calls_delay_no_others),
    CASE(multi_get_returns_the_values_of_multi_set),
    CASE(multi_get_waits_until_all_keys_are_set),
    CASE(try_multi_get_returns_the_existing_values),
    CASE(queues_keep_their_order),
    CASE(a_queue_and_a_value_may_have_the_same_key),
    CASE(queue_pop_waits_until_an_item_is_pushed),
    CASE(several_threads_may_push_to_and_pop_from_one_queue),
    CASE(adds_of_several_threads_are_all_counted),
    CASE(appends_of_several_threads_are_all_kept),
    CASE(barrier_waits_for_all_members),
    CASE(a_clone_shares_the_data_of_its_store),
    CASE(the_timeout_of_a_store_can_be_changed),
    CASE(a_store_stays_open_until_its_last_reference_is_released),
    CASE(a_forked_child_cannot_use_the_store),
    CASE(calls_return_an_error_when_allocations_fail),
};
#define NCASES (sizeof cases / sizeof cases[0])

typedef struct suite_test {
    check_test test;
    const store_suite *suite;
    const suite_case *suite_case;
} suite_test;

/* Reachable until exit, so that the leak sanitizer does not report them. */
static suite_test *registered[16];
static size_t nregistered;

static void
run_case(const void *arg)
{
    const suite_test *test = arg;
    void *fixture = NULL;
    dd_store *store = test->suite->open(&fixture);
    REQUIRE(store != NULL);
    test->suite_case->run(store, test->suite);
    dd_store_release(store);
    if (test->suite->close != NULL) {
        test->suite->close(fixture);
    }
}

void
store_suite_register(const store_suite *suite)
{
    suite_test *tests = calloc(NCASES, sizeof *tests);
    if (tests == NULL || nregistered == sizeof registered / sizeof registered[0]) {
        abort();
    }
    registered[nregistered++] = tests;
    for (size_t i = 0; i < NCASES; i++) {
        tests[i].suite = suite;
        tests[i].suite_case = &cases[i];
        tests[i].test =
            (check_test){.file = suite->name, .name = cases[i].name, .run = run_case, .arg = &tests[i]};
        check_register(&tests[i].test);
    }
}
