#include "table.h"
#include "faults/faults.h"

#include <errno.h>

/* From sections 2, 3 and 7 (tcp, ip, unix) of the manual. EPERM and SANDBOX_ERRORS are added where
 * a page lacks them: sandboxes return them. */
#define PATH_ERRORS EACCES, ELOOP, ENAMETOOLONG, ENOENT, ENOMEM, ENOTDIR
#define NO_DESCRIPTORS EMFILE, ENFILE, ENOMEM
#define SPACE_ERRORS EDQUOT, ENOSPC, EROFS
#define SANDBOX_ERRORS ENOSYS, EINVAL, EOPNOTSUPP, EIO
#define SEND_ERRORS                                                                                     \
    EACCES, EAGAIN, ECONNREFUSED, ECONNRESET, EHOSTUNREACH, EINTR, ENETUNREACH, ENOBUFS, ENOMEM, EPERM, \
        EPIPE, ETIMEDOUT, SANDBOX_ERRORS
#define RECEIVE_ERRORS \
    EAGAIN, ECONNREFUSED, ECONNRESET, EHOSTUNREACH, EINTR, ENOMEM, EPERM, ETIMEDOUT, SANDBOX_ERRORS
#define READ_ERRORS EAGAIN, ECONNRESET, EINTR, EIO, EISDIR
#define WRITE_ERRORS EAGAIN, EDQUOT, EFBIG, EINTR, EIO, ENOSPC, EPERM, EPIPE

static const int table[DD_SYS_CALL_COUNT][ERRORS_OF_A_CALL_MAX] = {
    [DD_SYS_open] = {PATH_ERRORS, SPACE_ERRORS, EBUSY, EEXIST, EFBIG, EINTR, EISDIR, EMFILE, ENFILE, ENODEV,
                     ENXIO, EOVERFLOW, EPERM, ETXTBSY},
    [DD_SYS_fcntl] = {EBUSY, EPERM},
    [DD_SYS_dup3] = {EBUSY, EINTR, EMFILE},
    [DD_SYS_eventfd] = {NO_DESCRIPTORS, ENODEV, EPERM},
    [DD_SYS_read] = {READ_ERRORS},
    [DD_SYS_write] = {WRITE_ERRORS},
    [DD_SYS_pread] = {EINTR, EIO, ENXIO, EOVERFLOW, ESPIPE},
    [DD_SYS_pwrite] = {EDQUOT, EFBIG, EINTR, EIO, ENOSPC, EPERM},
    [DD_SYS_ftruncate] = {EACCES, EFBIG, EINTR, EINVAL, EIO, EPERM, EROFS, ETXTBSY},
    [DD_SYS_fstat] = {ENOMEM, EOVERFLOW, EIO},
    [DD_SYS_stat] = {PATH_ERRORS, EOVERFLOW},
    [DD_SYS_lstat] = {PATH_ERRORS, EOVERFLOW},
    [DD_SYS_mkdir] = {PATH_ERRORS, SPACE_ERRORS, EMLINK, EPERM},
    [DD_SYS_mkfifo] = {PATH_ERRORS, SPACE_ERRORS, EEXIST, EPERM},
    [DD_SYS_mkostemp] = {PATH_ERRORS, SPACE_ERRORS, EEXIST, EMFILE, ENFILE, EPERM},
    [DD_SYS_rename] = {PATH_ERRORS, SPACE_ERRORS, EBUSY, EEXIST, EISDIR, EMLINK, ENOTEMPTY, EPERM, EXDEV},
    [DD_SYS_unlink] = {PATH_ERRORS, EBUSY, EIO, EISDIR, EPERM, EROFS},
    [DD_SYS_memfd_create] = {NO_DESCRIPTORS, EINVAL, ENOSYS, EPERM},
    [DD_SYS_mmap] = {EACCES, EAGAIN, ENFILE, ENODEV, ENOMEM, EOVERFLOW, EPERM, ETXTBSY},
    [DD_SYS_mremap] = {EAGAIN, EINVAL, ENOMEM},
    [DD_SYS_madvise] = {EACCES, EAGAIN, EBUSY, EINVAL, EIO, ENOMEM, EPERM},
    [DD_SYS_socket] = {EACCES, EAFNOSUPPORT, ENOBUFS, EPERM, EPROTONOSUPPORT, NO_DESCRIPTORS},
    [DD_SYS_bind] = {PATH_ERRORS, EADDRINUSE, EADDRNOTAVAIL, EPERM, EROFS},
    [DD_SYS_listen] = {EADDRINUSE, EOPNOTSUPP, EPERM},
    [DD_SYS_accept4] = {EAGAIN, ECONNABORTED, EINTR, ENOBUFS, EPERM, EPROTO, ETIMEDOUT, ENETDOWN, ENOPROTOOPT,
                        EHOSTDOWN, ENONET, EHOSTUNREACH, EOPNOTSUPP, ENETUNREACH, NO_DESCRIPTORS},
    [DD_SYS_connect] = {EACCES, EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT, EAGAIN, ECONNREFUSED, ECONNRESET,
                        EHOSTUNREACH, ENETUNREACH, ENOENT, ENOBUFS, EPERM, EPROTOTYPE, ETIMEDOUT},
    [DD_SYS_send] = {SEND_ERRORS},
    [DD_SYS_recv] = {RECEIVE_ERRORS},
    [DD_SYS_sendmsg] = {SEND_ERRORS},
    [DD_SYS_recvmsg] = {RECEIVE_ERRORS},
    [DD_SYS_sendto] = {SEND_ERRORS, ENOENT},
    [DD_SYS_getsockopt] = {ENOPROTOOPT, ENOMEM, EPERM},
    [DD_SYS_setsockopt] = {ENOPROTOOPT, ENOMEM, EPERM, ENOENT},
    [DD_SYS_getsockname] = {ENOBUFS},
    [DD_SYS_getpeername] = {ENOBUFS, ENOTCONN},
    [DD_SYS_ioctl] = {ENOTTY, EPERM},
    [DD_SYS_getifaddrs] = {EACCES, EMFILE, ENFILE, ENOBUFS, ENOMEM, EAFNOSUPPORT},
    [DD_SYS_poll] = {EINTR, ENOMEM},
    [DD_SYS_ppoll] = {EINTR, ENOMEM},
    [DD_SYS_epoll_create1] = {NO_DESCRIPTORS, EPERM},
    [DD_SYS_epoll_ctl] = {EEXIST, ENOENT, ENOMEM, ENOSPC, EPERM},
    [DD_SYS_epoll_wait] = {EINTR},
    [DD_SYS_gethostname] = {ENAMETOOLONG, EPERM},
    [DD_SYS_getrandom] = {EAGAIN, EINTR, ENOSYS, EPERM},
    [DD_SYS_getaddrinfo] = {EAGAIN, EMFILE, ENFILE, ENOMEM, EIO},
    [DD_SYS_getcwd] = {EACCES, ENOENT, ENOMEM, ENAMETOOLONG},
    [DD_SYS_lock_file] = {EINTR, EIO, ENOLCK, EOPNOTSUPP},
    [DD_SYS_get_file_limit] = {EPERM},
};

