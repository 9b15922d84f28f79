/* One collective on a team, with inputs and results that every rank can tell by itself. */
#ifndef DD_TESTS_GROUP_CASE_H
#define DD_TESTS_GROUP_CASE_H

#include "group_team.h"

typedef enum case_shape {
    SHAPE_EVEN,
    SHAPE_UNEVEN, /* some blocks are empty */
    SHAPE_COUNT,
} case_shape;

typedef struct coll_case {
    dd_coll coll;
    dd_dtype dtype;
    dd_redop op;
    int root;
    size_t count; /* of a block, about */
    case_shape shape;
    bool is_in_place;
    bool is_asynchronous;
    bool has_small_values;   /* numbers whose sums are exact, in any order */
    unsigned region_ranks;   /* bits: ranks whose memory is in regions */
    unsigned standing_ranks; /* bits: ranks that make a standing call of it */
    uint64_t seed;
} coll_case;

/* Gives a case by a number: the same on all ranks. */
coll_case case_sample(uint64_t number, dd_coll coll, size_t nbytes, int nranks);
void case_print(const coll_case *test, char out[200]);

/* Runs it, and checks the outputs, and that the inputs have not changed. `is_linear`: floats must be what a fold in rank order
 * gives; else only numbers that no order changes are compared. The hash is of this rank's outputs. */
void case_run(team_rank *self, const coll_case *test, bool is_linear, uint64_t *hash);

#endif
