/* One side of a handshake, carried out by a test. */
#ifndef TESTS_HANDSHAKE_H
#define TESTS_HANDSHAKE_H

#include "check.h"
#include "net/sock.h"
#include "transport/connect_internal.h"

#include <poll.h>

/* Read exactly nbytes by the deadline. */
static inline bool
handshake_receive_all(int fd, void *bytes, size_t nbytes, const dd_wait *wait)
{
    size_t nheard = 0;
    bool is_whole = false;
    while (!is_whole) {
        if (!CHECK_OK(dd_sock_wait(fd, POLLIN, wait, check_err())) ||
            !CHECK_OK(connect_receive(fd, NULL, bytes, nbytes, &nheard, &is_whole, check_err()))) {
            return false;
        }
    }
    return true;
}

#endif
