/* How ranks that are about to make a communicator find each other in a store: unique ids, and agreement on NCCL's version, on encryption, and on what
 * they make of its calls.
 *
 * They meet as groups do (meet/meeting.h). A card has NCCL's version, host, process, device, settings, and, if the rank is a root, the id that it
 * has made or why it could not. Every rank has all cards and finds the same in them: the ids, or why there will be no communicator.
 *
 * The same ranks may meet again at the same place, after a success or in vain. A rank that comes when the others have given up
 * hears of it at once. */
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
    dd_bytes prefix;  /* of the keys: "nccl/0", or "nccl/pair/2:5" for two ranks */
    uint64_t use;     /* a number for each communicator that is made one after the other under the prefix */
    int rank;         /* among those that meet, 0 .. size - 1 */
    int size;         /* at least 1 */
    const int *names; /* their ranks in the group, for messages; NULL: the same */
    int device;       /* for messages */
    bool has_grouped_messages;
} dd_nccl_meeting;

/* How many ids so many ranks use: one, or one for ranks_per_root ranks (0: one) where NCCL has scalable init. */
int dd_nccl_meet_nids(const dd_nccl_lib *lib, int size, int ranks_per_root);

/* All ranks call, with the same number of ids. DD_MISMATCH: two ranks have different NCCLs or settings, both are named. DD_BACKEND: a root could not make its
 * id; NCCL's reason. DD_OP_TIMED_OUT names the ranks that have not come. DD_ABORTED when `stop` (may be NULL) becomes true, DD_INTERRUPTED, and what
 * the store fails with. */
dd_status dd_nccl_meet(const dd_nccl_meeting *meeting, dd_nccl_unique_id *ids, int nids,
                       const atomic_bool *stop, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

#endif
