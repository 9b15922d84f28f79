/* What the files of the checker share. explore.c decides what happens next; memory.c is the model of memory;
 * buffering.c looks for what that leaves out; hooks.c takes the accesses of the
 * code under check; standins.c has what the code asks of the system; weaken.c is about orders that are weaker than written. */
#ifndef DD_TESTS_MODELS_CHECKER_INTERNAL_H
#define DD_TESTS_MODELS_CHECKER_INTERNAL_H

#include "models/checker.h"

#include <stdio.h>

/* Of one run. */
#define MAX_LOCATIONS 512
#define MAX_MESSAGES 8192

/* ---- explore.c */

/* One of n; the others come in later runs. */
int explore_choose(int n);
/* Lets the others go first, as far as they are to. With `may_go_on`, until that holds. */
void explore_yield(bool (*may_go_on)(const void *arg), const void *arg);
/* This run is of no use, since others cover it. */
_Noreturn void explore_prune(void);
/* What is known has turned out to be wrong: everything begins again. */
_Noreturn void explore_restart(void);
_Noreturn void explore_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The thread has seen that; it does not know anything else. */
void explore_note_seen(uint64_t value);
void explore_forget_seen(uint64_t hash);
const scenario *explore_current(void);
bool explore_is_tracing(void);
bool explore_is_on_stack(const void *at); /* of a fiber: only its own thread knows of it */
void explore_trace(const char *format, ...) __attribute__((format(printf, 1, 2)));

typedef enum explore_end {
    EXPLORE_PASSED,
    EXPLORE_FAILED,
    EXPLORE_CUT, /* more runs than allowed */
} explore_end;

typedef struct explore_result {
    explore_end end;
    uint64_t nruns;
    uint64_t nstates;
    double seconds;
    char failure[512];
} explore_result;

/* Runs the scenario in all ways, its setup included. */
void explore_scenario(const scenario *which, uint64_t max_runs, bool is_tracing, explore_result *result);

/* ---- memory.c */

typedef enum memory_order_ {
    ORDER_RELAXED = 0,
    ORDER_CONSUME = 1,
    ORDER_ACQUIRE = 2,
    ORDER_RELEASE = 3,
    ORDER_ACQ_REL = 4,
    ORDER_SEQ_CST = 5,
    ORDER_NONE = 6, /* of a fence that is left out */
} memory_order_;

/* A read-modify-write: what is written instead of `before`. False: nothing. */
typedef bool memory_change(uint64_t before, uint64_t operand, uint64_t expected, uint64_t *after);

void memory_begin_run(void);
void memory_end_run(void); /* everything is as it was after setup */
void memory_begin_scenario(void);
uint64_t
memory_hash(unsigned live); /* of all that decides what may happen to the threads that have not ended */

void memory_read_plain(const void *at, size_t nbytes);
void memory_write_plain(void *at, size_t nbytes); /* before it is written */

/* `site`: the place in the code; NULL: it is the kernel that does it. */
uint64_t memory_load(const void *at, int size, memory_order_ order, const void *site);
void memory_store(void *at, int size, uint64_t value, memory_order_ order, const void *site);

typedef struct memory_rmw {
    void *at;
    int size;
    memory_change *change;
    uint64_t operand;
    uint64_t expected;
    memory_order_ order;
    memory_order_ failure_order;
    const void *site;
    bool is_latest; /* by the kernel: reads the last value, and never an older one */
} memory_rmw;
uint64_t memory_change_value(const memory_rmw *rmw);
/* The last one in modification order. */
uint64_t memory_latest(const void *at, int size);

void memory_fence(memory_order_ order);
/* Another thread makes `target` go through a fence. */
void memory_fence_other(int target);
/* The thread goes on after others may have gone first. */
void memory_note_turn(void);

/* Polling: a look has found nothing; whether something that it has read has changed since; the next one begins. */
void memory_end_look(void);
bool memory_has_news(int thread);
void memory_begin_look(void);
/* In this look, which is not the first, the thread has written nothing and seen nothing new. */
bool memory_was_look_in_vain(void);

/* ---- buffering.c */

void buffering_begin_scenario(void);
void buffering_begin_run(void);
/* What the thread does; of variables some accesses of which are in no order. */
void buffering_note_load(uintptr_t address, const void *site, memory_order_ order);
void buffering_note_store(uintptr_t address, const void *site, memory_order_ order);
void buffering_note_fence(memory_order_ order);
void buffering_forget(void);
/* When all runs of a scenario are done: how many pairs of a load and a later store could make load buffering. */
int buffering_count_open(bool is_told);

/* ---- standins.c */

/* Whose memory that is: of a thread alone, or -1. */
int standins_owner_of(const void *at);

/* ---- weaken.c */

typedef enum site_kind {
    SITE_LOAD,
    SITE_STORE,
    SITE_RMW,
    SITE_FENCE,
    SITE_KINDS,
} site_kind;

/* A place in the code, by its return address: the order that is in force there. */
memory_order_ weaken_order(const void *site, site_kind kind, memory_order_ order);
const char *weaken_name(memory_order_ order);
const char *weaken_describe(const void *site);

#endif
