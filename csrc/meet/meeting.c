#include "meet/internal.h"

#include "net/auth.h"

#include <stdio.h>
#include <string.h>

#define POST_FAILURE_NS DD_NS_PER_S
#define CANCEL_NS (2 * DD_NS_PER_S)

/* Create a failure that all ranks of this meeting receive. */
static dd_status
raise_failure(const meeting_call *call, dd_error *failure, dd_error *err)
{
    char title[MEETING_TITLE_MAX];
    dd_error_prepend(failure, "%s (rank %d of %d)", meeting_print_title(call, title),
                     meeting_name_of(call, call->meeting->rank), call->meeting->size);
    return dd_error_copy(err, failure);
}

/* Read another rank's payload. Return DD_STORE if the bytes are malformed. */
static dd_status
read_other(const meeting_call *call, dd_bytes published, const char *label, dd_meeting_member *member,
           dd_error *err)
{
    char title[MEETING_TITLE_MAX];
    return meeting_read_member(call, published, member)
               ? DD_OK
               : dd_error_set(
                     err, DD_STORE,
                     "malformed value in the store for %s of %s; does another program use the same keys?",
                     label, meeting_print_title(call, title));
}

/* ---- ends of meetings */

static dd_status
set_end(const meeting_call *call, dd_bytes end, dd_error *err)
{
    dd_blob value = {0};
    dd_status status = meeting_set_if_missing(&call->keys, meeting_key(&call->keys, "end"), end, &value, err);
    dd_blob_fini(&value);
    return status == DD_OK ? meeting_advance_generation(&call->keys, err) : status;
}

/* End the meeting with a failure for all its ranks. If several ranks do so, the first is kept. */
static dd_status
end_meeting(const meeting_call *call, const dd_error *failure, dd_error *err)
{
    char text[MEETING_FAILURE_MAX];
    return set_end(call, dd_bytes_of(text, meeting_encode_failure(failure, text)), err);
}

/* Cancel the meeting: all its ranks go on to the next one. If the store is lost before that, the
 * ranks return `why`, which is NULL if there is no reason. */
static dd_status
cancel_meeting(const meeting_call *call, const dd_error *why, dd_error *err)
{
    char text[MEETING_FAILURE_MAX];
    return set_end(call, dd_bytes_of(text, meeting_encode_cancelled(why, text)), err);
}

/* Handle this rank's timeout: end the meeting, for the other ranks as well. */
static dd_status
end_timed_out(meeting_call *call, dd_error *err)
{
    dd_error late;
    char title[MEETING_TITLE_MAX];
    dd_status status = meeting_error_absent(call, &late);
    dd_wait moment = dd_wait_after(CANCEL_NS);
    meeting_call last = *call;
    last.keys.wait = &moment;
    /* If this fails, the next rank that joins ends the meeting instead. */
    (void)!(call->meeting->kind->is_final ? end_meeting(&last, &late, NULL)
                                          : cancel_meeting(&last, &late, NULL));
    call->has_joined = false;
    dd_error_prepend(&late, "%s", meeting_print_title(call, title));
    (void)dd_error_copy(err, &late);
    return status;
}

/* Write this rank's failure for the other ranks. False if this rank's payload is malformed. */
static bool
explain_own_failure(const meeting_call *call, const dd_error *why, dd_error *reported)
{
    dd_meeting_member own_member;
    char rank_name[128];
    if (!meeting_read_member(call, call->own, &own_member)) {
        return false;
    }
    meeting_print_member(call, call->meeting->rank, &own_member, rank_name);
    if (why->code == DD_INTERRUPTED) {
        dd_error_set(reported, DD_ABORTED, "%s %s", rank_name, call->meeting->kind->of_interrupted);
    } else {
        dd_error_set(reported, DD_ABORTED, "%s has left: %s", rank_name, why->message);
    }
    dd_error_blame(reported, meeting_name_of(call, call->meeting->rank), own_member.host, own_member.pid);
    return true;
}

