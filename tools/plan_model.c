/* Predicts the time of every algorithm on a cluster described by a few estimated numbers: useful to
 * compare algorithms and their growth, not to predict absolute times.
 *
 *     plan_model [collective [nranks]]      tables; all of them without arguments
 *     plan_model summary [ranks per host]   best algorithm by size, loss of the table, hosts
 *
 * Real plans are simulated event by event. A rank has one processor, which starts and receives
 * messages, folds and copies, in the order in which these become possible. The ranks of a host
 * share one network card, with a queue in each direction. If there are too many steps (marked "~"),
 * the time is usually the maximum of three: the work of the busiest rank, the traffic of the
 * busiest card (both counted from real plans of two hosts), and the longest chain of messages. */
#include "collective/select.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Times are in microseconds, speeds in bytes per microsecond. */
typedef struct model_cluster {
    int ranks_per_host;
    double local_overhead; /* per message through shared memory, at each end */
    double local_latency;
    double local_speed; /* copy at each end */
    double net_overhead;
    double net_latency;
    double net_speed;  /* the kernel's copy at each end */
    double card_speed; /* per host, in each direction */
    double fold_speed; /* per source read */
    double copy_speed;
    double step_overhead;
} model_cluster;

static model_cluster typical = {
    .ranks_per_host = 8,
    .local_overhead = 0.3,
    .local_latency = 0.2,
    .local_speed = 10e3,
    .net_overhead = 3.0,
    .net_latency = 15.0,
    .net_speed = 5e3,
    .card_speed = 12.5e3,
    .fold_speed = 20e3,
    .copy_speed = 10e3,
    .step_overhead = 0.05,
};

#define MAX_STEPS 150000
#define MAX_STEPS_OF_RANK 2e5
#define NSIZES 10
#define NCOUNTS 8

static const int rank_counts[NCOUNTS] = {2, 4, 8, 16, 64, 256, 1024, 4096};

typedef struct problem {
    const model_cluster *cluster;
    const dd_algorithm *algorithm;
    int nranks;
    size_t total_nbytes; /* the array, or the sum of all blocks */
    dd_block *blocks;    /* one per rank */
    dd_block whole;
    size_t segment_nbytes;
} problem;

/* ---- problems and their plans */

static bool
is_blockwise(dd_coll coll)
{
    return dd_coll_traits_of[coll].has_uneven;
}

static dd_select_query
query_of(dd_coll coll, int nranks, size_t total_nbytes)
{
    size_t block = total_nbytes / (size_t)nranks / 4 * 4;
    block = block < 4 ? 4 : block;
    return (dd_select_query){
        .coll = coll, .nranks = nranks, .nbytes = is_blockwise(coll) ? block : total_nbytes, .is_even = true};
}

static void *
must(void *memory)
{
    if (memory == NULL) {
        fprintf(stderr, "plan_model: out of memory\n");
        exit(1);
    }
    return memory;
}

static problem
problem_make(const model_cluster *cluster, const dd_algorithm *algorithm, int nranks, size_t total_nbytes)
{
    dd_select_query query = query_of(algorithm->coll, nranks, total_nbytes);
    problem made = {.cluster = cluster,
                    .algorithm = algorithm,
                    .nranks = nranks,
                    .total_nbytes = total_nbytes,
                    .segment_nbytes = dd_select_segment_nbytes(&query)};
    made.whole = (dd_block){.nbytes = query.nbytes};
    made.blocks = must(dd_mem_alloc_array((size_t)nranks, sizeof *made.blocks));
    for (int i = 0; i < nranks; i++) {
        made.blocks[i] = made.whole;
    }
    return made;
}

static void
build(const problem *p, int rank, dd_plan *plan)
{
    dd_coll_args args = {.coll = p->algorithm->coll,
                         .reduction = {.dtype = DD_DTYPE_FLOAT32, .op = DD_REDOP_SUM},
                         .inputs = p->blocks,
                         .outputs = p->blocks};
    dd_plan_task task = {
        .rank = rank, .nranks = p->nranks, .args = &args, .segment_nbytes = p->segment_nbytes};
    dd_error err;
    if (dd_plan_build(p->algorithm, &task, plan, &err) != DD_OK) {
        fprintf(stderr, "plan_model: %s\n", err.message);
        exit(1);
    }
}

