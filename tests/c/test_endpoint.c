#include "check.h"
#include "core/mem.h"
#include "faults/faults.h"
#include "net/ifaces.h"
#include "net/sock.h"
#include "transport/endpoint.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static dd_addr
ip(const char *text, uint16_t port)
{
    dd_addr addr = {0};
    struct sockaddr_in *in = (struct sockaddr_in *)&addr.storage;
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&addr.storage;
    if (inet_pton(AF_INET, text, &in->sin_addr) == 1) {
        in->sin_family = AF_INET;
        addr.len = sizeof *in;
    } else {
        CHECK(inet_pton(AF_INET6, text, &in6->sin6_addr) == 1);
        in6->sin6_family = AF_INET6;
        addr.len = sizeof *in6;
    }
    dd_addr_set_port(&addr, port);
    return addr;
}

static dd_endpoint
sample_endpoint(dd_addr_list *addrs)
{
    dd_endpoint endpoint;
    CHECK_OK(dd_endpoint_init(&endpoint, check_err()));
    strcpy(endpoint.host, "node-b");
    endpoint.pid = 7712;
    endpoint.has_unix = true;
    addrs->count = 0;
    dd_addr v4 = ip("10.1.2.3", 29500);
    dd_addr v6 = ip("2001:db8::7", 65535);
    dd_addr_list_add(addrs, &v4);
    dd_addr_list_add(addrs, &v6);
    return endpoint;
}

TEST(a_new_endpoint_describes_this_process)
{
    dd_endpoint a;
    dd_endpoint b;
    REQUIRE_OK(dd_endpoint_init(&a, check_err()));
    REQUIRE_OK(dd_endpoint_init(&b, check_err()));
    CHECK_INT(a.pid, getpid());
    CHECK(strlen(a.host) > 0);
    CHECK(!a.has_unix);
    CHECK(memcmp(&a.uid, &b.uid, sizeof a.uid) != 0);
    CHECK(dd_endpoint_is_same_host(&a, &b));
    b.host_id[31] ^= 1;
    CHECK(!dd_endpoint_is_same_host(&a, &b));
    /* Two hosts without a host id are never the same host. */
    memset(a.host_id, 0, sizeof a.host_id);
    memset(b.host_id, 0, sizeof b.host_id);
    CHECK(!dd_endpoint_is_same_host(&a, &b));
}

TEST(an_endpoint_is_decoded_as_it_was_encoded)
{
    dd_addr_list addrs;
    dd_endpoint endpoint = sample_endpoint(&addrs);
    dd_blob bytes = {0};
    REQUIRE_OK(dd_endpoint_encode(&endpoint, &addrs, &bytes, check_err()));
    dd_endpoint read;
    dd_addr_list read_addrs;
    REQUIRE_OK(dd_endpoint_decode(dd_blob_view(&bytes), &read, &read_addrs, check_err()));
    CHECK(memcmp(&endpoint.uid, &read.uid, sizeof endpoint.uid) == 0);
    CHECK(memcmp(endpoint.host_id, read.host_id, sizeof endpoint.host_id) == 0);
    CHECK_INT(read.pid, 7712);
    CHECK(strcmp(read.host, "node-b") == 0 && read.has_unix);
    REQUIRE(read_addrs.count == 2);
    char text[DD_ADDR_TEXT_MAX];
    CHECK_CONTAINS(dd_addr_print(&read_addrs.items[0], text), "10.1.2.3:29500");
    CHECK_CONTAINS(dd_addr_print(&read_addrs.items[1], text), "[2001:db8::7]:65535");
    char who[96];
    CHECK_CONTAINS(dd_endpoint_print(&read, who), "node-b, pid 7712");
    dd_blob_fini(&bytes);
}

/* Decode from a block of exactly this size, so that a sanitizer detects overreads. */
static dd_status
decode_copy(const uint8_t *bytes, size_t len, dd_endpoint *endpoint)
{
    uint8_t *copy = malloc(len > 0 ? len : 1);
    memcpy(copy, bytes, len);
    dd_status status = dd_endpoint_decode(dd_bytes_of(copy, len), endpoint, NULL, check_err());
    free(copy);
    return status;
}

TEST(an_encoded_endpoint_of_a_wrong_length_is_refused)
{
    dd_addr_list addrs;
    dd_endpoint endpoint = sample_endpoint(&addrs);
    dd_endpoint read;
    dd_blob bytes = {0};
    REQUIRE_OK(dd_endpoint_encode(&endpoint, &addrs, &bytes, check_err()));
    for (size_t len = 0; len < bytes.len; len++) {
        CHECK_STATUS(decode_copy(bytes.data, len, &read), DD_PROTOCOL);
    }
    REQUIRE_OK(dd_blob_append(&bytes, "x", 1, check_err()));
    CHECK_STATUS(decode_copy(bytes.data, bytes.len, &read), DD_PROTOCOL);
    dd_blob_fini(&bytes);
}

