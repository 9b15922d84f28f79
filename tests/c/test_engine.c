#include "core/fork.h"
#include "core/mem.h"
#include "faults/faults.h"
#include "handshake.h"
#include "insight.h"
#include "leftovers.h"
#include "net/auth.h"
#include "net/sock.h"
#include "test_engine_rig.h"
#include "transport/engine_internal.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define TEST_BOTH(name)            \
    static void name(bool is_shm); \
    TEST(name##_shm)               \
    {                              \
        name(true);                \
    }                              \
    TEST(name##_tcp)               \
    {                              \
        name(false);               \
    }                              \
    static void name(bool is_shm)

static void
exchange_empty(rig_group *self, int from, int to)
{
    rig_message send = rig_p2p(to, 99, NULL, 0);
    rig_message recv = rig_p2p(from, 99, NULL, 0);
    rig_post_send(self, from, &send);
    rig_post_recv(self, to, &recv);
    rig_wait(self, from, &send, DD_OK);
    rig_wait(self, to, &recv, DD_OK);
}

static void
cut(rig_group *self, int rank, int other)
{
    dd_engine_lock(self->ranks[rank].engine);
    (void)shutdown(self->ranks[rank].peers[other]->lanes[0]->stream->fd, SHUT_RDWR);
    dd_engine_unlock(self->ranks[rank].engine);
}

TEST_BOTH(a_cut_connection_ends_all_messages_with_its_peer)
{
    static uint8_t large[300000];
    rig_group rig;
    REQUIRE(rig_open(&rig, 3, is_shm));
    exchange_empty(&rig, 0, 1);
    exchange_empty(&rig, 2, 1);
    rig_message recv = rig_p2p(0, 1, large, sizeof large);
    rig_message send = rig_p2p(0, 1, large, sizeof large);
    rig_message other = rig_p2p(2, 1, NULL, 0);
    rig_post_recv(&rig, 1, &recv);
    rig_post_send(&rig, 1, &send);
    rig_post_recv(&rig, 1, &other);
    cut(&rig, 0, 1);
    rig_wait(&rig, 1, &recv, DD_PEER_LOST);
    rig_wait(&rig, 1, &send, DD_PEER_LOST);
    CHECK_INT(recv.error.blamed.rank, 0);
    CHECK_INT(recv.error.blamed.pid, getpid());
    CHECK_CONTAINS(recv.error.message, "connection closed");
    CHECK_INT(atomic_load(&rig.ranks[1].news.nlosts), 1);
    CHECK_INT(rig.ranks[1].news.lost_rank, 0);
    CHECK_INT(rig.ranks[1].news.lost_error.blamed.rank, 0);
    rig_post_send(&rig, 1, &send);
    rig_wait(&rig, 1, &send, DD_PEER_LOST);
    dd_engine_lock(rig.ranks[1].engine);
    CHECK(dd_peer_error_locked(rig.ranks[1].peers[0]) != NULL);
    CHECK(dd_peer_error_locked(rig.ranks[1].peers[2]) == NULL);
    dd_engine_unlock(rig.ranks[1].engine);
    rig_message answer = rig_p2p(1, 1, NULL, 0);
    rig_post_send(&rig, 2, &answer);
    rig_wait(&rig, 2, &answer, DD_OK);
    rig_wait(&rig, 1, &other, DD_OK);
    rig_close(&rig);
}

TEST_BOTH(a_peer_that_breaks_the_protocol_is_lost)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, is_shm));
    exchange_empty(&rig, 0, 1);
    rig_message recv = rig_p2p(0, 1, NULL, 0);
    rig_post_recv(&rig, 1, &recv);
    dd_frame frame = {.type = DD_FRAME_CTS, .id = 1000};
    dd_engine_lock(rig.ranks[0].engine);
    peer_post_frame(rig.ranks[0].peers[1], &frame, (dd_bytes){0});
    dd_engine_unlock(rig.ranks[0].engine);
    dd_engine_kick(rig.ranks[0].engine);
    rig_wait(&rig, 1, &recv, DD_PROTOCOL);
    CHECK_CONTAINS(recv.error.message, "CTS for unknown message: got 1000");
    rig_close(&rig);
}

TEST_BOTH(a_peer_that_sends_queries_and_reads_no_answers_is_lost)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, is_shm));
    exchange_empty(&rig, 0, 1);
    rig_message recv = rig_p2p(0, 1, NULL, 0);
    rig_post_recv(&rig, 1, &recv);
    rig_hold hold;
    REQUIRE(rig_hold_begin(&hold, &rig, 0));
    const dd_frame question = {.type = DD_FRAME_QUESTION, .source = 0, .target = 1};
    const dd_peer *querier = rig.ranks[1].peers[0];
    dd_engine_lock(rig.ranks[1].engine);
    for (size_t i = 0; i < PEER_ANSWERS_MAX; i++) {
        context_on_control(rig.ranks[1].context, &question, (dd_bytes){0});
    }
    CHECK(querier->nreplies[REPLY_ANSWER] == PEER_ANSWERS_MAX && !querier->is_breaking);
    context_on_control(rig.ranks[1].context, &question, (dd_bytes){0});
    CHECK(querier->is_breaking);
    dd_engine_unlock(rig.ranks[1].engine);
    rig_wait(&rig, 1, &recv, DD_PROTOCOL);
    CHECK_CONTAINS(recv.error.message, "does not read its replies: got 4097 queued, expected at most 4096");
    CHECK_INT(recv.error.blamed.rank, 0);
    rig_hold_end(&hold);
    rig_close(&rig);
}

