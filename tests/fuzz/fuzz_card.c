/* The decoder of cards. An accepted card must be encoded to the same bytes again, and must be
 * printable. */
#include "transport/card.h"

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
    dd_card card;
    dd_addr_list addrs;
    dd_error err;
    if (dd_card_decode(dd_bytes_of(data, size), &card, &addrs, &err) != DD_OK) {
        require(err.code == DD_PROTOCOL);
        return 0;
    }
    char text[96];
    require(strlen(dd_card_print(&card, text)) < sizeof text);
    require(dd_card_is_same_host(&card, &card) || card.host_id[0] == 0);
    dd_blob again = {0};
    require(dd_card_encode(&card, &addrs, &again, NULL) == DD_OK);
    require(dd_bytes_equal(dd_blob_view(&again), dd_bytes_of(data, size)));
    dd_blob_fini(&again);
    return 0;
}
