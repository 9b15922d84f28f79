/* Plans of reductions: each order of folding has its part of the file. */
#include "collective/plan_internal.h"

static void
add_fold_of_two(dd_builder *b, dd_stage stage, dd_plan_range first, dd_plan_range second, dd_plan_range dst)
{
    dd_builder_fold(b, stage, dst);
    dd_builder_add_source(b, first);
    dd_builder_add_source(b, second);
}

static void
add_fold_of_one(dd_builder *b, dd_stage stage, dd_plan_range src, dd_plan_range dst)
{
    dd_builder_fold(b, stage, dst);
    dd_builder_add_source(b, src);
}

/* ---- linear: every rank sends its input as it is, and one fold takes all ranks' parts in their order */

/* The parts of the other ranks lie side by side in a set of slots. */
typedef struct direct {
    size_t per_segment; /* elements */
    size_t stride;      /* bytes between the slots of two ranks */
    dd_sets slots;
    uint32_t folded[DD_PLAN_DEPTH]; /* the fold that last read the set */
} direct;

/* largest: elements that this rank folds, 0 where it folds nothing. */
static direct
direct_start(dd_builder *b, size_t largest)
{
    direct d = {.per_segment = b->segment_nbytes / b->element_nbytes};
    size_t count = largest < d.per_segment ? largest : d.per_segment;
    d.stride = (count * b->element_nbytes + 63) / 64 * 64;
    d.slots = dd_builder_add_sets(b, DD_PLAN_DEPTH, d.stride * (size_t)(b->nranks - 1),
                                  dd_nsegments(largest, d.per_segment));
    for (size_t i = 0; i < DD_PLAN_DEPTH; i++) {
        d.folded[i] = DD_NO_STEP;
    }
    return d;
}

/* No further ahead than there are sets of slots, so that peers are not flooded. */
static void
send_part(dd_builder *b, const direct *d, int peer, size_t s, dd_plan_range part)
{
    dd_builder_after(b, dd_builder_send(b, peer, s, part), d->folded[s % DD_PLAN_DEPTH]);
}

static dd_plan_range
slot_of(const dd_builder *b, const direct *d, int peer, size_t s, size_t nbytes)
{
    size_t slot = (size_t)(peer < b->rank ? peer : peer - 1);
    return dd_range_scratch(dd_sets_at(&d->slots, s) + slot * d->stride, nbytes);
}

static void
take_and_fold(dd_builder *b, direct *d, size_t s, dd_plan_range own, dd_plan_range dst)
{
    for (int distance = 1; distance < b->nranks; distance++) {
        int peer = dd_builder_at(b, b->rank, -distance);
        dd_builder_recv(b, peer, s, slot_of(b, d, peer, s, own.nbytes));
    }
    dd_builder_keep(&d->folded[s % DD_PLAN_DEPTH], dd_builder_fold(b, DD_STAGE_WHOLE, dst));
    for (int k = 0; k < b->nranks; k++) {
        dd_builder_add_source(b, k == b->rank ? own : slot_of(b, d, k, s, own.nbytes));
    }
}

/* The root, or everybody, receives all inputs, whole. */
void
dd_build_fold_whole(dd_builder *b)
{
    bool is_all = b->args->coll == DD_COLL_ALL_REDUCE;
    bool is_folding = is_all || dd_builder_is_root(b);
    size_t nbytes = b->args->inputs[0].nbytes;
    direct d = direct_start(b, is_folding ? nbytes / b->element_nbytes : 0);
    size_t per_segment = d.per_segment * b->element_nbytes;
    size_t nsegments = dd_nsegments(nbytes, per_segment);
    for (size_t s = 0; s < nsegments && b->status == DD_OK; s++) {
        dd_span bytes = dd_segment(nbytes, per_segment, s);
        dd_plan_range own = dd_range_input(0, bytes.first, bytes.count);
        for (int distance = 1; distance < b->nranks; distance++) {
            int peer = dd_builder_at(b, b->rank, distance);
            if (is_all || peer == b->args->root) {
                send_part(b, &d, peer, s, own);
            }
        }
        if (is_folding) {
            take_and_fold(b, &d, s, own, dd_range_output(0, bytes.first, bytes.count));
        }
    }
}

