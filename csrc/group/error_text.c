/* Messages for a group's failures: causes in sentences that name the blamed rank. Changes no state. */
#include "group/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A text in a buffer, which is truncated when the buffer is full. */
typedef struct text_line {
    char text[1024];
    size_t used;
} text_line;

DD_PRINTF(2, 3)
static void
append(text_line *line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int wanted = vsnprintf(line->text + line->used, sizeof line->text - line->used, format, args);
    va_end(args);
    size_t used = line->used + (wanted > 0 ? (size_t)wanted : 0);
    line->used = used < sizeof line->text ? used : sizeof line->text - 1;
}

/* ---- members */

const char *
group_print_member(const dd_group *group, int rank, char out[128])
{
    char rank_name[96];
    snprintf(out, 128, "rank %d (%s)", rank,
             dd_endpoint_print(dd_peer_endpoint(group->peers[rank]), rank_name));
    return out;
}

/* The text that one of these macros returns is valid until the end of the enclosing block.
 * MEMBER(-1), for a process outside the group, is an empty text. */
#define MEMBER(rank) ((rank) >= 0 ? group_print_member(group, (rank), (char[128]){""}) : "")
#define CALL(signature) print_signature((signature), (char[128]){""})
#define ADDR(addr) dd_addr_print((addr), (char[DD_ADDR_TEXT_MAX]){""})

void
group_blame(const dd_group *group, int rank, dd_error *err)
{
    const dd_endpoint *endpoint = dd_peer_endpoint(group->peers[rank]);
    dd_error_blame(err, rank, endpoint->host, endpoint->pid);
}

dd_status
dd_group_error_about(const dd_group *group, int rank, dd_status code, const char *label, dd_error *err)
{
    (void)dd_error_set(err, code, "%s %s", MEMBER(rank), label);
    group_blame(group, rank, err);
    return code;
}

const char *
group_print_tag(const dd_message *message, char out[32])
{
    if (message->channel == DD_P2P_PARTS_CHANNEL) {
        snprintf(out, 32, "part of an object"); /* the caller did not choose its tag */
    } else if (message->is_any_tag) {
        snprintf(out, 32, "any tag");
    } else {
        snprintf(out, 32, "tag %llu", (unsigned long long)message->tag);
    }
    return out;
}

void
group_append(dd_error *error, const char *text)
{
    dd_error own_error = *error;
    (void)dd_error_set(error, own_error.code, "%.500s; %s", own_error.message, text);
    error->blamed = own_error.blamed;
}

/* ---- progress of ranks */

/* Print a signature: "all_reduce(float32, 12 elements, SUM)". */
static const char *
print_signature(const dd_signature *signature, char out[128])
{
    dd_coll coll = (dd_coll)signature->coll;
    text_line line = {.used = 0};
    append(&line, "%s", dd_coll_name(coll));
    if (signature->coll < DD_COLL_COUNT && dd_coll_traits_of[coll].has_data) {
        bool has_factor = dd_coll_is_folding(coll) && signature->redop == DD_REDOP_PREMUL_SUM;
        append(&line, "(%s",
               has_factor ? dd_dtype_name((dd_dtype)signature->dtype)
                          : dd_signature_dtype_name(signature, (char[9]){""}));
        if (dd_coll_is_array(coll)) {
            append(&line, ", %llu elements", (unsigned long long)signature->count);
        }
        if (dd_coll_is_folding(coll)) {
            append(&line, ", %s", dd_redop_name((dd_redop)signature->redop));
        }
        if (has_factor) {
            double factor;
            memcpy(&factor, &signature->extra_bits, sizeof factor);
            append(&line, " by %.9g", factor);
        }
        if (dd_coll_has_root(coll)) {
            append(&line, ", root %u", (unsigned)signature->root);
        }
        append(&line, ")");
    }
    snprintf(out, 128, "%.127s", line.text);
    return out;
}

const dd_signature *
group_signature_of(const dd_group *group, uint64_t sequence)
{
    bool is_known =
        sequence > 0 && sequence <= group->nstarted && group->nstarted - sequence < SIGNATURES_MAX;
    return is_known ? &group->signatures[sequence % SIGNATURES_MAX] : NULL;
}

/* Append a position: "inside #11 all_reduce(...)". */
static void
append_position(text_line *line, bool is_inside, uint64_t sequence, const dd_signature *signature)
{
    append(line, "%s #%llu %s", is_inside ? "inside" : "done with", (unsigned long long)sequence,
           CALL(signature));
}

