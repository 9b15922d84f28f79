/* A key-value store that processes meet in: one interface over all kinds.
 *
 * Keys and values are any bytes. A store is counted (acquire/release) and may be used from many threads at
 * once. Every operation takes a `wait` that bounds it, and returns its result only on DD_OK.
 * Statuses beyond the obvious: DD_TIMED_OUT names the missing keys, the store and the time; DD_QUEUE_EMPTY
 * from a non-blocking pop; DD_FORKED in a child of the process that opened the store. */
#ifndef DD_STORE_STORE_H
#define DD_STORE_STORE_H

#include "core/bytes.h"
#include "core/status.h"
#include "core/wait.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DD_STORE_DEFAULT_TIMEOUT_NS (300 * DD_NS_PER_S)

typedef struct dd_store dd_store;
typedef struct dd_store_request dd_store_request; /* store/request.h */
typedef struct dd_store_result dd_store_result;

/* A rank that comes to a meeting (meeting.h). */
typedef struct dd_meet_request {
    dd_bytes place; /* the keys of its meetings begin with this and "/" */
    int rank;
    int size;
    bool hears_failure; /* of a meeting before this one that has failed without it */
    dd_bytes published; /* a nonce and its card */
} dd_meet_request;

typedef enum dd_meet_state {
    DD_MEET_WAITING, /* it has come, and others have not; the end will stand at "<place>/<generation>/end" */
    DD_MEET_ENDED,   /* value: how */
    DD_MEET_RESIZED, /* value: what somebody has said of the size before, who has another one */
    DD_MEET_TAKEN,   /* value: what somebody else has published as this rank */
    DD_MEET_AGAIN,   /* too many meetings were over: ask again */
} dd_meet_state;

typedef struct dd_meet_reply {
    dd_meet_state state;
    bool has_come; /* also if it fails after that */
    uint64_t generation;
    dd_blob value;
} dd_meet_reply;

/* A list of byte strings that owns them all; for multi_get and list_keys. A zeroed one is empty. */
typedef struct dd_blob_list {
    dd_blob *items;
    size_t count;
} dd_blob_list;

dd_status dd_blob_list_init(dd_blob_list *list, size_t count, dd_error *err) DD_MUST_CHECK;
void dd_blob_list_fini(dd_blob_list *list);

/* What a kind of store implements. All pointers are set. Results (`value`, `list`, flags, numbers) are
 * written only on DD_OK; a dd_blob result replaces what the blob holds. */
typedef struct dd_store_ops {
    const char *kind; /* "TCPStore": for messages */

    /* Does what a request says; DD_STORE_OPS_BY_RUN makes the entries from `set` to `barrier` of it. What a kind does
     * not know it hands to dd_store_run_generic. `store` is never a clone (see dd_store_clone_handle). */
    dd_status (*run)(dd_store *store, const dd_store_request *request, dd_store_result *result,
                     const dd_wait *wait, dd_error *err);

    dd_status (*set)(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err);

    /* Waits until the key is there. */
    dd_status (*get)(dd_store *store, dd_bytes key, dd_blob *value, const dd_wait *wait, dd_error *err);

    /* Never waits for the key. */
    dd_status (*try_get)(dd_store *store, dd_bytes key, dd_blob *value, bool *is_found, const dd_wait *wait,
                         dd_error *err);

    /* Adds to the decimal number stored at the key (missing counts as 0) and returns the sum; wraps around.
     * DD_STORE when the value is not a number. */
    dd_status (*add)(dd_store *store, dd_bytes key, int64_t amount, int64_t *sum, const dd_wait *wait,
                     dd_error *err);

    /* Stores `desired` if the key holds `expected`, or is missing and `expected` is empty. `value` becomes
     * what the key holds afterwards; for a missing key that was not set, `expected`. */
    dd_status (*compare_set)(dd_store *store, dd_bytes key, dd_bytes expected, dd_bytes desired,
                             dd_blob *value, const dd_wait *wait, dd_error *err);

    /* Waits until every key is there: has a value or a queue that is not empty. */
    dd_status (*wait)(dd_store *store, const dd_bytes *keys, size_t nkeys, const dd_wait *wait,
                      dd_error *err);

    /* Whether every key is there, as above. */
    dd_status (*check)(dd_store *store, const dd_bytes *keys, size_t nkeys, bool *is_ready,
                       const dd_wait *wait, dd_error *err);

    /* Deletes a value (not a queue); tells whether there was one. */
    dd_status (*delete_key)(dd_store *store, dd_bytes key, bool *is_deleted, const dd_wait *wait,
                            dd_error *err);

    /* Keys with a value. */
    dd_status (*num_keys)(dd_store *store, int64_t *count, const dd_wait *wait, dd_error *err);

    /* Appends to the value; a missing key counts as empty. */
    dd_status (*append)(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err);

    /* Waits until all keys have values and returns them in order; `values` was zeroed by the caller. */
    dd_status (*multi_get)(dd_store *store, const dd_bytes *keys, size_t nkeys, dd_blob_list *values,
                           const dd_wait *wait, dd_error *err);
    dd_status (*multi_set)(dd_store *store, const dd_bytes *keys, const dd_bytes *values, size_t nkeys,
                           const dd_wait *wait, dd_error *err);

    /* Queues live beside values: a key may have both. First in, first out. */
    dd_status (*queue_push)(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait,
                            dd_error *err);
    /* DD_QUEUE_EMPTY when nothing is there and is_blocking is false. */
    dd_status (*queue_pop)(dd_store *store, dd_bytes key, bool is_blocking, dd_blob *value,
                           const dd_wait *wait, dd_error *err);
    dd_status (*queue_len)(dd_store *store, dd_bytes key, int64_t *count, const dd_wait *wait, dd_error *err);

    /* All keys with a value; `keys` was zeroed by the caller. */
    dd_status (*list_keys)(dd_store *store, dd_blob_list *keys, const dd_wait *wait, dd_error *err);

    /* Returns when world_size callers (this one included) have come to `key`. A key is good for one
     * barrier: after it, it stays open. */
    dd_status (*barrier)(dd_store *store, dd_bytes key, int64_t world_size, const dd_wait *wait,
                         dd_error *err);

    /* Another handle on the same data, returned owned. */
    dd_status (*clone)(dd_store *store, dd_store **other, const dd_wait *wait, dd_error *err);

    /* Whether append, multi_get, multi_set are one operation each. */
    bool (*has_extended_api)(dd_store *store);

    /* The time-out that callers use when they are given none. */
    int64_t (*get_timeout_ns)(dd_store *store);
    void (*set_timeout_ns)(dd_store *store, int64_t timeout_ns);

    /* The last reference is gone, those of clones by dd_store_clone_handle included. In a forked child it must
     * wait for no lock, no thread and no peer: only close its copies of descriptors and free memory (see
     * dd_store_is_forked). Does not block for long. */
    void (*destroy)(dd_store *store);
} dd_store_ops;

