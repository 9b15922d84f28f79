/* Check that a run kept the promises of docs/failures.md. */
#ifndef DD_TESTS_SIM_VERDICT_H
#define DD_TESTS_SIM_VERDICT_H

#include "scenario.h"

#define VERDICT_MAX 400

/* Write the first broken promise to text, or "" if there is none. Call it after sim_run and before
 * sim_end. Unless is_strict is set, the following ranks may be blamed: a rank that exited because
 * of its own failure or another rank's, before ranks without a link to it received the reason; and
 * a rank that could not be reached for lack of memory or descriptors. */
void verdict_find(const scenario *which, sim_outcome outcome, bool is_strict, char text[VERDICT_MAX]);

#endif
