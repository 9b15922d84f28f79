#include "store/keyspace.h"

#include "core/mem.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Number of unused bytes in a value's buffer above which the buffer is shrunk. */
#define MAX_SLACK_BYTES ((size_t)4096)

/* The data of one key. An entry exists while its key has a value, items or waiters. */
typedef struct entry {
    dd_map_node node;
    dd_blob value;
    bool has_value;
    int64_t nitems;
    dd_list items;   /* list of items, in the order in which they were pushed */
    dd_list waiters; /* list of dd_key_waiter_link; the longest waiting first */
    uint8_t key[];
} entry;

typedef struct item {
    dd_list node;
    dd_blob value;
} item;

/* The link between a waiter and one of its keys. A waiter keeps its links until it is answered,
 * even to present keys, because a present key may be removed before the missing keys appear.
 * `npending` counts the links whose keys are missing. */
struct dd_key_waiter_link {
    dd_list node;
    entry *entry;
    dd_key_waiter *waiter;
};

typedef struct presence {
    bool has_value;
    bool has_items;
    bool is_barrier_open;
} presence;

static entry *
entry_of_node(const dd_map_node *node)
{
    return node == NULL ? NULL : DD_CONTAINER_OF(node, entry, node);
}

static dd_key_waiter *
waiter_of_node(dd_list *node)
{
    return DD_CONTAINER_OF(node, struct dd_key_waiter_link, node)->waiter;
}

static entry *
entry_find(const dd_keyspace *ks, dd_bytes key)
{
    return entry_of_node(dd_map_find(&ks->entries, key));
}

static presence
presence_of(const entry *e)
{
    return e == NULL ? (presence){0} : (presence){.has_value = e->has_value, .has_items = e->nitems > 0};
}

/* Return true if the key is present as the operation requires: has a value, or items. */
static bool
is_ready(presence now, dd_store_op op)
{
    if (op == DD_STORE_BARRIER) {
        return now.is_barrier_open;
    }
    bool is_value_enough = op != DD_STORE_QUEUE_POP;
    bool is_item_enough = op != DD_STORE_GET && op != DD_STORE_MULTI_GET;
    return (is_value_enough && now.has_value) || (is_item_enough && now.has_items);
}

static item *
first_item(entry *e)
{
    return DD_CONTAINER_OF(e->items.next, item, node);
}

static void
item_free(item *it)
{
    dd_list_remove(&it->node);
    dd_blob_fini(&it->value);
    dd_mem_free(it);
}

static void
entry_free(entry *e)
{
    while (!dd_list_is_empty(&e->items)) {
        item_free(first_item(e));
    }
    dd_blob_fini(&e->value);
    dd_mem_free(e);
}

static void
entry_free_if_idle(dd_keyspace *ks, entry *e)
{
    if (dd_list_is_empty(&e->waiters) && !e->has_value && e->nitems == 0) {
        dd_map_remove(&ks->entries, &e->node);
        entry_free(e);
    }
}

/* Find or create an entry. A caller that stores nothing in it must call entry_free_if_idle. */
static dd_status
entry_ensure(dd_keyspace *ks, dd_bytes key, entry **found, dd_error *err)
{
    entry *e = entry_find(ks, key);
    if (e == NULL) {
        e = key.len <= SIZE_MAX - sizeof(entry) ? dd_mem_zalloc(sizeof(entry) + key.len) : NULL;
        if (e == NULL) {
            return dd_error_no_memory(err, sizeof(entry) + (unsigned long long)key.len);
        }
        if (key.len > 0) {
            memcpy(e->key, key.data, key.len);
        }
        e->node.key = dd_bytes_of(e->key, key.len);
        dd_list_init(&e->items);
        dd_list_init(&e->waiters);
        dd_status status = dd_map_insert(&ks->entries, &e->node, err);
        if (status != DD_OK) {
            dd_mem_free(e);
            return status;
        }
    }
    *found = e;
    return DD_OK;
}

