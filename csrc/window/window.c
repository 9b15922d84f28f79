/* Windows: what a group has for them, closing, and what is known of them. */
#include "window/window_internal.h"

#include "core/mem.h"

/* ---- the hub */

static void
on_end(dd_group_guest *guest, const dd_error *cause)
{
    window_hub *hub = (window_hub *)guest;
    if (hub->is_over) {
        return;
    }
    for (dd_list *node = hub->windows.next; node != &hub->windows; node = node->next) {
        dd_window *window = DD_CONTAINER_OF(node, dd_window, link);
        if (atomic_load(&window->state) == WINDOW_OPEN) {
            atomic_store(&window->state, WINDOW_OVER);
        }
    }
    window_end_waits_locked(hub, NULL, DD_ANY_RANK, cause);
    for (int rank = 0; rank < hub->size; rank++) {
        window_end_gets_locked(&hub->sources[rank], cause);
    }
    hub->is_over = true;
    window_stop_serving_locked(hub, cause);
    window_end_letters_locked(hub, cause);
}

static void
destroy_hub(dd_group_guest *guest)
{
    dd_mem_free(guest);
}

static window_hub *
make_hub_locked(dd_group *group)
{
    int size = dd_group_size(group);
    window_hub *hub = dd_mem_zalloc(sizeof *hub + (size_t)size * sizeof(window_source));
    if (hub == NULL) {
        return NULL;
    }
    hub->guest = (dd_group_guest){.on_request = window_on_request,
                                  .on_goodbye = window_on_goodbye,
                                  .on_end = on_end,
                                  .destroy = destroy_hub};
    hub->group = group;
    hub->engine = dd_group_engine(group);
    hub->rank = dd_group_rank(group);
    hub->size = size;
    dd_list_init(&hub->windows);
    dd_list_init(&hub->letters);
    dd_list_init(&hub->waiting);
    dd_list_init(&hub->moving);
    for (int rank = 0; rank < size; rank++) {
        window_init_source(&hub->sources[rank], hub, rank);
    }
    dd_group_take_guest_locked(group, &hub->guest);
    hub->context = hub->guest.context;
    hub->task = window_make_task(hub);
    dd_list_init(&hub->task.link);
    return hub;
}

dd_status
window_find_hub(dd_group *group, window_hub **hub, uint64_t *id, dd_error *err)
{
    dd_engine_lock(dd_group_engine(group));
    dd_status status = dd_group_check_usable_locked(group, "window", err);
    if (status == DD_OK) {
        *hub = (window_hub *)dd_group_find_guest_locked(group);
        *hub = *hub == NULL ? make_hub_locked(group) : *hub;
        status = *hub == NULL ? dd_error_no_memory(err, sizeof **hub) : DD_OK;
    }
    if (status == DD_OK) {
        *id = ++(*hub)->nwindows;
    }
    dd_engine_unlock(dd_group_engine(group));
    return status;
}

/* ---- words */

void
window_describe(const window_hub *hub, const char *what, uint64_t window, dd_error *err)
{
    dd_bytes name = dd_group_name(hub->group);
    dd_error_prepend(err, "%s on window %llu of group \"%.*s\" (rank %d of %d)", what,
                     (unsigned long long)window, (int)name.len, (const char *)name.data, hub->rank,
                     hub->size);
}

dd_status
window_error_closed(const window_hub *hub, int rank, dd_error *err)
{
    return dd_group_error_about(hub->group, rank, DD_CLOSED, "has closed the window", err);
}

dd_status
window_conclude(window_hub *hub, const char *what, dd_status status, dd_error *err)
{
    if (status == DD_OK || dd_engine_check_fork(hub->engine, NULL) != DD_OK) {
        return status;
    }
    dd_engine_lock(hub->engine);
    if (status == DD_CLOSED) {
        dd_engine_hear_locked(hub->engine);
        if (dd_group_cause_locked(hub->group) != NULL) {
            status = dd_group_check_usable_locked(hub->group, what, err);
        }
    }
    dd_engine_finish_telling_locked(hub->engine);
    dd_engine_unlock(hub->engine);
    return status;
}

