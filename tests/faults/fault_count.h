/* Counts allocations or calls of the system, and picks the one that shall fail. */
#ifndef TESTS_FAULTS_FAULT_COUNT_H
#define TESTS_FAULTS_FAULT_COUNT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* How many have passed, in the lower half, and the number of the one to fail, in the upper: other threads pass while both are set. */
typedef atomic_uint_fast64_t dd_fault_count;

#define DD_FAULT_COUNT_INITIALIZER ((uint64_t)UINT32_MAX << 32)

/* Lets `count` more succeed and fails the one after; -1: none. Returns how many have passed since the last call. */
static inline long
dd_fault_count_set(dd_fault_count *self, long count)
{
    return (long)(uint32_t)atomic_exchange(self, (uint64_t)(uint32_t)count << 32);
}

/* Counts one more; true: it is the one. */
static inline bool
dd_fault_count_is_due(dd_fault_count *self)
{
    uint64_t before = atomic_fetch_add(self, 1);
    return (uint32_t)before == before >> 32;
}

#endif