/* Append text like "recv from rank 0 (tag 7)". */
static void
append_message(text_line *line, const dd_message *message)
{
    char tag[32];
    append(line, "%s ", message->is_send ? "send to" : message->is_peek ? "probe of" : "recv from");
    append(line, message->rank == DD_ANY_RANK ? "any rank" : "rank %d", message->rank);
    append(line, " (%s)", group_print_tag(message, tag));
}

/* Append text like "had called no collective yet and had a recv from rank 0 (tag 7) under way". */
static void
append_own_state(text_line *line, const dd_group *group)
{
    if (group->nstarted == 0) {
        append(line, "had called no collective yet");
    } else {
        append(line, "was ");
        append_position(line, group->is_active, group->nstarted, group_signature_of(group, group->nstarted));
    }
    if (dd_list_is_empty(&group->messages)) {
        return;
    }
    const dd_message *message = &DD_CONTAINER_OF(group->messages.next, group_call, link)->message;
    if (message->channel == GROUP_MONITOR_CHANNEL) {
        append(line, " and was in monitored_barrier");
    } else {
        append(line, " and had a ");
        append_message(line, message);
        append(line, " under way");
    }
}

dd_status
group_error_leftovers_locked(const dd_group *group, const dd_wait *wait, dd_error *err)
{
    text_line line = {.used = 0};
    const dd_list *lists[] = {&group->collectives, &group->messages};
    for (int i = 0; i < 2; i++) {
        for (const dd_list *link = lists[i]->next; link != lists[i]; link = link->next) {
            const group_call *call = DD_CONTAINER_OF(link, group_call, link);
            char place[128];
            append(&line, line.used > 0 ? ", " : ": ");
            if (call->is_message) {
                append_message(&line, &call->message);
            } else {
                append(&line, "%s", CALL(&call->signature));
            }
            if (call->record != DD_NO_RECORD) {
                dd_recorder_print_place(dd_recorder_of_group(group->recorder_group), call->record, place);
                append(&line, "%s", place);
            }
        }
    }
    return dd_error_set(err, DD_OP_TIMED_OUT,
                        GROUP_FORMAT " was closed with operations under way after %.3g s%.700s",
                        GROUP_ARGS(group), dd_wait_elapsed_s(wait), line.text);
}

/* Append a late rank's position: "; 2 (node-b, pid 77) is inside #11 all_reduce(...)". */
static void
error_text_where(text_line *line, const dd_group *group, int rank)
{
    const member_state *member = &group->members[rank];
    char rank_name[96];
    append(line, "; %d (%s) ", rank, dd_endpoint_print(dd_peer_endpoint(group->peers[rank]), rank_name));
    bool is_silent = !member->has_left && !member->has_answered;
    bool is_placed =
        member->has_signature && !member->has_left && (!is_silent || group_is_on_board(group, rank));
    if (member->has_left) {
        append(line, "has left the group");
    } else if (is_silent) {
        append(line, "does not answer%s", is_placed ? " and was " : "");
    } else {
        append(line, "%s", is_placed ? "is " : "has called no collective yet");
    }
    if (is_placed) {
        append_position(line, member->is_inside, member->sequence, &member->signature);
    }
}

/* ---- causes, as this rank sees them */

/* Append the late call: "all_reduce #3 of rank 0 (node-a, pid 77) ". */
static void
append_late_call(text_line *line, const dd_group *group, const dd_cause *cause)
{
    append(line, "%s #%llu of %s ", dd_coll_name((dd_coll)cause->other_signature.coll),
           (unsigned long long)cause->sequence, MEMBER(cause->origin));
}

/* Append a timeout. If this rank is the late one, it describes its own state, because the rank that
 * timed out only knows this rank's collectives. */
static void
append_timeout(text_line *line, const dd_group *group, const dd_cause *cause)
{
    bool has_arrived = cause->sequence <= group->nstarted;
    /* A rank that is inside a call is not late, because it waits for other ranks as well. */
    bool is_late = !has_arrived && !group->is_active;
    bool is_own =
        cause->origin != group->rank && cause->other < 0 && (is_late || cause->blamed.rank == group->rank);
    append_late_call(line, group, cause);
    append(line, "timed out after %.3g s", (double)cause->elapsed_ns * 1e-9);
    if (!is_own) {
        append(line, "; %s", cause->text);
        return;
    }
    append(line, " waiting for this rank, which ");
    if (has_arrived) {
        append(line, "had not joined or answered before the timeout");
    } else {
        append_own_state(line, group);
    }
}

