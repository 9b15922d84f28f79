/* Ranks that are about to create a communicator meet in a store: they exchange unique ids, and
 * agree on NCCL's version, encryption and grouped messages.
 *
 * They meet as groups do (meet/meeting.h). A card has NCCL's version, host, process, device,
 * settings, and, on a root, the id that it made or the error. Every rank has all cards and
 * concludes the same from them: the ids, or why there is no communicator. The same ranks may meet
 * again under the same prefix, after success or failure. A rank that joins after the others have
 * cancelled fails immediately. */
#ifndef DD_NCCL_COMM_MEET_H
#define DD_NCCL_COMM_MEET_H

#include "core/bytes.h"
#include "core/status.h"
#include "core/wait.h"
#include "nccl/driver/lib.h"
#include "store/store.h"

#include <stdatomic.h>

typedef struct dd_nccl_meeting {
    const dd_nccl_lib *lib;
    dd_store *store;
    dd_bytes prefix;  /* of the keys: "nccl/NAME/all", or "nccl/NAME/pair/2:5" for two ranks */
    uint64_t use;     /* number of the communicator under the prefix */
    int rank;         /* in the meeting, 0 .. size - 1 */
    int size;         /* at least 1 */
    const int *names; /* ranks in the group, for messages; NULL if they are the same */
    int device;       /* for messages */
    bool has_grouped_messages;
} dd_nccl_meeting;

/* Return the number of ids: with scalable init one for each ranks_per_root ranks, otherwise one. */
int dd_nccl_meet_nids(const dd_nccl_lib *lib, int size, int ranks_per_root);

/* Meet the other ranks and get the ids. All ranks must call it with the same nids. DD_MISMATCH
 * names two ranks with different NCCLs or settings. DD_BACKEND has NCCL's reason if a root could
 * not make its id. DD_OP_TIMED_OUT names the ranks that did not join. DD_ABORTED if `stop` (may be
 * NULL) becomes true, DD_INTERRUPTED, and errors of the store. */
dd_status dd_nccl_meet(const dd_nccl_meeting *meeting, dd_nccl_unique_id *ids, int nids,
                       const atomic_bool *stop, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

#endif
