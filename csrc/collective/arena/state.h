/* One rank's state of an arena, and the functions that its files call in each other.
 *
 * Each file builds on those before it: arena.c creates and maps the memory; board.c has the boards;
 * sync.c publishes, waits, sleeps and wakes; lease.c allocates space; header.c writes headers and
 * compares them; regions.c finds memory in regions; copy.c copies; fold.c does the shared folds;
 * move.c moves other data; op.c advances the operation. The rules are at the top of layout.h. */
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
    /* [ARENA_NRECORDS][ARENA_NTABLES][nranks]: sizes of blocks in bytes. */
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

/* The part of a rank's header that describes its blocks, read once from shared memory. */
typedef struct arena_block_info {
    uint64_t nbytes;  /* size of every block, if the rank has no tables */
    uint64_t largest; /* size of the largest block that the rank sends to another */
    uint64_t flags;
} arena_block_info;

/* One rank's data in the operation under way. This rank has an entry as well. */
typedef struct arena_peer {
    size_t offset; /* offset of round 0 in the rank's slot */
    size_t stride; /* distance in the slot from the part for one rank to the next part */
    uint64_t payload[ARENA_PAYLOAD_WORDS];
    const uint8_t *input; /* the rank's data if it is in a region; else NULL */
    uint8_t *output;      /* the rank's output, in an operation in place */
    size_t lead, tail;    /* bytes at both ends of `output` that only the rank itself writes */
} arena_peer;

/* The regions and offsets of this rank's data, as in its header. */
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

/* A part of this rank's slot that other ranks may still read. */
typedef struct arena_lease {
    size_t begin, end;
    uint64_t mark; /* each reader publishes this mark when it has finished */
    int reader;    /* the only rank that reads; -1 if all ranks read */
} arena_lease;

typedef enum arena_phase {
    ARENA_IDLE,
    ARENA_OPENING,          /* this rank's header is not yet published */
    ARENA_AWAITING_HEADERS, /* waits for other ranks' headers */
    ARENA_MAPPING,          /* waits until other ranks' regions are mapped */
    ARENA_ROUNDS,
    ARENA_IN_PLACE_FOLD,
    ARENA_EDGES,   /* waits until other ranks have folded the ends of this rank's output */
    ARENA_CLOSING, /* waits until other ranks have read this rank's region */
} arena_phase;

/* Times copies through the caches and past them, to choose the faster way; see copy.c. */
typedef struct arena_trial {
    dd_copy_trial copies; /* durations of the timed operations in ns */
    size_t nbytes;        /* size of the timed operations; others are not timed */
    int64_t from_ns;      /* when the clock was last started in the operation under way */
    int64_t taken_ns;     /* time of this operation that was measured before from_ns */
} arena_trial;

/* The operation under way. */
typedef struct arena_op {
    const dd_coll_args *args;
    dd_arena_op_options options;
    arena_call *call;
    arena_phase phase;

    /* Size in bytes of each of this rank's blocks, as input elements; if blocks differ in size, of
     * the largest block that this rank sends. */
    size_t nbytes;
    size_t in_size;  /* size of an input element */
    size_t out_size; /* size of an element of the result */
    int nfolded;     /* this rank folds the inputs of ranks 0 to nfolded - 1 */
    arena_offer offer;
    bool is_shared_fold; /* an all_reduce in chunks (layout.h) */
    bool is_claimed;     /* each share is folded by the first rank that claims it */
    bool reads_first;    /* each round is read before the next one is staged */
    bool is_wide;        /* later rounds fill halves of the slot, not quarters */
    size_t first_nbytes; /* bytes of a block (part) in round 0, or of a share in chunk 0 */
    size_t round_nbytes; /* like first_nbytes, in later rounds */

    uint32_t data_step; /* step of round 0: 0, or 1 if all ranks had to stage it again */
    uint64_t nrounds;
    bool is_in_place;    /* all_reduce: all inputs and outputs are in regions */
    bool is_region_read; /* a region of a rank in `known` is read, which takes one more step */
    bool has_edges;      /* in place: a rank copies its edges itself, which takes one more step */
    uint64_t round;      /* the round to stage next */
    bool is_staged;      /* `round` has been staged */
    bool is_read;        /* the round before `round` has been read */
    int source;          /* progress of reading or folding: the rank; offset: the byte */
    size_t offset;
    dd_arena_ranks known;   /* this rank, and the ranks whose headers it needs */
    bool knows_all;         /* `known` has all ranks */
    dd_arena_ranks root;    /* the set of only the root */
    dd_arena_ranks stagers; /* ranks with staged data in the round that a gather's root reads */
    dd_arena_ranks folders; /* ranks that fold shares of the current chunk */
    dd_arena_ranks folded;  /* shares of the current chunk that this rank has folded */
    /* Owners whose input region was requested; wanted_out: output region. */
    dd_arena_ranks wanted_in;
    dd_arena_ranks wanted_out;

    uint64_t awaited_mark;
    const dd_arena_ranks *awaited_of; /* the ranks that had to publish awaited_mark */
    dd_arena_ranks awaited;           /* the ranks of awaited_of that had not yet published it */
    bool is_awaiting;                 /* `awaited` is not empty */
    bool is_rejected;                 /* not opened: a rank failed in this operation or before */
    bool is_streaming;                /* stage data past the caches */
    bool is_taken_past;               /* copy results out past the caches */
    bool is_measured;                 /* timed for a trial, and not yet read to the end */
    size_t budget;                    /* bytes that this dd_arena_progress may still move */
} arena_op;

