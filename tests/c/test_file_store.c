#include "check.h"
#include "core/fork.h"
#include "core/mem.h"
#include "core/system.h"
#include "faults/faults.h"
#include "store/file_log.h"
#include "store/file_store.h"
#include "store_calls.h"
#include "store_suite.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define LONG_NS (8 * DD_NS_PER_S)
#define GATE_BYTE ((off_t)1 << 40)

/* A separate folder for each test, and a path in it. */
typedef struct offset {
    char folder[64];
    char path[96];
} offset;

static bool
place_make(offset *here)
{
    snprintf(here->folder, sizeof here->folder, "/tmp/dd_file_store_XXXXXX");
    if (!CHECK(mkdtemp(here->folder) != NULL)) {
        return false;
    }
    snprintf(here->path, sizeof here->path, "%s/store", here->folder);
    return true;
}

static void
place_remove(const offset *here)
{
    (void)unlink(here->path);
    CHECK(rmdir(here->folder) == 0);
}

static bool
is_file_there(const offset *here)
{
    return access(here->path, F_OK) == 0;
}

static dd_status
try_open(dd_store **store, const char *path, int64_t world_size, int64_t timeout_ns, dd_error *err)
{
    dd_file_store_options options = {.path = path, .world_size = world_size, .timeout_ns = LONG_NS};
    dd_wait wait = dd_wait_after(timeout_ns);
    return dd_file_store_open(store, &options, &wait, err);
}

/* Open a store; return NULL after a failed check. */
static dd_store *
open_store(const char *path, int64_t world_size)
{
    dd_store *store = NULL;
    CHECK_OK(try_open(&store, path, world_size, LONG_NS, check_err()));
    return store;
}

static dd_status
set_within(dd_store *store, const char *key, const char *value, int64_t timeout_ns, dd_error *err)
{
    dd_wait wait = dd_wait_after(timeout_ns);
    return dd_store_set(store, dd_bytes_of_string(key), dd_bytes_of_string(value), &wait, err);
}

static void
set(dd_store *store, const char *key, const char *value)
{
    CHECK_OK(set_within(store, key, value, LONG_NS, check_err()));
}

static dd_status
get_within(dd_store *store, const char *key, dd_blob *value, int64_t timeout_ns, dd_error *err)
{
    dd_wait wait = dd_wait_after(timeout_ns);
    return dd_store_get(store, dd_bytes_of_string(key), value, &wait, err);
}

static void
check_get(dd_store *store, const char *key, const char *expected)
{
    dd_blob value = {0};
    if (CHECK_OK(get_within(store, key, &value, LONG_NS, check_err()))) {
        CHECK_BYTES(dd_blob_view(&value), dd_bytes_of_string(expected));
    }
    dd_blob_fini(&value);
}

static bool
has(dd_store *store, const char *key)
{
    dd_wait wait = dd_wait_after(LONG_NS);
    dd_bytes bytes = dd_bytes_of_string(key);
    bool is_ready = false;
    CHECK_OK(dd_store_check(store, &bytes, 1, &is_ready, &wait, check_err()));
    return is_ready;
}

static int64_t
add(dd_store *store, const char *key, int64_t amount)
{
    dd_wait wait = dd_wait_after(LONG_NS);
    int64_t sum = -1;
    CHECK_OK(dd_store_add(store, dd_bytes_of_string(key), amount, &sum, &wait, check_err()));
    return sum;
}

/* Return the number of keys, without the store's own key. */
static int64_t
count_keys(dd_store *store)
{
    dd_wait wait = dd_wait_after(LONG_NS);
    int64_t count = -1;
    CHECK_OK(dd_store_num_keys(store, &count, &wait, check_err()));
    return count - 1;
}

/* Check that the child succeeded. It has printed its failed checks. */
static void
check_child(pid_t pid)
{
    int status = 0;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static _Noreturn void
end_child(void)
{
    _exit(check_failures() > 0 ? 1 : 0);
}

static off_t
size_of(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? info.st_size : -1;
}

static dd_store *
open_for_suite(void **fixture)
{
    offset *here = malloc(sizeof *here);
    if (here == NULL || !place_make(here)) {
        free(here);
        return NULL;
    }
    *fixture = here;
    return open_store(here->path, -1);
}

static void
close_for_suite(void *fixture)
{
    place_remove(fixture);
    free(fixture);
}

STORE_SUITE(file, .open = open_for_suite, .close = close_for_suite, .has_queues = true,
            .has_number_errors = true, .thread_ops = 100)

/* ---- operations, between two stores on one file */

TEST(values_set_by_one_store_object_are_read_by_another)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_store *a = open_store(here.path, 2);
    dd_store *b = open_store(here.path, 2);
    REQUIRE(a != NULL && b != NULL);
    CHECK_BYTES(dd_bytes_of_string(dd_file_store_path(a)), dd_bytes_of_string(here.path));
    set(a, "k", "v");
    check_get(b, "k", "v");
    set(b, "k", "");
    check_get(a, "k", "");
    CHECK_INT(add(a, "n", 40), 40);
    CHECK_INT(add(b, "n", 2), 42);
    check_get(a, "n", "42");
    dd_wait wait = dd_wait_after(LONG_NS);
    int64_t sum;
    set(a, "word", "no number");
    CHECK_STATUS(dd_store_add(b, BYTES("word"), 1, &sum, &wait, check_err()), DD_STORE);
    CHECK_OK(dd_store_append(a, BYTES("log"), BYTES("one "), &wait, check_err()));
    CHECK_OK(dd_store_append(b, BYTES("log"), BYTES("two"), &wait, check_err()));
    check_get(a, "log", "one two");
    bool is_deleted = false;
    CHECK_OK(dd_store_delete_key(a, BYTES("log"), &is_deleted, &wait, check_err()));
    CHECK(is_deleted);
    CHECK_OK(dd_store_delete_key(b, BYTES("log"), &is_deleted, &wait, check_err()));
    CHECK(!is_deleted);
    CHECK_INT(count_keys(b), 3);
    bool is_found = true;
    dd_blob value = {0};
    CHECK_OK(dd_store_try_get(b, BYTES("log"), &value, &is_found, &wait, check_err()));
    CHECK(!is_found);
    CHECK_OK(dd_store_try_get(b, BYTES("n"), &value, &is_found, &wait, check_err()));
    CHECK(is_found);
    CHECK_TEXT(dd_blob_view(&value), "42");
    dd_blob_fini(&value);
    dd_store_release(a);
    dd_store_release(b);
    CHECK(!is_file_there(&here));
    place_remove(&here);
}