/* Handle the meeting's end: it is cancelled (sets *is_done), has failed, or has all payloads. */
static dd_status
read_end(meeting_call *call, dd_bytes value, dd_meeting_end *end, bool *is_done, dd_error *err)
{
    dd_error failure;
    dd_error why;
    call->has_joined = false;
    *is_done = meeting_decode_cancelled(value, &why);
    if (why.code != DD_OK) {
        call->cancel_reason = why;
    }
    bool is_failure = meeting_decode_failure(value, &failure);
    if (!*is_done && !is_failure) {
        return meeting_decode_end(call->meeting->size, value, end, err);
    }
    dd_status status = meeting_advance_generation(&call->keys, err);
    return status == DD_OK && is_failure ? raise_failure(call, &failure, err) : status;
}

/* ---- ranks that cannot meet */

/* Cancel the meeting if the process that published these bytes is dead. This first check never
 * finds a process on another host dead. */
static dd_status
cancel_if_dead(const meeting_call *call, dd_bytes published, bool *is_cancelled, dd_error *err)
{
    bool was_seen = false;
    dd_status status = meeting_check_process(call, published, &was_seen, is_cancelled, err);
    return status == DD_OK && *is_cancelled ? cancel_meeting(call, NULL, err) : status;
}

/* Read the payloads of this rank and of a process that it cannot meet. If that process is dead,
 * cancel its meeting. */
static dd_status
read_both(const meeting_call *call, dd_bytes published, const char *label, dd_meeting_member members[2],
          bool *is_cancelled, dd_error *err)
{
    dd_status status = read_other(call, published, label, &members[0], err);
    if (status == DD_OK && !meeting_read_member(call, call->own, &members[1])) {
        status = dd_error_set(err, DD_INTERNAL, "malformed payload of this rank");
    }
    return status == DD_OK ? cancel_if_dead(call, published, is_cancelled, err) : status;
}

/* End the meeting for all its ranks. They blame this rank, and this rank blames the other one. */
static dd_status
end_for_both(const meeting_call *call, dd_error *failure, int other_rank, const dd_meeting_member members[2],
             dd_error *err)
{
    dd_error_blame(failure, meeting_name_of(call, call->meeting->rank), members[1].host, members[1].pid);
    dd_status status = end_meeting(call, failure, err);
    dd_error_blame(failure, meeting_name_of(call, other_rank), members[0].host, members[0].pid);
    return status == DD_OK ? raise_failure(call, failure, err) : status;
}

/* Handle another process that has joined as this rank. If it runs, all ranks receive an error: no
 * rank can know which of the two processes is the right one. */
static dd_status
resolve_taken(const meeting_call *call, dd_bytes taken, bool *is_done, dd_error *err)
{
    int rank = call->meeting->rank;
    int name = meeting_name_of(call, rank);
    char label[32];
    dd_meeting_member members[2];
    snprintf(label, sizeof label, "rank %d", name);
    dd_status status = read_both(call, taken, label, members, is_done, err);
    if (status != DD_OK || *is_done) {
        return status;
    }
    dd_error error;
    dd_error_set(&error, DD_MISMATCH,
                 "rank %d was started twice: got (%s, pid %lld) and (%s, pid %lld), expected one process for "
                 "each rank",
                 name, members[0].host, members[0].pid, members[1].host, members[1].pid);
    return end_for_both(call, &error, rank, members, err);
}

/* Split the value of the key "size": "<size> <rank>", a newline, and what that rank published. */
static bool
split_size(dd_bytes value, int *size, int *rank, dd_bytes *published)
{
    char line[32];
    meeting_copy_text(value, line, sizeof line);
    const char *newline = strchr(line, '\n');
    size_t len = newline != NULL ? (size_t)(newline - line) + 1 : 0;
    *published = dd_bytes_after(value, len);
    return len > 0 && sscanf(line, "%d %d", size, rank) == 2;
}

/* Handle another rank that joined with another size. If that rank is dead, cancel its meeting.
 * Otherwise both ranks wait for ranks that cannot all join, so both receive the error. */