/* ---- waiters: requests that wait for keys */

/* Must be called before on_ready, which may free the waiter. */
void
dd_keyspace_unpark(dd_keyspace *ks, dd_key_waiter *waiter)
{
    for (size_t i = 0; i < waiter->nlinks; i++) {
        struct dd_key_waiter_link *link = &waiter->links[i];
        dd_list_remove(&link->node);
        /* If a request names a key twice, the second link keeps the entry in use. */
        entry_free_if_idle(ks, link->entry);
    }
    dd_mem_free(waiter->links);
    waiter->links = NULL;
    waiter->nlinks = 0;
    waiter->npending = 0;
}

dd_status
dd_keyspace_park(dd_keyspace *ks, dd_key_waiter *waiter, const dd_store_request *request, dd_error *err)
{
    size_t nkeys = request->nkeys;
    waiter->op = request->op;
    waiter->links = dd_mem_alloc_array(nkeys, sizeof *waiter->links);
    waiter->nlinks = 0;
    waiter->npending = 0;
    if (waiter->links == NULL) {
        return dd_error_no_memory(err, (unsigned long long)nkeys * sizeof *waiter->links);
    }
    while (waiter->nlinks < nkeys) {
        entry *e = NULL;
        dd_status status = entry_ensure(ks, request->keys[waiter->nlinks], &e, err);
        if (status != DD_OK) {
            dd_keyspace_unpark(ks, waiter);
            return status;
        }
        struct dd_key_waiter_link *link = &waiter->links[waiter->nlinks++];
        link->entry = e;
        link->waiter = waiter;
        dd_list_push_back(&e->waiters, &link->node);
        waiter->npending += is_ready(presence_of(e), waiter->op) ? 0 : 1;
    }
    return DD_OK;
}

static void
borrow_value(const entry *e, dd_blob *value)
{
    *value = e != NULL && e->has_value ? e->value : (dd_blob){0};
}

/* Answer a waiter whose keys are all present. `given` is the item for QUEUE_POP, otherwise NULL. */
static void
answer_waiter(dd_keyspace *ks, dd_key_waiter *waiter, dd_blob *given)
{
    dd_store_result result = {.flag = true};
    dd_status status = DD_OK;
    dd_error error;
    if (given != NULL) {
        result.value = *given;
        *given = (dd_blob){0};
    } else if (waiter->op == DD_STORE_GET) {
        result.is_lent = true;
        borrow_value(waiter->links[0].entry, &result.value);
    } else if (waiter->op == DD_STORE_MULTI_GET) {
        result.is_lent = true;
        status = dd_blob_list_init(&result.list, waiter->nlinks, &error);
        for (size_t i = 0; i < result.list.count; i++) {
            borrow_value(waiter->links[i].entry, &result.list.items[i]);
        }
    }
    dd_keyspace_unpark(ks, waiter);
    waiter->on_ready(waiter, &result, status == DD_OK ? NULL : &error);
    dd_store_result_fini(&result);
}

/* Count the change of an entry, and answer the waiters for which its key was the last missing one.
 * This needs two passes, because answering a waiter removes its links from all lists, including
 * this one. */
static void
entry_changed(dd_keyspace *ks, entry *e, presence before, bool opens_barrier)
{
    presence now = presence_of(e);
    now.is_barrier_open = opens_barrier;
    ks->nchanges++;
    ks->nvalues += now.has_value - before.has_value;
    dd_list ready;
    dd_list_init(&ready);
    dd_list *next;
    for (dd_list *node = e->waiters.next; node != &e->waiters; node = next) {
        next = node->next;
        dd_key_waiter *waiter = waiter_of_node(node);
        bool was_satisfied = is_ready(before, waiter->op);
        bool is_satisfied = is_ready(now, waiter->op);
        if (was_satisfied && !is_satisfied) {
            waiter->npending++;
        } else if (!was_satisfied && is_satisfied && --waiter->npending == 0) {
            dd_list_remove(node);
            dd_list_push_back(&ready, node);
        }
    }
    while (!dd_list_is_empty(&ready)) {
        answer_waiter(ks, waiter_of_node(ready.next), NULL);
    }
    entry_free_if_idle(ks, e);
}

