#include "verdict.h"

#include "core/clock.h"
#include "ranks.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Time that a call may take beyond its deadline: group creation queries once more (1 s), reports to
 * the store (2 s), and must be woken. */
#define SLACK_NS (3500 * DD_NS_PER_MS)
#define SLOW_STORE_SLACK_NS \
    (6500 * DD_NS_PER_MS) /* also checks the ranks (2 s), with a slow or silent store */
/* After this time, the other ranks know that a rank has died. */
#define NOTICE_NS (3 * DD_NS_PER_S)

typedef struct facts {
    const scenario *which;
    char *text;
    bool is_broken;
    bool is_strict;
    bool is_short;       /* a rank lacked memory or descriptors */
    bool is_changed;     /* received bytes differ from those sent; neither end can know the cause */
    bool is_faultless;   /* no fault has happened, except for the last step */
    bool has_only_kills; /* only kills have happened */
    bool is_server_hurt; /* a fault has hit the store's server, or it has exited */
    /* A fault concerned this rank. The rank that it blames may have broken the connection. */
    bool is_hurt[RANKS_MAX];
    const scenario_step *end;   /* a last step that fails, or NULL */
    bool is_touched[RANKS_MAX]; /* a fault has hit this rank, or it has exited or aborted */
    /* DD_NEVER_NS if there is none */
    int64_t death_ns[RANKS_MAX], first_death_ns;
} facts;

__attribute__((format(printf, 2, 3))) static void
find(facts *all, const char *format, ...)
{
    if (all->is_broken) {
        return;
    }
    all->is_broken = true;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(all->text, VERDICT_MAX, format, args);
    va_end(args);
}

static int
host_of(const scenario *which, int process)
{
    return process < which->nranks ? which->host_of[process] : 0;
}

static bool
concerns_host(const scenario *which, const sim_fault *fault, int host)
{
    int first = host_of(which, fault->process);
    bool is_of_host = fault->kind == SIM_CUT || fault->kind == SIM_HALF_CUT || fault->kind == SIM_POWER_OFF ||
                      fault->kind == SIM_CLOCK || fault->kind == SIM_DELAY;
    bool is_of_both = fault->kind == SIM_CUT || fault->kind == SIM_HALF_CUT;
    return (is_of_host && host == first) || (is_of_both && host == fault->amount);
}

/* Return true if the server has exited. A failed rank 0 ends its own server. */
static bool
has_server_exited(const scenario *which)
{
    int server = which->has_agent ? which->nranks : 0;
    if (which->has_file_store) {
        return false;
    }
    return sim_state_of(server) == SIM_KILLED ||
           (!which->has_agent && sim_state_of(0) == SIM_EXITED && !ranks_record(0)->has_closed);
}

static void
note_fault(facts *all, int number)
{
    const sim_fault *fault = &all->which->faults[number];
    if (!sim_has_happened(number)) {
        return;
    }
    all->is_faultless = false;
    all->is_short = all->is_short || fault->kind == SIM_NO_MEMORY || fault->kind == SIM_NO_FDS;
    all->is_changed = all->is_changed || fault->kind == SIM_FLIP;
    all->has_only_kills = all->has_only_kills && fault->kind == SIM_KILL;
    int server = all->which->has_agent ? all->which->nranks : 0;
    bool is_of_server =
        fault->process == server || concerns_host(all->which, fault, host_of(all->which, server));
    all->is_server_hurt = all->is_server_hurt || (!all->which->has_file_store && is_of_server);
    int64_t at_ns = fault->kind == SIM_KILL ? sim_happened_at_ns(number) : DD_NEVER_NS;
    all->first_death_ns = at_ns < all->first_death_ns ? at_ns : all->first_death_ns;
    if (fault->process < all->which->nranks && at_ns < all->death_ns[fault->process]) {
        all->death_ns[fault->process] = at_ns;
    }
    for (int rank = 0; rank < all->which->nranks; rank++) {
        if (fault->process == rank || concerns_host(all->which, fault, host_of(all->which, rank))) {
            all->is_touched[rank] = true;
            all->is_hurt[rank] = true;
        }
    }
}

