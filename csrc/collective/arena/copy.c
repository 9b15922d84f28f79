/* Copies into the arena go through the caches or past them. Copies through the caches are faster if
 * the ranks' cores share a cache, copies past the caches if not, by up to five times; on a virtual
 * machine this changes while a program runs. Up to 16 KiB, copies past the caches cost little where
 * they are slower. Above 16 KiB, one rank sometimes times both ways, with operations that are
 * called anyway, and publishes the faster way. This is a hint: ranks may copy in different ways.
 * Each collective has its own hint: an all_to_all may be faster through the caches when an
 * all_reduce, which writes where other ranks have just read, is not. Before a trial, copies go past
 * the caches unless ranks share cores, because this loses little if it is the wrong way. */
#include "collective/arena/state.h"

#include "core/clock.h"
#include "kernels/copy.h"

#define STREAM_MIN_BYTES ((size_t)4096)
/* Data above this size is timed both ways, through and past the caches. Smaller data of crowded
 * ranks, which often share a core, goes through the caches: past them takes 1.6 times as long. */
#define UNTRIED_MAX_BYTES ((size_t)16384)
/* A trial first skips the operations of one turn around the slot, at most this many, because data
 * that the other way of copying has left in the caches distorts their times. */
#define NTRIALS_BEFORE_MAX 32

/* Outputs of this size in bytes, over all ranks, have left the caches before they are used. If
 * written past the caches, their lines need not be read first. Measured ratio of times, through /
 * past the caches, on two cores: 2 ranks, 128 MiB 1.2 to 1.7, 32 MiB 0.8 to 1.1; 4 ranks, 32 MiB
 * 1.2 to 1.7; 8 and 16 ranks, from 64 MiB on 1.2 to 3.7, and all_to_all 0.8 to 1.9. */
#define TAKE_PAST_MIN_BYTES ((size_t)64 << 20)
#define TAKE_PAST_MIN_BYTES_CROWDED ((size_t)32 << 20)

static bool
takes_past_caches(const dd_arena *arena)
{
    const dd_coll_args *args = arena->op.args;
    size_t min_nbytes = arena->is_crowded ? TAKE_PAST_MIN_BYTES_CROWDED : TAKE_PAST_MIN_BYTES;
    int nreceivers = arena->op.call->traits->is_to_root ? 1 : arena->nranks;
    int noutputs = dd_coll_noutputs(args->coll, arena->rank == args->root, arena->nranks);
    size_t nbytes = 0;
    for (int k = 0; k < noutputs; k++) {
        nbytes += args->outputs[k].nbytes;
    }
    return nbytes >= min_nbytes / (size_t)nreceivers;
}

/* Return true if this rank times the operation: rank 0 if all ranks receive; a sending root if its
 * data fills its slot twice, so that the root waits for readers; a reader in other kinds of
 * collectives, because only readers know the time. */
static bool
is_timing_rank(const dd_arena *arena)
{
    const arena_call *call = arena->op.call;
    size_t slot_nbytes = ARENA_NBUFFERS * arena->geometry.buffer_nbytes;
    if (call->traits->is_from_root) {
        return arena->rank == call->root && arena->op.nbytes >= 2 * slot_nbytes;
    }
    return arena->rank == 0 && !call->traits->is_to_root;
}

static uint32_t
copy_bit_of(const dd_arena *arena)
{
    return UINT32_C(1) << arena->op.args->coll;
}

/* Publish to all ranks whether operations of this kind are copied past the caches. */
static void
publish_streaming(dd_arena *arena, bool is_streaming)
{
    _Atomic uint32_t *streaming = &arena->shared->streaming;
    uint32_t bit = copy_bit_of(arena);
    bool was_streaming = (atomic_load_explicit(streaming, memory_order_relaxed) & bit) != 0;
    if (is_streaming != was_streaming) {
        (void)atomic_fetch_xor_explicit(streaming, bit, memory_order_relaxed);
    }
}

