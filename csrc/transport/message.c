#include "transport/engine_internal.h"

#include "core/assert.h"
#include "core/dtype.h"
#include "core/mem.h"

#include <stdarg.h>
#include <stdio.h>

/* Error of a failed message for which no memory for an error was available. */
static const dd_error no_memory_error = {
    .code = DD_OUT_OF_MEMORY,
    .blamed = {.rank = -1},
    .message = "out of memory while reporting a failed message",
};

/* ---- ending messages */

void
message_unpost(dd_message *message)
{
    if (message->peer != NULL) {
        message->peer->nexpected--;
    } else {
        message->context->engine->nany--;
    }
    dd_list_remove(&message->link);
}

void
message_end(dd_message *message, const dd_error *error)
{
    dd_engine *engine = message->context->engine;
    if (message->stage == STAGE_POSTED) {
        message_unpost(message);
    }
    dd_list_remove(&message->link);
    message->stage = STAGE_DONE;
    if (error != NULL) {
        message->failure = dd_mem_alloc(sizeof *message->failure);
        if (message->failure == NULL) {
            message->failure = (dd_error *)(uintptr_t)&no_memory_error;
        } else {
            *message->failure = *error;
        }
    }
    dd_list_push_back(&engine->done, &message->link);
}

void
message_fail(dd_message *message, dd_status code, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const dd_endpoint *endpoint = &message->peer->endpoint;
    dd_error error;
    if (message->peer->is_self) {
        (void)dd_error_set(&error, code, "rank %d of this process %s", message->source, text);
    } else {
        (void)dd_error_set(&error, code, "rank %d (%s, pid %lld) %s", message->source, endpoint->host,
                           endpoint->pid, text);
    }
    dd_error_blame(&error, message->source, endpoint->host, endpoint->pid);
    message_end(message, &error);
}

void
message_fail_closed(dd_message *message)
{
    message_fail(message, DD_PEER_LOST, "has closed the group");
}

void
message_fail_lost(dd_message *message)
{
    dd_error error = *message->peer->error;
    error.blamed.rank = message->source;
    message_end(message, &error);
}

void
message_fail_memory(dd_message *message, size_t nbytes)
{
    dd_error error;
    (void)dd_error_no_memory(&error, nbytes);
    message_end(message, &error);
}

void
message_notify(dd_message *message)
{
    dd_error *failure = message->failure;
    dd_assert(message->is_posted && message->stage == STAGE_DONE && message->context->engine->nposted > 0);
    dd_list_remove(&message->link);
    message->context->engine->nposted--;
    message->stage = STAGE_IDLE;
    message->is_posted = false;
    message->failure = NULL;
    message->on_done(message, failure);
    if (failure != &no_memory_error) {
        dd_mem_free(failure);
    }
}

void
engine_notify_done(dd_engine *engine)
{
    while (!dd_list_is_empty(&engine->done)) {
        message_notify(DD_CONTAINER_OF(engine->done.next, dd_message, link));
    }
}

bool
dd_context_notify_locked(dd_message *message)
{
    dd_assert_holds(ENGINE);
    if (message->stage == STAGE_DONE) {
        message_notify(message);
    }
    return !message->is_posted;
}

bool
dd_context_notify_success_locked(dd_message *message)
{
    bool has_succeeded = message->is_posted && message->stage == STAGE_DONE && message->failure == NULL;
    if (has_succeeded) {
        message_notify(message);
    }
    return has_succeeded;
}

/* ---- messages that do not fit the other side's message */

/* End a P2P message because the other side's message has another dtype. */
static void
fail_dtype(dd_message *message, const dd_signature *peer_signature)
{
    const dd_signature *own_signature = message->signature;
    message_fail(
        message, DD_MISMATCH,
        message->is_send
            ? "expects %llu elements of %s (tag %llu), got %llu of %s: send that dtype, or receive uint8"
            : "has sent %llu elements of %s (tag %llu), expected %llu of %s: receive that dtype, or uint8",
        (unsigned long long)peer_signature->count, dd_signature_dtype_name(peer_signature, (char[9]){""}),
        (unsigned long long)(message->is_send ? message->tag : message->sent_tag),
        (unsigned long long)own_signature->count, dd_signature_dtype_name(own_signature, (char[9]){""}));
}

void
message_fail_misfit(dd_message *message, int reason, const dd_signature *peer_signature, uint64_t nbytes)
{
    unsigned long long their_nbytes = nbytes;
    if (reason == DD_REFUSED_CLOSED) {
        message_fail_closed(message);
    } else if (reason == DD_REFUSED_MISMATCH && message->kind == DD_MESSAGE_P2P &&
               message->signature != NULL) {
        fail_dtype(message, peer_signature);
    } else if (reason == DD_REFUSED_TOO_LARGE) {
        message_fail(message, DD_INVALID_ARGUMENT,
                     message->is_send ? "has a buffer of %llu bytes, got a message of %zu"
                                      : "has sent %llu bytes, expected at most %zu",
                     their_nbytes, message->nbytes);
    } else if (!message->is_send && nbytes != message->nbytes) {
        message_fail(message, DD_MISMATCH, "has sent %llu bytes, expected %zu", their_nbytes,
                     message->nbytes);
    } else {
        message_fail(message, DD_MISMATCH, "is in another operation: call the same ones in one order");
    }
}
