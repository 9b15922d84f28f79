/* The parts of a meeting: what becomes of it (meeting.c), who is there (attend.c), the cards (cards.c), and what messages call a
 * rank (words.c). How a rank joins is an operation of stores (store/meet_join.h). */
#ifndef DD_MEET_INTERNAL_H
#define DD_MEET_INTERNAL_H

#include "meet/meeting.h"
#include "store/meet_join.h"

#define MEETING_TITLE_MAX (DD_MEETING_NAME_MAX + 64)

/* One call of dd_meet. */
typedef struct meeting_call {
    meeting_place place;
    const dd_meeting *meeting;
    dd_bytes own;              /* published */
    uint64_t first_generation; /* in which this rank has come first */
    bool has_begun;            /* the generations are known */
    bool has_come;             /* to a meeting that has not ended */
    dd_error
        called_off; /* why another rank has called off the last meeting; code DD_OK if none has given a reason */
} meeting_call;

/* ---- cards.c */

/* DD_STORE if this is not the end of a meeting of this size that has succeeded; *out has no cards then. */
dd_status meeting_decode_end(int size, dd_bytes end, dd_meeting_end *out, dd_error *err) DD_MUST_CHECK;

/* ---- words.c */

/* False: it is no published card. */
bool meeting_read(const meeting_call *call, dd_bytes published, dd_meeting_member *member);
/* What messages call a rank; "rank 2 (node-b, pid 77)"; and the meeting: `group "a"`. */
int meeting_name_of(const meeting_call *call, int rank);
const char *meeting_print_member(const meeting_call *call, int rank, const dd_meeting_member *member,
                                 char out[128]);
const char *meeting_print_title(const meeting_call *call, char out[MEETING_TITLE_MAX]);
/* Whether the process that has published this is known to have ended. */
dd_status meeting_look_for(const meeting_call *call, dd_bytes published, bool *was_seen, bool *is_gone,
                           dd_error *err) DD_MUST_CHECK;

/* ---- attend.c */

/* DD_OP_TIMED_OUT, naming who has come and who is missing, or what keeps this rank from finding out. */
dd_status meeting_error_absent(const meeting_call *call, dd_error *err) DD_MUST_CHECK;

/* The other rank that this one looks after while it waits: the next one that has come. So every rank that
 * has come is looked after by one other, and no rank has much to do. */
typedef struct meeting_watch {
    int rank; /* -1: nobody yet */
    dd_blob published;
    bool was_seen;
    bool has_warned; /* of those that the store has refused */
} meeting_watch;

/* How often to look. */
int64_t meeting_watch_interval_ns(const dd_meeting *meeting);
/* DD_PEER_LOST, naming it: its process has ended. */
dd_status meeting_look_after(const meeting_call *call, meeting_watch *watch, dd_error *err) DD_MUST_CHECK;

#endif