TEST(compare_set_replaces_only_the_expected_value)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_store *a = open_store(here.path, -1);
    dd_store *b = open_store(here.path, -1);
    REQUIRE(a != NULL && b != NULL);
    dd_wait wait = dd_wait_after(LONG_NS);
    dd_blob value = {0};
    CHECK_OK(dd_store_compare_set(a, BYTES("k"), BYTES("x"), BYTES("1"), &value, &wait, check_err()));
    CHECK_TEXT(dd_blob_view(&value), "x");
    CHECK(!has(b, "k"));
    CHECK_OK(dd_store_compare_set(a, BYTES("k"), BYTES(""), BYTES("1"), &value, &wait, check_err()));
    CHECK_TEXT(dd_blob_view(&value), "1");
    CHECK_OK(dd_store_compare_set(b, BYTES("k"), BYTES("0"), BYTES("2"), &value, &wait, check_err()));
    CHECK_TEXT(dd_blob_view(&value), "1");
    CHECK_OK(dd_store_compare_set(b, BYTES("k"), BYTES("1"), BYTES("2"), &value, &wait, check_err()));
    CHECK_TEXT(dd_blob_view(&value), "2");
    check_get(a, "k", "2");
    dd_blob_fini(&value);
    dd_store_release(a);
    dd_store_release(b);
    place_remove(&here);
}

TEST(many_keys_are_set_and_read_in_one_call)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_store *a = open_store(here.path, -1);
    dd_store *b = open_store(here.path, -1);
    REQUIRE(a != NULL && b != NULL);
    dd_wait wait = dd_wait_after(LONG_NS);
    dd_bytes keys[] = {BYTES("a"), BYTES("b\0b"), BYTES("")};
    dd_bytes values[] = {BYTES("1"), BYTES("\0"), BYTES("3")};
    CHECK_OK(dd_store_multi_set(a, keys, values, 3, &wait, check_err()));
    CHECK_OK(dd_store_multi_set(a, keys, values, 0, &wait, check_err()));
    dd_blob_list list = {0};
    CHECK_OK(dd_store_multi_get(b, keys, 3, &list, &wait, check_err()));
    for (size_t i = 0; i < list.count; i++) {
        CHECK_BYTES(dd_blob_view(&list.items[i]), values[i]);
    }
    CHECK_INT(list.count, 3);
    dd_blob_list_fini(&list);
    CHECK_OK(dd_store_list_keys(b, &list, &wait, check_err()));
    CHECK_INT(list.count, 3);
    dd_blob_list_fini(&list);
    CHECK_OK(dd_store_wait(b, keys, 3, &wait, check_err()));
    CHECK_OK(dd_store_wait(b, keys, 0, &wait, check_err()));
    dd_store_release(a);
    dd_store_release(b);
    place_remove(&here);
}

static int64_t
queue_len(dd_store *store, const char *key)
{
    dd_wait wait = dd_wait_after(LONG_NS);
    int64_t count = -1;
    CHECK_OK(dd_store_queue_len(store, dd_bytes_of_string(key), &count, &wait, check_err()));
    return count;
}

TEST(stores_of_one_file_share_queues_in_order)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_store *a = open_store(here.path, -1);
    dd_store *b = open_store(here.path, -1);
    REQUIRE(a != NULL && b != NULL);
    dd_wait wait = dd_wait_after(LONG_NS);
    dd_blob value = {0};
    CHECK_STATUS(dd_store_queue_pop(a, BYTES("q"), false, &value, &wait, check_err()), DD_QUEUE_EMPTY);
    CHECK_CONTAINS(check_message(), "queue \"q\" is empty");
    CHECK_OK(dd_store_queue_push(a, BYTES("q"), BYTES("1"), &wait, check_err()));
    CHECK_OK(dd_store_queue_push(b, BYTES("q"), BYTES("2"), &wait, check_err()));
    CHECK_INT(queue_len(a, "q"), 2);
    CHECK(has(a, "q"));
    CHECK_INT(count_keys(a), 0);
    CHECK_OK(dd_store_queue_pop(b, BYTES("q"), true, &value, &wait, check_err()));
    CHECK_TEXT(dd_blob_view(&value), "1");
    CHECK_OK(dd_store_queue_pop(a, BYTES("q"), false, &value, &wait, check_err()));
    CHECK_TEXT(dd_blob_view(&value), "2");
    CHECK_INT(queue_len(b, "q"), 0);
    dd_wait brief = dd_wait_after(30 * DD_NS_PER_MS);
    CHECK_STATUS(dd_store_queue_pop(a, BYTES("q"), true, &value, &brief, check_err()), DD_TIMED_OUT);
    dd_blob_fini(&value);
    dd_store_release(a);
    dd_store_release(b);
    place_remove(&here);
}

