/* The parts of a meeting: coming to it (meeting_join.c), what becomes of it (meeting.c), how it ends, as bytes
 * (meeting_end.c), cards of many ranks (meeting_share.c), and who is there (meeting_attend.c). */
#ifndef DD_STORE_MEETING_INTERNAL_H
#define DD_STORE_MEETING_INTERNAL_H

#include "net/addr.h"
#include "store/meeting.h"

#define MEETING_NONCE_BYTES 8 /* in front of a card, so that every attempt to join has bytes of its own */
#define MEETING_END_OFF "off"
#define MEETING_FAILURE_MAX (sizeof(dd_error) + 64)

/* ---- meeting_join.c */

/* Room for the keys of one place, of which one is good at a time. */
typedef struct meeting_keys {
    char *text;
    size_t size;
    size_t place_len;
} meeting_keys;

dd_status meeting_keys_init(meeting_keys *keys, dd_bytes place, dd_error *err) DD_MUST_CHECK;
void meeting_keys_fini(meeting_keys *keys);
dd_bytes meeting_part_key(meeting_keys *keys, uint64_t generation, const char *what);
dd_bytes meeting_rank_key(meeting_keys *keys, uint64_t generation, const char *what, int rank);

/* Of the meeting that is now under this name. */
dd_status meeting_read_generation(dd_store *store, meeting_keys *keys, uint64_t *generation,
                                  const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Whoever sees that a meeting has ended moves the name on; only one of them succeeds. */
dd_status meeting_leave_generation(dd_store *store, meeting_keys *keys, uint64_t generation,
                                   const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- meeting_end.c */

/* More than that are not in the end, but apart: every rank reads that. */
#define MEETING_INLINE_NBYTES ((size_t)4 << 10)

/* Of what the ranks have published. *cards: what goes apart, else empty. */
dd_status meeting_encode_end(uint64_t id, const dd_blob_list *published, dd_blob *end, dd_blob *cards,
                             dd_error *err) DD_MUST_CHECK;
/* *napart: how many bytes the cards have that are apart, and then not in `out`; 0: all is there. DD_STORE. */
dd_status meeting_decode_end(int size, dd_bytes end, dd_meeting_end *out, size_t *napart,
                             dd_error *err) DD_MUST_CHECK;
/* Into out->cards. DD_STORE. */
dd_status meeting_find_cards(int size, dd_bytes bytes, dd_meeting_end *out, dd_error *err) DD_MUST_CHECK;
/* Returns its length. */
size_t meeting_encode_failure(const dd_error *error, char end[MEETING_FAILURE_MAX]);
/* False: it says something else. */
bool meeting_decode_failure(dd_bytes end, dd_error *error);

/* ---- meeting.c */

/* One call of dd_meet. */
typedef struct meeting_place {
    const dd_meeting *meeting;
    dd_store *store;
    dd_bytes own; /* published */
    uint64_t generation;
    uint64_t first_generation; /* in which this rank has come first */
    bool has_begun;            /* these two are known */
    bool has_come;             /* to a meeting that has not ended */
    const dd_wait *wait;
    meeting_keys keys;
} meeting_place;

/* False: it is no published card. */
bool meeting_read(const meeting_place *place, dd_bytes published, dd_meeting_member *member);
dd_bytes meeting_card_of(dd_bytes published);
/* What messages call a rank. */
int meeting_name_of(const meeting_place *place, int rank);
/* "rank 2 (node-b, pid 77)" */
const char *meeting_print_member(const meeting_place *place, int rank, const dd_meeting_member *member,
                                 char out[128]);

/* ---- meeting_share.c */

/* Where one rank of a host hands them on. */
dd_addr meeting_share_addr(const uint8_t host[DD_MEETING_HOST_BYTES], uint64_t id);
/* The cards that are apart, into `end`, whose id is known. */
dd_status meeting_take_cards(meeting_place *place, size_t nbytes, dd_meeting_end *end,
                             dd_error *err) DD_MUST_CHECK;

/* ---- meeting_attend.c */

/* DD_OP_TIMED_OUT, naming who has come and who is missing, or what keeps this rank from finding out. */
dd_status meeting_error_absent(meeting_place *place, dd_error *err) DD_MUST_CHECK;

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
dd_status meeting_look_after(meeting_place *place, meeting_watch *watch, dd_error *err) DD_MUST_CHECK;

#endif
