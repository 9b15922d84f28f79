/* Why a group fails, in words that name the culprit. */
#include "group/group_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *
group_print_member(const dd_group *group, int rank, char out[128])
{
    char who[96];
    snprintf(out, 128, "rank %d (%s)", rank, dd_card_print(dd_peer_card(group->peers[rank]), who));
    return out;
}

/* ---- words */

/* "all_reduce(float32, 12 elements, SUM)" */
static const char *
print_signature(const dd_signature *signature, char out[128])
{
    dd_coll coll = (dd_coll)signature->coll;
    if (coll == DD_COLL_BARRIER || signature->coll >= DD_COLL_COUNT) {
        snprintf(out, 128, "%s", dd_coll_name(coll));
        return out;
    }
    size_t used =
        (size_t)snprintf(out, 128, "%s(%s", dd_coll_name(coll), dd_dtype_name((dd_dtype)signature->dtype));
    bool is_reduction =
        coll == DD_COLL_ALL_REDUCE || coll == DD_COLL_REDUCE || coll == DD_COLL_REDUCE_SCATTER;
    bool has_root = coll == DD_COLL_BROADCAST || coll == DD_COLL_REDUCE || coll == DD_COLL_GATHER ||
                    coll == DD_COLL_SCATTER;
    if (coll == DD_COLL_ALL_REDUCE || coll == DD_COLL_REDUCE || coll == DD_COLL_BROADCAST) {
        used +=
            (size_t)snprintf(out + used, 128 - used, ", %llu elements", (unsigned long long)signature->count);
    }
    if (is_reduction) {
        used += (size_t)snprintf(out + used, 128 - used, ", %s", dd_redop_name((dd_redop)signature->redop));
    }
    if (is_reduction && signature->redop == DD_REDOP_PREMUL_SUM) {
        double factor;
        memcpy(&factor, &signature->factor_bits, sizeof factor);
        used += (size_t)snprintf(out + used, 128 - used, " by %.9g", factor);
    }
    if (has_root) {
        used += (size_t)snprintf(out + used, 128 - used, ", root %u", (unsigned)signature->root);
    }
    snprintf(out + used, 128 - used, ")");
    return out;
}

const dd_signature *
group_signature_of(const dd_group *group, uint64_t sequence)
{
    bool is_kept =
        sequence > 0 && sequence <= group->nstarted && group->nstarted - sequence < SIGNATURES_KEPT;
    return is_kept ? &group->signatures[sequence % SIGNATURES_KEPT] : NULL;
}

/* A text that grows until it is full. */
typedef struct text_line {
    char text[640];
    size_t used;
} text_line;

DD_PRINTF(2, 3)
static void
say(text_line *line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int wanted = vsnprintf(line->text + line->used, sizeof line->text - line->used, format, args);
    va_end(args);
    size_t used = line->used + (wanted > 0 ? (size_t)wanted : 0);
    line->used = used < sizeof line->text ? used : sizeof line->text - 1;
}

/* "had called no collective yet and had a recv from rank 0 (tag 7) under way" */
static void
say_own_state(const dd_group *group, text_line *line)
{
    char what[128];
    if (group->nstarted == 0) {
        say(line, "had called no collective yet");
    } else {
        say(line, "was %s #%llu %s", group->is_active ? "inside" : "done with",
            (unsigned long long)group->nstarted,
            print_signature(group_signature_of(group, group->nstarted), what));
    }
    if (dd_list_is_empty(&group->messages)) {
        return;
    }
    const p2p_call *call = (p2p_call *)DD_CONTAINER_OF(group->messages.next, group_call, link);
    const dd_message *message = &call->message;
    if (message->channel != 0) { /* those of callers have none */
        say(line, " and was in monitored_barrier");
    } else if (message->rank == DD_ANY_RANK) {
        say(line, " and had a recv from any rank (tag %llu) under way", (unsigned long long)message->tag);
    } else {
        say(line, " and had a %s rank %d (tag %llu) under way", message->is_send ? "send to" : "recv from",
            message->rank, (unsigned long long)message->tag);
    }
}

/* ---- what a cause says, as this rank sees it */

