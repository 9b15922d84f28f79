/* A store in one file that processes share, for jobs of one host or with a network file system.
 *
 * Whose content a file holds (docs/file-store.md has the whole rule): an open FileStore holds a shared lock on the
 * file's member byte, which the kernel drops when the process ends, however it ends. A process that opens the file
 * and finds no other holder decides whether the job in it is over: it is, unless all who joined left in order
 * and fewer than world_size have come yet. The content of a job that is over is dropped unread. */
#ifndef DD_STORE_FILE_STORE_H
#define DD_STORE_FILE_STORE_H

#include "store/store.h"

/* world_size < 0: not known; the file then belongs to those who have it open. When world_size have joined and all
 * have left, the last removes the file. */
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
