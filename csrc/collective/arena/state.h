/* One rank's state of an arena, and the functions that its files call in each other.
 *
 * Each file builds on those before it: arena.c creates and maps the memory; board.c has the boards;
 * sync.c publishes, waits, sleeps and wakes; lease.c allocates space; header.c writes headers and
 * compares them; regions.c finds memory in regions; copy.c copies; fold.c does the shared folds;
 * move.c moves other data; op.c advances the operation. Their rules are at the top of layout.h. */
#ifndef DD_COLLECTIVE_ARENA_STATE_H
#define DD_COLLECTIVE_ARENA_STATE_H

#include "collective/arena/layout.h"
#include "kernels/copy_trial.h"

typedef struct arena_board arena_board;
typedef struct arena_board_head arena_board_head;
size_t dd_arena_boards_nbytes(int nranks);

/* A rank's part of the shared memory. */
typedef struct arena_slot {
    arena_control *control;
    _Atomic uint64_t *tables;  /* [ARENA_NRECORDS][ARENA_NTABLES][nranks] */
    _Atomic uint64_t *offsets; /* [nranks]: offset in the region of the block for a rank */
    uint8_t *buffers;
} arena_slot;

typedef struct arena_region {
    int owner;
    uint32_t id;
    uint8_t *base;
    size_t nbytes;
} arena_region;

/* The part of a rank's header that describes its blocks, read once. */
typedef struct arena_block_info {
    uint64_t nbytes;  /* of every block, if it has no tables */
    uint64_t largest; /* largest block that it sends to another rank */
    uint64_t flags;
} arena_block_info;

/* One rank's data in the operation under way; this rank has an entry as well. */
typedef struct arena_peer {
    size_t place;  /* of round 0, in its slot */
    size_t stride; /* in its slot, from one rank's part to the next */
    uint64_t payload[ARENA_PAYLOAD_WORDS];
    const uint8_t *input; /* its data, if in a region; else NULL */
    uint8_t *output;      /* in place */
    size_t lead, tail;    /* bytes at both ends of `output` that only its rank writes */
} arena_peer;

/* This rank's data in regions, as in its header. */
typedef struct arena_offer {
    uint64_t input_id, input_offset;
    uint64_t output_id, output_offset;
} arena_offer;

/* This rank's call, kept until all other headers are compared with it. */
typedef struct arena_call {
    const dd_coll_traits *traits;
    int root;
    uint64_t sequence;
    uint64_t signature_words[ARENA_SIGNATURE_WORDS];
    uint64_t nbytes;
    uint64_t flags;
} arena_call;

#define ARENA_NLEASES 16

/* Part of this rank's slot that other ranks may still read. */
typedef struct arena_lease {
    size_t begin, end;
    uint64_t mark; /* published by each reader when it has finished */
    int reader;    /* the only reader; -1 if all ranks read */
} arena_lease;

typedef enum arena_phase {
    ARENA_IDLE,
    ARENA_OPENING,          /* header not yet published */
    ARENA_AWAITING_HEADERS, /* waits for headers */
    ARENA_MAPPING,          /* waits for regions */
    ARENA_ROUNDS,
    ARENA_IN_PLACE_FOLD,
    ARENA_EDGES,   /* waits until other ranks have folded the ends of its output */
    ARENA_CLOSING, /* waits until other ranks have read its region */
} arena_phase;

/* Timing of copies through the caches against copies past them; see copy.c. */
typedef struct arena_trial {
    dd_copy_trial copies; /* durations of the operations in ns */
    size_t nbytes;        /* of the operations that count */
    int64_t from_ns;      /* in the operation under way: when the clock was started */
    int64_t taken_ns;     /* measured before from_ns */
} arena_trial;