static void
say_time_out(const dd_cause *cause, dd_error *error)
{
    dd_culprit culprit = error->culprit;
    (void)dd_error_set(error, cause->code, "timed out after %.3g s; %s", (double)cause->elapsed_ns * 1e-9,
                       cause->text);
    error->culprit = culprit;
}

/* "all_reduce #3 of rank 0 (node-a, pid 77) timed out after 3 s". A late rank itself knows best what it
 * was doing: the rank that waited for it has been told of collectives only. */
static void
explain_time_out(const dd_group *group, const dd_cause *cause, dd_error *error)
{
    text_line line = {.used = 0};
    char who[128];
    bool has_come = cause->sequence <= group->nstarted;
    dd_error own = {.culprit = cause->culprit};
    say(&line, "%s #%llu of %s ", dd_coll_name((dd_coll)cause->other_signature.coll),
        (unsigned long long)cause->sequence, group_print_member(group, cause->origin, who));
    if (cause->origin == group->rank || cause->other >= 0 ||
        (has_come && cause->culprit.rank != group->rank)) {
        say_time_out(cause, &own);
        (void)dd_error_set(error, cause->code, "%s%s", line.text, own.message);
        return;
    }
    say(&line, "timed out after %.3g s waiting for this rank, which ", (double)cause->elapsed_ns * 1e-9);
    if (has_come) {
        say(&line, "had not come or answered in time");
    } else {
        say_own_state(group, &line);
    }
    (void)dd_error_set(error, cause->code, "%s", line.text);
}

static void
explain_disagreement(const dd_group *group, const dd_cause *cause, dd_error *error)
{
    char their_name[128];
    char other_name[128];
    char theirs[128];
    char others[128];
    unsigned long long sequence = cause->sequence;
    group_print_member(group, cause->culprit.rank, their_name);
    group_print_member(group, cause->other, other_name);
    print_signature(&cause->culprit_signature, theirs);
    print_signature(&cause->other_signature, others);
    if (cause->kind == DD_CAUSE_CALLS) {
        (void)dd_error_set(error, cause->code, "collective #%llu: %s called %s, %s called %s", sequence,
                           their_name, theirs, other_name, others);
    } else if (cause->kind == DD_CAUSE_MISFIT) {
        (void)dd_error_set(error, cause->code, "collective #%llu: %s called %s: %s", sequence, other_name,
                           others, cause->text);
    } else {
        char sizes[64];
        snprintf(sizes, sizeof sizes, "%llu bytes and %llu", (unsigned long long)cause->culprit_nbytes,
                 (unsigned long long)cause->other_nbytes);
        (void)dd_error_set(error, cause->code,
                           "collective #%llu, %s: %s and %s disagree on the size of a block: %s", sequence,
                           others, their_name, other_name, cause->text[0] != '\0' ? cause->text : sizes);
    }
}

/* Each of two ranks that disagree blames the other. A third rank blames the one that has called something
 * else than it has. */
static int
find_culprit(const dd_group *group, const dd_cause *cause)
{
    const dd_signature *own = group_signature_of(group, cause->sequence);
    bool has_called_the_same = cause->kind == DD_CAUSE_CALLS && own != NULL && cause->other != group->rank &&
                               memcmp(&cause->culprit_signature, own, sizeof *own) == 0;
    bool is_own = cause->culprit.rank == group->rank && cause->other >= 0;
    return has_called_the_same || is_own ? cause->other : cause->culprit.rank;
}

void
group_explain_cause(const dd_group *group, const dd_cause *cause, dd_error *error)
{
    char who[128] = "";
    int culprit = find_culprit(group, cause);
    if (culprit >= 0) {
        group_print_member(group, culprit, who);
    }
    switch (cause->kind) {
    case DD_CAUSE_OTHER:
        (void)dd_error_set(error, cause->code, "%s", cause->text);
        break;
    case DD_CAUSE_LOST:
        (void)dd_error_set(error, cause->code, "lost %s: %.600s", who, cause->text);
        break;
    case DD_CAUSE_LEFT:
        (void)dd_error_set(error, cause->code, "%s has left the group%s%s", who,
                           cause->text[0] != '\0' ? " " : "", cause->text);
        break;
    case DD_CAUSE_ABORTED:
        (void)dd_error_set(error, cause->code, "%s aborted the group: %s", who, cause->text);
        break;
    case DD_CAUSE_CALLS:
    case DD_CAUSE_SIZES:
    case DD_CAUSE_MISFIT:
        explain_disagreement(group, cause, error);
        break;
    case DD_CAUSE_TIMED_OUT:
        explain_time_out(group, cause, error);
        break;
    }
    error->culprit = cause->culprit;
    if (culprit >= 0) {
        const dd_card *card = dd_peer_card(group->peers[culprit]);
        dd_error_blame(error, culprit, card->host, card->pid);
    }
}

