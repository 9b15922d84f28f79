/* Does what a store's request says on a keyspace: for the kinds of stores that keep their data in one. Like the
 * keyspace itself, without locks and without I/O. */
#ifndef DD_STORE_KEYSPACE_ANSWER_H
#define DD_STORE_KEYSPACE_ANSWER_H

#include "store/keyspace.h"
#include "store/request.h"

/* Does the request if what it waits for is there; else *is_answered is false, and nothing has changed, but that a
 * BARRIER has counted its caller. On failure nothing has changed, but for the first keys of a MULTI_SET.
 * DD_QUEUE_EMPTY from a pop that does not wait. */
dd_status dd_keyspace_answer(dd_keyspace *ks, const dd_store_request *request, dd_store_result *result,
                             bool *is_answered, dd_error *err) DD_MUST_CHECK;

/* Parks a waiter, whose on_ready is set, until the request that could not be answered can be; see dd_keyspace_park.
 * Its kind is GET's and MULTI_GET's VALUE, QUEUE_POP's POP, and so on. */
dd_status dd_keyspace_park_request(dd_keyspace *ks, dd_key_waiter *waiter, const dd_store_request *request,
                                   bool *is_parked, dd_error *err) DD_MUST_CHECK;

/* The time-out of a request on the store `where`: says what it still waits for. Returns DD_TIMED_OUT. */
dd_status dd_keyspace_error_missing(const dd_keyspace *ks, const dd_store_request *request, const char *where,
                                    const dd_wait *wait, dd_error *err);

#endif
