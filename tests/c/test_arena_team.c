#include "test_arena_team.h"

#include "collective/arena/state.h"
#include "core/clock.h"
#include "core/fence.h"
#include "core/fork.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_TIME_NS (8 * DD_NS_PER_S)

typedef struct arena_team {
    const team_options *options;
    void (*run)(team_rank *self, const void *arg);
    const void *arg;
    int fd;
    dd_arena *mapped; /* threads use one mapping */
    int bells[DD_ARENA_MAX_RANKS];
    uint8_t *shared[DD_ARENA_MAX_RANKS];
} arena_team;

typedef struct team_seat {
    arena_team *team;
    int rank;
} team_seat;

uint64_t
arena_team_random(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t value = *state;
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

dd_signature
arena_team_signature(const dd_coll_args *args, size_t count)
{
    return (dd_signature){
        .coll = (uint8_t)args->coll,
        .dtype = (uint8_t)args->reduction.dtype,
        .redop = (uint8_t)args->reduction.op,
        .root = (uint32_t)args->root,
        .count = count,
    };
}

static void
ring(void *ctx, int rank)
{
    team_rank *self = ctx;
    uint64_t one = 1;
    CHECK(write(self->bells[rank], &one, sizeof(one)) == (ssize_t)sizeof(one));
}

static void
want(void *ctx, int owner, uint32_t id)
{
    team_rank *self = ctx;
    REQUIRE(id >= 1 && id <= TEAM_NREGIONS);
    CHECK(!dd_arena_ranks_have(&self->added[id - 1], owner));
    dd_arena_ranks_add(&self->wanted[id - 1], owner);
}

dd_arena_op_options
arena_team_op_options(team_rank *self, dd_signature signature)
{
    return (dd_arena_op_options){.signature = signature, .wake = ring, .want_region = want, .ctx = self};
}

static void
add_region(team_rank *self, int owner, int index)
{
    size_t half = self->options->shared_nbytes / TEAM_NREGIONS;
    uint8_t *base = self->shared[owner] + (size_t)index * half;
    CHECK_OK(dd_arena_add_region(self->arena, owner, (uint32_t)index + 1, base, half, check_err()));
    dd_arena_ranks_add(&self->added[index], owner);
}

static bool
add_wanted(team_rank *self)
{
    bool has_added = false;
    for (int index = 0; index < TEAM_NREGIONS; index++) {
        dd_arena_ranks *wanted = &self->wanted[index];
        for (int owner = dd_arena_ranks_pop(wanted); owner >= 0; owner = dd_arena_ranks_pop(wanted)) {
            add_region(self, owner, index);
            has_added = true;
        }
    }
    return has_added;
}

static void
rest(team_rank *self)
{
    if (!self->options->is_sleeping) {
        sched_yield();
        return;
    }
    if (!dd_arena_fall_asleep(self->arena)) {
        return;
    }
    struct pollfd bell = {.fd = self->bells[self->rank], .events = POLLIN};
    if (!CHECK(poll(&bell, 1, 4000 * check_slow()) == 1)) {
        fprintf(stderr, "rank %d was not woken\n", self->rank);
        return;
    }
    uint64_t count;
    CHECK(read(bell.fd, &count, sizeof(count)) == (ssize_t)sizeof(count));
}

dd_arena_state
arena_team_finish(team_rank *self, const dd_coll_args *args, const dd_arena_op_options *options)
{
    int64_t deadline = dd_deadline_after(MAX_TIME_NS * check_slow());
    dd_arena_start(self->arena, args, options);
    for (unsigned nblocked = 0;;) {
        dd_arena_state state = dd_arena_progress(self->arena);
        if (state == DD_ARENA_BLOCKED) {
            if (!add_wanted(self) && nblocked++ % 4 == 3) {
                rest(self);
                if (dd_deadline_left_ns(deadline) == 0) {
                    return state;
                }
            }
        } else if (state != DD_ARENA_MOVED) {
            return state;
        }
        if (self->options->is_delayed && arena_team_random(&self->random) % 16 == 0) {
            if (arena_team_random(&self->random) % 16 == 0) {
                usleep((unsigned)(arena_team_random(&self->random) % 200));
            } else {
                sched_yield();
            }
        }
    }
}

static void
add_regions(team_rank *self)
{
    for (int owner = 0; self->options->shared_nbytes > 0 && owner < self->nranks; owner++) {
        for (int index = 0; index < TEAM_NREGIONS; index++) {
            if (owner == self->rank || !self->options->is_lazy) {
                add_region(self, owner, index);
            }
        }
    }
}

static void *
sit(void *arg)
{
    const team_seat *seat = arg;
    arena_team *team = seat->team;
    team_rank self = {
        .options = team->options,
        .rank = seat->rank,
        .nranks = team->options->nranks,
        .shared = team->shared,
        .bells = team->bells,
        .random = (uint64_t)seat->rank,
    };
    if (team->options->fence == TEAM_FENCED) {
        dd_fence_register();
    }
    dd_status status = team->mapped != NULL
                           ? dd_arena_join(team->mapped, self.rank, &self.arena, check_err())
                           : dd_arena_attach(team->fd, self.nranks, self.rank, &self.arena, check_err());
    if (!CHECK_OK(status)) {
        return NULL;
    }
    add_regions(&self);
    if (team->options->fence == TEAM_FENCED_LATE && self.rank > 0) {
        dd_fence_register();
    }
    team->run(&self, team->arg);
    /* A registered process marks its operations. A thread may have registered after the last
     * operation of other ranks. */
    if (team->options->fence != TEAM_FENCED_LATE || team->options->is_forked) {
        uint64_t bits = atomic_load(&self.arena->shared->unregistered[self.rank / 64]);
        CHECK_INT((bits >> self.rank % 64 & 1) == 0, dd_fence_is_registered());
    }
    dd_arena_close(self.arena);
    return NULL;
}

static void
run_threads(team_seat *seats, int nranks)
{
    pthread_t threads[DD_ARENA_MAX_RANKS];
    for (int k = 0; k < nranks; k++) {
        REQUIRE(pthread_create(&threads[k], NULL, sit, &seats[k]) == 0);
    }
    for (int k = 0; k < nranks; k++) {
        CHECK(pthread_join(threads[k], NULL) == 0);
    }
}

static void
run_processes(team_seat *seats, int nranks)
{
    pid_t pids[DD_ARENA_MAX_RANKS];
    /* This descriptor is not closed in a forked child. */
    int fd = seats[0].team->fd;
    seats[0].team->fd = dup(fd);
    for (int k = 0; k < nranks; k++) {
        pids[k] = fork();
        REQUIRE(pids[k] >= 0);
        if (pids[k] == 0) {
            alarm((unsigned)(CHECK_TIMEOUT_S * check_slow()));
            sit(&seats[k]);
            _exit(check_failures() > 0);
        }
    }
    for (int k = 0; k < nranks; k++) {
        int status = 0;
        CHECK(waitpid(pids[k], &status, 0) == pids[k]);
        CHECK_INT(status, 0);
    }
    close(seats[0].team->fd);
    seats[0].team->fd = fd;
}

void
arena_team_run(const team_options *options, void (*run)(team_rank *self, const void *arg), const void *arg)
{
    arena_team team = {.options = options, .run = run, .arg = arg};
    team_seat seats[DD_ARENA_MAX_RANKS];
    int nranks = options->nranks;
    REQUIRE_OK(dd_arena_create(nranks, options->is_crowded, &team.fd, check_err()));
    for (int k = 0; k < nranks; k++) {
        seats[k] = (team_seat){.team = &team, .rank = k};
        team.bells[k] = eventfd(0, EFD_CLOEXEC);
        REQUIRE(team.bells[k] >= 0);
        if (options->shared_nbytes > 0) {
            team.shared[k] =
                mmap(NULL, options->shared_nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
            REQUIRE(team.shared[k] != MAP_FAILED);
        }
    }
    if (options->is_forked) {
        run_processes(seats, nranks);
    } else {
        REQUIRE_OK(dd_arena_attach(team.fd, nranks, 0, &team.mapped, check_err()));
        run_threads(seats, nranks);
        dd_arena_close(team.mapped);
    }
    for (int k = 0; k < nranks; k++) {
        close(team.bells[k]);
        if (options->shared_nbytes > 0) {
            munmap(team.shared[k], options->shared_nbytes);
        }
    }
    dd_fork_close(team.fd);
}
