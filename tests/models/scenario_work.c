/* csrc/work/work.c: who sees that a work is done, sees how it has ended; who lets it go last, sees all that was done with it. */
#include "models/checker.h"

#include "work/work.h"

#define END_NBYTES ((size_t)24)

static dd_work work;
static bool is_destroyed;

static void
destroy(dd_work *ended)
{
    REQUIRE(!is_destroyed && ended->sequence == 2 && ended->nbytes == END_NBYTES);
    is_destroyed = true;
}

/* A reference for each thread. */
static void
open_work(void)
{
    dd_work_init(&work, "all_reduce", 0, 0);
    work.destroy = destroy;
    is_destroyed = false;
    (void)dd_work_acquire(&work);
}

static void
complete_or_await(int self)
{
    if (self == 0) {
        work.nbytes = END_NBYTES;
        REQUIRE(dd_work_complete(&work, NULL));
    } else {
        while (!dd_work_is_done(&work)) {
            checker_poll();
        }
        REQUIRE(work.nbytes == END_NBYTES && dd_work_result(&work, NULL) == DD_OK);
    }
}

SCENARIO(work_ends, .what = "a work that is awaited", .nthreads = 2, .setup = open_work,
         .thread = complete_or_await)

/* Each writes to it before it lets go; whoever is last looks at both. */
static void
let_go(int self)
{
    if (self == 0) {
        work.sequence = 2;
    } else {
        work.nbytes = END_NBYTES;
    }
    dd_work_release(&work);
}

SCENARIO(work_is_released, .what = "a work that two let go", .nthreads = 2, .setup = open_work,
         .thread = let_go)
