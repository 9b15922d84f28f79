#include "store/file_member.h"

#include "core/fork.h"
#include "core/lock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/system.h"
#include "net/auth.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum lock_byte {
    LOCK_GATE,
    LOCK_MEMBER,
    LOCK_SYNC,
};

/* Offset of the lock bytes in the file, far beyond the data: locks may lie beyond a file's end. */
#define LOCK_BASE ((off_t)1 << 40)
#define NAP_MIN_NS DD_NS_PER_MS
#define NAP_MAX_NS (50 * DD_NS_PER_MS)
#define CLOSE_TIMEOUT_NS (5 * DD_NS_PER_S)
#define UNLOCK_TRIES 3

/* Set and return the error of a system call on the file that failed; `label` names the call. */
static dd_status
failed(const dd_file_member *member, const char *label, dd_error *err)
{
    return dd_error_set_errno(err, DD_SYSTEM, errno, "%s: cannot %s", member->where, label);
}

typedef enum lock_result {
    LOCK_TAKEN,
    LOCK_BUSY,
    LOCK_FAILED, /* errno is set */
} lock_result;

/* Lock or unlock a byte without waiting. `type` must be F_RDLCK, F_WRLCK or F_UNLCK. */
static lock_result
try_lock_byte(int fd, enum lock_byte which, short type)
{
    struct flock lock = {
        .l_type = type,
        .l_whence = SEEK_SET,
        .l_start = LOCK_BASE + (off_t)which,
        .l_len = 1,
    };
    while (dd_sys_lock_file(fd, F_OFD_SETLK, &lock) != 0) {
        if (errno == EAGAIN || errno == EACCES) {
            return LOCK_BUSY;
        }
        if (errno != EINTR) {
            return LOCK_FAILED;
        }
    }
    return LOCK_TAKEN;
}

/* Make one attempt. On DD_OK, *obstacle is the reason to try again, or NULL on success. */
typedef dd_status try_fn(dd_file_member *member, const char **obstacle, dd_error *err);

/* Call `try` until it succeeds or fails, or until the deadline, with sleeps of doubling length. */
static dd_status
try_until(dd_file_member *member, try_fn *try, const char *label, dd_lock *mu, const dd_wait *wait,
          dd_error *err)
{
    for (int64_t nap_ns = NAP_MIN_NS;; nap_ns = nap_ns * 2 < NAP_MAX_NS ? nap_ns * 2 : NAP_MAX_NS) {
        const char *obstacle = NULL;
        dd_status status = try(member, &obstacle, err);
        if (status != DD_OK || obstacle == NULL) {
            return status;
        }
        if (dd_wait_has_expired(wait)) {
            return dd_error_set(err, DD_TIMED_OUT, "%s timed out after %.3f s on %s: %s", label,
                                dd_wait_elapsed_s(wait), member->where, obstacle);
        }
        if (mu != NULL) {
            dd_lock_release(mu);
        }
        status = dd_wait_sleep(wait, nap_ns, err);
        if (mu != NULL) {
            dd_lock_take(mu);
        }
        if (status != DD_OK) {
            return status;
        }
    }
}

static dd_status
try_gate(dd_file_member *member, const char **obstacle, dd_error *err)
{
    lock_result result = try_lock_byte(member->fd, LOCK_GATE, F_WRLCK);
    *obstacle = result == LOCK_BUSY ? "another process holds the file's lock" : NULL;
    return result == LOCK_FAILED ? failed(member, "lock the file", err) : DD_OK;
}

dd_status
dd_file_member_lock_gate(dd_file_member *member, const char *label, dd_lock *mu, const dd_wait *wait,
                         dd_error *err)
{
    return try_until(member, try_gate, label, mu, wait, err);
}

dd_status
dd_file_member_unlock_gate(const dd_file_member *member, dd_error *err)
{
    for (int i = 0; i < UNLOCK_TRIES; i++) {
        if (try_lock_byte(member->fd, LOCK_GATE, F_UNLCK) == LOCK_TAKEN) {
            return DD_OK;
        }
    }
    return failed(member, "unlock the file", err);
}

void
dd_file_member_sync(const dd_file_member *member)
{
    if (try_lock_byte(member->fd, LOCK_SYNC, F_RDLCK) == LOCK_TAKEN) {
        (void)try_lock_byte(member->fd, LOCK_SYNC, F_UNLCK);
    }
}

