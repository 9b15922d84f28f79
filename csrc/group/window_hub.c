/* What a group has for its windows, as the group sees it: what is under way, and what ends with it. */
#include "group/window_internal.h"

#include "core/mem.h"

dd_status
window_hub_open_locked(dd_group *group, dd_error *err)
{
    if (group->windows != NULL) {
        return DD_OK;
    }
    size_t nbytes = sizeof(window_hub) + (size_t)group->size * sizeof(window_source *);
    window_hub *hub = dd_mem_zalloc(nbytes);
    if (hub == NULL) {
        return dd_error_no_memory(err, nbytes);
    }
    hub->group = group;
    dd_list_init(&hub->windows);
    dd_list_init(&hub->calls);
    dd_list_init(&hub->questions);
    dd_list_init(&hub->letters);
    group->windows = hub;
    return DD_OK;
}

void
window_hub_destroy(dd_group *group)
{
    window_hub *hub = group->windows;
    for (int rank = 0; hub != NULL && rank < group->size; rank++) {
        dd_mem_free(hub->sources[rank]);
    }
    dd_mem_free(hub);
}

bool
window_hub_has_calls_locked(const dd_group *group)
{
    return group->windows != NULL && !dd_list_is_empty(&group->windows->calls);
}

bool
window_hub_is_busy_locked(const dd_group *group)
{
    return window_hub_has_calls_locked(group) ||
           (group->windows != NULL && !dd_list_is_empty(&group->windows->letters));
}

const dd_list *
window_hub_calls_locked(const dd_group *group)
{
    return group->windows != NULL ? &group->windows->calls : NULL;
}

static void
error_expired(const window_call *call, int64_t now_ns, dd_error *error)
{
    const dd_group *group = call->base.group;
    char who[128];
    double elapsed_s = (double)(now_ns - call->base.work.start_ns) * 1e-9;
    (void)dd_error_set(error, DD_OP_TIMED_OUT, "timed out after %.3g s; %s has not %s", elapsed_s,
                       group_print_member(group, call->rank, who),
                       dd_list_is_empty(&call->asking) ? "taken it" : "answered");
    window_blame(group, call->rank, error);
}

/* A call that is given up may end others with the group: the first is looked for again and again. */
static window_call *
find_expired(const window_hub *hub, int64_t now_ns)
{
    for (dd_list *node = hub->calls.next; node != &hub->calls; node = node->next) {
        group_call *call = DD_CONTAINER_OF(node, group_call, link);
        if (call->deadline_ns <= now_ns) {
            return (window_call *)call;
        }
    }
    return NULL;
}

void
window_hub_expire_locked(dd_group *group, int64_t now_ns)
{
    window_call *call;
    while (group->windows != NULL && (call = find_expired(group->windows, now_ns)) != NULL) {
        dd_error error;
        error_expired(call, now_ns, &error);
        window_call_give_up_locked(call, &error);
    }
}

static window_call *
find_question_of(const window_hub *hub, int rank)
{
    for (dd_list *node = hub->questions.next; node != &hub->questions; node = node->next) {
        window_call *call = DD_CONTAINER_OF(node, window_call, asking);
        if (rank == DD_ANY_RANK || call->rank == rank) {
            return call;
        }
    }
    return NULL;
}

/* `rank` may be DD_ANY_RANK. */
static void
end_waits_locked(window_hub *hub, int rank, const dd_error *cause)
{
    for (dd_list *node = hub->windows.next; node != &hub->windows; node = node->next) {
        window_fail_waiters_locked(DD_CONTAINER_OF(node, dd_window, link), rank, cause);
    }
    for (window_call *call; (call = find_question_of(hub, rank)) != NULL;) {
        window_call_answer_locked(call, cause);
    }
}

void
window_hub_on_gone_locked(dd_group *group, int rank)
{
    window_hub *hub = group->windows;
    if (hub != NULL && !window_serve_is_busy_locked(hub, rank)) { /* else again when that is through */
        dd_error cause;
        (void)window_error_gone(group, rank, &cause);
        end_waits_locked(hub, rank, &cause);
    }
}

void
window_hub_end_locked(dd_group *group, const dd_error *cause)
{
    window_hub *hub = group->windows;
    if (hub == NULL || hub->is_over) {
        return;
    }
    for (dd_list *node = hub->windows.next; node != &hub->windows; node = node->next) {
        dd_window *window = DD_CONTAINER_OF(node, dd_window, link);
        if (atomic_load(&window->state) == WINDOW_OPEN) {
            atomic_store(&window->state, WINDOW_OVER);
        }
    }
    end_waits_locked(hub, DD_ANY_RANK, cause);
    hub->is_over = true;
    window_serve_end_locked(hub, cause);
    window_note_end_all_locked(hub, cause);
}
