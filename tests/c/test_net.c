#include "check.h"
#include "core/fork.h"
#include "net/addr.h"
#include "net/sock.h"
#include "pass_descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static dd_wait
long_wait(void)
{
    return dd_wait_after(5 * DD_NS_PER_S * check_slow());
}

/* --- addresses -------------------------------------------------------------------------------- */

static void
expect_addresses(const char *host, uint16_t port, const char *const *expected)
{
    dd_addr_list list = {.count = 0};
    dd_wait wait = long_wait();
    char text[DD_ADDR_TEXT_MAX];
    if (!CHECK_OK(dd_addr_resolve(host, port, &list, &wait, check_err()))) {
        return;
    }
    for (size_t i = 0; expected[i] != NULL; i++) {
        if (CHECK(i < list.count)) {
            CHECK_BYTES(dd_bytes_of_string(dd_addr_print(&list.items[i], text)),
                        dd_bytes_of_string(expected[i]));
            CHECK_INT(dd_addr_port(&list.items[i]), port);
        }
    }
}

TEST(ip_addresses_and_localhost_are_resolved_immediately)
{
    expect_addresses("127.0.0.1", 29500, (const char *const[]){"127.0.0.1:29500", NULL});
    expect_addresses("0.0.0.0", 0, (const char *const[]){"0.0.0.0:0", NULL});
    expect_addresses("::1", 65535, (const char *const[]){"[::1]:65535", NULL});
    expect_addresses("2001:db8::7", 1, (const char *const[]){"[2001:db8::7]:1", NULL});
    expect_addresses("localhost", 80, (const char *const[]){"[::1]:80", "127.0.0.1:80", NULL});
}

TEST(an_address_list_has_no_duplicates)
{
    dd_addr_list localhost;
    dd_addr_list list = {.count = 0};
    dd_wait wait = long_wait();
    REQUIRE_OK(dd_addr_resolve("localhost", 80, &localhost, &wait, check_err()));
    for (size_t i = 0; i < 2 * localhost.count; i++) {
        dd_addr_list_add(&list, &localhost.items[i % localhost.count]);
    }
    CHECK_INT(list.count, localhost.count);
    dd_addr other = localhost.items[0];
    for (uint16_t port = 1000; port < 1000 + 2 * DD_ADDR_LIST_MAX; port++) {
        dd_addr_set_port(&other, port);
        dd_addr_list_add(&list, &other);
    }
    CHECK_INT(list.count, DD_ADDR_LIST_MAX);
}

TEST(only_ip_addresses_have_ports)
{
    dd_addr_list list;
    dd_wait wait = long_wait();
    char text[DD_ADDR_TEXT_MAX];
    REQUIRE_OK(dd_addr_resolve("localhost", 80, &list, &wait, check_err()));
    for (size_t i = 0; i < list.count; i++) {
        dd_addr_set_port(&list.items[i], 4711);
        CHECK_INT(dd_addr_port(&list.items[i]), 4711);
    }
    dd_addr unix_addr = dd_addr_unix_abstract("a-name");
    dd_addr_set_port(&unix_addr, 1);
    CHECK_INT(dd_addr_port(&unix_addr), 0);
    CHECK_TEXT(dd_bytes_of_string(dd_addr_print(&unix_addr, text)), "unix:@a-name");
    dd_addr nothing = {.len = 0};
    CHECK_TEXT(dd_bytes_of_string(dd_addr_print(&nothing, text)), "address of family 0");
}

TEST(long_names_of_unix_sockets_are_truncated)
{
    char name[300];
    char text[DD_ADDR_TEXT_MAX];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    dd_addr addr = dd_addr_unix_abstract(name);
    int fd;
    CHECK_CONTAINS(dd_addr_print(&addr, text), "unix:@nnn");
    REQUIRE_OK(dd_sock_listen(&addr, &fd, check_err()));
    dd_sock_close(fd);
}

TEST(host_names_that_cannot_be_resolved_are_reported)
{
    static const char *const hosts[] = {"no-such-host.invalid", "a name with spaces", "256.1.1.1.1", "[::1]"};
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        dd_addr_list list;
        int64_t before_ns = dd_clock_now_ns();
        dd_wait wait = dd_wait_after(DD_NS_PER_S);
        dd_status status = dd_addr_resolve(hosts[i], 1, &list, &wait, check_err());
        CHECK(status == DD_NETWORK || status == DD_NETWORK_TIMED_OUT);
        CHECK_CONTAINS(check_message(), hosts[i]);
        CHECK(dd_clock_now_ns() - before_ns < 2 * DD_NS_PER_S * check_slow());
    }
}

