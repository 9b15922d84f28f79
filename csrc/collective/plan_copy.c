/* Plans of collectives that fold nothing. */
#include "collective/plan_internal.h"

/* In round k a rank tells the one 2^k further on that it and the 2^k - 1 before it have come. */
void
dd_build_barrier(dd_builder *b)
{
    uint32_t received[32];
    size_t round = 0;
    for (long distance = 1; distance < b->nranks; distance *= 2, round++) {
        dd_plan_range nothing = {.buffer = DD_PLAN_SCRATCH};
        uint32_t send = dd_builder_send(b, dd_builder_at(b, b->rank, (int)distance), round, nothing);
        for (size_t i = 0; i < round; i++) {
            dd_builder_after(b, send, received[i]);
        }
        received[round] = dd_builder_recv(b, dd_builder_at(b, b->rank, (int)-distance), round, nothing);
    }
}

/* ---- trees: places are ranks counted from the root */

static int
place_of(const dd_builder *b)
{
    return dd_builder_at(b, b->rank, -b->args->root);
}

static int
rank_at(const dd_builder *b, long place)
{
    return (int)((place + b->args->root) % b->nranks);
}

/* What places of a binomial tree have a part of: of those from `place` on, as many as its lowest bit says. */
static int
count_spoken_for(const dd_builder *b, int place)
{
    int lowest = place & -place;
    int rest = b->nranks - place;
    return place == 0 || lowest > rest ? rest : lowest;
}

/* ---- broadcast */

/* Where the bytes are: the root sends its input, others what they have received. */
static dd_plan_range
range_held(const dd_builder *b, dd_span bytes)
{
    return dd_builder_is_root(b) ? dd_range_input(0, bytes.first, bytes.count)
                                 : dd_range_output(0, bytes.first, bytes.count);
}

static void
copy_on_root(dd_builder *b)
{
    if (dd_builder_is_root(b)) {
        size_t nbytes = b->args->outputs[0].nbytes;
        dd_builder_copy_all(b, dd_range_input(0, 0, nbytes), dd_range_output(0, 0, nbytes));
    }
}

/* Gets the array from one place, and gives it to those at a distance that halves, the furthest first since that one has
 * the most to pass on. */
static void
relay(dd_builder *b, long from, long furthest)
{
    int place = place_of(b);
    size_t nbytes = b->args->outputs[0].nbytes;
    size_t nsegments = dd_nsegments(nbytes, b->segment_nbytes);
    for (size_t s = 0; s < nsegments && b->status == DD_OK; s++) {
        dd_plan_range held = range_held(b, dd_segment(nbytes, b->segment_nbytes, s));
        if (place != 0) {
            dd_builder_recv(b, rank_at(b, from), s, held);
        }
        for (long distance = furthest; distance > 0; distance /= 2) {
            if (distance < b->nranks - place) {
                dd_builder_send(b, rank_at(b, place + distance), s, held);
            }
        }
    }
    copy_on_root(b);
}

/* Place p gets the array from p without its lowest bit, and gives it to p plus each lower power of two. */
void
dd_build_broadcast_binomial(dd_builder *b)
{
    int place = place_of(b);
    long lowest = 1;
    while (place != 0 ? (place & lowest) == 0 : lowest < b->nranks) {
        lowest *= 2;
    }
    relay(b, place - lowest, lowest / 2);
}

void
dd_build_broadcast_chain(dd_builder *b)
{
    relay(b, place_of(b) - 1, 1);
}

/* The part of the array that the root sends to a place, which passes it on to all others but the root. */
static dd_plan_range
part_held(const dd_builder *b, int place, size_t s)
{
    dd_span part = dd_share_lines(b->args->outputs[0].nbytes, 64, b->nranks - 1, place - 1);
    dd_span bytes = dd_segment(part.count, b->segment_nbytes, s);
    bytes.first += part.first;
    return range_held(b, bytes);
}

