#include "test_engine_rig.h"

#include <stdlib.h>
#include <string.h>

dd_connect_options
rig_options(bool is_shm, int nlanes)
{
    return (dd_connect_options){
        .ifnames = "=lo",
        .is_shm_disabled = !is_shm,
        .nlanes = nlanes,
        .ring_nbytes = (size_t)256 << 10,
        .congestion = "",
        .timeout_ns = 5 * DD_NS_PER_S,
    };
}

static void
on_coll(void *ctx, int rank, uint64_t sequence, const dd_signature *signature)
{
    rig_news *news = ctx;
    (void)rank;
    (void)sequence;
    news->last_signature = *signature;
    atomic_fetch_add(&news->ncolls, 1);
}

static void
on_abort(void *ctx, int rank, const dd_cause *cause)
{
    rig_news *news = ctx;
    (void)rank;
    news->abort_cause = *cause;
    atomic_fetch_add(&news->naborts, 1);
}

static void
on_lost(void *ctx, int rank, const dd_error *error)
{
    rig_news *news = ctx;
    if (atomic_load(&news->nlosts) == 0) {
        news->naborts_before_loss = atomic_load(&news->naborts);
    }
    news->lost_error = *error;
    news->lost_rank = rank;
    atomic_fetch_add(&news->nlosts, 1);
}

static void
on_goodbye(void *ctx, int rank)
{
    rig_news *news = ctx;
    (void)rank;
    atomic_fetch_add(&news->ngoodbyes, 1);
}

static void
on_query(void *ctx, uint64_t *sequence, dd_signature *signature, bool *is_inside)
{
    (void)ctx;
    *sequence = 1234;
    *signature = (dd_signature){.coll = 3};
    *is_inside = true;
}

static void
on_answer(void *ctx, int rank, uint64_t sequence, const dd_signature *signature, bool is_inside)
{
    rig_news *news = ctx;
    (void)rank;
    CHECK_INT(signature->coll, 3);
    CHECK(is_inside);
    news->answer_sequence = sequence;
    atomic_fetch_add(&news->nanswers, 1);
}

bool
rig_open_engines(rig_group *self, int nranks, bool is_shm, int nlanes)
{
    dd_connect_options options = rig_options(is_shm, nlanes);
    dd_blob endpoints[RIG_MAX] = {{0}};
    bool is_ok = true;
    memset(self, 0, sizeof *self);
    self->nranks = nranks;
    self->is_shm = is_shm;
    for (int i = 0; i < nranks; i++) {
        is_ok = is_ok && CHECK_OK(dd_engine_open(&options, &self->ranks[i].engine, check_err())) &&
                CHECK_OK(dd_engine_endpoint(self->ranks[i].engine, NULL, &endpoints[i], check_err()));
    }
    for (int i = 0; i < nranks * nranks && is_ok; i++) {
        rig_rank *rank = &self->ranks[i / nranks];
        is_ok = CHECK_OK(dd_engine_peer(rank->engine, dd_blob_view(&endpoints[i % nranks]),
                                        &rank->peers[i % nranks], check_err()));
    }
    for (int i = 0; i < nranks; i++) {
        dd_blob_fini(&endpoints[i]);
    }
    return is_ok;
}

dd_context_handler
rig_handler(rig_group *self, int rank)
{
    return (dd_context_handler){
        .ctx = &self->ranks[rank].news,
        .on_coll = on_coll,
        .on_abort = on_abort,
        .on_lost = on_lost,
        .on_goodbye = on_goodbye,
        .on_query = on_query,
        .on_answer = on_answer,
    };
}

bool
rig_open_context_of(rig_group *self, int rank, uint64_t id)
{
    rig_rank *own = &self->ranks[rank];
    dd_context_handler handler = rig_handler(self, rank);
    return CHECK_OK(dd_context_open(own->engine, id, rank, self->nranks, own->peers, &handler, &own->context,
                                    check_err()));
}

bool
rig_open_context(rig_group *self, int rank)
{
    return rig_open_context_of(self, rank, RIG_GROUP);
}

bool
rig_open(rig_group *self, int nranks, bool is_shm)
{
    bool is_ok = rig_open_engines(self, nranks, is_shm, 1);
    for (int i = 0; i < nranks && is_ok; i++) {
        is_ok = rig_open_context(self, i);
    }
    return is_ok;
}

void
rig_close_context(rig_group *self, int rank)
{
    rig_rank *own = &self->ranks[rank];
    dd_wait wait = dd_wait_after(2 * DD_NS_PER_S);
    if (own->context != NULL) {
        dd_context_close(own->context, &wait);
        own->context = NULL;
    }
}

void
rig_close_rank(rig_group *self, int rank)
{
    rig_rank *own = &self->ranks[rank];
    rig_close_context(self, rank);
    for (int i = 0; i < self->nranks; i++) {
        dd_peer_release(own->peers[i]);
        own->peers[i] = NULL;
    }
    dd_engine_release(own->engine);
    own->engine = NULL;
}

void
rig_close(rig_group *self)
{
    for (int i = 0; i < self->nranks; i++) {
        if (self->ranks[i].engine != NULL) {
            rig_close_rank(self, i);
        }
    }
}

static void
on_done(dd_message *message, const dd_error *error)
{
    rig_message *self = message->owner;
    if (error != NULL) {
        self->error = *error;
    }
    atomic_store_explicit(&self->is_done, true, memory_order_release);
}

rig_message
rig_p2p(int rank, uint64_t tag, void *data, size_t nbytes)
{
    return (rig_message){
        .message = {.kind = DD_MESSAGE_P2P, .rank = rank, .tag = tag, .data = data, .nbytes = nbytes},
    };
}

