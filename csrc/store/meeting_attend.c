/* Who has come to a meeting, who is missing, and who has come and died. */
#include "store/meeting_internal.h"

#include "core/log.h"
#include "store/tcp_store.h"

#include <stdio.h>
#include <string.h>

#define LOOK_AROUND_NS (2 * DD_NS_PER_S)
#define GENERATIONS_MAX 4 /* that are searched for a rank that is not there now */
#define NAME_ROOM 120     /* of one rank in a text */
#define LOOK_NS (500 * DD_NS_PER_MS)
#define LOOK_NS_PER_RANK (DD_NS_PER_MS / 2)
#define NEVER_LOOK_NS (3600 * DD_NS_PER_S)
#define LOOK_RANKS_MAX 16 /* that one look asks the store about */

/* ---- who is there */

typedef struct attendance {
    int npresent;
    bool is_cut;      /* there was no time for all of them */
    int first_absent; /* -1: none */
    char present[340];
    char absent[220];
    char refused[300]; /* who may be missing for want of the secret */
    dd_error trouble;  /* why it is not known who is there; code DD_OK: it is */
} attendance;

/* Adds ", 3 (node-b, pid 77)" to a list. The last that there is room for is "...". */
static void
append_rank(char *text, size_t size, int rank, const dd_meeting_member *member, const char *note)
{
    size_t used = strlen(text);
    const char *comma = used > 0 ? ", " : "";
    if (used >= 3 && strcmp(text + used - 3, "...") == 0) {
        return;
    }
    if (size - used < NAME_ROOM) {
        snprintf(text + used, size - used, "%s...", comma);
    } else if (member != NULL) {
        snprintf(text + used, size - used, "%s%d (%s, pid %lld%s)", comma, rank, member->host, member->pid,
                 note);
    } else {
        snprintf(text + used, size - used, "%s%d", comma, rank);
    }
}

/* What a rank has published in a generation. */
static dd_status
find_published(meeting_place *place, uint64_t generation, int rank, dd_blob *published, bool *is_found,
               dd_error *err)
{
    return place->store->ops->try_get(place->store, meeting_rank_key(&place->keys, generation, "rank", rank),
                                      published, is_found, place->wait, err);
}

/* A rank in the meeting, or in one before it that this rank has seen: others may have given up earlier. */
static dd_status
find_member(meeting_place *place, int rank, dd_meeting_member *member, bool *is_found, bool *is_earlier,
            dd_error *err)
{
    dd_status status = DD_OK;
    uint64_t generation = place->generation;
    dd_blob published = {0};
    *is_found = false;
    for (int i = 0; i < GENERATIONS_MAX && status == DD_OK && !*is_found; i++) {
        *is_earlier = i > 0;
        status = find_published(place, generation, rank, &published, is_found, err);
        *is_found = status == DD_OK && *is_found && meeting_read(place, dd_blob_view(&published), member);
        if (generation == place->first_generation) {
            break;
        }
        generation--;
    }
    dd_blob_fini(&published);
    return status;
}

static void
look_around(meeting_place *place, attendance *seen)
{
    int size = place->meeting->size;
    *seen = (attendance){.first_absent = -1};
    seen->trouble.code = DD_OK;
    for (int rank = 0; rank < size && !seen->is_cut; rank++) {
        dd_meeting_member member;
        bool is_found = false;
        bool is_earlier = false;
        if (find_member(place, rank, &member, &is_found, &is_earlier, &seen->trouble) != DD_OK) {
            return;
        }
        int name = meeting_name_of(place, rank);
        if (is_found) {
            append_rank(seen->present, sizeof seen->present, name, &member,
                        is_earlier ? ", has given up since" : "");
            seen->npresent++;
        } else {
            append_rank(seen->absent, sizeof seen->absent, name, NULL, "");
            seen->first_absent = seen->first_absent < 0 ? name : seen->first_absent;
        }
        seen->is_cut = rank + 1 < size && dd_wait_is_over(place->wait);
    }
}