TEST(operations_that_change_nothing_do_not_write_to_the_file)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_store *store = open_store(here.path, -1);
    REQUIRE(store != NULL);
    dd_wait wait = dd_wait_after(LONG_NS);
    dd_blob value = {0};
    bool is_deleted = true;
    int64_t sum;
    set(store, "k", "word");
    off_t size = size_of(here.path);
    CHECK_OK(dd_store_compare_set(store, BYTES("k"), BYTES(""), BYTES("word"), &value, &wait, check_err()));
    CHECK_OK(dd_store_compare_set(store, BYTES("no"), BYTES("x"), BYTES("y"), &value, &wait, check_err()));
    CHECK_OK(dd_store_delete_key(store, BYTES("no"), &is_deleted, &wait, check_err()));
    CHECK(!is_deleted);
    CHECK_STATUS(dd_store_queue_pop(store, BYTES("k"), false, &value, &wait, check_err()), DD_QUEUE_EMPTY);
    CHECK_CONTAINS(check_message(), here.path);
    CHECK_STATUS(dd_store_add(store, BYTES("k"), 1, &sum, &wait, check_err()), DD_STORE);
    CHECK_INT(size_of(here.path), size);
    check_get(store, "k", "word");
    dd_blob_fini(&value);
    dd_store_release(store);
    place_remove(&here);
}

/* ---- waiting */

TEST(a_timeout_is_exact_and_names_the_missing_keys)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_store *store = open_store(here.path, -1);
    REQUIRE(store != NULL);
    dd_blob value = {0};
    int64_t start_ns = dd_clock_now_ns();
    CHECK_STATUS(get_within(store, "absent", &value, 130 * DD_NS_PER_MS, check_err()), DD_TIMED_OUT);
    int64_t took_ns = dd_clock_now_ns() - start_ns;
    CHECK(took_ns >= 130 * DD_NS_PER_MS);
    CHECK(took_ns < 630 * DD_NS_PER_MS * check_slow());
    CHECK_CONTAINS(check_message(), here.path);
    CHECK_CONTAINS(check_message(), "absent");
    CHECK_CONTAINS(check_message(),
                   "Wait timeout after 130ms, keys: absent (1 of 1 missing): get on FileStore");
    dd_store_release(store);
    place_remove(&here);
}

static bool
is_interrupted_now(void *ctx)
{
    return dd_clock_now_ns() > *(int64_t *)ctx;
}

TEST(a_wait_for_a_key_can_be_interrupted)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_store *store = open_store(here.path, -1);
    REQUIRE(store != NULL);
    int64_t moment_ns = dd_clock_now_ns() + 50 * DD_NS_PER_MS;
    dd_wait wait = dd_wait_after(LONG_NS);
    wait.is_interrupted = is_interrupted_now;
    wait.ctx = &moment_ns;
    dd_blob value = {0};
    CHECK_STATUS(dd_store_get(store, BYTES("k"), &value, &wait, check_err()), DD_INTERRUPTED);
    CHECK(dd_clock_now_ns() - moment_ns < 400 * DD_NS_PER_MS * check_slow());
    dd_store_release(store);
    place_remove(&here);
}

TEST(a_wait_ends_when_another_process_sets_the_key)
{
    offset here;
    REQUIRE(place_make(&here));
    pid_t pid = fork();
    if (pid == 0) {
        dd_store *store = open_store(here.path, 2);
        if (store != NULL) {
            check_get(store, "go", "now");
            set(store, "gone", "yes");
        }
        dd_store_release(store);
        end_child();
    }
    dd_store *store = open_store(here.path, 2);
    REQUIRE(store != NULL);
    dd_blob value = {0};
    CHECK_STATUS(get_within(store, "gone", &value, 50 * DD_NS_PER_MS, check_err()), DD_TIMED_OUT);
    set(store, "go", "now");
    check_get(store, "gone", "yes");
    check_child(pid);
    dd_store_release(store);
    CHECK(!is_file_there(&here));
    place_remove(&here);
}

#define NPROCESSES 4
#define NADDS 200

TEST(adds_of_many_processes_are_all_counted)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_store *store = open_store(here.path, -1);
    REQUIRE(store != NULL);
    pid_t pids[NPROCESSES];
    for (int i = 0; i < NPROCESSES; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            dd_store *mine = open_store(here.path, -1);
            for (int j = 0; j < NADDS && mine != NULL; j++) {
                (void)add(mine, "n", 1);
            }
            dd_store_release(mine);
            end_child();
        }
    }
    for (int i = 0; i < NPROCESSES; i++) {
        check_child(pids[i]);
    }
    CHECK_INT(add(store, "n", 0), NPROCESSES * NADDS);
    dd_store_release(store);
    place_remove(&here);
}

TEST(a_barrier_waits_for_all_processes)
{
    offset here;
    REQUIRE(place_make(&here));
    pid_t pids[3];
    for (int i = 0; i < 3; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            dd_store *mine = open_store(here.path, 3);
            dd_wait wait = dd_wait_after(LONG_NS);
            if (mine != NULL) {
                (void)add(mine, "come", 1);
                CHECK_OK(dd_store_barrier(mine, BYTES("b"), 3, &wait, check_err()));
                CHECK_INT(add(mine, "come", 0), 3);
            }
            dd_store_release(mine);
            end_child();
        }
    }
    for (int i = 0; i < 3; i++) {
        check_child(pids[i]);
    }
    CHECK(!is_file_there(&here));
    place_remove(&here);
}

typedef struct gang {
    dd_store *store;
    int items;
} gang;

static void *
run_producer(void *arg)
{
    gang *crew = arg;
    for (int i = 0; i < crew->items; i++) {
        dd_wait wait = dd_wait_after(LONG_NS);
        CHECK_OK(dd_store_queue_push(crew->store, BYTES("q"), BYTES("x"), &wait, check_err()));
        (void)add(crew->store, "pushed", 1);
    }
    return NULL;
}

