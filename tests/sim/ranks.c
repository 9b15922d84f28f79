#include "ranks.h"

#include "coll_reference.h"
#include "core/lock.h"
#include "core/mem.h"
#include "core/thread.h"
#include "group/group.h"
#include "store/file_store.h"
#include "store/tcp_server.h"
#include "store/tcp_store.h"
#include "transport/engine.h"
#include "window/window.h"

#include <stdio.h>
#include <string.h>

#define PORT 29500
#define SERVER_ADDRESS "10.0.0.1"

typedef struct rank_self {
    int rank;
    const scenario *which;
    rank_record *record;
    dd_tcp_server *server;
    dd_store *store;
    dd_engine *engine;
    dd_group *group;
    dd_group *old; /* the world before STEP_PART while this rank holds it, or NULL */
    int step;
    int ngroups; /* number of groups created */
} rank_self;

/* The checks read these records after the world has ended. */
static const scenario *now;
static rank_record records[RANKS_MAX];
static int64_t healed_ns; /* end of the cut of STEP_PART; 0 before the cut */

const rank_record *
ranks_record(int rank)
{
    return &records[rank];
}

static rank_call *
begin_call(rank_self *self, const char *name, int64_t timeout_ns)
{
    rank_record *record = self->record;
    if (record->ncalls == CALLS_MAX) {
        record->ncalls--;
    }
    rank_call *call = &record->calls[record->ncalls++];
    *call = (rank_call){.name = name, .step = self->step, .began_ns = sim_now_ns()};
    call->limit_ns = call->began_ns + timeout_ns;
    sim_note("rank %d: %s", self->rank, name);
    return call;
}

/* Return the blamed rank, matched by its process because its rank may be one in a subgroup. */
static int
find_blamed(const scenario *which, const dd_blamed_rank *blamed)
{
    for (int rank = 0; rank < which->nranks; rank++) {
        if (blamed->pid == sim_pid_of(rank)) {
            return rank;
        }
    }
    return blamed->rank;
}

static dd_status
end_call(rank_self *self, rank_call *call, dd_status status)
{
    call->ended_ns = sim_now_ns();
    call->error.code = status;
    call->blamed = status != DD_OK ? find_blamed(self->which, &call->error.blamed) : -1;
    if (status == DD_OK) {
        sim_note("rank %d: %s is done", self->rank, call->name);
    } else {
        sim_note("rank %d: %s: %s (%s, culprit %d)", self->rank, call->name, call->error.message,
                 dd_status_name(status), call->blamed);
    }
    return status;
}

static void
note_wrong(rank_self *self, const char *label, int at)
{
    if (!self->record->has_wrong_data) {
        self->record->has_wrong_data = true;
        (void)snprintf(self->record->wrong, sizeof self->record->wrong, "rank %d, step %d: %s at %d",
                       self->rank, self->step, label, at);
    }
}

static dd_bytes
secret_of(const scenario *which)
{
    return which->has_secret ? dd_bytes_of_string("only we know") : (dd_bytes){0};
}

/* ---- opening */

static dd_status
open_server(const scenario *which, dd_tcp_server **server, dd_error *err)
{
    dd_wait wait = dd_wait_after(which->timeout_ns);
    dd_tcp_server_options options = {
        .host = SERVER_ADDRESS,
        .port = PORT,
        .listen_fd = -1,
        .secret = secret_of(which),
        .is_encryption_off = which->is_encryption_off,
        .limits = DD_TCP_LIMITS_DEFAULT,
        .handshake_timeout_ns = 10 * DD_NS_PER_S,
    };
    return dd_tcp_server_open(server, &options, &wait, err);
}

static dd_status
open_file_store(rank_self *self)
{
    rank_call *call = begin_call(self, "opening the file", self->which->timeout_ns);
    dd_wait wait = dd_wait_after(self->which->timeout_ns);
    dd_file_store_options options = {
        .path = "/shared/store", .world_size = self->which->nranks, .timeout_ns = self->which->timeout_ns};
    return end_call(self, call, dd_file_store_open(&self->store, &options, &wait, &call->error));
}

