/* A process's membership of the job in a FileStore's file, and the locks.
 *
 * Three bytes far beyond the data stand for locks (open file description locks, which end with the
 * descriptor): the gate, held alone by a writer, an opener and a leaver; the member byte, shared by all who
 * have the file open; and the look byte, which nobody holds for long: taking it makes a network file system
 * look at the server. None is ever waited for in the kernel, so a lock that somebody keeps costs time up to
 * the deadline and nothing more. */
#ifndef DD_STORE_FILE_MEMBER_H
#define DD_STORE_FILE_MEMBER_H

#include "core/lock.h"
#include "core/status.h"
#include "core/wait.h"
#include "store/file_log.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* const after join */
typedef struct dd_file_member {
    int fd;
    char *path;          /* as it was given; the one block of memory of all three names */
    char *absolute_path; /* the working directory may change before the file is removed */
    char *where;         /* `FileStore "path"`, for messages */
    int64_t world_size;  /* < 0 if unknown */
} dd_file_member;

/* Open or create the file, and join the processes that have it open. On failure there is nothing to undo. */
dd_status dd_file_member_join(dd_file_member *member, const char *path, int64_t world_size,
                              const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Count this process out, close the file and free the names; waits for the gate a few seconds at most. The last of world_size
 * processes that leave removes the file. */
void dd_file_member_leave(dd_file_member *member);

/* DD_TIMED_OUT says that `what` waited for the lock. `mu`, which the caller holds, is let go while sleeping; NULL is
 * fine. */
dd_status dd_file_member_lock_gate(dd_file_member *member, const char *what, dd_lock *mu, const dd_wait *wait,
                                   dd_error *err) DD_MUST_CHECK;
/* On failure it stays locked, as others see it, until the file is closed. */
dd_status dd_file_member_unlock_gate(const dd_file_member *member, dd_error *err) DD_MUST_CHECK;

/* DD_STORE if the file has been deleted; *size is its size. */
dd_status dd_file_member_check(const dd_file_member *member, uint64_t *size, dd_error *err) DD_MUST_CHECK;

/* Takes and drops the look byte, after which the file system shows what others had written by now. */
void dd_file_member_look(const dd_file_member *member);

dd_status dd_file_member_cut(const dd_file_member *member, uint64_t size, dd_error *err) DD_MUST_CHECK;
/* Writes all of it, or fails; then the caller cuts off what was written. */
dd_status dd_file_member_write(const dd_file_member *member, dd_bytes bytes, uint64_t offset,
                               dd_error *err) DD_MUST_CHECK;

#endif
