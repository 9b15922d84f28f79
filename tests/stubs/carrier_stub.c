#include "carrier_stub.h"

carrier_stub dd_stub_carriers;

#define PROTOTYPE(name, returns, parameters) DD_STUB_EXPORT returns name parameters;
DD_XCCL_FUNCTIONS(PROTOTYPE)
DD_UCC_FUNCTIONS(PROTOTYPE)
DD_STUB_EXPORT void ucc_get_version(unsigned *major, unsigned *minor, unsigned *release);

/* ---- oneCCL */

xccl_result
onecclGetVersion(int *version)
{
    return dd_stub_carriers.oneccl.onecclGetVersion(version);
}

const char *
onecclGetErrorString(xccl_result result)
{
    return dd_stub_carriers.oneccl.onecclGetErrorString(result);
}

const char *
onecclGetLastError(xccl_comm comm)
{
    return dd_stub_carriers.oneccl.onecclGetLastError(comm);
}

xccl_result
onecclGetUniqueId(xccl_unique_id *id)
{
    return dd_stub_carriers.oneccl.onecclGetUniqueId(id);
}

xccl_result
onecclCommInitRank(xccl_comm *comm, size_t nranks, xccl_unique_id id, int rank)
{
    return dd_stub_carriers.oneccl.onecclCommInitRank(comm, nranks, id, rank);
}

xccl_result
onecclCommDestroy(xccl_comm comm)
{
    return dd_stub_carriers.oneccl.onecclCommDestroy(comm);
}

xccl_result
onecclBroadcast(const void *send, void *recv, size_t count, dd_nccl_dtype dtype, int root, xccl_comm comm,
                void *stream)
{
    return dd_stub_carriers.oneccl.onecclBroadcast(send, recv, count, dtype, root, comm, stream);
}

xccl_result
onecclReduce(const void *send, void *recv, size_t count, dd_nccl_dtype dtype, dd_nccl_redop op, int root,
             xccl_comm comm, void *stream)
{
    return dd_stub_carriers.oneccl.onecclReduce(send, recv, count, dtype, op, root, comm, stream);
}

xccl_result
onecclAllReduce(const void *send, void *recv, size_t count, dd_nccl_dtype dtype, dd_nccl_redop op,
                xccl_comm comm, void *stream)
{
    return dd_stub_carriers.oneccl.onecclAllReduce(send, recv, count, dtype, op, comm, stream);
}

xccl_result
onecclAllGather(const void *send, void *recv, size_t sendcount, dd_nccl_dtype dtype, xccl_comm comm,
                void *stream)
{
    return dd_stub_carriers.oneccl.onecclAllGather(send, recv, sendcount, dtype, comm, stream);
}

xccl_result
onecclReduceScatter(const void *send, void *recv, size_t recvcount, dd_nccl_dtype dtype, dd_nccl_redop op,
                    xccl_comm comm, void *stream)
{
    return dd_stub_carriers.oneccl.onecclReduceScatter(send, recv, recvcount, dtype, op, comm, stream);
}

xccl_result
onecclAllToAllV(const void *send, const size_t *sendcounts, void *recv, const size_t *recvcounts,
                dd_nccl_dtype dtype, xccl_comm comm, void *stream)
{
    return dd_stub_carriers.oneccl.onecclAllToAllV(send, sendcounts, recv, recvcounts, dtype, comm, stream);
}

xccl_result
onecclSend(const void *send, size_t count, dd_nccl_dtype dtype, int peer, xccl_comm comm, void *stream)
{
    return dd_stub_carriers.oneccl.onecclSend(send, count, dtype, peer, comm, stream);
}

xccl_result
onecclRecv(void *recv, size_t count, dd_nccl_dtype dtype, int peer, xccl_comm comm, void *stream)
{
    return dd_stub_carriers.oneccl.onecclRecv(recv, count, dtype, peer, comm, stream);
}

/* ---- UCC */

