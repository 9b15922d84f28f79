/* The requests of a TCPStore client for each operation. A dldist server needs one request, whose
 * reply is the result; a PyTorch server needs several for an operation that waits for values. */
#include "store/tcp_client_internal.h"

#include "core/log.h"

#include <inttypes.h>

#define MAX_KEYS_NAMED 64
#define TRY_AGAIN_NS DD_NS_PER_MS

/* ---- sending one request */

/* Return true if the reply is empty because the request, which was waiting, was cancelled. */
static bool
is_called_off(const dd_tcp_op_row *row, size_t nkeys, const dd_store_result *result)
{
    bool is_list = row->store_op == DD_STORE_MULTI_GET;
    return dd_tcp_op_waits(row) && (is_list ? result->list.count != nkeys : !result->flag);
}

static dd_status
exchange_with(tcp_store *store, tcp_exchange *exchange, const dd_wait *wait, dd_error *err)
{
    tcp_exchange_fn *send_users = store->target.is_extended ? tcp_tagged_exchange : tcp_untagged_exchange;
    if (dd_tcp_op_waits(exchange->row)) {
        dd_status status = send_users(store, exchange, wait, err);
        return status == DD_NETWORK_TIMED_OUT ? DD_TIMED_OUT : status;
    }
    dd_wait longer = *wait;
    int64_t least_ns = dd_clock_now_ns() + TCP_ANSWER_NS;
    longer.deadline_ns = longer.deadline_ns > least_ns ? longer.deadline_ns : least_ns;
    return send_users(store, exchange, &longer, err);
}

/* Send a request, and read its result. DD_TIMED_OUT does not set err. On DD_INTERRUPTED, `result`
 * may have an answer that arrived before the cancellation. */
static dd_status
send_and_read(tcp_store *store, const dd_store_request *request, bool is_users, dd_store_result *result,
              const dd_wait *wait, dd_error *err)
{
    bool is_dldist = store->target.is_extended;
    const dd_tcp_op_row *row = dd_tcp_row_for(request, is_dldist);
    tcp_exchange exchange = {
        .row = row,
        .key = request->nkeys > 0 ? request->keys[0] : (dd_bytes){0},
        .reply = {.op = row->op, .repeats = row->op == DD_TCP_MULTI_GET ? request->nkeys : 1},
    };
    dd_tcp_writer writer;
    dd_tcp_writer_init(&writer, &exchange.request, err);
    if (is_dldist) {
        dd_tcp_write(&writer, 'u', 0); /* space for the tag, which is set on sending */
    }
    dd_tcp_write_request(&writer, row->op, request, is_users, is_dldist ? &store->target.limits : NULL);
    dd_status status = writer.status;
    if (status == DD_OK) {
        status = exchange_with(store, &exchange, wait, err);
    }
    if (exchange.reply.reader.at != NULL && (status == DD_OK || status == DD_INTERRUPTED)) {
        dd_error *of_reply = status == DD_OK ? err : NULL;
        dd_status taken =
            dd_tcp_read_result(&exchange.reply.reader, row->op, request->nkeys, result, of_reply);
        if (taken == DD_OK) {
            taken = dd_store_result_own(result, of_reply);
        }
        bool is_withdrawn = taken == DD_OK && is_called_off(row, request->nkeys, result);
        status = status == DD_OK ? is_withdrawn ? DD_TIMED_OUT : taken : status;
    }
    dd_blob_fini(&exchange.request);
    dd_blob_fini(&exchange.answer);
    return status;
}

static dd_status
send_users(tcp_store *store, const dd_store_request *request, dd_store_result *result, const dd_wait *wait,
           dd_error *err)
{
    return send_and_read(store, request, true, result, wait, err);
}

static dd_status
prepend_where(tcp_store *store, const char *label, dd_status status, dd_error *err)
{
    if (status != DD_OK && status != DD_INTERRUPTED && status != DD_TIMED_OUT && status != DD_QUEUE_EMPTY) {
        dd_error_prepend(err, "%s on %s", label, store->where);
    }
    return status;
}

dd_status
tcp_run_internal(tcp_store *store, const dd_store_request *request, dd_store_result *result,
                 const char *label, const dd_wait *wait, dd_error *err)
{
    return prepend_where(store, label, send_and_read(store, request, false, result, wait, err), err);
}

