/* NCCL without a store and a watchdog, in one process: one thread for all devices, or one for each.
 *
 * A team has one communicator for each device, created together; a collective of the team takes one
 * buffer for each device. A team can be taken apart into communicators for separate threads.
 * Operations are only enqueued on the caller's streams; the caller must wait for these streams. No
 * call changes the caller's current device. An abort handle is a reference to a communicator: any
 * thread may call dd_nccl_comm_abort on it at any time, repeatedly, and after its end. */
#ifndef DD_NCCL_COMM_TEAM_H
#define DD_NCCL_COMM_TEAM_H

#include "nccl/comm/comm.h"
#include "nccl/driver/item.h"

typedef struct dd_nccl_team dd_nccl_team;

/* Open a team with one rank for each of `devices`; one device is enough. If a device is listed
 * twice: DD_INVALID_ARGUMENT before NCCL 2.30.3, later an error of NCCL unless
 * NCCL_MULTI_RANK_GPU_ENABLE is 1. */
dd_status dd_nccl_team_open(const dd_nccl_lib *lib, const dd_cuda *cuda, const int *devices, int ndevices,
                            dd_nccl_team **team, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Destroy the communicators that the team still owns. Must be the last call. `team` may be NULL. */
void dd_nccl_team_close(dd_nccl_team *team);

int dd_nccl_team_size(const dd_nccl_team *team);
int dd_nccl_team_device(const dd_nccl_team *team, int rank);

/* Enqueue items in one NCCL group: items[k * size + rank] is the rank's k-th item. `streams` has
 * one stream for each device; if it or an element is NULL, the legacy default stream is used. Ranks
 * on one device need different streams (else DD_INVALID_ARGUMENT). Concurrent calls run one by one.
 * DD_CLOSED once the team is taken apart. */
dd_status dd_nccl_team_run(dd_nccl_team *team, const char *label, const dd_nccl_item *items,
                           int nitems_per_rank, const dd_cuda_stream *streams, const dd_wait *wait,
                           dd_error *err) DD_MUST_CHECK;
/* Return a rank's communicator, acquired, as an abort handle; NULL once the team is taken apart. */
dd_nccl_comm *dd_nccl_team_acquire_comm(dd_nccl_team *team, int rank);
/* Abort all communicators in parallel. Any thread may call it, even during dd_nccl_team_run. */
dd_status dd_nccl_team_abort(dd_nccl_team *team, const char *reason, dd_error *err);
/* Move all communicators, with the team's references, to `comms` in rank order. `comms` must have
 * `size` elements. Waits until another thread's call on the team has returned. */
dd_status dd_nccl_team_take_apart(dd_nccl_team *team, dd_nccl_comm **comms, const dd_wait *wait,
                                  dd_error *err) DD_MUST_CHECK;

/* Enqueue all items in one NCCL group on `comm`. Each rank has its own thread or process. */
dd_status dd_nccl_comm_run(dd_nccl_comm *comm, const char *label, const dd_nccl_item *items, int nitems,
                           dd_cuda_stream stream, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

#endif
