#include "collective/arena/board.h"

#include "collective/arena/state.h"
#include "core/park.h"

#include <string.h>

/* Bits of `awaits`. AWAITS_POSTS is cleared when the rank's bell is rung, and set when the rank
 * next takes posts. AWAITS_POSITIONS is set while the rank sleeps in a carrier's call. */
#define AWAITS_POSTS UINT64_C(1)
#define AWAITS_POSITIONS UINT64_C(2)

/* A position is one word, sequence << 1 | INSIDE, so that its two parts change together. */
#define INSIDE UINT64_C(1)

struct arena_board {
    _Alignas(128) _Atomic uint64_t position;           /* sequence << 1 | INSIDE; store-release */
    _Atomic uint64_t version;                          /* odd while the signature is written */
    _Atomic uint64_t signature[ARENA_SIGNATURE_WORDS]; /* relaxed: `version` shows torn reads */
    _Alignas(128) dd_park_bits awaits;                 /* AWAITS_POSTS | AWAITS_POSITIONS */
    _Atomic uint32_t has_left;                         /* 1 once it has left; store-release */
    _Atomic uint32_t cause_nbytes;                     /* store-release, once `cause` is complete */
    uint8_t cause[DD_ARENA_CAUSE_MAX];
    /* Relaxed; written before AWAITS_POSTS is set. Older builds leave lost_nbytes at 0. */
    _Atomic uint64_t lost_nbytes;
    _Atomic uint32_t lost_to;
};

struct arena_board_head {
    _Alignas(128) _Atomic uint64_t nposts; /* number of posts by all ranks */
};

size_t
dd_arena_boards_nbytes(int nranks)
{
    return sizeof(arena_board_head) + (size_t)nranks * sizeof(arena_board);
}

static arena_board *
board_of(const dd_arena *arena, int k)
{
    return (arena_board *)(void *)(arena->boards + 1) + k;
}

/* ---- positions */

void
dd_arena_post_position(dd_arena *arena, const dd_arena_position *position)
{
    arena_board *own_board = board_of(arena, arena->rank);
    if (memcmp(&arena->noted, &position->signature, sizeof arena->noted) != 0) {
        uint64_t words[ARENA_SIGNATURE_WORDS];
        uint64_t version = atomic_load_explicit(&own_board->version, memory_order_relaxed);
        arena->noted = position->signature;
        memcpy(words, &position->signature, sizeof words);
        atomic_store_explicit(&own_board->version, version + 1, memory_order_relaxed);
        atomic_thread_fence(memory_order_release);
        for (size_t i = 0; i < ARENA_SIGNATURE_WORDS; i++) {
            atomic_store_explicit(&own_board->signature[i], words[i], memory_order_relaxed);
        }
        atomic_store_explicit(&own_board->version, version + 2, memory_order_release);
    }
    atomic_store_explicit(&own_board->position, position->sequence << 1 | (position->is_inside ? INSIDE : 0),
                          memory_order_release);
}

#define POSITION_READS 100 /* attempts at a consistent read; then a torn one serves in texts */

dd_arena_position
dd_arena_read_position(const dd_arena *arena, int k)
{
    arena_board *board = board_of(arena, k);
    uint64_t words[ARENA_SIGNATURE_WORDS];
    uint64_t word = 0;
    for (int nreads = 0; nreads < POSITION_READS; nreads++) {
        uint64_t version = atomic_load_explicit(&board->version, memory_order_acquire);
        word = atomic_load_explicit(&board->position, memory_order_acquire);
        for (size_t i = 0; i < ARENA_SIGNATURE_WORDS; i++) {
            words[i] = atomic_load_explicit(&board->signature[i], memory_order_relaxed);
        }
        atomic_thread_fence(memory_order_acquire);
        bool is_same = atomic_load_explicit(&board->version, memory_order_relaxed) == version &&
                       atomic_load_explicit(&board->position, memory_order_relaxed) == word;
        if (is_same && version % 2 == 0) {
            break;
        }
    }
    dd_arena_position position = {.sequence = word >> 1, .is_inside = (word & INSIDE) != 0};
    memcpy(&position.signature, words, sizeof position.signature);
    return position;
}

