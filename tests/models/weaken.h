/* The places in the code that have a memory order, and weaker orders for them. */
#ifndef DD_TESTS_MODELS_WEAKEN_H
#define DD_TESTS_MODELS_WEAKEN_H

#include "models/checker_internal.h"

#define WEAKEN_MAX_OPTIONS 8

/* Return the number of known places. A place becomes known when the code reaches it. */
int weaken_count(void);
/* Set the scenario whose threads reach places from now on. */
void weaken_begin(int number);
bool weaken_is_reached_by(int at, int number);
bool weaken_is_of_library(int at); /* false for a place in a scenario */
/* List the orders weaker than the written one, the strongest first. */
int weaken_options(int at, memory_order_ options[WEAKEN_MAX_OPTIONS]);
/* at -1: all orders are as written. */
void weaken_set(int at, memory_order_ order);
const char *weaken_kind(int at);
memory_order_ weaken_written(int at);
const char *weaken_location(int at); /* "function file:line" */

#endif