struct dd_arena {
    arena_shared *shared;
    uint8_t *memory;
    arena_geometry geometry; /* the layout that this build expects */
    uint8_t *results;        /* results of shared folds, for all ranks */
    arena_board_head *boards;
    uint64_t nposts_seen; /* total posts on all boards when this rank last took posts */
    dd_signature noted;   /* the signature on this rank's board */
    bool is_crowded;      /* ranks take turns on the cores; the same on all ranks */
    bool is_borrowed;     /* the memory is mapped by another dd_arena */
    uint64_t generation;
    int nranks;
    int rank;
    int nwords; /* words of a dd_arena_ranks that are in use */
    dd_arena_ranks all_ranks;
    uint32_t number;           /* number of the operation under way, or of the last one */
    uint32_t nended;           /* number of the last operation that ended successfully here */
    uint32_t nverified;        /* last operation whose headers all match this rank's calls */
    dd_arena_ranks unverified; /* ranks whose header of operation nverified + 1 is missing */
    uint64_t floor;            /* highest mark that all ranks are known to have reached */
    uint64_t nchunks;          /* chunks of shared folds since the creation of the arena */
    uint32_t cpu;              /* this rank's CPU + 1, as published */
    bool is_registered;
    bool has_slept;                /* this rank's bit in shared->asleep may be set */
    arena_slot *slots;             /* [nranks]: the slots of all ranks */
    arena_peer *peers;             /* [nranks]: the data of all ranks, with this one */
    arena_block_info *block_infos; /* [2][nranks]: operation under way; the one being verified */
    const void **sources;          /* [nranks]: the inputs of a fold */
    arena_call calls[ARENA_NRECORDS];
    size_t next_offset;                /* end of the latest lease */
    arena_lease leases[ARENA_NLEASES]; /* oldest first; marks ascend */
    int nleases;
    dd_arena_ranks only_reader; /* the only reader of the lease that this rank waits for */
    arena_region *regions;
    size_t nregions;
    size_t regions_capacity;
    arena_op op;
    arena_trial trials[DD_COLL_COUNT]; /* one for each collective; used if this rank times it */
    dd_arena_mismatch mismatch;
};

/* Return the mark of a step of the operation under way. */
static inline uint64_t
dd_arena_mark_of(const dd_arena *arena, uint32_t step)
{
    return dd_arena_mark(arena->number, step);
}

/* ---- arena.c */

/* For tests: attach another rank of this process through the mapping of `mapped`, which must stay
 * open. A second mapping would not do: a race detector takes it for other memory. */
dd_status dd_arena_join(dd_arena *mapped, int rank, dd_arena **arena, dd_error *err) DD_MUST_CHECK;

/* ---- sync.c */

/* Publish that this process can be fenced (core/fence.h), once it can. Never call while asleep. */
void dd_arena_note_registered(dd_arena *arena);
/* Publish a step: make its data visible to all ranks, and wake the ranks that wait for it. */
void dd_arena_publish(dd_arena *arena, uint32_t step);
/* Find the ranks in `ranks`, except this one, that have not reached `mark`, which must belong to a
 * recent operation. Return false if there are none. */
bool dd_arena_find_missing(const dd_arena *arena, const dd_arena_ranks *ranks, uint64_t mark,
                           dd_arena_ranks *missing);
/* Return true if all of `ranks` have reached `mark`; else record `mark` as awaited. */
bool dd_arena_have_reached(dd_arena *arena, const dd_arena_ranks *ranks, uint64_t mark);
bool dd_arena_is_any(const dd_arena *arena, const arena_bits *bits);
void dd_arena_stay_awake(dd_arena *arena); /* clear this rank's sleep bit */

/* ---- lease.c */

/* Find unused space in this rank's slot at a multiple of `alignment`. Return false if the caller
 * must wait. */
bool dd_arena_find_space(dd_arena *arena, size_t nbytes, size_t alignment, size_t *offset);
/* Return true if this space of the slot is free; false if the caller must wait. */
bool dd_arena_is_space_free(dd_arena *arena, size_t offset, size_t nbytes);
/* Mark space as in use until all readers of the operation under way have published the step. */
void dd_arena_lend(dd_arena *arena, size_t offset, size_t nbytes, uint32_t step);
/* Call when the operation under way ends with `last_step`, so that later steps are not published:
 * leases until such a step then end with the next header. */
void dd_arena_shorten_leases(dd_arena *arena, uint32_t last_step);

/* ---- header.c */

