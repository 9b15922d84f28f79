/* Windows on a team: memory whose bytes every rank can compute, and calls with generous
 * timeouts. */
#ifndef DD_TESTS_WINDOW_TEAM_H
#define DD_TESTS_WINDOW_TEAM_H

#include "group_team.h"
#include "window/window.h"

/* A window, and the memory of this rank in it. */
typedef struct test_window {
    dd_window *window;
    dd_region *region;
    uint8_t *data;
    size_t nbytes;
} test_window;

/* Open a window; with `is_plain`, over memory that is not a region. */
bool window_open(team_rank *self, size_t nbytes, bool is_plain, test_window *test);
/* Close the window after a barrier. */
void window_close(test_window *test);
/* Release the window without closing it. */
void window_drop(test_window *test);

void window_fill(uint8_t *bytes, uint64_t seed, size_t nbytes);
bool window_check_filled(const uint8_t *bytes, uint64_t seed, size_t nbytes);

dd_wait window_plenty(void);
dd_status window_put(const test_window *test, const void *data, size_t nbytes, dd_window_target to,
                     int channel);
dd_status window_get(const test_window *test, void *data, size_t nbytes, dd_window_target from);
dd_status window_signal(const test_window *test, int rank, int channel);
dd_status window_take(const test_window *test, int rank, int channel);

/* Run `body`, whose arg is true if memory is plain: over shared memory; over messages because of
 * plain memory, and because of TCP; and over both, with rank 1 and rank 2 each as if on its own
 * host. */
void window_run_everywhere(int size, void (*body)(team_rank *self));

#endif
