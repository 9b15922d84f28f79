/* Memory that ranks of a host share: the regions that a group keeps, the memory that it takes back
 * from other ranks after a failure, and a forked child, which must not touch any of it. */
#include "check.h"
#include "group/internal.h"
#include "group_team.h"
#include "leftovers.h"

#include "core/mem.h"
#include "faults/faults.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define MIB ((size_t)1 << 20)

static size_t
count_resident_pages(const void *data, size_t nbytes)
{
    size_t npages = nbytes / PAGE;
    unsigned char *residence = calloc(npages, 1);
    CHECK(mincore((void *)(uintptr_t)data, nbytes, residence) == 0);
    size_t nresident = 0;
    for (size_t i = 0; i < npages; i++) {
        nresident += residence[i] & 1;
    }
    free(residence);
    return nresident;
}

static bool
is_filled(const uint8_t *data, size_t nbytes, uint8_t value)
{
    size_t i = 0;
    while (i < nbytes && data[i] == value) {
        i++;
    }
    return i == nbytes;
}

static dd_region *
alloc_filled(dd_group *group, size_t nbytes, uint8_t value)
{
    dd_region *region = NULL;
    CHECK_OK(dd_group_alloc(group, nbytes, &region, check_err()));
    CHECK_INT(dd_region_nbytes(region), nbytes);
    CHECK(is_filled(dd_region_data(region), nbytes, 0));
    memset(dd_region_data(region), value, nbytes);
    return region;
}

/* ---- kept regions */

static void
use_many_sizes(team_rank *self)
{
    int nmappings = 0;
    for (size_t i = 0; i < 200; i++) {
        size_t nbytes = 1 + (i * 7919 % 200) * 5000;
        dd_region_release(alloc_filled(self->group, nbytes, 0xff));
        nmappings = i == 100 ? count_shared_mappings() : nmappings;
    }
    CHECK(nmappings < 20);
    CHECK(count_shared_mappings() <= nmappings + 1);
}

TEST(new_shared_arrays_reuse_the_memory_of_released_ones_of_any_size)
{
    team_run(&(team_options){.size = 1}, use_many_sizes, NULL);
}

static void
release_many(team_rank *self)
{
    dd_region *regions[5];
    const uint8_t *data[5];
    for (int i = 0; i < 5; i++) {
        regions[i] = alloc_filled(self->group, 20 * MIB, 1);
        data[i] = dd_region_data(regions[i]);
    }
    size_t nresident = 0;
    for (int i = 0; i < 5; i++) {
        dd_region_release(regions[i]);
        nresident += count_resident_pages(data[i], 20 * MIB);
    }
    CHECK(nresident > 0 && nresident * PAGE <= 64 * MIB);
    for (int i = 0; i < 5; i++) { /* with resident pages and without */
        regions[i] = alloc_filled(self->group, 20 * MIB, 1);
    }
    for (int i = 0; i < 5; i++) {
        dd_region_release(regions[i]);
    }
}

TEST(the_memory_kept_of_released_shared_arrays_is_limited)
{
    team_run(&(team_options){.size = 1}, release_many, NULL);
}

typedef struct shared_holder {
    dd_region *region;
    atomic_int *nready;
} shared_holder;

static void *
release_with_the_other(void *arg)
{
    shared_holder *holder = arg;
    atomic_fetch_add(holder->nready, 1);
    for (int i = 0; atomic_load(holder->nready) < 2; i++) {
        if (i > 10000) {
            sched_yield();
        }
    }
    dd_region_release(holder->region);
    return NULL;
}

static size_t
count_kept_nbytes(dd_group *group)
{
    dd_group_memory memory;
    dd_group_get_memory(group, &memory);
    return memory.suspend;
}

/* An array has two holders, which release it at the same moment: its pages must be counted once. */
static void
release_twice_at_a_time(team_rank *self)
{
    size_t nbytes_before = count_kept_nbytes(self->group);
    int nwrong = 0;
    for (int i = 0; i < 500 && nwrong == 0; i++) {
        atomic_int nready = 0;
        shared_holder holder = {.nready = &nready};
        CHECK_OK(dd_group_alloc(self->group, PAGE, &holder.region, check_err()));
        nwrong += count_kept_nbytes(self->group) != nbytes_before;
        pthread_t thread;
        dd_region_acquire(holder.region);
        REQUIRE(pthread_create(&thread, NULL, release_with_the_other, &holder) == 0);
        release_with_the_other(&holder);
        pthread_join(thread, NULL);
        nwrong += count_kept_nbytes(self->group) != nbytes_before + PAGE;
    }
    CHECK_INT(nwrong, 0);
}

TEST(a_shared_array_released_by_two_threads_is_counted_once)
{
    team_run(&(team_options){.size = 1}, release_twice_at_a_time, NULL);
}

static void
run_out_of_memory(team_rank *self)
{
    int nfds = count_fds();
    long nfailures = 0;
    for (dd_status status = DD_OUT_OF_MEMORY; status != DD_OK;) {
        dd_region *region = NULL;
        dd_mem_fail_after(nfailures);
        status = dd_group_alloc(self->group, 10000, &region, check_err());
        dd_mem_fail_after(-1);
        if (status != DD_OK) {
            CHECK_STATUS(status, DD_OUT_OF_MEMORY);
            CHECK(region == NULL);
            nfailures++;
        }
        dd_region_release(region);
        CHECK_INT(count_fds(), nfds);
    }
    CHECK(nfailures > 0);
}

