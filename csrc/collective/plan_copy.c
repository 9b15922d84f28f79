/* Plans of collectives that fold nothing. */
#include "collective/plan_internal.h"

/* In round k, each rank sends to the rank 2^k after it. The receiver then knows that the sender and
 * the 2^k - 1 ranks before it have arrived. */
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

/* ---- trees of virtual ranks (vranks): ranks counted from the root */

static int
plan_copy_vrank(const dd_builder *b)
{
    return dd_builder_at(b, b->rank, -b->args->root);
}

static int
rank_at(const dd_builder *b, long vrank)
{
    return (int)((vrank + b->args->root) % b->nranks);
}

/* Return the lowest set bit of this vrank. In a binomial tree, the parent is this far before the
 * rank, and the children follow it at each lower power of two. For the root, return the first power
 * of two >= nranks. */
static long
reach_of(const dd_builder *b)
{
    int vrank = plan_copy_vrank(b);
    long reach = 1;
    while (vrank != 0 ? (vrank & reach) == 0 : reach < b->nranks) {
        reach *= 2;
    }
    return reach;
}

/* ---- broadcast */

/* Return the place of these bytes: on the root, which sends them, the input; else the output. */
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

/* Receive the array from one vrank, and send it to the vranks at the distances `furthest`, half of
 * that, and so on. The furthest comes first, because it passes the array on to the most ranks. */
static void
relay(dd_builder *b, long from, long furthest)
{
    int vrank = plan_copy_vrank(b);
    size_t nbytes = b->args->outputs[0].nbytes;
    size_t nsegments = dd_nsegments(nbytes, b->segment_nbytes);
    for (size_t s = 0; s < nsegments && b->status == DD_OK; s++) {
        dd_plan_range held = range_held(b, dd_segment(nbytes, b->segment_nbytes, s));
        if (vrank != 0) {
            dd_builder_recv(b, rank_at(b, from), s, held);
        }
        for (long distance = furthest; distance > 0; distance /= 2) {
            if (distance < b->nranks - vrank) {
                dd_builder_send(b, rank_at(b, vrank + distance), s, held);
            }
        }
    }
    copy_on_root(b);
}

void
dd_build_broadcast_binomial(dd_builder *b)
{
    relay(b, plan_copy_vrank(b) - reach_of(b), reach_of(b) / 2);
}

void
dd_build_broadcast_chain(dd_builder *b)
{
    relay(b, plan_copy_vrank(b) - 1, 1);
}

/* Return the part that the root sends to a vrank, and the vrank then to all except the root. */
static dd_plan_range
part_held(const dd_builder *b, int vrank, size_t s)
{
    dd_span part = dd_share_lines(b->args->outputs[0].nbytes, 64, b->nranks - 1, vrank - 1);
    dd_span bytes = dd_segment(part.count, b->segment_nbytes, s);
    bytes.first += part.first;
    return range_held(b, bytes);
}

/* The root sends each rank one part, in segments; each rank sends it on to all except the root. */
void
dd_build_broadcast_shares(dd_builder *b)
{
    int vrank = plan_copy_vrank(b);
    int nothers = b->nranks - 1;
    size_t nbytes = b->args->outputs[0].nbytes;
    size_t nsegments =
        nothers > 0 ? dd_nsegments(dd_share_lines(nbytes, 64, nothers, 0).count, b->segment_nbytes) : 0;
    for (size_t s = 0; s < nsegments && b->status == DD_OK; s++) {
        if (vrank == 0) {
            for (int to = 1; to <= nothers; to++) {
                dd_builder_send(b, rank_at(b, to), s, part_held(b, to, s));
            }
            continue;
        }
        dd_builder_recv(b, b->args->root, s, part_held(b, vrank, s));
        for (int distance = 1; distance < nothers; distance++) {
            int to = 1 + (vrank - 1 + distance) % nothers;
            dd_builder_send(b, rank_at(b, to), s, part_held(b, vrank, s));
        }
        for (int distance = 1; distance < nothers; distance++) {
            int from = 1 + (vrank - 1 - distance + nothers) % nothers;
            dd_builder_recv(b, rank_at(b, from), s, part_held(b, from, s));
        }
    }
    copy_on_root(b);
}

/* ---- direct messages between all pairs */

#define WINDOW 16 /* number of ranks with which a rank exchanges at the same time */

/* Return the place of the data for a peer, or from the peer. The range is empty if the collective
 * has a root and neither rank is the root. */
static dd_plan_range
plan_copy_part_of(const dd_builder *b, bool is_output, int peer)
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

/* Add a range's messages, each after both steps in `before`. Set *last to the last message. */
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

