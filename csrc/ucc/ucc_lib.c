#include "core/mem.h"
#include "ucc/ucc.h"
#include "ucc/ucc_internal.h"

#include <stdarg.h>
#include <stdio.h>

#define UCC_SYMBOL(name, returns, params) {#name, offsetof(dd_ucc_api, name), false},

static const dd_dylib_symbol UCC_SYMBOLS[] = {
    DD_UCC_FUNCTIONS(UCC_SYMBOL){"ucc_get_version", offsetof(dd_ucc_api, ucc_get_version), true}};

dd_status
dd_ucc_check(const dd_ucc_lib *lib, dd_ucc_status ucc_status, dd_error *err, const char *label, ...)
{
    if ((int)ucc_status >= 0) {
        return DD_OK;
    }
    char call[192];
    va_list args;
    va_start(args, label);
    (void)vsnprintf(call, sizeof call, label, args);
    va_end(args);
    bool is_unsupported = ucc_status == DD_UCC_ERR_NOT_SUPPORTED || ucc_status == DD_UCC_ERR_NOT_IMPLEMENTED;
    return dd_error_set(err, is_unsupported ? DD_NOT_SUPPORTED : DD_BACKEND,
                        "%s: %s (%d), reported by %s (%s)", call, lib->api.ucc_status_string(ucc_status),
                        (int)ucc_status, lib->version, lib->dylib.path);
}

/* Reject unsupported versions, for which UCC itself only logs a warning. */
static dd_status
check_version(void *ctx, dd_error *err)
{
    dd_ucc_lib *lib = ctx;
    if (lib->api.ucc_get_version == NULL) {
        return dd_error_set(err, DD_NOT_SUPPORTED,
                            "%s is too old: it lacks ucc_get_version, expected UCC %d.%d or newer",
                            lib->dylib.path, DD_UCC_MAJOR, DD_UCC_MINOR_MIN);
    }
    unsigned major = 0;
    unsigned minor = 0;
    unsigned release = 0;
    lib->api.ucc_get_version(&major, &minor, &release);
    if (major != DD_UCC_MAJOR || minor < DD_UCC_MINOR_MIN) {
        return dd_error_set(
            err, DD_NOT_SUPPORTED, "unsupported %s: got UCC %u.%u.%u, expected %d.%d or a newer %d.x",
            lib->dylib.path, major, minor, release, DD_UCC_MAJOR, DD_UCC_MINOR_MIN, DD_UCC_MAJOR);
    }
    (void)snprintf(lib->version, sizeof lib->version, "UCC %u.%u.%u", major, minor, release);
    return DD_OK;
}

static const dd_dylib_spec UCC_SPEC = {.label = "UCC",
                                       .sonames = {"libucc.so.1"},
                                       .probe = "ucc_init_version",
                                       .symbols = UCC_SYMBOLS,
                                       .nsymbols = sizeof UCC_SYMBOLS / sizeof UCC_SYMBOLS[0],
                                       .check = check_version};

/* Initialise UCC for several threads, as groups need: at a lower level, parts of UCC omit locks. */
static dd_status
init_library(dd_ucc_lib *lib, dd_ucc_lib_config config, dd_error *err)
{
    dd_ucc_lib_params params = {.mask = DD_UCC_LIB_THREAD_MODE, .thread_mode = DD_UCC_THREAD_MULTIPLE};
    dd_ucc_status ucc_status =
        lib->api.ucc_init_version(DD_UCC_MAJOR, DD_UCC_MINOR_MIN, &params, config, &lib->handle);
    dd_status status = dd_ucc_check(lib, ucc_status, err, "ucc_init");
    if (status != DD_OK) {
        return status;
    }
    dd_ucc_lib_params attr = {.mask = DD_UCC_LIB_THREAD_MODE | DD_UCC_LIB_COLL_TYPES};
    status = dd_ucc_check(lib, lib->api.ucc_lib_get_attr(lib->handle, &attr), err, "ucc_lib_get_attr");
    if (status == DD_OK && attr.thread_mode != DD_UCC_THREAD_MULTIPLE) {
        status = dd_error_set(
            err, DD_NOT_SUPPORTED,
            "%s (%s) was built without support for several threads: got thread mode %d, expected %d",
            lib->version, lib->dylib.path, (int)attr.thread_mode, (int)DD_UCC_THREAD_MULTIPLE);
    }
    if (status != DD_OK) {
        (void)lib->api.ucc_finalize(lib->handle);
        return status;
    }
    lib->coll_types = attr.coll_types;
    return DD_OK;
}

/* Initialise UCC, with torch.distributed's prefix for settings: TORCH_UCC_... variables. */
static dd_status
start_library(dd_ucc_lib *lib, dd_error *err)
{
    dd_ucc_lib_config config;
    dd_status status =
        dd_ucc_check(lib, lib->api.ucc_lib_config_read("TORCH", NULL, &config), err, "ucc_lib_config_read");
    if (status == DD_OK) {
        status = init_library(lib, config, err);
        lib->api.ucc_lib_config_release(config);
    }
    return status;
}

dd_status
dd_ucc_open(const dd_dylib_search *search, dd_carrier_library **library, dd_error *err)
{
    dd_ucc_lib *lib = dd_mem_zalloc(sizeof *lib);
    if (lib == NULL) {
        return dd_error_no_memory(err, sizeof *lib);
    }
    dd_status status = dd_dylib_load(&UCC_SPEC, search, &lib->dylib, &lib->api, lib, err);
    if (status == DD_OK) {
        status = start_library(lib, err);
    }
    if (status != DD_OK) {
        dd_dylib_fini(&lib->dylib);
        dd_mem_free(lib);
        return status;
    }
    lib->base = (dd_carrier_library){
        .name = "ucc", .version = lib->version, .path = lib->dylib.path, .make = dd_ucc_make};
    *library = &lib->base;
    return DD_OK;
}
