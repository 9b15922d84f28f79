/* Loading of shared libraries at run time. If the user gives an explicit path, only that file is
 * tried. Otherwise the order is: a copy that the process has already loaded, the given files, the
 * system loader's search by name. An error lists all attempts and the reason of each failure. */
#ifndef DD_CORE_DYLIB_H
#define DD_CORE_DYLIB_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

/* The places to search for a library. */
typedef struct dd_dylib_search {
    const char *explicit_path;     /* only this file is tried, unless it is NULL or "" */
    const char *const *candidates; /* files to try if the process has not loaded a copy */
    size_t ncandidates;
} dd_dylib_search;

typedef struct dd_dylib {
    void *handle; /* handle of dlopen; never closed, because the library may have threads */
    char *path;   /* path of the loaded file, as the loader knows it; owned */
} dd_dylib;

/* A symbol to load, and the place in the table for its address. */
typedef struct dd_dylib_symbol {
    const char *name;
    size_t offset; /* offset of the function pointer in the table, in bytes */
    bool is_optional;
} dd_dylib_symbol;

/* A library to load, and the functions to load from it. */
typedef struct dd_dylib_spec {
    const char *label; /* name of the library for messages, such as "NCCL" */
    /* File names such as "libnccl.so.2", ended by NULL. They are looked up among the loaded
     * libraries first, and by the system loader last. */
    const char *sonames[5];
    /* A function of the library. If the process has loaded the library with global symbols, this
     * function identifies that copy, whatever its file's name. */
    const char *probe;
    const dd_dylib_symbol *symbols;
    size_t nsymbols;
    /* Check the library's version. `lib` and the table are filled, but functions may be missing: if
     * the library is too old, an error about its version explains more. NULL if any version will
     * do. */
    dd_status (*check)(void *ctx, dd_error *err);
} dd_dylib_spec;

/* Find a library, fill a table of function pointers, and check the library's version. `search` is
 * NULL if the user has given no places. Return DD_NOT_SUPPORTED if the library is not found, or the
 * status of dd_dylib_resolve or of the check; on failure `lib` is empty. */
dd_status dd_dylib_load(const dd_dylib_spec *spec, const dd_dylib_search *search, dd_dylib *lib, void *table,
                        void *ctx, dd_error *err) DD_MUST_CHECK;
/* Free the record of the library; the library itself stays loaded. */
void dd_dylib_fini(dd_dylib *lib);

/* Fill a table of function pointers. DD_NOT_SUPPORTED names the library and all missing symbols.
 * The pointers of missing optional symbols are set to NULL. */
dd_status dd_dylib_resolve(const dd_dylib *lib, const dd_dylib_symbol *symbols, size_t nsymbols, void *table,
                           dd_error *err) DD_MUST_CHECK;

#endif
