#include "check.h"
#include "clock_counter.h"
#include "collective/run_internal.h"
#include "core/bytes.h"
#include "core/clock.h"
#include "core/cpu.h"
#include "core/fork.h"
#include "core/list.h"
#include "core/lock.h"
#include "core/log.h"
#include "core/map.h"
#include "core/mem.h"
#include "core/status.h"
#include "core/system.h"
#include "core/thread.h"
#include "core/wait.h"
#include "core/wait_policy.h"
#include "faults/faults.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- status */

TEST(every_status_has_a_name_and_a_text)
{
    for (int code = 0; code < DD_STATUS_COUNT; code++) {
        CHECK(strlen(dd_status_name((dd_status)code)) > 0);
        CHECK(strlen(dd_status_text((dd_status)code)) > 0);
    }
    CHECK(strcmp(dd_status_name(DD_TIMED_OUT), "TIMED_OUT") == 0);
    CHECK(strcmp(dd_status_text(DD_TIMED_OUT), "timed out") == 0);
    CHECK(strcmp(dd_status_name(DD_INTERNAL), "INTERNAL") == 0);
    CHECK(strcmp(dd_status_name((dd_status)DD_STATUS_COUNT), "UNKNOWN") == 0);
    CHECK(strcmp(dd_status_text((dd_status)-1), "unknown status") == 0);
}

TEST(errors_have_a_message_and_an_errno)
{
    dd_error err = {.sys_errno = 5};
    CHECK_INT(dd_error_set(&err, DD_STORE, "key %d", 7), DD_STORE);
    CHECK(err.code == DD_STORE && err.sys_errno == 0 && strcmp(err.message, "key 7") == 0);
    CHECK_INT(dd_error_set(NULL, DD_STORE, "key %d", 7), DD_STORE);
    CHECK_INT(dd_error_set_errno(&err, DD_SYSTEM, ENOENT, "open %s", "x"), DD_SYSTEM);
    CHECK(strcmp(err.message, "open x: No such file or directory (errno 2)") == 0);
    CHECK_INT(err.sys_errno, ENOENT);
    CHECK_INT(dd_error_set_errno(NULL, DD_SYSTEM, ENOENT, "open"), DD_SYSTEM);
    dd_error_prepend(&err, "context %d", 3);
    CHECK(strcmp(err.message, "context 3: open x: No such file or directory (errno 2)") == 0);
    CHECK(err.code == DD_SYSTEM && err.sys_errno == ENOENT);
    dd_error_prepend(NULL, "context");
    dd_error copy = {0};
    CHECK_INT(dd_error_copy(&copy, &err), DD_SYSTEM);
    CHECK(strcmp(copy.message, err.message) == 0 && copy.sys_errno == ENOENT);
    CHECK_INT(dd_error_copy(NULL, &err), DD_SYSTEM);
    CHECK_INT(dd_error_copy(&err, &err), DD_SYSTEM);
    CHECK_INT(dd_error_no_memory(&err, 123), DD_OUT_OF_MEMORY);
    CHECK_CONTAINS(err.message, "123 bytes");
}

TEST(errno_values_of_local_errors_are_distinguished_from_remote_ones)
{
    static const int own[] = {EMFILE,     ENFILE,       ENOMEM,          ENOBUFS, ENOSPC, EACCES,
                              EPERM,      ENOSYS,       EINVAL,          EIO,     EBADF,  ENOTSOCK,
                              EOPNOTSUPP, EAFNOSUPPORT, EPROTONOSUPPORT, EFAULT};
    static const int others[] = {ECONNRESET,  EPIPE,        ETIMEDOUT, ECONNREFUSED,  EHOSTUNREACH,
                                 ENETUNREACH, ECONNABORTED, ENOTCONN,  EADDRNOTAVAIL, EHOSTDOWN,
                                 EPROTO,      ENETDOWN,     ENONET,    EAGAIN,        0};
    dd_error err;
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        (void)dd_error_set_errno(&err, DD_NETWORK, own[i], "cannot send");
        CHECK(dd_error_is_local(&err));
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        (void)dd_error_set_errno(&err, DD_NETWORK, others[i], "cannot send");
        CHECK(!dd_error_is_local(&err));
    }
    (void)dd_error_set(&err, DD_SYSTEM, "no thread");
    CHECK(dd_error_is_local(&err));
}

static bool
ends_in_dots(const dd_error *err)
{
    size_t len = strlen(err->message);
    return len == sizeof err->message - 1 && strcmp(err->message + len - 3, "...") == 0;
}

TEST(long_error_messages_are_truncated)
{
    dd_error err;
    char text[sizeof err.message + 10];
    memset(text, 'x', sizeof text);
    text[sizeof err.message - 1] = '\0';
    (void)dd_error_set(&err, DD_STORE, "%s", text);
    CHECK(strcmp(err.message, text) == 0);
    dd_error_prepend(&err, "y");
    CHECK(ends_in_dots(&err) && strncmp(err.message, "y: xxx", 6) == 0);
    (void)dd_error_set(&err, DD_STORE, "%sz", text);
    CHECK(ends_in_dots(&err));
    (void)dd_error_set_errno(&err, DD_STORE, EPERM, "%s", text);
    CHECK(ends_in_dots(&err));
    dd_error_prepend(&err, "%s%s", text, text);
    CHECK(ends_in_dots(&err));
}

