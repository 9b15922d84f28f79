/* Memory behind a descriptor, to be mapped by several processes: a memfd that can neither shrink, so that
 * nobody who has mapped it is killed by SIGBUS, nor grow nor be executed. */
#ifndef DD_CORE_SHARED_MEMORY_H
#define DD_CORE_SHARED_MEMORY_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

/* `name` is what /proc/<pid>/maps shows. The memory is zeroed and takes no room until it is touched. *fd is
 * the caller's, to be closed by dd_fork_close. The message says which call has failed and what to do; callers
 * prepend what the memory was for. */
dd_status dd_shared_memory_create(const char *name, size_t nbytes, int *fd, dd_error *err) DD_MUST_CHECK;

/* The size of such memory of another process, which may have sent anything: DD_PROTOCOL when the descriptor is something
 * else, DD_SYSTEM when this process cannot tell. */
dd_status dd_shared_memory_measure(int fd, size_t *nbytes, dd_error *err) DD_MUST_CHECK;

#endif
