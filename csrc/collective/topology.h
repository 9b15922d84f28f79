/* The hosts of a group's ranks. All fields are equal on all ranks, except `rank` and the fields of
 * this rank's host. */
#ifndef DD_COLLECTIVE_TOPOLOGY_H
#define DD_COLLECTIVE_TOPOLOGY_H

#include "core/status.h"

#include <stdbool.h>

typedef struct dd_topology {
    int rank;
    int nranks;
    int nhosts;
    int host;         /* number of this rank's host */
    int local;        /* index of this rank among the ranks of its host */
    int *host_of;     /* [nranks]: each rank's host; hosts are numbered by their lowest ranks */
    int *local_of;    /* [nranks]: index of each rank among the ranks of its host, in rank order */
    int *nlocal_of;   /* [nhosts]: number of ranks on each host */
    int nlocal;       /* number of ranks on this rank's host */
    int *local_ranks; /* [nlocal]: the ranks on this rank's host, in order */
    int min_nlocal;   /* fewest ranks on a host: so many carriers fit on every host */
    int max_nlocal;
    int *ranks_at; /* [nranks]: the ranks, sorted by host */
    int *first_of; /* [nhosts]: index in ranks_at of each host's first rank */
} dd_topology;

/* Initialise. host_of[r] must identify the host of rank r: a number below nranks, equal for all
 * ranks of a host. DD_INVALID_ARGUMENT if `rank` is not below nranks. */
dd_status dd_topology_init(dd_topology *topology, int rank, int nranks, const int *host_of,
                           dd_error *err) DD_MUST_CHECK;
void dd_topology_fini(dd_topology *topology);

/* Return the rank with index `local` of a host; -1 if there is none. */
int dd_topology_rank_at(const dd_topology *topology, int host, int local);

#endif
