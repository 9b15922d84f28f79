/* The notes of other ranks, taken as they come by whoever drives the engine. */
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

static void
fail_nonsense_locked(const window_source *source, const char *what)
{
    char text[256];
    (void)snprintf(text, sizeof text, "%s (window %llu, %llu bytes from %llu, channel %lu)", what,
                   (unsigned long long)source->note.window, (unsigned long long)source->note.nbytes,
                   (unsigned long long)source->note.offset, (unsigned long)source->note.channel);
    fail_protocol_locked(source, text);
}

void
window_init_source(window_source *source, window_hub *hub, int rank)
{
    source->hub = hub;
    source->rank = rank;
    dd_list_init(&source->asked);
    dd_list_init(&source->held);
}

void
window_on_goodbye(dd_group_guest *guest, int rank)
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

/* ---- gets of ours: answered in the order in which they were asked */

static dd_status
ask_locked(window_source *source, window_call *get, dd_error *err)
{
    window_order order = {.rank = source->rank, .note = get->note};
    dd_status status = window_send_locked(source->hub, &order, err);
    if (status == DD_OK) {
        dd_list_remove(&get->asking);
        dd_list_push_back(&source->asked, &get->asking);
        source->nasked++;
        get->is_held = false;
    }
    return status;
}

dd_status
window_ask_for_locked(window_source *source, window_call *get, dd_error *err)
{
    dd_status status = DD_OK;
    if (source->nasked < WINDOW_GETS_MAX) {
        status = ask_locked(source, get, err);
    } else {
        dd_list_push_back(&source->held, &get->asking);
        get->is_held = true;
    }
    if (status == DD_OK) {
        (void)dd_work_acquire(&get->work); /* while it is in one of the lists */
    }
    return status;
}

/* Takes it out of its list; ends it if it has not ended. */
static void
let_go_locked(window_call *get, const dd_error *cause)
{
    dd_list_remove(&get->asking);
    if (!dd_work_is_done(&get->work)) {
        window_end_call_locked(get, cause);
    }
    dd_work_release(&get->work);
}

static window_call *
first_of(const dd_list *gets)
{
    return dd_list_is_empty(gets) ? NULL : DD_CONTAINER_OF(gets->next, window_call, asking);
}

static void
answer_locked(window_source *source, const dd_error *cause)
{
    dd_error error;
    let_go_locked(first_of(&source->asked), cause);
    source->nasked--;
    window_call *next = first_of(&source->held);
    if (next != NULL && !source->hub->is_over && ask_locked(source, next, &error) != DD_OK) {
        dd_group_fail_locked(source->hub->group, &error);
    }
}

void
window_end_gets_locked(window_source *source, const dd_error *cause)
{
    for (window_call *get; (get = first_of(&source->asked)) != NULL; source->nasked--) {
        let_go_locked(get, cause);
    }
    for (window_call *get; (get = first_of(&source->held)) != NULL;) {
        let_go_locked(get, cause);
    }
}

/* The data of the note at hand are not written any more; what is still to come of them is thrown away. */
static void
forget_data_locked(window_source *source)
{
    dd_error gone;
    (void)dd_error_set(&gone, DD_CLOSED, "nobody wants it any more");
    if (!source->hub->is_over) {
        dd_context_cancel_locked(source->hub->context, &source->message, &gone);
    }
}

void
window_abandon_get_locked(window_call *get)
{
    window_source *source = &get->hub->sources[get->rank];
    get->target = NULL;
    if (get->is_held) {
        let_go_locked(get, NULL);
    } else if (source->is_busy && source->note.type == DD_WINDOW_GOT && first_of(&source->asked) == get) {
        forget_data_locked(source);
    }
}

void
window_stop_writing_locked(const dd_window *window)
{
    window_hub *hub = window->hub;
    for (int rank = 0; rank < hub->size; rank++) {
        window_source *source = &hub->sources[rank];
        if (source->is_busy && source->note.type == DD_WINDOW_PUT && source->note.window == window->id) {
            forget_data_locked(source);
        }
    }
}

void
window_stop_serving_locked(window_hub *hub, const dd_error *cause)
{
    for (int rank = 0; rank < hub->size; rank++) {
        dd_context_cancel_locked(hub->context, &hub->sources[rank].message, cause);
    }
}

/* ---- when the head of a note has come: whether it makes sense, and where its data go */

/* Whether the note's place is in this rank's memory. */
static bool
is_inside(const dd_window *window, const dd_window_note *note)
{
    size_t room = window->members[window->hub->rank].nbytes;
    return note->offset <= room && note->nbytes <= room - note->offset;
}

static bool
is_channel(const dd_window *window, const dd_window_note *note)
{
    return note->channel == DD_WINDOW_NO_CHANNEL || note->channel < (uint32_t)window->nchannels;
}

