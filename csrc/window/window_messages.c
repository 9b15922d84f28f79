/* Messages of windows: for this rank's operations on far ranks, and for far ranks' operations on
 * this rank, which the thread that drives the engine handles as they arrive. */
#include "core/assert.h"
#include "core/mem.h"
#include "window/window_internal.h"

#include <stdio.h>
#include <string.h>

/* Maximum bytes of small puts that are kept here, to be sent in the background. Above this limit, a
 * put waits until the transport has its data. */
#define MOVING_MAX_NBYTES ((size_t)1 << 20)

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

static bool
is_answer(const window_call *call)
{
    return call->args.op == NULL && call->message.channel == DD_WINDOW_ANSWERS;
}

/* ---- messages under way */

/* Set the cause of a call's failure. `error` is the error of the call's message; NULL if the call's
 * question was refused. */
static void
explain(const window_call *call, const dd_error *error, dd_error *cause)
{
    const dd_error *failure = dd_group_cause_locked(call->hub->group);
    if (failure != NULL) {
        *cause = *failure;
        /* the rank has closed its window */
    } else if (error == NULL || error->code == DD_INVALID_ARGUMENT) {
        (void)window_error_closed(call->hub, call->args.target.rank, cause);
    } else {
        *cause = *error;
    }
}

/* Record that the rank has received an answer. Then handle the question that was held, if any. */
static void
count_answered_locked(window_source *source)
{
    window_hub *hub = source->hub;
    source->nanswers--;
    if (source->is_full && !hub->is_ended) {
        source->is_busy = source->is_full = false;
        dd_context_take_request_locked(hub->context, source->rank);
    }
}

static void
window_on_message_done(dd_message *message, const dd_error *error)
{
    window_call *call = message->owner;
    window_hub *hub = call->hub;
    dd_error cause;
    bool is_get = call->args.op != NULL && call->args.op->command == DD_WINDOW_GET;
    bool is_question = is_get || (call->args.op != NULL && call->args.op->command == DD_WINDOW_SIGNAL_ALONE);
    bool is_failed = error != NULL || (is_question && message->received != call->args.block.nbytes);
    dd_window *window = is_get && !is_failed ? find_window_locked(hub, call->window_id) : NULL;
    if (window != NULL) {
        uint32_t *ninplace = &window->members[message->rank].ninplace;
        *ninplace = (int32_t)(call->nputs - *ninplace) > 0 ? call->nputs : *ninplace;
    }
    if (is_failed) {
        explain(call, error, &cause);
    }
    window_complete_locked(call, is_failed ? &cause : NULL);
    if (is_answer(call)) {
        count_answered_locked(&hub->sources[message->rank]);
    }
    window_remove_locked(call);
    if (error != NULL && error->code == DD_OUT_OF_MEMORY) {
        dd_group_fail_locked(hub->group, error); /* else the other rank waits for it forever */
    }
}

static void
set_message(window_call *call, const dd_request *head, void *data)
{
    call->signature = head->signature;
    call->message = (dd_message){.kind = DD_MESSAGE_WINDOW,
                                 .rank = call->args.target.rank,
                                 .tag = head->tag,
                                 .channel = head->channel,
                                 .data = data,
                                 .nbytes = (size_t)head->nbytes,
                                 .signature = &call->signature,
                                 .on_done = window_on_message_done,
                                 .owner = call};
}

static void
send_by_message_locked(window_call *call)
{
    call->is_moving = true;
    window_add_locked(call);
    dd_context_post_send_locked(call->hub->context, &call->message);
}

