/* The memory of all ranks of one collective in one place: filled, and compared with the expected
 * results.
 *
 * Numbers are small integers, so that every order of folding gives the same bits. */
#ifndef DD_TESTS_COLL_WORLD_H
#define DD_TESTS_COLL_WORLD_H

#include "collective/coll.h"
#include "transport/signature.h"

typedef struct coll_case {
    dd_coll coll;
    int nranks;
    int root;
    dd_dtype dtype;
    dd_redop op;
    size_t count;   /* elements of the array, or of each block */
    bool is_uneven; /* blocks have different sizes, up to count */
    bool is_in_place;
} coll_case;

typedef struct coll_rank {
    dd_coll_args args;
    dd_block *inputs;
    dd_block *outputs;
    int ninputs;
    int noutputs;
    void **originals; /* copies of the inputs */
} coll_rank;

typedef struct coll_world {
    coll_case label;
    coll_rank *ranks;
} coll_world;

void coll_world_init(coll_world *world, const coll_case *test_case);
void coll_world_fini(coll_world *world);

/* Fill all inputs again, for another run. */
void coll_world_fill(coll_world *world);
void coll_world_fill_rank(coll_world *world, int rank);

/* CHECK a rank's outputs, and that its inputs are unchanged. On failure print the case. */
bool coll_world_check_rank(const coll_world *world, int rank);

/* Return the signature on which the ranks of the case agree. */
dd_signature coll_world_signature(const coll_case *test_case);

const char *coll_case_print(const coll_case *test_case, char text[160]);

#endif