/* Return true if only this call of this rank has failed and the group has not: the rank then
 * exits. */
static bool
is_own_failure(const rank_call *call)
{
    dd_status code = call->error.code;
    bool is_alone = strcmp(call->name, "ring") == 0 || strcmp(call->name, "window") == 0;
    return code == DD_SYSTEM || code == DD_OUT_OF_MEMORY || code == DD_NETWORK || code == DD_STORE ||
           (code != DD_OK && is_alone);
}

static void
note_own_failures(facts *all)
{
    for (int rank = 0; rank < all->which->nranks; rank++) {
        const rank_record *record = ranks_record(rank);
        for (int i = 0; i < record->ncalls; i++) {
            if (is_own_failure(&record->calls[i])) {
                all->is_touched[rank] = true;
            }
        }
    }
}

/* Return true if the rank failed before. It exits, as the scenario requires, and other ranks may
 * notice the exit before they receive the reason. */
static bool
had_failed_before(int rank, int64_t at_ns)
{
    const rank_record *record = ranks_record(rank);
    for (int i = 0; i < record->ncalls; i++) {
        if (record->calls[i].error.code != DD_OK && record->calls[i].ended_ns <= at_ns) {
            return true;
        }
    }
    return false;
}

static facts
find_facts(const scenario *which, char *text)
{
    facts all = {.which = which,
                 .text = text,
                 .is_faultless = true,
                 .has_only_kills = true,
                 .is_server_hurt = has_server_exited(which),
                 .first_death_ns = DD_NEVER_NS};
    for (int rank = 0; rank < which->nranks; rank++) {
        all.death_ns[rank] = DD_NEVER_NS;
    }
    for (int i = 0; i < which->nfaults; i++) {
        note_fault(&all, i);
    }
    all.end = which->nsteps > 0 && which->steps[which->nsteps - 1].kind >= STEP_ABORT
                  ? &which->steps[which->nsteps - 1]
                  : NULL;
    bool has_part = all.end != NULL && all.end->kind == STEP_PART;
    /* a cut delays the detection of a death */
    all.has_only_kills = all.has_only_kills && !has_part;
    note_own_failures(&all);
    for (int rank = 0; all.end != NULL && rank < which->nranks; rank++) {
        all.is_touched[rank] = all.is_touched[rank] || rank == all.end->rank || has_part;
    }
    return all;
}

static void
check_outcome(facts *all, sim_outcome outcome)
{
    if (outcome == SIM_TOO_LONG) {
        find(all, "something spins: more steps than such a run may take");
    }
    for (int rank = 0; rank < all->which->nranks; rank++) {
        const rank_record *record = ranks_record(rank);
        if (sim_state_of(rank) == SIM_RUNS && outcome == SIM_STUCK) {
            find(all, "rank %d hangs in \"%s\"", rank,
                 record->ncalls > 0 ? record->calls[record->ncalls - 1].name : "nothing");
        }
    }
    if (outcome == SIM_STUCK) {
        find(all, "the world is stuck");
    }
}

/* Return true if a rank died before it joined the group. The other ranks wait for it and report it
 * as missing, because they cannot know of its death. */
static bool
is_missing_exited_rank(const facts *all, const rank_call *call)
{
    const char *missing = strstr(call->error.message, "; missing: ");
    for (int rank = 0; missing != NULL && rank < all->which->nranks; rank++) {
        char digit = (char)('0' + rank);
        size_t len = strspn(missing + 11, "0123456789, ");
        if (memchr(missing + 11, digit, len) != NULL && sim_state_of(rank) != SIM_EXITED) {
            return true;
        }
    }
    return false;
}

/* Return the time when the last rank joined. Group creation cannot end before that; the links are
 * created afterwards. */
