/* Life cycle of a group, and simple queries. Usable groups are created by open.c and split.c. */
#include "group/internal.h"

#include "core/fork.h"
#include "core/mem.h"

#include <stdio.h>
#include <string.h>

dd_status
group_create(dd_engine *engine, uint64_t id, const group_params *params, dd_group **out, dd_error *err)
{
    size_t size = (size_t)params->size;
    dd_group *group = dd_mem_zalloc(sizeof *group);
    if (group == NULL) {
        return dd_error_no_memory(err, sizeof *group);
    }
    atomic_init(&group->refs, 1);
    atomic_init(&group->timeout_ns, params->options->timeout_ns);
    atomic_init(&group->is_idle, true);
    group->engine = dd_engine_acquire(engine);
    group->id = id;
    group->rank = params->rank;
    group->size = params->size;
    group->arena_fd = -1;
    group->selection = params->options->selection;
    group->segment_nbytes = params->options->large_segment_nbytes;
    group->cause.code = DD_OK;
    dd_list_init(&group->collectives);
    dd_list_init(&group->messages);
    dd_list_init(&group->regions);
    dd_list_init(&group->foreign);
    group_deadlines_init(group);
    group->members = dd_mem_zalloc(size * sizeof *group->members);
    group->peers = dd_mem_zalloc(size * sizeof(dd_peer *));
    dd_status status = group->members != NULL && group->peers != NULL
                           ? dd_blob_assign(&group->name, params->options->name, err)
                           : dd_error_no_memory(err, size * (sizeof *group->members + sizeof(dd_peer *)));
    if (status == DD_OK) {
        status = group_create_pool(group, err);
    }
    if (status != DD_OK) {
        group_destroy(group);
        return status;
    }
    *out = group;
    return DD_OK;
}

/* Close the carrier, but not in a forked child: the library's state belongs to the parent. */
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
    if (group->extension != NULL) {
        group->extension->destroy(group->extension);
    }
    group_destroy_regions(group);
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

/* ---- closing */

static bool
has_calls_locked(const dd_group *group)
{
    return !dd_list_is_empty(&group->collectives) || !dd_list_is_empty(&group->messages) ||
           (group->extension != NULL && group->extension->ncalls > 0);
}

/* Fail the group if calls are under way: other ranks may wait for this rank, which now leaves. */
static void
fail_leftovers_locked(dd_group *group)
{
    if (has_calls_locked(group)) {
        group_end_complete_locked(group);
    }
    if (has_calls_locked(group)) {
        dd_cause loss = group_make_cause(group, DD_CAUSE_LEFT, DD_PEER_LOST, group->rank);
        snprintf(loss.text, sizeof loss.text, "with operations under way");
        group_fail_cause_locked(group, &loss);
    }
}

dd_status
dd_group_close(dd_group *group, const dd_wait *wait, dd_error *err)
{
    dd_status status = dd_engine_check_fork(group->engine, err);
    if (status != DD_OK) {
        return status;
    }
    dd_engine_lock(group->engine);
    bool is_first = !group->is_closing;
    group->is_closing = true;
    dd_engine_unlock(group->engine);
    if (!is_first) {
        return DD_OK;
    }
    status = dd_engine_wait(group->engine, &group->is_idle, wait, err);
    dd_engine_lock(group->engine);
    if (status == DD_OP_TIMED_OUT) {
        status = group_error_leftovers_locked(group, wait, err);
    }
    fail_leftovers_locked(group);
    dd_error over;
    dd_error_set(&over, DD_CLOSED, "the group was closed");
    if (group->extension != NULL) {
        group->extension->on_end(group->extension, &over);
    }
    dd_context *context = group->context;
    group->context = NULL;
    dd_engine_unlock(group->engine);
    dd_context_close(context, wait);
    dd_engine_lock(group->engine);
    group_post_leaving_locked(group);
    dd_engine_unlock(group->engine);
    return status;
}

dd_group *
dd_group_acquire(dd_group *group)
{
    atomic_fetch_add_explicit(&group->refs, 1, memory_order_relaxed);
    return group;
}

void
dd_group_release(dd_group *group)
{
    if (group == NULL || atomic_fetch_sub_explicit(&group->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    if (dd_engine_check_fork(group->engine, NULL) == DD_OK) {
        dd_wait at_once = dd_wait_after(0);
        dd_status ignored = dd_group_close(group, &at_once, NULL); /* fails the works under way */
        (void)ignored;
    } else if (dd_engine_is_torn(group->engine)) {
        return; /* leak the group: another thread held its lock at the fork */
    }
    group_destroy(group);
}

void
dd_region_release(dd_region *region)
{
    if (region != NULL) {
        dd_group *group = dd_region_group(region); /* first, because the region may be reused */
        if (group_release_region(region)) {
            dd_group_release(group); /* the group's last reference frees the regions */
        }
    }
}

/* ---- queries */

int
dd_group_rank(const dd_group *group)
{
    return group->rank;
}

int
dd_group_size(const dd_group *group)
{
    return group->size;
}

dd_bytes
dd_group_name(const dd_group *group)
{
    return dd_blob_view(&group->name);
}

int64_t
dd_group_get_timeout_ns(dd_group *group)
{
    return atomic_load_explicit(&group->timeout_ns, memory_order_relaxed);
}

void
dd_group_set_timeout_ns(dd_group *group, int64_t timeout_ns)
{
    atomic_store_explicit(&group->timeout_ns, timeout_ns, memory_order_relaxed);
}

dd_engine *
dd_group_engine(dd_group *group)
{
    return group->engine;
}

void
dd_group_get_member(dd_group *group, int rank, dd_member_info *info)
{
    const dd_endpoint *endpoint = dd_peer_endpoint(group->peers[rank]);
    memcpy(info->host, endpoint->host, sizeof info->host);
    info->pid = endpoint->pid;
    info->is_same_host = group->topology.host_of[rank] == group->topology.host_of[group->rank];
    info->transport = rank == group->rank ? "self" : "";
    if (rank != group->rank && dd_engine_check_fork(group->engine, NULL) == DD_OK) {
        dd_engine_lock(group->engine);
        info->transport = dd_peer_transport_locked(group->peers[rank]);
        if (info->transport[0] == '\0' && group_is_on_board(group, rank)) {
            info->transport = "shared memory"; /* the path that a message to that rank would take */
        }
        dd_engine_unlock(group->engine);
    }
}

uint64_t
dd_group_sequence(dd_group *group)
{
    if (dd_engine_check_fork(group->engine, NULL) != DD_OK) {
        return group->nposted; /* no lock: its state is unknown; a forked child has one thread */
    }
    dd_engine_lock(group->engine);
    uint64_t sequence = group->nposted;
    dd_engine_unlock(group->engine);
    return sequence;
}

dd_status
dd_group_check(dd_group *group, dd_error *err)
{
    return group_check_usable(group, "check", err);
}