static bool
is_local(const problem *p, int a, int b)
{
    return a / p->cluster->ranks_per_host == b / p->cluster->ranks_per_host;
}

static double
end_cost(const problem *p, bool local, size_t nbytes)
{
    const model_cluster *c = p->cluster;
    return local ? c->local_overhead + (double)nbytes / c->local_speed
                 : c->net_overhead + (double)nbytes / c->net_speed;
}

/* Returns the processor time of a step on its rank. */
static double
step_cost(const problem *p, int rank, const dd_plan *plan, const dd_plan_step *step)
{
    const model_cluster *c = p->cluster;
    switch (step->kind) {
    case DD_PLAN_SEND:
        return end_cost(p, is_local(p, rank, step->peer), step->src.nbytes);
    case DD_PLAN_RECV:
        return end_cost(p, is_local(p, rank, step->peer), step->dst.nbytes);
    case DD_PLAN_COPY:
        /* Buffers are in place, so copying a rank's own block costs nothing. */
        return step->src.buffer == DD_PLAN_INPUT && step->dst.buffer == DD_PLAN_OUTPUT
                   ? 0
                   : c->step_overhead + (double)step->src.nbytes / c->copy_speed;
    case DD_PLAN_REDUCE:
        break;
    }
    double nbytes = 0;
    for (uint32_t i = 0; i < step->nsources; i++) {
        nbytes += (double)plan->sources[step->first_source + i].nbytes;
    }
    return c->step_overhead + nbytes / c->fold_speed;
}

/* Returns the approximate number of steps of a rank. */
static double
steps_of_rank(const problem *p)
{
    const char *name = p->algorithm->name;
    dd_coll coll = p->algorithm->coll;
    bool is_whole = strcmp(name, "exchange") == 0 || (strcmp(name, "direct") == 0 && dd_coll_traits_of[coll].is_prefix) ||
                    strcmp(name, "bruck") == 0 || (strcmp(name, "binomial") == 0 && is_blockwise(coll)) ||
                    (strcmp(name, "direct") == 0 && coll == DD_COLL_REDUCE);
    double nsegments = (double)p->total_nbytes / (double)p->segment_nbytes + 1;
    return nsegments * (is_whole ? (double)p->nranks : 8);
}

/* ---- event simulation */

typedef enum event_kind {
    EVENT_READY,   /* a step's dependencies have ended */
    EVENT_LEFT,    /* the sender has passed on a message */
    EVENT_AT_CARD, /* a message has reached the receiving host's card */
    EVENT_ARRIVED, /* a message is available to the receiver */
    EVENT_ENDED,
} event_kind;

typedef struct model_event {
    double time;
    uint64_t order; /* breaks ties: earlier events first */
    event_kind kind;
    uint32_t step; /* number among all ranks' steps */
} model_event;

typedef struct model_run {
    const problem *problem;
    dd_plan *plans;
    uint32_t *base;    /* by rank: number of its first step */
    int *rank_of;      /* by step */
    uint32_t *waiting; /* by step */
    uint32_t *partner; /* by send: its receive */
    bool *is_posted;   /* by receive */
    bool *has_arrived;
    double *processor; /* by rank: when it becomes idle */
    double *card_out;  /* by host */
    double *card_in;
    model_event *heap;
    size_t nevents;
    size_t capacity;
    uint64_t order;
    double end;
} model_run;

static bool
is_before(const model_event *a, const model_event *b)
{
    return a->time < b->time || (a->time == b->time && a->order < b->order);
}

