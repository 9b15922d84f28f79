/* The operation MEET of stores: a rank joins a meeting, and the last rank ends it. csrc/meet is built on it. A dldist server runs it
 * in one request, over its keyspace; for other stores the client runs it by their operations. */
#ifndef DD_STORE_MEET_JOIN_H
#define DD_STORE_MEET_JOIN_H

#include "store/keyspace.h"
#include "store/store.h"

#define MEETING_NONCE_BYTES 8 /* in front of a card, so that every attempt to join has bytes of its own */
#define MEETING_FAILURE_MAX (sizeof(dd_error) + 128) /* also of a meeting that was called off */

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

/* One rank of a meeting. */
typedef struct meeting_seat {
    int rank;
    int size;
    dd_bytes published;
} meeting_seat;

/* The last rank ends a meeting. With a store that is not a dldist server it may die before it has done so. If all ranks have joined,
 * this rank ends the meeting, and *said is its end; else *has_ended is false. `nlooks`: how often this rank has looked before. */
dd_status meeting_end_for_the_last(const meeting_place *place, const meeting_seat *seat, int nlooks,
                                   dd_blob *said, bool *has_ended, dd_error *err) DD_MUST_CHECK;

/* ---- meet_end.c: how a meeting has ended, as bytes */

#define MEETING_CARD_HEAD_NBYTES 3 /* in front of each card of an end */

/* Append the cards of what the ranks have published to `end`, behind a line with the id. */
dd_status meeting_encode_end(uint64_t id, const dd_blob_list *published, dd_blob *end,
                             dd_error *err) DD_MUST_CHECK;
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

#endif
