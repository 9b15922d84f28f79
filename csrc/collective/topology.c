#include "collective/topology.h"

#include "core/mem.h"

#include <stddef.h>

/* Number hosts in the order of their lowest ranks, and each host's ranks in order. `number` maps
 * the caller's host numbers to the topology's host numbers plus one; the caller must zero it. */
static void
number_hosts(dd_topology *topology, const int *host_of, int *number)
{
    for (int r = 0; r < topology->nranks; r++) {
        int *host = &number[host_of[r]];
        *host = *host != 0 ? *host : ++topology->nhosts;
        topology->host_of[r] = *host - 1;
        topology->local_of[r] = topology->nlocal_of[*host - 1]++;
    }
    topology->host = topology->host_of[topology->rank];
    topology->local = topology->local_of[topology->rank];
    topology->nlocal = topology->nlocal_of[topology->host];
    topology->min_nlocal = topology->nranks;
    int first = 0;
    for (int host = 0; host < topology->nhosts; host++) {
        int nlocal = topology->nlocal_of[host];
        topology->min_nlocal = nlocal < topology->min_nlocal ? nlocal : topology->min_nlocal;
        topology->max_nlocal = nlocal > topology->max_nlocal ? nlocal : topology->max_nlocal;
        topology->first_of[host] = first;
        first += nlocal;
    }
    for (int r = 0; r < topology->nranks; r++) {
        topology->ranks_at[topology->first_of[topology->host_of[r]] + topology->local_of[r]] = r;
    }
    topology->local_ranks = topology->ranks_at + topology->first_of[topology->host];
}

dd_status
dd_topology_init(dd_topology *topology, int rank, int nranks, const int *host_of, dd_error *err)
{
    if (nranks < 1 || rank < 0 || rank >= nranks) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "invalid rank: got %d, expected 0 to %d", rank,
                            nranks - 1);
    }
    size_t n = (size_t)nranks;
    int *numbers = dd_mem_zalloc(6 * n * sizeof(int));
    if (numbers == NULL) {
        return dd_error_no_memory(err, 6 * n * sizeof(int));
    }
    *topology = (dd_topology){.rank = rank,
                              .nranks = nranks,
                              .host_of = numbers,
                              .local_of = numbers + n,
                              .nlocal_of = numbers + 2 * n,
                              .first_of = numbers + 3 * n,
                              .ranks_at = numbers + 4 * n};
    number_hosts(topology, host_of, numbers + 5 * n);
    return DD_OK;
}

void
dd_topology_fini(dd_topology *topology)
{
    dd_mem_free(topology->host_of);
    *topology = (dd_topology){0};
}

int
dd_topology_rank_at(const dd_topology *topology, int host, int local)
{
    if (host < 0 || host >= topology->nhosts || local < 0 || local >= topology->nlocal_of[host]) {
        return -1;
    }
    return topology->ranks_at[topology->first_of[host] + local];
}
