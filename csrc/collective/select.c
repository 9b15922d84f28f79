#include "collective/select.h"

#include "collective/plan_internal.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define KIB ((size_t)1024)
#define MIB (1024 * KIB)
#define ANY_NBYTES SIZE_MAX
#define ANY_NRANKS INT_MAX

const dd_algorithm dd_algorithms[] = {
    {"dissemination", DD_COLL_BARRIER, DD_ORDER_NONE, false, dd_build_barrier},
    {"binomial", DD_COLL_BROADCAST, DD_ORDER_NONE, false, dd_build_broadcast_binomial},
    {"chain", DD_COLL_BROADCAST, DD_ORDER_NONE, false, dd_build_broadcast_chain},
    {"scatter_all_gather", DD_COLL_BROADCAST, DD_ORDER_NONE, false, dd_build_broadcast_shares},
    {"direct", DD_COLL_REDUCE, DD_ORDER_LINEAR, false, dd_build_fold_whole},
    {"direct_scatter_gather", DD_COLL_REDUCE, DD_ORDER_LINEAR, false, dd_build_fold_shares},
    {"binomial", DD_COLL_REDUCE, DD_ORDER_TREE, false, dd_build_fold_tree},
    {"exchange", DD_COLL_ALL_REDUCE, DD_ORDER_LINEAR, false, dd_build_fold_whole},
    {"direct", DD_COLL_ALL_REDUCE, DD_ORDER_LINEAR, false, dd_build_fold_shares},
    {"ring", DD_COLL_ALL_REDUCE, DD_ORDER_RING, false, dd_build_fold_ring},
    {"doubling", DD_COLL_ALL_REDUCE, DD_ORDER_TREE, false, dd_build_fold_tree},
    {"direct", DD_COLL_GATHER, DD_ORDER_NONE, false, dd_build_move_direct},
    {"binomial", DD_COLL_GATHER, DD_ORDER_NONE, true, dd_build_collect},
    {"direct", DD_COLL_SCATTER, DD_ORDER_NONE, false, dd_build_move_direct},
    {"binomial", DD_COLL_SCATTER, DD_ORDER_NONE, true, dd_build_scatter_binomial},
    {"direct", DD_COLL_ALL_GATHER, DD_ORDER_NONE, false, dd_build_all_gather_direct},
    {"ring", DD_COLL_ALL_GATHER, DD_ORDER_NONE, false, dd_build_all_gather_ring},
    {"bruck", DD_COLL_ALL_GATHER, DD_ORDER_NONE, true, dd_build_collect},
    {"direct", DD_COLL_REDUCE_SCATTER, DD_ORDER_LINEAR, false, dd_build_fold_shares},
    {"ring", DD_COLL_REDUCE_SCATTER, DD_ORDER_RING, false, dd_build_fold_ring},
    {"pairwise", DD_COLL_ALL_TO_ALL, DD_ORDER_NONE, false, dd_build_move_direct},
    {"bruck", DD_COLL_ALL_TO_ALL, DD_ORDER_NONE, true, dd_build_all_to_all_bruck},
    {"direct", DD_COLL_SCAN, DD_ORDER_LINEAR, false, dd_build_scan_direct},
    {"chain", DD_COLL_SCAN, DD_ORDER_LINEAR, false, dd_build_scan_chain},
    {"direct", DD_COLL_EXSCAN, DD_ORDER_LINEAR, false, dd_build_scan_direct},
    {"chain", DD_COLL_EXSCAN, DD_ORDER_LINEAR, false, dd_build_scan_chain},
    {NULL, DD_COLL_BARRIER, DD_ORDER_NONE, false, NULL},
};

const dd_algorithm *
dd_algorithm_find(dd_coll coll, const char *name)
{
    for (const dd_algorithm *row = dd_algorithms; row->name != NULL; row++) {
        if (row->coll == coll && strcmp(row->name, name) == 0) {
            return row;
        }
    }
    return NULL;
}

/* Rules in order: the first one that matches and whose algorithm supports the blocks' sizes is used
 * (docs/contributing/selection.md). */
typedef struct select_rule {
    dd_coll coll;
    int max_nranks;
    size_t max_nbytes;
    const char *algorithm;
} select_rule;

