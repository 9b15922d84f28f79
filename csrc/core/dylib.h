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

typedef struct dd_dylib {
    void *handle; /* never closed: what is loaded may have threads */
    char *path;   /* owned; of the file, as the loader knows it */
} dd_dylib;

/* One symbol and where its address goes. */
typedef struct dd_dylib_symbol {
    const char *name;
    size_t offset; /* of the function pointer in the table */
    bool is_optional;
} dd_dylib_symbol;

/* A library, and the functions that are needed of it. */
typedef struct dd_dylib_spec {
    const char *what; /* "NCCL", for messages */
    const char
        *sonames[5]; /* "libnccl.so.2": tried in the process first, by the loader last; NULL after the last */
    const char
        *probe; /* a function that tells a copy whose symbols are visible to all, whatever its file's name */
    const dd_dylib_symbol *symbols;
    size_t nsymbols;
    /* Checks the version, with `lib` and the table filled, where functions may be missing: of an older library the version says more than a
     * list of missing functions. NULL if any version will do. */
    dd_status (*check)(void *ctx, dd_error *err);
} dd_dylib_spec;

/* Find a library, fill a table of function pointers, and check its version. `place` is NULL if the user has named none. DD_NOT_SUPPORTED if there
 * is none, and whatever dd_dylib_resolve and the check return; `lib` is empty then. */
dd_status dd_dylib_load(const dd_dylib_spec *spec, const dd_dylib_place *place, dd_dylib *lib, void *table,
                        void *ctx, dd_error *err) DD_MUST_CHECK;
/* Frees the record; the library stays loaded. */
void dd_dylib_fini(dd_dylib *lib);

/* Fills a table of function pointers. DD_NOT_SUPPORTED names the library and all the symbols that it lacks; optional ones are NULL
 * then. */
dd_status dd_dylib_resolve(const dd_dylib *lib, const dd_dylib_symbol *symbols, size_t nsymbols, void *table,
                           dd_error *err) DD_MUST_CHECK;

#endif
