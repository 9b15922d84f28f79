/* A key-value store through which processes meet: one interface to all kinds of stores. An
 * operation is data (a request and a result), because a kind treats all operations alike: it
 * answers them from a keyspace, passes them on with a prefix before the keys, or sends them.
 *
 * Keys and values are any bytes. A store is reference-counted (acquire/release) and thread-safe. A
 * `wait` limits the time of a call. A result is valid only with DD_OK. Other statuses:
 * DD_TIMED_OUT, with the missing keys, the store and the time; DD_QUEUE_EMPTY, only from a
 * QUEUE_POP that must not wait; DD_FORKED in a child of the process that opened the store. */
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

/* X(NAME, name): the operations of a store, which each kind's `run` implements.
 *
 *     set, get, try_get     get waits until the key has a value; try_get never waits
 *     add                   adds to the key's decimal number (0 if missing), wrapping around; the
 *                           result's number is the sum. DD_STORE if the value is not a number
 *     compare_set           stores `desired` if the value is `expected`, or if the key is missing
 *                           and `expected` is empty. The result's value is the key's new value, or
 *                           `expected` for a missing key that was not set
 *     wait, check           every key has a value or a queue that is not empty; wait waits for this
 *     delete_key            deletes a value, not a queue; reports if there was a value
 *     num_keys, list_keys   keys with a value; num_keys may count internal keys
 *     append                appends to the value; a missing key counts as empty
 *     multi_get, multi_set  get and set for many keys; multi_get waits unless its number is 1
 *     queue_*               first in, first out. A key may have a queue and a value. queue_pop
 *                           returns DD_QUEUE_EMPTY if it does not wait
 *     barrier               returns once `number` callers have reached the key. A key serves one
 *                           barrier, which then stays open */
#define DD_STORE_OP_LIST(X)     \
    X(SET, set)                 \
    X(GET, get)                 \
    X(TRY_GET, try_get)         \
    X(ADD, add)                 \
    X(COMPARE_SET, compare_set) \
    X(WAIT, wait)               \
    X(CHECK, check)             \
    X(DELETE_KEY, delete_key)   \
    X(NUM_KEYS, num_keys)       \
    X(APPEND, append)           \
    X(MULTI_GET, multi_get)     \
    X(MULTI_SET, multi_set)     \
    X(QUEUE_PUSH, queue_push)   \
    X(QUEUE_POP, queue_pop)     \
    X(QUEUE_LEN, queue_len)     \
    X(LIST_KEYS, list_keys)     \
    X(BARRIER, barrier)

typedef enum dd_store_op {
#define DD_STORE_OP_ENUM(NAME, name) DD_STORE_##NAME,
    DD_STORE_OP_LIST(DD_STORE_OP_ENUM)
#undef DD_STORE_OP_ENUM
        DD_STORE_MEET, /* join a meeting (a rendezvous; see meet_join.h), without waiting */
    /* report for each key whether it is present; only keyspaces and dldist servers support this */
    DD_STORE_CHECK_EACH,
} dd_store_op;

const char *dd_store_op_name(dd_store_op op); /* a name such as "compare_set" */

/* A list of byte strings, which the list owns, for multi_get and list_keys. Zeroed, it is empty. */
typedef struct dd_blob_list {
    dd_blob *items;
    size_t count;
} dd_blob_list;

dd_status dd_blob_list_init(dd_blob_list *list, size_t count, dd_error *err) DD_MUST_CHECK;
void dd_blob_list_fini(dd_blob_list *list);

/* A request. All memory that it points to is borrowed during the call. */
typedef struct dd_store_request {
    dd_store_op op;
    const dd_bytes *keys; /* the keys; MEET: one key, which is the prefix of the meetings' keys */
    size_t nkeys;
    /* SET, APPEND, QUEUE_PUSH: one value; MULTI_SET: nkeys values; COMPARE_SET: the expected and
     * the desired value; MEET: the bytes to publish (a nonce and a payload) */
    const dd_bytes *values;
    /* ADD: the amount; BARRIER: the number of callers; QUEUE_POP: 1 to wait for an item, else 0;
     * MULTI_GET: 0 to wait for missing values, 1 to return them empty; APPEND: 0 or, for
     * dd_store_run_generic on a kind without CHECK, 1 to create a missing key with an empty value
     * first, which other clients can see; MEET: see dd_store_meet_number */
    int64_t number;
} dd_store_request;