static void
ask_who_was_refused(meeting_place *place, attendance *seen)
{
    dd_blob who = {0};
    if (dd_tcp_store_refused(place->store, &who, place->wait, NULL) == DD_OK && who.len > 0) {
        char text[200];
        snprintf(seen->refused, sizeof seen->refused, "; the store has refused, for want of its secret: %s",
                 dd_bytes_print(dd_blob_view(&who), text, sizeof text));
    }
    dd_blob_fini(&who);
}

dd_status
meeting_error_absent(meeting_place *place, dd_error *err)
{
    const dd_wait *callers = place->wait;
    dd_wait moment = dd_wait_after(LOOK_AROUND_NS); /* the caller's may be over */
    attendance seen;
    place->wait = &moment;
    look_around(place, &seen);
    if (seen.trouble.code == DD_OK) {
        ask_who_was_refused(place, &seen);
    }
    place->wait = callers;
    if (seen.trouble.code != DD_OK) {
        dd_error_set(err, DD_OP_TIMED_OUT, "the store does not say who has come: %s", seen.trouble.message);
    } else if (seen.first_absent < 0) {
        dd_error_set(err, DD_OP_TIMED_OUT, "all %d have come, and one of them has not gone on: %s",
                     place->meeting->size, seen.present);
    } else {
        dd_error_set(err, DD_OP_TIMED_OUT, "%s%d of %d have come: %s; missing: %s%s",
                     seen.is_cut ? "at least " : "", seen.npresent, place->meeting->size, seen.present,
                     seen.absent, seen.refused);
        dd_error_blame(err, seen.first_absent, NULL, 0);
    }
    dd_error_prepend(err, "rank %d waited %.1f s for the others",
                     meeting_name_of(place, place->meeting->rank), dd_wait_elapsed_s(callers));
    return DD_OP_TIMED_OUT;
}

/* ---- who has died */

int64_t
meeting_watch_interval_ns(const dd_meeting *meeting)
{
    return meeting->kind->look_for != NULL ? LOOK_NS + meeting->size * LOOK_NS_PER_RANK : NEVER_LOOK_NS;
}

/* The next rank that has come, from this one's on: there may be a nearer one by now. */
static dd_status
choose(meeting_place *place, meeting_watch *watch, dd_error *err)
{
    const dd_meeting *meeting = place->meeting;
    int last = meeting->size - 1 < LOOK_RANKS_MAX ? meeting->size - 1 : LOOK_RANKS_MAX;
    dd_status status = DD_OK;
    dd_blob published = {0};
    for (int step = 1; step <= last && status == DD_OK; step++) {
        dd_meeting_member member;
        int rank = (int)(((int64_t)meeting->rank + step) % meeting->size);
        bool is_found = false;
        if (rank == watch->rank) {
            break;
        }
        status = find_published(place, place->generation, rank, &published, &is_found, err);
        if (status == DD_OK && is_found && meeting_read(place, dd_blob_view(&published), &member)) {
            dd_blob_fini(&watch->published);
            *watch = (meeting_watch){.rank = rank, .published = published, .has_warned = watch->has_warned};
            return DD_OK;
        }
    }
    dd_blob_fini(&published);
    return status;
}

/* Not a failure, since strangers are refused, too. But if a rank that we wait for was refused, this is why
 * it is missing. Fails only with DD_INTERRUPTED. */
static dd_status
warn_of_refused(meeting_place *place, meeting_watch *watch, dd_error *err)
{
    const dd_meeting *meeting = place->meeting;
    if (watch->has_warned) {
        return DD_OK;
    }
    dd_blob who = {0};
    char text[200];
    dd_status status = dd_tcp_store_refused(place->store, &who, place->wait, err);
    watch->has_warned = status == DD_OK && who.len > 0;
    if (watch->has_warned) {
        DD_LOG(
            DD_LOG_INFO,
            "%s \"%.*s\" (rank %d of %d) waits for others; the store has refused, for want of its secret: %s",
            meeting->kind->noun, (int)meeting->name.len, (const char *)meeting->name.data,
            meeting_name_of(place, meeting->rank), meeting->size,
            dd_bytes_print(dd_blob_view(&who), text, sizeof text));
    }
    dd_blob_fini(&who);
    return status == DD_INTERRUPTED ? status : DD_OK;
}

