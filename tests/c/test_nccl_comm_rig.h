/* The doubles of libcuda and libnccl, loaded as the library loads the real ones, and threads that are ranks. */
#ifndef DD_TESTS_NCCL_COMM_RIG_H
#define DD_TESTS_NCCL_COMM_RIG_H

#include "check.h"
#include "core/thread.h"
#include "nccl/comm/comm.h"

#define COMM_RIG_MAX_RANKS 4

/* The controls of one double, see stubs/stub_control.h. */
typedef struct stub_controls {
    void (*fail)(const char *function, int after, int result, const char *text);
    void (*hang)(const char *function, int after, int ms);
    void (*release)(void);
    void (*reset)(void);
    int (*hanging)(void);
    long (*calls)(const char *function);
    long (*live)(const char *kind);
    long (*bad_uses)(void);
    void (*shut_down)(int is_down);                                         /* libcuda */
    void (*async_error)(int rank, int result, int after, const char *text); /* libnccl */
    void (*slow_launches)(int ms);                                          /* libnccl */
} stub_controls;

typedef struct comm_rig {
    dd_nccl_lib *lib;
    dd_cuda *cuda;
    stub_controls on_nccl;
    stub_controls on_cuda;
} comm_rig;

/* version: "2.32.3". False when it failed, which has been counted. */
bool comm_rig_open(comm_rig *rig, const char *version);
/* Checks that no communicator is left and that no handle was used after its end. */
void comm_rig_close(comm_rig *rig);
/* The same for a test that has left threads behind: the last of their communicators ends soon. The rig, which is static, stays open,
 * since such a thread may still use it. */
void comm_rig_leave_open(comm_rig *rig);
/* Where the file of a double is; valid until the next call of the thread. */
const char *comm_rig_nccl_path(const char *version);

/* A rank, which is a thread in comm_rig_run. */
typedef struct comm_rig_rank {
    comm_rig *rig;
    int rank;
    int size;
    const dd_nccl_unique_id *ids;
    int nids;
    bool is_nonblocking;
    int64_t timeout_ns;
    const atomic_bool *stop;
    const void *arg; /* the test's */
    dd_nccl_comm *comm;
    dd_nccl_comm *child;
    dd_status status;
    dd_error error;
    pthread_t thread;
    void (*run)(struct comm_rig_rank *rank);
} comm_rig_rank;

/* Fills ranks 0 .. n - 1 for a communicator of n, with the id and a long time-out. */
void comm_rig_ranks(comm_rig *rig, comm_rig_rank *ranks, int n, dd_nccl_unique_id *id);
/* Each in a thread of its own; waits for all. */
void comm_rig_run(comm_rig_rank *ranks, int n, void (*run)(comm_rig_rank *rank));
/* Makes rank->comm; the status and the error are the rank's. */
void comm_rig_init(comm_rig_rank *rank);
/* All at once: communicators of n ranks, or a failure that has been counted. */
bool comm_rig_connect(comm_rig *rig, comm_rig_rank *ranks, int n, bool is_nonblocking);
void comm_rig_release(comm_rig_rank *ranks, int n);
/* dd_nccl_comm_enter with plenty of time. */
dd_status comm_rig_enter(dd_nccl_comm *comm, dd_nccl_comm_handle *handle);

#endif
