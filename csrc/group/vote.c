/* Waiting and voting while a group is created. A rank that waits checks regularly that all ranks
 * still take part. The vote decides which hosts have an arena, before there are collectives.
 *
 * The ranks of a host are linked to the lowest of them, its leader, and leaders to rank 0; these
 * links also show when a rank exits. Votes are sent up these links to rank 0, one byte from each
 * rank and then one for each host, and the votes of all hosts are sent down. */
#include "group/internal.h"

#include "core/mem.h"

#include <stdio.h>
#include <string.h>

#define FIRST_SLICE_NS (1 * DD_NS_PER_MS)
#define LONGEST_SLICE_NS (50 * DD_NS_PER_MS)
/* Time that a rank waits for its peer to dial before it dials: the dials should not cross. */
#define DIALLED_PATIENCE_NS (250 * DD_NS_PER_MS)
/* Extra time for a rank whose peers wait for other ranks: the peers' error should arrive first. */
#define GRACE_NS (250 * DD_NS_PER_MS)
/* Time to wait after a member has left the parent, because it may have voted before. Ranks that
 * miss its vote fail immediately; other ranks receive that failure, or fail after this time. */
#define LEFT_PATIENCE_NS (5 * DD_NS_PER_S)

/* ---- waiting */

/* Fail if this rank cannot accept links: other ranks would wait for it and blame another rank. */
static dd_status
check_own_part_locked(const dd_group *group, dd_error *err)
{
    dd_status status = dd_engine_check_accepting_locked(group->engine, err);
    if (status != DD_OK) {
        char rank_name[128];
        dd_error_prepend(err, "%s", group_print_member(group, group->rank, rank_name));
        group_blame(group, group->rank, err);
    }
    return status;
}

/* Return true if this rank awaits a vote of `rank`: its leader, rank 0, or a rank below it. */
static bool
is_awaited(const dd_group *group, int rank)
{
    const dd_topology *topology = &group->topology;
    bool is_near = topology->host_of[rank] == topology->host;
    int leader = dd_topology_rank_at(topology, topology->host_of[rank], 0);
    bool is_neighbour = is_near ? topology->local == 0 || rank == leader
                                : (group->rank == 0 && rank == leader) || (topology->local == 0 && rank == 0);
    return is_neighbour && !group->members[rank].has_voted;
}

/* Fail if a rank will not vote, because it failed in the parent, left it, or abandoned this
 * group. */