static dd_status
resolve_sizes(const meeting_call *call, dd_bytes value, bool *is_done, dd_error *err)
{
    const dd_meeting *meeting = call->meeting;
    int size = 0;
    int rank = 0;
    dd_bytes published;
    dd_meeting_member members[2];
    bool is_valid = split_size(value, &size, &rank, &published);
    dd_status status =
        read_both(call, is_valid ? published : (dd_bytes){0}, "the size", members, is_done, err);
    if (status != DD_OK || *is_done) {
        return status;
    }
    char first[128];
    char second[128];
    dd_error error;
    dd_error_set(&error, DD_MISMATCH, "ranks disagree on the number of ranks: %s has %d, %s has %d",
                 meeting_print_member(call, rank, &members[0], first), size,
                 meeting_print_member(call, meeting->rank, &members[1], second), meeting->size);
    return end_for_both(call, &error, rank, members, err);
}

/* ---- waiting */

/* Wait for the end of the meeting, and check regularly that another rank is still alive. */
static dd_status
await_end(meeting_call *call, dd_blob *value, dd_error *err)
{
    meeting_watch watch = {.rank = -1};
    meeting_entry entry = {call->meeting->rank, call->meeting->size, call->own};
    int64_t interval_ns = meeting_watch_interval_ns(call->meeting);
    dd_status status = DD_OK;
    bool is_late = false;
    bool has_ended = false;
    for (int npolls = 0; status == DD_OK && !has_ended; npolls++) {
        dd_wait slice = dd_wait_at_most(call->keys.wait, interval_ns);
        int64_t before_ns = dd_clock_now_ns();
        status = dd_store_get(call->keys.store, meeting_key(&call->keys, "end"), value, &slice, err);
        is_late = status == DD_TIMED_OUT || status == DD_NETWORK_TIMED_OUT;
        if (!is_late || dd_wait_has_expired(call->keys.wait)) {
            break;
        }
        if (status == DD_NETWORK_TIMED_OUT || dd_clock_now_ns() - before_ns > 2 * interval_ns) {
            interval_ns *= 2; /* the interval is too short for a store as slow as this */
        }
        is_late = false;
        status = meeting_end_for_last_rank(&call->keys, &entry, npolls, value, &has_ended, err);
        if (status == DD_OK && !has_ended) {
            status = meeting_check_watched(call, &watch, err);
        }
        if (status == DD_PEER_LOST) {
            dd_error lost = *err;
            status = end_meeting(call, &lost, err); /* the next turn of the loop reads this end */
        }
    }
    dd_blob_fini(&watch.published);
    return is_late ? end_timed_out(call, err) : status;
}

/* ---- joining and leaving */

/* Return true if this rank has joined the current meeting: it may have been interrupted after its
 * request, but before the reply. */
static bool
find_own(meeting_call *call)
{
    dd_blob value = {0};
    bool is_found = false;
    dd_status status = meeting_read_generation(&call->keys, NULL);
    if (status == DD_OK) {
        status = meeting_try_get(&call->keys, meeting_key(&call->keys, "rank/%d", call->meeting->rank),
                                 &value, &is_found, NULL);
    }
    bool is_own = status == DD_OK && is_found && dd_bytes_equal(dd_blob_view(&value), call->own);
    dd_blob_fini(&value);
    return is_own;
}

/* End the meeting for all ranks, because this rank has joined it and cannot continue. */
static void
end_after_own_failure(const meeting_call *call, bool is_known, const dd_error *why)
{
    dd_wait moment = dd_wait_after(POST_FAILURE_NS);
    meeting_call last = *call;
    dd_error reported;
    last.keys.wait = &moment;
    if (explain_own_failure(call, why, &reported) && (is_known || find_own(&last))) {
        (void)!end_meeting(&last, &reported, NULL); /* ignore errors: the store may have failed */
    }
}

static dd_status
take_reply(meeting_call *call, dd_store_result *reply, dd_meeting_end *end, bool *is_done, dd_error *err)
{
    dd_status status = DD_OK;
    switch ((dd_meet_state)reply->state) {
    case DD_MEET_WAITING:
        status = await_end(call, &reply->value, err);
        return status == DD_OK ? read_end(call, dd_blob_view(&reply->value), end, is_done, err) : status;
    case DD_MEET_ENDED:
        return read_end(call, dd_blob_view(&reply->value), end, is_done, err);
    case DD_MEET_RESIZED:
        return resolve_sizes(call, dd_blob_view(&reply->value), is_done, err);
    case DD_MEET_TAKEN:
        return resolve_taken(call, dd_blob_view(&reply->value), is_done, err);
    case DD_MEET_AGAIN:
        break;
    }
    *is_done = true;
    return DD_OK;
}

