/* One rank's state of an arena, and the functions that its files call in each other.
 *
 * Each file builds on the files before it: arena.c creates and maps the memory; board.c has the
 * boards; sync.c publishes, waits, sleeps and wakes; lease.c allocates space; header.c writes
 * headers and compares them; regions.c finds memory in regions; copy.c copies; fold.c does the
 * shared folds; move.c moves other data; op.c advances the operation. The rules are at the top of
 * layout.h. */
#ifndef DD_COLLECTIVE_ARENA_STATE_H
#define DD_COLLECTIVE_ARENA_STATE_H

#include "collective/arena/layout.h"
#include "kernels/copy_trial.h"

typedef struct arena_board arena_board;
typedef struct arena_board_head arena_board_head;
size_t dd_arena_boards_nbytes(int nranks);

/* One rank's part of the shared memory. */
typedef struct arena_slot {
    arena_control *control;
    /* [ARENA_NRECORDS][ARENA_NTABLES][nranks]: bytes of each block. */
    _Atomic uint64_t *tables;
    _Atomic uint64_t *offsets; /* [k]: in its region, offset of the block for rank k */
    uint8_t *buffers;
} arena_slot;

typedef struct arena_region {
    int owner;
    uint32_t id;
    uint8_t *base;
    size_t nbytes;
} arena_region;

/* The part of a rank's header that describes the rank's blocks, read once from shared memory. */
typedef struct arena_block_info {
    uint64_t nbytes;  /* bytes of every block, if the rank has no tables */
    uint64_t largest; /* bytes of the largest block that the rank sends to another rank */
    uint64_t flags;
} arena_block_info;

/* One rank's data in the operation under way. There is an entry for this rank as well. */
typedef struct arena_peer {
    size_t offset; /* byte offset of round 0 in the rank's slot */
    size_t stride; /* bytes in the slot from the part for one rank to the next part */
    uint64_t payload[ARENA_PAYLOAD_WORDS];
    const uint8_t *input; /* the rank's data if it is in a region; else NULL */
    uint8_t *output;      /* the rank's output if the operation is in place */
    size_t lead, tail;    /* edges: bytes at both ends of `output` that only that rank writes */
} arena_peer;

/* The regions and offsets of this rank's data, as written in its header. */
typedef struct arena_offer {
    uint64_t input_id, input_offset;
    uint64_t output_id, output_offset;
} arena_offer;

/* This rank's call, kept until all other ranks' headers have been compared with it. */
typedef struct arena_call {
    const dd_coll_traits *traits;
    int root;
    uint64_t sequence;
    uint64_t signature_words[ARENA_SIGNATURE_WORDS];
    uint64_t nbytes;
    uint64_t flags;
} arena_call;

#define ARENA_NLEASES 16

/* A part of this rank's slot that other ranks may still be reading. */
typedef struct arena_lease {
    size_t begin, end;
    uint64_t mark; /* the mark that each reader publishes when it has finished */
    int reader;    /* the only rank that reads, or -1 if all ranks read */
} arena_lease;

typedef enum arena_phase {
    ARENA_IDLE,
    ARENA_OPENING,          /* this rank's header has not been published */
    ARENA_AWAITING_HEADERS, /* waiting for other ranks' headers */
    ARENA_MAPPING,          /* waiting until other ranks' regions are mapped */
    ARENA_ROUNDS,
    ARENA_IN_PLACE_FOLD,
    ARENA_EDGES,   /* waiting until other ranks have folded the ends of this rank's output */
    ARENA_CLOSING, /* waiting until other ranks have read this rank's region */
} arena_phase;

/* Times copies through the caches and past them, to choose the faster of the two (copy.c). */
typedef struct arena_trial {
    dd_copy_trial copies; /* durations of the timed operations in ns */
    size_t nbytes;        /* bytes of each timed operation; other sizes are not timed */
    int64_t from_ns;      /* when this operation's clock was last started */
    int64_t taken_ns;     /* time of this operation, measured before from_ns */
} arena_trial;

