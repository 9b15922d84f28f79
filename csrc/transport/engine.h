/* The engine of a process: its peers, its links, and who drives them.
 *
 * There is one lock, the engine's, and everything behind links, messages and tasks belongs to its holder.
 * The engine has no thread of its own that must run: a thread that waits drives it (dd_engine_wait). It polls for a while and then
 * sleeps on the links; others that wait meanwhile sleep on a condition until their turn. When nobody waits,
 * a background thread drives, and sleeps when there is nothing to do. While callers come and go quickly it
 * keeps out of their way.
 *
 * Callbacks run with the lock held, on the thread that drives: they are quick, do not block, and may post
 * and cancel messages. */
#ifndef DD_TRANSPORT_ENGINE_H
#define DD_TRANSPORT_ENGINE_H

#include "core/list.h"
#include "core/timer.h"
#include "core/wait.h"
#include "transport/card.h"
#include "transport/connect.h"

#include <stdatomic.h>

typedef struct dd_engine dd_engine;
typedef struct dd_peer dd_peer; /* another process, or this one */

/* Counted. The background thread and the listening sockets come with the first call of dd_engine_card: a
 * process whose groups have one rank opens no port. */
dd_status dd_engine_open(const dd_connect_options *options, dd_engine **engine, dd_error *err) DD_MUST_CHECK;
/* Another one with the same options: for a process that is in one group several times. */
dd_status dd_engine_open_like(const dd_engine *engine, dd_engine **other, dd_error *err) DD_MUST_CHECK;
dd_engine *dd_engine_acquire(dd_engine *engine);
/* What its peers have to know, borrowed; empty: nothing. */
dd_bytes dd_engine_secret(const dd_engine *engine);
/* The last release says goodbye to all peers, sends what was accepted for sending for at most two seconds,
 * and closes. In a forked child it only frees. Not from a callback. NULL is fine. */
void dd_engine_release(dd_engine *engine);

/* DD_FORKED in a child of the process that opened it. */
dd_status dd_engine_check_fork(const dd_engine *engine, dd_error *err) DD_MUST_CHECK;
/* In such a child: whether some thread held the lock when the process forked. That thread does not exist
 * here, and may have been changing what the lock guards, so nothing of that may be looked at or freed.
 * False in the process itself. */
bool dd_engine_is_torn(dd_engine *engine);

/* This process's card, encoded, for publishing: from now on others may connect by it. `first` as in
 * dd_card_find_addrs; that of a later call counts if the one before was a loopback address, or if the
 * ports have been closed since. */
dd_status dd_engine_card(dd_engine *engine, const dd_addr *first, dd_blob *card, dd_error *err) DD_MUST_CHECK;

/* Around everything from dd_engine_card to the moment when all processes that have the card are peers,
 * with the links that they are going to have. When the last meeting ends, the TCP ports are closed if all
 * peers whose cards are known are near, or linked by shared memory: then nobody else will come. Links of processes
 * whose cards are not known are closed some seconds later. */
void dd_engine_begin_meeting(dd_engine *engine);
void dd_engine_end_meeting(dd_engine *engine);
/* DD_OK, or why other processes cannot connect to this one now. With the lock held. */
dd_status dd_engine_check_accepting_locked(dd_engine *engine, dd_error *err) DD_MUST_CHECK;
/* The same, and for want of what in this process a link has come to nothing a moment ago: others may say that this process is lost, and
 * leave. With the lock held. */
dd_status dd_engine_check_links_locked(dd_engine *engine, dd_error *err) DD_MUST_CHECK;

/* Find or create the peer whose card this is; counted. Calls with the same card return the same object, unless the
 * peer was lost in between and its process may be well: then a new object, without a link and without an error.
 * A held peer keeps the engine open. No connection is made. Our own card gives the peer that is this process: messages to it are
 * copied. */
dd_status dd_engine_peer(dd_engine *engine, dd_bytes card, dd_peer **peer, dd_error *err) DD_MUST_CHECK;
/* The peer that is this process, without a card: opens nothing. Counted. */
dd_status dd_engine_self(dd_engine *engine, dd_peer **peer, dd_error *err) DD_MUST_CHECK;
dd_peer *dd_peer_acquire(dd_peer *peer);
void dd_peer_release(dd_peer *peer); /* NULL is fine */
const dd_card *dd_peer_card(const dd_peer *peer);

/* ---- with the lock held */

void dd_engine_lock(dd_engine *engine);
/* False: somebody has it. */
bool dd_engine_try_lock(dd_engine *engine);
void dd_engine_unlock(dd_engine *engine);

/* Where it listens, as its card says. */
dd_addr_list dd_peer_addrs_locked(const dd_peer *peer);
/* The link's name, "" while there is none. `_locked` because links come and go. */
const char *dd_peer_transport_locked(const dd_peer *peer);
bool dd_peer_has_shm_locked(const dd_peer *peer);
/* Links with it are, or would be, shared memory: it needs no port of ours. */
void dd_peer_note_near_locked(dd_peer *peer);
/* Starts connecting if there is no link yet. How it ends shows by the messages to the peer, and by
 * dd_peer_error_locked. */
