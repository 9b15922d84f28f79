/* One behavioural suite for every kind of store. A test file describes how to open a store of its
 * kind, and registers the suite for it:
 *
 *     static dd_store *open_hash(void **fixture) { ... }
 *     STORE_SUITE(hash, .open = open_hash, .has_queues = true)
 *
 * The tests are then named "hash_store/suite_<case>", each with a fresh store. */
#ifndef DD_TESTS_STORE_SUITE_H
#define DD_TESTS_STORE_SUITE_H

#include "check.h"
#include "store/store.h"

typedef struct store_suite {
    const char *name; /* shown before "/suite_..." */
    /* Open a new, empty store; return NULL after a failed CHECK. *fixture is passed to `close`. */
    dd_store *(*open)(void **fixture);
    void (*close)(void *fixture); /* called after the store is released; may be NULL */
    bool has_queues;              /* if false, queue calls return DD_NOT_SUPPORTED */
    /* single-threaded and without files: allocations can be made to fail one by one */
    bool is_in_memory;
    bool has_number_errors; /* add on a value that is not a number leaves the store usable */
    int thread_ops;         /* operations of each thread in stress tests; 0 for 1000 */
} store_suite;

void store_suite_register(const store_suite *suite);

#define STORE_SUITE(suite_name, ...)                                                           \
    static const store_suite suite_##suite_name = {.name = #suite_name "_store", __VA_ARGS__}; \
    __attribute__((constructor)) static void register_suite_##suite_name(void)                 \
    {                                                                                          \
        store_suite_register(&suite_##suite_name);                                             \
    }

#endif
