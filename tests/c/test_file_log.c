#include "check.h"
#include "core/mem.h"
#include "faults/faults.h"
#include "store/file_log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const dd_file_record_type all_types[] = {
    DD_FILE_RECORD_SET, DD_FILE_RECORD_DELETE, DD_FILE_RECORD_APPEND, DD_FILE_RECORD_PUSH, DD_FILE_RECORD_POP,
};

static dd_file_header
some_header(void)
{
    dd_file_header header = {.world_size = 4, .joined = 3, .left = 2};
    for (size_t i = 0; i < sizeof header.run_id; i++) {
        header.run_id[i] = (uint8_t)(i * 17);
    }
    return header;
}

static dd_store_result
ask(dd_keyspace *ks, dd_store_op op, dd_bytes key)
{
    dd_store_request request = {.op = op, .keys = &key, .nkeys = 1};
    dd_store_result result = {0};
    bool is_answered = false;
    CHECK_OK(dd_keyspace_answer(ks, &request, &result, &is_answered, check_err()));
    return result;
}

TEST(a_file_header_is_read_as_it_was_written)
{
    dd_file_header header = some_header();
    uint8_t bytes[DD_FILE_HEADER_BYTES];
    dd_file_header_seal(&header);
    memcpy(bytes, &header, sizeof bytes);
    dd_file_header read = {0};
    CHECK_INT(dd_file_header_parse(dd_bytes_of(bytes, sizeof bytes), &read), DD_FILE_HEADER_VALID);
    CHECK(memcmp(read.run_id, header.run_id, sizeof read.run_id) == 0);
    CHECK_INT(read.world_size, 4);
    CHECK_INT(read.joined, 3);
    CHECK_INT(read.left, 2);

    header.world_size = -1;
    dd_file_header_seal(&header);
    memcpy(bytes, &header, sizeof bytes);
    CHECK_INT(dd_file_header_parse(dd_bytes_of(bytes, sizeof bytes), &read), DD_FILE_HEADER_VALID);
    CHECK_INT(read.world_size, -1);
    CHECK(dd_file_header_is_of_run(dd_bytes_of(bytes, sizeof bytes), header.run_id));
    header.run_id[15] ^= 1;
    CHECK(!dd_file_header_is_of_run(dd_bytes_of(bytes, sizeof bytes), header.run_id));
}

TEST(a_file_header_truncated_at_any_byte_is_reported_as_broken)
{
    dd_file_header header = some_header();
    uint8_t bytes[DD_FILE_HEADER_BYTES];
    dd_file_header_seal(&header);
    memcpy(bytes, &header, sizeof bytes);
    for (size_t len = 0; len < sizeof bytes; len++) {
        uint8_t *cut = malloc(len + 1);
        REQUIRE(cut != NULL);
        memcpy(cut, bytes, len);
        dd_file_header read;
        CHECK_INT(dd_file_header_parse(dd_bytes_of(cut, len), &read),
                  len == 0 ? DD_FILE_HEADER_EMPTY : DD_FILE_HEADER_BROKEN);
        CHECK(len >= 32 || !dd_file_header_is_of_run(dd_bytes_of(cut, len), header.run_id));
        free(cut);
    }
}

