#include "verdict.h"

#include "table.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

static bool DD_PRINTF(2, 3) object(verdict *v, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(v->complaint, sizeof v->complaint, format, args);
    va_end(args);
    v->outcome = OUTCOME_WRONG;
    return false;
}

/* ---- checks for every rank */

static bool
has_ended(verdict *v, const trial *trial_spec, const trial_result *result, int rank)
{
    const rank_report *report = &result->board.ranks[rank];
    int status = result->status[rank];
    switch (result->ends[rank]) {
    case RANK_ENDED:
        break;
    case RANK_HUNG:
        return object(v, "rank %d of %d hangs in \"%s\"", rank, trial_spec->program->size,
                      report->step != NULL ? report->step : "?");
    case RANK_CRASHED:
        return WIFSIGNALED(status) ? object(v, "rank %d was ended by signal %d in \"%s\"", rank,
                                            WTERMSIG(status), report->step)
                                   : object(v, "rank %d has left with status %d in \"%s\"", rank,
                                            WEXITSTATUS(status), report->step);
    }
    return report->complaint[0] == '\0' || object(v, "rank %d: %s", rank, report->complaint);
}

static bool
has_left_nothing(verdict *v, const trial_result *result, int rank)
{
    const belongings *before = &result->board.ranks[rank].before;
    const belongings *after = &result->board.ranks[rank].after;
    return (after->nfds <= before->nfds && after->nmappings <= before->nmappings &&
            after->nthreads <= before->nthreads && after->nblocks <= before->nblocks) ||
           object(v, "rank %d leaves %ld descriptors, %ld mappings, %ld threads, %ld blocks of memory", rank,
                  after->nfds - before->nfds, after->nmappings - before->nmappings,
                  after->nthreads - before->nthreads, after->nblocks - before->nblocks);
}

/* ---- checks of errors */

static bool
contains(const dd_error *error, const char *part)
{
    return strstr(error->message, part) != NULL;
}

static bool
names_rank(const dd_error *error, int rank)
{
    char text[32];
    snprintf(text, sizeof text, "rank %d", rank);
    return error->blamed.rank == rank || contains(error, text);
}

/* Return the rank that the error reports as lost, or -1. */
static int
find_lost_rank(const dd_error *error)
{
    int rank = -1;
    const char *words = strstr(error->message, "lost rank ");
    return words != NULL && sscanf(words, "lost rank %d", &rank) == 1 ? rank : -1;
}

static bool
contains_error(const dd_error *error, int error_number)
{
    return contains(error, strerror(error_number)) ||
           (error_number == ENOMEM && error->code == DD_OUT_OF_MEMORY) ||
           (is_error_of_peer(error_number) &&
            (contains(error, "connection closed") || contains(error, "closed the connection") ||
             contains(error, "lost")));
}

/* Return true for an error of rank 0's server. Its thread can at most report it to clients, which
 * may only see a closed connection. */
static bool
is_about_own_store(const trial *trial_spec, const dd_error *error)
{
    bool is_about_store = contains(error, "TCPStore at") || contains(error, "opening the store at");
    return trial_spec->program->has_own_store && trial_spec->victim == 0 && is_about_store &&
           (contains(error, "the server closed the connection") ||
            contains_error(error, trial_spec->fault.error_number));
}

static bool
has_lost_own_store(const trial *trial_spec, const trial_result *result)
{
    for (int rank = 0; rank < trial_spec->program->size; rank++) {
        if (is_about_own_store(trial_spec, &result->board.ranks[rank].error)) {
            return true;
        }
    }
    return false;
}

static bool
names_error(verdict *v, const trial *trial_spec, const dd_error *error)
{
    int error_number = trial_spec->fault.error_number;
    if (!contains_error(error, error_number)) {
        return object(v, "rank %d does not contain \"%s\": %s", trial_spec->victim, strerror(error_number),
                      error->message);
    }
    int lost = find_lost_rank(error);
    return lost < 0 || is_error_of_peer(error_number) ||
           object(v, "rank %d takes rank %d for lost: %s", trial_spec->victim, lost, error->message);
}