bool dd_arena_is_sender(const arena_call *call, int rank);
bool dd_arena_is_receiver(const arena_call *call, int rank);
bool dd_arena_is_giver(const dd_arena *arena, int rank); /* `rank` has data for another rank */
bool dd_arena_is_stager(const dd_arena *arena, int rank);
/* Return the size of this rank's block for rank k, or from rank k, in bytes of input elements; 0 if
 * the collective has no such block. */
size_t dd_arena_sent_nbytes(const dd_arena *arena, int k);
size_t dd_arena_received_nbytes(const dd_arena *arena, int k);
/* Return the address of a word in a rank's record of the operation under way. */
_Atomic uint64_t *dd_arena_word(const dd_arena *arena, int k, int index);

void dd_arena_write_header(dd_arena *arena);
/* Compare the headers of op->known, which must all be present. DD_ARENA_MOVED if they match. */
dd_arena_state dd_arena_compare_headers(dd_arena *arena);
/* Compare headers up to operation `number`. BLOCKED if one is missing, MOVED if all match. */
dd_arena_state dd_arena_verify(dd_arena *arena, uint32_t number);
/* Return true if a header of the first unverified operation is missing. */
bool dd_arena_lacks_header(dd_arena *arena);

/* ---- regions.c */

/* Find this rank's blocks in its regions. Return flags for the header, and fill in op->offer. */
uint64_t dd_arena_offer_regions(dd_arena *arena);
/* Find the regions named in other ranks' headers: MOVED, BLOCKED if one is missing, or BROKEN. */
dd_arena_state dd_arena_map_regions(dd_arena *arena);

/* ---- copy.c */

void dd_arena_choose_copy(dd_arena *arena);
/* copy_in copies into memory that other ranks read; copy_out copies into this rank's outputs. */
void dd_arena_copy_in(dd_arena *arena, void *dst, const void *src, size_t nbytes);
void dd_arena_copy_out(dd_arena *arena, void *dst, const void *src, size_t nbytes);
/* The clock of an operation that is timed for a trial. Stop it when round 0 is staged, start it
 * again when all headers are present, and end the trial when the last round is read. */
void dd_arena_stop_clock(dd_arena *arena);
void dd_arena_start_clock(dd_arena *arena);
void dd_arena_end_trial(dd_arena *arena);

/* ---- fold.c */

/* Fold the array part from byte `start` on, from its byte op->offset to `nbytes`. arena->sources
 * must point to each rank's data at op->offset. write_result (or NULL) gets each piece of the
 * result and its offset in the result. Return true at the end, false if the budget is spent. */
typedef void arena_write_result(dd_arena *arena, size_t at, const uint8_t *result, size_t nbytes);
bool dd_arena_fold(dd_arena *arena, size_t start, size_t nbytes, arena_write_result *write_result);

/* Return the smallest size in bytes of an all_reduce that is a shared fold. */
size_t dd_arena_fold_min(int nranks, bool is_crowded);
/* Smallest share that a rank claims, so that small arrays are not split too finely. */
#define ARENA_CLAIMED_SHARE_BYTES ((size_t)2048)

/* Return true if the operation is a shared fold; then also choose the size of its chunks. */
bool dd_arena_choose_chunks(dd_arena *arena);
uint64_t dd_arena_count_chunks(const dd_arena *arena);
size_t dd_arena_first_chunk_nbytes(const dd_arena *arena); /* bytes of chunk 0 that a rank stages */
void dd_arena_stage_chunk(dd_arena *arena, uint64_t chunk);
/* Fold this rank's share (or unclaimed shares) of a chunk within the budget; true at the end. */
bool dd_arena_fold_shares(dd_arena *arena, uint64_t chunk);
void dd_arena_read_shares(dd_arena *arena, uint64_t chunk); /* copy the other ranks' shares */

bool dd_arena_fold_in_place(dd_arena *arena); /* fold this rank's share; true at the end */
void dd_arena_copy_edges(dd_arena *arena);    /* after all have folded: copy own edges */

/* ---- move.c */

/* Choose the kind and size of rounds, only from facts that all ranks know. */
void dd_arena_choose_round(dd_arena *arena);
void dd_arena_count_rounds(dd_arena *arena);              /* call after comparing headers */
bool dd_arena_find_offset(dd_arena *arena);               /* for round 0; false if none is free */
bool dd_arena_may_stage(dd_arena *arena, uint64_t round); /* true if the round can be staged */
bool dd_arena_stage(dd_arena *arena, uint64_t round);     /* true when staged; round 0: one call */
/* Return the ranks whose data this rank reads in the round; NULL if there are none. */
const dd_arena_ranks *dd_arena_read_from(dd_arena *arena, uint64_t round);
bool dd_arena_read(dd_arena *arena, uint64_t round); /* true at the end, false if out of budget */

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

/* Return the place in the output of the result for byte `offset` of the input. */
static inline uint8_t *
dd_arena_result_at(const dd_arena *arena, size_t offset)
{
    const arena_op *op = &arena->op;
    return (uint8_t *)op->args->outputs[0].data + offset / op->in_size * op->out_size;
}

#endif
