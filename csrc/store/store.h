/* A key-value store that processes meet in: one interface over all kinds. An operation is data, a request and what
 * comes of it, since all kinds treat all operations alike: they answer it from a keyspace, or put a prefix before the
 * keys and pass it on, or send it.
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

/* X(NAME, name): what can be asked of a store, each kind's `run` does it.
 *
 *   set, get, try_get     get waits until the key has a value, try_get never does
 *   add                   to the decimal number at the key (a missing one counts as 0); wraps around. The sum is the
 *                         number. DD_STORE when the value is not a number
 *   compare_set           stores `desired` if the key holds `expected`, or is missing and `expected` is empty. The
 *                         value is what the key holds afterwards; for a missing key that was not set, `expected`
 *   wait, check           every key is there: has a value or a queue that is not empty. wait waits for it
 *   delete_key            a value, not a queue; tells whether there was one
 *   num_keys, list_keys   those with a value; a kind may count keys of its own, which are not in the list
 *   append                to the value; a missing key counts as empty
 *   multi_get, multi_set  get and set for many keys; multi_get waits until all have values, unless
 *                         its number is 1
 *   queue_*               queues live beside values: a key may have both. First in, first out. DD_QUEUE_EMPTY from a
 *                         queue_pop that does not wait
 *   barrier               returns when as many callers as its number says have come to the key. A key is good for one
 *                         barrier: after it, it stays open */
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
        DD_STORE_MEET,   /* comes to a meeting (meet_join.h), and does not wait for others */
    DD_STORE_CHECK_EACH, /* of a keyspace, and of our servers */
} dd_store_op;

const char *dd_store_op_name(dd_store_op op); /* "compare_set" */

/* A list of byte strings that owns them all; for multi_get and list_keys. A zeroed one is empty. */
typedef struct dd_blob_list {
    dd_blob *items;
    size_t count;
} dd_blob_list;

dd_status dd_blob_list_init(dd_blob_list *list, size_t count, dd_error *err) DD_MUST_CHECK;
void dd_blob_list_fini(dd_blob_list *list);

/* All is borrowed for the call. */
typedef struct dd_store_request {
    dd_store_op op;
    const dd_bytes *keys; /* MEET: one, the place: the keys of its meetings begin with this and "/" */
    size_t nkeys;
    /* SET, APPEND, QUEUE_PUSH: one; MULTI_SET: nkeys; COMPARE_SET: the expected, then the desired one; MEET: what the rank
     * publishes, a nonce and its card */
    const dd_bytes *values;
    /* ADD: the amount; BARRIER: the world size; QUEUE_POP: 1 to wait for an item, or 0;
     * MULTI_GET: 0 to wait for missing values, or 1 to return an empty value for each missing key;
     * APPEND: 0, or 1 of dd_store_run_generic on a kind without CHECK: a missing key is then made first,
     * with nothing in it, and others can see it so; MEET: dd_store_meet_number */
    int64_t number;
} dd_store_request;

/* Zeroed by the caller, which also frees it, whatever the status. What counts on DD_OK: */
typedef struct dd_store_result {
    dd_blob
        value; /* GET, TRY_GET, COMPARE_SET, QUEUE_POP, MEET; CHECK_EACH: a byte for every key, 1 if it is there */
    dd_blob_list list; /* MULTI_GET, LIST_KEYS */
    /* ADD, NUM_KEYS, QUEUE_LEN; DELETE_KEY: 1 or 0; QUEUE_POP: how many there were; MEET: the generation */
    int64_t number;
    /* GET, TRY_GET, QUEUE_POP: found; CHECK, WAIT, BARRIER: ready; DELETE_KEY: deleted; MEET that fails: the rank has
     * come */
    bool flag;
    uint8_t state; /* MEET: a dd_meet_state */
    bool
        is_lent; /* the bytes of value and list are a keyspace's, and good until it changes, or a message's */
} dd_store_result;

void dd_store_result_fini(dd_store_result *result);
/* Copies what is lent. */
dd_status dd_store_result_own(dd_store_result *result, dd_error *err) DD_MUST_CHECK;

typedef enum dd_meet_state {
    DD_MEET_WAITING, /* it has come, and others have not; the end will stand at "<place>/<generation>/end" */
    DD_MEET_ENDED,   /* value: how */
    DD_MEET_RESIZED, /* value: what a rank with another size has said of the size */
    DD_MEET_TAKEN,   /* value: what somebody else has published as this rank */
    DD_MEET_AGAIN,   /* too many meetings were over: ask again */
} dd_meet_state;

/* A rank that comes to a meeting. `hears_failure`: of a meeting before this one that has failed without it. */
#define DD_MEET_SIZE_SHIFT 31 /* rank and size are below 2^31 */
#define DD_MEET_HEARS_FAILURE (INT64_C(1) << 62)
static inline int64_t
dd_store_meet_number(int rank, int size, bool hears_failure)
{
    return rank | (int64_t)size << DD_MEET_SIZE_SHIFT | (hears_failure ? DD_MEET_HEARS_FAILURE : 0);
}

