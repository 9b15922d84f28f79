/* The decoder of endpoints. An accepted endpoint must be encoded to the same bytes again, and must be
 * printable. */
#include "transport/endpoint.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
require(bool holds)
{
    if (!holds) {
        abort();
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dd_endpoint endpoint;
    dd_addr_list addrs;
    dd_error err;
    if (dd_endpoint_decode(dd_bytes_of(data, size), &endpoint, &addrs, &err) != DD_OK) {
        require(err.code == DD_PROTOCOL);
        return 0;
    }
    char text[96];
    require(strlen(dd_endpoint_print(&endpoint, text)) < sizeof text);
    require(dd_endpoint_is_same_host(&endpoint, &endpoint) || endpoint.host_id[0] == 0);
    dd_blob again = {0};
    require(dd_endpoint_encode(&endpoint, &addrs, &again, NULL) == DD_OK);
    require(dd_bytes_equal(dd_blob_view(&again), dd_bytes_of(data, size)));
    dd_blob_fini(&again);
    return 0;
}
