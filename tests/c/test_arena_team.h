/* Ranks of an arena for tests, as threads or as processes, and a driver that runs an operation to
 * its end. */
#ifndef DD_TESTS_TEST_ARENA_TEAM_H
#define DD_TESTS_TEST_ARENA_TEAM_H

#include "check.h"
#include "collective/arena/arena.h"

#include <stdatomic.h>

/* The time at which the ranks' processes join the fence (core/fence.h). */
typedef enum team_fence {
    TEAM_FENCED,
    TEAM_FENCED_LATE, /* while the arena is in use */
    TEAM_UNFENCED,
} team_fence;

typedef struct team_options {
    int nranks;
    team_fence fence;
    bool is_forked;       /* ranks are processes, not threads */
    bool is_crowded;      /* the arena is created for more ranks than cores */
    bool is_sleeping;     /* blocked ranks sleep until they are woken */
    bool is_delayed;      /* ranks pause at random */
    bool is_lazy;         /* regions of other ranks are added on demand */
    size_t shared_nbytes; /* memory per rank that all ranks map at one address */
} team_options;

typedef struct team_rank {
    const team_options *options;
    int rank;
    int nranks;
    dd_arena *arena;
    uint8_t *const *shared; /* array of nranks */
    const int *bells;       /* array of nranks eventfds */
    uint64_t random;
    dd_arena_ranks wanted[2]; /* ranks whose regions 1 and 2 are requested and not yet added */
    dd_arena_ranks added[2];
} team_rank;

/* Regions 1 and 2 are the halves of a rank's shared memory. */
#define TEAM_NREGIONS 2

/* Run all ranks to the end, within the test's time limit. */
void arena_team_run(const team_options *options, void (*run)(team_rank *self, const void *arg),
                    const void *arg);

/* Run an operation to its end. Return DD_ARENA_BLOCKED if that takes far too long. */
dd_arena_state arena_team_finish(team_rank *self, const dd_coll_args *args,
                                 const dd_arena_op_options *options);
/* Return options with the callbacks that arena_team_finish needs. */
dd_arena_op_options arena_team_op_options(team_rank *self, dd_signature signature);
/* Return the signature that a group would give the operation. */
dd_signature arena_team_signature(const dd_coll_args *args, size_t count);

uint64_t arena_team_random(uint64_t *state);

#endif
