/* From peers that are known to a group that can work: who is on whose host, a context, an arena. */
#include "group/group_internal.h"

#include "collective/plan_run.h"
#include "core/cpu.h"
#include "core/fork.h"
#include "core/log.h"
#include "core/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCRATCH_ALIGNMENT 64
#define VOTERS_CHECK_NS (50 * DD_NS_PER_MS)
#define DIALLED_PATIENCE_NS (250 * DD_NS_PER_MS)
#define ASK_FIRST_NS (1 * DD_NS_PER_MS)

/* ---- one message of a byte from everybody to everybody, before there are collectives */

typedef struct setup_vote {
    dd_plan_run *run;
    void *scratch;
    dd_coll_args args;
    dd_block input;
    dd_block *outputs;
    atomic_bool is_done;
    dd_error error;
} setup_vote;

static void
on_vote_done(void *ctx, const dd_error *error)
{
    setup_vote *vote = ctx;
    vote->error.code = DD_OK;
    if (error != NULL) {
        vote->error = *error;
    }
    atomic_store_explicit(&vote->is_done, true, memory_order_release);
}

static dd_status
build_vote(dd_group *group, setup_vote *vote, dd_error *err)
{
    dd_plan plan = {0};
    dd_plan_task task = {
        .rank = group->rank, .nranks = group->size, .args = &vote->args, .segment_nbytes = 4096};
    const dd_algorithm *algorithm =
        dd_algorithm_find(DD_COLL_ALL_GATHER, group->size > 8 ? "bruck" : "direct");
    dd_status status = algorithm->build(&task, &plan, err);
    if (status == DD_OK) {
        status = dd_plan_run_create(&plan, &vote->run, err);
    }
    dd_plan_fini(&plan);
    if (status != DD_OK) {
        return status;
    }
    size_t nbytes = dd_plan_run_scratch_nbytes(vote->run) + SCRATCH_ALIGNMENT;
    vote->scratch = dd_mem_alloc(nbytes);
    return vote->scratch != NULL ? DD_OK : dd_error_no_memory(err, nbytes);
}

/* "timed out after 2 s; rank 1 (node-b, pid 77), rank 3 (node-b, pid 79) have not come". */
static void
error_absent_locked(dd_group *group, const setup_vote *vote, const dd_wait *wait, dd_error *err)
{
    int ranks[8];
    int count = dd_plan_run_missing_locked(vote->run, ranks, 8);
    char names[512] = "";
    for (int i = 0; i < count; i++) {
        size_t used = strlen(names);
        char who[128];
        snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "",
                 group_print_member(group, ranks[i], who));
    }
    dd_error_set(err, DD_OP_TIMED_OUT, "timed out after %.3g s%s%s%s", dd_wait_elapsed_s(wait),
                 count > 0 ? "; still missing: " : "", names, count == 8 ? " ..." : "");
    int other = group_add_loss_locked(group, err);
    int culprit = other >= 0 || count == 0 ? other : ranks[0];
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
await_vote(dd_group *group, const setup_vote *vote, const group_setup *setup, const dd_wait *wait,
           dd_error *err)
{
    for (;;) {
        dd_wait slice = dd_wait_at_most(wait, VOTERS_CHECK_NS);
        dd_status status = dd_engine_wait(group->engine, &vote->is_done, &slice, err);
        if (status != DD_OP_TIMED_OUT || dd_wait_is_over(wait)) {
            return status;
        }
        status = check_voters(group, setup, wait, err);
        if (status != DD_OK) {
            return status;
        }
    }
}

static dd_status
hold_vote(dd_group *group, setup_vote *vote, const group_setup *setup, const dd_wait *wait, dd_error *err)
{
    uintptr_t scratch =
        ((uintptr_t)vote->scratch + SCRATCH_ALIGNMENT - 1) & ~(uintptr_t)(SCRATCH_ALIGNMENT - 1);
    dd_plan_run_options options = {
        .context = group->context,
        .signature = {.coll = DD_COLL_ALL_GATHER, .dtype = DD_DTYPE_UINT8},
        .scratch = (void *)scratch,
        .on_done = on_vote_done,
        .ctx = vote,
    };
    dd_engine_lock(group->engine);
    dd_plan_run_start_locked(vote->run, &vote->args, &options);
    dd_engine_unlock(group->engine);
    dd_status status = await_vote(group, vote, setup, wait, err);
    dd_error over;
    dd_error_set(&over, DD_ABORTED, "the group is not being made any more");
    dd_engine_lock(group->engine);
    if (status == DD_OP_TIMED_OUT) {
        error_absent_locked(group, vote, wait, err);
    }
    dd_plan_run_cancel_locked(vote->run, &over);
    if (group->cause.code != DD_OK && vote->error.code != DD_OK) {
        vote->error = group->cause; /* what somebody has said is more than that he is gone */
    }
    dd_engine_unlock(group->engine);
    return status == DD_OK && vote->error.code != DD_OK ? dd_error_copy(err, &vote->error) : status;
}

