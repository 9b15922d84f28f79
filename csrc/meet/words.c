/* Texts for ranks and meetings, and the check for a rank's process. */
#include "meet/internal.h"

#include <stdio.h>

bool
meeting_read(const meeting_call *call, dd_bytes published, dd_meeting_member *member)
{
    return published.len >= MEETING_NONCE_BYTES &&
           call->meeting->kind->read_card(meeting_card_of(published), member);
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
meeting_look_for(const meeting_call *call, dd_bytes published, bool *was_seen, bool *is_gone, dd_error *err)
{
    const dd_meeting *meeting = call->meeting;
    return meeting->kind->look_for == NULL
               ? DD_OK
               : meeting->kind->look_for(meeting_card_of(published), meeting->card, was_seen, is_gone,
                                         call->place.wait, err);
}
