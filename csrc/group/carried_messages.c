/* Point-to-point messages that a carrier moves. A carrier's collectives are in leg_carrier.c. */
#include "group/internal.h"

#include "core/wait_policy.h"

dd_carrier_library *
dd_group_carrier(const dd_group *group)
{
    const dd_carrier *carrier = dd_run_carrier(group->run);
    return carrier != NULL ? carrier->library : NULL;
}

uint64_t
dd_group_count_carried(dd_group *group)
{
    dd_engine_lock(group->engine);
    uint64_t count = group->ncarried_posted + dd_run_count_carried_locked(group->run);
    dd_engine_unlock(group->engine);
    return count;
}

bool
group_carries_messages(const dd_group *group)
{
    const dd_carrier *carrier = dd_run_carrier(group->run);
    return carrier != NULL && carrier->ops->has_tag != NULL;
}

static bool
takes(const dd_carrier *carrier, const group_call *call)
{
    return group_carries_messages(call->group) && call->message.channel == 0 &&
           carrier->ops->has_tag(carrier, call->message.tag);
}

static void
carried_end(group_call *call, const dd_error *error)
{
    call->is_carried = false;
    call->group->ncarried--;
    call->group->awake_until_ns = 0; /* reset, to poll often: other messages may end soon too */
    call->message.source = call->carried_message.source;
    call->message.sent_tag = call->message.tag;
    call->message.received = call->carried_message.received;
    call->message.on_done(&call->message, error);
}

static bool
carried_poll(group_call *call)
{
    dd_error error;
    bool is_done = false;
    dd_carrier *carrier = dd_run_carrier(call->group->run);
    dd_status status =
        carrier->ops->poll_message(carrier, &call->carried, &call->carried_message, &is_done, &error);
    if (status != DD_OK || is_done) {
        carried_end(call, status != DD_OK ? &error : NULL);
        return true;
    }
    return false;
}

bool
group_post_carried_locked(group_call *call)
{
    dd_error error;
    dd_group *group = call->group;
    dd_carrier *carrier = dd_run_carrier(group->run);
    if (!takes(carrier, call)) {
        return false;
    }
    call->is_carried = true;
    group->ncarried++;
    group->ncarried_posted++;
    group->awake_until_ns = 0;
    call->carried_message = (dd_carried_message){.is_send = call->is_send,
                                                 .rank = call->message.rank,
                                                 .tag = call->message.tag,
                                                 .data = call->message.data,
                                                 .nbytes = call->message.nbytes,
                                                 .source = -1};
    group_begin_record_if_needed_locked(call);
    if (carrier->ops->start_message(carrier, &call->carried_message, &call->carried, &error) != DD_OK) {
        carried_end(call, &error);
    } else {
        (void)carried_poll(call);
    }
    return true;
}

bool
group_poll_carried_locked(dd_group *group)
{
    for (dd_list *node = group->messages.next; group->ncarried > 0 && node != &group->messages;
         node = node->next) {
        group_call *call = DD_CONTAINER_OF(node, group_call, link);
        if (call->is_carried && carried_poll(call)) {
            return true; /* stop the loop: later calls may have ended and left the list */
        }
    }
    return false;
}

void
group_poll_carried_call_locked(group_call *call, int npolls)
{
    for (int npolled = 0; npolled < npolls && !dd_work_is_done(&call->work); npolled++) {
        if (!group_poll_carried_locked(call->group)) {
            dd_spin_pause();
        }
    }
}

bool
group_may_nap_locked(dd_group *group)
{
    return group->ncarried == 0 || dd_run_may_nap(&group->awake_until_ns);
}

void
group_cancel_message_locked(group_call *call, const dd_error *cause)
{
    if (!call->is_carried) {
        dd_context_cancel_locked(call->group->context, &call->message, cause);
        return;
    }
    for (int npolled = 0; npolled < DD_POLLS_LAST; npolled++) {
        if (carried_poll(call)) {
            return;
        }
    }
    dd_error error = *cause;
    dd_carrier *carrier = dd_run_carrier(call->group->run);
    error.keeps_memory = !carrier->ops->cancel_message(carrier, &call->carried);
    carried_end(call, &error);
}
