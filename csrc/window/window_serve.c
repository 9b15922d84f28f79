/* The notes of other ranks, taken as they come by whoever drives the engine, and what a group has for them. */
#include "core/mem.h"
#include "window/window_internal.h"

#include <stdio.h>

static void
fail_protocol_locked(const window_source *source, const char *what)
{
    dd_error cause;
    char text[512];
    (void)snprintf(text, sizeof text, "broke the protocol of windows: %.400s", what);
    (void)dd_group_error_about(source->hub->group, source->rank, DD_PROTOCOL, text, &cause);
    dd_group_fail_locked(source->hub->group, &cause);
}

/* NULL: it is not open here. */
static dd_window *
find_window_locked(const window_hub *hub, uint64_t id)
{
    for (dd_list *node = hub->windows.next; node != &hub->windows; node = node->next) {
        dd_window *window = DD_CONTAINER_OF(node, dd_window, link);
        if (window->id == id) {
            return atomic_load(&window->state) == WINDOW_OPEN ? window : NULL;
        }
    }
    return NULL;
}

/* ---- signals that a rank waits to be told of */

static void
tell_taken_locked(dd_window *window, int source, int channel)
{
    size_t word = window_word(window, channel, source);
    if ((window->signals[word] & WINDOW_OWED) != 0 &&
        atomic_load(&window->members[window->hub->rank].words[word]) == 0) {
        dd_window_note note = {.type = DD_WINDOW_DONE, .channel = (uint32_t)channel, .window = window->id};
        window->signals[word] &= (uint8_t)~WINDOW_OWED;
        atomic_fetch_sub(&window->nowed, 1);
        window_send_or_fail_locked(window->hub, source, &note, NULL);
    }
}

void
window_note_taken(dd_window *window, int source, int channel)
{
    if (window->members[source].is_direct) {
        window_wake(window, source);
    }
    if (atomic_load(&window->nowed) > 0) {
        dd_engine_lock(window->hub->engine);
        tell_taken_locked(window, source, channel);
        dd_engine_unlock(window->hub->engine);
        dd_engine_kick(window->hub->engine);
    }
}

/* ---- when the head of a note has come: whether it makes sense, and where its data go */

/* The get that an answer is for; NULL: there is none. */
static const window_call *
find_get(const window_source *source)
{
    return dd_list_is_empty(&source->asked) ? NULL : DD_CONTAINER_OF(source->asked.next, window_call, asking);
}

/* What is wrong with the note; NULL: nothing. `target`: where its data go; NULL: nobody wants them. */
static const char *
find_fault(const window_source *source, const dd_window *window, uint8_t **target)
{
    const dd_window_note *note = &source->note;
    const window_call *get = find_get(source);
    const window_member *own = window != NULL ? &window->members[source->hub->rank] : NULL;
    bool is_inside =
        own == NULL || (note->offset <= own->nbytes && note->nbytes <= own->nbytes - note->offset);
    bool is_channel = window == NULL || note->channel < (uint32_t)window->nchannels;
    *target = NULL;
    if (source->nanswers >= WINDOW_ANSWERS_MAX) {
        return "question after question, and no answer taken";
    }
    if (note->window > source->hub->nwindows) {
        return "a window that was never opened";
    }
    switch (note->type) {
    case DD_WINDOW_PUT:
        *target = own != NULL && own->data != NULL ? own->data + note->offset : NULL;
        return is_inside && (is_channel || note->channel == DD_WINDOW_NO_CHANNEL) ? NULL
                                                                                  : "a put out of range";
    case DD_WINDOW_GET:
        return is_inside ? NULL : "a get out of range";
    case DD_WINDOW_GOT:
        if (get == NULL || get->window_id != note->window ||
            (!note->is_refused && note->nbytes != get->args.block.nbytes)) {
            return "an answer that nobody has asked for";
        }
        *target = get->is_given_up ? NULL : get->args.block.data;
        return NULL;
    case DD_WINDOW_ASK:
        return is_channel ? NULL : "a channel out of range";
    case DD_WINDOW_DONE:
        if (!is_channel) {
            return "a channel out of range";
        }
        return window == NULL ||
                       window->signals[window_word(window, (int)note->channel, source->rank)] & WINDOW_ASKED
                   ? NULL
                   : "an answer that nobody has asked for";
    case DD_WINDOW_CLOSED:
        break;
    }
    return NULL;
}

static void on_note(dd_message *message, const dd_error *error);

static dd_message *
on_request(dd_group_guest *guest, int rank, const dd_request *request)
{
    window_hub *hub = (window_hub *)guest;
    window_source *source = &hub->sources[rank];
    const dd_window_note *note = &source->note;
    dd_error error;
    uint8_t *target;
    if (hub->is_over || source->is_busy) {
        return NULL;
    }
    if (dd_window_note_decode(request, &source->note, &error) != DD_OK) {
        fail_protocol_locked(source, error.message);
        return NULL;
    }
    const char *fault = find_fault(source, find_window_locked(hub, note->window), &target);
    if (fault != NULL) {
        char text[256];
        (void)snprintf(text, sizeof text, "%s (window %llu, %llu bytes from %llu, channel %lu)", fault,
                       (unsigned long long)note->window, (unsigned long long)note->nbytes,
                       (unsigned long long)note->offset, (unsigned long)note->channel);
        fail_protocol_locked(source, text);
        return NULL;
    }
    target = dd_window_note_has_data(note) ? target : NULL;
    source->is_busy = true;
    source->message = (dd_message){.kind = DD_MESSAGE_WINDOW,
                                   .rank = rank,
                                   .data = target,
                                   .nbytes = target != NULL ? (size_t)note->nbytes : 0,
                                   .on_done = on_note,
                                   .owner = source};
    return &source->message;
}

