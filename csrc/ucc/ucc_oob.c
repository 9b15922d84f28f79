#include "core/mem.h"
#include "group/group.h"
#include "ucc/ucc_internal.h"

/* Longest wait in one poll of an all_gather. Short: UCC's own connections may need this thread. */
#define EXCHANGE_SLICE_NS (200 * DD_NS_PER_US)
/* How long to wait instead of the last all_gather. When UCC destroys a context, it starts one more
 * all_gather and ignores its result: a barrier between closing its own connections and closing
 * those from its peers. The other ranks close at the same time (dd_ucc_close), so a short wait is
 * usually enough; otherwise UCX only logs that connections were reset. */
#define LAST_EXCHANGE_NS (20 * DD_NS_PER_MS)

/* One all_gather in progress. */
typedef struct ucc_exchange {
    dd_ucc_oob *oob;
    dd_work *work;     /* NULL for the last all_gather, which starts when UCC destroys a context */
    dd_wait last_wait; /* wait that replaces the last all_gather */
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
    exchange->last_wait = dd_wait_after(LAST_EXCHANGE_NS);
    if (oob->group != NULL && post_all_gather(oob, (dd_block){src, size}, recv, &exchange->work) != DD_OK) {
        dd_mem_free(exchange);
        return DD_UCC_ERR_NO_MESSAGE;
    }
    *request = exchange;
    return DD_UCC_OK;
}

/* End a failed all_gather. Abort the group and wait for the work to end, because the work must not
 * write to the receive buffer after UCC has freed it. */
static void
end_exchange(const ucc_exchange *exchange)
{
    dd_group_abort(exchange->oob->group, "interrupted while UCC created a team");
    dd_wait patiently = dd_wait_after(DD_NEVER_NS);
    dd_status ignored = dd_group_wait(exchange->oob->group, exchange->work, &patiently, NULL);
    (void)ignored;
}

static dd_ucc_status
back_off(const dd_wait *last_wait)
{
    if (dd_wait_has_expired(last_wait)) {
        return DD_UCC_OK;
    }
    dd_status ignored = dd_wait_sleep(last_wait, DD_NS_PER_MS, NULL);
    (void)ignored;
    return DD_UCC_INPROGRESS;
}

static dd_ucc_status
poll_exchange(void *request)
{
    ucc_exchange *exchange = request;
    dd_ucc_oob *oob = exchange->oob;
    if (exchange->work == NULL) {
        return back_off(&exchange->last_wait);
    }
    /* Wait at most one slice. The work's own timeout names the missing ranks. */
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
        .req_test = poll_exchange,
        .req_free = free_exchange,
        .coll_info = oob,
        .n_oob_eps = (uint32_t)nranks,
        .oob_ep = (uint32_t)rank,
    };
}
