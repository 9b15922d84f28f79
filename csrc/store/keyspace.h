/* The data of a store in memory: values, queues, and the requests that wait for them. It answers requests. No locks and no
 * I/O; the caller serialises. The TCP server, HashStore and FileStore stand on it.
 *
 * A request that has to wait is parked, and told once, through on_ready, when all that it needs is there. Callbacks
 * run inside the request that made it so; they may read the keyspace, and not change it. */
#ifndef DD_STORE_KEYSPACE_H
#define DD_STORE_KEYSPACE_H

#include "core/list.h"
#include "core/map.h"
#include "store/store.h"

typedef struct dd_keyspace {
    dd_map entries;
    int64_t nvalues;   /* entries with a value */
    uint64_t nchanges; /* grows with every change of a value or a queue */
} dd_keyspace;

typedef struct dd_key_waiter dd_key_waiter;
struct dd_key_waiter {
    /* What the request asked for, or why there is none (else `error` is NULL). What the result owns may be taken. The
     * waiter is parked no more when this runs, and may be freed by it. */
    void (*on_ready)(dd_key_waiter *waiter, dd_store_result *result, const dd_error *error);
    /* private */
    dd_store_op op;
    struct dd_key_waiter_link *links;
    size_t nlinks;
    size_t npending;
};

void dd_keyspace_init(dd_keyspace *ks);
/* Frees everything. No waiter may be parked. */
void dd_keyspace_fini(dd_keyspace *ks);

/* Does the request if what it waits for is there; else *is_answered is false, and nothing has changed, but that a
 * BARRIER has counted its caller. On failure nothing has changed, but for the first keys of a MULTI_SET.
 * DD_QUEUE_EMPTY from a pop that does not wait. */
dd_status dd_keyspace_answer(dd_keyspace *ks, const dd_store_request *request, dd_store_result *result,
                             bool *is_answered, dd_error *err) DD_MUST_CHECK;
/* The same without copies: the result may be lent. */
dd_status dd_keyspace_lend(dd_keyspace *ks, const dd_store_request *request, dd_store_result *result,
                           bool *is_answered, dd_error *err) DD_MUST_CHECK;

/* Whether all keys are there, as far as the request cares. */
bool dd_keyspace_is_ready(const dd_keyspace *ks, const dd_store_request *request);

/* Parks a waiter, whose on_ready is set, for a request that could not be answered, until all its keys are there at
 * one moment: one that goes away again counts as missing. The keys are needed during the call only. */
dd_status dd_keyspace_park(dd_keyspace *ks, dd_key_waiter *waiter, const dd_store_request *request,
                           dd_error *err) DD_MUST_CHECK;
/* Takes a waiter back: nothing of it stays. Fine for one that is not parked (zeroed or told). */
void dd_keyspace_unpark(dd_keyspace *ks, dd_key_waiter *waiter);
/* The time-out of a request on the store `where`: says what it still waits for. Returns DD_TIMED_OUT. */
dd_status dd_keyspace_error_missing(const dd_keyspace *ks, const dd_store_request *request, const char *where,
                                    const dd_wait *wait, dd_error *err);

/* The value, borrowed until the next change of the keyspace; false when there is none. */
bool dd_keyspace_get(const dd_keyspace *ks, dd_bytes key, dd_bytes *value);

/* Gives back an item that was popped: to the waiter that has asked the longest, else to the head of the
 * queue. On success the keyspace has taken `value`. */
dd_status dd_keyspace_queue_unpop(dd_keyspace *ks, dd_bytes key, dd_blob *value, dd_error *err) DD_MUST_CHECK;

/* MEET: one more rank comes to a meeting. The code is in meet_join.c. */
dd_status dd_keyspace_meet(dd_keyspace *ks, const dd_store_request *request, dd_store_result *result,
                           dd_error *err) DD_MUST_CHECK;

#endif