static dd_status
open_store(rank_self *self)
{
    const scenario *which = self->which;
    rank_call *call = begin_call(self, "opening the store", which->timeout_ns);
    dd_wait wait = dd_wait_after(which->timeout_ns);
    dd_tcp_store_options options = {
        .host = SERVER_ADDRESS,
        .port = PORT,
        .timeout_ns = which->timeout_ns,
        .world_size = -1,
        .secret = secret_of(which),
        .is_encryption_off = which->is_encryption_off,
        .server = self->server,
    };
    return end_call(self, call, dd_tcp_store_open(&self->store, &options, &wait, &call->error));
}

static dd_status
open_engine(rank_self *self)
{
    const scenario *which = self->which;
    rank_call *call = begin_call(self, "opening the engine", which->timeout_ns);
    dd_connect_options options = {
        .ifnames = "",
        .is_shm_disabled = which->is_shm_disabled,
        .nlanes = which->nlanes,
        .ring_nbytes = (size_t)1 << 16,
        .congestion = "",
        .secret = secret_of(which),
        .is_encryption_off = which->is_encryption_off,
        .timeout_ns = 10 * DD_NS_PER_S,
        .waiting = which->waiting,
    };
    return end_call(self, call, dd_engine_open(&options, &self->engine, &call->error));
}

static dd_status
open_group(rank_self *self)
{
    const scenario *which = self->which;
    rank_call *call = begin_call(self, "making the group", which->timeout_ns);
    dd_wait wait = dd_wait_after(which->timeout_ns);
    /* Two groups in succession share a name. */
    char name[32];
    (void)snprintf(name, sizeof name, "world %d", self->ngroups++ / 2);
    dd_group_options options = {.name = dd_bytes_of_string(name), .timeout_ns = which->timeout_ns};
    dd_status status = dd_selection_parse(which->algorithms, &options.selection, &call->error);
    if (status == DD_OK) {
        status = dd_group_open(self->engine, self->store, self->rank, which->nranks, &options, &self->group,
                               &wait, &call->error);
    }
    return end_call(self, call, status);
}

/* ---- the oracle: the expected contents of each block */

static int32_t
element(int step, int rank, int block, int at)
{
    return (step * 7 + rank * 13 + block * 5 + at) % 61;
}

static int32_t
expected(const scenario_step *step, const dd_group *group, int number, int block, int at)
{
    coll_sources from =
        coll_sources_of(step->coll, step->rank, dd_group_size(group), dd_group_rank(group), block);
    int32_t sum = 0;
    for (int k = 0; k < from.count; k++) {
        sum += element(number, from.first + k, from.block, at);
    }
    return sum;
}

typedef struct coll_buffers {
    int32_t *data;
    dd_block inputs[RANKS_MAX], outputs[RANKS_MAX];
    int ninputs, noutputs;
} coll_buffers;

static bool
make_buffers(const dd_group *group, const scenario_step *step, int number, coll_buffers *buffers)
{
    bool is_root = step->rank == dd_group_rank(group);
    int size = dd_group_size(group);
    size_t count = (size_t)step->count;
    *buffers = (coll_buffers){.ninputs = dd_coll_ninputs(step->coll, is_root, size),
                              .noutputs = dd_coll_noutputs(step->coll, is_root, size)};
    size_t nblocks = (size_t)(buffers->ninputs + buffers->noutputs);
    buffers->data = dd_mem_zalloc(nblocks * count * sizeof(int32_t));
    int32_t *next = buffers->data;
    for (int block = 0; next != NULL && block < buffers->ninputs; block++, next += count) {
        buffers->inputs[block] = (dd_block){.data = next, .nbytes = count * sizeof *next};
        for (int i = 0; i < step->count; i++) {
            next[i] = element(number, dd_group_rank(group), block, i);
        }
    }
    for (int block = 0; next != NULL && block < buffers->noutputs; block++, next += count) {
        buffers->outputs[block] = (dd_block){.data = next, .nbytes = count * sizeof *next};
    }
    return buffers->data != NULL;
}

static void
check_outputs(rank_self *self, const dd_group *group, const scenario_step *step, const coll_buffers *buffers)
{
    for (int block = 0; block < buffers->noutputs; block++) {
        const int32_t *data = buffers->outputs[block].data;
        for (int i = 0; i < step->count; i++) {
            if (data[i] != expected(step, group, self->step, block, i)) {
                note_wrong(self, dd_coll_name(step->coll), i);
                return;
            }
        }
    }
}

