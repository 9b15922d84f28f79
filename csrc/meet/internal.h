/* The parts of a rendezvous ("meeting"): its course (meeting.c), the attendance of ranks
 * (attend.c), the ranks' payloads (payloads.c), and texts for messages (members.c). Stores
 * implement joining (store/meet_join.h). */
#ifndef DD_MEET_INTERNAL_H
#define DD_MEET_INTERNAL_H

#include "meet/meeting.h"
#include "store/meet_join.h"

#define MEETING_TITLE_MAX (DD_MEETING_NAME_MAX + 64)

/* The state of one call of dd_meet. */
typedef struct meeting_call {
    meeting_keys keys;
    const dd_meeting *meeting;
    dd_bytes own;              /* what this rank publishes: a nonce and its payload */
    uint64_t first_generation; /* number of the first meeting that this rank joined in this call */
    bool has_begun;            /* the number of the current meeting has been read */
    bool has_joined;           /* this rank has joined the current meeting, which has not ended */
    /* why the last meeting was cancelled; code DD_OK if no reason was given */
    dd_error cancel_reason;
} meeting_call;

/* ---- payloads.c */

/* Decode the "end" of a successful meeting of `size` ranks. DD_STORE, and no payloads, if
 * malformed. */
dd_status meeting_decode_end(int size, dd_bytes end, dd_meeting_end *out, dd_error *err) DD_MUST_CHECK;

/* ---- members.c */

/* Read the payload from the bytes that a rank published. Return false if they are malformed. */
bool meeting_read_member(const meeting_call *call, dd_bytes published, dd_meeting_member *member);
/* For messages: a rank's number; "rank 2 (node-b, pid 77)"; the meeting, such as `group "a"`. */
int meeting_name_of(const meeting_call *call, int rank);
const char *meeting_print_member(const meeting_call *call, int rank, const dd_meeting_member *member,
                                 char out[128]);
const char *meeting_print_title(const meeting_call *call, char out[MEETING_TITLE_MAX]);
/* Set *has_ended to true if the process that published these bytes is known to have ended. */
dd_status meeting_check_process(const meeting_call *call, dd_bytes published, bool *was_seen, bool *has_ended,
                                dd_error *err) DD_MUST_CHECK;

/* ---- attend.c */

/* Set DD_OP_TIMED_OUT, and name the joined and the missing ranks, or why they are unknown. */
dd_status meeting_error_absent(const meeting_call *call, dd_error *err) DD_MUST_CHECK;

/* The rank that this rank monitors while it waits: the next rank that has joined. So each joined
 * rank is monitored by another one, at little cost. */
typedef struct meeting_watch {
    int rank; /* number of the monitored rank; -1 if no other rank has joined */
    dd_blob published;
    bool was_seen;
    bool has_warned; /* the clients that the store refused have been logged */
} meeting_watch;

/* Return the time between two checks of the monitored rank. */
int64_t meeting_watch_interval_ns(const dd_meeting *meeting);
/* Check the monitored rank. Return DD_PEER_LOST, and blame the rank, if its process has ended. */
dd_status meeting_check_watched(const meeting_call *call, meeting_watch *watch, dd_error *err) DD_MUST_CHECK;

#endif