static bool
is_interrupted(void *ctx)
{
    return ctx == NULL || dd_clock_now_ns() >= *(int64_t *)ctx;
}

TEST(the_lookup_of_a_host_name_can_be_interrupted)
{
    for (int i = 0; i < 20; i++) {
        dd_addr_list list;
        dd_wait wait = dd_wait_after(i % 2 == 0 ? 0 : DD_NS_PER_S);
        wait.is_interrupted = i % 2 == 0 ? NULL : is_interrupted;
        CHECK(dd_addr_resolve("no-such-host.invalid", 1, &list, &wait, check_err()) != DD_OK);
    }
}

TEST(only_empty_star_and_unspecified_hosts_are_wildcards)
{
    CHECK(dd_addr_is_wildcard("") && dd_addr_is_wildcard("*"));
    CHECK(dd_addr_is_wildcard("0.0.0.0") && dd_addr_is_wildcard("::"));
    CHECK(!dd_addr_is_wildcard("localhost") && !dd_addr_is_wildcard("127.0.0.1") &&
          !dd_addr_is_wildcard("::1"));
}

/* --- sockets ---------------------------------------------------------------------------------- */

static void
check_flags(int fd)
{
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
}

static int
accept_one(int listen_fd)
{
    int fd = -1;
    dd_wait wait = long_wait();
    CHECK_OK(dd_sock_wait(listen_fd, POLLIN, &wait, check_err()));
    CHECK_INT(dd_sock_try_accept(listen_fd, &fd), DD_IO_OK);
    return fd;
}

typedef struct pair {
    int listener;
    int client;
    int server;
    dd_addr addr;
} pair;

static bool
pair_open(pair *p, const dd_addr *addr)
{
    dd_wait wait = long_wait();
    *p = (pair){-1, -1, -1, *addr};
    if (!CHECK_OK(dd_sock_listen(addr, &p->listener, check_err()))) {
        return false;
    }
    p->addr = dd_sock_local_addr(p->listener);
    if (CHECK_OK(dd_sock_connect(&p->addr, &p->client, &wait, check_err()))) {
        p->server = accept_one(p->listener);
    }
    return p->server >= 0;
}

static void
pair_close(pair *p)
{
    dd_sock_close(p->client);
    dd_sock_close(p->server);
    dd_sock_close(p->listener);
}

static dd_addr
loopback(void)
{
    dd_addr_list list = {.count = 0};
    dd_wait wait = long_wait();
    CHECK_OK(dd_addr_resolve("127.0.0.1", 0, &list, &wait, check_err()));
    return list.items[0];
}

static void
exchange(pair *p)
{
    char data[8];
    size_t moved = 0;
    dd_wait wait = long_wait();
    CHECK_INT(dd_sock_try_recv(p->server, data, sizeof data, &moved), DD_IO_AGAIN);
    CHECK_INT(dd_sock_try_send(p->client, "hello", 5, &moved), DD_IO_OK);
    CHECK_INT(moved, 5);
    CHECK_OK(dd_sock_wait(p->server, POLLIN, &wait, check_err()));
    CHECK_INT(dd_sock_try_recv(p->server, data, sizeof data, &moved), DD_IO_OK);
    CHECK_BYTES(dd_bytes_of(data, moved), BYTES("hello"));
    dd_sock_close(p->client);
    p->client = -1;
    CHECK_OK(dd_sock_wait(p->server, POLLIN, &wait, check_err()));
    CHECK_INT(dd_sock_try_recv(p->server, data, sizeof data, &moved), DD_IO_CLOSED);
}

static void
check_family(const dd_addr *addr)
{
    pair p;
    if (pair_open(&p, addr)) {
        check_flags(p.listener);
        check_flags(p.client);
        check_flags(p.server);
        dd_addr peer = dd_sock_peer_addr(p.client);
        CHECK(peer.len == p.addr.len && memcmp(&peer.storage, &p.addr.storage, peer.len) == 0);
        if (addr->storage.ss_family != AF_UNIX) {
            CHECK(dd_addr_port(&p.addr) != 0);
        }
        exchange(&p);
    }
    pair_close(&p);
}

