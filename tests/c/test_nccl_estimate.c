/* The duration of calls as estimated by NCCL: nothing is executed, and no state is left. */
#include "check.h"
#include "nccl_rig.h"

#include <string.h>

static void
estimate_body(nccl_rig_rank *self)
{
    char *data = nccl_rig_alloc(self, 256);
    memset(data, 7, 256);
    dd_block apart[] = {{data, 16}, {data + 64, 16}}; /* needs a staging buffer */
    dd_block one = {data + 128, 16};
    dd_nccl_op ops[] = {
        nccl_rig_all_reduce(DD_DTYPE_FLOAT32, DD_REDOP_SUM, &one),
        nccl_rig_coll(DD_COLL_REDUCE_SCATTER, DD_DTYPE_FLOAT32, apart, &one),
        nccl_rig_coll(DD_COLL_ALL_GATHER, DD_DTYPE_FLOAT32, &one, apart),
    };
    dd_nccl_call call = nccl_rig_call(self, "estimate", ops, 3);
    call.nstreams = 0;
    dd_wait wait = nccl_rig_patience();
    float estimate = 0;
    CHECK_OK(dd_nccl_group_estimate(self->group, &call, &estimate, &wait, check_err()));
    CHECK(estimate == 3.0F);
    for (size_t at = 0; at < 256; at++) {
        CHECK_INT(data[at], 7);
    }
    CHECK_INT(dd_nccl_group_sequence(self->group), 0);
    CHECK(dd_nccl_group_is_idle(self->group, &wait));
    nccl_rig_free(self, data);
    nccl_rig_check_sum(self); /* the ranks still agree */
}

TEST(estimating_the_time_of_an_operation_does_not_run_it)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2}, estimate_body, NULL);
    nccl_rig_run(&(nccl_rig_options){.size = 2, .version = "2.22.3"}, estimate_body, NULL);
}

typedef struct refusal {
    dd_coll coll;
    const char *text;
} refusal;

static void
refusal_body(nccl_rig_rank *self)
{
    const refusal *expected = self->arg;
    char *data = nccl_rig_alloc(self, 64);
    dd_block blocks[] = {{data, 16}, {data + 16, 16}};
    dd_block others[] = {{data + 32, 16}, {data + 48, 16}};
    dd_nccl_op op = nccl_rig_coll(expected->coll, DD_DTYPE_FLOAT32, blocks, others);
    dd_nccl_call call = nccl_rig_call(self, "estimate", &op, 1);
    call.nstreams = 0;
    dd_wait wait = nccl_rig_patience();
    float estimate = 5;
    CHECK_STATUS(dd_nccl_group_estimate(self->group, &call, &estimate, &wait, check_err()), DD_NOT_SUPPORTED);
    CHECK_CONTAINS(check_message(), expected->text);
    CHECK(estimate == 5.0F);
    nccl_rig_free(self, data);
    nccl_rig_check_sum(self);
}

TEST(unsupported_time_estimates_are_refused)
{
    refusal messages = {DD_COLL_ALL_TO_ALL, "cannot estimate messages"};
    nccl_rig_run(&(nccl_rig_options){.size = 2}, refusal_body, &messages);
    refusal nonblocking = {DD_COLL_ALL_REDUCE, "estimates need a blocking communicator"};
    nccl_rig_run(&(nccl_rig_options){.size = 2, .is_nonblocking = true}, refusal_body, &nonblocking);
    refusal old = {DD_COLL_ALL_REDUCE, "ncclGroupSimulateEnd needs NCCL 2.22.3"};
    nccl_rig_run(&(nccl_rig_options){.size = 2, .version = "2.18.1"}, refusal_body, &old);
}
