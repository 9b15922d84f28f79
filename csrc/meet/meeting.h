/* How processes find each other in a store: each leaves its card, and has all cards, or a sentence that says who is
 * missing, dead, has given up, or is different. Groups and communicators of NCCL meet by it.
 *
 * Under "dldist/<name>/" there is a generation, and under "dldist/<name>/<generation>/" one meeting: its size and who
 * said so first ("size": the number of ranks, the rank, a newline and what that rank has published), who has come
 * ("rank/<r>": a nonce and a card), how many ("count"), and how it has ended ("end", see store/meet_end.c).
 *
 * A meeting that has ended is never joined: its name can be used again at once, and one that was given up does not
 * poison the next. What a rank asks of the store does not depend on the number of ranks, but for the last one that comes:
 * it puts all cards into the end. On a dldist server, joining is one request (store/meet_join.c), and the keys of the ranks are deleted once
 * all have joined. */
#ifndef DD_MEET_MEETING_H
#define DD_MEET_MEETING_H

#include "core/bytes.h"
#include "core/status.h"
#include "core/wait.h"
#include "store/store.h"

#define DD_MEETING_NAME_MAX 384

/* What a card says about its process. */
typedef struct dd_meeting_member {
    char host[DD_HOST_NAME_MAX];
    long long pid;
} dd_meeting_member;

/* What a kind of meeting knows of its cards, and says of itself. */
typedef struct dd_meeting_kind {
    const char *noun;           /* what is being made: "group" */
    const char *of_interrupted; /* what a rank has done that was interrupted: "aborted the group: ..." */
    /* A rank that runs out of time ends the meeting for all, and those who come later hear of it, or of another failure,
     * at once. Else the others go on to the next meeting. */
    bool is_final;
    /* False: these bytes, which are a peer's, are no card. */
    bool (*read_card)(dd_bytes card, dd_meeting_member *member);
    /* Whether the process of `card` has ended, as far as can be seen from that of `own`. *was_seen is kept from one
     * look to the next, and false at first. Fails only with DD_INTERRUPTED. NULL: nobody can tell. */
    dd_status (*look_for)(dd_bytes card, dd_bytes own, bool *was_seen, bool *is_gone, const dd_wait *wait,
                          dd_error *err);
} dd_meeting_kind;

typedef struct dd_meeting {
    const dd_meeting_kind *kind;
    dd_store *store;
    dd_bytes name; /* DD_MEETING_NAME_MAX bytes at most */
    int rank;
    int size;
    const int *ranks; /* [size]: what messages call the ranks; NULL: the same */
    dd_bytes card;
} dd_meeting;

typedef struct dd_meeting_end {
    uint64_t id; /* random; the same for all, and no other meeting's */
    uint64_t generation;
    dd_bytes *cards; /* [size], in `bytes` */
    dd_blob bytes;
} dd_meeting_end;

/* DD_OP_TIMED_OUT names who has come and who is missing. DD_PEER_LOST: a rank has come and died. DD_ABORTED: a rank that
 * has come has given up. DD_MISMATCH: ranks were told different sizes. DD_INVALID_ARGUMENT: somebody else has come as
 * this rank. DD_INTERRUPTED, and what the store fails with. All who have come hear of all but the last three, and of a
 * rank that fails by those. */
dd_status dd_meet(const dd_meeting *meeting, dd_meeting_end *end, const dd_wait *wait,
                  dd_error *err) DD_MUST_CHECK;
void dd_meeting_end_fini(dd_meeting_end *end);

/* A rank that cannot go on after the meeting says so there. *first: what stands there now, which somebody else may have
 * said before. */
void dd_meeting_post(dd_store *store, dd_bytes name, uint64_t generation, const dd_error *error,
                     dd_error *first);
/* DD_OK while there is nothing, or what has been posted; DD_INTERRUPTED. A store that fails is no reason to. */
dd_status dd_meeting_check(dd_store *store, dd_bytes name, uint64_t generation, const dd_wait *wait,
                           dd_error *err) DD_MUST_CHECK;

#endif
