/* Creation of communicators, from unique ids and from other communicators. Waits for other ranks
 * run as jobs of the group. */
#include "nccl_stub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define ID_MAGIC "dldist stub"
/* Two ranks can share a device if NCCL_MULTI_RANK_GPU_ENABLE=1. */
#define CAN_SHARE_SINCE 23003
/* From this version on, every failed init leaves a handle, which the caller must abort. */
#define LEAVES_HANDLES_SINCE 23203
/* From this version on, an init that fails because of an unknown network name leaves a handle. */
#define LEAVES_HANDLES_OF_NETS_SINCE 23003

/* ---- names of the file in which the ranks meet */

static uint64_t
mix(uint64_t hash, const void *data, size_t nbytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < nbytes; i++) {
        hash = (hash ^ at[i]) * 0x100000001b3ull;
    }
    return hash;
}

static void
name_of(char *name, const void *data, size_t nbytes)
{
    snprintf(name, WIRE_NAME_MAX, "%016llx%016llx",
             (unsigned long long)mix(0xcbf29ce484222325ull, data, nbytes),
             (unsigned long long)mix(0x84222325cbf29ce4ull, data, nbytes));
}

/* Derive the name from the parent, so that all ranks that create the same child get the same
 * name. */
static void
name_child(nccl_comm *parent, const char *how, long what, char *name)
{
    char text[2 * WIRE_NAME_MAX];
    pthread_mutex_lock(&nccl_lock);
    int n = parent->nchildren++;
    pthread_mutex_unlock(&nccl_lock);
    int length = snprintf(text, sizeof text, "%s %s %d %ld", parent->spec.name, how, n, what);
    name_of(name, text, (size_t)length);
}

dd_nccl_result
nccl_unique_id(dd_nccl_unique_id *id)
{
    if (id == NULL) {
        return nccl_fail_null("GetUniqueId", "out");
    }
    (void)nccl_settle_encryption();
    memset(id, 0, sizeof *id);
    memcpy(id->bytes, ID_MAGIC, sizeof ID_MAGIC);
    if (getrandom(id->bytes + 64, 32, 0) != 32) {
        return nccl_fail(DD_NCCL_SYSTEM_ERROR, "ncclGetUniqueId: no random bytes");
    }
    return DD_NCCL_SUCCESS;
}

/* ---- rendezvous */

static bool
may_share_devices(void)
{
    const char *own = getenv("DLDIST_STUB_ALLOW_SAME_GPU");
    const char *theirs = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    return (own != NULL && strcmp(own, "1") == 0) ||
           (nccl_stub_version >= CAN_SHARE_SINCE && theirs != NULL && strcmp(theirs, "1") == 0);
}

static dd_nccl_result
fail_same_gpu(int rank, int other, int device)
{
    if (nccl_stub_version >= CAN_SHARE_SINCE) {
        return nccl_fail(DD_NCCL_INVALID_USAGE,
                         "Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 "
                         "to enable this configuration.");
    }
    return nccl_fail(DD_NCCL_INVALID_USAGE,
                     "Duplicate GPU detected : rank %d and rank %d both on CUDA device %x", rank, other,
                     0x10 + device);
}

static dd_nccl_result
check_cards(const nccl_comm *comm, const stub_wire *wire)
{
    for (int rank = 0; rank < comm->nranks; rank++) {
        wire_card card = wire_card_of(wire, rank);
        if (card.version != nccl_stub_version) {
            return nccl_fail(DD_NCCL_INVALID_USAGE,
                             "mismatched NCCL versions: rank %d has %d and rank %d has %d", comm->rank,
                             nccl_stub_version, rank, card.version);
        }
        if (card.encryption != comm->spec.card.encryption) {
            return nccl_fail(DD_NCCL_REMOTE_ERROR, "TLS handshake of rank %d with rank %d failed", comm->rank,
                             rank);
        }
        for (int other = 0; other < rank && !may_share_devices(); other++) {
            if (wire_card_of(wire, other).device == card.device) {
                return fail_same_gpu(other, rank, card.device);
            }
        }
    }
    return DD_NCCL_SUCCESS;
}