/* ---- bytes */

TEST(bytes_are_compared_by_length_and_content)
{
    CHECK(dd_bytes_equal(BYTES(""), dd_bytes_of(NULL, 0)));
    CHECK(dd_bytes_equal(BYTES("a\0b"), BYTES("a\0b")));
    CHECK(!dd_bytes_equal(BYTES("a\0b"), BYTES("a\0c")));
    CHECK(!dd_bytes_equal(BYTES("a"), BYTES("ab")));
    CHECK(dd_bytes_equal_secret(BYTES("a\0b"), BYTES("a\0b")));
    CHECK(dd_bytes_equal_secret(BYTES(""), dd_bytes_of(NULL, 0)));
    CHECK(!dd_bytes_equal_secret(BYTES("a\0b"), BYTES("a\0c")));
    CHECK(!dd_bytes_equal_secret(BYTES("b"), BYTES("a")));
    CHECK(!dd_bytes_equal_secret(BYTES("a"), BYTES("ab")));
    CHECK_INT(dd_bytes_of_string("four").len, 4);
}

TEST(bytes_are_printed_with_escapes_and_truncated)
{
    char out[16];
    CHECK(strcmp(dd_bytes_print(BYTES(""), out, sizeof out), "") == 0);
    CHECK(strcmp(dd_bytes_print(BYTES("a b\0\x7f"), out, sizeof out), "a b\\x00\\x7f") == 0);
    CHECK(strcmp(dd_bytes_print(BYTES("123456789012345"), out, sizeof out), "123456789012345") == 0);
    CHECK(strcmp(dd_bytes_print(BYTES("1234567890123456"), out, sizeof out), "123456789012...") == 0);
    CHECK(strcmp(dd_bytes_print(BYTES("12345678901\xff"), out, sizeof out), "12345678901\\xff") == 0);
    CHECK(strcmp(dd_bytes_print(BYTES("123456789012\xff"), out, sizeof out), "123456789012...") == 0);
    CHECK(strcmp(dd_bytes_print(BYTES("\xff\xff\xff\xff"), out, sizeof out), "\\xff\\xff\\xff...") == 0);
}

TEST(byte_buffers_append_assign_and_consume_bytes)
{
    dd_blob blob = {0};
    CHECK_OK(dd_blob_append(&blob, NULL, 0, check_err()));
    CHECK(blob.data == NULL);
    CHECK_OK(dd_blob_append(&blob, "abc", 3, check_err()));
    CHECK_OK(dd_blob_append(&blob, "\0d", 2, check_err()));
    CHECK_TEXT(dd_blob_view(&blob), "abc\0d");
    dd_blob_consume(&blob, 0);
    dd_blob_consume(&blob, 2);
    CHECK_TEXT(dd_blob_view(&blob), "c\0d");
    CHECK_OK(dd_blob_assign(&blob, BYTES("other"), check_err()));
    CHECK_TEXT(dd_blob_view(&blob), "other");
    CHECK_OK(dd_blob_assign(&blob, BYTES(""), check_err()));
    CHECK_INT(blob.len, 0);
    dd_blob_consume(&blob, 0);
    CHECK_OK(dd_blob_reserve(&blob, 100, check_err()));
    CHECK(blob.capacity >= 100);
    dd_blob_clear(&blob, blob.capacity);
    CHECK(blob.data != NULL && blob.len == 0);
    dd_blob_clear(&blob, blob.capacity - 1);
    CHECK(blob.data == NULL && blob.capacity == 0);
    dd_blob_fini(&blob);
}

TEST(a_byte_buffer_keeps_its_bytes_when_an_allocation_fails)
{
    dd_blob blob = {0};
    CHECK_OK(dd_blob_assign(&blob, BYTES("kept"), check_err()));
    (void)dd_mem_fail_after(0);
    CHECK_STATUS(dd_blob_append(&blob, "abcdef", 6, check_err()), DD_OUT_OF_MEMORY);
    (void)dd_mem_fail_after(0);
    CHECK_STATUS(dd_blob_assign(&blob, BYTES("longer than before"), check_err()), DD_OUT_OF_MEMORY);
    (void)dd_mem_fail_after(-1);
    CHECK_TEXT(dd_blob_view(&blob), "kept");
    CHECK_STATUS(dd_blob_reserve(&blob, SIZE_MAX - 1, check_err()), DD_OUT_OF_MEMORY);
    CHECK_TEXT(dd_blob_view(&blob), "kept");
    dd_blob_fini(&blob);
}