/* Return true if the starter ended this rank, or ended another rank and so caused the error. */
static bool
is_ended_by_starter(const dd_error *error)
{
    return error->code == DD_INTERRUPTED ||
           contains(error, "aborted the group: interrupted while it was being created");
}

static bool
blames_failed_rank(verdict *v, const trial *trial_spec, int rank, const dd_error *error)
{
    int lost = find_lost_rank(error);
    char finder[32];
    snprintf(finder, sizeof finder, "found by rank %d", trial_spec->victim);
    /* A rank that is itself taken for lost must learn which rank found it so. */
    bool is_plausible =
        is_error_of_peer(trial_spec->fault.error_number) && (lost != rank || contains(error, finder));
    if (lost >= 0 && lost != trial_spec->victim && !is_plausible) {
        return object(v, "rank %d takes rank %d for lost: %s", rank, lost, error->message);
    }
    return lost >= 0 || names_rank(error, trial_spec->victim) || is_about_own_store(trial_spec, error) ||
           object(v, "rank %d does not name rank %d: %s", rank, trial_spec->victim, error->message);
}

static bool
are_others_right(verdict *v, const trial *trial_spec, const trial_result *result)
{
    for (int rank = 0; rank < trial_spec->program->size; rank++) {
        const dd_error *error = &result->board.ranks[rank].error;
        if (rank == trial_spec->victim || error->code == DD_OK) {
            continue;
        }
        if (is_ended_by_starter(error)) {
            v->outcome = OUTCOME_ALONE;
        } else if (!blames_failed_rank(v, trial_spec, rank, error)) {
            return false;
        } else if (v->outcome != OUTCOME_ALONE) {
            v->outcome = OUTCOME_REPORTED;
        }
    }
    return true;
}

static int
count_failed(const trial *trial_spec, const trial_result *result)
{
    int count = 0;
    for (int rank = 0; rank < trial_spec->program->size; rank++) {
        count += result->board.ranks[rank].error.code != DD_OK;
    }
    return count;
}

static void
judge_errors(verdict *v, const trial *trial_spec, const trial_result *result)
{
    const dd_error *own = &result->board.ranks[trial_spec->victim].error;
    if (count_failed(trial_spec, result) == 0) {
        v->outcome = OUTCOME_SURVIVED;
        return;
    }
    if (is_error_ignored(trial_spec->fault.call, trial_spec->fault.error_number)) {
        (void)object(v, "not survived; rank %d: %s", trial_spec->victim, own->message);
        return;
    }
    v->outcome = OUTCOME_LOCAL;
    /* A rank that has completed all steps may not notice that its last messages were not sent. */
    bool is_excused = own->code == DD_OK || has_lost_own_store(trial_spec, result);
    (void)((is_excused || names_error(v, trial_spec, own)) && are_others_right(v, trial_spec, result));
}

verdict
judge(const trial *trial_spec, const trial_result *result)
{
    verdict v = {.outcome = OUTCOME_SURVIVED};
    bool is_hit = result->board.ranks[trial_spec->victim].was_hit;
    for (int rank = 0; rank < trial_spec->program->size; rank++) {
        if (!has_ended(&v, trial_spec, result, rank) || !has_left_nothing(&v, result, rank)) {
            return v;
        }
    }
    if (result->nfiles > 0 && trial_spec->fault.call != DD_SYS_unlink) {
        (void)object(&v, "%d files are left", result->nfiles);
        return v;
    }
    if (!is_hit) {
        v.outcome = OUTCOME_UNREACHED;
        for (int rank = 0; rank < trial_spec->program->size; rank++) {
            const rank_report *report = &result->board.ranks[rank];
            if (report->error.code != DD_OK) {
                (void)object(&v, "nothing has failed, and rank %d reports in \"%s\": %s", rank, report->step,
                             report->error.message);
            }
        }
        return v;
    }
    judge_errors(&v, trial_spec, result);
    return v;
}
