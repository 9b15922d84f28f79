/* The rings of a server's clients.
 *
 * A client's set is not answered, and whoever learns of it by another way must find it done, also through another
 * connection. Sockets give that by the order in which bytes arrive; rings are looked at one after another, which is no
 * order at all. So every request in a ring has the time at which its call began, by the clock that all processes of a
 * host share, and the requests of all rings are served in the order of these times. What a request depends on was
 * written before its call began; so, when the rings are read after a time T and only what began before T is served, all
 * that it depends on has been read as well. Rings that sleep are not read, but the bell of one that was written before T
 * has been rung before T: so T is a time before epoll was asked for bells. */
#include "store/tcp_server_internal.h"

#include "core/mem.h"
#include "net/sock.h"

#include <string.h>

/* A ring is looked at so long after its last request before it is put to sleep. */
#define QUIET_NS TCP_SPIN_NS
#define TIME_BYTES sizeof(int64_t)

static void
heat(tcp_conn *conn)
{
    if (dd_list_is_empty(&conn->hot)) {
        conn->quiet_since_ns = dd_clock_now_ns();
        dd_list_push_back(&conn->server->hot, &conn->hot);
    }
}

void
tcp_ring_begin(tcp_conn *conn)
{
    conn->server->nrings++;
    heat(conn);
}

/* --- requests of one ring ------------------------------------------------------------------------------------ */

/* Whether the next request is not there whole: more has to come before anything can be served. */
static bool
is_hungry(const tcp_conn *conn)
{
    return conn->is_short || conn->in.len - conn->in_done < TIME_BYTES;
}

/* Moves what is in the ring to `in`; whether there was anything. */
static bool
collect(tcp_conn *conn)
{
    size_t count = 0;
    if (!dd_ring_count(&conn->ring, &count)) {
        tcp_conn_doom(conn, "its ring's position makes no sense");
        return false;
    }
    if (count == 0) {
        return false;
    }
    size_t moved = 0;
    if (dd_blob_reserve(&conn->in, count, NULL) != DD_OK ||
        !dd_ring_read(&conn->ring, conn->in.data + conn->in.len, count, &moved)) {
        tcp_conn_doom(conn, "no memory for its request");
        return false;
    }
    conn->in.len += moved;
    conn->is_short = false;
    return true;
}

/* Drops what has been served. */
static void
tidy_up(tcp_conn *conn)
{
    dd_blob_consume(&conn->in, conn->in_done);
    conn->in_done = 0;
    if (conn->in.len == 0) {
        dd_blob_clear(&conn->in, 0);
    }
}

/* The time of the next request, if one is there that may be served. */
static bool
next_time(const tcp_conn *conn, int64_t *time_ns)
{
    if (conn->is_doomed || is_hungry(conn) || !tcp_conn_is_readable(conn)) {
        return false;
    }
    memcpy(time_ns, conn->in.data + conn->in_done, TIME_BYTES);
    return true;
}

static void
serve_one(tcp_conn *conn)
{
    size_t start = conn->in_done + TIME_BYTES;
    size_t used = 0;
    if (tcp_conn_serve_next(conn, dd_bytes_of(conn->in.data + start, conn->in.len - start), &used)) {
        conn->in_done = start + used;
    } else {
        conn->is_short = true; /* until more of it has come */
    }
    if (conn->out.len > 0) {
        tcp_conn_flush(conn);
    }
}

/* --- all rings ----------------------------------------------------------------------------------------------- */

/* The bells among the events: their rings are read in this round, or what is in them would come after requests that
 * depend on it. */
static void
heat_belled(dd_loop *loop)
{
    for (int i = 0; i < loop->nevents; i++) {
        tcp_conn *conn =
            loop->events[i].data.ptr != NULL ? tcp_conn_of_handler(loop->events[i].data.ptr) : NULL;
        if (conn != NULL && dd_ring_is_open(&conn->ring)) {
            heat(conn);
        }
    }
}

/* When epoll has more to tell than it could: the sleeping rings are looked at, all of them. */
static void
heat_filled(dd_tcp_server *server)
{
    for (dd_list *link = server->conns.next; link != &server->conns; link = link->next) {
        tcp_conn *conn = DD_CONTAINER_OF(link, tcp_conn, link);
        size_t count = 0;
        if (dd_ring_is_open(&conn->ring) && dd_ring_count(&conn->ring, &count) && count > 0) {
            heat(conn);
        }
    }
}

static bool
are_all_hot(const dd_tcp_server *server)
{
    size_t nhot = 0;
    for (const dd_list *link = server->hot.next; link != &server->hot; link = link->next) {
        nhot++;
    }
    return nhot == server->nrings;
}

/* What began up to this time depends on nothing but what is in rings that are hot now. */
static int64_t
heat_until(dd_tcp_server *server, int64_t now_ns)
{
    heat_belled(&server->loop);
    if (server->loop.nevents == DD_LOOP_BATCH) {
        heat_filled(server);
        return now_ns;
    }
    return are_all_hot(server) ? now_ns : server->loop.asked_ns;
}

/* Whether there is so much to serve that reading more can wait: only nonsense about the time makes it so. */
static bool
is_sated(const tcp_conn *conn)
{
    return !is_hungry(conn) && conn->in.len > DD_TCP_RING_BYTES;
}

/* Reads the rings, all of them, or what is left in one would come after requests that depend on it; *nhot is how many are
 * hot. */
