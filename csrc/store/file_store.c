/* The operations of a FileStore, each of them one look at, or one change of, what the process shares
 * (file_shared.h). */
#include "store/file_store.h"

#include "core/mem.h"
#include "store/file_shared.h"

#define POLL_MIN_NS DD_NS_PER_MS
#define POLL_MAX_NS (10 * DD_NS_PER_MS)

typedef struct file_store {
    dd_store base;
    dd_file_shared *shared; /* const after init; counted */
} file_store;

static dd_file_shared *
shared_of(dd_store *store)
{
    return ((file_store *)store)->shared;
}

/* ---- changing */

static dd_status
write_record(dd_store *store, const char *what, const dd_file_record *record, const dd_wait *wait,
             dd_error *err)
{
    dd_file_shared *shared = shared_of(store);
    dd_status status = dd_file_shared_begin_write(shared, what, wait, err);
    if (status != DD_OK) {
        return status;
    }
    status = dd_file_shared_change(shared, record, err);
    dd_file_shared_end_write(shared, status);
    return status;
}

static dd_status
file_set(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    dd_file_record record = {DD_FILE_RECORD_SET, key, value};
    return write_record(store, "set", &record, wait, err);
}

static dd_status
file_append(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    dd_file_record record = {DD_FILE_RECORD_APPEND, key, value};
    return write_record(store, "append", &record, wait, err);
}

static dd_status
file_queue_push(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    dd_file_record record = {DD_FILE_RECORD_PUSH, key, value};
    return write_record(store, "queue_push", &record, wait, err);
}

static dd_status
file_multi_set(dd_store *store, const dd_bytes *keys, const dd_bytes *values, size_t nkeys,
               const dd_wait *wait, dd_error *err)
{
    dd_file_shared *shared = shared_of(store);
    dd_status status = dd_file_shared_begin_write(shared, "multi_set", wait, err);
    if (status != DD_OK) {
        return status;
    }
    for (size_t i = 0; i < nkeys && status == DD_OK; i++) {
        dd_file_record record = {DD_FILE_RECORD_SET, keys[i], values[i]};
        status = dd_file_record_apply(&shared->log.ks, &record, err);
        if (status == DD_OK) {
            status = dd_file_record_encode(&shared->write_buf, &record, err);
        }
    }
    status = dd_file_shared_commit(shared, status, err);
    dd_file_shared_end_write(shared, status);
    return status;
}

static dd_status
file_add(dd_store *store, dd_bytes key, int64_t amount, int64_t *sum, const dd_wait *wait, dd_error *err)
{
    dd_file_shared *shared = shared_of(store);
    dd_status status = dd_file_shared_begin_write(shared, "add", wait, err);
    if (status != DD_OK) {
        return status;
    }
    int64_t result;
    status = dd_keyspace_add(&shared->log.ks, key, amount, &result, err);
    if (status == DD_OK) {
        dd_file_record record = {DD_FILE_RECORD_SET, key, {0}};
        (void)dd_keyspace_get(&shared->log.ks, key, &record.value);
        status = dd_file_shared_log(shared, &record, err);
    }
    dd_file_shared_end_write(shared, status);
    if (status == DD_OK) {
        *sum = result;
    }
    return status;
}

/* Takes what the operation found into the caller's blob. */
static void
move_blob(dd_blob *to, dd_blob *from)
{
    dd_blob_fini(to);
    *to = *from;
    *from = (dd_blob){0};
}

static dd_status
file_compare_set(dd_store *store, dd_bytes key, dd_bytes expected, dd_bytes desired, dd_blob *value,
                 const dd_wait *wait, dd_error *err)
{
    dd_file_shared *shared = shared_of(store);
    dd_status status = dd_file_shared_begin_write(shared, "compare_set", wait, err);
    if (status != DD_OK) {
        return status;
    }
    dd_bytes current = expected;
    bool is_there = dd_keyspace_get(&shared->log.ks, key, &current);
    bool is_to_set = is_there ? dd_bytes_equal(current, expected) : expected.len == 0;
    dd_blob result = {0};
    status = dd_blob_assign(&result, is_to_set ? desired : current, err);
    if (status == DD_OK && is_to_set) {
        dd_file_record record = {DD_FILE_RECORD_SET, key, desired};
        status = dd_file_shared_change(shared, &record, err);
    }
    dd_file_shared_end_write(shared, status);
    if (status == DD_OK) {
        move_blob(value, &result);
    }
    dd_blob_fini(&result);
    return status;
}