/* Connect the communicator to the other ranks and set it up. */
static dd_nccl_result
meet(nccl_comm *comm, const wire_spec *spec, const atomic_bool *is_aborted)
{
    static stub_site site = {.name = "(init)"};
    dd_nccl_result result = nccl_enter(&site);
    if (result != DD_NCCL_SUCCESS) {
        return result;
    }
    if (comm->config.netName != NULL) {
        return nccl_fail(DD_NCCL_INVALID_USAGE, "Failed to initialize any NET plugin");
    }
    comm->spec = *spec;
    comm->spec.card = (wire_card){.device = comm->device,
                                  .version = nccl_stub_version,
                                  .pid = (int)getpid(),
                                  .encryption = nccl_settle_encryption()};
    stub_wire *wire = NULL;
    switch (wire_open(&comm->spec, is_aborted, &wire)) {
    case WIRE_ABORTED:
        return nccl_fail(DD_NCCL_INTERNAL_ERROR, "the communicator was aborted while it was made");
    case WIRE_SYSTEM_ERROR:
        return nccl_fail(DD_NCCL_SYSTEM_ERROR, "shared memory cannot be opened: %m");
    case WIRE_OK:
        break;
    }
    result = check_cards(comm, wire);
    if (result != DD_NCCL_SUCCESS) {
        wire_close(wire);
        return result;
    }
    pthread_mutex_lock(&nccl_lock);
    comm->wire = wire;
    pthread_mutex_unlock(&nccl_lock);
    if (nccl_stub_version >= 23203) {
        nccl_warn("RMA/Socket : rma_socket requires GDRCopy; and GDR Copy is not available");
    }
    return DD_NCCL_SUCCESS;
}

void
nccl_job_free(nccl_job *job)
{
    if (job->made != NULL && job->made != job->comm) {
        nccl_comm_release(job->made);
    }
    nccl_comm_release(job->comm);
    free(job);
}

/* ---- creation by unique ids */

static dd_nccl_result
run_init(nccl_job *job)
{
    dd_nccl_result result = job->is_bad_id
                                ? nccl_fail(DD_NCCL_INTERNAL_ERROR,
                                            "ncclSocketInit: connecting to address  with family 0 is neither "
                                            "AF_INET(2) nor AF_INET6(10)")
                                : meet(job->made, &job->spec, &job->made->is_aborted);
    int leaves_since =
        job->made->config.netName != NULL ? LEAVES_HANDLES_OF_NETS_SINCE : LEAVES_HANDLES_SINCE;
    if (!job->is_early && (result == DD_NCCL_SUCCESS || nccl_stub_version >= leaves_since)) {
        *job->out = stub_table_add(&nccl_comms, stub_object_acquire(&job->made->base));
    }
    return result;
}

static dd_nccl_result
check_init(const nccl_init_args *args)
{
    if (args->ids == NULL || args->nids < 1 || args->nids > args->nranks) {
        return nccl_fail(DD_NCCL_INVALID_ARGUMENT, "improper usage of ncclCommInitRank: nId = %d, nranks=%d",
                         args->nids, args->nranks);
    }
    if (args->nranks < 1 || args->nranks > WIRE_MAX_RANKS || args->rank < 0 || args->rank >= args->nranks) {
        return nccl_fail(DD_NCCL_INVALID_ARGUMENT, "Invalid rank requested : %d/%d", args->rank,
                         args->nranks);
    }
    return DD_NCCL_SUCCESS;
}

static bool
are_ids(const nccl_init_args *args)
{
    int i = 0;
    while (i < args->nids && memcmp(args->ids[i].bytes, ID_MAGIC, sizeof ID_MAGIC) == 0) {
        i++;
    }
    return i == args->nids;
}

dd_nccl_result
nccl_init(dd_nccl_comm_handle *out, const nccl_init_args *args)
{
    dd_nccl_abi_config config;
    dd_nccl_result result = out == NULL ? nccl_fail_null("CommInitRank", "newcomm") : DD_NCCL_SUCCESS;
    result = result == DD_NCCL_SUCCESS ? check_init(args) : result;
    result = result == DD_NCCL_SUCCESS ? nccl_config_take(args->config, &config) : result;
    int device = args->device;
    if (result == DD_NCCL_SUCCESS && device < 0 && dd_stub_current_device(&device) != 0) {
        result = nccl_fail(DD_NCCL_UNHANDLED_CUDA_ERROR, "Cuda failure 4 'driver shutting down'");
    }
    if (result != DD_NCCL_SUCCESS) {
        return nccl_group_fail(result);
    }
    nccl_comm *comm = nccl_comm_make(args->nranks, args->rank, device, &config);
    nccl_job *job = stub_zalloc(sizeof *job);
    job->run = run_init;
    job->comm = comm;
    job->made = comm;
    job->out = out;
    job->is_bad_id = !are_ids(args);
    job->spec = (wire_spec){.nranks = args->nranks, .rank = args->rank};
    name_of(job->spec.name, args->ids, (size_t)args->nids * sizeof args->ids[0]);
    *out = NULL;
    if (!nccl_comm_is_blocking(comm)) {
        job->is_early = true;
        *out = stub_table_add(&nccl_comms, stub_object_acquire(&comm->base));
    }
    nccl_group_start();
    result = nccl_group_add_job(job);
    dd_nccl_result ended = nccl_group_end();
    return result == DD_NCCL_SUCCESS ? ended : result;
}

