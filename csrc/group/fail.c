/* Failure of a group. The first cause is kept as a record (group->failure: kind, blamed rank, call;
 * group->cause has the words) and ends everything under way. Later causes change nothing.
 *
 * Every failure takes the same steps. First, the calls whose data has arrived on this rank complete
 * (group_end_complete_locked), so that nothing another rank publishes next can fail them. Then the
 * record is written, the flight recorder raises its alarm, and the arena is closed: no local rank
 * moves data for the calls that end here. Then the record is sent (board.c): ranks of this host
 * read it on the board of the arena, woken by a bell; others receive a frame, now or when a link is
 * made. The calls of this rank end last, because a caller may end the process.
 *
 * A rank that receives a record takes the same steps (events.c) and forwards it, also to ranks
 * without a link to the first one. When a link reports an end (a cancelled message, a goodbye, its
 * own end), the board is read first, because the cause was posted before. A group under creation
 * may have neither board nor links; the reason is then in the store (setup.c). The monitor reads
 * the alarm. */
#include "group/internal.h"

#include "core/assert.h"

#include <stdio.h>
#include <string.h>

/* Stop the arena. Call before any call ends: the owner of an ended call may reuse its memory. */
static void
stop_arena_locked(dd_group *group)
{
    dd_block written;
    dd_error error;
    dd_arena_poison(group->arena);
    dd_run_halt_locked(group->run);
    if (dd_arena_find_written(group->arena, &written) &&
        group_take_back_locked(group, written, &error) != DD_OK) {
        dd_error_prepend(&error, "other ranks may still write to this rank's array");
        group_append(&group->cause, error.message);
    }
}

static void
fail_rest_locked(dd_group *group, const dd_cause *cause)
{
    group->failure = *cause;
    group_explain_cause(group, cause, &group->cause);
    group->is_querying = false;
    group_raise_alarm_locked(group);
    if (group->arena != NULL) {
        stop_arena_locked(group);
    }
    /* Do not report a rank lost during creation yet: it may have exited because of another rank,
     * and posted that reason. */
    bool is_sure = group->is_set_up || cause->kind != DD_CAUSE_LOST || cause->origin != group->rank;
    /* Report the failure before any call of this rank ends, because the process may then exit. */
    if (is_sure && group->context != NULL && group->size > 1) {
        group_report_failure_locked(group, cause->origin, cause);
    }
    if (group->is_active) {
        dd_run_cancel_locked(group->run, &group->cause);
        group->is_active = false;
    }
    while (!dd_list_is_empty(&group->collectives)) {
        group_complete_locked(DD_CONTAINER_OF(group->collectives.next, group_call, link), &group->cause);
    }
    group_fail_messages_locked(group, DD_ANY_RANK, &group->cause);
    if (group->extension != NULL) {
        group->extension->on_end(group->extension, &group->cause);
    }
    group_update_task_locked(group);
}

bool
group_has_failed_locked(const dd_group *group)
{
    return group->cause.code != DD_OK || group->has_own_failure;
}

static void
end_complete_locked(dd_group *group, dd_cause *found)
{
    found->kind = 0;
    group->found = found;
    dd_engine_read_links_locked(group->engine);
    if (group->is_active) {
        dd_run_catch_up_locked(group->run);
    }
    group->found = NULL;
}

void
group_end_complete_locked(dd_group *group)
{
    dd_cause found;
    if (group->found != NULL || group->cause.code != DD_OK) {
        return;
    }
    end_complete_locked(group, &found);
    if (found.kind != 0) {
        fail_rest_locked(group, &found);
    }
}

void
group_fail_cause_locked(dd_group *group, const dd_cause *cause)
{
    dd_assert_holds(ENGINE);
    group->is_revoked = group->is_revoked || cause->kind == DD_CAUSE_REVOKED;
    if (group->cause.code != DD_OK) {
        return;
    }
    if (group->found != NULL) {
        if (group->found->kind == 0) {
            *group->found = *cause;
        }
        group->has_own_failure = group->has_own_failure || cause->origin == group->rank;
        return;
    }
    dd_cause found; /* ignored: the first failure is `cause` */
    end_complete_locked(group, &found);
    fail_rest_locked(group, cause);
}

