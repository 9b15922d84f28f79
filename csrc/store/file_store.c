/* Every process replays the file's records into its own keyspace and answers requests from there.
 * To change the store, it locks the file's gate, reads the file to its end, changes the keyspace
 * and appends a record. If the record cannot be written, the keyspace is dropped and read again.
 *
 * The mutex is held for work on the keyspace and the file, but never while a thread sleeps. Threads
 * of a process share the lock on the gate, so a thread must hold the mutex to hold the gate. */
#include "store/file_store.h"

#include "core/list.h"
#include "core/lock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/system.h"
#include "core/thread.h"
#include "store/file_member.h"
#include "store/keyspace.h"

#include <errno.h>

#define POLL_MIN_NS DD_NS_PER_MS
#define POLL_MAX_NS (10 * DD_NS_PER_MS)
#define RETAINED_MAX_BYTES ((size_t)64 << 10)

/* Number of internal keys in num_keys: torch.distributed's file has one, for a rendezvous. */
#define OWN_KEYS 1

typedef struct file_store {
    dd_store head;
    dd_file_member member; /* const after open */
    dd_lock mu;
    pthread_cond_t changed; /* used with mu; broadcast when this process has changed the content */
    /* all fields below are guarded by mu */
    bool is_cut_short; /* true if the last operation timed out or was interrupted */
    dd_file_log log;
    dd_blob write_buf; /* encoded records of the change in progress */
} file_store;

/* ---- the file and the keyspace */

/* Apply the records that were added to the file since the last call to the keyspace. */
static dd_status
read_on_locked(file_store *self, dd_file_tail *tail, dd_error *err)
{
    uint64_t size;
    dd_status status = dd_file_member_check(&self->member, &size, err);
    if (status != DD_OK) {
        return status;
    }
    if (size < self->log.offset) {
        return dd_error_set(
            err, DD_STORE, "%s: another program truncated the file: got %llu bytes, expected at least %llu",
            self->member.where, (unsigned long long)size, (unsigned long long)self->log.offset);
    }
    status = dd_file_log_replay(&self->log, self->member.fd, size, tail, err);
    if (status != DD_OK) {
        dd_error_prepend(err, "%s", self->member.where);
    }
    return status;
}

/* Read the file to its end, and cut off an incomplete last record. The gate must be locked. */
static dd_status
read_to_end_locked(file_store *self, dd_error *err)
{
    dd_file_tail tail;
    dd_status status = read_on_locked(self, &tail, err);
    if (status != DD_OK || tail == DD_FILE_TAIL_CLEAN) {
        return status;
    }
    if (tail == DD_FILE_TAIL_DAMAGED) {
        return dd_error_set(err, DD_STORE, "%s: damaged record at offset %llu, followed by other records",
                            self->member.where, (unsigned long long)self->log.offset);
    }
    DD_LOG(DD_LOG_INFO, "%s: removing an incomplete record at offset %llu, whose writer has died",
           self->member.where, (unsigned long long)self->log.offset);
    return dd_file_member_cut(&self->member, self->log.offset, err);
}

/* Record types of the operations that change data. A DD_FILE_RECORD_SET has the key's new value. */
static const dd_file_record_type record_types[DD_STORE_BARRIER + 1] = {
    [DD_STORE_SET] = DD_FILE_RECORD_SET,         [DD_STORE_MULTI_SET] = DD_FILE_RECORD_SET,
    [DD_STORE_ADD] = DD_FILE_RECORD_SET,         [DD_STORE_COMPARE_SET] = DD_FILE_RECORD_SET,
    [DD_STORE_APPEND] = DD_FILE_RECORD_APPEND,   [DD_STORE_DELETE_KEY] = DD_FILE_RECORD_DELETE,
    [DD_STORE_QUEUE_PUSH] = DD_FILE_RECORD_PUSH, [DD_STORE_QUEUE_POP] = DD_FILE_RECORD_POP,
};

/* Encode into write_buf the change that a request has made to the keyspace. */
static dd_status
encode_change_locked(file_store *self, const dd_store_request *request, dd_error *err)
{
    dd_status status = DD_OK;
    for (size_t i = 0; status == DD_OK && i < request->nkeys; i++) {
        dd_file_record record = {.type = record_types[request->op], .key = request->keys[i]};
        if (record.type == DD_FILE_RECORD_SET) {
            (void)dd_keyspace_get(&self->log.ks, record.key, &record.value);
        } else if (record.type == DD_FILE_RECORD_APPEND || record.type == DD_FILE_RECORD_PUSH) {
            record.value = request->values[0];
        }
        status = dd_file_record_encode(&self->write_buf, &record, err);
    }
    return status;
}

/* Append the change that a request has made to the keyspace to the file. If `status` is a failure,
 * or appending fails, reset the keyspace. */
static dd_status
log_change_locked(file_store *self, const dd_store_request *request, dd_status status, dd_error *err)
{
    if (status == DD_OK) {
        status = encode_change_locked(self, request, err);
    }
    if (status == DD_OK) {
        status = dd_file_member_write(&self->member, dd_blob_view(&self->write_buf), self->log.offset, err);
    }
    if (status == DD_OK) {
        self->log.offset += self->write_buf.len;
    } else {
        /* If part of the record remains in the file, the next process that writes cuts it off. */
        (void)!dd_file_member_cut(&self->member, self->log.offset, NULL);
        dd_file_log_reset(&self->log);
    }
    dd_blob_clear(&self->write_buf, RETAINED_MAX_BYTES);
    return status;
}

/* ---- operations */

