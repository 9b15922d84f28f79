#include "plain_proxy.h"

#include "check.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_PUMPS 512

/* The server's first bytes answer the client's offer. */
#define ANSWER_BYTES 4

/* One direction of one connection. */
typedef struct pump {
    pthread_t thread;
    plain_proxy_mode mode;
    bool is_from_server;
    int from;
    int to;
} pump;

struct plain_proxy {
    pthread_t thread;
    plain_proxy_mode mode;
    uint16_t server_port;
    uint16_t port;
    int listen_fd;
    pthread_mutex_t mu;
    size_t npumps; /* guarded by mu */
    pump pumps[MAX_PUMPS];
};

static struct sockaddr_in
loopback(uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
}

static void
change(const pump *self, uint8_t *data, size_t len, size_t at)
{
    for (size_t i = 0; i < len; i++, at++) {
        if (self->mode == PROXY_PLAIN && at < ANSWER_BYTES) {
            data[i] = (uint8_t)~data[i];
        }
    }
}

static bool
send_all(int fd, const uint8_t *data, size_t len)
{
    while (len > 0) {
        ssize_t sent = sendto(fd, data, len, MSG_NOSIGNAL, NULL, 0);
        if (sent <= 0) {
            return false;
        }
        data += sent;
        len -= (size_t)sent;
    }
    return true;
}

static void *
pump_main(void *arg)
{
    pump *self = arg;
    uint8_t data[16384];
    ssize_t got;
    for (size_t at = 0; (got = recv(self->from, data, sizeof data, 0)) > 0; at += (size_t)got) {
        if (self->is_from_server && at < ANSWER_BYTES) {
            change(self, data, (size_t)got, at);
        }
        if (!send_all(self->to, data, (size_t)got)) {
            break;
        }
    }
    (void)shutdown(self->from, SHUT_RDWR);
    (void)shutdown(self->to, SHUT_RDWR);
    return NULL;
}

static void
start_pump(plain_proxy *proxy, int from, int to, bool is_from_server)
{
    pump *self = &proxy->pumps[proxy->npumps];
    *self = (pump){.mode = proxy->mode, .is_from_server = is_from_server, .from = from, .to = to};
    if (CHECK(pthread_create(&self->thread, NULL, pump_main, self) == 0)) {
        proxy->npumps++;
    }
}

static void
join_ends(plain_proxy *proxy, int client)
{
    struct sockaddr_in addr = loopback(proxy->server_port);
    int one = 1;
    int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    pthread_mutex_lock(&proxy->mu);
    if (connect(server, (struct sockaddr *)&addr, sizeof addr) != 0 ||
        !CHECK(proxy->npumps + 2 <= MAX_PUMPS)) {
        close(server);
        close(client);
    } else {
        (void)setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        (void)setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        start_pump(proxy, client, server, false);
        start_pump(proxy, server, client, true);
    }
    pthread_mutex_unlock(&proxy->mu);
}

static void *
proxy_main(void *arg)
{
    plain_proxy *proxy = arg;
    int client;
    while ((client = accept4(proxy->listen_fd, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        join_ends(proxy, client);
    }
    return NULL;
}

plain_proxy *
plain_proxy_start(uint16_t server_port, plain_proxy_mode mode)
{
    plain_proxy *proxy = calloc(1, sizeof *proxy);
    struct sockaddr_in addr = loopback(0);
    socklen_t addr_len = sizeof addr;
    if (!CHECK(proxy != NULL)) {
        return NULL;
    }
    proxy->mode = mode;
    proxy->server_port = server_port;
    (void)pthread_mutex_init(&proxy->mu, NULL);
    proxy->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(proxy->listen_fd, (struct sockaddr *)&addr, sizeof addr) == 0);
    CHECK(listen(proxy->listen_fd, 64) == 0);
    CHECK(getsockname(proxy->listen_fd, (struct sockaddr *)&addr, &addr_len) == 0);
    proxy->port = ntohs(addr.sin_port);
    if (!CHECK(pthread_create(&proxy->thread, NULL, proxy_main, proxy) == 0)) {
        close(proxy->listen_fd);
        free(proxy);
        return NULL;
    }
    return proxy;
}

uint16_t
plain_proxy_port(const plain_proxy *proxy)
{
    return proxy->port;
}

void
plain_proxy_cut(plain_proxy *proxy)
{
    pthread_mutex_lock(&proxy->mu);
    for (size_t i = 0; i < proxy->npumps; i++) {
        (void)shutdown(proxy->pumps[i].from, SHUT_RDWR);
    }
    pthread_mutex_unlock(&proxy->mu);
}

void
plain_proxy_stop(plain_proxy *proxy)
{
    if (proxy == NULL) {
        return;
    }
    (void)shutdown(proxy->listen_fd, SHUT_RDWR);
    pthread_join(proxy->thread, NULL);
    close(proxy->listen_fd);
    plain_proxy_cut(proxy);
    for (size_t i = 0; i < proxy->npumps; i++) {
        pthread_join(proxy->pumps[i].thread, NULL);
    }
    for (size_t i = 0; i < proxy->npumps; i++) {
        close(proxy->pumps[i].from);
    }
    pthread_mutex_destroy(&proxy->mu);
    free(proxy);
}
