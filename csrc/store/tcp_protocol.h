/* The bytes of the TCPStore protocol: pure functions, no I/O. docs/contributing/wire.md has the
 * tables.
 *
 * A request is one byte of operation and its fields. The fields of each operation, and of each
 * reply, are described by a pattern:
 *
 *     k  key:   u64 length, bytes          i  signed 64-bit number
 *     v  value: u64 length, bytes          u  unsigned 32-bit number
 *     #  u64 count; the rest of the pattern is repeated this many times      b, c  one byte
 *     ?  u64; the rest of the pattern follows once, or not at all if the number is 0
 *
 * Numbers are little-endian. On a tagged connection, between a dldist client and a dldist server,
 * the client puts a tag of its choice before each request. The answer is a head (the tag, a status,
 * the length of the rest) and the reply, or the error. Answers are sent in any order, so a request
 * may wait while others are served.
 *
 * A scanner finds the end of a message, in pieces as they arrive and within limits. Then a reader
 * reads the fields. A writer builds messages. Patterns convert requests and results. */
#ifndef DD_STORE_TCP_PROTOCOL_H
#define DD_STORE_TCP_PROTOCOL_H

#include "core/bytes.h"
#include "core/status.h"
#include "store/store.h"
#include "store/tcp_server.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(NAME, number, request pattern, reply pattern, operation of a store, its number). If the reply
 * pattern is NULL, no reply is sent. MULTI_GET's reply has one value for each key and no count. The
 * operations from HELLO on exist only in dldist. On a tagged connection every request is answered
 * (by only a head if it has no reply), except CANCEL_WAIT, which makes the server answer the
 * earlier request with the same tag, if that is still waiting (with WAIT_CANCELED, or no value).
 *
 * Patterns convert operations to requests and results of a store, except for operations of the
 * connection itself (DD_TCP_NO_STORE_OP). In a request, k is the next key, v the next value, i the
 * number. In a reply, b is 0 if the flag is set, else 1; c is the state; v is the value, which
 * follows ? if the flag is set; # is the list; i is the number. */
#define DD_TCP_OP_LIST(X)                                    \
    X(VALIDATE, 0, "u", NULL, DD_TCP_NO_STORE_OP, 0)         \
    X(SET, 1, "kv", NULL, DD_STORE_SET, 0)                   \
    X(COMPARE_SET, 2, "kvv", "v", DD_STORE_COMPARE_SET, 0)   \
    X(GET, 3, "k", "v", DD_STORE_TRY_GET, 0)                 \
    X(ADD, 4, "ki", "i", DD_STORE_ADD, 0)                    \
    X(CHECK, 5, "#k", "b", DD_STORE_CHECK, 0)                \
    X(WAIT, 6, "#k", "b", DD_STORE_WAIT, 0)                  \
    X(NUM_KEYS, 7, "", "i", DD_STORE_NUM_KEYS, 0)            \
    X(DELETE_KEY, 8, "k", "i", DD_STORE_DELETE_KEY, 0)       \
    X(APPEND, 9, "kv", NULL, DD_STORE_APPEND, 0)             \
    X(MULTI_GET, 10, "#k", "v", DD_STORE_MULTI_GET, 1)       \
    X(MULTI_SET, 11, "#kv", NULL, DD_STORE_MULTI_SET, 0)     \
    X(CANCEL_WAIT, 12, "", "b", DD_TCP_NO_STORE_OP, 0)       \
    X(PING, 13, "u", "u", DD_TCP_NO_STORE_OP, 0)             \
    X(QUEUE_PUSH, 14, "kv", NULL, DD_STORE_QUEUE_PUSH, 0)    \
    X(QUEUE_POP, 15, "k", "?v", DD_STORE_QUEUE_POP, 0)       \
    X(QUEUE_LEN, 16, "k", "i", DD_STORE_QUEUE_LEN, 0)        \
    X(LIST_KEYS, 17, "", "#k", DD_STORE_LIST_KEYS, 0)        \
    X(BARRIER, 18, "ki", "b", DD_STORE_BARRIER, 0)           \
    X(HELLO, 64, "uikv", "uiiiivvv", DD_TCP_NO_STORE_OP, 0)  \
    X(AUTH, 65, "v", "", DD_TCP_NO_STORE_OP, 0)              \
    X(TRY_GET, 66, "k", "?v", DD_STORE_TRY_GET, 0)           \
    X(WAIT_GET, 67, "k", "?v", DD_STORE_GET, 0)              \
    X(WAIT_POP, 68, "k", "?v", DD_STORE_QUEUE_POP, 1)        \
    X(CHECK_EACH, 69, "#k", "v", DD_STORE_CHECK_EACH, 0)     \
    X(WAIT_MULTI_GET, 70, "#k", "#v", DD_STORE_MULTI_GET, 0) \
    X(MEET, 71, "kiv", "civ", DD_STORE_MEET, 0)

#define DD_TCP_NO_STORE_OP (-1)

typedef enum dd_tcp_op {
#define DD_TCP_OP_ENUM(name, number, ...) DD_TCP_##name = number,
    DD_TCP_OP_LIST(DD_TCP_OP_ENUM)
#undef DD_TCP_OP_ENUM
} dd_tcp_op;

#define DD_TCP_MAGIC UINT32_C(0x3C85F7CE)

/* The number that a dldist client sends in PING: OFFER | random bits. A dldist server answers with
 * the bits inverted, so both ends detect dldist. A PyTorch server echoes any number, and a PyTorch
 * client sends its pid, which is far smaller. */
#define DD_TCP_OFFER UINT32_C(0xDD150000)
#define DD_TCP_OFFER_MASK UINT32_C(0xFFFF0000)

