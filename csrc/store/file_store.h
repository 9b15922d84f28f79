/* A store in one file that processes share, for jobs on one host or on a network file system.
 *
 * Ownership of the content (full rules: docs/contributing/file-store.md): an open FileStore holds a
 * shared lock on the file's member byte, which the kernel releases when the process ends. A process
 * that opens the file and finds no other holder decides whether the previous job has finished. The
 * job has finished, unless all its members left cleanly and fewer than world_size have joined. The
 * content of a finished job is dropped unread. */
#ifndef DD_STORE_FILE_STORE_H
#define DD_STORE_FILE_STORE_H

#include "store/store.h"

/* If world_size is negative, the number of processes is unknown, and the content belongs to the
 * processes that have the file open. Otherwise, once world_size members have joined and all have
 * left, the last one removes the file. */
typedef struct dd_file_store_options {
    const char *path;
    int64_t world_size;
    int64_t timeout_ns;
} dd_file_store_options;

/* Open or create the file. Blocks until the directory exists and the locks are free. */
dd_status dd_file_store_open(dd_store **store, const dd_file_store_options *options, const dd_wait *wait,
                             dd_error *err) DD_MUST_CHECK;
const char *dd_file_store_path(dd_store *store); /* borrowed from the store */

#endif