/* Appending piece by piece must not copy the whole blob each time. */
TEST(appending_to_a_large_byte_buffer_rarely_reallocates_it)
{
    dd_blob blob = {0};
    char piece[1000] = {0};
    (void)dd_mem_fail_after(-1);
    for (int i = 0; i < 1000; i++) {
        CHECK_OK(dd_blob_append(&blob, piece, sizeof piece, check_err()));
    }
    CHECK(dd_mem_fail_after(-1) < 40);
    CHECK_INT(blob.len, 1000000);
    dd_blob_fini(&blob);
}

TEST(allocations_that_overflow_or_fail_return_null)
{
    CHECK(dd_mem_alloc_array(SIZE_MAX / 2, 3) == NULL);
    void *nothing = dd_mem_alloc_array(0, 8);
    CHECK(nothing != NULL);
    dd_mem_free(nothing);
    dd_mem_free(NULL);
    (void)dd_mem_fail_after(1);
    void *first = dd_mem_zalloc(0);
    void *second = dd_mem_alloc(1);
    void *third = dd_mem_realloc(NULL, 1);
    CHECK(first != NULL && second == NULL && third != NULL);
    CHECK_INT(dd_mem_fail_after(-1), 3);
    dd_mem_free(first);
    dd_mem_free(third);
}

/* ---- list and map */

typedef struct number {
    dd_list node;
    dd_map_node in_map;
    int value;
    char key[12];
} number;

TEST(lists_keep_the_order_of_insertion)
{
    dd_list head;
    number numbers[4];
    dd_list_init(&head);
    CHECK(dd_list_is_empty(&head));
    for (int i = 0; i < 4; i++) {
        numbers[i].value = i;
        dd_list_push_back(&head, &numbers[i].node);
    }
    dd_list_remove(&numbers[1].node);
    dd_list_remove(&numbers[1].node);
    dd_list_insert_before(head.next, &numbers[1].node);
    int expected[] = {1, 0, 2, 3};
    int i = 0;
    for (dd_list *node = head.next; node != &head; node = node->next) {
        CHECK_INT(DD_CONTAINER_OF(node, number, node)->value, expected[i++]);
    }
    CHECK_INT(i, 4);
    for (i = 0; i < 4; i++) {
        dd_list_remove(&numbers[i].node);
    }
    CHECK(dd_list_is_empty(&head));
}

enum { NNUMBERS = 3000 };

static void
fill_map(dd_map *map, number *numbers)
{
    for (int i = 0; i < NNUMBERS; i++) {
        numbers[i].value = i;
        int len = snprintf(numbers[i].key, sizeof numbers[i].key, "%d", i * 31);
        numbers[i].in_map.key = dd_bytes_of(numbers[i].key, (size_t)len);
        CHECK(dd_map_find(map, numbers[i].in_map.key) == NULL);
        CHECK_OK(dd_map_insert(map, &numbers[i].in_map, check_err()));
        CHECK(dd_map_find(map, numbers[i].in_map.key) == &numbers[i].in_map);
    }
    CHECK_INT(map->count, NNUMBERS);
}

TEST(a_hash_map_grows_and_shrinks_with_its_entries)
{
    dd_map map;
    number *numbers = calloc(NNUMBERS, sizeof *numbers);
    bool seen[NNUMBERS] = {false};
    REQUIRE(numbers != NULL);
    dd_map_init(&map);
    CHECK(dd_map_next(&map, NULL) == NULL);
    CHECK(dd_map_find(&map, BYTES("")) == NULL);
    fill_map(&map, numbers);
    CHECK(map.nbuckets >= NNUMBERS / 2);
    int count = 0;
    for (const dd_map_node *node = dd_map_next(&map, NULL); node != NULL; node = dd_map_next(&map, node)) {
        int value = DD_CONTAINER_OF(node, number, in_map)->value;
        CHECK(!seen[value]);
        seen[value] = true;
        count++;
    }
    CHECK_INT(count, NNUMBERS);
    number other = {.in_map.key = numbers[1].in_map.key};
    dd_map_replace(&map, &numbers[1].in_map, &other.in_map);
    CHECK(dd_map_find(&map, numbers[1].in_map.key) == &other.in_map);
    CHECK_INT(map.count, NNUMBERS);
    dd_map_replace(&map, &other.in_map, &numbers[1].in_map);
    for (int i = 0; i < NNUMBERS; i += 3) {
        dd_map_remove(&map, &numbers[i].in_map);
    }
    for (int i = 0; i < NNUMBERS; i++) {
        CHECK_INT(dd_map_find(&map, numbers[i].in_map.key) != NULL, i % 3 != 0);
    }
    CHECK_INT(map.count, NNUMBERS - (NNUMBERS + 2) / 3);
    dd_map_fini(&map);
    dd_map_fini(&map);
    free(numbers);
}