void
dd_keyspace_init(dd_keyspace *ks)
{
    *ks = (dd_keyspace){0};
    dd_map_init(&ks->entries);
}

void
dd_keyspace_fini(dd_keyspace *ks)
{
    const dd_map_node *next;
    for (const dd_map_node *node = dd_map_next(&ks->entries, NULL); node != NULL; node = next) {
        next = dd_map_next(&ks->entries, node);
        entry_free(entry_of_node(node));
    }
    dd_map_fini(&ks->entries);
    ks->nvalues = 0;
}

/* ---- values */

bool
dd_keyspace_get(const dd_keyspace *ks, dd_bytes key, dd_bytes *value)
{
    const entry *e = entry_find(ks, key);
    if (e == NULL || !e->has_value) {
        return false;
    }
    *value = dd_blob_view(&e->value);
    return true;
}

static dd_status
replace_value(dd_blob *blob, dd_bytes value, dd_error *err)
{
    if (blob->capacity <= MAX_SLACK_BYTES || value.len >= blob->capacity / 2) {
        return dd_blob_assign(blob, value, err);
    }
    dd_blob smaller = {0};
    dd_status status = dd_blob_assign(&smaller, value, err);
    if (status == DD_OK) {
        dd_blob_fini(blob);
        *blob = smaller;
    }
    return status;
}

static dd_status
entry_put(dd_keyspace *ks, entry *e, dd_bytes value, bool is_append, bool opens_barrier, dd_error *err)
{
    presence before = presence_of(e);
    dd_status status = is_append ? dd_blob_append(&e->value, value.data, value.len, err)
                                 : replace_value(&e->value, value, err);
    if (status != DD_OK) {
        entry_free_if_idle(ks, e);
        return status;
    }
    e->has_value = true;
    entry_changed(ks, e, before, opens_barrier);
    return DD_OK;
}

static dd_status
put_value(dd_keyspace *ks, dd_bytes key, dd_bytes value, bool is_append, dd_error *err)
{
    entry *e = NULL;
    dd_status status = entry_ensure(ks, key, &e, err);
    return status == DD_OK ? entry_put(ks, e, value, is_append, false, err) : status;
}

static dd_status
number_error(dd_error *err, const char *label, dd_bytes key, dd_bytes text)
{
    char shown_key[128];
    char shown_text[64];
    return dd_error_set(err, DD_STORE, "value of key \"%s\" %s: \"%s\"",
                        dd_bytes_print(key, shown_key, sizeof shown_key), label,
                        dd_bytes_print(text, shown_text, sizeof shown_text));
}

/* Parse a number like torch.distributed: spaces, a sign, digits, any text. An empty value is 0. */
static dd_status
number_of(dd_bytes key, dd_bytes text, int64_t *number, dd_error *err)
{
    char copy[64] = "";
    char *end;
    if (text.len > 0) {
        memcpy(copy, text.data, text.len < sizeof copy - 1 ? text.len : sizeof copy - 1);
    }
    errno = 0;
    *number = strtoll(copy, &end, 10);
    if (errno == ERANGE) {
        return number_error(err, "is not a number that fits into 64 bits", key, text);
    }
    return end == copy && text.len > 0 ? number_error(err, "is not a number", key, text) : DD_OK;
}

