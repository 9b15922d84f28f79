/* Conversion of oneCCL's results into errors. */
#include "xccl/xccl_internal.h"

#include <stdio.h>
#include <string.h>

static const char *
result_name(xccl_result result)
{
    switch ((int)result) {
#define RESULT_NAME(name, value, theirs) \
    case value:                          \
        return #theirs;
        DD_XCCL_RESULT_LIST(RESULT_NAME)
#undef RESULT_NAME
    default:
        return "onecclResult_t";
    }
}

void
xccl_describe(const xccl_api *api, xccl_result result, char *text, size_t nbytes)
{
    const char *meaning = api->onecclGetErrorString(result);
    const char *last = api->onecclGetLastError(NULL);
    bool has_last = last != NULL && last[0] != '\0';
    (void)snprintf(text, nbytes, "%s (%d): %s%s%s", result_name(result), (int)result,
                   meaning != NULL ? meaning : "unknown to this oneCCL", has_last ? ": " : "",
                   has_last ? last : "");
    for (char *end = text; (end = strchr(end, '\n')) != NULL;) {
        *end = ' ';
    }
}

dd_status
xccl_check(const xccl_carrier *self, xccl_result result, const char *function, dd_error *err)
{
    if (result == XCCL_SUCCESS) {
        return DD_OK;
    }
    char text[512];
    xccl_describe(&self->library->api, result, text, sizeof text);
    return dd_error_set(err, DD_BACKEND, "%s of rank %d of %d: %s", function, self->rank, self->nranks, text);
}
