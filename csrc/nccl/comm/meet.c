#include "nccl/comm/meet.h"

#include "core/system.h"
#include "meet/meeting.h"
#include "nccl/comm/comm.h"

#include <stdio.h>
#include <string.h>

/* Data that a rank publishes, then a root's id or error. Native byte order: hosts must be alike. */
typedef struct rank_info {
    int32_t version;
    int32_t device;
    int64_t pid;
    uint64_t encryption; /* dd_nccl_lib.encryption */
    char host[DD_HOST_NAME_MAX];
    int32_t nids;
    int32_t status; /* result of creating the unique id; used on roots */
    int32_t has_grouped_messages;
    int32_t unused; /* 0; avoids uninitialised padding */
} rank_info;

/* The state of one dd_nccl_meet call. */
typedef struct comm_meeting {
    const dd_nccl_meeting *m;
    const dd_meeting_end *end;
    int nids;
    const atomic_bool *stop;
    const dd_wait *outer;
} comm_meeting;

int
dd_nccl_meet_nids(const dd_nccl_lib *lib, int size, int ranks_per_root)
{
    if (ranks_per_root < 1 || !dd_nccl_has(lib, DD_NCCL_CAN_INIT_SCALABLE)) {
        return 1;
    }
    return (size + ranks_per_root - 1) / ranks_per_root;
}

static int
name_of_rank(const dd_nccl_meeting *m, int rank)
{
    return m->names != NULL ? m->names[rank] : rank;
}

/* Return the rank of the i-th root. Roots are spread evenly over the ranks. */
static int
root_rank(const dd_nccl_meeting *m, int nids, int i)
{
    return (int)((int64_t)i * m->size / nids);
}

static bool
is_stopped(void *ctx)
{
    const comm_meeting *e = ctx;
    return (e->stop != NULL && atomic_load(e->stop)) ||
           (e->outer->is_interrupted != NULL && e->outer->is_interrupted(e->outer->ctx));
}

/* ---- data of ranks */

/* Write this rank's data, with the error if creating the id fails, so that all ranks report it. */
static dd_status
rank_info_make(const dd_nccl_meeting *m, int nids, dd_blob *out, dd_error *err)
{
    rank_info info = {.version = m->lib->version,
                      .device = m->device,
                      .pid = dd_sys_getpid(),
                      .nids = nids,
                      .has_grouped_messages = m->has_grouped_messages,
                      .encryption = m->lib->encryption};
    if (dd_sys_gethostname(info.host, sizeof info.host - 1) != 0) {
        (void)snprintf(info.host, sizeof info.host, "?");
    }
    dd_bytes tail = {0};
    dd_nccl_unique_id id;
    dd_error reason;
    for (int i = 0; i < nids; i++) {
        if (root_rank(m, nids, i) == m->rank) {
            info.status = (int32_t)dd_nccl_make_unique_id(m->lib, &id, &reason);
            tail = info.status == DD_OK ? dd_bytes_of(&id, sizeof id) : dd_bytes_of_string(reason.message);
        }
    }
    dd_status status = dd_blob_append(out, &info, sizeof info, err);
    return status == DD_OK ? dd_blob_append(out, tail.data, tail.len, err) : status;
}

static bool
rank_info_read(dd_bytes bytes, rank_info *out)
{
    if (bytes.len < sizeof *out) {
        return false;
    }
    memcpy(out, bytes.data, sizeof *out);
    out->host[sizeof out->host - 1] = '\0';
    return true;
}

static bool
rank_info_read_member(dd_bytes bytes, dd_meeting_member *member)
{
    rank_info one;
    if (!rank_info_read(bytes, &one)) {
        return false;
    }
    memcpy(member->host, one.host, sizeof member->host);
    member->pid = one.pid;
    return true;
}

static const dd_meeting_kind communicator_kind = {
    .noun = "NCCL communicator",
    .of_interrupted = "has cancelled the meeting for an NCCL communicator",
    .is_final = true,
    .read_payload = rank_info_read_member,
};

static dd_status
rank_info_of(const comm_meeting *e, int rank, rank_info *out, dd_error *err)
{
    if (rank_info_read(e->end->payloads[rank], out)) {
        return DD_OK;
    }
    return dd_error_set(err, DD_PROTOCOL, "malformed data of rank %d: got %zu bytes, expected at least %zu",
                        name_of_rank(e->m, rank), e->end->payloads[rank].len, sizeof *out);
}

/* ---- conclusions, which are the same on every rank */

/* Copy the i-th unique id from the data that its root has published. */
static dd_status
take_id(const comm_meeting *e, int i, dd_nccl_unique_id *id, dd_error *err)
{
    rank_info root = {0};
    int rank = root_rank(e->m, e->nids, i);
    dd_status status = rank_info_of(e, rank, &root, err);
    if (status != DD_OK) {
        return status;
    }
    const uint8_t *tail = e->end->payloads[rank].data + sizeof root;
    size_t len = e->end->payloads[rank].len - sizeof root;
    if (root.status == DD_OK && len == sizeof *id) {
        memcpy(id, tail, len);
        return DD_OK;
    }
    if (root.status != DD_OK) {
        status = dd_error_set(err, DD_BACKEND, "rank %d could not create NCCL's unique id: %.*s",
                              name_of_rank(e->m, rank), (int)len, (const char *)tail);
    } else {
        status =
            dd_error_set(err, DD_PROTOCOL, "malformed NCCL unique id of rank %d: got %zu bytes, expected %zu",
                         name_of_rank(e->m, rank), len, sizeof *id);
    }
    dd_error_blame(err, name_of_rank(e->m, rank), root.host, root.pid);
    return status;
}