/* Read the bytes of the header; *start is shorter if the file is. */
static dd_status
read_start(const dd_file_member *member, uint8_t out[DD_FILE_HEADER_BYTES], dd_bytes *start, dd_error *err)
{
    ssize_t nread = dd_file_read(member->fd, out, DD_FILE_HEADER_BYTES, 0);
    if (nread < 0) {
        return failed(member, "read the header", err);
    }
    *start = dd_bytes_of(out, (size_t)nread);
    return DD_OK;
}

dd_status
dd_file_member_check(const dd_file_member *member, uint64_t *size, dd_error *err)
{
    struct stat info;
    int rc = dd_sys_fstat(member->fd, &info);
    if (rc != 0 && errno != ESTALE) {
        return failed(member, "stat the file", err);
    }
    if (rc != 0 || info.st_nlink == 0) {
        return dd_error_set(err, DD_STORE, "%s: the file was deleted while it was in use", member->where);
    }
    uint8_t bytes[DD_FILE_HEADER_BYTES];
    dd_bytes start;
    dd_status status = read_start(member, bytes, &start, err);
    if (status != DD_OK) {
        return status;
    }
    if (!dd_file_header_is_of_run(start, member->run_id)) {
        return dd_error_set(err, DD_STORE, "%s: another job has taken over the file", member->where);
    }
    *size = (uint64_t)info.st_size;
    return DD_OK;
}

dd_status
dd_file_member_write(const dd_file_member *member, dd_bytes bytes, uint64_t offset, dd_error *err)
{
    for (size_t done = 0; done < bytes.len;) {
        ssize_t n = dd_sys_pwrite(member->fd, bytes.data + done, bytes.len - done, (off_t)(offset + done));
        if (n >= 0) {
            done += (size_t)n;
        } else if (errno != EINTR) {
            return dd_error_set_errno(err, DD_SYSTEM, errno, "%s: cannot write %zu bytes at offset %llu",
                                      member->where, bytes.len, (unsigned long long)offset);
        }
    }
    return DD_OK;
}

dd_status
dd_file_member_cut(const dd_file_member *member, uint64_t size, dd_error *err)
{
    while (dd_sys_ftruncate(member->fd, (off_t)size) != 0) {
        if (errno != EINTR) {
            return dd_error_set_errno(err, DD_SYSTEM, errno, "%s: cannot truncate the file to %llu bytes",
                                      member->where, (unsigned long long)size);
        }
    }
    return DD_OK;
}

static dd_status
write_header(const dd_file_member *member, dd_file_header *header, dd_error *err)
{
    dd_file_header_seal(header);
    return dd_file_member_write(member, dd_bytes_of(header, sizeof *header), 0, err);
}

/* Set *is_at_path to true if the path still leads to the file that this process has open. */
static dd_status
find_at_path(const dd_file_member *member, bool *is_at_path, dd_error *err)
{
    struct stat open_file;
    struct stat at_path;
    *is_at_path = false;
    if (dd_sys_fstat(member->fd, &open_file) != 0 || dd_sys_stat(member->absolute_path, &at_path) != 0) {
        bool is_missing = errno == ENOENT || errno == ESTALE;
        return is_missing ? DD_OK : failed(member, "stat the file", err);
    }
    *is_at_path = open_file.st_dev == at_path.st_dev && open_file.st_ino == at_path.st_ino;
    return DD_OK;
}

/* Build the three names of the member in one allocation. */
static dd_status
make_names(dd_file_member *member, const char *path, dd_error *err)
{
    char directory[PATH_MAX] = "";
    if (path[0] == '\0') {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "the path of a FileStore is empty");
    }
    if (path[0] != '/' && dd_sys_getcwd(directory, sizeof directory) == NULL) {
        return dd_error_set_errno(err, DD_SYSTEM, errno,
                                  "FileStore \"%s\": cannot read the working directory", path);
    }
    size_t path_size = strlen(path) + 1;
    size_t absolute_size = strlen(directory) + 1 + path_size;
    size_t where_size = sizeof "FileStore \"\"" + path_size;
    member->path = dd_mem_alloc(path_size + absolute_size + where_size);
    if (member->path == NULL) {
        return dd_error_no_memory(err, path_size + absolute_size + where_size);
    }
    member->absolute_path = member->path + path_size;
    member->where = member->absolute_path + absolute_size;
    memcpy(member->path, path, path_size);
    (void)snprintf(member->absolute_path, absolute_size, "%s%s%s", directory, directory[0] != '\0' ? "/" : "",
                   path);
    (void)snprintf(member->where, where_size, "FileStore \"%s\"", path);
    return DD_OK;
}

