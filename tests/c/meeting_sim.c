#include "meeting_sim.h"

#include "check.h"
#include "collective/hierarchy.h"
#include "group/internal.h"
#include "store/tcp_protocol.h"

#include <malloc.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STACK_NBYTES ((size_t)256 << 10)
#define REQUEST_HEAD_NBYTES (DD_TCP_TAG_BYTES + 1) /* tag and operation */

/* ---- a store that counts the bytes that it would send */

typedef struct wire_store {
    dd_store head;
    dd_store *inner;
    bool is_by_keys;
    meeting_sim_traffic traffic;
} wire_store;

static dd_status
write_request(dd_blob *out, dd_tcp_op op, const dd_store_request *request, dd_error *err)
{
    static const dd_tcp_limits limits = DD_TCP_LIMITS_DEFAULT;
    dd_tcp_writer writer;
    dd_tcp_writer_init(&writer, out, err);
    dd_tcp_write(&writer, 'u', 1);
    dd_tcp_write_request(&writer, op, request, true, &limits);
    return writer.status;
}

/* Execute the request in these bytes, as a server does. */
static dd_status
serve(const wire_store *self, dd_tcp_op op, const dd_blob *bytes, dd_blob *out, const dd_wait *wait,
      dd_error *err)
{
    dd_tcp_reader reader = {bytes->data + REQUEST_HEAD_NBYTES};
    dd_tcp_request request;
    dd_store_result result = {0};
    dd_tcp_writer writer;
    dd_tcp_writer_init(&writer, out, err);
    dd_status status = dd_tcp_read_request(&request, op, &reader, err);
    if (status == DD_OK) {
        status = dd_store_run(self->inner, &request.request, &result, wait, err);
    }
    if (status == DD_OK) {
        dd_tcp_write(&writer, 'u', 1);
        dd_tcp_write(&writer, 'b', 0);
        dd_tcp_write(&writer, 'i', 0);
        dd_tcp_write_result(&writer, op, &result);
        status = writer.status;
    }
    dd_tcp_request_fini(&request);
    dd_store_result_fini(&result);
    return status;
}

static dd_status
wire_run(dd_store *store, const dd_store_request *request, dd_store_result *result, const dd_wait *wait,
         dd_error *err)
{
    wire_store *self = DD_CONTAINER_OF(store, wire_store, head);
    if (request->op == DD_STORE_MEET && self->is_by_keys) {
        return dd_store_run_generic(store, request, result, wait, err);
    }
    dd_tcp_op op = dd_tcp_row_for(request, true)->op;
    dd_blob sent = {0};
    dd_blob answer = {0};
    dd_status status = write_request(&sent, op, request, err);
    if (status == DD_OK) {
        status = serve(self, op, &sent, &answer, wait, err);
    }
    if (status == DD_OK) {
        dd_tcp_reader reader = {answer.data + DD_TCP_HEAD_BYTES};
        status = dd_tcp_read_result(&reader, op, request->nkeys, result, err);
    }
    if (status == DD_OK) {
        status = dd_store_result_own(result, err);
    }
    self->traffic.nrequests++;
    self->traffic.nbytes += sent.len + answer.len;
    dd_blob_fini(&sent);
    dd_blob_fini(&answer);
    return status;
}

static const dd_store_ops wire_ops = {.kind = "wire", .run = wire_run};

/* ---- ranks */

typedef struct sim_rank {
    const meeting_sim_shape *shape;
    int rank;
    wire_store store;
    pthread_t thread;
    bool keeps_payloads;
    dd_status status;
    dd_meeting_end end;
} sim_rank;

static int
host_of(const meeting_sim_shape *shape, int rank)
{
    return rank / (shape->nranks / shape->nhosts);
}

/* Create the endpoint that the engine of a process on one of many hosts creates. */
static dd_status
make_endpoint(const meeting_sim_shape *shape, int rank, dd_blob *encoded, dd_error *err)
{
    int host = host_of(shape, rank);
    dd_endpoint endpoint = {.pid = 100000 + rank};
    uint64_t random[2] = {(uint64_t)(rank + 1) * UINT64_C(0x9e3779b97f4a7c15),
                          (uint64_t)(rank + 1) * UINT64_C(0xbf58476d1ce4e5b9)};
    memcpy(endpoint.uid.bytes, random, sizeof endpoint.uid.bytes);
    /* Unique to this process, even if other processes on this machine run the same test. */
    long long own[2] = {getpid(), host + 1};
    memcpy(endpoint.host_id, own, sizeof own);
    snprintf(endpoint.host, sizeof endpoint.host, "node-%04d", host);
    endpoint.has_unix = true;
    dd_addr_list addrs = {.count = 1};
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons((uint16_t)(20000 + rank))};
    in.sin_addr.s_addr = htonl(0x0a000000 + (unsigned)host);
    memcpy(&addrs.items[0].storage, &in, sizeof in);
    addrs.items[0].len = sizeof in;
    return dd_endpoint_encode(&endpoint, &addrs, encoded, err);
}

