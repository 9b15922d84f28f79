#include "core/shared_memory.h"

#include "core/fork.h"
#include "core/system.h"

#include <errno.h>

/* missing from the headers of old systems */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static dd_status
error_of(const char *call, int sys_errno, dd_error *err)
{
    bool is_forbidden = sys_errno == EPERM || sys_errno == EACCES || sys_errno == ENOSYS;
    bool is_full = sys_errno == EMFILE || sys_errno == ENFILE;
    const char *advice = is_forbidden ? "a sandbox may forbid it: allow the call, or use ordinary memory"
                         : is_full    ? "raise the limit of open files, ulimit -n"
                                      : "memory is short, or limited";
    return dd_error_set_errno(err, sys_errno == ENOMEM ? DD_OUT_OF_MEMORY : DD_SYSTEM, sys_errno,
                              "%s failed; %s", call, advice);
}

/* Create a memfd. Since 6.3, kernels log a warning for a memfd that may be executable, so set
 * MFD_NOEXEC_SEAL; older kernels reject this flag. */
static int
create_memfd(const char *name)
{
    int fd = dd_sys_memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    return fd < 0 && errno == EINVAL ? dd_sys_memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING) : fd;
}

dd_status
dd_shared_memory_create(const char *name, size_t nbytes, int *fd, dd_error *err)
{
    int new_fd = dd_fork_register(create_memfd(name));
    if (new_fd < 0) {
        return error_of("memfd_create", errno, err);
    }
    const char *call = "ftruncate";
    int rc;
    do {
        rc = dd_sys_ftruncate(new_fd, (off_t)nbytes);
    } while (rc != 0 && errno == EINTR);
    if (rc == 0) {
        call = "sealing";
        if (dd_sys_fcntl(new_fd, F_ADD_SEALS, SEALS) == 0) {
            *fd = new_fd;
            return DD_OK;
        }
    }
    int sys_errno = errno;
    dd_fork_close(new_fd);
    return error_of(call, sys_errno, err);
}

dd_status
dd_shared_memory_measure(int fd, size_t *nbytes, dd_error *err)
{
    struct stat info;
    int seals = dd_sys_fcntl(fd, F_GET_SEALS, 0);
    bool is_known = seals >= 0 && dd_sys_fstat(fd, &info) == 0;
    /* EINVAL means a file that cannot have seals, EBADF a descriptor that is not open. */
    if (!is_known && errno != EINVAL && errno != EBADF) {
        return dd_error_set_errno(err, DD_SYSTEM, errno,
                                  "cannot read the size and the seals of shared memory");
    }
    if (!is_known || (seals & SEALS) != SEALS || info.st_size <= 0) {
        return dd_error_set(err, DD_PROTOCOL, "a descriptor received as shared memory is not a sealed memfd");
    }
    *nbytes = (size_t)info.st_size;
    return DD_OK;
}