static void
append_disagreement(text_line *line, const dd_group *group, const dd_cause *cause)
{
    unsigned long long sequence = cause->sequence;
    const char *theirs = MEMBER(cause->blamed.rank);
    const char *others = MEMBER(cause->other);
    const char *call = CALL(&cause->other_signature);
    if (cause->kind == DD_CAUSE_CALLS) {
        append(line, "collective #%llu: %s called %s, %s called %s", sequence, theirs,
               CALL(&cause->blamed_signature), others, call);
    } else if (cause->kind == DD_CAUSE_MISFIT) {
        append(line, "collective #%llu: %s called %s: %s", sequence, others, call, cause->text);
    } else {
        append(line, "collective #%llu, %s: %s and %s disagree on the size of a block: %s", sequence, call,
               theirs, others, cause->text);
        if (cause->text[0] == '\0') {
            append(line, "%llu bytes and %llu", (unsigned long long)cause->blamed_nbytes,
                   (unsigned long long)cause->other_nbytes);
        }
    }
}

/* Return the rank to blame. Two ranks that disagree blame each other; a third rank blames the one
 * whose call differs from its own. */
static int
find_blamed(const dd_group *group, const dd_cause *cause)
{
    const dd_signature *own_signature = group_signature_of(group, cause->sequence);
    bool is_call_equal = cause->kind == DD_CAUSE_CALLS && own_signature != NULL &&
                         cause->other != group->rank &&
                         memcmp(&cause->blamed_signature, own_signature, sizeof *own_signature) == 0;
    bool is_own = cause->blamed.rank == group->rank && cause->other >= 0;
    return is_call_equal || is_own ? cause->other : cause->blamed.rank;
}

void
group_explain_cause(const dd_group *group, const dd_cause *cause, dd_error *error)
{
    text_line line = {.used = 0};
    int blamed = find_blamed(group, cause);
    switch (cause->kind) {
    case DD_CAUSE_OTHER:
        append(&line, "%s", cause->text);
        break;
    case DD_CAUSE_LOST:
        if (blamed == group->rank) {
            blamed = cause->origin;
            append(&line, "%s has lost the connection to this rank: %s", MEMBER(blamed), cause->text);
        } else {
            append(&line, "lost %s: %s", MEMBER(blamed), cause->text);
        }
        break;
    case DD_CAUSE_LEFT:
        /* This rank itself closed the group too early. */
        if (blamed == group->rank && cause->origin == group->rank) {
            (void)dd_error_set(error, DD_CLOSED, "the group was closed before the operation was done");
            return;
        }
        append(&line, "%s has left the group%s%s", MEMBER(blamed), cause->text[0] != '\0' ? " " : "",
               cause->text);
        break;
    case DD_CAUSE_ABORTED:
        append(&line, "%s aborted the group: %s", MEMBER(blamed), cause->text);
        break;
    case DD_CAUSE_REVOKED:
        append(&line, "%s revoked the group: %s", MEMBER(blamed), cause->text);
        break;
    case DD_CAUSE_CALLS:
    case DD_CAUSE_SIZES:
    case DD_CAUSE_MISFIT:
        append_disagreement(&line, group, cause);
        break;
    case DD_CAUSE_TIMED_OUT:
        append_timeout(&line, group, cause);
        break;
    }
    (void)dd_error_set(error, cause->code, "%s", line.text);
    error->blamed = cause->blamed;
    if (blamed >= 0) {
        group_blame(group, blamed, error);
    }
}

dd_cause
group_make_cause(const dd_group *group, dd_cause_kind kind, dd_status code, int blamed)
{
    dd_cause cause = {
        .kind = kind, .code = code, .origin = group->rank, .blamed = {.rank = blamed}, .other = -1};
    if (blamed >= 0) {
        const dd_endpoint *endpoint = dd_peer_endpoint(group->peers[blamed]);
        cause.blamed.pid = endpoint->pid;
        snprintf(cause.blamed.host, sizeof cause.blamed.host, "%s", endpoint->host);
    }
    return cause;
}

dd_cause
group_cause_of_error(const dd_group *group, const dd_error *error)
{
    dd_cause cause = dd_cause_of_error(error, group->rank);
    int rank = error->blamed.rank;
    long long pid = error->blamed.pid;
    if (rank < 0 || rank >= group->size || (pid != 0 && dd_peer_endpoint(group->peers[rank])->pid != pid)) {
        cause.blamed.rank = -1;
    }
    return cause;
}