/* Run ADD or BARRIER. A BARRIER adds 1 to the number of its callers. */
static dd_status
add(dd_keyspace *ks, const dd_store_request *request, dd_store_result *result, dd_error *err)
{
    bool is_barrier = request->op == DD_STORE_BARRIER;
    entry *e = NULL;
    int64_t number = 0;
    dd_status status = entry_ensure(ks, request->keys[0], &e, err);
    if (status == DD_OK) {
        status = number_of(request->keys[0], dd_blob_view(&e->value), &number, err);
    }
    if (status != DD_OK) {
        return status;
    }
    int64_t sum = (int64_t)((uint64_t)number + (is_barrier ? 1 : (uint64_t)request->number));
    bool opens_barrier = is_barrier && sum >= request->number;
    char text[24];
    int len = snprintf(text, sizeof text, "%" PRId64, sum);
    status = entry_put(ks, e, dd_bytes_of(text, (size_t)len), false, opens_barrier, err);
    if (status == DD_OK) {
        result->number = sum;
        result->flag = opens_barrier;
    }
    return status;
}

static dd_status
compare_set(dd_keyspace *ks, const dd_store_request *request, dd_store_result *result, dd_error *err)
{
    dd_bytes expected = request->values[0];
    dd_bytes desired = request->values[1];
    dd_bytes now = {0};
    bool has_value = dd_keyspace_get(ks, request->keys[0], &now);
    if (has_value ? !dd_bytes_equal(now, expected) : expected.len > 0) {
        return dd_blob_assign(&result->value, has_value ? now : expected, err);
    }
    /* Set the result before the key, because nothing may fail once the key is set. */
    dd_status status = dd_blob_assign(&result->value, desired, err);
    return status == DD_OK ? put_value(ks, request->keys[0], desired, false, err) : status;
}

static bool
delete_value(dd_keyspace *ks, dd_bytes key)
{
    entry *e = entry_find(ks, key);
    if (e == NULL || !e->has_value) {
        return false;
    }
    presence before = presence_of(e);
    dd_blob_fini(&e->value);
    e->has_value = false;
    entry_changed(ks, e, before, false);
    return true;
}

/* ---- queues */

/* Pass an item to the QUEUE_POP that has waited longest. Return false if no QUEUE_POP waits. */
static bool
deliver_to_pop(dd_keyspace *ks, dd_bytes key, dd_blob *value)
{
    entry *e = entry_find(ks, key);
    for (dd_list *node = e != NULL ? e->waiters.next : NULL; e != NULL && node != &e->waiters;
         node = node->next) {
        dd_key_waiter *waiter = waiter_of_node(node);
        if (waiter->op == DD_STORE_QUEUE_POP) {
            answer_waiter(ks, waiter, value);
            return true;
        }
    }
    return false;
}

/* Pass an item to a waiting QUEUE_POP, or move it into the queue. On failure nothing changes. */
static dd_status
push(dd_keyspace *ks, dd_bytes key, dd_blob *value, bool is_first, dd_error *err)
{
    if (deliver_to_pop(ks, key, value)) {
        return DD_OK;
    }
    item *it = dd_mem_zalloc(sizeof *it);
    if (it == NULL) {
        return dd_error_no_memory(err, sizeof *it);
    }
    entry *e = NULL;
    dd_status status = entry_ensure(ks, key, &e, err);
    if (status != DD_OK) {
        dd_mem_free(it);
        return status;
    }
    presence before = presence_of(e);
    it->value = *value;
    *value = (dd_blob){0};
    dd_list_insert_before(is_first ? e->items.next : &e->items, &it->node);
    e->nitems++;
    entry_changed(ks, e, before, false);
    return DD_OK;
}

static dd_status
push_copy(dd_keyspace *ks, dd_bytes key, dd_bytes value, dd_error *err)
{
    dd_blob copy = {0};
    dd_status status = dd_blob_assign(&copy, value, err);
    if (status == DD_OK) {
        status = push(ks, key, &copy, false, err);
    }
    dd_blob_fini(&copy);
    return status;
}

dd_status
dd_keyspace_queue_unpop(dd_keyspace *ks, dd_bytes key, dd_blob *value, dd_error *err)
{
    return push(ks, key, value, true, err);
}

