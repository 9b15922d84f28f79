/* Memory behind a descriptor, mapped by several processes: a memfd that cannot shrink (which would
 * kill a process that has mapped it by SIGBUS), grow or be executed. */
#ifndef DD_CORE_SHARED_MEMORY_H
#define DD_CORE_SHARED_MEMORY_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Create shared memory. `name` is shown in /proc/<pid>/maps. The memory is zeroed and uses none
 * until it is touched. The caller owns *fd and must close it by dd_fork_close. The error names the
 * failed call and a remedy; callers prepend the purpose of the memory. */
dd_status dd_shared_memory_create(const char *name, size_t nbytes, int *fd, dd_error *err) DD_MUST_CHECK;

/* Get the size of shared memory received from another process, whose descriptor may be anything:
 * DD_PROTOCOL if it is not such memory, DD_SYSTEM if this process cannot determine it. */
dd_status dd_shared_memory_measure(int fd, size_t *nbytes, dd_error *err) DD_MUST_CHECK;

#endif
