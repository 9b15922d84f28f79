/* Creation and close of a group's UCC context and team. */
#include "core/mem.h"
#include "core/system.h"
#include "group/group.h"
#include "ucc/ucc_internal.h"

#include <stdio.h>

#define NBUSY_POLLS 200 /* number of polls before the first sleep; enough for most teams */
#define TEAM_NAP_NS (50 * DD_NS_PER_US)
#define TEAM_END_NS DD_NS_PER_S

/* Return the error of the group's all_gather if there is one, otherwise UCC's own error. */
static dd_status
explain_failure(const dd_ucc_carrier *self, dd_ucc_status ucc_status, dd_error *err, const char *label)
{
    dd_status status =
        dd_ucc_check(self->lib, ucc_status, err, "%s of rank %d of %d", label, self->rank, self->nranks);
    return status == DD_OK || self->oob.error.code == DD_OK ? status : dd_error_copy(err, &self->oob.error);
}

static dd_status
configure_context(const dd_ucc_carrier *self, dd_ucc_context_config *config, dd_error *err)
{
    const dd_ucc_api *api = &self->lib->api;
    dd_status status = explain_failure(self, api->ucc_context_config_read(self->lib->handle, NULL, config),
                                       err, "ucc_context_config_read");
    if (status != DD_OK) {
        return status;
    }
    /* Pass the number of ranks, by which UCC chooses its transports. */
    char nranks[16];
    (void)snprintf(nranks, sizeof nranks, "%d", self->nranks);
    status = explain_failure(self, api->ucc_context_config_modify(*config, NULL, "ESTIMATED_NUM_EPS", nranks),
                             err, "ucc_context_config_modify");
    if (status != DD_OK) {
        api->ucc_context_config_release(*config);
    }
    return status;
}

/* Create a context for this group only, with the group's all_gather as out-of-band exchange.
 * Without this exchange, UCC knows no other ranks and uses no shared memory: ten times slower. */
static dd_status
create_context(dd_ucc_carrier *self, dd_error *err)
{
    const dd_ucc_api *api = &self->lib->api;
    dd_ucc_context_config config;
    dd_status status = configure_context(self, &config, err);
    if (status != DD_OK) {
        return status;
    }
    dd_ucc_context_params params = {.mask = DD_UCC_CONTEXT_OOB,
                                    .oob = dd_ucc_oob_calls(&self->oob, self->rank, self->nranks)};
    dd_ucc_status ucc_status = api->ucc_context_create(self->lib->handle, &params, config, &self->context);
    api->ucc_context_config_release(config);
    return explain_failure(self, ucc_status, err, "ucc_context_create");
}

static dd_status
nap_for_team(const dd_ucc_carrier *self, int npolls, dd_error *err)
{
    const dd_wait *wait = self->oob.wait;
    if (dd_wait_has_expired(wait)) {
        return dd_error_set(err, DD_OP_TIMED_OUT, "UCC did not create a team of %d ranks within %.3g s",
                            self->nranks, dd_wait_elapsed_s(wait));
    }
    if (npolls >= NBUSY_POLLS) {
        return dd_wait_sleep(wait, TEAM_NAP_NS, err);
    }
    dd_sys_sched_yield();
    return dd_wait_check(wait, err);
}

static dd_status
wait_for_team(const dd_ucc_carrier *self, dd_error *err)
{
    const dd_ucc_api *api = &self->lib->api;
    for (int npolls = 0;; npolls++) {
        dd_ucc_status ucc_status = api->ucc_team_create_test(self->team);
        if (ucc_status != DD_UCC_INPROGRESS) {
            return explain_failure(self, ucc_status, err, "ucc_team_create_test");
        }
        (void)api->ucc_context_progress(self->context); /* ignored: the next test reports errors */
        dd_status status = nap_for_team(self, npolls, err);
        if (status != DD_OK) {
            return status;
        }
    }
}

