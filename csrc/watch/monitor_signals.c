/* Signals between ranks, sent and read through stores. */
#include "watch/watch_internal.h"

#include "core/little_endian.h"
#include "core/log.h"
#include "core/mem.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define COUNT_KEY "dldist/signals"
#define KEY_MAX 320

/* Build a key from the format. Append ":<n>" if this is the rank's n-th membership, n > 1. */
DD_PRINTF(3, 4)
static dd_bytes
key_of(const watch_member *member, char key[KEY_MAX], const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int len = vsnprintf(key, KEY_MAX, format, args);
    va_end(args);
    if (member->epoch > 1) {
        snprintf(key + len, KEY_MAX - (size_t)len, ":%" PRId64, member->epoch);
    }
    return dd_bytes_of_string(key);
}

#define KEY_OF_DUMP(member, key) key_of(member, key, "exception_dump")
#define KEY_OF_ERROR(member, key) key_of(member, key, "remote_error:%s", (member)->name)
#define KEY_OF_STATE(member, key, rank) key_of(member, key, "dldist/watch/%s/state/%d", (member)->name, rank)

dd_status
watch_enter(watch_member *member, const dd_wait *wait, dd_error *err)
{
    char key[KEY_MAX];
    snprintf(key, sizeof key, "dldist/watch/%s/members/%d", member->name, member->info.rank);
    dd_store *store = member->info.store;
    return dd_store_add(store, dd_bytes_of_string(key), 1, &member->epoch, wait, err);
}

/* ---- requests */

/* Return true if a request has succeeded. A store that has failed is not used again. Log the
 * failure only at the debug level, because the store's server may have ended cleanly. */
static bool
has_store_answered(dd_monitor *monitor, watch_member *member, dd_status status, const dd_error *err)
{
    if (status == DD_OK || status == DD_INTERRUPTED) {
        return status == DD_OK;
    }
    watch_member *other = NULL;
    while ((other = watch_next(monitor, other)) != NULL) {
        other->is_store_lost = other->is_store_lost || other->root == member->root;
    }
    DD_LOG(DD_LOG_DEBUG, "the monitor stops using a store that did not answer: %s", err->message);
    return false;
}

/* Read a value. Return false if there is no value or the store does not answer. */
static bool
try_read_value(dd_monitor *monitor, watch_member *member, dd_store *store, dd_bytes key, dd_blob *value)
{
    dd_error err;
    dd_wait wait = watch_wait(monitor);
    bool is_found = false;
    dd_status status = dd_store_try_get(store, key, value, &is_found, &wait, &err);
    return has_store_answered(monitor, member, status, &err) && is_found;
}

static bool
can_use_store(const watch_member *member)
{
    return member != NULL && member->root != NULL && member->epoch > 0 && !member->is_store_lost;
}

/* ---- sending */

/* Publish a signal, unless this rank has sent or received one. If several ranks publish signals,
 * the first is kept, because it has the cause. */
static void
publish_once(dd_monitor *monitor, watch_member *member, bool *is_published, dd_bytes key, dd_bytes value)
{
    if (!can_use_store(member) || *is_published) {
        return;
    }
    dd_error err;
    dd_wait wait = watch_wait(monitor);
    dd_blob now = {0};
    dd_store *store = member->info.store;
    dd_store *root = member->root;
    int64_t count;
    *is_published = true;
    dd_status status = dd_store_compare_set(store, key, dd_bytes_of_string(""), value, &now, &wait, &err);
    if (status == DD_OK) {
        status = dd_store_add(root, dd_bytes_of_string(COUNT_KEY), 1, &count, &wait, &err);
    }
    if (has_store_answered(monitor, member, status, &err)) {
        monitor->last_signal_ns = dd_clock_now_ns();
    }
    dd_blob_fini(&now);
}

void
watch_publish_dump(dd_monitor *monitor)
{
    char key[KEY_MAX];
    uint8_t rank[4];
    watch_member *first = watch_next(monitor, NULL);
    if (first != NULL) {
        dd_put_number(rank, (uint32_t)first->info.rank, sizeof rank);
        publish_once(monitor, first, &first->is_dump_seen, KEY_OF_DUMP(first, key),
                     dd_bytes_of(rank, sizeof rank));
    }
}

void
watch_publish_error(dd_monitor *monitor, watch_member *member, const dd_error *cause)
{
    char key[KEY_MAX];
    uint8_t value[DD_SIGNAL_ERROR_MAX_NBYTES];
    size_t len = dd_signal_encode_error(member->info.rank, cause, value);
    publish_once(monitor, member, &member->is_error_seen, KEY_OF_ERROR(member, key), dd_bytes_of(value, len));
}

/* ---- receiving */

/* Read a signal, if the store's number of signals has changed. Return false if there is none. */
static bool
read_new_signal(dd_monitor *monitor, watch_member *member, bool *is_seen, dd_bytes key, dd_blob *value)
{
    if (!can_use_store(member) || !member->is_changed || *is_seen) {
        return false;
    }
    *is_seen = try_read_value(monitor, member, member->info.store, key, value);
    return *is_seen;
}

static void
handle_error_signal(dd_monitor *monitor, watch_member *member)
{
    char key[KEY_MAX];
    dd_blob value = {0};
    dd_error cause;
    dd_error err;
    const dd_monitor_member *info = &member->info;
    if (info->fail != NULL &&
        read_new_signal(monitor, member, &member->is_error_seen, KEY_OF_ERROR(member, key), &value)) {
        if (dd_signal_decode_error(dd_blob_view(&value), info->name, info->size, &cause, &err) != DD_OK) {
            DD_LOG(DD_LOG_INFO, "%s", err.message);
        } else if (cause.blamed.rank != info->rank) {
            DD_LOG(DD_LOG_INFO, "received from the store: %s", cause.message);
            info->fail(info->ctx, &cause);
        }
    }
    dd_blob_fini(&value);
}

