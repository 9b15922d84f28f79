/* The memory of all ranks of one collective in one place: filled, and compared with what has to come out.
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
    bool is_uneven; /* blocks: of sizes up to count */
    bool is_in_place;
} coll_case;

typedef struct coll_rank {
    dd_coll_args args;
    dd_block *inputs;
    dd_block *outputs;
    int ninputs;
    int noutputs;
    void **originals; /* of the inputs */
} coll_rank;

typedef struct coll_world {
    coll_case what;
    coll_rank *ranks;
} coll_world;

void coll_world_init(coll_world *world, const coll_case *what);
void coll_world_fini(coll_world *world);

/* Fills everything in again, for the next time. */
void coll_world_fill(coll_world *world);
void coll_world_fill_rank(coll_world *world, int rank);

/* CHECKs what a rank has: its outputs, and that its inputs are as they were. False, and prints the case,
 * when they are not. */
bool coll_world_check_rank(const coll_world *world, int rank);

/* The signature that ranks of the case agree on. */
dd_signature coll_world_signature(const coll_case *what);

const char *coll_case_print(const coll_case *what, char text[160]);

#endif