/* Send a command or an answer for which no caller waits. Small data is copied. */
static dd_status
send_unawaited_locked(window_hub *hub, int rank, const dd_request *head, const void *data, dd_error *err)
{
    size_t data_nbytes = head->nbytes <= WINDOW_SMALL_NBYTES ? (size_t)head->nbytes : 0;
    window_call *call = window_make_call(hub, rank, "command", 0, data_nbytes);
    if (call == NULL) {
        return dd_error_no_memory(err, sizeof *call + data_nbytes);
    }
    (void)dd_work_complete(&call->work, NULL);
    memcpy(call->bytes, data, data_nbytes);
    set_message(call, head, data_nbytes == head->nbytes ? call->bytes : (void *)(uintptr_t)data);
    send_by_message_locked(call);
    dd_work_release(&call->work);
    return DD_OK;
}

static dd_status
send_command_locked(window_hub *hub, int rank, const dd_window_command *command, dd_error *err)
{
    dd_request head = dd_window_command_encode(command);
    return send_unawaited_locked(hub, rank, &head, "", err);
}

/* ---- memory that its owner wants back while messages still use it */

static void
mark_wanted_locked(window_call *call)
{
    if (!call->is_wanted) {
        call->is_wanted = true;
        call->hub->nwanted++;
    }
}

/* Copy a piece of a message's data. After the last piece, send the message from the copy; if the
 * call is an abandoned put, complete it. */
static void
copy_piece_locked(window_call *call)
{
    dd_message *message = &call->message;
    size_t left = message->nbytes - call->ncopied;
    size_t piece = left < WINDOW_PIECE_NBYTES ? left : WINDOW_PIECE_NBYTES;
    memcpy(call->copy + call->ncopied, (const uint8_t *)message->data + call->ncopied, piece);
    call->ncopied += piece;
    if (piece == left) {
        dd_context_move_send_locked(message, call->copy);
        call->is_wanted = false;
        call->hub->nwanted--;
        window_complete_locked(call, &call->work.error);
    }
}

bool
window_copy_wanted_locked(window_hub *hub)
{
    for (dd_list *node = hub->moving.next; hub->nwanted > 0 && node != &hub->moving; node = node->next) {
        window_call *call = DD_CONTAINER_OF(node, window_call, link);
        if (!call->is_wanted) {
            continue;
        }
        call->copy = call->copy == NULL ? dd_mem_alloc(call->message.nbytes) : call->copy;
        if (call->copy == NULL) {
            dd_error error;
            (void)dd_error_no_memory(&error, call->message.nbytes);
            dd_group_fail_locked(hub->group, &error); /* this ends all messages */
            return false;
        }
        copy_piece_locked(call);
        return true;
    }
    return false;
}

/* ---- operations on other ranks */

/* Send a put. Small data is kept here, up to MOVING_MAX_NBYTES; this already completes the put. */
static void
send_put_locked(window_call *call)
{
    window_hub *hub = call->hub;
    window_member *member = &call->window->members[call->args.target.rank];
    bool is_small = call->args.block.nbytes <= WINDOW_SMALL_NBYTES;
    dd_request head = dd_window_command_encode(&(dd_window_command){.type = DD_WINDOW_PUT,
                                                                    .channel = (uint32_t)call->args.channel,
                                                                    .window = call->window_id,
                                                                    .offset = call->args.target.offset,
                                                                    .nbytes = call->args.block.nbytes});
    member->nputs += call->args.block.nbytes > 0 ? 1 : 0;
    set_message(call, &head, is_small ? call->bytes : call->args.block.data);
    if (is_small && hub->moving_nbytes < MOVING_MAX_NBYTES) {
        call->deadline_ns = DD_NEVER_NS;
        window_complete_locked(call, NULL);
    }
    send_by_message_locked(call);
}

