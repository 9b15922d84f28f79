/* Datagrams at an engine's doorbell, which any process of the host may send, with any descriptors.
 * Unrequested descriptors must be closed, and groups must only be notified about existing ranks. */
#include "fuzz.h"
#include "net/sock.h"
#include "pass_descriptors.h"
#include "transport/doorbell.h"
#include "transport/engine_internal.h"

#include <string.h>
#include <sys/socket.h>

#define MAX_INPUT_BYTES 1024u
#define NRANKS 2
#define GROUP UINT64_C(1)
#define WANTED_WORD UINT64_C(3)

static unsigned ntaken; /* in this run */

static void
on_fd_wanted(void *ctx, int rank, uint64_t fd_key)
{
    (void)ctx;
    (void)fd_key;
    require(rank >= 0 && rank < NRANKS);
}

static bool
on_fd(void *ctx, int rank, uint64_t fd_key, int fd)
{
    (void)ctx;
    require(rank >= 0 && rank < NRANKS && (fd >= 0 || fd == DD_SOCK_FD_REFUSED));
    if (fd_key != WANTED_WORD || fd < 0) {
        return false;
    }
    ntaken++;
    dd_sock_close(fd);
    return true;
}

static dd_engine *
open_engine(dd_peer **own, dd_context **context)
{
    static const dd_connect_options options = {.nlanes = 1, .ring_nbytes = 4096};
    static const dd_context_handler handler = {.on_fd_wanted = on_fd_wanted, .on_fd = on_fd};
    dd_engine *engine = NULL;
    require(dd_engine_open(&options, &engine, NULL) == DD_OK && dd_engine_self(engine, own, NULL) == DD_OK);
    require(engine_open_bell(engine, NULL) == DD_OK);
    dd_peer *const members[NRANKS] = {*own, *own};
    require(dd_context_open(engine, GROUP, 0, NRANKS, members, &handler, context, NULL) == DD_OK);
    return engine;
}

static void
send_datagram(int fd, dd_bytes bytes, unsigned ndescriptors)
{
    const int fds[PASSED_MAX] = {fd, fd, fd, fd};
    (void)!pass_descriptors(fd, bytes.data, bytes.len, fds, ndescriptors);
}

static void
send_something(int fd, dd_bytes *input)
{
    unsigned how = take_byte(input);
    unsigned ndescriptors = how % (PASSED_MAX + 1);
    if (how >= 0xa0) {
        send_datagram(fd, take_bytes(input, how - 0xa0), ndescriptors);
        return;
    }
    uint8_t datagram[32] = {0};
    unsigned kind = take_byte(input);
    dd_put_number(datagram, kind & 3, 8);
    dd_put_number(datagram + 8, GROUP + (kind >> 2 & 1), 8);
    dd_put_number(datagram + 16, kind >> 3 & 3, 8);
    dd_put_number(datagram + 24, kind >> 5 & 3, 4);
    dd_put_number(datagram + 28, kind >> 7, 4);
    send_datagram(fd, dd_bytes_of(datagram, sizeof datagram), ndescriptors);
}

/* Connect to the doorbell, whose name is derived from the engine's. */
static int
connect_to(const dd_engine *engine)
{
    struct sockaddr_storage name = {0};
    socklen_t len = sizeof name;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    require(getsockname(engine->bell_fd, (struct sockaddr *)&name, &len) == 0);
    require(fd >= 0 && connect(fd, (struct sockaddr *)&name, len) == 0);
    return fd;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dd_peer *own = NULL;
    dd_context *context = NULL;
    if (size > MAX_INPUT_BYTES) {
        return -1;
    }
    int before = next_descriptor();
    dd_bytes input = dd_bytes_of(data, size);
    dd_engine *engine = open_engine(&own, &context);
    int fd = connect_to(engine);
    int open_now = next_descriptor();
    ntaken = 0;
    while (input.len > 0) {
        send_something(fd, &input);
        dd_engine_lock(engine);
        engine_answer_bell(engine);
        dd_engine_unlock(engine);
    }
    require(next_descriptor() == open_now);
    close(fd);
    const dd_wait at_once = dd_wait_after(0);
    dd_context_close(context, &at_once);
    dd_peer_release(own);
    dd_engine_release(engine);
    require(next_descriptor() == before);
    return 0;
}
