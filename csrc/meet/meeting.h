/* Rendezvous of processes in a store, called a meeting. Each process publishes its address record,
 * called a payload, and receives all payloads, or an error that names the ranks that are missing,
 * dead, have failed or do not match. Groups and NCCL communicators are created by a meeting.
 *
 * Keys: "dldist/<name>/" has the generation, the number of the current meeting;
 * "dldist/<name>/<generation>/" has one meeting: its size, set by the first rank ("size": the
 * number of ranks, the rank, a newline and its published bytes), the ranks that have joined
 * ("rank/<r>": a nonce and a payload), their number ("count"), and the result ("end", see
 * store/meet_end.c).
 *
 * No rank joins a meeting that has ended: a name can be reused immediately, and a cancelled meeting
 * does not affect the next one. Only the last rank's requests depend on the number of ranks: it
 * writes all payloads into the end. On a dldist server, joining is one request (store/meet_join.c),
 * and the keys of the ranks are deleted when all have joined. */
#ifndef DD_MEET_MEETING_H
#define DD_MEET_MEETING_H

#include "core/bytes.h"
#include "core/status.h"
#include "core/wait.h"
#include "store/store.h"

#define DD_MEETING_NAME_MAX 384

/* The process that published a payload. */
typedef struct dd_meeting_member {
    char host[DD_HOST_NAME_MAX];
    long long pid;
} dd_meeting_member;

/* A kind of meeting: functions that read its payloads, and words for messages. */
typedef struct dd_meeting_kind {
    const char *noun;           /* the object that the meeting creates, such as "group" */
    const char *of_interrupted; /* text for an interrupted rank, such as "aborted the group: ..." */
    /* True if the timeout of one rank ends the meeting for all ranks, and ranks that join later
     * fail immediately. If false, the other ranks go on to the next meeting. */
    bool is_final;
    /* Read a payload, which comes from a peer. Return false if its bytes are malformed. */
    bool (*read_payload)(dd_bytes payload, dd_meeting_member *member);
    /* Set *has_ended to true if the process that published `payload` has ended, as far as the
     * process that published `own` can detect. *was_seen must be false at first, and kept between
     * calls. Fails only with DD_INTERRUPTED. NULL if this kind of meeting cannot detect it. */
    dd_status (*check_process)(dd_bytes payload, dd_bytes own, bool *was_seen, bool *has_ended,
                               const dd_wait *wait, dd_error *err);
} dd_meeting_kind;

typedef struct dd_meeting {
    const dd_meeting_kind *kind;
    dd_store *store;
    dd_bytes name; /* the meeting's name, at most DD_MEETING_NAME_MAX bytes */
    int rank;
    int size;
    /* [size]: numbers of the ranks in messages; NULL for 0 to size - 1. */
    const int *ranks;
    dd_bytes payload;
} dd_meeting;

typedef struct dd_meeting_end {
    uint64_t id; /* random, unique number of this meeting, the same on all ranks */
    uint64_t generation;
    dd_bytes *payloads; /* [size]: each rank's payload, which points into `bytes` */
    dd_blob bytes;
} dd_meeting_end;

/* Meet the other ranks. DD_OP_TIMED_OUT names the present and the missing ranks. DD_PEER_LOST: a
 * rank has joined and died. DD_ABORTED: a rank has joined and then failed or was interrupted.
 * DD_MISMATCH: the sizes differ, or two running processes have joined as one rank. A rank whose
 * process has died may join again. DD_INTERRUPTED, or an error of the store. All ranks that have
 * joined receive the first four errors; if a rank fails with another error, the other ranks receive
 * DD_ABORTED. */
dd_status dd_meet(const dd_meeting *meeting, dd_meeting_end *end, const dd_wait *wait,
                  dd_error *err) DD_MUST_CHECK;
void dd_meeting_end_fini(dd_meeting_end *end);

/* Report that this rank has failed after the meeting. Sets *first to the failure that was reported
 * first, perhaps by another rank. */
void dd_meeting_post(dd_store *store, dd_bytes name, uint64_t generation, const dd_error *error,
                     dd_error *first);
/* Return the failure that a rank has reported after the meeting, DD_OK if no rank has, or
 * DD_INTERRUPTED. Failures of the store are ignored. */
dd_status dd_meeting_check(dd_store *store, dd_bytes name, uint64_t generation, const dd_wait *wait,
                           dd_error *err) DD_MUST_CHECK;

#endif