/* The operation under way. */
typedef struct arena_op {
    const dd_coll_args *args;
    dd_arena_op_options options;
    arena_call *call;
    arena_phase phase;

    /* of this rank's blocks, in bytes of input elements; if sizes differ, of the largest sent */
    size_t nbytes;
    size_t in_size;  /* of an element */
    size_t out_size; /* of an element of the result */
    int nfolded;     /* number of ranks, from 0 on, whose inputs this rank folds */
    arena_offer offer;
    bool is_shared_fold; /* all_reduce, in chunks */
    bool is_claimed;     /* a share is folded by the first rank to claim it */
    bool reads_first;    /* a round is read before the next is staged */
    bool is_wide;        /* later rounds fill halves of the slot */
    size_t first_nbytes; /* of a block (part) in round 0; shared fold: share in chunk 0 */
    size_t round_nbytes; /* the same in later rounds */

    uint32_t data_step; /* of round 0: 0, or 1 if all ranks had to stage it again */
    uint64_t nrounds;
    bool is_in_place;    /* all_reduce: all inputs and outputs are in regions */
    bool is_region_read; /* a region of a rank in `known` is read: one more step */
    bool has_edges;      /* in place: some rank copies its edges itself, in one more step */
    uint64_t round;      /* to stage next */
    bool is_staged;      /* `round` is staged */
    bool is_read;        /* the round before `round` is read */
    int source;          /* progress of reading or folding: rank, byte */
    size_t offset;
    dd_arena_ranks known;     /* this rank, and the ranks whose headers it needs */
    bool knows_all;           /* known has all ranks */
    dd_arena_ranks root;      /* only the root */
    dd_arena_ranks stagers;   /* ranks that stage the round that a gather's root reads */
    dd_arena_ranks folders;   /* ranks that fold shares of this chunk */
    dd_arena_ranks folded;    /* shares that this rank has folded */
    dd_arena_ranks wanted_in; /* owners for which want_region was called */
    dd_arena_ranks wanted_out;

    uint64_t awaited_mark;
    const dd_arena_ranks *awaited_of; /* the ranks that had to publish it */
    dd_arena_ranks awaited;           /* the ranks that had not yet done so */
    bool is_awaiting;                 /* `awaited` is not empty */
    bool is_barred;                   /* not opened: a rank failed in this operation or before */
    bool is_streaming;                /* stage past the caches */
    bool is_taken_past;               /* copy out past the caches */
    bool is_measured;                 /* part of a trial, and not yet read to the end */
    size_t budget;                    /* bytes that this call may still move */
} arena_op;

struct dd_arena {
    arena_shared *shared;
    uint8_t *memory;
    arena_geometry geometry; /* of this build */
    uint8_t *results;        /* of folds, for all ranks */
    arena_board_head *boards;
    uint64_t nposts_seen; /* posts on all boards that this rank has taken */
    dd_signature noted;   /* signature on this rank's board */
    bool is_crowded;      /* the same on all ranks */
    bool is_borrowed;     /* the mapping belongs to another dd_arena */
    uint64_t generation;
    int nranks;
    int rank;
    int nwords; /* words in use of a dd_arena_ranks */
    dd_arena_ranks all_ranks;
    uint32_t number;           /* of the operation under way, or the last one */
    uint32_t nended;           /* number of the last operation that ended successfully here */
    uint32_t nverified;        /* the last operation in which all headers match this rank's call */
    dd_arena_ranks unverified; /* ranks whose header of operation nverified + 1 is missing */
    uint64_t floor;            /* highest mark known to be reached by all ranks */
    uint64_t nchunks;          /* folded in shares since the creation of the arena */
    uint32_t cpu;              /* as published */
    bool is_registered;
    bool has_slept;                /* this rank's bit in shared->asleep may be set */
    arena_slot *slots;             /* [nranks] */
    arena_peer *peers;             /* [nranks], with this rank's own */
    arena_block_info *block_infos; /* [2][nranks]: of the operation under way; of the one being verified */
    const void **sources;          /* [nranks]: for folds */
    arena_call calls[ARENA_NRECORDS];
    size_t next_place;                 /* end of the last lease made */
    arena_lease leases[ARENA_NLEASES]; /* oldest first, sorted by mark */
    int nleases;
    dd_arena_ranks only_reader; /* the only reader of the lease that is waited for */
    arena_region *regions;
    size_t nregions;
    size_t regions_capacity;
    arena_op op;
    arena_trial trials[DD_COLL_COUNT]; /* per collective, if this rank measures it */
    dd_arena_mismatch mismatch;
};