/* Send the command of a question, after posting a receive for its answer. */
static dd_status
send_question_locked(window_call *call, dd_error *err)
{
    window_hub *hub = call->hub;
    dd_block target = call->args.block;
    call->id = ++hub->last_id != 0 ? hub->last_id : ++hub->last_id;
    dd_window_command command = {.type = call->args.op->command, .id = call->id, .window = call->window_id};
    if (command.type == DD_WINDOW_SIGNAL_ALONE) {
        command.channel = (uint32_t)call->args.channel;
    } else {
        command.offset = call->args.target.offset;
        command.nbytes = target.nbytes;
        call->nputs = call->window->members[call->args.target.rank].nputs;
    }
    dd_status status = send_command_locked(hub, call->args.target.rank, &command, err);
    if (status == DD_OK) {
        bool has_data = target.nbytes > 0;
        set_message(call,
                    &(dd_request){.tag = call->id,
                                  .channel = DD_WINDOW_ANSWERS,
                                  .nbytes = has_data ? target.nbytes : sizeof call->refusal},
                    has_data ? target.data : &call->refusal);
        call->is_moving = true;
        window_add_locked(call);
        dd_context_post_recv_locked(hub->context, &call->message);
    }
    return status;
}

dd_status
window_send_call_locked(window_call *call, dd_error *err)
{
    dd_assert_holds(ENGINE);
    if (call->args.op->command != DD_WINDOW_PUT) {
        return send_question_locked(call, err);
    }
    send_put_locked(call);
    return DD_OK;
}

void
window_abandon_message_locked(window_call *call, const dd_error *cause)
{
    window_hub *hub = call->hub;
    if (call->args.op->command == DD_WINDOW_PUT) {
        if (call->message.data == call->bytes) {
            window_complete_locked(call, cause);
        } else if (!call->is_wanted) {
            call->work.error = *cause;
            mark_wanted_locked(call);
        }
        return;
    }
    if (call->args.op->command == DD_WINDOW_SIGNAL_ALONE) {
        dd_window_command withdrawal = {
            .type = DD_WINDOW_WITHDRAW, .id = call->id, .window = call->window_id};
        dd_error ignored; /* on failure, the signal is added later after all */
        (void)!send_command_locked(hub, call->args.target.rank, &withdrawal, &ignored);
    }
    dd_context_cancel_locked(hub->context, &call->message, cause);
}

/* ---- answers to other ranks */

/* Answer the question `id`, whose sender expects nbytes bytes. Refuse it if `data` is NULL. */
static void
answer_locked(window_source *source, uint32_t id, uint64_t nbytes, const void *data)
{
    window_hub *hub = source->hub;
    dd_error error;
    dd_request head = {.tag = id,
                       .channel = DD_WINDOW_ANSWERS,
                       .nbytes = data != NULL ? nbytes : DD_WINDOW_REFUSAL_NBYTES(nbytes)};
    source->nanswers++;
    if (send_unawaited_locked(hub, source->rank, &head, data != NULL ? data : "", &error) != DD_OK) {
        dd_group_fail_locked(hub->group, &error); /* else the other rank waits forever */
    }
}

/* Answer another rank's signal_alone, whose signal has been added here or never will be. */
static void
on_granted(dd_work *work, void *ctx)
{
    window_source *source = ctx;
    atomic_fetch_sub(&source->hub->ngrants, 1);
    source->nanswers--;
    answer_locked(source, ((window_call *)work)->id, 0, work->error.code == DD_OK ? "" : NULL);
}

/* Grant another rank's signal_alone: wait, as a call of this rank, until the word is 0. */
static void
grant_locked(window_source *source, dd_window *window)
{
    static const window_op op_grant = {.label = "grant", .word = WINDOW_WORD_OWN_ROOM};
    window_hub *hub = source->hub;
    window_call *call = window_make_call(hub, source->rank, op_grant.label, 0, 0);
    if (call == NULL) {
        dd_error error;
        (void)dd_error_no_memory(&error, sizeof *call);
        dd_group_fail_locked(hub->group, &error);
        return;
    }
    call->args.op = &op_grant;
    call->args.channel = (int)source->command.channel;
    call->window = window;
    call->window_id = window->id;
    call->id = source->command.id;
    call->work.on_done = on_granted;
    call->work.ctx = source;
    atomic_fetch_add(&hub->ngrants, 1);
    source->nanswers++;
    window_add_locked(call);
    dd_work_release(&call->work);
    (void)window_progress_locked(hub);
}