static bool
read_endpoint(dd_bytes bytes, dd_meeting_member *member)
{
    dd_endpoint endpoint;
    if (dd_endpoint_decode(bytes, &endpoint, NULL, NULL) != DD_OK) {
        return false;
    }
    memcpy(member->host, endpoint.host, sizeof member->host);
    member->pid = endpoint.pid;
    return true;
}

static const dd_meeting_kind sim_kind = {
    .noun = "simulation", .of_interrupted = "was interrupted", .read_payload = read_endpoint};

static void *
run_rank(void *arg)
{
    sim_rank *self = arg;
    const meeting_sim_shape *shape = self->shape;
    dd_error error = {.code = DD_OK};
    dd_blob endpoint = {0};
    dd_wait wait = dd_wait_after(100 * DD_NS_PER_S * check_slow());
    self->status = make_endpoint(shape, self->rank, &endpoint, &error);
    dd_meeting meeting = {.kind = &sim_kind,
                          .store = &self->store.head,
                          .name = BYTES("default_pg/1/default"),
                          .rank = self->rank,
                          .size = shape->nranks,
                          .payload = dd_blob_view(&endpoint)};
    if (self->status == DD_OK) {
        self->status = dd_meet(&meeting, &self->end, &wait, &error);
    }
    if (!CHECK_OK(self->status)) {
        fprintf(stderr, "%s\n", error.message);
    } else if (CHECK_BYTES(self->end.payloads[self->rank], dd_blob_view(&endpoint)) &&
               !self->keeps_payloads) {
        dd_meeting_end_fini(&self->end);
    }
    dd_blob_fini(&endpoint);
    return NULL;
}

static int
start_ranks(const meeting_sim_shape *shape, dd_store *inner, sim_rank *ranks)
{
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_NBYTES);
    int nstarted = 0;
    for (; nstarted < shape->nranks; nstarted++) {
        sim_rank *self = &ranks[nstarted];
        *self = (sim_rank){.shape = shape, .rank = nstarted, .keeps_payloads = nstarted == 0};
        self->store.inner = inner;
        self->store.is_by_keys = shape->is_by_keys;
        dd_store_init(&self->store.head, &wire_ops, DD_NS_PER_S);
        if (!CHECK_INT(pthread_create(&self->thread, &attr, run_rank, self), 0)) {
            break;
        }
    }
    pthread_attr_destroy(&attr);
    return nstarted;
}

static void
add_up(meeting_sim_bill *bill, const meeting_sim_traffic *one)
{
    meeting_sim_traffic *most = &bill->most_of_a_rank;
    most->nrequests = one->nrequests > most->nrequests ? one->nrequests : most->nrequests;
    most->nbytes = one->nbytes > most->nbytes ? one->nbytes : most->nbytes;
    bill->store.nrequests += one->nrequests;
    bill->store.nbytes += one->nbytes;
}

/* *end receives the result of rank 0. */
static bool
meet(const meeting_sim_shape *shape, meeting_sim_bill *bill, dd_meeting_end *end)
{
    dd_store *inner = NULL;
    sim_rank *ranks = calloc((size_t)shape->nranks, sizeof *ranks);
    if (!CHECK(ranks != NULL) || !CHECK_OK(dd_hash_store_open(&inner, DD_NS_PER_S, check_err()))) {
        free(ranks);
        return false;
    }
    int nstarted = start_ranks(shape, inner, ranks);
    bool is_met = nstarted == shape->nranks;
    for (int rank = 0; rank < nstarted; rank++) {
        pthread_join(ranks[rank].thread, NULL);
        is_met = is_met && ranks[rank].status == DD_OK;
        add_up(bill, &ranks[rank].store.traffic);
    }
    *end = ranks[0].end;
    free(ranks);
    dd_store_release(inner);
    return is_met;
}

/* ---- links */

typedef struct sim_process {
    dd_topology topology;
    bool *is_linked; /* array of nranks */
} sim_process;