/* The mark of a step of the operation under way. */
static inline uint64_t
dd_arena_mark_of(const dd_arena *arena, uint32_t step)
{
    return dd_arena_mark(arena->number, step);
}

/* ---- arena.c */

/* For tests: attach another rank of this process through the mapping of `mapped`, which must stay
 * open. A race detector takes memory that is mapped twice for two memories. */
dd_status dd_arena_join(dd_arena *mapped, int rank, dd_arena **arena, dd_error *err) DD_MUST_CHECK;

/* ---- sync.c */

/* Publish that this process can be fenced, once it can. Must not be called while asleep. */
void dd_arena_note_registered(dd_arena *arena);
/* Make the data written for the step visible to all ranks, and wake the ranks that wait for it. */
void dd_arena_publish(dd_arena *arena, uint32_t step);
/* Find the ranks of `ranks`, without this rank, that have not reached the mark. The mark must be of
 * a recent operation. False if there are none. */
bool dd_arena_find_missing(const dd_arena *arena, const dd_arena_ranks *ranks, uint64_t mark,
                           dd_arena_ranks *missing);
/* Return true if all of `ranks` have reached the mark; else record it as awaited. */
bool dd_arena_have_reached(dd_arena *arena, const dd_arena_ranks *ranks, uint64_t mark);
bool dd_arena_is_any(const dd_arena *arena, const arena_bits *bits);
void dd_arena_stay_awake(dd_arena *arena); /* clear this rank's sleep bit */

/* ---- lease.c */

/* Find unused space in this rank's slot at a multiple of `alignment`. False if the caller must
 * wait. */
bool dd_arena_find_space(dd_arena *arena, size_t nbytes, size_t alignment, size_t *place);
/* Return true if this space is free; false if the caller must wait. */
bool dd_arena_is_space_free(dd_arena *arena, size_t place, size_t nbytes);
/* Mark space as in use until all readers of the operation under way have published the step. */
void dd_arena_lend(dd_arena *arena, size_t place, size_t nbytes, uint32_t step);
/* The operation under way ends with `last_step`: end longer leases with the next header. */
void dd_arena_shorten_leases(dd_arena *arena, uint32_t last_step);

/* ---- header.c */

bool dd_arena_is_sender(const arena_call *call, int rank);
bool dd_arena_is_receiver(const arena_call *call, int rank);
bool dd_arena_is_giver(const dd_arena *arena, int rank); /* has data for another rank */
bool dd_arena_is_stager(const dd_arena *arena, int rank);
/* The size of this rank's block for rank k, and from it, in bytes of input elements; 0 if the
 * collective has no such block. */
size_t dd_arena_sent_nbytes(const dd_arena *arena, int k);
size_t dd_arena_received_nbytes(const dd_arena *arena, int k);
/* Return a word of a rank's record of the operation under way. */
_Atomic uint64_t *dd_arena_word(const dd_arena *arena, int k, int index);

void dd_arena_write_header(dd_arena *arena);
/* Compare the headers of op->known, all of which must be present. DD_ARENA_MOVED if they match. */
dd_arena_state dd_arena_compare_headers(dd_arena *arena);
/* Compare the headers up to operation `number`. BLOCKED if one is missing, MOVED if all match. */
dd_arena_state dd_arena_verify(dd_arena *arena, uint32_t number);
bool dd_arena_lacks_header(dd_arena *arena); /* from a rank, of the first unverified operation */

