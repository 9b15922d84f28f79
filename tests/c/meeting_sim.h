/* Thousands of ranks meet in one process. Measures the cost to the store, and the links that are
 * used.
 *
 * Every rank is a thread that calls dd_meet. Its store passes each request and each answer through
 * the codec of the TCP protocol, as client and server do, and counts the bytes; behind that is a
 * keyspace in memory. Links are counted, not made: the links that the creation of a group needs,
 * and the links that the plans of a collective use. */
#ifndef DD_TESTS_MEETING_SIM_H
#define DD_TESTS_MEETING_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct meeting_sim_shape {
    int nranks;
    int nhosts; /* rank r is on host r / (nranks / nhosts) */
    /* use only operations of every store, not the single request of dldist's server */
    bool is_by_keys;
} meeting_sim_shape;

typedef struct meeting_sim_traffic {
    uint64_t nrequests;
    uint64_t nbytes; /* size of requests and answers on the wire */
} meeting_sim_traffic;

/* The number of links from one process to other processes. */
typedef struct meeting_sim_links {
    int nnear; /* over shared memory */
    int nfar;  /* over TCP */
} meeting_sim_links;

/* The step after which links are counted: the group is created, or one collective has run. The
 * number is the bytes in an array or block. */
typedef enum meeting_sim_step {
    MEETING_SIM_DONE,
    MEETING_SIM_ALL_REDUCE_8_B,
    MEETING_SIM_ALL_REDUCE_64_MIB,
    MEETING_SIM_ALL_TO_ALL_8_B,
    MEETING_SIM_ALL_TO_ALL_64_KIB,
    MEETING_SIM_NSTEPS,
} meeting_sim_step;

typedef struct meeting_sim_bill {
    meeting_sim_traffic most_of_a_rank;
    meeting_sim_traffic store;                       /* of all ranks together */
    meeting_sim_links of_rank_0[MEETING_SIM_NSTEPS]; /* rank 0 leads its host, and all hosts */
    /* the last rank leads no host if hosts have several ranks */
    meeting_sim_links of_last[MEETING_SIM_NSTEPS];
    /* Memory that a process keeps for each other rank, linked or not; 0 if this build cannot
     * measure it. */
    size_t nbytes_for_another;
} meeting_sim_bill;

/* Return false if a check failed. */
bool meeting_sim_run(const meeting_sim_shape *shape, meeting_sim_bill *bill);

#endif
