/* Whether a run has kept the promises of docs/failures.md. */
#ifndef DD_TESTS_SIM_VERDICT_H
#define DD_TESTS_SIM_VERDICT_H

#include "scenario.h"

#define VERDICT_MAX 400

/* After sim_run, before sim_end. "" if all is well, else the first promise that was broken, and how. Unless it is strict, a rank may be blamed
 * that has left because of a failure of its own or another's, before those without a link to it have heard the reason, or whom a rank
 * short of memory or descriptors could not reach. */
void verdict_find(const scenario *which, sim_outcome outcome, bool is_strict, char text[VERDICT_MAX]);

#endif
