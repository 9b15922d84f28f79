/* Why a group fails, in words that name the culprit. */
#include "group/group_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *
group_print_member(const dd_group *group, int rank, char out[128])
{
    char who[96];
    snprintf(out, 128, "rank %d (%s)", rank, dd_card_print(dd_peer_card(group->peers[rank]), who));
    return out;
}

/* "all_reduce #3 of rank 0 (node-a, pid 77) ": the cause that is an operation of this rank begins so, for all but itself. */
static size_t
print_call(const dd_group *group, const dd_work *work, char out[192])
{
    char who[128];
    snprintf(out, 192, "%s #%llu of %s ", work->what, (unsigned long long)work->sequence,
             group_print_member(group, group->rank, who));
    return strlen(out);
}

void
group_describe_failure(const dd_group *group, const dd_work *work, const dd_error *cause, dd_error *error)
{
    *error = *cause;
    char sequence[32] = "";
    if (work->sequence > 0) {
        char call[192];
        size_t len = print_call(group, work, call);
        if (strncmp(error->message, call, len) == 0) {
            memmove(error->message, error->message + len, strlen(error->message + len) + 1);
        }
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
    if (dd_arena_find_written(group->arena, &written) &&
        group_take_back_locked(group, written, &error) != DD_OK) {
        dd_error cause = group->cause;
        dd_error_set(&group->cause, cause.code,
                     "%.700s; other ranks may still write to the array of this rank: %.200s", cause.message,
                     error.message);
        group->cause.culprit = cause.culprit;
    }
}

/* `told`: what the others get; NULL: nothing. */
static void
fail_locked(dd_group *group, const dd_error *cause, const dd_error *told, int except)
{
    if (group->cause.code != DD_OK) {
        return;
    }
    group->cause = *cause;
    group->is_asking = false;
    group_raise_alarm_locked(group);
    if (group->arena != NULL) {
        stop_arena_locked(group);
    }
    if (told != NULL && group->context != NULL && group->size > 1) {
        dd_context_post_abort_locked(group->context, except, told);
    }
    if (group->is_active) {
        dd_run_cancel_locked(group->run, cause);
        group->is_active = false;
    }
    while (!dd_list_is_empty(&group->collectives)) {
        group_complete_locked(DD_CONTAINER_OF(group->collectives.next, group_call, link), &group->cause);
    }
    group_fail_messages_locked(group, DD_ANY_RANK, &group->cause);
    window_hub_end_locked(group, &group->cause);
    group_update_task_locked(group);
}

void
group_fail_locked(dd_group *group, const dd_error *cause, bool is_told, int except)
{
    fail_locked(group, cause, is_told ? cause : NULL, except);
}

/* ---- ranks that disagree */

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

void
group_fail_mismatch_locked(dd_group *group, uint64_t sequence, const dd_arena_culprit *culprit)
{
    char theirs[128];
    char ours[128];
    char their_name[128];
    char our_name[128];
    dd_error cause;
    print_signature(&culprit->signature, theirs);
    print_signature(group_signature_of(group, sequence), ours);
    group_print_member(group, culprit->rank, their_name);
    group_print_member(group, culprit->other, our_name);
    if (culprit->is_size) {
        dd_error_set(&cause, DD_MISMATCH,
                     "collective #%llu, %s: %s and %s disagree on the size of a block: %llu bytes and %llu",
                     (unsigned long long)sequence, ours, their_name, our_name,
                     (unsigned long long)culprit->theirs, (unsigned long long)culprit->ours);
    } else {
        dd_error_set(&cause, DD_MISMATCH, "collective #%llu: %s called %s, %s called %s",
                     (unsigned long long)sequence, their_name, theirs, our_name, ours);
    }
    const dd_card *card = dd_peer_card(group->peers[culprit->rank]);
    dd_error_blame(&cause, culprit->rank, card->host, card->pid);
    group_fail_locked(group, &cause, true, DD_ANY_RANK);
}

void
group_fail_misfit_locked(dd_group *group, const dd_error *error)
{
    char ours[128];
    char our_name[128];
    int rank = error->culprit.rank;
    const member_state *member = rank >= 0 ? &group->members[rank] : NULL;
    if (member != NULL && member->has_said_it && member->sequence == group->nstarted &&
        memcmp(&member->signature, group_signature_of(group, group->nstarted), sizeof member->signature) !=
            0) {
        dd_arena_culprit culprit = {.rank = rank, .other = group->rank, .signature = member->signature};
        group_fail_mismatch_locked(group, group->nstarted, &culprit);
        return;
    }
    dd_error cause = *error;
    cause.code = DD_MISMATCH;
    dd_error_prepend(&cause, "collective #%llu: %s called %s", (unsigned long long)group->nstarted,
                     group_print_member(group, group->rank, our_name),
                     print_signature(group_signature_of(group, group->nstarted), ours));
    group_fail_locked(group, &cause, true, DD_ANY_RANK);
}

void
group_fail_surplus_locked(dd_group *group, int rank, uint64_t sequence)
{
    const dd_signature *signature = group_signature_of(group, sequence);
    if (signature == NULL || group->cause.code != DD_OK) {
        return;
    }
    char what[128];
    char theirs[128];
    char ours[128];
    dd_error cause;
    dd_error_set(&cause, DD_MISMATCH,
                 "collective #%llu, %s: %s and %s disagree on the size of a block: more has come than was "
                 "expected here",
                 (unsigned long long)sequence, print_signature(signature, what),
                 group_print_member(group, rank, theirs), group_print_member(group, group->rank, ours));
    const dd_card *card = dd_peer_card(group->peers[rank]);
    dd_error_blame(&cause, rank, card->host, card->pid);
    group_fail_locked(group, &cause, true, DD_ANY_RANK);
}

/* ---- ranks that are late */

void
group_begin_asking_locked(dd_group *group)
{
    group->is_asking = true;
    for (int rank = 0; rank < group->size; rank++) {
        group->members[rank].is_asked = rank == group->rank;
        group->members[rank].has_answered = rank == group->rank;
        if (rank != group->rank && !group->members[rank].is_gone) {
            dd_peer_connect_locked(group->peers[rank]);
        }
    }
    group_ask_connected_locked(group);
}

void
group_ask_connected_locked(dd_group *group)
{
    for (int rank = 0; rank < group->size; rank++) {
        if (!group->members[rank].is_asked && dd_context_is_connected_locked(group->context, rank)) {
            group->members[rank].is_asked = true;
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
    int nlate = say_late_ranks(group, &late);
    int first = -1;
    for (int rank = 0; rank < group->size; rank++) {
        if (is_late(group, rank)) {
            first = first < 0 ? rank : first;
            say_where(group, rank, &where);
        }
    }
    const group_call *call = DD_CONTAINER_OF(group->collectives.next, group_call, link);
    double elapsed_s = (double)(dd_clock_now_ns() - call->work.start_ns) * 1e-9;
    char what[192];
    dd_error cause;
    print_call(group, &call->work, what);
    if (nlate == 0) {
        dd_error_set(&cause, DD_OP_TIMED_OUT,
                     "%stimed out after %.3g s; all ranks have arrived, and the data have not", what,
                     elapsed_s);
    } else {
        dd_error_set(&cause, DD_OP_TIMED_OUT, "%stimed out after %.3g s; rank%s %s ha%s not arrived%s", what,
                     elapsed_s, nlate > 1 ? "s" : "", late.text, nlate > 1 ? "ve" : "s", where.text);
        const dd_card *card = dd_peer_card(group->peers[first]);
        dd_error_blame(&cause, first, card->host, card->pid);
    }
    group_fail_locked(group, &cause, true, DD_ANY_RANK);
}

/* ---- what other ranks tell
 *
 * Text and culprit are as whoever found out sees it, and are put here as this rank sees it. Others get it as it came. */

/* The N of the "#N" that both kinds of text begin with; 0: there is none. */
static uint64_t
sequence_in(const char *message)
{
    const char *mark = strchr(message, '#');
    return mark != NULL ? strtoull(mark + 1, NULL, 10) : 0;
}

static bool
has_called_the_same(const dd_group *group, int rank, const char *message)
{
    const dd_signature *signature = group_signature_of(group, sequence_in(message));
    if (signature == NULL || rank < 0 || rank >= group->size) {
        return false;
    }
    char who[128];
    char ours[128];
    char words[272];
    snprintf(words, sizeof words, "%s called %s", group_print_member(group, rank, who),
             print_signature(signature, ours));
    return strstr(message, words) != NULL;
}

/* The text names two ranks. Where the culprit is this one, or has called the same as this one, the other is the culprit here. */
static void
see_mismatch(const dd_group *group, dd_error *error)
{
    int blamed = error->culprit.rank;
    if (blamed != group->rank && !has_called_the_same(group, blamed, error->message)) {
        return;
    }
    for (int rank = 0; rank < group->size; rank++) {
        char who[128];
        if (rank != group->rank && rank != blamed &&
            strstr(error->message, group_print_member(group, rank, who)) != NULL) {
            const dd_card *card = dd_peer_card(group->peers[rank]);
            dd_error_blame(error, rank, card->host, card->pid);
            return;
        }
    }
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

/* What a late rank was doing it knows better than whoever waited for it, who has been told of collectives alone. */
static void
see_time_out(const dd_group *group, dd_error *error)
{
    bool has_come = sequence_in(error->message) <= group->nstarted;
    if (has_come && error->culprit.rank != group->rank) {
        return; /* others are late */
    }
    text_line line = {.used = 0};
    say(&line, "%.*s waiting for this rank, which ", (int)strcspn(error->message, ";"), error->message);
    if (has_come) {
        say(&line, "had not come or answered in time");
    } else {
        say_own_state(group, &line);
    }
    memcpy(error->message, line.text, line.used + 1);
}

void
group_fail_heard_locked(dd_group *group, int rank, const dd_error *error)
{
    dd_error cause = *error;
    if (error->code == DD_MISMATCH) {
        see_mismatch(group, &cause);
    } else if (error->code == DD_OP_TIMED_OUT) {
        see_time_out(group, &cause);
    }
    fail_locked(group, &cause, error, rank);
}

/* ---- giving up */

void
dd_group_abort(dd_group *group, const char *reason)
{
    char who[128];
    dd_error cause;
    if (dd_engine_check_fork(group->engine, NULL) != DD_OK) {
        return;
    }
    dd_engine_lock(group->engine);
    if (group->context != NULL) {
        dd_error_set(&cause, DD_ABORTED, "%s aborted the group: %s",
                     group_print_member(group, group->rank, who), reason);
        const dd_card *card = dd_peer_card(group->peers[group->rank]);
        dd_error_blame(&cause, group->rank, card->host, card->pid);
        group_fail_locked(group, &cause, true, DD_ANY_RANK);
    }
    dd_engine_unlock(group->engine);
    dd_engine_kick(group->engine);
}