TEST_BOTH(a_peer_that_reads_the_answers_may_send_any_number_of_queries)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, is_shm));
    exchange_empty(&rig, 0, 1);
    for (int i = 0; i < 1000; i++) {
        dd_engine_lock(rig.ranks[0].engine);
        dd_context_post_question_locked(rig.ranks[0].context, 1);
        dd_engine_unlock(rig.ranks[0].engine);
    }
    REQUIRE(rig_wait_count(&rig, 0, &rig.ranks[0].news.nanswers, 1000));
    dd_engine_lock(rig.ranks[1].engine);
    CHECK(rig.ranks[1].peers[0]->nreplies[REPLY_ANSWER] == 0);
    dd_engine_unlock(rig.ranks[1].engine);
    rig_close(&rig);
}

/* ---- another process */

static void
write_endpoint(int fd, dd_engine *engine)
{
    dd_blob endpoint = {0};
    CHECK_OK(dd_engine_endpoint(engine, NULL, &endpoint, check_err()));
    CHECK(write(fd, &endpoint.len, sizeof endpoint.len) == sizeof endpoint.len);
    CHECK(write(fd, endpoint.data, endpoint.len) == (ssize_t)endpoint.len);
    dd_blob_fini(&endpoint);
}

static bool
read_endpoint(int fd, dd_blob *endpoint)
{
    uint8_t bytes[4096];
    size_t len = 0;
    return CHECK(read(fd, &len, sizeof len) == sizeof len) && CHECK(len <= sizeof bytes) &&
           CHECK(read(fd, bytes, len) == (ssize_t)len) &&
           CHECK_OK(dd_blob_assign(endpoint, dd_bytes_of(bytes, len), check_err()));
}

/* Open rank `rank` of two, with the other rank's endpoint from a pipe. */
static bool
open_half(rig_group *rig, int rank, bool is_shm, int in, int out)
{
    dd_connect_options options = rig_options(is_shm, 1);
    dd_blob other = {0};
    memset(rig, 0, sizeof *rig);
    rig->nranks = 2;
    rig_rank *own = &rig->ranks[rank];
    if (!CHECK_OK(dd_engine_open(&options, &own->engine, check_err()))) {
        return false;
    }
    write_endpoint(out, own->engine);
    if (!read_endpoint(in, &other)) {
        return false;
    }
    dd_blob self = {0};
    bool is_ok =
        CHECK_OK(dd_engine_endpoint(own->engine, NULL, &self, check_err())) &&
        CHECK_OK(dd_engine_peer(own->engine, dd_blob_view(&self), &own->peers[rank], check_err())) &&
        CHECK_OK(dd_engine_peer(own->engine, dd_blob_view(&other), &own->peers[1 - rank], check_err())) &&
        rig_open_context(rig, rank);
    dd_blob_fini(&self);
    dd_blob_fini(&other);
    return is_ok;
}

static _Noreturn void
run_victim(bool is_shm, int in, int out)
{
    rig_group rig;
    if (open_half(&rig, 1, is_shm, in, out)) {
        rig_message send = rig_p2p(0, 1, NULL, 0);
        rig_post_send(&rig, 1, &send);
        rig_wait(&rig, 1, &send, DD_OK);
    }
    for (;;) {
        pause();
    }
}

TEST_BOTH(a_killed_process_is_lost_within_a_second)
{
    int pipes[2][2];
    REQUIRE(pipe(pipes[0]) == 0 && pipe(pipes[1]) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        run_victim(is_shm, pipes[0][0], pipes[1][1]);
    }
    rig_group rig;
    REQUIRE(open_half(&rig, 0, is_shm, pipes[1][0], pipes[0][1]));
    rig_message recv = rig_p2p(1, 1, NULL, 0);
    rig_post_recv(&rig, 0, &recv);
    rig_wait(&rig, 0, &recv, DD_OK);
    rig_post_recv(&rig, 0, &recv);
    int64_t killed_ns = dd_clock_now_ns();
    kill(pid, SIGKILL);
    rig_wait(&rig, 0, &recv, DD_PEER_LOST);
    CHECK(dd_clock_now_ns() - killed_ns < DD_NS_PER_S * check_slow());
    CHECK_INT(recv.error.blamed.pid, pid);
    CHECK_INT(atomic_load(&rig.ranks[0].news.nlosts), 1);
    waitpid(pid, NULL, 0);
    rig_close(&rig);
}

/* A child that was forked while a thread changed the engine's lists must not read them. */
TEST(a_child_forked_while_a_thread_changes_a_list_does_not_read_the_list)
{
    dd_connect_options options = {.ifnames = "lo", .nlanes = 1, .ring_nbytes = 1 << 16};
    dd_engine *engine = NULL;
    REQUIRE_OK(dd_engine_open(&options, &engine, check_err()));
    CHECK(!dd_engine_is_torn(engine));
    static out_frame half_linked;
    dd_engine_lock(engine);
    out_frame *before = engine->free_out;
    half_linked.link.next = (dd_list *)(uintptr_t)16;
    engine->free_out = &half_linked;
    pid_t torn = fork();
    if (torn == 0) {
        bool is_torn = dd_engine_is_torn(engine);
        dd_engine_release(engine);
        _exit(is_torn ? 0 : 1);
    }
    engine->free_out = before;
    dd_engine_unlock(engine);
    pid_t whole = fork();
    if (whole == 0) {
        bool is_torn = dd_engine_is_torn(engine);
        dd_engine_release(engine);
        _exit(is_torn ? 1 : 0);
    }
    int status = 0;
    CHECK(waitpid(torn, &status, 0) == torn && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(waitpid(whole, &status, 0) == whole && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(!dd_engine_is_torn(engine));
    dd_engine_release(engine);
}

/* No thread waits: the background thread detects the loss. */
TEST_BOTH(a_killed_process_is_noticed_even_if_no_thread_waits)
{
    int pipes[2][2];
    REQUIRE(pipe(pipes[0]) == 0 && pipe(pipes[1]) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        run_victim(is_shm, pipes[0][0], pipes[1][1]);
    }
    rig_group rig;
    REQUIRE(open_half(&rig, 0, is_shm, pipes[1][0], pipes[0][1]));
    rig_message recv = rig_p2p(1, 1, NULL, 0);
    rig_post_recv(&rig, 0, &recv);
    rig_wait(&rig, 0, &recv, DD_OK);
    kill(pid, SIGKILL);
    for (int i = 0; i < 1000 * check_slow() && atomic_load(&rig.ranks[0].news.nlosts) == 0; i++) {
        usleep(1000);
    }
    CHECK_INT(atomic_load(&rig.ranks[0].news.nlosts), 1);
    waitpid(pid, NULL, 0);
    rig_close(&rig);
}

TEST_BOTH(dialling_an_exited_peer_fails)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, is_shm));
    rig_close_rank(&rig, 1);
    rig_message send = rig_p2p(1, 1, NULL, 0);
    rig_post_send(&rig, 0, &send);
    dd_engine_kick(rig.ranks[0].engine);
    dd_wait wait = dd_wait_after(300 * DD_NS_PER_MS);
    dd_status status = dd_engine_wait(rig.ranks[0].engine, &send.is_done, &wait, check_err());
    if (status == DD_OP_TIMED_OUT) {
        rig_cancel(&rig, 0, &send);
    } else {
        CHECK(send.error.code == DD_NETWORK || send.error.code == DD_PEER_LOST);
    }
    rig_close(&rig);
}