static int64_t
all_joined_ns(const facts *all, const rank_call *call)
{
    int64_t last_ns = call->began_ns;
    bool is_meeting = strcmp(call->name, "making the group") == 0;
    for (int rank = 0; is_meeting && rank < all->which->nranks; rank++) {
        const rank_record *record = ranks_record(rank);
        for (int i = 0; i < record->ncalls; i++) {
            const rank_call *other = &record->calls[i];
            bool is_same = other->step == call->step && strcmp(other->name, call->name) == 0;
            last_ns = is_same && other->began_ns > last_ns ? other->began_ns : last_ns;
        }
    }
    return last_ns;
}

static void
check_call(facts *all, int rank, const rank_call *call)
{
    const dd_error *error = &call->error;
    if (call->ended_ns == 0) {
        return; /* killed during the call, or hangs: check_outcome reports that */
    }
    int64_t slack_ns = all->is_server_hurt ? SLOW_STORE_SLACK_NS : SLACK_NS;
    if (call->ended_ns > call->limit_ns + slack_ns && !all->is_touched[rank]) {
        find(all, "rank %d: %s ended %.3f s after its deadline", rank, call->name,
             (double)(call->ended_ns - call->limit_ns) / 1e9);
    }
    if (error->code == DD_OK) {
        return;
    }
    bool is_before_end = all->end == NULL || call->step < all->which->nsteps - 1;
    if (all->is_faultless && is_before_end) {
        find(all, "rank %d: %s failed although nothing has happened: %s", rank, call->name, error->message);
    }
    if (error->code == DD_INTERNAL || (error->code == DD_PROTOCOL && !all->is_changed) ||
        (error->code == DD_MISMATCH && (all->end == NULL || all->end->kind != STEP_MISMATCH))) {
        find(all, "rank %d: %s: %s: %s", rank, call->name, dd_status_name(error->code), error->message);
    }
    int blamed = call->blamed;
    bool is_blaming = error->code == DD_PEER_LOST || error->code == DD_ABORTED;
    bool is_untouched = blamed >= 0 && blamed < all->which->nranks && !all->is_touched[blamed];
    if (is_blaming && is_untouched && !all->is_server_hurt && !all->is_hurt[rank] && !all->is_changed &&
        (all->is_strict || (!all->is_short && !had_failed_before(blamed, call->ended_ns)))) {
        find(all, "rank %d: %s blames rank %d, to whom nothing has happened: %s", rank, call->name, blamed,
             error->message);
    }
    int64_t since_ns =
        blamed >= 0 && all->death_ns[blamed] != DD_NEVER_NS ? all->death_ns[blamed] : all->first_death_ns;
    int64_t joined_ns = all_joined_ns(all, call);
    since_ns = joined_ns > since_ns ? joined_ns : since_ns;
    if (all->has_only_kills && !all->is_server_hurt && all->first_death_ns != DD_NEVER_NS &&
        call->ended_ns > since_ns + NOTICE_NS && !is_missing_exited_rank(all, call)) {
        find(all, "rank %d: %s: failed %.3f s after a death: %s", rank, call->name,
             (double)(call->ended_ns - since_ns) / 1e9, error->message);
    }
}

/* Return the error that each rank must receive in the last step if no fault has happened. */
static dd_status
expected_end(const scenario_step *end)
{
    switch (end->kind) {
    case STEP_ABORT:
    case STEP_LAST:
        return DD_ABORTED;
    case STEP_LATE:
        return DD_OP_TIMED_OUT;
    case STEP_MISMATCH:
        return DD_MISMATCH;
    case STEP_LEAVE:
    case STEP_COLL:
    case STEP_RING:
    case STEP_SPLIT:
    case STEP_WINDOW:
    case STEP_REOPEN:
    case STEP_ENGINE:
    case STEP_PAUSE:
    case STEP_PART:
    case STEP_KINDS:
        break;
    }
    return DD_OK;
}

