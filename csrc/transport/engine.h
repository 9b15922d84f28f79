/* The engine of a process: its peers, its links, and the thread that drives them.
 *
 * One lock, the engine's, guards links, messages and tasks. A thread that waits drives the engine
 * (dd_engine_wait): it polls for a limited time and then sleeps on the links. Other waiting threads
 * sleep on a condition variable until it is their turn to drive. If no thread waits, a background
 * thread drives, and sleeps if there is nothing to do; it naps while callers drive often.
 *
 * Callbacks run on the driving thread, with the lock held: they must be quick and must not block,
 * but may post and cancel messages. */
#ifndef DD_TRANSPORT_ENGINE_H
#define DD_TRANSPORT_ENGINE_H

#include "core/list.h"
#include "core/timer.h"
#include "core/wait.h"
#include "transport/connect.h"
#include "transport/endpoint.h"

#include <stdatomic.h>

typedef struct dd_engine dd_engine;
typedef struct dd_peer dd_peer; /* a process to exchange messages with; may be this process */

/* Open an engine, with one reference. The first dd_engine_endpoint creates the background thread
 * and the listening sockets, so a process whose groups have only one rank opens no port. */
dd_status dd_engine_open(const dd_connect_options *options, dd_engine **engine, dd_error *err) DD_MUST_CHECK;
/* Open another engine with the same options, for a process that has several ranks of one group. */
dd_status dd_engine_open_like(const dd_engine *engine, dd_engine **other, dd_error *err) DD_MUST_CHECK;
dd_engine *dd_engine_acquire(dd_engine *engine);
/* Return the secret that peers must know, which is owned by the engine; empty if there is none. */
dd_bytes dd_engine_secret(const dd_engine *engine);
/* Release a reference. The last release sends BYE to all peers, waits up to 2 s until posted data
 * has arrived, and closes the engine; in a forked child it only frees memory. Must not be called
 * from a callback. NULL is ignored. */
void dd_engine_release(dd_engine *engine);

/* Return DD_FORKED if the engine was opened before a fork, by a parent of this process. */
dd_status dd_engine_check_fork(const dd_engine *engine, dd_error *err) DD_MUST_CHECK;
/* Return true in a forked child if another thread held the engine's lock at the fork. The state
 * that the lock guards may then be inconsistent, and must be neither read nor freed. Returns false
 * in the process that opened the engine. */
bool dd_engine_is_torn(dd_engine *engine);

/* Encode this process's endpoint (its address record), for publishing. `first` is as for
 * dd_endpoint_find_addrs. After the first call, `first` has an effect only if the earlier `first`
 * was a loopback address, or if the TCP ports have been closed since. */
dd_status dd_engine_endpoint(dd_engine *engine, const dd_addr *first, dd_blob *endpoint,
                             dd_error *err) DD_MUST_CHECK;

/* Begin or end a meeting (a rendezvous of processes). Call begin before dd_engine_endpoint. Call
 * end once all processes that received this endpoint are peers and their final links exist. The end
 * of the last meeting closes the TCP ports if every peer with a known endpoint is lost or uses
 * shared memory, since no other process will connect. Links of processes whose endpoints are still
 * unknown are closed after UNKNOWN_LINK_NS. */
void dd_engine_begin_meeting(dd_engine *engine);
void dd_engine_end_meeting(dd_engine *engine);
/* Return DD_OK, or the reason why other processes cannot connect to this process now. */
dd_status dd_engine_check_accepting_locked(dd_engine *engine, dd_error *err) DD_MUST_CHECK;
/* Like dd_engine_check_accepting_locked, but also fail if a link failed in the last 5 s for lack of
 * a resource in this process: other ranks may then report this rank as lost, and leave. */
dd_status dd_engine_check_links_locked(dd_engine *engine, dd_error *err) DD_MUST_CHECK;

/* Find or create the peer with this endpoint, and return it with a new reference. Does not connect.
 * The same endpoint gives the same peer, with one exception: if the peer was lost but its process
 * may still be running, a new peer without a link or error replaces it. A referenced peer keeps the
 * engine open. For this process's own endpoint, returns the peer of dd_engine_self. */
dd_status dd_engine_peer(dd_engine *engine, dd_bytes endpoint, dd_peer **peer, dd_error *err) DD_MUST_CHECK;
/* Return the peer that stands for this process, with a new reference. Messages to it are copied.
 * This needs no endpoint and opens no socket. */
dd_status dd_engine_self(dd_engine *engine, dd_peer **peer, dd_error *err) DD_MUST_CHECK;
dd_peer *dd_peer_acquire(dd_peer *peer);
void dd_peer_release(dd_peer *peer); /* no effect if `peer` is NULL */
const dd_endpoint *dd_peer_endpoint(const dd_peer *peer);

/* ---- functions whose caller must hold the engine's lock (the first two take it) */

void dd_engine_lock(dd_engine *engine);
bool dd_engine_try_lock(dd_engine *engine);
void dd_engine_unlock(dd_engine *engine);

dd_addr_list dd_peer_addrs_locked(const dd_peer *peer);
/* Return the name of the kind of link to the peer, such as "TCP"; "" if there is no link. */
const char *dd_peer_transport_locked(const dd_peer *peer);
bool dd_peer_has_shm_locked(const dd_peer *peer);
/* Record that all links with the peer use shared memory: it needs no TCP port of this process. */
void dd_peer_note_near_locked(dd_peer *peer);
/* Start to connect to the peer if there is no link. If connecting fails, messages to the peer end
 * with an error, which dd_peer_error_locked then returns. */
