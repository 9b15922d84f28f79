/* Calls of explore.c into standins.c. */
#ifndef DD_TESTS_MODELS_STANDINS_H
#define DD_TESTS_MODELS_STANDINS_H

void standins_begin_scenario(void);
void standins_end_setup(void);
void standins_begin_run(void);

#endif
