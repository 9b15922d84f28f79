#include "group_team.h"

#include "check.h"
#include "core/thread.h"
#include "store/file_store.h"
#include "store_calls.h"

#include <stdlib.h>

const dd_call_options team_no_options = {.timeout_ns = -1};
const dd_wait team_no_wait = {.deadline_ns = DD_NEVER_NS};

typedef struct team_thread {
    team_rank self;
    void (*body)(team_rank *self);
    bool is_apart;
    pthread_t thread;
} team_thread;

dd_connect_options
team_connect_options(bool is_shm_disabled)
{
    return (dd_connect_options){
        .ifnames = "lo",
        .is_shm_disabled = is_shm_disabled,
        .nlanes = 1,
        .ring_nbytes = (size_t)1 << 18,
        .congestion = "",
        .timeout_ns = 10 * DD_NS_PER_S * check_slow(),
    };
}

dd_group_options
team_group_options(const char *name)
{
    return (dd_group_options){.name = dd_bytes_of_string(name),
                              .timeout_ns = 30 * DD_NS_PER_S * check_slow()};
}

static bool
open_group(team_rank *self)
{
    const team_options *team = self->options;
    dd_group_options options = team_group_options("team");
    options.timeout_ns = team->timeout_ns > 0 ? team->timeout_ns : options.timeout_ns;
    options.large_segment_nbytes = team->segment_nbytes;
    const char *algorithms = team->algorithms != NULL ? team->algorithms : "";
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    return CHECK_OK(dd_selection_parse(algorithms, &options.selection, check_err())) &&
           CHECK_OK(dd_group_open(self->engine, self->store, self->rank, self->size, &options, &self->group,
                                  &wait, check_err()));
}

static void *
run_member(void *arg)
{
    team_thread *member = arg;
    team_rank *self = &member->self;
    bool is_single = self->rank < 64 && (self->options->single_ranks >> self->rank & 1) != 0;
    dd_connect_options connect = team_connect_options(self->options->is_shm_disabled || is_single);
    connect.nlanes = self->options->nlanes > 0 ? self->options->nlanes : 1;
    connect.waiting = self->options->waiting;
    connect.secret = dd_bytes_of_string(self->options->secret != NULL ? self->options->secret : "");
    connect.is_encryption_off = self->options->is_encryption_off;
    if (!CHECK_OK(dd_engine_open(&connect, &self->engine, check_err()))) {
        return NULL;
    }
    if (member->is_apart) {
        member->body(self);
    } else if (open_group(self)) {
        /* A rank that fails early would also fail the setup of ranks that are not done yet. */
        team_rendezvous(self, "all have made it");
        member->body(self);
        dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
        CHECK_OK(dd_group_close(self->group, &wait, check_err()));
        dd_group_release(self->group);
    }
    dd_engine_release(self->engine);
    return NULL;
}

static void
run_team(const team_options *options, void (*body)(team_rank *self), void *arg, bool is_apart)
{
    dd_store *store = NULL;
    REQUIRE_OK(dd_hash_store_open(&store, 30 * DD_NS_PER_S, check_err()));
    team_thread *members = calloc((size_t)options->size, sizeof *members);
    REQUIRE(members != NULL);
    for (int rank = 0; rank < options->size; rank++) {
        members[rank] = (team_thread){
            .self = {.rank = rank, .size = options->size, .store = store, .options = options, .arg = arg},
            .body = body,
            .is_apart = is_apart,
        };
        CHECK_OK(dd_thread_start(&members[rank].thread, "rank", run_member, &members[rank], check_err()));
    }
    for (int rank = 0; rank < options->size; rank++) {
        pthread_join(members[rank].thread, NULL);
    }
    free(members);
    dd_store_release(store);
}

void
team_run(const team_options *options, void (*body)(team_rank *self), void *arg)
{
    run_team(options, body, arg, false);
}

void
team_run_both(const team_options *options, void (*body)(team_rank *self), void *arg)
{
    team_options both = *options;
    run_team(&both, body, arg, false);
    both.is_shm_disabled = true;
    run_team(&both, body, arg, false);
}

void
team_run_apart(const team_options *options, void (*body)(team_rank *self), void *arg)
{
    run_team(options, body, arg, true);
}

void
team_rendezvous(team_rank *self, const char *name)
{
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    CHECK_OK(dd_store_barrier(self->store, dd_bytes_of_string(name), self->size, &wait, check_err()));
}

dd_status
team_call(team_rank *self, const dd_coll_args *args)
{
    dd_wait wait = dd_wait_after(60 * DD_NS_PER_S * check_slow());
    return dd_group_collective_and_wait(self->group, args, &team_no_options, &wait, check_err());
}

