/* The layout of an arena's shared memory, and the rules by which ranks write and read it.
 *
 * Marks. All ranks number operations alike and publish their progress as *marks*: the number of the
 * operation and a *step* in it. Step 0 is the header. Round r of the data is step r, or r + 1 if
 * all ranks had to stage again. A rank writes its marks into its record of the operation;
 * ARENA_NRECORDS records are used cyclically.
 *   - A rank that publishes the header of an operation no longer reads data of earlier ones.
 *   - Every rank compares every header with its own call. A rank that needs data of all ranks
 *     compares first. Other ranks continue when they have their data: a root that only sends, and a
 *     rank that sends only to a root, need nothing; a receiver needs the root's header. These ranks
 *     *verify* the operation later, from their saved call: in later operations, and whenever they
 *     wait.
 *   - No rank publishes header n before it has verified operation n - ARENA_WINDOW. This limits how
 *     far a rank runs ahead and makes reuse of records safe: a rank that publishes header n has
 *     seen all headers n - ARENA_WINDOW, whose publishers had verified operation n - 2 *
 *     ARENA_WINDOW.
 *   - A receiver that publishes step s of an operation has finished reading the rounds up to s - 2
 *     (it stages a round before it reads the previous one, so that ranks work in parallel), or up
 *     to s - 1 if it reads first. Ranks that do not receive may skip steps.
 *
 * Space. A rank stages anywhere in its slot; its header contains the offset of round 0. For staged
 * data the rank keeps a *lease* with the mark at which all readers have finished, and writes to
 * that space again only when the readers have published the mark (lease.c). If an operation has
 * more rounds, round 0 fills a quarter of the slot, and later rounds fill the next quarters
 * cyclically. In a crowded arena, where ranks take turns on the cores, rounds from 1 on fill halves
 * and are read before the next one is staged.
 *
 * A large all_reduce moves in chunks (a *shared fold*) of two rounds each. First, all ranks stage
 * the parts of the chunk that other ranks need. Then each share of the chunk is folded by one rank
 * into memory that all ranks share, and all ranks copy the results out. Rank k folds share k. In a
 * crowded arena, the first rank that claims a share folds it, so that a running rank need not wait
 * for the others. A fold takes its sources in rank order, so the bits of the result do not depend
 * on the claims.
 *   - A rank folds after all ranks have staged the chunk, which also shows that they have read the
 *     previous results.
 *   - A rank stages the next chunk after all folding ranks have published that they are done. A
 *     rank can thus use its whole slot for every chunk except the first: round 0 is staged with the
 *     header.
 *   - A claim contains the number of the claiming rank, so that waiting ranks can detect the death
 *     of this rank.
 *
 * If data is read from its owner's region, one more step follows: every reader publishes that it
 * has finished, and the owners of the regions wait for all readers. An all_reduce in place has
 * another step if an output does not begin or end on a page boundary: other ranks write only whole
 * pages (regions.c), and each rank copies the missing bytes from the rank that folded them. */
#ifndef DD_COLLECTIVE_ARENA_LAYOUT_H
#define DD_COLLECTIVE_ARENA_LAYOUT_H

#include "collective/arena/arena.h"
#include "core/cpu.h"

#include <stdatomic.h>

#define ARENA_NBUFFERS 4
#define ARENA_WINDOW 8 /* maximum number of operations since a rank's last verified one */
#define ARENA_NRECORDS (2 * ARENA_WINDOW)
#define ARENA_LINE ((size_t)64)
/* Data of different ranks is two cache lines apart, because processors fetch lines in pairs. */
#define ARENA_SPACING ((size_t)128)
#define ARENA_PAGE ((size_t)4096)
/* Data of at least this size is staged in a new place each time, unless ranks share cores and
 * caches. */
#define ARENA_ROTATED_MIN_BYTES ((size_t)4096)
/* Maximum bytes of a chunk that a rank stages. Larger chunks leave the nearest caches before they
 * are folded. */
#define ARENA_CHUNK_BYTES ((size_t)262144)
#define ARENA_RESULTS_BYTES ((size_t)524288)
#define ARENA_RESULTS_SPACE_BYTES ((size_t)1 << 20) /* results of smaller chunks rotate in it */

/* Indices of the words of a record after its mark. Small data is sent in the header itself: an
 * 8-byte all_reduce moves one cache line from rank to rank. For data in regions, which needs no
 * payload, the payload words hold the regions' ids and offsets. */
enum {
    ARENA_WORD_SIGNATURE = 0, /* a dd_signature, in three words */
    ARENA_WORD_NBYTES = 3,
    ARENA_WORD_FLAGS = 4,
    ARENA_WORD_PAYLOAD = 5,
    ARENA_WORD_INPUT_ID = 5,
    ARENA_WORD_INPUT_OFFSET = 6,
    ARENA_WORD_OUTPUT_ID = 7,
    ARENA_WORD_OUTPUT_OFFSET = 8,
    ARENA_WORD_OFFSET = 9, /* offset of round 0 in the slot; upper half: stride between parts */
    ARENA_NWORDS = 15,
};
#define ARENA_PAYLOAD_WORDS (ARENA_NWORDS - ARENA_WORD_PAYLOAD)
#define ARENA_PAYLOAD_BYTES ((size_t)ARENA_PAYLOAD_WORDS * 8)
#define ARENA_SIGNATURE_WORDS (sizeof(dd_signature) / 8)

