/* The bound set by TCP: two ranks that only call send and recv on one connection. They spin, and
 * sleep when nothing has moved for IDLE_LOOKS polls, since spinning would keep a shared core from
 * the peer and the kernel.
 *
 *     raw_rank SOCKET RANK ADDRESS PORT_FILE [CONGESTION_CONTROL]
 *
 * Rank 0 listens at ADDRESS and writes its port to PORT_FILE. Reductions move the bytes that any
 * library must move, and add float32. */
#include "rank.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    SEND_MOST = 256 << 10,
    RECV_MOST = 256 << 10,
    BUFFER = 1 << 20,
    WHOLE_MOST = 16 << 10,
    IDLE_LOOKS = 200, /* about 100 microseconds */
    PATIENCE_MS = 20000,
};

static bool
is_over(ssize_t moved)
{
    return moved == 0 || (moved < 0 && errno != EAGAIN && errno != EINTR);
}

/* Sends `nout` bytes and receives `nin` bytes concurrently. */
static const char *
transfer(int fd, const char *out, size_t nout, char *in, size_t nin)
{
    int nidle = 0;
    while (nout > 0 || nin > 0) {
        size_t before = nin + nout;
        if (nin > 0) {
            ssize_t got = recv(fd, in, nin < RECV_MOST ? nin : RECV_MOST, MSG_DONTWAIT);
            if (is_over(got)) {
                return "recv failed";
            }
            in += got > 0 ? got : 0;
            nin -= got > 0 ? (size_t)got : 0;
        }
        if (nout > 0) {
            ssize_t sent = send(fd, out, nout < SEND_MOST ? nout : SEND_MOST, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (is_over(sent)) {
                return "send failed";
            }
            out += sent > 0 ? sent : 0;
            nout -= sent > 0 ? (size_t)sent : 0;
        }
        nidle = nin + nout < before ? 0 : nidle + 1;
        if (nidle > IDLE_LOOKS) {
            struct pollfd end = {.fd = fd, .events = (short)((nin > 0 ? POLLIN : 0) | (nout > 0 ? POLLOUT : 0))};
            poll(&end, 1, -1);
            nidle = 0;
        }
    }
    return NULL;
}

static const char *
call_stream(rank_task *task)
{
    int fd = *(const int *)task->context;
    size_t nbytes = task->nin * task->item;

    return task->rank == 0 ? transfer(fd, task->input, nbytes, NULL, 0)
                           : transfer(fd, NULL, 0, task->output, nbytes);
}

static const char *
call_sendrecv(rank_task *task)
{
    int fd = *(const int *)task->context;
    size_t nbytes = task->nin * task->item;
    const char *problem = call_stream(task);

    if (problem != NULL) {
        return problem;
    }
    return task->rank == 0 ? transfer(fd, NULL, 0, task->output, nbytes)
                           : transfer(fd, task->input, nbytes, NULL, 0);
}

static const char *
call_all_gather(rank_task *task)
{
    int fd = *(const int *)task->context;
    size_t nbytes = task->nin * task->item;
    char *mine = (char *)task->output + (task->rank == 0 ? 0 : nbytes);
    char *theirs = (char *)task->output + (task->rank == 0 ? nbytes : 0);

    memcpy(mine, task->input, nbytes);
    return transfer(fd, task->input, nbytes, theirs, nbytes);
}

static const char *
call_all_to_all(rank_task *task)
{
    int fd = *(const int *)task->context;
    size_t nbytes = task->nin / 2 * task->item;
    size_t mine = task->rank == 0 ? 0 : nbytes;
    size_t theirs = nbytes - mine;

    memcpy((char *)task->output + mine, (char *)task->input + mine, nbytes);
    return transfer(fd, (char *)task->input + theirs, nbytes, (char *)task->output + theirs, nbytes);
}

static const char *
call_broadcast(rank_task *task)
{
    int fd = *(const int *)task->context;
    size_t nbytes = task->nin * task->item;

    return task->rank == 0 ? transfer(fd, task->input, nbytes, NULL, 0)
                           : transfer(fd, NULL, 0, task->input, nbytes);
}

static float *scratch; /* received data of the measured operation */

static void
add(float *sum, const float *a, const float *b, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        sum[i] = a[i] + b[i];
    }
}

/* Sends the peer's part, receives the peer's data for this rank's part, and adds both into
 * `sum`. */
static const char *
reduce_part(rank_task *task, size_t mine, size_t nmine, size_t theirs, size_t ntheirs, float *sum)
{
    float *input = task->input;
    const char *problem = transfer(*(const int *)task->context, (const char *)(input + theirs),
                                   ntheirs * task->item, (char *)scratch, nmine * task->item);

    add(sum, input + mine, scratch, problem == NULL ? nmine : 0);
    return problem;
}

