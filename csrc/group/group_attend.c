/* Who has come to a meeting, who is missing, and who has come and died. */
#include "group/group_meet_internal.h"

#include "core/log.h"
#include "store/tcp_store.h"

#include <stdio.h>
#include <string.h>

#define LOOK_AROUND_NS (2 * DD_NS_PER_S)
#define GENERATIONS_MAX 4 /* that are searched for a rank that is not there now */
#define NAME_ROOM 120     /* of one rank in a text */
#define LOOK_NS (500 * DD_NS_PER_MS)
#define LOOK_NS_PER_RANK (DD_NS_PER_MS / 2)
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
append_rank(char *text, size_t size, int rank, const dd_card *card, const char *note)
{
    size_t used = strlen(text);
    const char *comma = used > 0 ? ", " : "";
    char who[96];
    if (used >= 3 && strcmp(text + used - 3, "...") == 0) {
        return;
    }
    if (size - used < NAME_ROOM) {
        snprintf(text + used, size - used, "%s...", comma);
    } else if (card != NULL) {
        snprintf(text + used, size - used, "%s%d (%s%s)", comma, rank, dd_card_print(card, who), note);
    } else {
        snprintf(text + used, size - used, "%s%d", comma, rank);
    }
}

/* The card of a rank in the meeting, or in one before it that this rank has seen: others may have given up
 * earlier. */
static dd_status
find_card(meeting_place *place, int rank, dd_card *card, bool *is_found, bool *is_earlier, dd_error *err)
{
    dd_status status = DD_OK;
    uint64_t generation = place->generation;
    *is_found = false;
    for (int i = 0; i < GENERATIONS_MAX && status == DD_OK && !*is_found; i++) {
        dd_blob published = {0};
        status = place->store->ops->try_get(place->store, meeting_rank_key(place, generation, "rank", rank),
                                            &published, is_found, place->wait, err);
        *is_earlier = i > 0;
        if (status == DD_OK && *is_found &&
            meeting_decode_card(dd_blob_view(&published), card, NULL) != DD_OK) {
            *is_found = false;
        }
        dd_blob_fini(&published);
        if (generation == place->first_generation) {
            break;
        }
        generation--;
    }
    return status;
}

static void
look_around(meeting_place *place, attendance *seen)
{
    *seen = (attendance){.first_absent = -1};
    seen->trouble.code = DD_OK;
    for (int rank = 0; rank < place->size && !seen->is_cut; rank++) {
        dd_card card;
        bool is_found = false;
        bool is_earlier = false;
        if (find_card(place, rank, &card, &is_found, &is_earlier, &seen->trouble) != DD_OK) {
            return;
        }
        if (is_found) {
            append_rank(seen->present, sizeof seen->present, rank, &card,
                        is_earlier ? ", has given up since" : "");
            seen->npresent++;
        } else {
            append_rank(seen->absent, sizeof seen->absent, rank, NULL, "");
            seen->first_absent = seen->first_absent < 0 ? rank : seen->first_absent;
        }
        seen->is_cut = rank + 1 < place->size && dd_wait_is_over(place->wait);
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
                     place->size, seen.present);
    } else {
        dd_error_set(err, DD_OP_TIMED_OUT, "%s%d of %d have come: %s; missing: %s%s",
                     seen.is_cut ? "at least " : "", seen.npresent, place->size, seen.present, seen.absent,
                     seen.refused);
        dd_error_blame(err, seen.first_absent, NULL, 0);
    }
    dd_error_prepend(err, "group \"%.*s\": rank %d waited %.1f s for the others", (int)place->name.len,
                     (const char *)place->name.data, place->rank, dd_wait_elapsed_s(callers));
    return DD_OP_TIMED_OUT;
}

/* ---- who has died */

int64_t
meeting_watch_interval_ns(const meeting_place *place)
{
    return LOOK_NS + place->size * LOOK_NS_PER_RANK;
}

/* The next rank that has come, from this one's on: there may be a nearer one by now. */
static dd_status
choose(meeting_place *place, meeting_watch *watch, dd_error *err)
{
    int last = place->size - 1 < LOOK_RANKS_MAX ? place->size - 1 : LOOK_RANKS_MAX;
    for (int step = 1; step <= last; step++) {
        int rank = (int)(((int64_t)place->rank + step) % place->size);
        if (rank == watch->rank) {
            return DD_OK;
        }
        dd_card card;
        bool is_found = false;
        dd_blob published = {0};
        dd_status status =
            place->store->ops->try_get(place->store, meeting_rank_key(place, place->generation, "rank", rank),
                                       &published, &is_found, place->wait, err);
        is_found = status == DD_OK && is_found &&
                   meeting_decode_card(dd_blob_view(&published), &card, NULL) == DD_OK;
        dd_blob_fini(&published);
        if (status != DD_OK) {
            return status;
        }
        if (is_found) {
            *watch = (meeting_watch){.rank = rank, .card = card, .has_warned = watch->has_warned};
            return DD_OK;
        }
    }
    return DD_OK;
}