static dd_status
create_team(dd_ucc_carrier *self, dd_error *err)
{
    dd_ucc_team_params params = {
        .mask = DD_UCC_TEAM_EP | DD_UCC_TEAM_EP_RANGE | DD_UCC_TEAM_SIZE | DD_UCC_TEAM_OOB,
        .ep = (uint64_t)self->rank,
        .ep_range = DD_UCC_EP_RANGE_CONTIG,
        .team_size = (uint64_t)self->nranks,
        .oob = dd_ucc_oob_calls(&self->oob, self->rank, self->nranks),
    };
    dd_ucc_status ucc_status = self->lib->api.ucc_team_create_post(&self->context, 1, &params, &self->team);
    dd_status status = explain_failure(self, ucc_status, err, "ucc_team_create_post");
    return status == DD_OK ? wait_for_team(self, err) : status;
}

/* Free the carrier, or leak it if its context still exists: the context may use self->oob. */
static void
ucc_free_carrier(dd_background_task *task)
{
    dd_ucc_carrier *self = DD_CONTAINER_OF(task, dd_ucc_carrier, end);
    if (self->context == NULL) {
        dd_mem_free(self);
    }
}

dd_status
dd_ucc_make(dd_carrier_library *library, struct dd_group *group, dd_carrier **carrier, const dd_wait *wait,
            dd_error *err)
{
    dd_ucc_carrier *self = dd_mem_zalloc(sizeof *self);
    if (self == NULL) {
        return dd_error_no_memory(err, sizeof *self);
    }
    self->base = (dd_carrier){&dd_ucc_ops, library};
    self->lib = (const dd_ucc_lib *)library;
    self->rank = dd_group_rank(group);
    self->nranks = dd_group_size(group);
    self->oob = (dd_ucc_oob){.group = group, .wait = wait};
    dd_status status = create_context(self, err);
    if (status == DD_OK) {
        status = create_team(self, err);
    }
    if (status != DD_OK) {
        /* Leak the context if it exists: to destroy a context, UCC waits for the other ranks
         * without a limit. */
        self->oob = (dd_ucc_oob){0};
        ucc_free_carrier(&self->end);
        return status;
    }
    self->oob = (dd_ucc_oob){0};
    *carrier = &self->base;
    return DD_OK;
}

/* Wait until all ranks close: otherwise UCC logs errors on ranks whose peers closed earlier. */
static bool
meet_others(dd_ucc_carrier *self, const dd_wait *wait)
{
    dd_carried_call barrier = {.coll = DD_COLL_BARRIER};
    dd_carried carried;
    bool is_done = false;
    dd_status status = dd_ucc_ops.start(&self->base, &barrier, &carried, NULL);
    while (status == DD_OK && !is_done && !dd_wait_has_expired(wait)) {
        dd_sys_sched_yield();
        status = dd_ucc_ops.poll(&self->base, &carried, &is_done, NULL);
    }
    return is_done;
}

/* Destroy the team within `wait`. Return true if the team has been destroyed. */
static bool
ucc_destroy_team(const dd_ucc_carrier *self, const dd_wait *wait)
{
    const dd_ucc_api *api = &self->lib->api;
    dd_ucc_status ucc_status = api->ucc_team_destroy(self->team);
    while (ucc_status == DD_UCC_INPROGRESS && !dd_wait_has_expired(wait)) {
        (void)api->ucc_context_progress(self->context);
        dd_sys_sched_yield();
        ucc_status = api->ucc_team_destroy(self->team);
    }
    return ucc_status == DD_UCC_OK;
}

static void
run_end(dd_background_task *task)
{
    dd_ucc_carrier *self = DD_CONTAINER_OF(task, dd_ucc_carrier, end);
    dd_wait wait = dd_wait_after(TEAM_END_NS);
    if (meet_others(self, &wait) && ucc_destroy_team(self, &wait)) {
        (void)self->lib->api.ucc_context_destroy(self->context);
        self->context = NULL;
    }
}

/* Close the carrier on a separate thread: when UCC destroys a context, it waits without a limit. */
void
dd_ucc_close(dd_carrier *carrier, bool is_well)
{
    dd_ucc_carrier *self = (dd_ucc_carrier *)carrier;
    if (!is_well || self->has_leftover) {
        return;
    }
    self->end.run = run_end;
    self->end.free = ucc_free_carrier;
    if (dd_background_task_start(&self->end, "dd-ucc-end", NULL) == DD_OK) {
        dd_wait wait = dd_wait_after(2 * TEAM_END_NS);
        dd_status ignored = dd_background_task_wait(&self->end, &wait, NULL);
        (void)ignored;
        dd_background_task_release(&self->end);
    }
}
