/* The failure notices that an engine has not sent yet. */
#ifndef DD_TESTS_FAILURE_NOTICES_H
#define DD_TESTS_FAILURE_NOTICES_H

#include <stdbool.h>

struct dd_engine;

/* Return true if there are notices that may not have been sent. */
bool engine_has_pending_notices(struct dd_engine *engine);

/* From now on, pass no descriptor to the groups of this engine. */
void engine_lose_descriptors(struct dd_engine *engine);

#endif
