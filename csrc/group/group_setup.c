/* From peers that are known to a group that can work: which ranks share a host, a context, an arena. */
#include "group/group_internal.h"

#include "core/cpu.h"
#include "core/fork.h"
#include "core/log.h"
#include "core/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A maker is asked again for its arena after so long. */
#define ASK_ARENA_NS (2 * DD_NS_PER_MS)

/* ---- the arena of this host */

/* Its maker may not know of the group yet: asks again until it comes. */
static void
ask_for_arena(dd_group *group)
{
    int64_t now_ns = dd_clock_now_ns();
    if (group->arena_fd == -1 && now_ns >= group->ask_arena_ns) {
        group->ask_arena_ns = now_ns + ASK_ARENA_NS;
        (void)dd_context_want_fd_locked(group->context, group->topology.local_ranks[0], GROUP_ARENA_WORD);
    }
}

/* The arena comes meanwhile: that needs no link. */
static bool
is_leader_linked(void *ctx)
{
    dd_group *group = ctx;
    const dd_peer *leader = group->peers[group->topology.local_ranks[0]];
    ask_for_arena(group);
    return dd_peer_is_connected_locked(leader) || dd_peer_error_locked(leader) != NULL;
}

/* The lowest local rank notices the end of this one, and this one its end. *is_shared: the link is shared memory; else the group may still
 * come about by messages. */
static dd_status
connect_leader(dd_group *group, const group_setup *setup, bool *is_shared, const dd_wait *wait, dd_error *err)
{
    dd_peer *leader = group->peers[group->topology.local_ranks[0]];
    dd_engine_lock(group->engine);
    dd_peer_connect_locked(leader);
    dd_engine_unlock(group->engine);
    dd_status status = group_await_others(group, setup, is_leader_linked, group, wait, err);
    dd_engine_lock(group->engine);
    *is_shared = status == DD_OK && dd_peer_has_shm_locked(leader);
    dd_engine_unlock(group->engine);
    return status == DD_OP_TIMED_OUT ? DD_OK : status;
}

/* Under the lock, since the context is open and others may already have something to tell. */
static void
set_arena(dd_group *group, dd_arena *arena)
{
    dd_engine_lock(group->engine);
    dd_arena *before = group->arena;
    group->arena = arena;
    dd_engine_unlock(group->engine);
    dd_arena_close(before);
}

static dd_status
attach_arena(dd_group *group, int fd, int local, dd_error *err)
{
    dd_arena *arena = NULL;
    dd_status status = dd_arena_attach(fd, group->topology.nlocal, local, &arena, err);
    if (status == DD_OK) {
        dd_arena_add_cpus(arena);
        set_arena(group, arena);
    }
    return status;
}

/* Those who wait for it already need not ask again. */
static void
pass_arena(dd_group *group, int fd)
{
    dd_engine_lock(group->engine);
    group->arena_fd = fd;
    for (int i = 1; i < group->topology.nlocal; i++) {
        (void)dd_context_pass_fd_locked(group->context, group->topology.local_ranks[i], GROUP_ARENA_WORD, fd);
    }
    dd_engine_unlock(group->engine);
}

/* The lowest local rank makes the memory. */
static dd_status
make_arena(dd_group *group, dd_error *err)
{
    int fd = -1;
    int quota = dd_cpu_quota();
    bool is_crowded = quota > 0 && group->topology.nlocal > quota;
    dd_status status = dd_arena_create(group->topology.nlocal, is_crowded, &fd, err);
    if (status == DD_OK) {
        status = attach_arena(group, fd, 0, err);
    }
    if (status != DD_OK) {
        dd_fork_close(fd);
    }
    pass_arena(group, status == DD_OK ? fd : DD_FD_DENIED);
    return status;
}

static bool
has_arena_come(void *ctx)
{
    dd_group *group = ctx;
    const dd_peer *maker = group->peers[group->topology.local_ranks[0]];
    ask_for_arena(group);
    return group->arena_fd != -1 || dd_peer_error_locked(maker) != NULL ||
           dd_context_check_notes_locked(group->context, NULL) != DD_OK;
}