TEST(the_keys_of_a_hash_map_may_be_any_bytes)
{
    static const dd_bytes keys[] = {{NULL, 0},
                                    {(const uint8_t *)"\0", 1},
                                    {(const uint8_t *)"\0\0", 2},
                                    {(const uint8_t *)"12345678", 8},
                                    {(const uint8_t *)"12345678\0", 9},
                                    {(const uint8_t *)"1234567", 7}};
    number numbers[6] = {0};
    dd_map map;
    dd_map other;
    dd_map_init(&map);
    dd_map_init(&other);
    CHECK(memcmp(map.secret, other.secret, sizeof map.secret) != 0);
    for (int i = 0; i < 6; i++) {
        numbers[i].in_map.key = keys[i];
        CHECK_OK(dd_map_insert(&map, &numbers[i].in_map, check_err()));
    }
    for (int i = 0; i < 6; i++) {
        CHECK(dd_map_find(&map, keys[i]) == &numbers[i].in_map);
    }
    CHECK(dd_map_find(&map, BYTES("\0\0\0")) == NULL);
    dd_map_fini(&map);
    dd_map_fini(&other);
}

TEST(a_hash_map_stays_unchanged_when_an_allocation_fails)
{
    dd_map map;
    number *numbers = calloc(NNUMBERS, sizeof *numbers);
    REQUIRE(numbers != NULL);
    dd_map_init(&map);
    for (int i = 0; i < 200; i++) {
        int len = snprintf(numbers[i].key, sizeof numbers[i].key, "%d", i);
        numbers[i].in_map.key = dd_bytes_of(numbers[i].key, (size_t)len);
        (void)dd_mem_fail_after(0);
        dd_status status = dd_map_insert(&map, &numbers[i].in_map, check_err());
        (void)dd_mem_fail_after(-1);
        if (status != DD_OK) {
            CHECK_INT(status, DD_OUT_OF_MEMORY);
            CHECK_INT(map.count, i);
            CHECK(dd_map_find(&map, numbers[i].in_map.key) == NULL);
            CHECK_OK(dd_map_insert(&map, &numbers[i].in_map, check_err()));
        }
    }
    CHECK_INT(map.count, 200);
    dd_map_fini(&map);
    free(numbers);
}

/* ---- time */

TEST(deadlines_are_clamped_to_the_valid_range)
{
    int64_t now_ns = dd_clock_now_ns();
    CHECK(dd_deadline_after(DD_NS_PER_S) >= now_ns + DD_NS_PER_S);
    CHECK(dd_deadline_after(-5) >= now_ns && dd_deadline_after(-5) < now_ns + 60 * DD_NS_PER_S);
    CHECK_INT(dd_deadline_after(INT64_MAX), DD_NEVER_NS);
    CHECK_INT(dd_deadline_left_ns(DD_NEVER_NS), DD_NEVER_NS);
    CHECK_INT(dd_deadline_left_ns(now_ns), 0);
    CHECK(dd_deadline_left_ns(now_ns + 60 * DD_NS_PER_S) > 0);
}

TEST(waits_expire_at_their_deadline)
{
    dd_wait wait = dd_wait_after(3600 * DD_NS_PER_S);
    CHECK(!dd_wait_has_expired(&wait));
    CHECK_INT(dd_wait_slice_ns(&wait), DD_WAIT_SLICE_NS);
    dd_wait longer = wait; /* the longer a wait lasts, the less often the callback is called */
    longer.start_ns -= 800 * DD_NS_PER_MS;
    CHECK(dd_wait_slice_ns(&longer) >= 50 * DD_NS_PER_MS);
    longer.start_ns -= 3600 * DD_NS_PER_S;
    CHECK_INT(dd_wait_slice_ns(&longer), DD_WAIT_LONG_SLICE_NS);
    dd_wait shorter = dd_wait_at_most(&wait, DD_NS_PER_MS);
    CHECK(shorter.deadline_ns < wait.deadline_ns && shorter.start_ns == wait.start_ns);
    CHECK(dd_wait_slice_ns(&shorter) <= DD_NS_PER_MS);
    CHECK_INT(dd_wait_at_most(&shorter, INT64_MAX).deadline_ns, shorter.deadline_ns);
    CHECK_OK(dd_wait_sleep(&shorter, DD_NS_PER_S, check_err()));
    CHECK(dd_wait_has_expired(&shorter));
    CHECK_INT(dd_wait_slice_ns(&shorter), 0);
    CHECK(dd_wait_elapsed_s(&wait) >= 0.001 && dd_wait_elapsed_s(&wait) < 60);
    CHECK_OK(dd_wait_check(&wait, check_err()));
}

static bool
interrupt_after_count(void *ctx)
{
    return --*(int *)ctx <= 0;
}

TEST(a_wait_ends_when_its_interrupt_callback_returns_true)
{
    int left = 2;
    dd_wait wait = dd_wait_after(3600 * DD_NS_PER_S);
    wait.is_interrupted = interrupt_after_count;
    wait.ctx = &left;
    CHECK_OK(dd_wait_check(&wait, check_err()));
    CHECK_STATUS(dd_wait_check(&wait, check_err()), DD_INTERRUPTED);
    CHECK_CONTAINS(check_message(), "interrupted after ");
    left = 2;
    CHECK_STATUS(dd_wait_sleep(&wait, 3600 * DD_NS_PER_S, check_err()), DD_INTERRUPTED);
    CHECK_INT(left, 0);
}

