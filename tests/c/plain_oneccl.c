#include "plain_oneccl.h"

#include "check.h"
#include "nccl/driver/lib.h"
#include "plain_library.h"
#include "stubs/carrier_stub.h"
#include "xccl/xccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define LIBRARY DD_STUBS_DIR "/libcarriers.so"
#define MAX_RANKS PLAIN_ONECCL_MAX_RANKS
#define MAX_WORLDS 4
#define ROOM ((size_t)1 << 18)
#define PATIENCE_S 8

/* ---- settings of this process */

typedef enum function_name {
#define NAME(name, returns, parameters) AT_##name,
    DD_XCCL_FUNCTIONS(NAME)
#undef NAME
        NFUNCTIONS,
} function_name;

static const char *const names[] = {
#define NAME(name, returns, parameters) #name,
    DD_XCCL_FUNCTIONS(NAME)
#undef NAME
};

/* guarded by mu */
static struct {
    pthread_mutex_t mu;
    pthread_cond_t changed;
    int rank;
    int ncalls[NFUNCTIONS];
    const char *failing;
    xccl_result result;
    const char *text;
    const char *hanging;
} own = {.mu = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static struct timespec
long_wait(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)PATIENCE_S * check_slow();
    return until;
}

/* Count a call, and block or fail as the settings require. */
static xccl_result
enter(function_name function)
{
    struct timespec until = long_wait();
    int failure = 0;
    pthread_mutex_lock(&own.mu);
    own.ncalls[function]++;
    while (own.hanging != NULL && strcmp(own.hanging, names[function]) == 0 && failure == 0) {
        failure = pthread_cond_timedwait(&own.changed, &own.mu, &until);
    }
    bool does_fail = own.failing != NULL && strcmp(own.failing, names[function]) == 0;
    xccl_result result = does_fail ? own.result : XCCL_SUCCESS;
    pthread_mutex_unlock(&own.mu);
    return result;
}

void
plain_oneccl_be(int rank)
{
    own.rank = rank;
}

void
plain_oneccl_fail(const char *function, int result, const char *text)
{
    pthread_mutex_lock(&own.mu);
    own.failing = function;
    own.result = (xccl_result)result;
    own.text = text;
    pthread_mutex_unlock(&own.mu);
}

void
plain_oneccl_hang(const char *function)
{
    pthread_mutex_lock(&own.mu);
    own.hanging = function;
    pthread_cond_broadcast(&own.changed);
    pthread_mutex_unlock(&own.mu);
}

void
plain_oneccl_release(void)
{
    plain_oneccl_hang(NULL);
}

int
plain_oneccl_calls(const char *function)
{
    int ncalls = 0;
    pthread_mutex_lock(&own.mu);
    for (int i = 0; i < NFUNCTIONS; i++) {
        ncalls += strcmp(names[i], function) == 0 ? own.ncalls[i] : 0;
    }
    pthread_mutex_unlock(&own.mu);
    return ncalls;
}

/* ---- state shared by the processes */

typedef struct sent_message {
    int to; /* -1 if there is none */
    size_t nbytes;
} sent_message;

typedef struct world_member {
    dd_carried_call call; /* its pointers refer to this structure */
    size_t in_counts[MAX_RANKS];
    size_t in_offsets[MAX_RANKS + 1];
    size_t out_counts[MAX_RANKS];
    size_t out_offsets[MAX_RANKS + 1];
    sent_message sent; /* its data is in `input` */
    _Alignas(64) char input[ROOM];
    _Alignas(64) char output[ROOM];
} world_member;

typedef struct xccl_opaque_comm {
    int nranks;
    int narrived;
    long nmeetings;
    world_member members[MAX_RANKS];
} world;

/* Guarded by mu, except the data that a member writes before it arrives, and reads when all members
 * have arrived. */
static struct shared_worlds {
    pthread_mutex_t mu;
    pthread_cond_t changed;
    int nworlds;
    world worlds[MAX_WORLDS];
} * shared;

