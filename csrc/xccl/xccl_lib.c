/* Loading oneCCL. */
#include "core/mem.h"
#include "xccl/xccl_internal.h"

#include <stdio.h>

#define SYMBOL(name, returns, parameters) {#name, offsetof(xccl_api, name), false},

static const dd_dylib_symbol SYMBOLS[] = {DD_XCCL_FUNCTIONS(SYMBOL)};

/* Read the version. onecclGetVersion also makes oneCCL load its plug-in. */
static dd_status
read_oneccl_version(xccl_library *library, dd_error *err)
{
    int version = 0;
    xccl_result result = library->api.onecclGetVersion(&version);
    if (result != XCCL_SUCCESS) {
        char text[512];
        xccl_describe(&library->api, result, text, sizeof text);
        return dd_error_set(err, DD_NOT_SUPPORTED, "%s loaded no plug-in for its devices: %s",
                            library->dylib.path, text);
    }
    (void)snprintf(library->version, sizeof library->version, "%d.%d.%d", version / 10000,
                   version / 100 % 100, version % 100);
    return DD_OK;
}

static const dd_dylib_spec SPEC = {.label = "oneCCL",
                                   .sonames = {"libccl.so.2"},
                                   .probe = "onecclGetVersion",
                                   .symbols = SYMBOLS,
                                   .nsymbols = sizeof SYMBOLS / sizeof SYMBOLS[0]};

dd_status
dd_xccl_open(const dd_dylib_search *search, dd_carrier_library **opened, dd_error *err)
{
    xccl_library *library = dd_mem_zalloc(sizeof *library);
    if (library == NULL) {
        return dd_error_no_memory(err, sizeof *library);
    }
    dd_status status = dd_dylib_load(&SPEC, search, &library->dylib, &library->api, NULL, err);
    if (status == DD_OK) {
        status = read_oneccl_version(library, err);
    }
    if (status != DD_OK) {
        dd_dylib_fini(&library->dylib);
        dd_mem_free(library);
        return status;
    }
    library->base = (dd_carrier_library){
        .name = "xccl", .version = library->version, .path = library->dylib.path, .make = xccl_make};
    *opened = &library->base;
    return DD_OK;
}
