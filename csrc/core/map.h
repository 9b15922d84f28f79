/* Hash map from byte strings to objects that embed a dd_map_node.
 *
 * Each map's hash has a random secret, because peers choose the keys, and could choose keys that
 * collide. */
#ifndef DD_CORE_MAP_H
#define DD_CORE_MAP_H

#include "core/bytes.h"
#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct dd_map_node {
    struct dd_map_node *next;
    uint64_t hash;
    dd_bytes key; /* the owner must keep these bytes unchanged while the node is in the map */
} dd_map_node;

typedef struct dd_map {
    dd_map_node **buckets;
    size_t nbuckets; /* number of buckets: a power of two, or 0 before the first insert */
    size_t count;
    uint64_t secret[2];
} dd_map;

void dd_map_init(dd_map *map);

/* Free the map's table, but not the nodes, which their owner must free. A zeroed map is allowed. */
void dd_map_fini(dd_map *map);

/* Return the node with this key, or NULL if there is none. */
dd_map_node *dd_map_find(const dd_map *map, dd_bytes key);

/* Add a node, whose key must not be in the map. On failure nothing has changed. */
dd_status dd_map_insert(dd_map *map, dd_map_node *node, dd_error *err) DD_MUST_CHECK;

/* Replace a node that is in the map by `by`, which must have the same key. */
void dd_map_replace(dd_map *map, dd_map_node *node, dd_map_node *by);

void dd_map_remove(dd_map *map, dd_map_node *node);

/* Iterate in no particular order: NULL gets the first node, a node its successor; NULL at the end.
 * The map must not change, except that a node may be freed once its successor was fetched. */
dd_map_node *dd_map_next(const dd_map *map, const dd_map_node *node);

#endif
