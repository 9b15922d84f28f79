/* The store operation MEET: a rank joins a meeting (a rendezvous), and the last rank ends it. A
 * dldist server runs MEET in one request; for other stores, the client runs its steps. */
#ifndef DD_STORE_MEET_JOIN_H
#define DD_STORE_MEET_JOIN_H

#include "store/keyspace.h"
#include "store/store.h"

/* Size of the nonce before a published payload, which makes the published bytes unique. */
#define MEETING_NONCE_BYTES 8
/* Maximum size of the text of a failed or cancelled meeting. */
#define MEETING_FAILURE_MAX (sizeof(dd_error) + 128)

/* The keys of the meetings with one name, and the number of the current meeting (its generation).
 * Copies share the key buffer. */
typedef struct meeting_keys {
    dd_store *store;
    const dd_wait *wait;
    uint64_t generation;
    char *text; /* prefix of all keys, followed by space for the rest of a key */
    size_t size;
    size_t prefix_len;
} meeting_keys;

/* Initialise the keys, whose prefix is `root` followed by `name`. */
dd_status meeting_keys_init(meeting_keys *keys, dd_store *store, const char *root, dd_bytes name,
                            const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
void meeting_keys_fini(meeting_keys *keys);

/* Build a key of the current meeting, such as "rank/%d". The key is valid until the next call. */
dd_bytes meeting_key(const meeting_keys *keys, const char *format, ...) DD_PRINTF(2, 3);
dd_status meeting_try_get(const meeting_keys *keys, dd_bytes key, dd_blob *value, bool *is_found,
                          dd_error *err) DD_MUST_CHECK;
/* Set the key to `desired` if it is missing. *value is then the key's value, old or new. */
dd_status meeting_set_if_missing(const meeting_keys *keys, dd_bytes key, dd_bytes desired, dd_blob *value,
                                 dd_error *err) DD_MUST_CHECK;

/* Read the number of the current meeting (its generation) from the store. */
dd_status meeting_read_generation(meeting_keys *keys, dd_error *err) DD_MUST_CHECK;
/* Increment the generation after a meeting has ended. If several ranks do, only one succeeds. */
dd_status meeting_advance_generation(const meeting_keys *keys, dd_error *err) DD_MUST_CHECK;

/* Run MEET on a store of any kind. `ks` must be the store's keyspace, or NULL if it has none. */
dd_status meeting_join(dd_store *store, dd_keyspace *ks, const dd_store_request *request,
                       dd_store_result *reply, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* One rank of a meeting. */
typedef struct meeting_entry {
    int rank;
    int size;
    dd_bytes published;
} meeting_entry;

/* End a meeting for its last rank, which may have died before it could; not needed with a dldist
 * server. If all ranks have joined, end the meeting and set *reply_value to its end value; else set
 * *has_ended to false. `npolls` is the number of earlier calls by this rank. */
dd_status meeting_end_for_last_rank(const meeting_keys *keys, const meeting_entry *entry, int npolls,
                                    dd_blob *reply_value, bool *has_ended, dd_error *err) DD_MUST_CHECK;

/* ---- meet_end.c: the end value of a meeting, which is stored at the key "end" */

#define MEETING_PAYLOAD_HEAD_NBYTES 3 /* size of the bytes before each payload */

/* Encode the end value of a successful meeting: a line with the id, and the published payloads. */
dd_status meeting_encode_end(uint64_t id, const dd_blob_list *published, dd_blob *end,
                             dd_error *err) DD_MUST_CHECK;
/* Encode the end value of a failed meeting, and return its length in bytes. */
size_t meeting_encode_failure(const dd_error *error, char end[MEETING_FAILURE_MAX]);
/* Decode the failure in an end value. Return false if the end value is not a failure. */
bool meeting_decode_failure(dd_bytes end, dd_error *error);
/* Encode the end value of a cancelled meeting, whose ranks continue with the next one. `why` is the
 * error of the rank that cancelled the meeting, or NULL. Return the length in bytes. */
size_t meeting_encode_cancelled(const dd_error *why, char end[MEETING_FAILURE_MAX]);
/* Return false if the end value is not of a cancelled meeting. why->code is DD_OK if no reason. */
bool meeting_decode_cancelled(dd_bytes end, dd_error *why);
/* Copy as many bytes as fit into `out`, and append a zero byte. */
void meeting_copy_text(dd_bytes bytes, char *out, size_t size);
dd_bytes meeting_payload_of(dd_bytes published);

#endif
