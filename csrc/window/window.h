/* A window: memory of each rank of a group that the other ranks write, read and signal without the
 * owner's participation.
 *
 * Ranks of the same host whose memory is a region of the group (dd_group_alloc) are reached by load
 * and store. Their memory stays mapped in this process while it holds the window, even if its owner
 * exits. All other ranks are *far*: they are on other hosts, have memory outside regions, or cannot
 * share memory. They are reached by messages, which their engines answer.
 *
 * Every rank has a *pad* of signals: a 32-bit word for each channel and each source rank. On rank
 * r, the word of (channel, source) counts the signals of `source` that r has not taken (consumed)
 * yet. If a rank puts data to r and then signals r, the thread that takes the signal sees the data.
 * Data put to other ranks is in place after a flush, which the window's barrier includes. No other
 * order is guaranteed.
 *
 * A window fails with its group: every wait then ends with the group's cause. Offsets and sizes
 * that a peer sends are checked against the memory that this rank has opened. */
#ifndef DD_WINDOW_WINDOW_H
#define DD_WINDOW_WINDOW_H

#include "group/group.h"

typedef struct dd_window dd_window;

#define DD_WINDOW_PAD_NBYTES ((size_t)2048) /* default size in bytes of a pad */

typedef struct dd_window_options {
    /* This rank's memory; NULL with 0 bytes for none. Memory that this rank has allocated in a
     * region of this group is reached directly by local ranks, and the window holds the region.
     * Other memory must be kept by the caller until close. */
    void *data;
    size_t nbytes;
    dd_dtype dtype;    /* the elements, for dd_window_dtype */
    dd_region *region; /* the group's region that contains `data`; NULL if there is none */
    /* Bytes of each rank's pad, equal on all ranks: enough for one channel or more. 0 stands for
     * DD_WINDOW_PAD_NBYTES, or more if one channel needs more. */
    size_t pad_nbytes;
    /* DD_OK, or why this rank cannot open a window. The rank then takes part only to report this to
     * the other ranks, as it does if its options are invalid. */
    dd_status obstacle;
} dd_window_options;

/* Open a window, and return one reference. Collective: all ranks must call it, in the same order
 * relative to their other collectives. Sizes of memory may differ. If ranks disagree on pad_nbytes,
 * all get DD_MISMATCH. If a rank cannot open its part, all get an error that names the rank. The
 * group stays usable in both cases. */
dd_status dd_window_open(dd_group *group, const dd_window_options *options, dd_window **window,
                         const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Close this rank's part of a window. Not collective: the caller must first make sure, by a
 * barrier, that the other ranks have finished. Operations of other ranks on this part then fail
 * with DD_CLOSED, which names this rank; so do this rank's own operations. Messages no longer
 * access its memory; memory that other ranks have mapped stays mapped until their last release.
 * Idempotent. */
void dd_window_close(dd_window *window);
dd_window *dd_window_acquire(dd_window *window);
void dd_window_release(dd_window *window); /* the last release closes the window; NULL is ignored */

/* ---- properties */

size_t dd_window_nbytes(const dd_window *window, int rank);  /* bytes of the rank's memory */
dd_dtype dd_window_dtype(const dd_window *window, int rank); /* its elements, as the rank declared */
size_t dd_window_pad_nbytes(const dd_window *window);
int dd_window_nchannels(const dd_window *window); /* pad_nbytes / 4 / number of ranks */
/* Return the address in this process of a rank's memory. NULL if it is empty or the rank is far.
 * Valid while the window is held. */
void *dd_window_data(const dd_window *window, int rank);
/* Return the address of a rank's pad, an array [channel][source]; NULL if it is not mapped here. */
_Atomic uint32_t *dd_window_pad(const dd_window *window, int rank);

/* ---- put and get */

#define DD_NO_CHANNEL (-1)

/* A position in the memory of a rank; `offset` is in bytes. */
typedef struct dd_window_target {
    int rank;
    size_t offset;
} dd_window_target;

/* Write `source` to a position. Returns once `source` may be reused: the data is in place, or the
 * transport has it. If a channel is given, a signal follows the data. The target may be on this
 * rank, and may overlap `source`. A put that times out or is interrupted is not withdrawn: it
 * continues from a copy. A put to a far rank that has closed its window fails once that rank's
 * notice has arrived, at the latest in the next flush. */
dd_status dd_window_put(dd_window *window, dd_block source, dd_window_target to, int channel,
                        const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Read from a position into `target`; after a failure, its contents are undefined. A get from a far
 * rank sees all earlier puts of this rank. */
dd_status dd_window_get(dd_window *window, dd_block target, dd_window_target from, const dd_wait *wait,
                        dd_error *err) DD_MUST_CHECK;
/* Put or get without waiting. Return a work of the group (dd_group_wait), which is already done if
 * the memory is shared. `options` are as in group.h, without a record. */
dd_status dd_window_post_put(dd_window *window, dd_block source, dd_window_target to, int channel,
                             const dd_call_options *options, dd_work **work, dd_error *err) DD_MUST_CHECK;
dd_status dd_window_post_get(dd_window *window, dd_block target, dd_window_target from,
                             const dd_call_options *options, dd_work **work, dd_error *err) DD_MUST_CHECK;

/* Wait until all earlier puts of this rank are in place, on all ranks. */
dd_status dd_window_flush(dd_window *window, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- signals */

/* Send a signal: add one to this rank's word in the pad of `rank`. Does not wait until `rank` takes
 * the signal. */
dd_status dd_window_signal(dd_window *window, int rank, int channel, const dd_wait *wait,
                           dd_error *err) DD_MUST_CHECK;
/* Wait until `rank` has taken this rank's last signal (the word is 0), then send a new one.
 * DD_OP_TIMED_OUT: the last signal was not taken, and the new one is withdrawn; if the rank is far,
 * at the latest by the next flush. */
dd_status dd_window_signal_alone(dd_window *window, int rank, int channel, const dd_wait *wait,
                                 dd_error *err) DD_MUST_CHECK;
/* Wait for a signal from `rank` and take the signal. DD_OP_TIMED_OUT names the rank. DD_PEER_LOST
 * and other failures are reported within a second, as in group.h. */
dd_status dd_window_wait_signal(dd_window *window, int rank, int channel, const dd_wait *wait,
                                dd_error *err) DD_MUST_CHECK;
/* Flush, signal all ranks, and wait for a signal from each: all earlier puts are then in place. */
dd_status dd_window_barrier(dd_window *window, int channel, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

#endif