static void
check_end(facts *all, int rank, const rank_call *call, bool is_last)
{
    dd_status expected = expected_end(all->end);
    bool is_of_end = call->step == all->which->nsteps - 1 && call->ended_ns != 0;
    /* the barrier before the last call */
    bool is_before_it = call->error.code == DD_OK && !is_last;
    if (expected == DD_OK || !is_of_end || is_before_it) {
        return;
    }
    bool is_leaving_noticed = !all->is_strict && call->error.code == DD_PEER_LOST && call->blamed >= 0 &&
                              had_failed_before(call->blamed, call->ended_ns);
    if (is_leaving_noticed) {
        return;
    }
    if (call->error.code != expected) {
        find(all, "rank %d: %s of the last step: %s, and not %s: %s", rank, call->name,
             dd_status_name(call->error.code), dd_status_name(expected), call->error.message);
    }
    bool is_other_named = call->blamed == all->end->rank || rank == all->end->rank;
    if (!is_other_named && all->end->kind != STEP_MISMATCH) {
        find(all, "rank %d: %s of the last step blames %d: %s", rank, call->name, call->blamed,
             call->error.message);
    }
    if (all->end->kind == STEP_MISMATCH && (call->blamed == rank || call->blamed < 0)) {
        find(all, "rank %d: %s blames %d: %s", rank, call->name, call->blamed, call->error.message);
    }
}

/* Return true if the collective of the last step is complete on all ranks once it is complete on
 * the aborting rank: that rank has the data of all ranks, and the data that it sent arrives before
 * the abort. */
static bool
is_complete_for_all(const scenario *which)
{
    bool is_in_arena = which->world.nhosts == 1 && !which->is_shm_disabled && which->algorithms[0] == '\0';
    return is_in_arena || (which->nranks == 2 && which->nlanes == 1);
}

/* A completed call must succeed on its rank, even if the group is aborted before the rank reads the
 * data. */
static void
check_last(facts *all, int rank)
{
    const rank_record *record = ranks_record(rank);
    const rank_call *call = NULL;
    for (int i = 0; i < record->ncalls; i++) {
        bool is_after_barrier = i > 0 && record->calls[i - 1].step == record->calls[i].step;
        if (call == NULL && record->calls[i].step == all->which->nsteps - 1 && is_after_barrier) {
            call = &record->calls[i];
        }
    }
    if (call != NULL && call->error.code != DD_OK && is_complete_for_all(all->which)) {
        find(all, "rank %d: %s failed although rank %d had ended it before the abort: %s", rank, call->name,
             all->end->rank, call->error.message);
    }
}

static const char *
last_error(const rank_record *record)
{
    const char *message = "";
    for (int i = 0; i < record->ncalls; i++) {
        message = record->calls[i].error.code != DD_OK ? record->calls[i].error.message : message;
    }
    return message;
}

static void
check_rank(facts *all, int rank)
{
    const rank_record *record = ranks_record(rank);
    if (record->has_wrong_data) {
        find(all, "wrong data: %s", record->wrong);
    }
    for (int i = 0; i < record->ncalls; i++) {
        check_call(all, rank, &record->calls[i]);
        if (all->is_faultless && all->end != NULL) {
            bool is_last = i + 1 == record->ncalls || record->calls[i + 1].step != record->calls[i].step;
            check_end(all, rank, &record->calls[i], is_last);
        }
    }
    if (all->is_faultless && all->end != NULL && all->end->kind == STEP_LAST) {
        check_last(all, rank);
    }
    if (all->is_faultless && all->end != NULL && all->end->kind == STEP_PART && !record->has_joined_again) {
        find(all, "rank %d has not joined a new world after the network has healed: %s", rank,
             last_error(record));
    }
    sim_leftovers left = sim_leftovers_of(rank);
    if (sim_state_of(rank) == SIM_EXITED && record->has_closed &&
        left.nfds + left.nallocations + left.nmappings + left.nthreads > 0) {
        find(all, "rank %d has left behind %d descriptors, %d allocations, %d mappings, %d threads", rank,
             left.nfds, left.nallocations, left.nmappings, left.nthreads);
    }
}

void
verdict_find(const scenario *which, sim_outcome outcome, bool is_strict, char text[VERDICT_MAX])
{
    text[0] = '\0';
    facts all = find_facts(which, text);
    all.is_strict = is_strict;
    check_outcome(&all, outcome);
    for (int rank = 0; rank < which->nranks; rank++) {
        check_rank(&all, rank);
    }
}
