/* The data of a store in memory: values, queues, and those who wait for them. Pure bookkeeping: no locks,
 * no I/O; the caller serialises. TCP server, HashStore and FileStore stand on it.
 *
 * A waiter is parked on keys and told once, through on_ready, when all of them are there. Callbacks run
 * inside the operation that made them ready (set, add, compare_set, append, queue_push, barrier_arrive);
 * they may read the keyspace, and not change it. */
#ifndef DD_STORE_KEYSPACE_H
#define DD_STORE_KEYSPACE_H

#include "core/bytes.h"
#include "core/list.h"
#include "core/map.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct dd_keyspace {
    dd_map entries;
    int64_t nvalues;   /* entries with a value */
    uint64_t nchanges; /* grows with every change of a value or a queue */
} dd_keyspace;

typedef enum dd_key_waiter_kind {
    DD_KEY_WAITER_KEYS,    /* all keys have a value or a queue with items */
    DD_KEY_WAITER_VALUE,   /* all keys have a value */
    DD_KEY_WAITER_POP,     /* one key; takes the first item of its queue, handed to on_ready */
    DD_KEY_WAITER_BARRIER, /* one key; its barrier is complete */
} dd_key_waiter_kind;

typedef struct dd_key_waiter dd_key_waiter;
struct dd_key_waiter {
    dd_key_waiter_kind kind;
    /* `value`: for VALUE that of the key that came last, to be read; for POP the item, which may be taken; else NULL.
     * The waiter is parked no more when this runs, and may be freed by it. */
    void (*on_ready)(dd_key_waiter *waiter, dd_blob *value);
    /* private */
    struct dd_key_waiter_link *links;
    size_t nlinks;
    size_t npending;
};

void dd_keyspace_init(dd_keyspace *ks);
/* Frees everything. No waiter may be parked. */
void dd_keyspace_fini(dd_keyspace *ks);

dd_status dd_keyspace_set(dd_keyspace *ks, dd_bytes key, dd_bytes value, dd_error *err) DD_MUST_CHECK;
/* The value, borrowed until the next change of the keyspace; false when there is none. */
bool dd_keyspace_get(const dd_keyspace *ks, dd_bytes key, dd_bytes *value);
dd_status dd_keyspace_add(dd_keyspace *ks, dd_bytes key, int64_t amount, int64_t *sum,
                          dd_error *err) DD_MUST_CHECK;
/* `value` is borrowed, from the keyspace or from `expected`. */
dd_status dd_keyspace_compare_set(dd_keyspace *ks, dd_bytes key, dd_bytes expected, dd_bytes desired,
                                  dd_bytes *value, dd_error *err) DD_MUST_CHECK;
dd_status dd_keyspace_append(dd_keyspace *ks, dd_bytes key, dd_bytes value, dd_error *err) DD_MUST_CHECK;
bool dd_keyspace_delete(dd_keyspace *ks, dd_bytes key);
/* A value, or a queue that is not empty. */
bool dd_keyspace_has(const dd_keyspace *ks, dd_bytes key);

/* An item goes to the waiter that has asked for one the longest, else it is stored. */
dd_status dd_keyspace_queue_push(dd_keyspace *ks, dd_bytes key, dd_bytes value, dd_error *err) DD_MUST_CHECK;
/* Moves the first item into `value` (zeroed by the caller, then owned by it); false when there is none. */
bool dd_keyspace_queue_pop(dd_keyspace *ks, dd_bytes key, dd_blob *value);
/* Gives back an item that was popped: to the waiter that has asked the longest, else to the head of the
 * queue. The keyspace takes `value` when it stores it; what is left in it then is the caller's. */
dd_status dd_keyspace_queue_unpop(dd_keyspace *ks, dd_bytes key, dd_blob *value, dd_error *err) DD_MUST_CHECK;
int64_t dd_keyspace_queue_len(const dd_keyspace *ks, dd_bytes key);

/* One more has come to the barrier at key (which is counted in the key's value, as `add` would); releases its
 * waiters when the count reaches world_size. `is_complete` tells whether it has. */
dd_status dd_keyspace_barrier_arrive(dd_keyspace *ks, dd_bytes key, int64_t world_size, bool *is_complete,
                                     dd_error *err) DD_MUST_CHECK;

/* One more rank comes to a meeting; waits for nothing. See dd_store_meet; the code is in meeting_join.c. */
struct dd_meet_request;
struct dd_meet_reply;
dd_status dd_keyspace_meet(dd_keyspace *ks, const struct dd_meet_request *request,
                           struct dd_meet_reply *reply, dd_error *err) DD_MUST_CHECK;

/* Parks a waiter, whose kind and on_ready are set, until the keys are there, all at one moment: one that
 * goes away again counts as missing. When they are already, nothing is parked and *is_parked is false;
 * on_ready is then not called. A BARRIER waiter is always parked, after an arrival that was not complete.
 * The keys are needed during the call only. */
dd_status dd_keyspace_park(dd_keyspace *ks, dd_key_waiter *waiter, const dd_bytes *keys, size_t nkeys,
                           bool *is_parked, dd_error *err) DD_MUST_CHECK;
/* Takes a waiter back: nothing of it stays. Fine for one that is not parked (zeroed or told). */
void dd_keyspace_unpark(dd_keyspace *ks, dd_key_waiter *waiter);

/* Walks the keys that have a value: *cursor starts as NULL; false at the end. */
bool dd_keyspace_next_key(const dd_keyspace *ks, const dd_map_node **cursor, dd_bytes *key);

#endif
