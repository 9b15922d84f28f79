/* Setup of this host's arena, the memory that its ranks share: the lowest rank creates it, the
 * others request its descriptor until it arrives, and a vote of all ranks decides on its use. */
#include "group/internal.h"

#include "core/cpu.h"
#include "core/fork.h"
#include "core/log.h"
#include "core/mem.h"

#include <errno.h>
#include <string.h>

/* Time between two requests for the arena's descriptor. */
#define ARENA_REQUEST_NS (2 * DD_NS_PER_MS)

/* Request the arena's descriptor if a request is due. Requests are repeated, because the creator
 * drops them until it knows the group. */
static void
request_arena(dd_group *group)
{
    int64_t now_ns = dd_clock_now_ns();
    if (group->arena_fd == -1 && now_ns >= group->arena_request_ns) {
        group->arena_request_ns = now_ns + ARENA_REQUEST_NS;
        (void)dd_context_want_fd_locked(group->context, group->topology.local_ranks[0], GROUP_ARENA_FD_KEY);
    }
}

/* Return true if the link to the host's lowest rank exists or has failed. Also request the arena,
 * which needs no link. */
static bool
is_leader_linked(void *ctx)
{
    dd_group *group = ctx;
    const dd_peer *leader = group->peers[group->topology.local_ranks[0]];
    request_arena(group);
    return dd_peer_is_connected_locked(leader) || dd_peer_error_locked(leader) != NULL;
}

/* Connect to the lowest local rank, so that each of the two notices if the other exits. *is_shared
 * is true if the link is shared memory; if not, the group may still work with messages. */
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

/* Set group->arena, with the lock: the context is open, so other ranks may already send events. */
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

/* Pass the arena's descriptor to all local ranks, so that waiting ranks need not request it
 * again. */
static void
pass_arena(dd_group *group, int fd)
{
    dd_engine_lock(group->engine);
    group->arena_fd = fd;
    for (int i = 1; i < group->topology.nlocal; i++) {
        (void)dd_context_pass_fd_locked(group->context, group->topology.local_ranks[i], GROUP_ARENA_FD_KEY,
                                        fd);
    }
    dd_engine_unlock(group->engine);
}

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
has_arena_arrived(void *ctx)
{
    dd_group *group = ctx;
    const dd_peer *creator = group->peers[group->topology.local_ranks[0]];
    request_arena(group);
    return group->arena_fd != -1 || dd_peer_error_locked(creator) != NULL ||
           dd_context_check_datagrams_locked(group->context, NULL) != DD_OK;
}

static dd_status
take_arena(dd_group *group, const group_setup *setup, const dd_wait *wait, dd_error *err)
{
    dd_status status = group_await_others(group, setup, has_arena_arrived, group, wait, err);
    dd_engine_lock(group->engine);
    int fd = group->arena_fd;
    const dd_error *broken = dd_peer_error_locked(group->peers[group->topology.local_ranks[0]]);
    group->arena_fd = -1;
    if (status == DD_OP_TIMED_OUT) {
        dd_error_set(err, status, "no shared memory received from the first rank of this host");
    } else if (status == DD_OK && fd == -1) {
        status = broken != NULL ? dd_error_copy(err, broken)
                                : dd_context_check_datagrams_locked(group->context, err);
    } else if (status == DD_OK && fd == DD_SOCK_FD_REFUSED) {
        status = dd_error_set_errno(err, DD_SYSTEM, EMFILE, "cannot receive the descriptor of shared memory");
    } else if (status == DD_OK && fd == DD_FD_DENIED) {
        status = dd_error_set(err, DD_SYSTEM, "the first rank of this host could not create shared memory");
    }
    dd_engine_unlock(group->engine);
    if (status == DD_OK) {
        status = attach_arena(group, fd, group->topology.local_of[group->rank], err);
    }
    dd_sock_close(fd);
    return status;
}

/* Create the arena or receive its descriptor. A group without an arena uses messages, so this fails
 * only if the group's creation has failed. */
static dd_status
try_arena(dd_group *group, const group_setup *setup, bool *has_arena, const dd_wait *wait, dd_error *err)
{
    *has_arena = group->topology.nlocal < 2;
    if (*has_arena) {
        return DD_OK;
    }
    if (group->topology.nlocal > DD_ARENA_MAX_RANKS) {
        DD_LOG(
            DD_LOG_INFO,
            "group \"%.*s\" (rank %d): no shared arena: got %d ranks on this host, expected at most %d; collectives use messages",
            (int)group->name.len, (const char *)group->name.data, group->rank, group->topology.nlocal,
            DD_ARENA_MAX_RANKS);
        return DD_OK;
    }
    int local = group->topology.local;
    bool is_shared = local == 0; /* true on the leader: the other ranks check the links to it */
    dd_status status = is_shared ? DD_OK : connect_leader(group, setup, &is_shared, wait, err);
    if (status != DD_OK || !is_shared) {
        return status;
    }
    /* Wait at most 10 s: a creator that fails sends a notice, but a bell that fails loses the
     * notice. */
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

/* If a host has no arena, make each of its ranks a host of its own. All ranks see the same votes,
 * so all get the same hosts. */
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

/* Mark all ranks of this host as reachable through shared memory, with or without a link. */
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

static dd_status
set_up_shared(dd_group *group, const group_setup *setup, const dd_wait *wait, dd_error *err)
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

dd_status
group_set_up_arena(dd_group *group, const group_setup *setup, const dd_wait *wait, dd_error *err)
{
    return group->size == 1 ? set_up_alone(group, err) : set_up_shared(group, setup, wait, err);
}