dd_cause
group_make_cause(const dd_group *group, dd_cause_kind kind, dd_status code, int culprit)
{
    const dd_card *card = culprit >= 0 ? dd_peer_card(group->peers[culprit]) : NULL;
    dd_cause cause = {
        .kind = kind, .code = code, .origin = group->rank, .culprit = {.rank = culprit}, .other = -1};
    if (card != NULL) {
        cause.culprit.pid = card->pid;
        snprintf(cause.culprit.host, sizeof cause.culprit.host, "%s", card->host);
    }
    return cause;
}

/* ---- failing */

/* The collective is one of this rank's, and its being late is why the group has failed. */
static bool
is_own_time_out(const dd_group *group, const dd_work *work)
{
    return work->sequence > 0 && group->failure.kind == DD_CAUSE_TIMED_OUT &&
           group->failure.origin == group->rank && group->failure.sequence == work->sequence;
}

void
group_describe_failure(const dd_group *group, const dd_work *work, const dd_error *cause, dd_error *error)
{
    *error = *cause;
    if (is_own_time_out(group, work)) {
        say_time_out(&group->failure, error);
    }
    char sequence[32] = "";
    if (work->sequence > 0) {
        snprintf(sequence, sizeof sequence, " #%llu", (unsigned long long)work->sequence);
    }
    dd_error_prepend(error, "%s%s on group \"%.*s\" (rank %d of %d)", work->what, sequence,
                     (int)group->name.len, (const char *)group->name.data, group->rank, group->size);
}

void
group_fail_messages_locked(dd_group *group, int rank, const dd_error *cause)
{
    for (dd_list *node = group->messages.next, *next; node != &group->messages; node = next) {
        next = node->next;
        p2p_call *call = (p2p_call *)DD_CONTAINER_OF(node, group_call, link);
        bool is_last_hope = call->message.rank == DD_ANY_RANK && group->ngone == group->size - 1;
        if (rank == DD_ANY_RANK || call->message.rank == rank || is_last_hope) {
            group_cancel_message_locked(call, cause);
        }
    }
}

/* Before any call ends: its caller may use the memory for something else at once. */
static void
stop_arena_locked(dd_group *group)
{
    dd_block written;
    dd_error error;
    dd_arena_poison(group->arena);
    dd_run_halt_locked(group->run);
    if (dd_arena_find_written(group->arena, &written) &&
        group_take_back_locked(group, written, &error) != DD_OK) {
        dd_error cause = group->cause;
        dd_error_set(&group->cause, cause.code,
                     "%.700s; other ranks may still write to the array of this rank: %.200s", cause.message,
                     error.message);
        group->cause.culprit = cause.culprit;
        dd_cause failure = group->failure;
        snprintf(group->failure.text, sizeof failure.text,
                 "%.700s; other ranks may still write to the array of this rank: %.200s", failure.text,
                 error.message);
    }
}

static void
fail_locked(dd_group *group, const dd_cause *cause, bool is_told, int except)
{
    if (group->cause.code != DD_OK) {
        return;
    }
    group->failure = *cause;
    group_explain_cause(group, cause, &group->cause);
    group->is_asking = false;
    group_raise_alarm_locked(group);
    if (group->arena != NULL) {
        stop_arena_locked(group);
    }
    /* While the group is being made, a lost rank may have left because of another, and have said so elsewhere (tell_given_up). */
    bool is_sure = group->is_made || cause->kind != DD_CAUSE_LOST || cause->origin != group->rank;
    /* Before anybody here hears of it, because the process may end then. */
    if (is_told && is_sure && group->context != NULL && group->size > 1) {
        group_tell_abort_locked(group, except, cause);
    }
    if (group->is_active) {
        dd_run_cancel_locked(group->run, &group->cause);
        group->is_active = false;
    }
    while (!dd_list_is_empty(&group->collectives)) {
        group_complete_locked(DD_CONTAINER_OF(group->collectives.next, group_call, link), &group->cause);
    }
    group_fail_messages_locked(group, DD_ANY_RANK, &group->cause);
    if (group->guest != NULL) {
        group->guest->on_end(group->guest, &group->cause);
    }
    group_update_task_locked(group);
}