/* The root sends each other rank a part, segment by segment; each passes its own on to all the others meanwhile. */
void
dd_build_broadcast_shares(dd_builder *b)
{
    int place = place_of(b);
    int nothers = b->nranks - 1;
    size_t nbytes = b->args->outputs[0].nbytes;
    size_t nsegments =
        nothers > 0 ? dd_nsegments(dd_share_lines(nbytes, 64, nothers, 0).count, b->segment_nbytes) : 0;
    for (size_t s = 0; s < nsegments && b->status == DD_OK; s++) {
        if (place == 0) {
            for (int to = 1; to <= nothers; to++) {
                dd_builder_send(b, rank_at(b, to), s, part_held(b, to, s));
            }
            continue;
        }
        dd_builder_recv(b, b->args->root, s, part_held(b, place, s));
        for (int distance = 1; distance < nothers; distance++) {
            int to = 1 + (place - 1 + distance) % nothers;
            dd_builder_send(b, rank_at(b, to), s, part_held(b, place, s));
        }
        for (int distance = 1; distance < nothers; distance++) {
            int from = 1 + (place - 1 - distance + nothers) % nothers;
            dd_builder_recv(b, rank_at(b, from), s, part_held(b, from, s));
        }
    }
    copy_on_root(b);
}

/* ---- from each to each, straight */

/* How many partners a rank of an all_to_all talks to at once. */
#define WINDOW 16

/* What this rank has for a peer, or gets from it; nothing where the collective has a root and neither is it. */
static dd_plan_range
part_of(const dd_builder *b, bool is_output, int peer)
{
    const dd_coll_args *args = b->args;
    int root_side = is_output == (args->coll == DD_COLL_SCATTER) ? peer : b->rank;
    if (dd_coll_has_root(args->coll) && root_side != args->root) {
        return (dd_plan_range){.nbytes = 0};
    }
    int block = is_output ? dd_coll_own_output(args->coll, peer) : dd_coll_own_input(args->coll, peer);
    return is_output ? dd_range_output(block, 0, args->outputs[block].nbytes)
                     : dd_range_input(block, 0, args->inputs[block].nbytes);
}

typedef uint32_t add_message(dd_builder *b, int peer, size_t channel, dd_plan_range range);

/* The last of the messages, or *last as it is if there is nothing to send; all of them after two earlier ones. */
static void
move_all(dd_builder *b, add_message *add, int peer, dd_plan_range range, const uint32_t before[2],
         uint32_t *last)
{
    size_t nsegments = dd_nsegments(range.nbytes, b->segment_nbytes);
    for (size_t s = 0; s < nsegments && b->status == DD_OK; s++) {
        uint32_t step = add(b, peer, s, dd_range_part(range, dd_segment(range.nbytes, b->segment_nbytes, s)));
        dd_builder_after(b, step, before[0]);
        dd_builder_after(b, step, before[1]);
        *last = step;
    }
}

/* In step d everybody sends to the rank d after it and receives from the one d before it, so that nobody is everybody's
 * target at once. */
void
dd_build_move_direct(dd_builder *b)
{
    uint32_t last[WINDOW][2];
    for (int distance = 1; distance < b->nranks && b->status == DD_OK; distance++) {
        int to = dd_builder_at(b, b->rank, distance);
        int from = dd_builder_at(b, b->rank, -distance);
        uint32_t *latest = last[distance % WINDOW];
        if (distance <= WINDOW || b->args->coll != DD_COLL_ALL_TO_ALL) {
            latest[0] = latest[1] = DD_NO_STEP;
        }
        uint32_t before[2] = {latest[0], latest[1]};
        move_all(b, dd_builder_send, to, part_of(b, false, to), before, &latest[0]);
        move_all(b, dd_builder_recv, from, part_of(b, true, from), before, &latest[1]);
    }
    dd_builder_copy_all(b, part_of(b, false, b->rank), part_of(b, true, b->rank));
}

static void
copy_own(dd_builder *b)
{
    size_t nbytes = b->args->outputs[b->rank].nbytes;
    dd_builder_copy_all(b, dd_range_input(0, 0, nbytes), dd_range_output(b->rank, 0, nbytes));
}

/* Everybody sends its block to everybody. */
void
dd_build_all_gather_direct(dd_builder *b)
{
    size_t nsegments = dd_builder_cut_blocks(b, 1);
    for (size_t s = 0; s < nsegments && b->status == DD_OK; s++) {
        dd_builder_spread(b, s, s);
    }
    copy_own(b);
}

/* Every block goes around. */
void
dd_build_all_gather_ring(dd_builder *b)
{
    size_t nsegments = dd_builder_cut_blocks(b, 1);
    for (size_t s = 0; s < nsegments && b->status == DD_OK; s++) {
        dd_builder_pass_around(b, s, s * (size_t)b->nranks);
    }
    copy_own(b);
}

/* ---- messages that hold blocks of many ranks: equal blocks, a piece of each at a time */

#define LINE ((size_t)64)

