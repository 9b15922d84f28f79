/* Notes on their way out. */
#include "core/mem.h"
#include "window/window_internal.h"

#include <string.h>

/* The error of a put whose message did not get through. */
static void
explain(const window_letter *letter, const dd_error *error, dd_error *cause)
{
    const dd_error *failure = dd_group_cause_locked(letter->hub->group);
    *cause = failure != NULL ? *failure : *error;
    if (failure == NULL &&
        error->code == DD_INVALID_ARGUMENT) { /* no room: that is how a closed window refuses */
        (void)window_error_closed(letter->hub, letter->message.rank, cause);
    }
}

static void
on_sent(dd_message *message, const dd_error *error)
{
    window_letter *letter = message->owner;
    window_hub *hub = letter->hub;
    dd_error cause;
    if (letter->put != NULL) {
        if (error != NULL) {
            explain(letter, error, &cause);
        }
        window_end_call_locked(letter->put, error != NULL ? &cause : NULL);
    }
    hub->kept_nbytes -= letter->kept_nbytes;
    hub->guest.nletters--;
    if (letter->is_answer) {
        hub->sources[message->rank].nanswers--;
    }
    dd_list_remove(&letter->link);
    dd_mem_free(letter->copy);
    dd_mem_free(letter);
    dd_group_note_guest_locked(hub->group);
    if (error != NULL && error->code == DD_OUT_OF_MEMORY) {
        dd_group_fail_locked(hub->group, error); /* the other side waits for what is missing */
    }
}

dd_status
window_send_locked(window_hub *hub, const window_order *order, dd_error *err)
{
    dd_request head = dd_window_note_encode(&order->note);
    bool is_small = head.nbytes <= WINDOW_SMALL_NBYTES;
    size_t kept_nbytes = sizeof(window_letter) + (is_small ? (size_t)head.nbytes : 0);
    if (hub->is_over) {
        return dd_error_set(err, DD_CLOSED, "the group is closed");
    }
    window_letter *letter = dd_mem_alloc(kept_nbytes);
    if (letter == NULL) {
        return dd_error_no_memory(err, kept_nbytes);
    }
    *letter = (window_letter){
        .hub = hub,
        .message = {.kind = DD_MESSAGE_WINDOW,
                    .rank = order->rank,
                    .tag = head.tag,
                    .channel = head.channel,
                    .data = is_small ? letter->bytes : (void *)(uintptr_t)order->data,
                    .nbytes = (size_t)head.nbytes,
                    .signature = &letter->signature,
                    .on_done = on_sent,
                    .owner = letter},
        .signature = head.signature,
        .put = order->put,
        .is_answer = order->is_answer,
        .lender = order->is_lent && !is_small ? order->note.window : 0,
        .kept_nbytes = kept_nbytes,
    };
    if (is_small && head.nbytes > 0) {
        memcpy(letter->bytes, order->data, (size_t)head.nbytes);
    }
    if (order->put != NULL) {
        order->put->letter = letter;
    }
    if (order->is_answer) {
        hub->sources[order->rank].nanswers++;
    }
    hub->kept_nbytes += kept_nbytes;
    hub->guest.nletters++;
    dd_list_init(&letter->link);
    dd_list_push_back(&hub->letters, &letter->link);
    dd_context_post_send_locked(hub->context, &letter->message);
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

/* True when all is copied: the rest is sent from the copy. */
static bool
copy_piece_locked(window_letter *letter)
{
    dd_message *message = &letter->message;
    size_t left = message->nbytes - letter->ncopied;
    size_t piece = left < WINDOW_PIECE_NBYTES ? left : WINDOW_PIECE_NBYTES;
    memcpy(letter->copy + letter->ncopied, (const uint8_t *)message->data + letter->ncopied, piece);
    letter->ncopied += piece;
    if (piece < left) {
        return false;
    }
    dd_context_move_send_locked(message, letter->copy);
    letter->lender = 0;
    return true;
}

bool
window_rescue_locked(window_hub *hub, uint64_t lender, window_call **put)
{
    *put = NULL;
    for (dd_list *node = hub->letters.next; node != &hub->letters; node = node->next) {
        window_letter *letter = DD_CONTAINER_OF(node, window_letter, link);
        if (lender != 0 ? letter->lender != lender : !letter->is_leaving) {
            continue;
        }
        bool is_small = letter->message.data == letter->bytes;
        if (!is_small && letter->copy == NULL) {
            letter->copy = dd_mem_alloc(letter->message.nbytes);
        }
        if (!is_small && letter->copy == NULL) {
            dd_error error;
            (void)dd_error_no_memory(&error, letter->message.nbytes);
            dd_group_fail_locked(hub->group, &error); /* which ends all letters */
            return false;
        }
        if (is_small || copy_piece_locked(letter)) {
            *put = letter->put;
        }
        return true;
    }
    return false;
}

void
window_end_letters_locked(window_hub *hub, const dd_error *cause)
{
    while (!dd_list_is_empty(&hub->letters)) {
        window_letter *letter = DD_CONTAINER_OF(hub->letters.next, window_letter, link);
        dd_context_cancel_locked(hub->context, &letter->message, cause);
    }
}