void
group_fail_cause_locked(dd_group *group, const dd_cause *cause)
{
    fail_locked(group, cause, true, DD_ANY_RANK);
}

void
group_fail_heard_locked(dd_group *group, int rank, const dd_cause *cause)
{
    fail_locked(group, cause, true, rank);
}

dd_cause
group_cause_of_error(const dd_group *group, const dd_error *error)
{
    dd_cause cause = dd_cause_of_error(error, group->rank);
    int rank = error->culprit.rank;
    long long pid = error->culprit.pid;
    if (rank < 0 || rank >= group->size || (pid != 0 && dd_peer_card(group->peers[rank])->pid != pid)) {
        cause.culprit.rank = -1;
    }
    return cause;
}

void
group_fail_locked(dd_group *group, const dd_error *error, bool is_told, int except)
{
    dd_cause cause = group_cause_of_error(group, error);
    fail_locked(group, &cause, is_told, except);
}

/* ---- ranks that disagree */

void
group_fail_mismatch_locked(dd_group *group, const dd_arena_culprit *culprit)
{
    dd_cause cause = group_make_cause(group, culprit->is_size ? DD_CAUSE_SIZES : DD_CAUSE_CALLS, DD_MISMATCH,
                                      culprit->rank);
    cause.other = culprit->other;
    cause.sequence = culprit->sequence;
    cause.culprit_signature = culprit->signature;
    cause.other_signature = culprit->other_signature;
    cause.culprit_nbytes = culprit->theirs;
    cause.other_nbytes = culprit->ours;
    group_fail_cause_locked(group, &cause);
}

void
group_fail_misfit_locked(dd_group *group, const dd_error *error)
{
    int rank = error->culprit.rank;
    const dd_signature *ours = group_signature_of(group, group->nstarted);
    const member_state *member = rank >= 0 ? &group->members[rank] : NULL;
    if (member != NULL && member->has_said_it && member->sequence == group->nstarted &&
        memcmp(&member->signature, ours, sizeof member->signature) != 0) {
        dd_arena_culprit culprit = {.rank = rank,
                                    .other = group->rank,
                                    .signature = member->signature,
                                    .other_signature = *ours,
                                    .sequence = group->nstarted};
        group_fail_mismatch_locked(group, &culprit);
        return;
    }
    if (rank < 0) {
        group_fail_locked(group, error, true, DD_ANY_RANK);
        return;
    }
    dd_cause cause = group_make_cause(group, DD_CAUSE_MISFIT, DD_MISMATCH, rank);
    cause.other = group->rank;
    cause.sequence = group->nstarted;
    cause.other_signature = *ours;
    snprintf(cause.text, sizeof cause.text, "%s", error->message);
    group_fail_cause_locked(group, &cause);
}

void
group_fail_surplus_locked(dd_group *group, int rank, uint64_t sequence)
{
    const dd_signature *signature = group_signature_of(group, sequence);
    if (signature == NULL || group->cause.code != DD_OK) {
        return;
    }
    dd_cause cause = group_make_cause(group, DD_CAUSE_SIZES, DD_MISMATCH, rank);
    cause.other = group->rank;
    cause.sequence = sequence;
    cause.culprit_signature = cause.other_signature = *signature;
    snprintf(cause.text, sizeof cause.text, "more has come than was expected here");
    group_fail_cause_locked(group, &cause);
}

/* ---- ranks that are late */

void
group_begin_asking_locked(dd_group *group)
{
    group->is_asking = true;
    for (int rank = 0; rank < group->size; rank++) {
        group->members[rank].is_asked = rank == group->rank;
        group->members[rank].has_answered = rank == group->rank;
        if (rank != group->rank && !group->members[rank].is_gone && !group_is_on_board(group, rank)) {
            dd_peer_connect_locked(group->peers[rank]);
        }
    }
    group_ring_asked_locked(group);
    group_ask_connected_locked(group);
}

