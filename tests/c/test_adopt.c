/* Regions that reach sleeping ranks, and foreign memory that becomes a region at its address. */
#include "check.h"
#include "group_team.h"
#include "leftovers.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NBYTES ((size_t)100000) /* not a whole number of pages */

/* A mapping as torch creates it: of a file whose only name is its descriptor. */
typedef struct foreign {
    uint8_t *at;
    int fd;
} foreign;

static void
make_foreign(uint8_t value, foreign *memory)
{
    memory->fd = memfd_create("foreign", MFD_CLOEXEC);
    REQUIRE(memory->fd >= 0 && ftruncate(memory->fd, (off_t)NBYTES) == 0);
    memory->at = mmap(NULL, NBYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, 0);
    REQUIRE(memory->at != MAP_FAILED);
    memset(memory->at, value, NBYTES);
}

static void
end_foreign(foreign memory)
{
    munmap(memory.at, NBYTES);
    close(memory.fd);
}

static dd_coll_args
sum_of(const dd_block *block)
{
    return (dd_coll_args){.coll = DD_COLL_ALL_REDUCE,
                          .reduction = {.dtype = DD_DTYPE_UINT8, .op = DD_REDOP_SUM},
                          .inputs = block,
                          .outputs = block};
}

static void
sum_over_ranks(dd_group *group, dd_region *region)
{
    dd_block block = {.data = dd_region_data(region), .nbytes = dd_region_nbytes(region)};
    dd_coll_args args = sum_of(&block);
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    CHECK_OK(dd_group_collective_and_wait(group, &args, &team_no_options, &wait, check_err()));
}

/* Sum only in the engine's thread. */
static void
sum_in_background(dd_group *group, dd_region *region)
{
    dd_block block = {.data = dd_region_data(region), .nbytes = dd_region_nbytes(region)};
    dd_coll_args args = sum_of(&block);
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    dd_work *work = NULL;
    REQUIRE_OK(dd_group_collective(group, &args, &team_no_options, &work, check_err()));
    while (!dd_work_is_done(work) && !dd_wait_has_expired(&wait)) {
        CHECK_OK(dd_wait_sleep(&wait, 50 * DD_NS_PER_US, check_err()));
    }
    CHECK(dd_work_is_done(work));
    CHECK_OK(team_wait(group, work));
}

static void
check_all(const uint8_t *data, int value)
{
    size_t nwrong = 0;
    for (size_t i = 0; i < NBYTES; i++) {
        nwrong += data[i] != value;
    }
    CHECK_INT(nwrong, 0);
}

/* Use a region in each round that the other ranks have not seen. Some ranks already sleep when its
 * descriptor arrives. */
static void
reduce_new_regions(team_rank *self)
{
    for (size_t i = 1; i <= 60; i++) {
        dd_wait wait = dd_wait_after(DD_NS_PER_S);
        dd_region *region = NULL;
        CHECK_OK(
            dd_wait_sleep(&wait, (int64_t)((size_t)self->rank * i % 7) * 100 * DD_NS_PER_US, check_err()));
        REQUIRE_OK(dd_group_alloc(self->group, i * 20000, &region, check_err()));
        memset(dd_region_data(region), 1, i * 20000);
        sum_in_background(self->group, region);
        CHECK_INT(*(uint8_t *)dd_region_data(region), self->size);
        dd_region_release(region);
    }
}

static void
reduce_one_region(team_rank *self)
{
    dd_region *region = NULL;
    REQUIRE_OK(dd_group_alloc(self->group, NBYTES, &region, check_err()));
    memset(dd_region_data(region), 1, NBYTES);
    sum_over_ranks(self->group, region);
    check_all(dd_region_data(region), self->size);
    dd_region_release(region);
}

/* Every rank needs the regions of all other ranks at the same time. */
TEST(all_reduce_of_shared_arrays_of_twenty_ranks_is_correct)
{
    team_options options = {.size = 20};
    team_run(&options, reduce_one_region, NULL);
}

TEST(ranks_that_already_sleep_can_use_new_shared_arrays_of_other_ranks)
{
    team_options options = {.size = 4};
    team_run(&options, reduce_new_regions, NULL);
}

static void
reduce_adopted(team_rank *self)
{
    foreign memory;
    make_foreign((uint8_t)(self->rank + 1), &memory);
    dd_region *region = NULL;
    REQUIRE_OK(dd_group_adopt(self->group, memory.at, NBYTES, memory.fd, &region, check_err()));
    CHECK_INT(dd_region_nbytes(region), NBYTES);
    check_all(memory.at, self->rank + 1);
    sum_over_ranks(self->group, region);
    check_all(memory.at, 3);
    memset(memory.at, 5, NBYTES); /* as the next gradients would */
    sum_over_ranks(self->group, region);
    check_all(memory.at, 10);
    team_rendezvous(self, "reduced"); /* the other rank reads our memory, and is done */

    uint8_t byte = 0;
    CHECK_INT(pread(memory.fd, &byte, 1, NBYTES - 1), 1);
    CHECK_INT(byte, 10);
    end_foreign(memory);
    dd_region_note_unmapped(region);
    dd_region_release(region);
    team_rendezvous(self, "released");
}

