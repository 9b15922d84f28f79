/* Whether a run has kept the promises of docs/failures.md. */
#ifndef DD_TESTS_SIM_VERDICT_H
#define DD_TESTS_SIM_VERDICT_H

#include "scenario.h"

#define VERDICT_MAX 400

/* After sim_run, before sim_end. "" if all is well, else the first promise that was broken, and how. */
void verdict_find(const scenario *which, sim_outcome outcome, char text[VERDICT_MAX]);

#endif
