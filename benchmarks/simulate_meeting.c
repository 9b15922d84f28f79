/* Simulates rendezvous costs of many ranks: all of them run the real code in this process.
 *
 *     make bench-meeting
 *
 * Prints, for worlds of different sizes: store requests and bytes sent; the largest number of links
 * of any process, after rendezvous and after collectives; bytes that a process keeps per other
 * rank. These are counts, not times, so they are the same on every machine. The method is in
 * tests/c/meeting_sim.h, the table in docs/benchmarks.md. */
#include "meeting_sim.h"

#include <stdio.h>
#include <stdlib.h>

static const meeting_sim_shape shapes[] = {
    {.nranks = 64, .nhosts = 1},
    {.nranks = 256, .nhosts = 1},
    {.nranks = 256, .nhosts = 4},
    {.nranks = 256, .nhosts = 16},
    {.nranks = 1024, .nhosts = 16},
    {.nranks = 1024, .nhosts = 64},
    {.nranks = 4096, .nhosts = 16},
    {.nranks = 4096, .nhosts = 64},
    {.nranks = 64, .nhosts = 4, .is_by_keys = true},
    {.nranks = 1024, .nhosts = 16, .is_by_keys = true},
    {.nranks = 4096, .nhosts = 64, .is_by_keys = true},
};
#define NSHAPES (sizeof shapes / sizeof shapes[0])

static void
print_shape(const meeting_sim_shape *shape)
{
    printf("| %d | %d | %s |", shape->nranks, shape->nhosts, shape->is_by_keys ? "any" : "ours");
}

static void
print_costs(const meeting_sim_shape *shape, const meeting_sim_bill *bill)
{
    print_shape(shape);
    printf(" %llu | %.1f | %llu | %.2f | %.2f | %zu |\n", (unsigned long long)bill->most_of_a_rank.nrequests,
           (double)bill->most_of_a_rank.nbytes / 1e3, (unsigned long long)bill->store.nrequests,
           (double)bill->store.nbytes / 1e6, (double)bill->store.nbytes / 1e3 / shape->nranks,
           bill->nbytes_for_another);
    fflush(stdout);
}

static void
print_links(const meeting_sim_shape *shape, const meeting_sim_bill *bill)
{
    printf("| %d | %d |", shape->nranks, shape->nhosts);
    for (int step = 0; step < MEETING_SIM_NSTEPS; step++) {
        printf(" %d + %d, %d + %d |", bill->of_rank_0[step].nnear, bill->of_rank_0[step].nfar,
               bill->of_last[step].nnear, bill->of_last[step].nfar);
    }
    printf("\n");
}

int
main(void)
{
    static meeting_sim_bill bills[NSHAPES];
    printf(
        "| ranks | hosts | store | requests of a rank, at most | KB of a rank, at most | requests at the store | "
        "MB at the store | KB there for each rank | bytes kept for another rank |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (size_t i = 0; i < NSHAPES; i++) {
        if (!meeting_sim_run(&shapes[i], &bills[i])) {
            return EXIT_FAILURE;
        }
        print_costs(&shapes[i], &bills[i]);
    }
    printf("\nLinks of rank 0, and of the last rank: shared memory + TCP\n\n"
           "| ranks | hosts | world made | all_reduce 8 B | 64 MiB | all_to_all 8 B | 64 KiB |\n"
           "| --- | --- | --- | --- | --- | --- | --- |\n");
    for (size_t i = 0; i < NSHAPES; i++) {
        if (!shapes[i].is_by_keys) {
            print_links(&shapes[i], &bills[i]);
        }
    }
    return EXIT_SUCCESS;
}
