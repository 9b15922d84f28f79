/* Installation of a group's carrier, the external library that moves the group's data. */
#include "group/internal.h"

#include "core/mem.h"

#include <stdio.h>
#include <string.h>

/* ---- agreement on the library */

typedef struct library_identity {
    char name[16];
    char version[112];
} library_identity;

/* Check that all ranks have loaded the same library. A peer's texts may lack the final NUL. All
 * ranks compare the same bytes, so all return the same error. */
static dd_status
carrier_compare_identities(const library_identity *all, int nranks, dd_error *err)
{
    for (int rank = 1; rank < nranks; rank++) {
        if (memcmp(&all[rank], &all[0], sizeof all[0]) != 0) {
            return dd_error_set(
                err, DD_MISMATCH,
                "rank %d has loaded %.16s, %.100s, and rank 0 %.16s, %.100s: all ranks must load the same library",
                rank, all[rank].name, all[rank].version, all[0].name, all[0].version);
        }
    }
    return DD_OK;
}

static dd_status
agree_on_library(dd_group *group, const dd_carrier_library *library, const dd_wait *wait, dd_error *err)
{
    library_identity own_library = {.name = ""};
    snprintf(own_library.name, sizeof own_library.name, "%s", library->name);
    snprintf(own_library.version, sizeof own_library.version, "%s", library->version);
    library_identity *all = dd_mem_zalloc((size_t)group->size * sizeof *all);
    if (all == NULL) {
        return dd_error_no_memory(err, (size_t)group->size * sizeof *all);
    }
    dd_status status = dd_group_exchange(group, &own_library, sizeof own_library, all, wait, err);
    if (status == DD_OK) {
        status = carrier_compare_identities(all, group->size, err);
    }
    dd_mem_free(all);
    return status;
}

/* ---- installation */

/* Install the carrier even if the group has failed meanwhile, for example because another rank went
 * on to a mismatched call. This rank's next call reports that failure. */
static dd_status
install(dd_group *group, dd_carrier *carrier, dd_error *err)
{
    dd_engine_lock(group->engine);
    dd_status status = dd_run_set_carrier_locked(group->run, carrier, err);
    dd_engine_unlock(group->engine);
    return status;
}

/* Fail the group, to notify the other ranks, which may be about to use the carrier. */
static void
carrier_fail(dd_group *group, const dd_error *error)
{
    dd_engine_lock(group->engine);
    if (group->context != NULL) {
        dd_group_fail_locked(group, error);
    }
    dd_engine_unlock(group->engine);
}

dd_status
dd_group_set_carrier(dd_group *group, dd_carrier_library *library, const dd_wait *wait, dd_error *err)
{
    dd_error error;
    dd_carrier *carrier = NULL;
    dd_status status = group_check_usable(group, "carry", err);
    if (status != DD_OK) {
        return status;
    }
    if (dd_run_carrier(group->run) != NULL) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, GROUP_FORMAT " already uses a library: expected none",
                            GROUP_ARGS(group));
    }
    status = agree_on_library(group, library, wait, &error);
    if (status == DD_OK) {
        status = library->make(library, group, &carrier, wait, &error);
    }
    if (status == DD_OK) {
        status = install(group, carrier, &error);
        if (status != DD_OK) {
            carrier->ops->close(carrier, false);
        }
    }
    if (status != DD_OK) {
        carrier_fail(group, &error);
        dd_error_prepend(&error, GROUP_FORMAT ": cannot use %s", GROUP_ARGS(group), library->name);
        return dd_error_copy(err, &error);
    }
    return DD_OK;
}