/* ---- waiting */

typedef struct pair_of_threads {
    rig_group *rig;
    int rank;
    uint64_t tag;
} pair_of_threads;

static void *
ping_pong(void *arg)
{
    pair_of_threads *self = arg;
    for (int i = 0; i < 100; i++) {
        int out = i;
        int in = -1;
        rig_message send = rig_p2p(1 - self->rank, self->tag, &out, sizeof out);
        rig_message recv = rig_p2p(1 - self->rank, self->tag, &in, sizeof in);
        rig_post_send(self->rig, self->rank, &send);
        rig_post_recv(self->rig, self->rank, &recv);
        if (!rig_wait(self->rig, self->rank, &recv, DD_OK) ||
            !rig_wait(self->rig, self->rank, &send, DD_OK) || !CHECK_INT(in, i)) {
            break;
        }
    }
    return NULL;
}

TEST_BOTH(several_threads_may_wait_for_messages_at_the_same_time)
{
    enum { COUNT = 3 };
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, is_shm));
    pthread_t threads[2 * COUNT];
    pair_of_threads args[2 * COUNT];
    for (int i = 0; i < 2 * COUNT; i++) {
        args[i] = (pair_of_threads){.rig = &rig, .rank = i % 2, .tag = (uint64_t)(i / 2)};
        REQUIRE_OK(dd_thread_start(&threads[i], "waiter", ping_pong, &args[i], check_err()));
    }
    for (int i = 0; i < 2 * COUNT; i++) {
        pthread_join(threads[i], NULL);
    }
    rig_close(&rig);
}

TEST_BOTH(messages_complete_in_the_background_if_no_thread_waits)
{
    static uint8_t out[3 << 20];
    static uint8_t in[3 << 20];
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, is_shm));
    rig_fill(out, sizeof out, 3);
    rig_message send = rig_p2p(1, 1, out, sizeof out);
    rig_message recv = rig_p2p(0, 1, in, sizeof in);
    rig_post_send(&rig, 0, &send);
    dd_engine_kick(rig.ranks[0].engine);
    rig_post_recv(&rig, 1, &recv);
    dd_engine_kick(rig.ranks[1].engine);
    for (int i = 0; i < 3000 && !(atomic_load(&recv.is_done) && atomic_load(&send.is_done)); i++) {
        usleep(1000);
    }
    CHECK(atomic_load(&recv.is_done) && atomic_load(&send.is_done));
    CHECK_INT(recv.error.code, DD_OK);
    rig_is_filled(in, sizeof in, 3);
    rig_close(&rig);
}

static bool
is_after_three(void *ctx)
{
    int *count = ctx;
    return ++*count > 3;
}

TEST(a_wait_for_a_message_ends_at_an_interrupt_or_at_its_deadline)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, true));
    rig_message recv = rig_p2p(1, 1, NULL, 0);
    rig_post_recv(&rig, 0, &recv);
    int nasked = 0;
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S);
    wait.is_interrupted = is_after_three;
    wait.ctx = &nasked;
    CHECK_STATUS(dd_engine_wait(rig.ranks[0].engine, &recv.is_done, &wait, check_err()), DD_INTERRUPTED);
    CHECK(dd_wait_elapsed_s(&wait) < 1.0 * check_slow());
    wait = dd_wait_after(20 * DD_NS_PER_MS);
    CHECK_STATUS(dd_engine_wait(rig.ranks[0].engine, &recv.is_done, &wait, check_err()), DD_OP_TIMED_OUT);
    CHECK(dd_wait_elapsed_s(&wait) < 1.0 * check_slow());
    rig_cancel(&rig, 0, &recv);
    rig_close(&rig);
}

/* A sleeping wait must notice that another thread has cancelled its message. */
static void *
cancel_soon(void *arg)
{
    rig_group *rig = ((void **)arg)[0];
    usleep(20000);
    rig_cancel(rig, 0, ((void **)arg)[1]);
    return NULL;
}