static dd_status
take_arena(dd_group *group, const group_setup *setup, const dd_wait *wait, dd_error *err)
{
    dd_status status = group_await_others(group, setup, has_arena_come, group, wait, err);
    dd_engine_lock(group->engine);
    int fd = group->arena_fd;
    const dd_error *broken = dd_peer_error_locked(group->peers[group->topology.local_ranks[0]]);
    group->arena_fd = -1;
    if (status == DD_OP_TIMED_OUT) {
        dd_error_set(err, status, "no arena has come");
    } else if (status == DD_OK && fd == -1) {
        status =
            broken != NULL ? dd_error_copy(err, broken) : dd_context_check_notes_locked(group->context, err);
    } else if (status == DD_OK && fd == DD_SOCK_FD_REFUSED) {
        status = dd_error_set_errno(err, DD_SYSTEM, EMFILE, "cannot take the arena");
    } else if (status == DD_OK && fd == DD_FD_DENIED) {
        status = dd_error_set(err, DD_SYSTEM, "its maker could not make it");
    }
    dd_engine_unlock(group->engine);
    if (status == DD_OK) {
        status = attach_arena(group, fd, group->topology.local_of[group->rank], err);
    }
    dd_sock_close(fd);
    return status;
}

/* Best effort: without an arena (*has_arena is false) the group works by messages. Fails when it is not
 * being made any more. */
static dd_status
try_arena(dd_group *group, const group_setup *setup, bool *has_arena, const dd_wait *wait, dd_error *err)
{
    *has_arena = group->topology.nlocal < 2;
    if (*has_arena) {
        return DD_OK;
    }
    if (group->topology.nlocal > DD_ARENA_MAX_RANKS) {
        DD_LOG(DD_LOG_INFO,
               "group \"%.*s\" (rank %d): no shared arena: %d ranks on this host, and %d are the most; its "
               "collectives go by messages",
               (int)group->name.len, (const char *)group->name.data, group->rank, group->topology.nlocal,
               DD_ARENA_MAX_RANKS);
        return DD_OK;
    }
    int local = group->topology.local;
    bool is_shared = local == 0; /* else its vote, or its silence, will tell */
    dd_status status = is_shared ? DD_OK : connect_leader(group, setup, &is_shared, wait, err);
    if (status != DD_OK || !is_shared) {
        return status;
    }
    /* A maker that has failed says so, and is heard unless its bell is what has failed. */
    dd_wait moment = dd_wait_at_most(wait, 10 * DD_NS_PER_S);
    dd_error error;
    status = local == 0 ? make_arena(group, &error) : take_arena(group, setup, &moment, &error);
    if (status == DD_INTERRUPTED) {
        return dd_error_copy(err, &error);
    }
    if (status != DD_OK) {
        DD_LOG(DD_LOG_INFO, "group \"%.*s\" (rank %d): no shared arena: %s", (int)group->name.len,
               (const char *)group->name.data, group->rank, error.message);
    }
    *has_arena = status == DD_OK;
    return DD_OK;
}

typedef struct host_of_rank {
    const dd_card *card;
    int rank;
} host_of_rank;

/* Ranks without shared memory come last. */
static int
compare_hosts(const void *a, const void *b)
{
    const host_of_rank *first = a;
    const host_of_rank *second = b;
    int order = second->card->has_unix - first->card->has_unix;
    if (order == 0) {
        order = memcmp(first->card->host_id, second->card->host_id, sizeof first->card->host_id);
    }
    return order != 0 ? order : first->rank - second->rank;
}

/* hosts[r]: the lowest rank on the host of r, by their cards. */
static dd_status
compare_cards(const dd_group *group, int *hosts, dd_error *err)
{
    size_t size = (size_t)group->size;
    host_of_rank *sorted = dd_mem_alloc_array(size, sizeof *sorted);
    if (sorted == NULL) {
        return dd_error_no_memory(err, size * sizeof *sorted);
    }
    for (int rank = 0; rank < group->size; rank++) {
        sorted[rank] = (host_of_rank){dd_peer_card(group->peers[rank]), rank};
    }
    qsort(sorted, size, sizeof *sorted, compare_hosts);
    for (size_t i = 0; i < size; i++) {
        const dd_card *card = sorted[i].card;
        bool is_same = i > 0 && card->has_unix && dd_card_is_same_host(card, sorted[i - 1].card);
        hosts[sorted[i].rank] = is_same ? hosts[sorted[i - 1].rank] : sorted[i].rank;
    }
    dd_mem_free(sorted);
    return DD_OK;
}