static dd_status
file_delete_key(dd_store *store, dd_bytes key, bool *is_deleted, const dd_wait *wait, dd_error *err)
{
    dd_file_shared *shared = shared_of(store);
    dd_status status = dd_file_shared_begin_write(shared, "delete_key", wait, err);
    if (status != DD_OK) {
        return status;
    }
    bool was_there = dd_keyspace_delete(&shared->log.ks, key);
    if (was_there) {
        dd_file_record record = {DD_FILE_RECORD_DELETE, key, {0}};
        status = dd_file_shared_log(shared, &record, err);
    }
    dd_file_shared_end_write(shared, status);
    if (status == DD_OK) {
        *is_deleted = was_there;
    }
    return status;
}

/* ---- waiting */

typedef bool (*is_there_fn)(const dd_keyspace *ks, dd_bytes key);

static bool
has_value(const dd_keyspace *ks, dd_bytes key)
{
    dd_bytes value;
    return dd_keyspace_get(ks, key, &value);
}

static bool
has_item(const dd_keyspace *ks, dd_bytes key)
{
    return dd_keyspace_queue_len(ks, key) > 0;
}

typedef struct awaited_keys {
    const char *what;
    is_there_fn is_there;
    const dd_bytes *keys;
    size_t nkeys;
} awaited_keys;

static bool
are_all_there_locked(const dd_file_shared *shared, const awaited_keys *awaited)
{
    for (size_t i = 0; i < awaited->nkeys; i++) {
        if (!awaited->is_there(&shared->log.ks, awaited->keys[i])) {
            return false;
        }
    }
    return true;
}

static dd_status
error_missing_locked(const dd_file_shared *shared, const awaited_keys *awaited, const dd_wait *wait,
                     dd_error *err)
{
    dd_bytes missing[DD_STORE_MISSING_SHOWN];
    size_t nmissing = 0;
    for (size_t i = 0; i < awaited->nkeys; i++) {
        if (!awaited->is_there(&shared->log.ks, awaited->keys[i])) {
            if (nmissing < DD_STORE_MISSING_SHOWN) {
                missing[nmissing] = awaited->keys[i];
            }
            nmissing++;
        }
    }
    return dd_store_error_missing(err, awaited->what, shared->member.where, missing, nmissing, awaited->nkeys,
                                  wait);
}

/* As dd_file_shared_begin_read, once all keys are there. */
static dd_status
begin_read_when_there(dd_file_shared *shared, const awaited_keys *awaited, const dd_wait *wait, dd_error *err)
{
    int64_t nap_ns = POLL_MIN_NS;
    for (;;) {
        dd_status status = dd_file_shared_begin_read(shared, err);
        if (status != DD_OK || are_all_there_locked(shared, awaited)) {
            return status;
        }
        if (dd_wait_is_over(wait)) {
            status = error_missing_locked(shared, awaited, wait, err);
            dd_file_shared_end_read(shared, status);
            return status;
        }
        status = dd_file_shared_nap(shared, nap_ns, wait, err);
        if (status != DD_OK) {
            return status;
        }
        nap_ns = nap_ns * 2 < POLL_MAX_NS ? nap_ns * 2 : POLL_MAX_NS;
    }
}

static dd_status
file_get(dd_store *store, dd_bytes key, dd_blob *value, const dd_wait *wait, dd_error *err)
{
    dd_file_shared *shared = shared_of(store);
    awaited_keys awaited = {"get", has_value, &key, 1};
    dd_status status = begin_read_when_there(shared, &awaited, wait, err);
    if (status == DD_OK) {
        dd_bytes found = {0};
        (void)dd_keyspace_get(&shared->log.ks, key, &found);
        status = dd_blob_assign(value, found, err);
        dd_file_shared_end_read(shared, status);
    }
    return status;
}

static dd_status
file_wait(dd_store *store, const dd_bytes *keys, size_t nkeys, const dd_wait *wait, dd_error *err)
{
    dd_file_shared *shared = shared_of(store);
    awaited_keys awaited = {"wait", dd_keyspace_has, keys, nkeys};
    dd_status status = begin_read_when_there(shared, &awaited, wait, err);
    if (status == DD_OK) {
        dd_file_shared_end_read(shared, status);
    }
    return status;
}

