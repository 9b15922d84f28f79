#include "collective/topology.h"

#include "core/mem.h"

#include <stddef.h>
#include <stdlib.h>

/* A rank and the caller's number of its host, for finding the ranks of one host without comparing all
 * pairs. */
typedef struct resident {
    int host;
    int rank;
} resident;

static int
compare_residents(const void *a, const void *b)
{
    const resident *left = a;
    const resident *right = b;
    if (left->host != right->host) {
        return left->host < right->host ? -1 : 1;
    }
    return left->rank < right->rank ? -1 : 1;
}

/* For each rank the lowest rank of its host, into host_of. */
static dd_status
find_lowest(int nranks, const int *host_of, int *lowest, dd_error *err)
{
    size_t nbytes = (size_t)nranks * sizeof(resident);
    resident *residents = dd_mem_alloc(nbytes);
    if (residents == NULL) {
        return dd_error_no_memory(err, nbytes);
    }
    for (int r = 0; r < nranks; r++) {
        residents[r] = (resident){.host = host_of[r], .rank = r};
    }
    qsort(residents, (size_t)nranks, sizeof *residents, compare_residents);
    for (int i = 0; i < nranks; i++) {
        bool is_first = i == 0 || residents[i].host != residents[i - 1].host;
        lowest[residents[i].rank] = is_first ? residents[i].rank : lowest[residents[i - 1].rank];
    }
    dd_mem_free(residents);
    return DD_OK;
}

/* host_of holds lowest ranks at first. */
static void
number_hosts(dd_topology *topology)
{
    for (int r = 0; r < topology->nranks; r++) {
        int lowest = topology->host_of[r];
        int host = lowest == r ? topology->nhosts++ : topology->host_of[lowest];
        topology->host_of[r] = host;
        topology->local_of[r] = topology->nlocal_of[host]++;
    }
    topology->host = topology->host_of[topology->rank];
    topology->local = topology->local_of[topology->rank];
    topology->nlocal = topology->nlocal_of[topology->host];
    topology->min_nlocal = topology->nranks;
    for (int host = 0; host < topology->nhosts; host++) {
        int nlocal = topology->nlocal_of[host];
        topology->min_nlocal = nlocal < topology->min_nlocal ? nlocal : topology->min_nlocal;
        topology->max_nlocal = nlocal > topology->max_nlocal ? nlocal : topology->max_nlocal;
    }
}

static dd_status
place_ranks(dd_topology *topology, dd_error *err)
{
    size_t nplaces = (size_t)topology->nhosts * (size_t)topology->max_nlocal;
    topology->ranks_at = dd_mem_alloc_array(nplaces, sizeof(int));
    if (topology->ranks_at == NULL) {
        return dd_error_no_memory(err, nplaces * sizeof(int));
    }
    for (size_t i = 0; i < nplaces; i++) {
        topology->ranks_at[i] = -1;
    }
    for (int r = 0; r < topology->nranks; r++) {
        topology->ranks_at[topology->host_of[r] * topology->max_nlocal + topology->local_of[r]] = r;
    }
    topology->local_ranks = topology->ranks_at + topology->host * topology->max_nlocal;
    return DD_OK;
}

dd_status
dd_topology_init(dd_topology *topology, int rank, int nranks, const int *host_of, dd_error *err)
{
    if (nranks < 1 || rank < 0 || rank >= nranks) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "rank %d is none of a group of %d", rank, nranks);
    }
    size_t nbytes = 3 * (size_t)nranks * sizeof(int);
    int *numbers = dd_mem_zalloc(nbytes);
    if (numbers == NULL) {
        return dd_error_no_memory(err, nbytes);
    }
    dd_topology made = {.rank = rank,
                        .nranks = nranks,
                        .host_of = numbers,
                        .local_of = numbers + nranks,
                        .nlocal_of = numbers + 2 * (size_t)nranks};
    dd_status status = find_lowest(nranks, host_of, made.host_of, err);
    if (status == DD_OK) {
        number_hosts(&made);
        status = place_ranks(&made, err);
    }
    if (status != DD_OK) {
        dd_mem_free(numbers);
        return status;
    }
    *topology = made;
    return DD_OK;
}

void
dd_topology_fini(dd_topology *topology)
{
    dd_mem_free(topology->host_of);
    dd_mem_free(topology->ranks_at);
    *topology = (dd_topology){0};
}

int
dd_topology_rank_at(const dd_topology *topology, int host, int local)
{
    if (host < 0 || host >= topology->nhosts || local < 0 || local >= topology->max_nlocal) {
        return -1;
    }
    return topology->ranks_at[host * topology->max_nlocal + local];
}