static void *
run_consumer(void *arg)
{
    gang *crew = arg;
    dd_blob value = {0};
    for (int i = 0; i < crew->items; i++) {
        dd_wait wait = dd_wait_after(LONG_NS);
        CHECK_OK(dd_store_queue_pop(crew->store, BYTES("q"), true, &value, &wait, check_err()));
    }
    dd_blob_fini(&value);
    return NULL;
}

TEST(several_threads_may_use_one_file_store)
{
    offset here;
    REQUIRE(place_make(&here));
    gang crew = {open_store(here.path, -1), 100};
    REQUIRE(crew.store != NULL);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        REQUIRE(pthread_create(&threads[i], NULL, i % 2 == 0 ? run_producer : run_consumer, &crew) == 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    CHECK_INT(add(crew.store, "pushed", 0), 200);
    CHECK_INT(queue_len(crew.store, "q"), 0);
    dd_store_release(crew.store);
    place_remove(&here);
}

/* ---- slow and blocked locks */

/* Start a process that locks the gate, reports it through a pipe, and unlocks after this time or
 * when killed. */
static pid_t
hold_gate(const offset *here, useconds_t duration_us)
{
    int ends[2];
    CHECK(pipe(ends) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        int fd = open(here->path, O_RDWR | O_CREAT, 0600);
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = GATE_BYTE, .l_len = 1};
        CHECK(fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock) == 0);
        CHECK(write(ends[1], "x", 1) == 1);
        usleep(duration_us);
        end_child();
    }
    char byte;
    close(ends[1]);
    CHECK(read(ends[0], &byte, 1) == 1);
    close(ends[0]);
    return pid;
}

TEST(a_write_waits_until_another_process_unlocks_the_file)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_store *store = open_store(here.path, -1);
    REQUIRE(store != NULL);
    int64_t start_ns = dd_clock_now_ns();
    pid_t pid = hold_gate(&here, 300000);
    set(store, "k", "v");
    int64_t took_ns = dd_clock_now_ns() - start_ns;
    CHECK(took_ns >= 290 * DD_NS_PER_MS);
    CHECK(took_ns < 2 * DD_NS_PER_S * check_slow());
    check_get(store, "k", "v");
    check_child(pid);
    dd_store_release(store);
    place_remove(&here);
}

TEST(a_write_times_out_if_another_process_keeps_the_file_locked)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_store *store = open_store(here.path, -1);
    REQUIRE(store != NULL);
    set(store, "before", "1");
    pid_t pid = hold_gate(&here, 60000000);
    int64_t start_ns = dd_clock_now_ns();
    CHECK_STATUS(set_within(store, "k", "v", 120 * DD_NS_PER_MS, check_err()), DD_TIMED_OUT);
    CHECK(dd_clock_now_ns() - start_ns < 600 * DD_NS_PER_MS * check_slow());
    CHECK_CONTAINS(check_message(), here.path);
    CHECK_CONTAINS(check_message(), "set timed out");
    CHECK_CONTAINS(check_message(), "another process holds");
    check_get(store, "before", "1");
    dd_store *other = NULL;
    CHECK_STATUS(try_open(&other, here.path, -1, 50 * DD_NS_PER_MS, check_err()), DD_TIMED_OUT);
    CHECK_CONTAINS(check_message(), here.path);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    set(store, "k", "v");
    dd_store_release(store);
    place_remove(&here);
}

static void *
run_setter(void *arg)
{
    gang *crew = arg;
    set(crew->store, "after", "the lock");
    return NULL;
}

TEST(reads_continue_while_a_write_waits_for_the_file_lock)
{
    offset here;
    REQUIRE(place_make(&here));
    gang crew = {open_store(here.path, -1), 0};
    REQUIRE(crew.store != NULL);
    set(crew.store, "before", "1");
    pid_t pid = hold_gate(&here, 60000000);
    pthread_t setter;
    REQUIRE(pthread_create(&setter, NULL, run_setter, &crew) == 0);
    for (int i = 0; i < 50; i++) {
        check_get(crew.store, "before", "1");
        CHECK(!has(crew.store, "after"));
        usleep(1000);
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    check_get(crew.store, "after", "the lock");
    pthread_join(setter, NULL);
    dd_store_release(crew.store);
    place_remove(&here);
}

TEST(a_write_that_waits_for_the_file_lock_can_be_interrupted)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_store *store = open_store(here.path, -1);
    REQUIRE(store != NULL);
    pid_t pid = hold_gate(&here, 60000000);
    int64_t moment_ns = dd_clock_now_ns() + 30 * DD_NS_PER_MS;
    dd_wait wait = dd_wait_after(LONG_NS);
    wait.is_interrupted = is_interrupted_now;
    wait.ctx = &moment_ns;
    CHECK_STATUS(dd_store_set(store, BYTES("k"), BYTES("v"), &wait, check_err()), DD_INTERRUPTED);
    CHECK(dd_clock_now_ns() - moment_ns < 400 * DD_NS_PER_MS * check_slow());
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    dd_store_release(store);
    place_remove(&here);
}

/* ---- which job owns the content */

TEST(each_job_starts_with_an_empty_store)
{
    offset here;
    REQUIRE(place_make(&here));
    for (int64_t job = 0; job < 3; job++) {
        dd_store *a = open_store(here.path, 2);
        REQUIRE(a != NULL);
        CHECK_INT(count_keys(a), 0);
        dd_store *b = open_store(here.path, 2);
        REQUIRE(b != NULL);
        CHECK_INT(add(a, "n", 1), 1);
        CHECK_INT(add(b, "n", 1), 2);
        dd_store_release(a);
        CHECK(is_file_there(&here));
        check_get(b, "n", "2");
        dd_store_release(b);
        CHECK(!is_file_there(&here));
    }
    place_remove(&here);
}