/* What is wrong with it; NULL: nothing. */
static const char *
find_fault(const window_source *source, const dd_window *window)
{
    const window_hub *hub = source->hub;
    const dd_window_note *note = &source->note;
    const window_call *get = first_of(&source->asked);
    if (source->nanswers >= WINDOW_ANSWERS_MAX) {
        return "question after question, and no answer taken";
    }
    if (note->window > hub->nwindows) {
        return "a window that was never opened";
    }
    switch (note->type) {
    case DD_WINDOW_PUT:
        return window == NULL || (is_channel(window, note) && is_inside(window, note)) ? NULL
                                                                                       : "a put out of range";
    case DD_WINDOW_GET:
        return window == NULL || is_inside(window, note) ? NULL : "a get out of range";
    case DD_WINDOW_GOT:
        return get != NULL && get->window_id == note->window &&
                       (note->is_refused || note->nbytes == get->note.nbytes)
                   ? NULL
                   : "an answer that nobody has asked for";
    case DD_WINDOW_ASK:
    case DD_WINDOW_DONE:
        if (window == NULL) {
            return NULL;
        }
        if (!is_channel(window, note)) {
            return "a channel out of range";
        }
        return note->type == DD_WINDOW_ASK || window_tally_of(window, note->channel, source->rank)->is_asking
                   ? NULL
                   : "an answer that nobody has asked for";
    case DD_WINDOW_CLOSED:
        break;
    }
    return NULL;
}

/* NULL: nobody wants them. */
static void *
find_target(const window_source *source, const dd_window *window)
{
    if (source->note.type == DD_WINDOW_GOT) {
        return first_of(&source->asked)->target;
    }
    uint8_t *data = window != NULL ? window->members[window->hub->rank].data : NULL;
    return data != NULL ? data + source->note.offset : NULL;
}

static void on_note(dd_message *message, const dd_error *error);

dd_message *
window_on_request(dd_group_guest *guest, int rank, const dd_request *request)
{
    window_hub *hub = (window_hub *)guest;
    dd_error error;
    window_source *source = &hub->sources[rank];
    if (hub->is_over || source->is_busy) {
        return NULL;
    }
    if (dd_window_note_decode(request, &source->note, &error) != DD_OK) {
        fail_protocol_locked(source, error.message);
        return NULL;
    }
    const dd_window *window = window_find_locked(hub, source->note.window);
    const char *fault = find_fault(source, window);
    if (fault != NULL) {
        fail_nonsense_locked(source, fault);
        return NULL;
    }
    void *target = dd_window_note_has_data(&source->note) ? find_target(source, window) : NULL;
    source->is_busy = true;
    source->message = (dd_message){.kind = DD_MESSAGE_WINDOW,
                                   .rank = rank,
                                   .data = target,
                                   .nbytes = target != NULL ? (size_t)source->note.nbytes : 0,
                                   .on_done = on_note,
                                   .owner = source};
    return &source->message;
}

/* ---- when its data are there: what it asks for */

static void
say_closed_locked(window_source *source)
{
    if (source->told_closed != source->note.window) {
        source->told_closed = source->note.window;
        window_order order = {.rank = source->rank,
                              .note = {.type = DD_WINDOW_CLOSED, .window = source->note.window},
                              .is_answer = true};
        window_send_or_fail_locked(source->hub, &order);
    }
}

static void
send_data_locked(window_source *source, const dd_window *window)
{
    const dd_window_note *note = &source->note;
    window_order order = {
        .rank = source->rank,
        .note = {.type = DD_WINDOW_GOT, .is_refused = window == NULL, .window = note->window},
        .is_answer = true,
        .is_lent = true};
    if (window != NULL) {
        const uint8_t *data = window->members[window->hub->rank].data;
        order.note.nbytes = note->nbytes;
        order.data = data != NULL ? data + note->offset : NULL;
    }
    window_send_or_fail_locked(source->hub, &order);
}

/* `error` not NULL: the data have not come, or are no longer wanted. */
static void
apply_locked(window_source *source, const dd_error *error)
{
    window_hub *hub = source->hub;
    const dd_window_note *note = &source->note;
    dd_window *window = window_find_locked(hub, note->window);
    dd_error closed;
    switch (note->type) {
    case DD_WINDOW_PUT:
        if (window == NULL) {
            say_closed_locked(source);
        } else if (error == NULL && note->channel != DD_WINDOW_NO_CHANNEL) {
            window_on_signal_locked(window, source->rank, (int)note->channel);
        }
        break;
    case DD_WINDOW_GET:
        send_data_locked(source, window);
        break;
    case DD_WINDOW_GOT:
        if (note->is_refused) {
            (void)window_error_closed(hub, source->rank, &closed);
        }
        answer_locked(source, note->is_refused ? &closed : error);
        break;
    case DD_WINDOW_ASK:
        if (window == NULL) {
            say_closed_locked(source);
        } else {
            window_on_ask_locked(window, source->rank, note->channel);
        }
        break;
    case DD_WINDOW_DONE:
        if (window != NULL) {
            window_on_done_locked(window, source->rank, note->channel);
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
        window_on_goodbye(&hub->guest, source->rank);
    }
}