void
ucc_get_version(unsigned *major, unsigned *minor, unsigned *release)
{
    dd_stub_carriers.ucc.ucc_get_version(major, minor, release);
}

const char *
ucc_get_version_string(void)
{
    return dd_stub_carriers.ucc.ucc_get_version_string();
}

const char *
ucc_status_string(dd_ucc_status status)
{
    return dd_stub_carriers.ucc.ucc_status_string(status);
}

dd_ucc_status
ucc_lib_config_read(const char *env_prefix, const char *filename, dd_ucc_lib_config *config)
{
    return dd_stub_carriers.ucc.ucc_lib_config_read(env_prefix, filename, config);
}

void
ucc_lib_config_release(dd_ucc_lib_config config)
{
    dd_stub_carriers.ucc.ucc_lib_config_release(config);
}

dd_ucc_status
ucc_init_version(unsigned api_major, unsigned api_minor, const dd_ucc_lib_params *params,
                 dd_ucc_lib_config config, dd_ucc_lib_handle *lib)
{
    return dd_stub_carriers.ucc.ucc_init_version(api_major, api_minor, params, config, lib);
}

dd_ucc_status
ucc_lib_get_attr(dd_ucc_lib_handle lib, dd_ucc_lib_params *attr)
{
    return dd_stub_carriers.ucc.ucc_lib_get_attr(lib, attr);
}

dd_ucc_status
ucc_finalize(dd_ucc_lib_handle lib)
{
    return dd_stub_carriers.ucc.ucc_finalize(lib);
}

dd_ucc_status
ucc_context_config_read(dd_ucc_lib_handle lib, const char *filename, dd_ucc_context_config *config)
{
    return dd_stub_carriers.ucc.ucc_context_config_read(lib, filename, config);
}

dd_ucc_status
ucc_context_config_modify(dd_ucc_context_config config, const char *component, const char *name,
                          const char *value)
{
    return dd_stub_carriers.ucc.ucc_context_config_modify(config, component, name, value);
}

void
ucc_context_config_release(dd_ucc_context_config config)
{
    dd_stub_carriers.ucc.ucc_context_config_release(config);
}

dd_ucc_status
ucc_context_create(dd_ucc_lib_handle lib, const dd_ucc_context_params *params, dd_ucc_context_config config,
                   dd_ucc_context_handle *context)
{
    return dd_stub_carriers.ucc.ucc_context_create(lib, params, config, context);
}

dd_ucc_status
ucc_context_progress(dd_ucc_context_handle context)
{
    return dd_stub_carriers.ucc.ucc_context_progress(context);
}

dd_ucc_status
ucc_context_destroy(dd_ucc_context_handle context)
{
    return dd_stub_carriers.ucc.ucc_context_destroy(context);
}

dd_ucc_status
ucc_team_create_post(dd_ucc_context_handle *contexts, uint32_t num_contexts, const dd_ucc_team_params *params,
                     dd_ucc_team_handle *team)
{
    return dd_stub_carriers.ucc.ucc_team_create_post(contexts, num_contexts, params, team);
}

dd_ucc_status
ucc_team_create_test(dd_ucc_team_handle team)
{
    return dd_stub_carriers.ucc.ucc_team_create_test(team);
}

dd_ucc_status
ucc_team_destroy(dd_ucc_team_handle team)
{
    return dd_stub_carriers.ucc.ucc_team_destroy(team);
}

dd_ucc_status
ucc_collective_init(dd_ucc_coll_args *args, dd_ucc_request **request, dd_ucc_team_handle team)
{
    return dd_stub_carriers.ucc.ucc_collective_init(args, request, team);
}

dd_ucc_status
ucc_collective_post(dd_ucc_request *request)
{
    return dd_stub_carriers.ucc.ucc_collective_post(request);
}

dd_ucc_status
ucc_collective_finalize(dd_ucc_request *request)
{
    return dd_stub_carriers.ucc.ucc_collective_finalize(request);
}
