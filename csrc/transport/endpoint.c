#include "transport/endpoint.h"

#include "core/little_endian.h"
#include "core/system.h"
#include "net/auth.h"
#include "net/ifaces.h"
#include "net/sha256.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

/* Layout of an endpoint; sizes in bytes, numbers little-endian. The fields that the processes of a
 * host have in common come first, so that a meeting stores them once (store/meet_end.c).
 *
 *     magic 4, version 1, host_id 32, length 1 and host,
 *     number of addresses 1, and of each: family 1 (4 or 6), IP 4 or 16; then the port of each 2,
 *     255 if it listens on Unix or 0, pid 8, uid 16 */
#define ENDPOINT_MAGIC "DDcd"
#define HAS_UNIX 255
#define ENDPOINT_BYTES_MAX                                                                           \
    (4 + 1 + DD_HOST_ID_BYTES + 1 + DD_HOST_NAME_MAX + 1 + DD_ADDR_LIST_MAX * (1 + 16 + 2) + 1 + 8 + \
     DD_UID_BYTES)

/* ---- creating endpoints */

static bool
is_plain_text(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if ((uint8_t)text[i] < 0x20 || (uint8_t)text[i] >= 0x7f) {
            return false;
        }
    }
    return true;
}

static void
fill_host(char host[DD_HOST_NAME_MAX])
{
    if (dd_sys_gethostname(host, DD_HOST_NAME_MAX) != 0) {
        snprintf(host, DD_HOST_NAME_MAX, "?");
    }
    host[DD_HOST_NAME_MAX - 1] = '\0';
    for (char *c = host; *c != '\0'; c++) {
        *c = is_plain_text(c, 1) ? *c : '?';
    }
}

/* Set a hash that identifies this host, or zeros if the host is unknown. An endpoint with zeros is
 * on the same host as no other endpoint, not even as itself. */
static void
fill_host_id(uint8_t id[DD_HOST_ID_BYTES])
{
    _Static_assert(DD_HOST_ID_BYTES == DD_SHA256_BYTES, "the id is a digest");
    memset(id, 0, DD_HOST_ID_BYTES);
    char boot[64];
    int fd = dd_sys_open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC, 0);
    ssize_t boot_len = fd >= 0 ? dd_sys_read(fd, boot, sizeof boot) : -1;
    if (fd >= 0) {
        dd_sys_close(fd);
    }
    struct stat info; /* identifies the network namespace, where abstract names are unique */
    if (boot_len <= 0 || dd_sys_stat("/proc/self/ns/net", &info) != 0) {
        return;
    }
    const uint64_t space[2] = {(uint64_t)info.st_dev, (uint64_t)info.st_ino};
    dd_sha256 sha;
    dd_sha256_init(&sha);
    dd_sha256_update(&sha, dd_bytes_of_string("dldist host"));
    dd_sha256_update(&sha, dd_bytes_of(boot, (size_t)boot_len));
    dd_sha256_update(&sha, dd_bytes_of(space, sizeof space));
    dd_sha256_final(&sha, id);
}

dd_status
dd_endpoint_init(dd_endpoint *endpoint, dd_error *err)
{
    dd_uid uid;
    dd_status status = dd_auth_random(uid.bytes, sizeof uid.bytes, err);
    if (status != DD_OK) {
        return status;
    }
    *endpoint = (dd_endpoint){.uid = uid, .pid = dd_sys_getpid()};
    fill_host(endpoint->host);
    fill_host_id(endpoint->host_id);
    return DD_OK;
}

dd_addr
dd_endpoint_unix_addr(const dd_endpoint *endpoint)
{
    char name[16 + 2 * DD_UID_BYTES];
    int len = snprintf(name, sizeof name, "dldist-");
    for (int i = 0; i < DD_UID_BYTES; i++) {
        len += snprintf(name + len, 3, "%02x", endpoint->uid.bytes[i]);
    }
    return dd_addr_unix_abstract(name);
}

bool
dd_endpoint_is_same_host(const dd_endpoint *a, const dd_endpoint *b)
{
    static const uint8_t unknown[DD_HOST_ID_BYTES] = {0};
    return memcmp(a->host_id, b->host_id, DD_HOST_ID_BYTES) == 0 &&
           memcmp(a->host_id, unknown, DD_HOST_ID_BYTES) != 0;
}

