/* The notes of other ranks: taken when they come, by whoever drives the engine. */
#include "core/mem.h"
#include "window/window_internal.h"

#include <stdio.h>
#include <string.h>

static void take_data_locked(window_source *source, void *target, size_t nbytes);

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

/* ---- one note after the other */

static void on_note(dd_message *message, const dd_error *error);

static void
expect_note(window_source *source)
{
    source->message = (dd_message){.kind = DD_MESSAGE_WINDOW,
                                   .rank = source->rank,
                                   .channel = DD_REQUEST_CHANNEL,
                                   .data = source->bytes,
                                   .nbytes = sizeof source->bytes,
                                   .on_done = on_note,
                                   .owner = source};
}

static void
take_next_locked(window_source *source)
{
    window_hub *hub = source->hub;
    source->window = NULL;
    source->is_answer = false;
    source->is_busy = false;
    if (hub->is_over) {
        return;
    }
    expect_note(source);
    source->is_busy = dd_context_try_post_recv_locked(hub->context, &source->message);
    if (!source->is_busy && dd_group_has_left_locked(hub->group, source->rank)) {
        window_on_goodbye(&hub->guest, source->rank);
    }
}

bool
window_is_serving_locked(const window_hub *hub, int rank)
{
    return hub->sources[rank] != NULL && hub->sources[rank]->is_busy;
}

window_source *
window_find_source_locked(window_hub *hub, int rank)
{
    if (hub->sources[rank] == NULL) {
        window_source *source = dd_mem_zalloc(sizeof *source);
        if (source == NULL) {
            return NULL;
        }
        source->hub = hub;
        source->rank = rank;
        dd_list_init(&source->asked);
        dd_list_init(&source->held);
        hub->sources[rank] = source;
    }
    return hub->sources[rank];
}

dd_message *
window_on_request(dd_group_guest *guest, int rank)
{
    window_hub *hub = (window_hub *)guest;
    if (hub->is_over) {
        return NULL;
    }
    window_source *source = window_find_source_locked(hub, rank);
    if (source == NULL) {
        dd_error error;
        (void)dd_error_no_memory(&error, sizeof *source);
        dd_group_fail_locked(hub->group, &error);
        return NULL;
    }
    if (source->is_busy) {
        return NULL;
    }
    source->is_busy = true;
    expect_note(source);
    return &source->message;
}

