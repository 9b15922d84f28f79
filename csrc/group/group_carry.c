/* How a group gets a carrier. */
#include "group/group_internal.h"

/* Also where the group has failed by now: another rank was here before, and has gone on to a call that did not fit. Our next one says so. */
static dd_status
install(dd_group *group, dd_carrier *carrier, dd_error *err)
{
    dd_engine_lock(group->engine);
    dd_status status = dd_run_set_carrier_locked(group->run, carrier, err);
    dd_engine_unlock(group->engine);
    return status;
}

/* The others hear of it: they may be about to use the carrier. */
static void
give_up(dd_group *group, const dd_error *error)
{
    dd_engine_lock(group->engine);
    if (group->context != NULL) {
        dd_group_fail_locked(group, error);
    }
    dd_engine_unlock(group->engine);
}

dd_status
dd_group_carry(dd_group *group, dd_carrier_library *library, const dd_wait *wait, dd_error *err)
{
    dd_error error;
    dd_carrier *carrier = NULL;
    dd_status status = group_check_usable(group, "carry", err);
    if (status != DD_OK) {
        return status;
    }
    if (dd_run_carrier(group->run) != NULL) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, GROUP_FORMAT " has a carrier already",
                            GROUP_ARGS(group));
    }
    status = library->make(library, group, &carrier, wait, &error);
    if (status == DD_OK) {
        status = install(group, carrier, &error);
        if (status != DD_OK) {
            carrier->ops->close(carrier, false);
        }
    }
    if (status != DD_OK) {
        give_up(group, &error);
        dd_error_prepend(&error, GROUP_FORMAT ": cannot be carried by %s", GROUP_ARGS(group), library->name);
        return dd_error_copy(err, &error);
    }
    return DD_OK;
}
