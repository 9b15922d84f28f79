/* Internal interfaces of the memory model. memory.c has messages, views and atomic accesses;
 * memory_fences.c has fences and the order of sequentially consistent operations; memory_races.c
 * finds accesses that other accesses do not order; memory_states.c finds equal states. */
#ifndef DD_TESTS_MODELS_MEMORY_INTERNAL_H
#define DD_TESTS_MODELS_MEMORY_INTERNAL_H

#include "models/checker_internal.h"

#define MAX_MESSAGES_OF_ONE 400
#define UID_BITS 16

/* A message's position in modification order, with its writer in the lower bits. A greater place is
 * later. 0: none known. */
typedef uint64_t place;

typedef struct view {
    place at[MAX_LOCATIONS];
    uint32_t clock[CHECKER_MAX_THREADS];
} view;

typedef struct message {
    place where;
    uint64_t value;
    bool is_change;  /* a read-modify-write, which directly follows the message that it read */
    bool is_plain;   /* not atomic: the value is in memory, because no access races with it */
    const place *at; /* the view; NULL if it covers only its own location */
    int nat;
    uint32_t clock[CHECKER_MAX_THREADS];
} message;

/* Facts from all runs so far, with a bit for each thread. */
typedef struct known_location {
    uintptr_t address;
    unsigned users;
    unsigned writers; /* a subset of users */
    /* Two accesses, one of them a write, are not ordered: other runs execute them in the other
     * order. */
    bool is_contended;
} known_location;

typedef struct location {
    uintptr_t address;
    int size;
    bool is_of_kernel; /* all threads see only its last value */
    known_location *known;
    int nmessages;
    message *messages[MAX_MESSAGES_OF_ONE]; /* in modification order */
} location;

/* A sequentially consistent store joins the common order only when its thread executes its next
 * sequentially consistent operation, or when another thread that has seen it executes one. */
typedef struct pending_store {
    bool is_there;
    int location;
    place where;
    uint32_t clock;
} pending_store;

/* A write since its thread last let other threads run. */
typedef struct recent_write {
    int location;
    place where;
    place before; /* the thread's view of the location before the write */
} recent_write;

#define MAX_RECENT 256

typedef struct actor {
    view now;
    /* From loads that are not acquires; the next acquire fence adds it to `now`. */
    view acquired;
    /* Published by stores that are not releases; set by the last release fence. */
    view released;
    unsigned nwrites;
    pending_store pending;
    recent_write recent[MAX_RECENT];
    int nrecent;
    bool is_read[MAX_LOCATIONS]; /* in this poll */
    place last_read[MAX_LOCATIONS];
    int nsame[MAX_LOCATIONS]; /* number of equal reads in a row */
    bool has_polled;
    bool has_written; /* both in this poll */
    bool has_seen_news;
} actor;

typedef enum access_kind {
    ACCESS_READ,
    ACCESS_WRITE,
    ACCESS_ATOMIC_READ,
    ACCESS_ATOMIC_WRITE,
    ACCESS_KINDS,
} access_kind;

/* ---- memory.c */

extern location memory_locations[MAX_LOCATIONS];
extern int memory_nlocations;
extern actor memory_actors[CHECKER_MAX_THREADS];

/* Return the state of the running thread. */
static inline actor *
memory_own(void)
{
    return &memory_actors[checker_self()];
}

static inline uint64_t
memory_mix(uint64_t hash, uint64_t value)
{
    hash ^= value + UINT64_C(0x9E3779B97F4A7C15) + (hash << 6) + (hash >> 2);
    hash *= UINT64_C(0x94D049BB133111EB);
    return hash ^ hash >> 31;
}

static inline void
memory_raise(place *into, place other)
{
    *into = other > *into ? other : *into;
}

/* Save memory that is about to be overwritten. It is restored at the end of the run. */
void memory_keep_for_undo(void *at, size_t nbytes);
void memory_join(view *into, const view *other);
/* Record a non-atomic write to variables that are otherwise atomic. Their values are then read from
 * memory. */
void memory_write_whole_locations(uintptr_t address, size_t nbytes);
/* Let other threads run first, if is_needed is true. */
void memory_yield_for(bool is_needed);

/* ---- memory_fences.c */

extern place memory_common[MAX_LOCATIONS]; /* for sequentially consistent accesses and fences */

bool memory_is_acquire(memory_order_ order);
bool memory_is_release(memory_order_ order);
/* Add to the common order every pending store that precedes this thread's next operation. */
void memory_commit_known(int thread);

/* ---- memory_races.c */

void memory_begin_run_of_races(void);
/* Register an atomic variable. */
void memory_note_location(uintptr_t address);
/* Fail if a conflicting access of another thread is not ordered before this one. */
void memory_note_access(uintptr_t address, size_t nbytes, access_kind kind);
/* Return true if all conflicting atomic accesses of other threads are ordered before this
 * access. */
bool memory_is_ordered(uintptr_t address, int size, access_kind kind);
/* Hash the accesses that can still race: accesses that not all threads know of. */
uint64_t memory_hash_accesses(const uint32_t known_clock[CHECKER_MAX_THREADS]);

#endif
