#include "run_team.h"

#include "check.h"
#include "core/thread.h"

#include <sched.h>
#include <string.h>
#include <unistd.h>

struct run_team {
    run_team_options options;
    void (*body)(run_member *self);
    run_member members[RUN_TEAM_MAX];
    pthread_t threads[RUN_TEAM_MAX];
    dd_blob endpoints[RUN_TEAM_MAX];
    int arena_of[RUN_TEAM_MAX]; /* descriptor, by host */
    pthread_barrier_t barrier;
};

void
run_team_meet(run_member *self)
{
    pthread_barrier_wait(&self->team->barrier);
}

/* ---- failures of a rank */

static void
fail_locked(run_member *self, const dd_error *error)
{
    if (!self->has_failed) {
        self->has_failed = true;
        self->failure = *error;
        if (self->run != NULL) {
            dd_run_cancel_locked(self->run, error);
        }
    }
}

static void
post_abort(run_member *self, int except, const dd_error *error)
{
    dd_cause cause = dd_cause_of_error(error, self->rank);
    dd_context_post_abort_locked(self->context, except, false, &cause);
}

/* Send the failure if this rank failed before the connection existed. */
static void
on_coll(void *ctx, int rank, uint64_t sequence, const dd_signature *signature)
{
    run_member *self = ctx;
    (void)rank;
    (void)sequence;
    (void)signature;
    if (self->has_failed) {
        post_abort(self, DD_ANY_RANK, &self->failure);
    }
}

/* Forward the failure: other ranks may have no connection to its sender. */
static void
on_failed(void *ctx, int rank, const dd_error *error)
{
    run_member *self = ctx;
    if (!self->has_failed) {
        post_abort(self, rank, error);
        fail_locked(self, error);
    }
}

static void
on_abort(void *ctx, int rank, const dd_cause *cause)
{
    dd_error error;
    (void)dd_error_set(&error, cause->code, "%s", cause->text);
    error.blamed = cause->blamed;
    on_failed(ctx, rank, &error);
}

static void
on_goodbye(void *ctx, int rank)
{
    (void)ctx;
    (void)rank;
}

static void
on_query(void *ctx, uint64_t *sequence, dd_signature *signature, bool *is_inside)
{
    const run_member *self = ctx;
    *sequence = self->sequence;
    *signature = self->signature;
    *is_inside = !atomic_load(&self->is_done);
}

static void
on_answer(void *ctx, int rank, uint64_t sequence, const dd_signature *signature, bool is_inside)
{
    (void)ctx;
    (void)rank;
    (void)sequence;
    (void)signature;
    (void)is_inside;
}

static void
wake(void *ctx, int local)
{
    run_member *self = ctx;
    dd_peer_ring_bell_locked(self->peers[self->topology.local_ranks[local]]);
}

/* ---- opening */

static bool
open_engine(run_member *self)
{
    dd_connect_options connect = {
        .ifnames = "lo",
        .nlanes = 1,
        .ring_nbytes = (size_t)1 << 17,
        .congestion = "",
        .timeout_ns = 10 * DD_NS_PER_S * check_slow(),
    };
    return CHECK_OK(dd_engine_open(&connect, &self->engine, check_err())) &&
           CHECK_OK(dd_engine_endpoint(self->engine, NULL, &self->team->endpoints[self->rank], check_err()));
}

/* Return the endpoint as a process on another host would see it. */
static dd_status
disguise(dd_bytes endpoint, dd_blob *other, dd_error *err)
{
    dd_endpoint decoded;
    dd_addr_list addrs;
    dd_status status = dd_endpoint_decode(endpoint, &decoded, &addrs, err);
    if (status == DD_OK) {
        decoded.host_id[0] ^= 1;
        decoded.has_unix = false;
        status = dd_endpoint_encode(&decoded, &addrs, other, err);
    }
    return status;
}

