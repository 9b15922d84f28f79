#include "core/thread.h"
#include "program.h"
#include "store/tcp_store.h"
#include "watch/watch_internal.h"
#include "window/window.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GROUP_TIMEOUT_NS (60 * DD_NS_PER_S)
#define CLOSE_TIMEOUT_NS (5 * DD_NS_PER_S)
#define LARGE_COUNT ((size_t)256 << 10)
#define BLOCK_NBYTES ((size_t)40000)
#define MESSAGE_NBYTES ((size_t)300000)
#define REGION_NBYTES ((size_t)100000)

static const dd_call_options no_options = {.timeout_ns = -1};

typedef struct world_shape {
    bool is_shm_disabled;
    uint64_t lonely_ranks; /* bits: ranks without shared memory, as if on separate hosts */
    int nlanes;
    bool has_own_store; /* in rank 0 */
    const char *secret; /* encrypts traffic between hosts; may be NULL */
} world_shape;

typedef struct world {
    dd_tcp_server *server; /* rank 0's server, if there is one */
    dd_store *store;
    dd_engine *engine;
    dd_group *group;
} world;

/* ---- opening and closing */

static dd_bytes
secret_of(const world_shape *shape)
{
    return shape->secret != NULL ? dd_bytes_of_string(shape->secret) : (dd_bytes){0};
}

static bool
open_agents_store(rank_env *self, dd_store **store)
{
    dd_tcp_store_options options = {.host = "127.0.0.1",
                                    .port = self->agent_port,
                                    .timeout_ns = DD_STORE_DEFAULT_TIMEOUT_NS,
                                    .world_size = -1};
    dd_store *agents = NULL;
    dd_wait wait = step_wait(self);
    bool is_open = STEP(self, SCOPE_STARTER, "open of the TCPStore",
                        dd_tcp_store_open(&agents, &options, &wait, &self->error)) &&
                   STEP(self, SCOPE_STARTER, "prefix",
                        dd_prefix_store_open(store, dd_bytes_of_string(self->name), agents, &self->error));
    dd_store_release(agents);
    return is_open;
}

static bool
open_engine(rank_env *self, const world_shape *shape, dd_engine **engine)
{
    bool is_single = (shape->lonely_ranks >> self->rank & 1) != 0;
    dd_connect_options options = {
        .ifnames = "lo",
        .is_shm_disabled = shape->is_shm_disabled || is_single,
        .nlanes = shape->nlanes > 0 ? shape->nlanes : 1,
        .ring_nbytes = (size_t)1 << 18,
        .congestion = "",
        .secret = secret_of(shape),
        .timeout_ns = 10 * DD_NS_PER_S,
    };
    return STEP(self, SCOPE_STARTER, "open of the engine", dd_engine_open(&options, engine, &self->error));
}

static bool
open_group(rank_env *self, world *w)
{
    dd_group_options options = {.name = dd_bytes_of_string("world"), .timeout_ns = GROUP_TIMEOUT_NS};
    dd_wait wait = step_wait(self);
    return STEP(self, SCOPE_STARTER, "selection", dd_selection_parse("", &options.selection, &self->error)) &&
           STEP(self, SCOPE_MEETING, "open of the group",
                dd_group_open(w->engine, w->store, self->rank, self->size, &options, &w->group, &wait,
                              &self->error));
}

static bool
open_world(rank_env *self, const world_shape *shape, world *w)
{
    return (shape->has_own_store ? open_own_store(self, secret_of(shape), &w->server, &w->store)
                                 : open_agents_store(self, &w->store)) &&
           open_engine(self, shape, &w->engine) && open_group(self, w);
}

static void
close_world(rank_env *self, world *w)
{
    if (w->group != NULL) {
        if (has_failed(self)) {
            dd_group_abort(w->group, self->report->error.message);
        }
        dd_wait wait = dd_wait_after(CLOSE_TIMEOUT_NS);
        (void)STEP(self, SCOPE_GROUP, "close", dd_group_close(w->group, &wait, &self->error));
    }
    dd_group_release(w->group);
    dd_engine_release(w->engine);
    dd_store_release(w->store);
    dd_tcp_server_release(w->server);
}

