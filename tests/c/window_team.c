#include "window_team.h"

#include "check.h"

#include <stdlib.h>
#include <string.h>

dd_wait
window_plenty(void)
{
    return dd_wait_after(20 * DD_NS_PER_S * check_slow());
}

bool
window_open(team_rank *self, size_t nbytes, bool is_plain, test_window *test)
{
    dd_wait wait = window_plenty();
    *test = (test_window){.nbytes = nbytes};
    if (is_plain) {
        test->data = calloc(nbytes + 1, 1);
    } else if (CHECK_OK(dd_group_alloc(self->group, nbytes, &test->region, check_err()))) {
        test->data = dd_region_data(test->region);
    }
    dd_window_options options = {.data = test->data, .nbytes = nbytes, .region = test->region};
    return CHECK_OK(dd_window_open(self->group, &options, &test->window, &wait, check_err()));
}

void
window_close(test_window *test)
{
    dd_wait wait = window_plenty();
    CHECK_OK(dd_window_barrier(test->window, 0, &wait, check_err()));
    window_drop(test);
}

void
window_drop(test_window *test)
{
    dd_window_release(test->window);
    if (test->region == NULL) {
        free(test->data);
    }
    dd_region_release(test->region);
}

static uint8_t
byte_at(uint64_t seed, size_t i)
{
    return (uint8_t)(seed * 31 + i * 7 + i / 256);
}

void
window_fill(uint8_t *bytes, uint64_t seed, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++) {
        bytes[i] = byte_at(seed, i);
    }
}

bool
window_check_filled(const uint8_t *bytes, uint64_t seed, size_t nbytes)
{
    size_t nwrong = 0;
    for (size_t i = 0; i < nbytes; i++) {
        nwrong += bytes[i] != byte_at(seed, i);
    }
    return CHECK_INT(nwrong, 0);
}

dd_status
window_put(const test_window *test, const void *data, size_t nbytes, dd_window_target to, int channel)
{
    dd_wait wait = window_plenty();
    dd_block block = {.data = (void *)(uintptr_t)data, .nbytes = nbytes};
    return dd_window_put(test->window, block, to, channel, &wait, check_err());
}

dd_status
window_get(const test_window *test, void *data, size_t nbytes, dd_window_target from)
{
    dd_wait wait = window_plenty();
    dd_block block = {.data = data, .nbytes = nbytes};
    return dd_window_get(test->window, block, from, &wait, check_err());
}

dd_status
window_signal(const test_window *test, int rank, int channel)
{
    dd_wait wait = window_plenty();
    return dd_window_signal(test->window, rank, channel, &wait, check_err());
}

dd_status
window_take(const test_window *test, int rank, int channel)
{
    dd_wait wait = window_plenty();
    return dd_window_wait_signal(test->window, rank, channel, &wait, check_err());
}

void
window_run_everywhere(int size, void (*body)(team_rank *self))
{
    bool is_plain = false;
    team_options options = {.size = size};
    team_run(&options, body, &is_plain);
    is_plain = true;
    team_run(&options, body, &is_plain);
    options.is_shm_disabled = true;
    team_run(&options, body, &is_plain);
    is_plain = false;
    options = (team_options){.size = size, .single_ranks = 6};
    team_run(&options, body, &is_plain);
}