static dd_status
file_multi_get(dd_store *store, const dd_bytes *keys, size_t nkeys, dd_blob_list *values, const dd_wait *wait,
               dd_error *err)
{
    dd_file_shared *shared = shared_of(store);
    awaited_keys awaited = {"multi_get", has_value, keys, nkeys};
    dd_status status = begin_read_when_there(shared, &awaited, wait, err);
    if (status != DD_OK) {
        return status;
    }
    status = dd_blob_list_init(values, nkeys, err);
    for (size_t i = 0; i < nkeys && status == DD_OK; i++) {
        dd_bytes found = {0};
        (void)dd_keyspace_get(&shared->log.ks, keys[i], &found);
        status = dd_blob_assign(&values->items[i], found, err);
    }
    dd_file_shared_end_read(shared, status);
    if (status != DD_OK) {
        dd_blob_list_fini(values);
    }
    return status;
}

/* Takes the first item, if there is one. */
static dd_status
try_pop(dd_store *store, dd_bytes key, dd_blob *item, bool *is_popped, const dd_wait *wait, dd_error *err)
{
    dd_file_shared *shared = shared_of(store);
    dd_status status = dd_file_shared_begin_write(shared, "queue_pop", wait, err);
    if (status != DD_OK) {
        return status;
    }
    *is_popped = dd_keyspace_queue_pop(&shared->log.ks, key, item);
    if (*is_popped) {
        dd_file_record record = {DD_FILE_RECORD_POP, key, {0}};
        status = dd_file_shared_log(shared, &record, err);
    }
    dd_file_shared_end_write(shared, status);
    return status;
}

static dd_status
file_queue_pop(dd_store *store, dd_bytes key, bool is_blocking, dd_blob *value, const dd_wait *wait,
               dd_error *err)
{
    dd_file_shared *shared = shared_of(store);
    dd_blob item = {0};
    bool is_popped = false;
    dd_status status = DD_OK;
    do {
        if (is_blocking) {
            awaited_keys awaited = {"queue_pop", has_item, &key, 1};
            status = begin_read_when_there(shared, &awaited, wait, err);
            if (status == DD_OK) {
                dd_file_shared_end_read(shared, status);
            }
        }
        if (status == DD_OK) {
            status = try_pop(store, key, &item, &is_popped, wait, err);
        }
    } while (status == DD_OK && !is_popped && is_blocking);
    if (status == DD_OK && !is_popped) {
        char text[80];
        status = dd_error_set(err, DD_QUEUE_EMPTY, "queue %s of %s is empty",
                              dd_bytes_print(key, text, sizeof text), shared->member.where);
    }
    if (status == DD_OK) {
        move_blob(value, &item);
    }
    dd_blob_fini(&item);
    return status;
}

/* ---- looking */

static dd_status
file_try_get(dd_store *store, dd_bytes key, dd_blob *value, bool *is_found, const dd_wait *wait,
             dd_error *err)
{
    (void)wait;
    dd_file_shared *shared = shared_of(store);
    dd_status status = dd_file_shared_begin_read(shared, err);
    if (status != DD_OK) {
        return status;
    }
    dd_bytes found = {0};
    bool is_there = dd_keyspace_get(&shared->log.ks, key, &found);
    if (is_there) {
        status = dd_blob_assign(value, found, err);
    }
    dd_file_shared_end_read(shared, status);
    if (status == DD_OK) {
        *is_found = is_there;
    }
    return status;
}

static dd_status
file_check(dd_store *store, const dd_bytes *keys, size_t nkeys, bool *is_ready, const dd_wait *wait,
           dd_error *err)
{
    (void)wait;
    dd_file_shared *shared = shared_of(store);
    dd_status status = dd_file_shared_begin_read(shared, err);
    if (status == DD_OK) {
        awaited_keys awaited = {"check", dd_keyspace_has, keys, nkeys};
        *is_ready = are_all_there_locked(shared, &awaited);
        dd_file_shared_end_read(shared, status);
    }
    return status;
}

static dd_status
file_num_keys(dd_store *store, int64_t *count, const dd_wait *wait, dd_error *err)
{
    (void)wait;
    dd_file_shared *shared = shared_of(store);
    dd_status status = dd_file_shared_begin_read(shared, err);
    if (status == DD_OK) {
        *count = shared->log.ks.nvalues;
        dd_file_shared_end_read(shared, status);
    }
    return status;
}