static dd_status
run_collective(rank_self *self, dd_group *group, const scenario_step *step)
{
    static const dd_call_options options = {.timeout_ns = -1};
    coll_buffers buffers;
    rank_call *call = begin_call(self, dd_coll_name(step->coll), self->which->timeout_ns);
    if (!make_buffers(group, step, self->step, &buffers)) {
        return end_call(self, call, dd_error_no_memory(&call->error, 0));
    }
    dd_coll_args args = {.coll = step->coll,
                         .root = step->rank,
                         .reduction = {.dtype = DD_DTYPE_INT32, .op = DD_REDOP_SUM},
                         .inputs = buffers.inputs,
                         .outputs = buffers.outputs};
    dd_wait wait = dd_wait_after(self->which->timeout_ns);
    dd_status status = dd_group_collective_and_wait(group, &args, &options, &wait, &call->error);
    if (status == DD_OK) {
        check_outputs(self, group, step, &buffers);
    }
    /* No other code uses this memory, even if the call failed: nothing writes to it any later. */
    dd_mem_free(buffers.data);
    return end_call(self, call, status);
}

/* ---- steps */

static dd_status
run_ring(rank_self *self, const scenario_step *step)
{
    static const dd_call_options options = {.timeout_ns = -1};
    int size = self->which->nranks;
    int next = (self->rank + 1) % size;
    int before = (self->rank + size - 1) % size;
    size_t nbytes = (size_t)step->count * sizeof(int32_t);
    rank_call *call = begin_call(self, "ring", 2 * self->which->timeout_ns);
    int32_t *data = dd_mem_alloc(2 * nbytes);
    if (data == NULL) {
        return end_call(self, call, dd_error_no_memory(&call->error, 2 * nbytes));
    }
    for (int i = 0; i < step->count; i++) {
        data[i] = element(self->step, self->rank, 0, i);
    }
    dd_wait wait = dd_wait_after(self->which->timeout_ns);
    dd_work *work = NULL;
    dd_p2p_result result;
    dd_p2p sent = {.is_send = true, .rank = next, .tag = 7, .block = {data, nbytes}};
    dd_p2p got = {.rank = before, .tag = 7, .block = {data + step->count, nbytes}};
    dd_status status = dd_group_p2p(self->group, &sent, &options, &work, &call->error);
    if (status == DD_OK) {
        status = dd_group_p2p_and_wait(self->group, &got, &options, &result, &wait, &call->error);
        dd_error other = {0};
        dd_status sending = dd_group_wait(self->group, work, &wait, &other);
        status = status == DD_OK ? dd_error_copy(&call->error, &other), sending : status;
        if (sending != DD_OK && other.keeps_memory) {
            data = NULL; /* the transfer still uses the memory */
        }
        dd_work_release(work);
    }
    for (int i = 0; status == DD_OK && i < step->count; i++) {
        if (data[step->count + i] != element(self->step, before, 0, i)) {
            note_wrong(self, "ring", i);
            break;
        }
    }
    dd_mem_free(data);
    return end_call(self, call, status);
}

static dd_status
close_group(rank_self *self, dd_group **group, const char *name)
{
    rank_call *call = begin_call(self, name, self->which->timeout_ns);
    dd_wait wait = dd_wait_after(self->which->timeout_ns);
    dd_status status = dd_group_close(*group, &wait, &call->error);
    dd_group_release(*group);
    *group = NULL;
    return end_call(self, call, status);
}

static dd_status
run_split(rank_self *self, const scenario_step *step)
{
    int size = self->which->nranks;
    int half = self->rank % 2;
    int ranks[RANKS_MAX];
    int nranks = 0;
    for (int rank = half; rank < size; rank += 2) {
        ranks[nranks++] = rank;
    }
    rank_call *call = begin_call(self, "split", self->which->timeout_ns);
    dd_wait wait = dd_wait_after(self->which->timeout_ns);
    dd_group_options options = {.name = dd_bytes_of_string(half == 0 ? "even" : "odd"),
                                .timeout_ns = self->which->timeout_ns};
    dd_group *part = NULL;
    dd_status status = dd_group_split(self->group, ranks, nranks, 0, &options, &part, &wait, &call->error);
    status = end_call(self, call, status);
    if (status != DD_OK) {
        return status;
    }
    scenario_step sum = {.kind = STEP_COLL, .coll = DD_COLL_ALL_REDUCE, .count = step->count};
    status = run_collective(self, part, &sum);
    dd_status closing = close_group(self, &part, "closing the part");
    return status == DD_OK ? closing : status;
}

