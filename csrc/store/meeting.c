#include "store/meeting_internal.h"

#include "core/mem.h"
#include "net/auth.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LAST_WORDS_NS DD_NS_PER_S
#define CALL_OFF_NS (2 * DD_NS_PER_S)

/* ---- words */

bool
meeting_read(const meeting_place *place, dd_bytes published, dd_meeting_member *member)
{
    return published.len >= MEETING_NONCE_BYTES &&
           place->meeting->kind->read_card(meeting_card_of(published), member);
}

int
meeting_name_of(const meeting_place *place, int rank)
{
    const dd_meeting *meeting = place->meeting;
    return meeting->ranks != NULL && rank >= 0 && rank < meeting->size ? meeting->ranks[rank] : rank;
}

const char *
meeting_print_member(const meeting_place *place, int rank, const dd_meeting_member *member, char out[128])
{
    snprintf(out, 128, "rank %d (%s, pid %lld)", meeting_name_of(place, rank), member->host, member->pid);
    return out;
}

static void
prepend_meeting(const meeting_place *place, dd_error *err)
{
    const dd_meeting *meeting = place->meeting;
    dd_error_prepend(err, "%s \"%.*s\" (rank %d of %d)", meeting->kind->noun, (int)meeting->name.len,
                     (const char *)meeting->name.data, meeting_name_of(place, meeting->rank), meeting->size);
}

/* What another rank has published: DD_STORE if it is nothing of the kind. */
static dd_status
read_other(const meeting_place *place, dd_bytes published, const char *what, dd_meeting_member *member,
           dd_error *err)
{
    const dd_meeting *meeting = place->meeting;
    if (meeting_read(place, published, member)) {
        return DD_OK;
    }
    return dd_error_set(err, DD_STORE, "the store holds something else where %s of %s \"%.*s\" should be",
                        what, meeting->kind->noun, (int)meeting->name.len, (const char *)meeting->name.data);
}

static dd_status
read_own(const meeting_place *place, dd_meeting_member *member, dd_error *err)
{
    return meeting_read(place, place->own, member)
               ? DD_OK
               : dd_error_set(err, DD_INTERNAL, "a rank cannot read its own card");
}

/* ---- ends */

static dd_status
leave_generation(meeting_place *place, dd_error *err)
{
    return meeting_leave_generation(place->store, &place->keys, place->generation, place->wait, err);
}

/* The first who ends a meeting settles how. */
static dd_status
end_meeting(meeting_place *place, dd_bytes end, dd_error *err)
{
    dd_blob value = {0};
    dd_status status =
        place->store->ops->compare_set(place->store, meeting_part_key(&place->keys, place->generation, "end"),
                                       dd_bytes_of_string(""), end, &value, place->wait, err);
    dd_blob_fini(&value);
    return status == DD_OK ? leave_generation(place, err) : status;
}

static dd_status
call_off(meeting_place *place, dd_error *err)
{
    return end_meeting(place, dd_bytes_of_string(MEETING_END_OFF), err);
}

/* All ranks that have come raise the error. */
static dd_status
fail_meeting(meeting_place *place, const dd_error *error, dd_error *err)
{
    char end[MEETING_FAILURE_MAX];
    return end_meeting(place, dd_bytes_of(end, meeting_encode_failure(error, end)), err);
}

/* Ends the meeting for the others, too. */
static dd_status
run_out_of_time(meeting_place *place, dd_error *err)
{
    const dd_meeting *meeting = place->meeting;
    dd_error late;
    dd_status status = meeting_error_absent(place, &late);
    const dd_wait *callers = place->wait;
    dd_wait moment = dd_wait_after(CALL_OFF_NS);
    place->wait = &moment;
    dd_status ignored = meeting->kind->is_final ? fail_meeting(place, &late, NULL) : call_off(place, NULL);
    (void)ignored; /* the next who comes will see to it */
    place->wait = callers;
    place->has_come = false;
    dd_error_prepend(&late, "%s \"%.*s\"", meeting->kind->noun, (int)meeting->name.len,
                     (const char *)meeting->name.data);
    (void)dd_error_copy(err, &late);
    return status;
}