TEST(an_endpoint_with_any_changed_byte_is_decoded_or_refused_safely)
{
    dd_addr_list addrs;
    dd_endpoint endpoint = sample_endpoint(&addrs);
    dd_endpoint read;
    dd_blob bytes = {0};
    REQUIRE_OK(dd_endpoint_encode(&endpoint, &addrs, &bytes, check_err()));
    for (size_t at = 0; at < bytes.len; at++) {
        for (unsigned value = 0; value < 256; value++) {
            uint8_t old = bytes.data[at];
            bytes.data[at] = (uint8_t)value;
            dd_status status = decode_copy(bytes.data, bytes.len, &read);
            REQUIRE(status == DD_OK || status == DD_PROTOCOL);
            bytes.data[at] = old;
        }
    }
    bytes.data[4] = 9;
    CHECK_STATUS(decode_copy(bytes.data, bytes.len, &read), DD_PROTOCOL);
    CHECK_CONTAINS(check_message(), "got an endpoint of version 9, expected version");
    dd_blob_fini(&bytes);
}

TEST(encoding_an_endpoint_returns_an_error_when_allocations_fail)
{
    dd_addr_list addrs;
    dd_endpoint endpoint = sample_endpoint(&addrs);
    dd_blob bytes = {0};
    dd_status status = DD_OUT_OF_MEMORY;
    for (long n = 0; n < 20 && status != DD_OK; n++) {
        (void)dd_mem_fail_after(n);
        status = dd_endpoint_encode(&endpoint, &addrs, &bytes, NULL);
        (void)dd_mem_fail_after(-1);
        CHECK(status == DD_OK || (status == DD_OUT_OF_MEMORY && bytes.data == NULL));
    }
    CHECK_INT(status, DD_OK);
    dd_blob_fini(&bytes);
}

/* ---- interfaces */