/* Open the file and lock its gate. *obstacle is set to why to try again, or NULL on success. */
static dd_status
try_enter(dd_file_member *member, const char **obstacle, dd_error *err)
{
    /* Mode 0600: keys and values may be secrets of the job. O_NOFOLLOW: in a directory that other
     * users can write to, a symbolic link could lead to any file of this user. */
    int fd = dd_sys_open(member->absolute_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW, 0600);
    if (fd < 0 && (errno == ENOENT || errno == EINTR || errno == ESTALE)) {
        *obstacle = errno == ENOENT  ? "the directory does not exist"
                    : errno == EINTR ? "signals keep interrupting open()"
                                     : "stale file handle (ESTALE)";
        return DD_OK;
    }
    if (fd < 0) {
        return failed(member,
                      errno == ELOOP ? "open a symbolic link; pass the path of its target" : "open the file",
                      err);
    }
    member->fd = dd_fork_register(fd);
    struct stat info;
    bool is_regular = dd_sys_fstat(fd, &info) != 0 || S_ISREG(info.st_mode);
    dd_status status = is_regular ? try_gate(member, obstacle, err)
                                  : dd_error_set(err, DD_STORE, "%s: not a regular file", member->where);
    bool is_at_path = true;
    if (status == DD_OK && *obstacle == NULL) {
        status = find_at_path(member, &is_at_path, err);
    }
    if (!is_at_path) {
        /* The last member of a job may have removed the file after open() and before the lock. */
        *obstacle = "other processes keep replacing the file";
    }
    if (status != DD_OK || *obstacle != NULL) {
        dd_fork_close(fd);
    }
    return status;
}

/* Return true if the content belongs to this job although no process has the file open: ranks that
 * started early have finished their work and left cleanly, and others have not joined yet. */
static bool
can_continue_run(dd_file_header_state state, const dd_file_header *header, int64_t world_size)
{
    return state == DD_FILE_HEADER_VALID && world_size >= 0 && header->world_size == world_size &&
           header->left == header->joined && header->joined < (uint64_t)world_size;
}

static dd_status
start_run(const dd_file_member *member, int64_t world_size, dd_file_header *header, dd_error *err)
{
    *header = (dd_file_header){.world_size = world_size};
    dd_status status = dd_auth_random(header->run_id, sizeof header->run_id, err);
    if (status != DD_OK) {
        return status;
    }
    return dd_file_member_cut(member, 0, err);
}

/* Check that the content of a file that other processes have open fits this job. */
static dd_status
check_live(const dd_file_member *member, dd_file_header_state state, int64_t world_size,
           dd_file_header *header, dd_error *err)
{
    if (state == DD_FILE_HEADER_VERSION) {
        return dd_error_set(err, DD_STORE, "%s: in use by a job with another version of dldist",
                            member->where);
    }
    if (state != DD_FILE_HEADER_VALID) {
        return dd_error_set(err, DD_STORE, "%s: damaged header, and other processes have the file open",
                            member->where);
    }
    if (world_size >= 0 && header->world_size >= 0 && header->world_size != world_size) {
        return dd_error_set(err, DD_STORE,
                            "%s: in use by a job with another world size: got %lld, expected %lld",
                            member->where, (long long)header->world_size, (long long)world_size);
    }
    if (header->world_size < 0) {
        header->world_size = world_size;
    }
    return DD_OK;
}