TEST(the_file_of_a_job_of_unknown_world_size_is_not_removed)
{
    offset here;
    REQUIRE(place_make(&here));
    for (int job = 0; job < 3; job++) {
        dd_store *a = open_store(here.path, -1);
        REQUIRE(a != NULL);
        CHECK_INT(count_keys(a), 0);
        set(a, "k", "v");
        dd_store *b = open_store(here.path, -1);
        REQUIRE(b != NULL);
        dd_store_release(a);
        check_get(b, "k", "v");
        dd_store_release(b);
        CHECK(is_file_there(&here));
    }
    place_remove(&here);
}

TEST(a_late_rank_reads_values_of_an_early_rank_that_left)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_store *early = open_store(here.path, 2);
    REQUIRE(early != NULL);
    set(early, "address", "here");
    dd_store_release(early);
    CHECK(is_file_there(&here));
    dd_store *late = open_store(here.path, 2);
    REQUIRE(late != NULL);
    check_get(late, "address", "here");
    dd_store_release(late);
    CHECK(!is_file_there(&here));
    place_remove(&here);
}

TEST(values_of_an_early_rank_with_another_world_size_are_discarded)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_store *early = open_store(here.path, 2);
    REQUIRE(early != NULL);
    set(early, "address", "here");
    dd_store_release(early);
    dd_store *late = open_store(here.path, 3);
    REQUIRE(late != NULL);
    CHECK(!has(late, "address"));
    dd_store_release(late);
    place_remove(&here);
}

/* A timeout ends the early rank's job. */
TEST(values_of_an_early_rank_that_timed_out_are_discarded)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_store *early = open_store(here.path, 2);
    REQUIRE(early != NULL);
    set(early, "address", "here");
    dd_blob value = {0};
    CHECK_STATUS(get_within(early, "peer", &value, 10 * DD_NS_PER_MS, check_err()), DD_TIMED_OUT);
    dd_store_release(early);
    dd_store *late = open_store(here.path, 2);
    REQUIRE(late != NULL);
    CHECK(!has(late, "address"));
    dd_store_release(late);
    place_remove(&here);
}

/* Start a process that joins, sets "k", reports that and waits to be killed. If `is_parent`, a
 * child of it reports instead, and outlives it. */
static pid_t
start_victim(const char *path, int64_t world_size, bool is_parent)
{
    int ends[2];
    CHECK(pipe(ends) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        dd_store *store = open_store(path, world_size);
        if (store != NULL) {
            set(store, "k", "stale");
        }
        bool is_orphan = is_parent && fork() == 0;
        if (is_parent == is_orphan) {
            CHECK(write(ends[1], "x", 1) == 1);
        }
        sleep(is_orphan ? 2 : 60);
        _exit(1);
    }
    char byte;
    close(ends[1]);
    CHECK(read(ends[0], &byte, 1) == 1);
    close(ends[0]);
    return pid;
}

TEST(the_file_of_a_crashed_job_is_replaced)
{
    static const int64_t world_sizes[] = {-1, 1, 2};
    offset here;
    REQUIRE(place_make(&here));
    for (size_t i = 0; i < 3; i++) {
        for (int is_parent = 0; is_parent < 2; is_parent++) {
            pid_t pid = start_victim(here.path, world_sizes[i], is_parent != 0);
            kill(pid, SIGKILL);
            waitpid(pid, NULL, 0);
            CHECK(is_file_there(&here));
            dd_store *store = open_store(here.path, world_sizes[i]);
            REQUIRE(store != NULL);
            CHECK_INT(count_keys(store), 0);
            dd_store_release(store);
            (void)unlink(here.path);
        }
    }
    place_remove(&here);
}

TEST(a_restarted_rank_reads_the_values_of_its_running_job)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_store *store = open_store(here.path, 2);
    REQUIRE(store != NULL);
    pid_t pid = start_victim(here.path, 2, false);
    check_get(store, "k", "stale");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    dd_store *again = open_store(here.path, 2);
    REQUIRE(again != NULL);
    check_get(again, "k", "stale");
    dd_store_release(store);
    CHECK(is_file_there(&here));
    dd_store_release(again);
    CHECK(!is_file_there(&here));
    place_remove(&here);
}

TEST(opening_a_file_with_another_world_size_is_an_error)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_store *a = open_store(here.path, 2);
    REQUIRE(a != NULL);
    dd_store *b = NULL;
    CHECK_STATUS(try_open(&b, here.path, 3, LONG_NS, check_err()), DD_STORE);
    CHECK_CONTAINS(check_message(), "world size: got 2, expected 3");
    CHECK_CONTAINS(check_message(), here.path);
    b = open_store(here.path, -1);
    REQUIRE(b != NULL);
    set(a, "k", "v");
    check_get(b, "k", "v");
    dd_store_release(a);
    dd_store_release(b);
    place_remove(&here);
}

TEST(a_file_of_another_kind_is_refused_and_not_changed)
{
    offset here;
    REQUIRE(place_make(&here));
    FILE *file = fopen(here.path, "w");
    REQUIRE(file != NULL);
    fputs("my thesis", file);
    fclose(file);
    dd_store *store = NULL;
    CHECK_STATUS(try_open(&store, here.path, -1, LONG_NS, check_err()), DD_STORE);
    CHECK_CONTAINS(check_message(), here.path);
    CHECK_INT(size_of(here.path), 9);
    CHECK_STATUS(try_open(&store, here.folder, -1, LONG_NS, check_err()), DD_SYSTEM);
    CHECK_STATUS(try_open(&store, "/dev/null", -1, LONG_NS, check_err()), DD_STORE);
    CHECK_STATUS(try_open(&store, "", -1, LONG_NS, check_err()), DD_INVALID_ARGUMENT);
    CHECK_STATUS(try_open(&store, "/dev/null/x", -1, LONG_NS, check_err()), DD_SYSTEM);
    place_remove(&here);
}