/* The operation under way. */
typedef struct arena_op {
    const dd_coll_args *args;
    dd_arena_op_options options;
    arena_call *call;
    arena_phase phase;

    /* Bytes of each of this rank's blocks, as input elements; if blocks differ in size, of the
     * largest block that this rank sends. */
    size_t nbytes;
    size_t in_size;  /* bytes of an input element */
    size_t out_size; /* bytes of an element of the result */
    int nfolded;     /* number of ranks, from 0 on, whose inputs this rank folds */
    arena_offer offer;
    bool is_shared_fold; /* the operation is an all_reduce in chunks (layout.h) */
    bool is_claimed;     /* each share is folded by the first rank that claims it */
    bool reads_first;    /* each round is read before the next round is staged */
    bool is_wide;        /* later rounds fill halves of the slot, not quarters */
    size_t first_nbytes; /* bytes of a block (part) in round 0, or of a share in chunk 0 */
    size_t round_nbytes; /* bytes of a block (part) or of a share in later rounds */

    uint32_t data_step; /* step of round 0: 0, or 1 if all had to stage again */
    uint64_t nrounds;
    bool is_in_place;    /* an all_reduce with all inputs and outputs in regions */
    bool is_region_read; /* a rank in `known` has data in a region: one more step */
    bool has_edges;      /* in place, a rank copies its edges itself: one more step */
    uint64_t round;      /* number of the round to stage next */
    bool is_staged;      /* `round` has been staged */
    bool is_read;        /* the round before `round` has been read */
    int source;          /* progress of reading or folding: current rank; offset: its byte */
    size_t offset;
    dd_arena_ranks known;   /* this rank and the ranks whose headers it needs */
    bool knows_all;         /* `known` contains all ranks */
    dd_arena_ranks root;    /* the set that contains only the root */
    dd_arena_ranks stagers; /* ranks with staged data in a gather root's round */
    dd_arena_ranks folders; /* ranks that fold a share of the current chunk */
    dd_arena_ranks folded;  /* shares of the current chunk that this rank has folded */
    /* Owners whose input region has been requested; wanted_out: whose output region. */
    dd_arena_ranks wanted_in;
    dd_arena_ranks wanted_out;

    uint64_t awaited_mark;
    const dd_arena_ranks *awaited_of; /* the ranks that must publish awaited_mark */
    dd_arena_ranks awaited;           /* the ranks of awaited_of that have not published it */
    bool is_awaiting;                 /* `awaited` is not empty */
    bool is_rejected;                 /* until opened: a rank failed in this operation or before */
    bool is_streaming;                /* stage data past the caches */
    bool is_taken_past;               /* copy results past the caches */
    bool is_measured;                 /* timed for a trial, not yet read to the end */
    size_t budget;                    /* bytes that the current dd_arena_progress may still move */
} arena_op;

struct dd_arena {
    arena_shared *shared;
    uint8_t *memory;
    arena_geometry geometry; /* the layout that this build expects in the memory */
    uint8_t *results;        /* memory for the results of shared folds, used by all ranks */
    arena_board_head *boards;
    uint64_t nposts_seen; /* number of posts on all boards when this rank last took posts */
    dd_signature noted;   /* the signature that is now on this rank's board */
    bool is_crowded;      /* ranks take turns on the cores; equal on all ranks */
    bool is_borrowed;     /* the memory belongs to another dd_arena's mapping */
    uint64_t generation;
    int nranks;
    int rank;
    int nwords; /* number of words in use of each dd_arena_ranks */
    dd_arena_ranks all_ranks;
    uint32_t number;           /* number of the operation under way, or of the last one */
    uint32_t nended;           /* number of the last operation that ended in success here */
    uint32_t nverified;        /* last operation whose headers all match this rank's calls */
    dd_arena_ranks unverified; /* ranks whose header of nverified + 1 is missing */
    uint64_t floor;            /* highest mark that all ranks are known to have reached */
    uint64_t nchunks;          /* number of chunks of all shared folds since the arena's creation */
    uint32_t cpu;              /* this rank's CPU, plus 1, as last published */
    bool is_registered;
    bool has_slept;    /* this rank's bit in shared->asleep may be set */
    arena_slot *slots; /* [nranks]: each rank's slot */
    arena_peer *peers; /* [nranks]: each rank's data, including this rank's */
    /* [2][nranks]: for the operation under way, and for the operation that is being verified. */
    arena_block_info *block_infos;
    const void **sources; /* [nranks]: addresses of a fold's inputs */
    arena_call calls[ARENA_NRECORDS];
    size_t next_offset;                /* byte offset in the slot at which the latest lease ends */
    arena_lease leases[ARENA_NLEASES]; /* in ascending order of marks: oldest first */
    int nleases;
    dd_arena_ranks only_reader; /* set of the only reader whose lease this rank waits for */
    arena_region *regions;
    size_t nregions;
    size_t regions_capacity;
    arena_op op;
    arena_trial trials[DD_COLL_COUNT]; /* [collective]: used only on the rank that times it */
    dd_arena_mismatch mismatch;
};

