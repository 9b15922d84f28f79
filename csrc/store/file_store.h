/* A store in one file that processes share, for jobs of one host or with a network file system. A process that opens the file reads
 * everything that earlier processes have left there (docs/file-store.md). */
#ifndef DD_STORE_FILE_STORE_H
#define DD_STORE_FILE_STORE_H

#include "store/store.h"

/* world_size < 0 if unknown: the file stays. Else the last process to close it removes it, once this many have closed it. */
typedef struct dd_file_store_options {
    const char *path;
    int64_t world_size;
    int64_t timeout_ns;
} dd_file_store_options;

/* Creates the file if needed; waits for a directory that is not there yet, and for locks, until the deadline. */
dd_status dd_file_store_open(dd_store **store, const dd_file_store_options *options, const dd_wait *wait,
                             dd_error *err) DD_MUST_CHECK;
const char *dd_file_store_path(dd_store *store); /* borrowed */

#endif