/* What a kind of store implements. All pointers are set. */
typedef struct dd_store_ops {
    const char *kind; /* "TCPStore": for messages */

    /* Does what a request says. What a kind does not know it hands to dd_store_run_generic. `store` is never a clone (see
     * dd_store_clone_handle). */
    dd_status (*run)(dd_store *store, const dd_store_request *request, dd_store_result *result,
                     const dd_wait *wait, dd_error *err);

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

/* Does what the request says, on any kind of store. */
dd_status dd_store_run(dd_store *store, const dd_store_request *request, dd_store_result *result,
                       const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* The same for the operations that the library itself needs. A value replaces what the blob holds. */
dd_status dd_store_set(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait,
                       dd_error *err) DD_MUST_CHECK;
dd_status dd_store_get(dd_store *store, dd_bytes key, dd_blob *value, const dd_wait *wait,
                       dd_error *err) DD_MUST_CHECK;
dd_status dd_store_try_get(dd_store *store, dd_bytes key, dd_blob *value, bool *is_found, const dd_wait *wait,
                           dd_error *err) DD_MUST_CHECK;
/* Read many keys without waiting: one value for each key, empty if the key is missing. It is one
 * request to a dldist server, and three to a PyTorch server if no key is missing. The caller zeroes
 * `values`, and frees it on DD_OK. */
dd_status dd_store_try_multi_get(dd_store *store, const dd_bytes *keys, size_t nkeys, dd_blob_list *values,
                                 const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
dd_status dd_store_add(dd_store *store, dd_bytes key, int64_t amount, int64_t *sum, const dd_wait *wait,
                       dd_error *err) DD_MUST_CHECK;
dd_status dd_store_compare_set(dd_store *store, dd_bytes key, dd_bytes expected, dd_bytes desired,
                               dd_blob *value, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* An operation made of others, for kinds that have no native one: APPEND by TRY_GET and COMPARE_SET, MULTI_GET and
 * MULTI_SET one by one, MULTI_GET that does not wait by CHECK and a MULTI_GET of the present keys,
 * TRY_GET by CHECK and GET, BARRIER by ADD, SET and WAIT on "<key>/num_members" and
 * "<key>/last_member", MEET as meet_join.c has it. */
dd_status dd_store_run_generic(dd_store *store, const dd_store_request *request, dd_store_result *result,
                               const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Members for kinds that have nothing special: the time-out of the head; has_extended_api true; a clone that
 * has a time-out of its own and shares all else with its root, to which it holds a reference (for kinds with
 * `run`). */
int64_t dd_store_head_get_timeout_ns(dd_store *store);
void dd_store_head_set_timeout_ns(dd_store *store, int64_t timeout_ns);
bool dd_store_extended_api_yes(dd_store *store);
dd_status dd_store_clone_handle(dd_store *store, dd_store **other, const dd_wait *wait,
                                dd_error *err) DD_MUST_CHECK;

/* Keys that a call has waited for in vain. */
typedef struct dd_store_missing {
    const char *opening; /* c10d's words, for which programs look; they differ by kind */
    const char *root;    /* goes before each key, as c10d shows it */
    const char *what;
    const char *where;
    const dd_bytes *keys; /* at least the first DD_STORE_MISSING_SHOWN, which are shown */
    size_t nkeys;
    size_t nasked;
} dd_store_missing;

/* The text of a time-out: "<opening> after 1500ms, keys: a, b (2 of 5 missing): <what> on <where>". Returns
 * DD_TIMED_OUT. */
#define DD_STORE_MISSING_SHOWN 8
dd_status dd_store_error_missing(const dd_store_missing *missing, const dd_wait *wait, dd_error *err);

/* Constructors of the kinds without a connection. */

/* Data in this process, shared by its clones. */
dd_status dd_hash_store_open(dd_store **store, int64_t timeout_ns, dd_error *err) DD_MUST_CHECK;

/* A view of `underlying` (borrowed; the view takes its own reference) under "<prefix>/". num_keys and
 * timeouts are the underlying store's; list_keys gives only keys under the prefix, without it. Each level of a view of views
 * takes stack in every call, so DD_INVALID_ARGUMENT beyond DD_PREFIX_STORE_MAX_DEPTH of them. */
#define DD_PREFIX_STORE_MAX_DEPTH 500
dd_status dd_prefix_store_open(dd_store **store, dd_bytes prefix, dd_store *underlying,
                               dd_error *err) DD_MUST_CHECK;
dd_store *dd_prefix_store_underlying(dd_store *store); /* borrowed */
/* The store below all prefixes, borrowed; `store` itself if it is no view. */
dd_store *dd_prefix_store_root(dd_store *store);

/* See file_store.h and tcp_store.h for the others. */
#endif