/* ---- regions.c */

/* Find this rank's blocks in its regions. Return flags for the header; fill op->offer. */
uint64_t dd_arena_offer_regions(dd_arena *arena);
/* Find the regions in the other ranks' headers: MOVED, BLOCKED while one is missing, or BROKEN. */
dd_arena_state dd_arena_map_regions(dd_arena *arena);

/* ---- copy.c */

void dd_arena_choose_copy(dd_arena *arena);
/* Copy into memory that other ranks read; copy into this rank's outputs. */
void dd_arena_copy_in(dd_arena *arena, void *dst, const void *src, size_t nbytes);
void dd_arena_copy_out(dd_arena *arena, void *dst, const void *src, size_t nbytes);
/* The clock of an operation that is part of a trial: stopped when round 0 is staged, started again
 * when all headers are present, evaluated when the last round is read. */
void dd_arena_stop_clock(dd_arena *arena);
void dd_arena_start_clock(dd_arena *arena);
void dd_arena_end_trial(dd_arena *arena);

/* ---- fold.c */

/* Fold bytes op->offset to `nbytes` of the array part at `start`. arena->sources must point to each
 * rank's data there; `write_result` (or NULL) gets each piece of the result and its offset in the result.
 * True at the end; false if the budget is spent. */
typedef void arena_write_result(dd_arena *arena, size_t at, const uint8_t *result, size_t nbytes);
bool dd_arena_fold(dd_arena *arena, size_t start, size_t nbytes, arena_write_result *write_result);

/* Return the number of bytes from which an all_reduce is a shared fold. */
size_t dd_arena_fold_min(int nranks, bool is_crowded);
/* Smallest share that a rank claims, so that small arrays are not split too finely. */
#define ARENA_CLAIMED_SHARE_BYTES ((size_t)2048)

/* Return true if the operation is a shared fold, and then choose the size of its chunks. */
bool dd_arena_choose_chunks(dd_arena *arena);
uint64_t dd_arena_count_chunks(const dd_arena *arena);
size_t dd_arena_first_chunk_nbytes(const dd_arena *arena); /* bytes staged of chunk 0 */
void dd_arena_stage_chunk(dd_arena *arena, uint64_t chunk);
/* Fold own or unclaimed shares of a chunk, as far as the budget allows; true at the end. */
bool dd_arena_fold_shares(dd_arena *arena, uint64_t chunk);
void dd_arena_read_shares(dd_arena *arena, uint64_t chunk); /* copy other ranks' shares */

bool dd_arena_fold_in_place(dd_arena *arena); /* fold own share; true at the end */
void dd_arena_copy_edges(dd_arena *arena);    /* after all have folded: copy the output's edges */

/* ---- move.c */

/* Choose the kind and size of rounds, only from facts that all ranks know. */
void dd_arena_choose_round(dd_arena *arena);
void dd_arena_count_rounds(dd_arena *arena);              /* call after comparing headers */
bool dd_arena_find_place(dd_arena *arena);                /* for round 0; false if none is free */
bool dd_arena_may_stage(dd_arena *arena, uint64_t round); /* true if its data and space are ready */
bool dd_arena_stage(dd_arena *arena, uint64_t round);     /* true at the end; round 0: one call */
/* Return the ranks from which the round's data is read; NULL if there are none. */
const dd_arena_ranks *dd_arena_read_from(dd_arena *arena, uint64_t round);
bool dd_arena_read(dd_arena *arena, uint64_t round); /* within the budget; true at the end */

/* The step published when a round is staged. */
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

/* Where the result for byte `offset` of the input is written. */
static inline uint8_t *
dd_arena_result_at(const dd_arena *arena, size_t offset)
{
    const arena_op *op = &arena->op;
    return (uint8_t *)op->args->outputs[0].data + offset / op->in_size * op->out_size;
}

#endif
