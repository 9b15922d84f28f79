#include "store/tcp_protocol.h"

#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the numbers of the TCPStore protocol are little endian; this file copies them as they are"
#endif

typedef struct op_row {
    const char *name;
    const char *request;
    const char *reply;
} op_row;

static const op_row op_table[] = {
#define OP_ROW(name, number, request, reply) [number] = {#name, request, reply},
    DD_TCP_OP_LIST(OP_ROW)
#undef OP_ROW
};

static const op_row *
find_op(unsigned op)
{
    bool is_known = op < sizeof op_table / sizeof op_table[0] && op_table[op].name != NULL;
    return is_known ? &op_table[op] : NULL;
}

const char *
dd_tcp_op_name(dd_tcp_op op)
{
    const op_row *row = find_op((unsigned)op);
    return row != NULL ? row->name : "?";
}

const char *
dd_tcp_request_pattern(uint8_t op)
{
    const op_row *row = find_op(op);
    return row != NULL ? row->request : NULL;
}

const char *
dd_tcp_reply_pattern(dd_tcp_op op)
{
    return find_op((unsigned)op)->reply;
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

/* Whether `more` bytes from `at` on are there; a field is scanned when it is there whole. */
static bool
has_bytes(const dd_tcp_scan *scan, dd_bytes bytes, uint64_t more)
{
    return more <= bytes.len - scan->at;
}

static uint64_t
peek_u64(const dd_tcp_scan *scan, dd_bytes bytes)
{
    uint64_t value;
    memcpy(&value, bytes.data + scan->at, sizeof value);
    return value;
}

static dd_tcp_scan_result
scan_fixed(dd_tcp_scan *scan, dd_bytes bytes, size_t size)
{
    if (!has_bytes(scan, bytes, size)) {
        return DD_TCP_SCAN_MORE;
    }
    scan->at += size;
    scan->step++;
    return DD_TCP_SCAN_DONE;
}

static dd_tcp_scan_result
scan_bytes(dd_tcp_scan *scan, dd_bytes bytes, uint64_t max_len, const char *what, dd_error *err)
{
    if (!has_bytes(scan, bytes, 8)) {
        return DD_TCP_SCAN_MORE;
    }
    uint64_t len = peek_u64(scan, bytes);
    if (len > max_len) {
        (void)dd_error_set(err, DD_PROTOCOL, "%s of %llu bytes is over the limit of %llu", what,
                           (unsigned long long)len, (unsigned long long)max_len);
        return DD_TCP_SCAN_BAD;
    }
    if (!has_bytes(scan, bytes, 8 + len)) {
        return DD_TCP_SCAN_MORE;
    }
    scan->at += 8 + (size_t)len;
    scan->step++;
    return DD_TCP_SCAN_DONE;
}

/* Past a count: what follows is the group, so many times. */
static void
begin_group(dd_tcp_scan *scan, uint64_t repeats)
{
    scan->at += 8;
    scan->step++;
    scan->group = scan->step;
    scan->repeats = repeats;
    if (repeats == 0) {
        scan->step = "";
    }
}

static dd_tcp_scan_result
scan_count(dd_tcp_scan *scan, dd_bytes bytes, uint64_t max_count, dd_error *err)
{
    if (!has_bytes(scan, bytes, 8)) {
        return DD_TCP_SCAN_MORE;
    }
    uint64_t count = peek_u64(scan, bytes);
    if (count > max_count) {
        (void)dd_error_set(err, DD_PROTOCOL, "count %llu is over the limit of %llu",
                           (unsigned long long)count, (unsigned long long)max_count);
        return DD_TCP_SCAN_BAD;
    }
    begin_group(scan, count);
    return DD_TCP_SCAN_DONE;
}

static dd_tcp_scan_result
scan_option(dd_tcp_scan *scan, dd_bytes bytes)
{
    if (!has_bytes(scan, bytes, 8)) {
        return DD_TCP_SCAN_MORE;
    }
    begin_group(scan, peek_u64(scan, bytes) > 0 ? 1 : 0);
    return DD_TCP_SCAN_DONE;
}

static dd_tcp_scan_result
scan_field(dd_tcp_scan *scan, dd_bytes bytes, const dd_tcp_limits *limits, dd_error *err)
{
    switch (*scan->step) {
    case 'k':
        return scan_bytes(scan, bytes, limits->max_key_bytes, "key", err);
    case 'v':
        return scan_bytes(scan, bytes, limits->max_value_bytes, "value", err);
    case '#':
        return scan_count(scan, bytes, limits->max_keys, err);
    case '?':
        return scan_option(scan, bytes);
    case 'i':
        return scan_fixed(scan, bytes, 8);
    case 'u':
        return scan_fixed(scan, bytes, 4);
    default:
        return scan_fixed(scan, bytes, 1);
    }
}

/* Whether so many bytes of one message are too many. */
static bool
is_too_long(uint64_t nbytes, const dd_tcp_limits *limits, dd_error *err)
{
    if (nbytes <= limits->max_request_bytes) {
        return false;
    }
    (void)dd_error_set(err, DD_PROTOCOL, "message is over the limit of %llu bytes",
                       (unsigned long long)limits->max_request_bytes);
    return true;
}

/* At the end of the group: back to its start, or to the end of the message. */
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
dd_tcp_read_count(dd_tcp_reader *reader)
{
    uint64_t value;
    memcpy(&value, reader->at, sizeof value);
    reader->at += sizeof value;
    return value;
}

dd_bytes
dd_tcp_read_bytes(dd_tcp_reader *reader)
{
    dd_bytes bytes;
    bytes.len = (size_t)dd_tcp_read_count(reader);
    bytes.data = reader->at;
    reader->at += bytes.len;
    return bytes;
}

int64_t
dd_tcp_read_i64(dd_tcp_reader *reader)
{
    return (int64_t)dd_tcp_read_count(reader);
}

uint32_t
dd_tcp_read_u32(dd_tcp_reader *reader)
{
    uint32_t value;
    memcpy(&value, reader->at, sizeof value);
    reader->at += sizeof value;
    return value;
}

uint8_t
dd_tcp_read_u8(dd_tcp_reader *reader)
{
    return *reader->at++;
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
dd_tcp_write_u8(dd_tcp_writer *writer, uint8_t value)
{
    write_raw(writer, &value, sizeof value);
}

void
dd_tcp_write_u32(dd_tcp_writer *writer, uint32_t value)
{
    write_raw(writer, &value, sizeof value);
}

void
dd_tcp_write_u64(dd_tcp_writer *writer, uint64_t value)
{
    write_raw(writer, &value, sizeof value);
}

void
dd_tcp_write_bytes(dd_tcp_writer *writer, dd_bytes bytes)
{
    dd_tcp_write_u64(writer, bytes.len);
    write_raw(writer, bytes.data, bytes.len);
}

void
dd_tcp_write_user_key(dd_tcp_writer *writer, dd_bytes key)
{
    dd_tcp_write_u64(writer, (uint64_t)key.len + 1);
    dd_tcp_write_u8(writer, '/');
    write_raw(writer, key.data, key.len);
}
