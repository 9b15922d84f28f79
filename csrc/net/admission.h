/* Admission of unauthenticated peers: connections to a listening port that have not yet proved that they belong to the job. The store's
 * server and the listener of links use it alike.
 *
 * Anyone who can reach a port can open such connections. So they may use only part of the process's descriptors, each has a deadline, and some
 * may be evicted in favour of newer ones. This module decides which peers end and why; its user closes their connections.
 * A peer is in one of three stages:
 *
 * - silent, until its first message, which clients of dldist and PyTorch send immediately: it gets 2 s at most, and may be closed at any
 *   time. Which one is random: if it were always the oldest, a flood would push out every client that is slower than the flood.
 * - greeted, from its first message on: it gets the whole timeout, and may be closed after a grace period, the oldest first.
 * - trusted, if it is a process of the same user on the same host: only its deadline ends it.
 *
 * Not thread-safe. */
#ifndef DD_NET_ADMISSION_H
#define DD_NET_ADMISSION_H

#include "core/timer.h"
#include "net/sock.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum dd_admission_stage {
    DD_ADMISSION_SILENT,
    DD_ADMISSION_GREETED,
    DD_ADMISSION_TRUSTED,
    DD_ADMISSION_STAGES,
} dd_admission_stage;

/* Part of its user's connection. */
typedef struct dd_admission_peer {
    dd_list link;
    dd_timer timer; /* due when the step is late */
    dd_admission_stage stage;
    int64_t since_ns; /* when the step began */
    struct dd_admission *admission;
} dd_admission_peer;

/* Closes the connection of a peer, and calls dd_admission_end for it. `why` is for the log. */
typedef void dd_admission_close(dd_admission_peer *peer, const char *why);

typedef struct dd_admission {
    /* const after init */
    size_t most;
    int64_t grace_ns;
    dd_admission_close *close;

    size_t limit; /* peers a stage: `most`, or less if the process may open few descriptors */
    dd_list peers[DD_ADMISSION_STAGES]; /* the oldest first */
    size_t npeers[DD_ADMISSION_STAGES];
    dd_timer_set timers; /* for its user to run */
    uint64_t dice;
} dd_admission;

/* `most`: the largest number of peers in one stage. `close` is called for peers that are late (by the timers) or evicted. */
void dd_admission_init(dd_admission *self, size_t most, int64_t grace_ns, dd_admission_close *close);

/* Adds a peer that was accepted. */
void dd_admission_begin(dd_admission *self, dd_admission_peer *peer, bool is_trusted, int64_t timeout_ns);
/* Starts the next step of a peer that has sent a message. */
void dd_admission_continue(dd_admission *self, dd_admission_peer *peer, int64_t timeout_ns);
/* Removes a peer that is authenticated or closed. Has no effect on one that was removed. */
void dd_admission_end(dd_admission *self, dd_admission_peer *peer);

/* Evicts the peers above the limit of their stage, and returns true if another peer may be accepted. Call before each accept, and before
 * each sleep of the loop that accepts. If it returns false, call again after some milliseconds: peers may have ended, or passed the
 * grace period. */
bool dd_admission_make_room(dd_admission *self, bool is_trusted);
/* Accepts a connection, and evicts peers for their descriptors if the process is out of them. *shortage becomes 0, the errno of
 * DD_IO_FAILED, or EMFILE with DD_IO_OK if the descriptor is one that the rest of the process may need (dd_sock_is_fd_scarce). */
dd_io dd_admission_accept(dd_admission *self, int listen_fd, int *fd, int *shortage);

#endif
