/* Whether what ranks have seen of a failure is what is promised (docs/failures.md). */
#ifndef DD_TESTS_ERRORS_VERDICT_H
#define DD_TESTS_ERRORS_VERDICT_H

#include "trial.h"

typedef enum outcome {
    OUTCOME_UNREACHED, /* the program has ended before that call */
    OUTCOME_SURVIVED,  /* all ranks have done all that they wanted to */
    OUTCOME_LOCAL,     /* the rank has an error, the others have done all */
    OUTCOME_TOLD,      /* the rank has an error, the others one that names it */
    OUTCOME_ALONE,     /* the rank has an error that it could tell nobody: the starter has ended the others */
    OUTCOME_WRONG,     /* a promise is broken: see the complaint */
    OUTCOME_COUNT,
} outcome;

typedef struct verdict {
    outcome outcome;
    char complaint[512];
} verdict;

verdict judge(const trial *what, const trial_result *result);

#endif