TEST(connections_of_every_address_family_carry_data)
{
    dd_addr v4 = loopback();
    check_family(&v4);
    char name[64];
    (void)snprintf(name, sizeof name, "dldist-test-%d", (int)getpid());
    dd_addr unix_addr = dd_addr_unix_abstract(name);
    check_family(&unix_addr);
    dd_addr_list v6;
    dd_wait wait = long_wait();
    int fd;
    CHECK_OK(dd_addr_resolve("::1", 0, &v6, &wait, check_err()));
    dd_status status = dd_sock_listen(&v6.items[0], &fd, check_err());
    if (status == DD_OK) {
        dd_sock_close(fd);
        check_family(&v6.items[0]);
    }
}

TEST(the_user_who_owns_a_local_tcp_peer_is_known_while_it_is_open)
{
    pair p;
    dd_addr addr = loopback();
    REQUIRE(pair_open(&p, &addr));
    CHECK(dd_sock_is_tcp_of_same_user(p.server));
    CHECK(dd_sock_is_tcp_of_same_user(p.client));
    dd_sock_close(p.client);
    p.client = -1;
    CHECK(!dd_sock_is_tcp_of_same_user(p.server));
    pair_close(&p);
}

TEST(listening_on_a_port_in_use_reports_the_address)
{
    dd_addr addr = loopback();
    int fd;
    int second = -1;
    char text[DD_ADDR_TEXT_MAX];
    dd_error err;
    REQUIRE_OK(dd_sock_listen(&addr, &fd, check_err()));
    addr = dd_sock_local_addr(fd);
    CHECK_INT(dd_sock_listen(&addr, &second, &err), DD_NETWORK);
    CHECK_INT(err.sys_errno, EADDRINUSE);
    CHECK_CONTAINS(err.message, dd_addr_print(&addr, text));
    CHECK_INT(second, -1);
    dd_sock_close(fd);
}

TEST(a_refused_connection_reports_its_address_and_reason)
{
    dd_addr addr = loopback();
    int fd;
    dd_error err;
    dd_wait wait = long_wait();
    char text[DD_ADDR_TEXT_MAX];
    REQUIRE_OK(dd_sock_listen(&addr, &fd, check_err()));
    addr = dd_sock_local_addr(fd);
    dd_sock_close(fd);
    CHECK_INT(dd_sock_connect(&addr, &fd, &wait, &err), DD_NETWORK);
    CHECK_INT(err.sys_errno, ECONNREFUSED);
    CHECK_CONTAINS(err.message, dd_addr_print(&addr, text));
    dd_addr unix_addr = dd_addr_unix_abstract("dldist-test-no-listener");
    CHECK_INT(dd_sock_connect(&unix_addr, &fd, &wait, &err), DD_NETWORK);
    CHECK_INT(err.sys_errno, ECONNREFUSED);
    CHECK_CONTAINS(err.message, "unix:@dldist-test-no-listener");
}

/* With a full queue of one connection, the next connection receives no answer. */
TEST(connecting_ends_at_its_deadline)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(bind(listener, (struct sockaddr *)&in, sizeof in) == 0 && listen(listener, 0) == 0);
    dd_addr addr = dd_sock_local_addr(listener);
    int fds[8];
    size_t nfds = 0;
    dd_status status = DD_OK;
    int64_t took_ns = 0;
    while (status == DD_OK && nfds < 8) {
        int64_t before_ns = dd_clock_now_ns();
        dd_wait wait = dd_wait_after(100 * DD_NS_PER_MS);
        status = dd_sock_connect(&addr, &fds[nfds], &wait, check_err());
        took_ns = dd_clock_now_ns() - before_ns;
        nfds += status == DD_OK;
    }
    CHECK_STATUS(status, DD_NETWORK_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "connect to 127.0.0.1:");
    CHECK(took_ns >= 100 * DD_NS_PER_MS && took_ns < DD_NS_PER_S * check_slow());
    while (nfds > 0) {
        dd_sock_close(fds[--nfds]);
    }
    close(listener);
}

