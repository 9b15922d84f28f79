/* What ranks tell each other in stores. */
#include "watch/watch_internal.h"

#include "core/log.h"
#include "core/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define COUNT_KEY "dldist/signals"

/* ---- keys */

/* "<what>", and for memberships after the first "<what>:<n>". */
static dd_bytes
signal_key(const watch_member *member, char key[WATCH_KEY_MAX], const char *what)
{
    int len = member->epoch > 1 ? snprintf(key, WATCH_KEY_MAX, "%s:%" PRId64, what, member->epoch)
                                : snprintf(key, WATCH_KEY_MAX, "%s", what);
    return dd_bytes_of(key, (size_t)len);
}

static dd_bytes
error_key(const watch_member *member, char key[WATCH_KEY_MAX])
{
    char what[WATCH_NAME_MAX + 64];
    snprintf(what, sizeof what, "remote_error:%s", member->name);
    return signal_key(member, key, what);
}

static dd_bytes
state_key(const watch_member *member, char key[WATCH_KEY_MAX], int rank)
{
    char what[WATCH_NAME_MAX + 64];
    snprintf(what, sizeof what, "dldist/watch/%s/state/%d", member->name, rank);
    return signal_key(member, key, what);
}

dd_status
watch_enter(watch_member *member, const dd_wait *wait, dd_error *err)
{
    char key[WATCH_KEY_MAX];
    snprintf(key, sizeof key, "dldist/watch/%s/members/%d", member->name, member->info.rank);
    dd_store *store = member->info.store;
    return dd_store_add(store, dd_bytes_of_string(key), 1, &member->epoch, wait, err);
}

/* ---- stores that do not answer */

/* Whether a request succeeded; a store that has failed is not asked again, which is no news when its server has ended in good
 * order. */
static bool
is_answered(watch_place *place, dd_status status, const dd_error *err)
{
    if (status == DD_OK || status == DD_INTERRUPTED) {
        return status == DD_OK;
    }
    place->is_gone = true;
    DD_LOG(DD_LOG_DEBUG, "the monitor asks a store no more, which has not answered: %s", err->message);
    return false;
}

/* A value that is there; false when it is not, or nobody answers. */
static bool
look_up(dd_monitor *monitor, watch_member *member, dd_bytes key, dd_blob *value)
{
    dd_error err;
    dd_wait wait = watch_wait(monitor);
    bool is_found = false;
    dd_store *store = member->info.store;
    dd_status status = dd_store_try_get(store, key, value, &is_found, &wait, &err);
    return is_answered(member->place, status, &err) && is_found;
}

/* ---- telling */

/* The first who tells is heard: his is the cause. */
static void
tell(dd_monitor *monitor, watch_member *member, dd_bytes key, dd_bytes value)
{
    dd_error err;
    dd_wait wait = watch_wait(monitor);
    dd_blob now = {0};
    dd_store *store = member->info.store;
    dd_store *root = member->place->store;
    int64_t count;
    dd_status status = dd_store_compare_set(store, key, dd_bytes_of_string(""), value, &now, &wait, &err);
    if (status == DD_OK) {
        status = dd_store_add(root, dd_bytes_of_string(COUNT_KEY), 1, &count, &wait, &err);
    }
    if (is_answered(member->place, status, &err)) {
        monitor->last_told_ns = dd_clock_now_ns();
    }
    dd_blob_fini(&now);
}

static bool
can_tell(const watch_member *member)
{
    return member != NULL && member->place != NULL && member->epoch > 0 && !member->place->is_gone;
}

void
watch_tell_dump(dd_monitor *monitor)
{
    watch_member *first = watch_next(monitor, NULL);
    if (!can_tell(first) || first->is_dump_seen) {
        return;
    }
    char key[WATCH_KEY_MAX];
    uint8_t value[DD_SIGNAL_DUMP_NBYTES];
    first->is_dump_seen = true;
    dd_signal_encode_dump(first->info.rank, value);
    tell(monitor, first, signal_key(first, key, "exception_dump"), dd_bytes_of(value, sizeof value));
}

void
watch_tell_error(dd_monitor *monitor, watch_member *member, const dd_error *cause)
{
    if (!can_tell(member) || member->is_error_seen) {
        return;
    }
    char key[WATCH_KEY_MAX];
    uint8_t value[DD_SIGNAL_ERROR_MAX_NBYTES];
    member->is_error_seen = true;
    size_t len = dd_signal_encode_error(member->info.rank, cause, value);
    tell(monitor, member, error_key(member, key), dd_bytes_of(value, len));
}

/* ---- listening */

static void
hear_error(dd_monitor *monitor, watch_member *member)
{
    char key[WATCH_KEY_MAX];
    dd_blob value = {0};
    dd_error cause;
    dd_error err;
    if (!member->is_error_seen && look_up(monitor, member, error_key(member, key), &value)) {
        member->is_error_seen = true;
        const dd_monitor_member *info = &member->info;
        if (dd_signal_decode_error(dd_blob_view(&value), info->name, info->size, &cause, &err) != DD_OK) {
            DD_LOG(DD_LOG_INFO, "%s", err.message);
        } else if (cause.culprit.rank != info->rank) {
            DD_LOG(DD_LOG_INFO, "told by the store: %s", cause.message);
            info->fail(info->ctx, &cause);
        }
    }
    dd_blob_fini(&value);
}

