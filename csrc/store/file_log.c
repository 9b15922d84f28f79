#include "store/file_log.h"

#include "core/system.h"

#include <errno.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the numbers of a FileStore's file are little endian; this file copies them as they are"
#endif

#define MAGIC "DDFSTORE"
#define MAGIC_BYTES 8u
#define FORMAT_VERSION 1u
#define READ_BYTES ((size_t)64 << 10)

typedef struct record_head {
    uint32_t crc; /* CRC-32 of the record, except this field */
    uint32_t nbytes;
    uint32_t key_len;
    uint32_t type;
} record_head;

_Static_assert(sizeof(dd_file_header) == DD_FILE_HEADER_BYTES, "the header has no gaps");
_Static_assert(sizeof(record_head) == DD_FILE_RECORD_HEAD_BYTES, "the head of a record has no gaps");

/* Return the CRC-32 of IEEE 802.3 (reflected, polynomial 0xedb88320), computed four bits at a time:
 * entry i of the table is i after four steps of the bitwise division. A larger table would gain
 * nothing, because values are small and a write takes a file lock. */
static uint32_t
crc32_of(const uint8_t *data, size_t len)
{
    static const uint32_t table[16] = {
        0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
        0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
    };
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < len; i++) {
        crc ^= data[i];
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

dd_file_header_state
dd_file_header_parse(dd_bytes bytes, dd_file_header *header)
{
    if (bytes.len == 0) {
        return DD_FILE_HEADER_EMPTY;
    }
    if (memcmp(bytes.data, MAGIC, bytes.len < MAGIC_BYTES ? bytes.len : MAGIC_BYTES) != 0) {
        return DD_FILE_HEADER_FOREIGN;
    }
    dd_file_header found;
    if (bytes.len < sizeof found) {
        return DD_FILE_HEADER_BROKEN;
    }
    memcpy(&found, bytes.data, sizeof found);
    if (found.crc != crc32_of(bytes.data, offsetof(dd_file_header, crc))) {
        return DD_FILE_HEADER_BROKEN;
    }
    if (found.version != FORMAT_VERSION) {
        return DD_FILE_HEADER_VERSION;
    }
    *header = found;
    return DD_FILE_HEADER_VALID;
}

void
dd_file_header_seal(dd_file_header *header)
{
    memcpy(header->magic, MAGIC, MAGIC_BYTES);
    header->version = FORMAT_VERSION;
    header->zero = header->last_zero = 0;
    header->crc = crc32_of((const uint8_t *)header, offsetof(dd_file_header, crc));
}

bool
dd_file_header_is_of_run(dd_bytes bytes, const uint8_t run_id[DD_FILE_RUN_ID_BYTES])
{
    size_t at = offsetof(dd_file_header, run_id);
    return bytes.len >= at + DD_FILE_RUN_ID_BYTES && memcmp(bytes.data, MAGIC, MAGIC_BYTES) == 0 &&
           memcmp(bytes.data + at, run_id, DD_FILE_RUN_ID_BYTES) == 0;
}

dd_file_record_state
dd_file_record_parse(dd_bytes bytes, dd_file_record *record, uint64_t *nbytes)
{
    *nbytes = DD_FILE_RECORD_HEAD_BYTES;
    if (bytes.len < DD_FILE_RECORD_HEAD_BYTES) {
        return DD_FILE_RECORD_SHORT;
    }
    record_head head;
    memcpy(&head, bytes.data, sizeof head);
    if (head.nbytes < sizeof head || head.nbytes > DD_FILE_RECORD_MAX_BYTES) {
        *nbytes = head.nbytes == 0 ? 0 : DD_FILE_RECORD_HEAD_BYTES;
        return DD_FILE_RECORD_DAMAGED;
    }
    *nbytes = head.nbytes;
    if (bytes.len < head.nbytes) {
        return DD_FILE_RECORD_SHORT;
    }
    size_t body_len = head.nbytes - sizeof head;
    if (head.crc != crc32_of(bytes.data + sizeof head.crc, head.nbytes - sizeof head.crc) ||
        head.key_len > body_len || head.type < DD_FILE_RECORD_SET || head.type > DD_FILE_RECORD_POP) {
        return DD_FILE_RECORD_DAMAGED;
    }
    record->type = (dd_file_record_type)head.type;
    record->key = dd_bytes_of(bytes.data + sizeof head, head.key_len);
    record->value = dd_bytes_of(bytes.data + sizeof head + head.key_len, body_len - head.key_len);
    return DD_FILE_RECORD_WHOLE;
}

dd_status
dd_file_record_encode(dd_blob *out, const dd_file_record *record, dd_error *err)
{
    const size_t room = (size_t)DD_FILE_RECORD_MAX_BYTES - DD_FILE_RECORD_HEAD_BYTES;
    if (record->key.len > room || record->value.len > room - record->key.len) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "key and value too large: got %zu + %zu bytes, expected at most %zu together",
                            record->key.len, record->value.len, room);
    }
    record_head head = {
        .nbytes = (uint32_t)(sizeof head + record->key.len + record->value.len),
        .key_len = (uint32_t)record->key.len,
        .type = (uint32_t)record->type,
    };
    dd_status status = dd_blob_reserve(out, head.nbytes, err);
    if (status != DD_OK) {
        return status;
    }
    uint8_t *start = out->data + out->len;
    /* Appending cannot fail: the space is reserved. */
    (void)!dd_blob_append(out, &head, sizeof head, NULL);
    (void)!dd_blob_append(out, record->key.data, record->key.len, NULL);
    (void)!dd_blob_append(out, record->value.data, record->value.len, NULL);
    head.crc = crc32_of(start + sizeof head.crc, head.nbytes - sizeof head.crc);
    memcpy(start, &head.crc, sizeof head.crc);
    return DD_OK;
}