#define CALLS_END ((dd_sys_call)DD_SYS_CALL_COUNT)

static bool
is_listed(dd_sys_call call, const dd_sys_call *calls)
{
    for (; *calls != CALLS_END; calls++) {
        if (*calls == call) {
            return true;
        }
    }
    return false;
}

static bool
is_among(int error_number, const int *errors)
{
    for (; *errors != 0; errors++) {
        if (*errors == error_number) {
            return true;
        }
    }
    return false;
}

const int *
errors_of(dd_sys_call call)
{
    return table[call];
}

bool
is_error_ignored(dd_sys_call call, int error_number)
{
    static const dd_sys_call transfers[] = {DD_SYS_read,    DD_SYS_send,   DD_SYS_recv,    DD_SYS_sendmsg,
                                            DD_SYS_recvmsg, DD_SYS_sendto, DD_SYS_accept4, CALLS_END};
    return error_number == EINTR || (error_number == EAGAIN && is_listed(call, transfers));
}

bool
is_error_lasting(dd_sys_call call, int error_number)
{
    /* These calls need no scarce resource, and sandboxes that allow the socket allow them. */
    static const dd_sys_call modest[] = {DD_SYS_send,        DD_SYS_recv,        DD_SYS_recvmsg,
                                         DD_SYS_poll,        DD_SYS_ppoll,       DD_SYS_getsockopt,
                                         DD_SYS_getsockname, DD_SYS_getpeername, DD_SYS_fstat,
                                         DD_SYS_epoll_wait,  CALLS_END};
    static const int errors[] = {EMFILE, ENFILE, ENOMEM, ENOBUFS, ENOSPC, EDQUOT,
                                 EPERM,  EACCES, EROFS,  ENOSYS,  0};
    return is_among(error_number, errors) && !is_listed(call, modest);
}

bool
is_error_of_peer(int error_number)
{
    static const int errors[] = {ECONNRESET,  EPIPE,        ETIMEDOUT, ECONNREFUSED, EHOSTUNREACH,
                                 ENETUNREACH, ECONNABORTED, ENOTCONN,  EHOSTDOWN,    0};
    return is_among(error_number, errors);
}
