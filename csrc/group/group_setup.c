/* From peers that are known to a group that can work: who is on whose host, a context, an arena. */
#include "group/group_internal.h"

#include "core/cpu.h"
#include "core/fork.h"
#include "core/log.h"
#include "core/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VOTERS_CHECK_NS (50 * DD_NS_PER_MS)
#define DIALLED_PATIENCE_NS (250 * DD_NS_PER_MS)
#define ASK_FIRST_NS (1 * DD_NS_PER_MS)

/* ---- the vote: a byte from everybody to everybody, before there are collectives
 *
 * The ranks of a host are linked to the lowest of them, its leader, and leaders to rank 0: by these links deaths are noticed, too.
 * Votes go up to rank 0 that way, and all of them come down. */

/* Who waits for somebody who waits for others gives up later: then it hears from there who is late. */
#define GRACE_NS (250 * DD_NS_PER_MS)

typedef enum vote_channel {
    VOTES_UP,
    VOTES_DOWN,
} vote_channel;

typedef struct vote_leg {
    dd_message message;
    bool is_send;
} vote_leg;

typedef struct setup_vote {
    dd_group *group;
    const group_setup *setup;
    uint8_t *votes; /* a byte for each rank, host by host */
    vote_leg *legs; /* [size] are enough */
    int nlegs;
    int nleft; /* not done */
    atomic_bool is_done;
    dd_error error;
} setup_vote;

static const dd_signature vote_signature = {.coll = DD_COLL_ALL_GATHER, .dtype = DD_DTYPE_UINT8};

static void
on_leg_done(dd_message *message, const dd_error *error)
{
    setup_vote *vote = message->owner;
    if (error != NULL && vote->error.code == DD_OK) {
        vote->error = *error;
    }
    if (--vote->nleft == 0 || error != NULL) {
        atomic_store_explicit(&vote->is_done, true, memory_order_release);
    }
}

static void
add_leg(setup_vote *vote, bool is_send, int rank, vote_channel channel, dd_block block)
{
    vote->legs[vote->nlegs++] = (vote_leg){.message = {.kind = DD_MESSAGE_COLL,
                                                       .rank = rank,
                                                       .channel = channel,
                                                       .data = block.data,
                                                       .nbytes = block.nbytes,
                                                       .signature = &vote_signature,
                                                       .on_done = on_leg_done,
                                                       .owner = vote},
                                           .is_send = is_send};
}

/* Where the votes of this rank's host begin. */
static size_t
host_offset(const dd_topology *topology)
{
    size_t offset = 0;
    for (int host = 0; host < topology->host; host++) {
        offset += (size_t)topology->nlocal_of[host];
    }
    return offset;
}

/* The ranks of its host that a leader has below it, and the leaders that rank 0 has: what each of them sends up, or all that it is sent
 * down. */
static void
add_children(setup_vote *vote, vote_channel channel)
{
    const dd_topology *topology = &vote->group->topology;
    bool is_down = channel == VOTES_DOWN;
    dd_block all = {.data = vote->votes, .nbytes = (size_t)vote->group->size};
    uint8_t *own = vote->votes + host_offset(topology);
    for (int local = 1; topology->local == 0 && local < topology->nlocal; local++) {
        dd_block one = {.data = own + local, .nbytes = 1};
        add_leg(vote, is_down, topology->local_ranks[local], channel, is_down ? all : one);
    }
    uint8_t *theirs = vote->votes + topology->nlocal;
    for (int host = 1; vote->group->rank == 0 && host < topology->nhosts; host++) {
        dd_block some = {.data = theirs, .nbytes = (size_t)topology->nlocal_of[host]};
        add_leg(vote, is_down, dd_topology_rank_at(topology, host, 0), channel, is_down ? all : some);
        theirs += some.nbytes;
    }
}

