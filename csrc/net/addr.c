#include "net/addr.h"

#include "core/background_task.h"
#include "core/mem.h"
#include "core/system.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

/* A lookup of a host name on a background thread, because the resolver has no timeout. */
typedef struct lookup {
    dd_background_task task; /* must be the first field */
    int rc;
    int sys_errno; /* errno of the resolver, if rc is EAI_SYSTEM */
    dd_addr_list result;
    char port[8]; /* const after init, as is `host` */
    char host[];
} lookup;

void
dd_addr_list_add(dd_addr_list *list, const dd_addr *addr)
{
    for (size_t i = 0; i < list->count; i++) {
        const dd_addr *other = &list->items[i];
        if (other->len == addr->len && memcmp(&other->storage, &addr->storage, addr->len) == 0) {
            return;
        }
    }
    if (list->count < DD_ADDR_LIST_MAX) {
        list->items[list->count++] = *addr;
    }
}

/* Copy each address only once: if the hosts file has a name twice, the resolver returns its address
 * twice, and listening on an address twice would fail. */
static void
copy_results(const struct addrinfo *info, dd_addr_list *list)
{
    list->count = 0;
    for (; info != NULL; info = info->ai_next) {
        if (info->ai_family == AF_INET || info->ai_family == AF_INET6) {
            dd_addr addr = {.len = info->ai_addrlen};
            memcpy(&addr.storage, info->ai_addr, info->ai_addrlen);
            dd_addr_list_add(list, &addr);
        }
    }
}

static int
get_addresses(const char *host, const char *port, int flags, dd_addr_list *list)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    struct addrinfo *info = NULL;
    int rc = dd_sys_getaddrinfo(host, port, &hints, &info);
    if (rc == 0) {
        copy_results(info, list);
        dd_sys_freeaddrinfo(info);
    }
    return rc;
}

static void
run_lookup(dd_background_task *task)
{
    lookup *self = (lookup *)task;
    self->rc = get_addresses(self->host, self->port, 0, &self->result);
    self->sys_errno = errno;
}

static void
free_lookup(dd_background_task *task)
{
    dd_mem_free(task);
}

static dd_status
resolve_error(dd_error *err, const char *host, int rc, int sys_errno)
{
    if (rc == EAI_SYSTEM) {
        return dd_error_set_errno(err, DD_NETWORK, sys_errno, "cannot resolve host \"%s\"", host);
    }
    return dd_error_set(err, DD_NETWORK, "cannot resolve host \"%s\": %s", host, gai_strerror(rc));
}

static dd_status
resolve_on_thread(const char *host, const char *port, dd_addr_list *list, const dd_wait *wait, dd_error *err)
{
    size_t host_size = strlen(host) + 1;
    lookup *self = dd_mem_zalloc(sizeof *self + host_size);
    if (self == NULL) {
        return dd_error_no_memory(err, sizeof *self + host_size);
    }
    self->task = (dd_background_task){.run = run_lookup, .free = free_lookup};
    memcpy(self->host, host, host_size);
    memcpy(self->port, port, sizeof self->port);
    dd_status status = dd_background_task_start(&self->task, "dd-resolve", err);
    if (status != DD_OK) {
        return status;
    }
    status = dd_background_task_wait(&self->task, wait, err);
    if (status == DD_TIMED_OUT) {
        status = dd_error_set(err, DD_NETWORK_TIMED_OUT, "resolving host \"%s\" timed out after %.3f s", host,
                              dd_wait_elapsed_s(wait));
    } else if (status == DD_OK && self->rc != 0) {
        status = resolve_error(err, host, self->rc, self->sys_errno);
    } else if (status == DD_OK) {
        *list = self->result;
    }
    dd_background_task_release(&self->task);
    return status;
}

