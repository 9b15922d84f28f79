/* The engine of a process: its peers, its links, and the choice of the thread that drives them.
 *
 * One lock, the engine's, guards links, messages and tasks. A thread that waits drives the engine
 * (dd_engine_wait): it polls for a limited time and then sleeps on the links. Other waiting threads
 * sleep on a condition variable until their turn. If no thread waits, a background thread drives,
 * and sleeps if there is nothing to do; it naps while callers come and go quickly.
 *
 * Callbacks run with the lock held, on the driving thread: they must be quick, must not block, and
 * may post and cancel messages. */
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

/* Open an engine with one reference. The first dd_engine_card starts the background thread and
 * opens the listening sockets: a process whose groups have one rank opens no port. */
dd_status dd_engine_open(const dd_connect_options *options, dd_engine **engine, dd_error *err) DD_MUST_CHECK;
/* Open another engine with the same options, for a process that is several ranks of one group. */
dd_status dd_engine_open_like(const dd_engine *engine, dd_engine **other, dd_error *err) DD_MUST_CHECK;
dd_engine *dd_engine_acquire(dd_engine *engine);
/* Return the secret that peers must know, borrowed; empty if there is none. */
dd_bytes dd_engine_secret(const dd_engine *engine);
/* Release a reference. The last one sends BYE to all peers, waits up to 2 s for posted data to
 * arrive, and closes; in a forked child only frees memory. Not from a callback. NULL is ignored. */
void dd_engine_release(dd_engine *engine);

/* Return DD_FORKED in a forked child of the process that opened the engine. */
dd_status dd_engine_check_fork(const dd_engine *engine, dd_error *err) DD_MUST_CHECK;
/* Return true in a forked child if a thread held the lock at the fork: state guarded by the lock
 * may be inconsistent, and must be neither read nor freed. Returns false in the process itself. */
bool dd_engine_is_torn(dd_engine *engine);

/* Encode this process's card for publishing; with it, other processes can connect. `first` is for
 * dd_card_find_addrs; in a later call it has an effect only if the earlier address was a loopback
 * address, or if the ports have been closed since. */
dd_status dd_engine_card(dd_engine *engine, const dd_addr *first, dd_blob *card, dd_error *err) DD_MUST_CHECK;

/* Enclose a meeting: the time from dd_engine_card until all processes that have the card are peers
 * with their final links. The end of the last meeting closes the TCP ports if every peer with a
 * known card is near, lost, or linked by shared memory: no other process will connect. Links of
 * processes whose cards are unknown are closed after UNKNOWN_KEPT_NS. */
void dd_engine_begin_meeting(dd_engine *engine);
void dd_engine_end_meeting(dd_engine *engine);
/* Return DD_OK, or the reason why other processes cannot connect to this one now. */
dd_status dd_engine_check_accepting_locked(dd_engine *engine, dd_error *err) DD_MUST_CHECK;
/* Like dd_engine_check_accepting_locked; also fails if a link failed in the last 5 seconds for lack
 * of a resource in this process: other ranks may report this process as lost, and leave. */
dd_status dd_engine_check_links_locked(dd_engine *engine, dd_error *err) DD_MUST_CHECK;

/* Find or create the peer of a card, and add a reference. Does not connect. Calls with the same
 * card return the same object, unless the peer was lost and its process may be alive: then a new
 * object without a link or error. A referenced peer keeps the engine open. The own card gives the
 * peer for this process itself: messages to it are copied. */
dd_status dd_engine_peer(dd_engine *engine, dd_bytes card, dd_peer **peer, dd_error *err) DD_MUST_CHECK;
/* Return the peer for this process itself, with a new reference. Needs no card, opens nothing. */
dd_status dd_engine_self(dd_engine *engine, dd_peer **peer, dd_error *err) DD_MUST_CHECK;
dd_peer *dd_peer_acquire(dd_peer *peer);
void dd_peer_release(dd_peer *peer); /* NULL is ignored */
const dd_card *dd_peer_card(const dd_peer *peer);

/* ---- with the lock held */

void dd_engine_lock(dd_engine *engine);
bool dd_engine_try_lock(dd_engine *engine);
void dd_engine_unlock(dd_engine *engine);

dd_addr_list dd_peer_addrs_locked(const dd_peer *peer);
/* Return the name of the link, "" if there is no link. */
const char *dd_peer_transport_locked(const dd_peer *peer);
bool dd_peer_has_shm_locked(const dd_peer *peer);
/* Record that links with the peer are, or would be, shared memory: it needs no TCP port here. */
void dd_peer_note_near_locked(dd_peer *peer);
/* Start connecting if there is no link. A failure ends the messages to the peer, and is returned by
 * dd_peer_error_locked. */
