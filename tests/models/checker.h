/* A checker of memory orders. It runs the code of csrc/ in every possible interleaving of its
 * threads, and with every value that a load may return in the C11 memory model
 * (docs/contributing/memory-orders.md describes the model and its limits).
 *
 * The code under check and the scenarios are compiled for ThreadSanitizer, but hooks.c defines its
 * functions, so the checker sees the address and order of each access. A scenario is two or three
 * threads, which are fibers of one thread. It runs repeatedly from its beginning with different
 * decisions, until all have been tried (explore.c). */
#ifndef DD_TESTS_MODELS_CHECKER_H
#define DD_TESTS_MODELS_CHECKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHECKER_MAX_THREADS 4

/* `setup` runs once and is not recorded: each run starts with the memory that it leaves. `finish`
 * runs when all threads have ended; it reads the last value of everything and must not write. */
typedef struct scenario {
    const char *name;
    const char *label; /* a one-line description for the output */
    int nthreads;
    void (*setup)(void);
    void (*thread)(int self);
    void (*finish)(void); /* may be NULL */
    /* Litmus tests: all values that checker_note may receive, ascending, ended by CHECKER_END.
     * Otherwise NULL. */
    const uint64_t *outcomes;
    bool is_buffered;    /* litmus tests: the search must find load buffering */
    bool needs_no_order; /* relaxed orders suffice, because other accesses order everything */
    /* For polling loops: a thread reads one value of a variable at most this many times in a row.
     * 0: no limit. */
    int max_same;
    bool is_large;         /* takes minutes: runs only if it is named */
    struct scenario *next; /* owned by the checker, as are all members below: */
    int number;
} scenario;

#define CHECKER_END UINT64_MAX

/* Add a scenario, which must stay valid. Call it only before main. */
void checker_register(scenario *added);

#define SCENARIO(id, ...)                                        \
    __attribute__((constructor)) static void register_##id(void) \
    {                                                            \
        static scenario added = {.name = #id, __VA_ARGS__};      \
        checker_register(&added);                                \
    }

/* ---- for scenarios */

/* The running thread; -1 in setup and finish. */
extern int checker_running;
static inline int
checker_self(void)
{
    return checker_running;
}
/* Fail the scenario unless the condition holds. */
#define REQUIRE(condition) checker_require((condition), __FILE__, __LINE__, #condition)
void checker_require(bool holds, const char *file, int line, const char *text);
/* Report the outcome of a run. Call it in finish. */
void checker_note(uint64_t outcome);
/* Call this after a poll without a result, in a loop without other effects. It returns when a
 * variable that was read since the last call has a newer value. The scenario fails if that never
 * happens. */
void checker_poll(void);

/* Wake-ups by the kernel. A bell counts its rings. checker_sleep returns when the count is not 0,
 * and the caller must then reset it. */
typedef _Atomic uint32_t checker_bell;
void checker_ring(checker_bell *bell, uint32_t nrings);
void checker_sleep(const checker_bell *bell);
uint32_t checker_take_rings(checker_bell *bell);

/* Return zeroed memory at the same address in every run. */
void *checker_alloc(size_t nbytes);
/* The result of dd_shared_memory_create and the argument of dd_sys_mmap. There is one such
 * memory. */
#define CHECKER_MEMORY_FD 7
/* Make later allocations private to this thread: the scenario fails if other threads access them.
 * -1: shared. Call it in setup. */
void checker_allocate_for(int thread);
/* Declare that the thread's state consists only of its memory and its place in the code. States in
 * which it arrived there in different ways are then the same. */
void checker_forget(uint64_t where);

/* Let the calling thread's process take part in core/fence.h, or not; in setup: all processes. */
void checker_set_fenced(bool is_fenced);
/* Make dd_fence_all fail. Call it in setup. */
void checker_refuse_fences(void);

/* Make waits for a condition time out immediately if their timeout is at most ns. Call it in setup.
 * By default no wait times out. */
void checker_set_patience(int64_t ns);

#endif
