/* Attendance of a meeting: ranks that have joined, are missing, or have joined and died. */
#include "meet/internal.h"

#include "core/log.h"
#include "store/tcp_store.h"

#include <stdio.h>
#include <string.h>

#define CHECK_ALL_NS (2 * DD_NS_PER_S)
#define GENERATIONS_MAX 4 /* number of meetings to search for a rank missing from the last one */
#define NAME_ROOM 120     /* bytes for one rank in a text */
#define CHECK_NS (500 * DD_NS_PER_MS)
#define CHECK_NS_PER_RANK (DD_NS_PER_MS / 2)
#define NO_CHECK_NS (3600 * DD_NS_PER_S)
#define REFUSED_ROOM 256
#define CHECK_RANKS_MAX 16 /* maximum number of ranks that one check looks up in the store */

/* ---- attendance */

typedef struct attendance {
    int npresent;
    bool is_cut;      /* the deadline passed before all ranks had been checked */
    int first_absent; /* the lowest missing rank; -1 if no rank is missing */
    char present[340];
    char absent[220];
    dd_error check_error; /* why the ranks could not be checked; code DD_OK if they could */
} attendance;

/* Append ", 3 (node-b, pid 77)" to a list. If it has no space for the rank, append "...". */
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

static dd_status
find_published(const meeting_keys *keys, int rank, dd_blob *published, bool *is_found, dd_error *err)
{
    return meeting_try_get(keys, meeting_key(keys, "rank/%d", rank), published, is_found, err);
}

/* Find a rank in this meeting, or in an earlier one of this call: the rank may have timed out and
 * left before this rank timed out. */
static dd_status
find_attendee(const meeting_call *call, int rank, dd_meeting_member *member, bool *is_found, bool *is_earlier,
              dd_error *err)
{
    dd_status status = DD_OK;
    meeting_keys keys = call->keys;
    dd_blob published = {0};
    *is_found = false;
    for (int i = 0; i < GENERATIONS_MAX && status == DD_OK && !*is_found; i++) {
        *is_earlier = i > 0;
        status = find_published(&keys, rank, &published, is_found, err);
        *is_found =
            status == DD_OK && *is_found && meeting_read_member(call, dd_blob_view(&published), member);
        if (keys.generation-- == call->first_generation) {
            break;
        }
    }
    dd_blob_fini(&published);
    return status;
}

static void
list_attendance(const meeting_call *call, attendance *seen)
{
    int size = call->meeting->size;
    for (int rank = 0; rank < size && !seen->is_cut; rank++) {
        dd_meeting_member member;
        bool is_found = false;
        bool is_earlier = false;
        if (find_attendee(call, rank, &member, &is_found, &is_earlier, &seen->check_error) != DD_OK) {
            return;
        }
        int name = meeting_name_of(call, rank);
        if (is_found) {
            append_rank(seen->present, sizeof seen->present, name, &member,
                        is_earlier ? ", has left since" : "");
            seen->npresent++;
        } else {
            append_rank(seen->absent, sizeof seen->absent, name, NULL, "");
            seen->first_absent = seen->first_absent < 0 ? name : seen->first_absent;
        }
        seen->is_cut = rank + 1 < size && dd_wait_has_expired(call->keys.wait);
    }
}

/* Print the clients that the store refused because they lack its secret; "" if none or unknown. */
static dd_status
print_refused(const meeting_call *call, char out[REFUSED_ROOM], dd_error *err)
{
    static const char words[] = "the store refused clients without its secret: ";
    dd_blob names = {0};
    out[0] = '\0';
    dd_status status = dd_tcp_store_refused(call->keys.store, &names, call->keys.wait, err);
    if (status == DD_OK && names.len > 0) {
        memcpy(out, words, sizeof words);
        (void)dd_bytes_print(dd_blob_view(&names), out + sizeof words - 1, 200);
    }
    dd_blob_fini(&names);
    return status;
}

/* Print why the store's server cannot accept connections; "" if it can, or if this is unknown. */
static void
print_accept_error(const meeting_call *call, char out[REFUSED_ROOM])
{
    static const char words[] = "; the store's server could not accept connections: ";
    dd_blob why = {0};
    out[0] = '\0';
    if (dd_tcp_store_accept_error(call->keys.store, &why, call->keys.wait, NULL) == DD_OK && why.len > 0) {
        memcpy(out, words, sizeof words);
        (void)dd_bytes_print(dd_blob_view(&why), out + sizeof words - 1, REFUSED_ROOM - sizeof words);
    }
    dd_blob_fini(&why);
}

