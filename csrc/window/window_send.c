/* Notes on their way out. */
#include "core/mem.h"
#include "window/window_internal.h"

#include <string.h>

static void
free_letter(window_letter *letter)
{
    window_hub *hub = letter->hub;
    hub->kept_nbytes -= letter->kept_nbytes;
    hub->guest.nletters--;
    if (letter->is_answer) {
        hub->sources[letter->note.rank]->nanswers--;
    }
    dd_list_remove(&letter->link);
    dd_mem_free(letter->copy);
    dd_mem_free(letter);
    dd_group_note_guest_locked(hub->group);
}

/* What the put is told of a message that did not get through. */
static void
explain(const window_letter *letter, const dd_error *error, dd_error *cause)
{
    const dd_error *failure = dd_group_cause_locked(letter->hub->group);
    *cause = failure != NULL ? *failure : *error;
    if (failure == NULL &&
        error->code == DD_INVALID_ARGUMENT) { /* there was no room for it: that is how it is refused */
        (void)window_error_closed(letter->hub, letter->note.rank, cause);
    }
}

static void
on_sent(dd_message *message, const dd_error *error)
{
    window_letter *letter = message->owner;
    window_hub *hub = letter->hub;
    bool is_last = --letter->nleft == 0;
    if (letter->put != NULL && (error != NULL || is_last)) {
        dd_error cause;
        if (error != NULL) {
            explain(letter, error, &cause);
        }
        window_end_call_locked(letter->put, error != NULL ? &cause : NULL);
    }
    if (is_last) {
        free_letter(letter);
    }
    if (error != NULL && error->code == DD_OUT_OF_MEMORY) {
        dd_group_fail_locked(hub->group, error); /* the other side waits for what is missing */
    }
}

static void
post_message(window_letter *letter, dd_message *message, int rank, uint32_t channel, const void *data,
             size_t nbytes)
{
    *message = (dd_message){.kind = DD_MESSAGE_WINDOW,
                            .rank = rank,
                            .channel = channel,
                            .data = (void *)(uintptr_t)data,
                            .nbytes = nbytes,
                            .on_done = on_sent,
                            .owner = letter};
    dd_context_post_send_locked(letter->hub->context, message);
}

dd_status
window_send_locked(window_hub *hub, const window_order *order, dd_error *err)
{
    if (hub->is_over) {
        return dd_error_set(err, DD_CLOSED, "the group is closed");
    }
    bool has_data = dd_window_note_has_data(&order->note);
    size_t inlined = dd_window_note_inline_nbytes(&order->note);
    size_t nbytes = sizeof(window_letter) + DD_WINDOW_NOTE_NBYTES + inlined;
    window_letter *letter = dd_mem_alloc(nbytes);
    if (letter == NULL) {
        return dd_error_no_memory(err, nbytes);
    }
    *letter = (window_letter){.hub = hub,
                              .nleft = has_data ? 2 : 1,
                              .put = order->put,
                              .is_answer = order->is_answer,
                              .lender = order->is_lent && has_data ? order->note.window : 0,
                              .kept_nbytes = nbytes};
    dd_window_note_encode(&order->note, letter->bytes);
    if (inlined > 0 && order->data != NULL) {
        memcpy(letter->bytes + DD_WINDOW_NOTE_NBYTES, order->data, inlined);
    }
    if (order->put != NULL) {
        order->put->letter = letter;
    }
    if (order->is_answer) {
        hub->sources[order->rank]->nanswers++;
    }
    hub->kept_nbytes += nbytes;
    hub->guest.nletters++;
    dd_list_init(&letter->link);
    dd_list_push_back(&hub->letters, &letter->link);
    post_message(letter, &letter->note, order->rank, DD_REQUEST_CHANNEL, letter->bytes,
                 DD_WINDOW_NOTE_NBYTES + inlined);
    if (has_data) {
        post_message(letter, &letter->data, order->rank, WINDOW_DATA_CHANNEL, order->data,
                     (size_t)order->note.nbytes);
    }
    dd_group_note_guest_locked(hub->group);
    return DD_OK;
}

void
window_send_or_fail_locked(window_hub *hub, const window_order *order)
{
    dd_error error;
    if (!hub->is_over && window_send_locked(hub, order, &error) != DD_OK) {
        dd_group_fail_locked(hub->group, &error);
    }
}

/* ---- memory that is wanted back */

/* True when nothing is left of the data that is not in the copy, which is what is sent from then on. */
static bool
rescue_piece_locked(window_letter *letter, dd_error *err)
{
    size_t nbytes = letter->data.nbytes;
    if (!letter->data.is_posted) {
        return true;
    }
    if (letter->copy == NULL) {
        letter->copy = dd_mem_alloc(nbytes);
        if (letter->copy == NULL) {
            (void)dd_error_no_memory(err, nbytes);
            return true;
        }
    }
    size_t left = nbytes - letter->ncopied;
    size_t piece = left < WINDOW_RESCUE_NBYTES ? left : WINDOW_RESCUE_NBYTES;
    memcpy(letter->copy + letter->ncopied, (const uint8_t *)letter->data.data + letter->ncopied, piece);
    letter->ncopied += piece;
    if (letter->ncopied < nbytes) {
        return false;
    }
    dd_context_move_send_locked(&letter->data, letter->copy);
    return true;
}

/* A piece of the first letter that is leaving, or was lent from a window. */
static window_letter *
rescue_locked(window_hub *hub, uint64_t lender, bool *is_through)
{
    for (dd_list *node = hub->letters.next; node != &hub->letters; node = node->next) {
        window_letter *letter = DD_CONTAINER_OF(node, window_letter, link);
        if (lender != 0 ? letter->lender == lender : letter->is_leaving) {
            dd_error error = {.code = DD_OK};
            *is_through = rescue_piece_locked(letter, &error);
            if (error.code != DD_OK) {
                dd_group_fail_locked(hub->group, &error); /* which ends all letters */
                return NULL;
            }
            return letter;
        }
    }
    return NULL;
}

window_call *
window_rescue_put_locked(window_hub *hub)
{
    bool is_through = false;
    window_letter *letter = rescue_locked(hub, 0, &is_through);
    return letter != NULL && is_through ? letter->put : NULL;
}

bool
window_rescue_lent_locked(window_hub *hub, uint64_t window)
{
    bool is_through = false;
    window_letter *letter = rescue_locked(hub, window, &is_through);
    if (letter != NULL && is_through) {
        letter->lender = 0;
    }
    return letter != NULL;
}

void
window_end_letters_locked(window_hub *hub, const dd_error *cause)
{
    while (!dd_list_is_empty(&hub->letters)) {
        window_letter *letter = DD_CONTAINER_OF(hub->letters.next, window_letter, link);
        dd_context_cancel_locked(hub->context, letter->note.is_posted ? &letter->note : &letter->data, cause);
    }
}
