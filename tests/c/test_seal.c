/* Sealed streams: the output must equal the input for all sizes, and any change of the bytes in
 * transit must be detected. */
#include "check.h"
#include "core/mem.h"
#include "core/system.h"
#include "faults/faults.h"
#include "sealed_pair.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const dd_cipher ciphers[] = {DD_CIPHER_AES_256_GCM, DD_CIPHER_CHACHA20_POLY1305};
#define FOR_EACH_CIPHER(c) for (const dd_cipher *c = ciphers; c < ciphers + 2; c++)
static const dd_seal_use uses[] = {DD_SEAL_BULK, DD_SEAL_SPARSE};
#define FOR_EACH_USE(u) for (const dd_seal_use *u = uses; u < uses + 2; u++)

typedef struct stream {
    int fds[2];
    dd_seal *seals[2];
} stream;

static bool
open_stream(dd_cipher cipher, dd_seal_use use, stream *self)
{
    *self = (stream){0};
    return CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, self->fds) == 0) &&
           sealed_pair_make(cipher, use, self->seals);
}

static void
close_stream(stream *self)
{
    for (int i = 0; i < 2; i++) {
        dd_seal_destroy(self->seals[i]);
        close(self->fds[i]);
    }
}

static uint8_t
byte_at(size_t position)
{
    return (uint8_t)(position * 31 + position / 257);
}

/* Send all bytes, as up to three parts of random sizes at a time, and receive them in pieces of
 * random sizes. */
static void
check_passage(stream *self, size_t nbytes, size_t most, unsigned seed)
{
    uint8_t *sent = malloc(nbytes);
    uint8_t *received = malloc(nbytes);
    REQUIRE(sent != NULL && received != NULL);
    for (size_t i = 0; i < nbytes; i++) {
        sent[i] = byte_at(i);
    }
    size_t nsent = 0;
    size_t nreceived = 0;
    struct iovec parts[3];
    int nparts = 0; /* 0 for new parts; parts that were not accepted are offered again */
    for (long rounds = 0; nreceived < nbytes && CHECK(rounds < 2000000); rounds++) {
        size_t at = nsent;
        for (; nparts < 3; nparts++) {
            size_t len = (size_t)rand_r(&seed) % most;
            len = len < nbytes - at ? len : nbytes - at;
            parts[nparts] = (struct iovec){.iov_base = sent + at, .iov_len = len};
            at += len;
        }
        size_t moved = 0;
        bool is_any = parts[0].iov_len + parts[1].iov_len + parts[2].iov_len > 0;
        dd_io io = is_any ? dd_seal_try_send(self->seals[0], self->fds[0], parts, 3, &moved) : DD_IO_OK;
        if (!CHECK(io == DD_IO_OK || io == DD_IO_AGAIN)) {
            break;
        }
        nsent += moved;
        nparts = io == DD_IO_AGAIN ? 3 : 0;
        size_t room = 1 + (size_t)rand_r(&seed) % most;
        room = room < nbytes - nreceived ? room : nbytes - nreceived;
        io = dd_seal_try_recv(self->seals[1], self->fds[1], received + nreceived, room, &moved);
        if (!CHECK(io == DD_IO_OK || io == DD_IO_AGAIN)) {
            break;
        }
        nreceived += io == DD_IO_OK ? moved : 0;
    }
    CHECK(nreceived == nbytes && memcmp(sent, received, nbytes) == 0);
    free(sent);
    free(received);
}

TEST(bytes_on_an_encrypted_connection_arrive_as_they_were_sent)
{
    FOR_EACH_CIPHER(cipher)
    {
        FOR_EACH_USE(use)
        {
            for (unsigned seed = 1; seed <= 4; seed++) {
                stream s;
                REQUIRE(open_stream(*cipher, *use, &s));
                check_passage(&s, 3000, 40, seed);
                check_passage(&s, 3 << 20, 300000, seed);
                check_passage(&s, 1 << 20, 5000, seed);
                close_stream(&s);
            }
        }
    }
}