TEST(cancelling_a_message_wakes_the_thread_that_waits_for_it)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, true));
    rig_message recv = rig_p2p(1, 1, NULL, 0);
    rig_post_recv(&rig, 0, &recv);
    pthread_t thread;
    void *args[2] = {&rig, &recv};
    REQUIRE_OK(dd_thread_start(&thread, "cancel", cancel_soon, args, check_err()));
    int64_t start_ns = dd_clock_now_ns();
    rig_wait(&rig, 0, &recv, DD_OP_TIMED_OUT);
    CHECK(dd_clock_now_ns() - start_ns < DD_NS_PER_S * check_slow());
    pthread_join(thread, NULL);
    rig_close(&rig);
}

/* ---- tasks and timers */

typedef struct counting_task {
    dd_task task;
    dd_engine *engine;
    int nlooks;
    atomic_bool is_enough;
} counting_task;

static bool
count_look(dd_task *task)
{
    counting_task *self = DD_CONTAINER_OF(task, counting_task, task);
    if (++self->nlooks == 5) {
        dd_engine_remove_task_locked(self->engine, task);
        atomic_store(&self->is_enough, true);
    }
    return true;
}

static bool
may_sleep(dd_task *task)
{
    (void)task;
    return true;
}

TEST(a_task_is_polled_until_its_condition_holds)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, true));
    dd_engine *engine = rig.ranks[0].engine;
    counting_task polled = {.task = {.progress = count_look, .fall_asleep = may_sleep}, .engine = engine};
    dd_engine_lock(engine);
    dd_engine_add_task_locked(engine, &polled.task);
    dd_engine_unlock(engine);
    rig_wait_flag(&rig, 0, &polled.is_enough);
    CHECK_INT(polled.nlooks, 5);
    rig_close(&rig);
}

typedef struct flag_timer {
    dd_timer timer;
    atomic_bool is_due;
} flag_timer;

static void
set_flag(dd_timer *timer)
{
    CHECK(!dd_timer_is_set(timer));
    atomic_store(&DD_CONTAINER_OF(timer, flag_timer, timer)->is_due, true);
}

static void
start_soon(dd_engine *engine, flag_timer *self)
{
    dd_engine_lock(engine);
    atomic_store(&self->is_due, false);
    dd_engine_start_timer_locked(engine, &self->timer, dd_deadline_after(30 * DD_NS_PER_MS));
    dd_engine_unlock(engine);
}

TEST(timers_run_whether_or_not_a_caller_waits)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, true));
    dd_engine *engine = rig.ranks[0].engine;
    counting_task busy = {.task = {.progress = count_look, .fall_asleep = may_sleep}, .engine = engine};
    flag_timer self;
    dd_timer_init(&self.timer, set_flag);
    atomic_init(&self.is_due, false);
    start_soon(engine, &self);
    rig_wait_flag(&rig, 0, &self.is_due);

    start_soon(engine, &self);
    dd_engine_lock(engine);
    /* the background thread makes progress for tasks */
    dd_engine_add_task_locked(engine, &busy.task);
    dd_engine_unlock(engine);
    dd_engine_kick(engine);
    for (int i = 0; i < 2000 && !atomic_load(&self.is_due); i++) {
        usleep(1000);
    }
    CHECK(atomic_load(&self.is_due));
    rig_close(&rig);
}

/* ---- leaks */

TEST_BOTH(closing_an_engine_leaks_no_descriptors_and_no_threads)
{
    int nfds = 0;
    int nthreads = 0;
    for (int i = 0; i < 8; i++) {
        rig_group rig;
        REQUIRE(rig_open(&rig, 2, is_shm));
        exchange_empty(&rig, 0, 1);
        rig_close(&rig);
        if (i == 0) {
            nfds = count_fds();
            nthreads = count_threads();
        }
    }
    CHECK_INT(count_fds(), nfds);
    CHECK_INT(count_threads(), nthreads);
}

TEST_BOTH(a_forked_child_cannot_use_the_engine_but_can_release_it)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, is_shm));
    exchange_empty(&rig, 0, 1);
    pid_t pid = fork();
    if (pid == 0) {
        CHECK_STATUS(dd_engine_check_fork(rig.ranks[0].engine, check_err()), DD_FORKED);
        rig_close(&rig);
        _exit(check_failures() > 0 ? 1 : 0);
    }
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    exchange_empty(&rig, 1, 0);
    rig_close(&rig);
}

TEST(a_large_message_arrives_over_three_parallel_connections)
{
    enum { NBYTES = 20 << 20 };
    uint8_t *out = malloc(NBYTES);
    uint8_t *in = calloc(1, NBYTES);
    rig_fill(out, NBYTES, 9);
    rig_group rig;
    REQUIRE(rig_open_engines(&rig, 2, false, 3));
    REQUIRE(rig_open_context(&rig, 0) && rig_open_context(&rig, 1));
    exchange_empty(&rig, 0, 1);
    for (int i = 0; i < 4; i++) {
        memset(in, 0, NBYTES);
        rig_message send = rig_p2p(1, 1, out, NBYTES);
        rig_message recv = rig_p2p(0, 1, in, NBYTES);
        rig_post_recv(&rig, 1, &recv);
        rig_post_send(&rig, 0, &send);
        dd_engine_kick(rig.ranks[0].engine);
        rig_wait(&rig, 1, &recv, DD_OK);
        rig_wait(&rig, 0, &send, DD_OK);
        rig_is_filled(in, NBYTES, 9);
        rig_drive(&rig, 20 * DD_NS_PER_MS);
    }
    dd_engine_stats stats;
    stats = read_engine_stats(rig.ranks[0].engine);
    CHECK_INT(stats.nconnections, 3);
    rig_close(&rig);
    free(out);
    free(in);
}

