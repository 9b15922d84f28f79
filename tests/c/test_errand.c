/* Errands: what may hang has a thread of its own. */
#include "check.h"
#include "core/errand.h"
#include "core/mem.h"

#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

typedef struct walk {
    dd_errand errand; /* first */
    atomic_bool may_end;
    atomic_int *nfreed;
    int found;
} walk;

static void
run_walk(dd_errand *errand)
{
    walk *self = (walk *)errand;
    while (!atomic_load(&self->may_end)) {
        usleep(1000);
    }
    self->found = 7;
}

static void
free_walk(dd_errand *errand)
{
    walk *self = (walk *)errand;
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
    self->errand = (dd_errand){.run = run_walk, .free = free_walk};
    atomic_init(&self->may_end, may_end);
    self->nfreed = nfreed;
    return CHECK_OK(dd_errand_start(&self->errand, "walk", check_err())) ? self : NULL;
}

static void
wait_for_free(atomic_int *nfreed)
{
    while (atomic_load(nfreed) == 0) { /* the check's own time-out ends it */
        usleep(1000);
    }
    CHECK_INT(atomic_load(nfreed), 1);
}

TEST(what_it_has_found)
{
    atomic_int nfreed = 0;
    walk *self = start_walk(true, &nfreed);
    REQUIRE(self != NULL);
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    CHECK_OK(dd_errand_wait(&self->errand, &wait, check_err()));
    CHECK_INT(self->found, 7);
    dd_errand_leave(&self->errand);
    wait_for_free(&nfreed);
}

TEST(one_that_is_left_to_itself)
{
    atomic_int nfreed = 0;
    walk *self = start_walk(false, &nfreed);
    REQUIRE(self != NULL);
    dd_wait wait = dd_wait_after(DD_NS_PER_MS);
    CHECK_INT(dd_errand_wait(&self->errand, &wait, check_err()), DD_TIMED_OUT);
    CHECK_INT(atomic_load(&nfreed), 0);
    atomic_bool *may_end = &self->may_end;
    atomic_store(may_end, true);
    dd_errand_leave(&self->errand);
    wait_for_free(&nfreed);
}