static void
push(model_run *run, double time, event_kind kind, uint32_t step)
{
    if (run->nevents == run->capacity) {
        run->capacity = run->capacity * 2 + 1024;
        run->heap = must(dd_mem_realloc(run->heap, run->capacity * sizeof *run->heap));
    }
    model_event added = {.time = time, .order = run->order++, .kind = kind, .step = step};
    size_t at = run->nevents++;
    while (at > 0 && is_before(&added, &run->heap[(at - 1) / 2])) {
        run->heap[at] = run->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    run->heap[at] = added;
}

static model_event
pop(model_run *run)
{
    model_event first = run->heap[0];
    model_event last = run->heap[--run->nevents];
    size_t at = 0;
    while (2 * at + 1 < run->nevents) {
        size_t child = 2 * at + 1;
        if (child + 1 < run->nevents && is_before(&run->heap[child + 1], &run->heap[child])) {
            child++;
        }
        if (!is_before(&run->heap[child], &last)) {
            break;
        }
        run->heap[at] = run->heap[child];
        at = child;
    }
    run->heap[at] = last;
    return first;
}

/* Maps a message to its receive, in a table with open addressing. */
typedef struct key {
    uint32_t sender, receiver, channel;
    uint32_t step; /* plus one; 0 marks a free entry */
} key;

static key *
find_key(key *table, size_t mask, uint32_t sender, uint32_t receiver, uint32_t channel)
{
    uint64_t hash =
        (((uint64_t)sender << 32 | receiver) * 0x9e3779b97f4a7c15u ^ channel) * 0xbf58476d1ce4e5b9u;
    size_t at = (hash >> 20) & mask;
    while (table[at].step != 0 &&
           (table[at].sender != sender || table[at].receiver != receiver || table[at].channel != channel)) {
        at = (at + 1) & mask;
    }
    return &table[at];
}

static void
match(model_run *run, uint32_t nsteps)
{
    size_t size = 1024;
    while (size < 2 * (size_t)nsteps) {
        size *= 2;
    }
    key *table = must(dd_mem_zalloc(size * sizeof *table));
    for (int pass = 0; pass < 2; pass++) {
        for (int rank = 0; rank < run->problem->nranks; rank++) {
            const dd_plan *plan = &run->plans[rank];
            for (uint32_t i = 0; i < plan->nsteps; i++) {
                const dd_plan_step *step = &plan->steps[i];
                uint32_t me = (uint32_t)rank, peer = (uint32_t)step->peer;
                if (pass == 0 && step->kind == DD_PLAN_RECV) {
                    *find_key(table, size - 1, peer, me, step->channel) =
                        (key){peer, me, step->channel, run->base[rank] + i + 1};
                } else if (pass == 1 && step->kind == DD_PLAN_SEND) {
                    run->partner[run->base[rank] + i] =
                        find_key(table, size - 1, me, peer, step->channel)->step - 1;
                }
            }
        }
    }
    dd_mem_free(table);
}

static void
use_processor(model_run *run, double time, uint32_t number, event_kind then)
{
    int rank = run->rank_of[number];
    const dd_plan *plan = &run->plans[rank];
    double start = time > run->processor[rank] ? time : run->processor[rank];
    run->processor[rank] =
        start + step_cost(run->problem, rank, plan, &plan->steps[number - run->base[rank]]);
    push(run, run->processor[rank], then, number);
}

static void
leave(model_run *run, double time, uint32_t number, const dd_plan_step *step)
{
    const model_cluster *c = run->problem->cluster;
    int rank = run->rank_of[number];
    if (is_local(run->problem, rank, step->peer)) {
        push(run, time + c->local_latency, EVENT_ARRIVED, run->partner[number]);
        return;
    }
    double *card = &run->card_out[rank / c->ranks_per_host];
    double start = time > *card ? time : *card;
    *card = start + (double)step->src.nbytes / c->card_speed;
    push(run, start + c->net_latency, EVENT_AT_CARD, run->partner[number]);
}

static void
end_step(model_run *run, double time, uint32_t number)
{
    run->end = time > run->end ? time : run->end;
    int rank = run->rank_of[number];
    const dd_plan *plan = &run->plans[rank];
    uint32_t base = run->base[rank];
    for (uint32_t i = plan->steps[number - base].first_follower; i != DD_PLAN_NONE;
         i = plan->followers[i].next) {
        uint32_t follower = base + plan->followers[i].step;
        if (--run->waiting[follower] == 0) {
            push(run, time, EVENT_READY, follower);
        }
    }
}

static void
happen(model_run *run, model_event event)
{
    const model_cluster *c = run->problem->cluster;
    int rank = run->rank_of[event.step];
    const dd_plan_step *step = &run->plans[rank].steps[event.step - run->base[rank]];
    switch (event.kind) {
    case EVENT_READY:
        if (step->kind == DD_PLAN_RECV) {
            run->is_posted[event.step] = true;
            if (run->has_arrived[event.step]) {
                use_processor(run, event.time, event.step, EVENT_ENDED);
            }
        } else {
            use_processor(run, event.time, event.step, step->kind == DD_PLAN_SEND ? EVENT_LEFT : EVENT_ENDED);
        }
        return;
    case EVENT_LEFT:
        leave(run, event.time, event.step, step);
        end_step(run, event.time, event.step);
        return;
    case EVENT_AT_CARD: {
        double *card = &run->card_in[rank / c->ranks_per_host];
        *card = (event.time > *card ? event.time : *card) + (double)step->dst.nbytes / c->card_speed;
        push(run, *card, EVENT_ARRIVED, event.step);
        return;
    }
    case EVENT_ARRIVED:
        run->has_arrived[event.step] = true;
        if (run->is_posted[event.step]) {
            use_processor(run, event.time, event.step, EVENT_ENDED);
        }
        return;
    case EVENT_ENDED:
        end_step(run, event.time, event.step);
        return;
    }
}

/* Builds all plans and counts their steps; returns false if there are too many. */
static bool
build_all(model_run *run, uint32_t *nsteps)
{
    for (int rank = 0; rank < run->problem->nranks; rank++) {
        build(run->problem, rank, &run->plans[rank]);
        run->base[rank] = *nsteps;
        *nsteps += run->plans[rank].nsteps;
        /* Estimate the rest: a later rank has at least half as many steps as this one. Skip the
         * root, rank 0. */
        uint64_t rest = (uint64_t)(run->problem->nranks - 1 - rank);
        if (*nsteps > MAX_STEPS || (rank > 0 && run->plans[rank].nsteps / 2 * rest > MAX_STEPS)) {
            return false;
        }
    }
    return true;
}

static void
run_events(model_run *run, uint32_t nsteps)
{
    run->rank_of = must(dd_mem_alloc_array((size_t)nsteps + 1, sizeof *run->rank_of));
    run->waiting = must(dd_mem_alloc_array((size_t)nsteps + 1, sizeof *run->waiting));
    run->partner = must(dd_mem_alloc_array((size_t)nsteps + 1, sizeof *run->partner));
    run->is_posted = must(dd_mem_zalloc((size_t)nsteps + 1));
    run->has_arrived = must(dd_mem_zalloc((size_t)nsteps + 1));
    match(run, nsteps);
    for (int rank = 0; rank < run->problem->nranks; rank++) {
        for (uint32_t i = 0; i < run->plans[rank].nsteps; i++) {
            uint32_t number = run->base[rank] + i;
            run->rank_of[number] = rank;
            run->waiting[number] = run->plans[rank].steps[i].ndeps;
            if (run->waiting[number] == 0) {
                push(run, 0, EVENT_READY, number);
            }
        }
    }
    while (run->nevents > 0) {
        happen(run, pop(run));
    }
}

/* Returns microseconds, or a negative number if there are too many steps. */
static double
simulate(const problem *p)
{
    if (steps_of_rank(p) > MAX_STEPS_OF_RANK) {
        return -1;
    }
    size_t nranks = (size_t)p->nranks;
    model_run run = {.problem = p};
    run.plans = must(dd_mem_zalloc(nranks * sizeof *run.plans));
    run.base = must(dd_mem_zalloc(nranks * sizeof *run.base));
    run.processor = must(dd_mem_zalloc(nranks * sizeof *run.processor));
    run.card_out = must(dd_mem_zalloc(nranks * sizeof *run.card_out));
    run.card_in = must(dd_mem_zalloc(nranks * sizeof *run.card_in));
    uint32_t nsteps = 0;
    bool is_small = build_all(&run, &nsteps);
    if (is_small) {
        run_events(&run, nsteps);
    }
    for (size_t i = 0; i < nranks; i++) {
        dd_plan_fini(&run.plans[i]);
    }
    void *blocks[] = {run.plans,   run.base,    run.processor, run.card_out,    run.card_in, run.rank_of,
                      run.waiting, run.partner, run.is_posted, run.has_arrived, run.heap};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        dd_mem_free(blocks[i]);
    }
    return is_small ? run.end : -1;
}

