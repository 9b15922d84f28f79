/* Intrusive doubly linked list. Heads and nodes have the same type. After dd_list_init or
 * dd_list_remove, a node points to itself, so a second dd_list_remove has no effect. */
#ifndef DD_CORE_LIST_H
#define DD_CORE_LIST_H

#include <stdbool.h>
#include <stddef.h>

typedef struct dd_list {
    struct dd_list *next;
    struct dd_list *prev;
} dd_list;

#define DD_CONTAINER_OF(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

static inline void
dd_list_init(dd_list *list)
{
    list->next = list;
    list->prev = list;
}

static inline bool
dd_list_is_empty(const dd_list *list)
{
    return list->next == list;
}

static inline void
dd_list_remove(dd_list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    dd_list_init(node);
}

/* Insert `node`, which must be in no list, before `position`. Before the head means: at the end. */
static inline void
dd_list_insert_before(dd_list *position, dd_list *node)
{
    node->next = position;
    node->prev = position->prev;
    position->prev->next = node;
    position->prev = node;
}

static inline void
dd_list_push_back(dd_list *head, dd_list *node)
{
    dd_list_insert_before(head, node);
}

#endif
