/* Does what a store's request says on a keyspace: for the kinds of stores that keep their data in one. Like the
 * keyspace itself, without locks and without I/O. */
#ifndef DD_STORE_KEYSPACE_ANSWER_H
#define DD_STORE_KEYSPACE_ANSWER_H

#include "store/keyspace.h"
#include "store/request.h"

/* Whether what the request waits for is there; true for those that do not wait. */
bool dd_keyspace_is_ready(const dd_keyspace *ks, const dd_store_request *request);

/* For a request that is ready. On failure nothing has changed, but for the first keys of a MULTI_SET. BARRIER does
 * not wait: result->flag tells whether all have come. DD_QUEUE_EMPTY from a pop that does not wait. */
dd_status dd_keyspace_answer(dd_keyspace *ks, const dd_store_request *request, dd_store_result *result,
                             dd_error *err) DD_MUST_CHECK;

/* The time-out of a request on the store `where`: says what it still waits for. Returns DD_TIMED_OUT. */
dd_status dd_keyspace_error_missing(const dd_keyspace *ks, const dd_store_request *request, const char *where,
                                    const dd_wait *wait, dd_error *err);

#endif
