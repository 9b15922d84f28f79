/* A function of csrc/core/ that a file of this folder wraps (faults.h). */
#ifndef TESTS_FAULTS_WRAP_H
#define TESTS_FAULTS_WRAP_H

/* Declare both functions and begin the definition of the wrapper. */
#define WRAP(result, name, parameters) \
    result __real_##name parameters;   \
    result __wrap_##name parameters;   \
    result __wrap_##name parameters

#endif
