/* The arena: memory shared by the ranks of one host, and the collectives that use it instead of
 * messages.
 *
 * Every rank has a *slot* that only this rank writes. An operation consists of *rounds*. In each
 * round, every rank writes its part of the data into its slot, publishes the round, waits until all
 * ranks have published theirs, and reads what it needs from their slots. Slots have several
 * buffers, so that readers need not acknowledge: a rank that publishes a round has finished reading
 * rounds well before it. The first round carries the signature of the operation, and all ranks
 * compare all signatures. An operation that needs data of all ranks compares them before it writes
 * any output. Three kinds of ranks do not wait for all others: a root that sends, a rank that sends
 * to a root, and a receiver that needs only the root. These ranks run at most a few operations
 * ahead, and compare later, when the headers are present.
 *
 * An arena has no engine, clock or sleep: dd_arena_progress advances as far as it can. At most one
 * operation is under way; the owner serialises all calls. Sizes and offsets from other ranks are
 * checked before use. Reductions fold in rank order (LINEAR, see plan.h). */
#ifndef DD_COLLECTIVE_ARENA_H
#define DD_COLLECTIVE_ARENA_H

#include "collective/coll.h"
#include "transport/signature.h"

typedef struct dd_arena dd_arena;

#define DD_ARENA_MAX_RANKS 512

/* A set of an arena's ranks, one bit each. */
typedef struct dd_arena_ranks {
    uint64_t words[DD_ARENA_MAX_RANKS / 64];
} dd_arena_ranks;

static inline bool
dd_arena_ranks_have(const dd_arena_ranks *ranks, int k)
{
    return (ranks->words[k / 64] >> k % 64 & 1) != 0;
}

static inline void
dd_arena_ranks_add(dd_arena_ranks *ranks, int k)
{
    ranks->words[k / 64] |= UINT64_C(1) << k % 64;
}

static inline void
dd_arena_ranks_remove(dd_arena_ranks *ranks, int k)
{
    ranks->words[k / 64] &= ~(UINT64_C(1) << k % 64);
}

/* Remove and return the lowest rank; -1 if the set is empty. */
static inline int
dd_arena_ranks_pop(dd_arena_ranks *ranks)
{
    for (int i = 0; i < DD_ARENA_MAX_RANKS / 64; i++) {
        if (ranks->words[i] != 0) {
            int bit = __builtin_ctzll(ranks->words[i]);
            ranks->words[i] &= ranks->words[i] - 1;
            return 64 * i + bit;
        }
    }
    return -1;
}

/* Create the memory of an arena for nranks ranks, as a sealed memfd; close *fd with dd_fork_close.
 * Untouched pages use no memory; the size of all pages is dd_arena_nbytes: about 256 KiB per rank
 * and 1 MiB of results, at least 2 MiB. Pass is_crowded if there are more ranks than cores: ranks
 * then take turns, and in an all_reduce any running rank does the work that is left. */
dd_status dd_arena_create(int nranks, bool is_crowded, int *fd, dd_error *err) DD_MUST_CHECK;
size_t dd_arena_nbytes(int nranks);
/* Map the arena's memory as rank `rank`. The caller keeps `fd`. DD_PROTOCOL if `fd` is not an arena
 * for nranks ranks, or was created by a build with another layout. */
dd_status dd_arena_attach(int fd, int nranks, int rank, dd_arena **arena, dd_error *err) DD_MUST_CHECK;
void dd_arena_add_cpus(dd_arena *arena); /* publish the CPUs on which this rank may run */
/* Return true if there are more ranks than CPUs or the creator passed is_crowded; all ranks get the
 * same result. Call after all ranks have attached and added their CPUs, and before the first
 * operation. */
bool dd_arena_is_crowded(dd_arena *arena);
void dd_arena_close(dd_arena *arena); /* `arena` may be NULL */

/* Return the bytes of this rank's data memory: its slot and, on rank 0, the results. */
size_t dd_arena_data_nbytes(const dd_arena *arena);
/* Return this rank's data memory to the system; later writes allocate it again. Must be called
 * between operations, after all ranks have finished reading. */
dd_status dd_arena_release_memory(dd_arena *arena, dd_error *err) DD_MUST_CHECK;