/* Keep or drop the file's content, and count this process as a member. The gate must be locked. */
static dd_status
join_locked(dd_file_member *member, int64_t world_size, dd_error *err)
{
    uint8_t bytes[DD_FILE_HEADER_BYTES];
    dd_bytes start;
    dd_status status = read_start(member, bytes, &start, err);
    if (status != DD_OK) {
        return status;
    }
    dd_file_header header = {.world_size = -1};
    dd_file_header_state state = dd_file_header_parse(start, &header);
    if (state == DD_FILE_HEADER_FOREIGN) {
        return dd_error_set(err, DD_STORE,
                            "%s: not empty, and not the file of a FileStore; it was left unchanged",
                            member->where);
    }
    lock_result alone = try_lock_byte(member->fd, LOCK_MEMBER, F_WRLCK);
    if (alone == LOCK_FAILED) {
        return failed(member, "lock the file", err);
    }
    if (alone == LOCK_BUSY) {
        status = check_live(member, state, world_size, &header, err);
    } else if (!can_continue_run(state, &header, world_size)) {
        DD_LOG(DD_LOG_INFO, "%s: starting a run, world size %lld%s", member->where, (long long)world_size,
               start.len > 0 ? "; dropped the data of an earlier run" : "");
        status = start_run(member, world_size, &header, err);
    }
    if (status != DD_OK) {
        return status;
    }
    header.joined++;
    if (header.world_size >= 0 && header.joined > (uint64_t)header.world_size) {
        DD_LOG(DD_LOG_INFO, "%s: member %llu of a job of %lld joined; was a rank restarted?", member->where,
               (unsigned long long)header.joined, (long long)header.world_size);
    }
    memcpy(member->run_id, header.run_id, sizeof member->run_id);
    status = write_header(member, &header, err);
    /* This lock cannot be busy: only a process that holds the gate locks this byte exclusively. */
    if (status == DD_OK && try_lock_byte(member->fd, LOCK_MEMBER, F_RDLCK) != LOCK_TAKEN) {
        status = failed(member, "lock the file", err);
    }
    return status;
}

/* Unlock explicitly, instead of by close(): a forked child may still have a copy of the descriptor.
 * Unlock the gate last, so that a process that opens the file does not find the lock of a member
 * that has left. */
static void
release_locks(const dd_file_member *member)
{
    (void)try_lock_byte(member->fd, LOCK_MEMBER, F_UNLCK);
    (void)!dd_file_member_unlock_gate(member, NULL);
}

dd_status
dd_file_member_join(dd_file_member *member, const char *path, int64_t world_size, const dd_wait *wait,
                    dd_error *err)
{
    *member = (dd_file_member){.fd = -1};
    dd_status status = make_names(member, path, err);
    if (status != DD_OK) {
        return status;
    }
    status = try_until(member, try_enter, "open", NULL, wait, err);
    if (status == DD_OK) {
        status = join_locked(member, world_size, err);
        if (status == DD_OK) {
            status = dd_file_member_unlock_gate(member, err);
        }
        if (status == DD_OK) {
            return DD_OK;
        }
        release_locks(member);
        dd_fork_close(member->fd);
    }
    dd_mem_free(member->path);
    return status;
}

/* Return true if all members have joined, and no other process has the file open. */
static bool
is_last(const dd_file_member *member, const dd_file_header *header)
{
    bool is_at_path;
    return header->world_size >= 0 && header->joined >= (uint64_t)header->world_size &&
           try_lock_byte(member->fd, LOCK_MEMBER, F_WRLCK) == LOCK_TAKEN &&
           find_at_path(member, &is_at_path, NULL) == DD_OK && is_at_path;
}

static void
count_out_locked(const dd_file_member *member, bool is_in_order)
{
    uint64_t size;
    uint8_t bytes[DD_FILE_HEADER_BYTES];
    dd_bytes start;
    dd_file_header header;
    if (dd_file_member_check(member, &size, NULL) != DD_OK ||
        read_start(member, bytes, &start, NULL) != DD_OK ||
        dd_file_header_parse(start, &header) != DD_FILE_HEADER_VALID) {
        return;
    }
    if (is_last(member, &header)) {
        (void)dd_sys_unlink(member->absolute_path);
    } else if (is_in_order) {
        header.left++;
        dd_error err;
        if (write_header(member, &header, &err) != DD_OK) {
            DD_LOG(DD_LOG_INFO, "%s", err.message);
        }
    }
}

void
dd_file_member_close(dd_file_member *member, bool is_in_order)
{
    dd_wait wait = dd_wait_after(CLOSE_TIMEOUT_NS);
    dd_error err;
    if (dd_file_member_lock_gate(member, "close", NULL, &wait, &err) == DD_OK) {
        count_out_locked(member, is_in_order);
    } else {
        DD_LOG(DD_LOG_INFO, "%s", err.message);
    }
    release_locks(member);
    dd_fork_close(member->fd);
    dd_mem_free(member->path);
}
