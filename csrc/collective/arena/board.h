/* The board of an arena: what a rank has to say to the others of its host, in memory that they share. They read
 * it without a message and without a link, also when the rank has been stopped or is gone.
 *
 * A rank writes to its own part alone, and calls are serialised as those of the arena. What others have written is a
 * peer's word. A rank that posts a cause, or that it leaves, then rings the ranks that are due a bell; they look for news. */
#ifndef DD_COLLECTIVE_ARENA_BOARD_H
#define DD_COLLECTIVE_ARENA_BOARD_H

#include "collective/arena/arena.h"
#include "core/bytes.h"

#define DD_ARENA_CAUSE_MAX 1536 /* bytes */

/* Where a rank of a group is: inside collective `sequence` or done with it; 0: it has called none. */
typedef struct dd_arena_place {
    uint64_t sequence;
    dd_signature signature;
    bool is_inside;
} dd_arena_place;

/* Costs two stores while the signature stays the same. */
void dd_arena_note_place(dd_arena *arena, const dd_arena_place *place);
dd_arena_place dd_arena_read_place(const dd_arena *arena, int k);
uint64_t dd_arena_read_sequence(const dd_arena *arena, int k); /* of its place */
/* This rank is going to sleep, and looks at the others' places once more afterwards. A rank that notes its place later rings it. */
void dd_arena_await_places(dd_arena *arena);
/* Once after a place was noted, before it is asked who awaits it. */
void dd_arena_show_place(void);
/* True once for each time that rank k awaits places: then its bell has to be rung. */
bool dd_arena_is_place_awaited(dd_arena *arena, int k);

/* Why this rank has given up: the first one stays. More than DD_ARENA_CAUSE_MAX bytes are not posted. */
void dd_arena_post_cause(dd_arena *arena, dd_bytes cause);
/* Returns how many bytes; 0: it has not given up. */
size_t dd_arena_read_cause(const dd_arena *arena, int k, uint8_t cause[DD_ARENA_CAUSE_MAX]);
bool dd_arena_has_given_up(const dd_arena *arena, int k);
/* This rank has closed the group, and takes part in nothing any more. */
void dd_arena_post_leaving(dd_arena *arena);
bool dd_arena_has_left(const dd_arena *arena, int k);

/* Bytes that a rank has sent to rank `to` of the group and that the network loses; nbytes 0 if there are none. */
typedef struct dd_arena_loss {
    uint32_t to;
    uint64_t nbytes;
} dd_arena_loss;

/* Call before taking the news while this rank's bell is rung: a rank that rings waits for that, then reads. */
void dd_arena_note_loss(dd_arena *arena, dd_arena_loss loss);
dd_arena_loss dd_arena_read_loss(const dd_arena *arena, int k);

/* True if this rank's bell was rung since it last took its news. */
bool dd_arena_is_rung(const dd_arena *arena);
/* True once for each time that rank k has taken its news: then its bell has to be rung. */
bool dd_arena_is_bell_due(dd_arena *arena, int k);
/* Whether it has taken its news since its bell was due: so it runs. */
bool dd_arena_has_heard(const dd_arena *arena, int k);
/* From now on this rank's bell is due for what others post. dd_arena_attach and dd_arena_take_news do it. */
void dd_arena_await_news(dd_arena *arena);
/* Before a look at the others' parts. Whether any of them has posted something since the last time. */
bool dd_arena_take_news(dd_arena *arena);

#endif