static int
count_before(const dd_arena *arena)
{
    size_t ntimes = arena->geometry.staging_nbytes / (arena->op.nbytes + 1) + 1;
    return ntimes < NTRIALS_BEFORE_MAX ? (int)ntimes : NTRIALS_BEFORE_MAX;
}

static arena_trial *
trial_of(dd_arena *arena)
{
    return &arena->trials[arena->op.args->coll];
}

/* Return true if this operation is part of a trial. All operations of a trial have one size. */
static bool
join_trial(dd_arena *arena)
{
    arena_trial *trial = trial_of(arena);
    int64_t now_ns = dd_clock_now_ns();
    dd_copy_trial_choose(&trial->copies, count_before(arena), now_ns);
    if (trial->copies.begin_ns == now_ns) {
        trial->nbytes = arena->op.nbytes;
    }
    if (!trial->copies.is_open || trial->nbytes != arena->op.nbytes) {
        return false;
    }
    trial->from_ns = now_ns;
    trial->taken_ns = 0;
    publish_streaming(arena, dd_copy_trial_is_past(&trial->copies));
    return true;
}

void
dd_arena_choose_copy(dd_arena *arena)
{
    arena_op *op = &arena->op;
    const dd_coll_traits *traits = op->call->traits;
    size_t nparts = traits->is_split ? (size_t)arena->nranks - 1 : 1;
    size_t staged_nbytes = op->nbytes * nparts;
    op->is_streaming = staged_nbytes >= STREAM_MIN_BYTES && !arena->is_crowded;
    op->is_measured = false;
    op->is_taken_past = false;
    if (staged_nbytes > UNTRIED_MAX_BYTES) {
        op->is_measured = is_timing_rank(arena) && join_trial(arena);
        uint32_t streaming = atomic_load_explicit(&arena->shared->streaming, memory_order_relaxed);
        op->is_streaming = (streaming & copy_bit_of(arena)) != 0;
        op->is_taken_past = takes_past_caches(arena);
    }
}

/* Exclude the time for which this rank waits for other ranks' headers. */
void
dd_arena_stop_clock(dd_arena *arena)
{
    if (arena->op.is_measured) {
        trial_of(arena)->taken_ns += dd_clock_now_ns() - trial_of(arena)->from_ns;
    }
}

void
dd_arena_start_clock(dd_arena *arena)
{
    bool is_staging = (arena->op.call->flags & (ARENA_IN_REGION | ARENA_IN_PLACE)) == 0;
    arena->op.is_measured = arena->op.is_measured && is_staging;
    if (arena->op.is_measured) {
        trial_of(arena)->from_ns = dd_clock_now_ns();
    }
}

void
dd_arena_end_trial(dd_arena *arena)
{
    arena_trial *trial = trial_of(arena);
    if (!arena->op.is_measured) {
        return;
    }
    arena->op.is_measured = false;
    int64_t now_ns = dd_clock_now_ns();
    int64_t taken_ns = trial->taken_ns + now_ns - trial->from_ns;
    bool is_past;
    if (dd_copy_trial_note(&trial->copies, taken_ns, now_ns, &is_past)) {
        publish_streaming(arena, is_past);
    }
}

void
dd_arena_copy_out(dd_arena *arena, void *dst, const void *src, size_t nbytes)
{
    if (arena->op.is_taken_past) {
        dd_copy_streaming(dst, src, nbytes);
    } else {
        dd_copy(dst, src, nbytes);
    }
    dd_arena_spend(&arena->op, nbytes);
}

void
dd_arena_copy_in(dd_arena *arena, void *dst, const void *src, size_t nbytes)
{
    if (arena->op.is_streaming) {
        dd_copy_streaming(dst, src, nbytes);
    } else {
        dd_copy(dst, src, nbytes);
    }
    dd_arena_spend(&arena->op, nbytes);
}
