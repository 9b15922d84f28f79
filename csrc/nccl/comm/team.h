/* NCCL without a store and without threads of ours: one process, one caller for all its devices, or one thread for each.
 *
 * A team is a communicator for each of several devices, made together, whose collectives take a piece of memory for each device. It can be
 * taken apart into its communicators, for a thread each. Operations go on the caller's streams and are only put there: the caller waits for his
 * streams. The caller's current device is as before after every call.
 *
 * An abort handle is a reference to a communicator: dd_nccl_comm_abort may be called on it by any thread at any time, more than once, and after
 * the communicator's end. */
#ifndef DD_NCCL_COMM_TEAM_H
#define DD_NCCL_COMM_TEAM_H

#include "nccl/comm/comm.h"
#include "nccl/driver/item.h"

typedef struct dd_nccl_team dd_nccl_team;

/* One device is enough. The same twice is DD_INVALID_ARGUMENT before NCCL 2.30.3, and NCCL's error where NCCL_MULTI_RANK_GPU_ENABLE is not 1. */
dd_status dd_nccl_team_open(const dd_nccl_lib *lib, const dd_cuda *cuda, const int *devices, int ndevices,
                            dd_nccl_team **team, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Destroys the communicators that it still has. After the last call on it; NULL is fine. */
void dd_nccl_team_close(dd_nccl_team *team);

int dd_nccl_team_size(const dd_nccl_team *team);
int dd_nccl_team_device(const dd_nccl_team *team, int rank);

/* One group of NCCL's: items[k * size + rank] is the k-th of a rank. streams: one for each device; NULL, or a NULL stream: the
 * legacy default stream. Ranks of one device need different ones (DD_INVALID_ARGUMENT). Calls of several threads come one after the other. DD_CLOSED once it is taken apart. */
dd_status dd_nccl_team_run(dd_nccl_team *team, const char *what, const dd_nccl_item *items,
                           int nitems_per_rank, const dd_cuda_stream *streams, const dd_wait *wait,
                           dd_error *err) DD_MUST_CHECK;
/* The communicator of a rank, acquired: an abort handle. NULL once it is taken apart. */
dd_nccl_comm *dd_nccl_team_acquire_comm(dd_nccl_team *team, int rank);
/* Aborts all of them, side by side: none waits for another's; any thread, also while another one is in dd_nccl_team_run. */
dd_status dd_nccl_team_abort(dd_nccl_team *team, const char *reason, dd_error *err);
/* Hands over the communicators (room for size of them, in the order of ranks), and the references to them. Waits for a
 * call of another thread. */
dd_status dd_nccl_team_take_apart(dd_nccl_team *team, dd_nccl_comm **comms, const dd_wait *wait,
                                  dd_error *err) DD_MUST_CHECK;

/* The same on one communicator, for one rank of several threads or processes: all items are one group of NCCL's. */
dd_status dd_nccl_comm_run(dd_nccl_comm *comm, const char *what, const dd_nccl_item *items, int nitems,
                           dd_cuda_stream stream, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

#endif