/* All data that was sent must arrive, even if the goodbye frame takes a shorter path. */
TEST(a_goodbye_does_not_overtake_a_large_message_on_three_connections)
{
    enum { NBYTES = 20 << 20 };
    uint8_t *out = malloc(NBYTES);
    uint8_t *in = calloc(1, NBYTES);
    rig_fill(out, NBYTES, 9);
    for (int i = 0; i < 10; i++) {
        rig_group rig;
        REQUIRE(rig_open_engines(&rig, 2, false, 3));
        REQUIRE(rig_open_context(&rig, 0) && rig_open_context(&rig, 1));
        exchange_empty(&rig, 0, 1);
        memset(in, 0, NBYTES);
        rig_message first = rig_p2p(1, 1, out, NBYTES);
        rig_message first_recv = rig_p2p(0, 1, in, NBYTES);
        rig_post_recv(&rig, 1, &first_recv);
        rig_post_send(&rig, 0, &first);
        rig_wait(&rig, 0, &first, DD_OK);
        rig_wait(&rig, 1, &first_recv, DD_OK);
        rig_drive(&rig, 20 * DD_NS_PER_MS); /* now all three are connected */
        memset(in, 0, NBYTES);
        rig_message send = rig_p2p(1, 2, out, NBYTES);
        rig_message recv = rig_p2p(0, 2, in, NBYTES);
        rig_post_recv(&rig, 1, &recv);
        rig_post_send(&rig, 0, &send);
        rig_wait(&rig, 0, &send, DD_OK);
        if (i % 2 == 0) {
            rig_close_context(&rig, 0);
        } else {
            rig_close_rank(&rig, 0);
        }
        rig_wait(&rig, 1, &recv, DD_OK);
        rig_is_filled(in, NBYTES, 9);
        CHECK(rig_wait_count(&rig, 1, &rig.ranks[1].news.ngoodbyes, 1));
        CHECK_INT(rig.ranks[1].news.nlosts, 0);
        rig_close(&rig);
    }
    free(out);
    free(in);
}

/* Several ranks of a group in one process use one engine. */
/* A process stores little more than the endpoint for most ranks. */
TEST(a_peer_without_messages_uses_at_most_700_bytes)
{
    CHECK(sizeof(dd_peer) <= 700);
}

/* ---- processes whose endpoints are not known */

/* Connect with a hello, as a process with the endpoint does. Return the link, or -1 and the result. */
static int
dial_unknown(const dd_endpoint *endpoint, const dd_addr_list *addrs, uint8_t *result)
{
    dd_wait wait = dd_wait_after(8 * DD_NS_PER_S * check_slow());
    connect_hello hello = {.to = endpoint->uid};
    uint8_t answer[CONNECT_ANSWER_BYTES];
    int fd = -1;
    bool is_answered = CHECK_OK(dd_auth_random(&hello.from, sizeof hello.from, check_err())) &&
                       CHECK_OK(connect_hello_write(&hello, check_err())) &&
                       CHECK_OK(dd_sock_connect(&addrs->items[0], &fd, &wait, check_err())) &&
                       CHECK_OK(connect_send(fd, NULL, hello.bytes, CONNECT_HELLO_BYTES, check_err())) &&
                       handshake_receive_all(fd, answer, sizeof answer, &wait) &&
                       handshake_receive_all(fd, result, 1, &wait);
    if (!is_answered || *result != CONNECT_OK) {
        dd_sock_close(fd);
        fd = -1;
    }
    return fd;
}

static dd_peer *
add_peer_of(dd_engine *to, dd_engine *of)
{
    dd_blob endpoint = {0};
    dd_peer *peer = NULL;
    CHECK_OK(dd_engine_endpoint(of, NULL, &endpoint, check_err()));
    CHECK_OK(dd_engine_peer(to, dd_blob_view(&endpoint), &peer, check_err()));
    dd_blob_fini(&endpoint);
    return peer;
}

static bool
await_connected(dd_engine *engine, dd_peer *peer)
{
    dd_wait wait = dd_wait_after(8 * DD_NS_PER_S * check_slow());
    bool is_connected = false;
    while (!is_connected && !dd_wait_has_expired(&wait)) {
        usleep(1000);
        dd_engine_lock(engine);
        is_connected = dd_peer_is_connected_locked(peer);
        dd_engine_unlock(engine);
    }
    return is_connected;
}

static void
connect_to(dd_engine *engine, dd_peer *peer)
{
    dd_engine_lock(engine);
    dd_peer_connect_locked(peer);
    dd_engine_unlock(engine);
}

/* Without a secret, unknown processes that know the endpoint can connect. Their number is limited, they
 * do not keep out known processes, and their links close when the meeting ends. */
TEST(connections_of_unknown_processes_are_limited_and_finally_closed)
{
    enum { N = 100, ENGINES = 3 };
    dd_connect_options options = rig_options(false, 1);
    dd_engine *engines[ENGINES];
    for (int i = 0; i < ENGINES; i++) {
        REQUIRE_OK(dd_engine_open(&options, &engines[i], check_err()));
    }
    dd_engine_begin_meeting(engines[0]);
    dd_peer *known[ENGINES] = {0};
    dd_peer *first[ENGINES] = {0};
    for (int i = 1; i < ENGINES; i++) {
        first[i] = add_peer_of(engines[i], engines[0]);
    }
    known[1] = add_peer_of(engines[0], engines[1]);
    dd_engine_lock(engines[1]);
    dd_addr_list addrs = dd_peer_addrs_locked(first[1]);
    dd_engine_unlock(engines[1]);
    int links[N];
    int nlinks = 0;
    for (int i = 0; i < N; i++) {
        uint8_t result = 0;
        links[nlinks] = dial_unknown(dd_peer_endpoint(first[1]), &addrs, &result);
        nlinks += links[nlinks] >= 0 ? 1 : 0;
        CHECK(result == CONNECT_OK || result == CONNECT_BUSY);
    }
    CHECK(nlinks > 0 && nlinks < N);
    connect_to(engines[1], first[1]);
    CHECK(await_connected(engines[1], first[1]));
    dd_blob unread = {0};
    REQUIRE_OK(dd_engine_endpoint(engines[2], NULL, &unread, check_err()));
    dd_blob_fini(&unread);
    connect_to(engines[2], first[2]);
    usleep(20000); /* usually enough to receive BUSY; the test is correct either way */
    known[2] = add_peer_of(engines[0], engines[2]);
    CHECK(await_connected(engines[2], first[2]));
    dd_engine_end_meeting(engines[0]);
    dd_wait wait = dd_wait_after(8 * DD_NS_PER_S * check_slow());
    bool are_closed = true;
    for (int i = 0; i < nlinks; i++) {
        uint8_t byte;
        are_closed = are_closed && CHECK_OK(dd_sock_wait(links[i], POLLIN, &wait, check_err())) &&
                     recv(links[i], &byte, 1, 0) == 0;
        dd_sock_close(links[i]);
    }
    CHECK(are_closed);
    CHECK(await_connected(engines[1], first[1]) && await_connected(engines[2], first[2]));
    for (int i = 0; i < ENGINES; i++) {
        dd_peer_release(known[i]);
        dd_peer_release(first[i]);
    }
    for (int i = 0; i < ENGINES; i++) {
        dd_engine_release(engines[i]);
    }
}

