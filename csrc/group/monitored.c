/* monitored_barrier: a barrier of messages that names the missing ranks. */
#include "group/internal.h"

#include <stdio.h>
#include <string.h>

/* Rank 0's report to the other ranks: empty if all have arrived. */
typedef struct barrier_report {
    char text[512];
} barrier_report;

static uint64_t
next_monitored_tag(dd_group *group)
{
    dd_engine_lock(group->engine);
    uint64_t tag = group->nmonitored++;
    dd_engine_unlock(group->engine);
    return tag;
}

/* Send or receive a message of the barrier, with its own deadline, in a channel apart from users'
 * messages. */
static dd_status
run_barrier_message(dd_group *group, const dd_p2p *message, int64_t timeout_ns, const dd_wait *wait,
                    dd_error *err)
{
    dd_p2p_result result;
    dd_call_options options = {.timeout_ns = timeout_ns};
    dd_p2p own_message = *message;
    own_message.channel = GROUP_MONITOR_CHANNEL;
    return dd_group_p2p_and_wait(group, &own_message, &options, &result, wait, err);
}

static dd_status
await_members(dd_group *group, int64_t timeout_ns, bool is_all, uint64_t tag, const dd_wait *wait,
              dd_error *err)
{
    dd_wait patience = dd_wait_at_most(wait, timeout_ns);
    uint8_t byte;
    char missing[256] = "";
    int nmissing = 0;
    int first = -1;
    bool was_out_of_time = false; /* the first missing rank had no time left to arrive */
    dd_error why = {.code = DD_OK};
    for (int rank = 1; rank < group->size && (nmissing == 0 || is_all); rank++) {
        dd_error error;
        dd_p2p message = {.rank = rank, .tag = tag, .block = {&byte, 1}};
        int64_t left_ns = dd_deadline_left_ns(patience.deadline_ns);
        dd_status status = run_barrier_message(group, &message, left_ns, wait, &error);
        bool is_ended = status != DD_OK && dd_group_check(group, NULL) != DD_OK;
        if (status == DD_INTERRUPTED || is_ended) {
            return dd_error_copy(err, &error); /* the group has failed; no rank is late */
        }
        if (status != DD_OK) {
            first = first < 0 ? rank : first;
            was_out_of_time |= nmissing == 0 && left_ns == 0;
            why = nmissing == 0 ? error : why;
            size_t used = strlen(missing);
            snprintf(missing + used, sizeof missing - used, nmissing++ == 0 ? "%d" : ", %d", rank);
        }
    }
    if (nmissing == 0) {
        return DD_OK;
    }
    long long timeout_ms = timeout_ns / DD_NS_PER_MS;
    if (was_out_of_time) {
        dd_error_prepend(&why, "Rank 0 timed out in monitoredBarrier after %lld ms", timeout_ms);
    }
    dd_error_set(err, why.code,
                 "[Rank 0]: Rank%s %s failed to pass monitoredBarrier in %lld ms (group \"%.*s\"): %s",
                 is_all ? "s" : "", missing, timeout_ms, (int)group->name.len, (const char *)group->name.data,
                 why.message);
    group_blame(group, first, err);
    return why.code;
}

static dd_status
monitor(dd_group *group, int64_t timeout_ns, bool is_all, uint64_t tag, const dd_wait *wait, dd_error *err)
{
    barrier_report report = {.text = ""};
    dd_error error = {.code = DD_OK};
    dd_status status = await_members(group, timeout_ns, is_all, tag, wait, &error);
    if (status != DD_OK) {
        snprintf(report.text, sizeof report.text, "%.*s", (int)sizeof report.text - 1, error.message);
    }
    for (int rank = 1; rank < group->size && status != DD_INTERRUPTED; rank++) {
        dd_p2p message = {.is_send = true, .rank = rank, .tag = tag, .block = {&report, sizeof report}};
        /* Ignore errors: the report cannot reach a missing rank. */
        dd_status ignored = run_barrier_message(group, &message, 2 * DD_NS_PER_S, wait, NULL);
        (void)ignored;
    }
    return status == DD_OK ? DD_OK : dd_error_copy(err, &error);
}

static dd_status
report_and_receive(dd_group *group, int64_t timeout_ns, uint64_t tag, const dd_wait *wait, dd_error *err)
{
    uint8_t byte = 0;
    barrier_report report = {.text = ""};
    dd_p2p arrival = {.is_send = true, .tag = tag, .block = {&byte, 1}};
    dd_p2p answer = {.tag = tag, .block = {&report, sizeof report}};
    /* Rank 0 may wait for other ranks until its timeout, and then needs time for its report. */
    int64_t patience_ns = timeout_ns < INT64_MAX - DD_NS_PER_S ? timeout_ns + DD_NS_PER_S : timeout_ns;
    dd_wait patience = dd_wait_at_most(wait, patience_ns);
    dd_status status = run_barrier_message(group, &arrival, timeout_ns, wait, err);
    if (status != DD_INTERRUPTED) { /* even if the arrival was not sent, rank 0 may send a report */
        status = run_barrier_message(group, &answer, dd_deadline_left_ns(patience.deadline_ns), wait, err);
    }
    if (status == DD_OK && report.text[0] != '\0') {
        status = dd_error_set(err, DD_OP_TIMED_OUT, "rank 0 reported: %.*s", (int)sizeof report.text - 1,
                              report.text);
    }
    if (status != DD_OK && status != DD_INTERRUPTED) {
        dd_error_prepend(
            err,
            "Rank %d successfully reached monitoredBarrier, but received errors while waiting for "
            "send/recv from rank 0. Please check rank 0 logs for faulty rank",
            group->rank);
    }
    return status;
}

dd_status
dd_group_monitored_barrier(dd_group *group, int64_t timeout_ns, bool is_all, const dd_wait *wait,
                           dd_error *err)
{
    int64_t timeout = timeout_ns >= 0 ? timeout_ns : dd_group_get_timeout_ns(group);
    dd_status status = dd_group_check(group, err);
    if (status != DD_OK) {
        return status;
    }
    uint64_t tag = next_monitored_tag(group);
    return group->rank == 0 ? monitor(group, timeout, is_all, tag, wait, err)
                            : report_and_receive(group, timeout, tag, wait, err);
}