TEST(memory_adopted_from_the_caller_is_reduced_in_place)
{
    team_options options = {.size = 2};
    team_run_both(&options, reduce_adopted, NULL);
}

/* Adopt memory, reduce, and free it. Store the address of the region's own mapping in *own. */
static void
use_once(team_rank *self, int turn, void **own)
{
    char name[32];
    foreign memory;
    make_foreign((uint8_t)turn, &memory);
    dd_region *region = NULL;
    REQUIRE_OK(dd_group_adopt(self->group, memory.at, NBYTES, memory.fd, &region, check_err()));
    check_all(memory.at, turn);
    sum_over_ranks(self->group, region);
    check_all(memory.at, 2 * turn);
    (void)snprintf(name, sizeof name, "turn %d", turn);
    team_rendezvous(self, name);
    end_foreign(memory);
    *own = dd_region_data(region);
    dd_region_note_unmapped(region);
    dd_region_release(region);
}

/* Count for the whole process on rank 0 while others wait: counting also needs descriptors. */
static void
count_alone(team_rank *self, const char *name, int *nfds, int *nmappings)
{
    char counted[32];
    (void)snprintf(counted, sizeof counted, "%s, counted", name);
    team_rendezvous(self, name);
    if (self->rank == 0) {
        *nfds = count_fds();
        *nmappings = count_shared_mappings();
    }
    team_rendezvous(self, counted);
}

static void
adopt_in_turn(team_rank *self)
{
    void *first = NULL;
    void *own = NULL;
    int nfds[2] = {0, 0};
    int nmappings[2] = {0, 0};
    use_once(self, 1, &first);
    count_alone(self, "first", &nfds[0], &nmappings[0]);
    for (int turn = 2; turn < 20; turn++) {
        use_once(self, turn, &own);
        CHECK(own == first);
    }
    count_alone(self, "last", &nfds[1], &nmappings[1]);
    /* At the first count a descriptor may still have been in transit. */
    CHECK(nfds[1] <= nfds[0] && nmappings[1] <= nmappings[0]);
}

TEST(adopting_memory_again_and_again_reuses_one_mapping)
{
    team_options options = {.size = 2};
    team_run_both(&options, adopt_in_turn, NULL);
}

static void
keep_mapping(team_rank *self)
{
    foreign memory[2];
    for (int i = 0; i < 2; i++) {
        make_foreign((uint8_t)(i + 1), &memory[i]);
        dd_region *region = NULL;
        REQUIRE_OK(dd_group_adopt(self->group, memory[i].at, NBYTES, memory[i].fd, &region, check_err()));
        dd_region_release(region);
    }
    team_rendezvous(self, "adopted");
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    CHECK_OK(dd_group_close(self->group, &wait, check_err()));
    for (int i = 0; i < 2; i++) {
        check_all(memory[i].at, i + 1);
        end_foreign(memory[i]);
    }
}

TEST(the_callers_mapping_stays_valid_after_its_adopted_array_is_released)
{
    team_options options = {.size = 2};
    team_run_both(&options, keep_mapping, NULL);
}

static void
adopt_invalid_memory(team_rank *self)
{
    foreign memory;
    make_foreign(7, &memory);
    dd_region *region = NULL;
    CHECK_STATUS(dd_group_adopt(self->group, memory.at + 1, 10, memory.fd, &region, check_err()),
                 DD_INVALID_ARGUMENT);
    CHECK_STATUS(dd_group_adopt(self->group, memory.at, 0, memory.fd, &region, check_err()),
                 DD_INVALID_ARGUMENT);
    CHECK_STATUS(dd_group_adopt(self->group, memory.at, NBYTES, -1, &region, check_err()), DD_SYSTEM);
    CHECK(region == NULL);
    memory.at[0] = 8;
    uint8_t byte = 0;
    CHECK_INT(pread(memory.fd, &byte, 1, 0), 1);
    CHECK_INT(byte, 8); /* still a mapping of that descriptor */
    team_rendezvous(self, "adopted");
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    CHECK_OK(dd_group_close(self->group, &wait, check_err()));
    CHECK_STATUS(dd_group_adopt(self->group, memory.at, NBYTES, memory.fd, &region, check_err()), DD_CLOSED);
    end_foreign(memory);
}

TEST(the_callers_mapping_stays_valid_after_a_failed_adoption)
{
    team_options options = {.size = 2};
    team_run(&options, adopt_invalid_memory, NULL);
}