/* ---- operations of a group */

static bool
barrier(rank_env *self, dd_group *group, const char *name)
{
    dd_coll_args args = {.coll = DD_COLL_BARRIER};
    dd_wait wait = dd_wait_after(GROUP_TIMEOUT_NS);
    return STEP(self, SCOPE_GROUP, name,
                dd_group_collective_and_wait(group, &args, &no_options, &wait, &self->error));
}

/* Sum numbers in the caller's memory, in place. */
static bool
sum_up(rank_env *self, dd_group *group, const char *name, float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        x[i] = (float)(self->rank + 1 + (int)(i % 7));
    }
    dd_block block = {.data = x, .nbytes = count * sizeof *x};
    dd_coll_args args = {.coll = DD_COLL_ALL_REDUCE,
                         .reduction = {.dtype = DD_DTYPE_FLOAT32, .op = DD_REDOP_SUM},
                         .inputs = &block,
                         .outputs = &block};
    dd_wait wait = dd_wait_after(GROUP_TIMEOUT_NS);
    if (!STEP(self, SCOPE_GROUP, name,
              dd_group_collective_and_wait(group, &args, &no_options, &wait, &self->error))) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        float expected = (float)(self->size * (self->size + 1) / 2 + self->size * (int)(i % 7));
        if (x[i] != expected) {
            complain(self, "%s: element %zu is %g, not %g", name, i, (double)x[i], (double)expected);
            break;
        }
    }
    return true;
}

static void
fill(char *bytes, size_t nbytes, int source, int target)
{
    memset(bytes, 16 * source + target + 1, nbytes);
}

static void
check_filled(rank_env *self, const char *label, const char *bytes, size_t nbytes, int source, int target)
{
    for (size_t i = 0; i < nbytes; i++) {
        if (bytes[i] != (char)(16 * source + target + 1)) {
            complain(self, "%s: byte %zu from rank %d is %d", label, i, source, bytes[i]);
            return;
        }
    }
}

static bool
swap_blocks(rank_env *self, dd_group *group, char *memory)
{
    dd_block inputs[PROGRAM_RANKS_MAX];
    dd_block outputs[PROGRAM_RANKS_MAX];
    for (int rank = 0; rank < self->size; rank++) {
        inputs[rank] = (dd_block){memory + (size_t)(2 * rank) * BLOCK_NBYTES, BLOCK_NBYTES};
        outputs[rank] = (dd_block){memory + (size_t)(2 * rank + 1) * BLOCK_NBYTES, BLOCK_NBYTES};
        fill(inputs[rank].data, BLOCK_NBYTES, self->rank, rank);
    }
    dd_coll_args args = {.coll = DD_COLL_ALL_TO_ALL,
                         .reduction = {.dtype = DD_DTYPE_UINT8},
                         .inputs = inputs,
                         .outputs = outputs};
    dd_wait wait = dd_wait_after(GROUP_TIMEOUT_NS);
    if (!STEP(self, SCOPE_GROUP, "all_to_all",
              dd_group_collective_and_wait(group, &args, &no_options, &wait, &self->error))) {
        return false;
    }
    for (int rank = 0; rank < self->size; rank++) {
        check_filled(self, "all_to_all", outputs[rank].data, BLOCK_NBYTES, rank, self->rank);
    }
    return true;
}