static void
add_parent(setup_vote *vote)
{
    const dd_topology *topology = &vote->group->topology;
    bool is_leader = topology->local == 0;
    int parent = is_leader ? 0 : topology->local_ranks[0];
    uint8_t *own = vote->votes + host_offset(topology) + topology->local;
    dd_block up = {.data = own, .nbytes = is_leader ? (size_t)topology->nlocal : 1};
    /* Elsewhere: what has gone up may still be read from its place. */
    dd_block down = {.data = vote->votes + vote->group->size, .nbytes = (size_t)vote->group->size};
    add_leg(vote, true, parent, VOTES_UP, up);
    add_leg(vote, false, parent, VOTES_DOWN, down);
}

/* "timed out after 2 s; still missing: rank 1 (node-b, pid 77), rank 3 (node-b, pid 79)". */
static void
error_absent_locked(const setup_vote *vote, const dd_wait *wait, dd_error *err)
{
    dd_group *group = vote->group;
    char names[512] = "";
    int first = -1;
    int count = 0;
    for (int i = 0; i < vote->nlegs && count < 8; i++) {
        const dd_message *message = &vote->legs[i].message;
        size_t used = strlen(names);
        char who[128];
        if (message->is_posted && !vote->legs[i].is_send) {
            snprintf(names + used, sizeof names - used, "%s%s", count++ > 0 ? ", " : "",
                     group_print_member(group, message->rank, who));
            first = first < 0 ? message->rank : first;
        }
    }
    dd_error_set(err, DD_OP_TIMED_OUT, "timed out after %.3g s%s%s%s", dd_wait_elapsed_s(wait),
                 count > 0 ? "; still missing: " : "", names, count == 8 ? " ..." : "");
    int other = group_add_loss_locked(group, err);
    int culprit = other >= 0 ? other : first;
    if (culprit >= 0) {
        const dd_card *card = dd_peer_card(group->peers[culprit]);
        dd_error_blame(err, culprit, card->host, card->pid);
    }
}

/* If this rank cannot do its part, the others wait for it in vain, and would blame another. */
static dd_status
check_own_part_locked(const dd_group *group, dd_error *err)
{
    dd_status status = dd_engine_check_accepting_locked(group->engine, err);
    if (status != DD_OK) {
        const dd_card *card = dd_peer_card(group->peers[group->rank]);
        char who[128];
        dd_error_prepend(err, "%s", group_print_member(group, group->rank, who));
        dd_error_blame(err, group->rank, card->host, card->pid);
    }
    return status;
}

/* A rank that has failed in the parent, or left it, or given this group up, will not vote. */
static dd_status
check_voters(dd_group *group, const group_setup *setup, const dd_wait *wait, dd_error *err)
{
    dd_group *parent = setup->parent;
    dd_status status = DD_OK;
    dd_engine_lock(group->engine);
    if (group->cause.code != DD_OK) {
        status = dd_error_copy(err, &group->cause);
    } else if (parent != NULL) {
        status = group_check_usable_locked(parent, "split", err);
        for (int i = 0; i < setup->size && status == DD_OK && parent->ngone > 0; i++) {
            if (parent->members[setup->parent_ranks[i]].is_gone) {
                const dd_card *card = dd_peer_card(group->peers[i]);
                char who[128];
                status = dd_error_set(err, DD_PEER_LOST, "%s has left the parent group",
                                      group_print_member(group, i, who));
                dd_error_blame(err, i, card->host, card->pid);
            }
        }
    }
    if (status == DD_OK) {
        status = check_own_part_locked(group, err);
    }
    dd_engine_unlock(group->engine);
    return status == DD_OK && setup->bulletin != NULL ? group_bulletin_check(setup->bulletin, wait, err)
                                                      : status;
}

