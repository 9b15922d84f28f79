/* An operation of a store as data: what is asked, and what comes of it.
 *
 * All kinds of stores treat all operations alike: they lock, do it and unlock; or put a prefix before the keys and
 * pass it on; or send it. So a kind implements dd_store_ops.run, and DD_STORE_OPS_BY_RUN fills in the operations. */
#ifndef DD_STORE_REQUEST_H
#define DD_STORE_REQUEST_H

#include "store/store.h"

/* X(NAME, name): the operations of dd_store_ops that have a request. */
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
        DD_STORE_MEET,   /* see dd_store_meet */
    DD_STORE_CHECK_EACH, /* of a keyspace, and of our servers */
} dd_store_op;

/* All is borrowed for the call. */
struct dd_store_request {
    dd_store_op op;
    const dd_bytes *keys;
    size_t nkeys;
    /* SET, APPEND, QUEUE_PUSH, MEET: one; MULTI_SET: nkeys; COMPARE_SET: the expected, then the desired one */
    const dd_bytes *values;
    /* ADD: the amount; BARRIER: the world size; QUEUE_POP: 1 to wait for an item, or 0; MULTI_GET: 0, or 1 of a keyspace,
     * where a missing value is then an empty one; MEET: who comes (dd_store_meet) */
    int64_t number;
};

/* Zeroed by the caller, who also frees it, whatever the status. What counts on DD_OK: */
struct dd_store_result {
    dd_blob
        value; /* GET, TRY_GET, COMPARE_SET, QUEUE_POP, MEET; CHECK_EACH: a byte for every key, 1 if it is there */
    dd_blob_list list; /* MULTI_GET, LIST_KEYS */
    int64_t
        number; /* ADD, NUM_KEYS, QUEUE_LEN; DELETE_KEY: 1 or 0; QUEUE_POP: how many there were; MEET: the generation */
    bool flag;     /* GET, TRY_GET, QUEUE_POP: found; CHECK, WAIT, BARRIER: ready; DELETE_KEY: deleted;
                        * MEET that fails: the rank has come */
    uint8_t state; /* MEET */
};

/* What a request to come to a meeting says, and what has come of it. */
dd_meet_request dd_store_meet_request(const dd_store_request *request);
void dd_store_meet_result(dd_store_result *result, const dd_meet_reply *reply);

void dd_store_result_fini(dd_store_result *result);

/* "compare_set" */
const char *dd_store_op_name(dd_store_op op);

/* Does what the request says, on any kind of store. */
dd_status dd_store_run(dd_store *store, const dd_store_request *request, dd_store_result *result,
                       const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* An operation made of others, for kinds that have no native one: APPEND by TRY_GET and COMPARE_SET, MULTI_GET and
 * MULTI_SET one by one, TRY_GET by CHECK and GET, BARRIER by ADD, SET and WAIT on "<key>/num_members" and
 * "<key>/last_member", MEET as meeting_join.c has it. */
dd_status dd_store_run_generic(dd_store *store, const dd_store_request *request, dd_store_result *result,
                               const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* APPEND for kinds without CHECK: a missing key is made first, with nothing in it, and others can see it so. */
dd_status dd_store_append_by_compare_set(dd_store *store, const dd_store_request *request,
                                         const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* For the table of a kind: `run`, and the operations by it, each of which makes a request and takes the result
 * apart. */
#define DD_STORE_OP_BY_RUN(NAME, name) , .name = dd_store_run_##name
#define DD_STORE_OPS_BY_RUN(function) .run = (function)DD_STORE_OP_LIST(DD_STORE_OP_BY_RUN)

#define DD_STORE_DECLARE(NAME, name) extern __typeof__(*((dd_store_ops *)0)->name) dd_store_run_##name;
DD_STORE_OP_LIST(DD_STORE_DECLARE)
#undef DD_STORE_DECLARE

#endif