static dd_status
find_hosts(dd_group *group, dd_error *err)
{
    int *hosts = dd_mem_alloc_array((size_t)group->size, sizeof *hosts);
    if (hosts == NULL) {
        return dd_error_no_memory(err, (size_t)group->size * sizeof *hosts);
    }
    dd_status status = compare_cards(group, hosts, err);
    if (status == DD_OK) {
        status = dd_topology_init(&group->topology, group->rank, group->size, hosts, err);
    }
    dd_mem_free(hosts);
    return status;
}

/* A host where one rank has no arena works without: its ranks count as hosts of their own. All ranks see the same votes. */
static dd_status
split_hosts(dd_group *group, const uint8_t *votes, dd_error *err)
{
    dd_topology split;
    int *hosts = dd_mem_alloc_array((size_t)group->size, sizeof *hosts);
    if (hosts == NULL) {
        return dd_error_no_memory(err, (size_t)group->size * sizeof *hosts);
    }
    for (int rank = 0; rank < group->size; rank++) {
        int host = group->topology.host_of[rank];
        hosts[rank] = votes[host] != 0 ? dd_topology_rank_at(&group->topology, host, 0) : rank;
    }
    dd_status status = dd_topology_init(&split, group->rank, group->size, hosts, err);
    dd_mem_free(hosts);
    if (status == DD_OK) {
        dd_topology_fini(&group->topology);
        group->topology = split;
    }
    return status;
}

/* All of this host can reach each other there, whether they are linked or not. */
static void
note_near_ranks(dd_group *group)
{
    dd_engine_lock(group->engine);
    for (int local = 0; local < group->topology.nlocal; local++) {
        dd_peer_note_near_locked(group->peers[group->topology.local_ranks[local]]);
    }
    dd_engine_unlock(group->engine);
}

static dd_status
set_up_arena(dd_group *group, const group_setup *setup, const dd_wait *wait, dd_error *err)
{
    size_t nhosts = (size_t)group->topology.nhosts;
    uint8_t *votes = dd_mem_zalloc(nhosts);
    if (votes == NULL) {
        return dd_error_no_memory(err, nhosts);
    }
    bool has_arena = false;
    dd_status status = group->selection.is_flat ? DD_OK : try_arena(group, setup, &has_arena, wait, err);
    if (status == DD_OK) {
        status = group_exchange_votes(group, setup, has_arena, votes, wait, err);
    }
    if (status == DD_OK && memchr(votes, 0, nhosts) != NULL) {
        status = split_hosts(group, votes, err);
    }
    if (status == DD_OK && group->topology.nlocal < 2) {
        set_arena(group, NULL);
    }
    if (status == DD_OK && group->arena != NULL) {
        note_near_ranks(group);
    }
    dd_mem_free(votes);
    return status;
}

/* A group of one needs nobody's memory but its own. */
static dd_status
set_up_alone(dd_group *group, dd_error *err)
{
    int fd = -1;
    dd_status status = dd_arena_create(1, false, &fd, err);
    if (status == DD_OK) {
        status = dd_arena_attach(fd, 1, 0, &group->arena, err);
        dd_fork_close(fd);
    }
    return status;
}

static void
wake_local_rank(void *ctx, int local)
{
    dd_group *group = ctx;
    dd_peer_ring_bell_locked(group->peers[group->topology.local_ranks[local]]);
}

static dd_status
make_run(dd_group *group, dd_error *err)
{
    if (group->arena != NULL && group->topology.nlocal > 1) {
        group->is_crowded = dd_arena_is_crowded(group->arena);
    }
    dd_run_env env = {
        .engine = group->engine,
        .context = group->context,
        .topology = &group->topology,
        .arena = group->arena,
        .selection = group->selection,
        .segment_nbytes = group->segment_nbytes,
        .is_crowded = group->is_crowded,
        .wake = wake_local_rank,
        .want_region = group_want_region,
        .ctx = group,
    };
    group->task.is_crowded = group->task.is_outnumbered = env.is_crowded;
    return dd_run_create(&env, &group->run, err);
}

