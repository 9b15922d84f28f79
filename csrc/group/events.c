/* Events from other ranks: from the context, from the board, and descriptors that ranks pass. */
#include "group/internal.h"

#include <stdio.h>
#include <string.h>

/* Return true if the signatures are equal, this rank's is unknown, or the group has failed before.
 * Otherwise fail the group. */
static bool
compare_signatures_locked(dd_group *group, int rank, uint64_t sequence, const dd_signature *signature)
{
    const dd_signature *own_signature = group_signature_of(group, sequence);
    if (own_signature == NULL || group->cause.code != DD_OK ||
        memcmp(signature, own_signature, sizeof *signature) == 0) {
        return true;
    }
    group_fail_calls_locked(group, rank, sequence, signature);
    return false;
}

void
group_receive_coll_locked(dd_group *group, int rank, uint64_t sequence, const dd_signature *signature)
{
    member_state *member = &group->members[rank];
    if (sequence > 0 && sequence >= member->sequence) { /* 0: a message from the group's creation */
        member->sequence = sequence;
        member->signature = *signature;
        member->has_signature = true;
    }
    bool is_ended = sequence < group->nstarted || !group->is_active;
    if (compare_signatures_locked(group, rank, sequence, signature) && is_ended) {
        group_fail_surplus_locked(group, rank, sequence);
    }
}

static void
on_coll(void *ctx, int rank, uint64_t sequence, const dd_signature *signature)
{
    group_receive_coll_locked(ctx, rank, sequence, signature);
}

static void
events_on_abort(void *ctx, int rank, const dd_cause *cause)
{
    (void)rank; /* unused: even the rank that forwarded the cause gets it back */
    dd_group *group = ctx;
    dd_error own_error;
    bool is_own = cause->kind == DD_CAUSE_LOST && cause->blamed.rank == group->rank &&
                  dd_engine_check_links_locked(group->engine, &own_error) != DD_OK;
    if (is_own) {
        group_fail_own_locked(group, &own_error);
    } else {
        group_fail_cause_locked(group, cause);
    }
}

/* Return true if `rank` was dialled only for a query and cannot be reached. No call waits for this
 * rank, so it may have done its part and exited: a rank without a link sends no goodbye. */
static bool
was_only_queried_locked(const dd_group *group, int rank)
{
    int missing[DD_ARENA_MAX_RANKS];
    int count = dd_run_missing_locked(group->run, missing, DD_ARENA_MAX_RANKS);
    for (int i = 0; i < count; i++) {
        if (missing[i] == rank) {
            return false;
        }
    }
    return dd_list_is_empty(&group->messages);
}

static void
on_lost(void *ctx, int rank, const dd_error *error)
{
    dd_group *group = ctx;
    if (group->members[rank].has_left) {
        return;
    }
    dd_cause cause;
    dd_error accept_error;
    bool was_linked = error->code == DD_PEER_LOST;
    if (!was_linked && dd_engine_check_accepting_locked(group->engine, &accept_error) != DD_OK) {
        group_fail_own_locked(group, &accept_error);
        return;
    }
    if (!was_linked && group->is_querying && !dd_error_is_local(error) &&
        was_only_queried_locked(group, rank)) {
        group->members[rank].has_answered = true;
        group->members[rank].is_absent = true;
        return;
    }
    if (dd_error_is_local(error)) { /* this rank has failed; the other one may be healthy */
        char rank_name[128];
        char own_text[128];
        dd_status code = error->code == DD_OUT_OF_MEMORY ? error->code : DD_SYSTEM;
        cause = group_make_cause(group, DD_CAUSE_OTHER, code, group->rank);
        snprintf(cause.text, sizeof cause.text, "%s cannot reach %s: %.600s",
                 group_print_member(group, group->rank, own_text), group_print_member(group, rank, rank_name),
                 error->message);
    } else {
        cause = group_make_cause(group, DD_CAUSE_LOST, DD_PEER_LOST, rank);
        snprintf(cause.text, sizeof cause.text, "%s", error->message);
    }
    group_fail_cause_locked(group, &cause);
}

static void
events_on_goodbye(void *ctx, int rank)
{
    dd_group *group = ctx;
    if (group->members[rank].has_left) {
        return;
    }
    group->members[rank].has_left = true;
    group->nleft++;
    dd_error cause;
    (void)dd_group_error_about(group, rank, DD_PEER_LOST, "has left the group", &cause);
    group_fail_messages_locked(group, rank, &cause);
    if (group->extension != NULL) {
        group->extension->on_goodbye(group->extension, rank);
    }
}

static void
on_query(void *ctx, uint64_t *sequence, dd_signature *signature, bool *is_inside)
{
    dd_group *group = ctx;
    *sequence = group->nstarted;
    *signature = group->signatures[group->nstarted % SIGNATURES_MAX];
    *is_inside = group->is_active;
}

