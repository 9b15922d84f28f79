/* What the ranks of a host tell each other without a link: on the board of their arena, and by ringing. */
#include "group/group_internal.h"

bool
group_is_on_board(const dd_group *group, int rank)
{
    return group->arena != NULL && rank != group->rank &&
           group->topology.host_of[rank] == group->topology.host;
}

static void
ring_others_locked(dd_group *group)
{
    for (int local = 0; local < group->topology.nlocal; local++) {
        if (dd_arena_is_bell_due(group->arena, local)) {
            dd_peer_ring_bell_locked(group->peers[group->topology.local_ranks[local]]);
        }
    }
}

void
group_tell_abort_locked(dd_group *group, int except, const dd_cause *cause)
{
    dd_context_post_abort_locked(group->context, except, cause);
    if (group->arena != NULL) {
        uint8_t bytes[DD_CAUSE_MAX_NBYTES];
        _Static_assert(sizeof bytes <= DD_ARENA_CAUSE_MAX, "the board has room for a cause");
        dd_arena_post_cause(group->arena, dd_bytes_of(bytes, dd_cause_encode(cause, bytes)));
        ring_others_locked(group);
    }
}

void
group_post_leaving_locked(dd_group *group)
{
    if (group->arena != NULL) {
        dd_arena_post_leaving(group->arena);
        ring_others_locked(group);
    }
}

void
group_ring_asked_locked(dd_group *group)
{
    if (group->arena != NULL) {
        ring_others_locked(group);
    }
}

/* ---- where ranks are */

void
group_note_place_locked(dd_group *group)
{
    if (group->arena != NULL) {
        dd_arena_place place = {.sequence = group->nstarted,
                                .signature = group->signatures[group->nstarted % SIGNATURES_KEPT],
                                .is_inside = group->is_active};
        dd_arena_note_place(group->arena, &place);
    }
}

void
group_look_up_locked(dd_group *group, int rank, bool has_heard)
{
    member_state *member = &group->members[rank];
    bool has_answered = member->has_answered || has_heard;
    dd_arena_place place = dd_arena_read_place(group->arena, group->topology.local_of[rank]);
    group_context_handler.on_answer(group, rank, place.sequence, &place.signature, place.is_inside);
    member->has_answered = has_answered;
}

/* ---- news */

/* False: there is a link, which has not said so yet. */
static bool
hear_abort_locked(dd_group *group, int rank)
{
    uint8_t bytes[DD_ARENA_CAUSE_MAX];
    size_t nbytes = dd_arena_read_cause(group->arena, group->topology.local_of[rank], bytes);
    return nbytes == 0 || group->cause.code != DD_OK ||
           dd_context_hear_abort_locked(group->context, rank, dd_bytes_of(bytes, nbytes));
}

void
group_on_bell(void *ctx)
{
    dd_group *group = ctx;
    bool has_news = group->arena != NULL && dd_arena_take_news(group->arena);
    if (!has_news && !group->has_more_news) {
        return;
    }
    group->has_more_news = false;
    for (int local = 0; local < group->topology.nlocal && group->context != NULL; local++) {
        int rank = group->topology.local_ranks[local];
        if (rank == group->rank) {
            continue;
        }
        group->has_more_news = !hear_abort_locked(group, rank) || group->has_more_news;
        if (dd_arena_has_left(group->arena, local)) {
            dd_context_hear_goodbye_locked(group->context, rank);
        }
    }
}
