/* Admission of unauthenticated peers: connections to a listening port that have not yet proved that
 * they belong to the job. The store's server and the listener of links use it.
 *
 * Anyone who can reach a port can open such connections. So they may use only part of the process's
 * descriptors, each has a deadline, and some may be evicted in favour of newer ones. This module
 * decides which peers end; its user closes their connections. A peer is in one of three stages:
 * - silent, until its first message, which clients of dldist and PyTorch send immediately: it gets
 *   at most 2 s, and may be evicted at any time. The victim is random: evicting the oldest would
 *   let a flood push out every client that is slower than the flood.
 * - greeted, from its first message on: it gets the whole timeout, and may be evicted after a grace
 *   period, the oldest first.
 * - trusted, if it is a process of the same user on the same host: only its deadline ends it.
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

/* Embedded in its user's connection. */
typedef struct dd_admission_peer {
    dd_list link;
    dd_timer timer; /* deadline of the current step */
    dd_admission_stage stage;
    int64_t since_ns; /* start of the current step */
    struct dd_admission *admission;
} dd_admission_peer;

/* Close the connection of a peer. It must call dd_admission_end for it. `why` is for the log. */
typedef void dd_admission_close(dd_admission_peer *peer, const char *why);

typedef struct dd_admission {
    /* const after init */
    size_t max_peers;
    int64_t grace_ns;
    dd_admission_close *close;

    size_t limit; /* peers per stage: `max_peers`, or fewer if the process may open few descriptors */
    dd_list peers[DD_ADMISSION_STAGES]; /* oldest first */
    size_t npeers[DD_ADMISSION_STAGES];
    dd_timer_set timers; /* run by the user of this module */
    uint64_t random_state;
} dd_admission;

/* `max_peers`: largest number of peers in a stage. `close` is called for late and evicted peers. */
void dd_admission_init(dd_admission *self, size_t max_peers, int64_t grace_ns, dd_admission_close *close);

/* Add an accepted peer. */
void dd_admission_begin(dd_admission *self, dd_admission_peer *peer, bool is_trusted, int64_t timeout_ns);
/* Start the next step of a peer that has sent a message. */
void dd_admission_continue(dd_admission *self, dd_admission_peer *peer, int64_t timeout_ns);
/* Remove a peer that is authenticated or closed. Has no effect on a removed peer. */
void dd_admission_end(dd_admission *self, dd_admission_peer *peer);

/* Evict the peers above the limit of their stage. Return true if another peer may be accepted. Call
 * it before each accept, and before the loop sleeps. If it returns false, call it again after some
 * milliseconds: peers may have ended, or passed the grace period. */
bool dd_admission_evict_surplus(dd_admission *self, bool is_trusted);
/* Accept a connection; evict peers if the process is out of descriptors. *shortage is 0, the errno
 * of DD_IO_FAILED, or EMFILE with DD_IO_OK if the descriptor is scarce (dd_sock_is_fd_scarce). */
dd_io dd_admission_accept(dd_admission *self, int listen_fd, int *fd, int *shortage);

#endif
