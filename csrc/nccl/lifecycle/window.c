#include "nccl/window.h"

#include "core/system.h"
#include "meet/meeting.h"
#include "nccl/lifecycle/internal.h"

#include <stdio.h>
#include <string.h>

/* ---- agreement between the ranks */

/* The record that a rank publishes. Native byte order: NCCL needs hosts of one kind. */
typedef struct window_part {
    int64_t pid;
    char host[DD_HOST_NAME_MAX];
    uint64_t nbytes;
    int32_t dtype;
    int32_t obstacle;
} window_part;

static bool
window_part_read(dd_bytes bytes, window_part *part)
{
    if (bytes.len != sizeof *part) {
        return false;
    }
    memcpy(part, bytes.data, sizeof *part);
    part->host[sizeof part->host - 1] = '\0';
    return true;
}

static bool
window_part_read_member(dd_bytes bytes, dd_meeting_member *member)
{
    window_part part;
    if (!window_part_read(bytes, &part)) {
        return false;
    }
    memcpy(member->host, part.host, sizeof member->host);
    member->pid = part.pid;
    return true;
}

static const dd_meeting_kind window_kind = {
    .noun = "window",
    .of_interrupted = "has cancelled the meeting for a window",
    .is_final = true,
    .read_payload = window_part_read_member,
};

static dd_status
window_part_compare(const window_part *first, int rank, const window_part *other, dd_error *err)
{
    dd_status status = DD_OK;
    if (other->obstacle != DD_OK) {
        status =
            dd_error_set(err, (dd_status)other->obstacle, "rank %d cannot open its part of the window: %s",
                         rank, dd_status_text((dd_status)other->obstacle));
    } else if (first->nbytes != other->nbytes || first->dtype != other->dtype) {
        status = dd_error_set(
            err, DD_MISMATCH,
            "ranks have windows of different sizes: rank 0 %llu bytes of %s, rank %d %llu bytes of %s",
            (unsigned long long)first->nbytes, dd_dtype_name((dd_dtype)first->dtype), rank,
            (unsigned long long)other->nbytes, dd_dtype_name((dd_dtype)other->dtype));
    }
    if (status != DD_OK) {
        dd_error_blame(err, rank, other->host, other->pid);
    }
    return status;
}

static dd_status
check_window_parts(const dd_nccl_group *group, const dd_meeting_end *end, dd_error *err)
{
    window_part first = {0};
    dd_status status = DD_OK;
    for (int rank = 0; rank < group->size && status == DD_OK; rank++) {
        window_part part = {0};
        bool is_valid =
            window_part_read(end->payloads[rank], &part) && dd_dtype_is_valid((unsigned)part.dtype);
        if (rank == 0) {
            first = part;
        }
        status = is_valid ? window_part_compare(&first, rank, &part, err)
                          : dd_error_set(err, DD_PROTOCOL, "malformed window part of rank %d (%zu bytes)",
                                         rank, end->payloads[rank].len);
    }
    return status;
}

static uint64_t
next_number(dd_nccl_group *group)
{
    dd_lock_take(&group->lock);
    uint64_t number = group->nwindows++;
    dd_lock_release(&group->lock);
    return number;
}

static dd_status
agree_on_window(dd_nccl_group *group, const dd_nccl_window_spec *spec, const dd_wait *wait, dd_error *err)
{
    uint64_t number = next_number(group);
    if (group->size == 1) {
        return spec->obstacle == DD_OK
                   ? DD_OK
                   : dd_error_set(err, spec->obstacle, "this rank cannot open its part of the window");
    }
    window_part own_part = {.pid = dd_sys_getpid(),
                            .nbytes = spec->nbytes,
                            .dtype = (int32_t)spec->dtype,
                            .obstacle = (int32_t)spec->obstacle};
    if (dd_sys_gethostname(own_part.host, sizeof own_part.host - 1) != 0) {
        (void)snprintf(own_part.host, sizeof own_part.host, "?");
    }
    char name[DD_MEETING_NAME_MAX + 1];
    int len = snprintf(name, sizeof name, "nccl/%.*s/window/%llu", (int)group->options.name.len,
                       (const char *)group->options.name.data, (unsigned long long)number);
    dd_meeting meeting = {.kind = &window_kind,
                          .store = group->store,
                          .name = dd_bytes_of(name, (size_t)len),
                          .rank = group->rank,
                          .size = group->size,
                          .payload = dd_bytes_of(&own_part, sizeof own_part)};
    dd_meeting_end end = {0};
    dd_status status = dd_meet(&meeting, &end, wait, err);
    if (status == DD_OK) {
        status = check_window_parts(group, &end, err);
    }
    dd_meeting_end_fini(&end);
    return status;
}

/* ---- opening */

/* Register the memory. NCCL waits for the other ranks, which have agreed to register theirs. A
 * failure ends the group, because the ranks no longer agree. */
static dd_status
register_memory(dd_nccl_group_window *window, const dd_wait *wait, dd_error *err)
{
    dd_error error;
    void *handle = NULL;
    dd_status status =
        dd_nccl_comm_register(window->comm, window->data, window->nbytes, true, &handle, wait, &error);
    window->handle = handle;
    if (status != DD_OK) {
        dd_error_prepend(&error, "registering a window of %zu bytes", window->nbytes);
        nccl_group_end(window->group, &error, NULL, NCCL_END_FAILED);
        return dd_error_copy(err, &error);
    }
    if (handle == NULL) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "NCCL cannot create a window of this memory: the devices must reach each other");
    }
    return DD_OK;
}