TEST(waiting_for_a_socket_ends_soon_after_an_interrupt)
{
    dd_addr addr = loopback();
    pair p;
    REQUIRE(pair_open(&p, &addr));
    int64_t best_ns = INT64_MAX;
    for (int i = 0; i < 5 && best_ns > 100 * DD_NS_PER_MS; i++) {
        int64_t from_ns = dd_clock_now_ns() + 20 * DD_NS_PER_MS;
        dd_wait wait = long_wait();
        wait.is_interrupted = is_interrupted;
        wait.ctx = &from_ns;
        CHECK_STATUS(dd_sock_wait(p.client, POLLIN, &wait, check_err()), DD_INTERRUPTED);
        int64_t late_ns = dd_clock_now_ns() - from_ns;
        best_ns = late_ns < best_ns ? late_ns : best_ns;
    }
    CHECK(best_ns <= 100 * DD_NS_PER_MS * check_slow());
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_MS);
    CHECK_STATUS(dd_sock_wait(p.client, POLLIN, &wait, check_err()), DD_NETWORK_TIMED_OUT);
    pair_close(&p);
}

/* --- forks ------------------------------------------------------------------------------------ */

static void
exit_on_request(int fd)
{
    char byte;
    alarm(5 * (unsigned)check_slow());
    _exit(read(fd, &byte, 1) == 0 && check_failures() == 0 ? 0 : 1);
}

TEST(a_forked_child_does_not_keep_its_parents_connections_open)
{
    dd_addr addr = loopback();
    pair p;
    int pipes[2];
    uint64_t generation = dd_fork_generation();
    REQUIRE(pair_open(&p, &addr) && pipe(pipes) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(pipes[1]);
        CHECK(dd_fork_generation() != generation);
        CHECK(fcntl(p.client, F_GETFD) < 0 && fcntl(p.server, F_GETFD) < 0 && fcntl(p.listener, F_GETFD) < 0);
        exit_on_request(pipes[0]);
    }
    REQUIRE(pid > 0);
    CHECK(dd_fork_generation() == generation);
    /* The other end sees the end of the connection although the child is alive. */
    char byte;
    size_t moved;
    dd_wait wait = long_wait();
    dd_sock_close(p.client);
    p.client = -1;
    CHECK_OK(dd_sock_wait(p.server, POLLIN, &wait, check_err()));
    CHECK_INT(dd_sock_try_recv(p.server, &byte, 1, &moved), DD_IO_CLOSED);
    CHECK_INT(waitpid(pid, NULL, WNOHANG), 0);
    close(pipes[1]);
    int status = -1;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_INT(status, 0);
    close(pipes[0]);
    pair_close(&p);
}

TEST(a_forked_child_does_not_close_a_reused_descriptor_number)
{
    int pipes[2];
    REQUIRE(pipe(pipes) == 0);
    int owned = dd_fork_register(dup(pipes[0]));
    dd_fork_close(owned);
    CHECK_INT(dd_fork_register(-1), -1);
    dd_fork_close(-1);
    /* The same number, no longer owned. */
    int again = dup(pipes[0]);
    CHECK_INT(again, owned);
    pid_t pid = fork();
    if (pid == 0) {
        _exit(fcntl(again, F_GETFD) >= 0 ? 0 : 1);
    }
    int status = -1;
    REQUIRE(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK_INT(status, 0);
    close(again);
    close(pipes[0]);
    close(pipes[1]);
}

TEST(only_one_of_several_descriptors_received_together_is_kept)
{
    int sockets[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets) == 0);
    int passed[2] = {sockets[0], sockets[1]};
    REQUIRE(pass_descriptors(sockets[0], "x", 1, passed, 2) == 1);
    int next_free = dup(sockets[0]);
    int second_free = dup(sockets[0]);
    close(next_free);
    close(second_free);
    char byte;
    int fd = -1;
    size_t moved = 0;
    REQUIRE(dd_sock_try_recv_fd(sockets[1], &byte, 1, &fd, NULL, &moved) == DD_IO_OK);
    CHECK_INT(fd, next_free);
    int after = dup(sockets[0]);
    CHECK_INT(after, second_free); /* the second descriptor was not installed */
    close(after);
    dd_sock_close(fd);
    close(sockets[0]);
    close(sockets[1]);
}