/* End the call that grants a withdrawn question. The other rank discards the answer. */
static void
end_withdrawn_locked(const window_source *source)
{
    window_hub *hub = source->hub;
    for (dd_list *node = hub->waiting.next; node != &hub->waiting; node = node->next) {
        window_call *call = DD_CONTAINER_OF(node, window_call, link);
        if (call->args.op->word == WINDOW_WORD_OWN_ROOM && call->args.target.rank == source->rank &&
            call->id == source->command.id) {
            dd_error cause;
            (void)dd_error_set(&cause, DD_ABORTED, "its caller no longer waits");
            window_end_wait_locked(call, &cause);
            return;
        }
    }
}

void
window_on_signal_taken(dd_window *window, int source)
{
    window_hub *hub = window->hub;
    if (window->members[source].is_direct) {
        window_wake(window, source);
    }
    if (atomic_load(&hub->ngrants) > 0) {
        dd_engine_lock(hub->engine);
        (void)window_progress_locked(hub);
        dd_engine_unlock(hub->engine);
        dd_engine_kick(hub->engine);
    }
}

/* ---- commands from other ranks */

static void
fail_protocol_locked(const window_source *source, const char *label)
{
    dd_error cause;
    char text[512];
    (void)snprintf(text, sizeof text, "broke the protocol of windows: %.400s", label);
    (void)dd_group_error_about(source->hub->group, source->rank, DD_PROTOCOL, text, &cause);
    dd_group_fail_locked(source->hub->group, &cause);
}

static const char *
command_find_fault(const window_source *source, const dd_window *window)
{
    const dd_window_command *command = &source->command;
    if (command->window > source->hub->nwindows) {
        return "a window that was never opened";
    }
    if (window == NULL) {
        return NULL;
    }
    const window_member *own_member = &window->members[source->hub->rank];
    bool is_put = command->type == DD_WINDOW_PUT;
    if (command->offset > own_member->nbytes || command->nbytes > own_member->nbytes - command->offset) {
        return is_put ? "a put out of range" : "a get out of range";
    }
    bool is_channel = command->channel < (uint32_t)window->nchannels ||
                      (is_put && command->channel == DD_WINDOW_NO_CHANNEL);
    return is_channel ? NULL : is_put ? "a put out of range" : "a channel out of range";
}

/* Read a command. If it is malformed, fail the group and return false. */
static bool
read_command_locked(window_source *source, const dd_request *request)
{
    const dd_window_command *command = &source->command;
    dd_error error;
    if (dd_window_command_decode(request, &source->command, &error) != DD_OK) {
        fail_protocol_locked(source, error.message);
        return false;
    }
    const char *fault = command_find_fault(source, find_window_locked(source->hub, command->window));
    if (fault != NULL) {
        char text[256];
        (void)snprintf(text, sizeof text, "%s (window %llu, %llu bytes from %llu, channel %lu)", fault,
                       (unsigned long long)command->window, (unsigned long long)command->nbytes,
                       (unsigned long long)command->offset, (unsigned long)command->channel);
        fail_protocol_locked(source, text);
    }
    return fault == NULL;
}

static void
refuse_locked(window_source *source)
{
    dd_window_command closed = {.type = DD_WINDOW_CLOSED, .window = source->command.window};
    dd_error error;
    if (source->command.type == DD_WINDOW_GET || source->command.type == DD_WINDOW_SIGNAL_ALONE) {
        answer_locked(source, source->command.id, source->command.nbytes, NULL);
    } else if (source->command.type == DD_WINDOW_PUT && source->reported_closed != closed.window) {
        source->reported_closed = closed.window;
        if (send_command_locked(source->hub, source->rank, &closed, &error) != DD_OK) {
            dd_group_fail_locked(source->hub->group, &error);
        }
    }
}

