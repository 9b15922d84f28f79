/* One rank's state of an arena, and the functions that its files call in each other.
 *
 * Each file builds on those before it: arena.c creates and maps the memory; board.c has the ranks' boards;
 * sync.c publishes, waits, sleeps and wakes; lease.c hands out space; header.c writes headers and compares
 * them; regions.c finds memory in regions; copy.c copies; fold.c does the shared folds; move.c moves all other
 * data; op.c advances the operation. The rules that they follow are at the top of layout.h. */
#ifndef DD_COLLECTIVE_ARENA_STATE_H
#define DD_COLLECTIVE_ARENA_STATE_H

#include "collective/arena/layout.h"
#include "kernels/copy_trial.h"

/* See board.c. */
typedef struct arena_board arena_board;
typedef struct arena_board_head arena_board_head;
size_t dd_arena_boards_nbytes(int nranks);

/* A rank's part of the shared memory. */
typedef struct arena_slot {
    arena_control *control;
    _Atomic uint64_t *tables;  /* [ARENA_NRECORDS][ARENA_NTABLES][nranks] */
    _Atomic uint64_t *offsets; /* [nranks]: where in the region the block for a rank begins */
    uint8_t *buffers;
} arena_slot;

typedef struct arena_region {
    int owner;
    uint32_t id;
    uint8_t *base;
    size_t nbytes;
} arena_region;

/* What a rank's header says of its blocks, read once. */
typedef struct arena_said {
    uint64_t nbytes;  /* of every block, where it has no tables */
    uint64_t largest; /* block that it sends to another */
    uint64_t flags;
} arena_said;

/* What the operation under way needs of another rank, or of our own part. */
typedef struct arena_peer {
    size_t place;  /* of round 0, in its slot */
    size_t stride; /* there, from one rank's part to the next */
    uint64_t payload[ARENA_PAYLOAD_WORDS];
    const uint8_t *input; /* what we read of it, where it is in a region; else NULL */
    uint8_t *output;      /* in place */
    size_t lead, tail;    /* bytes at both ends of it that only its rank writes */
} arena_peer;

/* Where our data is, if it is in regions: as the header says it. */
typedef struct arena_offer {
    uint64_t input_id, input_offset;
    uint64_t output_id, output_offset;
} arena_offer;

/* What this rank has called, kept until all others' headers are compared with it. */
typedef struct arena_call {
    const dd_coll_traits *traits;
    int root;
    uint64_t sequence;
    uint64_t signature_words[ARENA_SIGNATURE_WORDS];
    uint64_t nbytes;
    uint64_t flags;
} arena_call;

#define ARENA_NLEASES 16

/* Part of our slot that others may still read. */
typedef struct arena_lease {
    size_t begin, end;
    uint64_t mark; /* which all readers publish when they have finished */
    int reader;    /* the only one; -1: all ranks */
} arena_lease;

typedef enum arena_phase {
    ARENA_IDLE,
    ARENA_OPENING,  /* header not yet published */
    ARENA_GREETING, /* waits for headers */
    ARENA_MAPPING,  /* waits for regions */
    ARENA_ROUNDS,
    ARENA_IN_PLACE_FOLD,
    ARENA_EDGES,   /* waits until others have folded what lies at the ends of our output */
    ARENA_CLOSING, /* waits until others have read our region */
} arena_phase;

/* Which way of copying is faster, as this rank has tried; see copy.c. */
typedef struct arena_trial {
    dd_copy_trial copies; /* operations, and the nanoseconds that they take */
    size_t nbytes;        /* of those that count */
    int64_t from_ns;      /* of the operation under way: since then the clock runs */
    int64_t taken_ns;     /* before that */
} arena_trial;