/* ---- closing */

/* What is still to be sent from its memory is copied, with the lock taken for one piece at a time. */
static void
take_memory_back(dd_window *window)
{
    for (bool has_more = true; has_more;) {
        dd_engine_lock(window->hub->engine);
        window_call *none;
        has_more = window_rescue_locked(window->hub, window->id, &none);
        dd_engine_unlock(window->hub->engine);
    }
}

static void
tell_far_members_locked(dd_window *window)
{
    window_hub *hub = window->hub;
    for (int rank = 0; rank < hub->size && !hub->is_over; rank++) {
        const window_member *member = &window->members[rank];
        if (!member->is_direct && !member->is_closed && dd_context_is_connected_locked(hub->context, rank)) {
            window_send_or_fail_locked(
                hub, &(window_order){.rank = rank, .note = {.type = DD_WINDOW_CLOSED, .window = window->id}});
        }
    }
}

void
dd_window_close(dd_window *window)
{
    window_hub *hub = window->hub;
    if (dd_engine_check_fork(hub->engine, NULL) != DD_OK) {
        return;
    }
    dd_engine_lock(hub->engine);
    bool is_first = atomic_load(&window->state) == WINDOW_OPEN;
    if (is_first) {
        dd_error cause;
        (void)dd_error_set(&cause, DD_CLOSED, "this rank has closed the window");
        atomic_store(&window->state, WINDOW_CLOSED);
        atomic_store(&window->members[hub->rank].control->is_closed, 1);
        window_end_waits_locked(hub, window, DD_ANY_RANK, &cause);
        window_stop_writing_locked(window);
        tell_far_members_locked(window);
    }
    dd_engine_unlock(hub->engine);
    take_memory_back(window);
    for (int rank = 0; is_first && rank < hub->size; rank++) {
        if (rank != hub->rank && window->members[rank].is_direct) {
            window_wake(window, rank);
        }
    }
}

void
window_leave_hub(dd_window *window)
{
    window_hub *hub = window->hub;
    if (dd_list_is_empty(&window->link) || dd_engine_check_fork(hub->engine, NULL) != DD_OK) {
        return;
    }
    dd_engine_lock(hub->engine);
    dd_list_remove(&window->link);
    if (window->has_far_members) {
        dd_engine_attend_locked(hub->engine, false);
    }
    dd_engine_unlock(hub->engine);
}

dd_window *
dd_window_acquire(dd_window *window)
{
    atomic_fetch_add_explicit(&window->refs, 1, memory_order_relaxed);
    return window;
}

void
dd_window_release(dd_window *window)
{
    if (window == NULL || atomic_fetch_sub_explicit(&window->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    dd_window_close(window);
    window_leave_hub(window);
    window_destroy(window);
}

/* ---- what there is */

dd_window *
window_find_locked(const window_hub *hub, uint64_t id)
{
    for (dd_list *node = hub->windows.next; node != &hub->windows; node = node->next) {
        dd_window *window = DD_CONTAINER_OF(node, dd_window, link);
        if (window->id == id) {
            return atomic_load(&window->state) == WINDOW_OPEN ? window : NULL;
        }
    }
    return NULL;
}

bool
window_has_closed_locked(const dd_window *window, int rank)
{
    const window_member *member = &window->members[rank];
    return member->is_closed || (member->is_direct && atomic_load(&member->control->is_closed) != 0);
}

size_t
dd_window_nbytes(const dd_window *window, int rank)
{
    return window->members[rank].nbytes;
}

size_t
dd_window_pad_nbytes(const dd_window *window)
{
    return window->pad_nbytes;
}

int
dd_window_nchannels(const dd_window *window)
{
    return window->nchannels;
}

void *
dd_window_data(const dd_window *window, int rank)
{
    const window_member *member = &window->members[rank];
    return member->nbytes > 0 ? member->data : NULL;
}

_Atomic uint32_t *
dd_window_pad(const dd_window *window, int rank)
{
    return window->members[rank].words;
}