/* ---- when its data are there: what it asks for */

static void
say_closed_locked(window_source *source)
{
    dd_window_note note = {.type = DD_WINDOW_CLOSED, .window = source->note.window};
    if (source->told_closed != note.window) {
        source->told_closed = note.window;
        window_send_or_fail_locked(source->hub, source->rank, &note, NULL);
    }
}

static void
send_data_locked(window_source *source, const dd_window *window)
{
    const uint8_t *data = window != NULL ? window->members[source->hub->rank].data : NULL;
    dd_window_note note = {.type = DD_WINDOW_GOT,
                           .is_refused = window == NULL,
                           .window = source->note.window,
                           .nbytes = window != NULL ? source->note.nbytes : 0};
    window_send_or_fail_locked(source->hub, source->rank, &note,
                               data != NULL ? data + source->note.offset : NULL);
}

/* `error` not NULL: the data have not come, or are no longer wanted. */
static void
apply_locked(window_source *source, const dd_error *error)
{
    window_hub *hub = source->hub;
    const dd_window_note *note = &source->note;
    dd_window *window = find_window_locked(hub, note->window);
    bool has_word = window != NULL && note->channel < (uint32_t)window->nchannels;
    size_t word = has_word ? window_word(window, (int)note->channel, source->rank) : 0;
    dd_error closed;
    switch (note->type) {
    case DD_WINDOW_PUT:
        if (window == NULL) {
            say_closed_locked(source);
        } else if (error == NULL && has_word) {
            atomic_fetch_add(&window->members[hub->rank].words[word], 1);
            (void)window_progress_locked(hub);
        }
        break;
    case DD_WINDOW_GET:
        send_data_locked(source, window);
        break;
    case DD_WINDOW_GOT:
        if (note->is_refused) {
            (void)window_error_closed(hub, source->rank, &closed);
        }
        window_end_get_locked(source, note->is_refused ? &closed : error);
        break;
    case DD_WINDOW_ASK:
        if (window == NULL) {
            say_closed_locked(source);
        } else {
            atomic_fetch_add(&window->nowed, (window->signals[word] & WINDOW_OWED) == 0 ? 1 : 0);
            window->signals[word] |= WINDOW_OWED;
            tell_taken_locked(window, source->rank, (int)note->channel);
        }
        break;
    case DD_WINDOW_DONE:
        if (window != NULL) {
            window->signals[word] &= (uint8_t)~WINDOW_ASKED;
            (void)window_progress_locked(hub);
        }
        break;
    case DD_WINDOW_CLOSED:
        if (window != NULL) {
            window->members[source->rank].is_closed = true;
            (void)window_progress_locked(hub);
        }
        break;
    }
}

static void
on_goodbye(dd_group_guest *guest, int rank)
{
    window_hub *hub = (window_hub *)guest;
    if (hub->is_over || hub->sources[rank].is_busy) { /* then when the note at hand has been taken */
        return;
    }
    dd_error cause;
    (void)dd_group_error_about(hub->group, rank, DD_PEER_LOST, "has left the group", &cause);
    window_end_waits_locked(hub, NULL, rank, &cause);
    window_end_gets_locked(&hub->sources[rank], &cause);
}

/* Goes on with the next note, if one was held meanwhile. */
static void
on_note(dd_message *message, const dd_error *error)
{
    window_source *source = message->owner;
    window_hub *hub = source->hub;
    source->is_busy = false;
    if (!hub->is_over) {
        apply_locked(source, error);
    }
    if (!hub->is_over) {
        dd_context_take_request_locked(hub->context, source->rank);
    }
    if (!hub->is_over && !source->is_busy && dd_group_has_left_locked(hub->group, source->rank)) {
        on_goodbye(&hub->guest, source->rank);
    }
}

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
    for (int rank = 0; rank < hub->size; rank++) {
        dd_context_cancel_locked(hub->context, &hub->sources[rank].message, cause);
    }
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
    hub->guest = (dd_group_guest){
        .on_request = on_request, .on_goodbye = on_goodbye, .on_end = on_end, .destroy = destroy_hub};
    hub->group = group;
    hub->engine = dd_group_engine(group);
    hub->rank = dd_group_rank(group);
    hub->size = size;
    dd_list *lists[] = {&hub->windows, &hub->letters, &hub->waiting, &hub->moving};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        dd_list_init(lists[i]);
    }
    for (int rank = 0; rank < size; rank++) {
        window_source *source = &hub->sources[rank];
        source->hub = hub;
        source->rank = rank;
        dd_list_init(&source->asked);
        dd_list_init(&source->held);
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
