#include "observe/recorder_internal.h"

#include "core/lock.h"
#include <string.h>

void
dd_recorder_raise_alarm(dd_recorder_group *group, uint64_t record, const dd_error *error)
{
    if (atomic_exchange_explicit(&group->is_alarmed, true, memory_order_relaxed)) {
        return;
    }
    dd_recorder *recorder = group->recorder;
    dd_lock_take(&recorder->alarms_mu);
    if (recorder->nalarms_raised - recorder->nalarms_taken == ALARMS_KEPT) {
        recorder->nalarms_taken++; /* nobody takes them */
    }
    dd_alarm *alarm = &recorder->alarms[recorder->nalarms_raised++ % ALARMS_KEPT];
    alarm->uid = group->uid;
    alarm->kind = group->alarm_kind;
    memcpy(alarm->group, group->alarm_name, sizeof alarm->group);
    alarm->rank = group->alarm_rank;
    alarm->record = record;
    alarm->error = *error;
    dd_cond_signal(&recorder->alarms_cond);
    if (recorder->notify != NULL) {
        recorder->notify(recorder->notify_ctx);
    }
    dd_lock_release(&recorder->alarms_mu);
}

void
dd_recorder_notify_of_alarms(dd_recorder *recorder, void (*notify)(void *ctx), void *ctx)
{
    dd_lock_take(&recorder->alarms_mu);
    recorder->notify = notify;
    recorder->notify_ctx = ctx;
    dd_lock_release(&recorder->alarms_mu);
}

/* DD_TIMED_OUT: there is none yet. */
static dd_status
take_locked(dd_recorder *recorder, dd_alarm *alarm, dd_error *err)
{
    if (recorder->is_closed) {
        return dd_error_set(err, DD_CLOSED, "waiting for an alarm: the recorder is closed");
    }
    if (recorder->nalarms_raised == recorder->nalarms_taken) {
        return DD_TIMED_OUT;
    }
    *alarm = recorder->alarms[recorder->nalarms_taken++ % ALARMS_KEPT];
    return DD_OK;
}

dd_status
dd_recorder_take_alarm(dd_recorder *recorder, dd_alarm *alarm, const dd_wait *wait, dd_error *err)
{
    for (;;) {
        dd_lock_take(&recorder->alarms_mu);
        dd_status status = take_locked(recorder, alarm, err);
        if (status == DD_TIMED_OUT && !dd_wait_is_over(wait)) {
            dd_cond_wait_slice(&recorder->alarms_cond, &recorder->alarms_mu, wait);
            status = take_locked(recorder, alarm, err);
        }
        dd_lock_release(&recorder->alarms_mu);
        if (status != DD_TIMED_OUT) {
            return status;
        }
        if (dd_wait_is_over(wait)) {
            return dd_error_set(err, DD_TIMED_OUT, "no alarm within %.3g s", dd_wait_elapsed_s(wait));
        }
        status = dd_wait_check(wait, err);
        if (status != DD_OK) {
            return status;
        }
    }
}

void
dd_recorder_close_alarms(dd_recorder *recorder)
{
    dd_lock_take(&recorder->alarms_mu);
    recorder->is_closed = true;
    dd_cond_broadcast(&recorder->alarms_cond);
    dd_lock_release(&recorder->alarms_mu);
}
