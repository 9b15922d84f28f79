/* Ranks of an arena for tests, as threads or as processes, and a driver that takes an operation to its end. */
#ifndef DD_TESTS_TEST_ARENA_TEAM_H
#define DD_TESTS_TEST_ARENA_TEAM_H

#include "check.h"
#include "collective/arena/arena.h"

#include <stdatomic.h>

/* When the ranks' processes take part in the fence (core/fence.h). */
typedef enum team_fence {
    TEAM_FENCED,
    TEAM_FENCED_LATE, /* with the arena in use */
    TEAM_UNFENCED,
} team_fence;

typedef struct team_options {
    int nranks;
    team_fence fence;
    bool is_forked;       /* processes, not threads */
    bool is_crowded;      /* the arena is made for more ranks than cores */
    bool is_sleeping;     /* ranks that are blocked sleep until they are woken */
    bool is_delayed;      /* now and then a rank dawdles */
    bool is_lazy;         /* regions of others are added when they are asked for */
    size_t shared_nbytes; /* of memory that all ranks see, per rank, at one address */
} team_options;

typedef struct team_rank {
    const team_options *options;
    int rank;
    int nranks;
    dd_arena *arena;
    uint8_t *const *shared; /* [nranks] */
    const int *bells;       /* [nranks]: eventfds */
    uint64_t random;
    dd_arena_ranks wanted[2]; /* regions 1 and 2 of these, asked for and not yet added */
    dd_arena_ranks added[2];
} team_rank;

/* Regions are the halves of a rank's shared memory: 1 and 2. */
#define TEAM_NREGIONS 2

/* Runs all ranks to the end, within the test's time. */
void arena_team_run(const team_options *options, void (*run)(team_rank *self, const void *arg),
                    const void *arg);

/* Takes an operation to its end; DD_ARENA_BLOCKED when it has taken far too long. */
dd_arena_state arena_team_finish(team_rank *self, const dd_coll_args *args,
                                 const dd_arena_op_options *options);
/* Options with the callbacks that arena_team_finish wants. */
dd_arena_op_options arena_team_op_options(team_rank *self, dd_signature signature);
/* What a group would say of the operation. */
dd_signature arena_team_signature(const dd_coll_args *args, size_t count);

uint64_t arena_team_random(uint64_t *state);

#endif