const char *
dd_endpoint_print(const dd_endpoint *endpoint, char out[96])
{
    snprintf(out, 96, "%s, pid %lld", endpoint->host, endpoint->pid);
    return out;
}

/* ---- encoding */

static uint8_t *
endpoint_put(uint8_t *at, const void *bytes, size_t nbytes)
{
    memcpy(at, bytes, nbytes);
    return at + nbytes;
}

static uint8_t *
put_number(uint8_t *at, uint64_t value, size_t nbytes)
{
    dd_put_number(at, value, nbytes);
    return at + nbytes;
}

static uint8_t *
put_addrs(uint8_t *at, const dd_addr_list *addrs)
{
    at = put_number(at, addrs->count, 1);
    for (size_t i = 0; i < addrs->count; i++) {
        const struct sockaddr_storage *storage = &addrs->items[i].storage;
        bool is_v4 = storage->ss_family == AF_INET;
        at = put_number(at, is_v4 ? 4 : 6, 1);
        at = is_v4 ? endpoint_put(at, &((const struct sockaddr_in *)storage)->sin_addr, 4)
                   : endpoint_put(at, &((const struct sockaddr_in6 *)storage)->sin6_addr, 16);
    }
    for (size_t i = 0; i < addrs->count; i++) {
        at = put_number(at, dd_addr_port(&addrs->items[i]), 2);
    }
    return at;
}

dd_status
dd_endpoint_encode(const dd_endpoint *endpoint, const dd_addr_list *addrs, dd_blob *out, dd_error *err)
{
    uint8_t bytes[ENDPOINT_BYTES_MAX] = ENDPOINT_MAGIC;
    size_t host_len = strlen(endpoint->host);
    uint8_t *at = put_number(bytes + 4, DD_ENDPOINT_VERSION, 1);
    at = endpoint_put(at, endpoint->host_id, DD_HOST_ID_BYTES);
    at = put_number(at, host_len, 1);
    at = endpoint_put(at, endpoint->host, host_len);
    at = put_addrs(at, addrs);
    at = put_number(at, endpoint->has_unix ? HAS_UNIX : 0, 1);
    at = put_number(at, (uint64_t)endpoint->pid, 8);
    at = endpoint_put(at, endpoint->uid.bytes, DD_UID_BYTES);
    return dd_blob_assign(out, dd_bytes_of(bytes, (size_t)(at - bytes)), err);
}

/* ---- decoding */

/* A reader of an encoded endpoint. Reading past the end returns zeros and sets is_bad. */
typedef struct endpoint_reader {
    dd_bytes rest;
    bool is_bad;
} endpoint_reader;

static const uint8_t *
endpoint_take(endpoint_reader *reader, size_t nbytes)
{
    static const uint8_t zeros[256] = {0};
    if (reader->is_bad || reader->rest.len < nbytes) {
        reader->is_bad = true;
        return zeros;
    }
    const uint8_t *bytes = reader->rest.data;
    reader->rest = dd_bytes_of(bytes + nbytes, reader->rest.len - nbytes);
    return bytes;
}

static uint64_t
take_number(endpoint_reader *reader, size_t nbytes)
{
    return dd_get_number(endpoint_take(reader, nbytes), nbytes);
}

static void
take_text_of(endpoint_reader *reader, size_t len, char *out, size_t out_size)
{
    const char *text = (const char *)endpoint_take(reader, len);
    if (len >= out_size || !is_plain_text(text, len)) {
        reader->is_bad = true;
        return;
    }
    memcpy(out, text, len);
    out[len] = '\0';
}

static void
take_ip(endpoint_reader *reader, dd_addr *addr)
{
    uint64_t family = take_number(reader, 1);
    if (family == 4) {
        struct sockaddr_in *in = (struct sockaddr_in *)&addr->storage;
        in->sin_family = AF_INET;
        memcpy(&in->sin_addr, endpoint_take(reader, 4), 4);
        addr->len = sizeof *in;
    } else if (family == 6) {
        struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&addr->storage;
        in6->sin6_family = AF_INET6;
        memcpy(&in6->sin6_addr, endpoint_take(reader, 16), 16);
        addr->len = sizeof *in6;
    } else {
        reader->is_bad = true;
    }
}