static dd_status
check_voters(dd_group *group, const group_setup *setup, int64_t *left_at_ns, const dd_wait *wait,
             dd_error *err)
{
    dd_group *parent = setup->parent;
    dd_status status = DD_OK;
    dd_engine_lock(group->engine);
    if (group->cause.code != DD_OK) {
        status = dd_error_copy(err, &group->cause);
    } else if (parent != NULL) {
        status = group_check_parent_locked(parent, err);
        for (int i = 0; i < group->size && status == DD_OK && parent->nleft > 0; i++) {
            bool has_left = parent->members[setup->parent_ranks[i]].has_left;
            *left_at_ns = has_left && *left_at_ns == 0 ? dd_clock_now_ns() : *left_at_ns;
            if (has_left && (is_awaited(group, i) || dd_clock_now_ns() - *left_at_ns > LEFT_PATIENCE_NS)) {
                status = dd_group_error_about(group, i, DD_PEER_LOST, "has left the parent group", err);
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

dd_status
group_await_others(dd_group *group, const group_setup *setup, bool (*is_ready)(void *ctx), void *ctx,
                   const dd_wait *wait, dd_error *err)
{
    int64_t left_at_ns = 0; /* when a member was first found to have left; 0 if none has */
    for (int64_t slice_ns = FIRST_SLICE_NS;; slice_ns *= slice_ns < LONGEST_SLICE_NS ? 2 : 1) {
        dd_wait slice = dd_wait_at_most(wait, slice_ns);
        dd_status status = dd_group_await(group, is_ready, ctx, &slice, err);
        if (status != DD_OP_TIMED_OUT || dd_wait_has_expired(wait)) {
            return status;
        }
        status = check_voters(group, setup, &left_at_ns, wait, err);
        if (status != DD_OK) {
            return status;
        }
    }
}

/* ---- the vote */

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
    uint8_t *votes;    /* [nhosts]: one vote (byte) for each host */
    uint8_t *received; /* votes received from the ranks of this host, then from leaders */
    uint8_t own;       /* the vote that this rank sends up */
    vote_leg *legs;    /* [size + 1]: the messages of the vote */
    int nlegs;
    int nleft; /* number of legs that are not done */
    dd_error error;
} setup_vote;

static const dd_signature vote_signature = {.coll = DD_COLL_ALL_GATHER, .dtype = DD_DTYPE_UINT8};

static void
vote_on_leg_done(dd_message *message, const dd_error *error)
{
    setup_vote *vote = message->owner;
    if (error != NULL && vote->error.code == DD_OK) {
        vote->error = *error;
    }
    bool is_send = DD_CONTAINER_OF(message, vote_leg, message)->is_send;
    vote->group->members[message->rank].has_voted |= error == NULL && !is_send;
    vote->nleft--;
}

static bool
are_legs_done(void *ctx)
{
    const setup_vote *vote = ctx;
    return vote->nleft == 0 || vote->error.code != DD_OK;
}

static void
add_leg(setup_vote *vote, bool is_send, int rank, vote_channel channel, void *votes)
{
    size_t nbytes = channel == VOTES_UP ? 1 : (size_t)vote->group->topology.nhosts;
    vote->legs[vote->nlegs++] = (vote_leg){.message = {.kind = DD_MESSAGE_COLL,
                                                       .rank = rank,
                                                       .channel = channel,
                                                       .data = votes,
                                                       .nbytes = nbytes,
                                                       .signature = &vote_signature,
                                                       .on_done = vote_on_leg_done,
                                                       .owner = vote},
                                           .is_send = is_send};
}

/* Add a leg (a message) for each rank below a leader on its host, and each leader below rank 0. */
static void
add_children(setup_vote *vote, vote_channel channel)
{
    const dd_topology *topology = &vote->group->topology;
    bool is_down = channel == VOTES_DOWN;
    uint8_t *received = vote->received;
    for (int local = 1; topology->local == 0 && local < topology->nlocal; local++) {
        add_leg(vote, is_down, topology->local_ranks[local], channel, is_down ? vote->votes : received++);
    }
    for (int host = 1; vote->group->rank == 0 && host < topology->nhosts; host++) {
        int leader = dd_topology_rank_at(topology, host, 0);
        add_leg(vote, is_down, leader, channel, is_down ? vote->votes : received++);
    }
}

/* Combine the votes received from this host's ranks; on rank 0, collect those of all hosts. */
static void
count_votes(setup_vote *vote)
{
    const dd_topology *topology = &vote->group->topology;
    const uint8_t *received = vote->received;
    for (int local = 1; topology->local == 0 && local < topology->nlocal; local++) {
        vote->own = *received++ != 0 ? vote->own : 0;
    }
    vote->votes[topology->host] = vote->own;
    for (int host = 1; vote->group->rank == 0 && host < topology->nhosts; host++) {
        vote->votes[host] = *received++;
    }
}

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
        char rank_name[128];
        if (message->is_posted && !vote->legs[i].is_send) {
            snprintf(names + used, sizeof names - used, "%s%s", count++ > 0 ? ", " : "",
                     group_print_member(group, message->rank, rank_name));
            first = first < 0 ? message->rank : first;
        }
    }
    dd_error_set(err, DD_OP_TIMED_OUT, "timed out after %.3g s%s%s%s", dd_wait_elapsed_s(wait),
                 count > 0 ? "; still missing: " : "", names, count == 8 ? " ..." : "");
    int other = group_add_loss_locked(group, err);
    int blamed = other >= 0 ? other : first;
    if (blamed >= 0) {
        group_blame(group, blamed, err);
    }
}

/* Post the legs (messages), wait for them, and remove them. */
static dd_status
walk_legs(setup_vote *vote, const dd_wait *wait, dd_error *err)
{
    dd_group *group = vote->group;
    dd_engine_lock(group->engine);
    vote->nleft = vote->nlegs;
    for (int i = 0; i < vote->nlegs; i++) {
        if (vote->legs[i].is_send) {
            dd_context_post_send_locked(group->context, &vote->legs[i].message);
        } else {
            dd_context_post_recv_locked(group->context, &vote->legs[i].message);
        }
    }
    dd_engine_unlock(group->engine);
    dd_status status = group_await_others(group, vote->setup, are_legs_done, vote, wait, err);
    dd_error over;
    dd_error_set(&over, DD_ABORTED, "the group's creation has ended");
    dd_engine_lock(group->engine);
    if (status == DD_OP_TIMED_OUT) {
        error_absent_locked(vote, wait, err);
    }
    if (status == DD_OK && vote->error.code != DD_OK) {
        /* A reason that a rank has reported explains more than the loss of a rank. */
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
are_children_connected(void *ctx)
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

/* Receive the votes of the ranks below this one. Wait for these ranks to connect; on timeout, the
 * posted receives connect to them. */
static dd_status
receive_children(setup_vote *vote, const dd_wait *wait, dd_error *err)
{
    add_children(vote, VOTES_UP);
    if (vote->nlegs == 0) {
        return DD_OK;
    }
    dd_wait patience = dd_wait_at_most(wait, DIALLED_PATIENCE_NS);
    dd_status status = dd_group_await(vote->group, are_children_connected, vote, &patience, err);
    if (status == DD_INTERRUPTED) {
        return status;
    }
    dd_wait later = *wait;
    bool has_leaders = vote->group->rank == 0 && vote->group->topology.nhosts > 1;
    later.deadline_ns += has_leaders && later.deadline_ns < DD_NEVER_NS - GRACE_NS ? GRACE_NS : 0;
    return walk_legs(vote, &later, err);
}

static dd_status
exchange_with_parent(setup_vote *vote, const dd_wait *wait, dd_error *err)
{
    const dd_topology *topology = &vote->group->topology;
    int parent = topology->local == 0 ? 0 : topology->local_ranks[0];
    if (vote->group->rank == 0) {
        return DD_OK;
    }
    dd_wait later = *wait;
    later.deadline_ns += later.deadline_ns < DD_NEVER_NS - 2 * GRACE_NS ? 2 * GRACE_NS : 0;
    add_leg(vote, true, parent, VOTES_UP, &vote->own);
    add_leg(vote, false, parent, VOTES_DOWN, vote->votes);
    return walk_legs(vote, &later, err);
}

dd_status
group_exchange_votes(dd_group *group, const group_setup *setup, bool own_vote, uint8_t *votes,
                     const dd_wait *wait, dd_error *err)
{
    size_t size = (size_t)group->size;
    setup_vote vote = {.group = group, .setup = setup, .own = own_vote ? 1 : 0};
    vote.votes = votes;
    vote.received = dd_mem_zalloc(size);
    vote.legs = dd_mem_alloc_array(size + 1, sizeof *vote.legs);
    dd_status status = DD_OK;
    if (vote.received == NULL || vote.legs == NULL) {
        status = dd_error_no_memory(err, size + (size + 1) * sizeof *vote.legs);
    } else {
        status = receive_children(&vote, wait, err);
    }
    if (status == DD_OK) {
        count_votes(&vote);
        status = exchange_with_parent(&vote, wait, err);
    }
    if (status == DD_OK) {
        add_children(&vote, VOTES_DOWN);
        status = walk_legs(&vote, wait, err);
    }
    dd_mem_free(vote.legs);
    dd_mem_free(vote.received);
    return status;
}