TEST(allocating_a_shared_array_leaks_nothing_when_allocations_fail)
{
    team_run(&(team_options){.size = 1}, run_out_of_memory, NULL);
}

/* ---- after a failure */

static void
take_back(team_rank *self, dd_block block)
{
    dd_engine_lock(self->engine);
    CHECK_OK(group_take_back_locked(self->group, block, check_err()));
    dd_engine_unlock(self->engine);
}

/* Map the same pages again, like another rank. */
static uint8_t *
map_again(void *data, size_t nbytes)
{
    void *again = mremap(data, 0, nbytes, MREMAP_MAYMOVE);
    CHECK(again != MAP_FAILED);
    return again;
}

static void
lose_access(team_rank *self)
{
    const size_t nbytes = 16 * PAGE;
    dd_region *region = alloc_filled(self->group, nbytes, 1);
    uint8_t *data = dd_region_data(region);
    uint8_t *theirs = map_again(data, nbytes);
    theirs[5 * PAGE] = 2;
    CHECK_INT(data[5 * PAGE], 2);
    take_back(self, (dd_block){data + 4 * PAGE, 4 * PAGE - 100});
    CHECK_INT(data[5 * PAGE], 2);
    memset(theirs, 3, nbytes);
    CHECK(is_filled(data, 4 * PAGE, 3));
    CHECK_INT(data[5 * PAGE], 2);
    data[5 * PAGE] = 1;
    CHECK(is_filled(data + 4 * PAGE, 4 * PAGE, 1));
    CHECK(is_filled(data + 8 * PAGE, nbytes - 8 * PAGE, 3));
    CHECK_INT(theirs[5 * PAGE], 3);
    munmap(theirs, nbytes);
    dd_region_release(region);
    CHECK_STATUS(group_take_back_locked(self->group, (dd_block){&data, 1}, check_err()), DD_INTERNAL);
}

TEST(other_ranks_cannot_change_memory_once_it_is_reclaimed)
{
    team_run(&(team_options){.size = 1}, lose_access, NULL);
}

/* For adopted memory, the caller uses its own mapping. */
static void
lose_access_to_adopted(team_rank *self)
{
    const size_t nbytes = 16 * PAGE;
    int fd = memfd_create("foreign", MFD_CLOEXEC);
    REQUIRE(fd >= 0 && ftruncate(fd, (off_t)nbytes) == 0);
    uint8_t *at = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REQUIRE(at != MAP_FAILED);
    memset(at, 1, nbytes);
    dd_region *region = NULL;
    REQUIRE_OK(dd_group_adopt(self->group, at, nbytes, fd, &region, check_err()));
    uint8_t *own = dd_region_data(region);
    take_back(self, (dd_block){own, nbytes});
    memset(own, 2, nbytes);
    CHECK(is_filled(at, nbytes, 1));
    munmap(at, nbytes);
    close(fd);
    dd_region_note_unmapped(region);
    dd_region_release(region);
}

TEST(other_ranks_cannot_change_adopted_memory_once_it_is_reclaimed)
{
    team_run(&(team_options){.size = 1}, lose_access_to_adopted, NULL);
}

/* ---- forks */

/* The child releases all regions: its descriptors are closed, and the parent keeps the memory. */
static void
release_in_child(team_rank *self)
{
    const size_t nbytes = 128 * MIB; /* more than a group keeps */
    int fd = memfd_create("foreign", MFD_CLOEXEC);
    REQUIRE(fd >= 0 && ftruncate(fd, (off_t)PAGE) == 0);
    void *at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REQUIRE(at != MAP_FAILED);
    dd_region *region = alloc_filled(self->group, nbytes, 1);
    dd_region *adopted = NULL;
    REQUIRE_OK(dd_group_adopt(self->group, at, PAGE, fd, &adopted, check_err()));
    munmap(at, PAGE);
    close(fd);
    uint8_t *own = dd_region_data(adopted);
    own[0] = 9;
    dd_region_note_unmapped(adopted);
    pid_t pid = fork();
    if (pid == 0) {
        int others[64]; /* use up the free descriptor numbers */
        for (int i = 0; i < 64; i++) {
            others[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        }
        dd_region_release(adopted);
        dd_region_release(region);
        dd_group_release(self->group);
        for (int i = 0; i < 64; i++) {
            CHECK(fcntl(others[i], F_GETFD) >= 0);
        }
        _exit(check_failures() > 0 ? 1 : 0);
    }
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_INT(own[0], 9);
    CHECK(is_filled(dd_region_data(region), nbytes, 1));
    dd_region_release(adopted);
    dd_region_release(region);
}

TEST(shared_arrays_released_in_a_forked_child_stay_unchanged_in_the_parent)
{
    team_run(&(team_options){.size = 1}, release_in_child, NULL);
}

/* Windows request regions between calls. The timer of a request must not outlive the group. */
static void
want_without_a_call(team_rank *self)
{
    dd_block memory;
    dd_engine_lock(self->engine);
    int other = 1 - self->rank;
    CHECK_OK(dd_group_map_region_locked(self->group, other, UINT32_MAX, &memory, check_err()));
    CHECK(memory.data == NULL);
    CHECK(!dd_timer_is_set(&self->group->region_timer));
    dd_engine_unlock(self->engine);
}

TEST(no_timer_runs_for_a_shared_array_that_no_call_waits_for)
{
    team_run(&(team_options){.size = 2}, want_without_a_call, NULL);
}