/* Compares the count of signals with the one before. */
static void
look_at_place(dd_monitor *monitor, watch_place *place)
{
    dd_error err;
    dd_wait wait = watch_wait(monitor);
    dd_blob count = {0};
    bool is_found = false;
    dd_status status =
        dd_store_try_get(place->store, dd_bytes_of_string(COUNT_KEY), &count, &is_found, &wait, &err);
    place->is_changed = is_answered(place, status, &err) && is_found &&
                        !dd_bytes_equal(dd_blob_view(&count), dd_blob_view(&place->count));
    if (place->is_changed) {
        dd_blob_fini(&place->count);
        place->count = count;
    } else {
        dd_blob_fini(&count);
    }
}

/* Whether it is one whose signals concern us. */
static bool
is_listening(const watch_member *member, const watch_member *first)
{
    return can_tell(member) && (member == first || member->info.fail != NULL);
}

/* The first group's signal is everybody's, so one that comes to be the first is counted in then. */
static void
enter_late(dd_monitor *monitor, watch_member *first)
{
    dd_error err;
    if (first == NULL || first->place == NULL || first->epoch > 0 || first->place->is_gone) {
        return;
    }
    dd_wait wait = watch_wait(monitor);
    dd_status status = watch_enter(first, &wait, &err);
    if (status == DD_OK) {
        dd_blob_fini(&first->place->count); /* looks again */
        first->place->count = (dd_blob){0};
    }
    (void)is_answered(first->place, status, &err);
}

/* Asks each store once, whatever the number of members; a place stays for as long as its members do. */
static void
look_at_places(dd_monitor *monitor, watch_member *first)
{
    for (watch_member *member = first; member != NULL; member = watch_next(monitor, member)) {
        if (member->place != NULL) {
            member->place->is_looked_at = false;
        }
    }
    for (watch_member *member = first; member != NULL; member = watch_next(monitor, member)) {
        if (is_listening(member, first) && !member->place->is_looked_at) {
            member->place->is_looked_at = true;
            look_at_place(monitor, member->place);
        }
    }
}

bool
watch_hear_dump(dd_monitor *monitor, char what[WATCH_LINE_MAX])
{
    watch_member *first = watch_next(monitor, NULL);
    char key[WATCH_KEY_MAX];
    dd_blob value = {0};
    int rank;
    dd_error err;
    enter_late(monitor, first);
    look_at_places(monitor, first);
    bool is_asked = can_tell(first) && first->place->is_changed && !first->is_dump_seen &&
                    look_up(monitor, first, signal_key(first, key, "exception_dump"), &value);
    if (is_asked) {
        first->is_dump_seen = true;
        if (dd_signal_decode_dump(dd_blob_view(&value), &rank, &err) == DD_OK) {
            snprintf(what, WATCH_LINE_MAX,
                     "rank %d of group \"%s\" has asked all ranks for a dump: it has failed", rank,
                     first->name);
        } else {
            snprintf(what, WATCH_LINE_MAX, "somebody has asked all ranks for a dump: %s", err.message);
        }
    }
    dd_blob_fini(&value);
    return is_asked;
}

void
watch_hear_errors(dd_monitor *monitor)
{
    for (watch_member *member = watch_next(monitor, NULL); member != NULL;
         member = watch_next(monitor, member)) {
        if (can_tell(member) && member->info.fail != NULL && member->place->is_changed) {
            hear_error(monitor, member);
        }
        if (monitor->options.is_desync) {
            watch_publish(monitor, member);
        }
    }
}

/* ---- how far ranks are */

void
watch_publish(dd_monitor *monitor, watch_member *member)
{
    if (!can_tell(member) || member->info.record == NULL) {
        return;
    }
    dd_recorder_status status;
    dd_signal_state state;
    uint8_t value[DD_SIGNAL_STATE_MAX_NBYTES];
    dd_recorder_group_status(member->info.record, &status);
    dd_signal_state_of(&status, &state);
    dd_bytes bytes = dd_bytes_of(value, dd_signal_encode_state(&state, value));
    if (dd_bytes_equal(bytes, dd_blob_view(&member->published))) {
        return;
    }
    char key[WATCH_KEY_MAX];
    dd_error err;
    dd_wait wait = watch_wait(monitor);
    dd_store *store = member->info.store;
    dd_status set = dd_store_set(store, state_key(member, key, member->info.rank), bytes, &wait, &err);
    if (is_answered(member->place, set, &err) && dd_blob_assign(&member->published, bytes, &err) != DD_OK) {
        dd_blob_clear(&member->published, 0); /* told again next time */
    }
}

dd_status
watch_read_state(dd_monitor *monitor, watch_member *member, int rank, dd_signal_state *state, dd_error *err)
{
    char key[WATCH_KEY_MAX];
    dd_blob value = {0};
    dd_status status = DD_OK;
    if (!can_tell(member)) {
        return dd_error_set(err, DD_STORE, "the store of group \"%s\" does not answer", member->name);
    }
    if (look_up(monitor, member, state_key(member, key, rank), &value)) {
        status = dd_signal_decode_state(dd_blob_view(&value), state, err);
    } else {
        status = dd_error_set(err, DD_QUEUE_EMPTY, "rank %d has published nothing", rank);
    }
    dd_blob_fini(&value);
    return status;
}
