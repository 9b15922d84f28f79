#include "store/keyspace.h"

#include "core/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A value that shrinks gives its memory back when more than this would stay unused. */
#define MAX_SLACK_BYTES ((size_t)4096)

/* Lives while it has a value, items or waiters. */
typedef struct entry {
    dd_map_node node;
    dd_blob value;
    bool has_value;
    int64_t nitems;
    dd_list items;   /* of item, first in first */
    dd_list waiters; /* of dd_key_waiter_link, longest waiting first */
    uint8_t key[];
} entry;

typedef struct item {
    dd_list node;
    dd_blob value;
} item;

/* A waiter keeps a link on each of its keys until it is told, also on those that are there: they may go away again
 * before the others come. npending counts the links whose key is not there now. */
struct dd_key_waiter_link {
    dd_list node;
    entry *entry;
    dd_key_waiter *waiter;
};

static entry *
entry_of_node(const dd_map_node *node)
{
    return node == NULL ? NULL : DD_CONTAINER_OF(node, entry, node);
}

static struct dd_key_waiter_link *
link_of_node(dd_list *node)
{
    return DD_CONTAINER_OF(node, struct dd_key_waiter_link, node);
}

static item *
first_item(entry *e)
{
    return DD_CONTAINER_OF(e->items.next, item, node);
}

