/* csrc/work/work.c: a thread that sees that a work is done also sees its result; the thread that
 * releases the last reference sees all accesses to it. */
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

/* One reference for each thread. */
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

SCENARIO(work_ends, .label = "a work that is awaited", .nthreads = 2, .setup = open_work,
         .thread = complete_or_await)

/* Each thread writes before it releases its reference; the last one reads both values. */
static void
release_work(int self)
{
    if (self == 0) {
        work.sequence = 2;
    } else {
        work.nbytes = END_NBYTES;
    }
    dd_work_release(&work);
}

SCENARIO(work_is_released, .label = "a work that two threads release", .nthreads = 2, .setup = open_work,
         .thread = release_work)
