/* The engine of a process: its peers, its links, and the thread that drives them.
 *
 * One lock, the engine's, guards links, messages and tasks. A thread that waits drives the engine
 * (dd_engine_wait): it polls for a limited time and then sleeps on the links. Other waiting threads
 * sleep on a condition variable until it is their turn to drive. If no thread waits, a background
 * thread drives, and sleeps if there is nothing to do; it naps while callers come and go quickly.
 *
 * Callbacks run on the driving thread, with the lock held: they must be quick and must not block,
 * and they may post and cancel messages. */
#ifndef DD_TRANSPORT_ENGINE_H
#define DD_TRANSPORT_ENGINE_H

#include "core/list.h"
#include "core/timer.h"
#include "core/wait.h"
#include "transport/connect.h"
#include "transport/endpoint.h"

#include <stdatomic.h>

typedef struct dd_engine dd_engine;
typedef struct dd_peer dd_peer; /* another process, or this one */

/* Open an engine, with one reference. The background thread and the listening sockets are created
 * by the first dd_engine_endpoint, so a process whose groups have one rank opens no port. */
dd_status dd_engine_open(const dd_connect_options *options, dd_engine **engine, dd_error *err) DD_MUST_CHECK;
/* Open another engine with the same options, for a process that has several ranks of one group. */
dd_status dd_engine_open_like(const dd_engine *engine, dd_engine **other, dd_error *err) DD_MUST_CHECK;
dd_engine *dd_engine_acquire(dd_engine *engine);
/* Return the secret that peers must know; empty if there is none. The engine owns the bytes. */
dd_bytes dd_engine_secret(const dd_engine *engine);
/* Release a reference. The last release sends BYE to all peers, waits up to 2 s until posted data
 * has arrived, and closes the engine; in a forked child it only frees memory. Must not be called
 * from a callback. NULL is ignored. */
void dd_engine_release(dd_engine *engine);

/* Return DD_FORKED in a forked child of the process that opened the engine. */
dd_status dd_engine_check_fork(const dd_engine *engine, dd_error *err) DD_MUST_CHECK;
/* Return true in a forked child if a thread held the engine's lock at the fork. State guarded by
 * the lock may then be inconsistent: it must be neither read nor freed. Returns false in the
 * process that opened the engine. */
bool dd_engine_is_torn(dd_engine *engine);

/* Encode this process's endpoint, with which other processes can connect, for publishing. `first` is as
 * for dd_endpoint_find_addrs. After the first call, `first` has an effect only if the earlier one was a
 * loopback address, or if the TCP ports have been closed since. */
dd_status dd_engine_endpoint(dd_engine *engine, const dd_addr *first, dd_blob *endpoint,
                             dd_error *err) DD_MUST_CHECK;

/* Begin or end a meeting (a rendezvous of processes). Call begin before dd_engine_endpoint, and end
 * once every process that has this endpoint is a peer and its final link exists. The end of the last
 * meeting closes the TCP ports if every peer with a known endpoint is lost or reached over shared
 * memory: no other process will connect. Links of processes whose endpoints are still unknown are
 * closed after UNKNOWN_LINK_NS. */
void dd_engine_begin_meeting(dd_engine *engine);
void dd_engine_end_meeting(dd_engine *engine);
/* Return DD_OK, or the reason why other processes cannot connect to this process now. */
dd_status dd_engine_check_accepting_locked(dd_engine *engine, dd_error *err) DD_MUST_CHECK;
/* Like dd_engine_check_accepting_locked, but also fail if a link failed in the last 5 s for lack of
 * a resource in this process: other ranks may then report this rank as lost, and leave. */
dd_status dd_engine_check_links_locked(dd_engine *engine, dd_error *err) DD_MUST_CHECK;

/* Find or create the peer with this endpoint, and return it with a new reference. Does not connect.
 * Calls with the same endpoint return the same peer, with one exception: if the peer was lost but its
 * process may still be running, a new peer without a link or error replaces it. A referenced peer
 * keeps the engine open. For this process's own endpoint, returns the peer of dd_engine_self. */
dd_status dd_engine_peer(dd_engine *engine, dd_bytes endpoint, dd_peer **peer, dd_error *err) DD_MUST_CHECK;
/* Return the peer that stands for this process; messages to it are copied. Adds a reference. Needs
 * no endpoint, and opens no socket. */
dd_status dd_engine_self(dd_engine *engine, dd_peer **peer, dd_error *err) DD_MUST_CHECK;
dd_peer *dd_peer_acquire(dd_peer *peer);
void dd_peer_release(dd_peer *peer); /* NULL is ignored */
const dd_endpoint *dd_peer_endpoint(const dd_peer *peer);

/* ---- functions that require the engine's lock */

void dd_engine_lock(dd_engine *engine);
bool dd_engine_try_lock(dd_engine *engine);
void dd_engine_unlock(dd_engine *engine);

dd_addr_list dd_peer_addrs_locked(const dd_peer *peer);
/* Return the name of the kind of link, such as "TCP"; "" if there is no link. */
const char *dd_peer_transport_locked(const dd_peer *peer);
bool dd_peer_has_shm_locked(const dd_peer *peer);
/* Record that all links with this peer use shared memory: it needs no TCP port of this process. */
void dd_peer_note_near_locked(dd_peer *peer);
/* Start connecting if there is no link. If that fails, messages to the peer end with the error that
 * dd_peer_error_locked returns from then on. */
