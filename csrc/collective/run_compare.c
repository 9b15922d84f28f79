/* Ranks without a common board compare their calls by the carrier before it gets their data: a
 * small all_reduce shows whether any rank differs; if so, an all_gather shows which one. */
#include "collective/run_internal.h"

#include "core/mem.h"

#include <string.h>

#define SIGNATURE_WORDS (sizeof(dd_signature) / sizeof(uint64_t))

_Static_assert(sizeof(dd_signature) % sizeof(uint64_t) == 0, "a signature is whole words");

/* Minima over all ranks: of each word of the signature, and of its complement. The latter gives the
 * maximum of the word. */
typedef struct word_range {
    uint64_t words[SIGNATURE_WORDS];
    uint64_t complements[SIGNATURE_WORDS];
} word_range;

struct dd_run_comparison {
    dd_carried_call call;
    dd_signature own;
    word_range own_words;
    word_range all;
    dd_signature *signatures; /* [nranks]: the signatures of all ranks */
    size_t *counts;           /* [nranks]; the offsets [nranks + 1] follow in the same memory */
};

dd_status
dd_run_create_comparison(int nranks, dd_run_comparison **out, dd_error *err)
{
    size_t count = (size_t)nranks;
    dd_run_comparison *made = dd_mem_zalloc(sizeof *made);
    dd_signature *signatures = dd_mem_zalloc(count * sizeof *signatures);
    size_t *counts = dd_mem_alloc_array(2 * count + 1, sizeof *counts);
    if (made == NULL || signatures == NULL || counts == NULL) {
        dd_mem_free(made);
        dd_mem_free(signatures);
        dd_mem_free(counts);
        return dd_error_no_memory(err, sizeof *made + count * (sizeof *signatures + 2 * sizeof *counts));
    }
    for (size_t rank = 0; rank <= count; rank++) {
        counts[count + rank] = rank * sizeof(dd_signature);
    }
    for (size_t rank = 0; rank < count; rank++) {
        counts[rank] = sizeof(dd_signature);
    }
    made->signatures = signatures;
    made->counts = counts;
    *out = made;
    return DD_OK;
}

void
dd_run_destroy_comparison(dd_run_comparison *comparison)
{
    if (comparison != NULL) {
        dd_mem_free(comparison->signatures);
        dd_mem_free(comparison->counts);
        dd_mem_free(comparison);
    }
}

const dd_carried_call *
dd_run_compare(dd_run_comparison *comparison, const dd_signature *own_signature)
{
    comparison->own = *own_signature;
    memcpy(comparison->own_words.words, own_signature, sizeof *own_signature);
    for (size_t i = 0; i < SIGNATURE_WORDS; i++) {
        comparison->own_words.complements[i] = ~comparison->own_words.words[i];
    }
    comparison->call = (dd_carried_call){.coll = DD_COLL_ALL_REDUCE,
                                         .dtype = DD_DTYPE_UINT64,
                                         .op = DD_REDOP_MIN,
                                         .input = &comparison->own_words,
                                         .output = &comparison->all,
                                         .count = 2 * SIGNATURE_WORDS,
                                         .is_even = true};
    return &comparison->call;
}

bool
dd_run_is_same(const dd_run_comparison *comparison)
{
    bool is_same = true;
    for (size_t i = 0; i < SIGNATURE_WORDS; i++) {
        is_same = is_same && comparison->all.words[i] == ~comparison->all.complements[i];
    }
    return is_same;
}

const dd_carried_call *
dd_run_gather_signatures(dd_run_comparison *comparison, int nranks)
{
    comparison->call = (dd_carried_call){.coll = DD_COLL_ALL_GATHER,
                                         .dtype = DD_DTYPE_UINT8,
                                         .input = &comparison->own,
                                         .output = comparison->signatures,
                                         .count = sizeof comparison->own,
                                         .is_even = true,
                                         .out_counts = comparison->counts,
                                         .out_offsets = comparison->counts + nranks};
    return &comparison->call;
}

int
dd_run_find_different(const dd_run_comparison *comparison, int nranks, const dd_signature **peer_signature)
{
    for (int rank = 0; rank < nranks; rank++) {
        *peer_signature = &comparison->signatures[rank];
        if (memcmp(*peer_signature, &comparison->own, sizeof comparison->own) != 0) {
            return rank;
        }
    }
    return -1;
}