/* Set the error for rank 0 and `rank`, of which only one uses grouped messages. */
static dd_status
set_mixed(const comm_meeting *e, int rank, bool is_first_grouped, dd_error *err)
{
    return dd_error_set(
        err, DD_MISMATCH,
        "ranks have different settings: gather, scatter and all_to_all are grouped messages on rank %d and "
        "NCCL's own calls on rank %d; set the same DLDIST_NCCL_GROUPED_MESSAGES on all ranks",
        name_of_rank(e->m, is_first_grouped ? 0 : rank), name_of_rank(e->m, is_first_grouped ? rank : 0));
}

/* Set the error for two ranks of which only one encrypts, or which have different keys. */
static dd_status
refuse_encryption(const comm_meeting *e, const rank_info *first, int rank, const rank_info *other,
                  dd_error *err)
{
    bool has_keys = first->encryption != 0 && other->encryption != 0;
    const char *theirs = has_keys ? "encrypts with another key" : "does not encrypt";
    const char *label = has_keys ? "DLDIST_SECRET" : "DLDIST_NCCL_ENCRYPTION";
    bool is_first = first->encryption != 0;
    const rank_info *one = is_first ? first : other;
    const rank_info *another = is_first ? other : first;
    return dd_error_set(
        err, DD_MISMATCH,
        "rank %d (%s, process %lld) encrypts NCCL's connections, and rank %d (%s, process %lld) %s; set the "
        "same %s on all ranks",
        name_of_rank(e->m, is_first ? 0 : rank), one->host, (long long)one->pid,
        name_of_rank(e->m, is_first ? rank : 0), another->host, (long long)another->pid, theirs, label);
}

static dd_status
rank_info_compare(const comm_meeting *e, const rank_info *first, int rank, const rank_info *other,
                  dd_error *err)
{
    char a[16];
    char b[16];
    dd_status status = DD_OK;
    if (first->version != other->version) {
        status = dd_error_set(
            err, DD_MISMATCH,
            "ranks have different versions of NCCL: rank %d (%s, process %lld) has %s, rank %d (%s, process "
            "%lld) has %s",
            name_of_rank(e->m, 0), first->host, (long long)first->pid,
            dd_nccl_version_print(first->version, a), name_of_rank(e->m, rank), other->host,
            (long long)other->pid, dd_nccl_version_print(other->version, b));
    } else if (first->has_grouped_messages != other->has_grouped_messages) {
        status = set_mixed(e, rank, first->has_grouped_messages != 0, err);
    } else if (first->encryption != other->encryption) {
        status = refuse_encryption(e, first, rank, other, err);
    } else if (first->nids != other->nids) {
        status = dd_error_set(
            err, DD_PROTOCOL,
            "ranks disagree on the number of NCCL unique ids: rank %d expects %d, rank %d expects %d",
            name_of_rank(e->m, 0), (int)first->nids, name_of_rank(e->m, rank), (int)other->nids);
    }
    if (status != DD_OK) {
        dd_error_blame(err, name_of_rank(e->m, rank), other->host, other->pid);
    }
    return status;
}

static dd_status
check_rank_infos(const comm_meeting *e, dd_nccl_unique_id *ids, dd_error *err)
{
    rank_info first = {0};
    dd_status status = rank_info_of(e, 0, &first, err);
    for (int rank = 1; rank < e->m->size && status == DD_OK; rank++) {
        rank_info other = {0};
        status = rank_info_of(e, rank, &other, err);
        if (status == DD_OK) {
            status = rank_info_compare(e, &first, rank, &other, err);
        }
    }
    for (int i = 0; i < e->nids && status == DD_OK; i++) {
        status = take_id(e, i, &ids[i], err);
    }
    return status;
}

static dd_status
meet_for_comm(comm_meeting *e, dd_bytes own_info, dd_meeting_end *end, dd_error *err)
{
    const dd_nccl_meeting *m = e->m;
    char name[DD_MEETING_NAME_MAX + 1];
    int len = snprintf(name, sizeof name, "%.*s/%llu", (int)m->prefix.len, (const char *)m->prefix.data,
                       (unsigned long long)m->use);
    dd_meeting meeting = {.kind = &communicator_kind,
                          .store = m->store,
                          .name = dd_bytes_of(name, (size_t)len),
                          .rank = m->rank,
                          .size = m->size,
                          .ranks = m->names,
                          .payload = own_info};
    dd_wait wait = {.start_ns = e->outer->start_ns,
                    .deadline_ns = e->outer->deadline_ns,
                    .is_interrupted = is_stopped,
                    .ctx = e};
    dd_status status = dd_meet(&meeting, end, &wait, err);
    if (status == DD_INTERRUPTED && e->stop != NULL && atomic_load(e->stop)) {
        return dd_error_set(err, DD_ABORTED,
                            "the meeting for an NCCL communicator was cancelled after %.3f s",
                            dd_wait_elapsed_s(e->outer));
    }
    return status;
}

dd_status
dd_nccl_meet(const dd_nccl_meeting *m, dd_nccl_unique_id *ids, int nids, const atomic_bool *stop,
             const dd_wait *wait, dd_error *err)
{
    if (m->size == 1) {
        return dd_nccl_make_unique_id(m->lib, ids, err);
    }
    dd_meeting_end end = {0};
    dd_blob own_info = {0};
    comm_meeting e = {.m = m, .end = &end, .nids = nids, .stop = stop, .outer = wait};
    dd_status status = rank_info_make(m, nids, &own_info, err);
    if (status == DD_OK) {
        status = meet_for_comm(&e, dd_blob_view(&own_info), &end, err);
    }
    if (status == DD_OK) {
        status = check_rank_infos(&e, ids, err);
    }
    dd_meeting_end_fini(&end);
    dd_blob_fini(&own_info);
    return status;
}
