/* Background tasks: calls that may hang run on their own thread. */
#include "check.h"
#include "core/background_task.h"
#include "core/mem.h"

#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

typedef struct walk {
    dd_background_task task; /* must be first */
    atomic_bool may_end;
    atomic_int *nfreed;
    int found;
} walk;

static void
run_walk(dd_background_task *task)
{
    walk *self = (walk *)task;
    while (!atomic_load(&self->may_end)) {
        usleep(1000);
    }
    self->found = 7;
}

static void
free_walk(dd_background_task *task)
{
    walk *self = (walk *)task;
    atomic_int *nfreed = self->nfreed;
    dd_mem_free(self);
    atomic_fetch_add(nfreed, 1);
}

static walk *
start_walk(bool may_end, atomic_int *nfreed)
{
    walk *self = dd_mem_zalloc(sizeof *self);
    if (!CHECK(self != NULL)) {
        return NULL;
    }
    self->task = (dd_background_task){.run = run_walk, .free = free_walk};
    atomic_init(&self->may_end, may_end);
    self->nfreed = nfreed;
    return CHECK_OK(dd_background_task_start(&self->task, "walk", check_err())) ? self : NULL;
}

static void
wait_for_free(atomic_int *nfreed)
{
    while (atomic_load(nfreed) == 0) { /* limited by the timeout of the test */
        usleep(1000);
    }
    CHECK_INT(atomic_load(nfreed), 1);
}

TEST(a_background_task_that_finishes_in_time_returns_its_result)
{
    atomic_int nfreed = 0;
    walk *self = start_walk(true, &nfreed);
    REQUIRE(self != NULL);
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    CHECK_OK(dd_background_task_wait(&self->task, &wait, check_err()));
    CHECK_INT(self->found, 7);
    dd_background_task_release(&self->task);
    wait_for_free(&nfreed);
}

TEST(a_background_task_abandoned_after_a_timeout_frees_itself)
{
    atomic_int nfreed = 0;
    walk *self = start_walk(false, &nfreed);
    REQUIRE(self != NULL);
    dd_wait wait = dd_wait_after(DD_NS_PER_MS);
    CHECK_INT(dd_background_task_wait(&self->task, &wait, check_err()), DD_TIMED_OUT);
    CHECK_INT(atomic_load(&nfreed), 0);
    atomic_bool *may_end = &self->may_end;
    atomic_store(may_end, true);
    dd_background_task_release(&self->task);
    wait_for_free(&nfreed);
}