TEST(ranks_of_one_process_exchange_messages_and_aborts)
{
    rig_group rig;
    REQUIRE(rig_open_engines(&rig, 1, true, 1));
    dd_engine *engine = rig.ranks[0].engine;
    rig.nranks = 2;
    rig.ranks[0].peers[1] = dd_peer_acquire(rig.ranks[0].peers[0]);
    rig.ranks[1].engine = dd_engine_acquire(engine);
    rig.ranks[1].peers[0] = dd_peer_acquire(rig.ranks[0].peers[0]);
    rig.ranks[1].peers[1] = dd_peer_acquire(rig.ranks[0].peers[0]);
    REQUIRE(rig_open_context(&rig, 0));
    int out = 5;
    int in = 0;
    rig_message send = rig_p2p(1, 1, &out, sizeof out);
    rig_post_send(&rig, 0, &send);
    rig_wait(&rig, 0, &send, DD_OK);
    REQUIRE(rig_open_context(&rig, 1));
    rig_message recv = rig_p2p(0, 1, &in, sizeof in);
    rig_post_recv(&rig, 1, &recv);
    rig_wait(&rig, 1, &recv, DD_OK);
    CHECK_INT(in, 5);
    dd_error error;
    (void)dd_error_set(&error, DD_ABORTED, "no more");
    dd_cause cause = dd_cause_of_error(&error, 0);
    dd_engine_lock(engine);
    dd_context_post_abort_locked(rig.ranks[0].context, DD_ANY_RANK, false, &cause);
    dd_engine_unlock(engine);
    REQUIRE(rig_wait_count(&rig, 1, &rig.ranks[1].news.naborts, 1));
    rig_close_context(&rig, 0);
    REQUIRE(rig_wait_count(&rig, 1, &rig.ranks[1].news.ngoodbyes, 1));
    rig_close(&rig);
}

/* Whichever allocation fails, every message completes, and nothing leaks. */
TEST_BOTH(every_message_completes_even_if_an_allocation_fails)
{
    static uint8_t out[200000];
    static uint8_t in[200000];
    for (long count = 0; count < 24; count++) {
        rig_group rig;
        REQUIRE(rig_open(&rig, 2, is_shm));
        exchange_empty(&rig, 0, 1);
        (void)dd_mem_fail_after(count);
        size_t lengths[] = {1000, 200000, 30000};
        rig_message sends[3];
        rig_message recvs[3];
        for (int i = 0; i < 3; i++) {
            sends[i] = rig_p2p(1, (uint64_t)i, out, lengths[i]);
            recvs[i] = rig_p2p(0, (uint64_t)i, in, lengths[i] - (i == 2 ? 1 : 0));
            rig_post_send(&rig, 0, &sends[i]);
        }
        rig_drive(&rig, 2 * DD_NS_PER_MS);
        for (int i = 0; i < 3; i++) {
            rig_post_recv(&rig, 1, &recvs[i]);
        }
        rig_drive(&rig, 2 * DD_NS_PER_MS);
        (void)dd_mem_fail_after(-1);
        for (int i = 0; i < 3; i++) {
            /* The receive of a failed send waits for another send. */
            if (sends[i].is_done && sends[i].error.code != DD_OK) {
                rig_cancel(&rig, 1, &recvs[i]);
            }
            rig_wait_flag(&rig, 0, &sends[i].is_done);
            rig_wait_flag(&rig, 1, &recvs[i].is_done);
        }
        rig_close(&rig);
    }
}

TEST(opening_an_engine_returns_an_error_when_allocations_fail)
{
    for (long count = 0; count < 12; count++) {
        dd_connect_options options = rig_options(true, 1);
        dd_engine *engine = NULL;
        (void)dd_mem_fail_after(count);
        dd_status status = dd_engine_open(&options, &engine, check_err());
        dd_blob endpoint = {0};
        if (status == DD_OK) {
            status = dd_engine_endpoint(engine, NULL, &endpoint, check_err());
        }
        (void)dd_mem_fail_after(-1);
        CHECK(status == DD_OK || status == DD_OUT_OF_MEMORY);
        dd_blob_fini(&endpoint);
        dd_engine_release(engine);
    }
}

/* ---- races that need precise timing */

/* Return false if the message was complete before both sides could be held, so that there was
 * nothing to cancel. */
