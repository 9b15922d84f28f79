#include "check.h"
#include "core/mem.h"
#include "faults/faults.h"
#include "store/tcp_protocol.h"
#include "tcp_raw.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct op_row {
    dd_tcp_op op;
    const char *name;
    const char *request;
    const char *reply;
} op_row;

static const op_row ops[] = {
#define OP_ROW(name, number, request, reply, ...) {DD_TCP_##name, #name, request, reply},
    DD_TCP_OP_LIST(OP_ROW)
#undef OP_ROW
};
#define NOPS (sizeof ops / sizeof ops[0])

static const dd_tcp_limits limits = {64, 4096, 100, 1 << 20};

/* --- building --------------------------------------------------------------------------------- */

static const char text[] = "some text to cut keys and values from";

/* Return the bytes of field number n: a different length each time, sometimes 0. */
static dd_bytes
nth_text(unsigned n)
{
    return dd_bytes_of(text + n % 5, n * 7 % 23);
}

/* Write "/" and the key: the form of users' keys on the wire. */
static void
write_key(dd_tcp_writer *writer, dd_bytes key, bool is_users)
{
    dd_tcp_write(writer, 'k', key.len + is_users);
    if (is_users) {
        dd_tcp_write(writer, 'b', '/');
    }
    for (size_t i = 0; i < key.len; i++) {
        dd_tcp_write(writer, 'b', key.data[i]);
    }
}

static void
write_field(dd_tcp_writer *writer, char letter, unsigned n)
{
    switch (letter) {
    case 'k':
        write_key(writer, nth_text(n), n % 2 == 0);
        break;
    case 'v':
        dd_tcp_write_bytes(writer, nth_text(n));
        break;
    case 'i':
        dd_tcp_write(writer, 'i', (uint64_t)(int64_t)(-5 - (int)n));
        break;
    case 'u':
        dd_tcp_write(writer, 'u', 0xfedcba00 + n);
        break;
    default:
        dd_tcp_write(writer, 'b', (uint8_t)(200 + n));
    }
}

static void
check_key(dd_bytes key, unsigned n)
{
    if (n % 2 == 0) {
        CHECK(key.len > 0 && key.data[0] == '/');
        key = dd_bytes_of(key.data + 1, key.len - 1);
    }
    CHECK_BYTES(key, nth_text(n));
}

static void
read_field(dd_tcp_reader *reader, char letter, unsigned n)
{
    switch (letter) {
    case 'k':
        check_key(dd_tcp_read_bytes(reader), n);
        break;
    case 'v':
        CHECK_BYTES(dd_tcp_read_bytes(reader), nth_text(n));
        break;
    case 'i':
        CHECK_INT((int64_t)dd_tcp_read(reader, 'i'), -5 - (int)n);
        break;
    case 'u':
        CHECK_INT(dd_tcp_read(reader, 'u'), 0xfedcba00 + n);
        break;
    default:
        CHECK_INT(dd_tcp_read(reader, 'b'), 200 + n);
    }
}

/* Write or read the fields of a pattern, with counts of `count`, `repeats` times. */
static void
for_each_field(const char *pattern, uint64_t repeats, uint64_t count, dd_tcp_writer *writer,
               dd_tcp_reader *reader)
{
    unsigned n = 0;
    for (uint64_t i = 0; i < repeats; i++) {
        const char *group = strpbrk(pattern, "#?");
        size_t nplain = group != NULL ? (size_t)(group - pattern) : strlen(pattern);
        for (size_t at = 0; at < nplain; at++, n++) {
            writer != NULL ? write_field(writer, pattern[at], n) : read_field(reader, pattern[at], n);
        }
        if (group == NULL) {
            continue;
        }
        if (writer != NULL) {
            dd_tcp_write(writer, 'i', count);
        } else {
            CHECK_INT(dd_tcp_read(reader, '#'), count);
        }
        for (uint64_t k = 0; k < (*group == '?' && count > 1 ? 1 : count); k++) {
            for (const char *at = group + 1; *at != '\0'; at++, n++) {
                writer != NULL ? write_field(writer, *at, n) : read_field(reader, *at, n);
            }
        }
    }
}

/* --- scanning --------------------------------------------------------------------------------- */

static dd_tcp_scan_result
scan_fresh(const char *pattern, uint64_t repeats, size_t head, dd_bytes bytes, const dd_tcp_limits *within,
           dd_tcp_scan *scan)
{
    /* In a block of exactly this size, so that the sanitizer detects overreads. */
    uint8_t *copy = malloc(bytes.len > 0 ? bytes.len : 1);
    if (!CHECK(copy != NULL)) {
        return DD_TCP_SCAN_BAD;
    }
    if (bytes.len > 0) {
        memcpy(copy, bytes.data, bytes.len);
    }
    dd_tcp_scan_begin(scan, pattern, repeats, head);
    dd_tcp_scan_result result = dd_tcp_scan_run(scan, dd_bytes_of(copy, bytes.len), within, check_err());
    free(copy);
    return result;
}

