/* The data of an in-memory store: values, queues and waiting requests. The TCP server, HashStore
 * and FileStore use it. It has no locks and does no I/O; callers must serialise their calls.
 *
 * A request that must wait is parked: it is answered once, through on_ready, by the call that makes
 * its last missing key present. on_ready must not change the keyspace. */
#ifndef DD_STORE_KEYSPACE_H
#define DD_STORE_KEYSPACE_H

#include "core/list.h"
#include "core/map.h"
#include "store/store.h"

typedef struct dd_keyspace {
    dd_map entries;
    int64_t nvalues;   /* number of entries with a value */
    uint64_t nchanges; /* number of changes to values and queues so far */
} dd_keyspace;

typedef struct dd_key_waiter dd_key_waiter;
struct dd_key_waiter {
    /* Called once, with the result, or with an error (`error` is NULL on success). The callback may
     * take ownership of the result's memory, and may free the waiter, which is no longer parked. */
    void (*on_ready)(dd_key_waiter *waiter, dd_store_result *result, const dd_error *error);
    /* the fields below are private to the keyspace */
    dd_store_op op;
    struct dd_key_waiter_link *links;
    size_t nlinks;
    size_t npending;
};

void dd_keyspace_init(dd_keyspace *ks);
/* Free the keyspace and its contents. No waiter may be parked. */
void dd_keyspace_fini(dd_keyspace *ks);

/* Answer the request if it need not wait. If it must wait, set *is_answered to false and change
 * nothing, except that a BARRIER counts its caller. On failure nothing changes, except the first
 * keys of a MULTI_SET. A QUEUE_POP that must not wait returns DD_QUEUE_EMPTY. */
dd_status dd_keyspace_answer(dd_keyspace *ks, const dd_store_request *request, dd_store_result *result,
                             bool *is_answered, dd_error *err) DD_MUST_CHECK;
/* Like dd_keyspace_answer, but without copies: the result may point into the keyspace. */
dd_status dd_keyspace_answer_borrowed(dd_keyspace *ks, const dd_store_request *request,
                                      dd_store_result *result, bool *is_answered,
                                      dd_error *err) DD_MUST_CHECK;

/* Return true if all keys of the request are present, so that the request need not wait. */
bool dd_keyspace_is_ready(const dd_keyspace *ks, const dd_store_request *request);

/* Park a waiter for a request that must wait, until all keys of the request are present at the same
 * time. The caller must have set on_ready. The keys are borrowed only during this call. */
dd_status dd_keyspace_park(dd_keyspace *ks, dd_key_waiter *waiter, const dd_store_request *request,
                           dd_error *err) DD_MUST_CHECK;
/* Remove a parked waiter. No effect if the waiter is not parked (zeroed or answered). */
void dd_keyspace_unpark(dd_keyspace *ks, dd_key_waiter *waiter);
/* Set and return DD_TIMED_OUT. The message lists the missing keys and names the store (`where`). */
dd_status dd_keyspace_error_missing(const dd_keyspace *ks, const dd_store_request *request, const char *where,
                                    const dd_wait *wait, dd_error *err);

/* Get a key's value, valid until the keyspace changes. Return false if there is no value. */
bool dd_keyspace_get(const dd_keyspace *ks, dd_bytes key, dd_bytes *value);

/* Undo a pop: give the item to the longest waiting QUEUE_POP or, if none waits, put it at the head
 * of the queue. On success the keyspace owns the item's memory. */
dd_status dd_keyspace_queue_unpop(dd_keyspace *ks, dd_bytes key, dd_blob *value, dd_error *err) DD_MUST_CHECK;

/* Run MEET: a rank joins a meeting (a rendezvous). The code is in meet_join.c. */
dd_status dd_keyspace_meet(dd_keyspace *ks, const dd_store_request *request, dd_store_result *result,
                           dd_error *err) DD_MUST_CHECK;

#endif
