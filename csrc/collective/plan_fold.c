/* Plans of reductions. Each order of folding has its part of the file. */
#include "collective/plan_internal.h"

static uint32_t
add_fold_of_two(dd_builder *b, dd_stage stage, dd_plan_range first, dd_plan_range second, dd_plan_range dst)
{
    uint32_t fold = dd_builder_fold(b, stage, dst);
    dd_builder_add_source(b, first);
    dd_builder_add_source(b, second);
    return fold;
}

static void
add_fold_of_one(dd_builder *b, dd_stage stage, dd_plan_range src, dd_plan_range dst)
{
    dd_builder_fold(b, stage, dst);
    dd_builder_add_source(b, src);
}

/* ---- linear: each rank sends its input unchanged, and one fold takes all ranks' parts in order */

/* Return the slot for a peer's part. Slots of the other ranks are adjacent, each in whole lines. */
static dd_plan_range
plan_fold_slot_of(const dd_builder *b, dd_plan_range first, int peer)
{
    first.offset += (size_t)(peer < b->rank ? peer : peer - 1) * dd_round_up(first.nbytes);
    return first;
}

static uint32_t
take_and_fold(dd_builder *b, size_t s, dd_plan_range own_range, dd_plan_range dst)
{
    dd_plan_range slots = dd_builder_add_scratch(b, dd_round_up(own_range.nbytes) * (size_t)(b->nranks - 1));
    slots.nbytes = own_range.nbytes;
    for (int distance = 1; distance < b->nranks; distance++) {
        int peer = dd_builder_at(b, b->rank, -distance);
        dd_builder_recv(b, peer, s, plan_fold_slot_of(b, slots, peer));
    }
    uint32_t fold = dd_builder_fold(b, DD_STAGE_WHOLE, dst);
    for (int k = 0; k < b->nranks; k++) {
        dd_builder_add_source(b, k == b->rank ? own_range : plan_fold_slot_of(b, slots, k));
    }
    return fold;
}

/* A rank that folds receives the other ranks' contributions to its block, or to the whole array. */
static void
fold_direct(dd_builder *b, bool is_whole)
{
    bool is_reduce = b->args->coll == DD_COLL_REDUCE;
    bool is_buffered = is_reduce && !is_whole && !dd_builder_is_root(b);
    b->has_whole_blocks = is_whole;
    size_t nsegments = dd_builder_cut_blocks(b, b->input_nbytes);
    uint32_t folded[DD_PLAN_DEPTH] = {DD_NO_STEP, DD_NO_STEP}; /* last reader of each scratch set */
    for (size_t s = 0; s < nsegments && b->status == DD_OK; s++) {
        uint32_t *latest = &folded[s % DD_PLAN_DEPTH];
        dd_builder_begin_segment(b, s, DD_PLAN_DEPTH);
        for (int distance = 1; distance < b->nranks; distance++) {
            int peer = dd_builder_at(b, b->rank, distance);
            if (!is_reduce || !is_whole || peer == b->args->root) {
                /* Send at most DD_PLAN_DEPTH segments ahead, in order not to flood the peers. */
                uint32_t send = dd_builder_send(b, peer, s, dd_builder_block_input(b, peer, s));
                dd_builder_after(b, send, *latest);
            }
        }
        dd_plan_range dst = dd_builder_block_output(b, b->rank, s);
        dst = is_buffered ? dd_builder_add_scratch(b, dst.nbytes) : dst;
        if (!is_reduce || !is_whole || dd_builder_is_root(b)) {
            dd_builder_update_step(latest, take_and_fold(b, s, dd_builder_block_input(b, b->rank, s), dst));
        }
        if (is_buffered) {
            dd_builder_send(b, b->args->root, nsegments + s, dst);
        } else if (is_reduce && !is_whole) {
            dd_builder_collect(b, s, nsegments + s);
        } else if (b->args->coll == DD_COLL_ALL_REDUCE && !is_whole) {
            dd_builder_spread(b, s, nsegments + s);
        }
    }
}

void
dd_build_fold_whole(dd_builder *b)
{
    fold_direct(b, true);
}

/* Each rank folds its share; then the ranks that need the whole result receive all shares. */
void
dd_build_fold_shares(dd_builder *b)
{
    fold_direct(b, false);
}

/* ---- prefixes: rank r gets the fold of the inputs of ranks 0 to r (scan) or r - 1 (exscan), in
 * linear order. In an exscan, the output of rank 0 is not written. */