/* ---- requests to a PyTorch server, which does not wait for values */

static dd_status
pytorch_step(tcp_store *store, dd_store_op op, const dd_store_request *request, dd_store_result *result,
             const dd_wait *wait, dd_error *err)
{
    dd_store_request step = {
        .op = op, .keys = request->keys, .nkeys = request->nkeys, .number = op == DD_STORE_MULTI_GET};
    return send_users(store, &step, result, wait, err);
}

/* Read the values if all keys are present, and set result->flag. CHECK must be sent first, because
 * GET returns an empty value for a missing key. */
static dd_status
pytorch_try(tcp_store *store, const dd_store_request *request, dd_store_result *result, const dd_wait *wait,
            dd_error *err)
{
    if (request->op == DD_STORE_QUEUE_POP) {
        return pytorch_step(store, DD_STORE_QUEUE_POP, request, result, wait, err);
    }
    dd_store_op op = request->op == DD_STORE_MULTI_GET ? DD_STORE_MULTI_GET : DD_STORE_TRY_GET;
    dd_status status = pytorch_step(store, DD_STORE_CHECK, request, result, wait, err);
    return status == DD_OK && result->flag && request->op != DD_STORE_WAIT
               ? pytorch_step(store, op, request, result, wait, err)
               : status;
}

/* Run a request that may wait. Try to read first, because a WAIT that times out costs the
 * connection. After the WAIT, try again while nothing can be read: another client may have been
 * faster, or the key may have a value but no item. */
static dd_status
pytorch_run(tcp_store *store, const dd_store_request *request, dd_store_result *result, const dd_wait *wait,
            dd_error *err)
{
    dd_store_op op = request->op;
    bool waits = op == DD_STORE_WAIT || op == DD_STORE_GET || op == DD_STORE_MULTI_GET ||
                 (op == DD_STORE_QUEUE_POP && request->number != 0);
    if (!waits && op != DD_STORE_TRY_GET) {
        return send_users(store, request, result, wait, err);
    }
    for (bool is_first = true;; is_first = false) {
        dd_status status = pytorch_try(store, request, result, wait, err);
        if (status != DD_OK || result->flag || !waits) {
            return status;
        }
        if (dd_wait_has_expired(wait)) {
            return DD_TIMED_OUT;
        }
        status = is_first ? DD_OK : dd_wait_sleep(wait, TRY_AGAIN_NS, err);
        if (status == DD_OK) {
            status = pytorch_step(store, DD_STORE_WAIT, request, result, wait, err);
        }
        if (status != DD_OK || op == DD_STORE_WAIT) {
            return status;
        }
    }
}

static dd_status
run_on_server(tcp_store *store, const dd_store_request *request, dd_store_result *result, const dd_wait *wait,
              dd_error *err)
{
    return store->target.is_extended ? send_users(store, request, result, wait, err)
                                     : pytorch_run(store, request, result, wait, err);
}

/* ---- timeout errors, which name the missing keys */

typedef struct missing_keys {
    dd_bytes keys[MAX_KEYS_NAMED];
    size_t count;
} missing_keys;

/* Find the missing keys of a request. This takes only one request to a dldist server. */
static dd_status
find_missing(tcp_store *store, const dd_store_request *request, missing_keys *missing)
{
    dd_wait patience = dd_wait_after(TCP_ANSWER_NS);
    bool is_dldist = store->target.is_extended;
    dd_store_request check = {.op = DD_STORE_CHECK_EACH, .keys = request->keys, .nkeys = request->nkeys};
    dd_store_result result = {0};
    dd_status status = is_dldist ? send_users(store, &check, &result, &patience, NULL) : DD_OK;
    for (size_t i = 0; i < request->nkeys && missing->count < MAX_KEYS_NAMED && status == DD_OK; i++) {
        bool is_there = i < result.value.len && result.value.data[i] != 0;
        if (!is_dldist) {
            dd_store_request one = {.keys = &request->keys[i], .nkeys = 1};
            status = pytorch_step(store, DD_STORE_CHECK, &one, &result, &patience, NULL);
            is_there = result.flag;
        }
        if (status == DD_OK && !is_there) {
            missing->keys[missing->count++] = request->keys[i];
        }
    }
    dd_store_result_fini(&result);
    return status;
}