static dd_status
await_legs(setup_vote *vote, const dd_wait *wait, dd_error *err)
{
    for (;;) {
        dd_wait slice = dd_wait_at_most(wait, VOTERS_CHECK_NS);
        dd_status status = dd_engine_wait(vote->group->engine, &vote->is_done, &slice, err);
        if (status != DD_OP_TIMED_OUT || dd_wait_is_over(wait)) {
            return status;
        }
        status = check_voters(vote->group, vote->setup, wait, err);
        if (status != DD_OK) {
            return status;
        }
    }
}

/* Posts the legs and waits for them; then there are none. */
static dd_status
walk_legs(setup_vote *vote, const dd_wait *wait, dd_error *err)
{
    dd_group *group = vote->group;
    dd_engine_lock(group->engine);
    vote->nleft = vote->nlegs;
    atomic_store(&vote->is_done, vote->nlegs == 0);
    for (int i = 0; i < vote->nlegs; i++) {
        if (vote->legs[i].is_send) {
            dd_context_post_send_locked(group->context, &vote->legs[i].message);
        } else {
            dd_context_post_recv_locked(group->context, &vote->legs[i].message);
        }
    }
    dd_engine_unlock(group->engine);
    dd_status status = await_legs(vote, wait, err);
    dd_error over;
    dd_error_set(&over, DD_ABORTED, "the group is not being made any more");
    dd_engine_lock(group->engine);
    if (status == DD_OP_TIMED_OUT) {
        error_absent_locked(vote, wait, err);
    }
    if (status == DD_OK && vote->error.code != DD_OK) {
        /* What somebody has said is more than that he is gone. */
        status = dd_error_copy(err, group->cause.code != DD_OK ? &group->cause : &vote->error);
    }
    for (int i = 0; i < vote->nlegs; i++) {
        dd_context_cancel_locked(group->context, &vote->legs[i].message, &over);
    }
    dd_engine_unlock(group->engine);
    vote->nlegs = 0;
    return status;
}

static bool
are_children_there(void *ctx)
{
    const setup_vote *vote = ctx;
    for (int i = 0; i < vote->nlegs; i++) {
        const dd_peer *peer = vote->group->peers[vote->legs[i].message.rank];
        if (!dd_peer_is_connected_locked(peer) && dd_peer_error_locked(peer) == NULL) {
            return false;
        }
    }
    return true;
}

/* Those below are to dial, so that dials do not cross; when they do not come, they may be gone, or not get through. */
static dd_status
hear_children(setup_vote *vote, const dd_wait *wait, dd_error *err)
{
    add_children(vote, VOTES_UP);
    if (vote->nlegs == 0) {
        return DD_OK;
    }
    dd_wait patience = dd_wait_at_most(wait, DIALLED_PATIENCE_NS);
    dd_status status = group_await(vote->group, are_children_there, vote, &patience, err);
    if (status == DD_INTERRUPTED) {
        return status;
    }
    dd_wait later = *wait;
    bool has_leaders = vote->group->rank == 0 && vote->group->topology.nhosts > 1;
    later.deadline_ns += has_leaders && later.deadline_ns < DD_NEVER_NS - GRACE_NS ? GRACE_NS : 0;
    return walk_legs(vote, &later, err);
}

static dd_status
hear_parent(setup_vote *vote, const dd_wait *wait, dd_error *err)
{
    size_t size = (size_t)vote->group->size;
    if (vote->group->rank == 0) {
        return DD_OK;
    }
    dd_wait later = *wait;
    later.deadline_ns += later.deadline_ns < DD_NEVER_NS - 2 * GRACE_NS ? 2 * GRACE_NS : 0;
    add_parent(vote);
    dd_status status = walk_legs(vote, &later, err);
    memcpy(vote->votes, vote->votes + size, size);
    return status;
}

static void
sort_votes(const setup_vote *vote, uint8_t *votes)
{
    const dd_topology *topology = &vote->group->topology;
    const uint8_t *next = vote->votes;
    for (int host = 0; host < topology->nhosts; host++) {
        for (int local = 0; local < topology->nlocal_of[host]; local++) {
            votes[dd_topology_rank_at(topology, host, local)] = *next++;
        }
    }
}