static dd_status
use_window(rank_self *self, dd_region *region, rank_call *call)
{
    int size = self->which->nranks;
    int next = (self->rank + 1) % size;
    int before = (self->rank + size - 1) % size;
    dd_wait wait = dd_wait_after(self->which->timeout_ns);
    dd_window *window = NULL;
    dd_window_options options = {
        .data = dd_region_data(region), .nbytes = dd_region_nbytes(region), .region = region};
    int32_t word = element(self->step, self->rank, 0, 0);
    dd_status status = dd_window_open(self->group, &options, &window, &wait, &call->error);
    if (status != DD_OK) {
        return status;
    }
    dd_block source = {.data = &word, .nbytes = sizeof word};
    dd_window_target to = {.rank = next};
    status = dd_window_put(window, source, to, DD_NO_CHANNEL, &wait, &call->error);
    if (status == DD_OK) {
        status = dd_window_barrier(window, 0, &wait, &call->error);
    }
    if (status == DD_OK && *(int32_t *)dd_region_data(region) != element(self->step, before, 0, 0)) {
        note_wrong(self, "window", 0);
    }
    if (status == DD_OK) {
        status = dd_window_barrier(window, 0, &wait, &call->error);
    }
    dd_window_release(window);
    return status;
}

static dd_status
run_window(rank_self *self)
{
    rank_call *call = begin_call(self, "window", 2 * self->which->timeout_ns);
    dd_region *region = NULL;
    dd_status status = dd_group_alloc(self->group, 4096, &region, &call->error);
    if (status == DD_OK) {
        status = use_window(self, region, call);
        dd_region_release(region);
    }
    return end_call(self, call, status);
}

static dd_status
run_reopen(rank_self *self, bool has_new_engine)
{
    dd_status status = close_group(self, &self->group, "closing the group");
    if (status == DD_OK && has_new_engine) {
        dd_engine_release(self->engine);
        self->engine = NULL;
        status = open_engine(self);
    }
    return status == DD_OK ? open_group(self) : status;
}

#define PART_COLLS 4

static void
begin_cut(const rank_self *self, const scenario_step *step)
{
    int other = (self->which->host_of[self->rank] + 1) % self->which->world.nhosts;
    sim_fault cut = {.kind = SIM_CUT,
                     .process = self->rank,
                     .after_ns = sim_now_ns() + (int64_t)sim_below(2 * DD_NS_PER_MS) + 1,
                     .duration_ns = step->count * DD_NS_PER_MS,
                     .amount = other};
    healed_ns = cut.after_ns + cut.duration_ns;
    sim_plan_fault(&cut);
}

/* Call collectives until the cut makes one fail. All ranks make the same number of calls. The cut
 * begins when every rank has reached the first collective. */
static void
work_while_cut(rank_self *self, const scenario_step *step)
{
    static const scenario_step barrier = {.kind = STEP_COLL, .coll = DD_COLL_BARRIER};
    scenario_step sum = {.kind = STEP_COLL, .coll = DD_COLL_ALL_REDUCE, .count = 3000};
    dd_status status = run_collective(self, self->group, &barrier);
    if (status == DD_OK && step->rank == self->rank) {
        begin_cut(self, step);
    }
    for (int i = 0; i < PART_COLLS && status == DD_OK; i++) {
        status = run_collective(self, self->group, &sum);
        sim_sleep(DD_NS_PER_MS);
    }
}

/* Wait for the end of the cut. There is no cut if another fault has hit the rank that begins it. */
static void
wait_until_healed(const rank_self *self)
{
    int64_t limit_ns = sim_now_ns() + 2 * self->which->timeout_ns;
    while (healed_ns == 0 ? sim_now_ns() < limit_ns : sim_now_ns() < healed_ns) {
        sim_sleep(10 * DD_NS_PER_MS);
    }
}