static bool
find_peers(run_member *self)
{
    const int *host_of = self->team->options.host_of;
    bool is_good = true;
    for (int r = 0; r < self->team->options.nranks && is_good; r++) {
        const dd_blob *blob = &self->team->endpoints[r];
        dd_bytes endpoint = dd_bytes_of(blob->data, blob->len);
        if (host_of[r] == host_of[self->rank]) {
            is_good = CHECK_OK(dd_engine_peer(self->engine, endpoint, &self->peers[r], check_err()));
            continue;
        }
        dd_blob other = {0};
        is_good = CHECK_OK(disguise(endpoint, &other, check_err())) &&
                  CHECK_OK(dd_engine_peer(self->engine, dd_bytes_of(other.data, other.len), &self->peers[r],
                                          check_err()));
        dd_blob_fini(&other);
    }
    return is_good;
}

static bool
open_context(run_member *self)
{
    dd_context_handler handler = {
        .ctx = self,
        .on_coll = on_coll,
        .on_abort = on_abort,
        .on_lost = on_failed,
        .on_goodbye = on_goodbye,
        .on_query = on_query,
        .on_answer = on_answer,
    };
    return CHECK_OK(dd_context_open(self->engine, 77, self->rank, self->team->options.nranks, self->peers,
                                    &handler, &self->context, check_err()));
}

/* Connect the local ranks: bells need links. */
static bool
connect_local(run_member *self)
{
    int64_t deadline_ns = dd_deadline_after(10 * DD_NS_PER_S * check_slow());
    bool is_connected = false;
    while (!is_connected && dd_deadline_left_ns(deadline_ns) > 0) {
        is_connected = true;
        dd_engine_lock(self->engine);
        for (int i = 0; i < self->topology.nlocal; i++) {
            dd_peer *peer = self->peers[self->topology.local_ranks[i]];
            dd_peer_connect_locked(peer);
            is_connected = is_connected && dd_peer_is_connected_locked(peer);
        }
        dd_engine_unlock(self->engine);
        dd_engine_kick(self->engine);
        usleep(is_connected ? 0 : 1000);
    }
    return CHECK(is_connected);
}

static bool
open_arena(run_member *self)
{
    const dd_topology *topology = &self->topology;
    int *fd = &self->team->arena_of[topology->host];
    if (topology->local == 0 && topology->nlocal > 1) {
        CHECK_OK(dd_arena_create(topology->nlocal, topology->nlocal > 2, fd, check_err()));
    }
    run_team_meet(self);
    bool is_good = topology->nlocal == 1 || CHECK_OK(dd_arena_attach(*fd, topology->nlocal, topology->local,
                                                                     &self->arena, check_err()));
    run_team_meet(self);
    if (topology->local == 0 && topology->nlocal > 1) {
        close(*fd);
    }
    return is_good;
}

static bool
open_run(run_member *self)
{
    dd_run_env env = {
        .engine = self->engine,
        .context = self->context,
        .topology = &self->topology,
        .arena = self->arena,
        .segment_nbytes = self->team->options.segment_nbytes,
        .is_crowded = true,
        .wake = wake,
        .ctx = self,
    };
    const char *selection = self->team->options.selection;
    return CHECK_OK(dd_selection_parse(selection != NULL ? selection : "", &env.selection, check_err())) &&
           CHECK_OK(dd_run_create(&env, &self->run, check_err()));
}

static void *
run_member_main(void *arg)
{
    run_member *self = arg;
    int nranks = self->team->options.nranks;
    bool is_good = open_engine(self) && CHECK_OK(dd_topology_init(&self->topology, self->rank, nranks,
                                                                  self->team->options.host_of, check_err()));
    run_team_meet(self);
    is_good = is_good && find_peers(self) && open_context(self);
    run_team_meet(self);
    is_good = is_good && connect_local(self);
    is_good = open_arena(self) && is_good;
    is_good = is_good && open_run(self);
    run_team_meet(self);
    if (is_good) {
        self->team->body(self);
    }
    run_team_meet(self);
    run_team_die(self);
    dd_topology_fini(&self->topology);
    return NULL;
}