/* The operation under way. */
typedef struct arena_op {
    const dd_coll_args *args;
    dd_arena_op_options options;
    arena_call *call;
    arena_phase phase;

    /* Of every block of ours in element bytes, where they are all alike; else of the largest we send. */
    size_t nbytes;
    size_t in_size;  /* of an element */
    size_t out_size; /* of what is written for an element */
    int nfolded;     /* ranks, from 0 on, whose inputs this one folds */
    arena_offer offer;
    bool is_shared_fold; /* all_reduce, in chunks */
    bool is_claimed;     /* its shares are folded by the first rank to claim them */
    bool reads_first;    /* a round is read before the next is staged */
    bool is_wide;        /* rounds from 1 on fill halves of the slot */
    size_t first_nbytes; /* of a block, or of a part of it, in round 0; shared fold: of a share in chunk 0 */
    size_t round_nbytes; /* the same in all others */

    uint32_t data_step; /* of round 0: 0, unless all had to stage anew */
    uint64_t nrounds;
    bool is_in_place;    /* all_reduce: all inputs and outputs are in regions */
    bool is_region_read; /* somebody's, as far as this rank has to know: one more step */
    bool has_edges;      /* in place: some rank takes some bytes itself, which is another step */
    uint64_t round;      /* to be staged next */
    bool is_staged;      /* it is */
    bool is_read;        /* the round before it */
    int source;          /* reading, folding: how far we are */
    size_t offset;
    dd_arena_ranks known;     /* this rank, and those whose headers it needs */
    bool knows_all;           /* which are all */
    dd_arena_ranks root;      /* it alone */
    dd_arena_ranks stagers;   /* of the round that the root of a gather reads */
    dd_arena_ranks folders;   /* that fold shares of this chunk */
    dd_arena_ranks folded;    /* whose shares we have folded */
    dd_arena_ranks wanted_in; /* whose regions were asked for */
    dd_arena_ranks wanted_out;

    uint64_t awaited_mark;
    const dd_arena_ranks *awaited_of; /* the ranks that were to publish it */
    dd_arena_ranks awaited;           /* those that had not yet */
    bool is_awaiting;                 /* there are some */
    bool is_barred;                   /* not opened: a rank has failed in this operation or an earlier one */
    bool is_streaming;                /* what is staged goes past the caches */
    bool is_taken_past;               /* what is copied out goes past them, too */
    bool is_measured;                 /* is of a trial, and not at its end */
    size_t budget;                    /* bytes that this call may still move */
} arena_op;

struct dd_arena {
    arena_shared *shared;
    uint8_t *memory;
    arena_geometry geometry; /* ours */
    uint8_t *results;        /* of what is folded, for all ranks */
    arena_board_head *boards;
    uint64_t nposts_seen; /* of what is on the boards */
    dd_signature noted;   /* on ours */
    bool is_crowded;      /* all ranks go by that */
    bool is_borrowed;     /* the mapping is another's */
    uint64_t generation;
    int nranks;
    int rank;
    int nwords; /* in use of a set of ranks */
    dd_arena_ranks all_ranks;
    uint32_t number;   /* of the operation under way, or the last */
    uint32_t nended;   /* number of the last operation that has ended well here */
    uint32_t nsettled; /* the last one in which all have called what we have, as far as it was compared */
    dd_arena_ranks unsettled; /* whose headers of the one after that are still to come */
    uint64_t floor;           /* mark that all are known to have reached */
    uint64_t nchunks;         /* folded in shares, since the arena was made */
    uint32_t cpu;             /* as we have told the others */
    bool is_registered;
    bool has_slept;       /* our bit may be set in shared->asleep */
    arena_slot *slots;    /* [nranks] */
    arena_peer *peers;    /* [nranks]; our own as well */
    arena_said *said;     /* [2][nranks]: in the operation under way; in the one that is settled */
    const void **sources; /* [nranks]: for folds */
    arena_call calls[ARENA_NRECORDS];
    size_t next_place;                 /* behind what was lent last */
    arena_lease leases[ARENA_NLEASES]; /* the oldest first; sorted by their marks */
    int nleases;
    dd_arena_ranks lone_reader; /* of a lease that is waited for */
    arena_region *regions;
    size_t nregions;
    size_t regions_capacity;
    arena_op op;
    arena_trial trials[DD_COLL_COUNT]; /* of each collective, where this rank judges it */
    dd_arena_culprit culprit;
};

