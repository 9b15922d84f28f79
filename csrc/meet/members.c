/* Texts for ranks and meetings, and the check whether the process of a rank has ended. */
#include "meet/internal.h"

#include <stdio.h>

bool
meeting_read_member(const meeting_call *call, dd_bytes published, dd_meeting_member *member)
{
    return published.len >= MEETING_NONCE_BYTES &&
           call->meeting->kind->read_payload(meeting_payload_of(published), member);
}

int
meeting_name_of(const meeting_call *call, int rank)
{
    const dd_meeting *meeting = call->meeting;
    return meeting->ranks != NULL && rank >= 0 && rank < meeting->size ? meeting->ranks[rank] : rank;
}

const char *
meeting_print_member(const meeting_call *call, int rank, const dd_meeting_member *member, char out[128])
{
    snprintf(out, 128, "rank %d (%s, pid %lld)", meeting_name_of(call, rank), member->host, member->pid);
    return out;
}

const char *
meeting_print_title(const meeting_call *call, char out[MEETING_TITLE_MAX])
{
    const dd_meeting *meeting = call->meeting;
    snprintf(out, MEETING_TITLE_MAX, "%s \"%.*s\"", meeting->kind->noun, (int)meeting->name.len,
             (const char *)meeting->name.data);
    return out;
}

dd_status
meeting_check_process(const meeting_call *call, dd_bytes published, bool *was_seen, bool *has_ended,
                      dd_error *err)
{
    const dd_meeting *meeting = call->meeting;
    return meeting->kind->check_process == NULL
               ? DD_OK
               : meeting->kind->check_process(meeting_payload_of(published), meeting->payload, was_seen,
                                              has_ended, call->keys.wait, err);
}