static const select_rule rules[] = {
    {DD_COLL_BARRIER, ANY_NRANKS, ANY_NBYTES, "dissemination"},

    {DD_COLL_BROADCAST, 2, ANY_NBYTES, "binomial"},
    {DD_COLL_BROADCAST, 8, 16 * KIB, "binomial"},
    {DD_COLL_BROADCAST, 8, ANY_NBYTES, "scatter_all_gather"},
    {DD_COLL_BROADCAST, 64, 1 * MIB, "binomial"},
    {DD_COLL_BROADCAST, 64, 64 * MIB, "scatter_all_gather"},
    {DD_COLL_BROADCAST, ANY_NRANKS, 8 * MIB, "binomial"},
    {DD_COLL_BROADCAST, ANY_NRANKS, ANY_NBYTES, "chain"},

    {DD_COLL_REDUCE, 2, ANY_NBYTES, "direct"},
    {DD_COLL_REDUCE, 8, 16 * KIB, "direct"},
    {DD_COLL_REDUCE, 8, ANY_NBYTES, "direct_scatter_gather"},
    {DD_COLL_REDUCE, 64, 128 * KIB, "binomial"},
    {DD_COLL_REDUCE, 64, ANY_NBYTES, "direct_scatter_gather"},
    {DD_COLL_REDUCE, 512, 1 * MIB, "binomial"},
    {DD_COLL_REDUCE, 512, ANY_NBYTES, "direct_scatter_gather"},
    {DD_COLL_REDUCE, ANY_NRANKS, 8 * MIB, "binomial"},
    {DD_COLL_REDUCE, ANY_NRANKS, ANY_NBYTES, "direct_scatter_gather"},

    {DD_COLL_ALL_REDUCE, 2, 16 * KIB, "exchange"},
    {DD_COLL_ALL_REDUCE, 8, 4 * KIB, "exchange"},
    {DD_COLL_ALL_REDUCE, 8, ANY_NBYTES, "direct"},
    {DD_COLL_ALL_REDUCE, 64, 64 * KIB, "doubling"},
    {DD_COLL_ALL_REDUCE, 16, ANY_NBYTES, "direct"},
    {DD_COLL_ALL_REDUCE, 64, 8 * MIB, "direct"},
    {DD_COLL_ALL_REDUCE, 1024, 512 * KIB, "doubling"},
    {DD_COLL_ALL_REDUCE, 1024, ANY_NBYTES, "ring"},
    {DD_COLL_ALL_REDUCE, ANY_NRANKS, 4 * MIB, "doubling"},
    {DD_COLL_ALL_REDUCE, ANY_NRANKS, ANY_NBYTES, "ring"},

    {DD_COLL_GATHER, 8, ANY_NBYTES, "direct"},
    {DD_COLL_GATHER, 64, 2 * KIB, "binomial"},
    {DD_COLL_GATHER, ANY_NRANKS, 4 * KIB, "binomial"},
    {DD_COLL_GATHER, ANY_NRANKS, ANY_NBYTES, "direct"},

    {DD_COLL_SCATTER, 8, ANY_NBYTES, "direct"},
    {DD_COLL_SCATTER, 64, 2 * KIB, "binomial"},
    {DD_COLL_SCATTER, ANY_NRANKS, 4 * KIB, "binomial"},
    {DD_COLL_SCATTER, ANY_NRANKS, ANY_NBYTES, "direct"},

    {DD_COLL_ALL_GATHER, 8, ANY_NBYTES, "direct"},
    {DD_COLL_ALL_GATHER, 64, 2 * KIB, "bruck"},
    {DD_COLL_ALL_GATHER, 64, 64 * KIB, "direct"},
    {DD_COLL_ALL_GATHER, ANY_NRANKS, 4 * KIB, "bruck"},
    {DD_COLL_ALL_GATHER, ANY_NRANKS, ANY_NBYTES, "ring"},

    {DD_COLL_REDUCE_SCATTER, 16, ANY_NBYTES, "direct"},
    {DD_COLL_REDUCE_SCATTER, 64, 64 * KIB, "direct"},
    {DD_COLL_REDUCE_SCATTER, ANY_NRANKS, 8 * KIB, "direct"},
    {DD_COLL_REDUCE_SCATTER, ANY_NRANKS, ANY_NBYTES, "ring"},

    {DD_COLL_ALL_TO_ALL, 8, ANY_NBYTES, "pairwise"},
    {DD_COLL_ALL_TO_ALL, ANY_NRANKS, 1 * KIB, "bruck"},
    {DD_COLL_ALL_TO_ALL, ANY_NRANKS, ANY_NBYTES, "pairwise"},

    {DD_COLL_SCAN, 2, ANY_NBYTES, "direct"},
    {DD_COLL_SCAN, 8, 64 * KIB, "direct"},
    {DD_COLL_SCAN, ANY_NRANKS, ANY_NBYTES, "chain"},

    {DD_COLL_EXSCAN, 2, ANY_NBYTES, "direct"},
    {DD_COLL_EXSCAN, 8, 64 * KIB, "direct"},
    {DD_COLL_EXSCAN, ANY_NRANKS, ANY_NBYTES, "chain"},
};

/* A word in the text of an override. */
typedef struct word {
    const char *text;
    int len;
} word;

static word
trim(const char *text, size_t len)
{
    while (len > 0 && text[0] == ' ') {
        text++;
        len--;
    }
    while (len > 0 && text[len - 1] == ' ') {
        len--;
    }
    return (word){.text = text, .len = (int)len};
}

