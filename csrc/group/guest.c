/* Services that a group provides to its guest. */
#include "group/guest.h"

#include "group/internal.h"

dd_group_guest *
dd_group_find_guest_locked(const dd_group *group)
{
    return group->guest;
}

void
dd_group_take_guest_locked(dd_group *group, dd_group_guest *guest)
{
    guest->context = group->context;
    guest->peers = group->peers;
    guest->is_crowded = group->task.is_crowded;
    group->guest = guest;
}

void
dd_group_note_guest_locked(dd_group *group)
{
    group_update_task_locked(group);
}

bool
dd_group_has_left_locked(const dd_group *group, int rank)
{
    return group->members[rank].is_gone;
}

const dd_error *
dd_group_cause_locked(const dd_group *group)
{
    return group->cause.code != DD_OK ? &group->cause : NULL;
}

bool
dd_group_shares_memory(const dd_group *group, int rank)
{
    const int *host_of = group->topology.host_of;
    return group->arena != NULL && host_of[rank] == host_of[group->rank];
}
