/* Log records for the application. Logging is off until a level is set.
 *
 * The library prints nothing and runs no foreign code. It puts records into a ring of limited size,
 * and a thread of the application fetches them (for Python's logging: csrc/python/base/log.c). If
 * the ring is full, the oldest record is dropped and counted. Any thread may log. */
#ifndef DD_CORE_LOG_H
#define DD_CORE_LOG_H

#include "core/status.h"
#include "core/wait.h"

#include <stdbool.h>

typedef enum dd_log_level {
    DD_LOG_OFF,
    DD_LOG_INFO,
    DD_LOG_DEBUG,
} dd_log_level;

typedef struct dd_log_record {
    dd_log_level level;
    double unix_time_s;
    unsigned lost; /* number of records dropped between the previous record and this one */
    char message[480];
} dd_log_record;

/* Parse "off", "info" or "debug", in any case; "" means off. Return false for any other text. */
bool dd_log_level_parse(const char *text, dd_log_level *level);

void dd_log_set_level(dd_log_level level);
dd_log_level dd_log_get_level(void);

/* Write a record if the level is enabled; otherwise the arguments are not evaluated. */
#define DD_LOG(level, ...)                      \
    do {                                        \
        if (dd_log_get_level() >= (level)) {    \
            dd_log_write((level), __VA_ARGS__); \
        }                                       \
    } while (0)

void dd_log_write(dd_log_level level, const char *format, ...) DD_PRINTF(2, 3);

/* Remove and return the oldest record. Waits for one until the deadline, then DD_TIMED_OUT. */
dd_status dd_log_take(dd_log_record *record, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

#endif