static bool
process_init(sim_process *self, const meeting_sim_shape *shape, int rank)
{
    int *hosts = calloc((size_t)shape->nranks, sizeof *hosts);
    self->is_linked = calloc((size_t)shape->nranks, sizeof *self->is_linked);
    for (int r = 0; hosts != NULL && r < shape->nranks; r++) {
        hosts[r] = host_of(shape, r);
    }
    bool is_made = CHECK(hosts != NULL && self->is_linked != NULL) &&
                   CHECK_OK(dd_topology_init(&self->topology, rank, shape->nranks, hosts, check_err()));
    free(hosts);
    return is_made;
}

static void
process_fini(sim_process *self)
{
    dd_topology_fini(&self->topology);
    free(self->is_linked);
}

/* Link the ranks between which a group is created and deaths are noticed (group/setup.c). */
static void
link_star(sim_process *self)
{
    const dd_topology *topology = &self->topology;
    if (topology->local > 0) {
        self->is_linked[topology->local_ranks[0]] = true;
        return;
    }
    for (int local = 1; local < topology->nlocal; local++) {
        self->is_linked[topology->local_ranks[local]] = true;
    }
    self->is_linked[0] = true;
    for (int host = 1; topology->rank == 0 && host < topology->nhosts; host++) {
        self->is_linked[dd_topology_rank_at(topology, host, 0)] = true;
    }
}

/* ranks maps the plan's ranks to ranks of the group; NULL if they are the same. */
static bool
link_plan(sim_process *self, const dd_coll_args *args, size_t nbytes, int rank, int nranks, const int *ranks)
{
    static const dd_selection by_table = {.is_flat = false};
    dd_select_query query = {.coll = args->coll, .nranks = nranks, .nbytes = nbytes, .is_even = true};
    dd_plan_task task = {
        .rank = rank, .nranks = nranks, .args = args, .segment_nbytes = dd_select_segment_nbytes(&query)};
    dd_plan plan = {0};
    bool is_built = CHECK_OK(dd_plan_build(dd_select(&by_table, &query), &task, &plan, check_err()));
    for (uint32_t i = 0; is_built && i < plan.nsteps; i++) {
        const dd_plan_step *step = &plan.steps[i];
        if (step->kind == DD_PLAN_SEND || step->kind == DD_PLAN_RECV) {
            self->is_linked[ranks != NULL ? ranks[step->peer] : step->peer] = true;
        }
    }
    dd_plan_fini(&plan);
    return is_built;
}

static bool
link_hierarchy(sim_process *self, const dd_coll_args *args)
{
    dd_hierarchy hierarchy;
    dd_leg leg;
    if (!CHECK_OK(dd_hierarchy_init(&hierarchy, &self->topology, &(dd_hierarchy_limits){0}, check_err()))) {
        return false;
    }
    dd_hierarchy_begin(&hierarchy, args);
    hierarchy.scratch = args->inputs[0].data; /* never read */
    bool is_built = true;
    for (uint64_t i = 0; is_built && dd_hierarchy_get_leg(&hierarchy, DD_LANE_PLAN, i, &leg); i++) {
        if (leg.kind == DD_LEG_PLAN && leg.args.inputs[0].nbytes > 0) {
            is_built = link_plan(self, &leg.args, leg.args.inputs[0].nbytes, leg.rank, leg.nranks, leg.ranks);
        }
    }
    dd_hierarchy_fini(&hierarchy);
    return is_built;
}

static bool
link_all_reduce(sim_process *self, size_t nbytes)
{
    static char memory[64];
    dd_block block = {.data = memory, .nbytes = nbytes};
    dd_coll_args args = {.coll = DD_COLL_ALL_REDUCE,
                         .reduction = {.dtype = DD_DTYPE_FLOAT32, .op = DD_REDOP_SUM},
                         .inputs = &block,
                         .outputs = &block};
    const dd_topology *topology = &self->topology;
    if (topology->nhosts == 1) {
        return true; /* uses the arena */
    }
    return dd_hierarchy_fits(topology, args.coll)
               ? link_hierarchy(self, &args)
               : link_plan(self, &args, nbytes, topology->rank, topology->nranks, NULL);
}

static bool
link_all_to_all(sim_process *self, size_t nbytes)
{
    static char memory[64];
    const dd_topology *topology = &self->topology;
    dd_block *blocks = calloc((size_t)topology->nranks, sizeof *blocks);
    for (int rank = 0; blocks != NULL && rank < topology->nranks; rank++) {
        blocks[rank] = (dd_block){.data = memory, .nbytes = nbytes};
    }
    dd_coll_args args = {.coll = DD_COLL_ALL_TO_ALL,
                         .reduction = {.dtype = DD_DTYPE_UINT8},
                         .inputs = blocks,
                         .outputs = blocks};
    bool is_built =
        CHECK(blocks != NULL) &&
        (topology->nhosts == 1 || link_plan(self, &args, nbytes, topology->rank, topology->nranks, NULL));
    free(blocks);
    return is_built;
}

