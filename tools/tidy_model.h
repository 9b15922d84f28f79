/* Included before every file, only under clang-tidy. The analyzer sees one file at a time, so it
 * needs the contract of status.h: these functions return their `code` argument, which is never
 * DD_OK. */
#include "core/status.h"

#define dd_error_set(err, code, ...) (dd_error_set(err, code, __VA_ARGS__), (code))
#define dd_error_set_errno(err, code, ...) (dd_error_set_errno(err, code, __VA_ARGS__), (code))
#define dd_error_no_memory(err, nbytes) (dd_error_no_memory(err, nbytes), DD_OUT_OF_MEMORY)
