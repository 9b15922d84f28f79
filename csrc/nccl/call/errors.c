/* Conversion of CUDA and NCCL results into errors during a launch. */
#include "nccl/call/internal.h"

dd_status
nccl_launch_check(const nccl_launch *launch, dd_nccl_result result, const char *label)
{
    if (result == DD_NCCL_SUCCESS || result == DD_NCCL_IN_PROGRESS) {
        return DD_OK;
    }
    const dd_nccl_comm *comm = atomic_load(&launch->channel->comm);
    return dd_nccl_check(launch->group->lib, dd_nccl_comm_before(comm, result), result, launch->err, "%s",
                         label);
}

dd_status
nccl_launch_check_cuda(const nccl_launch *launch, dd_cuda_result result, const char *label)
{
    if (result == DD_CUDA_SUCCESS) {
        return DD_OK;
    }
    return dd_cuda_check(launch->group->cuda, result, launch->err, "%s on device %d", label,
                         launch->channel->device->number);
}
