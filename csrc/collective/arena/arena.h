/* The arena: memory that the ranks of one host share, and the collectives that go through it without a
 * message.
 *
 * Every rank has a *slot* that only it writes. An operation is a number of *rounds*: in each, every rank
 * writes its part of the data into its slot and publishes the round, waits until all have published theirs,
 * and reads from their slots what it needs. Slots have several buffers, so that nobody has to be told that a
 * buffer has been read: a rank that publishes a round has finished reading the rounds well before it. The first round
 * carries the signature of the operation, and all ranks compare all signatures. An operation that needs the
 * data of all ranks compares them before any output is written. Three kinds
 * of ranks do not wait for the others: a root that sends, a rank that sends to a root, and a receiver, which needs
 * the root alone. They are a few operations ahead at most, and compare in a later one, as soon as the others'
 * headers are there.
 *
 * An arena knows no engine, no clock and no sleep: progress() goes as far as it can. One operation at a time;
 * the owner serialises all calls. What other ranks write is a peer's word: sizes and offsets are checked
 * before use. Reductions fold in rank order (LINEAR, see plan.h). */
#ifndef DD_COLLECTIVE_ARENA_H
#define DD_COLLECTIVE_ARENA_H

#include "collective/coll.h"
#include "transport/signature.h"

typedef struct dd_arena dd_arena;

#define DD_ARENA_MAX_RANKS 512

/* Some of an arena's ranks, a bit each. */
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

/* Takes the lowest out; -1 when there is none. */
static inline int
dd_arena_ranks_take(dd_arena_ranks *ranks)
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

/* Makes the memory, a sealed memfd, for nranks; *fd is the caller's, to be closed by dd_fork_close. Untouched
 * parts cost nothing; all of it is bounded by dd_arena_nbytes, about 256 KiB a rank beside 1 MiB of results, and 2 MiB at least.
 * is_crowded: there are more ranks than cores, so ranks take turns, and in an all_reduce any rank that runs
 * does what there is to do. */
dd_status dd_arena_create(int nranks, bool is_crowded, int *fd, dd_error *err) DD_MUST_CHECK;
size_t dd_arena_nbytes(int nranks);
/* Maps it as one of its ranks; the descriptor stays the caller's. DD_PROTOCOL when it is not an arena of that
 * shape, or was made by a build that lays it out otherwise. */
dd_status dd_arena_attach(int fd, int nranks, int rank, dd_arena **arena, dd_error *err) DD_MUST_CHECK;
/* Says on which CPUs this rank may run: each rank may be bound to some of its own. */
void dd_arena_add_cpus(dd_arena *arena);
/* Once all ranks have attached and said that, and before the first operation: whether there are more ranks than CPUs, by
 * that or by what the maker said. All ranks get the same answer. */
bool dd_arena_is_crowded(dd_arena *arena);
void dd_arena_close(dd_arena *arena); /* NULL is fine */

/* What this rank answers for of the memory through which data goes: its slot, and of the results one rank. */
size_t dd_arena_data_nbytes(const dd_arena *arena);
/* Gives it back to the system; what is written there takes it again. Between operations: every rank has done with what it has read. */
dd_status dd_arena_give_back(dd_arena *arena, dd_error *err) DD_MUST_CHECK;

/* Publish that this rank has failed. The first operation that it has not ended, and all operations after that one, fail:
 *   - A rank that has not opened such an operation does not open it: it stays blocked until its owner ends it. So a rank
 *     that is late does not succeed in an operation that others have failed in.
 *   - A rank that has opened it goes on as far as the data in the arena allows, and may end it: the data that it needs is
 *     complete. Exceptions are operations that reduce in place and operations that read this rank's regions, since the
 *     caller of this rank may write other data there. They stay blocked.
 * Call it with no thread moving the data of the operation under way. */