/* Every rank sends its input to all higher ranks. */
void
dd_build_scan_direct(dd_builder *b)
{
    b->has_whole_blocks = true;
    size_t nsegments = dd_builder_cut_blocks(b, b->input_nbytes);
    uint32_t folded[DD_PLAN_DEPTH] = {DD_NO_STEP, DD_NO_STEP}; /* last reader of each scratch set */
    for (size_t s = 0; s < nsegments && b->status == DD_OK; s++) {
        uint32_t *latest = &folded[s % DD_PLAN_DEPTH];
        dd_builder_begin_segment(b, s, DD_PLAN_DEPTH);
        dd_plan_range own_range = dd_builder_block_input(b, 0, s);
        for (int peer = b->rank + 1; peer < b->nranks; peer++) {
            uint32_t send = dd_builder_send(b, peer, s, own_range);
            dd_builder_after(b, send, *latest);
        }
        dd_plan_range slots = dd_builder_add_scratch(b, dd_round_up(own_range.nbytes) * (size_t)b->rank);
        slots.nbytes = own_range.nbytes;
        for (int peer = b->rank - 1; peer >= 0; peer--) {
            dd_builder_recv(b, peer, s, plan_fold_slot_of(b, slots, peer));
        }
        int nfolded = dd_coll_nfolded(b->args->coll, b->rank, b->nranks);
        if (nfolded == 0) {
            continue;
        }
        uint32_t fold = dd_builder_fold(b, DD_STAGE_WHOLE, dd_builder_block_output(b, 0, s));
        for (int k = 0; k < nfolded; k++) {
            dd_builder_add_source(b, k == b->rank ? own_range : plan_fold_slot_of(b, slots, k));
        }
        dd_builder_update_step(latest, fold);
    }
}

/* Receive a segment of the lower ranks' fold, fold this rank's input into it, and send it on. */
static void
pass_prefix(dd_builder *b, size_t s, size_t partial_nbytes)
{
    bool is_first = b->rank == 0;
    bool is_last = b->rank + 1 == b->nranks;
    bool is_exclusive = dd_coll_traits_of[b->args->coll].is_exclusive;
    /* True if the partial result that is sent on can be stored as this rank's result. */
    bool is_result = !is_exclusive && !b->is_lifted && b->output_nbytes == b->partial_nbytes;
    dd_plan_range output = dd_builder_block_output(b, 0, s);
    dd_plan_range held = dd_builder_block_input(b, 0, s);
    if (b->is_lifted) {
        dd_plan_range lift = dd_builder_add_scratch(b, partial_nbytes);
        add_fold_of_one(b, DD_STAGE_FIRST, held, lift);
        held = lift;
    }
    dd_plan_range result = held;
    if (!is_first) {
        dd_plan_range received = dd_builder_add_scratch(b, partial_nbytes);
        dd_plan_range dst = is_result ? output : received;
        dst = is_exclusive ? dd_builder_add_scratch(b, partial_nbytes) : dst;
        dd_builder_recv(b, b->rank - 1, s, received);
        if (!is_exclusive || !is_last) {
            add_fold_of_two(b, DD_STAGE_MIDDLE, received, held, dst);
        }
        result = is_exclusive ? received : dst;
        held = dst;
    }
    if (!is_last) {
        dd_builder_send(b, b->rank + 1, s, held);
    }
    if (is_exclusive ? !is_first : is_first || !is_result) {
        add_fold_of_one(b, DD_STAGE_LAST, result, output);
    }
}

/* Pass partial results from each rank to the next one. */
void
dd_build_scan_chain(dd_builder *b)
{
    b->has_whole_blocks = true;
    size_t nsegments = dd_builder_cut_blocks(b, b->partial_nbytes);
    for (size_t s = 0; s < nsegments && b->status == DD_OK; s++) {
        dd_builder_begin_segment(b, s, DD_PLAN_DEPTH);
        size_t count = dd_builder_block_input(b, 0, s).nbytes / b->input_nbytes;
        pass_prefix(b, s, count * b->partial_nbytes);
    }
}

/* ---- ring: block k starts at rank k + 1 and passes through every rank to rank k
 *
 * Segments alternate between a few lanes; each passes all the way around before the next segment of
 * its lane starts. A lane has two slots, used alternately: while one partial result is sent on, the
 * next one is received. If all segments of a block moved in each round, transfers could wait for
 * slots in a circle around the ring. So transfers wait only for earlier ones of their lane. */