void
group_note_call(const dd_group *group, const char *label, uint64_t sequence, int64_t elapsed_ns,
                dd_error *err)
{
    char number[32] = "";
    if (sequence > 0) {
        snprintf(number, sizeof number, " #%llu", (unsigned long long)sequence);
    }
    dd_error_prepend(err, "%s%s on " GROUP_FORMAT, label, number, GROUP_ARGS(group));
    dd_error_note_call(err, label, sequence, elapsed_ns, group->name.data, group->name.len);
}

void
group_describe_failure(const dd_group *group, const dd_work *work, const dd_error *cause, dd_error *error)
{
    const dd_cause *failure = &group->failure;
    *error = *cause;
    /* Drop the late call's name from the start of the text, because group_note_call adds it. */
    if (work->sequence > 0 && failure->kind == DD_CAUSE_TIMED_OUT && failure->origin == group->rank &&
        failure->sequence == work->sequence) {
        text_line name = {.used = 0};
        append_late_call(&name, group, failure);
        size_t len = strlen(cause->message + name.used);
        memmove(error->message, cause->message + name.used, len + 1);
    }
    group_note_call(group, work->label, work->sequence, dd_clock_now_ns() - work->start_ns, error);
}

/* ---- packets that the network loses */

#define LOSSY_PATH "the network between them loses packets, perhaps only large ones (MTU?)"

/* Append how many of this rank's bytes have not arrived at `rank`. False if no loss is known. */
static bool
append_own_loss_locked(text_line *line, const dd_group *group, int rank)
{
    dd_path_loss loss;
    if (rank == group->rank || !dd_peer_find_loss_locked(group->peers[rank], &loss)) {
        return false;
    }
    append(line, "%s at %s has sent %zu bytes to %s at %s which have not arrived", MEMBER(group->rank),
           ADDR(&loss.from), loss.nbytes, MEMBER(rank), ADDR(&loss.to));
    if (loss.nresends > 0) {
        append(line, ", retransmitted %u times", loss.nresends);
    }
    append(line, ": " LOSSY_PATH);
    return true;
}

/* Append "rank 2 (node-b, pid 77) at 10.0.0.2"; no address if the rank has published several. */
static void
append_member_at(text_line *line, const dd_group *group, int rank)
{
    dd_addr_list addrs = dd_peer_addrs_locked(group->peers[rank]);
    append(line, "%s", MEMBER(rank));
    if (addrs.count == 1) {
        append(line, " at %s", ADDR(&addrs.items[0]));
    }
}

/* Append a sentence that names the ranks between which packets are lost. Return false if no loss is
 * known. */
static bool
append_loss_locked(text_line *line, const dd_group *group, int *from, int *to)
{
    *from = group->rank;
    for (*to = 0; *to < group->size; (*to)++) {
        if (append_own_loss_locked(line, group, *to)) {
            return true;
        }
    }
    for (*from = 0; *from < group->size; (*from)++) {
        const member_state *member = &group->members[*from];
        if (*from != group->rank && member->has_answered && member->lost_nbytes > 0) {
            *to = member->lost_to;
            append_member_at(line, group, *from);
            append(line, " has sent %llu bytes to ", (unsigned long long)member->lost_nbytes);
            append_member_at(line, group, *to);
            append(line, " which have not arrived: " LOSSY_PATH);
            return true;
        }
    }
    return false;
}

int
group_add_loss_locked(const dd_group *group, dd_error *error)
{
    text_line line = {.used = 0};
    int from;
    int to;
    if (!append_loss_locked(&line, group, &from, &to)) {
        return -1;
    }
    group_append(error, line.text);
    return to == group->rank ? from : to;
}

#define UNREAD_TAGS_MAX 8

typedef struct unread_tags {
    uint64_t tags[UNREAD_TAGS_MAX]; /* different tags, in the order of arrival */
    int ntags;
    int nmessages;
    bool has_more; /* true if there are further tags */
} unread_tags;

static void
add_unread(void *ctx, uint64_t tag)
{
    unread_tags *self = ctx;
    int i = 0;
    while (i < self->ntags && self->tags[i] != tag) {
        i++;
    }
    if (i < UNREAD_TAGS_MAX && i == self->ntags) {
        self->tags[self->ntags++] = tag;
    }
    self->has_more = self->has_more || i == UNREAD_TAGS_MAX;
    self->nmessages++;
}