/* The link may point to our own file, which other users cannot write themselves. */
TEST(a_symbolic_link_at_the_path_is_refused)
{
    offset here;
    REQUIRE(place_make(&here));
    char victim[128];
    snprintf(victim, sizeof victim, "%s/victim", here.folder);
    int fd = open(victim, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0);
    close(fd);
    REQUIRE(symlink(victim, here.path) == 0);
    dd_store *store = NULL;
    CHECK_STATUS(try_open(&store, here.path, -1, LONG_NS, check_err()), DD_SYSTEM);
    CHECK_CONTAINS(check_message(), "symbolic link");
    struct stat info;
    CHECK(stat(victim, &info) == 0);
    CHECK_INT(info.st_size, 0);
    CHECK(unlink(victim) == 0);
    place_remove(&here);
}

TEST(a_file_with_a_broken_header_is_replaced_if_no_process_uses_it)
{
    offset here;
    REQUIRE(place_make(&here));
    for (off_t len = 0; len <= DD_FILE_HEADER_BYTES; len += 4) {
        dd_store *store = open_store(here.path, -1);
        REQUIRE(store != NULL);
        CHECK_INT(count_keys(store), 0);
        set(store, "k", "v");
        dd_store_release(store);
        CHECK(truncate(here.path, len) == 0);
    }
    place_remove(&here);
}

TEST(a_file_with_a_broken_header_is_an_error_if_a_process_uses_it)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_store *a = open_store(here.path, -1);
    REQUIRE(a != NULL);
    int fd = open(here.path, O_RDWR);
    REQUIRE(fd >= 0 && pwrite(fd, "\xee", 1, 45) == 1);
    dd_store *b = NULL;
    CHECK_STATUS(try_open(&b, here.path, -1, LONG_NS, check_err()), DD_STORE);
    CHECK_CONTAINS(check_message(), "damaged");
    CHECK(pwrite(fd, "\xee", 1, 20) == 1);
    CHECK_STATUS(set_within(a, "k", "v", LONG_NS, check_err()), DD_STORE);
    CHECK_CONTAINS(check_message(), "taken over");
    close(fd);
    dd_store_release(a);
    place_remove(&here);
}

TEST(calls_fail_after_the_file_is_deleted)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_store *store = open_store(here.path, -1);
    REQUIRE(store != NULL);
    set(store, "k", "v");
    REQUIRE(unlink(here.path) == 0);
    CHECK_STATUS(set_within(store, "k", "v", LONG_NS, check_err()), DD_STORE);
    CHECK_CONTAINS(check_message(), "deleted");
    dd_blob value = {0};
    CHECK_STATUS(get_within(store, "absent", &value, LONG_NS, check_err()), DD_STORE);
    dd_store *other = open_store(here.path, -1);
    REQUIRE(other != NULL);
    CHECK(!has(other, "k"));
    dd_store_release(store);
    CHECK(is_file_there(&here));
    dd_store_release(other);
    place_remove(&here);
}

/* ---- writers that are killed */

/* Read a whole file of this size; return false on failure. */
static bool
read_file(const char *path, uint8_t *bytes, size_t nbytes)
{
    int fd = open(path, O_RDONLY);
    bool is_read = fd >= 0 && read(fd, bytes, nbytes) == (ssize_t)nbytes;
    close(fd);
    return is_read;
}

TEST(a_last_record_truncated_at_any_byte_is_ignored)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_store *a = open_store(here.path, -1);
    REQUIRE(a != NULL);
    set(a, "first", "1");
    off_t before = size_of(here.path);
    set(a, "torn", "half of this");
    off_t after = size_of(here.path);
    uint8_t bytes[256];
    REQUIRE(before > 0 && after < (off_t)sizeof bytes && read_file(here.path, bytes, (size_t)after));
    dd_store_release(a);
    for (off_t len = before; len < after; len++) {
        dd_store *holder = open_store(here.path, -1);
        REQUIRE(holder != NULL);
        set(holder, "first", "1");
        /* The bytes that a writer leaves if it is killed after writing this many. */
        int fd = open(here.path, O_RDWR);
        size_t part = (size_t)(len - before);
        CHECK(pwrite(fd, bytes + before, part, before) == (ssize_t)part);
        close(fd);
        CHECK(!has(holder, "torn"));
        dd_store *writer = open_store(here.path, -1);
        REQUIRE(writer != NULL);
        check_get(writer, "first", "1");
        set(writer, "next", "2");
        check_get(holder, "next", "2");
        CHECK(!has(holder, "torn"));
        CHECK_INT(count_keys(writer), 2);
        dd_store_release(holder);
        dd_store_release(writer);
    }
    place_remove(&here);
}

TEST(a_damaged_record_in_the_middle_is_an_error_and_stays_in_the_file)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_store *a = open_store(here.path, -1);
    REQUIRE(a != NULL);
    set(a, "first", "1");
    off_t second = size_of(here.path);
    set(a, "second", "2");
    set(a, "third", "3");
    off_t size = size_of(here.path);
    int fd = open(here.path, O_RDWR);
    REQUIRE(fd >= 0 && pwrite(fd, "\xee", 1, second + 20) == 1);
    close(fd);
    dd_store *b = open_store(here.path, -1);
    REQUIRE(b != NULL);
    check_get(b, "first", "1");
    CHECK_STATUS(set_within(b, "k", "v", LONG_NS, check_err()), DD_STORE);
    CHECK_CONTAINS(check_message(), "damaged record");
    CHECK_INT(size_of(here.path), size);
    set(a, "fourth", "4");
    CHECK(truncate(here.path, second) == 0);
    CHECK_STATUS(set_within(a, "k", "v", LONG_NS, check_err()), DD_STORE);
    CHECK_CONTAINS(check_message(), "truncated");
    dd_store_release(a);
    dd_store_release(b);
    place_remove(&here);
}