#define LANES 4

/* Pass segment s of every block around the ring. `before` is the last fold of the lane's previous
 * segment; return the last fold of this segment. */
static uint32_t
reduce_segment(dd_builder *b, size_t s, uint32_t before)
{
    size_t nrounds = (size_t)b->nranks - 1;
    int block = dd_builder_at(b, b->rank, -1);
    dd_plan_range held = dd_builder_block_input(b, block, s);
    size_t most = b->largest_segment * b->partial_nbytes;
    dd_plan_range slots[2] = {dd_builder_add_scratch(b, most), dd_builder_add_scratch(b, most)};
    /* For this rank's lifted input; in the first transfer, for the peer's input, not yet lifted. */
    dd_plan_range lift = dd_builder_add_scratch(b, b->is_lifted ? most : 0);
    for (size_t round = 0; round < nrounds; round++) {
        size_t channel = s * nrounds + round;
        bool is_first = round == 0;
        bool is_last = round + 1 == nrounds;
        uint32_t send = dd_builder_send(b, dd_builder_at(b, b->rank, 1), channel, held);
        dd_builder_after(b, send, is_first ? before : DD_NO_STEP);
        block = dd_builder_at(b, block, -1);
        dd_plan_range own_range = dd_builder_block_input(b, block, s);
        held = slots[(s / LANES * nrounds + round) % 2];
        held.nbytes = own_range.nbytes / b->input_nbytes * b->partial_nbytes;
        lift.nbytes = is_first ? own_range.nbytes : held.nbytes;
        dd_plan_range received = is_first && b->is_lifted ? lift : held; /* unlifted as sent */
        dd_builder_recv(b, dd_builder_at(b, b->rank, -1), channel, received);
        if (b->is_lifted && !is_first) {
            add_fold_of_one(b, DD_STAGE_FIRST, own_range, lift);
            own_range = lift;
        }
        dd_stage stage = is_last ? (is_first ? DD_STAGE_WHOLE : DD_STAGE_LAST)
                                 : (is_first ? DD_STAGE_FIRST : DD_STAGE_MIDDLE);
        dd_plan_range dst = is_last ? dd_builder_block_output(b, b->rank, s) : held;
        dd_builder_update_step(&before, add_fold_of_two(b, stage, received, own_range, dst));
    }
    return before;
}

void
dd_build_fold_ring(dd_builder *b)
{
    size_t nsegments = dd_builder_cut_blocks(b, b->partial_nbytes);
    uint32_t folded[LANES] = {DD_NO_STEP, DD_NO_STEP, DD_NO_STEP, DD_NO_STEP};
    for (size_t s = 0; s < nsegments && b->status == DD_OK; s++) {
        dd_builder_begin_segment(b, s, LANES);
        if (b->nranks == 1) {
            add_fold_of_one(b, DD_STAGE_WHOLE, dd_builder_block_input(b, 0, s),
                            dd_builder_block_output(b, 0, s));
            continue;
        }
        folded[s % LANES] = reduce_segment(b, s, folded[s % LANES]);
        if (b->args->coll == DD_COLL_ALL_REDUCE) {
            dd_builder_pass_around(b, s, (nsegments + s) * ((size_t)b->nranks - 1));
        }
    }
}

/* ---- tree: pairs
 *
 * The order is the same for reduce and all_reduce, and for all roots. Let p be the largest power of
 * two up to nranks, and r = nranks - p. First, ranks 2i and 2i + 1 are folded for i < r. The
 * resulting p partial results are folded in pairs of neighbours, these in pairs again, and so on,
 * always with the lower ranks' part first. */

typedef struct tree {
    bool is_all; /* all ranks get the result, not only the root */
    int npairs;  /* number of pairs of ranks that are folded first */
    int nvranks; /* number of virtual ranks once the pairs are folded; a power of two */
    /* The fields from here on describe the current segment. */
    size_t s;
    dd_plan_range input;
    dd_plan_range output;
    dd_plan_range slots[2]; /* two slots that receive partial results in turn */
    dd_plan_range held;     /* this rank's partial result */
    int next;               /* index of the slot that is not `held` */
} tree;

static bool
is_paired(const tree *t, int rank)
{
    return rank < 2 * t->npairs;
}

