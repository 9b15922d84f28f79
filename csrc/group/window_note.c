/* Notes on their way out. */
#include "group/window_internal.h"

#include "core/mem.h"

#include <string.h>

/* ---- letters */

static void
free_letter(window_letter *letter)
{
    letter->hub->kept_nbytes -= letter->kept_nbytes;
    if (letter->asker != NULL) {
        letter->asker->nanswers--;
    }
    dd_list_remove(&letter->link);
    dd_mem_free(letter->copy);
    dd_mem_free(letter);
}

/* What the put is told of a message that did not get through. */
static void
explain(const window_letter *letter, const dd_error *error, dd_error *cause)
{
    const dd_group *group = letter->hub->group;
    bool has_failed = group->cause.code != DD_OK;
    *cause = has_failed ? group->cause : *error;
    if (!has_failed &&
        error->code == DD_INVALID_ARGUMENT) { /* there was no room for it: that is how it is refused */
        char who[128];
        (void)dd_error_set(cause, DD_CLOSED, "%s has closed the window",
                           group_print_member(group, letter->note.rank, who));
        window_blame(group, letter->note.rank, cause);
    }
}

static void
on_sent(dd_message *message, const dd_error *error)
{
    window_letter *letter = message->owner;
    dd_group *group = letter->hub->group;
    window_call *put = letter->put;
    bool is_last = --letter->nleft == 0;
    if (put != NULL && (error != NULL || is_last)) {
        dd_error cause;
        if (error != NULL) {
            explain(letter, error, &cause);
        }
        letter->put = NULL;
        group_complete_locked(&put->base, error != NULL ? &cause : NULL);
    }
    if (is_last) {
        free_letter(letter);
    }
    if (error != NULL && error->code == DD_OUT_OF_MEMORY) {
        group_fail_locked(group, error, true, DD_ANY_RANK); /* the other side waits for what is missing */
    }
    group_update_task_locked(group);
}

static dd_message
make_message(window_letter *letter, int rank, uint32_t channel, void *data, size_t nbytes)
{
    return (dd_message){.kind = DD_MESSAGE_WINDOW,
                        .rank = rank,
                        .channel = channel,
                        .data = data,
                        .nbytes = nbytes,
                        .on_done = on_sent,
                        .owner = letter};
}

dd_status
window_note_post_locked(window_hub *hub, const window_order *order, dd_error *err)
{
    dd_group *group = hub->group;
    if (hub->is_over) {
        return dd_error_set(err, DD_CLOSED, "the group is closed");
    }
    size_t inlined = dd_window_note_inline_nbytes(&order->note);
    size_t nbytes = sizeof(window_letter) + DD_WINDOW_NOTE_NBYTES + inlined;
    window_letter *letter = dd_mem_alloc(nbytes);
    if (letter == NULL) {
        return dd_error_no_memory(err, nbytes);
    }
    bool has_data = dd_window_note_has_data(&order->note);
    *letter = (window_letter){.hub = hub,
                              .nleft = has_data ? 2 : 1,
                              .put = order->put,
                              .asker = order->asker,
                              .lender = order->is_lent && has_data ? order->note.window : 0,
                              .kept_nbytes = nbytes};
    dd_window_note_encode(&order->note, letter->bytes);
    if (inlined > 0 && order->data != NULL) {
        memcpy(letter->bytes + DD_WINDOW_NOTE_NBYTES, order->data, inlined);
    }
    hub->kept_nbytes += nbytes;
    if (order->asker != NULL) {
        order->asker->nanswers++;
    }
    dd_list_init(&letter->link);
    dd_list_push_back(&hub->letters, &letter->link);
    letter->note =
        make_message(letter, order->rank, DD_REQUEST_CHANNEL, letter->bytes, DD_WINDOW_NOTE_NBYTES + inlined);
    dd_context_post_send_locked(group->context, &letter->note);
    if (has_data) {
        letter->data = make_message(letter, order->rank, WINDOW_DATA_CHANNEL, (void *)(uintptr_t)order->data,
                                    (size_t)order->note.nbytes);
        dd_context_post_send_locked(group->context, &letter->data);
    }
    group_update_task_locked(group);
    return DD_OK;
}