rig_message
rig_coll(int rank, uint64_t sequence, uint32_t channel, const dd_signature *signature, void *data,
         size_t nbytes)
{
    return (rig_message){
        .message = {.kind = DD_MESSAGE_COLL,
                    .rank = rank,
                    .tag = sequence,
                    .channel = channel,
                    .signature = signature,
                    .data = data,
                    .nbytes = nbytes},
    };
}

static void
begin(rig_message *message)
{
    message->message.on_done = on_done;
    message->message.owner = message;
    message->error = (dd_error){.code = DD_OK};
    atomic_store(&message->is_done, false);
}

void
rig_post_send(rig_group *self, int rank, rig_message *message)
{
    begin(message);
    dd_engine_lock(self->ranks[rank].engine);
    dd_context_post_send_locked(self->ranks[rank].context, &message->message);
    dd_engine_unlock(self->ranks[rank].engine);
}

void
rig_post_recv(rig_group *self, int rank, rig_message *message)
{
    begin(message);
    dd_engine_lock(self->ranks[rank].engine);
    dd_context_post_recv_locked(self->ranks[rank].context, &message->message);
    dd_engine_unlock(self->ranks[rank].engine);
}

void
rig_cancel(rig_group *self, int rank, rig_message *message)
{
    dd_error error;
    (void)dd_error_set(&error, DD_OP_TIMED_OUT, "cancelled by the test");
    dd_engine_lock(self->ranks[rank].engine);
    dd_context_cancel_locked(self->ranks[rank].context, &message->message, &error);
    dd_engine_unlock(self->ranks[rank].engine);
    CHECK(atomic_load(&message->is_done));
}

static void
wait_semaphore(sem_t *semaphore)
{
    while (sem_wait(semaphore) != 0) {
    }
}

static void *
hold(void *arg)
{
    rig_hold *self = arg;
    dd_engine_lock(self->engine);
    (void)sem_post(&self->is_held);
    wait_semaphore(&self->is_over);
    dd_engine_unlock(self->engine);
    return NULL;
}

bool
rig_hold_begin(rig_hold *self, rig_group *rig, int rank)
{
    self->engine = rig->ranks[rank].engine;
    if (!CHECK(sem_init(&self->is_held, 0, 0) == 0 && sem_init(&self->is_over, 0, 0) == 0) ||
        !CHECK(pthread_create(&self->thread, NULL, hold, self) == 0)) {
        return false;
    }
    wait_semaphore(&self->is_held);
    return true;
}

void
rig_hold_end(rig_hold *self)
{
    (void)sem_post(&self->is_over);
    (void)pthread_join(self->thread, NULL);
    (void)sem_destroy(&self->is_held);
    (void)sem_destroy(&self->is_over);
}

bool
rig_wait_flag(rig_group *self, int rank, const atomic_bool *flag)
{
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S * check_slow());
    return CHECK_OK(dd_engine_wait(self->ranks[rank].engine, flag, &wait, check_err()));
}

bool
rig_wait(rig_group *self, int rank, rig_message *message, dd_status code)
{
    return rig_wait_flag(self, rank, &message->is_done) &&
           check_status(message->error.code, code, __FILE__, __LINE__, message->error.message);
}

void
rig_drive(rig_group *self, int64_t duration_ns)
{
    int64_t until_ns = dd_deadline_after(duration_ns);
    atomic_bool never = false;
    while (dd_deadline_left_ns(until_ns) > 0) {
        for (int i = 0; i < self->nranks; i++) {
            if (self->ranks[i].engine != NULL) {
                dd_wait wait = dd_wait_after(DD_NS_PER_MS);
                (void)!dd_engine_wait(self->ranks[i].engine, &never, &wait, NULL);
            }
        }
    }
}

bool
rig_wait_count(rig_group *self, int rank, atomic_int *counter, int wanted)
{
    int64_t until_ns = dd_deadline_after(5 * DD_NS_PER_S * check_slow());
    atomic_bool never = false;
    while (atomic_load(counter) < wanted && dd_deadline_left_ns(until_ns) > 0) {
        dd_wait wait = dd_wait_after(DD_NS_PER_MS);
        (void)!dd_engine_wait(self->ranks[rank].engine, &never, &wait, NULL);
    }
    return CHECK(atomic_load(counter) >= wanted);
}

typedef struct rig_thread {
    rig_group *self;
    int rank;
    void (*body)(rig_group *self, int rank);
} rig_thread;

static void *
run_thread(void *arg)
{
    rig_thread *thread = arg;
    thread->body(thread->self, thread->rank);
    return NULL;
}

void
rig_run(rig_group *self, void (*body)(rig_group *self, int rank))
{
    pthread_t threads[RIG_MAX];
    rig_thread args[RIG_MAX];
    int nstarted = 0;
    for (int i = 0; i < self->nranks; i++) {
        args[i] = (rig_thread){.self = self, .rank = i, .body = body};
        nstarted += CHECK_OK(dd_thread_start(&threads[i], "rank", run_thread, &args[i], check_err())) ? 1 : 0;
    }
    for (int i = 0; i < nstarted; i++) {
        pthread_join(threads[i], NULL);
    }
}

void
rig_fill(uint8_t *data, size_t nbytes, unsigned seed)
{
    for (size_t i = 0; i < nbytes; i++) {
        data[i] = (uint8_t)(i * 31 + (i >> 8) + (i >> 16) * 7 + seed);
    }
}

bool
rig_is_filled(const uint8_t *data, size_t nbytes, unsigned seed)
{
    for (size_t i = 0; i < nbytes; i++) {
        if (data[i] != (uint8_t)(i * 31 + (i >> 8) + (i >> 16) * 7 + seed)) {
            return CHECK_INT(i, nbytes);
        }
    }
    return true;
}