/* A result. The caller must zero it before a call, and always free it. Valid only with DD_OK. */
typedef struct dd_store_result {
    /* GET, TRY_GET, COMPARE_SET, QUEUE_POP, MEET: the value; CHECK_EACH: a byte for each key, which
     * is 1 if the key is present */
    dd_blob value;
    dd_blob_list list; /* MULTI_GET: the values; LIST_KEYS: the keys */
    /* ADD: the sum; NUM_KEYS, QUEUE_LEN: the count; DELETE_KEY: 1 if deleted, else 0; QUEUE_POP:
     * the queue's length before the pop; MEET: the generation */
    int64_t number;
    /* GET, TRY_GET, QUEUE_POP: true if found; CHECK, WAIT, BARRIER: true if ready; DELETE_KEY: true
     * if deleted; MEET that fails: true if the rank has joined */
    bool flag;
    uint8_t state; /* MEET: the meeting's state, a dd_meet_state */
    bool is_lent;  /* value and list borrow from a message, or from a keyspace until it changes */
} dd_store_result;

void dd_store_result_fini(dd_store_result *result);
/* Copy the bytes that the result borrows, if any, so that the result owns all its memory. */
dd_status dd_store_result_own(dd_store_result *result, dd_error *err) DD_MUST_CHECK;

typedef enum dd_meet_state {
    DD_MEET_WAITING, /* ranks are missing; the end value will be at "<prefix>/<generation>/end" */
    DD_MEET_ENDED,   /* the meeting has ended; the result's value is the end value */
    DD_MEET_RESIZED, /* another rank has another size; value: that size, and the rank's payload */
    DD_MEET_TAKEN,   /* another process joined as this rank; value: the bytes that it published */
    DD_MEET_AGAIN,   /* too many meetings had ended: the caller must repeat the request */
} dd_meet_state;

/* Encode the `number` of a MEET request. If wants_failure is true and the previous meeting failed
 * before this rank joined, MEET reports that failure. */
#define DD_MEET_SIZE_SHIFT 31 /* rank and size must be below 2^31 */
#define DD_MEET_WANTS_FAILURE (INT64_C(1) << 62)
static inline int64_t
dd_store_meet_number(int rank, int size, bool wants_failure)
{
    return rank | (int64_t)size << DD_MEET_SIZE_SHIFT | (wants_failure ? DD_MEET_WANTS_FAILURE : 0);
}

/* The functions of a kind of store. All pointers must be set. */
typedef struct dd_store_ops {
    const char *kind; /* name of the kind for messages, such as "TCPStore" */

    /* Run a request. For operations that the kind lacks, this must call dd_store_run_generic.
     * `store` is never a clone made by dd_store_clone_handle. */
    dd_status (*run)(dd_store *store, const dd_store_request *request, dd_store_result *result,
                     const dd_wait *wait, dd_error *err);

    /* Create another handle to the same data. The caller owns the new handle. */
    dd_status (*clone)(dd_store *store, dd_store **other, const dd_wait *wait, dd_error *err);

    /* Return true if append, multi_get and multi_set are executed as one operation each. */
    bool (*has_extended_api)(dd_store *store);

    /* Return the default timeout in nanoseconds. */
    int64_t (*get_timeout_ns)(dd_store *store);
    void (*set_timeout_ns)(dd_store *store, int64_t timeout_ns);

    /* Destroy the store. Called after the last release, including releases of clones made by
     * dd_store_clone_handle. Must not block for long. In a forked child (see dd_store_is_forked),
     * it must not wait for a lock, a thread or a peer: it may only close descriptors and free
     * memory. */
    void (*destroy)(dd_store *store);
} dd_store_ops;

/* The common part of all stores. Each kind must embed this struct as its first field. */
struct dd_store {
    const dd_store_ops *ops;        /* const after init */
    dd_store *root;                 /* const after init: the cloned store, or this store itself */
    uint64_t fork_generation;       /* const after init: dd_fork_generation when opened */
    long long owner_pid;            /* const after init: pid that opened the store, for messages */
    atomic_uint refs;               /* accessed atomically */
    atomic_int_fast64_t timeout_ns; /* accessed atomically, with relaxed order */
};

/* Initialise the common part of a store, with one reference. */
void dd_store_init(dd_store *store, const dd_store_ops *ops, int64_t timeout_ns);

dd_store *dd_store_acquire(dd_store *store);
void dd_store_release(dd_store *store); /* NULL is ignored */

/* Return DD_FORKED, with both pids, in a child of the process that opened the store. Must be called
 * before each operation, because the operations do not check this themselves. */
