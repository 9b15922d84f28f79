/* The places in the code where an order stands, and weaker ones in their stead. */
#ifndef DD_TESTS_MODELS_WEAKEN_H
#define DD_TESTS_MODELS_WEAKEN_H

#include "models/checker_internal.h"

#define WEAKEN_MAX_OPTIONS 8

/* How many places are known; they are found when the code gets there. */
int weaken_count(void);
void weaken_begin(int number); /* whose threads get there from now on */
bool weaken_is_reached_by(int at, int number);
bool weaken_is_of_library(int at); /* not of a scenario */
/* Weaker orders than the one that is written, the strongest first. */
int weaken_options(int at, memory_order_ options[WEAKEN_MAX_OPTIONS]);
/* -1: all are as written. */
void weaken_set(int at, memory_order_ order);
const char *weaken_kind(int at);
memory_order_ weaken_written(int at);
const char *weaken_words(int at); /* "function file:line" */

#endif
