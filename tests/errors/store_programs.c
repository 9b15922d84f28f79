#include "program.h"
#include "store/file_store.h"
#include "store/tcp_store.h"
#include "store_calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LARGE_NBYTES ((size_t)300000)

static void
check_value(rank_env *self, const dd_blob *value, const char *expected)
{
    if (!dd_bytes_equal(dd_blob_view(value), dd_bytes_of_string(expected))) {
        complain(self, "a value of %zu bytes is not \"%s\"", value->len, expected);
    }
}

static bool
add_all(rank_env *self, dd_store *store)
{
    int64_t sum = 0;
    dd_wait wait = step_wait(self);
    return STEP(self, SCOPE_STARTER, "add",
                dd_store_add(store, dd_bytes_of_string("sum"), 1, &sum, &wait, &self->error)) &&
           STEP(self, SCOPE_STARTER, "barrier",
                dd_store_barrier(store, dd_bytes_of_string("b"), self->size, &wait, &self->error));
}

static bool
exchange_values(rank_env *self, dd_store *store)
{
    char own[32];
    char other[32];
    snprintf(own, sizeof own, "key of %d", self->rank);
    snprintf(other, sizeof other, "key of %d", 1 - self->rank);
    dd_bytes keys[2] = {dd_bytes_of_string(own), dd_bytes_of_string(other)};
    dd_blob value = {0};
    dd_blob_list values = {0};
    dd_wait wait = step_wait(self);
    bool is_well =
        STEP(self, SCOPE_STARTER, "set", dd_store_set(store, keys[0], keys[0], &wait, &self->error)) &&
        STEP(self, SCOPE_STARTER, "get", dd_store_get(store, keys[1], &value, &wait, &self->error)) &&
        STEP(self, SCOPE_STARTER, "multi_get",
             dd_store_multi_get(store, keys, 2, &values, &wait, &self->error));
    if (is_well) {
        check_value(self, &value, other);
        check_value(self, &values.items[0], own);
        check_value(self, &values.items[1], other);
    }
    dd_blob_fini(&value);
    dd_blob_list_fini(&values);
    return is_well;
}

static bool
exchange_large(rank_env *self, dd_store *store)
{
    dd_bytes key = dd_bytes_of_string(self->rank == 0 ? "to 1" : "to 0");
    dd_bytes wanted = dd_bytes_of_string(self->rank == 0 ? "to 0" : "to 1");
    char *large = calloc(1, LARGE_NBYTES);
    dd_blob value = {0};
    dd_wait wait = step_wait(self);
    bool is_well =
        large != NULL &&
        STEP(self, SCOPE_STARTER, "queue_push of much",
             dd_store_queue_push(store, key, dd_bytes_of(large, LARGE_NBYTES), &wait, &self->error)) &&
        STEP(self, SCOPE_STARTER, "queue_pop of much",
             dd_store_queue_pop(store, wanted, true, &value, &wait, &self->error));
    if (is_well && value.len != LARGE_NBYTES) {
        complain(self, "popped %zu bytes", value.len);
    }
    dd_blob_fini(&value);
    free(large);
    return is_well;
}

static void
use_store(rank_env *self, dd_store *store)
{
    dd_wait wait = step_wait(self);
    if (add_all(self, store) && exchange_values(self, store) && exchange_large(self, store)) {
        (void)STEP(self, SCOPE_STARTER, "last barrier",
                   dd_store_barrier(store, dd_bytes_of_string("last"), self->size, &wait, &self->error));
    }
}

void
run_file_store(rank_env *self)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s.store", self->folder, self->name);
    dd_file_store_options options = {
        .path = path, .world_size = self->size, .timeout_ns = DD_STORE_DEFAULT_TIMEOUT_NS};
    dd_store *store = NULL;
    dd_wait wait = step_wait(self);
    if (STEP(self, SCOPE_STARTER, "open of the FileStore",
             dd_file_store_open(&store, &options, &wait, &self->error))) {
        use_store(self, store);
    }
    dd_store_release(store);
}

/* Publish the port of rank 0's server in a file, because no store exists yet. */
static bool
open_server(rank_env *self, dd_bytes secret, dd_tcp_server **server)
{
    dd_tcp_server_options options = {.host = "127.0.0.1",
                                     .listen_fd = -1,
                                     .secret = secret,
                                     .limits = DD_TCP_LIMITS_DEFAULT,
                                     .handshake_timeout_ns = 5 * DD_NS_PER_S};
    dd_wait wait = step_wait(self);
    if (!STEP(self, SCOPE_STARTER, "open of the server",
              dd_tcp_server_open(server, &options, &wait, &self->error))) {
        return false;
    }
    atomic_store(&self->board->port, dd_tcp_server_port(*server));
    return true;
}

static bool
await_port(rank_env *self)
{
    dd_wait wait = step_wait(self);
    while (atomic_load(&self->board->port) == 0) {
        if (!STEP(self, SCOPE_STARTER, "waiting for the server",
                  dd_wait_sleep(&wait, DD_NS_PER_MS, &self->error))) {
            return false;
        }
    }
    return true;
}

bool
open_own_store(rank_env *self, dd_bytes secret, dd_tcp_server **server, dd_store **store)
{
    if (!(self->rank == 0 ? open_server(self, secret, server) : await_port(self))) {
        return false;
    }
    dd_tcp_store_options options = {
        .host = "127.0.0.1",
        .port = (uint16_t)atomic_load(&self->board->port),
        .timeout_ns = DD_STORE_DEFAULT_TIMEOUT_NS,
        .world_size = self->size,
        .is_wait_for_workers = true,
        .secret = secret,
        .server = *server,
    };
    dd_wait wait = step_wait(self);
    return STEP(self, SCOPE_STARTER, "open of the TCPStore",
                dd_tcp_store_open(store, &options, &wait, &self->error));
}

void
run_tcp_store(rank_env *self)
{
    dd_tcp_server *server = NULL;
    dd_store *store = NULL;
    if (open_own_store(self, (dd_bytes){0}, &server, &store)) {
        use_store(self, store);
    }
    dd_store_release(store);
    dd_tcp_server_release(server);
}