static entry *
entry_find(const dd_keyspace *ks, dd_bytes key)
{
    return entry_of_node(dd_map_find(&ks->entries, key));
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

static bool
entry_is_there(const entry *e)
{
    return e->has_value || e->nitems > 0;
}

static bool
entry_is_idle(const entry *e)
{
    return dd_list_is_empty(&e->waiters) && !entry_is_there(e);
}

static void
entry_drop_if_idle(dd_keyspace *ks, entry *e)
{
    if (entry_is_idle(e)) {
        dd_map_remove(&ks->entries, &e->node);
        entry_free(e);
    }
}

static dd_status
entry_create(dd_keyspace *ks, dd_bytes key, entry **created, dd_error *err)
{
    if (key.len > SIZE_MAX - sizeof(entry)) {
        return dd_error_no_memory(err, key.len);
    }
    entry *e = dd_mem_zalloc(sizeof(entry) + key.len);
    if (e == NULL) {
        return dd_error_no_memory(err, sizeof(entry) + key.len);
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
    *created = e;
    return DD_OK;
}

/* The entry of that key, made if needed: whoever then fails to put something in calls entry_drop_if_idle. */
static dd_status
entry_ensure(dd_keyspace *ks, dd_bytes key, entry **found, dd_error *err)
{
    entry *e = entry_find(ks, key);
    if (e == NULL) {
        return entry_create(ks, key, found, err);
    }
    *found = e;
    return DD_OK;
}

/* Takes the waiter off all its keys. The links are gone before anyone is told, since on_ready may free the
 * waiter. */
static void
waiter_unlink(dd_keyspace *ks, dd_key_waiter *waiter)
{
    for (size_t i = 0; i < waiter->nlinks; i++) {
        struct dd_key_waiter_link *link = &waiter->links[i];
        entry *e = link->entry;
        dd_list_remove(&link->node);
        /* The same key may come twice in one wait: then the other link still keeps the entry alive. */
        entry_drop_if_idle(ks, e);
    }
    dd_mem_free(waiter->links);
    waiter->links = NULL;
    waiter->nlinks = 0;
    waiter->npending = 0;
}

/* Tells the waiters of that kind for whom this was the last key missing. Two passes, because telling one unlinks it
 * from everywhere, this list included. */
static void
tell_waiters(dd_keyspace *ks, entry *e, dd_key_waiter_kind kind, dd_blob *value)
{
    dd_list ready;
    dd_list_init(&ready);
    dd_list *next;
    for (dd_list *node = e->waiters.next; node != &e->waiters; node = next) {
        next = node->next;
        dd_key_waiter *waiter = link_of_node(node)->waiter;
        if (waiter->kind == kind && --waiter->npending == 0) {
            dd_list_remove(node);
            dd_list_push_back(&ready, node);
        }
    }
    while (!dd_list_is_empty(&ready)) {
        dd_key_waiter *waiter = link_of_node(ready.next)->waiter;
        waiter_unlink(ks, waiter);
        waiter->on_ready(waiter, value);
    }
}

/* The key is missing again for waiters of that kind. */
static void
untell_waiters(entry *e, dd_key_waiter_kind kind)
{
    for (dd_list *node = e->waiters.next; node != &e->waiters; node = node->next) {
        dd_key_waiter *waiter = link_of_node(node)->waiter;
        waiter->npending += waiter->kind == kind ? 1 : 0;
    }
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

/* After a change of the value: counts it, and tells those who wait for one. */
static void
entry_has_value_now(dd_keyspace *ks, entry *e)
{
    ks->nchanges++;
    if (e->has_value) {
        return;
    }
    bool was_there = entry_is_there(e);
    e->has_value = true;
    ks->nvalues++;
    if (!was_there) {
        tell_waiters(ks, e, DD_KEY_WAITER_KEYS, NULL);
    }
    tell_waiters(ks, e, DD_KEY_WAITER_VALUE, &e->value);
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
entry_set(dd_keyspace *ks, entry *e, dd_bytes value, dd_error *err)
{
    dd_status status = replace_value(&e->value, value, err);
    if (status != DD_OK) {
        entry_drop_if_idle(ks, e);
        return status;
    }
    entry_has_value_now(ks, e);
    return DD_OK;
}

dd_status
dd_keyspace_set(dd_keyspace *ks, dd_bytes key, dd_bytes value, dd_error *err)
{
    entry *e = NULL;
    dd_status status = entry_ensure(ks, key, &e, err);
    return status == DD_OK ? entry_set(ks, e, value, err) : status;
}

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

static bool
is_space(uint8_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static dd_status
number_error(dd_error *err, const char *what, dd_bytes key, dd_bytes text)
{
    char shown_key[128];
    char shown_text[64];
    return dd_error_set(err, DD_STORE, "value of key \"%s\" %s: \"%s\"",
                        dd_bytes_print(key, shown_key, sizeof shown_key), what,
                        dd_bytes_print(text, shown_text, sizeof shown_text));
}

/* As c10d reads it: space, a sign, digits, and anything after them. An empty value is 0. */
static dd_status
number_of(dd_bytes key, dd_bytes text, int64_t *number, dd_error *err)
{
    size_t i = 0;
    while (i < text.len && is_space(text.data[i])) {
        i++;
    }
    bool is_negative = i < text.len && text.data[i] == '-';
    if (i < text.len && (text.data[i] == '-' || text.data[i] == '+')) {
        i++;
    }
    size_t first = i;
    uint64_t magnitude = 0;
    uint64_t limit = (uint64_t)INT64_MAX + (is_negative ? 1 : 0);
    for (; i < text.len && text.data[i] >= '0' && text.data[i] <= '9'; i++) {
        uint64_t digit = (uint64_t)text.data[i] - '0';
        if (magnitude > (limit - digit) / 10) {
            return number_error(err, "is not a number of 64 bits", key, text);
        }
        magnitude = magnitude * 10 + digit;
    }
    if (i == first && text.len > 0) {
        return number_error(err, "is not a number", key, text);
    }
    *number = (int64_t)(is_negative ? 0 - magnitude : magnitude);
    return DD_OK;
}

static dd_status
entry_add(dd_keyspace *ks, dd_bytes key, entry *e, int64_t amount, int64_t *sum, dd_error *err)
{
    int64_t number = 0;
    dd_status status = number_of(key, dd_blob_view(&e->value), &number, err);
    if (status != DD_OK) {
        return status;
    }
    int64_t new_number = (int64_t)((uint64_t)number + (uint64_t)amount);
    char text[24];
    int len = snprintf(text, sizeof text, "%" PRId64, new_number);
    status = entry_set(ks, e, dd_bytes_of(text, (size_t)len), err);
    if (status == DD_OK) {
        *sum = new_number;
    }
    return status;
}

dd_status
dd_keyspace_add(dd_keyspace *ks, dd_bytes key, int64_t amount, int64_t *sum, dd_error *err)
{
    entry *e = NULL;
    dd_status status = entry_ensure(ks, key, &e, err);
    return status == DD_OK ? entry_add(ks, key, e, amount, sum, err) : status;
}

dd_status
dd_keyspace_compare_set(dd_keyspace *ks, dd_bytes key, dd_bytes expected, dd_bytes desired, dd_bytes *value,
                        dd_error *err)
{
    entry *e = entry_find(ks, key);
    bool has_value = e != NULL && e->has_value;
    if (!has_value && expected.len > 0) {
        *value = expected;
        return DD_OK;
    }
    if (has_value && !dd_bytes_equal(dd_blob_view(&e->value), expected)) {
        *value = dd_blob_view(&e->value);
        return DD_OK;
    }
    dd_status status = e != NULL ? DD_OK : entry_create(ks, key, &e, err);
    if (status == DD_OK) {
        status = entry_set(ks, e, desired, err);
    }
    if (status == DD_OK) {
        *value = dd_blob_view(&e->value);
    }
    return status;
}

dd_status
dd_keyspace_append(dd_keyspace *ks, dd_bytes key, dd_bytes value, dd_error *err)
{
    entry *e = NULL;
    dd_status status = entry_ensure(ks, key, &e, err);
    if (status != DD_OK) {
        return status;
    }
    status = dd_blob_append(&e->value, value.data, value.len, err);
    if (status != DD_OK) {
        entry_drop_if_idle(ks, e);
        return status;
    }
    entry_has_value_now(ks, e);
    return DD_OK;
}

bool
dd_keyspace_delete(dd_keyspace *ks, dd_bytes key)
{
    entry *e = entry_find(ks, key);
    if (e == NULL || !e->has_value) {
        return false;
    }
    dd_blob_fini(&e->value);
    e->has_value = false;
    ks->nchanges++;
    ks->nvalues--;
    untell_waiters(e, DD_KEY_WAITER_VALUE);
    if (!entry_is_there(e)) {
        untell_waiters(e, DD_KEY_WAITER_KEYS);
    }
    entry_drop_if_idle(ks, e);
    return true;
}

bool
dd_keyspace_has(const dd_keyspace *ks, dd_bytes key)
{
    const entry *e = entry_find(ks, key);
    return e != NULL && entry_is_there(e);
}

/* The waiter that has asked for an item of the key the longest, or NULL. */
static dd_key_waiter *
first_popper(const dd_keyspace *ks, dd_bytes key)
{
    entry *e = entry_find(ks, key);
    if (e == NULL) {
        return NULL;
    }
    dd_list *node = e->waiters.next;
    while (node != &e->waiters && link_of_node(node)->waiter->kind != DD_KEY_WAITER_POP) {
        node = node->next;
    }
    return node != &e->waiters ? link_of_node(node)->waiter : NULL;
}

/* Gives the item to a waiter, if there is one. */
static bool
hand_over(dd_keyspace *ks, dd_bytes key, dd_blob *value)
{
    dd_key_waiter *waiter = first_popper(ks, key);
    if (waiter == NULL) {
        return false;
    }
    waiter_unlink(ks, waiter);
    waiter->on_ready(waiter, value);
    return true;
}

/* Moves the value into the queue. On failure nothing has changed. */
static dd_status
store_item(dd_keyspace *ks, dd_bytes key, dd_blob *value, bool is_first, dd_error *err)
{
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
    bool was_there = entry_is_there(e);
    it->value = *value;
    *value = (dd_blob){0};
    dd_list_insert_before(is_first ? e->items.next : &e->items, &it->node);
    e->nitems++;
    ks->nchanges++;
    if (!was_there) {
        tell_waiters(ks, e, DD_KEY_WAITER_KEYS, NULL);
    }
    return DD_OK;
}

dd_status
dd_keyspace_queue_push(dd_keyspace *ks, dd_bytes key, dd_bytes value, dd_error *err)
{
    dd_blob copy = {0};
    dd_status status = dd_blob_assign(&copy, value, err);
    if (status == DD_OK && !hand_over(ks, key, &copy)) {
        status = store_item(ks, key, &copy, false, err);
    }
    dd_blob_fini(&copy);
    return status;
}

dd_status
dd_keyspace_queue_unpop(dd_keyspace *ks, dd_bytes key, dd_blob *value, dd_error *err)
{
    return hand_over(ks, key, value) ? DD_OK : store_item(ks, key, value, true, err);
}

bool
dd_keyspace_queue_pop(dd_keyspace *ks, dd_bytes key, dd_blob *value)
{
    entry *e = entry_find(ks, key);
    if (e == NULL || e->nitems == 0) {
        return false;
    }
    item *it = first_item(e);
    *value = it->value;
    it->value = (dd_blob){0};
    item_free(it);
    e->nitems--;
    ks->nchanges++;
    if (!entry_is_there(e)) {
        untell_waiters(e, DD_KEY_WAITER_KEYS);
    }
    entry_drop_if_idle(ks, e);
    return true;
}

int64_t
dd_keyspace_queue_len(const dd_keyspace *ks, dd_bytes key)
{
    const entry *e = entry_find(ks, key);
    return e != NULL ? e->nitems : 0;
}

dd_status
dd_keyspace_barrier_arrive(dd_keyspace *ks, dd_bytes key, int64_t world_size, bool *is_complete,
                           dd_error *err)
{
    entry *e = NULL;
    dd_status status = entry_ensure(ks, key, &e, err);
    if (status != DD_OK) {
        return status;
    }
    int64_t count = 0;
    status = entry_add(ks, key, e, 1, &count, err);
    if (status != DD_OK) {
        return status;
    }
    *is_complete = count >= world_size;
    if (*is_complete) {
        tell_waiters(ks, e, DD_KEY_WAITER_BARRIER, NULL);
    }
    return DD_OK;
}

static bool
entry_is_ready_for(const entry *e, dd_key_waiter_kind kind)
{
    switch (kind) {
    case DD_KEY_WAITER_KEYS:
        return entry_is_there(e);
    case DD_KEY_WAITER_VALUE:
        return e->has_value;
    case DD_KEY_WAITER_POP:
        return e->nitems > 0;
    case DD_KEY_WAITER_BARRIER:
        break;
    }
    return false;
}

dd_status
dd_keyspace_park(dd_keyspace *ks, dd_key_waiter *waiter, const dd_bytes *keys, size_t nkeys, bool *is_parked,
                 dd_error *err)
{
    waiter->links = dd_mem_alloc_array(nkeys, sizeof *waiter->links);
    waiter->nlinks = 0;
    waiter->npending = 0;
    if (waiter->links == NULL) {
        return dd_error_no_memory(err, (unsigned long long)nkeys * sizeof *waiter->links);
    }
    while (waiter->nlinks < nkeys) {
        entry *e = NULL;
        dd_status status = entry_ensure(ks, keys[waiter->nlinks], &e, err);
        if (status != DD_OK) {
            waiter_unlink(ks, waiter);
            return status;
        }
        struct dd_key_waiter_link *link = &waiter->links[waiter->nlinks++];
        link->entry = e;
        link->waiter = waiter;
        dd_list_push_back(&e->waiters, &link->node);
        if (!entry_is_ready_for(e, waiter->kind)) {
            waiter->npending++;
        }
    }
    *is_parked = waiter->npending > 0;
    if (!*is_parked) {
        waiter_unlink(ks, waiter);
    }
    return DD_OK;
}

void
dd_keyspace_unpark(dd_keyspace *ks, dd_key_waiter *waiter)
{
    waiter_unlink(ks, waiter);
}

bool
dd_keyspace_next_key(const dd_keyspace *ks, const dd_map_node **cursor, dd_bytes *key)
{
    do {
        *cursor = dd_map_next(&ks->entries, *cursor);
    } while (*cursor != NULL && !entry_of_node(*cursor)->has_value);
    if (*cursor == NULL) {
        return false;
    }
    *key = (*cursor)->key;
    return true;
}