/* Every rank folds a block; where all ranks or the root want all of the result, they get the folded blocks. */
void
dd_build_fold_shares(dd_builder *b)
{
    bool is_aside = b->args->coll == DD_COLL_REDUCE && !dd_builder_is_root(b);
    direct d = direct_start(b, dd_builder_block_count(b, b->rank));
    size_t nsegments = dd_nsegments(dd_builder_largest_block(b), d.per_segment);
    dd_sets results = dd_builder_add_sets(b, DD_PLAN_DEPTH, is_aside ? d.stride : 0, nsegments);
    for (size_t s = 0; s < nsegments && b->status == DD_OK; s++) {
        for (int distance = 1; distance < b->nranks; distance++) {
            int peer = dd_builder_at(b, b->rank, distance);
            send_part(b, &d, peer, s, dd_builder_block_input(b, peer, d.per_segment, s));
        }
        dd_plan_range own = dd_builder_block_input(b, b->rank, d.per_segment, s);
        dd_plan_range dst = is_aside ? dd_range_scratch(dd_sets_at(&results, s), own.nbytes)
                                     : dd_builder_block_output(b, b->rank, d.per_segment, s);
        take_and_fold(b, &d, s, own, dst);
        if (is_aside) {
            dd_builder_send(b, b->args->root, nsegments + s, dst);
        } else if (b->args->coll == DD_COLL_REDUCE) {
            dd_builder_collect(b, d.per_segment, s, nsegments + s);
        } else if (b->args->coll == DD_COLL_ALL_REDUCE) {
            dd_builder_spread(b, d.per_segment, s, nsegments + s);
        }
    }
}

/* ---- ring: block k sets out from rank k + 1 and goes around, through every rank's hands, to rank k
 *
 * Segments take turns on a few lanes, and each goes all the way around before the next of its lane sets out. A lane has two
 * slots, which its transfers use alternately: while one partial result is on its way to the next rank, the following one comes
 * in. With all segments of a block in each round, a transfer could wait for its slot in a circle around the ring; so it
 * waits only for transfers that were earlier in the lane. */

#define LANES 4

typedef struct ring {
    size_t per_segment; /* elements */
    size_t nsegments;
    dd_sets slots[2]; /* partial results */
    dd_sets lift; /* where this rank's input is lifted, or, in the first transfer, the other's as it came */
    uint32_t folded[LANES]; /* the last fold of the segment before */
} ring;

/* The s-th segment of every block goes around. */
static void
reduce_segment(dd_builder *b, ring *r, size_t s)
{
    size_t nrounds = (size_t)b->nranks - 1;
    int block = dd_builder_at(b, b->rank, -1);
    dd_plan_range held = dd_builder_block_input(b, block, r->per_segment, s);
    uint32_t fold = DD_NO_STEP;
    for (size_t round = 0; round < nrounds; round++) {
        size_t channel = s * nrounds + round;
        bool is_first = round == 0;
        bool is_last = round + 1 == nrounds;
        uint32_t send = dd_builder_send(b, dd_builder_at(b, b->rank, 1), channel, held);
        dd_builder_after(b, send, is_first ? r->folded[s % LANES] : DD_NO_STEP);
        block = dd_builder_at(b, block, -1);
        dd_plan_range own = dd_builder_block_input(b, block, r->per_segment, s);
        size_t nbytes = own.nbytes / b->element_nbytes * b->partial_nbytes;
        dd_plan_range lift = dd_range_scratch(dd_sets_at(&r->lift, s), is_first ? own.nbytes : nbytes);
        held = dd_range_scratch(dd_sets_at(&r->slots[(s / LANES * nrounds + round) % 2], s), nbytes);
        /* In the first transfer inputs travel as they are. */
        dd_plan_range came = is_first && b->is_lifted ? lift : held;
        dd_builder_recv(b, dd_builder_at(b, b->rank, -1), channel, came);
        if (b->is_lifted && !is_first) {
            add_fold_of_one(b, DD_STAGE_FIRST, own, lift);
            own = lift;
        }
        dd_stage stage = is_last ? (is_first ? DD_STAGE_WHOLE : DD_STAGE_LAST)
                                 : (is_first ? DD_STAGE_FIRST : DD_STAGE_MIDDLE);
        fold = dd_builder_fold(b, stage,
                               is_last ? dd_builder_block_output(b, b->rank, r->per_segment, s) : held);
        dd_builder_add_source(b, came);
        dd_builder_add_source(b, own);
    }
    dd_builder_keep(&r->folded[s % LANES], fold);
}

