/* The layout of an arena's shared memory, and the rules by which ranks write and read it.
 *
 * Marks. Every rank counts operations alike, and says how far it has come by *marks*: the number of the
 * operation, and a *step* of it. Step 0 is the header; round r of the data is step r, or r + 1 where all had
 * to stage anew. A rank writes its marks into its record of that operation. There are ARENA_NRECORDS records,
 * used in turn.
 *
 *   - A rank that publishes the header of an operation reads nothing of earlier ones any more.
 *   - Every rank compares every header with its own call. A rank that needs data of all ranks does so before
 *     it goes on. The others go on when they have what they need: a root that only sends, and a rank that
 *     sends to a root alone, need nothing; a receiver needs the root's header. They *settle* the operation
 *     later, with what they have kept of their call: in their next operations, and whenever they wait.
 *   - No rank publishes header n before it has settled operation n - ARENA_WINDOW. That is how far it may run
 *     ahead, and why records may be used again: a rank that publishes header n has seen all headers
 *     n - ARENA_WINDOW, and each rank that published one of these had settled n - 2 * ARENA_WINDOW.
 *   - A receiver that publishes step s of an operation has finished reading the rounds up to s - 2 (it stages
 *     a round before it reads the last one, so that ranks work side by side), or up to s - 1 where it reads
 *     first. Ranks that do not receive may leave out steps.
 *
 * Space. A rank stages where it likes in its slot, and its header says where round 0 is. It keeps a *lease*
 * for what it has staged, with the mark at which all readers have finished with it, and writes there again
 * when they have published that mark (lease.c). Of an operation with more rounds, round 0 fills a
 * quarter of the slot, and the others the quarters after it in turn; where ranks take turns anyway
 * (crowded), rounds from 1 on fill halves and are read before the next one is staged.
 *
 * An all_reduce of some size goes in chunks (a *shared fold*), each of two rounds: all stage the chunk, or
 * what others need of it, and after that each share of it is folded by one rank, the results lie in memory
 * that all ranks share, and everybody copies them out. Who folds: share k is rank k's. In a crowded arena it
 * is the first rank that claims it, so that a rank that runs need not wait until all others have run; all
 * sources of a fold are in rank order, so the bits do not depend on who has claimed.
 *   - A rank folds when all have staged the chunk, and so have read the results before it: they may be written
 *     over.
 *   - A rank stages the next chunk when all who fold have published that they are done, so it may use its
 *     whole slot for every chunk but the first, which is round 0, and is staged with the header.
 *   - A claim names its rank, so that those that wait for it know the rank that died with it.
 *
 * Data read from a region of its owner ends with one more step, in which every reader says that it has read,
 * and for which the owners of the regions wait. An all_reduce in place has another one where an output does
 * not begin or end with a page: others write only to whole pages (see regions.c), and each rank takes
 * what is missing from the rank that has folded it. */
#ifndef DD_COLLECTIVE_ARENA_LAYOUT_H
#define DD_COLLECTIVE_ARENA_LAYOUT_H

#include "collective/arena/arena.h"
#include "core/cpu.h"

#include <stdatomic.h>

#define ARENA_NBUFFERS 4
/* How many operations a rank may be ahead of what it has compared, and the records that this takes. */
#define ARENA_WINDOW 8
#define ARENA_NRECORDS (2 * ARENA_WINDOW)
#define ARENA_LINE ((size_t)64)
/* Processors fetch lines in pairs: what different ranks write is kept two lines apart. */
#define ARENA_SPACING ((size_t)128)
#define ARENA_PAGE ((size_t)4096)
/* From here on data is staged in another place every time, unless ranks share cores, and their caches. */
#define ARENA_ROTATED_MIN_BYTES ((size_t)4096)
/* What a rank stages of a chunk at most. Larger ones are not in the nearest caches any more when they are
 * folded. */
#define ARENA_CHUNK_BYTES ((size_t)262144)
#define ARENA_RESULTS_BYTES ((size_t)524288)
/* Results of smaller chunks lie in turn in all of this. */
#define ARENA_RESULTS_SPACE_BYTES ((size_t)1 << 20)

/* The words of a record behind the mark. Data that fits travels in the header itself; an 8-byte all_reduce
 * then moves one cache line from rank to rank. Data in regions leaves no use for a payload. */
enum {
    ARENA_WORD_SIGNATURE = 0, /* three words */
    ARENA_WORD_NBYTES = 3,
    ARENA_WORD_FLAGS = 4,
    ARENA_WORD_PAYLOAD = 5,
    ARENA_WORD_INPUT_ID = 5,
    ARENA_WORD_INPUT_OFFSET = 6,
    ARENA_WORD_OUTPUT_ID = 7,
    ARENA_WORD_OUTPUT_OFFSET = 8,
    ARENA_WORD_PLACE =
        9, /* where in the slot round 0 is; in the upper half, from one rank's part to the next */
    ARENA_NWORDS = 15,
};
#define ARENA_PAYLOAD_WORDS (ARENA_NWORDS - ARENA_WORD_PAYLOAD)
#define ARENA_PAYLOAD_BYTES ((size_t)ARENA_PAYLOAD_WORDS * 8)
#define ARENA_SIGNATURE_WORDS (sizeof(dd_signature) / 8)

