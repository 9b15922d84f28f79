/* Groups: calls of a thread between start and end are executed at the end, and communicators are
 * created first. For non-blocking communicators a separate thread executes them; until it has
 * finished, the communicators are in progress. */
#include "nccl_stub.h"

#include <stdlib.h>
#include <string.h>

typedef struct queued_op {
    nccl_comm *comm; /* a reference */
    nccl_op op;
} queued_op;

typedef struct nccl_group {
    int depth;
    dd_nccl_result failed_by;
    nccl_job *jobs;
    queued_op *ops;
    size_t nops;
} nccl_group;

static _Thread_local nccl_group own;

void
nccl_group_start(void)
{
    own.depth++;
}

bool
nccl_group_is_open(void)
{
    return own.depth > 0;
}

dd_nccl_result
nccl_group_fail(dd_nccl_result result)
{
    if (own.depth > 0 && own.failed_by == DD_NCCL_SUCCESS) {
        own.failed_by = result;
    }
    return result;
}

/* Add n to the number of calls on the communicator in this thread's group. */
static void
count_open(nccl_comm *comm, int n)
{
    pthread_mutex_lock(&nccl_lock);
    comm->nopen += n;
    pthread_mutex_unlock(&nccl_lock);
}

/* Leave the communicators at the end of the thread's group. */
static void
leave_comms(const nccl_group *group)
{
    for (const nccl_job *job = group->jobs; job != NULL; job = job->next) {
        count_open(job->comm, -1);
    }
    for (size_t i = 0; i < group->nops; i++) {
        count_open(group->ops[i].comm, -1);
    }
}

dd_nccl_result
nccl_group_add_job(nccl_job *job)
{
    count_open(job->comm, 1);
    nccl_job **link = &own.jobs;
    while (*link != NULL) {
        link = &(*link)->next;
    }
    *link = job;
    return DD_NCCL_SUCCESS;
}

dd_nccl_result
nccl_group_add_op(nccl_comm *comm, const nccl_op *op)
{
    own.ops = realloc(own.ops, (own.nops + 1) * sizeof *own.ops);
    if (own.ops == NULL) {
        abort();
    }
    count_open(comm, 1);
    nccl_window_acquire(op->window);
    own.ops[own.nops++] = (queued_op){.comm = stub_object_acquire(&comm->base), .op = *op};
    return DD_NCCL_SUCCESS;
}

static void
free_group(nccl_group *group)
{
    while (group->jobs != NULL) {
        nccl_job *job = group->jobs;
        group->jobs = job->next;
        nccl_job_free(job);
    }
    for (size_t i = 0; i < group->nops; i++) {
        nccl_window_release(group->ops[i].op.window);
        nccl_comm_release(group->ops[i].comm);
    }
    free(group->ops);
}

/* ---- the communicators that take part, each once */

static void
each_comm(const nccl_group *group, void (*visit)(nccl_comm *comm, void *ctx), void *ctx)
{
    for (const nccl_job *job = group->jobs; job != NULL; job = job->next) {
        bool is_known = false;
        for (const nccl_job *other = group->jobs; other != job; other = other->next) {
            is_known = is_known || other->comm == job->comm;
        }
        if (!is_known) {
            visit(job->comm, ctx);
        }
    }
    for (size_t i = 0; i < group->nops; i++) {
        bool is_known = false;
        for (const nccl_job *job = group->jobs; job != NULL; job = job->next) {
            is_known = is_known || job->comm == group->ops[i].comm;
        }
        for (size_t before = 0; before < i; before++) {
            is_known = is_known || group->ops[before].comm == group->ops[i].comm;
        }
        if (!is_known) {
            visit(group->ops[i].comm, ctx);
        }
    }
}

/* ---- jobs */

static void
run_job(nccl_job *job)
{
    job->result = job->run(job);
}

typedef struct job_thread {
    nccl_job *job;
    int *nleft; /* under nccl_lock */
} job_thread;

static void *
serve_job(void *arg)
{
    job_thread thread = *(job_thread *)arg;
    free(arg);
    run_job(thread.job);
    pthread_mutex_lock(&nccl_lock);
    --*thread.nleft;
    pthread_cond_broadcast(&nccl_changed);
    pthread_mutex_unlock(&nccl_lock);
    return NULL;
}

/* Run jobs concurrently, because they may be ranks that wait for each other. */
static void
run_jobs(nccl_job *jobs)
{
    int nleft = 0;
    for (nccl_job *job = jobs; job != NULL; job = job->next) {
        if (job->next == NULL) {
            run_job(job);
            break;
        }
        job_thread *thread = stub_zalloc(sizeof *thread);
        *thread = (job_thread){.job = job, .nleft = &nleft};
        pthread_mutex_lock(&nccl_lock);
        nleft++;
        pthread_mutex_unlock(&nccl_lock);
        stub_thread_start("nccl-job", serve_job, thread);
    }
    pthread_mutex_lock(&nccl_lock);
    while (nleft > 0) {
        pthread_cond_wait(&nccl_changed, &nccl_lock);
    }
    pthread_mutex_unlock(&nccl_lock);
}