typedef struct pieces {
    size_t nbytes; /* of a block */
    size_t each;   /* of it in a piece, but for the last one */
    size_t count;
} pieces;

static pieces
cut(const dd_builder *b, size_t nbytes)
{
    size_t each = b->segment_nbytes / (size_t)b->nranks / LINE * LINE;
    each = each < LINE ? LINE : each;
    each = nbytes < each && nbytes > 0 ? nbytes : each;
    return (pieces){.nbytes = nbytes, .each = each, .count = dd_nsegments(nbytes, each)};
}

/* The k-th and the blocks after it, where pieces of blocks lie side by side. */
static dd_plan_range
blocks_at(dd_plan_range all, dd_span bytes, long k, long count)
{
    return dd_range_part(all, (dd_span){(size_t)k * bytes.count, (size_t)count * bytes.count});
}

/* A binomial tree: place p speaks for p up to p + its lowest bit, and the child at a distance for as many as
 * that, or what is left. */
typedef struct tree_piece {
    int place;
    int nspoken; /* places that this one speaks for, itself included */
    int parent;  /* rank */
    size_t s;
    dd_plan_range all; /* the blocks of those, side by side */
    dd_span bytes;     /* of each block */
} tree_piece;

static dd_plan_range
child_blocks(const tree_piece *piece, long distance)
{
    long rest = piece->nspoken - distance;
    return blocks_at(piece->all, piece->bytes, distance, distance < rest ? distance : rest);
}

/* Up the tree: a rank collects its children's blocks behind its own, and the root copies all of them to its outputs. */
static void
gather_piece(dd_builder *b, const tree_piece *piece)
{
    dd_span bytes = piece->bytes;
    dd_plan_range own = dd_range_input(0, bytes.first, bytes.count);
    for (long distance = 1; distance < piece->nspoken; distance *= 2) {
        dd_builder_recv(b, rank_at(b, piece->place + distance), piece->s, child_blocks(piece, distance));
    }
    if (piece->place != 0) {
        if (piece->nspoken > 1) {
            dd_builder_copy(b, own, blocks_at(piece->all, bytes, 0, 1));
            own = piece->all;
        }
        dd_builder_send(b, piece->parent, piece->s, own);
        return;
    }
    for (int place = 1; place < b->nranks; place++) {
        dd_builder_copy(b, blocks_at(piece->all, bytes, place, 1),
                        dd_range_output(rank_at(b, place), bytes.first, bytes.count));
    }
    dd_builder_copy(b, own, dd_range_output(b->rank, bytes.first, bytes.count));
}

/* Down the tree. */
static void
scatter_piece(dd_builder *b, const tree_piece *piece)
{
    dd_span bytes = piece->bytes;
    dd_plan_range result = dd_range_output(0, bytes.first, bytes.count);
    dd_plan_range own = blocks_at(piece->all, bytes, 0, 1);
    if (piece->place == 0) {
        for (int place = 1; place < b->nranks; place++) {
            dd_builder_copy(b, dd_range_input(rank_at(b, place), bytes.first, bytes.count),
                            blocks_at(piece->all, bytes, place, 1));
        }
        own = dd_range_input(b->rank, bytes.first, bytes.count);
    } else if (piece->nspoken == 1) {
        dd_builder_recv(b, piece->parent, piece->s, result);
        return;
    } else {
        dd_builder_recv(b, piece->parent, piece->s, piece->all);
    }
    long distance = 1;
    while (2 * distance < piece->nspoken) {
        distance *= 2;
    }
    for (; distance > 0 && distance < piece->nspoken; distance /= 2) {
        dd_builder_send(b, rank_at(b, piece->place + distance), piece->s, child_blocks(piece, distance));
    }
    dd_builder_copy(b, own, result);
}

void
dd_build_move_binomial(dd_builder *b)
{
    bool is_gather = b->args->coll == DD_COLL_GATHER;
    pieces all = cut(b, is_gather ? b->args->inputs[0].nbytes : b->args->outputs[0].nbytes);
    int place = place_of(b);
    tree_piece piece = {.place = place,
                        .nspoken = count_spoken_for(b, place),
                        .parent = rank_at(b, place - (place & -place))};
    for (size_t s = 0; s < all.count && b->status == DD_OK; s++) {
        dd_builder_begin_segment(b, s, DD_PLAN_DEPTH);
        piece.s = s;
        piece.bytes = dd_segment(all.nbytes, all.each, s);
        piece.all =
            dd_builder_add_scratch(b, piece.nspoken > 1 ? (size_t)piece.nspoken * piece.bytes.count : 0);
        (is_gather ? gather_piece : scatter_piece)(b, &piece);
    }
}