/* Send one piece completely, and return its size on the wire. It stays in the socket. */
static size_t
send_whole(stream *self, const void *data, size_t nbytes)
{
    const struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = nbytes};
    int before = 0;
    int after = 0;
    size_t moved = 0;
    (void)dd_sys_ioctl(self->fds[1], FIONREAD, &before);
    CHECK(dd_seal_try_send(self->seals[0], self->fds[0], &part, 1, &moved) == DD_IO_OK && moved == nbytes);
    (void)dd_sys_ioctl(self->fds[1], FIONREAD, &after);
    return (size_t)(after - before);
}

TEST(encryption_hides_the_exact_length_of_messages)
{
    static const uint8_t zeros[9000];
    stream s;
    REQUIRE(open_stream(DD_CIPHER_AES_256_GCM, DD_SEAL_SPARSE, &s));
    /* A head of 4 bytes and a tag of 16 bytes. */
    CHECK_INT(send_whole(&s, zeros, 1), 64 + 20);
    CHECK_INT(send_whole(&s, zeros, 62), 64 + 20);
    CHECK_INT(send_whole(&s, zeros, 63), 128 + 20);
    CHECK_INT(send_whole(&s, zeros, 1000), 1024 + 20);
    CHECK_INT(send_whole(&s, zeros, 8193), 8704 + 20);
    CHECK_INT(send_whole(&s, zeros, 8600), 8704 + 20);
    close_stream(&s);
}

TEST(a_full_encrypted_record_has_no_padding)
{
    static const uint8_t zeros[DD_SEAL_BULK_RECORD];
    stream s;
    REQUIRE(open_stream(DD_CIPHER_AES_256_GCM, DD_SEAL_BULK, &s));
    CHECK_INT(send_whole(&s, zeros, sizeof zeros), DD_SEAL_BULK_RECORD + 20);
    close_stream(&s);
}

TEST(encrypted_bytes_do_not_contain_the_plain_text)
{
    char wire[512];
    static const char text[] = "a marker that is easily found, a marker that is easily found";
    FOR_EACH_CIPHER(cipher)
    {
        stream s;
        REQUIRE(open_stream(*cipher, DD_SEAL_SPARSE, &s));
        size_t nbytes = send_whole(&s, text, sizeof text);
        REQUIRE(read(s.fds[1], wire, sizeof wire) == (ssize_t)nbytes);
        CHECK(memmem(wire, nbytes, "marker", 6) == NULL);
        close_stream(&s);
    }
}

/* ---- changes in transit */

#define WIRE_MAX 4096

/* Three records on the wire, and the start of each. */
typedef struct wire {
    uint8_t bytes[WIRE_MAX];
    size_t begins[4];
} wire;

static bool
write_wire(stream *self, wire *w)
{
    static const char *const texts[3] = {"the first", "the second, which is a little longer than that", "3"};
    w->begins[0] = 0;
    for (int i = 0; i < 3; i++) {
        w->begins[i + 1] = w->begins[i] + send_whole(self, texts[i], strlen(texts[i]));
    }
    return CHECK(read(self->fds[1], w->bytes, sizeof w->bytes) == (ssize_t)w->begins[3]);
}

static const char all_texts[] = "the firstthe second, which is a little longer than that3";

/* Pass these bytes and the end of the stream to the receiver. Return the final result; *ngood
 * receives the number of valid bytes before it. */
static dd_io
receive_wire(stream *self, const uint8_t *bytes, size_t nbytes, size_t *ngood)
{
    char text[128];
    dd_io io = DD_IO_OK;
    CHECK(write(self->fds[0], bytes, nbytes) == (ssize_t)nbytes);
    (void)shutdown(self->fds[0], SHUT_WR);
    *ngood = 0;
    for (int rounds = 0; (io == DD_IO_OK || io == DD_IO_AGAIN) && rounds < 20; rounds++) {
        size_t moved = 0;
        io = dd_seal_try_recv(self->seals[1], self->fds[1], text, 1 + (size_t)rounds * 7, &moved);
        if (io == DD_IO_OK) {
            CHECK(*ngood + moved <= strlen(all_texts) && memcmp(text, all_texts + *ngood, moved) == 0);
            *ngood += moved;
        }
    }
    return io;
}