static meeting_sim_links
sum_up(const sim_process *self)
{
    meeting_sim_links links = {0};
    for (int rank = 0; rank < self->topology.nranks; rank++) {
        bool is_near = self->topology.host_of[rank] == self->topology.host;
        links.nnear += self->is_linked[rank] && is_near && rank != self->topology.rank;
        links.nfar += self->is_linked[rank] && !is_near;
    }
    return links;
}

static bool
link_step(sim_process *self, meeting_sim_step step)
{
    link_star(self);
    switch (step) {
    case MEETING_SIM_DONE:
    case MEETING_SIM_NSTEPS:
        break;
    case MEETING_SIM_ALL_REDUCE_8_B:
        return link_all_reduce(self, 8);
    case MEETING_SIM_ALL_REDUCE_64_MIB:
        return link_all_reduce(self, (size_t)64 << 20);
    case MEETING_SIM_ALL_TO_ALL_8_B:
        return link_all_to_all(self, 8);
    case MEETING_SIM_ALL_TO_ALL_64_KIB:
        return link_all_to_all(self, (size_t)64 << 10);
    }
    return true;
}

static bool
count_links(const meeting_sim_shape *shape, int rank, meeting_sim_links links[MEETING_SIM_NSTEPS])
{
    bool is_counted = true;
    for (int step = 0; step < MEETING_SIM_NSTEPS && is_counted; step++) {
        sim_process self = {.is_linked = NULL};
        is_counted = process_init(&self, shape, rank) && link_step(&self, (meeting_sim_step)step);
        if (is_counted) {
            links[step] = sum_up(&self);
        }
        process_fini(&self);
    }
    return is_counted;
}

/* ---- memory */

static size_t
count_heap(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 0;
#else
    return mallinfo2().uordblks + mallinfo2().hblkhd;
#endif
}

/* Measure the memory of a process with all payloads: peers, context, topology and members. */
static bool
count_memory(const meeting_sim_shape *shape, const dd_meeting_end *end, meeting_sim_bill *bill)
{
    size_t nranks = (size_t)shape->nranks;
    dd_connect_options options = {.ifnames = "lo", .nlanes = 1, .ring_nbytes = 1 << 16, .congestion = ""};
    dd_engine *engine = NULL;
    dd_context *context = NULL;
    static const dd_context_handler no_handler = {.ctx = NULL};
    dd_peer **peers = calloc(nranks, sizeof(dd_peer *));
    bool is_made = CHECK(peers != NULL) && CHECK_OK(dd_engine_open(&options, &engine, check_err()));
    size_t before = count_heap();
    for (size_t rank = 0; rank < nranks && is_made; rank++) {
        is_made = CHECK_OK(dd_engine_peer(engine, end->payloads[rank], &peers[rank], check_err()));
    }
    sim_process process = {.is_linked = NULL};
    is_made =
        is_made && process_init(&process, shape, 0) &&
        CHECK_OK(dd_context_open(engine, 1, 0, shape->nranks, peers, &no_handler, &context, check_err()));
    size_t own = nranks * sizeof *process.is_linked; /* used by this simulation */
    size_t after = count_heap();
    if (is_made && after > before + own) {
        bill->nbytes_for_another = (after - before - own) / nranks + sizeof(member_state) + sizeof(dd_peer *);
    }
    if (context != NULL) {
        dd_wait at_once = dd_wait_after(0);
        dd_context_close(context, &at_once);
    }
    process_fini(&process);
    for (size_t rank = 0; peers != NULL && rank < nranks; rank++) {
        dd_peer_release(peers[rank]);
    }
    free(peers);
    dd_engine_release(engine);
    return is_made;
}

bool
meeting_sim_run(const meeting_sim_shape *shape, meeting_sim_bill *bill)
{
    dd_meeting_end end = {0};
    *bill = (meeting_sim_bill){0};
    bool is_run = meet(shape, bill, &end) && count_links(shape, 0, bill->of_rank_0) &&
                  count_links(shape, shape->nranks - 1, bill->of_last) && count_memory(shape, &end, bill);
    dd_meeting_end_fini(&end);
    return is_run;
}