/* ---- closed forms */

typedef struct model_load {
    double processor; /* time of the busiest rank counted */
    double card;      /* time of the busiest card */
    double root;      /* the root's time */
    size_t message;   /* size of the first message */
} model_load;

/* Adds one rank's work to `most`, and its traffic with other hosts, received and sent, to
 * `bytes`. */
static void
add_rank(const problem *p, int rank, double weight, model_load *most, double bytes[2])
{
    dd_plan plan = {0};
    double busy = 0;
    build(p, rank, &plan);
    for (uint32_t i = 0; i < plan.nsteps; i++) {
        const dd_plan_step *step = &plan.steps[i];
        busy += step_cost(p, rank, &plan, step);
        bool is_message = step->kind == DD_PLAN_SEND || step->kind == DD_PLAN_RECV;
        if (is_message && !is_local(p, rank, step->peer)) {
            bytes[step->kind == DD_PLAN_SEND] += weight * (double)(step->src.nbytes + step->dst.nbytes);
        }
        if (step->kind == DD_PLAN_SEND && most->message == 0) {
            most->message = step->src.nbytes;
        }
    }
    most->root = rank == 0 ? busy : most->root;
    most->processor = busy > most->processor ? busy : most->processor;
    dd_plan_fini(&plan);
}

/* Counts the first host, which has the root: its first and last rank, and one for the ranks
 * between. */
