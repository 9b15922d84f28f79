/* Loading of a shared library at run time. The search order: an explicit path, and then nothing
 * else; a copy that the process has already loaded; given files; the system loader's search by
 * name. An error lists all attempts and the reason of each failure. */
#ifndef DD_CORE_DYLIB_H
#define DD_CORE_DYLIB_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

/* The library's location, given by the user. */
typedef struct dd_dylib_search {
    const char *explicit_path;     /* NULL or "" if there is none; otherwise only this is tried */
    const char *const *candidates; /* files to try after a loaded copy */
    size_t ncandidates;
} dd_dylib_search;

typedef struct dd_dylib {
    void *handle; /* never closed: the library may have threads */
    char *path;   /* path of the file as the loader knows it; owned */
} dd_dylib;

/* A symbol, and the place of its address. */
typedef struct dd_dylib_symbol {
    const char *name;
    size_t offset; /* of the function pointer in the table */
    bool is_optional;
} dd_dylib_symbol;

/* A library, and the functions to load from it. */
typedef struct dd_dylib_spec {
    const char *what; /* name for messages, such as "NCCL" */
    /* such as "libnccl.so.2": a loaded copy is tried first, the system loader last; NULL ends it */
    const char *sonames[5];
    /* a function that identifies a loaded copy with global symbols, whatever its file's name */
    const char *probe;
    const dd_dylib_symbol *symbols;
    size_t nsymbols;
    /* Check the version. `lib` and the table are filled, but functions may be missing: for an older
     * library the version is the better error. NULL if any version will do. */
    dd_status (*check)(void *ctx, dd_error *err);
} dd_dylib_spec;

/* Find a library, fill a table of function pointers, and check its version. `place` is NULL if the
 * user has given none. DD_NOT_SUPPORTED if it is not found, or the status of dd_dylib_resolve or
 * the check; `lib` is then empty. */
dd_status dd_dylib_load(const dd_dylib_spec *spec, const dd_dylib_search *place, dd_dylib *lib, void *table,
                        void *ctx, dd_error *err) DD_MUST_CHECK;
/* Free the record; the library stays loaded. */
void dd_dylib_fini(dd_dylib *lib);

/* Fill a table of function pointers. DD_NOT_SUPPORTED names the library and all missing symbols.
 * Missing optional ones are set to NULL. */
dd_status dd_dylib_resolve(const dd_dylib *lib, const dd_dylib_symbol *symbols, size_t nsymbols, void *table,
                           dd_error *err) DD_MUST_CHECK;

#endif