void dd_peer_connect_locked(dd_peer *peer);
bool dd_peer_is_connected_locked(const dd_peer *peer);
/* Return why the peer is lost: DD_PEER_LOST with its host and pid, or the error that broke or
 * prevented the link. Returns NULL if it is not lost. The error is valid as long as the peer. */
const dd_error *dd_peer_error_locked(const dd_peer *peer);
/* Data sent to a peer that the network repeatedly loses. */
typedef struct dd_path_loss {
    size_t nbytes;
    unsigned nresends;
    dd_addr from, to;
} dd_path_loss;
/* Find data sent to the peer that the network repeatedly loses. Returns false if none is known. */
bool dd_peer_find_loss_locked(const dd_peer *peer, dd_path_loss *loss);
/* Mark a peer of this host as lost if its process has ended. Must be called only for a peer without
 * a link, since a link detects the end itself. */
void dd_peer_check_process_locked(dd_peer *peer);
/* Return true if the peer aborted the context with this id and rank before it was opened here. */
bool dd_peer_has_aborted_locked(const dd_peer *peer, uint64_t context, int rank);
/* Ring the bell of a process of this host, which then checks all shared memory. Needs no link. */
void dd_peer_ring_bell_locked(dd_peer *peer);

/* Work that each round of driving polls: no message announces progress in shared memory. */
typedef struct dd_task dd_task;
struct dd_task {
    dd_list link;
    /* Advance as far as possible. Return true if there was progress: the driver then continues to
     * poll. The callback may remove the task from the engine. */
    bool (*progress)(dd_task *task);
    /* Called before the driver sleeps. The callee must request a bell for new work, and then check
     * once more. Return false if there is work now: the driver then does not sleep. */
    bool (*fall_asleep)(dd_task *task);
    /* True if the awaited thread needs this core: the driver then yields between polls instead of
     * spinning. `progress` may change this field. */
    bool is_crowded;
    bool is_outnumbered; /* true if waiting ranks always outnumber cores; implies is_crowded */
};
void dd_engine_add_task_locked(dd_engine *engine, dd_task *task);
void dd_engine_remove_task_locked(dd_engine *engine, dd_task *task); /* no effect if not added */

/* Start a timer. If the driver may sleep beyond `at_ns`, also call dd_engine_kick. */
void dd_engine_start_timer_locked(dd_engine *engine, dd_timer *timer, int64_t at_ns);

/* Add (is_wanted is true) or withdraw a request for prompt answers. While there are requests,
 * messages that arrive while no call is in progress are answered within a millisecond, instead of
 * after the background thread's long nap. */
void dd_engine_set_prompt_locked(dd_engine *engine, bool is_wanted);

/* Handle all input that has arrived, and the loss of peers. Must not be called from a callback. */
void dd_engine_receive_locked(dd_engine *engine);
/* Read all input that has arrived, except from the link whose frame is being handled. on_done of
 * ended messages is called later. Callbacks may call this; a nested call does nothing. */
void dd_engine_read_links_locked(dd_engine *engine);

/* Wait, at most 200 ms, until failure notices to other ranks have left this process; the lock is
 * released during the sleep. Must be called before a failure is reported, unless dd_engine_wait
 * returned the failure: that function includes this wait. Must not be called from a callback. */
void dd_engine_finish_notices_locked(dd_engine *engine);

/* Stop the background thread from driving. Call when a caller begins to poll for its own call. */
void dd_engine_take_over_locked(dd_engine *engine);
/* Like dd_engine_take_over_locked, for a caller that polls everything: also extends the nap of the
 * background thread. */
void dd_engine_note_active_locked(dd_engine *engine);
/* Record that a caller has polled only its own call, so that after its nap the background thread
 * polls the rest. */
void dd_engine_note_call_locked(dd_engine *engine);
/* Release the lock and yield the core once, for a caller that polls for ranks on the same core.
 * Returns false if the yield took long or polling is off: the caller must use dd_engine_wait. */
bool dd_engine_yield_locked(dd_engine *engine);

/* Record that a thread that does not drive has set the `is_done` flag of a waiter (dd_engine_wait),
 * so that dd_engine_unlock wakes the waiter. */
void dd_engine_note_ended_locked(dd_engine *engine);

/* ---- functions that take the engine's lock (except dd_engine_prepare_driver_locked) */

/* Drive the engine until *is_done is true or the wait ends. *is_done is loaded with acquire. At the
 * end of the wait, returns DD_OP_TIMED_OUT without a message, or DD_INTERRUPTED. */
dd_status dd_engine_wait(dd_engine *engine, const atomic_bool *is_done, const dd_wait *wait,
                         dd_error *err) DD_MUST_CHECK;

/* Make sure that some thread drives the engine. Must be called after posting a message without
 * waiting for it. Cheap if a thread drives already. */
void dd_engine_kick(dd_engine *engine);
/* Make sure that peers can wake this process. Must be called, with the lock held, by a caller that
 * has polled tasks and does not continue to drive: polling clears the marks of a sleeping process,
 * so a sleeping driver must set the marks again, or be woken if there is work. */
void dd_engine_prepare_driver_locked(dd_engine *engine);

#endif
