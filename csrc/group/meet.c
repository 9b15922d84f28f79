/* A group's rendezvous: its ranks exchange the endpoints (address records) of their engines in a
 * store. */
#include "group/internal.h"

#include "core/mem.h"
#include "meet/meeting.h"
#include "store/tcp_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK_NS (500 * DD_NS_PER_MS)

/* ---- endpoint callbacks of the meeting */

static bool
read_endpoint(dd_bytes bytes, dd_meeting_member *member)
{
    dd_endpoint endpoint;
    if (dd_endpoint_decode(bytes, &endpoint, NULL, NULL) != DD_OK) {
        return false;
    }
    memcpy(member->host, endpoint.host, sizeof member->host);
    member->pid = endpoint.pid;
    return true;
}

dd_status
dd_group_find_presence(dd_bytes bytes, dd_bytes own_bytes, dd_presence *presence, const dd_wait *wait,
                       dd_error *err)
{
    dd_endpoint endpoint;
    dd_endpoint own_endpoint;
    dd_addr_list addrs;
    *presence = DD_PRESENCE_UNKNOWN;
    if (dd_endpoint_decode(bytes, &endpoint, &addrs, NULL) != DD_OK ||
        dd_endpoint_decode(own_bytes, &own_endpoint, NULL, NULL) != DD_OK ||
        memcmp(&endpoint.uid, &own_endpoint.uid, sizeof own_endpoint.uid) == 0) {
        return DD_OK;
    }
    return dd_endpoint_check_presence(&endpoint, &addrs, &own_endpoint, presence, wait, err);
}

static dd_status
check_process(dd_bytes bytes, dd_bytes own_bytes, bool *was_seen, bool *has_ended, const dd_wait *wait,
              dd_error *err)
{
    dd_presence presence;
    dd_status status = dd_group_find_presence(bytes, own_bytes, &presence, wait, err);
    *has_ended =
        status == DD_OK && (presence == DD_PRESENCE_NONE || (presence == DD_PRESENCE_REFUSED && *was_seen));
    *was_seen = *was_seen || (status == DD_OK && presence == DD_PRESENCE_RUNNING);
    return status;
}

static const dd_meeting_kind group_kind = {
    .noun = "group",
    .of_interrupted = "aborted the group: interrupted while it was being created",
    .read_payload = read_endpoint,
    .check_process = check_process,
};

/* ---- processes that are in the group several times */

typedef struct endpoint_of_rank {
    dd_uid uid;
    int rank;
} endpoint_of_rank;

static int
compare_uids(const void *a, const void *b)
{
    const endpoint_of_rank *first = a;
    const endpoint_of_rank *second = b;
    int order = memcmp(&first->uid, &second->uid, sizeof first->uid);
    return order != 0 ? order : first->rank - second->rank;
}

/* Find the ranks that use the same engine as a lower rank, and must open another engine.
 * is_repeated is an array of `size` entries, zeroed by the caller. */
static dd_status
find_repeated(const dd_bytes *endpoints, int size, bool *is_repeated, dd_error *err)
{
    endpoint_of_rank *sorted = dd_mem_alloc_array((size_t)size, sizeof *sorted);
    if (sorted == NULL) {
        return dd_error_no_memory(err, (size_t)size * sizeof *sorted);
    }
    int count = 0;
    dd_endpoint endpoint;
    for (int rank = 0; rank < size; rank++) {
        if (dd_endpoint_decode(endpoints[rank], &endpoint, NULL, NULL) == DD_OK) {
            sorted[count++] = (endpoint_of_rank){endpoint.uid, rank};
        }
    }
    qsort(sorted, (size_t)count, sizeof *sorted, compare_uids);
    for (int i = 1; i < count; i++) {
        is_repeated[sorted[i].rank] = memcmp(&sorted[i].uid, &sorted[i - 1].uid, sizeof sorted[i].uid) == 0;
    }
    dd_mem_free(sorted);
    return DD_OK;
}

dd_status
dd_group_make_endpoint(dd_engine *engine, dd_store *store, dd_blob *endpoint, dd_error *err)
{
    dd_addr to_store = dd_tcp_store_own_addr(store);
    return dd_engine_endpoint(engine, to_store.len > 0 ? &to_store : NULL, endpoint, err);
}

/* Return the key in the store under which a rank publishes the address record of its own engine. */
static dd_bytes
replacement_key(const group_meeting *meeting, dd_bytes name, int rank, char out[DD_MEETING_NAME_MAX + 64])
{
    int len = snprintf(out, DD_MEETING_NAME_MAX + 64, "dldist/%.*s/%llu/again/%d", (int)name.len,
                       (const char *)name.data, (unsigned long long)meeting->end.generation, rank);
    return dd_bytes_of(out, (size_t)len);
}

