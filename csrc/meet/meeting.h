/* Rendezvous of processes in a store: each publishes its card and receives all cards, or an error
 * that names the ranks that are missing, dead, gave up or differ. Groups and NCCL communicators are
 * created by it.
 *
 * "dldist/<name>/" has a generation, and "dldist/<name>/<generation>/" one meeting: its size, set
 * by the first rank ("size": the number of ranks, the rank, a newline and its published bytes), the
 * ranks that have joined ("rank/<r>": a nonce and a card), their number ("count"), and its end
 * ("end", see store/meet_end.c).
 *
 * A meeting that has ended is never joined: its name can be reused immediately, and one that was
 * cancelled does not affect the next. Only the last rank's requests depend on the number of ranks:
 * it writes all cards into the end. On a dldist server, joining is one request (store/meet_join.c),
 * and the keys of the ranks are deleted once all have joined. */
#ifndef DD_MEET_MEETING_H
#define DD_MEET_MEETING_H

#include "core/bytes.h"
#include "core/status.h"
#include "core/wait.h"
#include "store/store.h"

#define DD_MEETING_NAME_MAX 384

/* The process of a card. */
typedef struct dd_meeting_member {
    char host[DD_HOST_NAME_MAX];
    long long pid;
} dd_meeting_member;

/* How a kind of meeting reads its cards, and its words for messages. */
typedef struct dd_meeting_kind {
    const char *noun;           /* the object being created, such as "group" */
    const char *of_interrupted; /* an interrupted rank's action: "aborted the group: ..." */
    /* True if a rank that times out ends the meeting for all; ranks that join later then receive
     * this or another failure immediately. Otherwise the other ranks go on to the next meeting. */
    bool is_final;
    /* Read a card. Return false if these bytes, which a peer sent, are malformed. */
    bool (*read_card)(dd_bytes card, dd_meeting_member *member);
    /* Set *has_ended to true if the process of `card` has ended, as far as the process of `own` can
     * see. *was_seen is false at first and kept between calls. Fails only with DD_INTERRUPTED. NULL
     * if this cannot be determined. */
    dd_status (*check_process)(dd_bytes card, dd_bytes own, bool *was_seen, bool *has_ended,
                               const dd_wait *wait, dd_error *err);
} dd_meeting_kind;

typedef struct dd_meeting {
    const dd_meeting_kind *kind;
    dd_store *store;
    dd_bytes name; /* at most DD_MEETING_NAME_MAX bytes */
    int rank;
    int size;
    const int *ranks; /* [size]; the ranks' numbers in messages; NULL if they are the same */
    dd_bytes card;
} dd_meeting;

typedef struct dd_meeting_end {
    uint64_t id; /* random and unique; the same for all ranks */
    uint64_t generation;
    dd_bytes *cards; /* [size], in `bytes` */
    dd_blob bytes;
} dd_meeting_end;

/* Meet the other ranks. DD_OP_TIMED_OUT names the present and missing ranks. DD_PEER_LOST: a rank
 * joined and died. DD_ABORTED: a rank joined and gave up. DD_MISMATCH: the sizes differ.
 * DD_INVALID_ARGUMENT: another process joined as this rank. DD_INTERRUPTED, or the store's status.
 * All ranks that have joined receive the first four errors; if one fails with another, they receive
 * DD_ABORTED. */
dd_status dd_meet(const dd_meeting *meeting, dd_meeting_end *end, const dd_wait *wait,
                  dd_error *err) DD_MUST_CHECK;
void dd_meeting_end_fini(dd_meeting_end *end);

/* Report that this rank failed after the meeting. *first is set to the first reported failure,
 * which may be another rank's. */
void dd_meeting_post(dd_store *store, dd_bytes name, uint64_t generation, const dd_error *error,
                     dd_error *first);
/* Return the reported failure, DD_OK if none, or DD_INTERRUPTED. The store's failures are
 * ignored. */
dd_status dd_meeting_check(dd_store *store, dd_bytes name, uint64_t generation, const dd_wait *wait,
                           dd_error *err) DD_MUST_CHECK;

#endif