/* At distance d, every rank sends to the rank d after it and receives from the rank d before it, so
 * that ranks do not all send to the same rank. */
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
        move_all(b, dd_builder_send, to, plan_copy_part_of(b, false, to), before, &latest[0]);
        move_all(b, dd_builder_recv, from, plan_copy_part_of(b, true, from), before, &latest[1]);
    }
    dd_builder_copy_all(b, plan_copy_part_of(b, false, b->rank), plan_copy_part_of(b, true, b->rank));
}

/* Pass every block around the ring if is_around; else send every block directly to all ranks. */
static void
all_gather(dd_builder *b, bool is_around)
{
    size_t nsegments = dd_builder_cut_blocks(b, 1);
    for (size_t s = 0; s < nsegments && b->status == DD_OK; s++) {
        if (is_around) {
            dd_builder_pass_around(b, s, s * (size_t)b->nranks);
        } else {
            dd_builder_spread(b, s, s);
        }
    }
    size_t nbytes = b->args->outputs[b->rank].nbytes;
    dd_builder_copy_all(b, dd_range_input(0, 0, nbytes), dd_range_output(b->rank, 0, nbytes));
}

void
dd_build_all_gather_direct(dd_builder *b)
{
    all_gather(b, false);
}

void
dd_build_all_gather_ring(dd_builder *b)
{
    all_gather(b, true);
}

/* ---- messages with blocks of many ranks: blocks are equal, a piece of each at a time */

#define LINE ((size_t)64)

/* Call `build` for each piece: piece s is the same part (`bytes`) of every block. */
static void
build_pieces(dd_builder *b, size_t nbytes, void (*build)(dd_builder *b, size_t s, dd_span bytes))
{
    size_t each = b->segment_nbytes / (size_t)b->nranks / LINE * LINE;
    each = each < LINE ? LINE : each;
    size_t count = dd_nsegments(nbytes, each);
    for (size_t s = 0; s < count && b->status == DD_OK; s++) {
        dd_builder_begin_segment(b, s, DD_PLAN_DEPTH);
        build(b, s, dd_segment(nbytes, each, s));
    }
}

/* Return the place of `count` adjacent blocks' pieces, from the k-th block on. */
static dd_plan_range
blocks_at(dd_plan_range all, dd_span bytes, long k, long count)
{
    return dd_range_part(all, (dd_span){(size_t)k * bytes.count, (size_t)count * bytes.count});
}

/* Return the number of vranks in this rank's subtree, whose blocks are adjacent. */
static long
count_subtree(const dd_builder *b)
{
    long rest = b->nranks - plan_copy_vrank(b);
    long reach = reach_of(b);
    return reach < rest ? reach : rest;
}

/* Add scratch for the blocks of `count` ranks, the first being this rank; none if count is 1. */
static dd_plan_range
add_blocks(dd_builder *b, long count, dd_span bytes)
{
    return dd_builder_add_scratch(b, count > 1 ? (size_t)count * bytes.count : 0);
}

static dd_plan_range
blocks_below(dd_plan_range all, dd_span bytes, long nhanded, long distance)
{
    long rest = nhanded - distance;
    return blocks_at(all, bytes, distance, distance < rest ? distance : rest);
}

/* In the round of each power of two, a rank receives the blocks that the rank at that distance
 * holds. In an all_gather, all ranks receive in every round and end with all blocks; in a gather,
 * the blocks move up a binomial tree. At the end, each block is copied to its output. */
static void
collect_piece(dd_builder *b, size_t s, dd_span bytes)
{
    bool is_all = b->args->coll == DD_COLL_ALL_GATHER;
    long nhanded = is_all ? b->nranks : count_subtree(b);
    bool is_last = is_all || dd_builder_is_root(b);
    dd_plan_range own_range = dd_range_input(0, bytes.first, bytes.count);
    dd_plan_range all = add_blocks(b, nhanded, bytes);
    if (nhanded > 1 && (is_all || !is_last)) {
        dd_builder_copy(b, own_range, blocks_at(all, bytes, 0, 1));
    }
    for (long distance = 1; distance < nhanded; distance *= 2) {
        dd_plan_range received = blocks_below(all, bytes, nhanded, distance);
        if (is_all) {
            dd_builder_send(b, dd_builder_at(b, b->rank, (int)-distance), s,
                            dd_range_part(all, (dd_span){0, received.nbytes}));
        }
        dd_builder_recv(b, dd_builder_at(b, b->rank, (int)distance), s, received);
    }
    if (!is_last) {
        dd_builder_send(b, dd_builder_at(b, b->rank, (int)-reach_of(b)), s, nhanded > 1 ? all : own_range);
        return;
    }
    for (int vrank = 1; vrank < b->nranks; vrank++) {
        dd_builder_copy(b, blocks_at(all, bytes, vrank, 1),
                        dd_range_output(dd_builder_at(b, b->rank, vrank), bytes.first, bytes.count));
    }
    dd_builder_copy(b, own_range, dd_range_output(b->rank, bytes.first, bytes.count));
}