TEST(unchanged_encrypted_records_are_accepted)
{
    wire w;
    stream s;
    size_t ngood = 0;
    REQUIRE(open_stream(DD_CIPHER_AES_256_GCM, DD_SEAL_SPARSE, &s) && write_wire(&s, &w));
    CHECK(receive_wire(&s, w.bytes, w.begins[3], &ngood) == DD_IO_CLOSED);
    CHECK_INT(ngood, strlen(all_texts));
    close_stream(&s);
}

TEST(an_encrypted_record_with_any_changed_bit_is_refused)
{
    for (size_t bit = 0;; bit++) {
        wire w;
        stream s;
        size_t ngood = 0;
        REQUIRE(open_stream(ciphers[bit % 2], DD_SEAL_SPARSE, &s) && write_wire(&s, &w));
        if (bit == 8 * w.begins[3]) {
            close_stream(&s);
            return;
        }
        w.bytes[bit / 8] ^= (uint8_t)(1 << (bit % 8));
        dd_io io = receive_wire(&s, w.bytes, w.begins[3], &ngood);
        /* A length that is increased beyond the remaining bytes looks like a truncated stream. */
        CHECK(io == DD_IO_FORGED || (io == DD_IO_CLOSED && ngood < strlen(all_texts)));
        close_stream(&s);
    }
}

/* Pass the records in this order; no byte may be accepted from the first wrong record on. */
static void
check_order(const int *order, int count, size_t ngood_expected)
{
    wire w;
    stream s;
    uint8_t bytes[WIRE_MAX];
    size_t nbytes = 0;
    size_t ngood = 0;
    REQUIRE(open_stream(DD_CIPHER_CHACHA20_POLY1305, DD_SEAL_SPARSE, &s) && write_wire(&s, &w));
    for (int i = 0; i < count; i++) {
        size_t len = w.begins[order[i] + 1] - w.begins[order[i]];
        memcpy(bytes + nbytes, w.bytes + w.begins[order[i]], len);
        nbytes += len;
    }
    CHECK(receive_wire(&s, bytes, nbytes, &ngood) == DD_IO_FORGED);
    CHECK_INT(ngood, ngood_expected);
    close_stream(&s);
}

TEST(repeated_omitted_or_swapped_encrypted_records_are_refused)
{
    check_order((int[]){0, 0}, 2, 9); /* repeated */
    check_order((int[]){1}, 1, 0);    /* omitted */
    check_order((int[]){0, 2}, 2, 9);
    check_order((int[]){0, 2, 1}, 3, 9); /* swapped */
}

/* Records sent back to their own sender must be rejected. */
TEST(encrypted_records_sent_back_to_their_sender_are_refused)
{
    wire w;
    stream s;
    char text[64];
    size_t moved = 0;
    REQUIRE(open_stream(DD_CIPHER_AES_256_GCM, DD_SEAL_SPARSE, &s) && write_wire(&s, &w));
    CHECK(write(s.fds[1], w.bytes, w.begins[3]) == (ssize_t)w.begins[3]);
    CHECK(dd_seal_try_recv(s.seals[0], s.fds[0], text, sizeof text, &moved) == DD_IO_FORGED);
    close_stream(&s);
}