/* Of the operation under way. */
static inline uint64_t
dd_arena_mark_of(const dd_arena *arena, uint32_t step)
{
    return dd_arena_mark(arena->number, step);
}

/* ---- arena.c */

/* Attaches one more rank in this process through the mapping that `mapped` has and keeps. For tests: a race
 * detector takes memory that is mapped twice for two memories. */
dd_status dd_arena_join(dd_arena *mapped, int rank, dd_arena **arena, dd_error *err) DD_MUST_CHECK;

/* ---- sync.c */

/* Says to the others that this process can be fenced, once it can. Only while the rank is not asleep. */
void dd_arena_note_registered(dd_arena *arena);
/* Makes what was written for the step visible to all, and wakes the ranks that wait for it. */
void dd_arena_publish(dd_arena *arena, uint32_t step);
/* Of `ranks`, the others that have not reached the mark, which is of an operation not long ago. False: there
 * are none. */
bool dd_arena_find_missing(const dd_arena *arena, const dd_arena_ranks *ranks, uint64_t mark,
                           dd_arena_ranks *missing);
/* Whether all of `ranks` have reached the mark; notes what is waited for. */
bool dd_arena_has_come(dd_arena *arena, const dd_arena_ranks *ranks, uint64_t mark);
/* Whether any rank's bit is set. */
bool dd_arena_is_any(const dd_arena *arena, const arena_bits *bits);
/* We are awake: nobody needs to wake us. */
void dd_arena_stay_awake(dd_arena *arena);

/* ---- lease.c */

/* Finds space in our slot that nobody reads, where a multiple of `alignment` begins. False: it has to be
 * waited for. */
bool dd_arena_find_space(dd_arena *arena, size_t nbytes, size_t alignment, size_t *place);
/* Whether that space is free, as above. */
bool dd_arena_is_space_free(dd_arena *arena, size_t place, size_t nbytes);
/* Space is in use until all readers of the operation under way have published the step. */
void dd_arena_lend(dd_arena *arena, size_t place, size_t nbytes, uint32_t step);
/* The operation under way ends with that step: what was lent for longer is lent until the next header. */
void dd_arena_shorten_leases(dd_arena *arena, uint32_t last_step);

/* ---- header.c */

bool dd_arena_is_sender(const arena_call *call, int rank);
bool dd_arena_is_receiver(const arena_call *call, int rank);
/* Whether the rank has anything to send to another. */
bool dd_arena_is_giver(const dd_arena *arena, int rank);
/* Whether the rank stages its data. */
bool dd_arena_is_stager(const dd_arena *arena, int rank);
/* The size of what we send to rank k, and expect from it, in element bytes; 0 where that is not in the
 * collective. */
size_t dd_arena_sent_nbytes(const dd_arena *arena, int k);
size_t dd_arena_received_nbytes(const dd_arena *arena, int k);
/* A word of a rank's record of the operation under way. */
_Atomic uint64_t *dd_arena_word(const dd_arena *arena, int k, int index);

void dd_arena_write_header(dd_arena *arena);
/* All headers of op->known are there: DD_ARENA_MOVED when they fit together. */
dd_arena_state dd_arena_compare_headers(dd_arena *arena);
/* Compares what has come of the headers up to that of operation `number`. DD_ARENA_MOVED: all have, and fit. */
dd_arena_state dd_arena_settle(dd_arena *arena, uint32_t number);
/* True if a rank has not published its header of the first operation that is not settled. */
bool dd_arena_lacks_header(dd_arena *arena);

/* ---- regions.c */

