/* Read before every file under clang-tidy only. The analyzer looks at one file at a time, so it has to be told what
 * status.h promises: these functions return the code they are given, which is never DD_OK. */
#include "core/status.h"

#define dd_error_set(err, code, ...) (dd_error_set(err, code, __VA_ARGS__), (code))
#define dd_error_set_errno(err, code, ...) (dd_error_set_errno(err, code, __VA_ARGS__), (code))
#define dd_error_no_memory(err, nbytes) (dd_error_no_memory(err, nbytes), DD_OUT_OF_MEMORY)
