/* Finding a shared library at run time.
 *
 * The order: the path that the caller insists on, and then nothing else; a copy that is in the process already, so that its users
 * share it; given files; what the system's loader finds by name. An error lists everything that was tried and why it failed. */
#ifndef DD_CORE_DYLIB_H
#define DD_CORE_DYLIB_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Where the user has it. */
typedef struct dd_dylib_place {
    const char *explicit_path;     /* NULL or "": none. Nothing else is tried otherwise */
    const char *const *candidates; /* files to try after what is in the process already */
    size_t ncandidates;
} dd_dylib_place;

typedef struct dd_dylib_search {
    const char *what;           /* "NCCL", for messages */
    const char *const *sonames; /* "libnccl.so.2": asked of the process first, of the loader last */
    size_t nsonames;
    const char
        *probe; /* a function that tells a copy whose symbols are visible to all, whatever its file's name */
    const dd_dylib_place *place;
} dd_dylib_search;

typedef struct dd_dylib {
    void *handle; /* never closed: what is loaded may have threads */
    char *path;   /* owned; of the file, as the loader knows it */
} dd_dylib;

/* DD_NOT_SUPPORTED when there is none. */
dd_status dd_dylib_open(const dd_dylib_search *search, dd_dylib *lib, dd_error *err) DD_MUST_CHECK;
/* Frees the record; the library stays loaded. */
void dd_dylib_fini(dd_dylib *lib);

/* One symbol and where its address goes. */
typedef struct dd_dylib_symbol {
    const char *name;
    size_t offset; /* of the function pointer in the table */
    bool is_optional;
} dd_dylib_symbol;

/* Fills a table of function pointers. DD_NOT_SUPPORTED names the library and all the symbols that it lacks; optional ones are NULL
 * then. */
dd_status dd_dylib_resolve(const dd_dylib *lib, const dd_dylib_symbol *symbols, size_t nsymbols, void *table,
                           dd_error *err) DD_MUST_CHECK;

#endif