/* Whether our inputs (and, in place, outputs) lie in regions: flags for the header; where, is in op->offer. */
uint64_t dd_arena_offer_regions(dd_arena *arena);
/* Finds what other ranks have offered: MOVED, BLOCKED while a region is missing, or BROKEN. */
dd_arena_state dd_arena_map_regions(dd_arena *arena);

/* ---- copy.c */

/* How the operation's data is staged. */
void dd_arena_choose_copy(dd_arena *arena);
/* Into memory that others read, and into our outputs. */
void dd_arena_put(dd_arena *arena, void *dst, const void *src, size_t nbytes);
void dd_arena_take(dd_arena *arena, void *dst, const void *src, size_t nbytes);
/* An operation that is measured has been started; it waits for headers; it has all headers; it has read its
 * last round. */
void dd_arena_stop_clock(dd_arena *arena);
void dd_arena_start_clock(dd_arena *arena);
void dd_arena_note_taken(dd_arena *arena);

/* ---- fold.c */

/* Folds what arena->sources point to, which is what all ranks have for op->offset to nbytes of the array from `start` on, and
 * passes each piece on; at its end, true. False: the budget is spent. Offsets that are passed on are those of the result. */
typedef void arena_give(dd_arena *arena, size_t at, const uint8_t *result, size_t nbytes);
bool dd_arena_fold(dd_arena *arena, size_t start, size_t nbytes, arena_give *give);

/* The number of bytes from which an all_reduce is a shared fold. */
size_t dd_arena_fold_min(int nranks, bool is_crowded);
/* What a rank that claims a share takes at least, so that small arrays are not cut into crumbs. */
#define ARENA_CLAIMED_SHARE_BYTES ((size_t)2048)

/* Whether this is one, and then how much a chunk carries. */
bool dd_arena_choose_chunks(dd_arena *arena);
uint64_t dd_arena_count_chunks(const dd_arena *arena);
/* What is staged of the first one. */
size_t dd_arena_first_chunk_nbytes(const dd_arena *arena);
void dd_arena_stage_chunk(dd_arena *arena, uint64_t chunk);
/* Folds what shares of a chunk are ours, or are still to be had, as far as the budget allows; true at its
 * end. */
bool dd_arena_fold_shares(dd_arena *arena, uint64_t chunk);
/* Copies what others have folded. */
void dd_arena_read_shares(dd_arena *arena, uint64_t chunk);

/* all_reduce with all inputs and outputs in regions: our share, from all into all; true at its end. */
bool dd_arena_fold_in_place(dd_arena *arena);
/* After all have done that: what they have left out in our output. */
void dd_arena_take_edges(dd_arena *arena);

/* ---- move.c */

/* Which way the operation goes, and how much a round carries; from what all ranks know. */
void dd_arena_choose_round(dd_arena *arena);
/* Once the headers are compared: how many rounds there are. */
void dd_arena_count_rounds(dd_arena *arena);
/* Finds space for round 0, if this rank stages; false while there is none. */
bool dd_arena_find_place(dd_arena *arena);
/* Whether a round may be staged: what it needs has come, and its space is free. */
bool dd_arena_may_stage(dd_arena *arena, uint64_t round);
/* Stages a round; true at its end. Round 0 is staged at once. */
bool dd_arena_stage(dd_arena *arena, uint64_t round);
/* Ranks of which a round's data is read; NULL: none. */
const dd_arena_ranks *dd_arena_read_from(dd_arena *arena, uint64_t round);
/* Reads a round, or as much of it as the budget allows; true at its end. */
bool dd_arena_read(dd_arena *arena, uint64_t round);

/* What is published when a round is staged. */
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

/* Where the result of the input's byte `offset` goes. */
static inline uint8_t *
dd_arena_result_at(const dd_arena *arena, size_t offset)
{
    const arena_op *op = &arena->op;
    return (uint8_t *)op->args->outputs[0].data + offset / op->in_size * op->out_size;
}

#endif