/* Byte r of `votes` becomes what rank r gave. */
static dd_status
exchange_votes(dd_group *group, uint8_t own, uint8_t *votes, const group_setup *setup, const dd_wait *wait,
               dd_error *err)
{
    size_t size = (size_t)group->size;
    setup_vote vote = {.group = group, .setup = setup};
    vote.votes = dd_mem_zalloc(2 * size);
    vote.legs = dd_mem_alloc_array(size + 1, sizeof *vote.legs);
    dd_status status = DD_OK;
    if (vote.votes == NULL || vote.legs == NULL) {
        status = dd_error_no_memory(err, 2 * size + (size + 1) * sizeof *vote.legs);
    } else {
        vote.votes[host_offset(&group->topology) + (size_t)group->topology.local] = own;
        status = hear_children(&vote, wait, err);
    }
    if (status == DD_OK) {
        status = hear_parent(&vote, wait, err);
    }
    if (status == DD_OK) {
        add_children(&vote, VOTES_DOWN);
        status = walk_legs(&vote, wait, err);
        sort_votes(&vote, votes);
    }
    dd_mem_free(vote.legs);
    dd_mem_free(vote.votes);
    return status;
}

/* ---- the arena of this host */

static bool
is_leader_linked(void *ctx)
{
    const dd_peer *leader = ctx;
    return dd_peer_is_connected_locked(leader) || dd_peer_error_locked(leader) != NULL;
}

/* The lowest local rank notices the end of this one, and this one its end. *is_shared: the link is shared memory; else the group may still
 * come about by messages. */
static dd_status
connect_leader(dd_group *group, const group_setup *setup, bool *is_shared, const dd_wait *wait, dd_error *err)
{
    dd_peer *leader = group->peers[group->topology.local_ranks[0]];
    dd_status status = DD_OP_TIMED_OUT;
    dd_engine_lock(group->engine);
    dd_peer_connect_locked(leader);
    dd_engine_unlock(group->engine);
    while (status == DD_OP_TIMED_OUT && !dd_wait_is_over(wait)) {
        dd_wait slice = dd_wait_at_most(wait, VOTERS_CHECK_NS);
        status = group_await(group, is_leader_linked, leader, &slice, err);
        if (status == DD_OP_TIMED_OUT) {
            dd_status voters = check_voters(group, setup, wait, err);
            if (voters != DD_OK) {
                return voters;
            }
        }
    }
    dd_engine_lock(group->engine);
    *is_shared = status == DD_OK && dd_peer_has_shm_locked(leader);
    dd_engine_unlock(group->engine);
    return status == DD_INTERRUPTED ? status : DD_OK;
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

void
group_on_fd_wanted(void *ctx, int rank, uint64_t word)
{
    dd_group *group = ctx;
    if (group->topology.host_of[rank] != group->topology.host) {
        return;
    }
    if (word != GROUP_ARENA_WORD) {
        group_pass_region_locked(group, rank, (uint32_t)word);
    } else if (group->topology.local == 0 && group->arena_fd >= 0) {
        (void)dd_context_pass_fd_locked(group->context, rank, word, group->arena_fd);
    }
}

bool
group_on_fd(void *ctx, int rank, uint64_t word, int fd)
{
    dd_group *group = ctx;
    if (group->topology.host_of[rank] != group->topology.host) {
        return false;
    }
    if (word != GROUP_ARENA_WORD) {
        return word <= UINT32_MAX && group_take_region_locked(group, rank, (uint32_t)word, fd);
    }
    bool is_due = group->is_arena_wanted && group->arena_fd == -1 && rank == group->topology.local_ranks[0];
    group->arena_fd = is_due ? fd : group->arena_fd;
    return is_due;
}

/* The lowest local rank makes the memory, and those who wait for it already need not ask again. */
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
        return status;
    }
    dd_engine_lock(group->engine);
    group->arena_fd = fd;
    for (int i = 1; i < group->topology.nlocal; i++) {
        (void)dd_context_pass_fd_locked(group->context, group->topology.local_ranks[i], GROUP_ARENA_WORD, fd);
    }
    dd_engine_unlock(group->engine);
    return DD_OK;
}

