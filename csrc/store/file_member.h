/* A process's membership of the job in a FileStore's file: who owns the content, and the locks.
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
    uint8_t run_id[DD_FILE_RUN_ID_BYTES];
} dd_file_member;

/* Opens or creates the file, settles whose content it holds (file_store.h), and counts this process in. On
 * failure there is nothing to undo. */
dd_status dd_file_member_join(dd_file_member *member, const char *path, int64_t world_size,
                              const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Counts itself out, closes the file and frees the names; waits for the gate a few seconds at most. When the job
 * was complete, the last to leave removes the file. is_in_order false: does not count itself out, as if it had
 * crashed. */
void dd_file_member_leave(dd_file_member *member, bool is_in_order);

/* DD_TIMED_OUT says that `what` waited for the lock. `mu`, which the caller holds, is let go while sleeping; NULL is
 * fine. */
dd_status dd_file_member_lock_gate(dd_file_member *member, const char *what, dd_lock *mu, const dd_wait *wait,
                                   dd_error *err) DD_MUST_CHECK;
/* On failure it stays locked, as others see it, until the file is closed. */
dd_status dd_file_member_unlock_gate(const dd_file_member *member, dd_error *err) DD_MUST_CHECK;

/* DD_STORE unless the file is still there and of this run; *size is its size. */
dd_status dd_file_member_check(const dd_file_member *member, uint64_t *size, dd_error *err) DD_MUST_CHECK;

/* Takes and drops the look byte, after which the file system shows what others had written by now. */
void dd_file_member_look(const dd_file_member *member);

dd_status dd_file_member_cut(const dd_file_member *member, uint64_t size, dd_error *err) DD_MUST_CHECK;
/* Writes all of it, or fails; then the caller cuts off what was written. */
dd_status dd_file_member_write(const dd_file_member *member, dd_bytes bytes, uint64_t offset,
                               dd_error *err) DD_MUST_CHECK;

#endif