void
dd_build_collect(dd_builder *b)
{
    build_pieces(b, b->args->inputs[0].nbytes, collect_piece);
}

static void
scatter_piece(dd_builder *b, size_t s, dd_span bytes)
{
    long nhanded = count_subtree(b);
    dd_plan_range all = add_blocks(b, nhanded, bytes);
    dd_plan_range result = dd_range_output(0, bytes.first, bytes.count);
    dd_plan_range own_range = blocks_at(all, bytes, 0, 1);
    if (!dd_builder_is_root(b)) {
        dd_plan_range received = nhanded > 1 ? all : result;
        dd_builder_recv(b, dd_builder_at(b, b->rank, (int)-reach_of(b)), s, received);
    }
    for (int vrank = 1; vrank < b->nranks && dd_builder_is_root(b); vrank++) {
        dd_builder_copy(b, dd_range_input(dd_builder_at(b, b->rank, vrank), bytes.first, bytes.count),
                        blocks_at(all, bytes, vrank, 1));
    }
    for (long distance = reach_of(b) / 2; distance > 0; distance /= 2) {
        if (distance < nhanded) {
            dd_builder_send(b, dd_builder_at(b, b->rank, (int)distance), s,
                            blocks_below(all, bytes, nhanded, distance));
        }
    }
    if (dd_builder_is_root(b)) {
        own_range = dd_range_input(b->rank, bytes.first, bytes.count);
    }
    if (dd_builder_is_root(b) || nhanded > 1) {
        dd_builder_copy(b, own_range, result);
    }
}

void
dd_build_scatter_binomial(dd_builder *b)
{
    build_pieces(b, b->args->outputs[0].nbytes, scatter_piece);
}

/* Place i of a rank holds the block that must move on by i ranks: by 2^k for each bit k that i has.
 * In round k, the blocks of all places with bit k move by 2^k ranks, packed into one message. */
typedef struct bruck {
    dd_span bytes;              /* the part of each block that this piece has */
    dd_plan_range received[32]; /* [round]: the message received in that round */
} bruck;

/* Return the place of the block for a vrank before the round of `distance`, after its last move. */
static dd_plan_range
block_before_round(const dd_builder *b, const bruck *state, int vrank, long distance)
{
    long moved = vrank & (distance - 1);
    if (moved == 0) {
        return dd_range_input(dd_builder_at(b, b->rank, vrank), state->bytes.first, state->bytes.count);
    }
    int round = 0;
    while (moved >> (round + 1) != 0) {
        round++;
    }
    /* Number of lower vranks that have bit `round`: they are first in the message. */
    long nbefore = ((long)vrank >> (round + 1) << round) + (vrank & ((1L << round) - 1));
    return blocks_at(state->received[round], state->bytes, nbefore, 1);
}

static void
bruck_round(dd_builder *b, bruck *state, size_t s, int round)
{
    long distance = 1L << round;
    long half = b->nranks / (2 * distance) * distance;
    long rest = b->nranks % (2 * distance) - distance;
    size_t nbytes = (size_t)(half + (rest > 0 ? rest : 0)) * state->bytes.count;
    dd_plan_range packed = dd_builder_add_scratch(b, nbytes);
    state->received[round] = dd_builder_add_scratch(b, nbytes);
    long count = 0;
    for (int vrank = (int)distance; vrank < b->nranks; vrank++) {
        if ((vrank & distance) != 0) {
            dd_builder_copy(b, block_before_round(b, state, vrank, distance),
                            blocks_at(packed, state->bytes, count++, 1));
        }
    }
    dd_builder_send(b, dd_builder_at(b, b->rank, (int)distance), s, packed);
    dd_builder_recv(b, dd_builder_at(b, b->rank, (int)-distance), s, state->received[round]);
}

static void
bruck_piece(dd_builder *b, size_t s, dd_span bytes)
{
    bruck state = {.bytes = bytes};
    int round = 0;
    for (; 1L << round < b->nranks; round++) {
        bruck_round(b, &state, s, round);
    }
    for (int vrank = 0; vrank < b->nranks; vrank++) {
        int block = dd_builder_at(b, b->rank, -vrank);
        dd_builder_copy(b, block_before_round(b, &state, vrank, 1L << round),
                        dd_range_output(block, bytes.first, bytes.count));
    }
}

void
dd_build_all_to_all_bruck(dd_builder *b)
{
    build_pieces(b, b->args->outputs[b->rank].nbytes, bruck_piece);
}
