#include "store/file_shared.h"

#include "core/log.h"
#include "core/mem.h"
#include "core/thread.h"

#include <errno.h>
#include <unistd.h>

#define KEEP_BYTES ((size_t)64 << 10)

/* ---- reading and writing the file */

/* Brings the keyspace up to date with the file. */
static dd_status
read_on_locked(dd_file_shared *shared, dd_file_tail *tail, dd_error *err)
{
    uint64_t size;
    dd_status status = dd_file_member_check(&shared->member, &size, err);
    if (status != DD_OK) {
        return status;
    }
    if (size < shared->log.offset) {
        return dd_error_set(err, DD_STORE, "%s: the file was cut to %llu bytes by a stranger; %llu were read",
                            shared->member.where, (unsigned long long)size,
                            (unsigned long long)shared->log.offset);
    }
    *tail = DD_FILE_TAIL_CLEAN;
    if (size == shared->log.offset) {
        return DD_OK;
    }
    atomic_store(&shared->is_changing, true);
    status = dd_file_log_replay(&shared->log, shared->member.fd, size, tail, err);
    atomic_store(&shared->is_changing, false);
    if (status != DD_OK) {
        dd_error_prepend(err, "%s", shared->member.where);
    }
    return status;
}

/* The same for who holds the gate: the log ends with a whole record then. */
static dd_status
read_to_end_locked(dd_file_shared *shared, dd_error *err)
{
    dd_file_tail tail;
    dd_status status = read_on_locked(shared, &tail, err);
    if (status != DD_OK || tail == DD_FILE_TAIL_CLEAN) {
        return status;
    }
    if (tail == DD_FILE_TAIL_DAMAGED) {
        return dd_error_set(err, DD_STORE, "%s: damaged record at offset %llu, with others after it",
                            shared->member.where, (unsigned long long)shared->log.offset);
    }
    DD_LOG(DD_LOG_INFO, "%s: cutting off half a record at offset %llu, of a writer that died",
           shared->member.where, (unsigned long long)shared->log.offset);
    if (ftruncate(shared->member.fd, (off_t)shared->log.offset) != 0) {
        return dd_error_set_errno(err, DD_SYSTEM, errno, "%s: cannot cut off half a record",
                                  shared->member.where);
    }
    return DD_OK;
}

dd_status
dd_file_shared_commit(dd_file_shared *shared, dd_status status, dd_error *err)
{
    if (status == DD_OK) {
        status =
            dd_file_member_write(&shared->member, dd_blob_view(&shared->write_buf), shared->log.offset, err);
        if (status == DD_OK) {
            shared->log.offset += shared->write_buf.len;
        } else if (ftruncate(shared->member.fd, (off_t)shared->log.offset) != 0) {
            DD_LOG(DD_LOG_INFO, "%s: half a record stays until the next write", shared->member.where);
        }
    }
    if (status != DD_OK) {
        dd_file_log_reset(&shared->log);
    }
    dd_blob_clear(&shared->write_buf, KEEP_BYTES);
    return status;
}

dd_status
dd_file_shared_log(dd_file_shared *shared, const dd_file_record *record, dd_error *err)
{
    return dd_file_shared_commit(shared, dd_file_record_encode(&shared->write_buf, record, err), err);
}

dd_status
dd_file_shared_change(dd_file_shared *shared, const dd_file_record *record, dd_error *err)
{
    dd_status status = dd_file_record_apply(&shared->log.ks, record, err);
    return status == DD_OK ? dd_file_shared_log(shared, record, err) : status;
}

/* ---- taking turns */

void
dd_file_shared_end_read(dd_file_shared *shared, dd_status status)
{
    shared->is_cut_short = status == DD_TIMED_OUT || status == DD_INTERRUPTED;
    pthread_mutex_unlock(&shared->mu);
}

dd_status
dd_file_shared_begin_read(dd_file_shared *shared, dd_error *err)
{
    pthread_mutex_lock(&shared->mu);
    dd_file_member_look(&shared->member);
    dd_file_tail tail;
    dd_status status = read_on_locked(shared, &tail, err);
    if (status != DD_OK) {
        dd_file_shared_end_read(shared, status);
    }
    return status;
}

