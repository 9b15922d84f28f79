#include "transport/doorbell.h"

#include "core/fork.h"
#include "core/system.h"

#include <errno.h>
#include <string.h>
#include <sys/un.h>

#define NOTE_NBYTES 32
#define NAME_PREFIX "dldist-bell-"

typedef struct bell_address {
    struct sockaddr_un name;
    socklen_t len;
} bell_address;

static bell_address
address_of(const dd_uid *uid)
{
    static const char digits[] = "0123456789abcdef";
    bell_address address = {.name.sun_family = AF_UNIX};
    char *out = address.name.sun_path + 1; /* abstract: a zero comes first */
    memcpy(out, NAME_PREFIX, sizeof NAME_PREFIX - 1);
    out += sizeof NAME_PREFIX - 1;
    for (int i = 0; i < DD_UID_BYTES; i++) {
        *out++ = digits[uid->bytes[i] >> 4];
        *out++ = digits[uid->bytes[i] & 15];
    }
    address.len = (socklen_t)(out - (char *)&address.name);
    return address;
}

dd_status
dd_doorbell_open(const dd_uid *own, int *fd, dd_error *err)
{
    const int is_on = 1;
    bell_address address = address_of(own);
    int opened = dd_fork_own(dd_sys_socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (opened < 0 || dd_sys_setsockopt(opened, SOL_SOCKET, SO_PASSCRED, &is_on, sizeof is_on) != 0 ||
        dd_sys_bind(opened, (const struct sockaddr *)&address.name, address.len) != 0) {
        dd_status status = dd_error_set_errno(err, DD_NETWORK, errno, "cannot open a doorbell at @%s",
                                              address.name.sun_path + 1);
        dd_sock_close(opened);
        return status;
    }
    *fd = opened;
    return DD_OK;
}

bool
dd_doorbell_is_gone(const dd_uid *whose)
{
    bell_address address = address_of(whose);
    int fd = dd_sys_socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool is_gone = fd >= 0 && dd_sys_connect(fd, (const struct sockaddr *)&address.name, address.len) != 0 &&
                   errno == ECONNREFUSED;
    if (fd >= 0) {
        (void)dd_sys_close(fd);
    }
    return is_gone;
}

void
dd_doorbell_ring(int own_fd, const dd_uid *whose)
{
    const uint8_t ring = DD_BELL_RING;
    bell_address address = address_of(whose);
    /* Where the queue is full it has been rung, and nobody is there to hear it where the name is unknown. */
    (void)!dd_sys_sendto(own_fd, &ring, 1, MSG_DONTWAIT | MSG_NOSIGNAL,
                         (const struct sockaddr *)&address.name, address.len);
}

/* ---- notes */

_Static_assert(offsetof(dd_bell_note, fd) == NOTE_NBYTES, "no field is padded");

/* Room for one descriptor and the credentials that the kernel adds, aligned as it wants them. */
typedef union bell_control {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
} bell_control;

dd_io
dd_doorbell_send(int own_fd, const dd_uid *whose, const dd_bell_note *note)
{
    bell_control control = {0};
    bell_address address = address_of(whose);
    struct iovec part = {.iov_base = (void *)(uintptr_t)note, .iov_len = NOTE_NBYTES};
    struct msghdr message = {
        .msg_name = &address.name, .msg_namelen = address.len, .msg_iov = &part, .msg_iovlen = 1};
    if (note->kind == DD_BELL_PASS) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof note->fd);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof note->fd);
        memcpy(CMSG_DATA(header), &note->fd, sizeof note->fd);
    }
    if (dd_sys_sendmsg(own_fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == NOTE_NBYTES) {
        return DD_IO_OK;
    }
    /* Too many descriptors in flight is a limit of this user's, which passes. */
    return errno == EAGAIN || errno == ETOOMANYREFS || errno == EINTR ? DD_IO_AGAIN : DD_IO_FAILED;
}

/* What came beside the bytes. Whether the sender is of our user; its word counts for nothing if not. */
static bool
take_control(struct msghdr *message, int *fd)
{
    bool is_ours = false;
    *fd = (message->msg_flags & MSG_CTRUNC) != 0 ? DD_SOCK_FD_REFUSED : -1;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header != NULL;
         header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET) {
            continue;
        }
        if (header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof *fd)) {
            memcpy(fd, CMSG_DATA(header), sizeof *fd);
            (void)dd_fork_own(*fd);
        } else if (header->cmsg_type == SCM_CREDENTIALS) {
            struct ucred credentials;
            memcpy(&credentials, CMSG_DATA(header), sizeof credentials);
            is_ours = credentials.uid == dd_sys_geteuid();
        }
    }
    return is_ours;
}

dd_io
dd_doorbell_take(int own_fd, dd_bell_note *note)
{
    uint8_t bytes[NOTE_NBYTES + 1] = {0};
    bell_control control = {0};
    struct iovec part = {.iov_base = bytes, .iov_len = sizeof bytes};
    /* The credentials come first. Behind them is room for one descriptor, and not for the padding, which would hold a second one: of
     * those that somebody passes the kernel closes the rest. */
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = CMSG_SPACE(sizeof(struct ucred)) + CMSG_LEN(sizeof note->fd)};
    ssize_t len = dd_sys_recvmsg(own_fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (len < 0) {
        return errno == EAGAIN || errno == EINTR ? DD_IO_AGAIN : DD_IO_FAILED;
    }
    *note = (dd_bell_note){.kind = DD_BELL_RING, .fd = -1};
    int fd = -1;
    bool is_ours = take_control(&message, &fd);
    if (is_ours && len == NOTE_NBYTES) {
        memcpy(note, bytes, NOTE_NBYTES);
    }
    if (note->kind == DD_BELL_PASS && fd != -1) {
        note->fd = fd;
        return DD_IO_OK;
    }
    dd_sock_close(fd);
    if (note->kind != DD_BELL_WANT && note->kind != DD_BELL_NONE) {
        *note = (dd_bell_note){.kind = DD_BELL_RING, .fd = -1};
    }
    return DD_IO_OK;
}
