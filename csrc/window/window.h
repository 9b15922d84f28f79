/* A window: memory of each rank of a group that the other ranks write, read and signal without its
 * owner's participation.
 *
 * Local ranks whose memory is a region of the group (dd_group_alloc) are reached by load and store;
 * their memory stays mapped here while the window is held, even if the peer exits. All others
 * (other hosts, memory outside regions, hosts without shared memory) are reached by messages that
 * the owner's engine answers.
 *
 * Every rank has a *pad* of signals: a 32-bit word for each channel and each source rank. The word
 * of (channel, source) on rank r counts the signals of `source` that r has not taken yet. Data that
 * a rank puts to r before it signals r are visible to the thread that takes the signal. Data put to
 * other ranks are in place after a flush, which a barrier of the window includes; nothing else is
 * ordered.
 *
 * A window fails with its group: every wait ends with the group's cause. Offsets and sizes that a
 * peer sends are checked against the memory that this rank has opened. */
#ifndef DD_WINDOW_WINDOW_H
#define DD_WINDOW_WINDOW_H

#include "group/group.h"

typedef struct dd_window dd_window;

#define DD_WINDOW_PAD_NBYTES ((size_t)2048) /* default size of a pad */

typedef struct dd_window_options {
    /* This rank's memory; NULL with 0 bytes for none. If it lies in a region of this group that
     * this rank has allocated, local ranks reach it directly, and the window holds the region. Else
     * the caller must keep the memory until close. */
    void *data;
    size_t nbytes;
    dd_region *region; /* contains `data`; NULL if there is none */
    /* Equal on all ranks. At least one channel; 0 for DD_WINDOW_PAD_NBYTES, or more if needed. */
    size_t pad_nbytes;
    /* Not DD_OK: why this rank cannot open a window. Such a rank takes part only to report that to
     * the others, as does a rank whose options are invalid. */
    dd_status obstacle;
} dd_window_options;

/* Open a window. Collective: all ranks call it, in the same order as their other collectives. Sizes
 * of memory may differ. Returns one reference. If ranks disagree about pad_nbytes, all get
 * DD_MISMATCH. If one rank cannot open its part, all get an error that names it, and the group
 * stays usable. */
dd_status dd_window_open(dd_group *group, const dd_window_options *options, dd_window **window,
                         const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Close this rank's part: not collective. Then operations of other ranks on it get DD_CLOSED,
 * naming this rank; messages no longer access its memory; its own calls get DD_CLOSED. Mapped
 * memory stays until the last release. First make sure, by a barrier, that other ranks have
 * finished. Idempotent. */
void dd_window_close(dd_window *window);
dd_window *dd_window_acquire(dd_window *window);
void dd_window_release(dd_window *window); /* NULL is allowed; the last one closes */

/* ---- properties */

size_t dd_window_nbytes(const dd_window *window, int rank); /* of the rank's memory */
size_t dd_window_pad_nbytes(const dd_window *window);
int dd_window_nchannels(const dd_window *window); /* pad_nbytes / 4 / size */
/* Return the address of a rank's memory in this process, or NULL if it is empty or reached by
 * messages. Valid while the window is held. */
void *dd_window_data(const dd_window *window, int rank);
/* The same for its pad: [channel][source]. NULL if it is not mapped here. */
_Atomic uint32_t *dd_window_pad(const dd_window *window, int rank);

/* ---- put and get */

#define DD_NO_CHANNEL (-1)

/* A place in the memory of a rank, in bytes from its start. */
typedef struct dd_window_target {
    int rank;
    size_t offset;
} dd_window_target;

/* Write `source` there. Returns when `source` may be reused: the data are in place, or the
 * transport has them. With a channel, a signal follows the data. The target may be this rank and
 * overlap `source`. A put that times out or is interrupted is not withdrawn: it continues from a
 * copy. Puts to a far rank that has closed its window fail once its notice arrives, at the next
 * flush at the latest. */
dd_status dd_window_put(dd_window *window, dd_block source, dd_window_target to, int channel,
                        const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Read from there into `target`, whose bytes are undefined on failure. A get from a far rank sees
 * the earlier puts of this rank. */
dd_status dd_window_get(dd_window *window, dd_block target, dd_window_target from, const dd_wait *wait,
                        dd_error *err) DD_MUST_CHECK;
/* The same without waiting: a work of the group (dd_group_wait), already done if the memory is
 * shared. `options` as in group.h, without a record. */
dd_status dd_window_post_put(dd_window *window, dd_block source, dd_window_target to, int channel,
                             const dd_call_options *options, dd_work **work, dd_error *err) DD_MUST_CHECK;
dd_status dd_window_post_get(dd_window *window, dd_block target, dd_window_target from,
                             const dd_call_options *options, dd_work **work, dd_error *err) DD_MUST_CHECK;

/* Wait until all earlier puts of this rank, to all ranks, are in place. */
dd_status dd_window_flush(dd_window *window, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- signals */

/* Send a signal to `rank`: add one to this rank's word there. Does not wait for it to be taken. */
dd_status dd_window_signal(dd_window *window, int rank, int channel, const dd_wait *wait,
                           dd_error *err) DD_MUST_CHECK;
/* The same, after waiting for the last signal to be taken (the word is 0). DD_OP_TIMED_OUT: `rank`
 * has not taken it. The new signal is then withdrawn; on a far rank, by the next flush at the
 * latest. */
dd_status dd_window_signal_alone(dd_window *window, int rank, int channel, const dd_wait *wait,
                                 dd_error *err) DD_MUST_CHECK;
/* Wait for a signal of `rank`, and take it. DD_OP_TIMED_OUT names the rank; DD_PEER_LOST and other
 * failures are as in group.h, within a second. */
dd_status dd_window_wait_signal(dd_window *window, int rank, int channel, const dd_wait *wait,
                                dd_error *err) DD_MUST_CHECK;
/* Flush, signal_alone to all, wait_signal from all. All ranks' earlier puts are then in place. */
dd_status dd_window_barrier(dd_window *window, int channel, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

#endif
