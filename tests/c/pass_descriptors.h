/* Send several descriptors in one message: the library never does, but other programs may. */
#ifndef DD_TESTS_PASS_DESCRIPTORS_H
#define DD_TESTS_PASS_DESCRIPTORS_H

#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>

#define PASSED_MAX 4

/* Send descriptors and bytes over a connected socket. Return the result of sendmsg. */
static inline ssize_t
pass_descriptors(int socket_fd, const void *data, size_t nbytes, const int *fds, size_t nfds)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(PASSED_MAX * sizeof(int))];
    } control;
    struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = nbytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (nfds > 0) {
        memset(&control, 0, sizeof control);
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(nfds * sizeof *fds);
        memcpy(CMSG_DATA(&control.header), fds, nfds * sizeof *fds);
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(nfds * sizeof *fds);
    }
    return sendmsg(socket_fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

#endif