TEST(random_bytes_on_an_encrypted_connection_are_refused)
{
    unsigned seed = 1;
    for (int round = 0; round < 2000; round++) {
        uint8_t bytes[400];
        uint8_t text[400];
        stream s;
        size_t moved = 0;
        REQUIRE(open_stream(ciphers[round % 2], uses[round / 2 % 2], &s));
        for (size_t i = 0; i < sizeof bytes; i++) {
            bytes[i] = (uint8_t)rand_r(&seed);
        }
        bytes[1] = round % 3 > 0 ? 0 : bytes[1];
        bytes[2] = 0;
        CHECK(write(s.fds[0], bytes, sizeof bytes) == (ssize_t)sizeof bytes);
        (void)shutdown(s.fds[0], SHUT_WR);
        dd_io io = DD_IO_AGAIN;
        for (int i = 0; i < 4 && io == DD_IO_AGAIN; i++) {
            io = dd_seal_try_recv(s.seals[1], s.fds[1], text, sizeof text, &moved);
        }
        CHECK(io == DD_IO_FORGED || io == DD_IO_CLOSED);
        close_stream(&s);
    }
}

/* ---- keys and allocation failures */

TEST(the_encryption_key_changes_after_many_records)
{
    stream s;
    REQUIRE(open_stream(DD_CIPHER_AES_256_GCM, DD_SEAL_SPARSE, &s));
    for (unsigned i = 0; i < (1u << 17) + 3; i++) {
        unsigned got = 0;
        size_t moved = 0;
        const struct iovec part = {.iov_base = &i, .iov_len = sizeof i};
        REQUIRE(dd_seal_try_send(s.seals[0], s.fds[0], &part, 1, &moved) == DD_IO_OK);
        REQUIRE(dd_seal_try_recv(s.seals[1], s.fds[1], &got, sizeof got, &moved) == DD_IO_OK);
        REQUIRE(got == i);
    }
    close_stream(&s);
}

/* The receiver skips a record exactly at the change of keys, and must reject the next ones. */
TEST(records_encrypted_with_an_old_key_are_refused)
{
    stream s;
    char byte = 0;
    size_t moved = 0;
    REQUIRE(open_stream(DD_CIPHER_AES_256_GCM, DD_SEAL_SPARSE, &s));
    const struct iovec part = {.iov_base = &byte, .iov_len = 1};
    for (unsigned i = 0; i < (1u << 16) - 1; i++) {
        REQUIRE(dd_seal_try_send(s.seals[0], s.fds[0], &part, 1, &moved) == DD_IO_OK);
        REQUIRE(dd_seal_try_recv(s.seals[1], s.fds[1], &byte, 1, &moved) == DD_IO_OK);
    }
    uint8_t last[84];
    REQUIRE(dd_seal_try_send(s.seals[0], s.fds[0], &part, 1, &moved) == DD_IO_OK);
    REQUIRE(read(s.fds[1], last, sizeof last) == (ssize_t)sizeof last);
    REQUIRE(dd_seal_try_send(s.seals[0], s.fds[0], &part, 1, &moved) == DD_IO_OK);
    CHECK(dd_seal_try_recv(s.seals[1], s.fds[1], &byte, 1, &moved) == DD_IO_FORGED);
    close_stream(&s);
}

TEST(an_encrypted_connection_leaks_nothing_when_allocations_fail)
{
    for (long n = 0; n < 40; n++) {
        stream s;
        REQUIRE(CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, s.fds) == 0));
        dd_noise_keys keys = {.cipher = DD_CIPHER_CHACHA20_POLY1305};
        REQUIRE_OK(dd_crypto_load(check_err()));
        s.seals[0] = s.seals[1] = NULL;
        dd_mem_fail_after(n);
        dd_status status = dd_seal_create(&keys, DD_SEAL_BULK, &s.seals[0], check_err());
        size_t moved = 0;
        dd_io io = DD_IO_OK;
        if (status == DD_OK) {
            const struct iovec part = {.iov_base = &keys, .iov_len = sizeof keys};
            io = dd_seal_try_send(s.seals[0], s.fds[0], &part, 1, &moved);
            CHECK(io == DD_IO_OK || (io == DD_IO_FAILED && errno == ENOMEM));
        }
        dd_mem_fail_after(-1);
        close_stream(&s);
        if (status == DD_OK && io == DD_IO_OK) {
            CHECK(n >= 3);
            return;
        }
    }
    CHECK(false);
}