dd_status
dd_file_record_apply(dd_keyspace *ks, const dd_file_record *record, dd_error *err)
{
    static const dd_store_op ops[] = {
        [DD_FILE_RECORD_SET] = DD_STORE_SET,       [DD_FILE_RECORD_DELETE] = DD_STORE_DELETE_KEY,
        [DD_FILE_RECORD_APPEND] = DD_STORE_APPEND, [DD_FILE_RECORD_PUSH] = DD_STORE_QUEUE_PUSH,
        [DD_FILE_RECORD_POP] = DD_STORE_QUEUE_POP,
    };
    /* number = 1 means to wait: popping from an empty queue is then not an error but unanswered. */
    dd_store_request request = {
        .op = ops[record->type], .keys = &record->key, .nkeys = 1, .values = &record->value, .number = 1};
    dd_store_result result = {0};
    bool is_answered = false;
    dd_status status = dd_keyspace_answer(ks, &request, &result, &is_answered, err);
    dd_store_result_fini(&result);
    return status;
}

void
dd_file_log_init(dd_file_log *log)
{
    *log = (dd_file_log){.offset = DD_FILE_HEADER_BYTES};
    dd_keyspace_init(&log->ks);
}

void
dd_file_log_fini(dd_file_log *log)
{
    dd_keyspace_fini(&log->ks);
    dd_blob_fini(&log->read_buf);
}

void
dd_file_log_reset(dd_file_log *log)
{
    dd_file_log_fini(log);
    dd_file_log_init(log);
}

ssize_t
dd_file_read(int fd, uint8_t *out, size_t nbytes, uint64_t offset)
{
    size_t have = 0;
    while (have < nbytes) {
        ssize_t n = dd_sys_pread(fd, out + have, nbytes - have, (off_t)(offset + have));
        if (n == 0) {
            break;
        }
        if (n > 0) {
            have += (size_t)n;
        } else if (errno != EINTR) {
            return -1;
        }
    }
    return (ssize_t)have;
}

/* Read up to `want` bytes at log->offset into log->read_buf; fewer only at the end of the file. */
static dd_status
read_at_offset(dd_file_log *log, int fd, size_t want, dd_error *err)
{
    dd_blob_clear(&log->read_buf, READ_BYTES);
    dd_status status = dd_blob_reserve(&log->read_buf, want, err);
    if (status != DD_OK) {
        return status;
    }
    ssize_t nread = dd_file_read(fd, log->read_buf.data, want, log->offset);
    if (nread < 0) {
        return dd_error_set_errno(err, DD_SYSTEM, errno, "cannot read %zu bytes at offset %llu", want,
                                  (unsigned long long)log->offset);
    }
    log->read_buf.len = (size_t)nread;
    return DD_OK;
}

/* Apply all complete records of log->read_buf. *state and *nbytes describe what follows them. */
static dd_status
apply_records(dd_file_log *log, dd_file_record_state *state, uint64_t *nbytes, dd_error *err)
{
    dd_bytes rest = dd_blob_view(&log->read_buf);
    for (;;) {
        dd_file_record record;
        *state = dd_file_record_parse(rest, &record, nbytes);
        if (*state != DD_FILE_RECORD_WHOLE) {
            return DD_OK;
        }
        dd_status status = dd_file_record_apply(&log->ks, &record, err);
        if (status != DD_OK) {
            return status;
        }
        log->offset += *nbytes;
        rest.data += *nbytes;
        rest.len -= (size_t)*nbytes;
    }
}

dd_status
dd_file_log_replay(dd_file_log *log, int fd, uint64_t size, dd_file_tail *tail, dd_error *err)
{
    uint64_t want = READ_BYTES;
    while (log->offset < size) {
        uint64_t left = size - log->offset;
        want = left < want ? left : want;
        dd_status status = read_at_offset(log, fd, (size_t)want, err);
        if (status != DD_OK) {
            return status;
        }
        if (log->read_buf.len < want) {
            /* another process has truncated the file meanwhile */
            size = log->offset + log->read_buf.len;
        }
        dd_file_record_state state;
        uint64_t nbytes;
        status = apply_records(log, &state, &nbytes, err);
        if (status != DD_OK) {
            return status;
        }
        left = size - log->offset;
        bool is_cut_by_buf = state == DD_FILE_RECORD_SHORT && nbytes <= left;
        if (left > 0 && !is_cut_by_buf) {
            bool is_followed = state == DD_FILE_RECORD_DAMAGED && nbytes > 0 && nbytes < left;
            *tail = is_followed ? DD_FILE_TAIL_DAMAGED : DD_FILE_TAIL_TORN;
            return DD_OK;
        }
        want = nbytes > READ_BYTES ? nbytes : READ_BYTES;
    }
    *tail = DD_FILE_TAIL_CLEAN;
    return DD_OK;
}