/* Flags of a header: where a rank's data is, and in which form. */
enum {
    ARENA_HAS_TABLES = 1 << 0, /* blocks differ in size: the sizes are in the tables */
    ARENA_IS_PARTIAL = 1 << 1,
    ARENA_IS_INLINE = 1 << 2,    /* the data is in the record */
    ARENA_IN_REGION = 1 << 3,    /* inputs are read directly from a region of the rank */
    ARENA_IN_PLACE = 1 << 4,     /* an all_reduce; input and output in regions, nothing staged */
    ARENA_SHARES_PAGES = 1 << 5, /* in place: an edge page of the output has other data */
    ARENA_ALL_FLAGS = (1 << 6) - 1,
};

typedef enum arena_table {
    ARENA_TABLE_SENT,     /* [k]: number of bytes sent to rank k */
    ARENA_TABLE_RECEIVED, /* [k]: number of bytes expected from rank k */
    ARENA_NTABLES,
} arena_table;

#define ARENA_CLAIM_BITS 9
_Static_assert(DD_ARENA_MAX_RANKS <= 1 << ARENA_CLAIM_BITS, "a claim has room for every rank");

/* One bit for each rank. A rank sets its own bit; other ranks may clear it. */
typedef _Atomic uint64_t arena_bits[DD_ARENA_MAX_RANKS / 64];

typedef struct arena_record {
    _Alignas(128) _Atomic uint64_t mark; /* stored with release; covers all data written before */
    /* Relaxed: a faulty rank may write anything at any time. Read each word once, then check it. */
    _Atomic uint64_t words[ARENA_NWORDS];
} arena_record;

/* Memory that only its own rank writes, except `claim`. The slot's tables and buffers follow. */
typedef struct arena_control {
    arena_record records[ARENA_NRECORDS];   /* index: number of the operation % ARENA_NRECORDS */
    _Alignas(128) _Atomic uint32_t awaited; /* the only rank that wakes this one from its sleep */
    _Atomic uint32_t cpu;                   /* CPU of the last publication, plus 1; 0 if unknown */
    _Atomic uint32_t poisoned_from;         /* if failed: the first operation not ended */
    /* The claim to fold this rank's share of a chunk, written by the claiming rank: the chunk's
     * number since the arena's creation; in the lower ARENA_CLAIM_BITS, the claiming rank. */
    _Alignas(128) _Atomic uint64_t claim;
} arena_control;

/* The layout of the memory, and the numbers that determine the steps of an operation. All are const
 * after creation. A rank may attach only if all numbers equal its own, because ranks of builds with
 * different numbers would wait for each other forever. */
typedef struct arena_geometry {
    uint64_t magic;
    uint64_t version;
    uint64_t nranks;
    uint64_t nbytes;
    uint64_t nrecords;
    uint64_t nbuffers;
    uint64_t buffer_nbytes;
    uint64_t staging_nbytes; /* bytes for staging in a slot; at least the size of its buffers */
    uint64_t spacing;
    uint64_t header_nbytes;
    uint64_t control_nbytes;
    uint64_t payload_nbytes;
    uint64_t chunk_nbytes;
    uint64_t results_nbytes;
    uint64_t results_space_nbytes;
    uint64_t boards_nbytes;
    uint64_t fold_min_nbytes; /* result of dd_arena_fold_min if the arena is not crowded */
    uint64_t crowded_fold_min_nbytes;
    uint64_t claimed_share_nbytes;
} arena_geometry;

typedef struct arena_shared {
    arena_geometry geometry;
    uint64_t is_crowded;                        /* const: the creator's is_crowded */
    _Atomic uint64_t cpus[DD_CPU_SET_MAX / 64]; /* union of the CPUs that the ranks may use */
    /* The next three bit sets are read at every publication, and written rarely. */
    _Alignas(128) arena_bits asleep; /* ranks that sleep and must be woken */
    arena_bits poisoned;             /* failed ranks; never cleared */
    arena_bits unregistered;         /* ranks whose process is not registered for fences (sync.c) */
    /* One bit for each collective: stage its data past the caches. A hint from ranks that have
     * timed both ways (copy.c); written rarely, and read once per operation. */
    _Alignas(128) _Atomic uint32_t streaming;
} arena_shared;

/* ---- marks */

/* Steps after all rounds. FOLDED: the rank has folded its share in place. CLOSED: the rank has
 * finished with all regions. */
enum {
    ARENA_STEP_FOLDED = 0x40000000,
    ARENA_STEP_CLOSED = 0x40000001,
};

static inline uint64_t
dd_arena_mark(uint32_t number, uint32_t step)
{
    return (uint64_t)number << 32 | step;
}

/* Return true if `mark` is equal to `wanted` or later. Operation numbers wrap around. */
static inline bool
dd_arena_is_reached(uint64_t mark, uint64_t wanted)
{
    return (int64_t)(mark - wanted) >= 0;
}

#endif