TEST(network_interfaces_are_chosen_by_a_list_of_names_or_prefixes)
{
    static const struct {
        const char *names;
        const char *name;
        bool is_wanted;
    } cases[] = {
        {"", "eth0", true},         {"eth", "eth0", true},         {"eth", "weth0", false},
        {"eth0", "eth01", true},    {"=eth0", "eth01", false},     {"=eth0", "eth0", true},
        {"=lo,eth1", "eth1", true}, {"=lo,eth1", "eth12", false},  {"ib,eth", "eth3", true},
        {"^docker", "eth0", true},  {"^docker", "docker0", false}, {"^docker,lo", "lo", false},
        {"^=lo", "lo", false},      {"^=lo", "lo2", true},         {",", "eth0", false},
        {",,eth", "eth0", true},    {"eth0123456", "eth0", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (!CHECK(dd_iface_is_wanted(cases[i].names, cases[i].name) == cases[i].is_wanted)) {
            CHECK_CONTAINS(cases[i].names, cases[i].name);
        }
    }
}

static void
add_iface(dd_iface_list *list, const char *name, const char *address)
{
    dd_iface *iface = &list->items[list->count++];
    *iface = (dd_iface){.addr = ip(address, 0), .is_loopback = strcmp(name, "lo") == 0};
    strcpy(iface->name, name);
}

static void
check_choice(const dd_iface_list *list, const char *names, const char *first, const char *expected)
{
    dd_addr first_addr;
    if (first != NULL) {
        first_addr = ip(first, 1234);
    }
    dd_addr_list addrs;
    char all[512] = "";
    bool is_any = dd_ifaces_choose(list, names, first != NULL ? &first_addr : NULL, &addrs);
    CHECK(is_any == (addrs.count > 0));
    for (size_t i = 0; i < addrs.count; i++) {
        char text[DD_ADDR_TEXT_MAX];
        strcat(all, dd_addr_print(&addrs.items[i], text));
        strcat(all, " ");
    }
    CHECK_BYTES(dd_bytes_of_string(all), dd_bytes_of_string(expected));
}

TEST(the_best_addresses_are_listed_first)
{
    dd_iface_list list = {0};
    add_iface(&list, "lo", "127.0.0.1");
    add_iface(&list, "docker0", "172.17.0.1");
    add_iface(&list, "eth0", "10.0.0.1");
    add_iface(&list, "eth1", "10.1.0.1");
    add_iface(&list, "eth1", "2001:db8::1");
    check_choice(&list, "", NULL, "10.0.0.1:0 10.1.0.1:0 [2001:db8::1]:0 172.17.0.1:0 ");
    check_choice(&list, "", "10.1.0.1", "10.1.0.1:0 10.0.0.1:0 [2001:db8::1]:0 172.17.0.1:0 ");
    check_choice(&list, "", "::ffff:10.1.0.1", "10.1.0.1:0 10.0.0.1:0 [2001:db8::1]:0 172.17.0.1:0 ");
    check_choice(&list, "", "127.0.0.1", "10.0.0.1:0 10.1.0.1:0 [2001:db8::1]:0 172.17.0.1:0 ");
    check_choice(&list, "^docker", "1.2.3.4", "10.0.0.1:0 10.1.0.1:0 [2001:db8::1]:0 ");
    check_choice(&list, "lo", NULL, "127.0.0.1:0 ");
    check_choice(&list, "eth0,lo", NULL, "10.0.0.1:0 127.0.0.1:0 ");
    check_choice(&list, "eth0,lo", "127.0.0.1", "127.0.0.1:0 10.0.0.1:0 ");
    check_choice(&list, "^eth,docker", NULL, "127.0.0.1:0 ");
    check_choice(&list, "wlan", NULL, "");
}

TEST(addresses_of_this_machine_are_found)
{
    dd_addr_list addrs = {0};
    REQUIRE_OK(dd_endpoint_find_addrs("", NULL, &addrs, check_err()));
    CHECK(addrs.count > 0);
    REQUIRE_OK(dd_endpoint_find_addrs("=lo", NULL, &addrs, check_err()));
    char text[DD_ADDR_TEXT_MAX];
    CHECK_CONTAINS(dd_addr_print(&addrs.items[0], text), "127.0.0.1:0");
    CHECK_STATUS(dd_endpoint_find_addrs("nosuch", NULL, &addrs, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "\"nosuch\"");
    CHECK_CONTAINS(check_message(), "lo");
}

/* ---- presence of a process */

static dd_presence
look_for(const dd_endpoint *endpoint, const dd_addr_list *addrs)
{
    dd_endpoint own;
    dd_presence presence = DD_PRESENCE_UNKNOWN;
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S);
    CHECK_OK(dd_endpoint_init(&own, check_err()));
    CHECK_OK(dd_endpoint_check_presence(endpoint, addrs, &own, &presence, &wait, check_err()));
    return presence;
}

/* In a container with its own process ids, an id may belong to another process here, or to none. */
TEST(the_liveness_of_a_process_is_checked_without_its_process_id)
{
    dd_endpoint endpoint;
    dd_addr_list addrs = {.count = 0};
    int fd = -1;
    REQUIRE_OK(dd_endpoint_init(&endpoint, check_err()));
    endpoint.pid = 1LL << 30;
    endpoint.has_unix = true;
    CHECK_INT(look_for(&endpoint, &addrs), DD_PRESENCE_NONE);
    dd_addr addr = dd_endpoint_unix_addr(&endpoint);
    REQUIRE_OK(dd_sock_listen(&addr, &fd, check_err()));
    CHECK_INT(look_for(&endpoint, &addrs), DD_PRESENCE_RUNNING);
    dd_sock_close(fd);
    endpoint.pid = getpid();
    CHECK_INT(look_for(&endpoint, &addrs), DD_PRESENCE_NONE);
}

static void *
look_often(void *arg)
{
    static const dd_addr_list nowhere = {.count = 0};
    for (int i = 0; i < 2000; i++) {
        CHECK_INT(look_for(arg, &nowhere), DD_PRESENCE_NONE);
    }
    return NULL;
}

TEST(several_threads_may_check_the_liveness_of_a_process)
{
    dd_endpoint endpoint;
    pthread_t threads[3];
    REQUIRE_OK(dd_endpoint_init(&endpoint, check_err()));
    endpoint.has_unix = true;
    for (int i = 0; i < 3; i++) {
        REQUIRE(pthread_create(&threads[i], NULL, look_often, &endpoint) == 0);
    }
    for (int i = 0; i < 3; i++) {
        (void)pthread_join(threads[i], NULL);
    }
}

TEST(the_liveness_of_a_process_is_checked_at_its_listening_addresses)
{
    dd_endpoint endpoint;
    dd_addr_list addrs = {.count = 0};
    int fd = -1;
    REQUIRE_OK(dd_endpoint_init(&endpoint, check_err()));
    CHECK_INT(look_for(&endpoint, &addrs), DD_PRESENCE_UNKNOWN); /* the endpoint has no address */
    dd_addr addr = ip("127.0.0.1", 0);
    REQUIRE_OK(dd_sock_listen(&addr, &fd, check_err()));
    addrs.items[0] = dd_sock_local_addr(fd);
    addrs.count = 1;
    CHECK_INT(look_for(&endpoint, &addrs), DD_PRESENCE_RUNNING);
    dd_sock_close(fd);
    CHECK_INT(look_for(&endpoint, &addrs), DD_PRESENCE_NONE);
    endpoint.host_id[0] ^= 1; /* on another host, whose loopback address is not ours */
    CHECK_INT(look_for(&endpoint, &addrs), DD_PRESENCE_UNKNOWN);
}