static bool
cancel_on_the_way(void)
{
    /* one fragment, which does not fit into the ring with its header */
    enum { NBYTES = 256 << 10 };
    static uint8_t out[NBYTES];
    static uint8_t in[NBYTES];
    atomic_bool never = false;
    rig_group rig;
    if (!rig_open(&rig, 2, true)) {
        return true;
    }
    exchange_empty(&rig, 0, 1);
    rig_fill(out, NBYTES, 4);
    memset(in, 0, NBYTES);
    rig_message send = rig_p2p(1, 1, out, NBYTES);
    rig_message recv = rig_p2p(0, 1, in, NBYTES);
    rig_post_recv(&rig, 1, &recv);
    rig_post_send(&rig, 0, &send);
    rig_hold sender;
    rig_hold receiver;
    bool is_held = rig_hold_begin(&sender, &rig, 0);
    dd_wait moment = dd_wait_after(20 * DD_NS_PER_MS);
    (void)!dd_engine_wait(rig.ranks[1].engine, &never, &moment, NULL); /* RTS, CTS */
    is_held = CHECK(is_held && rig_hold_begin(&receiver, &rig, 1));
    if (!is_held) {
        return true;
    }
    rig_hold_end(&sender);
    moment = dd_wait_after(20 * DD_NS_PER_MS);
    (void)!dd_engine_wait(rig.ranks[0].engine, &never, &moment, NULL); /* the ring is full */
    bool is_on_the_way = !atomic_load(&send.is_done);
    if (is_on_the_way) {
        rig_cancel(&rig, 0, &send);
        memset(out, 0xff, NBYTES);
    }
    rig_hold_end(&receiver);
    dd_engine_kick(rig.ranks[0].engine);
    if (rig_wait(&rig, 1, &recv, DD_OK)) {
        rig_is_filled(in, NBYTES, 4);
    }
    exchange_empty(&rig, 0, 1);
    rig_close(&rig);
    return is_on_the_way;
}

/* All of the data is in transit when the send is cancelled. The receiver has the whole message, and
 * must not find other data in it. */
TEST(a_send_cancelled_in_transit_does_not_corrupt_the_received_message)
{
    bool was_on_the_way = false;
    for (int i = 0; i < 10 && !was_on_the_way; i++) {
        was_on_the_way = cancel_on_the_way();
    }
    CHECK(was_on_the_way);
}

/* The connection ends in the middle of a small message that was matched to its receive when its
 * first bytes arrived. */
TEST(a_receive_fails_if_the_connection_ends_in_the_middle_of_its_message)
{
    enum { NBYTES = 32 << 10, COUNT = 8 }; /* with their headers more than the ring holds */
    static uint8_t out[NBYTES];
    static uint8_t in[NBYTES];
    atomic_bool never = false;
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, true));
    exchange_empty(&rig, 0, 1);
    rig_message sends[COUNT];
    rig_hold sender;
    rig_hold receiver;
    REQUIRE(rig_hold_begin(&receiver, &rig, 1));
    for (int i = 0; i < COUNT; i++) {
        sends[i] = rig_p2p(1, (uint64_t)i, out, NBYTES);
        rig_post_send(&rig, 0, &sends[i]);
    }
    REQUIRE(rig_hold_begin(&sender, &rig, 0));
    CHECK(!atomic_load(&sends[COUNT - 1].is_done));
    rig_hold_end(&receiver);
    dd_wait moment = dd_wait_after(20 * DD_NS_PER_MS);
    (void)!dd_engine_wait(rig.ranks[1].engine, &never, &moment, NULL);
    rig_message recv = rig_p2p(0, COUNT - 1, in, NBYTES);
    rig_post_recv(&rig, 1, &recv);
    CHECK(!atomic_load(&recv.is_done));
    shutdown(rig.ranks[0].peers[1]->lanes[0]->stream->fd, SHUT_RDWR);
    rig_wait(&rig, 1, &recv, DD_PEER_LOST);
    rig_hold_end(&sender);
    rig_wait_flag(&rig, 0, &sends[COUNT - 1].is_done); /* in the kernel, or lost */
    rig_close(&rig);
}

static void *
close_sender(void *rig)
{
    rig_close_rank(rig, 0);
    return NULL;
}

/* Send the smallest frame, bypassing the engine, which is held. */
static void
send_smallest_frame(const rig_group *rig, int rank, int other)
{
    const dd_frame frame = {.type = DD_FRAME_CREDIT};
    uint8_t header[DD_FRAME_NBYTES];
    size_t nbytes = dd_frame_encode(&frame, header);
    int fd = rig->ranks[rank].peers[other]->lanes[0]->stream->fd;
    CHECK_INT(sendto(fd, header, nbytes, MSG_NOSIGNAL, NULL, 0), nbytes);
}

/* A process that exits resets a connection that still has incoming data. Data that it sent before,
 * and that did not fit into the receiver's window, must not be lost. */
TEST(data_that_a_process_sent_before_its_exit_arrives)
{
    enum { NBYTES = 60 << 10, COUNT = 14 }; /* more than a receiver accepts without reading */
    static uint8_t out[NBYTES];
    static uint8_t in[COUNT][NBYTES];
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, false));
    exchange_empty(&rig, 0, 1);
    rig_message recvs[COUNT];
    rig_message sends[COUNT];
    for (int i = 0; i < COUNT; i++) {
        recvs[i] = rig_p2p(0, (uint64_t)i, in[i], NBYTES);
        rig_post_recv(&rig, 1, &recvs[i]);
    }
    rig_hold receiver;
    REQUIRE(rig_hold_begin(&receiver, &rig, 1));
    for (int i = 0; i < COUNT; i++) {
        rig_fill(out, NBYTES, (unsigned)i);
        sends[i] = rig_p2p(1, (uint64_t)i, out, NBYTES);
        rig_post_send(&rig, 0, &sends[i]);
        rig_wait(&rig, 0, &sends[i], DD_OK);
    }
    pthread_t closer;
    REQUIRE(pthread_create(&closer, NULL, close_sender, &rig) == 0);
    usleep(100 * 1000); /* a sender that does not wait is closed now */
    send_smallest_frame(&rig, 1, 0);
    rig_hold_end(&receiver);
    for (int i = 0; i < COUNT; i++) {
        if (rig_wait(&rig, 1, &recvs[i], DD_OK)) {
            rig_is_filled(in[i], NBYTES, (unsigned)i);
        }
    }
    (void)pthread_join(closer, NULL);
    rig_close(&rig);
}

