/* The hosts of a group's ranks. Pure; equal on all ranks except for `rank` and the fields of its
 * host. */
#ifndef DD_COLLECTIVE_TOPOLOGY_H
#define DD_COLLECTIVE_TOPOLOGY_H

#include "core/status.h"

#include <stdbool.h>

typedef struct dd_topology {
    int rank;
    int nranks;
    int nhosts;
    int host;         /* of this rank */
    int local;        /* this rank's place there */
    int *host_of;     /* [nranks]: hosts are numbered in the order of their lowest ranks */
    int *local_of;    /* [nranks]: a rank's place among the ranks of its host, in rank order */
    int *nlocal_of;   /* [nhosts] */
    int nlocal;       /* on this rank's host */
    int *local_ranks; /* [nlocal]: ranks on this rank's host, in order */
    int min_nlocal;   /* over all hosts: how many ranks of each host can carry a share */
    int max_nlocal;
    int *ranks_at; /* [nranks]: host by host; a host's begin at first_of[host] */
    int *first_of; /* [nhosts] */
} dd_topology;

/* host_of[r]: a number below nranks, the same for all ranks of a host. DD_INVALID_ARGUMENT if rank
 * is not below nranks. */
dd_status dd_topology_init(dd_topology *topology, int rank, int nranks, const int *host_of,
                           dd_error *err) DD_MUST_CHECK;
void dd_topology_fini(dd_topology *topology);

/* Return the rank at place `local` of a host; -1 if there is none. */
int dd_topology_rank_at(const dd_topology *topology, int host, int local);

#endif