static model_load
count_load(const problem *p)
{
    model_load most = {0};
    double bytes[2] = {0};
    int last = (p->nranks < p->cluster->ranks_per_host ? p->nranks : p->cluster->ranks_per_host) - 1;
    add_rank(p, 0, 1, &most, bytes);
    if (last > 0) {
        add_rank(p, last, 1, &most, bytes);
    }
    if (last == 0 && p->nranks > 1) {
        add_rank(p, 1, 0, &most, bytes);
    }
    if (last > 1) {
        add_rank(p, 1, last - 1, &most, bytes);
    }
    most.card = (bytes[0] > bytes[1] ? bytes[0] : bytes[1]) / p->cluster->card_speed;
    return most;
}

static double
hop(const problem *p, bool local, size_t nbytes)
{
    const model_cluster *c = p->cluster;
    return 2 * end_cost(p, local, nbytes) +
           (local ? c->local_latency : c->net_latency + (double)nbytes / c->card_speed);
}

/* Returns the time of the longest chain of messages, for the first segment. */
static double
chain_of_messages(const problem *p, const model_load *load)
{
    const char *name = p->algorithm->name;
    int per_host = p->cluster->ranks_per_host;
    int nhosts = (p->nranks + per_host - 1) / per_host;
    dd_coll coll = p->algorithm->coll;
    if (strcmp(name, "ring") == 0 || strcmp(name, "chain") == 0) {
        int nphases = coll == DD_COLL_ALL_REDUCE ? 2 : 1;
        int nnet = nhosts > 1 ? nhosts - 1 : 0;
        double fold = dd_coll_is_folding(coll)
                          ? p->cluster->step_overhead + 2 * (double)load->message / p->cluster->fold_speed
                          : 0;
        return nphases * (nnet * hop(p, false, load->message) +
                          (p->nranks - 1 - nnet) * hop(p, true, load->message)) +
               (p->nranks - 1) * fold;
    }
    if (strcmp(name, "bruck") == 0) {
        int nrounds = 0;
        for (int distance = 1; distance < p->nranks; distance *= 2) {
            nrounds++;
        }
        return load->processor + load->card + nrounds * (nhosts > 1 ? p->cluster->net_latency : 0);
    }
    if (strcmp(name, "scatter_all_gather") == 0) {
        return load->root + load->processor;
    }
    bool has_two = strcmp(name, "direct_scatter_gather") == 0 ||
                   (coll == DD_COLL_ALL_REDUCE && strcmp(name, "direct") == 0);
    return (has_two ? 2 : 1) * hop(p, nhosts == 1, load->message);
}