/* Scratch holds the blocks of this rank and those after it, one after the other; in each round the number of them doubles.
 * Then they go to their places. */
void
dd_build_all_gather_bruck(dd_builder *b)
{
    pieces all = cut(b, b->args->outputs[b->rank].nbytes);
    for (size_t s = 0; s < all.count && b->status == DD_OK; s++) {
        dd_span bytes = dd_segment(all.nbytes, all.each, s);
        dd_plan_range own = dd_range_input(0, bytes.first, bytes.count);
        dd_builder_begin_segment(b, s, DD_PLAN_DEPTH);
        dd_plan_range set = dd_builder_add_scratch(b, (size_t)b->nranks * bytes.count);
        dd_builder_copy(b, own, blocks_at(set, bytes, 0, 1));
        for (int have = 1, count = 1; have < b->nranks; have += count) {
            count = have < b->nranks - have ? have : b->nranks - have;
            dd_builder_send(b, dd_builder_at(b, b->rank, -have), s, blocks_at(set, bytes, 0, count));
            dd_builder_recv(b, dd_builder_at(b, b->rank, have), s, blocks_at(set, bytes, have, count));
        }
        for (int place = 1; place < b->nranks; place++) {
            int block = dd_builder_at(b, b->rank, place);
            dd_builder_copy(b, blocks_at(set, bytes, place, 1),
                            dd_range_output(block, bytes.first, bytes.count));
        }
        dd_builder_copy(b, own, dd_range_output(b->rank, bytes.first, bytes.count));
    }
}

/* Place i of a rank holds the block that still has i to go, in steps of powers of two: those of i's bits. In round k all
 * places with bit k go 2^k further, packed into one message. */
typedef struct bruck {
    dd_span bytes;          /* of a block */
    dd_plan_range came[32]; /* by round: the message that has come */
} bruck;

/* The block of a place before the round with that distance: where the last round that moved it has left it. */
static dd_plan_range
held_at(const dd_builder *b, const bruck *state, int place, long distance)
{
    long moved = place & (distance - 1);
    if (moved == 0) {
        return dd_range_input(dd_builder_at(b, b->rank, place), state->bytes.first, state->bytes.count);
    }
    int round = 0;
    while (moved >> (round + 1) != 0) {
        round++;
    }
    /* Of the places below this one, so many have that bit. */
    long nbefore = ((long)place >> (round + 1) << round) + (place & ((1L << round) - 1));
    return blocks_at(state->came[round], state->bytes, nbefore, 1);
}

static void
bruck_round(dd_builder *b, bruck *state, size_t s, int round)
{
    long distance = 1L << round;
    long half = b->nranks / (2 * distance) * distance;
    long rest = b->nranks % (2 * distance) - distance;
    size_t nbytes = (size_t)(half + (rest > 0 ? rest : 0)) * state->bytes.count;
    dd_plan_range packed = dd_builder_add_scratch(b, nbytes);
    state->came[round] = dd_builder_add_scratch(b, nbytes);
    long count = 0;
    for (int place = (int)distance; place < b->nranks; place++) {
        if ((place & distance) != 0) {
            dd_builder_copy(b, held_at(b, state, place, distance),
                            blocks_at(packed, state->bytes, count++, 1));
        }
    }
    dd_builder_send(b, dd_builder_at(b, b->rank, (int)distance), s, packed);
    dd_builder_recv(b, dd_builder_at(b, b->rank, (int)-distance), s, state->came[round]);
}

void
dd_build_all_to_all_bruck(dd_builder *b)
{
    pieces all = cut(b, b->args->outputs[b->rank].nbytes);
    for (size_t s = 0; s < all.count && b->status == DD_OK; s++) {
        bruck state = {.bytes = dd_segment(all.nbytes, all.each, s)};
        dd_builder_begin_segment(b, s, DD_PLAN_DEPTH);
        int round = 0;
        for (; 1L << round < b->nranks; round++) {
            bruck_round(b, &state, s, round);
        }
        for (int place = 0; place < b->nranks; place++) {
            int block = dd_builder_at(b, b->rank, -place);
            dd_builder_copy(b, held_at(b, &state, place, 1L << round),
                            dd_range_output(block, state.bytes.first, state.bytes.count));
        }
    }
}