/* Send to the right and receive from the left. */
static bool
pass_on(rank_env *self, dd_group *group, const char *name, char *memory, size_t nbytes)
{
    int right = (self->rank + 1) % self->size;
    int left = (self->rank + self->size - 1) % self->size;
    dd_p2p sent = {.is_send = true, .rank = right, .tag = nbytes, .block = {memory, nbytes}};
    dd_p2p received = {.rank = left, .tag = nbytes, .block = {memory + nbytes, nbytes}};
    dd_work *work = NULL;
    dd_p2p_result result;
    dd_wait wait = dd_wait_after(GROUP_TIMEOUT_NS);
    fill(memory, nbytes, self->rank, right);
    bool is_well =
        STEP(self, SCOPE_GROUP, name, dd_group_p2p(group, &sent, &no_options, &work, &self->error)) &&
        STEP(self, SCOPE_GROUP, name,
             dd_group_p2p_and_wait(group, &received, &no_options, &result, &wait, &self->error)) &&
        STEP(self, SCOPE_GROUP, name, dd_group_wait(group, work, &wait, &self->error));
    if (is_well) {
        check_filled(self, name, memory + nbytes, nbytes, left, self->rank);
    } else if (work != NULL) { /* `memory` is about to be freed */
        dd_group_abort(group, self->report->error.message);
        (void)!dd_group_wait(group, work, &wait, NULL);
    }
    dd_work_release(work);
    return is_well;
}

static bool
split_off(rank_env *self, dd_group *group)
{
    static const int ranks[PROGRAM_RANKS_MAX] = {0, 1, 2};
    dd_group_options options = {.name = dd_bytes_of_string("part"), .timeout_ns = GROUP_TIMEOUT_NS};
    dd_group *part = NULL;
    float x[1000];
    dd_wait wait = dd_wait_after(GROUP_TIMEOUT_NS);
    bool is_well = STEP(self, SCOPE_GROUP, "split",
                        dd_group_split(group, ranks, self->size, 0, &options, &part, &wait, &self->error)) &&
                   sum_up(self, part, "all_reduce of the part", x, 1000) &&
                   STEP(self, SCOPE_GROUP, "close of the part", dd_group_close(part, &wait, &self->error));
    if (!is_well && part != NULL) {
        dd_group_abort(part, self->report->error.message);
    }
    dd_group_release(part);
    return is_well;
}

static bool
write_to_neighbour(rank_env *self, dd_window *window, const char *own)
{
    int right = (self->rank + 1) % self->size;
    int left = (self->rank + self->size - 1) % self->size;
    char part[5000];
    char seen[5000];
    dd_block source = {part, sizeof part};
    dd_block target = {seen, sizeof seen};
    dd_window_target to = {.rank = right, .offset = 1000};
    dd_wait wait = dd_wait_after(GROUP_TIMEOUT_NS);
    fill(part, sizeof part, self->rank, right);
    if (!STEP(self, SCOPE_GROUP, "put",
              dd_window_put(window, source, to, DD_NO_CHANNEL, &wait, &self->error)) ||
        !STEP(self, SCOPE_GROUP, "barrier of the window",
              dd_window_barrier(window, 0, &wait, &self->error)) ||
        !STEP(self, SCOPE_GROUP, "get of a window", dd_window_get(window, target, to, &wait, &self->error)) ||
        !STEP(self, SCOPE_GROUP, "last barrier of the window",
              dd_window_barrier(window, 0, &wait, &self->error))) {
        return false;
    }
    check_filled(self, "put", own + 1000, sizeof part, left, self->rank);
    check_filled(self, "get", seen, sizeof seen, self->rank, right);
    return true;
}

static bool
use_shared_memory(rank_env *self, dd_group *group)
{
    dd_region *region = NULL;
    dd_window *window = NULL;
    dd_wait wait = dd_wait_after(GROUP_TIMEOUT_NS);
    if (!STEP(self, SCOPE_GROUP, "alloc", dd_group_alloc(group, REGION_NBYTES, &region, &self->error))) {
        return false;
    }
    dd_window_options options = {.data = dd_region_data(region), .nbytes = REGION_NBYTES, .region = region};
    bool is_well = sum_up(self, group, "all_reduce in shared memory", dd_region_data(region),
                          REGION_NBYTES / sizeof(float)) &&
                   STEP(self, SCOPE_GROUP, "open of a window",
                        dd_window_open(group, &options, &window, &wait, &self->error)) &&
                   write_to_neighbour(self, window, dd_region_data(region));
    dd_window_release(window);
    dd_region_release(region);
    return is_well;
}