/* ---- threads, forks, log */

static void *
report_mask(void *arg)
{
    (void)pthread_sigmask(SIG_SETMASK, NULL, arg);
    return NULL;
}

TEST(threads_that_the_library_starts_block_signals)
{
    pthread_t thread;
    sigset_t theirs;
    sigset_t ours;
    REQUIRE_OK(dd_thread_start(&thread, "a name that is too long", report_mask, &theirs, check_err()));
    pthread_join(thread, NULL);
    CHECK(sigismember(&theirs, SIGINT) == 1 && sigismember(&theirs, SIGTERM) == 1);
    (void)pthread_sigmask(SIG_SETMASK, NULL, &ours);
    CHECK(sigismember(&ours, SIGINT) == 0);
}

TEST(waiting_for_a_condition_in_slices_does_not_end_before_the_deadline)
{
    dd_lock mu;
    pthread_cond_t cond;
    dd_lock_init(&mu, DD_LOCK_TEST);
    dd_cond_init(&cond);
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_MS);
    dd_lock_take(&mu);
    while (!dd_wait_has_expired(&wait)) {
        dd_cond_wait_slice(&cond, &mu, &wait);
    }
    dd_lock_release(&mu);
    CHECK(dd_wait_elapsed_s(&wait) >= 0.020);
    pthread_cond_destroy(&cond);
    dd_lock_fini(&mu);
}

TEST(a_forked_child_has_another_fork_generation_than_its_parent)
{
    int status = -1;
    uint64_t ours = dd_fork_generation();
    pid_t pid = fork();
    if (pid == 0) {
        _exit(dd_fork_generation() != ours ? 0 : 1);
    }
    REQUIRE(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK_INT(status, 0);
    CHECK_INT(dd_fork_generation(), ours);
}

TEST(log_levels_are_parsed_regardless_of_case)
{
    static const struct {
        const char *text;
        bool is_valid;
        dd_log_level level;
    } cases[] = {{"", true, DD_LOG_OFF},        {"off", true, DD_LOG_OFF},    {"INFO", true, DD_LOG_INFO},
                 {"Debug", true, DD_LOG_DEBUG}, {"infos", false, DD_LOG_OFF}, {"1", false, DD_LOG_OFF}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dd_log_level level = DD_LOG_OFF;
        CHECK_INT(dd_log_level_parse(cases[i].text, &level), cases[i].is_valid);
        CHECK_INT(level, cases[i].level);
    }
}

TEST(log_records_are_filtered_by_level_and_counted_if_lost)
{
    dd_log_record record;
    dd_wait wait = dd_wait_after(0);
    int nformatted = 0;
    CHECK_INT(dd_log_get_level(), DD_LOG_OFF);
    DD_LOG(DD_LOG_INFO, "not written %d", ++nformatted);
    CHECK_INT(nformatted, 0);
    CHECK_STATUS(dd_log_take(&record, &wait, check_err()), DD_TIMED_OUT);
    dd_log_set_level(DD_LOG_INFO);
    DD_LOG(DD_LOG_DEBUG, "not written %d", ++nformatted);
    DD_LOG(DD_LOG_INFO, "number %d", 0);
    wait = dd_wait_after(5 * DD_NS_PER_S);
    CHECK_OK(dd_log_take(&record, &wait, check_err()));
    CHECK(strcmp(record.message, "number 0") == 0);
    CHECK(record.level == DD_LOG_INFO && record.lost == 0 && record.unix_time_s > 1e9);
    for (int i = 0; i < 300; i++) {
        DD_LOG(DD_LOG_INFO, "number %d", i);
    }
    CHECK_OK(dd_log_take(&record, &wait, check_err()));
    CHECK(strcmp(record.message, "number 44") == 0);
    CHECK_INT(record.lost, 44);
    CHECK_OK(dd_log_take(&record, &wait, check_err()));
    CHECK_INT(record.lost, 0);
    while (dd_log_take(&record, &(dd_wait){0}, NULL) == DD_OK) {
    }
    dd_log_set_level(DD_LOG_OFF);
}

static void *
log_late(void *arg)
{
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_MS);
    (void)arg;
    CHECK_OK(dd_wait_sleep(&wait, 20 * DD_NS_PER_MS, check_err()));
    DD_LOG(DD_LOG_DEBUG, "late");
    return NULL;
}

TEST(reading_the_log_waits_for_the_next_record)
{
    pthread_t thread;
    dd_log_record record;
    int left = 2;
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S);
    dd_log_set_level(DD_LOG_DEBUG);
    REQUIRE_OK(dd_thread_start(&thread, "late", log_late, NULL, check_err()));
    CHECK_OK(dd_log_take(&record, &wait, check_err()));
    CHECK(strcmp(record.message, "late") == 0);
    pthread_join(thread, NULL);
    wait.is_interrupted = interrupt_after_count;
    wait.ctx = &left;
    CHECK_STATUS(dd_log_take(&record, &wait, check_err()), DD_INTERRUPTED);
}

