#include "core/map.h"

#include "core/clock.h"
#include "core/mem.h"
#include "core/system.h"

#include <string.h>

#define MIN_BUCKETS 16

static inline uint64_t
rotate_left(uint64_t x, int n)
{
    return x << n | x >> (64 - n);
}

typedef struct sip_state {
    uint64_t v0, v1, v2, v3;
} sip_state;

static inline void
sip_round(sip_state *s)
{
    s->v0 += s->v1;
    s->v1 = rotate_left(s->v1, 13) ^ s->v0;
    s->v0 = rotate_left(s->v0, 32);
    s->v2 += s->v3;
    s->v3 = rotate_left(s->v3, 16) ^ s->v2;
    s->v0 += s->v3;
    s->v3 = rotate_left(s->v3, 21) ^ s->v0;
    s->v2 += s->v1;
    s->v1 = rotate_left(s->v1, 17) ^ s->v2;
    s->v2 = rotate_left(s->v2, 32);
}

static inline void
sip_absorb(sip_state *s, uint64_t word)
{
    s->v3 ^= word;
    sip_round(s);
    s->v0 ^= word;
}

/* SipHash-1-3. An attacker who does not know the secret cannot choose keys for one bucket. */
static uint64_t
hash_key(const uint64_t secret[2], dd_bytes key)
{
    sip_state s = {
        secret[0] ^ UINT64_C(0x736f6d6570736575),
        secret[1] ^ UINT64_C(0x646f72616e646f6d),
        secret[0] ^ UINT64_C(0x6c7967656e657261),
        secret[1] ^ UINT64_C(0x7465646279746573),
    };
    size_t done = 0;
    for (; key.len - done >= 8; done += 8) {
        uint64_t word;
        memcpy(&word, key.data + done, 8);
        sip_absorb(&s, word);
    }
    uint64_t last = (uint64_t)key.len << 56;
    for (size_t i = done; i < key.len; i++) {
        last |= (uint64_t)key.data[i] << (8 * (i - done));
    }
    sip_absorb(&s, last);
    s.v2 ^= 0xff;
    sip_round(&s);
    sip_round(&s);
    sip_round(&s);
    return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

void
dd_map_init(dd_map *map)
{
    *map = (dd_map){0};
    if (dd_sys_getrandom(map->secret, sizeof map->secret, GRND_NONBLOCK) != (ssize_t)sizeof map->secret) {
        /* Early during boot there may be no randomness. A time and an address are better than
         * constants. */
        map->secret[0] = (uint64_t)dd_clock_now_ns();
        map->secret[1] = (uint64_t)(uintptr_t)map;
    }
}

void
dd_map_fini(dd_map *map)
{
    dd_mem_free(map->buckets);
    *map = (dd_map){0};
}

static dd_map_node **
bucket_of(const dd_map *map, uint64_t hash)
{
    return &map->buckets[hash & (map->nbuckets - 1)];
}

dd_map_node *
dd_map_find(const dd_map *map, dd_bytes key)
{
    if (map->count == 0) {
        return NULL;
    }
    uint64_t hash = hash_key(map->secret, key);
    dd_map_node *node = *bucket_of(map, hash);
    while (node != NULL && (node->hash != hash || !dd_bytes_equal(node->key, key))) {
        node = node->next;
    }
    return node;
}

static void
link_node(dd_map *map, dd_map_node *node)
{
    dd_map_node **bucket = bucket_of(map, node->hash);
    node->next = *bucket;
    *bucket = node;
}

static dd_status
grow(dd_map *map, dd_error *err)
{
    dd_map old = *map;
    size_t nbuckets = old.nbuckets > 0 ? old.nbuckets * 2 : MIN_BUCKETS;
    dd_map_node **buckets = dd_mem_zalloc(nbuckets * sizeof(dd_map_node *));
    if (buckets == NULL) {
        return dd_error_no_memory(err, nbuckets * sizeof(dd_map_node *));
    }
    map->buckets = buckets;
    map->nbuckets = nbuckets;
    for (size_t i = 0; i < old.nbuckets; i++) {
        dd_map_node *next;
        for (dd_map_node *node = old.buckets[i]; node != NULL; node = next) {
            next = node->next;
            link_node(map, node);
        }
    }
    dd_mem_free(old.buckets);
    return DD_OK;
}

dd_status
dd_map_insert(dd_map *map, dd_map_node *node, dd_error *err)
{
    if (map->count >= map->nbuckets) {
        dd_status status = grow(map, err);
        if (status != DD_OK) {
            return status;
        }
    }
    node->hash = hash_key(map->secret, node->key);
    link_node(map, node);
    map->count++;
    return DD_OK;
}

/* Return the address of the pointer that points to `node`, which must be in the map. */
static dd_map_node **
link_to(const dd_map *map, const dd_map_node *node)
{
    dd_map_node **link = bucket_of(map, node->hash);
    while (*link != node) {
        link = &(*link)->next;
    }
    return link;
}

void
dd_map_replace(dd_map *map, dd_map_node *node, dd_map_node *by)
{
    by->hash = node->hash;
    by->next = node->next;
    *link_to(map, node) = by;
}

void
dd_map_remove(dd_map *map, dd_map_node *node)
{
    *link_to(map, node) = node->next;
    map->count--;
}

dd_map_node *
dd_map_next(const dd_map *map, const dd_map_node *node)
{
    if (node != NULL && node->next != NULL) {
        return node->next;
    }
    size_t i = node != NULL ? (node->hash & (map->nbuckets - 1)) + 1 : 0;
    for (; i < map->nbuckets; i++) {
        if (map->buckets[i] != NULL) {
            return map->buckets[i];
        }
    }
    return NULL;
}
