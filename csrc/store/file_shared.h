/* What one process has of a FileStore, shared by its threads and by the clones of the store.
 *
 * Every process replays the file's records into a keyspace of its own and answers from it. A change is made
 * under the file's gate: read on to the end, change the keyspace, append the record. Where the record cannot
 * be written, the keyspace is thrown away and read anew.
 *
 * The mutex is held for work on the keyspace and the file, never while sleeping; who wants the gate first
 * takes is_gate_taken from the other threads, since they all share the one file lock. */
#ifndef DD_STORE_FILE_SHARED_H
#define DD_STORE_FILE_SHARED_H

#include "core/bytes.h"
#include "core/wait.h"
#include "store/file_log.h"
#include "store/file_member.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct dd_file_shared {
    /* const after join */
    dd_file_member member;
    /* atomic: counts handles; acq_rel, as the last one frees */
    atomic_uint refs;
    /* atomic: the keyspace is being changed; read by a child of a fork, which has nobody to wait for */
    atomic_bool is_changing;
    pthread_mutex_t mu;
    pthread_cond_t changed; /* with mu: this process changed the content, or gave the gate back */
    /* guarded by mu */
    bool is_gate_taken; /* a thread holds the gate or waits for it */
    bool is_cut_short;  /* the last operation ran out of time or was interrupted */
    dd_file_log log;
    dd_blob write_buf; /* records of the change under way */
} dd_file_shared;

/* Joins the job (file_member.h) and counts one handle. `shared` is zeroed and from core/mem.h; on failure
 * there is nothing to undo. */
dd_status dd_file_shared_join(dd_file_shared *shared, const char *path, int64_t world_size,
                              const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
void dd_file_shared_acquire(dd_file_shared *shared);
/* The last handle leaves the job and frees. is_forked: in a child of the process that joined, which leaves
 * nothing. */
void dd_file_shared_release(dd_file_shared *shared, bool is_forked);

/* Starts an operation that only looks: holds the mutex on DD_OK, with the keyspace up to date. */
dd_status dd_file_shared_begin_read(dd_file_shared *shared, dd_error *err) DD_MUST_CHECK;
void dd_file_shared_end_read(dd_file_shared *shared, dd_status status);

/* Ends a look and sleeps until this process changes something, nap_ns at most: then it is time to look again.
 * */
dd_status dd_file_shared_nap(dd_file_shared *shared, int64_t nap_ns, const dd_wait *wait,
                             dd_error *err) DD_MUST_CHECK;

/* Starts an operation that changes something: on DD_OK holds the mutex and the gate, with the keyspace up to
 * date. */
dd_status dd_file_shared_begin_write(dd_file_shared *shared, const char *what, const dd_wait *wait,
                                     dd_error *err) DD_MUST_CHECK;
void dd_file_shared_end_write(dd_file_shared *shared, dd_status status);

/* Between begin_write and end_write. */

/* Appends the records in write_buf, which the keyspace holds already, to the file. When that fails, or
 * `status` says that making them did, the keyspace forgets them. Returns the first failure. */
dd_status dd_file_shared_commit(dd_file_shared *shared, dd_status status, dd_error *err) DD_MUST_CHECK;

/* Logs one change that was made to the keyspace. */
dd_status dd_file_shared_log(dd_file_shared *shared, const dd_file_record *record,
                             dd_error *err) DD_MUST_CHECK;

/* Makes the change that the record says, and logs it. */
dd_status dd_file_shared_change(dd_file_shared *shared, const dd_file_record *record,
                                dd_error *err) DD_MUST_CHECK;

#endif
