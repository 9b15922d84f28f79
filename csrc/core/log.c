#include "core/log.h"

#include "core/lock.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define RING_RECORDS 256u

/* The log of the process. All objects share it, like stderr, so it may be global. */
static atomic_int log_level = DD_LOG_OFF;
static dd_lock ring_mu = DD_LOCK_INITIALIZER(DD_LOCK_LOG);
static pthread_cond_t ring_cond;
static pthread_once_t ring_once = PTHREAD_ONCE_INIT;
/* The ring of records: guarded by ring_mu, like its counters. */
static dd_log_record ring[RING_RECORDS];
static unsigned ring_first;
static unsigned ring_count;
static unsigned ring_lost;

/* Reset the log in a forked child, because another thread may have held the lock at the fork. */
static void
reset_in_child(void)
{
    dd_lock_init(&ring_mu, DD_LOCK_LOG);
    dd_cond_init(&ring_cond);
    ring_count = 0;
}

static void
ring_init(void)
{
    dd_cond_init(&ring_cond);
    (void)pthread_atfork(NULL, NULL, reset_in_child);
}

bool
dd_log_level_parse(const char *text, dd_log_level *level)
{
    static const struct {
        const char *name;
        dd_log_level level;
    } names[] = {{"", DD_LOG_OFF}, {"off", DD_LOG_OFF}, {"info", DD_LOG_INFO}, {"debug", DD_LOG_DEBUG}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcasecmp(text, names[i].name) == 0) {
            *level = names[i].level;
            return true;
        }
    }
    return false;
}

void
dd_log_set_level(dd_log_level level)
{
    (void)pthread_once(&ring_once, ring_init);
    atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
}

dd_log_level
dd_log_get_level(void)
{
    return (dd_log_level)atomic_load_explicit(&log_level, memory_order_relaxed);
}

void
dd_log_write(dd_log_level level, const char *format, ...)
{
    dd_log_record record = {
        .level = level,
        .unix_time_s = (double)dd_clock_calendar_ns() / (double)DD_NS_PER_S,
    };
    va_list args;
    va_start(args, format);
    (void)vsnprintf(record.message, sizeof record.message, format, args);
    va_end(args);

    dd_lock_take(&ring_mu);
    if (ring_count == RING_RECORDS) {
        ring_first = (ring_first + 1) % RING_RECORDS;
        ring_count--;
        ring_lost++;
    }
    ring[(ring_first + ring_count) % RING_RECORDS] = record;
    ring_count++;
    dd_cond_signal(&ring_cond);
    dd_lock_release(&ring_mu);
}

dd_status
dd_log_take(dd_log_record *record, const dd_wait *wait, dd_error *err)
{
    dd_status status = DD_OK;
    (void)pthread_once(&ring_once, ring_init);
    dd_lock_take(&ring_mu);
    while (ring_count == 0 && status == DD_OK) {
        status = dd_cond_wait_checked(&ring_cond, &ring_mu, wait, err);
    }
    if (ring_count > 0) {
        *record = ring[ring_first];
        record->lost = ring_lost;
        ring_lost = 0;
        ring_first = (ring_first + 1) % RING_RECORDS;
        ring_count--;
        status = DD_OK;
    }
    dd_lock_release(&ring_mu);
    return status == DD_TIMED_OUT ? dd_error_set(err, DD_TIMED_OUT, "no log record") : status;
}
