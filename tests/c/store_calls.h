/* The operations of a store as calls, for tests. The library needs only those in store/store.h. */
#ifndef TESTS_STORE_CALLS_H
#define TESTS_STORE_CALLS_H

#include "store/store.h"

dd_status dd_store_wait(dd_store *store, const dd_bytes *keys, size_t nkeys, const dd_wait *wait,
                        dd_error *err) DD_MUST_CHECK;
dd_status dd_store_check(dd_store *store, const dd_bytes *keys, size_t nkeys, bool *is_ready,
                         const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
dd_status dd_store_delete_key(dd_store *store, dd_bytes key, bool *is_deleted, const dd_wait *wait,
                              dd_error *err) DD_MUST_CHECK;
dd_status dd_store_num_keys(dd_store *store, int64_t *count, const dd_wait *wait,
                            dd_error *err) DD_MUST_CHECK;
dd_status dd_store_append(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait,
                          dd_error *err) DD_MUST_CHECK;
/* The caller must have zeroed `values`. */
dd_status dd_store_multi_get(dd_store *store, const dd_bytes *keys, size_t nkeys, dd_blob_list *values,
                             const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
dd_status dd_store_multi_set(dd_store *store, const dd_bytes *keys, const dd_bytes *values, size_t nkeys,
                             const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
dd_status dd_store_queue_push(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait,
                              dd_error *err) DD_MUST_CHECK;
dd_status dd_store_queue_pop(dd_store *store, dd_bytes key, bool is_blocking, dd_blob *value,
                             const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
dd_status dd_store_queue_len(dd_store *store, dd_bytes key, int64_t *count, const dd_wait *wait,
                             dd_error *err) DD_MUST_CHECK;
dd_status dd_store_list_keys(dd_store *store, dd_blob_list *keys, const dd_wait *wait,
                             dd_error *err) DD_MUST_CHECK;
dd_status dd_store_barrier(dd_store *store, dd_bytes key, int64_t world_size, const dd_wait *wait,
                           dd_error *err) DD_MUST_CHECK;

#endif