dd_status
meeting_look_after(meeting_place *place, meeting_watch *watch, dd_error *err)
{
    const dd_meeting_kind *kind = place->meeting->kind;
    dd_status status = warn_of_refused(place, watch, err);
    if (status != DD_OK || kind->look_for == NULL) {
        return status;
    }
    status = choose(place, watch, err);
    if (status != DD_OK || watch->rank < 0) {
        return status;
    }
    bool is_gone = false;
    dd_meeting_member member;
    char who[128];
    dd_bytes published = dd_blob_view(&watch->published);
    status = kind->look_for(meeting_card_of(published), place->meeting->card, &watch->was_seen, &is_gone,
                            place->wait, err);
    if (status != DD_OK || !is_gone || !meeting_read(place, published, &member)) {
        return status;
    }
    dd_error_set(err, DD_PEER_LOST, "lost %s: its process has ended while the %s was being made",
                 meeting_print_member(place, watch->rank, &member, who), kind->noun);
    dd_error_blame(err, meeting_name_of(place, watch->rank), member.host, member.pid);
    return DD_PEER_LOST;
}

/* ---- who cannot go on after the meeting */

/* The keys of a meeting that is over. */
static dd_status
find_keys(dd_bytes name, meeting_keys *keys, dd_error *err)
{
    dd_blob place = {0};
    dd_status status = dd_blob_assign(&place, dd_bytes_of_string("dldist/"), err);
    if (status == DD_OK) {
        status = dd_blob_append(&place, name.data, name.len, err);
    }
    if (status == DD_OK) {
        status = meeting_keys_init(keys, dd_blob_view(&place), err);
    }
    dd_blob_fini(&place);
    return status;
}

void
dd_meeting_post(dd_store *store, dd_bytes name, uint64_t generation, const dd_error *error, dd_error *first)
{
    char text[MEETING_FAILURE_MAX];
    meeting_keys keys = {0};
    dd_wait moment = dd_wait_after(DD_NS_PER_S);
    dd_blob value = {0};
    dd_bytes failure = dd_bytes_of(text, meeting_encode_failure(error, text));
    dd_status status = find_keys(name, &keys, NULL);
    if (status == DD_OK) { /* those who have a link hear it there, whatever comes of this */
        status = store->ops->compare_set(store, meeting_part_key(&keys, generation, "broken"),
                                         dd_bytes_of_string(""), failure, &value, &moment, NULL);
    }
    if (status != DD_OK || !meeting_decode_failure(dd_blob_view(&value), first)) {
        *first = *error;
    }
    dd_blob_fini(&value);
    meeting_keys_fini(&keys);
}

dd_status
dd_meeting_check(dd_store *store, dd_bytes name, uint64_t generation, const dd_wait *wait, dd_error *err)
{
    meeting_keys keys = {0};
    dd_blob posted = {0};
    bool is_found = false;
    dd_error failure;
    dd_status status = find_keys(name, &keys, &failure);
    if (status == DD_OK) {
        status = store->ops->try_get(store, meeting_part_key(&keys, generation, "broken"), &posted, &is_found,
                                     wait, &failure);
    }
    if (status == DD_OK && is_found && meeting_decode_failure(dd_blob_view(&posted), &failure)) {
        status = failure.code;
    } else if (status != DD_INTERRUPTED) {
        status = DD_OK;
    }
    dd_blob_fini(&posted);
    meeting_keys_fini(&keys);
    return status == DD_OK ? DD_OK : dd_error_copy(err, &failure);
}