/* Sizes with too many steps even for one rank are scaled up from smaller ones, as time is then
 * proportional to size. */
static double
estimate(const problem *p)
{
    if (steps_of_rank(p) > MAX_STEPS_OF_RANK && p->total_nbytes > 4096) {
        problem smaller = problem_make(p->cluster, p->algorithm, p->nranks, p->total_nbytes / 8);
        double time = 8 * estimate(&smaller);
        dd_mem_free(smaller.blocks);
        return time;
    }
    model_load load = count_load(p);
    double chain = chain_of_messages(p, &load);
    double work = load.processor > load.card ? load.processor : load.card;
    if (strcmp(p->algorithm->name, "chain") == 0) {
        return chain + work;
    }
    return chain > work ? chain : work;
}

/* Compares closed forms with the event simulation, for problems that both can handle. */
static void
print_accuracy(void)
{
    printf("Closed forms against events, 16 to 64 ranks, all sizes (closed form / events):\n");
    for (const dd_algorithm *row = dd_algorithms; row->name != NULL; row++) {
        double least = 1e9, most = 0, sum = 0;
        int count = 0;
        for (int nranks = 16; nranks <= 64 && row->coll != DD_COLL_BARRIER; nranks *= 2) {
            size_t size = 8;
            for (int i = 0; i < NSIZES; i++, size *= 8) {
                problem p = problem_make(&typical, row, nranks, size);
                double events = simulate(&p);
                if (events > 0) {
                    double ratio = estimate(&p) / events;
                    least = ratio < least ? ratio : least;
                    most = ratio > most ? ratio : most;
                    sum += ratio;
                    count++;
                }
                dd_mem_free(p.blocks);
            }
        }
        if (count > 0 && strcmp(row->name, "binomial") != 0 && strcmp(row->name, "doubling") != 0) {
            printf("  %-15s %-22s %.2f to %.2f, mean %.2f\n", dd_coll_name(row->coll), row->name, least, most,
                   sum / count);
        }
    }
}

/* ---- tables */

typedef struct prediction {
    double time;
    bool is_closed;
} prediction;

static prediction
predict(const model_cluster *cluster, const dd_algorithm *algorithm, int nranks, size_t total_nbytes)
{
    problem p = problem_make(cluster, algorithm, nranks, total_nbytes);
    prediction made = {.time = simulate(&p)};
    if (made.time < 0) {
        made = (prediction){.time = estimate(&p), .is_closed = true};
    }
    dd_mem_free(p.blocks);
    return made;
}

static const char *
size_text(size_t nbytes, char text[32])
{
    const char *units[] = {"B", "KiB", "MiB", "GiB"};
    int unit = 0;
    while (nbytes >= 1024 && unit < 3) {
        nbytes /= 1024;
        unit++;
    }
    snprintf(text, 32, "%zu %s", nbytes, units[unit]);
    return text;
}

typedef struct best {
    const dd_algorithm *algorithm;
    const dd_algorithm *chosen; /* by the selection table */
    double loss;                /* the chosen one's, relative to the best */
} best;