dd_status
dd_file_shared_nap(dd_file_shared *shared, int64_t nap_ns, const dd_wait *wait, dd_error *err)
{
    dd_wait nap = dd_wait_at_most(wait, nap_ns);
    dd_cond_wait_slice(&shared->changed, &shared->mu, &nap);
    pthread_mutex_unlock(&shared->mu);
    dd_status status = dd_wait_check(wait, err);
    if (status != DD_OK) {
        pthread_mutex_lock(&shared->mu);
        dd_file_shared_end_read(shared, status);
    }
    return status;
}

/* Waits for the other threads of this process. Called with the mutex, holds it after in any case. */
static dd_status
take_turn_locked(dd_file_shared *shared, const char *what, const dd_wait *wait, dd_error *err)
{
    while (shared->is_gate_taken) {
        if (dd_wait_is_over(wait)) {
            return dd_error_set(
                err, DD_TIMED_OUT,
                "%s timed out after %.3f s on %s: another thread uses or awaits the file's lock", what,
                dd_wait_elapsed_s(wait), shared->member.where);
        }
        dd_cond_wait_slice(&shared->changed, &shared->mu, wait);
        pthread_mutex_unlock(&shared->mu);
        dd_status status = dd_wait_check(wait, err);
        pthread_mutex_lock(&shared->mu);
        if (status != DD_OK) {
            return status;
        }
    }
    shared->is_gate_taken = true;
    return DD_OK;
}

static void
give_turn_locked(dd_file_shared *shared)
{
    shared->is_gate_taken = false;
    pthread_cond_broadcast(&shared->changed);
}

void
dd_file_shared_end_write(dd_file_shared *shared, dd_status status)
{
    atomic_store(&shared->is_changing, false);
    dd_file_member_unlock_gate(&shared->member);
    give_turn_locked(shared);
    dd_file_shared_end_read(shared, status);
}

dd_status
dd_file_shared_begin_write(dd_file_shared *shared, const char *what, const dd_wait *wait, dd_error *err)
{
    pthread_mutex_lock(&shared->mu);
    dd_status status = take_turn_locked(shared, what, wait, err);
    if (status != DD_OK) {
        dd_file_shared_end_read(shared, status);
        return status;
    }
    pthread_mutex_unlock(&shared->mu);
    status = dd_file_member_lock_gate(&shared->member, what, wait, err);
    pthread_mutex_lock(&shared->mu);
    if (status != DD_OK) {
        give_turn_locked(shared);
        dd_file_shared_end_read(shared, status);
        return status;
    }
    status = read_to_end_locked(shared, err);
    if (status != DD_OK) {
        dd_file_shared_end_write(shared, status);
        return status;
    }
    atomic_store(&shared->is_changing, true);
    return DD_OK;
}

/* ---- life */

dd_status
dd_file_shared_join(dd_file_shared *shared, const char *path, int64_t world_size, const dd_wait *wait,
                    dd_error *err)
{
    dd_status status = dd_file_member_join(&shared->member, path, world_size, wait, err);
    if (status != DD_OK) {
        return status;
    }
    atomic_init(&shared->refs, 1);
    atomic_init(&shared->is_changing, false);
    dd_mutex_init(&shared->mu);
    dd_cond_init(&shared->changed);
    dd_file_log_init(&shared->log);
    return DD_OK;
}

void
dd_file_shared_acquire(dd_file_shared *shared)
{
    atomic_fetch_add_explicit(&shared->refs, 1, memory_order_relaxed);
}

static void
free_shared(dd_file_shared *shared)
{
    dd_file_log_fini(&shared->log);
    dd_blob_fini(&shared->write_buf);
    dd_mem_free(shared);
}

void
dd_file_shared_release(dd_file_shared *shared, bool is_forked)
{
    if (atomic_fetch_sub_explicit(&shared->refs, 1, memory_order_acq_rel) > 1) {
        return;
    }
    if (!is_forked) {
        dd_file_member_leave(&shared->member, !shared->is_cut_short);
        (void)pthread_cond_destroy(&shared->changed);
        (void)pthread_mutex_destroy(&shared->mu);
        free_shared(shared);
        return;
    }
    dd_file_member_abandon(&shared->member);
    /* A thread that did not come along may have been in the middle of a change. */
    if (!atomic_load(&shared->is_changing)) {
        free_shared(shared);
    }
}