/* ---- the whole group */

typedef struct group_outcome {
    nccl_group *group;
    dd_nccl_result result; /* the first failure */
} group_outcome;

static void
note_failure(group_outcome *outcome, dd_nccl_result result)
{
    if (outcome->result == DD_NCCL_SUCCESS) {
        outcome->result = result;
    }
}

/* Return the operations of one communicator. The caller frees the array. */
static nccl_op *
ops_of(const nccl_group *group, const nccl_comm *comm, size_t *nops)
{
    nccl_op *ops = stub_zalloc(group->nops * sizeof *ops);
    *nops = 0;
    for (size_t i = 0; i < group->nops; i++) {
        if (group->ops[i].comm == comm) {
            ops[(*nops)++] = group->ops[i].op;
        }
    }
    return ops;
}

/* ---- connections, made concurrently: the communicators may be ranks that wait for each other */

static dd_nccl_result
run_connect(nccl_job *job)
{
    nccl_comm_begin_inside(job->comm);
    dd_nccl_result result = nccl_connect(job->comm, job->ops, job->nops);
    nccl_comm_end_inside(job->comm);
    return result;
}

typedef struct connections {
    const nccl_group *group;
    nccl_job *first;
} connections;

static void
add_connection(nccl_comm *comm, void *ctx)
{
    connections *wanted = ctx;
    size_t nops;
    nccl_op *ops = ops_of(wanted->group, comm, &nops);
    if (!nccl_must_connect(comm, ops, nops)) {
        free(ops);
        return;
    }
    nccl_job *job = stub_zalloc(sizeof *job);
    job->run = run_connect;
    job->comm = stub_object_acquire(&comm->base);
    job->ops = ops;
    job->nops = nops;
    job->next = wanted->first;
    wanted->first = job;
}

static void
connect_all(group_outcome *outcome)
{
    connections wanted = {.group = outcome->group};
    each_comm(outcome->group, add_connection, &wanted);
    if (wanted.first != NULL) {
        run_jobs(wanted.first);
    }
    while (wanted.first != NULL) {
        nccl_job *job = wanted.first;
        wanted.first = job->next;
        note_failure(outcome, job->result);
        free((void *)(uintptr_t)job->ops);
        nccl_job_free(job);
    }
}

/* ---- launches */

static void
launch_of(nccl_comm *comm, void *ctx)
{
    group_outcome *outcome = ctx;
    nccl_group *group = outcome->group;
    size_t nops;
    nccl_op *ops = ops_of(group, comm, &nops);
    if (nops > 0 && outcome->result == DD_NCCL_SUCCESS) {
        note_failure(outcome, nccl_launch(comm, ops, nops));
    }
    free(ops);
}

/* Set the result of a communicator that is in progress. */
static void
end_progress(nccl_comm *comm, dd_nccl_result result)
{
    pthread_mutex_lock(&nccl_lock);
    bool is_busy = comm->state == DD_NCCL_IN_PROGRESS;
    pthread_mutex_unlock(&nccl_lock);
    if (is_busy) {
        nccl_comm_set_state(comm, result);
    }
}

static bool
has_ops(const nccl_group *group, const nccl_comm *comm)
{
    size_t i = 0;
    while (i < group->nops && group->ops[i].comm != comm) {
        i++;
    }
    return i < group->nops;
}

static void
end_progress_of_ops(nccl_comm *comm, void *ctx)
{
    const group_outcome *outcome = ctx;
    if (has_ops(outcome->group, comm)) {
        end_progress(comm, outcome->result);
    }
}

/* Run a group. End the progress of each communicator only once: afterwards its owner's next call
 * may already be in progress. */
static void
run_group(group_outcome *outcome)
{
    static stub_site site = {.name = "(launch)"};
    nccl_group *group = outcome->group;
    run_jobs(group->jobs);
    for (nccl_job *job = group->jobs; job != NULL; job = job->next) {
        note_failure(outcome, job->result);
        if (!has_ops(group, job->comm)) {
            end_progress(job->comm, job->result);
        }
    }
    if (group->nops > 0) {
        note_failure(outcome, nccl_enter(&site));
        if (outcome->result == DD_NCCL_SUCCESS) {
            connect_all(outcome);
        }
        each_comm(group, launch_of, outcome);
        each_comm(group, end_progress_of_ops, outcome);
    }
}