static best
compare(const model_cluster *cluster, dd_coll coll, int nranks, size_t nbytes, bool is_printed)
{
    best found = {0};
    double least = 0, chosen_time = 0;
    dd_selection selection = {0};
    dd_select_query query = query_of(coll, nranks, nbytes);
    found.chosen = dd_select(&selection, &query);
    for (const dd_algorithm *row = dd_algorithms; row->name != NULL; row++) {
        if (row->coll == coll) {
            prediction made = predict(cluster, row, nranks, nbytes);
            if (found.algorithm == NULL || made.time < least) {
                found.algorithm = row;
                least = made.time;
            }
            chosen_time = row == found.chosen ? made.time : chosen_time;
            if (is_printed) {
                printf(" %20.1f%s", made.time, made.is_closed ? "~" : " ");
            }
        }
    }
    found.loss = chosen_time / least - 1;
    return found;
}

static void
print_table(dd_coll coll, int nranks)
{
    char text[32];
    printf("\n%s, %d ranks; microseconds\n%9s", dd_coll_name(coll), nranks, "");
    for (const dd_algorithm *row = dd_algorithms; row->name != NULL; row++) {
        if (row->coll == coll) {
            printf(" %20s ", row->name);
        }
    }
    printf("  table chooses\n");
    size_t nbytes = 8;
    for (int i = 0; i < (coll == DD_COLL_BARRIER ? 1 : NSIZES); i++, nbytes *= 8) {
        printf("%9s", size_text(nbytes, text));
        best found = compare(&typical, coll, nranks, nbytes, true);
        printf("  %s", found.chosen->name);
        if (found.chosen != found.algorithm) {
            printf(" (%.0f%% over %s)", 100 * found.loss, found.algorithm->name);
        }
        printf("\n");
    }
}

/* Prints the size from which each algorithm is best, as in "8 B doubling, 4 KiB direct". */
static void
print_crossovers(dd_coll coll, int nranks)
{
    char text[32];
    const dd_algorithm *last = NULL;
    double worst = 0;
    size_t nbytes = 8;
    printf("  %-14s %5d ranks:", dd_coll_name(coll), nranks);
    for (int i = 0; i < NSIZES; i++, nbytes *= 8) {
        best found = compare(&typical, coll, nranks, nbytes, false);
        worst = found.loss > worst ? found.loss : worst;
        if (found.algorithm != last) {
            printf("%s %s %s", last != NULL ? "," : "", size_text(nbytes, text), found.algorithm->name);
            last = found.algorithm;
        }
    }
    printf("; table at most %.0f%% over\n", 100 * worst);
    fflush(stdout);
}

/* ---- hosts whose ranks share memory */

/* Returns the time of the selected plan between hosts, if each of a host's ranks transfers a part
 * of the array and has an equal share of the card's speed. */
static double
between_hosts(dd_coll coll, int nhosts, size_t total_nbytes)
{
    model_cluster apart = typical;
    apart.ranks_per_host = 1;
    apart.card_speed /= typical.ranks_per_host;
    dd_selection selection = {0};
    dd_select_query query = query_of(coll, nhosts, total_nbytes);
    return predict(&apart, dd_select(&selection, &query), nhosts, total_nbytes).time;
}

/* Returns the time of two synchronisations of a host's ranks and of the bytes copied and folded by
 * each. */
static double
arena(double copied, double folded)
{
    return 2.0 + copied / typical.copy_speed + folded / typical.fold_speed;
}