static void
check_every_cut(const char *pattern, uint64_t repeats, dd_bytes message, size_t head)
{
    dd_tcp_scan resumed;
    dd_tcp_scan_begin(&resumed, pattern, repeats, head);
    for (size_t len = head; len <= message.len; len++) {
        dd_bytes prefix = dd_bytes_of(message.data, len);
        dd_tcp_scan fresh;
        dd_tcp_scan_result expected = len < message.len ? DD_TCP_SCAN_MORE : DD_TCP_SCAN_DONE;
        CHECK_INT(scan_fresh(pattern, repeats, head, prefix, &limits, &fresh), expected);
        CHECK_INT(dd_tcp_scan_run(&resumed, prefix, &limits, check_err()), expected);
        CHECK(fresh.step == resumed.step && fresh.group == resumed.group && fresh.repeats == resumed.repeats);
        CHECK_INT(fresh.at, resumed.at);
        if (check_failures() > 0) {
            return;
        }
    }
    CHECK_INT(resumed.at, message.len);
}

static void
round_trip(const char *pattern, uint64_t repeats, uint64_t count, size_t head)
{
    dd_blob message = {0};
    dd_tcp_writer writer;
    dd_tcp_writer_init(&writer, &message, check_err());
    for (size_t i = 0; i < head; i++) {
        dd_tcp_write(&writer, 'b', 0xee);
    }
    for_each_field(pattern, repeats, count, &writer, NULL);
    CHECK_OK(writer.status);
    check_every_cut(pattern, repeats, dd_blob_view(&message), head);
    dd_tcp_reader reader = {message.data + head};
    for_each_field(pattern, repeats, count, NULL, &reader);
    CHECK(reader.at == message.data + message.len);
    /* Bytes after a message do not belong to it. */
    size_t len = message.len;
    CHECK_OK(dd_blob_append(&message, "next", 4, check_err()));
    dd_tcp_scan scan;
    CHECK_INT(scan_fresh(pattern, repeats, head, dd_blob_view(&message), &limits, &scan), DD_TCP_SCAN_DONE);
    CHECK_INT(scan.at, len);
    dd_blob_fini(&message);
}

TEST(messages_received_in_parts_are_decoded_as_they_were_encoded)
{
    static const uint64_t counts[] = {0, 1, 2, 37};
    for (size_t i = 0; i < NOPS; i++) {
        for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
            round_trip(ops[i].request, 1, counts[k], 1);
            if (ops[i].reply != NULL) {
                round_trip(ops[i].reply, 1, counts[k], 0);
                round_trip(ops[i].reply, 1, counts[k], 1);
            }
        }
        if (check_failures() > 0) {
            fprintf(stderr, "    in %s\n", ops[i].name);
            return;
        }
    }
}

TEST(a_reply_has_one_value_for_each_key_of_the_request)
{
    static const uint64_t repeats[] = {0, 1, 2, 100};
    for (size_t i = 0; i < sizeof repeats / sizeof repeats[0]; i++) {
        round_trip("v", repeats[i], 0, 0);
        round_trip("v", repeats[i], 0, 1);
    }
}

TEST(unknown_operations_are_refused)
{
    for (unsigned number = 0; number < 256; number++) {
        bool is_known = false;
        for (size_t i = 0; i < NOPS; i++) {
            is_known = is_known || (unsigned)ops[i].op == number;
        }
        CHECK((dd_tcp_find_op(number) != NULL) == is_known);
    }
}

/* --- limits ----------------------------------------------------------------------------------- */

/* Overwrite the length or count at `at` with a number, and truncate the message after it. */
static void
expect_bad(const char *pattern, dd_bytes message, size_t at, uint64_t number, const char *label)
{
    uint8_t copy[2048];
    REQUIRE(at + 8 <= sizeof copy);
    memcpy(copy, message.data, at);
    memcpy(copy + at, &number, 8);
    dd_tcp_scan scan;
    CHECK_INT(scan_fresh(pattern, 1, 1, dd_bytes_of(copy, at + 7), &limits, &scan), DD_TCP_SCAN_MORE);
    CHECK_INT(scan_fresh(pattern, 1, 1, dd_bytes_of(copy, at + 8), &limits, &scan), DD_TCP_SCAN_BAD);
    CHECK_CONTAINS(check_message(), label);
    CHECK_CONTAINS(check_message(), "expected at most ");
}

static void
expect_bad_numbers(const char *pattern, dd_bytes message, size_t at, uint64_t limit, const char *label)
{
    const uint64_t numbers[] = {limit + 1,           UINT32_MAX,        UINT64_C(1) << 32,
                                (uint64_t)INT64_MAX, UINT64_C(1) << 63, UINT64_MAX - 8,
                                UINT64_MAX - 7,      UINT64_MAX - 1,    UINT64_MAX};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        expect_bad(pattern, message, at, numbers[i], label);
    }
}