/* Compare the store's number of signals with the last number, for all members of this store. */
static void
check_root(dd_monitor *monitor, watch_member *member)
{
    dd_blob value = {0};
    char count[WATCH_COUNT_MAX] = "";
    bool is_found = try_read_value(monitor, member, member->root, dd_bytes_of_string(COUNT_KEY), &value);
    if (is_found) {
        dd_bytes_print(dd_blob_view(&value), count, sizeof count);
    }
    watch_member *other = NULL;
    while ((other = watch_next(monitor, other)) != NULL) {
        if (other->root == member->root) {
            other->is_checked = true;
            other->is_changed = is_found && strcmp(count, other->count) != 0;
            if (other->is_changed) {
                memcpy(other->count, count, sizeof count);
            }
        }
    }
    dd_blob_fini(&value);
}

/* Read each store's number of signals once, for all members that need signals from the store. */
static void
check_roots(dd_monitor *monitor, watch_member *first)
{
    watch_member *member = NULL;
    while ((member = watch_next(monitor, member)) != NULL) {
        member->is_checked = member->is_changed = false;
    }
    while ((member = watch_next(monitor, member)) != NULL) {
        if (can_use_store(member) && (member == first || member->info.fail != NULL) && !member->is_checked) {
            check_root(monitor, member);
        }
    }
}

/* Count the membership of a group that has become the first one, which needs signals. */
static void
enter_late(dd_monitor *monitor, watch_member *first)
{
    dd_error err;
    if (first != NULL && first->root != NULL && first->epoch == 0 && !first->is_store_lost) {
        dd_wait wait = watch_wait(monitor);
        first->count[0] = '\0'; /* makes check_root find a changed number */
        (void)has_store_answered(monitor, first, watch_enter(first, &wait, &err), &err);
    }
}

bool
watch_read_dump(dd_monitor *monitor, char text[WATCH_LINE_MAX])
{
    watch_member *first = watch_next(monitor, NULL);
    char key[KEY_MAX];
    dd_blob value = {0};
    int rank;
    dd_error err;
    enter_late(monitor, first);
    check_roots(monitor, first);
    bool is_queried = first != NULL &&
                      read_new_signal(monitor, first, &first->is_dump_seen, KEY_OF_DUMP(first, key), &value);
    if (is_queried) {
        if (dd_signal_decode_dump(dd_blob_view(&value), &rank, &err) == DD_OK) {
            snprintf(text, WATCH_LINE_MAX,
                     "rank %d of group \"%s\" has failed and requests a dump from all ranks", rank,
                     first->name);
        } else {
            snprintf(text, WATCH_LINE_MAX, "an unknown rank requests a dump from all ranks: %s", err.message);
        }
    }
    dd_blob_fini(&value);
    return is_queried;
}

void
watch_read_errors(dd_monitor *monitor)
{
    watch_member *member = NULL;
    while ((member = watch_next(monitor, member)) != NULL) {
        handle_error_signal(monitor, member);
        if (monitor->options.is_desync) {
            watch_publish(monitor, member);
        }
    }
}

/* ---- the progress of ranks */

void
watch_publish(dd_monitor *monitor, watch_member *member)
{
    dd_recorder_status status;
    dd_signal_state state;
    if (!can_use_store(member) || member->info.record == NULL) {
        return;
    }
    dd_recorder_group_status(member->info.record, &status);
    dd_signal_state_of(&status, &state);
    if (strcmp(state.text, member->published) == 0) {
        return;
    }
    char key[KEY_MAX];
    dd_error err;
    dd_wait wait = watch_wait(monitor);
    dd_store *store = member->info.store;
    dd_status set = dd_store_set(store, KEY_OF_STATE(member, key, member->info.rank),
                                 dd_bytes_of_string(state.text), &wait, &err);
    if (has_store_answered(monitor, member, set, &err)) {
        memcpy(member->published, state.text, sizeof member->published);
    }
}

static dd_status
request_states(dd_monitor *monitor, watch_member *member, const dd_bytes *keys, dd_blob_list *states,
               dd_error *err)
{
    dd_wait wait = watch_wait(monitor);
    size_t nkeys = (size_t)member->info.size;
    dd_status status = dd_store_try_multi_get(member->info.store, keys, nkeys, states, &wait, err);
    if (!has_store_answered(monitor, member, status, err)) {
        dd_error_prepend(err, "the store of group \"%s\" does not answer", member->name);
    }
    return status;
}

dd_status
watch_read_states(dd_monitor *monitor, watch_member *member, dd_blob_list *states, dd_error *err)
{
    if (!can_use_store(member)) {
        return dd_error_set(err, DD_STORE, "the store of group \"%s\" does not answer", member->name);
    }
    size_t size = (size_t)member->info.size;
    char(*texts)[KEY_MAX] = dd_mem_alloc_array(size, sizeof *texts);
    dd_bytes *keys = dd_mem_alloc_array(size, sizeof *keys);
    dd_status status = texts != NULL && keys != NULL ? DD_OK : dd_error_no_memory(err, size * sizeof *texts);
    for (size_t rank = 0; status == DD_OK && rank < size; rank++) {
        keys[rank] = KEY_OF_STATE(member, texts[rank], (int)rank);
    }
    if (status == DD_OK) {
        status = request_states(monitor, member, keys, states, err);
    }
    dd_mem_free(keys);
    dd_mem_free(texts);
    return status;
}
