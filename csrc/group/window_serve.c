/* The notes of other ranks: taken when they come, by whoever drives the engine. */
#include "group/window_internal.h"

#include "core/mem.h"

#include <string.h>

static void take_data_locked(window_source *source, void *target, size_t nbytes);

static void
fail_protocol_locked(window_source *source, const dd_error *fault)
{
    dd_group *group = source->hub->group;
    char who[128];
    dd_error cause = *fault;
    dd_error_prepend(&cause, "%s broke the protocol of windows",
                     group_print_member(group, source->rank, who));
    window_blame(group, source->rank, &cause);
    group_fail_locked(group, &cause, true, DD_ANY_RANK);
}

static void
fail_nonsense_locked(window_source *source, const char *what)
{
    dd_error fault;
    (void)dd_error_set(&fault, DD_PROTOCOL, "%s (window %llu, %llu bytes from %llu, channel %lu)", what,
                       (unsigned long long)source->note.window, (unsigned long long)source->note.nbytes,
                       (unsigned long long)source->note.offset, (unsigned long)source->note.channel);
    fail_protocol_locked(source, &fault);
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
    source->window = NULL;
    source->call = NULL;
    source->is_busy = false;
    if (source->hub->is_over) {
        return;
    }
    dd_group *group = source->hub->group;
    expect_note(source);
    source->is_busy = dd_context_try_post_recv_locked(group->context, &source->message);
    if (!source->is_busy && group->members[source->rank].is_gone) {
        window_hub_on_gone_locked(group, source->rank);
    }
}

bool
window_serve_is_busy_locked(const window_hub *hub, int rank)
{
    return hub->sources[rank] != NULL && hub->sources[rank]->is_busy;
}

window_source *
window_serve_source_locked(window_hub *hub, int rank)
{
    if (hub->sources[rank] == NULL) {
        window_source *source = dd_mem_zalloc(sizeof *source);
        if (source == NULL) {
            return NULL;
        }
        source->hub = hub;
        source->rank = rank;
        hub->sources[rank] = source;
    }
    return hub->sources[rank];
}

dd_message *
window_on_request(void *ctx, int rank)
{
    dd_group *group = ctx;
    window_hub *hub = group->windows;
    if (hub == NULL || hub->is_over) {
        return NULL;
    }
    window_source *source = window_serve_source_locked(hub, rank);
    if (source == NULL) {
        dd_error error;
        (void)dd_error_no_memory(&error, sizeof *source);
        group_fail_locked(group, &error, true, DD_ANY_RANK);
        return NULL;
    }
    if (source->is_busy) {
        return NULL;
    }
    source->is_busy = true;
    expect_note(source);
    return &source->message;
}

/* ---- what notes ask for */

static bool
is_inside(const window_source *source, const dd_window *window)
{
    size_t room = window->members[window->group->rank].nbytes;
    const dd_window_note *note = &source->note;
    return note->offset <= room && note->nbytes <= room - note->offset;
}

static bool
is_channel(const window_source *source, const dd_window *window)
{
    return source->note.channel < (uint32_t)window->nchannels;
}

static void
say_closed_locked(window_source *source)
{
    if (source->told_closed == source->note.window) {
        return;
    }
    source->told_closed = source->note.window;
    window_order order = {.rank = source->rank,
                          .note = {.type = DD_WINDOW_CLOSED, .window = source->note.window},
                          .asker = source};
    window_note_post_or_fail_locked(source->hub, &order);
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
    bool has_data = dd_window_note_has_data(note);
    if (window == NULL) {
        say_closed_locked(source);
        if (has_data) {
            take_data_locked(source, NULL, 0);
        }
        return;
    }
    bool is_sound = note->channel == DD_WINDOW_NO_CHANNEL || is_channel(source, window);
    if (!is_sound || !is_inside(source, window)) {
        fail_nonsense_locked(source, "a put out of range");
        return;
    }
    uint8_t *target = window->members[window->group->rank].data;
    source->window = window;
    if (has_data) {
        take_data_locked(source, target + note->offset, (size_t)note->nbytes);
        return;
    }
    if (note->nbytes > 0) {
        memcpy(target + note->offset, inlined, (size_t)note->nbytes);
    }
    finish_put_locked(source, window);
}

static void
on_get_locked(window_source *source, dd_window *window)
{
    const dd_window_note *note = &source->note;
    window_order order = {.rank = source->rank,
                          .note = {.type = DD_WINDOW_GOT, .window = note->window, .id = note->id},
                          .asker = source};
    if (window == NULL) {
        order.note.is_refused = true;
    } else if (!is_inside(source, window)) {
        fail_nonsense_locked(source, "a get out of range");
        return;
    } else {
        const window_member *own = &window->members[window->group->rank];
        order.note.nbytes = note->nbytes;
        order.data = own->data != NULL ? own->data + note->offset : NULL;
        order.is_lent = true;
    }
    window_note_post_or_fail_locked(source->hub, &order);
}

static window_call *
find_question(const window_source *source)
{
    const dd_list *questions = &source->hub->questions;
    for (dd_list *node = questions->next; node != questions; node = node->next) {
        window_call *call = DD_CONTAINER_OF(node, window_call, asking);
        if (call->id == source->note.id && !call->is_held) {
            return call->rank == source->rank && call->window == source->note.window ? call : NULL;
        }
    }
    return NULL;
}