static bool
rest(rank_env *self, dd_group *group)
{
    dd_wait wait = dd_wait_after(GROUP_TIMEOUT_NS);
    return STEP(self, SCOPE_GROUP, "suspend", dd_group_suspend(group, &wait, &self->error)) &&
           STEP(self, SCOPE_GROUP, "resume", dd_group_resume(group, &self->error));
}

static void
use_group(rank_env *self, dd_group *group)
{
    float *x = calloc(LARGE_COUNT, sizeof *x);
    char *memory = calloc(2, MESSAGE_NBYTES);
    bool is_well = x != NULL && memory != NULL && sum_up(self, group, "all_reduce of one", x, 1) &&
                   sum_up(self, group, "all_reduce of much", x, LARGE_COUNT) &&
                   swap_blocks(self, group, memory) && pass_on(self, group, "small message", memory, 100) &&
                   pass_on(self, group, "large message", memory, MESSAGE_NBYTES) && split_off(self, group) &&
                   use_shared_memory(self, group) && rest(self, group) &&
                   sum_up(self, group, "last all_reduce", x, 3000);
    (void)(is_well && barrier(self, group, "last barrier"));
    if (!is_well) { /* no transfer of a collective is pending any longer */
        dd_group_abort(group, self->report->error.message);
    }
    free(x);
    free(memory);
}

static void
run_world(rank_env *self, const world_shape *shape)
{
    world w = {0};
    if (open_world(self, shape, &w)) {
        use_group(self, w.group);
    }
    close_world(self, &w);
}

void
run_world_by_shared_memory(rank_env *self)
{
    run_world(self, &(world_shape){0});
}

void
run_world_by_tcp(rank_env *self)
{
    run_world(self, &(world_shape){.is_shm_disabled = true, .nlanes = 2});
}

void
run_world_of_two_hosts(rank_env *self)
{
    run_world(self, &(world_shape){.lonely_ranks = 4});
}

void
run_world_with_own_store(rank_env *self)
{
    run_world(self, &(world_shape){.has_own_store = true});
}

void
run_world_with_secret(rank_env *self)
{
    run_world(self, &(world_shape){.has_own_store = true, .lonely_ranks = 2, .secret = "of this job"});
}

/* ---- flight recorder and monitor */

typedef struct watch_rig {
    dd_recorder *recorder;
    dd_recorder_group *record;
    dd_monitor *monitor;
    uint64_t id;
    bool is_member;
    pthread_t thread;
    bool has_thread;
    char dump_path[256];
    char pipe_path[256];
} watch_rig;

static void
return_without_wait(void)
{
}

static void
do_not_die(void *ctx, const char *reason)
{
    complain(ctx, "the monitor wants to end the process: %s", reason);
}

static void *
run_monitor(void *arg)
{
    dd_monitor_run(arg);
    return NULL;
}

static bool
open_monitor(rank_env *self, const world *w, watch_rig *watch)
{
    dd_monitor_host host = {.await_interpreter = return_without_wait, .end_process = do_not_die, .ctx = self};
    dd_monitor_options options = {
        .recorder = watch->recorder,
        .check_interval_ns = 5 * DD_NS_PER_MS,
        .is_propagating = true,
        .is_desync = true,
        .dumping = DD_DUMPING_ON,
        .dump = {.format = DD_DUMP_JSON, .has_entries = true},
        .dump_timeout_ns = DD_NS_PER_S,
        .dump_path = watch->dump_path,
        .pipe_path = watch->pipe_path,
        .host = &host,
    };
    dd_monitor_member member = {
        .name = dd_bytes_of_string("world"),
        .rank = self->rank,
        .size = self->size,
        .store = w->store,
        .record = watch->record,
    };
    dd_wait wait = step_wait(self);
    watch->is_member = STEP(self, SCOPE_GROUP, "making of the monitor",
                            dd_monitor_create(&options, &watch->monitor, &self->error)) &&
                       STEP(self, SCOPE_GROUP, "adding to the monitor",
                            dd_monitor_add(watch->monitor, &member, &watch->id, &wait, &self->error));
    watch->has_thread = watch->is_member && STEP(self, SCOPE_GROUP, "starting the monitor",
                                                 dd_thread_start(&watch->thread, "monitor", run_monitor,
                                                                 watch->monitor, &self->error));
    return watch->has_thread;
}

