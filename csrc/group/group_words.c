/* What a group says of its failures: the facts of a cause in sentences that name the culprit. Nothing here changes anything. */
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

void
group_blame(const dd_group *group, int rank, dd_error *err)
{
    const dd_card *card = dd_peer_card(group->peers[rank]);
    dd_error_blame(err, rank, card->host, card->pid);
}

dd_status
dd_group_error_about(const dd_group *group, int rank, dd_status code, const char *what, dd_error *err)
{
    char who[128];
    (void)dd_error_set(err, code, "%s %s", group_print_member(group, rank, who), what);
    group_blame(group, rank, err);
    return code;
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

/* "all_reduce(float32, 12 elements, SUM)" */
static const char *
print_signature(const dd_signature *signature, char out[128])
{
    dd_coll coll = (dd_coll)signature->coll;
    if (coll == DD_COLL_BARRIER || signature->coll >= DD_COLL_COUNT) {
        snprintf(out, 128, "%s", dd_coll_name(coll));
        return out;
    }
    text_line line = {.used = 0};
    say(&line, "%s(%s", dd_coll_name(coll), dd_dtype_name((dd_dtype)signature->dtype));
    if (coll == DD_COLL_ALL_REDUCE || coll == DD_COLL_REDUCE || coll == DD_COLL_BROADCAST) {
        say(&line, ", %llu elements", (unsigned long long)signature->count);
    }
    if (dd_coll_is_folding(coll)) {
        say(&line, ", %s", dd_redop_name((dd_redop)signature->redop));
    }
    if (dd_coll_is_folding(coll) && signature->redop == DD_REDOP_PREMUL_SUM) {
        double factor;
        memcpy(&factor, &signature->factor_bits, sizeof factor);
        say(&line, " by %.9g", factor);
    }
    if (dd_coll_has_root(coll)) {
        say(&line, ", root %u", (unsigned)signature->root);
    }
    snprintf(out, 128, "%.126s)", line.text);
    return out;
}

const dd_signature *
group_signature_of(const dd_group *group, uint64_t sequence)
{
    bool is_kept =
        sequence > 0 && sequence <= group->nstarted && group->nstarted - sequence < SIGNATURES_KEPT;
    return is_kept ? &group->signatures[sequence % SIGNATURES_KEPT] : NULL;
}

/* "inside #11 all_reduce(...)" */
static void
say_place(bool is_inside, uint64_t sequence, const dd_signature *signature, text_line *line)
{
    char what[128];
    say(line, "%s #%llu %s", is_inside ? "inside" : "done with", (unsigned long long)sequence,
        print_signature(signature, what));
}

/* "had called no collective yet and had a recv from rank 0 (tag 7) under way" */
static void
say_own_state(const dd_group *group, text_line *line)
{
    if (group->nstarted == 0) {
        say(line, "had called no collective yet");
    } else {
        say(line, "was ");
        say_place(group->is_active, group->nstarted, group_signature_of(group, group->nstarted), line);
    }
    if (dd_list_is_empty(&group->messages)) {
        return;
    }
    const dd_message *message = &DD_CONTAINER_OF(group->messages.next, group_call, link)->message;
    if (message->channel == GROUP_MONITOR_CHANNEL) {
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
        group_blame(group, culprit, error);
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
    dd_error_prepend(error, "%s%s on " GROUP_FORMAT, work->what, sequence, GROUP_ARGS(group));
}

/* ---- packets that the network loses */

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

/* ---- ranks that are late */

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
    const char *where = dd_card_print(dd_peer_card(group->peers[rank]), who);
    if (member->is_gone) {
        say(line, "; %d (%s) has left the group", rank, where);
    } else if (!member->has_answered) {
        say(line, "; %d (%s) does not answer", rank, where);
        if (group_is_on_board(group, rank) && member->has_said_it) {
            say(line, " and was ");
            say_place(member->is_inside, member->sequence, &member->signature, line);
        }
    } else if (!member->has_said_it) {
        say(line, "; %d (%s) has called no collective yet", rank, where);
    } else {
        say(line, "; %d (%s) is ", rank, where);
        say_place(member->is_inside, member->sequence, &member->signature, line);
    }
}

dd_cause
group_cause_of_lateness(const dd_group *group, const group_call *call)
{
    text_line late = {.used = 0};
    text_line where = {.used = 0};
    text_line loss = {.used = 0};
    int nlate = 0;
    int first = -1;
    int from = -1;
    int to = -1;
    for (int rank = 0; rank < group->size; rank++) {
        if (is_late(group, rank)) {
            say(&late, nlate++ == 0 ? "%d" : ", %d", rank);
            say_where(group, rank, &where);
            first = first < 0 ? rank : first;
        }
    }
    bool has_lost = find_loss_locked(group, &from, &to, &loss);
    /* A rank that says that it is late is late; one that does not answer may be out of reach. */
    bool is_path = has_lost && (first < 0 || !group->members[first].has_answered);
    dd_cause cause = group_make_cause(group, DD_CAUSE_TIMED_OUT, DD_OP_TIMED_OUT, is_path ? to : first);
    cause.other = is_path ? from : -1;
    cause.sequence = call->work.sequence;
    cause.other_signature = call->signature;
    cause.elapsed_ns = dd_clock_now_ns() - call->work.start_ns;
    if (nlate == 0) {
        snprintf(cause.text, sizeof cause.text, "all ranks have arrived, and the data have not%s%s",
                 has_lost ? ": " : "", loss.text);
    } else {
        snprintf(cause.text, sizeof cause.text, "rank%s %.250s ha%s not arrived%.*s%s%s",
                 nlate > 1 ? "s" : "", late.text, nlate > 1 ? "ve" : "s", has_lost ? 250 : 480, where.text,
                 has_lost ? "; " : "", loss.text);
    }
    return cause;
}
