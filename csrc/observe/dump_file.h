/* Dumps into files, without an interpreter. */
#ifndef DD_OBSERVE_DUMP_FILE_H
#define DD_OBSERVE_DUMP_FILE_H

#include "observe/recorder.h"

/* Writes a dump to `path`, whose folders are made if need be: under another name first, so that a reader
 * finds a whole file, and replaces what was there before. File and folders are private to the user; links
 * that lead elsewhere are replaced, not followed. DD_SYSTEM when it cannot be written. */
dd_status dd_recorder_dump_to_file(dd_recorder *recorder, const dd_dump_options *options, const char *path,
                                   dd_error *err) DD_MUST_CHECK;

#endif