/* Open the store again: a long cut breaks the connections of clients to their server. */
static dd_status
reopen_store(rank_self *self)
{
    dd_store_release(self->store);
    self->store = NULL;
    return self->which->has_file_store ? open_file_store(self) : open_store(self);
}

/* Create a new world after a cut. Some ranks close their old world and others leave it open; both
 * keep a reference. */
static dd_status
run_part(rank_self *self, const scenario_step *step)
{
    scenario_step sum = {.kind = STEP_COLL, .coll = DD_COLL_ALL_REDUCE, .count = 100};
    work_while_cut(self, step);
    self->old = self->group;
    self->group = NULL;
    if ((step->count + self->rank) % 2 == 0) {
        rank_call *call = begin_call(self, "closing the old group", 2 * DD_NS_PER_S);
        dd_wait wait = dd_wait_after(DD_NS_PER_S);
        (void)end_call(self, call, dd_group_close(self->old, &wait, &call->error));
    }
    wait_until_healed(self);
    dd_status status = reopen_store(self);
    status = status == DD_OK ? open_group(self) : status;
    status = status == DD_OK ? run_collective(self, self->group, &sum) : status;
    self->record->has_joined_again = status == DD_OK;
    return status;
}

/* Abort the group on one rank. All ranks receive the abort in their next call. */
static dd_status
run_abort(rank_self *self, const scenario_step *step)
{
    if (step->rank == self->rank) {
        dd_group_abort(self->group, "as the scenario has it");
    }
    scenario_step barrier = {.kind = STEP_COLL, .coll = DD_COLL_BARRIER};
    return run_collective(self, self->group, &barrier);
}

static dd_status
run_late(rank_self *self, const scenario_step *step)
{
    if (step->rank == self->rank) {
        sim_sleep(self->which->timeout_ns + 3 * DD_NS_PER_S);
    }
    scenario_step barrier = {.kind = STEP_COLL, .coll = DD_COLL_BARRIER};
    return run_collective(self, self->group, &barrier);
}

static dd_status
run_mismatch(rank_self *self, const scenario_step *step)
{
    scenario_step own = *step;
    own.count += step->rank == self->rank ? 1 : 0;
    return run_collective(self, self->group, &own);
}

typedef struct lock_wait {
    dd_timed_lock lock;
    int64_t timeout_ns;
} lock_wait;

static void *
wait_for_lock(void *arg)
{
    lock_wait *self = arg;
    (void)dd_timed_lock_take_within(&self->lock, self->timeout_ns);
    return NULL;
}

/* Delay one rank: one of its threads waits for a lock until a deadline. The calendar is set back by
 * an hour during the wait, which must not prolong it. */
static dd_status
run_pause(rank_self *self, const scenario_step *step)
{
    if (step->rank != self->rank) {
        return DD_OK;
    }
    pthread_t thread;
    lock_wait wait = {.timeout_ns = step->count * DD_NS_PER_US * 10};
    rank_call *call = begin_call(self, "pause", wait.timeout_ns);
    dd_timed_lock_init(&wait.lock, DD_LOCK_TEST);
    (void)dd_timed_lock_take_within(&wait.lock, 0);
    if (dd_thread_start(&thread, "pause", wait_for_lock, &wait, NULL) == DD_OK) {
        sim_sleep(wait.timeout_ns / 2);
        sim_move_calendar(-3600 * DD_NS_PER_S);
        dd_thread_join(thread);
    } /* without memory, skip the pause */
    dd_timed_lock_release(&wait.lock);
    dd_timed_lock_fini(&wait.lock);
    return end_call(self, call, DD_OK);
}

/* Abort the group on one rank as soon as its collective succeeds. The other ranks have the same
 * data. */
static dd_status
run_last(rank_self *self, const scenario_step *step)
{
    dd_status status = run_collective(self, self->group, step);
    if (status == DD_OK && step->rank == self->rank) {
        dd_group_abort(self->group, "that was all");
    }
    scenario_step barrier = {.kind = STEP_COLL, .coll = DD_COLL_BARRIER};
    return status == DD_OK ? run_collective(self, self->group, &barrier) : status;
}

