/* One collective on a team. Every rank can compute its inputs and expected results itself. */
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
    size_t count; /* of a block, approximately */
    case_shape shape;
    bool is_in_place;
    bool is_asynchronous;
    bool has_small_values;   /* the sums of the values are exact in any order */
    unsigned region_ranks;   /* bit mask of the ranks whose memory is in regions */
    unsigned prepared_ranks; /* bit mask of the ranks that use a prepared call */
    uint64_t seed;
} coll_case;

/* Return the case with this number: the same on all ranks. */
coll_case case_sample(uint64_t number, dd_coll coll, size_t nbytes, int nranks);
void case_print(const coll_case *test, char out[200]);

/* Run the case, and check the outputs and that the inputs are unchanged. If `is_linear`, floats
 * must equal a fold in rank order; else only results that no order changes are compared. The hash
 * covers this rank's outputs. */
void case_run(team_rank *self, const coll_case *test, bool is_linear, uint64_t *hash);

#endif