static void
share(void)
{
    pthread_mutexattr_t mutex;
    pthread_condattr_t cond;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(shared != MAP_FAILED);
    pthread_mutexattr_init(&mutex);
    pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&shared->mu, &mutex);
    pthread_condattr_init(&cond);
    pthread_condattr_setpshared(&cond, PTHREAD_PROCESS_SHARED);
    pthread_cond_init(&shared->changed, &cond);
    for (int i = 0; i < MAX_WORLDS * MAX_RANKS; i++) {
        shared->worlds[i / MAX_RANKS].members[i % MAX_RANKS].sent.to = -1;
    }
}

static world_member *
member_of(xccl_comm comm)
{
    return &comm->members[own.rank];
}

/* Wait for all members. The last one to arrive carries out the collective. */
static xccl_result
arrive(xccl_comm comm, bool has_calls)
{
    const dd_carried_call *calls[MAX_RANKS];
    struct timespec until = long_wait();
    pthread_mutex_lock(&shared->mu);
    long meeting = comm->nmeetings;
    comm->narrived++;
    if (comm->narrived == comm->nranks) {
        for (int i = 0; i < comm->nranks; i++) {
            calls[i] = &comm->members[i].call;
        }
        if (has_calls) {
            plain_library_do(calls, comm->nranks);
        }
        comm->narrived = 0;
        comm->nmeetings++;
        pthread_cond_broadcast(&shared->changed);
    }
    int failure = 0;
    while (comm->nmeetings == meeting && failure == 0) {
        failure = pthread_cond_timedwait(&shared->changed, &shared->mu, &until);
    }
    pthread_mutex_unlock(&shared->mu);
    return failure == 0 ? XCCL_SUCCESS : XCCL_SYSTEM_ERROR;
}

/* ---- the library */

static xccl_result
get_version(int *version)
{
    *version = 20215;
    return enter(AT_onecclGetVersion);
}

static const char *
get_error_string(xccl_result result)
{
    return result == XCCL_PLUGIN_EXCEPTION ? NULL : "it does not go";
}

static const char *
get_last_error(xccl_comm comm)
{
    (void)comm;
    return own.text;
}

static xccl_result
get_unique_id(xccl_unique_id *id)
{
    xccl_result result = enter(AT_onecclGetUniqueId);
    pthread_mutex_lock(&shared->mu);
    if (result == XCCL_SUCCESS && CHECK(shared->nworlds < MAX_WORLDS)) {
        id->bytes[sizeof id->bytes - 1] = (char)shared->nworlds;
        shared->nworlds++;
    }
    pthread_mutex_unlock(&shared->mu);
    return result;
}

static xccl_result
comm_init_rank(xccl_comm *comm, size_t nranks, xccl_unique_id id, int rank)
{
    xccl_result result = enter(AT_onecclCommInitRank);
    CHECK_INT(rank, own.rank);
    if (result != XCCL_SUCCESS) {
        return result;
    }
    *comm = &shared->worlds[(int)id.bytes[sizeof id.bytes - 1]];
    pthread_mutex_lock(&shared->mu);
    (*comm)->nranks = (int)nranks;
    pthread_mutex_unlock(&shared->mu);
    return arrive(*comm, false);
}

static xccl_result
comm_destroy(xccl_comm comm)
{
    CHECK(comm != NULL);
    return enter(AT_onecclCommDestroy);
}

/* ---- collectives */

static dd_dtype
dtype_of(dd_nccl_dtype theirs)
{
    for (int dtype = 0; dtype < DD_DTYPE_COUNT; dtype++) {
        dd_nccl_dtype found;
        int since;
        if (dd_nccl_dtype_find((dd_dtype)dtype, &found, &since) && found == theirs) {
            return (dd_dtype)dtype;
        }
    }
    CHECK(!"a type that NCCL knows");
    return DD_DTYPE_UINT8;
}

static dd_redop
op_of(dd_nccl_redop theirs)
{
    static const dd_redop OPS[] = {[DD_NCCL_SUM] = DD_REDOP_SUM,
                                   [DD_NCCL_PROD] = DD_REDOP_PRODUCT,
                                   [DD_NCCL_MAX] = DD_REDOP_MAX,
                                   [DD_NCCL_MIN] = DD_REDOP_MIN};
    return OPS[theirs];
}

