/* Setup of a group whose peers are known: find which ranks share a host, then create a context, an
 * arena and a run. A rank that cannot continue reports the reason to the other ranks first. */
#include "group/internal.h"

#include "core/cpu.h"
#include "core/fork.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct host_of_rank {
    const dd_endpoint *endpoint;
    int rank;
} host_of_rank;

/* Sort by host; ranks without shared memory come last. */
static int
compare_hosts(const void *a, const void *b)
{
    const host_of_rank *first = a;
    const host_of_rank *second = b;
    int order = second->endpoint->has_unix - first->endpoint->has_unix;
    if (order == 0) {
        order = memcmp(first->endpoint->host_id, second->endpoint->host_id, sizeof first->endpoint->host_id);
    }
    return order != 0 ? order : first->rank - second->rank;
}

/* Set hosts[r] to the lowest rank on the host of rank r, according to their address records. */
static dd_status
setup_compare_endpoints(const dd_group *group, int *hosts, dd_error *err)
{
    size_t size = (size_t)group->size;
    host_of_rank *sorted = dd_mem_alloc_array(size, sizeof *sorted);
    if (sorted == NULL) {
        return dd_error_no_memory(err, size * sizeof *sorted);
    }
    for (int rank = 0; rank < group->size; rank++) {
        sorted[rank] = (host_of_rank){dd_peer_endpoint(group->peers[rank]), rank};
    }
    qsort(sorted, size, sizeof *sorted, compare_hosts);
    for (size_t i = 0; i < size; i++) {
        const dd_endpoint *endpoint = sorted[i].endpoint;
        bool is_same =
            i > 0 && endpoint->has_unix && dd_endpoint_is_same_host(endpoint, sorted[i - 1].endpoint);
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
    dd_status status = setup_compare_endpoints(group, hosts, err);
    if (status == DD_OK) {
        status = dd_topology_init(&group->topology, group->rank, group->size, hosts, err);
    }
    dd_mem_free(hosts);
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

static dd_status
set_up(dd_group *group, const group_setup *setup, const dd_wait *wait, dd_error *err)
{
    dd_status status = find_hosts(group, err);
    int nlocal = group->topology.nlocal; /* a single rank is never crowded, so do not count cores */
    group->is_crowded = nlocal > 1 && nlocal > dd_cpu_usable_count();
    if (status == DD_OK) {
        status = open_context(group, err);
    }
    if (status == DD_OK) {
        status = group_set_up_arena(group, setup, wait, err);
    }
    return status == DD_OK ? make_run(group, err) : status;
}

/* Post why this rank cannot continue. If this rank has lost another one, which may have posted its
 * own reason before it exited, that rank's reason becomes the error. */
static void
post_reason(const dd_group *group, const group_setup *setup, const dd_cause *cause, dd_error *error)
{
    dd_error explained;
    dd_error first;
    group_explain_cause(group, cause, &explained);
    if (cause->kind == DD_CAUSE_LOST) { /* the rank may be alive after all, and read this text */
        char rank_name[128];
        char finder[160];
        snprintf(finder, sizeof finder, "found by %s", group_print_member(group, cause->origin, rank_name));
        group_append(&explained, finder);
    }
    dd_meeting_post(setup->bulletin->store, setup->bulletin->name, setup->bulletin->generation, &explained,
                    &first);
    if (error->code == DD_PEER_LOST && first.blamed.rank != group->rank) {
        *error = first;
    }
}

/* Keep the loss of a rank as a cause, not as a text: each receiver words it from its own view. */
static dd_cause
cause_of_own_failure(const dd_group *group, const dd_error *error)
{
    const dd_cause *failure = &group->failure;
    bool is_failure = failure->kind == DD_CAUSE_LOST && error->code == DD_PEER_LOST &&
                      error->blamed.rank == failure->blamed.rank;
    return is_failure ? *failure : group_cause_of_error(group, error);
}

/* Report to the other ranks that this rank cannot continue: they wait for it, or will wait. */
static void
report_own_failure(dd_group *group, const group_setup *setup, dd_error *error)
{
    if (group->context == NULL) {
        return;
    }
    dd_cause cause = cause_of_own_failure(group, error);
    if (error->code == DD_INTERRUPTED) {
        cause = group_make_cause(group, DD_CAUSE_ABORTED, DD_ABORTED, group->rank);
        snprintf(cause.text, sizeof cause.text, "interrupted while it was being created");
    }
    bool may_be_consequence = error->code == DD_PEER_LOST && setup->bulletin != NULL;
    if (may_be_consequence) {
        post_reason(group, setup, &cause, error);
        cause = cause_of_own_failure(group, error);
    }
    dd_engine_lock(group->engine);
    group_report_failure_locked(group, DD_ANY_RANK, &cause);
    dd_engine_unlock(group->engine);
    if (setup->bulletin != NULL && !may_be_consequence) {
        post_reason(group, setup, &cause, error);
    }
}

/* End the setup. Report a rank lost after the vote, because fail_rest_locked leaves this out. */
static void
end_setup(dd_group *group)
{
    dd_engine_lock(group->engine);
    group->is_set_up = true;
    dd_fork_close(group->arena_fd); /* no rank requests the arena after the vote */
    group->arena_fd = -1;
    if (group->failure.kind == DD_CAUSE_LOST && group->failure.origin == group->rank) {
        group_report_failure_locked(group, DD_ANY_RANK, &group->failure);
    }
    dd_engine_unlock(group->engine);
}

/* If this rank's links have failed, blame this rank: other ranks may have left for that reason. */
static void
find_own_part(dd_group *group, dd_error *error)
{
    dd_error own_error;
    dd_engine_lock(group->engine);
    if (error->code == DD_PEER_LOST && dd_engine_check_links_locked(group->engine, &own_error) != DD_OK) {
        char rank_name[128];
        *error = own_error;
        dd_error_prepend(error, "%s", group_print_member(group, group->rank, rank_name));
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
        report_own_failure(group, setup, &error);
        if (error.code == DD_PEER_LOST && error.blamed.rank == group->rank) {
            dd_error_prepend(&error, "another rank failed because of this rank");
        }
        dd_error_prepend(&error, GROUP_FORMAT ": cannot connect the ranks", GROUP_ARGS(group));
        return dd_error_copy(err, &error);
    }
    end_setup(group);
    return DD_OK;
}