static void
answer_locked(window_source *source, window_call *call, const dd_error *cause)
{
    window_call_answer_locked(call, cause);
    source->nasked--;
    window_call_ask_next_locked(source);
}

static void
on_got_locked(window_source *source, const uint8_t *inlined)
{
    const dd_window_note *note = &source->note;
    window_call *call = find_question(source);
    if (call == NULL || (!note->is_refused && note->nbytes != call->nbytes)) {
        fail_nonsense_locked(source, "an answer that nobody has asked for");
        return;
    }
    if (note->is_refused) {
        char who[128];
        dd_error error;
        (void)dd_error_set(&error, DD_CLOSED, "%s has closed the window",
                           group_print_member(source->hub->group, source->rank, who));
        window_blame(source->hub->group, source->rank, &error);
        answer_locked(source, call, &error);
    } else if (dd_window_note_has_data(note)) {
        source->call = call;
        take_data_locked(source, call->target, call->target != NULL ? call->nbytes : 0);
    } else {
        if (call->target != NULL && call->nbytes > 0) {
            memcpy(call->target, inlined, call->nbytes);
        }
        answer_locked(source, call, NULL);
    }
}

static void
on_channel_note_locked(window_source *source, dd_window *window)
{
    bool is_ask = source->note.type == DD_WINDOW_ASK;
    if (window == NULL) {
        if (is_ask) {
            say_closed_locked(source);
        }
        return;
    }
    int channel = (int)source->note.channel;
    if (!is_channel(source, window)) {
        fail_nonsense_locked(source, "a channel out of range");
    } else if (is_ask) {
        window_on_ask_locked(window, source->rank, channel);
    } else if (window->tallies[window_word(window, channel, source->rank)].is_asking) {
        window_on_taken_locked(window, source->rank, channel);
    } else {
        fail_nonsense_locked(source, "an answer that nobody has asked for");
    }
}

static void
obey_locked(window_source *source, const uint8_t *inlined)
{
    dd_window *window = window_find_locked(source->hub, source->note.window);
    if (source->note.window > source->hub->nwindows) {
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
    case DD_WINDOW_TAKEN:
        on_channel_note_locked(source, window);
        break;
    case DD_WINDOW_CLOSED:
        if (window != NULL) {
            window->members[source->rank].is_closed = true;
            (void)window_progress_locked(window);
        }
        break;
    }
}

static void
on_note(dd_message *message, const dd_error *error)
{
    window_source *source = message->owner;
    if (source->hub->is_over) {
        return;
    }
    dd_error fault;
    if (error != NULL && error->code != DD_INVALID_ARGUMENT) {
        source->is_busy = false; /* the rank is lost, and the group hears of it */
        return;
    }
    dd_status status = error != NULL ? dd_error_set(&fault, DD_PROTOCOL, "a note about a window is too long")
                                     : dd_window_note_decode(dd_bytes_of(source->bytes, message->received),
                                                             &source->note, &fault);
    if (status != DD_OK) {
        fail_protocol_locked(source, &fault);
        return;
    }
    if (source->nanswers >= WINDOW_ANSWERS_MAX) {
        fail_nonsense_locked(source, "question after question, and no answer taken");
        return;
    }
    obey_locked(source, source->bytes + DD_WINDOW_NOTE_NBYTES);
    if (!source->message.is_posted) {
        take_next_locked(source);
    }
}

/* ---- data */

/* Nobody wants them any more (window_serve_forget_locked), and they had not come: they belong to this note all the same when they do. */
static bool
is_still_to_come(const dd_message *message, const dd_error *error)
{
    return error != NULL && error->code == DD_CLOSED && message->received == 0;
}

static void
on_data(dd_message *message, const dd_error *error)
{
    window_source *source = message->owner;
    window_hub *hub = source->hub;
    if (hub->is_over) {
        return;
    }
    bool is_wanted = message->nbytes > 0; /* else there was no room, on purpose */
    if (is_wanted && ((error == NULL && message->received != message->nbytes) ||
                      (error != NULL && error->code == DD_INVALID_ARGUMENT))) {
        fail_nonsense_locked(source, "data of another size");
        return;
    }
    if (source->call != NULL) {
        answer_locked(source, source->call, error);
    } else if (source->window != NULL && error == NULL) {
        finish_put_locked(source, source->window);
    }
    if (is_still_to_come(message, error)) {
        source->window = NULL;
        source->call = NULL;
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
    dd_context_post_recv_locked(source->hub->group->context, &source->message);
}

void
window_serve_forget_locked(window_hub *hub, const dd_window *window, const window_call *call)
{
    dd_error gone;
    (void)dd_error_set(&gone, DD_CLOSED, "nobody wants it any more");
    for (int rank = 0; rank < hub->group->size && !hub->is_over; rank++) {
        window_source *source = hub->sources[rank];
        bool is_meant = source != NULL && ((window != NULL && source->window == window) ||
                                           (call != NULL && source->call == call));
        if (is_meant && source->message.is_posted) {
            dd_context_cancel_locked(hub->group->context, &source->message, &gone);
        }
    }
}

void
window_serve_end_locked(window_hub *hub, const dd_error *cause)
{
    for (int rank = 0; rank < hub->group->size; rank++) {
        window_source *source = hub->sources[rank];
        if (source != NULL && source->message.is_posted) {
            dd_context_cancel_locked(hub->group->context, &source->message, cause);
        }
    }
}
