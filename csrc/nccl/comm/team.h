/* NCCL without a store and a watchdog: one process, and one thread for all devices or for each.
 *
 * A team has one communicator for each of several devices, created together; its collectives take
 * one piece of memory for each device. It can be taken apart into communicators for separate
 * threads. Operations are only enqueued on the caller's streams, which the caller must wait for. No
 * call changes the caller's current device. An abort handle is a reference to a communicator: any
 * thread may call dd_nccl_comm_abort on it at any time, repeatedly, and after its end. */
#ifndef DD_NCCL_COMM_TEAM_H
#define DD_NCCL_COMM_TEAM_H

#include "nccl/comm/comm.h"
#include "nccl/driver/item.h"

typedef struct dd_nccl_team dd_nccl_team;

/* Open a team; one device is enough. A repeated device is DD_INVALID_ARGUMENT before NCCL 2.30.3,
 * and an error of NCCL unless NCCL_MULTI_RANK_GPU_ENABLE is 1. */
dd_status dd_nccl_team_open(const dd_nccl_lib *lib, const dd_cuda *cuda, const int *devices, int ndevices,
                            dd_nccl_team **team, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Destroy the remaining communicators. Must be the last call on the team. May be NULL. */
void dd_nccl_team_close(dd_nccl_team *team);

int dd_nccl_team_size(const dd_nccl_team *team);
int dd_nccl_team_device(const dd_nccl_team *team, int rank);

/* Run items in one NCCL group: items[k * size + rank] is a rank's k-th. streams: one for each
 * device, or NULL; a NULL stream is the legacy default stream. Ranks on one device need different
 * streams (DD_INVALID_ARGUMENT). Calls run one by one. DD_CLOSED once taken apart. */
dd_status dd_nccl_team_run(dd_nccl_team *team, const char *what, const dd_nccl_item *items,
                           int nitems_per_rank, const dd_cuda_stream *streams, const dd_wait *wait,
                           dd_error *err) DD_MUST_CHECK;
/* Return a rank's communicator, acquired, as an abort handle. NULL once the team is taken apart. */
dd_nccl_comm *dd_nccl_team_acquire_comm(dd_nccl_team *team, int rank);
/* Abort all communicators in parallel. Any thread, even while another is in dd_nccl_team_run. */
dd_status dd_nccl_team_abort(dd_nccl_team *team, const char *reason, dd_error *err);
/* Move all communicators and their references to `comms`, which must have room for size of them, in
 * rank order. Waits for a call of another thread. */
dd_status dd_nccl_team_take_apart(dd_nccl_team *team, dd_nccl_comm **comms, const dd_wait *wait,
                                  dd_error *err) DD_MUST_CHECK;

/* Run all items in one NCCL group on one communicator: for one of several threads or processes. */
dd_status dd_nccl_comm_run(dd_nccl_comm *comm, const char *what, const dd_nccl_item *items, int nitems,
                           dd_cuda_stream stream, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

#endif