dd_status
team_start(dd_prepared_call *call)
{
    return dd_prepared_start(&call, 1, false, &team_no_wait, check_err());
}

dd_status
team_send(dd_group *group, dd_block block, int rank, uint64_t tag, const dd_call_options *options,
          dd_work **work, dd_error *err)
{
    dd_p2p p2p = {.is_send = true, .rank = rank, .tag = tag, .block = block};
    return dd_group_p2p(group, &p2p, options, work, err);
}

dd_status
team_recv(dd_group *group, dd_block block, int rank, uint64_t tag, const dd_call_options *options,
          dd_work **work, dd_error *err)
{
    dd_p2p p2p = {.rank = rank, .tag = tag, .block = block};
    return dd_group_p2p(group, &p2p, options, work, err);
}

dd_status
team_send_and_wait(dd_group *group, dd_block block, int rank, uint64_t tag, const dd_call_options *options,
                   const dd_wait *wait, dd_error *err)
{
    dd_p2p_result result;
    dd_p2p p2p = {.is_send = true, .rank = rank, .tag = tag, .block = block};
    return dd_group_p2p_and_wait(group, &p2p, options, &result, wait, err);
}

dd_status
team_recv_and_wait(dd_group *group, dd_block block, int rank, uint64_t tag, const dd_call_options *options,
                   int *source, const dd_wait *wait, dd_error *err)
{
    dd_p2p_result result = {.source = -1};
    dd_p2p p2p = {.rank = rank, .tag = tag, .block = block};
    dd_status status = dd_group_p2p_and_wait(group, &p2p, options, &result, wait, err);
    *source = result.source;
    return status;
}

dd_status
team_call_prepared(team_rank *self, const dd_coll_args *args)
{
    dd_prepared_call *call = NULL;
    dd_status status = dd_group_prepare_call(self->group, args, &team_no_options, &call, check_err());
    if (status == DD_OK) {
        status = team_start(call);
    }
    if (status == DD_OK) {
        dd_wait wait = dd_wait_after(60 * DD_NS_PER_S * check_slow());
        status = dd_prepared_wait(call, &wait, check_err());
    }
    CHECK(!dd_prepared_destroy(call, NULL, NULL));
    return status;
}

dd_status
team_barrier(dd_group *group)
{
    dd_coll_args args = {.coll = DD_COLL_BARRIER};
    dd_wait wait = dd_wait_after(60 * DD_NS_PER_S * check_slow());
    return dd_group_collective_and_wait(group, &args, &team_no_options, &wait, check_err());
}

bool
team_check_sum(dd_group *group)
{
    int size = dd_group_size(group);
    float x = (float)(dd_group_rank(group) + 1);
    dd_block block = {.data = &x, .nbytes = sizeof x};
    dd_coll_args args = {.coll = DD_COLL_ALL_REDUCE,
                         .reduction = {.dtype = DD_DTYPE_FLOAT32, .op = DD_REDOP_SUM},
                         .inputs = &block,
                         .outputs = &block};
    dd_wait wait = dd_wait_after(60 * DD_NS_PER_S * check_slow());
    return CHECK_OK(dd_group_collective_and_wait(group, &args, &team_no_options, &wait, check_err())) &&
           CHECK_INT(x, size * (size + 1) / 2);
}

dd_status
team_wait(dd_group *group, dd_work *work)
{
    dd_wait wait = dd_wait_after(60 * DD_NS_PER_S * check_slow());
    dd_status status = dd_group_wait(group, work, &wait, check_err());
    dd_work_release(work);
    return status;
}

bool
team_process_meet(const char *path, int rank, int size, bool is_shm_disabled, team_process *self)
{
    dd_connect_options connect = team_connect_options(is_shm_disabled);
    dd_group_options options = team_group_options("mortals");
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    dd_file_store_options file = {
        .path = path, .world_size = size, .timeout_ns = 10 * DD_NS_PER_S * check_slow()};
    *self = (team_process){NULL};
    return CHECK_OK(dd_file_store_open(&self->store, &file, &wait, check_err())) &&
           CHECK_OK(dd_engine_open(&connect, &self->engine, check_err())) &&
           CHECK_OK(dd_group_open(self->engine, self->store, rank, size, &options, &self->group, &wait,
                                  check_err()));
}

bool
team_process_open(const char *path, int rank, int size, bool is_shm_disabled, team_process *self)
{
    return team_process_meet(path, rank, size, is_shm_disabled, self) && CHECK(team_check_sum(self->group));
}

void
team_process_close(team_process *self)
{
    dd_group_release(self->group);
    dd_engine_release(self->engine);
    dd_store_release(self->store);
}
