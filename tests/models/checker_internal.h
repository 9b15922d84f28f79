/* Internal interfaces of the checker. explore.c makes the decisions; memory.c is the memory model;
 * buffering.c detects load buffering, which the model excludes; hooks.c receives the accesses of
 * the code under check; standins.c replaces system functions; weaken.c weakens memory orders. */
#ifndef DD_TESTS_MODELS_CHECKER_INTERNAL_H
#define DD_TESTS_MODELS_CHECKER_INTERNAL_H

#include "models/checker.h"

#include <stdio.h>

/* Limits of one run. */
#define MAX_LOCATIONS 512
#define MAX_MESSAGES 8192

/* ---- explore.c */

/* Choose one of n alternatives; later runs choose the others. */
int explore_choose(int n);
/* Let other threads run first. With `may_go_on`, wait until it returns true. */
void explore_yield(bool (*may_go_on)(const void *arg), const void *arg);
/* End this run, because other runs cover it. */
_Noreturn void explore_prune(void);
/* Restart the exploration, because an assumption about the scenario was wrong. */
_Noreturn void explore_restart(void);
_Noreturn void explore_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Add a value that the thread has read to the hash of its state. */
void explore_note_seen(uint64_t value);
void explore_forget_seen(uint64_t hash);
const scenario *explore_current(void);
bool explore_is_tracing(void);
/* true for addresses on a fiber's stack, which is private to its thread */
bool explore_is_on_stack(const void *at);
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

/* Explore all runs of the scenario, including its setup. */
void explore_scenario(const scenario *which, uint64_t max_runs, bool is_tracing, explore_result *result);

/* ---- memory.c */

typedef enum memory_order_ {
    ORDER_RELAXED = 0,
    ORDER_CONSUME = 1,
    ORDER_ACQUIRE = 2,
    ORDER_RELEASE = 3,
    ORDER_ACQ_REL = 4,
    ORDER_SEQ_CST = 5,
    ORDER_NONE = 6, /* a fence that is left out */
} memory_order_;

/* Compute the new value of a read-modify-write from `before`. Return false to write nothing. */
typedef bool memory_change(uint64_t before, uint64_t operand, uint64_t expected, uint64_t *after);

void memory_begin_run(void);
void memory_end_run(void); /* restores the state after setup */
void memory_begin_scenario(void);
/* covers the entire state that affects the threads in `live` */
uint64_t memory_hash(unsigned live);

void memory_read_plain(const void *at, size_t nbytes);
void memory_write_plain(void *at, size_t nbytes); /* call it before the write */

/* `site` is the address in the code, or NULL for an access by the kernel. */
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
    bool is_latest; /* for the kernel: reads the last value, never an older one */
} memory_rmw;
uint64_t memory_change_value(const memory_rmw *rmw);
/* Return the last value in modification order. */
uint64_t memory_latest(const void *at, int size);

void memory_fence(memory_order_ order);
/* Execute a fence in `target` on behalf of another thread. */
void memory_fence_other(int target);
/* Note that other threads may have run before the thread continued. */
void memory_note_turn(void);

/* Polling: a poll without a result ends; returns true if a value that it has read has changed
 * since; the next poll begins. */
void memory_end_look(void);
bool memory_has_news(int thread);
void memory_begin_look(void);
/* Return true if this poll, which is not the first, has neither written nor read anything new. */
bool memory_was_poll_unchanged(void);

/* ---- buffering.c */

void buffering_begin_scenario(void);
void buffering_begin_run(void);
/* Record accesses of a thread, to variables with unordered accesses. */
void buffering_note_load(uintptr_t address, const void *site, memory_order_ order);
void buffering_note_store(uintptr_t address, const void *site, memory_order_ order);
void buffering_note_fence(memory_order_ order);
void buffering_forget(void);
/* Return the number of pairs of a load and a later store that could cause load buffering. Call it
 * after all runs of a scenario. */
int buffering_count_open(bool is_verbose);

/* ---- standins.c */

/* Return the thread that owns the memory, or -1 if it is shared. */
int standins_owner_of(const void *at);

/* ---- weaken.c */

typedef enum site_kind {
    SITE_LOAD,
    SITE_STORE,
    SITE_RMW,
    SITE_FENCE,
    SITE_KINDS,
} site_kind;

/* Return the order that is in force at a place in the code, given by its return address. */
memory_order_ weaken_order(const void *site, site_kind kind, memory_order_ order);
const char *weaken_name(memory_order_ order);
const char *weaken_describe(const void *site);

#endif
