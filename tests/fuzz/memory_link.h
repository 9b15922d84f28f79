/* Links made of memory, and the peers at their other ends: a fuzzer supplies the peers' bytes, and
 * the output of this side must be valid. No call waits. */
#ifndef DD_TESTS_FUZZ_MEMORY_LINK_H
#define DD_TESTS_FUZZ_MEMORY_LINK_H

#include "fuzz.h"
#include "transport/engine_internal.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/eventfd.h>

#define MEMORY_LINK_ROOM_MAX (SIZE_MAX / 2)
#define MEMORY_LINKS_MAX 6

typedef struct memory_link {
    dd_link base;
    bool is_open;
    bool is_ended; /* after the bytes in `in` */
    bool is_failed;
    dd_blob in; /* bytes sent by the peer */
    size_t in_at;
    size_t room; /* for output */
    /* How often the peer refuses output while there is no space; then it takes everything. */
    unsigned nrefusable;
    /* The current frame of the output. */
    uint8_t header[DD_FRAME_NBYTES];
    size_t header_len;
    size_t payload_left;
    uint64_t sum; /* of all payloads, so that a sanitizer checks them */
} memory_link;

static inline void
memory_link_check_output(memory_link *self, const uint8_t *data, size_t nbytes)
{
    while (nbytes > 0) {
        size_t step = 1;
        if (self->payload_left > 0) {
            step = self->payload_left < nbytes ? self->payload_left : nbytes;
            for (size_t i = 0; i < step; i++) {
                self->sum += data[i];
            }
            self->payload_left -= step;
        } else {
            self->header[self->header_len++] = *data;
            if (self->header_len == dd_frame_header_nbytes(self->header[0])) {
                dd_frame frame;
                require(dd_frame_decode(self->header, &frame, NULL) == DD_OK);
                self->payload_left = frame.payload;
                self->header_len = 0;
            }
        }
        data += step;
        nbytes -= step;
    }
}

static inline dd_io
memory_link_end(const memory_link *self)
{
    errno = EPIPE;
    return self->is_failed ? DD_IO_FAILED : DD_IO_CLOSED;
}

static inline dd_io
memory_link_try_send(dd_link *link, const struct iovec *parts, int nparts, size_t *moved)
{
    memory_link *self = (memory_link *)link;
    require(self->is_open && nparts >= 1 && nparts <= 2);
    if (self->is_failed || self->is_ended) {
        return memory_link_end(self);
    }
    size_t total = 0;
    if (self->room == 0 && self->nrefusable-- == 0) {
        self->room = MEMORY_LINK_ROOM_MAX;
    }
    for (int i = 0; i < nparts && self->room > 0; i++) {
        size_t step = parts[i].iov_len < self->room ? parts[i].iov_len : self->room;
        memory_link_check_output(self, parts[i].iov_base, step);
        self->room -= step;
        total += step;
    }
    *moved = total;
    return total > 0 ? DD_IO_OK : DD_IO_AGAIN;
}

static inline dd_io
memory_link_try_recv(dd_link *link, void *data, size_t nbytes, size_t *moved)
{
    memory_link *self = (memory_link *)link;
    require(self->is_open && nbytes > 0);
    size_t there = self->in.len - self->in_at;
    size_t step = there < nbytes ? there : nbytes;
    if (self->is_failed || (step == 0 && self->is_ended)) {
        return memory_link_end(self);
    }
    if (step == 0) {
        return DD_IO_AGAIN;
    }
    memcpy(data, self->in.data + self->in_at, step);
    self->in_at += step;
    *moved = step;
    return DD_IO_OK;
}

static inline bool
memory_link_has_left(dd_link *link, bool is_sure)
{
    (void)link;
    (void)is_sure;
    return true;
}

static inline size_t
memory_link_count_lost(dd_link *link, unsigned *nresends)
{
    *nresends = 0;
    return ((memory_link *)link)->room == 0 ? 7 : 0;
}

static inline dd_io
memory_link_on_event(dd_link *link)
{
    memory_link *self = (memory_link *)link;
    return self->is_failed ? memory_link_end(self) : DD_IO_OK;
}

static inline bool
memory_link_fall_asleep(dd_link *link, bool wants_room)
{
    (void)link;
    (void)wants_room;
    return true;
}

static inline void
memory_link_destroy(dd_link *link)
{
    memory_link *self = (memory_link *)link;
    require(self->is_open);
    self->is_open = false;
    dd_blob_fini(&self->in);
}

static const dd_link_ops memory_link_ops = {
    .name = "memory",
    .try_send = memory_link_try_send,
    .has_left = memory_link_has_left,
    .count_lost = memory_link_count_lost,
    .try_recv = memory_link_try_recv,
    .on_event = memory_link_on_event,
    .fall_asleep = memory_link_fall_asleep,
    .destroy = memory_link_destroy,
};

/* Return a descriptor for epoll: always readable for TCP, never readable for shared memory. */
static inline int
memory_link_descriptor(size_t index, bool is_shm)
{
    static int fds[MEMORY_LINKS_MAX][2];
    int *fd = &fds[index][is_shm];
    if (*fd == 0) {
        *fd = eventfd(is_shm ? 0 : 1, EFD_CLOEXEC | EFD_NONBLOCK);
        require(*fd > 0);
    }
    return *fd;
}

/* Make the peers accept output on all MEMORY_LINKS_MAX links. */
static inline void
memory_links_drain(memory_link *links)
{
    for (size_t i = 0; i < MEMORY_LINKS_MAX; i++) {
        links[i].room = MEMORY_LINK_ROOM_MAX;
    }
}

static inline void
memory_links_check_closed(const memory_link *links)
{
    for (size_t i = 0; i < MEMORY_LINKS_MAX; i++) {
        require(!links[i].is_open);
    }
}

/* Attach the first free one of the MEMORY_LINKS_MAX links. Call it without the engine's lock, which
 * the connector's thread does not hold. */
static inline void
memory_link_attach(memory_link *links, dd_peer *peer, int lane, bool is_shm)
{
    for (size_t i = 0; i < MEMORY_LINKS_MAX; i++) {
        memory_link *self = &links[i];
        if (self->is_open) {
            continue;
        }
        *self = (memory_link){
            .base = {.ops = &memory_link_ops,
                     .fd = memory_link_descriptor(i, is_shm),
                     .is_shared_memory = is_shm},
            .is_open = true,
            .room = MEMORY_LINK_ROOM_MAX,
            .nrefusable = UINT_MAX,
        };
        dd_uid uid = peer->endpoint.uid;
        engine_on_accepted(peer->engine, &uid, lane, &self->base);
        return;
    }
}

/* Make a peer like this process with another id. */
static inline dd_peer *
memory_peer_make(dd_engine *engine, uint8_t id)
{
    const dd_addr_list nowhere = {.count = 0};
    dd_peer *peer = NULL;
    dd_endpoint endpoint = engine->endpoint;
    dd_blob bytes = {0};
    endpoint.uid = (dd_uid){.bytes = {id}};
    require(dd_endpoint_encode(&endpoint, &nowhere, &bytes, NULL) == DD_OK);
    require(dd_engine_peer(engine, dd_blob_view(&bytes), &peer, NULL) == DD_OK);
    dd_blob_fini(&bytes);
    return peer;
}

/* Append bytes from the peer. */
static inline void
memory_link_put(memory_link *link, const void *data, size_t nbytes)
{
    if (link->is_open && !link->is_ended) {
        require(dd_blob_append(&link->in, data, nbytes, NULL) == DD_OK);
    }
}

#endif