static void
take_addrs(endpoint_reader *reader, dd_addr_list *list)
{
    size_t count = (size_t)take_number(reader, 1);
    memset(list->items, 0, sizeof list->items);
    reader->is_bad = reader->is_bad || count > DD_ADDR_LIST_MAX;
    for (size_t i = 0; i < count && !reader->is_bad; i++) {
        take_ip(reader, &list->items[i]);
    }
    for (size_t i = 0; i < count && !reader->is_bad; i++) {
        uint16_t port = (uint16_t)take_number(reader, 2);
        dd_addr_set_port(&list->items[i], port);
        reader->is_bad = reader->is_bad || port == 0;
    }
    list->count = reader->is_bad ? 0 : count;
}

dd_status
dd_endpoint_decode(dd_bytes bytes, dd_endpoint *endpoint, dd_addr_list *addrs, dd_error *err)
{
    endpoint_reader reader = {.rest = bytes};
    dd_endpoint read = {0};
    dd_addr_list list = {.count = 0};
    if (memcmp(endpoint_take(&reader, 4), ENDPOINT_MAGIC, 4) != 0) {
        return dd_error_set(err, DD_PROTOCOL,
                            "malformed endpoint of a process: got %zu bytes without the magic number",
                            bytes.len);
    }
    uint64_t version = take_number(&reader, 1);
    if (version != DD_ENDPOINT_VERSION) {
        return dd_error_set(
            err, DD_PROTOCOL,
            "another version of dldist: got an endpoint of version %u, expected version %d; all ranks need "
            "the same version of dldist",
            (unsigned)version, DD_ENDPOINT_VERSION);
    }
    memcpy(read.host_id, endpoint_take(&reader, DD_HOST_ID_BYTES), DD_HOST_ID_BYTES);
    take_text_of(&reader, (size_t)take_number(&reader, 1), read.host, sizeof read.host);
    take_addrs(&reader, &list);
    uint64_t unix_mark = take_number(&reader, 1);
    reader.is_bad = reader.is_bad || (unix_mark != 0 && unix_mark != HAS_UNIX);
    read.has_unix = unix_mark == HAS_UNIX;
    read.pid = (long long)take_number(&reader, 8);
    memcpy(read.uid.bytes, endpoint_take(&reader, DD_UID_BYTES), DD_UID_BYTES);
    if (reader.is_bad || reader.rest.len != 0) {
        return dd_error_set(err, DD_PROTOCOL, "malformed endpoint of a process (%zu bytes)", bytes.len);
    }
    *endpoint = read;
    if (addrs != NULL) {
        *addrs = list;
    }
    return DD_OK;
}

/* ---- finding this host's addresses */

static void
list_names(const dd_iface_list *ifaces, char *out, size_t out_size)
{
    size_t len = 0;
    out[0] = '\0';
    for (size_t i = 0; i < ifaces->count && len < out_size; i++) {
        bool is_known = false;
        for (size_t k = 0; k < i; k++) {
            is_known = is_known || strcmp(ifaces->items[k].name, ifaces->items[i].name) == 0;
        }
        if (!is_known) {
            len += (size_t)snprintf(out + len, out_size - len, "%s%s", len > 0 ? ", " : "",
                                    ifaces->items[i].name);
        }
    }
}

dd_status
dd_endpoint_find_addrs(const char *ifnames, const dd_addr *first, dd_addr_list *list, dd_error *err)
{
    if (*ifnames == '\0' && first != NULL && dd_addr_is_loopback(first)) {
        list->count = 1;
        list->items[0] = *first;
        dd_addr_set_port(&list->items[0], 0);
        return DD_OK;
    }
    dd_iface_list ifaces;
    dd_status status = dd_ifaces_find(&ifaces, err);
    if (status != DD_OK) {
        return status;
    }
    dd_addr_list found;
    if (!dd_ifaces_choose(&ifaces, ifnames, first, &found)) {
        char names[512];
        list_names(&ifaces, names, sizeof names);
        return dd_error_set(
            err, DD_INVALID_ARGUMENT,
            "no network interface that is up and has an address matches \"%s\": expected one of: %s", ifnames,
            names[0] != '\0' ? names : "none");
    }
    *list = found;
    return DD_OK;
}
