/* What an engine is about to tell others. */
#ifndef DD_TESTS_FAILURE_NOTICES_H
#define DD_TESTS_FAILURE_NOTICES_H

#include <stdbool.h>

struct dd_engine;

/* Whether failures have been told that may not be on their way. */
bool engine_has_more_to_tell(struct dd_engine *engine);

/* From now on no descriptor reaches the groups of this engine. */
void engine_lose_descriptors(struct dd_engine *engine);

#endif