dd_status
dd_addr_resolve(const char *host, uint16_t port, dd_addr_list *list, const dd_wait *wait, dd_error *err)
{
    char port_text[8];
    snprintf(port_text, sizeof port_text, "%u", port);
    if (strcmp(host, "localhost") == 0) {
        dd_addr_list v4;
        int rc = get_addresses("::1", port_text, AI_NUMERICHOST, list);
        if (rc == 0) {
            rc = get_addresses("127.0.0.1", port_text, AI_NUMERICHOST, &v4);
        }
        if (rc != 0) {
            return resolve_error(err, host, rc, errno);
        }
        list->items[list->count++] = v4.items[0];
        return DD_OK;
    }
    int rc = get_addresses(host, port_text, AI_NUMERICHOST, list);
    if (rc == 0) {
        return DD_OK;
    }
    if (rc != EAI_NONAME) {
        return resolve_error(err, host, rc, errno);
    }
    return resolve_on_thread(host, port_text, list, wait, err);
}

bool
dd_addr_is_loopback(const dd_addr *addr)
{
    if (addr->storage.ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)&addr->storage;
        return ntohl(in->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    }
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&addr->storage;
    return addr->storage.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}

bool
dd_addr_names_loopback(const char *host)
{
    dd_addr_list list = {.count = 0};
    return strcmp(host, "localhost") == 0 || (get_addresses(host, "0", AI_NUMERICHOST, &list) == 0 &&
                                              list.count > 0 && dd_addr_is_loopback(&list.items[0]));
}

bool
dd_addr_is_wildcard(const char *host)
{
    return strcmp(host, "") == 0 || strcmp(host, "*") == 0 || strcmp(host, "0.0.0.0") == 0 ||
           strcmp(host, "::") == 0;
}

dd_addr
dd_addr_unix_abstract(const char *name)
{
    dd_addr addr = {0};
    struct sockaddr_un *un = (struct sockaddr_un *)&addr.storage;
    un->sun_family = AF_UNIX;
    size_t name_len = strnlen(name, sizeof un->sun_path - 1);
    memcpy(un->sun_path + 1, name, name_len);
    addr.len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + name_len);
    return addr;
}

uint16_t
dd_addr_port(const dd_addr *addr)
{
    switch (addr->storage.ss_family) {
    case AF_INET:
        return ntohs(((const struct sockaddr_in *)&addr->storage)->sin_port);
    case AF_INET6:
        return ntohs(((const struct sockaddr_in6 *)&addr->storage)->sin6_port);
    default:
        return 0;
    }
}

void
dd_addr_set_port(dd_addr *addr, uint16_t port)
{
    if (addr->storage.ss_family == AF_INET) {
        ((struct sockaddr_in *)&addr->storage)->sin_port = htons(port);
    } else if (addr->storage.ss_family == AF_INET6) {
        ((struct sockaddr_in6 *)&addr->storage)->sin6_port = htons(port);
    }
}

static const char *
print_unix(const dd_addr *addr, char out[DD_ADDR_TEXT_MAX])
{
    const struct sockaddr_un *un = (const struct sockaddr_un *)&addr->storage;
    size_t head = offsetof(struct sockaddr_un, sun_path);
    if (addr->len <= head + 1) {
        /* the connecting end of a Unix socket has no name */
        snprintf(out, DD_ADDR_TEXT_MAX, "unix:");
    } else {
        snprintf(out, DD_ADDR_TEXT_MAX, "unix:@%.*s", (int)(addr->len - head - 1), un->sun_path + 1);
    }
    return out;
}

const char *
dd_addr_print(const dd_addr *addr, char out[DD_ADDR_TEXT_MAX])
{
    char ip[INET6_ADDRSTRLEN] = "?";
    switch (addr->storage.ss_family) {
    case AF_INET:
        inet_ntop(AF_INET, &((const struct sockaddr_in *)&addr->storage)->sin_addr, ip, sizeof ip);
        snprintf(out, DD_ADDR_TEXT_MAX, "%s:%u", ip, dd_addr_port(addr));
        return out;
    case AF_INET6:
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)&addr->storage)->sin6_addr, ip, sizeof ip);
        snprintf(out, DD_ADDR_TEXT_MAX, "[%s]:%u", ip, dd_addr_port(addr));
        return out;
    case AF_UNIX:
        return print_unix(addr, out);
    default:
        snprintf(out, DD_ADDR_TEXT_MAX, "address of family %d", addr->storage.ss_family);
        return out;
    }
}