void
dd_group_fail_locked(dd_group *group, const dd_error *error)
{
    dd_cause cause = group_cause_of_error(group, error);
    group_fail_cause_locked(group, &cause);
}

void
group_fail_own_locked(dd_group *group, dd_error *error)
{
    char own_text[128];
    dd_error_prepend(error, "%s", group_print_member(group, group->rank, own_text));
    group_blame(group, group->rank, error);
    dd_group_fail_locked(group, error);
}

/* ---- ranks that disagree */

static void
fail_disagreement_locked(dd_group *group, dd_cause_kind kind, const dd_arena_mismatch *mismatch,
                         const char *text)
{
    dd_cause cause = group_make_cause(group, kind, DD_MISMATCH, mismatch->rank);
    cause.other = mismatch->other;
    cause.sequence = mismatch->sequence;
    cause.blamed_signature = mismatch->signature;
    cause.other_signature = mismatch->other_signature;
    cause.blamed_nbytes = mismatch->nbytes;
    cause.other_nbytes = mismatch->other_nbytes;
    snprintf(cause.text, sizeof cause.text, "%s", text);
    group_fail_cause_locked(group, &cause);
}

void
group_fail_mismatch_locked(dd_group *group, const dd_arena_mismatch *mismatch)
{
    fail_disagreement_locked(group, mismatch->is_size ? DD_CAUSE_SIZES : DD_CAUSE_CALLS, mismatch, "");
}

/* Describe a disagreement between `rank` and this rank, which must have started the collective. */
static dd_arena_mismatch
make_mismatch(const dd_group *group, int rank, uint64_t sequence, const dd_signature *peer_signature)
{
    return (dd_arena_mismatch){.rank = rank,
                               .other = group->rank,
                               .signature = *peer_signature,
                               .other_signature = *group_signature_of(group, sequence),
                               .sequence = sequence};
}

void
group_fail_calls_locked(dd_group *group, int rank, uint64_t sequence, const dd_signature *peer_signature)
{
    dd_arena_mismatch mismatch = make_mismatch(group, rank, sequence, peer_signature);
    group_fail_mismatch_locked(group, &mismatch);
}

void
group_fail_misfit_locked(dd_group *group, const dd_error *error)
{
    int rank = error->blamed.rank;
    uint64_t sequence = group->nstarted;
    if (rank < 0) {
        dd_group_fail_locked(group, error);
        return;
    }
    const member_state *member = &group->members[rank];
    if (member->has_signature && member->sequence == sequence &&
        memcmp(&member->signature, group_signature_of(group, sequence), sizeof member->signature) != 0) {
        group_fail_calls_locked(group, rank, sequence, &member->signature);
        return;
    }
    dd_signature unknown = {0};
    dd_arena_mismatch mismatch = make_mismatch(group, rank, sequence, &unknown);
    fail_disagreement_locked(group, DD_CAUSE_MISFIT, &mismatch, error->message);
}

void
group_fail_surplus_locked(dd_group *group, int rank, uint64_t sequence)
{
    const dd_signature *own_signature = group_signature_of(group, sequence);
    if (own_signature != NULL) {
        dd_arena_mismatch mismatch = make_mismatch(group, rank, sequence, own_signature);
        fail_disagreement_locked(group, DD_CAUSE_SIZES, &mismatch, "received more bytes than expected");
    }
}

/* ---- abort and revoke */

static void
fail_by_call(dd_group *group, dd_cause_kind kind, const char *reason)
{
    if (dd_engine_check_fork(group->engine, NULL) != DD_OK) {
        return;
    }
    dd_engine_lock(group->engine);
    if (group->context != NULL) {
        dd_cause cause = group_make_cause(group, kind, DD_ABORTED, group->rank);
        snprintf(cause.text, sizeof cause.text, "%s", reason);
        group_fail_cause_locked(group, &cause);
    }
    dd_engine_unlock(group->engine);
    dd_engine_kick(group->engine);
}

void
dd_group_abort(dd_group *group, const char *reason)
{
    fail_by_call(group, DD_CAUSE_ABORTED, reason);
}

void
dd_group_revoke(dd_group *group, const char *reason)
{
    fail_by_call(group, DD_CAUSE_REVOKED, reason);
}