/* --- lock ------------------------------------------------------------------------------------- */

/* Run `body` in a child. `text` receives its output, which is empty if the lock order permits
 * it. */
static void
run_in_child(void (*body)(const dd_lock_kind *kinds), const dd_lock_kind *kinds, char text[256])
{
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        body(kinds);
        _exit(0);
    }
    close(ends[1]);
    ssize_t nbytes = read(ends[0], text, 255);
    text[nbytes > 0 ? nbytes : 0] = '\0';
    close(ends[0]);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_INT(WIFSIGNALED(status) ? WTERMSIG(status) : 0, nbytes > 0 ? SIGABRT : 0);
}

static void
take_both(const dd_lock_kind *kinds)
{
    dd_lock locks[2];
    for (int i = 0; i < 2; i++) {
        dd_lock_init(&locks[i], kinds[i]);
        dd_lock_take(&locks[i]);
    }
    dd_lock_release(&locks[0]);
    dd_lock_release(&locks[1]);
}

TEST(taking_locks_in_the_wrong_order_ends_the_process)
{
    char text[256];
    run_in_child(take_both, (dd_lock_kind[]){DD_LOCK_ENGINE, DD_LOCK_CONNECTOR}, text);
    CHECK(text[0] == '\0');
    run_in_child(take_both, (dd_lock_kind[]){DD_LOCK_CONNECTOR, DD_LOCK_ENGINE}, text);
    CHECK_CONTAINS(text,
                   "holds the lock of dials that have not begun, and ports takes the lock of an engine");
    run_in_child(take_both, (dd_lock_kind[]){DD_LOCK_ENGINE, DD_LOCK_ENGINE}, text);
    CHECK_CONTAINS(text, "order of locks");
}

static void
release_another(const dd_lock_kind *kinds)
{
    dd_lock locks[2];
    dd_lock_init(&locks[0], kinds[0]);
    dd_lock_init(&locks[1], kinds[1]);
    dd_lock_take(&locks[0]);
    dd_lock_release(&locks[1]);
}

static void
take_all(const dd_lock_kind *kinds)
{
    static dd_lock locks[DD_LOCK_COUNT];
    for (int kind = kinds[0]; kind < DD_LOCK_COUNT; kind++) {
        dd_lock_init(&locks[kind], (dd_lock_kind)kind);
        dd_lock_take(&locks[kind]);
    }
}

TEST(releasing_a_lock_not_held_or_holding_too_many_ends_the_process)
{
    char text[256];
    run_in_child(release_another, (dd_lock_kind[]){DD_LOCK_ENGINE, DD_LOCK_LOG}, text);
    CHECK_CONTAINS(text, "a thread releases the lock of records for the log, which it does not hold");
    run_in_child(take_all, (dd_lock_kind[]){(dd_lock_kind)0}, text);
    CHECK_CONTAINS(text, "a thread holds more than 8");
}

static void
start_run_in_progress(const dd_lock_kind *kinds)
{
    dd_lock lock;
    dd_lock_init(&lock, kinds[0]);
    dd_lock_take(&lock);
    static dd_run run = {.phase = DD_RUN_UNDER_WAY};
    dd_run_start_locked(&run, &(dd_run_call){0});
}

TEST(a_failed_assertion_ends_the_process)
{
    char text[256];
    run_in_child(start_run_in_progress, (dd_lock_kind[]){DD_LOCK_CONNECTOR}, text);
    CHECK_CONTAINS(text, "assertion failed: dd_lock_holds(DD_LOCK_ENGINE)");
    run_in_child(start_run_in_progress, (dd_lock_kind[]){DD_LOCK_ENGINE}, text);
    CHECK_CONTAINS(text, "assertion failed: run->phase == DD_RUN_IDLE");
}

static void
take_one_and_try_another(const dd_lock_kind *kinds)
{
    dd_lock locks[2];
    dd_lock_init(&locks[0], kinds[0]);
    dd_lock_init(&locks[1], kinds[1]);
    dd_lock_take(&locks[0]);
    CHECK(dd_lock_try(&locks[1]));
    dd_lock_release(&locks[1]);
    dd_lock_release(&locks[0]);
}

static void
take_one_and_a_timed_one(const dd_lock_kind *kinds)
{
    dd_lock lock;
    dd_timed_lock timed;
    dd_lock_init(&lock, kinds[0]);
    dd_timed_lock_init(&timed, kinds[1]);
    dd_lock_take(&lock);
    CHECK(dd_timed_lock_take_within(&timed, 0));
    dd_timed_lock_release(&timed);
    dd_lock_release(&lock);
}

static void
take_a_timed_one_and_another(const dd_lock_kind *kinds)
{
    dd_timed_lock timed;
    dd_lock lock;
    dd_timed_lock_init(&timed, kinds[0]);
    dd_lock_init(&lock, kinds[1]);
    CHECK(dd_timed_lock_take_within(&timed, 0));
    dd_lock_take(&lock);
}

/* A caller that tries a lock first and then waits for it must follow the lock order, like a caller
 * that only waits. */