/* Byte r of `votes` becomes what rank r gave. */
static dd_status
exchange_votes(dd_group *group, uint8_t own, dd_block votes, const group_setup *setup, const dd_wait *wait,
               dd_error *err)
{
    setup_vote vote = {.input = {.data = &own, .nbytes = 1}};
    vote.outputs = dd_mem_alloc_array((size_t)group->size, sizeof *vote.outputs);
    if (vote.outputs == NULL) {
        return dd_error_no_memory(err, (unsigned long long)group->size * sizeof *vote.outputs);
    }
    for (int rank = 0; rank < group->size; rank++) {
        vote.outputs[rank] = (dd_block){.data = (uint8_t *)votes.data + rank, .nbytes = 1};
    }
    vote.args = (dd_coll_args){.coll = DD_COLL_ALL_GATHER,
                               .reduction = {.dtype = DD_DTYPE_UINT8},
                               .inputs = &vote.input,
                               .outputs = vote.outputs};
    dd_status status = build_vote(group, &vote, err);
    if (status == DD_OK) {
        status = hold_vote(group, &vote, setup, wait, err);
    }
    dd_plan_run_destroy(vote.run);
    dd_mem_free(vote.scratch);
    dd_mem_free(vote.outputs);
    return status;
}

/* ---- the arena of this host */

/* Whether the links to all local ranks are made, or one of them is not to be had. */
static bool
are_links_settled(void *ctx)
{
    const dd_group *group = ctx;
    bool is_settled = true;
    for (int i = 0; i < group->topology.nlocal; i++) {
        const dd_peer *peer = group->peers[group->topology.local_ranks[i]];
        if (dd_peer_is_self(peer) || dd_peer_has_shm_locked(peer)) {
            continue;
        }
        if (dd_peer_is_connected_locked(peer) || dd_peer_error_locked(peer) != NULL) {
            return true;
        }
        is_settled = false;
    }
    return is_settled;
}

/* Of two ranks one dials, so that they do not cross; half of the others each. */
static bool
is_dialler(int rank, int other)
{
    return ((rank + other) % 2 == 0) == (rank < other);
}

static void
dial_local_ranks(dd_group *group, bool is_for_all)
{
    dd_engine_lock(group->engine);
    for (int i = 0; i < group->topology.nlocal; i++) {
        int rank = group->topology.local_ranks[i];
        if (!dd_peer_is_self(group->peers[rank]) && (is_for_all || is_dialler(group->rank, rank))) {
            dd_peer_connect_locked(group->peers[rank]);
        }
    }
    dd_engine_unlock(group->engine);
}

static bool
have_all_shm_locked(const dd_group *group)
{
    bool is_shared = true;
    for (int i = 0; i < group->topology.nlocal; i++) {
        const dd_peer *peer = group->peers[group->topology.local_ranks[i]];
        is_shared = is_shared && (dd_peer_is_self(peer) || dd_peer_has_shm_locked(peer));
    }
    return is_shared;
}

/* Waits for shared memory links to the local ranks. *is_shared: all have one; else the group may still
 * come about by messages. */
static dd_status
connect_local_ranks(dd_group *group, const group_setup *setup, bool *is_shared, const dd_wait *wait,
                    dd_error *err)
{
    dial_local_ranks(group, false);
    dd_wait patience = dd_wait_at_most(wait, DIALLED_PATIENCE_NS);
    dd_status status = group_await(group, are_links_settled, group, &patience, err);
    if (status == DD_OP_TIMED_OUT) {
        /* The ranks that were to dial us may be gone, or not get through. */
        dial_local_ranks(group, true);
    }
    while (status == DD_OP_TIMED_OUT && !dd_wait_is_over(wait)) {
        status = check_voters(group, setup, wait, err);
        if (status != DD_OK) {
            return status;
        }
        dd_wait slice = dd_wait_at_most(wait, VOTERS_CHECK_NS);
        status = group_await(group, are_links_settled, group, &slice, err);
    }
    if (status == DD_INTERRUPTED) {
        return status;
    }
    dd_engine_lock(group->engine);
    *is_shared = status == DD_OK && have_all_shm_locked(group);
    dd_engine_unlock(group->engine);
    return DD_OK;
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
    dd_status status =
        dd_arena_create(group->topology.nlocal, group->topology.nlocal > group->ncores, &fd, err);
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
    bool is_shared = false;
    dd_status status = connect_local_ranks(group, setup, &is_shared, wait, err);
    if (status != DD_OK || !is_shared) {
        return status;
    }
    int local = group->topology.local_of[group->rank];
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
    int order = (first->card->unix_name[0] == '\0') - (second->card->unix_name[0] == '\0');
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
        bool is_same = i > 0 && card->unix_name[0] != '\0' && dd_card_is_same_host(card, sorted[i - 1].card);
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

static dd_status
set_up_arena(dd_group *group, const group_setup *setup, const dd_wait *wait, dd_error *err)
{
    uint8_t *votes = dd_mem_zalloc((size_t)group->size);
    if (votes == NULL) {
        return dd_error_no_memory(err, (unsigned long long)group->size);
    }
    bool has_arena = false;
    dd_block block = {.data = votes, .nbytes = (size_t)group->size};
    dd_status status = group->selection.is_flat ? DD_OK : try_arena(group, setup, &has_arena, wait, err);
    if (status == DD_OK) {
        status = exchange_votes(group, has_arena ? 1 : 0, block, setup, wait, err);
    }
    if (status == DD_OK && memchr(votes, 0, (size_t)group->size) != NULL) {
        status = find_hosts(group, votes, err);
    }
    if (status == DD_OK && group->topology.nlocal < 2) {
        set_arena(group, NULL);
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
    dd_run_env env = {
        .engine = group->engine,
        .context = group->context,
        .topology = &group->topology,
        .arena = group->arena,
        .selection = group->selection,
        .segment_nbytes = group->segment_nbytes,
        .is_crowded = group_is_crowded(group),
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
    group->ncores = dd_cpu_usable_count();
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
    dd_context_post_abort_locked(group->context, DD_ANY_RANK, &cause);
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
        dd_context_post_abort_locked(group->context, DD_ANY_RANK, &group->failure);
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
