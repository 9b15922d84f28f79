#include "program.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* No step takes this long: a wait that ends by this timeout has missed a failure. */
#define USER_TIMEOUT_NS (60 * DD_NS_PER_S)
/* If a rank cannot join, the other ranks learn of it within this time or not at all. */
#define MEETING_GRACE_NS (DD_NS_PER_S)

const test_program programs[] = {
    {.name = "shm", .size = 2, .run = run_world_by_shared_memory},
    {.name = "tcp", .size = 3, .run = run_world_by_tcp},
    {.name = "hosts", .size = 3, .run = run_world_of_two_hosts},
    {.name = "own_store", .size = 2, .run = run_world_with_own_store, .has_own_store = true},
    {.name = "secret", .size = 2, .run = run_world_with_secret, .has_own_store = true},
    {.name = "watched", .size = 2, .run = run_watched_world},
    {.name = "dump", .size = 1, .run = run_dump, .writes_files = true},
    {.name = "tcp_store", .size = 2, .run = run_tcp_store, .has_own_store = true},
    {.name = "file_store", .size = 2, .run = run_file_store},
};
const int nprograms = sizeof programs / sizeof programs[0];

static bool
is_stopped(void *ctx)
{
    const rank_env *self = ctx;
    return dd_clock_now_ns() >= atomic_load(&self->board->stop_at_ns);
}

dd_wait
step_wait(rank_env *self)
{
    dd_wait wait = dd_wait_after(USER_TIMEOUT_NS);
    wait.is_interrupted = is_stopped;
    wait.ctx = self;
    return wait;
}

bool
has_failed(const rank_env *self)
{
    return self->report->error.code != DD_OK;
}

void
complain(rank_env *self, const char *format, ...)
{
    if (self->report->complaint[0] == '\0') {
        va_list args;
        va_start(args, format);
        (void)vsnprintf(self->report->complaint, sizeof self->report->complaint, format, args);
        va_end(args);
    }
}

void
begin_step(rank_env *self, const char *name)
{
    memset(&self->error, 0, sizeof self->error);
    if (!has_failed(self)) {
        self->report->step = name;
    }
}

/* Ask the starter to end the ranks that may not learn of the failure otherwise. */
static void
request_end_of_ranks(rank_env *self, failure_scope scope)
{
    int64_t stop_at_ns = dd_clock_now_ns() + (scope == SCOPE_MEETING ? MEETING_GRACE_NS : 0);
    int64_t now = atomic_load(&self->board->stop_at_ns);
    while (stop_at_ns < now && !atomic_compare_exchange_weak(&self->board->stop_at_ns, &now, stop_at_ns)) {
    }
}

bool
end_step(rank_env *self, failure_scope scope, dd_status status)
{
    if (status == DD_OK) {
        return true;
    }
    if (status != self->error.code || self->error.message[0] == '\0') {
        complain(self, "%s is %s with the error %s, \"%.60s\"", self->report->step, dd_status_name(status),
                 dd_status_name(self->error.code), self->error.message);
        self->error.code = status;
    }
    if (!has_failed(self)) {
        self->report->error = self->error;
    }
    if (scope != SCOPE_GROUP) {
        request_end_of_ranks(self, scope);
    }
    return false;
}