static void
overstep_every_limit(const char *pattern)
{
    dd_blob message = {0};
    dd_tcp_writer writer;
    dd_tcp_writer_init(&writer, &message, check_err());
    dd_tcp_write(&writer, 'b', 0);
    unsigned n = 0;
    for (const char *at = pattern; *at != '\0'; at++, n++) {
        dd_bytes so_far = dd_blob_view(&message);
        if (*at == 'k') {
            expect_bad_numbers(pattern, so_far, message.len, limits.max_key_bytes, "key too large: ");
        } else if (*at == 'v') {
            expect_bad_numbers(pattern, so_far, message.len, limits.max_value_bytes, "value too large: ");
        } else if (*at == '#') {
            expect_bad_numbers(pattern, so_far, message.len, limits.max_keys, "count too large: ");
            dd_tcp_write(&writer, 'i', 2);
            continue;
        } else if (*at == '?') {
            /* This field only indicates if more fields follow. */
            dd_tcp_write(&writer, 'i', UINT64_MAX);
            continue;
        }
        write_field(&writer, *at, n);
    }
    CHECK_OK(writer.status);
    dd_blob_fini(&message);
}

TEST(lengths_and_counts_over_their_limits_are_refused)
{
    for (size_t i = 0; i < NOPS; i++) {
        overstep_every_limit(ops[i].request);
        if (ops[i].reply != NULL) {
            overstep_every_limit(ops[i].reply);
        }
    }
}

TEST(lengths_at_their_limits_are_accepted)
{
    const dd_tcp_limits tight = {3, 5, 2, UINT64_MAX};
    dd_blob message = {0};
    dd_tcp_scan scan;
    raw_pack(&message, "b#kvkv", DD_TCP_MULTI_SET, 2LL, "abc", "12345", "def", "67890");
    CHECK_INT(scan_fresh("#kv", 1, 1, dd_blob_view(&message), &tight, &scan), DD_TCP_SCAN_DONE);
    CHECK_INT(scan.at, message.len);
    dd_blob_fini(&message);
}

TEST(a_request_over_its_limit_is_refused_at_the_first_excess_byte)
{
    dd_blob message = {0};
    raw_pack(&message, "bkv", DD_TCP_SET, "key", "a value");
    for (uint64_t limit = 0; limit < message.len + 3; limit++) {
        dd_tcp_limits small = limits;
        small.max_request_bytes = limit;
        dd_tcp_scan scan;
        dd_tcp_scan_result expected = message.len > limit ? DD_TCP_SCAN_BAD : DD_TCP_SCAN_DONE;
        CHECK_INT(scan_fresh("kv", 1, 1, dd_blob_view(&message), &small, &scan), expected);
        /* In pieces, the error must be detected as soon as one byte too many has arrived. */
        dd_tcp_scan_begin(&scan, "kv", 1, 1);
        for (size_t len = 1; len <= message.len; len++) {
            dd_tcp_scan_result result =
                dd_tcp_scan_run(&scan, dd_bytes_of(message.data, len), &small, check_err());
            CHECK_INT(result, len > limit          ? DD_TCP_SCAN_BAD
                              : len == message.len ? DD_TCP_SCAN_DONE
                                                   : DD_TCP_SCAN_MORE);
            if (result == DD_TCP_SCAN_BAD) {
                CHECK_CONTAINS(check_message(), "message too large: got at least ");
                break;
            }
        }
    }
    dd_blob_fini(&message);
}

/* --- writing ---------------------------------------------------------------------------------- */

TEST(fields_have_the_documented_bytes_on_the_wire)
{
    dd_blob message = {0};
    dd_tcp_writer writer;
    dd_tcp_writer_init(&writer, &message, check_err());
    dd_tcp_write(&writer, 'b', 0x80);
    dd_tcp_write(&writer, 'u', DD_TCP_MAGIC);
    dd_tcp_write(&writer, 'i', UINT64_C(0x0102030405060708));
    dd_tcp_write_bytes(&writer, BYTES("v\0w"));
    write_key(&writer, BYTES("k"), true);
    CHECK_OK(writer.status);
    CHECK_TEXT(dd_blob_view(&message), "\x80\xce\xf7\x85\x3c\x08\x07\x06\x05\x04\x03\x02\x01"
                                       "\x03\0\0\0\0\0\0\0v\0w\x02\0\0\0\0\0\0\0/k");
    dd_blob_fini(&message);
}

TEST(the_first_failure_of_a_message_writer_is_not_forgotten)
{
    dd_blob message = {0};
    dd_tcp_writer writer;
    dd_tcp_writer_init(&writer, &message, check_err());
    dd_tcp_write(&writer, 'b', 1);
    size_t len = message.len;
    (void)dd_mem_fail_after(0);
    dd_tcp_write_bytes(&writer, BYTES("a value"));
    (void)dd_mem_fail_after(-1);
    dd_tcp_write(&writer, 'u', 1);
    CHECK_STATUS(writer.status, DD_OUT_OF_MEMORY);
    CHECK_INT(message.len, len);
    dd_blob_fini(&message);
}