static bool
has_arena_come(void *ctx)
{
    const dd_group *group = ctx;
    return group->arena_fd != -1 ||
           dd_peer_error_locked(group->peers[group->topology.local_ranks[0]]) != NULL;
}

/* Asks for it until it comes: its maker may not know of the group yet. */
static dd_status
await_arena(dd_group *group, const group_setup *setup, const dd_wait *wait, dd_error *err)
{
    int maker = group->topology.local_ranks[0];
    for (int64_t pause_ns = ASK_FIRST_NS;; pause_ns *= pause_ns < VOTERS_CHECK_NS ? 2 : 1) {
        dd_engine_lock(group->engine);
        group->is_arena_wanted = true;
        (void)dd_context_want_fd_locked(group->context, maker, GROUP_ARENA_WORD);
        dd_engine_unlock(group->engine);
        dd_wait slice = dd_wait_at_most(wait, pause_ns);
        dd_status status = group_await(group, has_arena_come, group, &slice, err);
        if (status != DD_OP_TIMED_OUT) {
            return status;
        }
        status = dd_wait_is_over(wait) ? dd_error_set(err, DD_OP_TIMED_OUT, "no arena has come")
                                       : check_voters(group, setup, wait, err);
        if (status != DD_OK) {
            return status; /* the maker may have been told not to make it */
        }
    }
}

