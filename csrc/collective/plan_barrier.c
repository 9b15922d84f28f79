#include "collective/plan_internal.h"

/* In round k a rank tells the one 2^k further on that it and the 2^k - 1 before it have come. */
dd_status
dd_plan_build_barrier_dissemination(const dd_plan_task *task, dd_plan *plan, dd_error *err)
{
    dd_builder b = dd_builder_start(task, plan, err);
    uint32_t received[32];
    int nrounds = 0;
    for (int distance = 1; distance < b.nranks; distance *= 2) {
        size_t channel = (size_t)nrounds;
        uint32_t send = dd_builder_send_empty(&b, dd_builder_at(&b, b.rank, distance), channel);
        for (int i = 0; i < nrounds; i++) {
            dd_builder_after(&b, send, received[i]);
        }
        received[nrounds++] = dd_builder_recv_empty(&b, dd_builder_at(&b, b.rank, -distance), channel);
        if (distance > b.nranks / 2) {
            break;
        }
    }
    return dd_builder_finish(&b);
}