void dd_peer_connect_locked(dd_peer *peer);
bool dd_peer_is_connected_locked(const dd_peer *peer);
/* Return NULL, or the reason why the peer is lost: DD_PEER_LOST with host and pid, or the error
 * that broke or prevented the link. Valid as long as the peer. */
const dd_error *dd_peer_error_locked(const dd_peer *peer);
/* Data sent to a peer that the network has lost repeatedly. */
typedef struct dd_path_loss {
    size_t nbytes;
    unsigned nresends;
    dd_addr from, to;
} dd_path_loss;
/* Return false if no loss is known. */
bool dd_peer_find_loss_locked(const dd_peer *peer, dd_path_loss *loss);
/* Mark a near peer without a link as lost if its process has ended. (A link would report that.) */
void dd_peer_check_process_locked(dd_peer *peer);
/* Return true if the peer has aborted a context that this process has not opened yet as `rank`. */
bool dd_peer_has_aborted_locked(const dd_peer *peer, uint64_t context, int rank);
/* Wake a process of this host to check the memory that it shares with this one. Needs no link. */
void dd_peer_ring_bell_locked(dd_peer *peer);

/* Work that each round of driving polls, for progress that no message announces (shared memory). */
typedef struct dd_task dd_task;
struct dd_task {
    dd_list link;
    /* Advance as far as possible. Returns true on progress: the driver then keeps polling. May
     * remove the task. */
    bool (*progress)(dd_task *task);
    /* Called before the driver sleeps: arrange for a bell, and check again. Returns false if there
     * is work: the driver must not sleep. */
    bool (*fall_asleep)(dd_task *task);
    /* The awaited thread needs this core: yield between polls instead of spinning. progress may
     * change it. */
    bool is_crowded;
    /* The ranks that wait for each other always outnumber the cores; implies is_crowded. */
    bool is_outnumbered;
};
void dd_engine_add_task_locked(dd_engine *engine, dd_task *task);
void dd_engine_remove_task_locked(dd_engine *engine, dd_task *task); /* no effect if not added */

/* Start a timer. Call dd_engine_kick if the driver may sleep past `at_ns`. */
void dd_engine_start_timer_locked(dd_engine *engine, dd_timer *timer, int64_t at_ns);

/* Add or withdraw a request for prompt answers: while there are any, messages that arrive with no
 * call under way are answered within a millisecond of the last call, not after the long nap. */
void dd_engine_set_prompt_locked(dd_engine *engine, bool is_wanted);

/* Handle everything that has arrived, and its consequences (lost peers). Not from a callback. */
void dd_engine_receive_locked(dd_engine *engine);
/* Read all that has arrived on all links, except on the link whose frame is being handled. Messages
 * end by it; owners are notified later. May be called from a callback; nested calls do nothing. */
void dd_engine_read_links_locked(dd_engine *engine);

/* Wait until failure notices to other ranks are on their way, at most 200 ms; releases the lock
 * while it sleeps. Call before reporting a failure without dd_engine_wait, which does this itself.
 * Not from a callback. */
void dd_engine_finish_notices_locked(dd_engine *engine);

/* Send the background thread back to its nap if it drives: a caller now polls for its own call. */
void dd_engine_take_over_locked(dd_engine *engine);
/* Like dd_engine_take_over_locked, for a caller that polls everything: the nap is also extended. */
void dd_engine_note_active_locked(dd_engine *engine);
/* Count a caller that polled only its own call: after its nap the background thread polls all. */
void dd_engine_note_call_locked(dd_engine *engine);
/* Yield the core and the lock once, for a caller that polls for ranks on the same core. Returns
 * false if the yield took long or polling is turned off: then wait in dd_engine_wait. */
bool dd_engine_yield_locked(dd_engine *engine);

/* Record that an `is_done` (dd_engine_wait) was set without driving: unlocking wakes its waiter. */
void dd_engine_note_ended_locked(dd_engine *engine);

/* ---- without the lock */

/* Drive the engine until *is_done (acquire) or until the wait ends: DD_OP_TIMED_OUT without a
 * message, or DD_INTERRUPTED. */
dd_status dd_engine_wait(dd_engine *engine, const atomic_bool *is_done, const dd_wait *wait,
                         dd_error *err) DD_MUST_CHECK;

/* Make sure that a thread drives, after posting without waiting. Cheap if one does. */
void dd_engine_kick(dd_engine *engine);
/* With the lock held: prepare a sleeping driver to be woken, or wake it. Call after polling tasks
 * without driving on: polling shows peers that this process is awake, so they do not wake it. */
void dd_engine_prepare_driver_locked(dd_engine *engine);

#endif
