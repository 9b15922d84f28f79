/* Connections that have not shown yet that they are of this job: how many there may be, and which of them
 * go when there are more. Anybody who can reach the port can make them, so they get only some of the
 * process's descriptors, and may be closed at any time. */
#include "store/tcp_server_internal.h"

#include "net/sock.h"

/* Of the silent ones, and of those that have spoken; each an eighth at most of what the process may open. */
#define STRANGERS_MAX ((size_t)512)
#define STRANGERS_MIN ((size_t)4)
/* Our clients and PyTorch's speak at once. */
#define FIRST_WORD_NS (2 * DD_NS_PER_S)
/* One that has spoken gets so long for the rest before it may be closed for others. */
#define GREETED_GRACE_NS (100 * DD_NS_PER_MS)

static size_t
strangers_max(void)
{
    size_t most = dd_sock_fd_limit() / 8;
    most = most < STRANGERS_MAX ? most : STRANGERS_MAX;
    return most > STRANGERS_MIN ? most : STRANGERS_MIN;
}

/* Any of the silent ones. If it were always the oldest, a flood would be sure to push out a client that
 * takes longer than the flood needs to go round. */
static tcp_conn *
pick_silent(dd_tcp_server *server)
{
    if (server->nsilent == 0) {
        return NULL;
    }
    server->dice = server->dice * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    size_t index = (size_t)(server->dice >> 33) % server->nsilent;
    dd_list *link = server->silent.next;
    while (index-- > 0) {
        link = link->next;
    }
    return DD_CONTAINER_OF(link, tcp_conn, stranger);
}

static tcp_conn *
pick_greeted(dd_tcp_server *server)
{
    if (dd_list_is_empty(&server->greeted)) {
        return NULL;
    }
    tcp_conn *oldest = DD_CONTAINER_OF(server->greeted.next, tcp_conn, stranger);
    return dd_clock_now_ns() - oldest->accepted_ns > GREETED_GRACE_NS ? oldest : NULL;
}

static void
evict(tcp_conn *conn)
{
    dd_tcp_server *server = conn->server;
    tcp_conn_doom(conn, "it makes room: too many connections have not shown that they are of this job");
    tcp_server_bury(server);
}

bool
tcp_strangers_evict(dd_tcp_server *server)
{
    tcp_conn *conn = pick_silent(server);
    if (conn == NULL) {
        conn = pick_greeted(server);
    }
    if (conn != NULL) {
        evict(conn);
    }
    return conn != NULL;
}

bool
tcp_strangers_curb(dd_tcp_server *server)
{
    size_t most = strangers_max();
    while (server->nsilent > most) {
        evict(pick_silent(server));
    }
    while (server->ngreeted > most) {
        tcp_conn *conn = pick_greeted(server);
        if (conn == NULL) {
            return false;
        }
        evict(conn);
    }
    return true;
}

int64_t
tcp_strangers_expire(dd_tcp_server *server)
{
    dd_list *lists[] = {&server->silent, &server->greeted};
    int64_t next_ns = DD_NEVER_NS;
    for (int i = 0; i < 2; i++) {
        while (!dd_list_is_empty(lists[i])) {
            tcp_conn *conn = DD_CONTAINER_OF(lists[i]->next, tcp_conn, stranger);
            if (dd_deadline_left_ns(conn->handshake_ns) > 0) {
                next_ns = conn->handshake_ns < next_ns ? conn->handshake_ns : next_ns;
                break;
            }
            tcp_conn_doom(conn, i == 0 ? "it said nothing" : "it did not finish the handshake in time");
            tcp_server_bury(server);
        }
    }
    return next_ns;
}

void
tcp_stranger_begin(tcp_conn *conn)
{
    dd_tcp_server *server = conn->server;
    bool is_short = server->handshake_timeout_ns < FIRST_WORD_NS;
    conn->accepted_ns = dd_clock_now_ns();
    conn->handshake_ns = dd_deadline_after(is_short ? server->handshake_timeout_ns : FIRST_WORD_NS);
    dd_list_push_back(&server->silent, &conn->stranger);
    server->nsilent++;
}

void
tcp_stranger_greet(tcp_conn *conn)
{
    dd_tcp_server *server = conn->server;
    tcp_stranger_end(conn);
    conn->state = TCP_CONN_GREETED;
    conn->handshake_ns = dd_deadline_after(server->handshake_timeout_ns);
    dd_list_push_back(&server->greeted, &conn->stranger);
    server->ngreeted++;
}

void
tcp_stranger_end(tcp_conn *conn)
{
    if (dd_list_is_empty(&conn->stranger)) {
        return;
    }
    dd_list_remove(&conn->stranger);
    size_t *count = conn->state == TCP_CONN_NEW ? &conn->server->nsilent : &conn->server->ngreeted;
    --*count;
}