TEST(writers_killed_at_any_moment_leave_a_valid_file)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_store *store = open_store(here.path, -1);
    REQUIRE(store != NULL);
    for (int round = 0; round < 20; round++) {
        pid_t pid = fork();
        if (pid == 0) {
            dd_store *mine = open_store(here.path, -1);
            for (int i = 0; i < 100000 && mine != NULL && check_failures() == 0; i++) {
                (void)add(mine, "n", 1);
            }
            _exit(1);
        }
        usleep((useconds_t)(5000 + 777 * round));
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        int64_t sum = add(store, "n", 0);
        CHECK_INT(add(store, "n", 1), sum + 1);
    }
    dd_store_release(store);
    place_remove(&here);
}

/* ---- resources */

TEST(opening_a_file_waits_until_its_directory_exists)
{
    offset here;
    REQUIRE(place_make(&here));
    char late[80];
    char path[96];
    snprintf(late, sizeof late, "%s/late", here.folder);
    snprintf(path, sizeof path, "%s/store", late);
    dd_store *store = NULL;
    CHECK_STATUS(try_open(&store, path, -1, 50 * DD_NS_PER_MS, check_err()), DD_TIMED_OUT);
    CHECK_CONTAINS(check_message(), path);
    CHECK_CONTAINS(check_message(), "directory");
    pid_t pid = fork();
    if (pid == 0) {
        usleep(100000);
        CHECK(mkdir(late, 0700) == 0);
        end_child();
    }
    store = open_store(path, 1);
    check_child(pid);
    dd_store_release(store);
    CHECK(rmdir(late) == 0);
    place_remove(&here);
}

TEST(opening_a_file_is_tried_again_until_the_deadline)
{
    static const struct {
        int error_number;
        const char *words;
    } cases[] = {{EINTR, "signals keep interrupting"},
                 {ESTALE, "stale file handle"},
                 {ENOENT, "directory does not exist"}};
    offset here;
    REQUIRE(place_make(&here));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dd_sys_fault fault = {.call = DD_SYS_open, .error_number = cases[i].error_number, .is_lasting = true};
        dd_store *store = NULL;
        dd_sys_fail_call(&fault);
        CHECK_STATUS(try_open(&store, here.path, -1, 20 * DD_NS_PER_MS, check_err()), DD_TIMED_OUT);
        dd_sys_fail_call(NULL);
        CHECK_CONTAINS(check_message(), cases[i].words);
    }
    place_remove(&here);
}

TEST(a_relative_path_stays_valid_after_chdir)
{
    offset here;
    REQUIRE(place_make(&here));
    REQUIRE(chdir(here.folder) == 0);
    dd_store *store = open_store("store", 1);
    REQUIRE(store != NULL);
    CHECK_TEXT(dd_bytes_of_string(dd_file_store_path(store)), "store");
    REQUIRE(chdir("/") == 0);
    set(store, "k", "v");
    CHECK(is_file_there(&here));
    dd_store_release(store);
    CHECK(!is_file_there(&here));
    place_remove(&here);
}

TEST(a_clone_does_not_count_as_a_further_rank_of_the_job)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_store *store = open_store(here.path, 1);
    REQUIRE(store != NULL);
    dd_wait wait = dd_wait_after(LONG_NS);
    dd_store *other = NULL;
    store->ops->set_timeout_ns(store, 77);
    REQUIRE_OK(store->ops->clone(store, &other, &wait, check_err()));
    CHECK_INT(other->ops->get_timeout_ns(other), 77);
    set(store, "k", "v");
    dd_store_release(store);
    CHECK(is_file_there(&here));
    check_get(other, "k", "v");
    dd_store_release(other);
    CHECK(!is_file_there(&here));
    place_remove(&here);
}

TEST(a_forked_child_cannot_use_the_store_or_remove_its_file)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_store *store = open_store(here.path, 1);
    REQUIRE(store != NULL);
    set(store, "k", "v");
    pid_t pid = fork();
    if (pid == 0) {
        CHECK_STATUS(dd_store_check_fork(store, check_err()), DD_FORKED);
        dd_store_release(store);
        CHECK(is_file_there(&here));
        end_child();
    }
    check_child(pid);
    check_get(store, "k", "v");
    set(store, "k", "w");
    dd_store_release(store);
    CHECK(!is_file_there(&here));
    place_remove(&here);
}

static int
count_descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder != NULL && readdir(folder) != NULL) {
        count++;
    }
    closedir(folder);
    return count;
}

TEST(opening_and_closing_a_store_a_thousand_times_leaks_no_descriptors)
{
    offset here;
    REQUIRE(place_make(&here));
    int before = count_descriptors();
    for (int i = 0; i < 1000; i++) {
        dd_store *store = open_store(here.path, i % 3 == 0 ? -1 : 1);
        REQUIRE(store != NULL);
        set(store, "k", "v");
        dd_store_release(store);
    }
    CHECK_INT(count_descriptors(), before);
    place_remove(&here);
}

