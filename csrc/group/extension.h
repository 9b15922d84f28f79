/* An extension of a group: calls on top of its messages and memory, such as windows. The
 * group knows an extension only by this header, and has at most one.
 *
 * Call everything here with the engine's lock held, unless stated otherwise. */
#ifndef DD_GROUP_EXTENSION_H
#define DD_GROUP_EXTENSION_H

#include "group/group.h"

typedef struct dd_group_extension dd_group_extension;
struct dd_group_extension {
    /* Called for a request of another rank, with the contract of dd_context_handler. */
    dd_message *(*on_request)(dd_group_extension *extension, int rank, const dd_request *request);
    /* Called when a rank has left the group: end the calls that need this rank. */
    void (*on_goodbye)(dd_group_extension *extension, int rank);
    /* Called when the group has failed, or its context is about to be closed: end all calls, and
     * neither send nor accept anything afterwards. May be called twice. */
    void (*on_end)(dd_group_extension *extension, const dd_error *cause);
    /* Called without the lock, after the last reference to the group was dropped. */
    void (*destroy)(dd_group_extension *extension);
    /* The next three fields are set by dd_group_set_extension_locked, and borrowed. */
    dd_context *context;   /* valid until on_end */
    dd_peer *const *peers; /* [size]: the peer of each rank */
    bool is_crowded;       /* more ranks on this host than cores */
    /* Counts that the extension sets; it must then call dd_group_update_extension_locked. ncalls:
     * calls under way; a closing group waits for them, and then ends them. nunawaited: messages for
     * which no caller waits. */
    size_t ncalls;
    size_t nunawaited;
};

dd_group_extension *dd_group_find_extension_locked(const dd_group *group); /* NULL if there is none */
void dd_group_set_extension_locked(dd_group *group, dd_group_extension *extension);
void dd_group_update_extension_locked(dd_group *group);

bool dd_group_has_left_locked(const dd_group *group, int rank);
/* Return the cause of the group's failure, or NULL if it has not failed. */
const dd_error *dd_group_cause_locked(const dd_group *group);
/* Return DD_OK if a call may begin, else the reason. May release the lock temporarily. */
dd_status dd_group_check_usable_locked(dd_group *group, const char *label, dd_error *err) DD_MUST_CHECK;
/* Fail the group with this cause. All calls under way end, on this rank and on the other ranks. */
void dd_group_fail_locked(dd_group *group, const dd_error *cause);

/* Set the error "rank 2 (node-b, pid 77) <what>", and blame that rank. Needs no lock. */
dd_status dd_group_error_about(const dd_group *group, int rank, dd_status code, const char *label,
                               dd_error *err);

/* ---- memory (regions.c) */

/* Allocate a pad: a region for words that ranks wait for. The memory of a released pad is reused
 * only for other pads, because a rank may still read it. Call without the lock. */
dd_status dd_group_alloc_pad(dd_group *group, size_t nbytes, dd_region **region, dd_error *err) DD_MUST_CHECK;
dd_group *dd_region_group(const dd_region *region);
uint32_t dd_region_id(const dd_region *region); /* id by which other ranks request the region */
/* Map a region of another rank until the group is destroyed. memory->data is NULL if the rank is on
 * another host, or while the region's descriptor has not arrived. DD_PROTOCOL if the received
 * descriptor is not one of a region. */
dd_status dd_group_map_region_locked(dd_group *group, int rank, uint32_t id, dd_block *memory,
                                     dd_error *err) DD_MUST_CHECK;
/* Return true if this rank can map regions of `rank`. Needs no lock. */
bool dd_group_shares_memory(const dd_group *group, int rank);
/* Drive the engine until is_ready(ctx) is true or the wait ends: DD_OP_TIMED_OUT without a message,
 * or DD_INTERRUPTED. Call without the lock. is_ready is called repeatedly with the lock held; it
 * must depend only on a link's data or state, because nothing else wakes the driver. */
dd_status dd_group_await(dd_group *group, bool (*is_ready)(void *ctx), void *ctx, const dd_wait *wait,
                         dd_error *err) DD_MUST_CHECK;

#endif