/* Place the blocks one after the other, each of `count` if counts is NULL. Return the sum. */
static size_t
lay_out(int nranks, const size_t *counts, size_t count, size_t *into_counts, size_t *offsets)
{
    offsets[0] = 0;
    for (int i = 0; i < nranks; i++) {
        into_counts[i] = counts != NULL ? counts[i] : count;
        offsets[i + 1] = offsets[i] + into_counts[i];
    }
    return offsets[nranks];
}

/* Carry out the call, with `nin` elements at `send` and `nout` at `recv`, placed by the member. */
static xccl_result
meet(function_name function, xccl_comm comm, dd_carried_call call, size_t nin, size_t nout)
{
    world_member *self = member_of(comm);
    size_t unit = dd_dtype_size(call.dtype);
    xccl_result result = enter(function);
    if (result != XCCL_SUCCESS || !CHECK(nin * unit <= ROOM && nout * unit <= ROOM)) {
        return result;
    }
    self->call = call;
    self->call.input = self->input;
    self->call.output = self->output;
    memcpy(self->input, call.input, nin * unit);
    if (call.output != NULL) {
        memcpy(self->output, call.output, nout * unit);
    }
    result = arrive(comm, true);
    if (call.output != NULL && result == XCCL_SUCCESS) {
        memcpy(call.output, self->output, nout * unit);
    }
    return result;
}

static xccl_result
broadcast(const void *send, void *recv, size_t count, dd_nccl_dtype dtype, int root, xccl_comm comm,
          void *stream)
{
    CHECK(stream == NULL);
    dd_carried_call call = {.coll = DD_COLL_BROADCAST,
                            .dtype = dtype_of(dtype),
                            .root = root,
                            .input = send,
                            .output = recv,
                            .count = count,
                            .is_even = true};
    return meet(AT_onecclBroadcast, comm, call, count, count);
}

static xccl_result
reduce(const void *send, void *recv, size_t count, dd_nccl_dtype dtype, dd_nccl_redop op, int root,
       xccl_comm comm, void *stream)
{
    CHECK(stream == NULL);
    dd_carried_call call = {.coll = DD_COLL_REDUCE,
                            .dtype = dtype_of(dtype),
                            .op = op_of(op),
                            .root = root,
                            .input = send,
                            .output = recv,
                            .count = count,
                            .is_even = true};
    return meet(AT_onecclReduce, comm, call, count, count);
}

static xccl_result
all_reduce(const void *send, void *recv, size_t count, dd_nccl_dtype dtype, dd_nccl_redop op, xccl_comm comm,
           void *stream)
{
    CHECK(stream == NULL);
    dd_carried_call call = {.coll = DD_COLL_ALL_REDUCE,
                            .dtype = dtype_of(dtype),
                            .op = op_of(op),
                            .input = send,
                            .output = recv,
                            .count = count,
                            .is_even = true};
    return meet(AT_onecclAllReduce, comm, call, count, count);
}

static xccl_result
all_gather(const void *send, void *recv, size_t sendcount, dd_nccl_dtype dtype, xccl_comm comm, void *stream)
{
    CHECK(stream == NULL);
    world_member *self = member_of(comm);
    size_t total = lay_out(comm->nranks, NULL, sendcount, self->out_counts, self->out_offsets);
    dd_carried_call call = {.coll = DD_COLL_ALL_GATHER,
                            .dtype = dtype_of(dtype),
                            .input = send,
                            .output = recv,
                            .count = sendcount,
                            .is_even = true,
                            .out_counts = self->out_counts,
                            .out_offsets = self->out_offsets};
    return meet(AT_onecclAllGather, comm, call, sendcount, total);
}

static xccl_result
reduce_scatter(const void *send, void *recv, size_t recvcount, dd_nccl_dtype dtype, dd_nccl_redop op,
               xccl_comm comm, void *stream)
{
    CHECK(stream == NULL);
    world_member *self = member_of(comm);
    size_t total = lay_out(comm->nranks, NULL, recvcount, self->in_counts, self->in_offsets);
    dd_carried_call call = {.coll = DD_COLL_REDUCE_SCATTER,
                            .dtype = dtype_of(dtype),
                            .op = op_of(op),
                            .input = send,
                            .output = recv,
                            .count = recvcount,
                            .is_even = true,
                            .in_counts = self->in_counts,
                            .in_offsets = self->in_offsets};
    return meet(AT_onecclReduceScatter, comm, call, total, recvcount);
}

