/* A window: memory of every rank of a group that the other ranks write, read and signal without the owner's taking part.
 *
 * Ranks of the same host whose memory is a region of the group (dd_group_alloc) are reached by load and store: their mapping is
 * here, and stays for as long as the window is held, whatever becomes of the peer. All others (other hosts, memory that is not a
 * region, hosts without shared memory) are reached by messages that the owner's engine answers.
 *
 * Every rank has a *pad* of signals: one 32-bit word for each channel and each rank that may signal. The word of (channel, source)
 * on rank r counts the signals of `source` that r has not taken yet. What a rank has put to r before it signals r is seen by the thread
 * that takes the signal there. What it has put to others is in place after a flush, a barrier of the window does one; nothing else is
 * ordered.
 *
 * A window fails with its group: every wait ends with the group's cause. Offsets and sizes that a peer sends are checked against
 * what this rank has opened. */
#ifndef DD_WINDOW_WINDOW_H
#define DD_WINDOW_WINDOW_H

#include "group/group.h"

typedef struct dd_window dd_window;

#define DD_WINDOW_PAD_NBYTES ((size_t)2048) /* of signals, unless asked for otherwise */

typedef struct dd_window_options {
    /* What this rank gives; NULL with 0 bytes for nothing. Inside a region of this group that this rank has allocated, the others
     * of its host reach it directly, and the region is kept by the window; else the memory is the caller's to keep until close. */
    void *data;
    size_t nbytes;
    dd_region *region; /* that `data` lies in; NULL: none */
    size_t pad_nbytes; /* 0: DD_WINDOW_PAD_NBYTES; the same on all ranks, at least one channel */
    /* Not DD_OK: why this rank cannot have one. It takes part only for the others to hear of it, and so does one whose options make
     * no sense. */
    dd_status obstacle;
} dd_window_options;

/* Collective: all ranks, in the same order as their other collectives. Sizes of memory may differ. One reference. Ranks that
 * disagree about pad_nbytes all get DD_MISMATCH; what one rank cannot do, all fail with, naming it, and the group goes on. */
dd_status dd_window_open(dd_group *group, const dd_window_options *options, dd_window **window,
                         const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Local: from now on what others send here is refused (they get DD_CLOSED, naming this rank), messages neither write nor read this
 * rank's memory, and calls here are DD_CLOSED. What is mapped stays until the last release. The caller makes sure (by a barrier) that
 * the others have finished. Idempotent. */
void dd_window_close(dd_window *window);
dd_window *dd_window_acquire(dd_window *window);
void dd_window_release(dd_window *window); /* NULL is fine; the last one closes */

/* ---- what there is */

size_t dd_window_nbytes(const dd_window *window, int rank); /* of the memory of a rank */
size_t dd_window_pad_nbytes(const dd_window *window);
int dd_window_nchannels(const dd_window *window); /* pad_nbytes / 4 / size */
/* Where this process sees the memory of a rank; NULL: it is reached by messages (or has no bytes). Stays valid while the window is held. */
void *dd_window_data(const dd_window *window, int rank);
/* The same of its pad: [channel][source]. NULL on other hosts. */
_Atomic uint32_t *dd_window_pad(const dd_window *window, int rank);

/* ---- one-sided */

#define DD_NO_CHANNEL (-1)

/* A part of the memory of a rank, as bytes from its start. */
typedef struct dd_window_place {
    int rank;
    size_t offset;
} dd_window_place;

/* Writes `source` there. It returns when `source` may be used again: the data are in place, or the transport has them. With a channel the
 * signal follows the data. To itself is fine, and so is a source that overlaps with what is written. A put that does not get through in
 * time, or is interrupted, is not taken back: it goes on from a copy. That a far rank has closed its window shows once it has said so,
 * by the next flush at the latest. */
dd_status dd_window_put(dd_window *window, dd_block source, dd_window_place to, int channel,
                        const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Reads from there into `target`, which has any of the bytes when that fails. From a far rank it sees what this one has put before. */
dd_status dd_window_get(dd_window *window, dd_block target, dd_window_place from, const dd_wait *wait,
                        dd_error *err) DD_MUST_CHECK;
/* The same without waiting: a work of the group (dd_group_wait), done already where memory is shared. `options` as in group.h, without a
 * record. */
dd_status dd_window_post_put(dd_window *window, dd_block source, dd_window_place to, int channel,
                             const dd_call_options *options, dd_work **work, dd_error *err) DD_MUST_CHECK;
dd_status dd_window_post_get(dd_window *window, dd_block target, dd_window_place from,
                             const dd_call_options *options, dd_work **work, dd_error *err) DD_MUST_CHECK;

/* Returns when everything put before from this rank, to all ranks, is in place there. */
dd_status dd_window_flush(dd_window *window, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- signals */

/* One more signal from this rank to `rank`: adds one to its word. Does not wait for the taker. */
dd_status dd_window_signal(dd_window *window, int rank, int channel, const dd_wait *wait,
                           dd_error *err) DD_MUST_CHECK;
/* The same, but the last one must have been taken: waits until the word is 0. DD_OP_TIMED_OUT says that `rank` has not taken it. The signal
 * is taken back then; a far rank does so when it hears of it, by the next flush at the latest. */
dd_status dd_window_signal_alone(dd_window *window, int rank, int channel, const dd_wait *wait,
                                 dd_error *err) DD_MUST_CHECK;
/* Takes one signal of `rank`; waits for it. DD_OP_TIMED_OUT names the rank; DD_PEER_LOST and the like as in group.h, within a second. */
dd_status dd_window_wait_signal(dd_window *window, int rank, int channel, const dd_wait *wait,
                                dd_error *err) DD_MUST_CHECK;
/* A flush, signal_alone to all ranks, then wait_signal from all: what anybody has put before is in place everywhere. */
dd_status dd_window_barrier(dd_window *window, int channel, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

#endif