static void
begin_in_progress(nccl_comm *comm, void *ctx)
{
    (void)ctx;
    nccl_comm_begin_job(comm);
    nccl_comm_set_state(comm, DD_NCCL_IN_PROGRESS);
}

static void
end_job(nccl_comm *comm, void *ctx)
{
    (void)ctx;
    nccl_comm_end_job(comm);
}

static void *
serve_group(void *arg)
{
    nccl_group *group = arg;
    group_outcome outcome = {.group = group};
    if (group->nops > 0) {
        (void)wire_sleep(&group->ops[0].comm->is_aborted, nccl_fault_launch_delay_ms());
    }
    run_group(&outcome);
    each_comm(group, end_job, NULL);
    free_group(group);
    free(group);
    return NULL;
}

static void
count_not_blocking(nccl_comm *comm, void *ctx)
{
    *(int *)ctx += !nccl_comm_is_blocking(comm);
}

static dd_nccl_result
check_messages_to_self(const nccl_group *group)
{
    for (size_t i = 0; i < group->nops; i++) {
        const queued_op *one = &group->ops[i];
        if (!nccl_is_message(one->op.kind) || one->op.peer != one->comm->rank) {
            continue;
        }
        int balance = 0;
        for (size_t other = 0; other < group->nops; other++) {
            const queued_op *two = &group->ops[other];
            bool is_of_it = two->comm == one->comm && two->op.peer == one->op.peer;
            balance += is_of_it && two->op.kind == NCCL_SEND;
            balance -= is_of_it && two->op.kind == NCCL_RECV;
        }
        if (balance != 0) {
            return nccl_fail(DD_NCCL_INVALID_USAGE,
                             "Trying to send to self without a matching recv, or the other way round");
        }
    }
    return DD_NCCL_SUCCESS;
}

static void
fail_member(nccl_comm *comm, void *ctx)
{
    if (!nccl_comm_is_blocking(comm)) {
        nccl_comm_set_state(comm, *(const dd_nccl_result *)ctx);
    }
}

static bool
has_end(const nccl_group *group)
{
    const nccl_job *job = group->jobs;
    while (job != NULL && !job->is_end) {
        job = job->next;
    }
    return job != NULL;
}

/* Execute the group, which is on the heap, and take it over. */
static dd_nccl_result
carry_out(nccl_group *group)
{
    dd_nccl_result result =
        group->failed_by != DD_NCCL_SUCCESS ? group->failed_by : check_messages_to_self(group);
    if (result != DD_NCCL_SUCCESS || (group->jobs == NULL && group->nops == 0)) {
        if (result != DD_NCCL_SUCCESS) {
            each_comm(group, fail_member, &result);
        }
        free_group(group);
        free(group);
        return result;
    }
    int n = 0;
    each_comm(group, count_not_blocking, &n);
    if (n > 0 && !has_end(group)) {
        each_comm(group, begin_in_progress, NULL);
        stub_thread_start("nccl-group", serve_group, group);
        return DD_NCCL_IN_PROGRESS;
    }
    group_outcome outcome = {.group = group};
    run_group(&outcome);
    free_group(group);
    free(group);
    return outcome.result;
}

dd_nccl_result
nccl_group_end(void)
{
    if (own.depth == 0) {
        return nccl_fail(DD_NCCL_INVALID_USAGE, "ncclGroupEnd: not in a group call.");
    }
    if (--own.depth > 0) {
        return DD_NCCL_SUCCESS;
    }
    nccl_group *group = stub_zalloc(sizeof *group);
    *group = own;
    own = (nccl_group){0};
    leave_comms(group);
    return carry_out(group);
}

dd_nccl_result
nccl_group_simulate_end(dd_nccl_sim_info *info)
{
    if (info != NULL && info->magic != DD_NCCL_SIM_MAGIC) {
        return nccl_group_fail(nccl_fail(DD_NCCL_INVALID_ARGUMENT, "ncclSimInfo_t is not initialized"));
    }
    if (own.depth != 1) {
        return nccl_fail(DD_NCCL_INVALID_USAGE,
                         "ncclGroupSimulateEnd: not in a group call, or in a nested one");
    }
    int n = 0;
    each_comm(&own, count_not_blocking, &n);
    if (n > 0) {
        return nccl_group_end(); /* as in NCCL, whose thread does not compute the estimate */
    }
    if (own.nops > 0) {
        (void)wire_sleep(&own.ops[0].comm->is_aborted, nccl_fault_launch_delay_ms());
    }
    dd_nccl_result result = own.failed_by;
    if (info != NULL && result == DD_NCCL_SUCCESS && own.nops > 0) {
        info->estimatedTime = (float)own.nops;
    }
    nccl_group dropped = own;
    own = (nccl_group){0};
    leave_comms(&dropped);
    free_group(&dropped);
    return result;
}