/* Apply a command. `error` is NULL if its data has arrived; if not, its signal is not added. */
static void
apply_locked(window_source *source, const dd_error *error)
{
    window_hub *hub = source->hub;
    const dd_window_command *command = &source->command;
    dd_window *window = find_window_locked(hub, command->window);
    if (window == NULL) {
        refuse_locked(source);
    } else if (command->type == DD_WINDOW_GET) {
        const uint8_t *data = window->members[hub->rank].data;
        answer_locked(source, command->id, command->nbytes,
                      command->nbytes > 0 ? data + command->offset : (const void *)"");
    } else if (command->type == DD_WINDOW_SIGNAL_ALONE) {
        grant_locked(source, window);
    } else if (command->type == DD_WINDOW_WITHDRAW) {
        end_withdrawn_locked(source);
    } else if (command->type == DD_WINDOW_CLOSED) {
        window->members[source->rank].is_closed = true;
        (void)window_progress_locked(hub);
    } else if (error == NULL && command->channel != DD_WINDOW_NO_CHANNEL) {
        size_t word = window_word(window, (int)command->channel, source->rank);
        atomic_fetch_add(&window->members[hub->rank].words[word], 1);
        (void)window_progress_locked(hub);
    }
}

static void
hub_on_goodbye(dd_group_extension *extension, int rank)
{
    window_hub *hub = (window_hub *)extension;
    if (hub->is_ended || hub->sources[rank].is_busy) { /* if busy, on_command calls this later */
        return;
    }
    dd_error cause;
    (void)dd_group_error_about(hub->group, rank, DD_PEER_LOST, "has left the group", &cause);
    window_end_waits_locked(hub, NULL, rank, &cause);
}

/* Apply a command. Continue with the rank's next command, if the context holds one. */
static void
on_command(dd_message *message, const dd_error *error)
{
    window_source *source = message->owner;
    window_hub *hub = source->hub;
    source->is_busy = false;
    if (!hub->is_ended && source->command.type != DD_WINDOW_NOTHING) {
        apply_locked(source, error);
    }
    if (!hub->is_ended) {
        dd_context_take_request_locked(hub->context, source->rank);
    }
    if (!hub->is_ended && !source->is_busy && dd_group_has_left_locked(hub->group, source->rank)) {
        hub_on_goodbye(&hub->extension, source->rank);
    }
}

/* Accept a command whose header has arrived, or an answer to an abandoned call, to be discarded. */
static dd_message *
hub_on_request(dd_group_extension *extension, int rank, const dd_request *request)
{
    window_hub *hub = (window_hub *)extension;
    window_source *source = &hub->sources[rank];
    if (hub->is_ended || source->is_busy) {
        return NULL;
    }
    source->command = (dd_window_command){.type = DD_WINDOW_NOTHING};
    if (request->channel != DD_WINDOW_ANSWERS && !read_command_locked(source, request)) {
        return NULL;
    }
    source->is_busy = true;
    source->is_full = source->command.id != 0 && source->nanswers >= WINDOW_ANSWERS_MAX;
    const dd_window *window = find_window_locked(hub, source->command.window);
    bool is_taken = source->command.type == DD_WINDOW_PUT && source->command.nbytes > 0 && window != NULL;
    source->message =
        (dd_message){.kind = DD_MESSAGE_WINDOW,
                     .rank = rank,
                     .data = is_taken ? window->members[hub->rank].data + source->command.offset : NULL,
                     .nbytes = is_taken ? (size_t)source->command.nbytes : 0,
                     .on_done = on_command,
                     .owner = source};
    return source->is_full ? NULL : &source->message;
}

/* ---- closing, and end of the group */

