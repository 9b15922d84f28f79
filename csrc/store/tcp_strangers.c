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

/* Any of the silent ones. If it were always the oldest, a flood would be sure to push out a client that takes longer than
 * the flood needs to go round. */
static tcp_conn *
pick_silent(dd_tcp_server *server)
{
    if (server->nstrangers[TCP_SILENT] == 0) {
        return NULL;
    }
    server->dice = server->dice * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    size_t index = (size_t)(server->dice >> 33) % server->nstrangers[TCP_SILENT];
    dd_list *link = server->strangers[TCP_SILENT].next;
    while (index-- > 0) {
        link = link->next;
    }
    return DD_CONTAINER_OF(link, tcp_conn, stranger);
}

static tcp_conn *
pick_greeted(dd_tcp_server *server)
{
    if (server->nstrangers[TCP_GREETED] == 0) {
        return NULL;
    }
    tcp_conn *oldest = DD_CONTAINER_OF(server->strangers[TCP_GREETED].next, tcp_conn, stranger);
    return dd_clock_now_ns() - oldest->accepted_ns > GREETED_GRACE_NS ? oldest : NULL;
}

static bool
evict(tcp_conn *conn)
{
    if (conn != NULL) {
        tcp_conn_doom(conn, "it makes room: too many connections have not shown that they are of this job");
    }
    return conn != NULL;
}

bool
tcp_strangers_evict(dd_tcp_server *server)
{
    return evict(pick_silent(server)) || evict(pick_greeted(server));
}

bool
tcp_strangers_curb(dd_tcp_server *server)
{
    size_t most = strangers_max();
    while (server->nstrangers[TCP_SILENT] > most) {
        (void)evict(pick_silent(server));
    }
    while (server->nstrangers[TCP_GREETED] > most) {
        if (!evict(pick_greeted(server))) {
            return false;
        }
    }
    return true;
}

int64_t
tcp_strangers_expire(dd_tcp_server *server)
{
    int64_t next_ns = DD_NEVER_NS;
    for (int kind = 0; kind < TCP_STRANGER_KINDS; kind++) {
        while (server->nstrangers[kind] > 0) {
            tcp_conn *conn = DD_CONTAINER_OF(server->strangers[kind].next, tcp_conn, stranger);
            if (dd_deadline_left_ns(conn->handshake_ns) > 0) {
                next_ns = conn->handshake_ns < next_ns ? conn->handshake_ns : next_ns;
                break;
            }
            tcp_conn_doom(conn,
                          kind == TCP_SILENT ? "it said nothing" : "it did not finish the handshake in time");
        }
    }
    return next_ns;
}

void
tcp_stranger_begin(tcp_conn *conn, tcp_conn_state state)
{
    dd_tcp_server *server = conn->server;
    int kind = state == TCP_CONN_NEW ? TCP_SILENT : TCP_GREETED;
    bool is_short = kind == TCP_GREETED || server->handshake_timeout_ns < FIRST_WORD_NS;
    tcp_stranger_end(conn);
    conn->state = state;
    conn->handshake_ns = dd_deadline_after(is_short ? server->handshake_timeout_ns : FIRST_WORD_NS);
    dd_list_push_back(&server->strangers[kind], &conn->stranger);
    server->nstrangers[kind]++;
}

void
tcp_stranger_end(tcp_conn *conn)
{
    if (!dd_list_is_empty(&conn->stranger)) {
        dd_list_remove(&conn->stranger);
        conn->server->nstrangers[conn->state == TCP_CONN_NEW ? TCP_SILENT : TCP_GREETED]--;
    }
}