static int64_t
queue_len(const dd_keyspace *ks, dd_bytes key)
{
    const entry *e = entry_find(ks, key);
    return e != NULL ? e->nitems : 0;
}

static dd_status
pop(dd_keyspace *ks, const dd_store_request *request, dd_store_result *result, dd_error *err)
{
    result->number = queue_len(ks, request->keys[0]);
    result->flag = result->number > 0;
    if (result->flag) {
        entry *e = entry_find(ks, request->keys[0]);
        presence before = presence_of(e);
        item *it = first_item(e);
        result->value = it->value;
        it->value = (dd_blob){0};
        item_free(it);
        e->nitems--;
        entry_changed(ks, e, before, false);
    } else if (request->number == 0) {
        char shown[128];
        return dd_error_set(err, DD_QUEUE_EMPTY, "queue \"%s\" is empty",
                            dd_bytes_print(request->keys[0], shown, sizeof shown));
    }
    return DD_OK;
}

/* ---- requests */

static bool
is_key_ready(const dd_keyspace *ks, const dd_store_request *request, size_t i)
{
    return is_ready(presence_of(entry_find(ks, request->keys[i])), request->op);
}

bool
dd_keyspace_is_ready(const dd_keyspace *ks, const dd_store_request *request)
{
    size_t i = 0;
    while (i < request->nkeys && is_key_ready(ks, request, i)) {
        i++;
    }
    return i == request->nkeys;
}

static dd_status
multi_get(const dd_keyspace *ks, const dd_store_request *request, dd_store_result *result, dd_error *err)
{
    dd_status status = dd_blob_list_init(&result->list, request->nkeys, err);
    result->is_lent = true;
    for (size_t i = 0; i < result->list.count; i++) {
        borrow_value(entry_find(ks, request->keys[i]), &result->list.items[i]);
    }
    return status;
}

static dd_status
list_keys(const dd_keyspace *ks, dd_store_result *result, dd_error *err)
{
    dd_status status = dd_blob_list_init(&result->list, (size_t)ks->nvalues, err);
    result->is_lent = true;
    dd_blob *next = result->list.items;
    for (const dd_map_node *node = NULL;
         status == DD_OK && (node = dd_map_next(&ks->entries, node)) != NULL;) {
        entry *e = entry_of_node(node);
        if (e->has_value) {
            *next++ = (dd_blob){.data = e->key, .len = node->key.len};
        }
    }
    return status;
}

static dd_status
set_all(dd_keyspace *ks, const dd_store_request *request, dd_error *err)
{
    dd_status status = DD_OK;
    for (size_t i = 0; status == DD_OK && i < request->nkeys; i++) {
        status = put_value(ks, request->keys[i], request->values[i], false, err);
    }
    return status;
}

static dd_status
check_each(const dd_keyspace *ks, const dd_store_request *request, dd_store_result *result, dd_error *err)
{
    dd_status status = dd_blob_reserve(&result->value, request->nkeys, err);
    for (size_t i = 0; status == DD_OK && i < request->nkeys; i++) {
        result->value.data[result->value.len++] = is_key_ready(ks, request, i);
    }
    return status;
}

dd_status
dd_keyspace_answer(dd_keyspace *ks, const dd_store_request *request, dd_store_result *result,
                   bool *is_answered, dd_error *err)
{
    dd_status status = dd_keyspace_answer_borrowed(ks, request, result, is_answered, err);
    return status == DD_OK ? dd_store_result_own(result, err) : status;
}