void dd_arena_poison(dd_arena *arena);
/* After dd_arena_poison: the bytes of ours that other ranks may still write for the operation under way.
 * False: there are none. A rank that has been stopped in the middle of a copy cannot be waited for, so the
 * memory has to be taken from it. */
bool dd_arena_find_written(const dd_arena *arena, dd_block *block);

/* ---- regions: memory of one rank that the others can look into, so that their data need not be copied into
 * slots */

/* Another rank's (or our own) memory, mapped; of our own, the bytes that are in use. The caller keeps it
 * while an operation looks into it. `id` is the owner's numbering, from 1. */
dd_status dd_arena_add_region(dd_arena *arena, int owner, uint32_t id, void *base, size_t nbytes,
                              dd_error *err) DD_MUST_CHECK;
void dd_arena_remove_region(dd_arena *arena, int owner, uint32_t id);

/* ---- operations */

typedef struct dd_arena_op_options {
    dd_signature signature;
    uint64_t sequence; /* for dd_arena_culprit */
    /* Told whom to wake after a publication; may be NULL. */
    void (*wake)(void *ctx, int rank);
    /* A region of another rank that we have not been given yet; the operation waits until
     * dd_arena_add_region. May be NULL. */
    void (*want_region)(void *ctx, int owner, uint32_t id);
    void *ctx;
} dd_arena_op_options;

/* `args` (with its block arrays) stays valid until the operation ends. root is a rank of the arena. A
 * reduction is WHOLE or FIRST. Uneven blocks are fine in all_gather, reduce_scatter, all_to_all, gather and scatter. */
void dd_arena_start(dd_arena *arena, const dd_coll_args *args, const dd_arena_op_options *options);

typedef enum dd_arena_state {
    DD_ARENA_BLOCKED, /* waits for others; nothing has happened in this call */
    DD_ARENA_MOVED,   /* got somewhere: call again */
    DD_ARENA_DONE,
    DD_ARENA_MISMATCH, /* dd_arena_culprit tells who and what; the arena is of no use any more */
    DD_ARENA_BROKEN,   /* another rank wrote nonsense */
} dd_arena_state;

/* One call does at most about a chunk of work (some tens of microseconds), so that others get their turn. */
dd_arena_state dd_arena_progress(dd_arena *arena);
/* True if dd_arena_progress would return DD_ARENA_BLOCKED until another rank publishes. Use it to
 * poll: it copies nothing and compares nothing. After false, call dd_arena_progress, which may
 * still return DD_ARENA_BLOCKED. Like dd_arena_progress, it cancels dd_arena_fall_asleep. */
bool dd_arena_is_blocked(dd_arena *arena);

/* Before sleeping: from now on publications of others make them `wake` us. False when one has come: do not
 * sleep. */
bool dd_arena_fall_asleep(dd_arena *arena);

/* Ranks that have not published what we wait for; none when we wait for nothing. */
dd_arena_ranks dd_arena_missing(const dd_arena *arena);

/* Tells the others on which CPU this rank runs. Operations do so themselves. */
void dd_arena_note_cpu(dd_arena *arena);
/* True if rank k, or one of the missing ranks, was last seen on the CPU that this thread runs on: it can only publish if the
 * caller yields the CPU. */
bool dd_arena_must_make_way_for(const dd_arena *arena, int k);
bool dd_arena_must_make_way(const dd_arena *arena);

/* After MISMATCH: two ranks that disagree, `other` being this one where it is one of them; the signature of
 * the first, and where block sizes do not fit, both numbers of bytes. */
typedef struct dd_arena_culprit {
    int rank;
    int other;
    dd_signature signature;       /* of what rank has called */
    dd_signature other_signature; /* ... and other */
    uint64_t sequence; /* of the operation: this one, or an earlier one that has been compared only now */
    bool is_size;
    uint64_t theirs, ours; /* of rank, of other */
} dd_arena_culprit;
dd_arena_culprit dd_arena_get_culprit(const dd_arena *arena);

#endif