/* How a header describes its rank's part. */
enum {
    ARENA_HAS_TABLES = 1 << 0, /* blocks differ in size: see the tables */
    ARENA_IS_PARTIAL = 1 << 1,
    ARENA_IS_INLINE = 1 << 2, /* the data is in the record */
    ARENA_IN_REGION = 1 << 3, /* inputs are read from where they are */
    ARENA_IN_PLACE =
        1 << 4, /* all_reduce: input and output are both in regions; nothing is staged with the header */
    ARENA_SHARES_PAGES = 1 << 5, /* in place: others' bytes are in the first or the last page of the output */
    ARENA_ALL_FLAGS = (1 << 6) - 1,
};

typedef enum arena_table {
    ARENA_TABLE_SENT,     /* [k]: bytes for rank k */
    ARENA_TABLE_RECEIVED, /* [k]: bytes expected from rank k */
    ARENA_NTABLES,
} arena_table;

#define ARENA_CLAIM_BITS 9
_Static_assert(DD_ARENA_MAX_RANKS <= 1 << ARENA_CLAIM_BITS, "a claim has room for every rank");

/* A bit for each rank, which that rank sets, and others may clear. */
typedef _Atomic uint64_t arena_bits[DD_ARENA_MAX_RANKS / 64];

typedef struct arena_record {
    _Alignas(128) _Atomic uint64_t mark; /* release: covers all that was written for it */
    /* Relaxed: whatever a hostile rank does, each is read once, and checked. */
    _Atomic uint64_t words[ARENA_NWORDS];
} arena_record;

/* What only its rank writes, but for the claim. Tables and buffers follow. */
typedef struct arena_control {
    arena_record records[ARENA_NRECORDS];   /* by the number of the operation */
    _Alignas(128) _Atomic uint32_t awaited; /* asleep: the one rank whose publication is to wake us */
    _Atomic uint32_t cpu;                   /* where it last published, counted from 1; 0: not known */
    _Atomic uint32_t
        given_up; /* if poisoned: the number of the first operation that the rank has not ended */
    /* The claim to fold this rank's share of a chunk: the number of the chunk, counted since the arena was made, and in the lower
     * ARENA_CLAIM_BITS the rank that claims it. That rank writes the word. */
    _Alignas(128) _Atomic uint64_t claim;
} arena_control;

/* How the memory is laid out, and what decides how many steps an operation takes. Ranks of other builds may
 * have other numbers, and would wait for what never comes: a rank attaches only to an arena whose numbers are
 * its own. */
typedef struct arena_geometry {
    uint64_t magic; /* const after creation, as are these */
    uint64_t version;
    uint64_t nranks;
    uint64_t nbytes;
    uint64_t nrecords;
    uint64_t nbuffers;
    uint64_t buffer_nbytes;
    uint64_t staging_nbytes; /* of a slot: its buffers, or more */
    uint64_t spacing;
    uint64_t header_nbytes;
    uint64_t control_nbytes;
    uint64_t payload_nbytes;
    uint64_t chunk_nbytes;
    uint64_t results_nbytes;
    uint64_t results_space_nbytes;
    uint64_t boards_nbytes;
    uint64_t fold_min_nbytes; /* see dd_arena_fold_min */
    uint64_t crowded_fold_min_nbytes;
    uint64_t claimed_share_nbytes;
} arena_geometry;

typedef struct arena_shared {
    arena_geometry geometry;
    uint64_t is_crowded;                        /* const: more ranks than cores, says the maker */
    _Atomic uint64_t cpus[DD_CPU_SET_MAX / 64]; /* that some rank may run on; none before all have said it */
    /* Read at every publication, written seldom. */
    _Alignas(128) arena_bits asleep; /* ranks to be woken */
    arena_bits poisoned;             /* that have given up; never cleared */
    arena_bits unregistered;         /* whose process cannot be fenced by another yet (see sync.c) */
    /* Hints from ranks that have tried both ways, a bit for each collective: it is staged past the caches. They are
     * written seldom, and read once an operation. */
    _Alignas(128) _Atomic uint32_t streaming;
} arena_shared;

/* ---- marks */

/* Steps behind all rounds: all of an operation in place is folded; all regions are read. */
enum {
    ARENA_STEP_FOLDED = 0x40000000,
    ARENA_STEP_CLOSED = 0x40000001,
};

static inline uint64_t
dd_arena_mark(uint32_t number, uint32_t step)
{
    return (uint64_t)number << 32 | step;
}

/* Numbers begin again after the last one. */
static inline bool
dd_arena_is_reached(uint64_t mark, uint64_t wanted)
{
    return (int64_t)(mark - wanted) >= 0;
}

#endif