TEST(trying_a_lock_in_the_wrong_order_ends_the_process)
{
    char text[256];
    run_in_child(take_one_and_try_another, (dd_lock_kind[]){DD_LOCK_ENGINE, DD_LOCK_CONNECTOR}, text);
    CHECK(text[0] == '\0');
    run_in_child(take_one_and_try_another, (dd_lock_kind[]){DD_LOCK_CONNECTOR, DD_LOCK_ENGINE}, text);
    CHECK_CONTAINS(text,
                   "holds the lock of dials that have not begun, and ports takes the lock of an engine");
}

TEST(taking_a_lock_with_a_deadline_in_the_wrong_order_ends_the_process)
{
    char text[256];
    run_in_child(take_one_and_a_timed_one, (dd_lock_kind[]){DD_LOCK_NCCL_LAUNCH, DD_LOCK_NCCL_GROUP}, text);
    CHECK(text[0] == '\0');
    run_in_child(take_one_and_a_timed_one, (dd_lock_kind[]){DD_LOCK_NCCL_GROUP, DD_LOCK_NCCL_LAUNCH}, text);
    CHECK_CONTAINS(text, "holds the lock of an NCCL group takes the lock of the launches of an NCCL group");
    run_in_child(take_a_timed_one_and_another, (dd_lock_kind[]){DD_LOCK_NCCL_LAUNCH, DD_LOCK_NCCL_TEAM},
                 text);
    CHECK_CONTAINS(text,
                   "holds the lock of the launches of an NCCL group takes the lock of a team of devices");
}

typedef struct timed_holder {
    dd_timed_lock lock;
    atomic_int nholders;
    atomic_int nturns;
} timed_holder;

static void *
take_many_times(void *arg)
{
    timed_holder *self = arg;
    for (int i = 0; i < 1000; i++) {
        while (!dd_timed_lock_take_within(&self->lock, DD_NS_PER_MS)) {
        }
        CHECK_INT(atomic_fetch_add(&self->nholders, 1), 0);
        atomic_fetch_add(&self->nturns, 1);
        atomic_fetch_sub(&self->nholders, 1);
        dd_timed_lock_release(&self->lock);
    }
    return NULL;
}

TEST(a_lock_with_a_deadline_has_one_holder_at_a_time)
{
    timed_holder self = {0};
    pthread_t threads[4];
    dd_timed_lock_init(&self.lock, DD_LOCK_TEST);
    for (int i = 0; i < 4; i++) {
        REQUIRE_OK(dd_thread_start(&threads[i], "taker", take_many_times, &self, check_err()));
    }
    for (int i = 0; i < 4; i++) {
        dd_thread_join(threads[i]);
    }
    CHECK_INT(atomic_load(&self.nturns), 4000);
    dd_timed_lock_fini(&self.lock);
}

static void *
wait_for_it(void *arg)
{
    dd_timed_lock *lock = arg;
    int64_t start_ns = dd_clock_now_ns();
    CHECK(!dd_timed_lock_take_within(lock, 20 * DD_NS_PER_MS));
    CHECK(dd_clock_now_ns() - start_ns >= 20 * DD_NS_PER_MS);
    return NULL;
}

/* The deadline holds even if the calendar is set back by an hour during the wait. */
TEST(a_lock_waits_until_its_deadline_even_if_the_system_clock_is_set_back)
{
    dd_timed_lock lock;
    pthread_t thread;
    dd_timed_lock_init(&lock, DD_LOCK_TEST);
    CHECK(dd_timed_lock_take_within(&lock, 0));
    clock_counter_set_calendar_ahead(3600 * DD_NS_PER_S);
    REQUIRE_OK(dd_thread_start(&thread, "waiter", wait_for_it, &lock, check_err()));
    dd_thread_join(thread);
    dd_timed_lock_release(&lock);
    dd_timed_lock_fini(&lock);
}

/* --- spin ------------------------------------------------------------------------------------- */

TEST(the_time_that_a_wait_polls_adapts_to_the_length_of_earlier_waits)
{
    dd_spin spin = {.max_ns = DD_NS_PER_MS, .budget_ns = DD_NS_PER_MS};
    dd_spin_note_wait(&spin, 5 * DD_NS_PER_MS);
    CHECK_INT(spin.budget_ns, DD_NS_PER_MS / 2);
    for (int i = 0; i < 100; i++) {
        dd_spin_note_wait(&spin, INT64_MAX);
    }
    CHECK_INT(spin.budget_ns, 20 * DD_NS_PER_US); /* there is always a poll, even if a short one */
    dd_spin_note_wait(&spin, 10);
    CHECK_INT(spin.budget_ns, 20 * DD_NS_PER_US);
    dd_spin_note_wait(&spin, 100 * DD_NS_PER_US);
    CHECK_INT(spin.budget_ns, 200 * DD_NS_PER_US);
    /* waits shorter than the budget do not change it */
    dd_spin_note_wait(&spin, 50 * DD_NS_PER_US);
    CHECK_INT(spin.budget_ns, 200 * DD_NS_PER_US);
    dd_spin_note_wait(&spin, DD_NS_PER_MS);
    CHECK_INT(spin.budget_ns, DD_NS_PER_MS);
}