static int
plan_fold_vrank(const tree *t, int rank)
{
    return is_paired(t, rank) ? rank / 2 : rank - t->npairs;
}

/* Return the rank of a vrank: in a pair with the root, the root; in other pairs, the lower rank. */
static int
rank_of_vrank(const dd_builder *b, const tree *t, int vrank)
{
    if (vrank >= t->npairs) {
        return vrank + t->npairs;
    }
    return !t->is_all && b->args->root / 2 == vrank ? b->args->root : 2 * vrank;
}

/* Fold a peer's part and this rank's part; the lower rank's part comes first. */
static void
fold_with(dd_builder *b, dd_stage stage, int peer, dd_plan_range received, dd_plan_range own_range,
          dd_plan_range dst)
{
    bool is_lower = b->rank < peer;
    add_fold_of_two(b, stage, is_lower ? own_range : received, is_lower ? received : own_range, dst);
}

/* Begin with this rank's input; in a pair, the other rank's input is folded with it. */
static void
tree_begin(dd_builder *b, tree *t)
{
    t->held = t->slots[0];
    t->next = 1;
    if (is_paired(t, b->rank)) {
        dd_plan_range received = b->is_lifted ? dd_builder_add_scratch(b, t->input.nbytes) : t->slots[0];
        dd_builder_recv(b, b->rank ^ 1, t->s, received);
        fold_with(b, DD_STAGE_FIRST, b->rank ^ 1, received, t->input, t->held);
    } else if (b->is_lifted) {
        add_fold_of_one(b, DD_STAGE_FIRST, t->input, t->held);
    } else {
        t->held = t->input;
        t->next = 0;
    }
}

/* Move partial results towards the root's vrank; in an all_reduce, exchange them both ways. */
static void
tree_climb(dd_builder *b, tree *t)
{
    int vrank = plan_fold_vrank(t, b->rank);
    for (int distance = 1; distance < t->nvranks; distance *= 2) {
        int peer = rank_of_vrank(b, t, vrank ^ distance);
        bool is_giving = ((vrank ^ plan_fold_vrank(t, b->args->root)) & distance) != 0;
        if (t->is_all || is_giving) {
            dd_builder_send(b, peer, t->s, t->held);
        }
        if (!t->is_all && is_giving) {
            return;
        }
        bool is_last = 2 * distance == t->nvranks;
        dd_plan_range received = t->slots[t->next];
        dd_builder_recv(b, peer, t->s, received);
        fold_with(b, is_last ? DD_STAGE_LAST : DD_STAGE_MIDDLE, peer, received, t->held,
                  is_last ? t->output : received);
        t->held = received;
        t->next = 1 - t->next;
    }
}

static void
tree_segment(dd_builder *b, tree *t)
{
    int result_rank = rank_of_vrank(b, t, plan_fold_vrank(t, b->rank));
    if (b->nranks == 1) {
        add_fold_of_one(b, DD_STAGE_WHOLE, t->input, t->output);
        return;
    }
    if (result_rank != b->rank) {
        dd_builder_send(b, result_rank, t->s, t->input);
    } else {
        tree_begin(b, t);
        tree_climb(b, t);
    }
    if (t->is_all && result_rank != b->rank) {
        dd_builder_recv(b, result_rank, t->s, t->output);
    } else if (t->is_all && is_paired(t, b->rank)) {
        dd_builder_send(b, b->rank ^ 1, t->s, t->output);
    }
}

void
dd_build_fold_tree(dd_builder *b)
{
    b->has_whole_blocks = true;
    size_t nsegments = dd_builder_cut_blocks(b, b->partial_nbytes);
    tree t = {.is_all = b->args->coll == DD_COLL_ALL_REDUCE, .nvranks = 1};
    while (t.nvranks <= b->nranks / 2) {
        t.nvranks *= 2;
    }
    t.npairs = b->nranks - t.nvranks;
    for (t.s = 0; t.s < nsegments && b->status == DD_OK; t.s++) {
        t.input = dd_builder_block_input(b, 0, t.s);
        t.output = dd_builder_block_output(b, 0, t.s);
        dd_builder_begin_segment(b, t.s, DD_PLAN_DEPTH);
        for (int i = 0; i < 2 && b->nranks > 1; i++) {
            t.slots[i] = dd_builder_add_scratch(b, t.input.nbytes / b->input_nbytes * b->partial_nbytes);
        }
        tree_segment(b, &t);
    }
}
