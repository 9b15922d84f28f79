/* The list of clients that have joined a store, and the wait for them in the server's process. */
#include "store/tcp_server_internal.h"

#include "core/lock.h"
#include "core/thread.h"
#include "net/sock.h"

#include <stdio.h>
#include <string.h>

void
tcp_server_note_joined(dd_tcp_server *server, const char *client, int64_t sum)
{
    dd_lock_take(&server->joined_mu);
    server->njoined = sum;
    if (!server->is_joined_cut) {
        size_t used = strlen(server->joined);
        size_t room = sizeof server->joined - used;
        server->is_joined_cut = room < TCP_CLIENT_NAME_MAX + sizeof ", , ...";
        snprintf(server->joined + used, room, "%s%s", used > 0 ? ", " : ": ",
                 server->is_joined_cut ? "..." : client);
    }
    dd_cond_broadcast(&server->joined_cond);
    dd_lock_release(&server->joined_mu);
}

void
tcp_server_note_rejected(dd_tcp_server *server)
{
    dd_lock_take(&server->joined_mu);
    server->nrejected++;
    dd_lock_release(&server->joined_mu);
}

static dd_status
joined_error_locked(const dd_tcp_server *server, int64_t world_size, const dd_wait *wait, dd_error *err)
{
    char rejected[128] = "";
    if (server->nrejected > 0) {
        snprintf(rejected, sizeof rejected,
                 "; connections were rejected %u times: the limit of %zu open files is reached (ulimit -n)",
                 server->nrejected, dd_sock_fd_limit());
    }
    return dd_error_set(
        err, DD_TIMED_OUT,
        "Timed out after %.15g seconds waiting for clients. %lld/%lld clients joined%s; the store's port is "
        "%u%s",
        dd_wait_limit_s(wait), (long long)server->njoined, (long long)world_size, server->joined,
        server->port, rejected);
}

dd_status
dd_tcp_server_wait_joined(dd_tcp_server *server, int64_t world_size, const dd_wait *wait, dd_error *err)
{
    dd_status status = DD_OK;
    dd_lock_take(&server->joined_mu);
    while (status == DD_OK && server->njoined < world_size) {
        status = dd_cond_wait_checked(&server->joined_cond, &server->joined_mu, wait, err);
    }
    if (server->njoined >= world_size) {
        status = DD_OK;
    } else if (status == DD_TIMED_OUT) {
        status = joined_error_locked(server, world_size, wait, err);
    }
    dd_lock_release(&server->joined_mu);
    return status;
}
