/* The parts of a meeting: coming to it (meeting_join.c), what becomes of it (meeting.c), how it ends, as bytes
 * (meeting_end.c), and who is there (meeting_attend.c). */
#ifndef DD_STORE_MEETING_INTERNAL_H
#define DD_STORE_MEETING_INTERNAL_H

#include "store/keyspace.h"
#include "store/meeting.h"

#define MEETING_NONCE_BYTES 8 /* in front of a card, so that every attempt to join has bytes of its own */
#define MEETING_FAILURE_MAX (sizeof(dd_error) + 128) /* also of a meeting that was called off */
#define MEETING_TITLE_MAX (DD_MEETING_NAME_MAX + 64)

/* ---- meeting_join.c */

/* Where the meetings of one name are held, and one of them. Copies share the room for keys. */
typedef struct meeting_place {
    dd_store *store;
    const dd_wait *wait;
    uint64_t generation;
    char *text; /* the prefix of its keys, and room for the rest of one */
    size_t size;
    size_t prefix_len;
} meeting_place;

/* The prefix is `root` and `name`. */
dd_status meeting_place_init(meeting_place *place, dd_store *store, const char *root, dd_bytes name,
                             const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
void meeting_place_fini(meeting_place *place);

/* A key of the meeting, as "rank/%d": good until the next one is made. */
dd_bytes meeting_key(const meeting_place *place, const char *format, ...) DD_PRINTF(2, 3);
dd_status meeting_try_get(const meeting_place *place, dd_bytes key, dd_blob *value, bool *is_found,
                          dd_error *err) DD_MUST_CHECK;
/* *value becomes what stands there now. */
dd_status meeting_set_if_missing(const meeting_place *place, dd_bytes key, dd_bytes desired, dd_blob *value,
                                 dd_error *err) DD_MUST_CHECK;

/* Finds the meeting that is now under this name. */
dd_status meeting_read_generation(meeting_place *place, dd_error *err) DD_MUST_CHECK;
/* A rank that sees that a meeting has ended moves the name on; only one of them succeeds. */
dd_status meeting_leave_generation(const meeting_place *place, dd_error *err) DD_MUST_CHECK;

/* The request MEET over any store, `ks` if it is that of a keyspace. */
dd_status meeting_join(dd_store *store, dd_keyspace *ks, const dd_store_request *request,
                       dd_store_result *reply, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- meeting_end.c */

/* Append the cards of what the ranks have published to `end`, behind a line with the id. */
dd_status meeting_encode_end(uint64_t id, const dd_blob_list *published, dd_blob *end,
                             dd_error *err) DD_MUST_CHECK;
/* DD_STORE if this is not the end of a meeting of this size that has succeeded; *out has no cards then. */
dd_status meeting_decode_end(int size, dd_bytes end, dd_meeting_end *out, dd_error *err) DD_MUST_CHECK;
/* Returns its length. */
size_t meeting_encode_failure(const dd_error *error, char end[MEETING_FAILURE_MAX]);
/* False: it says something else. */
bool meeting_decode_failure(dd_bytes end, dd_error *error);
/* Encode the end of a meeting that was called off: the ranks in it go on to the next one. `why`: the reason of the rank that
 * called it off, or NULL. Returns its length. */
size_t meeting_encode_off(const dd_error *why, char end[MEETING_FAILURE_MAX]);
/* False for another end. *why has code DD_OK if there is no reason. */
bool meeting_decode_off(dd_bytes end, dd_error *why);
/* The front of bytes, which may be nothing, as a text: as much as there is room for, and a zero. */
void meeting_copy_text(dd_bytes bytes, char *out, size_t size);
dd_bytes meeting_card_of(dd_bytes published);

/* ---- meeting.c */

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

/* ---- meeting_join.c, for those who wait. The last rank ends a meeting; on a store that is no server of ours it may die before it has.
 * If all have come, this rank does it, and *said is the end; else *has_ended is false. `nlooks`: how often it has looked before. */
dd_status meeting_end_for_the_last(const meeting_call *call, int nlooks, dd_blob *said, bool *has_ended,
                                   dd_error *err) DD_MUST_CHECK;

/* ---- meeting_attend.c */

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
