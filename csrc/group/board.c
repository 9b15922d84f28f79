/* Communication inside a host without links: by the arena's boards (shared memory) and by bells. */
#include "group/internal.h"

#include "core/assert.h"

bool
group_is_on_board(const dd_group *group, int rank)
{
    return group->arena != NULL && rank != group->rank &&
           group->topology.host_of[rank] == group->topology.host;
}

void
group_ring_others_locked(dd_group *group)
{
    for (int local = 0; group->arena != NULL && local < group->topology.nlocal; local++) {
        if (dd_arena_is_bell_due(group->arena, local)) {
            dd_peer_ring_bell_locked(group->peers[group->topology.local_ranks[local]]);
        }
    }
}

void
group_report_failure_locked(dd_group *group, int except, const dd_cause *cause)
{
    dd_assert_holds(ENGINE);
    bool has_board = group->arena != NULL && group->is_set_up;
    dd_context_post_abort_locked(group->context, except, has_board, cause);
    if (group->arena != NULL) {
        uint8_t bytes[DD_CAUSE_MAX_NBYTES];
        _Static_assert(sizeof bytes <= DD_ARENA_CAUSE_MAX, "the board has room for a cause");
        dd_arena_post_cause(group->arena, dd_bytes_of(bytes, dd_cause_encode(cause, bytes)));
        group_ring_others_locked(group);
    }
}

void
group_post_leaving_locked(dd_group *group)
{
    if (group->arena != NULL) {
        dd_arena_post_leaving(group->arena);
        group_ring_others_locked(group);
    }
}

/* ---- progress of ranks */

void
group_post_position_locked(dd_group *group)
{
    if (group->arena != NULL) {
        dd_arena_position position = {.sequence = group->nstarted,
                                      .signature = group->signatures[group->nstarted % SIGNATURES_MAX],
                                      .is_inside = group->is_active};
        dd_arena_post_position(group->arena, &position);
    }
}

void
group_note_loss_locked(dd_group *group)
{
    int rank;
    dd_path_loss loss;
    bool has_lost = dd_context_find_loss_locked(group->context, &rank, &loss);
    dd_arena_note_loss(group->arena, has_lost ? (dd_arena_loss){.to = (uint32_t)rank, .nbytes = loss.nbytes}
                                              : (dd_arena_loss){.nbytes = 0});
}
