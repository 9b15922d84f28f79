#include "store/tcp_protocol.h"

#include "core/mem.h"

#include <inttypes.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the numbers of the TCPStore protocol are little endian; this file copies them as they are"
#endif

const dd_tcp_op_row *
dd_tcp_find_op(unsigned op)
{
    static const dd_tcp_op_row rows[] = {
#define OP_ROW(name, number, request, reply, store_op, of_request) \
    [number] = {DD_TCP_##name, request, reply, store_op, of_request},
        DD_TCP_OP_LIST(OP_ROW)
#undef OP_ROW
    };
    bool is_known = op < sizeof rows / sizeof rows[0] && rows[op].request != NULL;
    return is_known ? &rows[op] : NULL;
}

bool
dd_tcp_op_waits(const dd_tcp_op_row *row)
{
    int op = row->store_op;
    return op == DD_STORE_GET || op == DD_STORE_WAIT || op == DD_STORE_BARRIER ||
           (op == DD_STORE_MULTI_GET && row->number == 0) || (op == DD_STORE_QUEUE_POP && row->number != 0);
}

/* Search from the highest number, because dldist's own operations are preferred to PyTorch's. */
const dd_tcp_op_row *
dd_tcp_row_for(const dd_store_request *request, bool is_dldist)
{
    for (int op = is_dldist ? DD_TCP_MEET : DD_TCP_BARRIER; op >= 0; op--) {
        const dd_tcp_op_row *row = dd_tcp_find_op((unsigned)op);
        if (row != NULL && row->store_op == (int)request->op &&
            (row->number == request->number || strchr(row->request, 'i') != NULL)) {
            return row;
        }
    }
    return NULL;
}

void
dd_tcp_scan_begin(dd_tcp_scan *scan, const char *pattern, uint64_t repeats, size_t head)
{
    *scan = (dd_tcp_scan){
        .step = repeats > 0 ? pattern : "",
        .group = pattern,
        .repeats = repeats,
        .at = head,
    };
}

/* Return the size in bytes of a number field, or of the length prefix of a key (k) or value (v). */
static size_t
number_size(char letter)
{
    return letter == 'u' ? 4 : letter == 'b' || letter == 'c' ? 1 : 8;
}

/* Return the limit for a field's length or count. A message over a limit ends the connection. */
static uint64_t
limit_of(char letter, const dd_tcp_limits *limits)
{
    return letter == 'k'   ? limits->max_key_bytes
           : letter == 'v' ? limits->max_value_bytes
           : letter == '#' ? limits->max_keys
                           : UINT64_MAX;
}

static dd_tcp_scan_result
error_limit(char letter, uint64_t number, uint64_t limit, dd_error *err)
{
    bool is_count = letter == '#';
    (void)dd_error_set(err, DD_PROTOCOL, "%s too large: got %llu%s, expected at most %llu",
                       is_count        ? "count"
                       : letter == 'k' ? "key"
                                       : "value",
                       (unsigned long long)number, is_count ? "" : " bytes", (unsigned long long)limit);
    return DD_TCP_SCAN_BAD;
}

/* Scan one field of a message. Return DD_TCP_SCAN_MORE if the field is incomplete. */
static dd_tcp_scan_result
scan_field(dd_tcp_scan *scan, dd_bytes bytes, const dd_tcp_limits *limits, dd_error *err)
{
    char letter = *scan->step;
    bool is_group = letter == '#' || letter == '?';
    bool has_number = is_group || letter == 'k' || letter == 'v';
    uint64_t number = 0;
    uint64_t size = number_size(letter);
    if (size > bytes.len - scan->at) {
        return DD_TCP_SCAN_MORE;
    }
    if (has_number) {
        memcpy(&number, bytes.data + scan->at, sizeof number);
        if (number > limit_of(letter, limits)) {
            return error_limit(letter, number, limit_of(letter, limits), err);
        }
        if (!is_group && number > bytes.len - scan->at - size) {
            return DD_TCP_SCAN_MORE;
        }
        size += is_group ? 0 : number;
    }
    scan->at += (size_t)size;
    scan->step++;
    if (is_group) {
        scan->group = scan->step;
        scan->repeats = letter == '#' ? number : number > 0;
        scan->step = scan->repeats > 0 ? scan->step : "";
    }
    return DD_TCP_SCAN_DONE;
}

/* If a message of nbytes bytes exceeds the limit, set the error and return true. */
static bool
is_too_long(uint64_t nbytes, const dd_tcp_limits *limits, dd_error *err)
{
    if (nbytes <= limits->max_request_bytes) {
        return false;
    }
    (void)dd_error_set(err, DD_PROTOCOL, "message too large: got at least %llu bytes, expected at most %llu",
                       (unsigned long long)nbytes, (unsigned long long)limits->max_request_bytes);
    return true;
}

/* Handle the end of the repeated fields: continue with the first field if repeats remain. */
static void
next_repeat(dd_tcp_scan *scan)
{
    if (scan->repeats > 0) {
        scan->repeats--;
    }
    if (scan->repeats > 0) {
        scan->step = scan->group;
    }
}

dd_tcp_scan_result
dd_tcp_scan_run(dd_tcp_scan *scan, dd_bytes bytes, const dd_tcp_limits *limits, dd_error *err)
{
    while (*scan->step != '\0') {
        dd_tcp_scan_result result = scan_field(scan, bytes, limits, err);
        if (result == DD_TCP_SCAN_MORE && is_too_long(bytes.len, limits, err)) {
            return DD_TCP_SCAN_BAD;
        }
        if (result != DD_TCP_SCAN_DONE) {
            return result;
        }
        if (*scan->step == '\0') {
            next_repeat(scan);
        }
    }
    return is_too_long(scan->at, limits, err) ? DD_TCP_SCAN_BAD : DD_TCP_SCAN_DONE;
}

uint64_t
dd_tcp_read(dd_tcp_reader *reader, char letter)
{
    uint64_t value = 0;
    memcpy(&value, reader->at, number_size(letter));
    reader->at += number_size(letter);
    return value;
}

dd_bytes
dd_tcp_read_bytes(dd_tcp_reader *reader)
{
    size_t len = (size_t)dd_tcp_read(reader, 'v');
    reader->at += len;
    return dd_bytes_of(reader->at - len, len);
}

void
dd_tcp_writer_init(dd_tcp_writer *writer, dd_blob *out, dd_error *err)
{
    *writer = (dd_tcp_writer){.out = out, .status = DD_OK, .err = err};
}

static void
write_raw(dd_tcp_writer *writer, const void *data, size_t len)
{
    if (writer->status == DD_OK) {
        writer->status = dd_blob_append(writer->out, data, len, writer->err);
    }
}

void
dd_tcp_write(dd_tcp_writer *writer, char letter, uint64_t value)
{
    write_raw(writer, &value, number_size(letter));
}

void
dd_tcp_write_bytes(dd_tcp_writer *writer, dd_bytes bytes)
{
    dd_tcp_write(writer, 'v', bytes.len);
    write_raw(writer, bytes.data, bytes.len);
}

/* ---- requests and results of a store as messages */

static void
check_limit(dd_tcp_writer *writer, uint64_t size, uint64_t limit, const char *label)
{
    if (size > limit && writer->status == DD_OK) {
        writer->status =
            dd_error_set(writer->err, DD_INVALID_ARGUMENT,
                         "%s too large: got %" PRIu64 ", expected at most %" PRIu64 " (the server's limit)",
                         label, size, limit);
    }
}

void
dd_tcp_write_request(dd_tcp_writer *writer, dd_tcp_op op, const dd_store_request *request, bool is_users,
                     const dd_tcp_limits *limits)
{
    static const dd_tcp_limits none = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
    const char *pattern = dd_tcp_find_op(op)->request;
    const dd_bytes *key = request->keys;
    const dd_bytes *value = request->values;
    size_t start = writer->out->len;
    size_t repeats = 1;
    limits = limits != NULL ? limits : &none;
    dd_tcp_write(writer, 'b', (uint8_t)op);
    if (*pattern == '#') {
        pattern++;
        repeats = request->nkeys;
        check_limit(writer, repeats, limits->max_keys, "number of keys");
        dd_tcp_write(writer, 'i', repeats);
    }
    for (; repeats > 0 && writer->status == DD_OK; repeats--) {
        for (const char *field = pattern; *field != '\0'; field++) {
            if (*field == 'k') {
                check_limit(writer, (uint64_t)key->len + is_users, limits->max_key_bytes, "key length");
                dd_tcp_write(writer, 'k', (uint64_t)key->len + is_users);
                write_raw(writer, "/", is_users);
                write_raw(writer, key->data, key->len);
                key++;
            } else if (*field == 'v') {
                check_limit(writer, value->len, limits->max_value_bytes, "value length");
                dd_tcp_write_bytes(writer, *value++);
            } else {
                dd_tcp_write(writer, 'i', (uint64_t)request->number);
            }
        }
    }
    check_limit(writer, writer->out->len - start, limits->max_request_bytes, "request length");
}

dd_status
dd_tcp_read_request(dd_tcp_request *request, dd_tcp_op op, dd_tcp_reader *reader, dd_error *err)
{
    const dd_tcp_op_row *row = dd_tcp_find_op(op);
    const char *pattern = row->request;
    size_t repeats = 1;
    *request = (dd_tcp_request){.request = {.op = (dd_store_op)row->store_op, .number = row->number}};
    if (*pattern == '#') {
        pattern++;
        repeats = (size_t)dd_tcp_read(reader, '#');
    }
    dd_bytes *keys = request->inline_keys;
    size_t nfields = repeats * strlen(pattern);
    if (nfields > sizeof request->inline_keys / sizeof request->inline_keys[0]) {
        keys = request->owned_keys = dd_mem_alloc_array(nfields, sizeof *keys);
    }
    if (keys == NULL) {
        return dd_error_no_memory(err, nfields * sizeof *keys);
    }
    dd_bytes *value = keys + repeats;
    request->request.keys = keys;
    request->request.values = value;
    for (; repeats > 0; repeats--) {
        for (const char *field = pattern; *field != '\0'; field++) {
            if (*field == 'k') {
                keys[request->request.nkeys++] = dd_tcp_read_bytes(reader);
            } else if (*field == 'v') {
                *value++ = dd_tcp_read_bytes(reader);
            } else {
                request->request.number = (int64_t)dd_tcp_read(reader, 'i');
            }
        }
    }
    return DD_OK;
}

void
dd_tcp_request_fini(dd_tcp_request *request)
{
    dd_mem_free(request->owned_keys);
    request->owned_keys = NULL;
}

void
dd_tcp_write_result(dd_tcp_writer *writer, dd_tcp_op op, const dd_store_result *result)
{
    const dd_tcp_op_row *row = dd_tcp_find_op(op);
    for (const char *field = row->reply != NULL ? row->reply : ""; *field != '\0'; field++) {
        if (*field == '#' || op == DD_TCP_MULTI_GET) {
            if (*field == '#') {
                dd_tcp_write(writer, '#', result->list.count);
            }
            for (size_t i = 0; i < result->list.count; i++) {
                dd_tcp_write_bytes(writer, dd_blob_view(&result->list.items[i]));
            }
            return;
        }
        if (*field == '?' && !result->flag) {
            dd_tcp_write(writer, '?', 0);
            return;
        }
        if (*field == 'v') {
            dd_tcp_write_bytes(writer, dd_blob_view(&result->value));
        } else {
            dd_tcp_write(writer, *field,
                         *field == 'b'        ? !result->flag
                         : *field == 'c'      ? result->state
                         : *field == 'i'      ? (uint64_t)result->number
                         : result->number > 1 ? (uint64_t)result->number
                                              : 1);
        }
    }
}

static dd_blob
lent(dd_bytes bytes)
{
    return (dd_blob){.data = (uint8_t *)(uintptr_t)bytes.data, .len = bytes.len};
}

/* Read a list of keys or values. Drop internal keys, which do not begin with "/". */
static dd_status
read_list(dd_tcp_reader *reader, size_t count, bool is_keys, dd_blob_list *list, dd_error *err)
{
    dd_status status = dd_blob_list_init(list, count, err);
    size_t nread = 0;
    for (size_t i = 0; i < list->count; i++) {
        dd_bytes item = dd_tcp_read_bytes(reader);
        bool is_users = item.len > 0 && item.data[0] == '/';
        if (!is_keys || is_users) {
            list->items[nread++] = lent(dd_bytes_of(item.data + is_keys, item.len - is_keys));
        }
    }
    list->count = nread;
    return status;
}

dd_status
dd_tcp_read_result(dd_tcp_reader *reader, dd_tcp_op op, size_t nkeys, dd_store_result *result, dd_error *err)
{
    const dd_tcp_op_row *row = dd_tcp_find_op(op);
    result->is_lent = true;
    for (const char *field = row->reply != NULL ? row->reply : ""; *field != '\0'; field++) {
        if (*field == '#' || op == DD_TCP_MULTI_GET) {
            size_t count = *field == '#' ? (size_t)dd_tcp_read(reader, '#') : nkeys;
            return read_list(reader, count, field[1] == 'k', &result->list, err);
        }
        if (*field == 'v') {
            result->value = lent(dd_tcp_read_bytes(reader));
            continue;
        }
        uint64_t number = dd_tcp_read(reader, *field);
        if (*field == 'i') {
            result->number = (int64_t)number;
        } else if (*field == 'c') {
            result->state = (uint8_t)number;
        } else {
            result->flag = *field == 'b' ? number == 0 : number > 0;
        }
        if (*field == '?' && number == 0) {
            break;
        }
    }
    return DD_OK;
}
