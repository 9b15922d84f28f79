/* Memory behind a descriptor, which several processes map: a memfd that cannot grow, shrink or be
 * executed. (If it shrank, the processes that have mapped it could be killed by SIGBUS.) */
#ifndef DD_CORE_SHARED_MEMORY_H
#define DD_CORE_SHARED_MEMORY_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Create zeroed shared memory, which uses no physical memory until it is touched. `name` is shown
 * in /proc/<pid>/maps. The caller owns *fd and must close it with dd_fork_close. The error names
 * the failed system call and a remedy; callers should prepend what the memory is for. */
dd_status dd_shared_memory_create(const char *name, size_t nbytes, int *fd, dd_error *err) DD_MUST_CHECK;

/* Get the size in bytes of shared memory whose descriptor another process has sent. Return
 * DD_PROTOCOL if the descriptor is not a sealed memfd, DD_SYSTEM if the kernel does not let this
 * process check it. */
dd_status dd_shared_memory_measure(int fd, size_t *nbytes, dd_error *err) DD_MUST_CHECK;

#endif