/* Open a new engine for this rank, and publish its address record to replace the first engine's. */
static dd_status
use_own_engine(dd_store *store, const dd_meeting *met, group_meeting *meeting, const dd_wait *wait,
               dd_error *err)
{
    dd_engine *own_engine = NULL;
    char key[DD_MEETING_NAME_MAX + 64];
    dd_status status = dd_engine_open_like(meeting->engine, &own_engine, err);
    if (status != DD_OK) {
        return status;
    }
    dd_blob endpoint = {0};
    status = dd_group_make_endpoint(own_engine, store, &endpoint, err);
    if (status == DD_OK) {
        status = dd_store_set(store, replacement_key(meeting, met->name, met->rank, key),
                              dd_blob_view(&endpoint), wait, err);
    }
    dd_blob_fini(&endpoint);
    if (status != DD_OK) {
        dd_engine_release(own_engine);
        return status;
    }
    dd_engine_begin_meeting(own_engine);
    dd_engine_release(meeting->engine);
    meeting->engine = own_engine;
    return DD_OK;
}

static dd_status
get_replacements(dd_store *store, const dd_meeting *met, group_meeting *meeting, const bool *is_repeated,
                 const dd_wait *wait, dd_error *err)
{
    dd_status status = dd_blob_list_init(&meeting->replaced_endpoints, (size_t)met->size, err);
    for (int rank = 0; rank < met->size && status == DD_OK; rank++) {
        char key[DD_MEETING_NAME_MAX + 64];
        dd_blob *endpoint = &meeting->replaced_endpoints.items[rank];
        if (!is_repeated[rank]) {
            continue;
        }
        status = dd_store_get(store, replacement_key(meeting, met->name, rank, key), endpoint, wait, err);
        meeting->end.payloads[rank] = dd_blob_view(endpoint);
    }
    return status;
}

static dd_status
replace_repeated(dd_store *store, const dd_meeting *met, group_meeting *meeting, const dd_wait *wait,
                 dd_error *err)
{
    size_t size = (size_t)met->size;
    bool *is_repeated = dd_mem_zalloc(size * sizeof *is_repeated);
    if (is_repeated == NULL) {
        return dd_error_no_memory(err, size * sizeof *is_repeated);
    }
    dd_status status = find_repeated(meeting->end.payloads, met->size, is_repeated, err);
    if (status == DD_OK && is_repeated[met->rank]) {
        status = use_own_engine(store, met, meeting, wait, err);
    }
    if (status == DD_OK && memchr(is_repeated, true, size) != NULL) {
        status = get_replacements(store, met, meeting, is_repeated, wait, err);
    }
    dd_mem_free(is_repeated);
    return status;
}

/* ---- meeting */

dd_status
group_meet(dd_engine *engine, dd_store *store, int rank, int size, dd_bytes name, group_meeting *meeting,
           const dd_wait *wait, dd_error *err)
{
    dd_blob endpoint = {0};
    dd_meeting met = {.kind = &group_kind, .store = store, .name = name, .rank = rank, .size = size};
    *meeting = (group_meeting){.engine = dd_engine_acquire(engine)};
    dd_status status = dd_group_make_endpoint(engine, store, &endpoint, err);
    if (status == DD_OK) {
        met.payload = dd_blob_view(&endpoint);
        status = dd_meet(&met, &meeting->end, wait, err);
    }
    if (status == DD_OK) {
        status = replace_repeated(store, &met, meeting, wait, err);
    }
    dd_blob_fini(&endpoint);
    if (status != DD_OK) {
        group_meeting_fini(meeting);
    }
    return status;
}

void
group_meeting_fini(group_meeting *meeting)
{
    dd_meeting_end_fini(&meeting->end);
    dd_blob_list_fini(&meeting->replaced_endpoints);
    dd_engine_release(meeting->engine);
    meeting->engine = NULL;
}

/* ---- the bulletin */

dd_status
group_bulletin_check(group_bulletin *bulletin, const dd_wait *wait, dd_error *err)
{
    int64_t now_ns = dd_clock_now_ns();
    bool is_first = bulletin->next_check_ns == 0;
    if (!is_first && now_ns < bulletin->next_check_ns) {
        return DD_OK;
    }
    bulletin->next_check_ns = now_ns + CHECK_NS;
    /* Skip the first check of the bulletin: the links usually exist before the second check. */
    return is_first ? DD_OK
                    : dd_meeting_check(bulletin->store, bulletin->name, bulletin->generation, wait, err);
}