void
window_on_goodbye(dd_group_guest *guest, int rank)
{
    window_hub *hub = (window_hub *)guest;
    if (hub->is_over || window_is_serving_locked(hub, rank)) { /* then again, when that is through */
        return;
    }
    dd_error cause;
    (void)dd_group_error_about(hub->group, rank, DD_PEER_LOST, "has left the group", &cause);
    window_end_waits_locked(hub, NULL, rank, &cause);
    if (hub->sources[rank] != NULL) {
        window_end_gets_locked(hub->sources[rank], &cause);
    }
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

/* It is in none of the lists any more. */
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

/* Nothing is written any more where the data at hand were to go. */
static void
forget_data_locked(window_source *source)
{
    dd_error gone;
    (void)dd_error_set(&gone, DD_CLOSED, "nobody wants it any more");
    if (source->message.is_posted && !source->hub->is_over) {
        dd_context_cancel_locked(source->hub->context, &source->message, &gone);
    }
}

void
window_abandon_get_locked(window_call *get)
{
    window_source *source = get->hub->sources[get->rank];
    get->target = NULL;
    if (get->is_held) {
        let_go_locked(get, NULL);
    } else if (source->is_answer && first_of(&source->asked) == get) {
        forget_data_locked(source);
    }
}

void
window_stop_writing_locked(const dd_window *window)
{
    const window_hub *hub = window->hub;
    for (int rank = 0; rank < hub->size; rank++) {
        if (hub->sources[rank] != NULL && hub->sources[rank]->window == window) {
            forget_data_locked(hub->sources[rank]);
        }
    }
}

void
window_stop_serving_locked(window_hub *hub, const dd_error *cause)
{
    for (int rank = 0; rank < hub->size; rank++) {
        if (hub->sources[rank] != NULL && hub->sources[rank]->message.is_posted) {
            dd_context_cancel_locked(hub->context, &hub->sources[rank]->message, cause);
        }
    }
}

/* ---- what notes ask for */

/* Whether a note's place, or its channel, is one of this rank's window. */
static bool
is_inside(const window_source *source, const dd_window *window)
{
    size_t room = window->members[window->hub->rank].nbytes;
    const dd_window_note *note = &source->note;
    return note->offset <= room && note->nbytes <= room - note->offset;
}

static bool
is_channel(const window_source *source, const dd_window *window)
{
    uint32_t channel = source->note.channel;
    return channel == DD_WINDOW_NO_CHANNEL || channel < (uint32_t)window->nchannels;
}

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
finish_put_locked(window_source *source, dd_window *window)
{
    if (source->note.channel != DD_WINDOW_NO_CHANNEL) {
        window_on_signal_locked(window, source->rank, (int)source->note.channel);
    }
}

static void
on_put_locked(window_source *source, dd_window *window, const uint8_t *inlined)
{
    const dd_window_note *note = &source->note;
    size_t nbytes = (size_t)note->nbytes;
    bool has_data = dd_window_note_has_data(note);
    if (window == NULL) {
        say_closed_locked(source);
        if (has_data) {
            take_data_locked(source, NULL, 0);
        }
        return;
    }
    if (!is_channel(source, window) || !is_inside(source, window)) {
        fail_nonsense_locked(source, "a put out of range");
        return;
    }
    uint8_t *target = window->members[window->hub->rank].data;
    if (has_data) {
        source->window = window;
        take_data_locked(source, target + note->offset, nbytes);
        return;
    }
    if (nbytes > 0) {
        memcpy(target + note->offset, inlined, nbytes);
    }
    finish_put_locked(source, window);
}

static void
on_get_locked(window_source *source, dd_window *window)
{
    const dd_window_note *note = &source->note;
    window_order order = {
        .rank = source->rank,
        .note = {.type = DD_WINDOW_GOT, .is_refused = window == NULL, .window = note->window},
        .is_answer = true,
        .is_lent = true};
    if (window != NULL && !is_inside(source, window)) {
        fail_nonsense_locked(source, "a get out of range");
        return;
    }
    if (window != NULL) {
        const uint8_t *data = window->members[window->hub->rank].data;
        order.note.nbytes = note->nbytes;
        order.data = data != NULL ? data + note->offset : NULL;
    }
    window_send_or_fail_locked(source->hub, &order);
}

static void
on_got_locked(window_source *source, const uint8_t *inlined)
{
    const dd_window_note *note = &source->note;
    window_call *get = first_of(&source->asked);
    if (get == NULL || get->window_id != note->window ||
        (!note->is_refused && note->nbytes != get->note.nbytes)) {
        fail_nonsense_locked(source, "an answer that nobody has asked for");
        return;
    }
    if (note->is_refused) {
        dd_error error;
        (void)window_error_closed(source->hub, source->rank, &error);
        answer_locked(source, &error);
    } else if (dd_window_note_has_data(note)) {
        source->is_answer = true;
        take_data_locked(source, get->target, get->target != NULL ? (size_t)note->nbytes : 0);
    } else {
        if (get->target != NULL && note->nbytes > 0) {
            memcpy(get->target, inlined, (size_t)note->nbytes);
        }
        answer_locked(source, NULL);
    }
}

static void
on_ask_locked(window_source *source, dd_window *window)
{
    if (window == NULL) {
        say_closed_locked(source);
    } else if (!is_channel(source, window)) {
        fail_nonsense_locked(source, "a channel out of range");
    } else {
        window_on_ask_locked(window, source->rank, source->note.channel);
    }
}

static void
on_done_locked(window_source *source, dd_window *window)
{
    if (window == NULL) {
        return;
    }
    if (!is_channel(source, window) ||
        !window_tally_of(window, source->note.channel, source->rank)->is_asking) {
        fail_nonsense_locked(source, "an answer that nobody has asked for");
    } else {
        window_on_done_locked(window, source->rank, source->note.channel);
    }
}

static void
obey_locked(window_source *source, const uint8_t *inlined)
{
    window_hub *hub = source->hub;
    dd_window *window = window_find_locked(hub, source->note.window);
    if (source->note.window > hub->nwindows) {
        fail_nonsense_locked(source, "a window that was never opened");
        return;
    }
    switch (source->note.type) {
    case DD_WINDOW_PUT:
        on_put_locked(source, window, inlined);
        break;
    case DD_WINDOW_GET:
        on_get_locked(source, window);
        break;
    case DD_WINDOW_GOT:
        on_got_locked(source, inlined);
        break;
    case DD_WINDOW_ASK:
        on_ask_locked(source, window);
        break;
    case DD_WINDOW_DONE:
        on_done_locked(source, window);
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
on_note(dd_message *message, const dd_error *error)
{
    window_source *source = message->owner;
    dd_error fault;
    if (source->hub->is_over) {
        return;
    }
    if (error != NULL && error->code != DD_INVALID_ARGUMENT) {
        source->is_busy = false; /* the rank is lost, and the group hears of it */
        return;
    }
    dd_bytes bytes = dd_bytes_of(source->bytes, message->received);
    if (error != NULL) {
        fail_protocol_locked(source, "a note about a window is too long");
    } else if (dd_window_note_decode(bytes, &source->note, &fault) != DD_OK) {
        fail_protocol_locked(source, fault.message);
    } else if (source->nanswers >= WINDOW_ANSWERS_MAX) {
        fail_nonsense_locked(source, "question after question, and no answer taken");
    } else {
        obey_locked(source, source->bytes + DD_WINDOW_NOTE_NBYTES);
        if (!source->message.is_posted) {
            take_next_locked(source);
        }
    }
}

/* ---- data */

/* Nobody wants them any more (forget_data_locked), and they had not come: they belong to this note all the same when they do. */
static bool
is_still_to_come(const dd_message *message, const dd_error *error)
{
    return error != NULL && error->code == DD_CLOSED && message->received == 0;
}

static void
on_data(dd_message *message, const dd_error *error)
{
    window_source *source = message->owner;
    if (source->hub->is_over) {
        return;
    }
    bool is_wanted = message->nbytes > 0; /* else there was no room, on purpose */
    if (is_wanted && ((error == NULL && message->received != message->nbytes) ||
                      (error != NULL && error->code == DD_INVALID_ARGUMENT))) {
        fail_nonsense_locked(source, "data of another size");
        return;
    }
    if (source->is_answer) {
        answer_locked(source, error);
    } else if (source->window != NULL && error == NULL) {
        finish_put_locked(source, source->window);
    }
    if (is_still_to_come(message, error)) {
        source->window = NULL;
        source->is_answer = false;
        take_data_locked(source, NULL, 0);
    } else {
        take_next_locked(source);
    }
}

static void
take_data_locked(window_source *source, void *target, size_t nbytes)
{
    source->message = (dd_message){.kind = DD_MESSAGE_WINDOW,
                                   .rank = source->rank,
                                   .channel = WINDOW_DATA_CHANNEL,
                                   .data = target,
                                   .nbytes = nbytes,
                                   .on_done = on_data,
                                   .owner = source};
    dd_context_post_recv_locked(source->hub->context, &source->message);
}
