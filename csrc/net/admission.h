/* Admission of unauthenticated peers: connections to a listening port that have not yet proved that they belong to the job. The store's
 * server and the listener of links use it alike.
 *
 * Anyone who can reach a port can open such connections. So they may use only part of the process's descriptors, each has a deadline, and some
 * may be closed to make room. This module picks the peers to close; its user closes them, which must end with
 * dd_admission_end. A peer is in one of three stages:
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

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The reason to log for a peer that dd_admission_pick or dd_admission_pick_surplus has returned. */
#define DD_ADMISSION_EVICTED "evicted: too many unauthenticated connections"

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
} dd_admission_peer;

typedef struct dd_admission {
    /* const after init */
    size_t most;
    int64_t grace_ns;
    void (*on_late)(dd_timer *timer);

    size_t limit; /* peers a stage: `most`, or less if the process may open few descriptors */
    dd_list peers[DD_ADMISSION_STAGES]; /* the oldest first */
    size_t npeers[DD_ADMISSION_STAGES];
    dd_timer_set timers; /* for its user to run */
    uint64_t dice;
} dd_admission;

/* `most`: the largest number of peers in one stage. on_late gets the timer of a peer that must be closed. */
void dd_admission_init(dd_admission *self, size_t most, int64_t grace_ns, void (*on_late)(dd_timer *timer));

/* Adds a peer that was accepted. */
void dd_admission_begin(dd_admission *self, dd_admission_peer *peer, bool is_trusted, int64_t timeout_ns);
/* Starts the next step of a peer that has sent a message. */
void dd_admission_continue(dd_admission *self, dd_admission_peer *peer, int64_t timeout_ns);
/* Removes a peer that is authenticated or closed. Has no effect on one that was removed. */
void dd_admission_end(dd_admission *self, dd_admission_peer *peer);

/* True if another peer may be accepted. If not, call dd_admission_pick_surplus and try again
 * after some milliseconds, when peers may have ended or passed the grace period. */
bool dd_admission_has_room(const dd_admission *self, bool is_trusted);
/* A peer to close because there are more than the limit; NULL if there is none. Call after each accepted peer and
 * while there is no room, until it returns NULL. */
dd_admission_peer *dd_admission_pick_surplus(dd_admission *self);
/* A peer to close for the sake of its descriptor; NULL if there is none. */
dd_admission_peer *dd_admission_pick(dd_admission *self);

#endif
