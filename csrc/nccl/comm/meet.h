/* Ranks that are about to create a communicator meet in a store: they exchange unique ids, and
 * check that they agree on NCCL's version, encryption and grouped messages.
 *
 * The rendezvous is meet/meeting.h. Each rank publishes an info: NCCL's version, host, process,
 * device, settings, and, on a root, its unique id or the reason why it has none. Every rank reads
 * all infos and draws the same conclusion: the ids, or why there is no communicator. The same ranks
 * may meet again under the same prefix, after success or failure. A rank that joins after the other
 * ranks have cancelled fails immediately. */
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
    /* Prefix of the store keys: "nccl/NAME/all", or "nccl/NAME/pair/2:5" for two ranks. */
    dd_bytes prefix;
    uint64_t use;     /* sequence number of the communicator among those with this prefix */
    int rank;         /* number of this rank in the rendezvous, 0 .. size - 1 */
    int size;         /* number of ranks that meet; at least 1 */
    const int *names; /* group rank of each rank here, for errors; NULL if the same */
    int device;       /* this rank's CUDA device, for error messages */
    bool has_grouped_messages;
} dd_nccl_meeting;

/* Return the number of unique ids: for scalable init one per ranks_per_root ranks, else one. */
int dd_nccl_meet_nids(const dd_nccl_lib *lib, int size, int ranks_per_root);

/* Meet the other ranks and get the unique ids. All ranks must call it, with the same nids. Errors:
 * DD_MISMATCH names two ranks with different NCCL versions or settings; DD_BACKEND has NCCL's
 * reason if a root could not create its id; DD_OP_TIMED_OUT names the ranks that did not join;
 * DD_ABORTED if `stop` (may be NULL) becomes true; DD_INTERRUPTED; errors of the store. */
dd_status dd_nccl_meet(const dd_nccl_meeting *meeting, dd_nccl_unique_id *ids, int nids,
                       const atomic_bool *stop, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

#endif
