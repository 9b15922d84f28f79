/* The stubs of libcuda and libnccl, loaded like the real libraries, and threads as ranks. */
#ifndef DD_TESTS_NCCL_COMM_RIG_H
#define DD_TESTS_NCCL_COMM_RIG_H

#include "check.h"
#include "core/thread.h"
#include "nccl/comm/comm.h"

#define COMM_RIG_MAX_RANKS 4

/* The controls of one stub, see stubs/stub_control.h. */
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

/* Open the rig; `version` is for example "2.32.3". Return false after a failed check. */
bool comm_rig_open(comm_rig *rig, const char *version);
/* Check that no communicator is left and that no handle was used after its end. */
void comm_rig_close(comm_rig *rig);
/* Like comm_rig_close, for a test that leaves threads behind: the last of their communicators ends
 * soon. The rig must be static and stays open, because such a thread may still use it. */
void comm_rig_leave_open(comm_rig *rig);
/* Return the path of the stub's file, valid until this thread's next call. */
const char *comm_rig_nccl_path(const char *version);

/* A rank; a thread in comm_rig_run. */
typedef struct comm_rig_rank {
    comm_rig *rig;
    int rank;
    int size;
    const dd_nccl_unique_id *ids;
    int nids;
    bool is_nonblocking;
    int64_t timeout_ns;
    const atomic_bool *stop;
    const void *arg; /* used by the test */
    dd_nccl_comm *comm;
    dd_nccl_comm *child;
    dd_status status;
    dd_error error;
    pthread_t thread;
    void (*run)(struct comm_rig_rank *rank);
} comm_rig_rank;

/* Fill ranks 0 .. n - 1 for a communicator of n, with the id and a long timeout. */
void comm_rig_ranks(comm_rig *rig, comm_rig_rank *ranks, int n, dd_nccl_unique_id *id);
/* Run each rank in its own thread, and wait for all. */
void comm_rig_run(comm_rig_rank *ranks, int n, void (*run)(comm_rig_rank *rank));
/* Create rank->comm; store the status and the error in the rank. */
void comm_rig_init(comm_rig_rank *rank);
/* Create the communicators of n ranks at the same time. Return false after a failed check. */
bool comm_rig_connect(comm_rig *rig, comm_rig_rank *ranks, int n, bool is_nonblocking);
void comm_rig_release(comm_rig_rank *ranks, int n);
/* Call dd_nccl_comm_enter with a generous timeout. */
dd_status comm_rig_enter(dd_nccl_comm *comm, dd_nccl_comm_handle *handle);

#endif
