#include "check.h"
#include "plain_proxy.h"
#include "store/tcp_store.h"
#include "store_suite.h"
#include "tcp_raw.h"

#include <stdlib.h>

/* --- the suite over every way to a server -------------------------------------------------------------------- */

typedef struct world {
    dd_tcp_server *server;
    plain_proxy *proxy;
} world;

static dd_store *
open_client(uint16_t port, dd_bytes secret)
{
    dd_tcp_store_options options = {
        .host = "127.0.0.1",
        .port = port,
        .timeout_ns = DD_STORE_DEFAULT_TIMEOUT_NS,
        .world_size = -1,
        .secret = secret,
    };
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S * check_slow());
    dd_store *store = NULL;
    CHECK_OK(dd_tcp_store_open(&store, &options, &wait, check_err()));
    return store;
}

static dd_store *
open_world(void **fixture, dd_bytes secret, bool has_proxy, plain_proxy_mode mode)
{
    world *made = calloc(1, sizeof *made);
    dd_tcp_server_options options = raw_options();
    options.secret = secret;
    made->server = raw_server(&options);
    uint16_t port = dd_tcp_server_port(made->server);
    if (has_proxy) {
        made->proxy = plain_proxy_start(port, mode);
        port = plain_proxy_port(made->proxy);
    }
    *fixture = made;
    dd_store *store = open_client(port, secret);
    if (store != NULL) {
        CHECK(dd_tcp_store_is_extended(store) == (!has_proxy || mode != PROXY_PLAIN));
    }
    return store;
}

static void
close_world(void *fixture)
{
    world *made = fixture;
    plain_proxy_stop(made->proxy);
    dd_tcp_server_release(made->server);
    free(made);
}

static dd_store *
open_unix(void **fixture)
{
    return open_world(fixture, (dd_bytes){0}, false, PROXY_FAITHFUL);
}

static dd_store *
open_remote(void **fixture)
{
    return open_world(fixture, (dd_bytes){0}, true, PROXY_REMOTE);
}

static dd_store *
open_secret(void **fixture)
{
    return open_world(fixture, BYTES("open sesame"), false, PROXY_FAITHFUL);
}

static dd_store *
open_plain(void **fixture)
{
    return open_world(fixture, (dd_bytes){0}, true, PROXY_PLAIN);
}

STORE_SUITE(tcp, .open = open_unix, .close = close_world, .has_queues = true, .has_number_errors = true)
STORE_SUITE(tcp_remote, .open = open_remote, .close = close_world, .has_queues = true, .has_number_errors = true)
STORE_SUITE(tcp_secret, .open = open_secret, .close = close_world, .has_queues = true, .has_number_errors = true)
/* PyTorch's protocol cannot say that a value is not a number. */
STORE_SUITE(tcp_plain, .open = open_plain, .close = close_world, .has_queues = true, .thread_ops = 200)