static const char *
call_reduce_scatter(rank_task *task)
{
    size_t half = task->nin / 2;
    size_t mine = task->rank == 0 ? 0 : half;

    return reduce_part(task, mine, half, half - mine, half, task->output);
}

/* Exchanges a small array whole; for a large one, each rank adds one half and returns it. */
static const char *
call_all_reduce(rank_task *task)
{
    int fd = *(const int *)task->context;
    float *array = task->input;
    size_t half = task->nin / 2;
    size_t mine = task->rank == 0 ? 0 : half;
    size_t nmine = task->rank == 0 ? half : task->nin - half;
    size_t theirs = half - mine;
    size_t ntheirs = task->nin - nmine;
    const char *problem;

    if (task->nin * task->item <= WHOLE_MOST) {
        return reduce_part(task, 0, task->nin, 0, task->nin, array);
    }
    problem = reduce_part(task, mine, nmine, theirs, ntheirs, array + mine);
    return problem != NULL ? problem
                           : transfer(fd, (const char *)(array + mine), nmine * task->item,
                                      (char *)(array + theirs), ntheirs * task->item);
}

static const char *
call_barrier(rank_task *task)
{
    char out = 0, in;

    return transfer(*(const int *)task->context, &out, 1, &in, 1);
}

static bool
find(rank_task *task)
{
    static const struct {
        const char *op;
        const char *(*call)(rank_task *task);
        bool adds;
    } operations[] = {
        {"stream", call_stream, false},         {"sendrecv", call_sendrecv, false},
        {"all_gather", call_all_gather, false}, {"all_to_all", call_all_to_all, false},
        {"barrier", call_barrier, false},       {"broadcast", call_broadcast, false},
        {"all_reduce", call_all_reduce, true},  {"reduce_scatter", call_reduce_scatter, true},
    };

    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++) {
        if (strcmp(task->op, operations[i].op) == 0 && (!operations[i].adds || task->kind == RANK_FLOAT32)) {
            free(scratch);
            scratch = malloc(task->nin * task->item + 1);
            task->call = operations[i].call;
            return scratch != NULL;
        }
    }
    return false;
}

static void
barrier(void *context)
{
    rank_task task = {.context = context};

    call_barrier(&task);
}

/* ---- the connection */

static void
fail(const char *what)
{
    perror(what);
    exit(1);
}

static void
tune(int fd, const char *congestion)
{
    int one = 1, nbytes = BUFFER;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &nbytes, sizeof nbytes);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &nbytes, sizeof nbytes);
    if (congestion != NULL &&
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, (socklen_t)strlen(congestion)) != 0) {
        fail(congestion);
    }
}

static int
accept_peer(int fd, struct sockaddr_in *address, const char *port_file)
{
    socklen_t length = sizeof *address;
    char name[256];
    FILE *file;

    if (bind(fd, (struct sockaddr *)address, length) != 0 || listen(fd, 1) != 0 ||
        getsockname(fd, (struct sockaddr *)address, &length) != 0) {
        fail("listen");
    }
    snprintf(name, sizeof name, "%s.new", port_file);
    file = fopen(name, "w");
    if (file == NULL || fprintf(file, "%d\n", ntohs(address->sin_port)) < 0 || fclose(file) != 0 ||
        rename(name, port_file) != 0) {
        fail(name);
    }
    return accept(fd, NULL, NULL);
}

static int
connect_peer(int fd, struct sockaddr_in *address, const char *port_file)
{
    int port = 0;

    for (int waited_ms = 0; port == 0 && waited_ms < PATIENCE_MS; waited_ms += 10) {
        FILE *file = fopen(port_file, "r");
        if (file == NULL || fscanf(file, "%d", &port) != 1) {
            usleep(10000);
        }
        if (file != NULL) {
            fclose(file);
        }
    }
    address->sin_port = htons((uint16_t)port);
    return connect(fd, (struct sockaddr *)address, sizeof *address) == 0 ? fd : -1;
}

int
main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    rank_peer peer = {.size = 2, .version = "one TCP connection", .find = find, .barrier = barrier};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (argc < 5 || fd < 0 || inet_pton(AF_INET, argv[3], &address.sin_addr) != 1) {
        fprintf(stderr, "usage: raw_rank SOCKET RANK ADDRESS PORT_FILE [CONGESTION_CONTROL]\n");
        return 2;
    }
    peer.rank = atoi(argv[2]);
    peer.context = &fd;
    tune(fd, argv[5]);
    fd = peer.rank == 0 ? accept_peer(fd, &address, argv[4]) : connect_peer(fd, &address, argv[4]);
    if (fd < 0) {
        fail("connect");
    }
    return rank_serve(argv[1], &peer);
}
