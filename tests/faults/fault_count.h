/* Counts of allocations or system calls, and the choice of the call that must fail. */
#ifndef TESTS_FAULTS_FAULT_COUNT_H
#define TESTS_FAULTS_FAULT_COUNT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The number of counted calls in the lower half, and the number of the call to fail in the upper
 * half: one word, because other threads count concurrently. */
typedef atomic_uint_fast64_t dd_fault_count;

#define DD_FAULT_COUNT_INITIALIZER ((uint64_t)UINT32_MAX << 32)

/* Let `count` more calls succeed and fail the next one; -1: fail none. Return the number of calls
 * since the last call of this function. */
static inline long
dd_fault_count_set(dd_fault_count *self, long count)
{
    return (long)(uint32_t)atomic_exchange(self, (uint64_t)(uint32_t)count << 32);
}

/* Count a call. Return true if it must fail. */
static inline bool
dd_fault_count_is_due(dd_fault_count *self)
{
    uint64_t before = atomic_fetch_add(self, 1);
    return (uint32_t)before == before >> 32;
}

#endif