static void
on_loss(void *ctx, int rank, int to, uint64_t nbytes)
{
    dd_group *group = ctx;
    group->members[rank].lost_to = to;
    group->members[rank].lost_nbytes = to != rank ? nbytes : 0;
}

static void
set_position_locked(dd_group *group, int rank, uint64_t sequence, const dd_signature *signature,
                    bool is_inside)
{
    member_state *member = &group->members[rank];
    member->is_inside = is_inside;
    if (sequence >= member->sequence) {
        member->sequence = sequence;
        member->signature = *signature;
        member->has_signature = sequence > 0;
    }
    (void)compare_signatures_locked(group, rank, sequence, signature);
}

static void
on_answer(void *ctx, int rank, uint64_t sequence, const dd_signature *signature, bool is_inside)
{
    dd_group *group = ctx;
    group->members[rank].has_answered = true;
    set_position_locked(group, rank, sequence, signature, is_inside);
}

void
group_read_position_locked(dd_group *group, int rank)
{
    dd_arena_position position = dd_arena_read_position(group->arena, group->topology.local_of[rank]);
    set_position_locked(group, rank, position.sequence, &position.signature, position.is_inside);
}

void
group_read_answer_locked(dd_group *group, int rank)
{
    dd_arena_loss loss = dd_arena_read_loss(group->arena, group->topology.local_of[rank]);
    if (loss.to < (uint32_t)group->size) {
        on_loss(group, rank, (int)loss.to, loss.nbytes);
    }
    group->members[rank].has_answered = true;
    group_read_position_locked(group, rank);
}

static dd_message *
events_on_request(void *ctx, int rank, const dd_request *request)
{
    dd_group_extension *extension = ((dd_group *)ctx)->extension;
    return extension != NULL ? extension->on_request(extension, rank, request) : NULL;
}

static void
read_abort_locked(dd_group *group, int rank)
{
    uint8_t bytes[DD_ARENA_CAUSE_MAX];
    size_t nbytes = dd_arena_read_cause(group->arena, group->topology.local_of[rank], bytes);
    if (nbytes > 0 && group->cause.code == DD_OK) {
        dd_context_handle_abort_locked(group->context, rank, dd_bytes_of(bytes, nbytes));
    }
}

static void
on_bell(void *ctx)
{
    dd_group *group = ctx;
    bool is_open = group->context != NULL; /* while dd_group_close waits, bells may still ring */
    if (is_open && group->arena != NULL && dd_arena_is_rung(group->arena)) {
        group_note_loss_locked(group);
    }
    if (group->arena == NULL || !dd_arena_take_posts(group->arena)) {
        return;
    }
    for (int local = 0; local < group->topology.nlocal && group->context != NULL; local++) {
        int rank = group->topology.local_ranks[local];
        if (rank == group->rank) {
            continue;
        }
        read_abort_locked(group, rank);
        if (dd_arena_has_left(group->arena, local)) {
            dd_context_handle_goodbye_locked(group->context, rank);
        }
    }
}

/* Fail the group if it cannot send descriptors: ranks that request them would retry forever. */
static void
fail_if_fd_send_broken_locked(dd_group *group)
{
    dd_error error;
    if (dd_context_check_datagrams_locked(group->context, &error) != DD_OK) {
        group_fail_own_locked(group, &error);
    }
}

static void
on_fd_wanted(void *ctx, int rank, uint64_t fd_key)
{
    dd_group *group = ctx;
    if (group->topology.host_of[rank] != group->topology.host) {
        return;
    }
    if (fd_key != GROUP_ARENA_FD_KEY) {
        group_pass_region_locked(group, rank, (uint32_t)fd_key);
        fail_if_fd_send_broken_locked(group);
    } else if (group->topology.local == 0 && group->arena_fd != -1) {
        (void)dd_context_pass_fd_locked(group->context, rank, fd_key, group->arena_fd);
    }
}

static bool
on_fd(void *ctx, int rank, uint64_t fd_key, int fd)
{
    dd_group *group = ctx;
    if (group->topology.host_of[rank] != group->topology.host) {
        return false;
    }
    if (fd_key != GROUP_ARENA_FD_KEY) {
        return fd_key <= UINT32_MAX && group_take_region_locked(group, rank, (uint32_t)fd_key, fd);
    }
    bool is_wanted = group->topology.local != 0 && group->arena == NULL && !group->is_set_up;
    bool is_due = is_wanted && group->arena_fd == -1 && rank == group->topology.local_ranks[0];
    group->arena_fd = is_due ? fd : group->arena_fd;
    return is_due;
}

const dd_context_handler group_context_handler = {
    .on_coll = on_coll,
    .on_abort = events_on_abort,
    .on_lost = on_lost,
    .on_goodbye = events_on_goodbye,
    .on_query = on_query,
    .on_answer = on_answer,
    .on_loss = on_loss,
    .on_request = events_on_request,
    .on_bell = on_bell,
    .on_fd_wanted = on_fd_wanted,
    .on_fd = on_fd,
};