void
window_note_post_or_fail_locked(window_hub *hub, const window_order *order)
{
    dd_error error;
    if (!hub->is_over && window_note_post_locked(hub, order, &error) != DD_OK) {
        group_fail_locked(hub->group, &error, true, DD_ANY_RANK);
    }
}

dd_status
window_note_post_signal_locked(dd_window *window, int rank, int channel, dd_error *err)
{
    window_order order = {
        .rank = rank, .note = {.type = DD_WINDOW_PUT, .channel = (uint32_t)channel, .window = window->id}};
    dd_status status = window_note_post_locked(window->group->windows, &order, err);
    if (status == DD_OK) {
        window->tallies[window_word(window, channel, rank)].nsent++;
    }
    return status;
}

dd_status
window_note_post_ask_locked(dd_window *window, int rank, int channel, dd_error *err)
{
    window_order order = {
        .rank = rank, .note = {.type = DD_WINDOW_ASK, .channel = (uint32_t)channel, .window = window->id}};
    return window_note_post_locked(window->group->windows, &order, err);
}

void
window_note_post_taken_locked(dd_window *window, int rank, int channel)
{
    window_hub *hub = window->group->windows;
    window_order order = {
        .rank = rank,
        .note = {.type = DD_WINDOW_TAKEN, .channel = (uint32_t)channel, .window = window->id},
        .asker = hub->sources[rank]};
    window_note_post_or_fail_locked(hub, &order);
}

/* ---- memory that is wanted back */

static dd_status
copy_data_locked(window_letter *letter, dd_error *err)
{
    if (!letter->data.is_posted) {
        return DD_OK;
    }
    letter->copy = dd_mem_alloc(letter->data.nbytes);
    if (letter->copy == NULL) {
        return dd_error_no_memory(err, letter->data.nbytes);
    }
    memcpy(letter->copy, letter->data.data, letter->data.nbytes);
    dd_context_move_send_locked(&letter->data, letter->copy);
    return DD_OK;
}

void
window_note_detach_put_locked(window_hub *hub, const window_call *put)
{
    for (dd_list *node = hub->letters.next; node != &hub->letters; node = node->next) {
        window_letter *letter = DD_CONTAINER_OF(node, window_letter, link);
        if (letter->put == put) {
            dd_error error;
            letter->put = NULL;
            if (copy_data_locked(letter, &error) != DD_OK) {
                group_fail_locked(hub->group, &error, true, DD_ANY_RANK); /* which ends its messages */
            }
            return;
        }
    }
}

void
window_note_retire_locked(dd_window *window)
{
    window_hub *hub = window->group->windows;
    dd_error error;
    dd_status status = DD_OK;
    for (dd_list *node = hub->letters.next; node != &hub->letters && status == DD_OK; node = node->next) {
        window_letter *letter = DD_CONTAINER_OF(node, window_letter, link);
        if (letter->lender == window->id) {
            letter->lender = 0;
            status = copy_data_locked(letter, &error);
        }
    }
    if (status != DD_OK) {
        group_fail_locked(hub->group, &error, true, DD_ANY_RANK);
    }
    for (int rank = 0; rank < window->group->size && !hub->is_over; rank++) {
        const window_member *member = &window->members[rank];
        if (!member->is_direct && !member->is_closed &&
            dd_context_is_connected_locked(window->group->context, rank)) {
            window_order order = {.rank = rank, .note = {.type = DD_WINDOW_CLOSED, .window = window->id}};
            window_note_post_or_fail_locked(hub, &order);
        }
    }
}

void
window_note_end_all_locked(window_hub *hub, const dd_error *cause)
{
    while (!dd_list_is_empty(&hub->letters)) {
        window_letter *letter = DD_CONTAINER_OF(hub->letters.next, window_letter, link);
        dd_message *message = letter->note.is_posted ? &letter->note : &letter->data;
        dd_context_cancel_locked(hub->group->context, message, cause);
    }
}