/* Try once to join the current meeting. Sets *is_done if it was cancelled: join the next one. */
static dd_status
attempt(meeting_call *call, const dd_store_request *request, dd_meeting_end *end, bool *is_done,
        dd_error *err)
{
    dd_store_result reply = {0};
    *is_done = false;
    dd_status status = dd_store_run(call->keys.store, request, &reply, call->keys.wait, err);
    bool is_known = status == DD_OK || reply.flag;
    call->has_joined = status != DD_OK || reply.state <= DD_MEET_ENDED;
    if (is_known) {
        call->keys.generation = (uint64_t)reply.number;
        call->first_generation = call->has_begun ? call->first_generation : call->keys.generation;
        call->has_begun = true;
    }
    if (status == DD_OK) {
        status = take_reply(call, &reply, end, is_done, err);
    }
    if (status != DD_OK && call->has_joined) {
        end_after_own_failure(call, is_known, err);
    }
    dd_store_result_fini(&reply);
    return status;
}

/* Run meetings until one succeeds or fails. Sets `published` to a nonce and this rank's payload. */
static dd_status
run_meeting(meeting_call *call, dd_blob *published, dd_meeting_end *end, dd_error *err)
{
    const dd_meeting *meeting = call->meeting;
    uint8_t nonce[MEETING_NONCE_BYTES];
    bool is_done = true;
    dd_status status = dd_auth_random(nonce, sizeof nonce, err);
    if (status == DD_OK) {
        status = dd_blob_append(published, nonce, sizeof nonce, err);
    }
    if (status == DD_OK) {
        status = dd_blob_append(published, meeting->payload.data, meeting->payload.len, err);
    }
    dd_bytes prefix = dd_bytes_of(call->keys.text, call->keys.prefix_len);
    call->own = dd_blob_view(published);
    dd_store_request request = {
        .op = DD_STORE_MEET,
        .keys = &prefix,
        .nkeys = 1,
        .values = &call->own,
        .number = dd_store_meet_number(meeting->rank, meeting->size, meeting->kind->is_final),
    };
    while (status == DD_OK && is_done) {
        status = attempt(call, &request, end, &is_done, err);
        bool is_late = status == DD_TIMED_OUT || (status == DD_OK && is_done);
        if (is_late && dd_wait_has_expired(call->keys.wait)) {
            status = end_timed_out(call, err);
        }
    }
    end->generation = status == DD_OK ? call->keys.generation : end->generation;
    return status;
}

/* Explain the loss of the store's server. Its process may have ended because it had cancelled a
 * meeting: then blame the ranks for which it waited, not the loss of the server. */
static dd_status
explain_lost_store(const meeting_call *call, dd_error *err)
{
    char title[MEETING_TITLE_MAX];
    dd_error why = call->cancel_reason;
    if (err->code != DD_NETWORK || why.code == DD_OK) {
        return err->code;
    }
    dd_error lost = *err;
    dd_error_set(err, why.code, "%s (rank %d of %d): %.500s; then the store failed: %.300s",
                 meeting_print_title(call, title), meeting_name_of(call, call->meeting->rank),
                 call->meeting->size, why.message, lost.message);
    err->blamed = why.blamed;
    return err->code;
}

dd_status
dd_meet(const dd_meeting *meeting, dd_meeting_end *end, const dd_wait *wait, dd_error *err)
{
    dd_error error;
    dd_blob published = {0};
    meeting_call call = {.meeting = meeting};
    if (meeting->name.len > DD_MEETING_NAME_MAX) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "the name of the %s is too long: got %zu bytes, expected at most %d",
                            meeting->kind->noun, meeting->name.len, DD_MEETING_NAME_MAX);
    }
    dd_status status = meeting_keys_init(&call.keys, meeting->store, "dldist/", meeting->name, wait, &error);
    if (status == DD_OK) {
        status = run_meeting(&call, &published, end, &error);
        status = status != DD_OK ? explain_lost_store(&call, &error) : DD_OK;
    }
    dd_blob_fini(&published);
    meeting_keys_fini(&call.keys);
    return status == DD_OK ? DD_OK : dd_error_copy(err, &error);
}
