/* Cards: the data that a process publishes in the store so that others can reach it and name it.
 *
 * Two processes are on one host if their boot ids and network namespaces are equal: then they
 * connect over an abstract Unix socket, else over TCP at one of the addresses, tried in order. */
#ifndef DD_TRANSPORT_CARD_H
#define DD_TRANSPORT_CARD_H

#include "core/bytes.h"
#include "core/status.h"
#include "core/wait.h"
#include "net/addr.h"

#include <stdbool.h>
#include <stdint.h>

/* Version of cards and of all that processes of a group exchange: hellos, frames, doorbells. Any
 * change must increase it: cards then reveal different builds before anything is exchanged. */
#define DD_CARD_VERSION 6

#define DD_UID_BYTES 16
#define DD_HOST_ID_BYTES 32

typedef struct dd_uid {
    uint8_t bytes[DD_UID_BYTES];
} dd_uid;

typedef struct dd_card {
    dd_uid uid;                        /* random, one per engine */
    uint8_t host_id[DD_HOST_ID_BYTES]; /* hash of boot id and network namespace */
    char host[DD_HOST_NAME_MAX];       /* host name, for messages */
    long long pid;
    bool has_unix; /* listens at dd_card_unix_addr; false if shared memory is turned off */
} dd_card;

/* Set the fields that do not depend on the engine: uid (new), host_id, host, pid. */
dd_status dd_card_init(dd_card *card, dd_error *err) DD_MUST_CHECK;

/* Return the abstract Unix address, which is derived from the uid. */
dd_addr dd_card_unix_addr(const dd_card *card);

bool dd_card_is_same_host(const dd_card *a, const dd_card *b);

/* Encode a card with its process's TCP addresses (IPv4, IPv6); none if it listens only on Unix. */
dd_status dd_card_encode(const dd_card *card, const dd_addr_list *addrs, dd_blob *out,
                         dd_error *err) DD_MUST_CHECK;
/* Decode a peer's card; DD_PROTOCOL if it is malformed. `addrs` may be NULL. */
dd_status dd_card_decode(dd_bytes bytes, dd_card *card, dd_addr_list *addrs, dd_error *err) DD_MUST_CHECK;

/* Write text such as "node-b, pid 7712" for messages. Returns out. */
const char *dd_card_print(const dd_card *card, char out[96]);

typedef enum dd_presence {
    DD_PRESENCE_UNKNOWN,
    DD_PRESENCE_RUNNING,
    /* connections to its addresses are refused; as seen from here, they may be another host's */
    DD_PRESENCE_REFUSED,
    DD_PRESENCE_NONE, /* its process has ended */
} dd_presence;

/* Find out whether the card's process runs, as far as this host can see; `own` is the card of a
 * process on this host. Fails only with DD_INTERRUPTED. */
dd_status dd_card_check_presence(const dd_card *card, const dd_addr_list *addrs, const dd_card *own,
                                 dd_presence *presence, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* List the machine's usable addresses. `ifnames` selects interfaces: comma-separated prefixes;
 * "=eth0" exactly this one; "^docker" all except these; "" all. Loopback is included only if it is
 * named or there is no other. `first` (may be NULL; its port is ignored) comes first if it is in
 * the list; if ifnames is "" and `first` is a loopback address, it is the only one.
 * DD_INVALID_ARGUMENT, with a list of the interfaces, if none fits. */
dd_status dd_card_find_addrs(const char *ifnames, const dd_addr *first, dd_addr_list *list,
                             dd_error *err) DD_MUST_CHECK;

#endif
