#include "transport/link.h"

void
dd_link_close(dd_link *link)
{
    if (link != NULL) {
        link->ops->destroy(link);
    }
}