static bool
collect_all(dd_tcp_server *server, int64_t now_ns, size_t *nhot)
{
    bool is_input = false;
    dd_list *next;
    *nhot = 0;
    for (dd_list *link = server->hot.next; link != &server->hot; link = next) {
        tcp_conn *conn = DD_CONTAINER_OF(link, tcp_conn, hot);
        next = link->next;
        if (conn->is_doomed || !tcp_conn_is_readable(conn)) {
            /* An event heats it again when it has taken its replies. */
            dd_list_remove(&conn->hot);
            continue;
        }
        (*nhot)++;
        if (!is_sated(conn) && collect(conn)) {
            conn->quiet_since_ns = now_ns;
            is_input = true;
        }
    }
    return is_input;
}

/* The times of a round: it is now, and what began up to `until` is served. */
typedef struct round_times {
    int64_t now_ns;
    int64_t until_ns;
} round_times;

/* Whether there is a request that may be served in this round; its time goes into next_ns. */
static bool
is_due(tcp_conn *conn, round_times times)
{
    if (!next_time(conn, &conn->next_ns)) {
        return false;
    }
    if (conn->next_ns > times.now_ns + TCP_MAX_AHEAD_NS) {
        tcp_conn_doom(conn, "its ring is ahead of time");
        return false;
    }
    return conn->next_ns <= times.until_ns;
}

/* `queue` is a heap: none is due before its parent. */
static void
sift_down(tcp_conn **queue, size_t count, size_t at)
{
    for (;;) {
        size_t least = at;
        for (size_t child = 2 * at + 1; child <= 2 * at + 2 && child < count; child++) {
            least = queue[child]->next_ns < queue[least]->next_ns ? child : least;
        }
        if (least == at) {
            return;
        }
        tcp_conn *moved = queue[at];
        queue[at] = queue[least];
        queue[least] = moved;
        at = least;
    }
}

static size_t
fill_queue(dd_tcp_server *server, round_times times)
{
    size_t count = 0;
    for (dd_list *link = server->hot.next; link != &server->hot; link = link->next) {
        tcp_conn *conn = DD_CONTAINER_OF(link, tcp_conn, hot);
        if (is_due(conn, times)) {
            server->queue[count++] = conn;
        }
    }
    for (size_t at = count / 2; at > 0; at--) {
        sift_down(server->queue, count, at - 1);
    }
    return count;
}

static bool
has_queue_for(dd_tcp_server *server, size_t nhot)
{
    if (nhot > server->queue_capacity) {
        tcp_conn **grown = dd_mem_realloc(server->queue, 2 * nhot * sizeof(tcp_conn *));
        if (grown == NULL) {
            return false;
        }
        server->queue = grown;
        server->queue_capacity = 2 * nhot;
    }
    return true;
}

/* Serves what is due in the order of its times. Without memory to sort in, the next round tries again. */
static void
serve_in_order(dd_tcp_server *server, round_times times, size_t nhot)
{
    size_t count = has_queue_for(server, nhot) ? fill_queue(server, times) : 0;
    while (count > 0) {
        tcp_conn *first = server->queue[0];
        /* Serving another may have doomed it. */
        if (is_due(first, times)) {
            serve_one(first);
        }
        if (!is_due(first, times)) {
            server->queue[0] = server->queue[--count];
        }
        sift_down(server->queue, count, 0);
    }
}

/* Rings that have been quiet are looked at no more until their bell. */
static void
put_quiet_to_sleep(dd_tcp_server *server, int64_t now_ns)
{
    int64_t quiet_ns = dd_spin_is_resting(&server->loop.spin) ? 0 : QUIET_NS;
    dd_list *next;
    for (dd_list *link = server->hot.next; link != &server->hot; link = next) {
        tcp_conn *conn = DD_CONTAINER_OF(link, tcp_conn, hot);
        next = link->next;
        tidy_up(conn);
        if (is_hungry(conn) && now_ns - conn->quiet_since_ns > quiet_ns && dd_ring_fall_asleep(&conn->ring)) {
            dd_list_remove(&conn->hot);
        }
    }
}

bool
tcp_server_poll_rings(dd_loop *loop, bool *is_wanted)
{
    dd_tcp_server *server = DD_CONTAINER_OF(loop, dd_tcp_server, loop);
    round_times times = {.now_ns = dd_clock_now_ns()};
    times.until_ns = heat_until(server, times.now_ns);
    if (dd_list_is_empty(&server->hot)) {
        return false;
    }
    size_t nhot;
    bool is_input = collect_all(server, times.now_ns, &nhot);
    serve_in_order(server, times, nhot);
    put_quiet_to_sleep(server, times.now_ns);
    tcp_server_bury(server);
    *is_wanted = !dd_list_is_empty(&server->hot);
    return is_input;
}

/* --- events -------------------------------------------------------------------------------------------------- */

/* A client that has closed its socket may have left requests in its ring: one ring full of them at most, though whoever
 * still has the memory could go on writing. */
static void
drain(tcp_conn *conn)
{
    uint64_t last = conn->ring.position + conn->ring.size;
    do {
        for (int64_t time_ns; next_time(conn, &time_ns);) {
            serve_one(conn);
        }
        tidy_up(conn);
    } while (!conn->is_doomed && conn->ring.position < last && collect(conn));
    tcp_conn_doom(conn, "closed by the client");
}

void
tcp_ring_on_event(tcp_conn *conn, uint32_t events)
{
    heat(conn);
    if (!(events & EPOLLIN)) {
        if (events & (EPOLLERR | EPOLLHUP)) {
            drain(conn);
        }
        return;
    }
    uint8_t bells[64];
    size_t moved = 0;
    switch (dd_sock_try_recv(conn->handler.fd, bells, sizeof bells, &moved)) {
    case DD_IO_AGAIN:
    case DD_IO_OK:
        return;
    case DD_IO_CLOSED:
    case DD_IO_FAILED:
        drain(conn);
        return;
    }
}