void
dd_build_fold_ring(dd_builder *b)
{
    size_t largest = dd_builder_largest_block(b);
    ring r = {.per_segment = b->segment_nbytes / b->partial_nbytes};
    r.nsegments = dd_nsegments(largest, r.per_segment);
    size_t nbytes = (largest < r.per_segment ? largest : r.per_segment) * b->partial_nbytes;
    nbytes = b->nranks > 1 ? nbytes : 0;
    r.slots[0] = dd_builder_add_sets(b, LANES, nbytes, r.nsegments);
    r.slots[1] = dd_builder_add_sets(b, LANES, nbytes, r.nsegments);
    r.lift = dd_builder_add_sets(b, LANES, b->is_lifted ? nbytes : 0, r.nsegments);
    for (size_t i = 0; i < LANES; i++) {
        r.folded[i] = DD_NO_STEP;
    }
    for (size_t s = 0; s < r.nsegments && b->status == DD_OK; s++) {
        if (b->nranks == 1) {
            add_fold_of_one(b, DD_STAGE_WHOLE, dd_builder_block_input(b, 0, r.per_segment, s),
                            dd_builder_block_output(b, 0, r.per_segment, s));
            continue;
        }
        reduce_segment(b, &r, s);
        if (b->args->coll == DD_COLL_ALL_REDUCE) {
            dd_builder_pass_around(b, r.per_segment, s, (r.nsegments + s) * ((size_t)b->nranks - 1));
        }
    }
}

/* ---- tree: pairs
 *
 * The order of the fold is the same for both collectives and for every root: with p the largest power of two that is at most
 * nranks and r = nranks - p, ranks 2i and 2i + 1 are folded first for i < r; what is then p partial results is folded in pairs of
 * neighbours, those in pairs, and so on, the lower ranks' part always first. */

typedef struct tree {
    bool is_all;      /* everybody gets the result, not the root alone */
    int npairs;       /* that are folded first */
    int nplaces;      /* then; a power of two */
    dd_sets slots[2]; /* partial results come into them alternately */
    dd_sets raw;      /* an input as it came; only where inputs have to be lifted */
} tree;

/* What a rank has of a segment. */
typedef struct tree_segment {
    size_t s;
    dd_plan_range input;
    dd_plan_range output;
    dd_plan_range slots[2];
    dd_plan_range held; /* the partial result */
    int next;           /* the slot that it is not in */
} tree_segment;

static bool
is_paired(const tree *t, int rank)
{
    return rank < 2 * t->npairs;
}

static int
place_of(const tree *t, int rank)
{
    return is_paired(t, rank) ? rank / 2 : rank - t->npairs;
}

/* The rank that stands for a place: of a pair, the root if it is one of them, else the lower one. */
static int
rank_of_place(const dd_builder *b, const tree *t, int place)
{
    if (place >= t->npairs) {
        return place + t->npairs;
    }
    return !t->is_all && b->args->root / 2 == place ? b->args->root : 2 * place;
}

/* What came from a peer and the own part, the lower rank's first. */
static void
fold_with(dd_builder *b, dd_stage stage, int peer, dd_plan_range came, dd_plan_range own, dd_plan_range dst)
{
    bool is_lower = b->rank < peer;
    add_fold_of_two(b, stage, is_lower ? own : came, is_lower ? came : own, dst);
}

