#include "core/dylib.h"

#include "core/bytes.h"
#include "core/mem.h"

#include <dlfcn.h>
#include <string.h>

/* Append text to a message. If there is no memory, the text is omitted. */
static void
dylib_append(dd_blob *text, const char *more)
{
    dd_status status = dd_blob_append(text, more, strlen(more), NULL);
    (void)status;
}

/* Append a failed attempt to the list of attempts for the error: "path: reason; path: reason". */
static void
dylib_note_failure(dd_blob *log, const char *name, const char *reason)
{
    dylib_append(log, log->len > 0 ? "; " : "");
    dylib_append(log, name);
    dylib_append(log, ": ");
    dylib_append(log, reason);
}

/* Return dlerror's text without the file name at its start, which the list already contains. */
static const char *
loader_reason(const char *name)
{
    const char *reason = dlerror();
    if (reason == NULL) {
        return "no reason given";
    }
    size_t len = strlen(name);
    return strncmp(reason, name, len) == 0 && strncmp(reason + len, ": ", 2) == 0 ? reason + len + 2 : reason;
}

/* Return the file that contains a function, or NULL if the loader does not know it. */
static const char *
file_of(const void *function)
{
    Dl_info info;
    return function != NULL && dladdr(function, &info) != 0 ? info.dli_fname : NULL;
}

static dd_status
dylib_take(const dd_dylib_spec *spec, void *handle, const char *name, dd_dylib *lib, dd_error *err)
{
    const char *path = file_of(dlsym(handle, spec->probe));
    path = path != NULL ? path : name;
    size_t size = strlen(path) + 1;
    lib->path = dd_mem_alloc(size);
    if (lib->path == NULL) {
        return dd_error_no_memory(err, size);
    }
    memcpy(lib->path, path, size);
    lib->handle = handle;
    return DD_OK;
}

static void *
try_open(const char *name, dd_blob *log)
{
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        dylib_note_failure(log, name, loader_reason(name));
    }
    return handle;
}

/* Find a copy that the process has already loaded, by its file name or by its symbols. */
static void *
find_loaded(const dd_dylib_spec *spec)
{
    for (size_t i = 0; spec->sonames[i] != NULL; i++) {
        void *handle = dlopen(spec->sonames[i], RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
        if (handle != NULL) {
            return handle;
        }
    }
    const char *path = file_of(dlsym(RTLD_DEFAULT, spec->probe));
    return path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD) : NULL;
}

static void *
find(const dd_dylib_spec *spec, const dd_dylib_search *search, const char **name, dd_blob *log)
{
    if (search->explicit_path != NULL && search->explicit_path[0] != '\0') {
        *name = search->explicit_path;
        return try_open(*name, log);
    }
    *name = spec->sonames[0] != NULL ? spec->sonames[0] : spec->label;
    void *handle = find_loaded(spec);
    if (handle != NULL) {
        return handle;
    }
    dylib_note_failure(log, *name, "not loaded in this process");
    for (size_t i = 0; i < search->ncandidates && handle == NULL; i++) {
        *name = search->candidates[i];
        handle = try_open(*name, log);
    }
    for (size_t i = 0; spec->sonames[i] != NULL && handle == NULL; i++) {
        *name = spec->sonames[i];
        handle = try_open(*name, log);
    }
    return handle;
}

static dd_status
open_library(const dd_dylib_spec *spec, const dd_dylib_search *search, dd_dylib *lib, dd_error *err)
{
    dd_blob log = {0};
    const char *name;
    void *handle = find(spec, search, &name, &log);
    dd_status status;
    if (handle != NULL) {
        status = dylib_take(spec, handle, name, lib, err);
    } else {
        status = dd_error_set(err, DD_NOT_SUPPORTED, "cannot load %s: %.*s", spec->label, (int)log.len,
                              log.len > 0 ? (const char *)log.data : "");
    }
    dd_blob_fini(&log);
    return status;
}

void
dd_dylib_fini(dd_dylib *lib)
{
    dd_mem_free(lib->path);
    *lib = (dd_dylib){0};
}

dd_status
dd_dylib_resolve(const dd_dylib *lib, const dd_dylib_symbol *symbols, size_t nsymbols, void *table,
                 dd_error *err)
{
    dd_blob missing = {0};
    size_t nmissing = 0;
    for (size_t i = 0; i < nsymbols; i++) {
        void *function = dlsym(lib->handle, symbols[i].name);
        memcpy((char *)table + symbols[i].offset, &function, sizeof function);
        if (function == NULL && !symbols[i].is_optional) {
            dylib_append(&missing, nmissing > 0 ? ", " : "");
            dylib_append(&missing, symbols[i].name);
            nmissing++;
        }
    }
    dd_status status = DD_OK;
    if (nmissing > 0) {
        status = dd_error_set(err, DD_NOT_SUPPORTED, "%s lacks %zu required functions: %.*s", lib->path,
                              nmissing, (int)missing.len, missing.len > 0 ? (const char *)missing.data : "");
    }
    dd_blob_fini(&missing);
    return status;
}

dd_status
dd_dylib_load(const dd_dylib_spec *spec, const dd_dylib_search *search, dd_dylib *lib, void *table, void *ctx,
              dd_error *err)
{
    static const dd_dylib_search anywhere = {0};
    dd_status status = open_library(spec, search != NULL ? search : &anywhere, lib, err);
    if (status != DD_OK) {
        return status;
    }
    dd_error missing;
    dd_status resolved = dd_dylib_resolve(lib, spec->symbols, spec->nsymbols, table, &missing);
    status = spec->check != NULL ? spec->check(ctx, err) : DD_OK;
    if (status == DD_OK && resolved != DD_OK) {
        status = dd_error_copy(err, &missing);
    }
    if (status != DD_OK) {
        dd_dylib_fini(lib);
    }
    return status;
}
