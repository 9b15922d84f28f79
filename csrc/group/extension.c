/* Services that a group provides to its extension. */
#include "group/extension.h"

#include "group/internal.h"

dd_group_extension *
dd_group_find_extension_locked(const dd_group *group)
{
    return group->extension;
}

void
dd_group_set_extension_locked(dd_group *group, dd_group_extension *extension)
{
    extension->context = group->context;
    extension->peers = group->peers;
    extension->is_crowded = group->task.is_crowded;
    group->extension = extension;
}

void
dd_group_update_extension_locked(dd_group *group)
{
    group_update_task_locked(group);
}

bool
dd_group_has_left_locked(const dd_group *group, int rank)
{
    return group->members[rank].has_left;
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
