/* What this rank asks of others by notes: letters, puts, gets, and whether signals have been taken. */
#include "core/mem.h"
#include "window/window_internal.h"

#include <string.h>

/* Up to this size, data are sent from a copy. Such puts are sent in the background up to so many bytes; beyond it they wait until the
 * transport has theirs. */
#define SMALL_NBYTES ((size_t)4096)
#define KEPT_MAX ((size_t)1 << 20)

/* ---- letters */

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
    hub->sources[message->rank].nanswers -= letter->is_answer ? 1 : 0;
    dd_list_remove(&letter->link);
    dd_mem_free(letter->copy);
    dd_mem_free(letter);
    dd_group_note_guest_locked(hub->group);
    if (error != NULL && error->code == DD_OUT_OF_MEMORY) {
        dd_group_fail_locked(hub->group, error); /* the other side waits for what is missing */
    }
}

dd_status
window_send_locked(window_hub *hub, int rank, const dd_window_note *note, const void *data, window_call *put,
                   dd_error *err)
{
    dd_request head = dd_window_note_encode(note);
    bool is_small = head.nbytes <= SMALL_NBYTES;
    bool is_answer =
        note->type != DD_WINDOW_PUT && note->type != DD_WINDOW_GET && note->type != DD_WINDOW_ASK;
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
                    .rank = rank,
                    .tag = head.tag,
                    .channel = head.channel,
                    .data = is_small ? letter->bytes : (void *)(uintptr_t)data,
                    .nbytes = (size_t)head.nbytes,
                    .signature = &letter->signature,
                    .on_done = on_sent,
                    .owner = letter},
        .signature = head.signature,
        .put = put,
        .is_answer = is_answer,
        .lender = note->type == DD_WINDOW_GOT && !is_small ? note->window : 0,
        .kept_nbytes = kept_nbytes,
    };
    if (is_small && data != NULL) { /* of a note with data */
        memcpy(letter->bytes, data, (size_t)head.nbytes);
    }
    if (put != NULL) {
        put->letter = letter;
    }
    hub->sources[rank].nanswers += is_answer ? 1 : 0;
    hub->kept_nbytes += kept_nbytes;
    hub->guest.nletters++;
    dd_list_init(&letter->link);
    dd_list_push_back(&hub->letters, &letter->link);
    dd_context_post_send_locked(hub->context, &letter->message);
    dd_group_note_guest_locked(hub->group);
    return DD_OK;
}

void
window_send_or_fail_locked(window_hub *hub, int rank, const dd_window_note *note, const void *data)
{
    dd_error error;
    if (!hub->is_over && window_send_locked(hub, rank, note, data, NULL, &error) != DD_OK) {
        dd_group_fail_locked(hub->group, &error);
    }
}

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

/* ---- puts and signals */

static dd_status
send_put_locked(dd_window *window, const window_args *args, window_call *put, dd_error *err)
{
    int rank = args->place.rank;
    dd_window_note note = {.type = DD_WINDOW_PUT,
                           .channel = args->channel == DD_NO_CHANNEL ? DD_WINDOW_NO_CHANNEL
                                                                     : (uint32_t)args->channel,
                           .window = window->id,
                           .offset = args->place.offset,
                           .nbytes = args->block.nbytes};
    dd_status status = window_send_locked(window->hub, rank, &note, args->block.data, put, err);
    if (status == DD_OK) {
        window->members[rank].nputs += note.nbytes > 0 ? 1 : 0;
    }
    if (status == DD_OK && args->channel != DD_NO_CHANNEL) {
        window->signals[window_word(window, args->channel, rank)] |= WINDOW_SENT;
    }
    return status;
}

bool
window_try_alone_locked(window_call *call, dd_error *error)
{
    dd_window *window = call->window;
    int rank = call->args.place.rank;
    uint8_t *signals = &window->signals[window_word(window, call->args.channel, rank)];
    if ((*signals & WINDOW_ASKED) != 0) {
        return false;
    }
    if ((*signals & WINDOW_SENT) == 0) {
        (void)!send_put_locked(window, &call->args, NULL, error);
        return true;
    }
    dd_window_note note = {
        .type = DD_WINDOW_ASK, .channel = (uint32_t)call->args.channel, .window = window->id};
    if (window_send_locked(call->hub, rank, &note, NULL, NULL, error) != DD_OK) {
        return true;
    }
    *signals = (uint8_t)((*signals & ~WINDOW_SENT) | WINDOW_ASKED);
    return false;
}

/* ---- gets: answered in the order in which they were asked */

static dd_status
ask_locked(window_source *source, window_call *get, dd_error *err)
{
    dd_window_note note = {.type = DD_WINDOW_GET,
                           .window = get->window_id,
                           .offset = get->args.place.offset,
                           .nbytes = get->args.block.nbytes};
    dd_status status = window_send_locked(source->hub, source->rank, &note, NULL, NULL, err);
    if (status == DD_OK) {
        dd_list_remove(&get->asking);
        dd_list_push_back(&source->asked, &get->asking);
        source->nasked++;
        get->is_held = false;
    }
    return status;
}

dd_status
window_send_call_locked(window_call *call, bool *is_done, dd_error *err)
{
    window_hub *hub = call->hub;
    window_source *source = &hub->sources[call->args.place.rank];
    dd_status status = DD_OK;
    if (call->args.op->note == DD_WINDOW_PUT) {
        *is_done = call->args.block.nbytes <= SMALL_NBYTES && hub->kept_nbytes < KEPT_MAX;
        return send_put_locked(call->window, &call->args, *is_done ? NULL : call, err);
    }
    if (source->nasked < WINDOW_GETS_MAX) {
        status = ask_locked(source, call, err);
    } else {
        dd_list_push_back(&source->held, &call->asking);
        call->is_held = true;
    }
    if (status == DD_OK) {
        (void)dd_work_acquire(&call->work); /* while it is in one of the lists */
    }
    return status;
}

static window_call *
first_of(const dd_list *gets)
{
    return dd_list_is_empty(gets) ? NULL : DD_CONTAINER_OF(gets->next, window_call, asking);
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

void
window_end_get_locked(window_source *source, const dd_error *cause)
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
    source->nasked = 0;
    for (window_call *get;
         (get = first_of(&source->asked)) != NULL || (get = first_of(&source->held)) != NULL;) {
        let_go_locked(get, cause);
    }
}

void
window_forget_data_locked(window_source *source)
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
    window_source *source = &get->hub->sources[get->args.place.rank];
    get->is_given_up = true;
    if (get->is_held) {
        let_go_locked(get, NULL);
    } else if (source->is_busy && source->note.type == DD_WINDOW_GOT && first_of(&source->asked) == get) {
        window_forget_data_locked(source);
    }
}
