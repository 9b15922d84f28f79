/* The data of an in-memory store: values, queues and waiting requests. The TCP server, HashStore
 * and FileStore use it. It has no locks and does no I/O; callers must serialise their calls.
 *
 * A request that must wait is parked: it is answered once, through on_ready, when all its keys are
 * present, by the call that makes them present. on_ready must not change the keyspace. */
#ifndef DD_STORE_KEYSPACE_H
#define DD_STORE_KEYSPACE_H

#include "core/list.h"
#include "core/map.h"
#include "store/store.h"

typedef struct dd_keyspace {
    dd_map entries;
    int64_t nvalues;   /* number of entries with a value */
    uint64_t nchanges; /* number of changes of values and queues */
} dd_keyspace;

typedef struct dd_key_waiter dd_key_waiter;
struct dd_key_waiter {
    /* Called with the result or, if there is none, the error (else `error` is NULL). The callback
     * may take the result's memory, and may free the waiter, which is no longer parked. */
    void (*on_ready)(dd_key_waiter *waiter, dd_store_result *result, const dd_error *error);
    /* private fields */
    dd_store_op op;
    struct dd_key_waiter_link *links;
    size_t nlinks;
    size_t npending;
};

void dd_keyspace_init(dd_keyspace *ks);
/* Free everything. No waiter may be parked. */
void dd_keyspace_fini(dd_keyspace *ks);

/* Run the request if it need not wait. If it must wait, *is_answered is false and nothing has
 * changed, except that a BARRIER has counted its caller. On failure nothing has changed, except the
 * first keys of a MULTI_SET. A QUEUE_POP that does not wait returns DD_QUEUE_EMPTY. */
dd_status dd_keyspace_answer(dd_keyspace *ks, const dd_store_request *request, dd_store_result *result,
                             bool *is_answered, dd_error *err) DD_MUST_CHECK;
/* The same as dd_keyspace_answer, without copies: the result may borrow from the keyspace. */
dd_status dd_keyspace_answer_borrowed(dd_keyspace *ks, const dd_store_request *request,
                                      dd_store_result *result, bool *is_answered,
                                      dd_error *err) DD_MUST_CHECK;

/* Return true if all keys of the request are present, so that it need not wait. */
bool dd_keyspace_is_ready(const dd_keyspace *ks, const dd_store_request *request);

/* Park a waiter for a request that must wait, until all its keys are present at the same time. The
 * caller must have set on_ready. The keys are borrowed only for this call. */
dd_status dd_keyspace_park(dd_keyspace *ks, dd_key_waiter *waiter, const dd_store_request *request,
                           dd_error *err) DD_MUST_CHECK;
/* Remove a waiter. A waiter that is not parked (zeroed or answered) is allowed. */
void dd_keyspace_unpark(dd_keyspace *ks, dd_key_waiter *waiter);
/* Set and return DD_TIMED_OUT, with the missing keys and the store (`where`). */
dd_status dd_keyspace_error_missing(const dd_keyspace *ks, const dd_store_request *request, const char *where,
                                    const dd_wait *wait, dd_error *err);

/* Get a key's value, borrowed until the keyspace changes. Return false if there is none. */
bool dd_keyspace_get(const dd_keyspace *ks, dd_bytes key, dd_bytes *value);

/* Put a popped item back: give it to the longest waiting QUEUE_POP or, if none waits, to the head
 * of the queue. On success the keyspace owns the item's memory. */
dd_status dd_keyspace_queue_unpop(dd_keyspace *ks, dd_bytes key, dd_blob *value, dd_error *err) DD_MUST_CHECK;

/* Run MEET: add a rank to a meeting (a rendezvous). The code is in meet_join.c. */
dd_status dd_keyspace_meet(dd_keyspace *ks, const dd_store_request *request, dd_store_result *result,
                           dd_error *err) DD_MUST_CHECK;

#endif