static dd_status
take_arena(dd_group *group, const group_setup *setup, const dd_wait *wait, dd_error *err)
{
    dd_status status = await_arena(group, setup, wait, err);
    dd_engine_lock(group->engine);
    int fd = group->arena_fd;
    const dd_error *broken = dd_peer_error_locked(group->peers[group->topology.local_ranks[0]]);
    group->is_arena_wanted = false;
    group->arena_fd = -1;
    if (status == DD_OK && fd == -1) {
        status = dd_error_copy(err, broken);
    } else if (status == DD_OK && fd == DD_SOCK_FD_REFUSED) {
        status = dd_error_set_errno(err, DD_SYSTEM, EMFILE, "cannot take the arena");
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
    /* A maker that has failed says so by its vote, which does not need the others. */
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

/* A host where one rank has no arena (votes[r] is 0) works without: its ranks count as hosts of their own. All ranks see the same
 * votes. */
static dd_status
find_hosts(dd_group *group, const uint8_t *votes, dd_error *err)
{
    size_t size = (size_t)group->size;
    int *hosts = dd_mem_alloc_array(2 * size, sizeof *hosts);
    if (hosts == NULL) {
        return dd_error_no_memory(err, 2 * size * sizeof *hosts);
    }
    int *is_refused = hosts + size;
    memset(is_refused, 0, size * sizeof *is_refused);
    dd_status status = compare_cards(group, hosts, err);
    if (status != DD_OK) {
        dd_mem_free(hosts);
        return status;
    }
    for (size_t rank = 0; votes != NULL && rank < size; rank++) {
        is_refused[hosts[rank]] |= votes[rank] == 0;
    }
    for (size_t rank = 0; rank < size; rank++) {
        hosts[rank] = is_refused[hosts[rank]] ? (int)rank : hosts[rank];
    }
    dd_topology_fini(&group->topology);
    status = dd_topology_init(&group->topology, group->rank, group->size, hosts, err);
    dd_mem_free(hosts);
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
    uint8_t *votes = dd_mem_zalloc((size_t)group->size);
    if (votes == NULL) {
        return dd_error_no_memory(err, (unsigned long long)group->size);
    }
    bool has_arena = false;
    dd_status status = group->selection.is_flat ? DD_OK : try_arena(group, setup, &has_arena, wait, err);
    if (status == DD_OK) {
        status = exchange_votes(group, has_arena ? 1 : 0, votes, setup, wait, err);
    }
    if (status == DD_OK && memchr(votes, 0, (size_t)group->size) != NULL) {
        status = find_hosts(group, votes, err);
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

static void
init_state(dd_group *group, const group_setup *setup)
{
    atomic_init(&group->refs, 1);
    atomic_init(&group->timeout_ns, setup->options->timeout_ns);
    atomic_init(&group->is_idle, true);
    group->engine = setup->engine;
    group->id = setup->id;
    group->rank = setup->rank;
    group->size = setup->size;
    group->arena_fd = -1;
    group->peers = setup->peers;
    group->selection = setup->options->selection;
    group->segment_nbytes = setup->options->large_segment_nbytes;
    group->cause.code = DD_OK;
    dd_list_init(&group->collectives);
    dd_list_init(&group->messages);
    dd_list_init(&group->regions);
    dd_list_init(&group->wanted);
    dd_list_init(&group->mapped);
    group_task_init(group);
}

static void
let_setup_go(group_setup *setup)
{
    for (int rank = 0; rank < setup->size && setup->peers != NULL; rank++) {
        dd_peer_release(setup->peers[rank]);
    }
    dd_mem_free(setup->peers);
    dd_engine_release(setup->engine);
}

static dd_status
set_up(dd_group *group, const group_setup *setup, const dd_wait *wait, dd_error *err)
{
    dd_status status = dd_blob_assign(&group->name, setup->options->name, err);
    if (status == DD_OK) {
        status = find_hosts(group, NULL, err);
    }
    group->is_crowded = group->topology.nlocal > dd_cpu_usable_count();
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
    dd_meeting_post(setup->bulletin->store, setup->bulletin->name, setup->bulletin->generation, &told,
                    &first);
    if (error->code == DD_PEER_LOST && first.culprit.rank != group->rank) {
        *error = first;
    }
}

/* The others are waiting, or will be. */
static void
tell_given_up(dd_group *group, const group_setup *setup, dd_error *error)
{
    if (group->context == NULL) {
        return;
    }
    dd_cause cause = group_cause_of_error(group, error);
    if (error->code == DD_INTERRUPTED) {
        cause = group_make_cause(group, DD_CAUSE_ABORTED, DD_ABORTED, group->rank);
        snprintf(cause.text, sizeof cause.text, "interrupted while it was being made");
    }
    bool may_be_consequence = error->code == DD_PEER_LOST && setup->bulletin != NULL;
    if (may_be_consequence) {
        post_reason(group, setup, &cause, error);
        cause = group_cause_of_error(group, error);
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

dd_status
group_set_up(group_setup *setup, dd_group **out, const dd_wait *wait, dd_error *err)
{
    dd_group *group = dd_mem_zalloc(sizeof *group);
    member_state *members = dd_mem_zalloc((size_t)setup->size * sizeof *members);
    if (group == NULL || members == NULL) {
        dd_mem_free(group);
        dd_mem_free(members);
        let_setup_go(setup);
        return dd_error_no_memory(err, sizeof *group + (size_t)setup->size * sizeof *members);
    }
    init_state(group, setup);
    group->members = members;
    dd_error error;
    dd_status status = set_up(group, setup, wait, &error);
    if (status != DD_OK) {
        tell_given_up(group, setup, &error);
        dd_error_prepend(&error, "group \"%.*s\" (rank %d of %d): cannot connect the ranks",
                         (int)group->name.len, (const char *)group->name.data, group->rank, group->size);
        group_destroy(group);
        return dd_error_copy(err, &error);
    }
    end_setup(group);
    *out = group;
    return DD_OK;
}

void
group_destroy(dd_group *group)
{
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
    for (int rank = 0; rank < group->size; rank++) {
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