void
window_close_messages_locked(dd_window *window)
{
    window_hub *hub = window->hub;
    const window_member *own_member = &window->members[hub->rank];
    for (dd_list *node = hub->moving.next; node != &hub->moving; node = node->next) {
        window_call *call = DD_CONTAINER_OF(node, window_call, link);
        const uint8_t *data = call->message.data;
        if (is_answer(call) && data >= own_member->data && data < own_member->data + own_member->nbytes) {
            mark_wanted_locked(call);
        }
    }
    for (int rank = 0; rank < hub->size && !hub->is_ended; rank++) {
        const window_member *member = &window->members[rank];
        const window_source *source = &hub->sources[rank];
        if (source->is_busy && source->command.type == DD_WINDOW_PUT &&
            source->command.window == window->id) {
            dd_error discarded; /* the rest of the put's data is discarded */
            (void)dd_error_set(&discarded, DD_CLOSED, "this rank has closed the window");
            dd_context_cancel_locked(hub->context, &hub->sources[rank].message, &discarded);
        }
        if (!member->is_direct && !member->is_closed && dd_context_is_connected_locked(hub->context, rank)) {
            dd_window_command command = {.type = DD_WINDOW_CLOSED, .window = window->id};
            dd_error error;
            if (send_command_locked(hub, rank, &command, &error) != DD_OK) {
                dd_group_fail_locked(hub->group, &error);
            }
        }
    }
}

/* Apply commands whose data has arrived, so that their signals count. Each starts the next one. */
static void
take_landed_notes_locked(window_hub *hub)
{
    for (int rank = 0; rank < hub->size; rank++) {
        while (dd_context_notify_success_locked(&hub->sources[rank].message)) {
        }
    }
}

static void
on_end(dd_group_extension *extension, const dd_error *cause)
{
    window_hub *hub = (window_hub *)extension;
    if (hub->is_ended) {
        return;
    }
    take_landed_notes_locked(hub);
    window_end_waits_locked(hub, NULL, DD_ANY_RANK, cause);
    hub->is_ended = true;
    for (dd_list *node = hub->windows.next; node != &hub->windows; node = node->next) {
        dd_window *window = DD_CONTAINER_OF(node, dd_window, link);
        if (atomic_load(&window->state) == WINDOW_OPEN) {
            atomic_store(&window->state, WINDOW_ENDED);
        }
    }
    for (int rank = 0; rank < hub->size; rank++) {
        dd_context_cancel_locked(hub->context, &hub->sources[rank].message, cause);
    }
    while (!dd_list_is_empty(&hub->moving)) {
        window_call *call = DD_CONTAINER_OF(hub->moving.next, window_call, link);
        dd_context_cancel_locked(hub->context, &call->message, cause);
    }
}

static void
destroy_hub(dd_group_extension *extension)
{
    dd_mem_free(extension);
}

static window_hub *
make_hub_locked(dd_group *group)
{
    int size = dd_group_size(group);
    window_hub *hub = dd_mem_zalloc(sizeof *hub + (size_t)size * sizeof(window_source));
    if (hub == NULL) {
        return NULL;
    }
    hub->extension = (dd_group_extension){
        .on_request = hub_on_request, .on_goodbye = hub_on_goodbye, .on_end = on_end, .destroy = destroy_hub};
    hub->group = group;
    hub->engine = dd_group_engine(group);
    hub->rank = dd_group_rank(group);
    hub->size = size;
    dd_list_init(&hub->windows);
    dd_list_init(&hub->waiting);
    dd_list_init(&hub->moving);
    for (int rank = 0; rank < size; rank++) {
        hub->sources[rank].hub = hub;
        hub->sources[rank].rank = rank;
    }
    dd_group_set_extension_locked(group, &hub->extension);
    hub->context = hub->extension.context;
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
        window_hub *found = (window_hub *)dd_group_find_extension_locked(group);
        found = found == NULL ? make_hub_locked(group) : found;
        if (found == NULL) {
            status = dd_error_no_memory(err, sizeof *found);
        } else {
            *id = ++found->nwindows;
            *hub = found;
        }
    }
    dd_engine_unlock(dd_group_engine(group));
    return status;
}
