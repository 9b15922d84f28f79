/* Coming to a meeting, which only servers of ours know. */
#include "store/tcp_client_internal.h"

dd_status
tcp_meet(dd_store *head, const dd_meet_request *request, dd_meet_reply *reply, const dd_wait *wait,
         dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "meet", wait, err};
    if (!operation.store->target.is_extended) {
        return dd_store_meet_by_keys(head, request, reply, wait, err);
    }
    int64_t who = request->rank | (int64_t)request->size << DD_TCP_MEET_SIZE_SHIFT |
                  (request->hears_failure ? DD_TCP_MEET_HEARS_FAILURE : 0);
    tcp_call call;
    dd_tcp_reader reader;
    tcp_call_begin(&call, &operation);
    dd_status status = tcp_call_ask(
        &call, DD_TCP_MEET,
        &(tcp_fields){.keys = &request->place, .values = &request->published, .number = who}, &reader);
    if (status == DD_OK) {
        reply->state = (dd_meet_state)dd_tcp_read_u8(&reader);
        reply->generation = dd_tcp_read_count(&reader);
        reply->has_come = reply->state <= DD_MEET_ENDED;
        status = dd_blob_assign(&reply->value, dd_tcp_read_bytes(&reader), err);
    }
    return tcp_call_end(&call, status);
}