dd_nccl_result
nccl_init_all(dd_nccl_comm_handle *out, int ndevices, const int *devices)
{
    if (out == NULL || ndevices < 1 || ndevices > WIRE_MAX_RANKS) {
        return out == NULL
                   ? nccl_fail_null("CommInitAll", "comms")
                   : nccl_fail(DD_NCCL_INVALID_ARGUMENT, "Invalid device count requested : %d", ndevices);
    }
    for (int i = 0; devices != NULL && !may_share_devices() && i < ndevices; i++) {
        for (int k = 0; k < i; k++) {
            if (devices[i] == devices[k]) {
                return DD_NCCL_INVALID_USAGE; /* without a warning */
            }
        }
    }
    dd_nccl_unique_id id;
    dd_nccl_result result = nccl_unique_id(&id);
    nccl_group_start();
    for (int rank = 0; rank < ndevices && result == DD_NCCL_SUCCESS; rank++) {
        nccl_init_args args = {.nranks = ndevices,
                               .rank = rank,
                               .device = devices != NULL ? devices[rank] : rank,
                               .ids = &id,
                               .nids = 1};
        result = nccl_init(&out[rank], &args);
    }
    dd_nccl_result ended = nccl_group_end();
    return result == DD_NCCL_SUCCESS ? ended : result;
}

/* ---- creation from a communicator; the new handle is valid once the parent is not busy */

static dd_nccl_result
make_child(nccl_job *job)
{
    nccl_comm *made = nccl_comm_make(job->spec.nranks, job->spec.rank, job->parent->device, &job->config);
    job->made = made;
    dd_nccl_result result = meet(made, &job->spec, &job->parent->is_aborted);
    if (result == DD_NCCL_SUCCESS) {
        nccl_comm_set_state(made, DD_NCCL_SUCCESS);
        *job->out = stub_table_add(&nccl_comms, stub_object_acquire(&made->base));
    }
    return result;
}

/* Take over the reference to the parent. */
static dd_nccl_result
start_child(nccl_job *job)
{
    *job->out = NULL;
    nccl_group_start();
    dd_nccl_result result = nccl_group_add_job(job);
    dd_nccl_result ended = nccl_group_end();
    return result == DD_NCCL_SUCCESS ? ended : result;
}

/* Return NULL and set *result on failure. */
static nccl_job *
prepare_child(const char *function, dd_nccl_comm_handle handle, nccl_need need, dd_nccl_comm_handle *out,
              const dd_nccl_abi_config *config, dd_nccl_result *result)
{
    nccl_comm *parent = nccl_comm_find_ready(handle, need, result);
    if (parent == NULL) {
        (void)nccl_group_fail(*result);
        return NULL;
    }
    nccl_job *job = stub_zalloc(sizeof *job);
    job->comm = parent;
    job->parent = parent;
    job->out = out;
    job->config = parent->config;
    *result = out == NULL      ? nccl_fail_null(function, "newcomm")
              : config != NULL ? nccl_config_take(config, &job->config)
                               : DD_NCCL_SUCCESS;
    if (*result != DD_NCCL_SUCCESS) {
        nccl_job_free(job);
        (void)nccl_group_fail(*result);
        return NULL;
    }
    return job;
}

typedef struct split_card {
    int color;
    int key;
} split_card;

static dd_nccl_result
run_split(nccl_job *job)
{
    split_card own = {.color = job->color, .key = job->key};
    split_card all[WIRE_MAX_RANKS];
    wire_exchange_args args = {.mine = &own, .nbytes = sizeof own, .all = all};
    if (wire_exchange(job->parent->wire, &args, &job->parent->is_aborted) != WIRE_OK) {
        return nccl_fail(DD_NCCL_INTERNAL_ERROR, "the communicator was aborted while it was split");
    }
    char name[WIRE_NAME_MAX];
    name_child(job->parent, "split", job->color, name);
    if (job->color == DD_NCCL_NO_COLOR) {
        return DD_NCCL_SUCCESS;
    }
    job->spec = (wire_spec){0};
    memcpy(job->spec.name, name, sizeof name);
    for (int rank = 0; rank < job->parent->nranks; rank++) {
        bool is_before = all[rank].key < own.key || (all[rank].key == own.key && rank < job->parent->rank);
        job->spec.nranks += all[rank].color == own.color;
        job->spec.rank += all[rank].color == own.color && is_before;
    }
    return make_child(job);
}

