/* Makes a failing scenario smaller. */
#ifndef DD_TESTS_SIM_SHRINK_H
#define DD_TESTS_SIM_SHRINK_H

#include "runner.h"

/* Takes from spec->edit whatever it fails without as well, and prints how to run what is left. */
void shrink(run_spec *spec);

#endif
