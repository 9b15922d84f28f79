/* Make a failing scenario smaller. */
#ifndef DD_TESTS_SIM_SHRINK_H
#define DD_TESTS_SIM_SHRINK_H

#include "runner.h"

/* Add to spec->edit every part that the scenario can lack and still fail, and print a command that
 * runs the rest. */
void shrink(run_spec *spec);

#endif