static xccl_result
all_to_all(const void *send, const size_t *sendcounts, void *recv, const size_t *recvcounts,
           dd_nccl_dtype dtype, xccl_comm comm, void *stream)
{
    CHECK(stream == NULL);
    world_member *self = member_of(comm);
    size_t nin = lay_out(comm->nranks, sendcounts, 0, self->in_counts, self->in_offsets);
    size_t nout = lay_out(comm->nranks, recvcounts, 0, self->out_counts, self->out_offsets);
    dd_carried_call call = {.coll = DD_COLL_ALL_TO_ALL,
                            .dtype = dtype_of(dtype),
                            .input = send,
                            .output = recv,
                            .in_counts = self->in_counts,
                            .in_offsets = self->in_offsets,
                            .out_counts = self->out_counts,
                            .out_offsets = self->out_offsets};
    return meet(AT_onecclAllToAllV, comm, call, nin, nout);
}

/* ---- messages: the sender waits until its message is received */

static xccl_result
await_message(const sent_message *sent, int to)
{
    struct timespec until = long_wait();
    int failure = 0;
    while (sent->to != to && failure == 0) {
        failure = pthread_cond_timedwait(&shared->changed, &shared->mu, &until);
    }
    return failure == 0 ? XCCL_SUCCESS : XCCL_SYSTEM_ERROR;
}

static xccl_result
send_message(const void *send, size_t count, dd_nccl_dtype dtype, int peer, xccl_comm comm, void *stream)
{
    CHECK(stream == NULL && dtype == DD_NCCL_DTYPE_UINT8);
    world_member *self = member_of(comm);
    xccl_result result = enter(AT_onecclSend);
    if (result != XCCL_SUCCESS || !CHECK(count <= ROOM)) {
        return result;
    }
    pthread_mutex_lock(&shared->mu);
    memcpy(self->input, send, count);
    self->sent = (sent_message){.to = peer, .nbytes = count};
    pthread_cond_broadcast(&shared->changed);
    result = await_message(&self->sent, -1);
    pthread_mutex_unlock(&shared->mu);
    return result;
}

static xccl_result
receive_message(void *recv, size_t count, dd_nccl_dtype dtype, int peer, xccl_comm comm, void *stream)
{
    CHECK(stream == NULL && dtype == DD_NCCL_DTYPE_UINT8);
    world_member *sender = &comm->members[peer];
    xccl_result result = enter(AT_onecclRecv);
    if (result != XCCL_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&shared->mu);
    result = await_message(&sender->sent, own.rank);
    if (result == XCCL_SUCCESS && CHECK_INT(sender->sent.nbytes, count)) {
        memcpy(recv, sender->input, count);
    }
    sender->sent.to = -1;
    pthread_cond_broadcast(&shared->changed);
    pthread_mutex_unlock(&shared->mu);
    return result;
}

static const xccl_api PLAIN = {
    .onecclGetVersion = get_version,
    .onecclGetErrorString = get_error_string,
    .onecclGetLastError = get_last_error,
    .onecclGetUniqueId = get_unique_id,
    .onecclCommInitRank = comm_init_rank,
    .onecclCommDestroy = comm_destroy,
    .onecclBroadcast = broadcast,
    .onecclReduce = reduce,
    .onecclAllReduce = all_reduce,
    .onecclAllGather = all_gather,
    .onecclReduceScatter = reduce_scatter,
    .onecclAllToAllV = all_to_all,
    .onecclSend = send_message,
    .onecclRecv = receive_message,
};

dd_status
plain_oneccl_open(dd_carrier_library **library, dd_error *err)
{
    void *handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    carrier_stub *stub = handle != NULL ? dlsym(handle, "dd_stub_carriers") : NULL;
    dd_dylib_search offset = {.explicit_path = LIBRARY};
    if (!CHECK(stub != NULL)) {
        return DD_NOT_SUPPORTED;
    }
    if (shared == NULL) {
        share();
    }
    stub->oneccl = PLAIN;
    return dd_xccl_open(&offset, library, err);
}
