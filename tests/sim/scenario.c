#include "scenario.h"

#include "core/clock.h"

#include <stdio.h>

#define CUT_MAX_MS 60000

/* A scenario and its world have separate random numbers, so removing a fault changes neither. */
typedef struct dice {
    uint64_t state;
} dice;

static uint64_t
roll(dice *self, uint64_t bound)
{
    uint64_t z = self->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (z ^ z >> 31) % bound;
}

/* Return a number, as often below 10 as from 10 to 100. */
static int64_t
roll_scale(dice *self, int64_t least, int64_t most)
{
    int64_t span = 1;
    while (least * span * 2 <= most && roll(self, 16) != 0) {
        span *= 2;
    }
    uint64_t doublings = 0;
    for (int64_t value = least; value < most; value *= 2) {
        doublings++;
    }
    int64_t low = least << roll(self, doublings + 1);
    low = low < most ? low : most;
    int64_t value = low + (int64_t)roll(self, (uint64_t)low + 1);
    return value < most ? value : most;
}

static void
make_world(scenario *made, dice *numbers)
{
    made->nranks = roll(numbers, 8) == 0 ? 2 + (int)roll(numbers, RANKS_MAX - 1) : 2 + (int)roll(numbers, 3);
    int nhosts = 1 + (int)roll(numbers, 3);
    nhosts = nhosts < made->nranks ? nhosts : made->nranks;
    for (int rank = 0; rank < made->nranks; rank++) {
        made->host_of[rank] = rank < nhosts ? rank : (int)roll(numbers, (uint64_t)nhosts);
    }
    made->world = (sim_options){
        .seed = made->seed * UINT64_C(0x2545f4914f6cdd1d) + 1,
        .nhosts = nhosts,
        .ncpus = 1 << roll(numbers, 4),
        .switch_every = (int)roll_scale(numbers, 1, 2000),
        .call_cost_ns = (int)roll_scale(numbers, 200, 6000),
        .latency_ns = roll_scale(numbers, 10 * DD_NS_PER_US, 2 * DD_NS_PER_MS),
        .backlog_max = roll(numbers, 4) == 0 ? 1 : 4096,
        .interrupts_every = roll(numbers, 3) == 0 ? 20 : 0,
    };
    made->has_file_store = roll(numbers, 4) == 0;
    made->has_agent = roll(numbers, 2) == 0 && !made->has_file_store;
    made->has_secret = roll(numbers, 4) == 0;
    made->is_encryption_off = roll(numbers, 4) == 0;
    made->is_shm_disabled = roll(numbers, 6) == 0;
    made->nlanes = roll(numbers, 6) == 0 ? 2 : 1;
    made->waiting = roll(numbers, 8) == 0 ? DD_SPIN_SLEEP : DD_SPIN_ADAPTIVE;
    made->algorithms = roll(numbers, 8) == 0 ? "flat" : "";
    made->timeout_ns = (5 + (int64_t)roll(numbers, 3) * 5) * DD_NS_PER_S;
    made->exits_at_once = roll(numbers, 2) == 0;
}

static step_kind
roll_kind(dice *numbers)
{
    static const step_kind often[] = {STEP_COLL,  STEP_COLL,   STEP_COLL,   STEP_RING,   STEP_RING,
                                      STEP_SPLIT, STEP_WINDOW, STEP_REOPEN, STEP_ENGINE, STEP_PAUSE};
    return often[roll(numbers, sizeof often / sizeof often[0])];
}

/* Make the steps. Many scenarios only create a group, because that is the hardest part. */
static void
make_steps(scenario *made, dice *numbers)
{
    made->nsteps = roll(numbers, 3) == 0 ? 0 : 1 + (int)roll(numbers, STEPS_MAX - 2);
    for (int i = 0; i < made->nsteps; i++) {
        made->steps[i] = (scenario_step){
            .kind = roll_kind(numbers),
            .coll = (dd_coll)roll(numbers, (uint64_t)DD_COLL_COUNT),
            .rank = (int)roll(numbers, (uint64_t)made->nranks),
            .count = (int)roll_scale(numbers, 1, 40000),
        };
    }
    static const step_kind ends[] = {STEP_ABORT, STEP_LEAVE, STEP_LATE, STEP_MISMATCH, STEP_LAST, STEP_PART};
    uint64_t end = roll(numbers, 10);
    if (end < sizeof ends / sizeof ends[0]) {
        made->steps[made->nsteps++] = (scenario_step){.kind = ends[end],
                                                      .coll = DD_COLL_ALL_REDUCE,
                                                      .rank = (int)roll(numbers, (uint64_t)made->nranks),
                                                      .count = 1 + (int)roll(numbers, 3000)};
        scenario_step *last = &made->steps[made->nsteps - 1];
        if (last->kind == STEP_LAST) { /* half of these copy without the lock, in several pieces */
            last->coll = last->count % 2 == 0 ? DD_COLL_ALL_REDUCE : DD_COLL_ALL_GATHER;
            last->count *= last->count % 4 < 2 ? 1 : 10;
        }
        if (last->kind == STEP_PART) {
            last->count = (int)roll_scale(numbers, 10, CUT_MAX_MS);
        }
    }
}

