/* Run the scenarios whose names contain an argument, or all that take seconds.
 *
 *     --weaken   then weaken each order, one at a time, and print the scenario that fails
 *     --mistakes fail if a scenario detects none of the orders weakened to nothing
 *     --trace    print the steps that lead to a failure */
#include "models/checker_internal.h"
#include "models/weaken.h"

#include <stdlib.h>
#include <string.h>

#define MAX_OUTCOMES 64
#define MAX_RUNS UINT64_C(200000000)
/* Most mistakes are found early. */
#define MAX_RUNS_MISTAKE UINT64_C(50000)
#define MAX_RUNS_WEAKER UINT64_C(2000000)

static scenario *all;

static uint64_t outcomes[MAX_OUTCOMES]; /* ascending */
static int noutcomes;

void
checker_register(scenario *added)
{
    scenario **end = &all;
    int number = 0;
    while (*end != NULL) {
        end = &(*end)->next;
        number++;
    }
    added->number = number;
    *end = added;
}

void
checker_note(uint64_t outcome)
{
    int at = 0;
    while (at < noutcomes && outcomes[at] < outcome) {
        at++;
    }
    if (at < noutcomes && outcomes[at] == outcome) {
        return;
    }
    if (noutcomes == MAX_OUTCOMES) {
        abort();
    }
    memmove(&outcomes[at + 1], &outcomes[at], (size_t)(noutcomes - at) * sizeof outcomes[0]);
    outcomes[at] = outcome;
    noutcomes++;
}

static bool
are_as_expected(const scenario *which)
{
    int i = 0;
    if (which->outcomes == NULL) {
        return true;
    }
    while (i < noutcomes && which->outcomes[i] == outcomes[i]) {
        i++;
    }
    return i == noutcomes && which->outcomes[i] == CHECKER_END;
}

static void
report_buffering(const scenario *which)
{
    (void)buffering_count_open(true);
    if (which->is_buffered) {
        printf("  load buffering is not found\n");
    }
}

static bool
run(const scenario *which, bool is_tracing)
{
    explore_result result;
    noutcomes = 0;
    explore_scenario(which, MAX_RUNS, is_tracing, &result);
    bool is_passed = result.end == EXPLORE_PASSED && are_as_expected(which);
    bool is_right = is_passed && (buffering_count_open(false) > 0) == which->is_buffered;
    printf("%-30s %d threads %9llu states %9llu runs %7.2f s  %s\n", which->name, which->nthreads,
           (unsigned long long)result.nstates, (unsigned long long)result.nruns, result.seconds,
           is_right ? which->label : "FAILED");
    if (result.end != EXPLORE_PASSED) {
        printf("  %s\n", result.end == EXPLORE_CUT ? "does not end" : result.failure);
    } else if (is_passed && !is_right) {
        report_buffering(which);
    } else if (!is_right) {
        printf("  outcomes:");
        for (int i = 0; i < noutcomes; i++) {
            printf(" %llu", (unsigned long long)outcomes[i]);
        }
        printf("\n");
    }
    (void)fflush(stdout);
    return is_right;
}

/* Return true if the scenario fails with at least one of the orders that it reaches weakened
 * completely. */
static bool
finds_a_mistake(const scenario *which)
{
    explore_result result = {.end = EXPLORE_PASSED};
    memory_order_ options[WEAKEN_MAX_OPTIONS];
    for (int i = 0; i < weaken_count() && result.end != EXPLORE_FAILED; i++) {
        int noptions = weaken_is_reached_by(i, which->number) && weaken_is_of_library(i)
                           ? weaken_options(i, options)
                           : 0;
        if (noptions > 0) {
            weaken_set(i, options[noptions - 1]);
            explore_scenario(which, MAX_RUNS_MISTAKE, false, &result);
            if (result.end == EXPLORE_FAILED) {
                printf("  a mistake is found: %s, %s instead of %s\n", weaken_location(i),
                       weaken_name(options[noptions - 1]), weaken_name(weaken_written(i)));
            }
        }
    }
    weaken_set(-1, ORDER_NONE);
    return result.end == EXPLORE_FAILED;
}

static bool
is_named(const scenario *which, char **names, int nnames)
{
    bool is_asked_for = nnames == 0 && !which->is_large;
    for (int i = 0; i < nnames; i++) {
        bool is_whole = strcmp(which->name, names[i]) == 0;
        is_asked_for =
            is_asked_for || is_whole || (!which->is_large && strstr(which->name, names[i]) != NULL);
    }
    return is_asked_for;
}

/* ---- weaker orders */

static int nweaker;
static int nnoticed;

static bool
fails(const scenario *which)
{
    explore_result result;
    explore_scenario(which, MAX_RUNS_WEAKER, false, &result);
    return result.end == EXPLORE_FAILED || (result.end == EXPLORE_PASSED && buffering_count_open(false) > 0);
}

/* Return a scenario that reaches the place in the code and fails with the weaker order, or NULL. */
static const scenario *
find_failing(int site, memory_order_ order, char **names, int nnames)
{
    const scenario *each = all;
    weaken_set(site, order);
    while (each != NULL && !(each->outcomes == NULL && is_named(each, names, nnames) &&
                             weaken_is_reached_by(site, each->number) && fails(each))) {
        each = each->next;
    }
    weaken_set(-1, ORDER_NONE);
    return each;
}

/* Try the strongest option first: if a scenario fails with one order, it also fails with weaker
 * ones. */
static void
weaken_one(int site, char **names, int nnames)
{
    memory_order_ options[WEAKEN_MAX_OPTIONS];
    int noptions = weaken_options(site, options);
    const scenario *failing = NULL;
    for (int i = 0; i < noptions && failing == NULL; i++) {
        failing = find_failing(site, options[i], names, nnames);
        nweaker++;
        nnoticed += failing != NULL;
        printf("%-60s %-6s %-7s %-7s %s\n", weaken_location(site), weaken_kind(site),
               weaken_name(weaken_written(site)), weaken_name(options[i]),
               failing != NULL ? failing->name : "is not noticed");
        (void)fflush(stdout);
    }
}

static void
weaken_all(char **names, int nnames)
{
    for (int i = 0; i < weaken_count(); i++) {
        if (weaken_is_of_library(i)) {
            weaken_one(i, names, nnames);
        }
    }
    printf("%d weaker orders, of which %d are noticed\n", nweaker, nnoticed);
}

int
main(int argc, char **argv)
{
    bool is_tracing = false;
    bool is_weakening = false;
    bool is_with_mistakes = false;
    int nfailed = 0;
    char **names = argv + 1;
    int nnames = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--trace") == 0) {
            is_tracing = true;
        } else if (strcmp(argv[i], "--weaken") == 0) {
            is_weakening = true;
        } else if (strcmp(argv[i], "--mistakes") == 0) {
            is_with_mistakes = true;
        } else {
            names[nnames++] = argv[i];
        }
    }
    for (const scenario *each = all; each != NULL; each = each->next) {
        if (is_named(each, names, nnames)) {
            weaken_begin(each->number);
            nfailed += !run(each, is_tracing);
            if (is_with_mistakes && each->outcomes == NULL && !finds_a_mistake(each)) {
                printf("  no mistake is found\n");
                nfailed += !each->needs_no_order;
            }
        }
    }
    if (is_weakening && nfailed == 0) {
        weaken_all(names, nnames);
    }
    return nfailed > 0;
}