static dd_status
error_missing(tcp_store *store, const dd_store_request *request, const dd_wait *wait, dd_error *err)
{
    missing_keys missing = {.count = 0};
    bool is_known = find_missing(store, request, &missing) == DD_OK && missing.count > 0;
    /* If the missing keys are unknown (no answer, or they appeared meanwhile), name all keys. */
    dd_store_missing details = {.opening = "wait timeout",
                                .root = "/",
                                .label = dd_store_op_name(request->op),
                                .where = store->where,
                                .keys = is_known ? missing.keys : request->keys,
                                .nkeys = is_known ? missing.count : request->nkeys,
                                .nasked = request->nkeys};
    return dd_store_error_missing(&details, wait, err);
}

/* Return true if a barrier's count (decimal text from the server) has reached the world size. */
static bool
is_complete(dd_bytes count, int64_t world_size)
{
    int64_t narrived = 0;
    for (size_t i = 0; i < count.len && i < 18 && count.data[i] >= '0' && count.data[i] <= '9'; i++) {
        narrived = narrived * 10 + (count.data[i] - '0');
    }
    return narrived >= world_size;
}

/* Handle a barrier that was not answered in time: its count in the store decides if it is open. */
static dd_status
resolve_late_barrier(tcp_store *store, const dd_store_request *request, const dd_wait *wait, dd_error *err)
{
    dd_wait patience = dd_wait_after(TCP_ANSWER_NS);
    dd_store_request check = {.op = DD_STORE_TRY_GET, .keys = request->keys, .nkeys = 1};
    dd_store_result result = {0};
    dd_status status = run_on_server(store, &check, &result, &patience, NULL);
    dd_bytes count = status == DD_OK && result.flag ? dd_blob_view(&result.value) : dd_bytes_of_string("?");
    if (!is_complete(count, request->number)) {
        char text[160];
        status = dd_error_set(
            err, DD_TIMED_OUT,
            "barrier timed out after %.3f s on %s, key: %s: %.*s of %" PRId64 " have joined",
            dd_wait_elapsed_s(wait), store->where, dd_bytes_print(request->keys[0], text, sizeof text),
            (int)count.len, (const char *)count.data, request->number);
    }
    dd_store_result_fini(&result);
    return status;
}

/* ---- operations */

/* Return an item, which arrived after the caller's interrupt, to the end of its queue. */
static void
return_item(tcp_store *store, dd_bytes key, dd_bytes item)
{
    dd_wait patience = dd_wait_after(TCP_ANSWER_NS);
    dd_store_request push = {.op = DD_STORE_QUEUE_PUSH, .keys = &key, .nkeys = 1, .values = &item};
    dd_store_result result = {0};
    dd_error error;
    if (send_users(store, &push, &result, &patience, &error) != DD_OK) {
        DD_LOG(DD_LOG_INFO, "store client: lost an item of a queue: %s", error.message);
    }
}

dd_status
tcp_run(dd_store *head, const dd_store_request *request, dd_store_result *result, const dd_wait *wait,
        dd_error *err)
{
    tcp_store *store = tcp_store_of(head);
    bool is_try_multi_get = request->op == DD_STORE_MULTI_GET && request->number != 0;
    if ((request->op == DD_STORE_MEET || is_try_multi_get) && !store->target.is_extended) {
        return dd_store_run_generic(head, request, result, wait, err);
    }
    dd_status status = run_on_server(store, request, result, wait, err);
    bool is_pop = request->op == DD_STORE_QUEUE_POP;
    if (request->op == DD_STORE_DELETE_KEY) {
        result->flag = result->number > 0;
    }
    if (is_pop && status == DD_OK && !result->flag) {
        return dd_error_set(err, DD_QUEUE_EMPTY, "queue is empty");
    }
    if (is_pop && status == DD_INTERRUPTED && result->flag) {
        return_item(store, request->keys[0], dd_blob_view(&result->value));
    }
    if (status == DD_TIMED_OUT) {
        return request->op == DD_STORE_BARRIER ? resolve_late_barrier(store, request, wait, err)
                                               : error_missing(store, request, wait, err);
    }
    return prepend_where(store, dd_store_op_name(request->op), status, err);
}