/* Begins with this rank's input, folded with that of the other one of a pair. */
static void
tree_begin(dd_builder *b, const tree *t, tree_segment *seg)
{
    seg->held = seg->slots[0];
    seg->next = 1;
    if (is_paired(t, b->rank)) {
        dd_plan_range raw = dd_range_scratch(dd_sets_at(&t->raw, seg->s), seg->input.nbytes);
        dd_plan_range came = b->is_lifted ? raw : seg->slots[0];
        dd_builder_recv(b, b->rank ^ 1, seg->s, came);
        fold_with(b, DD_STAGE_FIRST, b->rank ^ 1, came, seg->input, seg->held);
    } else if (b->is_lifted) {
        add_fold_of_one(b, DD_STAGE_FIRST, seg->input, seg->held);
    } else {
        seg->held = seg->input;
        seg->next = 0;
    }
}

/* Partial results move towards the root's place, or both ways. */
static void
tree_climb(dd_builder *b, const tree *t, tree_segment *seg)
{
    int place = place_of(t, b->rank);
    for (int distance = 1; distance < t->nplaces; distance *= 2) {
        int peer = rank_of_place(b, t, place ^ distance);
        bool is_giving = ((place ^ place_of(t, b->args->root)) & distance) != 0;
        if (t->is_all || is_giving) {
            dd_builder_send(b, peer, seg->s, seg->held);
        }
        if (!t->is_all && is_giving) {
            return;
        }
        bool is_last = 2 * distance == t->nplaces;
        dd_plan_range came = seg->slots[seg->next];
        dd_builder_recv(b, peer, seg->s, came);
        fold_with(b, is_last ? DD_STAGE_LAST : DD_STAGE_MIDDLE, peer, came, seg->held,
                  is_last ? seg->output : came);
        seg->held = came;
        seg->next = 1 - seg->next;
    }
}

static void
tree_segment_of(dd_builder *b, const tree *t, tree_segment *seg)
{
    int place = place_of(t, b->rank);
    int stands = rank_of_place(b, t, place);
    if (b->nranks == 1) {
        add_fold_of_one(b, DD_STAGE_WHOLE, seg->input, seg->output);
        return;
    }
    if (stands != b->rank) {
        dd_builder_send(b, stands, seg->s, seg->input);
    } else {
        tree_begin(b, t, seg);
        tree_climb(b, t, seg);
    }
    if (t->is_all && stands != b->rank) {
        dd_builder_recv(b, stands, seg->s, seg->output);
    } else if (t->is_all && is_paired(t, b->rank)) {
        dd_builder_send(b, b->rank ^ 1, seg->s, seg->output);
    }
}

void
dd_build_fold_tree(dd_builder *b)
{
    size_t per_segment = b->segment_nbytes / b->partial_nbytes;
    size_t count = b->args->inputs[0].nbytes / b->element_nbytes;
    size_t nsegments = dd_nsegments(count, per_segment);
    size_t most = b->nranks == 1 ? 0 : count < per_segment ? count : per_segment;
    tree t = {.is_all = b->args->coll == DD_COLL_ALL_REDUCE, .nplaces = 1};
    while (t.nplaces <= b->nranks / 2) {
        t.nplaces *= 2;
    }
    t.npairs = b->nranks - t.nplaces;
    t.slots[0] = dd_builder_add_sets(b, DD_PLAN_DEPTH, most * b->partial_nbytes, nsegments);
    t.slots[1] = dd_builder_add_sets(b, DD_PLAN_DEPTH, most * b->partial_nbytes, nsegments);
    t.raw = dd_builder_add_sets(b, DD_PLAN_DEPTH, b->is_lifted ? most * b->element_nbytes : 0, nsegments);
    for (size_t s = 0; s < nsegments && b->status == DD_OK; s++) {
        dd_span part = dd_segment(count, per_segment, s);
        size_t offset = part.first * b->element_nbytes;
        size_t nbytes = part.count * b->element_nbytes;
        tree_segment seg = {
            .s = s, .input = dd_range_input(0, offset, nbytes), .output = dd_range_output(0, offset, nbytes)};
        for (int i = 0; i < 2; i++) {
            seg.slots[i] = dd_range_scratch(dd_sets_at(&t.slots[i], s), part.count * b->partial_nbytes);
        }
        tree_segment_of(b, &t, &seg);
    }
}