static sim_fault
roll_fault(const scenario *made, dice *numbers, unsigned kinds)
{
    int nprocesses = made->nranks + (made->has_agent ? 1 : 0);
    sim_fault fault = {.kind = SIM_KILL, .process = (int)roll(numbers, (uint64_t)nprocesses)};
    uint64_t chosen = roll(numbers, 2);
    for (int tries = 0; chosen == 0 && tries < 64; tries++) {
        fault.kind = (sim_fault_kind)roll(numbers, SIM_FAULT_KINDS);
        if ((kinds >> fault.kind & 1) != 0) {
            break;
        }
    }
    bool is_sealed = made->has_secret && !made->is_encryption_off;
    if ((kinds >> fault.kind & 1) == 0 || (fault.kind == SIM_FLIP && !is_sealed)) {
        return (sim_fault){.process = -1};
    }
    bool is_by_sends = roll(numbers, 2) == 0;
    fault.after_ncalls = is_by_sends ? 0 : roll_scale(numbers, 1, 3000);
    fault.after_nsends = is_by_sends ? roll_scale(numbers, 1, 200) : 0;
    fault.duration_ns = roll_scale(numbers, DD_NS_PER_MS, 20 * DD_NS_PER_S);
    fault.amount = (int64_t)roll(numbers, 4) + 1;
    switch (fault.kind) {
    case SIM_CUT:
    case SIM_HALF_CUT:
        fault.amount = (int64_t)roll(numbers, (uint64_t)made->world.nhosts);
        break;
    case SIM_SLOW:
        fault.amount = roll_scale(numbers, 4, 1000);
        break;
    case SIM_CLOCK:
        fault.duration_ns *= roll(numbers, 2) == 0 ? 1 : -1;
        break;
    case SIM_DELAY:
        fault.duration_ns /= 100;
        break;
    case SIM_KILL:
    case SIM_STOP:
    case SIM_NO_MEMORY:
    case SIM_NO_FDS:
    case SIM_POWER_OFF:
    case SIM_FLIP:
    case SIM_FAULT_KINDS:
        break;
    }
    return fault;
}

void
scenario_make(scenario *made, uint64_t seed, unsigned fault_kinds)
{
    dice numbers = {.state = seed * UINT64_C(0xd1342543de82ef95) + 77};
    *made = (scenario){.seed = seed};
    make_world(made, &numbers);
    make_steps(made, &numbers);
    uint64_t nfaults = roll(&numbers, 8);
    nfaults = nfaults == 0 ? 0 : nfaults < 7 ? 1 : 1 + roll(&numbers, FAULTS_MAX);
    for (uint64_t i = 0; i < nfaults; i++) {
        sim_fault fault = roll_fault(made, &numbers, fault_kinds);
        if (fault.process >= 0) {
            made->faults[made->nfaults++] = fault;
        }
    }
}

void
scenario_apply(scenario *made, const scenario_edit *edit)
{
    int nsteps = 0;
    int nfaults = 0;
    for (int i = 0; i < made->nsteps; i++) {
        if ((edit->without_steps >> i & 1) == 0) {
            made->steps[nsteps++] = made->steps[i];
        }
    }
    for (int i = 0; i < made->nfaults; i++) {
        if ((edit->without_faults >> i & 1) == 0) {
            made->faults[nfaults++] = made->faults[i];
        }
    }
    made->nsteps = nsteps;
    made->nfaults = nfaults;
    made->world.seed += edit->order * UINT64_C(0x9e3779b97f4a7c15);
    if (edit->is_plain) {
        made->has_secret = false;
        made->nlanes = 1;
        made->world.interrupts_every = 0;
        made->world.backlog_max = 4096;
    }
}

const char *
step_name(step_kind kind)
{
    static const char *const names[] = {"collective", "ring",  "split", "window", "reopen",
                                        "engine",     "pause", "abort", "leave",  "late",
                                        "mismatch",   "last",  "part"};
    return (unsigned)kind < STEP_KINDS ? names[kind] : "?";
}

void
scenario_print(const scenario *which)
{
    printf("%d ranks on hosts", which->nranks);
    for (int rank = 0; rank < which->nranks; rank++) {
        printf(" %d", which->host_of[rank]);
    }
    printf("; store: %s%s%s%s; %d lanes; %d CPUs; waits %s; calls have %lld s\n",
           which->has_file_store ? "a file"
           : which->has_agent    ? "an agent"
                                 : "rank 0",
           !which->has_secret         ? ""
           : which->is_encryption_off ? "; a secret"
                                      : "; encrypted",
           which->is_shm_disabled ? "; no shared memory" : "",
           which->exits_at_once ? "; exits immediately" : "", which->nlanes, which->world.ncpus,
           which->waiting == DD_SPIN_SLEEP ? "asleep" : "adaptively",
           (long long)(which->timeout_ns / DD_NS_PER_S));
    printf("a call costs %d ns, a change every %d, latency %lld ns, backlog %d, interrupts every %d\n",
           which->world.call_cost_ns, which->world.switch_every, (long long)which->world.latency_ns,
           which->world.backlog_max, which->world.interrupts_every);
    for (int i = 0; i < which->nsteps; i++) {
        const scenario_step *step = &which->steps[i];
        printf("  step %d: %s%s%s, rank %d, %d\n", i, step_name(step->kind),
               step->kind == STEP_COLL ? " " : "", step->kind == STEP_COLL ? dd_coll_name(step->coll) : "",
               step->rank, step->count);
    }
    for (int i = 0; i < which->nfaults; i++) {
        const sim_fault *fault = &which->faults[i];
        printf("  fault %d: %s of process %d after %lld calls%s, for %.3f s, %lld\n", i,
               sim_fault_name(fault->kind), fault->process,
               (long long)(fault->after_ncalls + fault->after_nsends),
               fault->after_nsends > 0 ? " that tell others something" : "", (double)fault->duration_ns / 1e9,
               (long long)fault->amount);
    }
}