dd_nccl_result
nccl_split(dd_nccl_comm_handle handle, int color, int key, dd_nccl_comm_handle *out,
           const dd_nccl_abi_config *config)
{
    dd_nccl_result result;
    nccl_job *job = prepare_child("ncclCommSplit", handle, NCCL_NEED_READY, out, config, &result);
    if (job == NULL) {
        return result;
    }
    job->run = run_split;
    job->color = color;
    job->key = key;
    return start_child(job);
}

static dd_nccl_result
run_shrink(nccl_job *job)
{
    if (job->is_abort) {
        nccl_comm_halt(job->parent);
    }
    return make_child(job);
}

dd_nccl_result
nccl_shrink(dd_nccl_comm_handle handle, const nccl_shrink_args *args, dd_nccl_comm_handle *out)
{
    dd_nccl_result result;
    nccl_job *job =
        prepare_child("ncclCommShrink", handle, args->is_abort ? NCCL_NEED_NOT_BUSY : NCCL_NEED_READY, out,
                      args->config, &result);
    if (job == NULL) {
        return result;
    }
    nccl_comm *parent = job->parent;
    bool is_excluded[WIRE_MAX_RANKS] = {false};
    long mask = 0;
    bool is_valid = args->nexcluded > 0 && args->nexcluded < parent->nranks && args->excluded != NULL;
    for (int i = 0; is_valid && i < args->nexcluded; i++) {
        int rank = args->excluded[i];
        is_valid = rank >= 0 && rank < parent->nranks && !is_excluded[rank] && rank != parent->rank;
        if (is_valid) {
            is_excluded[rank] = true;
            mask |= 1l << rank;
        }
    }
    if (!is_valid) {
        nccl_job_free(job);
        return nccl_group_fail(nccl_fail(
            DD_NCCL_INVALID_ARGUMENT, "ncclCommShrink: invalid list of %d excluded ranks", args->nexcluded));
    }
    job->run = run_shrink;
    job->is_abort = args->is_abort;
    job->spec.nranks = parent->nranks - args->nexcluded;
    for (int rank = 0; rank < parent->rank; rank++) {
        job->spec.rank += !is_excluded[rank];
    }
    name_child(parent, "shrink", mask, job->spec.name);
    return start_child(job);
}

/* ---- growing: the root's id reaches the other members through the parent; new ranks use it to
 * join */

dd_nccl_result
nccl_grow_id(dd_nccl_comm_handle handle, dd_nccl_unique_id *id)
{
    dd_nccl_result result;
    nccl_comm *comm = nccl_comm_find_ready(handle, NCCL_NEED_UNREVOKED, &result);
    if (comm == NULL) {
        return result;
    }
    nccl_comm_release(comm);
    return nccl_unique_id(id);
}

static dd_nccl_result
run_grow(nccl_job *job)
{
    char all[WIRE_MAX_RANKS][WIRE_NAME_MAX];
    wire_exchange_args args = {.mine = job->spec.name, .nbytes = WIRE_NAME_MAX, .all = all};
    if (wire_exchange(job->parent->wire, &args, &job->parent->is_aborted) != WIRE_OK) {
        return nccl_fail(DD_NCCL_INTERNAL_ERROR, "the communicator was aborted while it grew");
    }
    int nroots = 0;
    for (int rank = 0; rank < job->parent->nranks; rank++) {
        if (all[rank][0] != '\0') {
            memcpy(job->spec.name, all[rank], WIRE_NAME_MAX);
            nroots++;
        }
    }
    return nroots == 1
               ? make_child(job)
               : nccl_fail(DD_NCCL_INVALID_USAGE, "ncclCommGrow: %d members gave a unique id", nroots);
}

dd_nccl_result
nccl_grow(dd_nccl_comm_handle handle, const nccl_init_args *args, dd_nccl_comm_handle *out)
{
    if (handle == NULL) {
        return nccl_init(out, args);
    }
    dd_nccl_result result;
    nccl_job *job = prepare_child("ncclCommGrow", handle, NCCL_NEED_UNREVOKED, out, args->config, &result);
    if (job == NULL) {
        return result;
    }
    nccl_comm *parent = job->parent;
    if (args->rank != -1 || args->nranks <= parent->nranks || args->nranks > WIRE_MAX_RANKS ||
        parent->nranks == 1) {
        result = nccl_fail(DD_NCCL_INVALID_ARGUMENT, "ncclCommGrow: from %d to %d ranks, with rank %d",
                           parent->nranks, args->nranks, args->rank);
        nccl_job_free(job);
        return nccl_group_fail(result);
    }
    job->run = run_grow;
    job->spec.nranks = args->nranks;
    job->spec.rank = parent->rank;
    if (args->ids != NULL) {
        name_of(job->spec.name, args->ids, sizeof args->ids[0]);
    }
    return start_child(job);
}
