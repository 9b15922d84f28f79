#include "core/mem.h"
#include "group/group.h"
#include "ucc/ucc_internal.h"

/* UCC's own connections may need this rank meanwhile, so it goes on after a short wait. */
#define EXCHANGE_SLICE_NS (200 * DD_NS_PER_US)
/* When the group has ended, UCC asks for one all_gather more, and does not look at its result: a barrier between the end of its
 * connections and that of what others' lead to. The others are about to do the same (dd_ucc_close), so a moment does; where it does not,
 * UCX writes of connections that were reset to its log, and all is well. */
#define LAST_EXCHANGE_NS (20 * DD_NS_PER_MS)

/* One all_gather under way. */
typedef struct ucc_exchange {
    dd_ucc_oob *oob;
    dd_work *work;  /* NULL: the group has ended */
    dd_wait moment; /* then */
} ucc_exchange;

static dd_status
post_all_gather(dd_ucc_oob *oob, dd_block input, void *recv, dd_work **work)
{
    int nranks = dd_group_size(oob->group);
    dd_block *outputs = dd_mem_alloc_array((size_t)nranks, sizeof *outputs);
    if (outputs == NULL) {
        return dd_error_no_memory(&oob->error, (size_t)nranks * sizeof *outputs);
    }
    for (int rank = 0; rank < nranks; rank++) {
        outputs[rank] = (dd_block){(char *)recv + (size_t)rank * input.nbytes, input.nbytes};
    }
    dd_coll_args args = {.coll = DD_COLL_ALL_GATHER,
                         .reduction = {.dtype = DD_DTYPE_UINT8},
                         .inputs = &input,
                         .outputs = outputs};
    dd_call_options options = {.timeout_ns = dd_deadline_left_ns(oob->wait->deadline_ns)};
    dd_status status = dd_group_collective(oob->group, &args, &options, work, &oob->error);
    dd_mem_free(outputs);
    return status;
}

static dd_ucc_status
post_exchange(void *src, void *recv, size_t size, void *coll_info, void **request)
{
    dd_ucc_oob *oob = coll_info;
    ucc_exchange *exchange = dd_mem_zalloc(sizeof *exchange);
    if (exchange == NULL) {
        (void)dd_error_no_memory(&oob->error, sizeof *exchange);
        return DD_UCC_ERR_NO_MEMORY;
    }
    exchange->oob = oob;
    exchange->moment = dd_wait_after(LAST_EXCHANGE_NS);
    if (oob->group != NULL && post_all_gather(oob, (dd_block){src, size}, recv, &exchange->work) != DD_OK) {
        dd_mem_free(exchange);
        return DD_UCC_ERR_NO_MESSAGE;
    }
    *request = exchange;
    return DD_UCC_OK;
}

/* UCC gives up, and with it the memory: nothing may be written there any more. */
static void
end_exchange(const ucc_exchange *exchange)
{
    dd_group_abort(exchange->oob->group, "interrupted in the making of a team of UCC");
    dd_wait patiently = dd_wait_after(DD_NEVER_NS);
    dd_status ignored = dd_group_wait(exchange->oob->group, exchange->work, &patiently, NULL);
    (void)ignored;
}

static dd_ucc_status
pass_moment(const dd_wait *moment)
{
    if (dd_wait_is_over(moment)) {
        return DD_UCC_OK;
    }
    dd_status ignored = dd_wait_sleep(moment, DD_NS_PER_MS, NULL);
    (void)ignored;
    return DD_UCC_INPROGRESS;
}

static dd_ucc_status
look_at_exchange(void *request)
{
    ucc_exchange *exchange = request;
    dd_ucc_oob *oob = exchange->oob;
    if (exchange->work == NULL) {
        return pass_moment(&exchange->moment);
    }
    /* The work has a time-out of its own, and says at its end who was missing. */
    dd_wait slice = *oob->wait;
    slice.deadline_ns = dd_deadline_after(EXCHANGE_SLICE_NS);
    dd_status status = dd_group_wait(oob->group, exchange->work, &slice, &oob->error);
    if (status == DD_OK) {
        return DD_UCC_OK;
    }
    if (!dd_work_is_done(exchange->work)) {
        if (status == DD_OP_TIMED_OUT) {
            oob->error = (dd_error){0};
            return DD_UCC_INPROGRESS;
        }
        end_exchange(exchange);
    }
    return DD_UCC_ERR_NO_MESSAGE;
}

static dd_ucc_status
free_exchange(void *request)
{
    ucc_exchange *exchange = request;
    dd_work_release(exchange->work);
    dd_mem_free(exchange);
    return DD_UCC_OK;
}

dd_ucc_oob_coll
dd_ucc_oob_calls(dd_ucc_oob *oob, int rank, int nranks)
{
    return (dd_ucc_oob_coll){
        .allgather = post_exchange,
        .req_test = look_at_exchange,
        .req_free = free_exchange,
        .coll_info = oob,
        .n_oob_eps = (uint32_t)nranks,
        .oob_ep = (uint32_t)rank,
    };
}
