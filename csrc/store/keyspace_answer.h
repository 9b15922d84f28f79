/* What a keyspace has to say to a store's request: for the kinds of stores that hold their data in one. Like the
 * keyspace itself, without locks and without I/O. */
#ifndef DD_STORE_KEYSPACE_ANSWER_H
#define DD_STORE_KEYSPACE_ANSWER_H

#include "store/keyspace.h"
#include "store/request.h"

/* Whether what the request waits for is there; true for those that do not wait. */
bool dd_keyspace_is_ready(const dd_keyspace *ks, const dd_store_request *request);

/* Does what a request says that is ready. On failure nothing has changed, but for the first keys of a MULTI_SET. A
 * BARRIER only arrives; result->flag tells whether all have come then. An empty queue is DD_QUEUE_EMPTY. */
dd_status dd_keyspace_answer(dd_keyspace *ks, const dd_store_request *request, dd_store_result *result,
                             dd_error *err) DD_MUST_CHECK;

/* The time-out of a request on the store `where`: says what it still waits for. Returns DD_TIMED_OUT. */
dd_status dd_keyspace_error_missing(const dd_keyspace *ks, const dd_store_request *request, const char *where,
                                    const dd_wait *wait, dd_error *err);

#endif