static double
hierarchical(dd_coll coll, int nranks, size_t total_nbytes)
{
    int per_host = typical.ranks_per_host;
    int nhosts = nranks / per_host;
    double all = (double)total_nbytes;
    double part = all / per_host;
    double net = between_hosts(coll, nhosts, total_nbytes / (size_t)per_host + 4);
    switch (coll) {
    case DD_COLL_ALL_REDUCE:
        return arena(all, all) + net + arena(part + all, 0);
    case DD_COLL_BROADCAST:
        return arena(part + part, 0) + net + arena(part + all, 0);
    case DD_COLL_ALL_GATHER:
        return net + arena(part + all, 0);
    case DD_COLL_REDUCE_SCATTER:
        return arena(all, all) + net;
    case DD_COLL_BARRIER:
    case DD_COLL_REDUCE:
    case DD_COLL_GATHER:
    case DD_COLL_SCATTER:
    case DD_COLL_ALL_TO_ALL:
    case DD_COLL_SCAN:
    case DD_COLL_EXSCAN:
        break;
    }
    return 0;
}

static double
flat(dd_coll coll, int nranks, size_t nbytes)
{
    dd_selection selection = {0};
    dd_select_query query = query_of(coll, nranks, nbytes);
    return predict(&typical, dd_select(&selection, &query), nranks, nbytes).time;
}

static void
print_hierarchy(void)
{
    const dd_coll colls[] = {DD_COLL_ALL_REDUCE, DD_COLL_BROADCAST, DD_COLL_ALL_GATHER,
                             DD_COLL_REDUCE_SCATTER};
    const int counts[] = {16, 64, 512, 4096};
    char text[32];
    printf(
        "\nArena in the host and a plan between hosts, against a plan of all ranks as the table chooses it; microseconds\n");
    for (size_t i = 0; i < sizeof colls / sizeof colls[0]; i++) {
        printf("\n%-14s", dd_coll_name(colls[i]));
        for (size_t j = 0; j < sizeof counts / sizeof counts[0]; j++) {
            printf(" %12d ranks: hosts/flat", counts[j]);
        }
        printf("\n");
        size_t nbytes = 8;
        for (int size = 0; size < NSIZES; size++, nbytes *= 8) {
            printf("%14s", size_text(nbytes, text));
            for (size_t j = 0; j < sizeof counts / sizeof counts[0]; j++) {
                double hosts = hierarchical(colls[i], counts[j], nbytes);
                double one = flat(colls[i], counts[j], nbytes);
                printf(" %11.0f/%-11.0f %4.1fx", hosts, one, one / hosts);
            }
            printf("\n");
            fflush(stdout);
        }
    }
}

static void
print_summary(void)
{
    printf("Which algorithm is best from which size of the whole array on (or of all blocks together)\n");
    for (int coll = 1; coll < DD_COLL_COUNT; coll++) {
        for (int i = 0; i < NCOUNTS; i++) {
            print_crossovers((dd_coll)coll, rank_counts[i]);
        }
    }
    if (typical.ranks_per_host > 1) {
        print_hierarchy();
    }
    printf("\n");
    print_accuracy();
}

int
main(int argc, char **argv)
{
    bool is_summary = argc > 1 && strcmp(argv[1], "summary") == 0;
    if (is_summary && argc > 2 && atoi(argv[2]) > 0) {
        typical.ranks_per_host = atoi(argv[2]);
    }
    printf(
        "Model, not measurement: hosts of %d; a message costs each end %.1f us within a host, %.1f us between "
        "hosts;\nlatency %.1f/%.0f us; each end copies %.0f/%.0f GB/s; a host's card %.1f GB/s each way; "
        "folds read %.0f GB/s\n",
        typical.ranks_per_host, typical.local_overhead, typical.net_overhead, typical.local_latency,
        typical.net_latency, typical.local_speed / 1e3, typical.net_speed / 1e3, typical.card_speed / 1e3,
        typical.fold_speed / 1e3);
    if (is_summary) {
        print_summary();
        return 0;
    }
    for (int coll = 0; coll < DD_COLL_COUNT; coll++) {
        for (int i = 0; i < NCOUNTS; i++) {
            bool is_wanted = argc < 2 || strcmp(argv[1], dd_coll_name((dd_coll)coll)) == 0;
            if (is_wanted && (argc < 3 || atoi(argv[2]) == rank_counts[i])) {
                print_table((dd_coll)coll, rank_counts[i]);
            }
        }
    }
    return 0;
}