static bool
open_watch(rank_env *self, const world *w, watch_rig *watch)
{
    dd_recorder_group_info info = {.name = dd_bytes_of_string("world"),
                                   .desc = dd_bytes_of_string("world"),
                                   .kind = "gloo",
                                   .rank = self->rank,
                                   .size = self->size};
    snprintf(watch->dump_path, sizeof watch->dump_path, "%s/%s/dump_%d", self->folder, self->name,
             self->rank);
    snprintf(watch->pipe_path, sizeof watch->pipe_path, "%s/%s_%d.pipe", self->folder, self->name,
             self->rank);
    if (!STEP(self, SCOPE_GROUP, "making of the recorder",
              dd_recorder_create(100, &watch->recorder, &self->error)) ||
        !STEP(self, SCOPE_GROUP, "group of the recorder",
              dd_recorder_add_group(watch->recorder, &info, &watch->record, &self->error))) {
        return false;
    }
    dd_group_set_recorder(w->group, watch->record);
    return open_monitor(self, w, watch);
}

/* Remove the dump, and its folder once it is empty. */
static void
remove_dump(char *path)
{
    (void)unlink(path);
    char *slash = strrchr(path, '/');
    if (slash != NULL) {
        *slash = '\0';
        (void)rmdir(path);
    }
}

static void
close_watch(watch_rig *watch)
{
    if (watch->is_member) {
        dd_monitor_remove(watch->monitor, watch->id);
    }
    if (watch->has_thread) {
        dd_monitor_stop(watch->monitor, DD_NS_PER_S);
        dd_thread_join(watch->thread);
    }
    dd_monitor_destroy(watch->monitor);
    dd_recorder_group_release(watch->record);
    dd_recorder_destroy(watch->recorder);
    remove_dump(watch->dump_path);
}

/* Write a dump, in addition to the monitor's, which may fail and is only logged. */
static bool
dump(rank_env *self, watch_rig *watch)
{
    dd_monitor_request_dump(watch->monitor);
    dd_wait moment = dd_wait_after(50 * DD_NS_PER_MS);
    while (atomic_load(&watch->monitor->ndumps) == 0 && !dd_wait_has_expired(&moment)) {
        (void)!dd_wait_sleep(&moment, DD_NS_PER_MS, NULL);
    }
    char path[280];
    snprintf(path, sizeof path, "%s.own", watch->dump_path);
    dd_dump_options options = {.format = DD_DUMP_PICKLE, .has_entries = true};
    bool is_well = STEP(self, SCOPE_GROUP, "dump",
                        dd_recorder_dump_to_file(watch->recorder, &options, path, &self->error));
    (void)unlink(path);
    return is_well;
}

void
run_watched_world(rank_env *self)
{
    world w = {0};
    watch_rig watch = {0};
    float x[10];
    if (open_world(self, &(world_shape){0}, &w) && open_watch(self, &w, &watch) &&
        sum_up(self, w.group, "all_reduce", x, 10) && dump(self, &watch)) {
        (void)barrier(self, w.group, "last barrier");
    }
    close_world(self, &w);
    close_watch(&watch);
}

void
run_dump(rank_env *self)
{
    dd_recorder *recorder = NULL;
    dd_dump_options options = {.format = DD_DUMP_PICKLE, .has_entries = true};
    char path[256];
    snprintf(path, sizeof path, "%s/%s/dump", self->folder, self->name);
    if (STEP(self, SCOPE_STARTER, "making of the recorder",
             dd_recorder_create(100, &recorder, &self->error))) {
        (void)STEP(self, SCOPE_STARTER, "dump",
                   dd_recorder_dump_to_file(recorder, &options, path, &self->error));
    }
    dd_recorder_destroy(recorder);
    remove_dump(path);
}