TEST(a_file_header_with_any_flipped_bit_is_refused)
{
    dd_file_header header = some_header();
    uint8_t bytes[DD_FILE_HEADER_BYTES];
    dd_file_header_seal(&header);
    memcpy(bytes, &header, sizeof bytes);
    for (size_t bit = 0; bit < 8 * sizeof bytes; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        dd_file_header read;
        CHECK_INT(dd_file_header_parse(dd_bytes_of(bytes, sizeof bytes), &read),
                  bit < 64 ? DD_FILE_HEADER_FOREIGN : DD_FILE_HEADER_BROKEN);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

TEST(a_record_has_the_documented_bytes)
{
    dd_blob out = {0};
    dd_file_record record = {DD_FILE_RECORD_SET, BYTES("key"), BYTES("value")};
    REQUIRE_OK(dd_file_record_encode(&out, &record, check_err()));
    CHECK_TEXT(dd_blob_view(&out), "\x08\x32\xd2\x63\x18\x00\x00\x00\x03\x00\x00\x00\x01\x00\x00\x00"
                                   "keyvalue");
    dd_blob_fini(&out);
}

TEST(a_record_is_read_as_it_was_written)
{
    for (size_t i = 0; i < sizeof all_types / sizeof all_types[0]; i++) {
        dd_blob out = {0};
        dd_file_record record = {all_types[i], BYTES("a\0b"), BYTES("\xff\n")};
        REQUIRE_OK(dd_file_record_encode(&out, &record, check_err()));
        REQUIRE_OK(dd_file_record_encode(&out, &record, check_err()));
        dd_file_record read;
        uint64_t nbytes;
        CHECK_INT(dd_file_record_parse(dd_blob_view(&out), &read, &nbytes), DD_FILE_RECORD_WHOLE);
        CHECK_INT(nbytes, out.len / 2);
        CHECK_INT(read.type, all_types[i]);
        CHECK_TEXT(read.key, "a\0b");
        CHECK_TEXT(read.value, "\xff\n");
        dd_blob_fini(&out);
    }
}

TEST(a_record_truncated_at_any_byte_is_reported_as_incomplete)
{
    dd_blob out = {0};
    dd_file_record record = {DD_FILE_RECORD_APPEND, BYTES("a key"), BYTES("and a value")};
    REQUIRE_OK(dd_file_record_encode(&out, &record, check_err()));
    for (size_t len = 0; len < out.len; len++) {
        uint8_t *cut = malloc(len + 1);
        REQUIRE(cut != NULL);
        memcpy(cut, out.data, len);
        dd_file_record read;
        uint64_t nbytes;
        CHECK_INT(dd_file_record_parse(dd_bytes_of(cut, len), &read, &nbytes), DD_FILE_RECORD_SHORT);
        CHECK_INT(nbytes, len < DD_FILE_RECORD_HEAD_BYTES ? DD_FILE_RECORD_HEAD_BYTES : out.len);
        free(cut);
    }
    dd_blob_fini(&out);
}

TEST(a_record_with_any_flipped_bit_is_refused)
{
    dd_blob out = {0};
    dd_file_record record = {DD_FILE_RECORD_PUSH, BYTES("a key"), BYTES("and a value")};
    REQUIRE_OK(dd_file_record_encode(&out, &record, check_err()));
    for (size_t bit = 0; bit < 8 * out.len; bit++) {
        out.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        dd_file_record read;
        uint64_t nbytes;
        CHECK(dd_file_record_parse(dd_blob_view(&out), &read, &nbytes) != DD_FILE_RECORD_WHOLE);
        out.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    dd_blob_fini(&out);
}

TEST(an_impossible_record_length_is_reported_as_damage)
{
    static const struct {
        uint32_t len;
        dd_file_record_state state;
        uint64_t nbytes;
    } cases[] = {
        {0, DD_FILE_RECORD_DAMAGED, 0},
        {15, DD_FILE_RECORD_DAMAGED, 16},
        {(1u << 30) + 1, DD_FILE_RECORD_DAMAGED, 16},
        {UINT32_MAX, DD_FILE_RECORD_DAMAGED, 16},
        {1u << 30, DD_FILE_RECORD_SHORT, 1u << 30},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t bytes[32] = {0};
        for (int j = 0; j < 4; j++) {
            bytes[4 + j] = (uint8_t)(cases[i].len >> (8 * j));
        }
        dd_file_record read;
        uint64_t nbytes;
        CHECK_INT(dd_file_record_parse(dd_bytes_of(bytes, sizeof bytes), &read, &nbytes), cases[i].state);
        CHECK_INT(nbytes, cases[i].nbytes);
    }
}

TEST(a_record_over_the_size_limit_is_refused)
{
    dd_blob out = {0};
    uint8_t byte = 0;
    dd_bytes huge = dd_bytes_of(&byte, (size_t)DD_FILE_RECORD_MAX_BYTES);
    dd_file_record record = {DD_FILE_RECORD_SET, dd_bytes_of(&byte, 1), huge};
    CHECK_STATUS(dd_file_record_encode(&out, &record, check_err()), DD_INVALID_ARGUMENT);
    record = (dd_file_record){DD_FILE_RECORD_SET, huge, dd_bytes_of(&byte, 1)};
    CHECK_STATUS(dd_file_record_encode(&out, &record, check_err()), DD_INVALID_ARGUMENT);
    CHECK_INT(out.len, 0);
}

/* Return a file with room for a header and then the bytes; -1 on failure. */
static int
file_with(dd_bytes bytes)
{
    char path[] = "/tmp/dd_file_log_XXXXXX";
    int fd = mkstemp(path);
    if (fd >= 0) {
        (void)unlink(path);
        CHECK(pwrite(fd, bytes.data, bytes.len, DD_FILE_HEADER_BYTES) == (ssize_t)bytes.len);
    }
    return fd;
}

static void
add_record(dd_blob *out, dd_file_record_type type, dd_bytes key, dd_bytes value)
{
    dd_file_record record = {type, key, value};
    CHECK_OK(dd_file_record_encode(out, &record, check_err()));
}

TEST(replaying_a_log_applies_every_record)
{
    dd_blob out = {0};
    add_record(&out, DD_FILE_RECORD_SET, BYTES("a"), BYTES("1"));
    add_record(&out, DD_FILE_RECORD_APPEND, BYTES("a"), BYTES("2"));
    add_record(&out, DD_FILE_RECORD_SET, BYTES("b"), BYTES("gone"));
    add_record(&out, DD_FILE_RECORD_PUSH, BYTES("q"), BYTES("x"));
    add_record(&out, DD_FILE_RECORD_PUSH, BYTES("q"), BYTES("y"));
    add_record(&out, DD_FILE_RECORD_DELETE, BYTES("b"), BYTES(""));
    add_record(&out, DD_FILE_RECORD_POP, BYTES("q"), BYTES(""));
    add_record(&out, DD_FILE_RECORD_POP, BYTES("no such queue"), BYTES(""));
    int fd = file_with(dd_blob_view(&out));
    REQUIRE(fd >= 0);
    dd_file_log log;
    dd_file_log_init(&log);
    for (int round = 0; round < 2; round++) {
        dd_file_tail tail;
        REQUIRE_OK(dd_file_log_replay(&log, fd, DD_FILE_HEADER_BYTES + out.len, &tail, check_err()));
        CHECK_INT(tail, DD_FILE_TAIL_CLEAN);
        CHECK_INT(log.offset, DD_FILE_HEADER_BYTES + out.len);
        dd_bytes value = {0};
        CHECK(dd_keyspace_get(&log.ks, BYTES("a"), &value));
        CHECK_TEXT(value, "12");
        CHECK(!ask(&log.ks, DD_STORE_CHECK, BYTES("b")).flag);
        CHECK_INT(ask(&log.ks, DD_STORE_QUEUE_LEN, BYTES("q")).number, 1);
        dd_file_log_reset(&log);
    }
    dd_file_log_fini(&log);
    dd_blob_fini(&out);
    close(fd);
}

/* Records of about the size of the read buffer, so that its end falls into all parts of one. */
TEST(replaying_a_log_applies_records_larger_than_the_read_buffer)
{
    static const size_t sizes[] = {0, 1, 65519, 65520, 65521, 200000, 3, 65536, 130000, 7};
    uint8_t *data = malloc(200000);
    REQUIRE(data != NULL);
    memset(data, 'x', 200000);
    dd_blob out = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint8_t key = (uint8_t)i;
        add_record(&out, DD_FILE_RECORD_SET, dd_bytes_of(&key, 1), dd_bytes_of(data, sizes[i]));
    }
    int fd = file_with(dd_blob_view(&out));
    REQUIRE(fd >= 0);
    dd_file_log log;
    dd_file_log_init(&log);
    dd_file_tail tail;
    /* The measured size is too large, as if another process truncated the file in between. */
    REQUIRE_OK(dd_file_log_replay(&log, fd, DD_FILE_HEADER_BYTES + out.len + 100, &tail, check_err()));
    CHECK_INT(log.offset, DD_FILE_HEADER_BYTES + out.len);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint8_t key = (uint8_t)i;
        dd_bytes value = {0};
        CHECK(dd_keyspace_get(&log.ks, dd_bytes_of(&key, 1), &value));
        CHECK_BYTES(value, dd_bytes_of(data, sizes[i]));
    }
    dd_file_log_fini(&log);
    dd_blob_fini(&out);
    free(data);
    close(fd);
}

TEST(replaying_distinguishes_an_incomplete_last_record_from_damage)
{
    dd_blob out = {0};
    add_record(&out, DD_FILE_RECORD_SET, BYTES("a"), BYTES("1"));
    size_t one = out.len;
    add_record(&out, DD_FILE_RECORD_SET, BYTES("b"), BYTES("2"));
    add_record(&out, DD_FILE_RECORD_SET, BYTES("c"), BYTES("3"));
    static const struct {
        size_t nrecords_kept;
        size_t flipped;
        dd_file_tail tail;
    } cases[] = {
        {2, 2, DD_FILE_TAIL_TORN},    /* bad checksum in the last record */
        {3, 2, DD_FILE_TAIL_DAMAGED}, /* and in an earlier record */
        {3, 4 + 3, DD_FILE_TAIL_DAMAGED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        out.data[one + cases[i].flipped] ^= 0xff;
        int fd = file_with(dd_bytes_of(out.data, cases[i].nrecords_kept * one));
        REQUIRE(fd >= 0);
        dd_file_log log;
        dd_file_log_init(&log);
        dd_file_tail tail;
        uint64_t size = DD_FILE_HEADER_BYTES + cases[i].nrecords_kept * one;
        CHECK_OK(dd_file_log_replay(&log, fd, size, &tail, check_err()));
        CHECK_INT(tail, cases[i].tail);
        CHECK_INT(log.offset, DD_FILE_HEADER_BYTES + one);
        CHECK_INT(log.ks.nvalues, 1);
        dd_file_log_fini(&log);
        out.data[one + cases[i].flipped] ^= 0xff;
        close(fd);
    }
    dd_blob_fini(&out);
}

TEST(replaying_a_log_succeeds_after_any_failed_allocation)
{
    dd_blob out = {0};
    add_record(&out, DD_FILE_RECORD_SET, BYTES("a"), BYTES("1"));
    add_record(&out, DD_FILE_RECORD_PUSH, BYTES("q"), BYTES("x"));
    add_record(&out, DD_FILE_RECORD_APPEND, BYTES("a"), BYTES("2"));
    add_record(&out, DD_FILE_RECORD_POP, BYTES("q"), BYTES(""));
    int fd = file_with(dd_blob_view(&out));
    REQUIRE(fd >= 0);
    dd_status status = DD_OUT_OF_MEMORY;
    for (long n = 0; status != DD_OK; n++) {
        REQUIRE(n < 100);
        dd_file_log log;
        dd_file_log_init(&log);
        dd_file_tail tail;
        dd_mem_fail_after(n);
        status = dd_file_log_replay(&log, fd, DD_FILE_HEADER_BYTES + out.len, &tail, check_err());
        dd_mem_fail_after(-1);
        CHECK(status == DD_OK || status == DD_OUT_OF_MEMORY);
        CHECK_OK(dd_file_log_replay(&log, fd, DD_FILE_HEADER_BYTES + out.len, &tail, check_err()));
        dd_bytes value = {0};
        CHECK(dd_keyspace_get(&log.ks, BYTES("a"), &value));
        CHECK_TEXT(value, "12");
        CHECK_INT(ask(&log.ks, DD_STORE_QUEUE_LEN, BYTES("q")).number, 0);
        dd_file_log_fini(&log);
    }
    dd_blob_fini(&out);
    close(fd);
}
