/* The board of an arena: what each rank publishes to the other ranks of its host in shared memory.
 * They read it without a message or a link, even after the rank was stopped or has exited.
 *
 * A rank writes only its own board; calls are serialised with the arena's. Other ranks' data is
 * untrusted. After a post, a rank rings the bells that are due (dd_arena_is_bell_due); the ranks
 * rung take the news. */
#ifndef DD_COLLECTIVE_ARENA_BOARD_H
#define DD_COLLECTIVE_ARENA_BOARD_H

#include "collective/arena/arena.h"
#include "core/bytes.h"

#define DD_ARENA_CAUSE_MAX 1536 /* bytes */

/* A rank's position in its group: inside collective `sequence`, or past it; `sequence` is 0 before
 * the first one. */
typedef struct dd_arena_position {
    uint64_t sequence;
    dd_signature signature;
    bool is_inside;
} dd_arena_position;

/* Costs two stores while the signature stays the same. */
void dd_arena_post_position(dd_arena *arena, const dd_arena_position *position);
dd_arena_position dd_arena_read_position(const dd_arena *arena, int k);
uint64_t dd_arena_read_sequence(const dd_arena *arena, int k); /* of rank k's place */
/* Call before sleeping until places change; then read the places again. A rank that notes its place
 * after this call rings this rank's bell. */
void dd_arena_await_positions(dd_arena *arena);
void dd_arena_fence_position(void); /* call between post_position and is_position_awaited */
/* True once for each dd_arena_await_positions of rank k: the caller must then ring k's bell. */
bool dd_arena_is_position_awaited(dd_arena *arena, int k);

/* Post why this rank has failed. Only the first cause is kept; one longer than DD_ARENA_CAUSE_MAX
 * bytes is ignored. */
void dd_arena_post_cause(dd_arena *arena, dd_bytes cause);
/* Return the length of rank k's cause; 0 if it has posted none. */
size_t dd_arena_read_cause(const dd_arena *arena, int k, uint8_t cause[DD_ARENA_CAUSE_MAX]);
bool dd_arena_has_posted_cause(const dd_arena *arena, int k);
void dd_arena_post_leaving(dd_arena *arena); /* this rank has closed the group */
bool dd_arena_has_left(const dd_arena *arena, int k);

/* Bytes sent by a rank to rank `to` that the network loses; nbytes is 0 if there are none. */
typedef struct dd_arena_loss {
    uint32_t to;
    uint64_t nbytes;
} dd_arena_loss;

/* Call before dd_arena_take_posts while this rank's bell is rung: the rank that rang waits for the
 * news to be taken, then reads the loss. */
void dd_arena_note_loss(dd_arena *arena, dd_arena_loss loss);
dd_arena_loss dd_arena_read_loss(const dd_arena *arena, int k);

bool dd_arena_is_rung(const dd_arena *arena); /* true if rung since its last take_news */
/* True once each time rank k has taken its news: the caller must then ring k's bell. */
bool dd_arena_is_bell_due(dd_arena *arena, int k);
/* True if rank k has taken its news since its bell was rung, which shows that it runs. */
bool dd_arena_has_taken_posts(const dd_arena *arena, int k);
/* Arm this rank's bell, for other ranks' posts. dd_arena_attach and dd_arena_take_posts do it. */
void dd_arena_await_posts(dd_arena *arena);
/* Call before reading the other boards. Return true if any rank has posted since the last call. */
bool dd_arena_take_posts(dd_arena *arena);

#endif
