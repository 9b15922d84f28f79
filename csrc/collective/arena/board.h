/* The board of an arena: data that each rank publishes to the other ranks of its host in shared
 * memory. Other ranks read a board without a message or a link, even after its rank was stopped or
 * has exited.
 *
 * A rank writes only its own board; the caller must serialise these calls with calls of the arena.
 * Other ranks' data is untrusted. After a post, a rank must ring the bells of the ranks for which
 * dd_arena_is_bell_due is true. A rank whose bell has rung takes the posts
 * (dd_arena_take_posts). */
#ifndef DD_COLLECTIVE_ARENA_BOARD_H
#define DD_COLLECTIVE_ARENA_BOARD_H

#include "collective/arena/arena.h"
#include "core/bytes.h"

#define DD_ARENA_CAUSE_MAX 1536 /* maximum size of a cause in bytes */

/* A rank's progress in its group: it is inside collective `sequence` (is_inside) or has ended it.
 * `sequence` is 0 before the first collective. */
typedef struct dd_arena_position {
    uint64_t sequence;
    dd_signature signature;
    bool is_inside;
} dd_arena_position;

/* Publish this rank's position. Costs two stores while the signature stays the same. */
void dd_arena_post_position(dd_arena *arena, const dd_arena_position *position);
dd_arena_position dd_arena_read_position(const dd_arena *arena, int k);
uint64_t dd_arena_read_sequence(const dd_arena *arena, int k); /* `sequence` of rank k's position */
/* Call before sleeping until the position of another rank changes; then read the positions again. A
 * rank that posts its position after this call must ring this rank's bell. */
void dd_arena_await_positions(dd_arena *arena);
void dd_arena_fence_position(void); /* fence between post_position and is_position_awaited */
/* Return true once for each dd_arena_await_positions of rank k; the caller must ring k's bell. */
bool dd_arena_is_position_awaited(dd_arena *arena, int k);

/* Post the cause of this rank's failure. Only the first cause is kept; a cause longer than
 * DD_ARENA_CAUSE_MAX bytes is ignored. */
void dd_arena_post_cause(dd_arena *arena, dd_bytes cause);
/* Read rank k's cause. Return its length, or 0 if rank k has posted none. */
size_t dd_arena_read_cause(const dd_arena *arena, int k, uint8_t cause[DD_ARENA_CAUSE_MAX]);
bool dd_arena_has_posted_cause(const dd_arena *arena, int k);
void dd_arena_post_leaving(dd_arena *arena); /* publish that this rank has left the group */
bool dd_arena_has_left(const dd_arena *arena, int k);

/* Bytes that a rank has sent to rank `to` and the network has lost; nbytes is 0 for none. */
typedef struct dd_arena_loss {
    uint32_t to;
    uint64_t nbytes;
} dd_arena_loss;

/* Publish this rank's loss. A rank whose bell was rung must call this before dd_arena_take_posts,
 * because the ringing rank waits until the posts are taken, and then reads the loss. */
void dd_arena_note_loss(dd_arena *arena, dd_arena_loss loss);
dd_arena_loss dd_arena_read_loss(const dd_arena *arena, int k);

/* Return true if this rank's bell was rung since this rank last took posts. */
bool dd_arena_is_rung(const dd_arena *arena);
/* Return true once after each time that rank k takes posts; the caller must then ring k's bell. */
bool dd_arena_is_bell_due(dd_arena *arena, int k);
/* Return true if rank k has taken posts since its bell was rung, which shows that rank k runs. */
bool dd_arena_has_taken_posts(const dd_arena *arena, int k);
/* Arm this rank's bell for others' posts, as dd_arena_attach and dd_arena_take_posts also do. */
void dd_arena_await_posts(dd_arena *arena);
/* Call before reading other boards. Return true if any rank has posted since the last call. */
bool dd_arena_take_posts(dd_arena *arena);

#endif
