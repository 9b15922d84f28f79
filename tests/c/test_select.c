#include "check.h"
#include "collective/select.h"

#include <string.h>

static const char *
choose(const char *text, dd_select_query query)
{
    dd_selection selection;
    if (!CHECK_OK(dd_selection_parse(text, &selection, check_err()))) {
        return "";
    }
    return dd_select(&selection, &query)->name;
}

/* Every query has an answer that is possible, belongs to that collective, and has a segment size
 * that plans accept. */
TEST(an_algorithm_is_selected_for_every_collective_and_size)
{
    const size_t sizes[] = {0, 1, 100, 4096, 4097, 1 << 16, 1 << 20, (size_t)1 << 30, (size_t)1 << 40};
    dd_selection selection;
    REQUIRE_OK(dd_selection_parse("", &selection, check_err()));
    for (int coll = 0; coll < DD_COLL_COUNT; coll++) {
        for (int nranks = 1; nranks <= 8192; nranks += 1 + nranks / 3) {
            for (size_t i = 0; i < 2 * sizeof sizes / sizeof sizes[0]; i++) {
                dd_select_query query = {
                    .coll = (dd_coll)coll, .nranks = nranks, .nbytes = sizes[i / 2], .is_even = i % 2 == 0};
                const dd_algorithm *chosen = dd_select(&selection, &query);
                REQUIRE(chosen != NULL);
                CHECK_INT(chosen->coll, coll);
                CHECK(query.is_even || !chosen->is_even_only);
                size_t segment = dd_select_segment_nbytes(&query);
                CHECK(segment >= 64 && segment % 64 == 0 && segment <= 1 << 20);
                CHECK(segment == 4096 || segment * (size_t)nranks <= 32 << 20);
            }
        }
    }
}

TEST(the_selected_algorithm_depends_on_size_and_number_of_ranks)
{
    dd_select_query query = {.coll = DD_COLL_ALL_REDUCE, .nranks = 4, .nbytes = 8, .is_even = true};
    CHECK(strcmp(choose("", query), "exchange") == 0);
    query.nbytes = 1 << 24;
    CHECK(strcmp(choose("", query), "direct") == 0);
    query.coll = DD_COLL_ALL_GATHER;
    query.nranks = 32;
    query.nbytes = 8;
    CHECK(strcmp(choose("", query), "bruck") == 0);
    query.is_even = false;
    CHECK(strcmp(choose("", query), "direct") == 0);
    query = (dd_select_query){.coll = DD_COLL_ALL_REDUCE, .nranks = 512, .nbytes = 1 << 28, .is_even = true};
    CHECK(strcmp(choose("", query), "ring") == 0);
}

TEST(a_requested_algorithm_is_used_if_it_supports_the_call)
{
    dd_select_query query = {.coll = DD_COLL_ALL_REDUCE, .nranks = 4, .nbytes = 8, .is_even = true};
    CHECK(strcmp(choose("all_reduce=ring", query), "ring") == 0);
    CHECK(strcmp(choose(" flat , all_reduce = doubling,", query), "doubling") == 0);
    CHECK(strcmp(choose("broadcast=chain", query), "exchange") == 0);
    query.coll = DD_COLL_ALL_TO_ALL;
    CHECK(strcmp(choose("all_to_all=bruck", query), "bruck") == 0);
    query.is_even = false;
    CHECK(strcmp(choose("all_to_all=bruck", query), "pairwise") == 0);
}

TEST(the_word_flat_in_the_setting_is_parsed_as_an_option)
{
    dd_selection selection;
    REQUIRE_OK(dd_selection_parse("broadcast=chain,flat", &selection, check_err()));
    CHECK(selection.is_flat);
    REQUIRE_OK(dd_selection_parse("", &selection, check_err()));
    CHECK(!selection.is_flat);
    CHECK(selection.forced[DD_COLL_BROADCAST] == NULL);
}

TEST(unknown_names_of_algorithms_are_refused_with_a_list_of_valid_ones)
{
    dd_selection selection = {.is_flat = true};
    CHECK_STATUS(dd_selection_parse("all_reduce=fast", &selection, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(
        check_message(),
        "unknown algorithm \"fast\" for all_reduce: expected one of exchange, direct, ring, doubling");
    CHECK_STATUS(dd_selection_parse("allreduce=ring", &selection, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(
        check_message(),
        "unknown choice of an algorithm: got \"allreduce\", expected \"flat\" or COLLECTIVE=ALGORITHM, for one of barrier, ");
    CHECK_STATUS(dd_selection_parse("flat,ring", &selection, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "\"ring\"");
    CHECK_STATUS(dd_selection_parse("all_reduce=", &selection, check_err()), DD_INVALID_ARGUMENT);
    CHECK(selection.is_flat);
}