/* Not a failure, since strangers are refused, too. But if a rank that we wait for was refused, this is why
 * it is missing. Fails only with DD_INTERRUPTED. */
static dd_status
warn_of_refused(meeting_place *place, meeting_watch *watch, dd_error *err)
{
    if (watch->has_warned) {
        return DD_OK;
    }
    dd_blob who = {0};
    char text[200];
    dd_status status = dd_tcp_store_refused(place->store, &who, place->wait, err);
    watch->has_warned = status == DD_OK && who.len > 0;
    if (watch->has_warned) {
        DD_LOG(DD_LOG_INFO,
               "group \"%.*s\" (rank %d of %d) waits for others; the store has refused, for want of its "
               "secret: %s",
               (int)place->name.len, (const char *)place->name.data, place->rank, place->size,
               dd_bytes_print(dd_blob_view(&who), text, sizeof text));
    }
    dd_blob_fini(&who);
    return status == DD_INTERRUPTED ? status : DD_OK;
}

dd_status
meeting_look_after(meeting_place *place, meeting_watch *watch, const dd_card *own, dd_error *err)
{
    dd_status status = warn_of_refused(place, watch, err);
    if (status == DD_OK) {
        status = choose(place, watch, err);
    }
    if (status != DD_OK || watch->rank < 0) {
        return status;
    }
    dd_presence presence = DD_PRESENCE_THERE;
    if (memcmp(&watch->card.uid, &own->uid, sizeof own->uid) != 0) { /* several ranks may be of one process */
        status = dd_card_look_for(&watch->card, own, &presence, place->wait, err);
    }
    if (status != DD_OK) {
        return status;
    }
    bool is_dead = presence == DD_PRESENCE_NONE || (presence == DD_PRESENCE_REFUSED && watch->was_reachable);
    watch->was_reachable = watch->was_reachable || presence == DD_PRESENCE_THERE;
    if (!is_dead) {
        return DD_OK;
    }
    char who[128];
    dd_error_set(err, DD_PEER_LOST, "lost %s: its process has ended while the group was being made",
                 meeting_print_member(watch->rank, &watch->card, who));
    dd_error_blame(err, watch->rank, watch->card.host, watch->card.pid);
    return DD_PEER_LOST;
}

/* ---- who cannot go on after the meeting */

static dd_bytes
bulletin_key(const group_bulletin *bulletin, meeting_place *place)
{
    *place = (meeting_place){.store = bulletin->store, .name = bulletin->name};
    return meeting_part_key(place, bulletin->generation, "broken");
}

void
group_bulletin_post(const group_bulletin *bulletin, const dd_error *error, dd_error *first)
{
    char text[MEETING_FAILURE_MAX];
    meeting_place place;
    dd_wait moment = dd_wait_after(DD_NS_PER_S);
    dd_blob value = {0};
    dd_bytes failure = dd_bytes_of(text, meeting_encode_failure(error, text));
    dd_status status = bulletin->store->ops->compare_set(bulletin->store, bulletin_key(bulletin, &place),
                                                         dd_bytes_of_string(""), failure, &value, &moment,
                                                         NULL); /* those who have a link hear it there */
    if (status != DD_OK || !meeting_decode_failure(dd_blob_view(&value), first)) {
        *first = *error;
    }
    dd_blob_fini(&value);
}

dd_status
group_bulletin_check(group_bulletin *bulletin, const dd_wait *wait, dd_error *err)
{
    int64_t now_ns = dd_clock_now_ns();
    bool is_first = bulletin->look_ns == 0;
    if (!is_first && now_ns < bulletin->look_ns) {
        return DD_OK;
    }
    bulletin->look_ns = now_ns + LOOK_NS;
    if (is_first) {
        return DD_OK; /* mostly the links are there before the next look */
    }
    meeting_place place;
    dd_blob posted = {0};
    bool is_found = false;
    dd_error failure;
    dd_status status = bulletin->store->ops->try_get(bulletin->store, bulletin_key(bulletin, &place), &posted,
                                                     &is_found, wait, &failure);
    if (status == DD_OK && is_found && meeting_decode_failure(dd_blob_view(&posted), &failure)) {
        status = failure.code;
    } else if (status != DD_INTERRUPTED) {
        status = DD_OK; /* the group does not need the store any more */
    }
    dd_blob_fini(&posted);
    return status == DD_OK ? DD_OK : dd_error_copy(err, &failure);
}