/* What the others are told of a rank that cannot go on. False: it cannot read its own card. */
static bool
explain_own_failure(const meeting_place *place, const dd_error *why, dd_error *told)
{
    dd_meeting_member own;
    char who[128];
    if (!meeting_read(place, place->own, &own)) {
        return false;
    }
    meeting_print_member(place, place->meeting->rank, &own, who);
    if (why->code == DD_INTERRUPTED) {
        dd_error_set(told, DD_ABORTED, "%s %s", who, place->meeting->kind->of_interrupted);
    } else {
        dd_error_set(told, DD_ABORTED, "%s has given up: %s", who, why->message);
    }
    dd_error_blame(told, meeting_name_of(place, place->meeting->rank), own.host, own.pid);
    return true;
}

/* The meeting is over, and the others go on. */
static void
post_own_failure(const meeting_place *place, const dd_error *why)
{
    dd_error told;
    dd_error first;
    if (explain_own_failure(place, why, &told)) {
        dd_meeting_post(place->store, place->meeting->name, place->generation, &told, &first);
    }
}

/* What the store says of the end: that it was called off, that it has failed, or who is there. */
static dd_status
read_end(meeting_place *place, dd_bytes said, dd_meeting_end *end, bool *is_over, dd_error *err)
{
    dd_error failure;
    place->has_come = false;
    if (dd_bytes_equal(said, dd_bytes_of_string(MEETING_END_OFF))) {
        *is_over = true;
        return leave_generation(place, err);
    }
    if (meeting_decode_failure(said, &failure)) {
        dd_status status = leave_generation(place, err);
        prepend_meeting(place, &failure);
        return status == DD_OK ? dd_error_copy(err, &failure) : status;
    }
    size_t napart = 0;
    dd_status status = meeting_decode_end(place->meeting->size, said, end, &napart, err);
    if (status == DD_OK && napart > 0) {
        status = meeting_take_cards(place, napart, end, err);
        if (status != DD_OK) {
            post_own_failure(place, err);
        }
    }
    return status;
}

/* ---- whom one cannot meet with */

/* Calls the meeting off if the process that has published this is dead. One on another host is never known to be dead
 * so soon. */
static dd_status
abandon_if_dead(meeting_place *place, dd_bytes published, bool *is_abandoned, dd_error *err)
{
    const dd_meeting_kind *kind = place->meeting->kind;
    bool was_seen = false;
    dd_status status = DD_OK;
    if (kind->look_for != NULL) {
        status = kind->look_for(meeting_card_of(published), place->meeting->card, &was_seen, is_abandoned,
                                place->wait, err);
    }
    return status == DD_OK && *is_abandoned ? call_off(place, err) : status;
}

/* The place of this rank is taken: by a dead process, or by a live one. */
static dd_status
examine_taken(meeting_place *place, dd_bytes taken, bool *is_over, dd_error *err)
{
    const dd_meeting *meeting = place->meeting;
    int name = meeting_name_of(place, meeting->rank);
    char what[32];
    dd_meeting_member member;
    snprintf(what, sizeof what, "rank %d", name);
    dd_status status = read_other(place, taken, what, &member, err);
    if (status == DD_OK) {
        status = abandon_if_dead(place, taken, is_over, err);
    }
    if (status != DD_OK || *is_over) {
        return status;
    }
    dd_error_set(err, DD_INVALID_ARGUMENT, "rank %d of %s \"%.*s\" is taken: by %s, pid %lld", name,
                 meeting->kind->noun, (int)meeting->name.len, (const char *)meeting->name.data, member.host,
                 member.pid);
    dd_error_blame(err, name, member.host, member.pid);
    return DD_INVALID_ARGUMENT;
}

/* "<size> <rank>", a newline, and what that rank has published. */
static bool
split_size(dd_bytes said, int *size, int *rank, dd_bytes *published)
{
    char line[32] = "";
    memcpy(line, said.data, said.len < sizeof line - 1 ? said.len : sizeof line - 1);
    const char *newline = strchr(line, '\n');
    size_t len = newline != NULL ? (size_t)(newline - line) + 1 : 0;
    *published = dd_bytes_of(said.data + len, said.len - len);
    return len > 0 && sscanf(line, "%d %d", size, rank) == 2;
}

