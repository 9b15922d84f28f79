/* A guest of a group: what is built on a group's messages and memory without being a part of it. Windows are one. The group knows a
 * guest by this header alone, and has one at most.
 *
 * Everything here wants the engine's lock unless it says otherwise. */
#ifndef DD_GROUP_GUEST_H
#define DD_GROUP_GUEST_H

#include "group/group.h"

typedef struct dd_group_guest dd_group_guest;
struct dd_group_guest {
    /* As in dd_context_handler. */
    dd_message *(*on_request)(dd_group_guest *guest, int rank, const dd_request *request);
    /* The rank has said goodbye: what needs it ends. */
    void (*on_goodbye)(dd_group_guest *guest, int rank);
    /* The group has failed, or its context is about to be closed: everything ends, and nothing is sent or taken any more. May be
     * called twice. */
    void (*on_end)(dd_group_guest *guest, const dd_error *cause);
    /* Without the lock: nobody else has the group any more. */
    void (*destroy)(dd_group_guest *guest);
    /* Set by dd_group_take_guest_locked; borrowed. */
    dd_context *context;   /* good until on_end */
    dd_peer *const *peers; /* [size] */
    bool is_crowded;       /* more ranks on this host than cores */
    /* The guest's to set, followed by dd_group_note_guest_locked: calls under way, which a group that closes waits for and then ends;
     * and what is on its way that nobody waits for. */
    size_t ncalls;
    size_t nletters;
};

dd_group_guest *dd_group_find_guest_locked(const dd_group *group); /* NULL: there is none */
void dd_group_take_guest_locked(dd_group *group, dd_group_guest *guest);
void dd_group_note_guest_locked(dd_group *group);

bool dd_group_has_left_locked(const dd_group *group, int rank);
/* Why the group has failed; NULL: it has not. */
const dd_error *dd_group_cause_locked(const dd_group *group);
/* Of a call that begins: DD_OK, or why it cannot. May give the lock away for a moment. */
dd_status dd_group_check_usable_locked(dd_group *group, const char *what, dd_error *err) DD_MUST_CHECK;
/* Everything under way fails with this, here and on the other ranks. */
void dd_group_fail_locked(dd_group *group, const dd_error *cause);

/* The error "rank 2 (node-b, pid 77) <what>", which names it as the culprit. Without the lock. */
dd_status dd_group_error_about(const dd_group *group, int rank, dd_status code, const char *what,
                               dd_error *err);

/* ---- memory (regions.c) */

/* A region for words that ranks wait for. Kept for other pads alone: a rank may look at one whose owner has let it go. Without the
 * lock. */
dd_status dd_group_alloc_pad(dd_group *group, size_t nbytes, dd_region **region, dd_error *err) DD_MUST_CHECK;
dd_group *dd_region_group(const dd_region *region);
uint32_t dd_region_id(const dd_region *region); /* what other ranks know it by */
/* A region of another rank, mapped here until the group is gone; data NULL: it is of another host, or has not come (yet). DD_PROTOCOL:
 * what has come is no region. */
dd_status dd_group_map_region_locked(dd_group *group, int rank, uint32_t id, dd_block *memory,
                                     dd_error *err) DD_MUST_CHECK;
/* Whether regions of the rank can be mapped here. Without the lock. */
bool dd_group_shares_memory(const dd_group *group, int rank);
/* Drives until is_there(ctx) or the end of the wait: DD_OP_TIMED_OUT without a message, DD_INTERRUPTED. Without the lock; is_there is asked
 * with it, again and again, and for what a link brings or becomes: nothing else wakes the driver. */
dd_status dd_group_await(dd_group *group, bool (*is_there)(void *ctx), void *ctx, const dd_wait *wait,
                         dd_error *err) DD_MUST_CHECK;

#endif
