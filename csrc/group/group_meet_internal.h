/* The parts of a meeting: the protocol in the store (group_meet.c), how it ends (group_meet_end.c), and
 * who is there (group_attend.c). */
#ifndef DD_GROUP_GROUP_MEET_INTERNAL_H
#define DD_GROUP_GROUP_MEET_INTERNAL_H

#include "group/group_internal.h"

#define MEETING_KEY_MAX 512
#define MEETING_NONCE_BYTES 8 /* in front of a card, so that every attempt to join has bytes of its own */
#define MEETING_END_OFF "off"
#define MEETING_FAILURE_MAX (sizeof(dd_error) + 64)

typedef struct meeting_place {
    dd_store *store;
    int rank;
    int size;
    dd_bytes name;
    uint64_t generation;
    uint64_t first_generation; /* in which this rank has come first */
    bool has_begun;            /* these two are known */
    const dd_wait *wait;
    char key[MEETING_KEY_MAX];
} meeting_place;

/* ---- group_meet.c */

/* Keys in a generation: of a part, and of "<what>/<rank>"; good until the next key of the place. */
dd_bytes meeting_part_key(meeting_place *place, uint64_t generation, const char *what);
dd_bytes meeting_rank_key(meeting_place *place, uint64_t generation, const char *what, int rank);
/* What a rank has published: a nonce and its card. DD_PROTOCOL. */
dd_status meeting_decode_card(dd_bytes published, dd_card *card, dd_error *err) DD_MUST_CHECK;
/* "rank 2 (node-b, pid 77)" */
const char *meeting_print_member(int rank, const dd_card *card, char out[128]);

/* ---- group_meet_end.c */

dd_status meeting_encode_end(uint64_t id, const dd_blob_list *published, dd_blob *end,
                             dd_error *err) DD_MUST_CHECK;
/* The cards, without what was published in front of them. DD_STORE. */
dd_status meeting_decode_end(int size, dd_bytes end, uint64_t *id, dd_blob_list *cards,
                             dd_error *err) DD_MUST_CHECK;
/* Returns its length. */
size_t meeting_encode_failure(const dd_error *error, char end[MEETING_FAILURE_MAX]);
/* False: it says something else. */
bool meeting_decode_failure(dd_bytes end, dd_error *error);

/* ---- group_attend.c */

/* DD_OP_TIMED_OUT, naming who has come and who is missing, or what keeps this rank from finding out. */
dd_status meeting_error_absent(meeting_place *place, dd_error *err) DD_MUST_CHECK;

/* The other rank that this one looks after while it waits: the next one that has come. So every rank that
 * has come is looked after by one other, and no rank has much to do. */
typedef struct meeting_watch {
    int rank; /* -1: nobody yet */
    dd_card card;
    bool was_reachable;
    bool has_warned; /* of those that the store has refused */
} meeting_watch;

/* How often to look. */
int64_t meeting_watch_interval_ns(const meeting_place *place);
/* DD_PEER_LOST, naming it: its process has ended. */
dd_status meeting_look_after(meeting_place *place, meeting_watch *watch, const dd_card *own,
                             dd_error *err) DD_MUST_CHECK;

#endif
