/* What the files of the model of memory share: memory.c has messages, views, and what atomic accesses do with them; memory_fences.c has fences and
 * the common order of what is sequentially consistent; memory_races.c, which accesses are ordered by others; memory_states.c, which
 * states are the same. */
#ifndef DD_TESTS_MODELS_MEMORY_INTERNAL_H
#define DD_TESTS_MODELS_MEMORY_INTERNAL_H

#include "models/checker_internal.h"

#define MAX_MESSAGES_OF_ONE 400
#define UID_BITS 16

/* Where a message is in modification order, and in the lower bits who wrote it: greater is later. 0: nothing is known. */
typedef uint64_t place;

typedef struct view {
    place at[MAX_LOCATIONS];
    uint32_t clock[CHECKER_MAX_THREADS];
} view;

typedef struct message {
    place where;
    uint64_t value;
    bool is_change;  /* a read-modify-write that has read the one before it: nothing comes between */
    bool is_plain;   /* not atomic: the value is in memory, since nothing races with it */
    const place *at; /* the view; NULL: of its own location alone */
    int nat;
    uint32_t clock[CHECKER_MAX_THREADS];
} message;

/* What all runs have shown, a bit for each thread. */
typedef struct known_location {
    uintptr_t address;
    unsigned users;
    unsigned writers; /* of them */
    bool
        is_contended; /* two accesses, one of them a write, are in no order but that of this run: so there are others */
} known_location;

typedef struct location {
    uintptr_t address;
    int size;
    bool is_of_kernel; /* nobody sees any but its last value */
    known_location *known;
    int nmessages;
    message *messages[MAX_MESSAGES_OF_ONE]; /* in modification order */
} location;

/* The store of a sequentially consistent access is in the common order of these not before its thread's next one, or before another thread
 * that knows of it does one. */
typedef struct pending_store {
    bool is_there;
    int location;
    place where;
    uint32_t clock;
} pending_store;

/* A write since its thread has last let others go first. */
typedef struct recent_write {
    int location;
    place where;
    place before; /* what the thread knew of the location */
} recent_write;

#define MAX_RECENT 256

typedef struct actor {
    view now;
    view acquired; /* by loads that were not acquires: counts after a fence */
    view released; /* what stores that are no releases publish: that of the last fence */
    unsigned nwrites;
    pending_store pending;
    recent_write recent[MAX_RECENT];
    int nrecent;
    bool is_read[MAX_LOCATIONS]; /* in this look */
    place last_read[MAX_LOCATIONS];
    int nsame[MAX_LOCATIONS]; /* how often in a row */
    bool has_polled;
    bool has_written; /* in this look, both */
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

/* Of the thread that runs. */
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

/* What is to be written over: it comes back when the run has ended. */
void memory_keep_for_undo(void *at, size_t nbytes);
void memory_join(view *into, const view *other);
/* A write that is not atomic, of a variable that others are: what follows in memory is its value. */
void memory_write_whole_locations(uintptr_t address, size_t nbytes);
/* Lets others go first, where that decides something. */
void memory_yield_for(bool is_needed);

/* ---- memory_fences.c */

extern place memory_common[MAX_LOCATIONS]; /* of sequentially consistent accesses and fences */

bool memory_is_acquire(memory_order_ order);
bool memory_is_release(memory_order_ order);
/* All that comes before what this thread does now. */
void memory_commit_known(int thread);

/* ---- memory_races.c */

void memory_begin_run_of_races(void);
/* There is an atomic variable. */
void memory_note_location(uintptr_t address);
/* Fails where one by another thread, which it needs an order with, is not before it. */
void memory_note_access(uintptr_t address, size_t nbytes, access_kind kind);
/* Whether all atomic accesses of others, where one of the two is a write, are ordered before an atomic one of this thread. */
bool memory_is_ordered(uintptr_t address, int size, access_kind kind);
/* Of what may still race: accesses that not all threads know of. */
uint64_t memory_hash_accesses(const uint32_t known_clock[CHECKER_MAX_THREADS]);

#endif