TEST(the_time_that_a_wait_polls_follows_the_chosen_policy)
{
    dd_spin spin = dd_spin_create(DD_NS_PER_MS);
    dd_spin_set_policy(&spin, DD_SPIN_POLL);
    int64_t endless_ns = spin.budget_ns;
    dd_spin_note_wait(&spin, 3600 * DD_NS_PER_S);
    CHECK(dd_spin_is_endless(&spin) && spin.budget_ns == endless_ns);
    dd_spin_set_policy(&spin, DD_SPIN_SLEEP);
    dd_spin_note_wait(&spin, 0);
    dd_spin_note_wait(&spin, 3600 * DD_NS_PER_S);
    CHECK(!dd_spin_is_endless(&spin) && spin.budget_ns == 0);
}

TEST(a_short_polling_time_does_not_grow)
{
    dd_spin spin = {.max_ns = 1000, .budget_ns = 1000};
    dd_spin_note_wait(&spin, 3600 * DD_NS_PER_S);
    CHECK_INT(spin.budget_ns, 1000);
}

TEST(a_wait_polls_for_its_polling_time_and_then_adapts_it)
{
    dd_spin spin = {.max_ns = 3600 * DD_NS_PER_S, .budget_ns = 3600 * DD_NS_PER_S};
    CHECK(dd_spin_may_continue(&spin));
    int64_t began_ns = spin.waits_since_ns;
    CHECK(dd_spin_may_continue(&spin) && began_ns > 0 && spin.waits_since_ns == began_ns);
    spin.budget_ns = 0;
    CHECK(!dd_spin_may_continue(&spin));
    dd_spin_end_wait(&spin);
    CHECK(spin.waits_since_ns == 0 && spin.budget_ns > 0);
    int64_t learned_ns = spin.budget_ns;
    dd_spin_end_wait(&spin); /* no thread was waiting */
    CHECK_INT(spin.budget_ns, learned_ns);
}

TEST(a_polling_time_of_zero_stays_zero)
{
    dd_spin spin = {0};
    dd_spin_note_wait(&spin, 1);
    CHECK_INT(spin.budget_ns, 0);
}

TEST(a_thread_bound_to_one_of_several_cores_polls_like_an_unbound_one)
{
    int64_t unbound_ns = dd_spin_create(DD_NS_PER_MS).budget_ns;
    bool has_one_core = sysconf(_SC_NPROCESSORS_ONLN) == 1 || dd_cpu_quota() == 1;
    CHECK_INT(unbound_ns, has_one_core ? 0 : DD_NS_PER_MS);
    cpu_set_t own, one;
    REQUIRE(sched_getaffinity(0, sizeof own, &own) == 0);
    size_t cpu = 0;
    while (!CPU_ISSET(cpu, &own)) {
        cpu++;
    }
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
    CHECK_INT(dd_spin_create(DD_NS_PER_MS).budget_ns, unbound_ns);
    CHECK(sched_setaffinity(0, sizeof own, &own) == 0);
}

/* ---- system calls that fail on request of a test */

static int nfailures;

static void
count_failure(void)
{
    nfailures++;
}

TEST(an_injected_fault_fails_the_nth_system_call_of_its_kind)
{
    dd_sys_fault fault = {
        .call = DD_SYS_gethostname, .number = 1, .error_number = EIO, .on_failure = count_failure};
    char name[256];
    struct stat info;
    for (int i = 0; i < 2; i++) {
        fault.is_lasting = i == 1;
        dd_sys_fail_call(&fault);
        CHECK_INT(dd_sys_count_calls(DD_SYS_gethostname), 0);
        CHECK_INT(dd_sys_gethostname(name, sizeof name), 0);
        CHECK_INT(dd_sys_stat("/", &info), 0); /* another system call */
        errno = 0;
        CHECK_INT(dd_sys_gethostname(name, sizeof name), -1);
        CHECK_INT(errno, EIO);
        CHECK_INT(dd_sys_gethostname(name, sizeof name), i == 1 ? -1 : 0);
        CHECK_INT(dd_sys_count_calls(DD_SYS_gethostname), 3);
    }
    CHECK_INT(nfailures, 3);
    dd_sys_fail_call(NULL);
    CHECK_INT(dd_sys_gethostname(name, sizeof name), 0);
}

TEST(system_calls_have_names)
{
    CHECK(strcmp(dd_sys_call_name(DD_SYS_open), "open") == 0);
    CHECK(strcmp(dd_sys_call_name(DD_SYS_getrandom), "getrandom") == 0);
    CHECK(strcmp(dd_sys_call_name(DD_SYS_getaddrinfo), "getaddrinfo") == 0);
    CHECK(strcmp(dd_sys_call_name((dd_sys_call)(DD_SYS_CALL_COUNT - 1)), "get_file_limit") == 0);
}