dd_status dd_store_check_fork(const dd_store *store, dd_error *err) DD_MUST_CHECK;
bool dd_store_is_forked(const dd_store *store);

/* Run a request on a store of any kind. */
dd_status dd_store_run(dd_store *store, const dd_store_request *request, dd_store_result *result,
                       const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

dd_status dd_store_set(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait,
                       dd_error *err) DD_MUST_CHECK;
dd_status dd_store_get(dd_store *store, dd_bytes key, dd_blob *value, const dd_wait *wait,
                       dd_error *err) DD_MUST_CHECK;
dd_status dd_store_try_get(dd_store *store, dd_bytes key, dd_blob *value, bool *is_found, const dd_wait *wait,
                           dd_error *err) DD_MUST_CHECK;
/* Read many keys without waiting: one value for each key, empty if the key is missing. This takes
 * one request to a dldist server, and three requests to a PyTorch server if no key is missing. The
 * caller must zero `values` before the call, and free them if the status is DD_OK. */
dd_status dd_store_try_multi_get(dd_store *store, const dd_bytes *keys, size_t nkeys, dd_blob_list *values,
                                 const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
dd_status dd_store_add(dd_store *store, dd_bytes key, int64_t amount, int64_t *sum, const dd_wait *wait,
                       dd_error *err) DD_MUST_CHECK;
dd_status dd_store_compare_set(dd_store *store, dd_bytes key, dd_bytes expected, dd_bytes desired,
                               dd_blob *value, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Run an operation that a kind lacks by means of other operations: APPEND by TRY_GET and
 * COMPARE_SET; MULTI_GET and MULTI_SET one key at a time; MULTI_GET that must not wait by CHECK and
 * a MULTI_GET of the present keys; TRY_GET by CHECK and GET; BARRIER by ADD, SET and WAIT on
 * "<key>/num_members" and "<key>/last_member"; MEET as in meet_join.c. */
dd_status dd_store_run_generic(dd_store *store, const dd_store_request *request, dd_store_result *result,
                               const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Default functions for dd_store_ops. The timeout is in dd_store; has_extended_api returns true; a
 * clone has its own timeout, and a reference to its root store, with which it shares all else. */
int64_t dd_store_head_get_timeout_ns(dd_store *store);
void dd_store_head_set_timeout_ns(dd_store *store, int64_t timeout_ns);
bool dd_store_extended_api_yes(dd_store *store);
dd_status dd_store_clone_handle(dd_store *store, dd_store **clone, const dd_wait *wait,
                                dd_error *err) DD_MUST_CHECK;

/* The description of a call that timed out because keys are missing, for its error. */
typedef struct dd_store_missing {
    const char *opening; /* first words of the message, which programs search for */
    const char *root;    /* text before each key in the message, as in torch.distributed */
    const char *label;
    const char *where;
    const dd_bytes *keys; /* missing keys; only the first DD_STORE_MISSING_SHOWN are read */
    size_t nkeys;
    size_t nasked;
} dd_store_missing;

/* Set DD_TIMED_OUT with the message "<opening> after 1500ms, keys: a, b (2 of 5 missing): <label>
 * on <where>", and return it. */
#define DD_STORE_MISSING_SHOWN 8
dd_status dd_store_error_missing(const dd_store_missing *missing, const dd_wait *wait, dd_error *err);

/* Open a store in the memory of this process. Clones share its data. */
dd_status dd_hash_store_open(dd_store **store, int64_t timeout_ns, dd_error *err) DD_MUST_CHECK;

/* Open a view of `underlying`, to which the view acquires a reference. Each key gets the prefix
 * "<prefix>/". num_keys and the timeout are the underlying store's; list_keys returns only keys
 * with the prefix, and removes it. Each level of views uses more stack in calls: more than
 * DD_PREFIX_STORE_MAX_DEPTH levels fail with DD_INVALID_ARGUMENT. */
#define DD_PREFIX_STORE_MAX_DEPTH 500
dd_status dd_prefix_store_open(dd_store **store, dd_bytes prefix, dd_store *underlying,
                               dd_error *err) DD_MUST_CHECK;
dd_store *dd_prefix_store_underlying(dd_store *store); /* borrowed from the view */
/* Return the store below all prefixes, borrowed. A store that is not a view is returned itself. */
dd_store *dd_prefix_store_root(dd_store *store);

/* file_store.h and tcp_store.h declare the other kinds. */
#endif