static dd_status
open_context(dd_group *group, dd_error *err)
{
    dd_context_handler handler = group_context_handler;
    handler.ctx = group;
    return dd_context_open(group->engine, group->id, group->rank, group->size, group->peers, &handler,
                           &group->context, err);
}

dd_status
group_create(dd_engine *engine, uint64_t id, const group_place *place, dd_group **out, dd_error *err)
{
    size_t size = (size_t)place->size;
    dd_group *group = dd_mem_zalloc(sizeof *group);
    if (group == NULL) {
        return dd_error_no_memory(err, sizeof *group);
    }
    atomic_init(&group->refs, 1);
    atomic_init(&group->timeout_ns, place->options->timeout_ns);
    atomic_init(&group->is_idle, true);
    group->engine = dd_engine_acquire(engine);
    group->id = id;
    group->rank = place->rank;
    group->size = place->size;
    group->arena_fd = -1;
    group->selection = place->options->selection;
    group->segment_nbytes = place->options->large_segment_nbytes;
    group->cause.code = DD_OK;
    dd_list_init(&group->collectives);
    dd_list_init(&group->messages);
    dd_list_init(&group->regions);
    dd_list_init(&group->foreign);
    group_task_init(group);
    group->members = dd_mem_zalloc(size * sizeof *group->members);
    group->peers = dd_mem_zalloc(size * sizeof(dd_peer *));
    dd_status status = group->members != NULL && group->peers != NULL
                           ? dd_blob_assign(&group->name, place->options->name, err)
                           : dd_error_no_memory(err, size * (sizeof *group->members + sizeof(dd_peer *)));
    if (status == DD_OK) {
        status = group_make_pool(group, err);
    }
    if (status != DD_OK) {
        group_destroy(group);
        return status;
    }
    *out = group;
    return DD_OK;
}

static dd_status
set_up(dd_group *group, const group_setup *setup, const dd_wait *wait, dd_error *err)
{
    dd_status status = find_hosts(group, err);
    int nlocal = group->topology.nlocal; /* one rank is never crowded, and need not read what it may use */
    group->is_crowded = nlocal > 1 && nlocal > dd_cpu_usable_count();
    if (status == DD_OK) {
        status = open_context(group, err);
    }
    if (status == DD_OK) {
        status = group->size == 1 ? set_up_alone(group, err) : set_up_arena(group, setup, wait, err);
    }
    return status == DD_OK ? make_run(group, err) : status;
}

/* Posts why this rank cannot go on. A rank that it has lost may have ended for a reason that it has posted first; that is the cause
 * then. */
static void
post_reason(const dd_group *group, const group_setup *setup, const dd_cause *cause, dd_error *error)
{
    dd_error told;
    dd_error first;
    group_explain_cause(group, cause, &told);
    if (cause->kind == DD_CAUSE_LOST) { /* it may be well, and reads this */
        char who[128];
        char finder[160];
        snprintf(finder, sizeof finder, "found by %s", group_print_member(group, cause->origin, who));
        group_append(&told, finder);
    }
    dd_meeting_post(setup->bulletin->store, setup->bulletin->name, setup->bulletin->generation, &told,
                    &first);
    if (error->code == DD_PEER_LOST && first.culprit.rank != group->rank) {
        *error = first;
    }
}

/* As a fact where it is one: each says of a rank that is lost what that is to it. */
static dd_cause
cause_of_giving_up(const dd_group *group, const dd_error *error)
{
    const dd_cause *failure = &group->failure;
    bool is_failure = failure->kind == DD_CAUSE_LOST && error->code == DD_PEER_LOST &&
                      error->culprit.rank == failure->culprit.rank;
    return is_failure ? *failure : group_cause_of_error(group, error);
}