void dd_peer_connect_locked(dd_peer *peer);
bool dd_peer_is_connected_locked(const dd_peer *peer);
/* NULL while nothing is wrong; else why it can not be reached any more: DD_PEER_LOST (its end, with host
 * and pid), or whatever the connecting came to. Stays valid as long as the peer. */
const dd_error *dd_peer_error_locked(const dd_peer *peer);
/* What this process has sent to a peer and the network has lost again and again. */
typedef struct dd_path_loss {
    size_t nbytes;
    unsigned nresends;
    dd_addr from, to;
} dd_path_loss;
/* False: nothing, as far as can be seen here. */
bool dd_peer_find_loss_locked(const dd_peer *peer, dd_path_loss *loss);
/* Looks whether a process that is near has ended. Its links say so by themselves; this is for one without a link to this process. */
void dd_peer_look_for_locked(dd_peer *peer);
/* True if the peer has aborted a context that this process, as `rank` of it, has not opened yet. */
bool dd_peer_has_given_up_locked(const dd_peer *peer, uint64_t context, int rank);
/* Makes a process of this host look at memory that is shared with it, if it sleeps. Needs no link. */
void dd_peer_ring_bell_locked(dd_peer *peer);

/* A task is polled in every round of driving, for progress that no message tells of (shared memory). */
typedef struct dd_task dd_task;
struct dd_task {
    dd_list link;
    /* Goes as far as it can. True when it got somewhere: then the driver goes on polling. It may remove
     * itself. */
    bool (*progress)(dd_task *task);
    /* Before the driver sleeps: arranges for a bell, and looks once more. False when there is something to
     * do after all. */
    bool (*fall_asleep)(dd_task *task);
    /* What it waits for needs the core that we run on: yield between looks instead of spinning. progress may
     * change it. */
    bool is_crowded;
    bool
        is_outnumbered; /* there are not enough cores for those who wait for each other, ever; then is_crowded, too */
};
void dd_engine_add_task_locked(dd_engine *engine, dd_task *task);
void dd_engine_remove_task_locked(dd_engine *engine, dd_task *task); /* also one that is not in */

/* Sets a timer, which the driver runs. A driver that sleeps for longer learns of it by dd_engine_kick. */
void dd_engine_start_timer_locked(dd_engine *engine, dd_timer *timer, int64_t at_ns);

/* While somebody wants that, and be it once of many times, messages that come when no call is under way are answered within a
 * millisecond of the last one, not after a nap: the background thread looks sooner whether callers still drive. */
void dd_engine_attend_locked(dd_engine *engine, bool is_wanted);

/* Takes in what has come by now, and what follows from it, such as who is lost. Not from a callback. */
void dd_engine_hear_locked(dd_engine *engine);
/* Read everything that has arrived on all links, except on the link whose frame is being handled. Messages end by it, and
 * their owners are notified later. May be called from a callback; nested calls do nothing. */
void dd_engine_take_in_locked(dd_engine *engine);

/* Before a caller is told of a failure without waiting for it: waits until what the other ranks are told
 * of it is on its way, but only for a moment, without the lock meanwhile. dd_engine_wait does so by
 * itself. Not from a callback. */
void dd_engine_finish_telling_locked(dd_engine *engine);

/* A caller looks after its own call: the background thread goes back to its nap, if it drives. */
void dd_engine_relieve_locked(dd_engine *engine);
/* The same, for long enough to look at everything: the nap goes on. */
void dd_engine_note_active_locked(dd_engine *engine);
/* A caller looks at its own call alone, for less than a microsecond: at the end of its nap the background thread looks at the rest. */
void dd_engine_note_call_locked(dd_engine *engine);
/* For a short look of one's own at what ranks on the same cores are to do: gives them the core, and others the lock,
 * for a moment. False: that took long, or is not worth it now, so wait in dd_engine_wait. */
bool dd_engine_give_way_locked(dd_engine *engine);

/* Somebody's `is_done` (dd_engine_wait) has become true by other means than driving: he is woken when the lock is given away. */
void dd_engine_note_ended_locked(dd_engine *engine);

/* ---- without the lock */

/* Drives the engine until *is_done (acquire), or the wait is over: DD_OP_TIMED_OUT without a message,
 * DD_INTERRUPTED. */
dd_status dd_engine_wait(dd_engine *engine, const atomic_bool *is_done, const dd_wait *wait,
                         dd_error *err) DD_MUST_CHECK;

/* After posting without waiting: makes sure that somebody drives. Cheap when somebody does. */
void dd_engine_kick(dd_engine *engine);
/* After a look at tasks by somebody who does not go on to drive: the look has told peers that nobody sleeps here, and a driver that does
 * would not be woken. */
void dd_engine_settle_driver_locked(dd_engine *engine);

#endif
