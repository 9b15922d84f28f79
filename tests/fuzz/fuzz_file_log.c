/* The parser of a FileStore's file, and the replay of accepted records. The input is a file without
 * checksums: they are computed first, because a fuzzer would not guess them. Then the input is
 * parsed again unchanged. */
#include "store/file_log.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_INPUT_BYTES 4096u

static void
require(bool holds)
{
    if (!holds) {
        abort();
    }
}

/* Parse all records, check the parser's results, and encode each complete record again: the bytes
 * must be the same. */
static void
parse_all(dd_bytes rest, dd_keyspace *ks)
{
    for (;;) {
        dd_file_record record = {0};
        uint64_t nbytes = 0;
        dd_file_record_state state = dd_file_record_parse(rest, &record, &nbytes);
        if (state == DD_FILE_RECORD_SHORT) {
            require(nbytes > rest.len && nbytes <= DD_FILE_RECORD_MAX_BYTES);
        }
        if (state != DD_FILE_RECORD_WHOLE) {
            return;
        }
        require(nbytes <= rest.len);
        dd_blob again = {0};
        require(dd_file_record_encode(&again, &record, NULL) == DD_OK);
        require(dd_bytes_equal(dd_blob_view(&again), dd_bytes_of(rest.data, (size_t)nbytes)));
        dd_blob_fini(&again);
        require(dd_file_record_apply(ks, &record, NULL) == DD_OK);
        rest.data += nbytes;
        rest.len -= (size_t)nbytes;
    }
}

/* The parser on memory and the replay on a file must agree. */
static void
replay(dd_bytes records, const dd_keyspace *expected)
{
    int fd = memfd_create("fuzz_file_log", MFD_CLOEXEC);
    require(fd >= 0 && pwrite(fd, records.data, records.len, DD_FILE_HEADER_BYTES) == (ssize_t)records.len);
    dd_file_log log;
    dd_file_log_init(&log);
    dd_file_tail tail;
    uint64_t size = DD_FILE_HEADER_BYTES + records.len;
    require(dd_file_log_replay(&log, fd, size, &tail, NULL) == DD_OK);
    require((tail == DD_FILE_TAIL_CLEAN) == (log.offset == size));
    require(log.ks.nvalues == expected->nvalues && log.ks.entries.count == expected->entries.count);
    dd_file_log_fini(&log);
    close(fd);
}

static void
run(dd_bytes bytes)
{
    dd_file_header header;
    (void)dd_file_header_parse(bytes, &header);
    dd_keyspace ks;
    dd_keyspace_init(&ks);
    parse_all(bytes, &ks);
    replay(bytes, &ks);
    dd_keyspace_fini(&ks);
}

static uint32_t
crc32_of(const uint8_t *data, size_t len)
{
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < 8 * len; i++) {
        uint32_t bit = (crc ^ (uint32_t)data[i / 8] >> (i % 8)) & 1;
        crc = crc >> 1 ^ (bit != 0 ? 0xedb88320 : 0);
    }
    return ~crc;
}

/* Compute the checksum of every record with a valid length. */
static void
fix_checksums(uint8_t *data, size_t size)
{
    while (size >= DD_FILE_RECORD_HEAD_BYTES) {
        size_t record_len =
            (size_t)data[4] | (size_t)data[5] << 8 | (size_t)data[6] << 16 | (size_t)data[7] << 24;
        if (record_len < DD_FILE_RECORD_HEAD_BYTES || record_len > size) {
            return;
        }
        uint32_t crc = crc32_of(data + 4, record_len - 4);
        for (int i = 0; i < 4; i++) {
            data[i] = (uint8_t)(crc >> (8 * i));
        }
        data += record_len;
        size -= record_len;
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > MAX_INPUT_BYTES) {
        return -1;
    }
    run(dd_bytes_of(data, size));
    uint8_t *fixed = malloc(size + 1);
    require(fixed != NULL);
    if (size > 0) {
        memcpy(fixed, data, size);
    }
    fix_checksums(fixed, size);
    run(dd_bytes_of(fixed, size));
    free(fixed);
    return 0;
}
