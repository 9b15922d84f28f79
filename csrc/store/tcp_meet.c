/* Coming to a meeting, which only servers of ours know. */
#include "store/tcp_client_internal.h"

static dd_status
take_meet_reply(tcp_call *call, dd_tcp_reader *reader, dd_meet_reply *reply)
{
    reply->state = (dd_meet_state)dd_tcp_read_u8(reader);
    reply->generation = dd_tcp_read_count(reader);
    reply->has_come = reply->state <= DD_MEET_ENDED;
    return tcp_call_take_value(call, reader, &reply->value);
}

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
    tcp_call_begin(&call, &operation, DD_TCP_MEET);
    tcp_call_write_key(&call, request->place);
    dd_tcp_write_u64(&call.writer, (uint64_t)who);
    tcp_call_write_value(&call, request->published);
    dd_status status = tcp_call_ask(&call, &reader);
    if (status == DD_OK) {
        status = take_meet_reply(&call, &reader, reply);
    }
    return tcp_call_end(&call, status);
}