dd_status
meeting_error_absent(const meeting_call *call, dd_error *err)
{
    attendance seen = {.first_absent = -1};
    char refused[REFUSED_ROOM] = "";
    char accept_error[REFUSED_ROOM] = "";
    dd_wait moment = dd_wait_after(CHECK_ALL_NS); /* its own: the caller's may have timed out */
    meeting_call late = *call;
    late.keys.wait = &moment;
    list_attendance(&late, &seen);
    if (seen.check_error.code != DD_OK && call->cancel_reason.code != DD_OK) {
        (void)dd_error_copy(err, &call->cancel_reason);
        return DD_OP_TIMED_OUT;
    }
    if (seen.check_error.code != DD_OK) {
        dd_error_set(err, DD_OP_TIMED_OUT, "the ranks that have joined are unknown: %s",
                     seen.check_error.message);
    } else if (seen.first_absent < 0) {
        dd_error_set(err, DD_OP_TIMED_OUT, "all %d ranks have joined, but one of them has not continued: %s",
                     call->meeting->size, seen.present);
    } else {
        (void)!print_refused(&late, refused, NULL);
        print_accept_error(&late, accept_error);
        dd_error_set(err, DD_OP_TIMED_OUT, "%s%d of %d have joined: %s; missing: %s%s%s%s",
                     seen.is_cut ? "at least " : "", seen.npresent, call->meeting->size, seen.present,
                     seen.absent, accept_error, refused[0] != '\0' ? "; " : "", refused);
        dd_error_blame(err, seen.first_absent, NULL, 0);
    }
    dd_error_prepend(err, "rank %d waited %.1f s for the other ranks",
                     meeting_name_of(call, call->meeting->rank), dd_wait_elapsed_s(call->keys.wait));
    return DD_OP_TIMED_OUT;
}

/* ---- ranks that have died */

int64_t
meeting_watch_interval_ns(const dd_meeting *meeting)
{
    return meeting->kind->check_process != NULL ? CHECK_NS + meeting->size * CHECK_NS_PER_RANK : NO_CHECK_NS;
}

/* Choose the rank to monitor: the next rank that has joined. This may change, because a rank in
 * between may have joined since. */
static dd_status
choose(const meeting_call *call, meeting_watch *watch, dd_error *err)
{
    const dd_meeting *meeting = call->meeting;
    int last = meeting->size - 1 < CHECK_RANKS_MAX ? meeting->size - 1 : CHECK_RANKS_MAX;
    dd_status status = DD_OK;
    dd_blob published = {0};
    for (int step = 1; step <= last && status == DD_OK; step++) {
        dd_meeting_member member;
        int rank = (int)(((int64_t)meeting->rank + step) % meeting->size);
        bool is_found = false;
        if (rank == watch->rank) {
            break;
        }
        status = find_published(&call->keys, rank, &published, &is_found, err);
        if (status == DD_OK && is_found && meeting_read_member(call, dd_blob_view(&published), &member)) {
            dd_blob_fini(&watch->published);
            *watch = (meeting_watch){.rank = rank, .published = published, .has_warned = watch->has_warned};
            return DD_OK;
        }
    }
    dd_blob_fini(&published);
    return status;
}

/* Log once which clients the store refused. This is no failure, because unrelated clients are also
 * refused, but it may explain a missing rank. Fails only with DD_INTERRUPTED. */
static dd_status
warn_of_refused(const meeting_call *call, meeting_watch *watch, dd_error *err)
{
    char refused[REFUSED_ROOM] = "";
    char title[MEETING_TITLE_MAX];
    dd_status status = watch->has_warned ? DD_OK : print_refused(call, refused, err);
    if (refused[0] != '\0') {
        watch->has_warned = true;
        DD_LOG(DD_LOG_INFO, "%s (rank %d of %d) waits for other ranks; %s", meeting_print_title(call, title),
               meeting_name_of(call, call->meeting->rank), call->meeting->size, refused);
    }
    return status == DD_INTERRUPTED ? status : DD_OK;
}

dd_status
meeting_check_watched(const meeting_call *call, meeting_watch *watch, dd_error *err)
{
    bool can_check = call->meeting->kind->check_process != NULL;
    bool has_ended = false;
    dd_meeting_member member;
    char rank_name[128];
    dd_status status = warn_of_refused(call, watch, err);
    if (status == DD_OK && can_check) {
        status = choose(call, watch, err);
    }
    dd_bytes published = dd_blob_view(&watch->published);
    if (status == DD_OK && can_check && watch->rank >= 0) {
        status = meeting_check_process(call, published, &watch->was_seen, &has_ended, err);
    }
    if (status == DD_OK && has_ended && meeting_read_member(call, published, &member)) {
        status = dd_error_set(err, DD_PEER_LOST, "lost %s: its process exited while the %s was being created",
                              meeting_print_member(call, watch->rank, &member, rank_name),
                              call->meeting->kind->noun);
        dd_error_blame(err, meeting_name_of(call, watch->rank), member.host, member.pid);
    }
    return status;
}

/* ---- ranks that fail after the meeting */

/* Set `keys` to the keys of a meeting that has ended. */
static dd_status
open_meeting(meeting_keys *keys, dd_store *store, dd_bytes name, uint64_t generation, const dd_wait *wait,
             dd_error *err)
{
    dd_status status = meeting_keys_init(keys, store, "dldist/", name, wait, err);
    keys->generation = generation;
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
    dd_status status = open_meeting(&keys, store, name, generation, &moment, NULL);
    if (status == DD_OK) { /* connected ranks also receive the failure through their links */
        status = meeting_set_if_missing(&keys, meeting_key(&keys, "broken"), failure, &value, NULL);
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
    dd_status status = open_meeting(&keys, store, name, generation, wait, &failure);
    if (status == DD_OK) {
        status = meeting_try_get(&keys, meeting_key(&keys, "broken"), &posted, &is_found, &failure);
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