void
run_team_do(const run_team_options *options, void (*body)(run_member *self), void *arg)
{
    static run_team team;
    memset(&team, 0, sizeof team);
    team.options = *options;
    team.body = body;
    pthread_barrier_init(&team.barrier, NULL, (unsigned)options->nranks);
    for (int r = 0; r < options->nranks; r++) {
        team.members[r] = (run_member){.team = &team, .rank = r, .arg = arg};
        CHECK_OK(dd_thread_start(&team.threads[r], "rank", run_member_main, &team.members[r], check_err()));
    }
    for (int r = 0; r < options->nranks; r++) {
        pthread_join(team.threads[r], NULL);
        dd_blob_fini(&team.endpoints[r]);
    }
    pthread_barrier_destroy(&team.barrier);
}

/* Idempotent. */
void
run_team_die(run_member *self)
{
    dd_wait wait = dd_wait_after(DD_NS_PER_S);
    if (self->run != NULL) {
        dd_engine_lock(self->engine);
        dd_error error;
        (void)dd_error_set(&error, DD_CLOSED, "the rank is going");
        dd_run_cancel_locked(self->run, &error);
        dd_run *run = self->run;
        self->run = NULL; /* a later abort finds nothing to cancel */
        dd_engine_unlock(self->engine);
        dd_run_destroy(run);
    }
    if (self->context != NULL) {
        dd_context_close(self->context, &wait);
        self->context = NULL;
    }
    dd_arena_close(self->arena);
    self->arena = NULL;
    for (int r = 0; r < self->team->options.nranks; r++) {
        dd_peer_release(self->peers[r]);
        self->peers[r] = NULL;
    }
    dd_engine_release(self->engine);
    self->engine = NULL;
}

/* ---- calls */

void
run_team_on_done(void *ctx, const dd_error *error)
{
    run_member *self = ctx;
    self->outcome.code = DD_OK;
    if (error != NULL) {
        self->outcome = *error;
    }
    atomic_store_explicit(&self->is_done, true, memory_order_release);
}

void
run_team_start(run_member *self, const dd_coll_args *args, const dd_signature *signature)
{
    dd_run_call call = {.args = *args,
                        .signature = *signature,
                        .sequence = ++self->sequence,
                        .on_done = run_team_on_done,
                        .ctx = self};
    atomic_store(&self->is_done, false);
    dd_engine_lock(self->engine);
    self->signature = *signature;
    if (self->has_failed) {
        run_team_on_done(self, &self->failure);
    } else {
        dd_run_start_locked(self->run, &call);
    }
    dd_engine_unlock(self->engine);
    dd_engine_kick(self->engine);
}

int
run_team_await_missing(run_member *self, int nwanted, int *missing)
{
    int64_t deadline_ns = dd_deadline_after(5 * DD_NS_PER_S * check_slow());
    int nmissing = -1;
    while (nmissing != nwanted && dd_deadline_left_ns(deadline_ns) > 0) {
        usleep(1000);
        dd_engine_lock(self->engine);
        nmissing = dd_run_missing_locked(self->run, missing, RUN_TEAM_MAX);
        dd_engine_unlock(self->engine);
    }
    return nmissing;
}

dd_status
run_team_wait(run_member *self)
{
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    dd_status status = dd_engine_wait(self->engine, &self->is_done, &wait, check_err());
    if (status != DD_OK) {
        return status;
    }
    if (self->outcome.code != DD_OK) {
        dd_engine_lock(self->engine);
        if (!self->has_failed) {
            self->has_failed = true;
            self->failure = self->outcome;
            post_abort(self, DD_ANY_RANK, &self->outcome);
        }
        dd_engine_unlock(self->engine);
        dd_engine_kick(self->engine);
        return dd_error_copy(check_err(), &self->outcome);
    }
    return DD_OK;
}

dd_status
run_team_call(run_member *self, const dd_coll_args *args, const dd_signature *signature)
{
    run_team_start(self, args, signature);
    return run_team_wait(self);
}
