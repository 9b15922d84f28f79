/* Loading of shared libraries at run time. If the user gives an explicit path, only that file is
 * tried. Otherwise, the order is: a copy that the process has already loaded, the given files, the
 * system loader's search by name. An error lists each attempt with the reason of its failure. */
#ifndef DD_CORE_DYLIB_H
#define DD_CORE_DYLIB_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Where to search for a library. */
typedef struct dd_dylib_search {
    const char *explicit_path;     /* the only file to try, unless NULL or "" */
    const char *const *candidates; /* paths of files to try if no copy of the library is loaded */
    size_t ncandidates;
} dd_dylib_search;

typedef struct dd_dylib {
    void *handle; /* handle from dlopen; never closed, because the library may have threads */
    char *path;   /* path of the loaded file as reported by the loader; owned */
} dd_dylib;

/* A symbol to load, and where to store its address in a table of function pointers. */
typedef struct dd_dylib_symbol {
    const char *name;
    size_t offset; /* offset in bytes of the function pointer in the table */
    bool is_optional;
} dd_dylib_symbol;

/* A library to load, and the symbols to load from it. */
typedef struct dd_dylib_spec {
    const char *label; /* name of the library for messages, such as "NCCL" */
    /* File names such as "libnccl.so.2", ended by NULL. They are looked up among the loaded
     * libraries first, and by the system loader last. */
    const char *sonames[5];
    /* Name of a function of the library. If the process has loaded the library with global symbols,
     * this function identifies that copy, whatever the name of its file. */
    const char *probe;
    const dd_dylib_symbol *symbols;
    size_t nsymbols;
    /* Check the library's version. The library is loaded and the table filled, but functions may be
     * missing: for a library that is too old, an error about its version says more. NULL if any
     * version is accepted. */
    dd_status (*check)(void *ctx, dd_error *err);
} dd_dylib_spec;

/* Find a library, fill a table of function pointers, and check the library's version. `search` is
 * NULL if the user has given no paths. Return DD_NOT_SUPPORTED if the library is not found, or the
 * status of dd_dylib_resolve or spec->check. On failure, `lib` is empty. */
dd_status dd_dylib_load(const dd_dylib_spec *spec, const dd_dylib_search *search, dd_dylib *lib, void *table,
                        void *ctx, dd_error *err) DD_MUST_CHECK;
/* Free the strings of `lib`. The library itself stays loaded. */
void dd_dylib_fini(dd_dylib *lib);

/* Fill a table of function pointers. The pointers of missing optional symbols are set to NULL. If
 * other symbols are missing, return DD_NOT_SUPPORTED, which names the library and these symbols. */
dd_status dd_dylib_resolve(const dd_dylib *lib, const dd_dylib_symbol *symbols, size_t nsymbols, void *table,
                           dd_error *err) DD_MUST_CHECK;

#endif
