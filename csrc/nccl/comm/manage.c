/* Operations on a communicator, except creating and ending it. */
#include "nccl/comm/internal.h"

#include "core/lock.h"
/* A short NCCL call on the calling thread, between management_begin and management_end. */
typedef struct management {
    dd_nccl_comm *comm;
    dd_cuda_guard guard;
    dd_nccl_comm_handle handle;
} management;

/* Enter the communicator. Wait only briefly for another thread inside, which may hang. */
static dd_status
management_begin(management *call, dd_nccl_comm *comm, dd_error *err)
{
    *call = (management){.comm = comm};
    dd_wait patience = dd_wait_after(DD_NCCL_LEAVE_NS);
    dd_status status = dd_nccl_comm_enter(comm, NULL, &patience, &call->handle, err);
    if (status != DD_OK) {
        return status;
    }
    status = dd_cuda_enter(comm->cuda, comm->device, &call->guard, err);
    if (status != DD_OK) {
        dd_nccl_comm_leave(comm);
    }
    return status;
}

static dd_status
management_end(management *call, dd_nccl_result result, const char *label, dd_error *err)
{
    char name[64];
    dd_status status = dd_nccl_check(call->comm->lib, dd_nccl_comm_before(call->comm, result), result, err,
                                     "%s of %s", label, dd_nccl_comm_print(call->comm, name, sizeof name));
    dd_cuda_leave(&call->guard);
    dd_nccl_comm_leave(call->comm);
    return status;
}

static dd_status
management_begin_with(management *call, dd_nccl_comm *comm, dd_nccl_capability capability, dd_error *err)
{
    dd_status status = dd_nccl_need(comm->lib, capability, err);
    return status == DD_OK ? management_begin(call, comm, err) : status;
}

dd_status
dd_nccl_comm_grow_id(dd_nccl_comm *parent, dd_nccl_unique_id *id, dd_error *err)
{
    management call;
    dd_status status = management_begin_with(&call, parent, DD_NCCL_CAN_GROW_ID, err);
    if (status != DD_OK) {
        return status;
    }
    return management_end(&call, parent->lib->api.ncclCommGetUniqueId(call.handle, id), "ncclCommGetUniqueId",
                          err);
}

dd_status
dd_nccl_comm_revoke(dd_nccl_comm *comm, dd_error *err)
{
    management call;
    dd_status status = management_begin_with(&call, comm, DD_NCCL_CAN_REVOKE, err);
    if (status != DD_OK) {
        return status;
    }
    status = management_end(&call, comm->lib->api.ncclCommRevoke(call.handle, DD_NCCL_REVOKE_DEFAULT),
                            "ncclCommRevoke", err);
    if (status == DD_OK) {
        dd_lock_take(&comm->mu);
        comm->is_revoked = true;
        dd_lock_release(&comm->mu);
    }
    return status;
}

dd_status
dd_nccl_comm_mem_stat(dd_nccl_comm *comm, int stat, uint64_t *value, dd_error *err)
{
    management call;
    dd_status status = management_begin_with(&call, comm, DD_NCCL_CAN_MEM_STATS, err);
    if (status != DD_OK) {
        return status;
    }
    dd_nccl_result result = comm->lib->api.ncclCommMemStats(call.handle, (dd_nccl_mem_stat)stat, value);
    return management_end(&call, result, "ncclCommMemStats", err);
}

dd_status
dd_nccl_comm_properties(dd_nccl_comm *comm, dd_nccl_abi_properties *properties, dd_error *err)
{
    management call;
    dd_status status = management_begin_with(&call, comm, DD_NCCL_CAN_QUERY_PROPERTIES, err);
    if (status != DD_OK) {
        return status;
    }
    /* NCCL refuses a version newer than its own, and writes only the fields of that version */
    int version = comm->lib->version;
    *properties = (dd_nccl_abi_properties){
        .size = sizeof *properties,
        .magic = DD_NCCL_MAGIC,
        .version = (unsigned)(version < DD_NCCL_VERSION_KNOWN ? version : DD_NCCL_VERSION_KNOWN),
    };
    dd_nccl_result result = comm->lib->api.ncclCommQueryProperties(call.handle, properties);
    return management_end(&call, result, "ncclCommQueryProperties", err);
}

/* First NCCL version that fails for window memory not from ncclMemAlloc; older ones give no window. */
#define WINDOWS_NEED_MAPPED_MEMORY_SINCE 22803

/* Check a window's memory before NCCL does: NCCL's error would break a nonblocking communicator. */
static dd_status
check_window_memory(const dd_nccl_comm *comm, void *data, dd_error *err)
{
    char name[64];
    return comm->lib->version < WINDOWS_NEED_MAPPED_MEMORY_SINCE || dd_cuda_is_mapped_memory(comm->cuda, data)
               ? DD_OK
               : dd_error_set(err, DD_INVALID_ARGUMENT,
                              "ncclCommWindowRegister of %s: the memory at %p is not from ncclMemAlloc",
                              dd_nccl_comm_print(comm, name, sizeof name), data);
}

dd_status
dd_nccl_comm_register(dd_nccl_comm *comm, void *data, size_t nbytes, bool is_window, void **registration,
                      const dd_wait *wait, dd_error *err)
{
    if (is_window) {
        dd_nccl_window window = NULL;
        dd_status status = dd_nccl_need(comm->lib, DD_NCCL_CAN_WINDOW_REGISTER, err);
        if (status == DD_OK) {
            status = check_window_memory(comm, data, err);
        }
        if (status == DD_OK) {
            status = dd_nccl_comm_register_window(comm, data, nbytes, &window, wait, err);
        }
        *registration = window;
        return status;
    }
    management call;
    dd_status status = management_begin_with(&call, comm, DD_NCCL_CAN_REGISTER, err);
    if (status != DD_OK) {
        return status;
    }
    *registration = NULL;
    dd_nccl_result result = comm->lib->api.ncclCommRegister(call.handle, data, nbytes, registration);
    return management_end(&call, result, "ncclCommRegister", err);
}

dd_status
dd_nccl_comm_deregister(dd_nccl_comm *comm, void *registration, bool is_window, dd_error *err)
{
    if (registration == NULL) {
        return DD_OK;
    }
    management call;
    dd_nccl_capability capability = is_window ? DD_NCCL_CAN_WINDOW_DEREGISTER : DD_NCCL_CAN_DEREGISTER;
    dd_status status = management_begin_with(&call, comm, capability, err);
    if (status != DD_OK) {
        return status;
    }
    const dd_nccl_api *api = &comm->lib->api;
    dd_nccl_result result = is_window ? api->ncclCommWindowDeregister(call.handle, registration)
                                      : api->ncclCommDeregister(call.handle, registration);
    return management_end(&call, result, dd_nccl_capability_name(capability), err);
}