void dd_peer_connect_locked(dd_peer *peer);
bool dd_peer_is_connected_locked(const dd_peer *peer);
/* Return the reason why the peer is lost: DD_PEER_LOST with host and pid, or the error that broke
 * or prevented the link. Returns NULL if it is not lost. The error is valid as long as the peer. */
const dd_error *dd_peer_error_locked(const dd_peer *peer);
/* Data sent to a peer that the network repeatedly loses. */
typedef struct dd_path_loss {
    size_t nbytes;
    unsigned nresends;
    dd_addr from, to;
} dd_path_loss;
/* Find data sent to the peer that the network repeatedly loses. Returns false if none is known. */
bool dd_peer_find_loss_locked(const dd_peer *peer, dd_path_loss *loss);
/* Mark a peer on this host as lost if its process has ended. Needed only for a peer without a link,
 * since a link reports the end. */
void dd_peer_check_process_locked(dd_peer *peer);
/* Return true if the peer has aborted a context that this process has not opened as `rank`. */
bool dd_peer_has_aborted_locked(const dd_peer *peer, uint64_t context, int rank);
/* Wake a process of this host, so that it checks all shared memory. Needs no link. */
void dd_peer_ring_bell_locked(dd_peer *peer);

/* Work that each round of driving polls, since no message announces progress in shared memory. */
typedef struct dd_task dd_task;
struct dd_task {
    dd_list link;
    /* Advance as far as possible. Returns true on progress: the driver then continues to poll. May
     * remove the task from the engine. */
    bool (*progress)(dd_task *task);
    /* Called before the driver sleeps. Arrange to be woken by a bell, then check for work once
     * more. Returns false if there is work: the driver must not sleep. */
    bool (*fall_asleep)(dd_task *task);
    /* true if the awaited thread needs this core: yield between polls instead of spinning.
     * `progress` may change it. */
    bool is_crowded;
    bool is_outnumbered; /* true if waiting ranks always outnumber cores; implies is_crowded */
};
void dd_engine_add_task_locked(dd_engine *engine, dd_task *task);
void dd_engine_remove_task_locked(dd_engine *engine, dd_task *task); /* does nothing if not added */

/* Start a timer. Also call dd_engine_kick if the driver may sleep longer than until `at_ns`. */
void dd_engine_start_timer_locked(dd_engine *engine, dd_timer *timer, int64_t at_ns);

/* Add or withdraw a request for prompt answers. While there are requests, messages that arrive
 * while no call is in progress are answered within a millisecond, not only after the background
 * thread's long nap. */
void dd_engine_set_prompt_locked(dd_engine *engine, bool is_wanted);

/* Handle everything that has arrived, also the loss of peers. Must not be called by a callback. */
void dd_engine_receive_locked(dd_engine *engine);
/* Read everything that has arrived on all links, except the link whose frame is being handled.
 * Owners of ended messages are notified later. Callbacks may call this; nested calls do nothing. */
void dd_engine_read_links_locked(dd_engine *engine);

/* Wait, at most 200 ms, until failure notices to other ranks have left this process; releases the
 * lock while it sleeps. Call before reporting a failure, unless dd_engine_wait returned it: that
 * function includes this wait. Must not be called from a callback. */
void dd_engine_finish_notices_locked(dd_engine *engine);

/* Stop the background thread's driving, since a caller now polls for its own call. */
void dd_engine_take_over_locked(dd_engine *engine);
/* Like dd_engine_take_over_locked, for a caller that polls everything. Also extends the nap of the
 * background thread. */
void dd_engine_note_active_locked(dd_engine *engine);
/* Count a caller that polled only its own call: the background thread polls the rest after its
 * nap. */
void dd_engine_note_call_locked(dd_engine *engine);
/* Release the lock and yield the core once; for a caller that polls for ranks on the same core.
 * Returns false if the yield took long or polling is off: then wait in dd_engine_wait. */
bool dd_engine_yield_locked(dd_engine *engine);

/* Record that a thread that does not drive has set a waiter's `is_done` flag (dd_engine_wait):
 * unlocking then wakes the waiter. */
void dd_engine_note_ended_locked(dd_engine *engine);

/* ---- functions that take the engine's lock, except the last */

/* Drive the engine until *is_done, which is read with acquire, is true, or until the wait ends:
 * then returns DD_OP_TIMED_OUT without a message, or DD_INTERRUPTED. */
dd_status dd_engine_wait(dd_engine *engine, const atomic_bool *is_done, const dd_wait *wait,
                         dd_error *err) DD_MUST_CHECK;

/* Make sure that a thread drives. Call after posting a message without waiting for its end. Cheap
 * if a thread drives already. */
void dd_engine_kick(dd_engine *engine);
/* Call with the lock held, after polling tasks without continuing to drive. Polling clears the
 * marks by which peers know that this process sleeps, so a sleeping driver must set them again, or
 * be woken if there is work. */
void dd_engine_prepare_driver_locked(dd_engine *engine);

#endif
