#include "transport/doorbell.h"

#include "core/fork.h"
#include "core/system.h"

#include <errno.h>
#include <string.h>

#define DATAGRAM_NBYTES 32
#define NAME_PREFIX "dldist-bell-"

static dd_addr
address_of(const dd_uid *uid)
{
    static const char digits[] = "0123456789abcdef";
    char name[sizeof NAME_PREFIX + 2 * (size_t)DD_UID_BYTES] = NAME_PREFIX;
    char *out = name + sizeof NAME_PREFIX - 1;
    for (int i = 0; i < DD_UID_BYTES; i++) {
        *out++ = digits[uid->bytes[i] >> 4];
        *out++ = digits[uid->bytes[i] & 15];
    }
    return dd_addr_unix_abstract(name);
}

dd_status
dd_doorbell_open(const dd_uid *own_uid, int *fd, dd_error *err)
{
    const int is_on = 1;
    dd_addr address = address_of(own_uid);
    int opened = dd_fork_register(dd_sys_socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (opened < 0 || dd_sys_setsockopt(opened, SOL_SOCKET, SO_PASSCRED, &is_on, sizeof is_on) != 0 ||
        dd_sys_bind(opened, (const struct sockaddr *)&address.storage, address.len) != 0) {
        char name[DD_ADDR_TEXT_MAX];
        dd_status status = dd_error_set_errno(err, DD_NETWORK, errno, "cannot open a doorbell at %s",
                                              dd_addr_print(&address, name));
        dd_sock_close(opened);
        return status;
    }
    *fd = opened;
    return DD_OK;
}

bool
dd_doorbell_is_closed(const dd_uid *uid)
{
    dd_addr address = address_of(uid);
    int fd = dd_sys_socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool has_ended = fd >= 0 &&
                     dd_sys_connect(fd, (const struct sockaddr *)&address.storage, address.len) != 0 &&
                     errno == ECONNREFUSED;
    if (fd >= 0) {
        (void)dd_sys_close(fd);
    }
    return has_ended;
}

void
dd_doorbell_ring(int own_fd, const dd_uid *uid)
{
    const uint8_t ring = DD_BELL_RING;
    dd_addr address = address_of(uid);
    /* Ignore errors: a full queue has a ring in it, and a name without socket has no process. */
    (void)!dd_sys_sendto(own_fd, &ring, 1, MSG_DONTWAIT | MSG_NOSIGNAL,
                         (const struct sockaddr *)&address.storage, address.len);
}

/* ---- datagrams */

_Static_assert(offsetof(dd_bell_datagram, fd) == DATAGRAM_NBYTES, "no field is padded");

dd_io
dd_doorbell_send(int own_fd, const dd_uid *uid, const dd_bell_datagram *datagram)
{
    dd_addr address = address_of(uid);
    int passed_fd = datagram->kind == DD_BELL_PASS ? datagram->fd : -1;
    size_t moved = 0;
    dd_io io = dd_sock_try_send_fd(own_fd, &address, datagram, DATAGRAM_NBYTES, passed_fd, &moved);
    /* ETOOMANYREFS: too many descriptors of the user are in flight; the caller must retry. */
    return io == DD_IO_FAILED && errno == ETOOMANYREFS ? DD_IO_AGAIN : io;
}

dd_io
dd_doorbell_take(int own_fd, dd_bell_datagram *datagram)
{
    uint8_t bytes[DATAGRAM_NBYTES + 1] = {0};
    size_t len = 0;
    int fd = -1;
    bool is_trusted = false; /* true if the sender is a process of this user */
    dd_io io = dd_sock_try_recv_fd(own_fd, bytes, sizeof bytes, &fd, &is_trusted, &len);
    if (io == DD_IO_AGAIN || io == DD_IO_FAILED) {
        return io;
    }
    *datagram = (dd_bell_datagram){.kind = DD_BELL_RING, .fd = -1};
    if (is_trusted && len == DATAGRAM_NBYTES) {
        memcpy(datagram, bytes, DATAGRAM_NBYTES);
    }
    if (datagram->kind == DD_BELL_PASS && fd != -1) {
        datagram->fd = fd;
        return DD_IO_OK;
    }
    dd_sock_close(fd);
    if (datagram->kind != DD_BELL_WANT && datagram->kind != DD_BELL_NONE) {
        *datagram = (dd_bell_datagram){.kind = DD_BELL_RING, .fd = -1};
    }
    return DD_IO_OK;
}