static bool
is_word(word text, const char *name)
{
    return strlen(name) == (size_t)text.len && memcmp(text.text, name, (size_t)text.len) == 0;
}

/* Append a name to a list, which is truncated at `size` bytes. */
static void
append_name(char *list, size_t size, const char *name)
{
    size_t len = strlen(list);
    snprintf(list + len, size - len, "%s%s", len > 0 ? ", " : "", name);
}

static dd_status
parse_value(dd_coll coll, word value, dd_selection *selection, dd_error *err)
{
    char known[256] = "";
    for (const dd_algorithm *row = dd_algorithms; row->name != NULL; row++) {
        if (row->coll == coll && is_word(value, row->name)) {
            selection->forced[coll] = row;
            return DD_OK;
        }
        if (row->coll == coll) {
            append_name(known, sizeof known, row->name);
        }
    }
    return dd_error_set(err, DD_INVALID_ARGUMENT, "unknown algorithm \"%.*s\" for %s: expected one of %s",
                        value.len < 64 ? value.len : 64, value.text, dd_coll_name(coll), known);
}

/* Parse one part of an override: "name=value", "flat", or nothing. */
static dd_status
parse_part(const char *text, size_t len, dd_selection *selection, dd_error *err)
{
    const char *equals = memchr(text, '=', len);
    size_t name_len = equals != NULL ? (size_t)(equals - text) : len;
    word name = trim(text, name_len);
    if (equals == NULL && (name.len == 0 || is_word(name, "flat"))) {
        selection->is_flat = selection->is_flat || name.len > 0;
        return DD_OK;
    }
    char known[256] = "";
    for (int coll = 0; coll < DD_COLL_COUNT; coll++) {
        if (equals != NULL && is_word(name, dd_coll_name((dd_coll)coll))) {
            return parse_value((dd_coll)coll, trim(equals + 1, len - name_len - 1), selection, err);
        }
        append_name(known, sizeof known, dd_coll_name((dd_coll)coll));
    }
    return dd_error_set(
        err, DD_INVALID_ARGUMENT,
        "unknown choice of an algorithm: got \"%.*s\", expected \"flat\" or COLLECTIVE=ALGORITHM, for one of %s",
        name.len < 64 ? name.len : 64, name.text, known);
}

dd_status
dd_selection_parse(const char *text, dd_selection *selection, dd_error *err)
{
    dd_selection parsed = {0};
    dd_status status = DD_OK;
    while (*text != '\0' && status == DD_OK) {
        size_t len = strcspn(text, ",");
        status = parse_part(text, len, &parsed, err);
        text += len + (text[len] == ',' ? 1 : 0);
    }
    if (status == DD_OK) {
        *selection = parsed;
    }
    return status;
}

static bool
is_able(const dd_algorithm *algorithm, const dd_select_query *query)
{
    return query->is_even || !algorithm->is_even_only;
}

const dd_algorithm *
dd_select(const dd_selection *selection, const dd_select_query *query)
{
    const dd_algorithm *forced = selection->forced[query->coll];
    if (forced != NULL && is_able(forced, query)) {
        return forced;
    }
    const dd_algorithm *last = NULL;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        const select_rule *rule = &rules[i];
        if (rule->coll != query->coll) {
            continue;
        }
        last = dd_algorithm_find(rule->coll, rule->algorithm);
        if (query->nranks <= rule->max_nranks && query->nbytes <= rule->max_nbytes && is_able(last, query)) {
            break;
        }
    }
    return last;
}

static size_t
clamp(size_t value, size_t least, size_t most)
{
    return value < least ? least : value > most ? most : value;
}

/* A pipeline needs several segments, each large enough to hide the fixed cost of a message. */
#define MIN_SEGMENT (32 * KIB)
#define MAX_SEGMENT (512 * KIB)
#define MAX_SCRATCH (64 * MIB) /* limit of two scratch sets that have a segment of each rank */

size_t
dd_select_segment_nbytes(const dd_select_query *query)
{
    size_t nranks = (size_t)query->nranks;
    size_t segment = MAX_SEGMENT;
    if (query->coll == DD_COLL_BROADCAST) {
        segment = query->nbytes / clamp(nranks, 16, 256);
    } else if (dd_coll_is_array(query->coll)) {
        segment = query->nbytes / nranks / 4;
    } else if (query->coll == DD_COLL_REDUCE_SCATTER || query->coll == DD_COLL_ALL_GATHER) {
        segment = query->nbytes / 4;
    }
    segment = clamp(segment, MIN_SEGMENT, MAX_SEGMENT);
    size_t most = clamp(MAX_SCRATCH / 2 / nranks, 4 * KIB, MAX_SEGMENT);
    return clamp(segment, 64, most) / 64 * 64;
}