void
group_ask_connected_locked(dd_group *group)
{
    for (int rank = 0; rank < group->size; rank++) {
        member_state *member = &group->members[rank];
        if (group_is_on_board(group, rank)) {
            if (!member->has_answered && dd_arena_has_heard(group->arena, group->topology.local_of[rank])) {
                group_look_up_locked(group, rank, true);
            }
        } else if (!member->is_asked && dd_context_is_connected_locked(group->context, rank)) {
            member->is_asked = true;
            dd_context_post_question_locked(group->context, rank);
        }
    }
}

bool
group_has_all_answers_locked(const dd_group *group)
{
    for (int rank = 0; rank < group->size; rank++) {
        if (!group->members[rank].has_answered) {
            return false;
        }
    }
    return true;
}

#define LOSSY_PATH "the network between them loses packets, perhaps only large ones (MTU?)"

/* What of this rank's does not arrive there; false: nothing is known of that. */
static bool
say_own_loss_locked(const dd_group *group, int rank, text_line *line)
{
    dd_path_loss loss;
    if (rank == group->rank || !dd_peer_find_loss_locked(group->peers[rank], &loss)) {
        return false;
    }
    char sender[128];
    char receiver[128];
    char from[DD_ADDR_TEXT_MAX];
    char to[DD_ADDR_TEXT_MAX];
    say(line, "%s at %s has sent %zu bytes to %s at %s which have not arrived",
        group_print_member(group, group->rank, sender), dd_addr_print(&loss.from, from), loss.nbytes,
        group_print_member(group, rank, receiver), dd_addr_print(&loss.to, to));
    if (loss.nresends > 0) {
        say(line, ", sent again %u times", loss.nresends);
    }
    say(line, ": " LOSSY_PATH);
    return true;
}

/* "rank 2 (node-b, pid 77) at 10.0.0.2": of several addresses it is not known which one is in use. */
static void
say_member_at(const dd_group *group, int rank, text_line *line)
{
    dd_addr_list addrs = dd_peer_addrs_locked(group->peers[rank]);
    char who[128];
    char addr[DD_ADDR_TEXT_MAX];
    say(line, "%s", group_print_member(group, rank, who));
    if (addrs.count == 1) {
        say(line, " at %s", dd_addr_print(&addrs.items[0], addr));
    }
}

/* Whose packets the network loses; false: nobody's, as far as is known. */
static bool
find_loss_locked(const dd_group *group, int *from, int *to, text_line *line)
{
    for (int rank = 0; rank < group->size; rank++) {
        if (say_own_loss_locked(group, rank, line)) {
            *from = group->rank;
            *to = rank;
            return true;
        }
    }
    for (int rank = 0; rank < group->size; rank++) {
        const member_state *member = &group->members[rank];
        if (rank != group->rank && member->has_answered && member->lost_nbytes > 0) {
            *from = rank;
            *to = member->lost_to;
            say_member_at(group, *from, line);
            say(line, " has sent %llu bytes to ", (unsigned long long)member->lost_nbytes);
            say_member_at(group, *to, line);
            say(line, " which have not arrived: " LOSSY_PATH);
            return true;
        }
    }
    return false;
}

int
group_add_loss_locked(const dd_group *group, dd_error *error)
{
    text_line line = {.used = 0};
    int from = -1;
    int to = -1;
    if (find_loss_locked(group, &from, &to, &line)) {
        dd_error own = *error;
        (void)dd_error_set(error, own.code, "%.400s; %s", own.message, line.text);
        error->culprit = own.culprit;
    }
    return to == group->rank ? from : to;
}

void
group_add_progress_locked(const dd_group *group, const dd_message *message, dd_error *error)
{
    dd_error own = *error;
    text_line line = {.used = 0};
    if (!message->is_send && message->id != 0) {
        say(&line, "%zu bytes of it have come", message->moved);
    } else if (!say_own_loss_locked(group, message->rank, &line)) {
        return;
    }
    (void)dd_error_set(error, own.code, "%.400s; %s", own.message, line.text);
}