/* The others are waiting, or will be. */
static void
tell_given_up(dd_group *group, const group_setup *setup, dd_error *error)
{
    if (group->context == NULL) {
        return;
    }
    dd_cause cause = cause_of_giving_up(group, error);
    if (error->code == DD_INTERRUPTED) {
        cause = group_make_cause(group, DD_CAUSE_ABORTED, DD_ABORTED, group->rank);
        snprintf(cause.text, sizeof cause.text, "interrupted while it was being made");
    }
    bool may_be_consequence = error->code == DD_PEER_LOST && setup->bulletin != NULL;
    if (may_be_consequence) {
        post_reason(group, setup, &cause, error);
        cause = cause_of_giving_up(group, error);
    }
    dd_engine_lock(group->engine);
    group_tell_abort_locked(group, DD_ANY_RANK, &cause);
    dd_engine_unlock(group->engine);
    if (setup->bulletin != NULL && !may_be_consequence) {
        post_reason(group, setup, &cause, error);
    }
}

/* What went wrong since the others have voted they are told now (see fail_locked). */
static void
end_setup(dd_group *group)
{
    dd_engine_lock(group->engine);
    group->is_made = true;
    dd_fork_close(group->arena_fd); /* all have voted, and so have it or do without */
    group->arena_fd = -1;
    if (group->failure.kind == DD_CAUSE_LOST && group->failure.origin == group->rank) {
        group_tell_abort_locked(group, DD_ANY_RANK, &group->failure);
    }
    dd_engine_unlock(group->engine);
}

/* Others may have left because of what this rank lacked. */
static void
find_own_part(dd_group *group, dd_error *error)
{
    dd_error own;
    dd_engine_lock(group->engine);
    if (error->code == DD_PEER_LOST && dd_engine_check_links_locked(group->engine, &own) != DD_OK) {
        char who[128];
        *error = own;
        dd_error_prepend(error, "%s", group_print_member(group, group->rank, who));
        group_blame(group, group->rank, error);
    }
    dd_engine_unlock(group->engine);
}

dd_status
group_set_up(dd_group *group, const group_setup *setup, const dd_wait *wait, dd_error *err)
{
    dd_error error;
    dd_status status = set_up(group, setup, wait, &error);
    if (status != DD_OK) {
        find_own_part(group, &error);
        tell_given_up(group, setup, &error);
        if (error.code == DD_PEER_LOST && error.culprit.rank == group->rank) {
            dd_error_prepend(&error, "another rank has given up");
        }
        dd_error_prepend(&error, GROUP_FORMAT ": cannot connect the ranks", GROUP_ARGS(group));
        return dd_error_copy(err, &error);
    }
    end_setup(group);
    return DD_OK;
}

/* In a forked child the library is the parent's, and what it has of it is left where it is. */
static void
close_carrier(dd_group *group)
{
    dd_carrier *carrier = group->run != NULL ? dd_run_carrier(group->run) : NULL;
    if (carrier != NULL && dd_engine_check_fork(group->engine, NULL) == DD_OK) {
        carrier->ops->close(carrier, group->cause.code == DD_OK);
    }
}

void
group_destroy(dd_group *group)
{
    if (group == NULL) {
        return;
    }
    close_carrier(group);
    dd_run_destroy(group->run);
    if (group->context != NULL) {
        dd_wait moment = dd_wait_after(0);
        dd_context_close(group->context, &moment);
    }
    if (dd_engine_check_fork(group->engine, NULL) == DD_OK) {
        dd_fork_close(group->arena_fd);
    }
    if (group->guest != NULL) {
        group->guest->destroy(group->guest);
    }
    group_drop_regions(group);
    dd_arena_close(group->arena);
    for (int rank = 0; group->peers != NULL && rank < group->size; rank++) {
        dd_peer_release(group->peers[rank]);
    }
    dd_mem_free(group->peers);
    dd_topology_fini(&group->topology);
    dd_blob_fini(&group->name);
    dd_recorder_group_release(group->recorder_group);
    dd_blob_fini(&group->splits);
    group_release_pool(group->pool);
    dd_mem_free(group->members);
    dd_engine_release(group->engine);
    dd_mem_free(group);
}