static dd_status
use_all(const char *path, dd_error *err)
{
    dd_store *store = NULL;
    dd_wait wait = dd_wait_after(LONG_NS);
    dd_status status = try_open(&store, path, -1, LONG_NS, err);
    if (status != DD_OK) {
        return status;
    }
    dd_blob value = {0};
    dd_blob_list list = {0};
    dd_store *other = NULL;
    dd_bytes key = BYTES("k");
    dd_bytes text = BYTES("value");
    int64_t sum;
    bool flag;
    if ((status = dd_store_set(store, key, text, &wait, err)) == DD_OK &&
        (status = dd_store_append(store, key, text, &wait, err)) == DD_OK &&
        (status = dd_store_add(store, BYTES("n"), 1, &sum, &wait, err)) == DD_OK &&
        (status = dd_store_compare_set(store, key, text, text, &value, &wait, err)) == DD_OK &&
        (status = dd_store_multi_set(store, &key, &text, 1, &wait, err)) == DD_OK &&
        (status = dd_store_multi_get(store, &key, 1, &list, &wait, err)) == DD_OK &&
        (status = dd_store_queue_push(store, key, text, &wait, err)) == DD_OK &&
        (status = dd_store_queue_pop(store, key, true, &value, &wait, err)) == DD_OK &&
        (status = dd_store_get(store, key, &value, &wait, err)) == DD_OK &&
        (status = dd_store_delete_key(store, key, &flag, &wait, err)) == DD_OK) {
        status = store->ops->clone(store, &other, &wait, err);
    }
    dd_blob_fini(&value);
    dd_blob_list_fini(&list);
    dd_store_release(other);
    dd_store_release(store);
    return status;
}

TEST(every_failed_allocation_leaves_the_store_usable)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_status status = DD_OUT_OF_MEMORY;
    int before = count_descriptors();
    for (long n = 0; status != DD_OK; n++) {
        REQUIRE(n < 1000);
        dd_store *holder = open_store(here.path, -1);
        REQUIRE(holder != NULL);
        set(holder, "old", "record");
        dd_mem_fail_after(n);
        status = use_all(here.path, check_err());
        dd_mem_fail_after(-1);
        CHECK(status == DD_OK || status == DD_OUT_OF_MEMORY);
        set(holder, "holder", "works on");
        check_get(holder, "holder", "works on");
        check_get(holder, "old", "record");
        dd_store_release(holder);
    }
    CHECK_INT(count_descriptors(), before);
    place_remove(&here);
}

TEST(a_full_disk_leaves_the_store_usable)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_store *store = open_store(here.path, -1);
    dd_store *reader = open_store(here.path, -1);
    REQUIRE(store != NULL && reader != NULL);
    set(store, "k", "v");
    off_t size = size_of(here.path);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old;
    REQUIRE(getrlimit(RLIMIT_FSIZE, &old) == 0);
    struct rlimit small = {(rlim_t)size + 30, old.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
    const char *large = "a value that exceeds the free space of the disk";
    dd_wait wait = dd_wait_after(LONG_NS);
    int64_t sum;
    CHECK_STATUS(set_within(store, "k", large, LONG_NS, check_err()), DD_SYSTEM);
    CHECK_CONTAINS(check_message(), here.path);
    CHECK_STATUS(dd_store_add(store, BYTES("a counter with a long name"), 1, &sum, &wait, check_err()),
                 DD_SYSTEM);
    CHECK_INT(size_of(here.path), size);
    check_get(store, "k", "v");
    CHECK_INT(count_keys(store), 1);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &old) == 0);
    CHECK_OK(dd_store_queue_push(store, BYTES("q"), BYTES("item"), &wait, check_err()));
    small.rlim_cur = (rlim_t)size_of(here.path);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
    dd_blob value = {0};
    CHECK_STATUS(dd_store_queue_pop(store, BYTES("q"), true, &value, &wait, check_err()), DD_SYSTEM);
    CHECK_INT(queue_len(store, "q"), 1);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &old) == 0);
    CHECK_OK(dd_store_queue_pop(store, BYTES("q"), true, &value, &wait, check_err()));
    CHECK_TEXT(dd_blob_view(&value), "item");
    dd_blob_fini(&value);
    set(store, "k", large);
    check_get(reader, "k", large);
    dd_store_release(store);
    dd_store_release(reader);
    place_remove(&here);
}

TEST(a_clone_keeps_the_file_after_the_original_is_released)
{
    offset here;
    REQUIRE(place_make(&here));
    dd_store *store = open_store(here.path, 1);
    REQUIRE(store != NULL);
    dd_wait wait = dd_wait_after(LONG_NS);
    dd_store *clone = NULL;
    set(store, "k", "v");
    REQUIRE_OK(store->ops->clone(store, &clone, &wait, check_err()));
    dd_store_release(store);
    CHECK(is_file_there(&here));
    CHECK(strcmp(dd_file_store_path(clone), here.path) == 0);
    check_get(clone, "k", "v");
    dd_store_release(clone);
    CHECK(!is_file_there(&here));
    place_remove(&here);
}

/* Keep the mutex busy while the test forks. */
typedef struct hammer {
    pthread_t thread;
    dd_store *store;
    atomic_bool is_stopped;
} hammer;

static void *
run_hammer(void *arg)
{
    hammer *self = arg;
    while (!atomic_load(&self->is_stopped)) {
        set(self->store, "k", "v");
    }
    return NULL;
}

TEST(a_child_forked_during_a_change_can_release_the_store)
{
    offset here;
    REQUIRE(place_make(&here));
    hammer busy = {.store = open_store(here.path, -1)};
    REQUIRE(busy.store != NULL);
    REQUIRE(pthread_create(&busy.thread, NULL, run_hammer, &busy) == 0);
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            alarm(5 * (unsigned)check_slow());
            dd_store_release(busy.store);
            _exit(0);
        }
        check_child(pid);
    }
    atomic_store(&busy.is_stopped, true);
    pthread_join(busy.thread, NULL);
    check_get(busy.store, "k", "v");
    dd_store_release(busy.store);
    place_remove(&here);
}