/* The head of every store; embed it first. */
struct dd_store {
    const dd_store_ops *ops;  /* const after init */
    dd_store *root;           /* const after init: the store with the data, itself unless it is a clone */
    uint64_t fork_generation; /* const after init */
    long long owner_pid;      /* const after init; for the message of DD_FORKED */
    atomic_uint refs;         /* atomic */
    atomic_int_fast64_t timeout_ns; /* atomic, relaxed: a setting */
};

/* Fills the head, with one reference. */
void dd_store_init(dd_store *store, const dd_store_ops *ops, int64_t timeout_ns);

dd_store *dd_store_acquire(dd_store *store);
void dd_store_release(dd_store *store); /* NULL is fine */

/* DD_FORKED, naming both pids, in a child of the process that opened the store. Callers check it before any
 * operation; the operations themselves do not. */
dd_status dd_store_check_fork(const dd_store *store, dd_error *err) DD_MUST_CHECK;
bool dd_store_is_forked(const dd_store *store);

/* Members for kinds that have nothing special: the time-out of the head; has_extended_api true; a clone that
 * has a time-out of its own and shares all else with its root, to which it holds a reference (for kinds with
 * `run`). */
int64_t dd_store_head_get_timeout_ns(dd_store *store);
void dd_store_head_set_timeout_ns(dd_store *store, int64_t timeout_ns);
bool dd_store_extended_api_yes(dd_store *store);
dd_status dd_store_clone_handle(dd_store *store, dd_store **other, const dd_wait *wait,
                                dd_error *err) DD_MUST_CHECK;

/* The text of a time-out, the same for every kind: "<what> timed out after 1.5 s on <where>: keys missing:
 * a, b (2 of 5)". Shows, and reads, at most the first DD_STORE_MISSING_SHOWN of the missing keys. Returns
 * DD_TIMED_OUT. */
#define DD_STORE_MISSING_SHOWN 8
dd_status dd_store_error_missing(dd_error *err, const char *what, const char *where, const dd_bytes *missing,
                                 size_t nmissing, size_t nkeys, const dd_wait *wait);

/* Comes to a meeting, in one request where the store can, else by other operations; does not wait for others. The reply
 * was zeroed by the caller, and its value is the caller's, whatever is returned. */
dd_status dd_store_meet(dd_store *store, const dd_meet_request *request, dd_meet_reply *reply,
                        const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
dd_status dd_store_meet_by_keys(dd_store *store, const dd_meet_request *request, dd_meet_reply *reply,
                                const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Constructors of the kinds without a connection. */

/* Data in this process, shared by its clones. */
dd_status dd_hash_store_open(dd_store **store, int64_t timeout_ns, dd_error *err) DD_MUST_CHECK;

/* A view of `underlying` (borrowed; the view takes its own reference) under "<prefix>/". num_keys and
 * time-outs are the underlying store's; list_keys gives only keys under the prefix, without it. */
dd_status dd_prefix_store_open(dd_store **store, dd_bytes prefix, dd_store *underlying,
                               dd_error *err) DD_MUST_CHECK;
dd_store *dd_prefix_store_underlying(dd_store *store); /* borrowed */
bool dd_prefix_store_is(const dd_store *store);

/* See file_store.h and tcp_store.h for the others. */
#endif