/* Publish that this rank has failed. The first operation that this rank has not ended fails on all
 * ranks, and so do all later ones:
 *   - A rank that has not opened such an operation (published its header) stays blocked in it until
 *     the rank's owner cancels it. So a late rank does not succeed in an operation that failed on
 *     other ranks.
 *   - A rank that has opened the operation continues as far as the data in the arena allows, and
 *     may end it. The rank stays blocked if the operation reduces in place or reads regions of the
 *     failed rank, because the failed rank's caller may write other data there.
 * Call this while no thread moves data of the operation under way. */
void dd_arena_poison(dd_arena *arena);
/* Call after dd_arena_poison: find the bytes of this rank that other ranks may still write for the
 * operation under way. Return false if there are none. The caller must detach these bytes from the
 * shared memory, because a rank that is stopped in the middle of a copy cannot be waited for. */
bool dd_arena_find_written(const dd_arena *arena, dd_block *block);

/* ---- regions: memory of a rank that other ranks map, so that its data need not be copied into
 * slots */

/* Add a mapped region of rank `owner`. For this rank's own, `nbytes` is only the part in use. `id`
 * is the owner's number of the region, from 1. Keep it mapped while an operation uses it. */
dd_status dd_arena_add_region(dd_arena *arena, int owner, uint32_t id, void *base, size_t nbytes,
                              dd_error *err) DD_MUST_CHECK;
void dd_arena_remove_region(dd_arena *arena, int owner, uint32_t id);

/* ---- operations */

typedef struct dd_arena_op_options {
    dd_signature signature;
    uint64_t sequence; /* number of the operation, as reported in dd_arena_mismatch */
    /* Called after this rank has published, for each rank that must be woken. May be NULL. */
    void (*wake)(void *ctx, int rank);
    /* Called if a region of another rank is needed and has not been added. The operation stays
     * blocked until dd_arena_add_region adds the region. May be NULL. */
    void (*want_region)(void *ctx, int owner, uint32_t id);
    void *ctx;
} dd_arena_op_options;

/* Start an operation. `args` and its block arrays must stay valid until the operation ends.
 * args->root is a rank of the arena; the stage of a reduction is WHOLE or FIRST. Blocks may differ
 * in size in all_gather, reduce_scatter, all_to_all, gather and scatter. */
void dd_arena_start(dd_arena *arena, const dd_coll_args *args, const dd_arena_op_options *options);

typedef enum dd_arena_state {
    DD_ARENA_BLOCKED, /* other ranks are awaited; the call changed nothing */
    DD_ARENA_MOVED,   /* progress was made: call again */
    DD_ARENA_DONE,
    DD_ARENA_MISMATCH, /* two ranks disagree (dd_arena_get_mismatch); the arena is unusable */
    DD_ARENA_BROKEN,   /* another rank wrote malformed data into the arena */
} dd_arena_state;

/* Advance the operation by at most about a chunk of work, which takes tens of microseconds. */
dd_arena_state dd_arena_progress(dd_arena *arena);
/* Return true if dd_arena_progress would return DD_ARENA_BLOCKED until another rank publishes.
 * Cheap enough for polling: copies and compares nothing. After false, call dd_arena_progress, which
 * may still return DD_ARENA_BLOCKED. Both functions cancel an earlier dd_arena_fall_asleep. */
bool dd_arena_is_blocked(dd_arena *arena);

/* Call before sleeping: if an awaited rank publishes later, its `wake` is called for this rank.
 * Return false if the awaited rank has published already: do not sleep. */
bool dd_arena_fall_asleep(dd_arena *arena);

dd_arena_ranks dd_arena_missing(const dd_arena *arena); /* ranks that must publish next */

void dd_arena_note_cpu(dd_arena *arena); /* publish this thread's CPU; publications also do */
/* Return true if rank k, or one of the missing ranks, was last seen on this thread's CPU: that rank
 * can publish only after the caller yields the CPU. */
bool dd_arena_must_yield_to(const dd_arena *arena, int k);
bool dd_arena_must_yield(const dd_arena *arena);

/* Two ranks that disagree, after DD_ARENA_MISMATCH. If this rank is one of the two, it is
 * `other`. */
typedef struct dd_arena_mismatch {
    int rank;
    int other;
    dd_signature signature;       /* signature of the call of `rank` */
    dd_signature other_signature; /* signature of the call of `other` */
    uint64_t sequence;            /* number of the operation in which they differ; maybe earlier */
    bool is_size;
    uint64_t nbytes, other_nbytes; /* if is_size: block size on `rank` and on `other` */
} dd_arena_mismatch;
dd_arena_mismatch dd_arena_get_mismatch(const dd_arena *arena);

#endif