/* Another rank has come with another number of ranks. If it is dead, what it began is abandoned; else
 * neither it nor this rank can ever meet the ranks it waits for, and both are told. */
static dd_status
settle_sizes(meeting_place *place, dd_bytes said, bool *is_over, dd_error *err)
{
    const dd_meeting *meeting = place->meeting;
    int size = 0;
    int rank = 0;
    dd_bytes published;
    dd_meeting_member theirs;
    dd_meeting_member own;
    bool is_said = split_size(said, &size, &rank, &published);
    dd_status status = read_other(place, is_said ? published : (dd_bytes){0}, "the size", &theirs, err);
    if (status == DD_OK) {
        status = read_own(place, &own, err);
    }
    if (status == DD_OK) {
        status = abandon_if_dead(place, published, is_over, err);
    }
    if (status != DD_OK || *is_over) {
        return status;
    }
    char first[128];
    char second[128];
    dd_error error;
    dd_error_set(&error, DD_MISMATCH, "%s says that it has %d ranks, and %s that it has %d",
                 meeting_print_member(place, rank, &theirs, first), size,
                 meeting_print_member(place, meeting->rank, &own, second), meeting->size);
    dd_error_blame(&error, meeting_name_of(place, meeting->rank), own.host, own.pid);
    status = fail_meeting(place, &error, err);
    if (status == DD_OK) {
        dd_error_blame(&error, meeting_name_of(place, rank), theirs.host, theirs.pid);
        prepend_meeting(place, &error);
        status = dd_error_copy(err, &error);
    }
    return status;
}

/* ---- waiting */

/* Until somebody has ended the meeting; looks meanwhile whether another one who has come is still alive. */
static dd_status
await_end(meeting_place *place, dd_blob *said, dd_error *err)
{
    meeting_watch watch = {.rank = -1};
    int64_t interval_ns = meeting_watch_interval_ns(place->meeting);
    dd_status status = DD_OK;
    while (status == DD_OK) {
        dd_wait slice = dd_wait_at_most(place->wait, interval_ns);
        int64_t before_ns = dd_clock_now_ns();
        status = place->store->ops->get(
            place->store, meeting_part_key(&place->keys, place->generation, "end"), said, &slice, err);
        bool is_late = status == DD_TIMED_OUT || status == DD_NETWORK_TIMED_OUT;
        if (!is_late || dd_wait_is_over(place->wait)) {
            break;
        }
        if (status == DD_NETWORK_TIMED_OUT || dd_clock_now_ns() - before_ns > 2 * interval_ns) {
            interval_ns *= 2; /* so short a question is too short for this store */
        }
        status = meeting_look_after(place, &watch, err);
        if (status == DD_PEER_LOST) {
            dd_error lost = *err;
            status = fail_meeting(place, &lost, err); /* and reads that, or what came before it */
        }
    }
    dd_blob_fini(&watch.published);
    bool is_late = status == DD_TIMED_OUT || status == DD_NETWORK_TIMED_OUT;
    return is_late ? run_out_of_time(place, err) : status;
}

/* ---- coming and going */

/* Where this rank has come to, if it was interrupted before it heard. */
static bool
find_own(meeting_place *place)
{
    dd_blob value = {0};
    bool is_found = false;
    dd_store *store = place->store;
    dd_status status = meeting_read_generation(store, &place->keys, &place->generation, place->wait, NULL);
    if (status == DD_OK) {
        status = store->ops->try_get(
            store, meeting_rank_key(&place->keys, place->generation, "rank", place->meeting->rank), &value,
            &is_found, place->wait, NULL);
    }
    bool is_own = status == DD_OK && is_found && dd_bytes_equal(dd_blob_view(&value), place->own);
    dd_blob_fini(&value);
    return is_own;
}

/* This rank has come and cannot go on: nobody is to wait for it. */
static void
give_up(meeting_place *place, bool is_known, const dd_error *why)
{
    dd_wait moment = dd_wait_after(LAST_WORDS_NS);
    dd_error told;
    const dd_wait *callers = place->wait;
    place->wait = &moment;
    if (explain_own_failure(place, why, &told) && (is_known || find_own(place))) {
        dd_status ignored = fail_meeting(place, &told, NULL); /* the store itself may be what has failed */
        (void)ignored;
    }
    place->wait = callers;
}