/* Append the unread messages of a rank: "2 messages of rank 1 are unread (tags 3, 5)". */
static void
append_unread_locked(text_line *line, const dd_group *group, int rank, uint32_t channel)
{
    unread_tags unread = {.ntags = 0};
    dd_context_visit_unread_locked(group->context, rank, channel, add_unread, &unread);
    if (unread.nmessages == 0) {
        return;
    }
    append(line, "%s%d message%s of rank %d %s unread (tag%s", line->used > 0 ? ", " : "", unread.nmessages,
           unread.nmessages > 1 ? "s" : "", rank, unread.nmessages > 1 ? "are" : "is",
           unread.ntags > 1 ? "s" : "");
    for (int i = 0; i < unread.ntags; i++) {
        append(line, "%s %llu", i > 0 ? "," : "", (unsigned long long)unread.tags[i]);
    }
    append(line, "%s)", unread.has_more ? ", ..." : "");
}

void
group_add_progress_locked(const dd_group *group, const dd_message *message, dd_error *error)
{
    text_line line = {.used = 0};
    bool is_any = message->rank == DD_ANY_RANK;
    if (!message->is_send && message->id != 0) {
        append(&line, "%zu of %zu bytes have arrived", message->moved, message->received);
    } else if (is_any || !append_own_loss_locked(&line, group, message->rank)) {
        for (int rank = 0; rank < group->size && !message->is_send; rank++) {
            if (is_any || rank == message->rank) {
                append_unread_locked(&line, group, rank, message->channel);
            }
        }
    }
    if (line.used > 0) {
        group_append(error, line.text);
    }
}

/* ---- late ranks */

static bool
is_late_member(const dd_group *group, int rank)
{
    const member_state *member = &group->members[rank];
    return rank != group->rank && (!member->has_answered || member->sequence < group->nstarted);
}

/* Return false if the rank has left or exited: it may have done its part of the call before. */
static bool
is_present(const dd_group *group, int rank)
{
    return !group->members[rank].has_left && !group->members[rank].is_absent;
}

/* Return true if ranks that have exited count as late, because no other rank is late. */
static bool
must_wait_for_ended(const dd_group *group)
{
    for (int rank = 0; rank < group->size; rank++) {
        if (is_late_member(group, rank) && is_present(group, rank)) {
            return false;
        }
    }
    return true;
}

/* Kinds of late ranks, likeliest cause of the delay last. A rank inside an earlier collective waits
 * for another rank itself, like the root of a broadcast whose reader is stopped. */
typedef enum late_kind {
    LATE_AND_WAITING,
    LATE_ELSEWHERE,
    LATE_AND_SILENT,
} late_kind;

static late_kind
kind_of_late(const member_state *member)
{
    if (!member->has_answered) {
        return LATE_AND_SILENT;
    }
    return member->is_inside ? LATE_AND_WAITING : LATE_ELSEWHERE;
}

dd_cause
group_cause_of_lateness(const dd_group *group, const group_call *call)
{
    text_line late = {.used = 0};
    text_line where = {.used = 0};
    text_line loss = {.used = 0};
    int nlate = 0;
    int worst = -1;
    int from;
    int to;
    bool waits_for_ended = must_wait_for_ended(group);
    for (int rank = 0; rank < group->size; rank++) {
        if (is_late_member(group, rank) && (waits_for_ended || is_present(group, rank))) {
            append(&late, nlate++ == 0 ? "%d" : ", %d", rank);
            error_text_where(&where, group, rank);
            const member_state *member = &group->members[rank];
            bool is_worse = worst < 0 || kind_of_late(member) > kind_of_late(&group->members[worst]);
            worst = is_worse ? rank : worst;
        }
    }
    bool has_lost = append_loss_locked(&loss, group, &from, &to);
    /* Blame a late rank if it has answered; if it has not, the path to it may be at fault. */
    bool is_path = has_lost && (worst < 0 || kind_of_late(&group->members[worst]) != LATE_ELSEWHERE);
    dd_cause cause = group_make_cause(group, DD_CAUSE_TIMED_OUT, DD_OP_TIMED_OUT, is_path ? to : worst);
    cause.other = is_path ? from : -1;
    cause.sequence = call->work.sequence;
    cause.other_signature = call->signature;
    cause.elapsed_ns = dd_clock_now_ns() - call->work.start_ns;
    if (nlate == 0) {
        snprintf(cause.text, sizeof cause.text, "all ranks have arrived, but their data have not%s%.900s",
                 has_lost ? ": " : "", loss.text);
    } else {
        snprintf(cause.text, sizeof cause.text, "rank%s %.250s ha%s not arrived%.*s%s%.640s",
                 nlate > 1 ? "s" : "", late.text, nlate > 1 ? "ve" : "s", has_lost ? 250 : 480, where.text,
                 has_lost ? "; " : "", loss.text);
    }
    return cause;
}
