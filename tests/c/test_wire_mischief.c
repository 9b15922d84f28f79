/* Whatever somebody on the way does to the bytes of an encrypted group: no rank takes a wrong value for a right one, none waits beyond its
 * time-out, and who is told of a failure is told between whom it was. DLDIST_TEST_MISCHIEFS says how often, and
 * DLDIST_TEST_SEED where. */
#include "check.h"
#include "group_team.h"
#include "wire_mischief.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_NS (400 * DD_NS_PER_MS)
#define ELEMENTS 20000

static unsigned
number_from(const char *variable, unsigned usual)
{
    const char *text = getenv(variable);
    return text != NULL ? (unsigned)strtoul(text, NULL, 10) : usual;
}

typedef struct outcome {
    atomic_int nfailed;  /* ranks that have got an error */
    atomic_int nunnamed; /* that names nobody */
    atomic_int nwrong;   /* values that are wrong, without one */
    atomic_int nlate;    /* calls that took much longer than they may */
    char unnamed[256];
} outcome;

static void
note_error(outcome *out, const dd_error *err)
{
    atomic_fetch_add(&out->nfailed, 1);
    bool is_named = err->culprit.rank >= 0 || strstr(err->message, "rank ") != NULL;
    if (!is_named && atomic_fetch_add(&out->nunnamed, 1) == 0) {
        (void)snprintf(out->unnamed, sizeof out->unnamed, "%.250s", err->message);
    }
}

static dd_status
sum(dd_group *group, double *values, size_t count, dd_error *err)
{
    dd_block block = {.data = values, .nbytes = count * sizeof *values};
    dd_coll_args args = {.coll = DD_COLL_ALL_REDUCE,
                         .reduction = {.dtype = DD_DTYPE_FLOAT64, .op = DD_REDOP_SUM},
                         .inputs = &block,
                         .outputs = &block};
    dd_wait wait = dd_wait_after(20 * TIMEOUT_NS * check_slow());
    return dd_group_collective_and_wait(group, &args, &team_no_options, &wait, err);
}

static void
use_group(team_rank *self, dd_group *group)
{
    outcome *out = self->arg;
    double *values = calloc(ELEMENTS, sizeof *values);
    REQUIRE(values != NULL);
    for (int round = 0; round < 4; round++) {
        size_t count = round % 2 == 0 ? 3 : ELEMENTS;
        for (size_t i = 0; i < count; i++) {
            values[i] = (double)(self->rank + 1) * (double)(i % 100);
        }
        dd_error err = {0};
        if (sum(group, values, count, &err) != DD_OK) {
            note_error(out, &err);
            break;
        }
        for (size_t i = 0; i < count; i++) {
            if (values[i] != 3.0 * (double)(i % 100)) {
                atomic_fetch_add(&out->nwrong, 1);
                break;
            }
        }
    }
    free(values);
}

static void
meet_and_use(team_rank *self)
{
    outcome *out = self->arg;
    dd_group *group = NULL;
    dd_error err = {0};
    dd_group_options options = team_group_options("team");
    options.timeout_ns = TIMEOUT_NS * check_slow();
    dd_wait wait = dd_wait_after(options.timeout_ns);
    int64_t began_ns = dd_clock_now_ns();
    if (!CHECK_OK(dd_selection_parse("", &options.selection, check_err()))) {
        return;
    }
    if (dd_group_open(self->engine, self->store, self->rank, self->size, &options, &group, &wait, &err) ==
        DD_OK) {
        use_group(self, group);
        wait = dd_wait_after(TIMEOUT_NS * check_slow());
        (void)!dd_group_close(group, &wait, NULL);
        dd_group_release(group);
    } else {
        note_error(out, &err);
    }
    if (dd_clock_now_ns() - began_ns > 8 * TIMEOUT_NS * check_slow()) {
        atomic_fetch_add(&out->nlate, 1);
    }
}

static const team_options encrypted = {.size = 2, .is_shm_disabled = true, .secret = "sesame"};

static bool
run_with(mischief_kind kind, size_t after, unsigned bit, outcome *out, size_t *nbytes)
{
    *out = (outcome){0};
    wire_mischief_arm(kind, after, bit);
    team_run_apart(&encrypted, meet_and_use, out);
    return wire_mischief_disarm(nbytes);
}

TEST(nothing_is_done_to_it)
{
    outcome out;
    size_t nbytes = 0;
    CHECK(!run_with(MISCHIEF_FLIP, (size_t)1 << 40, 0, &out, &nbytes));
    CHECK_INT(out.nfailed + out.nwrong + out.nlate, 0);
    CHECK(nbytes > 2 * ELEMENTS * sizeof(double));
}

/* Half of them early, where the hand-shake and the first frames are. */
static size_t
pick_place(unsigned *seed, size_t nbytes)
{
    return (size_t)rand_r(seed) % (rand_r(seed) % 2 == 0 ? (size_t)2000 : nbytes);
}

/* Each is a test of its own, as each has an alarm. */
static void
check_mischiefs(mischief_kind kind)
{
    outcome out;
    size_t nbytes = 0;
    unsigned seed = 1000u * (unsigned)kind + number_from("DLDIST_TEST_SEED", 1);
    unsigned count = number_from("DLDIST_TEST_MISCHIEFS", 40) / MISCHIEF_COUNT + 1;
    int ndone = 0;
    int nfailed = 0;
    (void)run_with(kind, (size_t)1 << 40, 0, &out, &nbytes);
    for (unsigned i = 0; i < count; i++) {
        size_t ignored = 0;
        size_t place = pick_place(&seed, nbytes);
        unsigned bit = (unsigned)rand_r(&seed);
        if (!run_with(kind, place, bit, &out, &ignored)) {
            continue; /* fewer bytes were sent than the last time */
        }
        ndone++;
        nfailed += out.nfailed > 0;
        bool is_right = CHECK_INT(out.nwrong, 0) && CHECK_INT(out.nlate, 0) && CHECK_INT(out.nunnamed, 0);
        if (!is_right) {
            printf("    kind %d, byte %zu, bit %u: %s\n", (int)kind, place, bit, out.unnamed);
        }
    }
    printf("    %d of %d were noticed\n", nfailed, ndone);
    CHECK(ndone > 0 && nfailed > 0);
}

TEST(a_bit_is_flipped)
{
    check_mischiefs(MISCHIEF_FLIP);
}

TEST(bytes_are_dropped)
{
    check_mischiefs(MISCHIEF_DROP);
}

TEST(bytes_are_repeated)
{
    check_mischiefs(MISCHIEF_REPEAT);
}

TEST(bytes_are_inserted)
{
    check_mischiefs(MISCHIEF_INSERT);
}

TEST(the_stream_is_cut)
{
    check_mischiefs(MISCHIEF_CUT);
}
