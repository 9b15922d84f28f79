/* Admission of unauthenticated peers: connections to a listening port that have not yet proved that
 * they belong to the job. The store's server and the listener of links between ranks use it.
 *
 * Any process that can reach a port can open such connections. So they may use only part of the
 * process's descriptors, each has a deadline, and some may be evicted in favour of newer
 * connections. This module decides which connections end; its user closes them. A peer is in one of
 * three stages:
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

/* The state of a peer. The user of this module embeds it in a connection. */
typedef struct dd_admission_peer {
    dd_list link;
    dd_timer timer; /* timer for the deadline of the current step */
    dd_admission_stage stage;
    int64_t since_ns; /* time at which the current step began */
    struct dd_admission *admission;
} dd_admission_peer;

/* Close a peer's connection; must call dd_admission_end. `why` is a text for the log. */
typedef void dd_admission_close(dd_admission_peer *peer, const char *why);

typedef struct dd_admission {
    /* the next fields are const after init */
    size_t max_peers;
    int64_t grace_ns;
    dd_admission_close *close;

    size_t limit; /* maximum number of peers in a stage; below max_peers if descriptors are few */
    dd_list peers[DD_ADMISSION_STAGES]; /* peers in each stage, the oldest first */
    size_t npeers[DD_ADMISSION_STAGES];
    dd_timer_set timers; /* timers of the peers; the user of this module must run them */
    uint64_t random_state;
} dd_admission;

/* Initialise. `max_peers`: maximum per stage. `close`: called for late and evicted peers. */
void dd_admission_init(dd_admission *self, size_t max_peers, int64_t grace_ns, dd_admission_close *close);

/* Add a peer whose connection has been accepted. Its first step must end within timeout_ns. */
void dd_admission_begin(dd_admission *self, dd_admission_peer *peer, bool is_trusted, int64_t timeout_ns);
/* Start the next step of a peer that has sent a message. The step must end within timeout_ns. */
void dd_admission_continue(dd_admission *self, dd_admission_peer *peer, int64_t timeout_ns);
/* Remove a peer that is authenticated or closed. No effect if the peer was already removed. */
void dd_admission_end(dd_admission *self, dd_admission_peer *peer);

/* Evict the peers above the limit of their stage. Return true if another peer may be accepted. Must
 * be called before each accept and before the event loop sleeps. If it returns false, call it again
 * after some milliseconds: peers may have ended, or passed the grace period. */
bool dd_admission_evict_surplus(dd_admission *self, bool is_trusted);
/* Accept a connection; while the process has no free descriptor, evict peers. *shortage is: on
 * DD_IO_FAILED, the errno; on DD_IO_OK, EMFILE if the descriptor is scarce (dd_sock_is_fd_scarce),
 * else 0. */
dd_io dd_admission_accept(dd_admission *self, int listen_fd, int *fd, int *shortage);

#endif