static void
note_generation(meeting_place *place, uint64_t generation)
{
    place->generation = generation;
    place->first_generation = place->has_begun ? place->first_generation : generation;
    place->has_begun = true;
}

static dd_status
take_reply(meeting_place *place, dd_meet_reply *reply, dd_meeting_end *end, bool *is_over, dd_error *err)
{
    dd_status status = DD_OK;
    switch (reply->state) {
    case DD_MEET_WAITING:
        status = await_end(place, &reply->value, err);
        return status == DD_OK ? read_end(place, dd_blob_view(&reply->value), end, is_over, err) : status;
    case DD_MEET_ENDED:
        return read_end(place, dd_blob_view(&reply->value), end, is_over, err);
    case DD_MEET_RESIZED:
        return settle_sizes(place, dd_blob_view(&reply->value), is_over, err);
    case DD_MEET_TAKEN:
        return examine_taken(place, dd_blob_view(&reply->value), is_over, err);
    case DD_MEET_AGAIN:
        break;
    }
    *is_over = true;
    return DD_OK;
}

/* One attempt in the generation that is now. */
static dd_status
attempt(meeting_place *place, const dd_meet_request *request, dd_meeting_end *end, bool *is_over,
        dd_error *err)
{
    dd_meet_reply reply = {0};
    *is_over = false;
    dd_status status = dd_store_meet(place->store, request, &reply, place->wait, err);
    bool is_known = status == DD_OK || reply.has_come;
    place->has_come = reply.has_come || !is_known;
    if (is_known) {
        note_generation(place, reply.generation);
    }
    if (status == DD_OK) {
        status = take_reply(place, &reply, end, is_over, err);
    }
    if (status != DD_OK && place->has_come) {
        give_up(place, is_known, err);
    }
    dd_blob_fini(&reply.value);
    return status;
}

/* What to publish: a nonce and the card. */
static dd_status
publish(const dd_meeting *meeting, dd_blob *published, dd_error *err)
{
    uint8_t nonce[MEETING_NONCE_BYTES];
    dd_status status = dd_auth_random(nonce, sizeof nonce, err);
    if (status == DD_OK) {
        status = dd_blob_append(published, nonce, sizeof nonce, err);
    }
    return status == DD_OK ? dd_blob_append(published, meeting->card.data, meeting->card.len, err) : status;
}

static dd_status
meet(meeting_place *place, const dd_meet_request *request, dd_meeting_end *end, dd_error *err)
{
    bool is_over = true;
    dd_status status = DD_OK;
    while (status == DD_OK && is_over) {
        status = attempt(place, request, end, &is_over, err);
        if (status == DD_OK && is_over && dd_wait_is_over(place->wait)) {
            status = run_out_of_time(place, err);
        }
    }
    if (status == DD_OK) {
        end->generation = place->generation;
    }
    return status;
}

dd_status
dd_meet(const dd_meeting *meeting, dd_meeting_end *end, const dd_wait *wait, dd_error *err)
{
    dd_error error;
    dd_blob published = {0};
    char text[DD_MEETING_NAME_MAX + 16];
    meeting_place place = {.meeting = meeting, .store = meeting->store, .wait = wait};
    if (meeting->name.len > DD_MEETING_NAME_MAX) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "the name of a %s has at most %d bytes, not %zu",
                            meeting->kind->noun, DD_MEETING_NAME_MAX, meeting->name.len);
    }
    int len =
        snprintf(text, sizeof text, "dldist/%.*s", (int)meeting->name.len, (const char *)meeting->name.data);
    dd_meet_request request = {.place = dd_bytes_of(text, (size_t)len),
                               .rank = meeting->rank,
                               .size = meeting->size,
                               .hears_failure = meeting->kind->is_final};
    dd_status status = meeting_keys_init(&place.keys, request.place, &error);
    if (status == DD_OK) {
        status = publish(meeting, &published, &error);
    }
    if (status == DD_OK) {
        request.published = place.own = dd_blob_view(&published);
        status = meet(&place, &request, end, &error);
    }
    dd_blob_fini(&published);
    meeting_keys_fini(&place.keys);
    return status == DD_OK ? DD_OK : dd_error_copy(err, &error);
}