static dd_status
run_step(rank_self *self, const scenario_step *step)
{
    static const scenario_step barrier = {.kind = STEP_COLL, .coll = DD_COLL_BARRIER};
    /* No rank may be in an earlier step when the last step begins. */
    /* STEP_PART has its own barrier */
    bool begins_with_barrier = step->kind >= STEP_ABORT && step->kind != STEP_PART;
    dd_status status = begins_with_barrier ? run_collective(self, self->group, &barrier) : DD_OK;
    if (status != DD_OK) {
        return status;
    }
    switch (step->kind) {
    case STEP_COLL:
        return run_collective(self, self->group, step);
    case STEP_RING:
        return run_ring(self, step);
    case STEP_SPLIT:
        return run_split(self, step);
    case STEP_WINDOW:
        return run_window(self);
    case STEP_REOPEN:
    case STEP_ENGINE:
        return run_reopen(self, step->kind == STEP_ENGINE);
    case STEP_PAUSE:
        return run_pause(self, step);
    case STEP_ABORT:
        return run_abort(self, step);
    case STEP_LEAVE:
        self->record->has_left = step->rank == self->rank;
        return DD_OK;
    case STEP_LATE:
        return run_late(self, step);
    case STEP_MISMATCH:
        return run_mismatch(self, step);
    case STEP_LAST:
        return run_last(self, step);
    case STEP_PART:
        return run_part(self, step);
    case STEP_KINDS:
        break;
    }
    return DD_OK;
}

/* ---- the life of a rank */

/* The other ranks still need the server of this rank. */
static void
serve_until_all_exit(const scenario *which, int own_rank)
{
    for (int rank = 0; rank < which->nranks; rank++) {
        while (rank != own_rank && (sim_state_of(rank) == SIM_RUNS || sim_state_of(rank) == SIM_STOPPED)) {
            sim_sleep(DD_NS_PER_MS);
        }
    }
}

static void
close_all(rank_self *self)
{
    if (self->group != NULL) {
        (void)close_group(self, &self->group, "closing the group");
    }
    if (self->old != NULL) {
        (void)close_group(self, &self->old, "closing the old group");
    }
    rank_call *call = begin_call(self, "closing the engine", 5 * DD_NS_PER_S);
    dd_engine_release(self->engine);
    (void)end_call(self, call, DD_OK);
    dd_store_release(self->store);
    if (self->server != NULL) {
        serve_until_all_exit(self->which, self->rank);
        dd_tcp_server_release(self->server);
    }
    self->record->has_closed = true;
}

static dd_status
open_all(rank_self *self)
{
    dd_status status = DD_OK;
    const scenario *which = self->which;
    if (self->rank == 0 && !which->has_agent && !which->has_file_store) {
        rank_call *call = begin_call(self, "opening the server", which->timeout_ns);
        status = end_call(self, call, open_server(which, &self->server, &call->error));
    }
    if (status == DD_OK) {
        status = which->has_file_store ? open_file_store(self) : open_store(self);
    }
    status = status == DD_OK ? open_engine(self) : status;
    return status == DD_OK ? open_group(self) : status;
}

static void
run_rank(void *arg)
{
    const scenario *which = now;
    rank_self self = {.rank = (int)(intptr_t)arg, .which = which, .step = -1};
    self.record = &records[self.rank];
    dd_status status = open_all(&self);
    for (int i = 0; i < which->nsteps && status == DD_OK && !self.record->has_left; i++) {
        self.step = i;
        status = run_step(&self, &which->steps[i]);
    }
    self.step = which->nsteps;
    if (self.record->has_left || (status != DD_OK && which->exits_at_once)) {
        return;
    }
    close_all(&self);
}

static void
run_agent(void *arg)
{
    (void)arg;
    dd_tcp_server *server = NULL;
    dd_error err = {0};
    if (open_server(now, &server, &err) == DD_OK) {
        serve_until_all_exit(now, -1);
        dd_tcp_server_release(server);
    }
}

void
ranks_spawn(const scenario *which)
{
    now = which;
    healed_ns = 0;
    memset(records, 0, sizeof records);
    for (int rank = 0; rank < which->nranks; rank++) {
        (void)sim_spawn(which->host_of[rank], run_rank, (void *)(intptr_t)rank);
    }
    if (which->has_agent) {
        (void)sim_spawn(0, run_agent, NULL);
    }
}
