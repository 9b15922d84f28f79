/* Which ranks of a group share a host. Pure; the same on every rank but for `rank` and what is said of its
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
    int min_nlocal;   /* over all hosts: so many ranks of each host can carry a share between hosts */
    int max_nlocal;
    int *ranks_at; /* [nranks]: host by host; a host's begin at first_of[host] */
    int *first_of; /* [nhosts] */
} dd_topology;

/* host_of[r]: a number below nranks that is the same for ranks of one host. DD_INVALID_ARGUMENT when rank is
 * none of the nranks. */
dd_status dd_topology_init(dd_topology *topology, int rank, int nranks, const int *host_of,
                           dd_error *err) DD_MUST_CHECK;
void dd_topology_fini(dd_topology *topology);

/* The rank at place `local` of a host; -1 when there is none. */
int dd_topology_rank_at(const dd_topology *topology, int host, int local);

#endif