static dd_status
file_queue_len(dd_store *store, dd_bytes key, int64_t *count, const dd_wait *wait, dd_error *err)
{
    (void)wait;
    dd_file_shared *shared = shared_of(store);
    dd_status status = dd_file_shared_begin_read(shared, err);
    if (status == DD_OK) {
        *count = dd_keyspace_queue_len(&shared->log.ks, key);
        dd_file_shared_end_read(shared, status);
    }
    return status;
}

static dd_status
file_list_keys(dd_store *store, dd_blob_list *keys, const dd_wait *wait, dd_error *err)
{
    (void)wait;
    dd_file_shared *shared = shared_of(store);
    dd_status status = dd_file_shared_begin_read(shared, err);
    if (status != DD_OK) {
        return status;
    }
    status = dd_blob_list_init(keys, (size_t)shared->log.ks.nvalues, err);
    const dd_map_node *cursor = NULL;
    dd_bytes key;
    for (size_t i = 0; status == DD_OK && dd_keyspace_next_key(&shared->log.ks, &cursor, &key); i++) {
        status = dd_blob_assign(&keys->items[i], key, err);
    }
    dd_file_shared_end_read(shared, status);
    if (status != DD_OK) {
        dd_blob_list_fini(keys);
    }
    return status;
}

/* ---- life */

static const dd_store_ops file_store_ops;

/* A handle on `shared`, which it counts as given. */
static dd_status
handle_create(dd_store **store, dd_file_shared *shared, int64_t timeout_ns, dd_error *err)
{
    file_store *handle = dd_mem_zalloc(sizeof *handle);
    if (handle == NULL) {
        return dd_error_no_memory(err, sizeof *handle);
    }
    dd_store_init(&handle->base, &file_store_ops, timeout_ns);
    handle->shared = shared;
    *store = &handle->base;
    return DD_OK;
}

static dd_status
file_clone(dd_store *store, dd_store **other, const dd_wait *wait, dd_error *err)
{
    (void)wait;
    dd_file_shared *shared = shared_of(store);
    dd_status status = handle_create(other, shared, dd_store_head_get_timeout_ns(store), err);
    if (status == DD_OK) {
        dd_file_shared_acquire(shared);
    }
    return status;
}

static void
file_destroy(dd_store *store)
{
    dd_file_shared *shared = shared_of(store);
    bool is_forked = dd_store_is_forked(store);
    dd_mem_free((file_store *)store);
    dd_file_shared_release(shared, is_forked);
}

static const dd_store_ops file_store_ops = {
    .kind = "FileStore",
    .set = file_set,
    .get = file_get,
    .try_get = file_try_get,
    .add = file_add,
    .compare_set = file_compare_set,
    .wait = file_wait,
    .check = file_check,
    .delete_key = file_delete_key,
    .num_keys = file_num_keys,
    .append = file_append,
    .multi_get = file_multi_get,
    .multi_set = file_multi_set,
    .queue_push = file_queue_push,
    .queue_pop = file_queue_pop,
    .queue_len = file_queue_len,
    .list_keys = file_list_keys,
    .barrier = dd_store_generic_barrier,
    .clone = file_clone,
    .has_extended_api = dd_store_extended_api_yes,
    .get_timeout_ns = dd_store_head_get_timeout_ns,
    .set_timeout_ns = dd_store_head_set_timeout_ns,
    .destroy = file_destroy,
};

dd_status
dd_file_store_open(dd_store **store, const dd_file_store_options *options, const dd_wait *wait, dd_error *err)
{
    dd_file_shared *shared = dd_mem_zalloc(sizeof *shared);
    if (shared == NULL) {
        return dd_error_no_memory(err, sizeof *shared);
    }
    dd_store *handle = NULL;
    dd_status status = handle_create(&handle, shared, options->timeout_ns, err);
    if (status != DD_OK) {
        dd_mem_free(shared);
        return status;
    }
    /* Joining comes last: a member that could not be made in full would count as one that crashed. */
    status = dd_file_shared_join(shared, options->path, options->world_size, wait, err);
    if (status != DD_OK) {
        dd_mem_free((file_store *)handle);
        dd_mem_free(shared);
        return status;
    }
    *store = handle;
    return DD_OK;
}

const char *
dd_file_store_path(dd_store *store)
{
    return shared_of(store)->member.path;
}
