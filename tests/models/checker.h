/* A checker of memory orders: runs the code of csrc/ itself, in every order in which its threads can be interleaved and with every
 * value that a load may return by the C11 memory model (docs/contributing/memory-orders.md has the model, and what it leaves out).
 *
 * The code under check, and the scenarios, are compiled for ThreadSanitizer, whose functions are ours (hooks.c): so the checker
 * sees each access with its address and its order. A scenario is two or three threads, which are fibers of one thread. It runs again and
 * again from its beginning, each time with other decisions, until there are no others (explore.c). */
#ifndef DD_TESTS_MODELS_CHECKER_H
#define DD_TESTS_MODELS_CHECKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHECKER_MAX_THREADS 4

/* `setup` runs once, with nothing of it recorded: what it leaves in memory is what each run begins with. `finish` runs when all threads
 * have ended, sees the last value of everything, and writes nothing. */
typedef struct scenario {
    const char *name;
    const char *what; /* is shown, in a line */
    int nthreads;
    void (*setup)(void);
    void (*thread)(int self);
    void (*finish)(void); /* NULL: nothing */
    const uint64_t *
        outcomes; /* litmus tests: all that checker_note may be told, ascending, ended by CHECKER_END; else NULL */
    bool is_buffered;    /* litmus tests: load buffering is to be found */
    bool needs_no_order; /* all that it needs is order by other means */
    int max_same; /* loops of many looks: so often a thread reads one value of a variable in a row; 0: as often as it likes */
    bool is_large;         /* takes minutes: only when it is named */
    struct scenario *next; /* the checker's, as is: */
    int number;
} scenario;

#define CHECKER_END UINT64_MAX

/* Adds a scenario, which stays the caller's and must live on. Before main only. */
void checker_register(scenario *added);

#define SCENARIO(id, ...)                                        \
    __attribute__((constructor)) static void register_##id(void) \
    {                                                            \
        static scenario added = {.name = #id, __VA_ARGS__};      \
        checker_register(&added);                                \
    }

/* ---- for scenarios */

/* The thread that runs; -1 in setup and finish. */
extern int checker_running;
static inline int
checker_self(void)
{
    return checker_running;
}
/* Ends the run, and with it the exploration, unless it holds. */
#define REQUIRE(condition) checker_require((condition), __FILE__, __LINE__, #condition)
void checker_require(bool holds, const char *file, int line, const char *text);
/* How a run has ended; in finish. */
void checker_note(uint64_t outcome);
/* After a look that has found nothing, in a loop without other effects: goes on when something that was read since the last time has a
 * newer value. If that never comes to pass, it is a failure. */
void checker_poll(void);

/* What the kernel does. A bell is a number of rings; sleeping ends when there are some, which are still to be taken. */
typedef _Atomic uint32_t checker_bell;
void checker_ring(checker_bell *bell, uint32_t nrings);
void checker_sleep(const checker_bell *bell);
uint32_t checker_take_rings(checker_bell *bell);

/* Memory that is zero, and the same in every run. */
void *checker_alloc(size_t nbytes);
/* What dd_shared_memory_create gives, and dd_sys_mmap maps; there is one of it. */
#define CHECKER_MEMORY_FD 7
/* In setup: what is allocated from here on, is of that thread alone, and it is a failure if others look at it; -1: of all. */
void checker_allocate_for(int thread);
/* The thread knows nothing any more but what is in its memory, and where it is: so states in which it got there in other ways are
 * the same. */
void checker_forget(uint64_t where);

/* Whether the process of the calling thread takes part in core/fence.h; in setup: whether all do. */
void checker_set_fenced(bool is_fenced);
/* Whether dd_fence_all is refused. In setup. */
void checker_refuse_fences(void);

/* Waits for a condition that may last so long, or less, are over at once. In setup; at first none is over by its time. */
void checker_set_patience(int64_t ns);

#endif
