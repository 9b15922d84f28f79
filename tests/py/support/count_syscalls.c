/* count_syscalls FILE PROGRAM ARGUMENTS...: run the program and count its system calls in the file,
 * a syscall_counter, which the program can map. Exit with the program's status, or with 77 and a
 * reason if counting is refused. */
#include "syscall_counter.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int
run_program(void *arg)
{
    char **argv = arg;
    execvp(argv[0], argv);
    perror(argv[0]);
    return 127;
}

int
main(int argc, char **argv)
{
    int status = 0;
    int fd = argc > 2 ? open(argv[1], O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd < 0 || ftruncate(fd, sizeof(syscall_counter)) != 0) {
        fprintf(stderr, "usage: count_syscalls FILE PROGRAM ARGUMENTS...\n");
        return 2;
    }
    syscall_counter *counter = mmap(NULL, sizeof *counter, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (counter == MAP_FAILED) {
        perror("mmap");
        return 2;
    }
    if (!syscall_counter_run(counter, run_program, argv + 2, &status)) {
        fprintf(stderr, "ptrace: %s\n", strerror(errno));
        return 77;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
