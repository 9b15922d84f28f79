/* Ranks by the thousand meet in one process: what that costs the store, and which links it takes.
 *
 * Every rank is a thread that calls dd_meet. Its store puts each request and each answer through the codec of the TCP
 * protocol, as client and server do, and counts the bytes; behind that is a keyspace in memory. Links are counted, not
 * made: those of a group that is being made, and those that the plans of a collective use. */
#ifndef DD_TESTS_MEETING_SIM_H
#define DD_TESTS_MEETING_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct meeting_sim_shape {
    int nranks;
    int nhosts;      /* rank r is on host r / (nranks / nhosts) */
    bool is_by_keys; /* by the operations that every store has, not by the one request of our server */
} meeting_sim_shape;

typedef struct meeting_sim_traffic {
    uint64_t nrequests;
    uint64_t nbytes; /* of requests and answers, as they are on the wire */
} meeting_sim_traffic;

/* Links of one process to others. */
typedef struct meeting_sim_links {
    int nnear; /* shared memory */
    int nfar;  /* TCP */
} meeting_sim_links;

/* After what: the world is made, and nothing more, or one collective of so many bytes in an array, or a block. */
typedef enum meeting_sim_step {
    MEETING_SIM_MET,
    MEETING_SIM_ALL_REDUCE_8_B,
    MEETING_SIM_ALL_REDUCE_64_MIB,
    MEETING_SIM_ALL_TO_ALL_8_B,
    MEETING_SIM_ALL_TO_ALL_64_KIB,
    MEETING_SIM_NSTEPS,
} meeting_sim_step;

typedef struct meeting_sim_bill {
    meeting_sim_traffic most_of_a_rank;
    meeting_sim_traffic store;                       /* of all ranks */
    meeting_sim_links of_rank_0[MEETING_SIM_NSTEPS]; /* which leads its host, and the hosts */
    meeting_sim_links of_last[MEETING_SIM_NSTEPS];   /* which leads nobody, where hosts have several ranks */
    /* Of what a process keeps: for each other rank, whether it talks to it or not; 0: this build does not tell. */
    size_t nbytes_for_another;
} meeting_sim_bill;

/* False: it came to nothing, and a check has failed. */
bool meeting_sim_run(const meeting_sim_shape *shape, meeting_sim_bill *bill);

#endif
