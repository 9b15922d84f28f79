/* Hash map from byte strings to objects that embed a dd_map_node.
 *
 * The hash is keyed with a random secret per map, since the keys are a peer's bytes. */
#ifndef DD_CORE_MAP_H
#define DD_CORE_MAP_H

#include "core/bytes.h"
#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct dd_map_node {
    struct dd_map_node *next;
    uint64_t hash;
    dd_bytes key; /* the owner keeps these bytes alive and unchanged while the node is in the map */
} dd_map_node;

typedef struct dd_map {
    dd_map_node **buckets;
    size_t nbuckets; /* a power of two, or 0 before the first insert */
    size_t count;
    uint64_t secret[2];
} dd_map;

void dd_map_init(dd_map *map);

/* Frees the table; the nodes are the owner's. Accepts a zeroed map. */
void dd_map_fini(dd_map *map);

/* The node with that key, or NULL. */
dd_map_node *dd_map_find(const dd_map *map, dd_bytes key);

/* Adds a node whose key is set and not in the map yet. On failure (DD_OUT_OF_MEMORY) nothing has changed. */
dd_status dd_map_insert(dd_map *map, dd_map_node *node, dd_error *err) DD_MUST_CHECK;

/* Put a node with the same key in the map instead of one that is in it. */
void dd_map_replace(dd_map *map, dd_map_node *node, dd_map_node *by);

/* Takes a node that is in the map out of it. */
void dd_map_remove(dd_map *map, dd_map_node *node);

/* Walks all nodes in no particular order: NULL gives the first, a node the one after, NULL at the end. The map
 * may not change in between, except that the node returned last may be freed if `next` was asked before. */
dd_map_node *dd_map_next(const dd_map *map, const dd_map_node *node);

#endif