uint64_t
dd_arena_read_sequence(const dd_arena *arena, int k)
{
    return atomic_load_explicit(&board_of(arena, k)->position, memory_order_acquire) >> 1;
}

void
dd_arena_await_positions(dd_arena *arena)
{
    dd_park(&board_of(arena, arena->rank)->awaits, AWAITS_POSITIONS);
}

void
dd_arena_fence_position(void)
{
    atomic_thread_fence(memory_order_seq_cst);
}

bool
dd_arena_is_position_awaited(dd_arena *arena, int k)
{
    return k != arena->rank && dd_park_take(&board_of(arena, k)->awaits, AWAITS_POSITIONS);
}

/* ---- posts */

static void
note_post(dd_arena *arena)
{
    atomic_fetch_add(&arena->boards->nposts, 1);
}

void
dd_arena_post_cause(dd_arena *arena, dd_bytes cause)
{
    arena_board *own_board = board_of(arena, arena->rank);
    if (atomic_load_explicit(&own_board->cause_nbytes, memory_order_relaxed) == 0 && cause.len > 0 &&
        cause.len <= DD_ARENA_CAUSE_MAX) {
        memcpy(own_board->cause, cause.data, cause.len);
        atomic_store_explicit(&own_board->cause_nbytes, (uint32_t)cause.len, memory_order_release);
        note_post(arena);
    }
}

size_t
dd_arena_read_cause(const dd_arena *arena, int k, uint8_t cause[DD_ARENA_CAUSE_MAX])
{
    arena_board *board = board_of(arena, k);
    size_t nbytes = atomic_load_explicit(&board->cause_nbytes, memory_order_acquire);
    nbytes = nbytes <= DD_ARENA_CAUSE_MAX ? nbytes : 0;
    memcpy(cause, board->cause, nbytes);
    return nbytes;
}

bool
dd_arena_has_posted_cause(const dd_arena *arena, int k)
{
    return atomic_load_explicit(&board_of(arena, k)->cause_nbytes, memory_order_acquire) != 0;
}

void
dd_arena_post_leaving(dd_arena *arena)
{
    atomic_store_explicit(&board_of(arena, arena->rank)->has_left, 1, memory_order_release);
    note_post(arena);
}

bool
dd_arena_has_left(const dd_arena *arena, int k)
{
    return atomic_load_explicit(&board_of(arena, k)->has_left, memory_order_acquire) != 0;
}

/* ---- losses on the network */

void
dd_arena_note_loss(dd_arena *arena, dd_arena_loss loss)
{
    arena_board *own_board = board_of(arena, arena->rank);
    atomic_store_explicit(&own_board->lost_to, loss.to, memory_order_relaxed);
    atomic_store_explicit(&own_board->lost_nbytes, loss.nbytes, memory_order_relaxed);
}

dd_arena_loss
dd_arena_read_loss(const dd_arena *arena, int k)
{
    arena_board *board = board_of(arena, k);
    return (dd_arena_loss){.to = atomic_load_explicit(&board->lost_to, memory_order_relaxed),
                           .nbytes = atomic_load_explicit(&board->lost_nbytes, memory_order_relaxed)};
}

/* ---- bells */

bool
dd_arena_is_rung(const dd_arena *arena)
{
    return !dd_arena_has_taken_posts(arena, arena->rank);
}

bool
dd_arena_is_bell_due(dd_arena *arena, int k)
{
    return k != arena->rank && dd_park_take(&board_of(arena, k)->awaits, AWAITS_POSTS);
}

bool
dd_arena_has_taken_posts(const dd_arena *arena, int k)
{
    return dd_park_is_any(&board_of(arena, k)->awaits, AWAITS_POSTS);
}

void
dd_arena_await_posts(dd_arena *arena)
{
    dd_park(&board_of(arena, arena->rank)->awaits, AWAITS_POSTS);
}

bool
dd_arena_take_posts(dd_arena *arena)
{
    if (dd_arena_is_rung(arena)) {
        dd_arena_await_posts(arena);
    }
    uint64_t nposts = atomic_load(&arena->boards->nposts);
    bool has_posts = nposts != arena->nposts_seen;
    arena->nposts_seen = nposts;
    return has_posts;
}
