/* Visiting cards: what a process tells the others so that they can reach it, and can say who it is.
 *
 * A card is published in the store as bytes. Two processes are on one host when boot and network namespace
 * are the same; then they meet over an abstract Unix socket, else over TCP at one of the addresses, in
 * their order. */
#ifndef DD_TRANSPORT_CARD_H
#define DD_TRANSPORT_CARD_H

#include "core/bytes.h"
#include "core/status.h"
#include "core/wait.h"
#include "net/addr.h"

#include <stdbool.h>
#include <stdint.h>

/* Of cards, and of all that the processes of a group say to each other: hellos, frames, doorbells. A change to any of them needs a new one, so
 * that builds which differ know it from the cards, before anything else is said. */
#define DD_CARD_VERSION 6

#define DD_UID_BYTES 16
#define DD_HOST_ID_BYTES 32

typedef struct dd_uid {
    uint8_t bytes[DD_UID_BYTES];
} dd_uid;

typedef struct dd_card {
    dd_uid uid;                        /* of the engine; random */
    uint8_t host_id[DD_HOST_ID_BYTES]; /* hash of boot id and network namespace */
    char host[DD_HOST_NAME_MAX];       /* for messages */
    long long pid;
    bool has_unix; /* listens at dd_card_unix_addr; false when shared memory is turned off */
} dd_card;

/* What of a process does not depend on the engine: uid (fresh), host_id, host, pid. */
dd_status dd_card_init(dd_card *card, dd_error *err) DD_MUST_CHECK;

/* Its abstract Unix address, which follows from the uid. */
dd_addr dd_card_unix_addr(const dd_card *card);

bool dd_card_is_same_host(const dd_card *a, const dd_card *b);

/* A card is published with the TCP addresses (IPv4 and IPv6) of its process; there are none when it listens on Unix only. */
dd_status dd_card_encode(const dd_card *card, const dd_addr_list *addrs, dd_blob *out,
                         dd_error *err) DD_MUST_CHECK;
/* The bytes are a peer's: DD_PROTOCOL when they make no sense. `addrs` may be NULL. */
dd_status dd_card_decode(dd_bytes bytes, dd_card *card, dd_addr_list *addrs, dd_error *err) DD_MUST_CHECK;

/* "node-b, pid 7712": for messages. Returns out. */
const char *dd_card_print(const dd_card *card, char out[96]);

typedef enum dd_presence {
    DD_PRESENCE_UNKNOWN,
    DD_PRESENCE_THERE,
    /* nobody listens at its addresses, as seen from here, where they may be another host's */
    DD_PRESENCE_REFUSED,
    DD_PRESENCE_NONE, /* its process has ended */
} dd_presence;

/* Whether the process of the card runs, as far as can be seen from here; `own` is the card of a process on
 * this host. Fails only with DD_INTERRUPTED. */
dd_status dd_card_look_for(const dd_card *card, const dd_addr_list *addrs, const dd_card *own,
                           dd_presence *presence, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* The machine's usable addresses, those of the named interfaces only when ifnames is not ""
 * (comma-separated prefixes; "=eth0" exactly that; "^docker" all but those). Loopback only if there is
 * nothing else or it is named. `first` (may be NULL; its port does not matter) comes first when it is
 * among them; without names, a loopback address comes alone. DD_INVALID_ARGUMENT when no interface fits,
 * listing those there are. */
dd_status dd_card_find_addrs(const char *ifnames, const dd_addr *first, dd_addr_list *list,
                             dd_error *err) DD_MUST_CHECK;

#endif