dd_status
dd_keyspace_answer_borrowed(dd_keyspace *ks, const dd_store_request *request, dd_store_result *result,
                            bool *is_answered, dd_error *err)
{
    const dd_bytes *keys = request->keys;
    const entry *e;
    dd_status status;
    *is_answered = true;
    switch (request->op) {
    case DD_STORE_SET:
    case DD_STORE_MULTI_SET:
        return set_all(ks, request, err);
    case DD_STORE_APPEND:
        return put_value(ks, keys[0], request->values[0], true, err);
    case DD_STORE_GET:
    case DD_STORE_TRY_GET:
        e = entry_find(ks, keys[0]);
        borrow_value(e, &result->value);
        result->is_lent = true;
        result->flag = e != NULL && e->has_value;
        *is_answered = result->flag || request->op == DD_STORE_TRY_GET;
        return DD_OK;
    case DD_STORE_COMPARE_SET:
        return compare_set(ks, request, result, err);
    case DD_STORE_WAIT:
    case DD_STORE_CHECK:
        result->flag = dd_keyspace_is_ready(ks, request);
        *is_answered = result->flag || request->op == DD_STORE_CHECK;
        return DD_OK;
    case DD_STORE_CHECK_EACH:
        return check_each(ks, request, result, err);
    case DD_STORE_DELETE_KEY:
        result->number = result->flag = delete_value(ks, keys[0]);
        return DD_OK;
    case DD_STORE_NUM_KEYS:
        result->number = ks->nvalues;
        return DD_OK;
    case DD_STORE_LIST_KEYS:
        return list_keys(ks, result, err);
    case DD_STORE_MULTI_GET:
        *is_answered = request->number != 0 || dd_keyspace_is_ready(ks, request);
        return *is_answered ? multi_get(ks, request, result, err) : DD_OK;
    case DD_STORE_QUEUE_PUSH:
        return push_copy(ks, keys[0], request->values[0], err);
    case DD_STORE_QUEUE_POP:
        status = pop(ks, request, result, err);
        *is_answered = result->flag;
        return status;
    case DD_STORE_QUEUE_LEN:
        result->number = queue_len(ks, keys[0]);
        return DD_OK;
    case DD_STORE_ADD:
    case DD_STORE_BARRIER:
        status = add(ks, request, result, err);
        *is_answered = result->flag || request->op == DD_STORE_ADD;
        return status;
    case DD_STORE_MEET:
        return dd_keyspace_meet(ks, request, result, err);
    }
    return dd_error_set(err, DD_INTERNAL, "unknown store operation: got %d", (int)request->op);
}

static dd_status
error_barrier(const dd_keyspace *ks, const dd_store_request *request, const char *where, const dd_wait *wait,
              dd_error *err)
{
    char shown_key[128];
    char shown_count[32];
    dd_bytes count = {0};
    (void)dd_keyspace_get(ks, request->keys[0], &count);
    return dd_error_set(
        err, DD_TIMED_OUT, "barrier timed out after %.3f s on %s: %s of %lld have joined, key: %s",
        dd_wait_elapsed_s(wait), where, dd_bytes_print(count, shown_count, sizeof shown_count),
        (long long)request->number, dd_bytes_print(request->keys[0], shown_key, sizeof shown_key));
}

dd_status
dd_keyspace_error_missing(const dd_keyspace *ks, const dd_store_request *request, const char *where,
                          const dd_wait *wait, dd_error *err)
{
    if (request->op == DD_STORE_BARRIER) {
        return error_barrier(ks, request, where, wait, err);
    }
    dd_bytes shown[DD_STORE_MISSING_SHOWN];
    size_t nmissing = 0;
    for (size_t i = 0; i < request->nkeys; i++) {
        if (!is_key_ready(ks, request, i) && nmissing++ < DD_STORE_MISSING_SHOWN) {
            shown[nmissing - 1] = request->keys[i];
        }
    }
    dd_store_missing missing = {.opening = "Wait timeout",
                                .root = "",
                                .label = dd_store_op_name(request->op),
                                .where = where,
                                .keys = shown,
                                .nkeys = nmissing,
                                .nasked = request->nkeys};
    return dd_store_error_missing(&missing, wait, err);
}