static bool
is_late(const dd_group *group, int rank)
{
    const member_state *member = &group->members[rank];
    return rank != group->rank && (!member->has_answered || member->sequence < group->nstarted);
}

/* "; rank 2 is inside #11 all_reduce(...)" */
static void
say_where(const dd_group *group, int rank, text_line *line)
{
    const member_state *member = &group->members[rank];
    char who[96];
    char what[128];
    const char *where = dd_card_print(dd_peer_card(group->peers[rank]), who);
    if (member->is_gone) {
        say(line, "; %d (%s) has left the group", rank, where);
    } else if (!member->has_answered) {
        say(line, "; %d (%s) does not answer", rank, where);
        if (group_is_on_board(group, rank) && member->has_said_it) {
            say(line, " and was %s #%llu %s", member->is_inside ? "inside" : "done with",
                (unsigned long long)member->sequence, print_signature(&member->signature, what));
        }
    } else if (!member->has_said_it) {
        say(line, "; %d (%s) has called no collective yet", rank, where);
    } else {
        say(line, "; %d (%s) is %s #%llu %s", rank, where, member->is_inside ? "inside" : "done with",
            (unsigned long long)member->sequence, print_signature(&member->signature, what));
    }
}

static int
say_late_ranks(const dd_group *group, text_line *line)
{
    int nlate = 0;
    for (int rank = 0; rank < group->size; rank++) {
        if (is_late(group, rank)) {
            say(line, nlate++ == 0 ? "%d" : ", %d", rank);
        }
    }
    return nlate;
}

void
group_fail_timed_out_locked(dd_group *group)
{
    text_line late = {.used = 0};
    text_line where = {.used = 0};
    for (int rank = 0; rank < group->size; rank++) {
        if (!group->members[rank].has_answered && group_is_on_board(group, rank)) {
            group_look_up_locked(group, rank, false);
        }
    }
    if (group->cause.code != DD_OK) {
        return; /* it was seen why they do not agree */
    }
    int nlate = say_late_ranks(group, &late);
    int first = -1;
    for (int rank = 0; rank < group->size; rank++) {
        if (is_late(group, rank)) {
            first = first < 0 ? rank : first;
            say_where(group, rank, &where);
        }
    }
    const group_call *call = DD_CONTAINER_OF(group->collectives.next, group_call, link);
    text_line loss = {.used = 0};
    int from = -1;
    int to = -1;
    bool has_lost = find_loss_locked(group, &from, &to, &loss);
    /* Who is late by its own account is; who does not answer may be out of reach. */
    bool is_path = has_lost && (first < 0 || !group->members[first].has_answered);
    dd_cause cause = group_make_cause(group, DD_CAUSE_TIMED_OUT, DD_OP_TIMED_OUT, is_path ? to : first);
    cause.other = is_path ? from : -1;
    cause.sequence = call->work.sequence;
    cause.other_signature = ((const coll_call *)call)->signature;
    cause.elapsed_ns = dd_clock_now_ns() - call->work.start_ns;
    if (nlate == 0) {
        snprintf(cause.text, sizeof cause.text, "all ranks have arrived, and the data have not%s%s",
                 has_lost ? ": " : "", loss.text);
    } else {
        snprintf(cause.text, sizeof cause.text, "rank%s %.250s ha%s not arrived%.*s%s%s",
                 nlate > 1 ? "s" : "", late.text, nlate > 1 ? "ve" : "s", has_lost ? 250 : 480, where.text,
                 has_lost ? "; " : "", loss.text);
    }
    group_fail_cause_locked(group, &cause);
}

/* ---- giving up */

void
dd_group_abort(dd_group *group, const char *reason)
{
    if (dd_engine_check_fork(group->engine, NULL) != DD_OK) {
        return;
    }
    dd_engine_lock(group->engine);
    if (group->context != NULL) {
        dd_cause cause = group_make_cause(group, DD_CAUSE_ABORTED, DD_ABORTED, group->rank);
        snprintf(cause.text, sizeof cause.text, "%s", reason);
        group_fail_cause_locked(group, &cause);
    }
    dd_engine_unlock(group->engine);
    dd_engine_kick(group->engine);
}