/* Return the mark of a step of the operation under way. */
static inline uint64_t
dd_arena_mark_of(const dd_arena *arena, uint32_t step)
{
    return dd_arena_mark(arena->number, step);
}

/* ---- arena.c */

/* For tests: attach another rank in this process through the mapping of `mapped`, which must stay
 * open. (To a race detector, a second mapping would be different memory.) */
dd_status dd_arena_join(dd_arena *mapped, int rank, dd_arena **arena, dd_error *err) DD_MUST_CHECK;

/* ---- sync.c */

/* Publish that this process can be fenced (core/fence.h), once it can. Do not call while asleep. */
void dd_arena_note_registered(dd_arena *arena);
/* Publish a step: make its data visible to all ranks, and wake the ranks that wait for it. */
void dd_arena_publish(dd_arena *arena, uint32_t step);
/* Find the ranks in `ranks`, except this one, that have not reached `mark`; `mark` must belong to a
 * recent operation. Return false if there are none. */
bool dd_arena_find_missing(const dd_arena *arena, const dd_arena_ranks *ranks, uint64_t mark,
                           dd_arena_ranks *missing);
/* Return true if all of `ranks` have reached `mark`; otherwise record `mark` as awaited. */
bool dd_arena_have_reached(dd_arena *arena, const dd_arena_ranks *ranks, uint64_t mark);
bool dd_arena_is_any(const dd_arena *arena, const arena_bits *bits);
void dd_arena_stay_awake(dd_arena *arena); /* clear this rank's bit in shared->asleep */

/* ---- lease.c */

/* Find unused space in this rank's slot at a multiple of `alignment`. Return false if there is none
 * yet. */
bool dd_arena_find_space(dd_arena *arena, size_t nbytes, size_t alignment, size_t *offset);
/* Return true if this space of the slot is free; if not, the caller must wait. */
bool dd_arena_is_space_free(dd_arena *arena, size_t offset, size_t nbytes);
/* Lease space of the slot until all readers of the operation under way have published `step`. */
void dd_arena_lend(dd_arena *arena, size_t offset, size_t nbytes, uint32_t step);
/* Call when the operation under way ends with `last_step`: leases until a later step, which is then
 * never published, end with the next header instead. */
void dd_arena_shorten_leases(dd_arena *arena, uint32_t last_step);

/* ---- header.c */

bool dd_arena_is_sender(const arena_call *call, int rank);
bool dd_arena_is_receiver(const arena_call *call, int rank);
bool dd_arena_is_giver(const dd_arena *arena, int rank); /* `rank` has data for others */
bool dd_arena_is_stager(const dd_arena *arena, int rank);
/* Return the size of this rank's block for (or from) rank k, in bytes of input elements; 0 if the
 * collective has no such block. */
size_t dd_arena_sent_nbytes(const dd_arena *arena, int k);
size_t dd_arena_received_nbytes(const dd_arena *arena, int k);
/* Return the address of a word in a rank's record of the operation under way. */
_Atomic uint64_t *dd_arena_word(const dd_arena *arena, int k, int index);

void dd_arena_write_header(dd_arena *arena);
/* Compare the headers of op->known, which must all be present. MOVED if all of them match. */
dd_arena_state dd_arena_compare_headers(dd_arena *arena);
/* Compare headers up to operation `number`. BLOCKED if one is missing, MOVED if all match. */
dd_arena_state dd_arena_verify(dd_arena *arena, uint32_t number);
/* Return true if a header of the first unverified operation is missing. */
bool dd_arena_lacks_header(dd_arena *arena);

/* ---- regions.c */