#define DD_TCP_VERSION 4 /* version of dldist's extensions; both ends must have the same */
/* The offer in HELLO on an encrypted connection, instead of a nonce: the cipher and Noise message 1
 * (net/noise.h). The reply has message 2, which authenticates all earlier bytes of the reply. */
#define DD_TCP_OFFER_BYTES (1 + DD_NOISE_FIRST_BYTES)
#define DD_TCP_REPLY_CLEAR_BYTES ((size_t)44)
#define DD_TCP_TAG_BYTES ((size_t)4)
#define DD_TCP_NO_TAG \
    0u /* tag of an answer without a request, which has the reason for closing the connection */
#define DD_TCP_HEAD_BYTES ((size_t)13) /* head of an answer: tag (u), status (b), length (i) */
#define DD_TCP_READY 0                 /* reply to CHECK if all keys are present */
#define DD_TCP_NOT_READY 1
#define DD_TCP_STOP_WAITING 0 /* reply to WAIT and BARRIER: the wait has ended */
#define DD_TCP_WAIT_CANCELED 1
#define DD_TCP_JOIN_KEY "init/" /* internal key: the number of clients that have joined */
#define DD_TCP_REFUSED_KEY \
    "refused/" /* internal key: the clients that failed to prove the secret; not stored */

#define DD_TCP_ACCEPT_ERROR_KEY \
    "accept error/" /* internal key: why the server cannot accept connections, or ""; not stored */

typedef struct dd_tcp_op_row {
    dd_tcp_op op;
    const char *request;
    const char *reply; /* NULL if there is no reply; a tagged answer is then only a head */
    int store_op;      /* a dd_store_op, or DD_TCP_NO_STORE_OP */
    int64_t number;    /* the store request's `number`, if the pattern has no field for it */
} dd_tcp_op_row;

const dd_tcp_op_row *dd_tcp_find_op(unsigned op); /* NULL if there is no such operation */
/* Find the operation that runs a request: on a dldist server if is_dldist, else, as its only
 * operation, on a PyTorch server. Return NULL if there is none. */
const dd_tcp_op_row *dd_tcp_row_for(const dd_store_request *request, bool is_dldist);
/* Return true if the server answers such a request only once its keys are present. */
bool dd_tcp_op_waits(const dd_tcp_op_row *row);

typedef enum dd_tcp_scan_result {
    DD_TCP_SCAN_DONE,
    DD_TCP_SCAN_MORE, /* the message is incomplete */
    DD_TCP_SCAN_BAD,  /* the message exceeds a limit; err has the reason */
} dd_tcp_scan_result;

/* The progress of scanning a message. When more bytes arrive, the scan continues where it stopped,
 * so even a message that arrives in many pieces is scanned only once. */
typedef struct dd_tcp_scan {
    const char *step;  /* next letter of the pattern */
    const char *group; /* first letter of the repeated part of the pattern */
    uint64_t repeats;  /* remaining repeats of `group`, including the current one */
    size_t at;         /* number of bytes scanned so far; at the end, the message's length */
} dd_tcp_scan;

/* Start to scan a message whose fields begin at `head`. Its pattern occurs `repeats` times. */
void dd_tcp_scan_begin(dd_tcp_scan *scan, const char *pattern, uint64_t repeats, size_t head);

/* Continue the scan. `bytes` must contain all bytes of the message received so far. */
dd_tcp_scan_result dd_tcp_scan_run(dd_tcp_scan *scan, dd_bytes bytes, const dd_tcp_limits *limits,
                                   dd_error *err);

/* A reader of the fields of a message, which must have been scanned to its end first. */
typedef struct dd_tcp_reader {
    const uint8_t *at;
} dd_tcp_reader;

uint64_t dd_tcp_read(dd_tcp_reader *reader, char letter); /* read a number (not k or v) */
dd_bytes dd_tcp_read_bytes(dd_tcp_reader *reader);        /* read a k or v (borrowed) */

/* A writer that appends fields to a message. After a failure it appends nothing more, so `status`
 * need be checked only once, at the end. */
typedef struct dd_tcp_writer {
    dd_blob *out;
    dd_status status;
    dd_error *err;
} dd_tcp_writer;

void dd_tcp_writer_init(dd_tcp_writer *writer, dd_blob *out, dd_error *err);
void dd_tcp_write(dd_tcp_writer *writer, char letter, uint64_t value);
void dd_tcp_write_bytes(dd_tcp_writer *writer, dd_bytes bytes);

/* ---- requests and results of a store as messages of the protocol */

/* Write a request. DD_INVALID_ARGUMENT above `limits` (or NULL). is_users: put "/" before keys. */
void dd_tcp_write_request(dd_tcp_writer *writer, dd_tcp_op op, const dd_store_request *request, bool is_users,
                          const dd_tcp_limits *limits);

/* A request that a server has received. It borrows from the message. */
typedef struct dd_tcp_request {
    dd_store_request request;
    dd_bytes inline_keys[4]; /* memory for the keys and values, if they are few */
    dd_bytes *owned_keys;    /* allocated memory for the keys and values otherwise */
} dd_tcp_request;

dd_status dd_tcp_read_request(dd_tcp_request *request, dd_tcp_op op, dd_tcp_reader *reader,
                              dd_error *err) DD_MUST_CHECK;
void dd_tcp_request_fini(dd_tcp_request *request);

void dd_tcp_write_result(dd_tcp_writer *writer, dd_tcp_op op, const dd_store_result *result);
/* Read the reply to a request with `nkeys` keys. The result points into the reply. LIST_KEYS
 * returns only users' keys, without the "/" before each of them. */
dd_status dd_tcp_read_result(dd_tcp_reader *reader, dd_tcp_op op, size_t nkeys, dd_store_result *result,
                             dd_error *err) DD_MUST_CHECK;

#endif
