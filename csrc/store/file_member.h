/* The membership of a process in the job that uses a FileStore's file: ownership of the content,
 * and locks.
 *
 * Three bytes far beyond the data serve as locks. They are open file description locks, which end
 * with the descriptor. A process holds the gate exclusively while it writes, opens or leaves the
 * file. All processes that have the file open share a lock on the member byte. The look byte is
 * locked only briefly, to make a network file system query its server for changes. Locks are not
 * awaited in the kernel, so a lock that is never released delays a call only until its deadline. */
#ifndef DD_STORE_FILE_MEMBER_H
#define DD_STORE_FILE_MEMBER_H

#include "core/lock.h"
#include "core/status.h"
#include "core/wait.h"
#include "store/file_log.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* A process's membership. All fields are const after dd_file_member_join. */
typedef struct dd_file_member {
    int fd;
    char *path;          /* path as passed in; this allocation also contains the next two */
    char *absolute_path; /* absolute path, because the working directory may change */
    char *where;         /* name for messages: `FileStore "path"` */
    uint8_t run_id[DD_FILE_RUN_ID_BYTES];
} dd_file_member;

/* Open or create the file, decide whether to keep its content (see file_store.h), and make this
 * process a member. On failure nothing needs to be undone. */
dd_status dd_file_member_join(dd_file_member *member, const char *path, int64_t world_size,
                              const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Leave the job, close the file and free the names. Waits at most a few seconds for the gate. After
 * all members have joined, the last member that leaves removes the file. If is_in_order is false,
 * the header does not count this process as having left, as after a crash. */
void dd_file_member_close(dd_file_member *member, bool is_in_order);

/* Lock the gate. DD_TIMED_OUT names `label` as the call that waited. `mu` is NULL, or a lock that
 * the caller must hold; it is released while the thread sleeps. */
dd_status dd_file_member_lock_gate(dd_file_member *member, const char *label, dd_lock *mu,
                                   const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Unlock the gate. On failure, it stays locked for other processes until the file is closed. */
dd_status dd_file_member_unlock_gate(const dd_file_member *member, dd_error *err) DD_MUST_CHECK;

/* Return DD_STORE unless the file exists and belongs to this run. Sets *size to the file's size. */
dd_status dd_file_member_check(const dd_file_member *member, uint64_t *size, dd_error *err) DD_MUST_CHECK;

/* Lock and unlock the look byte, so that all earlier writes of other processes become visible. */
void dd_file_member_sync(const dd_file_member *member);

dd_status dd_file_member_cut(const dd_file_member *member, uint64_t size, dd_error *err) DD_MUST_CHECK;
/* Write all bytes. On failure, the caller must cut off the bytes that were written. */
dd_status dd_file_member_write(const dd_file_member *member, dd_bytes bytes, uint64_t offset,
                               dd_error *err) DD_MUST_CHECK;

#endif
