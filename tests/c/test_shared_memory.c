/* Sealed memory, also on kernels that lack some of its seals. */
#include "check.h"
#include "core/fork.h"
#include "core/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOEXEC_SEAL 8
#define SEAL_EXEC 0x20

/* Return the size of the memory; 0 if it is not sealed memory. */
static size_t
measure(int fd)
{
    size_t nbytes = 0;
    return dd_shared_memory_measure(fd, &nbytes, NULL) == DD_OK ? nbytes : 0;
}

TEST(the_size_of_shared_memory_cannot_be_changed)
{
    int fd = -1;
    REQUIRE_OK(dd_shared_memory_create("test", 12345, &fd, check_err()));
    CHECK_INT(measure(fd), 12345);
    CHECK(ftruncate(fd, 4096) != 0);
    CHECK(ftruncate(fd, 20000) != 0);
    int sealed = memfd_create("test", MFD_CLOEXEC | NOEXEC_SEAL);
    if (sealed >= 0) { /* since Linux 6.3 */
        CHECK((fcntl(fd, F_GET_SEALS) & SEAL_EXEC) != 0);
        close(sealed);
    }
    dd_fork_close(fd);
}

TEST(invalid_shared_memory_is_refused)
{
    size_t nbytes = 0;
    CHECK_STATUS(dd_shared_memory_measure(-1, &nbytes, check_err()), DD_PROTOCOL);
    int plain = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(plain >= 0 && ftruncate(plain, 4096) == 0);
    CHECK_STATUS(dd_shared_memory_measure(plain, &nbytes, check_err()), DD_PROTOCOL);
    close(plain);
}

/* Make memfd_create fail with `error` from now on if its flags contain `flag`. Return false if
 * seccomp filters are not available. */
static bool
refuse_flag(unsigned flag, int error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, flag, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static int
create_in_child(unsigned flag, int error, dd_status expected)
{
    pid_t pid = fork();
    if (pid == 0) {
        int fd = -1;
        dd_error err;
        if (refuse_flag(flag, error)) {
            CHECK_STATUS(dd_shared_memory_create("test", 4096, &fd, &err), expected);
            CHECK(expected == DD_OK
                      ? measure(fd) == 4096
                      : strstr(err.message, "memfd_create failed; a sandbox may forbid it") != NULL);
        }
        _exit(check_failures() > 0);
    }
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

TEST(shared_memory_is_created_on_an_old_kernel)
{
    CHECK_INT(create_in_child(NOEXEC_SEAL, EINVAL, DD_OK), 0);
    CHECK_INT(create_in_child(MFD_CLOEXEC, EPERM, DD_SYSTEM), 0);
}