static bool
is_asleep_in_the_background(dd_engine *engine)
{
    bool is_asleep = false;
    for (int i = 0; i < 3000 && !is_asleep; i++) {
        usleep(1000);
        dd_engine_lock(engine);
        is_asleep = engine->driver == &engine->background && engine->background.is_asleep;
        dd_engine_unlock(engine);
    }
    return is_asleep;
}

/* When another thread polls the links, the thread that sleeps on them must still be woken. */
TEST_BOTH(a_sleeping_thread_is_woken_even_if_another_thread_has_polled)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, is_shm));
    exchange_empty(&rig, 0, 1);
    REQUIRE(CHECK(is_asleep_in_the_background(rig.ranks[1].engine)));
    dd_engine_kick(rig.ranks[1].engine);
    dd_engine_lock(rig.ranks[0].engine);
    dd_context_post_question_locked(rig.ranks[0].context, 1);
    dd_engine_unlock(rig.ranks[0].engine);
    rig_wait_count(&rig, 0, &rig.ranks[0].news.nanswers, 1);
    rig_close(&rig);
}

/* Otherwise every call would wake it, and it would compete for the core. */
TEST(the_background_thread_sleeps_while_a_caller_makes_progress)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, true));
    dd_engine *engine = rig.ranks[1].engine;
    REQUIRE(CHECK(is_asleep_in_the_background(engine)));
    dd_engine_lock(engine);
    dd_engine_note_active_locked(engine);
    CHECK(engine->driver == NULL);
    dd_engine_unlock(engine);
    bool is_awake = false;
    for (int i = 0; i < 3000 && !is_awake; i++) {
        usleep(1000);
        dd_engine_lock(engine);
        dd_engine_note_active_locked(engine);
        is_awake = engine->nsleeping == 0;
        dd_engine_unlock(engine);
    }
    CHECK(is_awake);
    CHECK(is_asleep_in_the_background(engine)); /* again, when there are no calls */
    rig_close(&rig);
}

/* A wait's interrupt callback may itself wait, as the signal handlers of an interpreter do. */
static bool
wait_for_another(void *ctx)
{
    rig_group *rig = ctx;
    int out = 7;
    int in = 0;
    rig_message recv = rig_p2p(0, 9, &in, sizeof in);
    rig_message send = rig_p2p(0, 9, &out, sizeof out);
    rig_post_recv(rig, 0, &recv);
    rig_post_send(rig, 0, &send);
    dd_wait wait = dd_wait_after(2 * DD_NS_PER_S * check_slow());
    CHECK_OK(dd_engine_wait(rig->ranks[0].engine, &recv.is_done, &wait, check_err()));
    rig_cancel(rig, 0, &recv);
    rig_cancel(rig, 0, &send);
    CHECK_INT(in, 7);
    return true;
}

TEST(an_interrupt_callback_may_itself_wait_for_a_message)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, true));
    rig_message recv = rig_p2p(1, 1, NULL, 0);
    rig_post_recv(&rig, 0, &recv);
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S);
    wait.is_interrupted = wait_for_another;
    wait.ctx = &rig;
    CHECK_STATUS(dd_engine_wait(rig.ranks[0].engine, &recv.is_done, &wait, check_err()), DD_INTERRUPTED);
    rig_cancel(&rig, 0, &recv);
    rig_close(&rig);
}

/* ---- creation of the endpoint */

typedef struct kicker {
    dd_engine *engine;
    dd_task task;
    bool has_progressed;
    atomic_int nkicks;
    atomic_bool is_over;
} kicker;

static bool
progress_every_other_time(dd_task *task)
{
    kicker *self = DD_CONTAINER_OF(task, kicker, task);
    self->has_progressed = !self->has_progressed;
    return self->has_progressed;
}

static void *
kick(void *arg)
{
    kicker *self = arg;
    while (!atomic_load(&self->is_over)) {
        dd_engine_kick(self->engine);
        atomic_fetch_add_explicit(&self->nkicks, 1, memory_order_relaxed);
    }
    return NULL;
}

/* For ThreadSanitizer: a process that has sent only to itself starts its background thread. */
TEST(the_first_endpoint_may_be_created_while_another_thread_polls)
{
    dd_connect_options options = rig_options(true, 1);
    kicker self = {
        .task = {.progress = progress_every_other_time, .fall_asleep = may_sleep},
    };
    REQUIRE_OK(dd_engine_open(&options, &self.engine, check_err()));
    dd_engine_lock(self.engine);
    dd_engine_add_task_locked(self.engine, &self.task);
    dd_engine_unlock(self.engine);
    pthread_t thread;
    REQUIRE_OK(dd_thread_start(&thread, "kicker", kick, &self, check_err()));
    while (atomic_load_explicit(&self.nkicks, memory_order_relaxed) < 10) {
        usleep(100);
    }
    dd_blob endpoint = {0};
    CHECK_OK(dd_engine_endpoint(self.engine, NULL, &endpoint, check_err()));
    atomic_store(&self.is_over, true);
    dd_thread_join(thread);
    dd_engine_lock(self.engine);
    dd_engine_remove_task_locked(self.engine, &self.task);
    dd_engine_unlock(self.engine);
    dd_blob_fini(&endpoint);
    dd_engine_release(self.engine);
}