/* Run a request that changes data, with the gate locked. */
static dd_status
change_locked(file_store *self, const dd_store_request *request, dd_store_result *result, bool *is_answered,
              const dd_wait *wait, dd_error *err)
{
    dd_status status =
        dd_file_member_lock_gate(&self->member, dd_store_op_name(request->op), &self->mu, wait, err);
    if (status != DD_OK) {
        return status;
    }
    status = read_to_end_locked(self, err);
    if (status == DD_OK) {
        uint64_t nchanges = self->log.ks.nchanges;
        status = dd_keyspace_answer(&self->log.ks, request, result, is_answered, err);
        if (self->log.ks.nchanges != nchanges) {
            status = log_change_locked(self, request, status, err);
        }
    }
    dd_error unlocking;
    if (dd_file_member_unlock_gate(&self->member, &unlocking) != DD_OK && status == DD_OK) {
        status = dd_error_copy(err, &unlocking);
    }
    dd_cond_broadcast(&self->changed);
    return status;
}

/* Answer a request if it need not wait; otherwise *is_answered stays false. */
static dd_status
try_locked(file_store *self, const dd_store_request *request, dd_store_result *result, bool *is_answered,
           const dd_wait *wait, dd_error *err)
{
    bool is_waiting_pop = request->op == DD_STORE_QUEUE_POP && request->number != 0;
    if (record_types[request->op] != 0 && !is_waiting_pop) {
        return change_locked(self, request, result, is_answered, wait, err);
    }
    dd_file_tail tail;
    dd_file_member_sync(&self->member);
    dd_status status = read_on_locked(self, &tail, err);
    if (status != DD_OK || (is_waiting_pop && !dd_keyspace_is_ready(&self->log.ks, request))) {
        return status;
    }
    return is_waiting_pop ? change_locked(self, request, result, is_answered, wait, err)
                          : dd_keyspace_answer(&self->log.ks, request, result, is_answered, err);
}

/* Run a request. The caller must hold mu, which is released while the thread sleeps. */
static dd_status
run_locked(file_store *self, const dd_store_request *request, dd_store_result *result, const dd_wait *wait,
           dd_error *err)
{
    int64_t nap_ns = POLL_MIN_NS;
    for (;;) {
        bool is_answered = false;
        dd_status status = try_locked(self, request, result, &is_answered, wait, err);
        if (status != DD_OK || is_answered) {
            return status;
        }
        if (dd_wait_has_expired(wait)) {
            return dd_keyspace_error_missing(&self->log.ks, request, self->member.where, wait, err);
        }
        dd_wait nap = dd_wait_at_most(wait, nap_ns);
        status = dd_cond_wait_checked(&self->changed, &self->mu, &nap, err);
        if (status == DD_INTERRUPTED) {
            return status;
        }
        nap_ns = nap_ns * 2 < POLL_MAX_NS ? nap_ns * 2 : POLL_MAX_NS;
    }
}

static dd_status
file_run(dd_store *store, const dd_store_request *request, dd_store_result *result, const dd_wait *wait,
         dd_error *err)
{
    file_store *self = DD_CONTAINER_OF(store, file_store, head);
    if (request->op == DD_STORE_BARRIER || request->op == DD_STORE_MEET) {
        return dd_store_run_generic(store, request, result, wait, err);
    }
    dd_lock_take(&self->mu);
    dd_status status = run_locked(self, request, result, wait, err);
    if (status == DD_QUEUE_EMPTY) {
        dd_error_prepend(err, "%s", self->member.where);
    }
    if (request->op == DD_STORE_NUM_KEYS && status == DD_OK) {
        result->number += OWN_KEYS;
    }
    self->is_cut_short = status == DD_TIMED_OUT || status == DD_INTERRUPTED;
    dd_lock_release(&self->mu);
    return status;
}

/* ---- lifecycle */

static void
file_destroy(dd_store *store)
{
    file_store *self = DD_CONTAINER_OF(store, file_store, head);
    if (!dd_store_is_forked(store)) {
        dd_file_member_close(&self->member, !self->is_cut_short);
        dd_cond_fini(&self->changed);
        dd_lock_fini(&self->mu);
    } else if (dd_lock_was_free_at_fork(&self->mu)) {
        dd_mem_free(self->member.path);
    } else {
        return; /* leak the data, which may be half changed */
    }
    dd_file_log_fini(&self->log);
    dd_blob_fini(&self->write_buf);
    dd_mem_free(self);
}

static const dd_store_ops file_store_ops = {
    .kind = "FileStore",
    .run = file_run,
    .clone = dd_store_clone_handle,
    .has_extended_api = dd_store_extended_api_yes,
    .get_timeout_ns = dd_store_head_get_timeout_ns,
    .set_timeout_ns = dd_store_head_set_timeout_ns,
    .destroy = file_destroy,
};

dd_status
dd_file_store_open(dd_store **store, const dd_file_store_options *options, const dd_wait *wait, dd_error *err)
{
    file_store *self = dd_mem_zalloc(sizeof *self);
    if (self == NULL) {
        return dd_error_no_memory(err, sizeof *self);
    }
    dd_store_init(&self->head, &file_store_ops, options->timeout_ns);
    dd_status status = dd_file_member_join(&self->member, options->path, options->world_size, wait, err);
    if (status != DD_OK) {
        dd_mem_free(self);
        return status;
    }
    dd_lock_init(&self->mu, DD_LOCK_FILE_STORE);
    dd_cond_init(&self->changed);
    dd_file_log_init(&self->log);
    *store = &self->head;
    return DD_OK;
}

const char *
dd_file_store_path(dd_store *store)
{
    return DD_CONTAINER_OF(store->root, file_store, head)->member.path;
}
