/* The parts of a meeting: its course (meeting.c), attendance (attend.c), the cards (cards.c), and
 * the texts for ranks (members.c). Joining is an operation of stores (store/meet_join.h). */
#ifndef DD_MEET_INTERNAL_H
#define DD_MEET_INTERNAL_H

#include "meet/meeting.h"
#include "store/meet_join.h"

#define MEETING_TITLE_MAX (DD_MEETING_NAME_MAX + 64)

/* One call of dd_meet. */
typedef struct meeting_call {
    meeting_keys keys;
    const dd_meeting *meeting;
    dd_bytes own;              /* the bytes that this rank published */
    uint64_t first_generation; /* of the first meeting that this rank joined */
    bool has_begun;            /* the generations are known */
    bool has_joined;           /* joined a meeting that has not ended */
    /* reason of the rank that cancelled the last meeting; code DD_OK if it gave none */
    dd_error cancel_reason;
} meeting_call;

/* ---- cards.c */

/* Decode the end of a successful meeting of this size; else DD_STORE, and *out has no cards. */
dd_status meeting_decode_end(int size, dd_bytes end, dd_meeting_end *out, dd_error *err) DD_MUST_CHECK;

/* ---- members.c */

/* Read the card of published bytes. Return false if they are malformed. */
bool meeting_read_member(const meeting_call *call, dd_bytes published, dd_meeting_member *member);
/* A rank's number in messages; "rank 2 (node-b, pid 77)"; the meeting as `group "a"`. */
int meeting_name_of(const meeting_call *call, int rank);
const char *meeting_print_member(const meeting_call *call, int rank, const dd_meeting_member *member,
                                 char out[128]);
const char *meeting_print_title(const meeting_call *call, char out[MEETING_TITLE_MAX]);
/* Set *has_ended to true if the process that published the bytes is known to have ended. */
dd_status meeting_check_process(const meeting_call *call, dd_bytes published, bool *was_seen, bool *has_ended,
                                dd_error *err) DD_MUST_CHECK;

/* ---- attend.c */

/* Set DD_OP_TIMED_OUT with the present and the missing ranks, or why they are unknown. */
dd_status meeting_error_absent(const meeting_call *call, dd_error *err) DD_MUST_CHECK;

/* The rank that this one monitors while it waits: the next one that has joined. So every rank that
 * has joined is monitored by one other, at little cost for each. */
typedef struct meeting_watch {
    int rank; /* -1 if there is none yet */
    dd_blob published;
    bool was_seen;
    bool has_warned; /* has logged the clients that the store refused */
} meeting_watch;

/* Return the time between two looks. */
int64_t meeting_watch_interval_ns(const dd_meeting *meeting);
/* Check the monitored rank. DD_PEER_LOST, naming it, if its process has ended. */
dd_status meeting_check_watched(const meeting_call *call, meeting_watch *watch, dd_error *err) DD_MUST_CHECK;

#endif
