/* Check the errors that ranks report against the promises (docs/failures.md). */
#ifndef DD_TESTS_ERRORS_VERDICT_H
#define DD_TESTS_ERRORS_VERDICT_H

#include "trial.h"

typedef enum outcome {
    OUTCOME_UNREACHED, /* the program has ended before that call */
    OUTCOME_SURVIVED,  /* all ranks have completed all steps */
    OUTCOME_LOCAL,     /* the rank has an error, the others have completed all steps */
    OUTCOME_REPORTED,  /* the rank has an error, the others have errors that name it */
    /* The rank has an error that it could not send; the starter has ended the others. */
    OUTCOME_ALONE,
    OUTCOME_WRONG, /* a promise is broken: see the complaint */
    OUTCOME_COUNT,
} outcome;

typedef struct verdict {
    outcome outcome;
    char complaint[512];
} verdict;

verdict judge(const trial *trial_spec, const trial_result *result);

#endif