/* Find this rank's blocks in its regions. Return flags for its header, and fill in op->offer. */
uint64_t dd_arena_offer_regions(dd_arena *arena);
/* Find the regions that other ranks' headers name: MOVED; BLOCKED if one is missing; or BROKEN. */
dd_arena_state dd_arena_map_regions(dd_arena *arena);

/* ---- copy.c */

void dd_arena_choose_copy(dd_arena *arena);
/* copy_in copies into memory that other ranks read; copy_out copies into this rank's outputs. */
void dd_arena_copy_in(dd_arena *arena, void *dst, const void *src, size_t nbytes);
void dd_arena_copy_out(dd_arena *arena, void *dst, const void *src, size_t nbytes);
/* The clock of an operation that is timed for a trial. Stop the clock when round 0 is staged, start
 * it when all headers are present, and end the trial when the last round is read. */
void dd_arena_stop_clock(dd_arena *arena);
void dd_arena_start_clock(dd_arena *arena);
void dd_arena_end_trial(dd_arena *arena);

/* ---- fold.c */

/* Fold nbytes bytes of the array from byte `start` on; the first op->offset bytes are already done.
 * arena->sources must point to each rank's data at op->offset. write_result (or NULL) gets each
 * piece of the result and its offset. Return true at the end, false if the budget is spent. */
typedef void arena_write_result(dd_arena *arena, size_t at, const uint8_t *result, size_t nbytes);
bool dd_arena_fold(dd_arena *arena, size_t start, size_t nbytes, arena_write_result *write_result);

/* Return the smallest size in bytes at which an all_reduce is a shared fold. */
size_t dd_arena_fold_min(int nranks, bool is_crowded);
/* Smallest bytes of a share that a rank claims, so that small arrays are not split too finely. */
#define ARENA_CLAIMED_SHARE_BYTES ((size_t)2048)

/* Return true if the operation is a shared fold; if so, choose the size of its chunks. */
bool dd_arena_choose_chunks(dd_arena *arena);
uint64_t dd_arena_count_chunks(const dd_arena *arena);
size_t dd_arena_first_chunk_nbytes(const dd_arena *arena); /* bytes of chunk 0 staged by a rank */
void dd_arena_stage_chunk(dd_arena *arena, uint64_t chunk);
/* Fold a chunk's share of this rank (or unclaimed shares) within the budget. True at the end. */
bool dd_arena_fold_shares(dd_arena *arena, uint64_t chunk);
void dd_arena_read_shares(dd_arena *arena, uint64_t chunk); /* copy out the other ranks' shares */

bool dd_arena_fold_in_place(dd_arena *arena); /* fold own share; true at the end */
void dd_arena_copy_edges(dd_arena *arena);    /* copy own edges, once all have folded */

/* ---- move.c */

/* Choose the kind and size of rounds, using only facts that all ranks know. */
void dd_arena_choose_round(dd_arena *arena);
void dd_arena_count_rounds(dd_arena *arena); /* call once headers are compared */
/* Find a place for round 0. Return false if there is no space. */
bool dd_arena_find_offset(dd_arena *arena);
bool dd_arena_may_stage(dd_arena *arena, uint64_t round); /* true if it can be staged */
bool dd_arena_stage(dd_arena *arena, uint64_t round);     /* true once staged; round 0: one call */
/* Return the ranks whose data this rank reads in the round; NULL if there are none. */
const dd_arena_ranks *dd_arena_read_from(dd_arena *arena, uint64_t round);
bool dd_arena_read(dd_arena *arena, uint64_t round); /* true at the end; false: out of budget */

/* Return the step that is published when a round is staged. */
static inline uint32_t
dd_arena_step_of(const arena_op *op, uint64_t round)
{
    return op->data_step + (uint32_t)round;
}

static inline size_t
dd_arena_smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t
dd_arena_round_up(size_t value, size_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

static inline void
dd_arena_spend(arena_op *op, size_t nbytes)
{
    op->budget -= dd_arena_smaller(op->budget, nbytes);
}

/* Return where in the output the result for byte `offset` of the input is stored. */
static inline uint8_t *
dd_arena_result_at(const dd_arena *arena, size_t offset)
{
    const arena_op *op = &arena->op;
    return (uint8_t *)op->args->outputs[0].data + offset / op->in_size * op->out_size;
}

#endif