/* Check this rank's memory before the ranks agree: an error of NCCL would fail the group later. */
static dd_status
check_and_agree(dd_nccl_group *group, const dd_nccl_window_spec *spec, const dd_wait *wait, dd_error *err)
{
    dd_error own_error;
    dd_nccl_window_spec checked = *spec;
    if (spec->obstacle == DD_OK && !dd_cuda_is_mapped_memory(group->cuda, spec->data)) {
        checked.obstacle =
            dd_error_set(&own_error, DD_INVALID_ARGUMENT,
                         "NCCL cannot create a window of this memory: it must be from ncclMemAlloc");
    }
    dd_status status = agree_on_window(group, &checked, wait, err);
    bool is_own = checked.obstacle != spec->obstacle && status == checked.obstacle;
    return is_own ? dd_error_copy(err, &own_error) : status;
}

static dd_status
make(dd_nccl_group *group, const dd_nccl_window_spec *spec, dd_nccl_comm *comm, dd_nccl_group_window **made,
     dd_error *err)
{
    dd_nccl_group_window *window = dd_mem_zalloc(sizeof *window);
    if (window == NULL) {
        dd_nccl_comm_release(comm);
        return dd_error_no_memory(err, sizeof *window);
    }
    atomic_init(&window->refs, 1);
    atomic_init(&window->is_closed, false);
    window->group = nccl_group_acquire_internal(group);
    window->comm = comm;
    window->device = spec->device;
    window->data = spec->data;
    window->nbytes = spec->nbytes;
    dd_list_init(&window->link);
    *made = window;
    return DD_OK;
}

dd_status
dd_nccl_group_window_open(dd_nccl_group *group, const dd_nccl_window_spec *spec, dd_nccl_group_window **out,
                          const dd_wait *wait, dd_error *err)
{
    dd_wait limited = dd_wait_at_most(wait, dd_nccl_group_get_timeout_ns(group));
    dd_nccl_comm *comm = NULL;
    dd_nccl_group_window *window = NULL;
    dd_status status = dd_nccl_group_check(group, err);
    if (status == DD_OK) {
        status = dd_nccl_need(group->lib, DD_NCCL_CAN_PUT_SIGNAL, err);
    }
    if (status == DD_OK) {
        status = check_and_agree(group, spec, &limited, err);
    }
    if (status == DD_OK) {
        status = dd_nccl_group_connect(group, spec->device, &comm, &limited, err);
    }
    if (status == DD_OK) {
        status = make(group, spec, comm, &window, err);
    }
    if (status == DD_OK) {
        status = register_memory(window, &limited, err);
    }
    if (status != DD_OK) {
        dd_nccl_group_window_release(window);
        return status;
    }
    dd_lock_take(&group->lock);
    dd_list_push_back(&group->windows, &window->link);
    dd_lock_release(&group->lock);
    *out = window;
    return DD_OK;
}

/* ---- closing */

static void
take_out(dd_nccl_group_window *window)
{
    dd_lock_take(&window->group->lock);
    dd_list_remove(&window->link);
    dd_lock_release(&window->group->lock);
}

static dd_status
wait_for_all(const dd_nccl_group_window *window, const dd_wait *wait, dd_error *err)
{
    dd_nccl_op op = {.kind = DD_NCCL_OP_COLL, .args = {.coll = DD_COLL_BARRIER}};
    dd_nccl_call call = {
        .label = "close_window", .device = window->device, .ops = &op, .nops = 1, .timeout_ns = -1};
    dd_nccl_work *work;
    dd_status status = dd_nccl_group_start(window->group, &call, &work, wait, err);
    if (status == DD_OK) {
        status = dd_nccl_work_wait(work, wait, err);
        dd_work_release(&work->base);
    }
    return status;
}

dd_status
dd_nccl_group_window_close(dd_nccl_group_window *window, const dd_wait *wait, dd_error *err)
{
    dd_nccl_group *group = window->group;
    dd_status status = nccl_group_check_fork(group, err);
    if (status == DD_OK) {
        status = nccl_group_enter_launch(group, wait, err);
    }
    if (status != DD_OK) {
        return status;
    }
    bool is_closed = !dd_nccl_group_window_is_open(window);
    bool was_closed = atomic_exchange(&window->is_closed, true);
    nccl_group_leave_launch(group);
    if (was_closed) {
        return DD_OK;
    }
    take_out(window);
    if (is_closed) {
        return DD_OK;
    }
    status = wait_for_all(window, wait, err);
    dd_status ended =
        dd_nccl_comm_deregister(window->comm, window->handle, true, status == DD_OK ? err : NULL);
    return status == DD_OK ? ended : status;
}

dd_nccl_group_window *
dd_nccl_group_window_acquire(dd_nccl_group_window *window)
{
    atomic_fetch_add_explicit(&window->refs, 1, memory_order_relaxed);
    return window;
}

void
dd_nccl_group_window_release(dd_nccl_group_window *window)
{
    if (window == NULL || atomic_fetch_sub_explicit(&window->refs, 1, memory_order_acq_rel) != 1 ||
        nccl_group_check_fork(window->group, NULL) != DD_OK) {
        return;
    }
    take_out(window);
    dd_nccl_comm_release(window->comm);
    nccl_group_release_internal(window->group);
    dd_mem_free(window);
}

/* ---- queries */

bool
dd_nccl_group_window_is_open(const dd_nccl_group_window *window)
{
    return !atomic_load(&window->is_closed) && !atomic_load(&window->group->stop) &&
           !dd_nccl_comm_has_ended(window->comm);
}
